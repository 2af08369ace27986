"""A client that fetches ranges: positions [lo, hi) of a stream, in order, and nothing beyond.

A subscriber is sent whatever comes until it says stop; who wants a certain range, as a task of a
batch job does, would be sent much for nothing. So this one asks for the range: the answer is a
large part of it, and with its last message the next part is asked for. After `Hold` nothing is
asked for until `Go`.

Positions that a server declares lost (`RangeLost`) are told of in their place (`Lost`), and the
range goes on behind them. Nothing else is ever passed over.

When a server goes away, falls silent or does not have what is wanted, the next one is asked from
the same position on.
"""

from collections import Counter
from typing import ClassVar

from surecast.core import endpoint
from surecast.core.endpoint import Go, Hold, Lost, Short
from surecast.core.machine import HandlerMachine
from surecast.core.types import (
    MS,
    Deliver,
    Emit,
    LogId,
    Peer,
    PeerDown,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.messages import RangeEvents, RangeLost, ReadRange

__all__ = ["Fetcher"]

AGAIN_NS = 50 * MS  # after a server that does not have it
WHY_MAX = 200  # characters that are passed on of why something is lost


class Fetcher(HandlerMachine):
    handlers: ClassVar[dict[type, str]] = {
        RangeEvents: "_on_range_events",
        RangeLost: "_on_range_lost",
    }
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        endpoint.ReadRange: "_on_read_range",
        Hold: "_on_hold",
        Go: "_on_go",
        TimerFired: "_on_timer",
        PeerDown: "_on_peer_down",
    }

    def __init__(self, config: SubscriberConfig, counters: Counter[str] | None = None) -> None:
        super().__init__(counters)
        self.config = config
        self.stream: LogId = b""
        self.position = 0  # the next one wanted
        self.hi = 0
        self.held = False
        self.asking = False  # an answer is under way
        self.heard_ns = 0
        self.target = 0

    def _on_start(self, _inp: Start) -> None:
        self.out.append(SetTimer("idle", self.now_ns + self.config.idle_ns))

    def _on_read_range(self, inp: endpoint.ReadRange) -> None:
        self.stream, self.position, self.hi = inp.stream, inp.lo, inp.hi
        self.held = False
        self._ask()

    def _on_hold(self, _inp: Hold) -> None:
        self.held = True

    def _on_go(self, _inp: Go) -> None:
        self.held = False
        if not self.asking:
            self._ask()

    def _on_timer(self, inp: TimerFired) -> None:
        if inp.key == "again":
            if not self.asking:
                self._ask()
            return
        self.out.append(SetTimer("idle", self.now_ns + self.config.idle_ns))
        if self.asking and self.now_ns - self.heard_ns >= self.config.idle_ns:
            self._ask_next()

    def _on_peer_down(self, inp: PeerDown) -> None:
        if inp.peer == self._server:
            self._ask_next()

    @property
    def _server(self) -> Peer:
        return self.config.replicas[self.target]

    def _ask(self) -> None:
        self.asking = False
        if self.position < self.hi and not self.held:
            self.asking = True
            self.heard_ns = self.now_ns
            self._send(self._server, ReadRange(self.stream, self.position, self.hi))

    def _ask_next(self) -> None:
        self.target = (self.target + 1) % len(self.config.replicas)
        self._ask()

    def _is_answer(self, peer: Peer, message: RangeEvents | RangeLost) -> bool:
        return message.stream == self.stream and peer == self._server and self.asking

    def _on_range_lost(self, peer: Peer, message: RangeLost) -> None:
        if not self._is_answer(peer, message):
            return
        self.heard_ns = self.now_ns
        before = self.position
        # Else it is an answer to something else, or nonsense.
        if message.lo <= before < min(message.hi, self.hi):
            self.position = min(message.hi, self.hi)
            why = message.why[:WHY_MAX]
            self.out.append(Emit(Lost(message.stream, before, self.position, why)))
        self._came(before, message)

    def _on_range_events(self, peer: Peer, message: RangeEvents) -> None:
        if not self._is_answer(peer, message):
            return
        self.heard_ns = self.now_ns
        fresh, before = [], self.position
        for batch in message.batches:
            if batch.lo > self.position or self.position >= self.hi:
                break  # an answer to something else, or damage
            if batch.hi > self.position:
                part = batch.slice(self.position, self.hi)
                fresh.append(part)
                self.position = part.hi
        if fresh:
            self.out.append(Deliver(message.stream, tuple(fresh)))
        self._came(before, message)

    def _came(self, before: int, message: RangeEvents | RangeLost) -> None:
        """With the last message of an answer the next part is asked for."""
        if not message.last:
            return
        self.asking = False
        if self.position > before:
            self._ask()
        elif self.position < self.hi:
            self.out.append(Emit(Short(message.stream, message.end)))
            self.target = (self.target + 1) % len(self.config.replicas)
            self.out.append(SetTimer("again", self.now_ns + AGAIN_NS))
