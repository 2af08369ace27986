"""A subscriber's state machine: joins streams at one server or broker, and delivers their events.

If the server goes away or is silent, the subscriber joins at the next one, from the position it has
reached. Positions are the same everywhere, so nothing is missed or delivered twice.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from surecast.columns.batch import FILTERED, Batch
from surecast.columns.rules import is_end
from surecast.core.endpoint import Ended, Follow, Following, Lost, Unfollow
from surecast.core.machine import HandlerMachine
from surecast.core.types import (
    Deliver,
    Emit,
    LogId,
    Peer,
    PeerDown,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.protocols.gryphon.config import ReaderConfig
from surecast.protocols.gryphon.messages import Join, Leave, Matched, Refused

__all__ = ["Reader"]


@dataclass(slots=True)
class Followed:
    next: int  # all positions below are delivered; 0: not known yet
    where: str
    number: int  # of the last Join
    heard_ns: int


class Reader(HandlerMachine):
    handlers: ClassVar[dict[type, str]] = {Matched: "_on_matched", Refused: "_on_refused"}
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        Follow: "_on_follow",
        Unfollow: "_on_unfollow",
        TimerFired: "_on_timer",
        PeerDown: "_on_peer_down",
    }

    def __init__(self, config: ReaderConfig, counters: Counter[str] | None = None) -> None:
        super().__init__(counters)
        self.config = config
        self.streams: dict[LogId, Followed] = {}
        self.target = 0  # the current server, as an index of `config.servers`
        self.joins = 0

    @property
    def _server(self) -> Peer:
        return self.config.servers[self.target]

    def _on_start(self, _inp: Start) -> None:
        self.out.append(SetTimer("idle", self.now_ns + self.config.idle_ns))

    def _on_follow(self, inp: Follow) -> None:
        self.streams[inp.stream] = Followed(max(inp.start, 0), inp.where, 0, self.now_ns)
        if inp.token:  # answers to earlier Joins are dropped, because their number is another one
            self.out.append(Emit(Following(inp.stream, inp.start, inp.token)))
        self._join(inp.stream)

    def _join(self, stream: LogId) -> None:
        followed = self.streams[stream]
        self.joins += 1
        followed.number, followed.heard_ns = self.joins, self.now_ns
        self._send(self._server, Join(stream, self.joins, followed.next, followed.where))

    def _on_unfollow(self, inp: Unfollow) -> None:
        if self.streams.pop(inp.stream, None) is not None:
            self._send(self._server, Leave(inp.stream))

    def _on_timer(self, _inp: TimerFired) -> None:
        idle_ns = self.config.idle_ns
        self.out.append(SetTimer("idle", self.now_ns + idle_ns))
        silent = [
            stream
            for stream, followed in self.streams.items()
            if self.now_ns - followed.heard_ns >= idle_ns
        ]
        if silent and len(self.config.servers) > 1:
            self._join_next()
        else:
            for stream in silent:
                self._join(stream)

    def _on_peer_down(self, inp: PeerDown) -> None:
        if inp.peer == self._server and self.streams:
            self._join_next()

    def _join_next(self) -> None:
        for stream in self.streams:
            self._send(self._server, Leave(stream))
        self.target = (self.target + 1) % len(self.config.servers)
        for stream in self.streams:
            self._join(stream)

    def _on_refused(self, peer: Peer, message: Refused) -> None:
        """The server does not accept the filter: join without it, because the application applies
        it anyway. A server that does not accept that either is left after `idle_ns`."""
        followed = self.streams.get(message.stream)
        if followed is None or peer != self._server or followed.number != message.number:
            return
        self.counters["gryphon.refused"] += 1
        if followed.where:
            followed.where = ""
            self._join(message.stream)

    def _on_matched(self, peer: Peer, message: Matched) -> None:
        stream = message.stream
        followed = self.streams.get(stream)
        if followed is None or peer != self._server or followed.number != message.number:
            return
        followed.heard_ns = self.now_ns
        if not followed.next:
            followed.next = message.lo
            self.out.append(Emit(Following(stream, message.lo)))
        last = message.batches[-1] if message.batches else None
        if last is not None and last.hi <= followed.next and is_end(last):
            self.out.append(Emit(Ended(stream, last.hi)))
            return
        if message.lo > followed.next:  # a server that makes a mistake
            self.counters["gryphon.gap-in-answer"] += 1
            self._join_next()
            return
        if message.hi <= followed.next:
            return
        if message.lost:
            self.out.append(Emit(Lost(stream, followed.next, message.hi, message.lost)))
        else:
            self.out.append(Deliver(stream, _contiguous(message, followed.next)))
        followed.next = message.hi


def _contiguous(message: Matched, at: int) -> tuple[Batch, ...]:
    """The batches of a message from `at` on, with void ranges between them: positions that were
    filtered out, or are void for everybody."""
    found: list[Batch] = []
    for batch in message.batches:
        if batch.hi > at:
            if batch.lo > at:
                found.append(Batch.void(message.stream, at, batch.lo, FILTERED))
                at = batch.lo
            found.append(batch if batch.lo >= at else batch.slice(at, batch.hi))
            at = batch.hi
    if at < message.hi:
        found.append(Batch.void(message.stream, at, message.hi, FILTERED))
    return tuple(found)
