"""The publisher: numbers batches, sends them once, and again when asked."""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from surecast.core.types import (
    Batch,
    Effect,
    LogId,
    Message,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.protocols.nakcast.config import NakcastConfig
from surecast.protocols.nakcast.messages import Beacon, Data, Nak, Publish

__all__ = ["Publisher"]


@dataclass(slots=True)
class Publisher:
    config: NakcastConfig
    stream: LogId
    end: int = 1  # first position not published yet
    sent: list[Batch] = field(default_factory=list)  # from position 1, without gaps
    starts: list[int] = field(default_factory=list)  # their first positions

    def step(self, now_ns: int, inp: Any) -> list[Effect]:
        match inp:
            case Received(peer, Nak(stream, holes)) if stream == self.stream:
                return [Send(peer, Data(batch), reliable=False) for batch in self._asked(holes)]
            case Publish(batch):
                return self._on_publish(now_ns, batch)
            case Start() | TimerFired("beacon"):
                return [
                    *self._to_all(Beacon(self.stream, self.end)),
                    SetTimer("beacon", now_ns + self.config.beacon_ns),
                ]
        return []

    def _on_publish(self, now_ns: int, batch: Batch) -> list[Effect]:
        placed = batch.sequenced(self.end, now_ns, epoch=0)
        self.sent.append(placed)
        self.starts.append(placed.lo)
        self.end = placed.hi
        assert len(self.sent) == len(self.starts)
        return self._to_all(Data(placed))

    def _to_all(self, message: Message) -> list[Effect]:
        return [Send(reader, message, reliable=False) for reader in self.config.readers]

    def _asked(self, holes: tuple[tuple[int, int], ...]) -> list[Batch]:
        """The batches that fill `holes`, `window` at most. Peers may lie: any numbers can come."""
        found: dict[int, Batch] = {}
        for lo, hi in holes[: self.config.window]:
            index = max(0, bisect_right(self.starts, lo) - 1)
            for batch in self.sent[index : index + self.config.window + 1]:
                if batch.lo < hi and batch.hi > lo and len(found) < self.config.window:
                    found[batch.lo] = batch
        return list(found.values())
