"""A reader's state machine: puts batches in order, requests missing ranges with a negative
acknowledgement (NAK), and reports losses."""

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from surecast.columns.batch import Batch
from surecast.columns.rules import is_end
from surecast.core.endpoint import Ended, Follow, Lost, Unfollow
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

# The reason that `Lost` gives to the application.
WHY = "older than what is sent again (nakcast.repair_max)"


@dataclass(slots=True)
class Followed:
    """One stream that the reader follows."""

    next: int  # all positions below are delivered or reported as lost
    joined_ns: int  # when the last Join was sent
    # Positions below exist, so missing ones can be requested. From the last beacon or batch.
    end: int = 1
    heard_ns: int = -1 << 62  # when the last beacon of the stream came
    number: int = 0  # of the last NAK
    asked_ns: int = 0  # when the last NAK was sent
    # When the last part of the answer to this NAK came. Equal to `asked_ns` before the first part.
    answered_ns: int = 0
    # Batches that wait for missing positions below them, by their first position.
    held: dict[int, Batch] = field(default_factory=dict)
    held_bytes: int = 0  # of all batches in `held`


class Reader(HandlerMachine):
    """Follows streams at one server at a time; changes to the next server if that one fails."""

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
        # Streams that may have missing ranges, in the order in which NAKs are sent for them.
        self.behind: dict[LogId, None] = {}
        self.asking: dict[LogId, None] = {}  # streams whose last NAK is not fully answered
        self.wait_ns = config.nak_ns  # how long to wait for an answer, from measured round trips
        self.has_timer = False  # the timer "nak" is set
        self.target = 0  # the current server, as an index of `config.servers`
        # When positions of any stream were last delivered or reported lost, or the server changed.
        self.progress_ns = 0

    # ------------------------------------------------------------ choosing a server

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
            for stream, followed in self.streams.items()
            if self.now_ns - max(followed.heard_ns, followed.joined_ns) >= idle_ns
        ]
        stale = self.now_ns - self.progress_ns >= self.config.stale_ns
        if self.streams and len(self.config.servers) > 1 and (silent or stale):
            self._join_next()
            return
        for stream in silent:  # the server did not know the stream, or has removed this reader
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
        for stream, followed in self.streams.items():
            followed.joined_ns = self.now_ns
            self._send(self._server, Join(stream))

    # ------------------------------------------------------------ what arrives

    def _on_data(self, peer: Peer, message: Data) -> None:
        batch = message.batch
        followed = self._followed(peer, batch.stream_id)
        if followed is not None:
            self._answered(batch.stream_id, followed)
            self._take(followed, batch)

    def _followed(self, peer: Peer, stream: LogId) -> Followed | None:
        if peer != self._server:
            return None  # sent by a former server; the current one sends the same batches
        return self.streams.get(stream)

    def _take(self, followed: Followed, batch: Batch) -> None:
        config = self.config
        if batch.hi <= followed.next:  # G1: delivered before, or before the start
            if is_end(batch):
                self.out.append(Emit(Ended(batch.stream_id, batch.hi)))
            return
        followed.end = max(followed.end, batch.lo)  # only positions below it may be missing
        if batch.lo > followed.next:
            held, room = followed.held, len(followed.held) < config.window
            if batch.lo not in held and room and followed.held_bytes < config.held_bytes_max:
                held[batch.lo] = batch
                followed.held_bytes += batch.nbytes
            self.behind[batch.stream_id] = None
            self._set_timer()
            return  # a batch for which there was no room in `held` is requested later
        self._deliver(followed, [batch])

    def _deliver(self, followed: Followed, ready: list[Batch]) -> None:
        """Deliver `ready`, and the held batches that follow without a gap. Of batches that overlap,
        each position is delivered once."""
        stream, fresh = ready[0].stream_id, []
        while ready:
            batch = ready.pop()
            start = followed.next
            if batch.hi > start:
                fresh.append(batch if batch.lo == start else batch.slice(start, batch.hi))
                followed.next = batch.hi
            reached = [lo for lo in followed.held if lo <= followed.next]
            for lo in sorted(reached, reverse=True):  # the lowest last: `ready.pop` takes it first
                ready.append(followed.held.pop(lo))
                followed.held_bytes -= ready[-1].nbytes
        self.progress_ns = self.now_ns
        self.out.append(Deliver(stream, tuple(fresh)))
        assert followed.next not in followed.held
        assert followed.held_bytes >= 0

    def _on_beacon(self, peer: Peer, message: Beacon) -> None:
        followed = self._followed(peer, message.stream)
        if followed is None:
            return
        stream = message.stream
        followed.heard_ns, followed.end = self.now_ns, message.end
        if message.answers and message.answers == followed.number and stream in self.asking:
            self.wait_ns = self._wait_ns(followed)
            del self.asking[stream]
            self.behind.pop(stream, None)  # if inserted again below, it comes after the others
        if followed.next < followed.end:
            self.behind[stream] = None
        self._ask()

    # ------------------------------------------------------------ NAKs

    def _wait_ns(self, followed: Followed) -> int:
        """How long to wait for an answer from now on: twice as long as this one took, within
        `nak_ns` and `nak_ns_max`."""
        wait_ns = 2 * (self.now_ns - followed.asked_ns)
        return min(max(wait_ns, self.config.nak_ns), self.config.nak_ns_max)

    def _answered(self, stream: LogId, followed: Followed) -> None:
        """Note that a message came, perhaps a part of an answer. The first part of an answer may
        shorten `wait_ns`, which is doubled for each NAK without any answer."""
        if stream in self.asking and followed.answered_ns == followed.asked_ns:
            self.wait_ns = min(self.wait_ns, self._wait_ns(followed))
        followed.answered_ns = self.now_ns

    def _ask(self) -> None:
        """Send NAKs for streams with missing ranges, for at most `asks_max` streams at a time. The
        next NAK for a stream is sent only when the previous one was answered, or given up."""
        for stream in list(self.behind):
            if len(self.asking) >= self.config.asks_max:
                break
            if stream in self.asking:
                continue
            del self.behind[stream]
            followed = self.streams[stream]
            if holes := self._holes(followed):
                self.behind[stream] = self.asking[stream] = None  # insert in both
                followed.asked_ns = followed.answered_ns = self.now_ns
                followed.number += 1
                nak = Nak(stream, tuple(holes), followed.number)
                self.out.append(Send(self._server, nak, reliable=False))
        if self.asking:
            self._set_timer()

    def _look_for_answers(self) -> None:
        """G2: give up NAKs whose answer does not come, or stops coming; `_ask` sends new ones."""
        for stream in list(self.asking):
            followed = self.streams[stream]
            if self.now_ns - followed.answered_ns >= self.wait_ns:
                del self.asking[stream]
                # Wait longer next time if no part of the answer came. Otherwise only its end was
                # lost, and the time to wait is long enough.
                if followed.answered_ns == followed.asked_ns:
                    self.wait_ns = min(2 * self.wait_ns, self.config.nak_ns_max)
        self._ask()

    def _set_timer(self) -> None:
        if not self.has_timer:
            self.has_timer = True
            self.out.append(SetTimer("nak", self.now_ns + self.wait_ns))

    def _holes(self, followed: Followed) -> list[tuple[int, int]]:
        """The missing ranges (lo, hi), lowest first: neither delivered nor held."""
        holes: list[tuple[int, int]] = []
        lo, end = followed.next, followed.end
        for start in sorted(followed.held):
            if lo < start:
                holes.append((lo, min(start, end)))
            lo = max(lo, followed.held[start].hi)
        if lo < end:
            holes.append((lo, end))
        return [(lo, hi) for lo, hi in holes if lo < hi][: self.config.window]

    def _on_gone(self, peer: Peer, message: Gone) -> None:
        """Deliver the void ranges in the message. All other positions of its range that are not
        held are lost (G3)."""
        stream = message.stream
        followed = self._followed(peer, stream)
        if followed is None:
            return
        self._answered(stream, followed)
        if not message.lo <= followed.next < message.hi:
            return  # it answers an earlier NAK, or lower positions are still missing: ask for them
        for void in message.voids:
            if void.stream_id == stream and not void.rows and void.hi <= message.hi:
                self._lose(stream, followed, void.lo)
                self._take(followed, void)
        self._lose(stream, followed, message.hi)

    def _lose(self, stream: LogId, followed: Followed, end: int) -> None:
        """Report positions up to `end` as lost, except those of held batches: deliver these."""
        while followed.next < end:
            held = min((lo for lo in followed.held if lo < end), default=end)
            assert held > followed.next
            self.out.append(Emit(Lost(stream, followed.next, held, WHY)))
            self.counters["nakcast.positions-lost"] += held - followed.next
            followed.next, self.progress_ns = held, self.now_ns
            if held in followed.held:
                batch = followed.held.pop(held)
                followed.held_bytes -= batch.nbytes
                self._deliver(followed, [batch])
