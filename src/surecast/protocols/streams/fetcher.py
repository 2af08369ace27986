"""A client's machine that fetches positions [lo, hi) of a stream, in order, and nothing else.

A subscriber is sent all new events until it unsubscribes. That is too much for a client that needs
a certain range, such as a task of a batch job. Such a client requests the range. The server answers
with one or more messages that contain a large part of the range. After the last of them the client
requests the next part. After `Hold` it requests nothing until `Go`.

If a server declares positions lost (`RangeLost`), the client emits `Lost` in the order of positions
and continues after them. It never skips any other positions.

If the range is requested with a filter, the server applies it. If a server refuses the filter, the
client requests the range there without it: the application applies the filter again in any case.

If the stream was deleted and ends before the range, the client emits `Ended` and requests nothing
more. If a server goes away, is silent or does not have the next position, the client continues with
the next server from the same position.
"""

from collections import Counter
from typing import ClassVar

from surecast.columns.rules import is_end
from surecast.core import endpoint
from surecast.core.endpoint import Ended, Go, Hold, Lost, Short, filter_number
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
from surecast.protocols.streams.messages import FilterRefused, RangeEvents, RangeLost, ReadRange

__all__ = ["Fetcher"]

AGAIN_NS = 50 * MS  # pause after an answer that does not contain the next position
WHY_MAX = 200  # characters of the reason for a loss that are passed to the application


class Fetcher(HandlerMachine):
    """Fetches one range at a time; a new ReadRange replaces the current one."""

    handlers: ClassVar[dict[type, str]] = {
        RangeEvents: "_on_range_events",
        RangeLost: "_on_range_lost",
        FilterRefused: "_on_filter_refused",
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
        self.position = 0  # the next position to deliver
        self.hi = 0  # the end of the range
        self.where = ""  # the filter
        self.filter = 0  # its number
        self.refused = False  # whether the current server has refused it
        self.held = False  # between Hold and Go
        self.asking = False  # a request is not fully answered
        self.heard_ns = 0  # when it was sent, or a part of its answer came
        self.target = 0  # the current server, as an index of `config.replicas`

    def _on_start(self, _inp: Start) -> None:
        self.out.append(SetTimer("idle", self.now_ns + self.config.idle_ns))

    def _on_read_range(self, inp: endpoint.ReadRange) -> None:
        self.stream, self.position, self.hi = inp.stream, inp.lo, inp.hi
        self.where, self.filter = inp.where, filter_number(inp.where) if inp.where else 0
        self.refused = self.held = False
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
        """Request the rest of the range, if there is one."""
        self.asking = False
        if self.position < self.hi and not self.held:
            self.asking = True
            self.heard_ns = self.now_ns
            where = "" if self.refused else self.where
            self._send(self._server, ReadRange(self.stream, self.position, self.hi, where))

    def _ask_next(self) -> None:
        """Continue at the next server."""
        self.target = (self.target + 1) % len(self.config.replicas)
        self.refused = self.refused and len(self.config.replicas) == 1
        self._ask()

    def _is_answer(self, peer: Peer, message: RangeEvents | RangeLost | FilterRefused) -> bool:
        return message.stream == self.stream and peer == self._server and self.asking

    def _on_range_lost(self, peer: Peer, message: RangeLost) -> None:
        if not self._is_answer(peer, message):
            return
        self.heard_ns = self.now_ns
        before = self.position
        # If this is false, the message answers an earlier request, or is invalid.
        if message.lo <= before < min(message.hi, self.hi):
            self.position = min(message.hi, self.hi)
            why = message.why[:WHY_MAX]
            self.out.append(Emit(Lost(message.stream, before, self.position, why)))
        self._came(before, message)

    def _on_filter_refused(self, peer: Peer, message: FilterRefused) -> None:
        if message.filter == self.filter and self._is_answer(peer, message) and not self.refused:
            self.counters["streams.filter-refused"] += 1
            self.refused = True
            self._ask()

    def _on_range_events(self, peer: Peer, message: RangeEvents) -> None:
        if not self._is_answer(peer, message):
            return
        if message.filter and message.filter != self.filter:
            return  # it answers an earlier request, with another filter
        self.heard_ns = self.now_ns
        fresh, before = [], self.position
        last = message.batches[-1] if message.batches else None
        if last is not None and last.hi <= before and is_end(last):
            self.asking = False
            self.out.append(Emit(Ended(message.stream, last.hi)))
            return  # the stream is deleted: no server will have the range
        for batch in message.batches:
            if batch.lo > self.position or self.position >= self.hi:
                break  # the message answers an earlier request, or the server's copy is damaged
            if batch.hi > self.position:
                part = batch.slice(self.position, self.hi)
                fresh.append(part)
                self.position = part.hi
        if fresh:
            self.out.append(Deliver(message.stream, tuple(fresh)))
        self._came(before, message)

    def _came(self, before: int, message: RangeEvents | RangeLost) -> None:
        """After the last message of an answer, request the next part."""
        if not message.last:
            return
        self.asking = False
        if self.position > before:
            self._ask()
        elif self.position < self.hi:  # the answer did not contain the next position
            self.out.append(Emit(Short(message.stream, message.end)))
            self.target = (self.target + 1) % len(self.config.replicas)
            self.out.append(SetTimer("again", self.now_ns + AGAIN_NS))
