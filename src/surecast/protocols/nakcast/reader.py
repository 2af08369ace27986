"""A reader: puts batches in order and asks for the holes."""

from dataclasses import dataclass, field
from typing import Any

from surecast.core.types import Batch, Deliver, Effect, LogId, Peer, Received, Send
from surecast.protocols.nakcast.config import NakcastConfig
from surecast.protocols.nakcast.messages import Beacon, Data, Nak

__all__ = ["Reader"]


@dataclass(slots=True)
class Reader:
    config: NakcastConfig
    stream: LogId
    next: int = 1  # all positions below are delivered
    held: dict[int, Batch] = field(default_factory=dict)  # early arrivals, by first position

    def step(self, now_ns: int, inp: Any) -> list[Effect]:
        out: list[Effect] = []
        match inp:
            case Received(_, Data(batch)) if batch.stream_id == self.stream:
                out = self._on_data(batch)
            case Received(peer, Beacon(stream, end)) if stream == self.stream:
                out = self._on_beacon(peer, end)
        assert self.next not in self.held  # or it should have been delivered
        assert len(self.held) <= self.config.window
        return out

    def _on_data(self, batch: Batch) -> list[Effect]:
        if batch.lo < self.next:  # G1: a batch delivered before
            return []
        if batch.lo > self.next:
            if len(self.held) < self.config.window:  # else drop it; it will be asked for again
                self.held[batch.lo] = batch
            return []
        ready = [batch]
        while (following := self.held.pop(ready[-1].hi, None)) is not None:
            ready.append(following)
        self.next = ready[-1].hi
        return [Deliver(self.stream, tuple(ready))]

    def _on_beacon(self, peer: Peer, end: int) -> list[Effect]:
        holes: list[tuple[int, int]] = []  # G2
        lo = self.next
        for start in [*sorted(self.held), end]:
            if lo < start and len(holes) < self.config.window:
                holes.append((lo, start))
            lo = self.held[start].hi if start in self.held else start
        return [Send(peer, Nak(self.stream, tuple(holes)), reliable=False)] if holes else []
