"""A thin subscriber: it follows streams from its region's servers, in order, without gaps.

It asks one replica from the position it has reached. When that replica goes away, falls silent or
sends something that does not fit, it asks the next one from the same position: positions are the
same everywhere, so nothing is missed or seen twice.
"""

from collections import Counter
from typing import Any, ClassVar

from surecast.core.types import (
    Deliver,
    LogId,
    Peer,
    PeerDown,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.protocols.sprinkler.config import SubscriberConfig
from surecast.protocols.sprinkler.messages import Follow, PeerEvents, Subscribe, Unsubscribe

__all__ = ["Subscriber"]


class Subscriber:
    handlers: ClassVar[dict[type, str]] = {PeerEvents: "_on_peer_events"}
    messages = tuple(handlers)

    def __init__(
        self,
        config: SubscriberConfig,
        positions: dict[LogId, int],
        counters: Counter[str] | None = None,
    ) -> None:
        self.config = config
        self.counters: Counter[str] = Counter() if counters is None else counters
        self.positions = positions  # next position wanted, by stream
        self.target = 0
        self.heard_ns = 0
        self.now_ns = 0
        self.out: list[Any] = []

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        self.now_ns = now_ns
        out: list[Any] = []
        self.out = out
        if isinstance(inp, Received):
            if name := self.handlers.get(type(inp.message)):
                self.counters[name] += 1
                getattr(self, name)(inp.peer, inp.message)
        elif isinstance(inp, Follow):
            self.positions[inp.stream] = inp.start
            self.out.append(Send(self._server, Subscribe("", 0, inp.stream, inp.start)))
        elif isinstance(inp, Start):
            self._ask()
            self.out.append(SetTimer("idle", now_ns + self.config.idle_ns))
        elif isinstance(inp, TimerFired):
            self.out.append(SetTimer("idle", now_ns + self.config.idle_ns))
            if now_ns - self.heard_ns >= self.config.idle_ns:
                self._ask_next()
        elif isinstance(inp, PeerDown) and inp.peer == self._server:
            self._ask_next()
        return out

    @property
    def _server(self) -> Peer:
        return self.config.replicas[self.target]

    def _ask(self) -> None:
        self.heard_ns = self.now_ns
        for stream, position in self.positions.items():
            self.out.append(Send(self._server, Subscribe("", 0, stream, position)))

    def _ask_next(self) -> None:
        for stream in self.positions:
            self.out.append(Send(self._server, Unsubscribe(stream)))
        self.target = (self.target + 1) % len(self.config.replicas)
        self._ask()

    def _on_peer_events(self, peer: Peer, message: PeerEvents) -> None:
        position = self.positions.get(message.stream)
        if position is None or peer != self._server:
            return
        self.heard_ns = self.now_ns
        fresh, gap = [], False
        for batch in message.batches:
            gap = gap or batch.lo > position
            if batch.hi > position and not gap:
                fresh.append(batch if batch.lo == position else batch.slice(position, batch.hi))
                position = batch.hi
        self.positions[message.stream] = position
        if fresh:
            self.out.append(Deliver(message.stream, tuple(fresh)))
        if gap:  # damage, never a void (R9): another replica may have it whole
            self._ask_next()
