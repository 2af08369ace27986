"""A reader: puts batches in order, asks for holes, and says what is lost."""

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from surecast.columns.batch import Batch
from surecast.core.endpoint import Follow, Lost, Unfollow
from surecast.core.machine import HandlerMachine
from surecast.core.types import (
    Deliver,
    Emit,
    LogId,
    Peer,
    PeerDown,
    Send,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.protocols.nakcast.config import ReaderConfig
from surecast.protocols.nakcast.messages import Beacon, Data, Gone, Join, Leave, Nak

__all__ = ["Reader"]

WHY = "older than what is sent again (nakcast.repair_max)"


@dataclass(slots=True)
class Followed:
    """One stream."""

    next: int  # everything below is delivered or reported as lost
    joined_ns: int  # when the server was last asked for it
    end: int = 1  # how far it goes, by the last beacon or batch
    heard_ns: int = -1 << 62  # when its last beacon came
    number: int = 0  # of the last NAK
    asked_ns: int = 0  # when it was sent
    answered_ns: int = 0  # when the last part of its answer came; `asked_ns` until then
    held: dict[int, Batch] = field(default_factory=dict)  # early arrivals, by first position
    held_bytes: int = 0


class Reader(HandlerMachine):
    handlers: ClassVar[dict[type, str]] = {
        Data: "_on_data",
        Beacon: "_on_beacon",
        Gone: "_on_gone",
    }
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
        self.behind: dict[LogId, None] = {}  # streams that may have holes, the next to ask first
        self.asking: dict[LogId, None] = {}  # those with a NAK under way
        self.wait_ns = config.nak_ns  # for an answer: it follows the round trips seen
        self.has_timer = False  # will look for what to ask
        self.target = 0  # the server that is asked
        self.progress_ns = 0  # when something new came

    # ------------------------------------------------------------ whom it asks

    @property
    def _server(self) -> Peer:
        return self.config.servers[self.target]

    def _on_start(self, _inp: Start) -> None:
        self.out.append(SetTimer("idle", self.now_ns + self.config.idle_ns))

    def _on_follow(self, inp: Follow) -> None:
        self.streams[inp.stream] = Followed(max(inp.start, 1), self.now_ns)
        self._send(self._server, Join(inp.stream))

    def _on_unfollow(self, inp: Unfollow) -> None:
        if self.streams.pop(inp.stream, None) is not None:
            self.behind.pop(inp.stream, None)
            self.asking.pop(inp.stream, None)
            self._send(self._server, Leave(inp.stream))

    def _on_timer(self, inp: TimerFired) -> None:
        if inp.key == "nak":
            self.has_timer = False
            self._look_for_answers()
            return
        idle_ns = self.config.idle_ns
        self.out.append(SetTimer("idle", self.now_ns + idle_ns))
        silent = [
            stream
            for stream, one in self.streams.items()
            if self.now_ns - max(one.heard_ns, one.joined_ns) >= idle_ns
        ]
        stale = self.now_ns - self.progress_ns >= self.config.stale_ns
        if self.streams and len(self.config.servers) > 1 and (silent or stale):
            self._join_next()
            return
        for stream in silent:  # the server did not know it yet, or has forgotten us
            self.streams[stream].joined_ns = self.now_ns
            self._send(self._server, Join(stream))

    def _on_peer_down(self, inp: PeerDown) -> None:
        if inp.peer == self._server and self.streams:
            self._join_next()

    def _join_next(self) -> None:
        for stream in self.streams:
            self._send(self._server, Leave(stream))
        self.target = (self.target + 1) % len(self.config.servers)
        self.progress_ns = self.now_ns
        self.asking.clear()
        self.wait_ns = self.config.nak_ns
        for stream, one in self.streams.items():
            one.joined_ns = self.now_ns
            self._send(self._server, Join(stream))

    # ------------------------------------------------------------ what comes

    def _on_data(self, peer: Peer, message: Data) -> None:
        batch = message.batch
        one = self._followed(peer, batch.stream_id)
        if one is not None:
            self._answered(batch.stream_id, one)
            self._take(one, batch)

    def _followed(self, peer: Peer, stream: LogId) -> Followed | None:
        if peer != self._server:
            return None  # one that was left; the present one has the same batches
        return self.streams.get(stream)

    def _take(self, one: Followed, batch: Batch) -> None:
        config = self.config
        if batch.hi <= one.next:
            return  # G1: delivered before
        one.end = max(one.end, batch.lo)
        if batch.lo > one.next:
            room = len(one.held) < config.window
            if batch.lo not in one.held and room and one.held_bytes < config.held_bytes_max:
                one.held[batch.lo] = batch
                one.held_bytes += batch.nbytes
            self.behind[batch.stream_id] = None
            self._set_timer()
            return  # without room it is dropped, and asked for again
        self._deliver(one, [batch])

    def _deliver(self, one: Followed, ready: list[Batch]) -> None:
        """`ready`, and the held batches that follow without a gap. Batches may overlap."""
        stream, fresh = ready[0].stream_id, []
        while ready:
            batch = ready.pop()
            if batch.hi > one.next:
                fresh.append(batch if batch.lo == one.next else batch.slice(one.next, batch.hi))
                one.next = batch.hi
            reached = [lo for lo in one.held if lo <= one.next]
            for lo in sorted(reached, reverse=True):
                ready.append(one.held.pop(lo))
                one.held_bytes -= ready[-1].nbytes
        self.progress_ns = self.now_ns
        self.out.append(Deliver(stream, tuple(fresh)))
        assert one.next not in one.held
        assert one.held_bytes >= 0

    def _on_beacon(self, peer: Peer, message: Beacon) -> None:
        one = self._followed(peer, message.stream)
        if one is None:
            return
        stream = message.stream
        one.heard_ns, one.end = self.now_ns, message.end
        if message.answers and message.answers == one.number and stream in self.asking:
            self.wait_ns = self._wait_ns(one)
            del self.asking[stream]
            self.behind.pop(stream, None)  # others have their turn
        if one.next < one.end:
            self.behind[stream] = None
        self._ask()

    # ------------------------------------------------------------ asking

    def _wait_ns(self, one: Followed) -> int:
        """Twice as long as its answer took."""
        wait_ns = 2 * (self.now_ns - one.asked_ns)
        return min(max(wait_ns, self.config.nak_ns), self.config.nak_ns_max)

    def _answered(self, stream: LogId, one: Followed) -> None:
        """Part of an answer came. The first part may shorten the wait, which lost NAKs doubled."""
        if stream in self.asking and one.answered_ns == one.asked_ns:
            self.wait_ns = min(self.wait_ns, self._wait_ns(one))
        one.answered_ns = self.now_ns

    def _ask(self) -> None:
        """Send NAKs for streams with holes, a few at a time; each is answered before the next."""
        for stream in list(self.behind):
            if len(self.asking) >= self.config.asks_max:
                break
            if stream in self.asking:
                continue
            del self.behind[stream]
            one = self.streams[stream]
            if holes := self._holes(one):
                self.behind[stream] = self.asking[stream] = None
                one.asked_ns = one.answered_ns = self.now_ns
                one.number += 1
                nak = Nak(stream, tuple(holes), one.number)
                self.out.append(Send(self._server, nak, reliable=False))
        if self.asking:
            self._set_timer()

    def _look_for_answers(self) -> None:
        """G2: a NAK, or its answer, may be lost. Then it is sent again, each time later."""
        for stream in list(self.asking):
            one = self.streams[stream]
            if self.now_ns - one.answered_ns >= self.wait_ns:
                del self.asking[stream]
                if one.answered_ns == one.asked_ns:  # else only the end of the answer was lost
                    self.wait_ns = min(2 * self.wait_ns, self.config.nak_ns_max)
        self._ask()

    def _set_timer(self) -> None:
        if not self.has_timer:
            self.has_timer = True
            self.out.append(SetTimer("nak", self.now_ns + self.wait_ns))

    def _holes(self, one: Followed) -> list[tuple[int, int]]:
        holes: list[tuple[int, int]] = []
        lo, end = one.next, one.end
        for start in sorted(one.held):
            if lo < start:
                holes.append((lo, min(start, end)))
            lo = max(lo, one.held[start].hi)
        if lo < end:
            holes.append((lo, end))
        return [(lo, hi) for lo, hi in holes if lo < hi][: self.config.window]

    def _on_gone(self, peer: Peer, message: Gone) -> None:
        """Between the voids everything that is not held is lost (G3)."""
        stream = message.stream
        one = self._followed(peer, stream)
        if one is None:
            return
        self._answered(stream, one)
        if not message.lo <= one.next < message.hi:
            return
        for void in message.voids:
            if void.stream_id == stream and not void.rows and void.hi <= message.hi:
                self._lose(stream, one, void.lo)
                self._take(one, void)
        self._lose(stream, one, message.hi)

    def _lose(self, stream: LogId, one: Followed, end: int) -> None:
        while one.next < end:
            held = min((lo for lo in one.held if lo < end), default=end)
            assert held > one.next
            self.out.append(Emit(Lost(stream, one.next, held, WHY)))
            self.counters["nakcast.positions-lost"] += held - one.next
            one.next, self.progress_ns = held, self.now_ns
            if held in one.held:
                batch = one.held.pop(held)
                one.held_bytes -= batch.nbytes
                self._deliver(one, [batch])
