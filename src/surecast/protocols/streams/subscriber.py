"""A client's machine that follows streams, fed only by a server of its region (a *thin* client).

It subscribes at one replica, from the position it has reached, and delivers events in order and
without gaps. If that replica goes away, is silent or sends batches with a gap, the client
subscribes at the next replica from the same position. Positions are the same at all replicas, so
nothing is missed or delivered twice.

If a stream is followed with a filter, the replica applies it. Batches to which another filter was
applied are dropped: they belong to an earlier Follow. If a replica refuses the filter, the client
subscribes there without it: the application applies the filter again in any case.
"""

from collections import Counter
from typing import ClassVar

from surecast.columns.rules import is_end
from surecast.core.endpoint import Ended, Follow, Following, Unfollow, filter_number
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
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.messages import Events, FilterRefused, Subscribe, Unsubscribe

__all__ = ["Subscriber"]


class Subscriber(HandlerMachine):
    """Follows any number of streams at one replica at a time."""

    handlers: ClassVar[dict[type, str]] = {
        Events: "_on_events",
        FilterRefused: "_on_filter_refused",
    }
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        Follow: "_on_follow",
        Unfollow: "_on_unfollow",
        TimerFired: "_on_timer",
        PeerDown: "_on_peer_down",
    }

    def __init__(
        self,
        config: SubscriberConfig,
        positions: dict[LogId, int],
        counters: Counter[str] | None = None,
    ) -> None:
        super().__init__(counters)
        self.config = config
        self.positions = positions  # by stream: the next position to deliver
        self.asked_ns: dict[LogId, int] = {}  # by stream: when its last Follow came
        # The filters of streams that have one, and their numbers.
        self.filters: dict[LogId, tuple[str, int]] = {}
        self.refused: dict[LogId, None] = {}  # streams whose filter the current server refused
        self.target = 0  # the current server, as an index of `config.replicas`
        self.heard_ns = 0  # when events last came, or all streams were last subscribed to

    def _on_start(self, _inp: Start) -> None:
        self._ask()
        self.out.append(SetTimer("idle", self.now_ns + self.config.idle_ns))

    def _on_follow(self, inp: Follow) -> None:
        stream = inp.stream
        self.positions[stream] = inp.start
        self.asked_ns[stream] = self.now_ns
        self.refused.pop(stream, None)
        self.filters.pop(stream, None)
        if inp.where:
            self.filters[stream] = inp.where, filter_number(inp.where)
        if inp.token:
            self.out.append(Emit(Following(stream, inp.start, inp.token)))
        self._subscribe(stream, inp.start)

    def _subscribe(self, stream: LogId, position: int) -> None:
        where = ""
        if stream in self.filters and stream not in self.refused:
            where = self.filters[stream][0]
        self._send(self._server, Subscribe(stream, position, where))

    def _on_unfollow(self, inp: Unfollow) -> None:
        if self.positions.pop(inp.stream, None) is not None:
            self.asked_ns.pop(inp.stream, None)
            self.filters.pop(inp.stream, None)
            self.refused.pop(inp.stream, None)
            self._send(self._server, Unsubscribe(inp.stream))

    def _on_timer(self, _inp: TimerFired) -> None:
        self.out.append(SetTimer("idle", self.now_ns + self.config.idle_ns))
        if self.positions and self.now_ns - self.heard_ns >= self.config.idle_ns:
            self._ask_next()

    def _on_peer_down(self, inp: PeerDown) -> None:
        if inp.peer == self._server:
            self._ask_next()

    @property
    def _server(self) -> Peer:
        return self.config.replicas[self.target]

    def _ask(self) -> None:
        """Subscribe to all streams at the current server."""
        self.heard_ns = self.now_ns
        for stream, position in self.positions.items():
            self._subscribe(stream, position)

    def _ask_next(self) -> None:
        """Leave the current server, and subscribe at the next one."""
        for stream in self.positions:
            self._send(self._server, Unsubscribe(stream))
        self.target = (self.target + 1) % len(self.config.replicas)
        if len(self.config.replicas) > 1:
            self.refused.clear()
        self._ask()

    def _on_filter_refused(self, peer: Peer, message: FilterRefused) -> None:
        stream = message.stream
        chosen = self.filters.get(stream)
        if peer != self._server or chosen is None or chosen[1] != message.filter:
            return
        if stream in self.positions and stream not in self.refused:
            self.counters["streams.filter-refused"] += 1
            self.refused[stream] = None
            self._subscribe(stream, self.positions[stream])

    def _on_events(self, peer: Peer, message: Events) -> None:
        position = self.positions.get(message.stream)
        if position is None or peer != self._server:
            return
        self.heard_ns = self.now_ns
        if message.filter and self.filters.get(message.stream, ("", 0))[1] != message.filter:
            return  # it answers an earlier Follow, with another filter
        last = message.batches[-1] if message.batches else None
        if last is not None and last.hi <= position and is_end(last):
            self.out.append(Emit(Ended(message.stream, last.hi)))
            return
        fresh, gap = [], False
        for batch in message.batches:
            gap = gap or batch.lo > position
            if batch.hi > position and not gap:
                fresh.append(batch if batch.lo == position else batch.slice(position, batch.hi))
                position = batch.hi
        self.positions[message.stream] = position
        if fresh:
            self.out.append(Deliver(message.stream, tuple(fresh)))
        # Shortly after a Follow there may be a harmless gap: messages may still arrive that answer
        # an earlier Follow of the same stream.
        stale = self.now_ns - self.asked_ns.get(message.stream, -1 << 62) < self.config.idle_ns
        if gap and not stale:  # the replica's log is damaged: void positions leave no gap (R9)
            self._ask_next()
