"""Serving: sends streams to the peers that follow them, as fast as each peer receives them.

A server's machine uses it to send events to clients or to other regions, up to the end that readers
may see (`core.streams`). It has one `Serving` for each type of message in which it sends events.
New events are sent at the end of the pass, so that several commits are sent in one message. The
machine calls `serve` in its handlers of `EndOfPass(SERVE)` and of `StreamsMoved`. If a peer follows
a stream that is not known yet, events are sent once it is known. `Ranges` answers requests for
ranges of positions.

Old positions may have to be loaded from the disk first (`Streams.at_hand`). Then only the followers
and requests that need them wait; the machine calls `loaded` when it gets `PieceLoaded`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from surecast.columns.batch import Batch
from surecast.core.streams import Load
from surecast.core.types import AtEndOfPass, LogId, Message, PassDown, Peer, Send

__all__ = ["SERVE", "Ranges", "Serving"]

SERVE: Final = "serve"  # the key of AtEndOfPass and EndOfPass
WAITING_MAX = 10_000  # most requests for ranges that wait for the disk, at one machine

# Functions of the protocol that make a message. Parameters of each:
MakeEvents = Callable[[LogId, tuple[Batch, ...], int], Message]  # stream, batches, end shown here
# stream, lo, hi, end shown here, whether it is the last message, batches
MakeRange = Callable[[LogId, int, int, int, bool, tuple[Batch, ...]], Message]
# stream, lo, hi, end shown here, whether it is the last message, why
MakeLost = Callable[[LogId, int, int, int, bool, str], Message]
EndEvent = Callable[[LogId], list[Batch]]  # stream → its End event; empty if it is not deleted
Passing = Callable[[tuple[Batch, ...]], list[Batch]]  # batches → the same positions, filtered
LoadPiece = Callable[[LogId, int, int, list[Any]], None]  # stream, lo, hi, the effects


def load_below(stream: LogId, lo: int, hi: int, out: list[Any]) -> None:
    """Request a piece from the stream service, for a layer above it."""
    out.append(PassDown(Load(stream, lo, hi)))


class Readable(Protocol):
    """The part of `core.streams.Streams` that `Serving` needs."""

    def shown_end(self, stream: LogId) -> int: ...

    def at_hand(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch] | None: ...


class Forfeiting(Readable, Protocol):
    """`Readable`, and the calls with which ranges that were declared lost are recognised."""

    def readable_end(self, stream: LogId) -> int: ...

    def lost_at(self, stream: LogId, seq: int) -> tuple[int, str] | None: ...


class Serving:
    """The followers of each stream, and the next position to send to each."""

    def __init__(
        self,
        service: Readable,
        make: MakeEvents,
        messages_max: int,
        end_event: EndEvent | None = None,
        load: LoadPiece = load_below,
    ) -> None:
        """`end_event` returns the last event of a deleted stream, which is sent to followers that
        begin after it."""
        self.service = service
        self.end_event = end_event
        self.load = load
        self.make = make  # makes the messages with events
        self.messages_max = messages_max  # most messages to one follower in one call of `serve`
        self.followers: dict[LogId, dict[Peer, int]] = {}  # stream → peer → next position to send
        self.count = 0  # the number of followers of all streams
        # Stream → peer → the position whose piece is being loaded for it.
        self.waiting: dict[LogId, dict[Peer, int]] = {}
        self.news: dict[LogId, None] = {}  # streams with events to send to their followers
        self.congested: dict[Peer, None] = {}  # set by the machine: peers whose queues are full
        self.is_due = False  # `serve` will be called at the end of the pass

    # ------------------------------------------------------------ followers

    def follow(self, stream: LogId, peer: Peer, start: int, out: list[Any]) -> None:
        """Begin to send a stream from `start` on. If there is nothing to send, send its end, or its
        End event if it is deleted."""
        table = self.followers.setdefault(stream, {})
        self.count += peer not in table
        table[peer] = start
        self._wait_no_more(stream, peer)
        self._serve_one(stream, peer, out, idle_answer=True)
        self._serve_rest(out)

    def has_room(self, stream: LogId, peer: Peer, count_max: int) -> bool:
        """Whether a peer may follow a stream, if at most `count_max` followers of all streams are
        allowed. A peer that already follows the stream may always start at another position."""
        return self.count < count_max or peer in self.followers.get(stream, ())

    def remove(self, stream: LogId, peer: Peer) -> None:
        table = self.followers.get(stream, {})
        self.count -= table.pop(peer, None) is not None
        self._wait_no_more(stream, peer)
        if not table:
            self.followers.pop(stream, None)

    def remove_peer(self, peer: Peer) -> None:
        self.congested.pop(peer, None)
        for stream in [stream for stream, table in self.followers.items() if peer in table]:
            self.remove(stream, peer)

    def remove_stream(self, stream: LogId) -> None:
        self.count -= len(self.followers.pop(stream, ()))
        self.news.pop(stream, None)
        self.waiting.pop(stream, None)

    # ------------------------------------------------------------ sending

    def moved(self, stream: LogId) -> None:
        """Note that more events of the stream may be shown. The next `serve` sends them."""
        if stream in self.followers:
            self.news[stream] = None

    def soon(self, out: list[Any]) -> None:
        """Request EndOfPass, in whose handler the machine calls `serve`."""
        if not self.is_due:
            self.is_due = True
            out.append(AtEndOfPass(SERVE))

    def serve(self, out: list[Any]) -> None:
        """Send new events to all followers. Messages beyond `messages_max` are sent at the end of
        the next pass."""
        self.is_due = False
        news, self.news = self.news, {}
        for stream in news:
            sent: dict[int, Message] = {}
            waiting = self.waiting.get(stream, ())
            for peer in self.followers.get(stream, {}):
                if peer not in waiting:
                    self._serve_one(stream, peer, out, sent)
        self._serve_rest(out)

    def loaded(self, stream: LogId, lo: int, out: list[Any]) -> None:
        """The piece at `lo` was loaded: continue with the followers that wait for it."""
        sent: dict[int, Message] = {}
        waiting = self.waiting.get(stream, {})
        for peer in [peer for peer, at in waiting.items() if at == lo]:
            self._wait_no_more(stream, peer)
            self._serve_one(stream, peer, out, sent)
        self._serve_rest(out)

    def _wait_no_more(self, stream: LogId, peer: Peer) -> None:
        waiting = self.waiting.get(stream)
        if waiting is not None:
            waiting.pop(peer, None)
            if not waiting:
                del self.waiting[stream]

    def writable(self, peer: Peer, out: list[Any]) -> None:
        """The peer's queue has drained."""
        self.congested.pop(peer, None)
        for stream, table in self.followers.items():
            if peer in table and peer not in self.waiting.get(stream, ()):
                self._serve_one(stream, peer, out)
        self._serve_rest(out)

    def _serve_rest(self, out: list[Any]) -> None:
        if self.news:
            self.soon(out)

    def _end_event(self, stream: LogId) -> tuple[Batch, ...]:
        return () if self.end_event is None else tuple(self.end_event(stream))

    def _serve_one(
        self,
        stream: LogId,
        peer: Peer,
        out: list[Any],
        sent: dict[int, Message] | None = None,
        idle_answer: bool = False,
    ) -> None:
        """Send new events to one follower.

        `sent` has the messages that were made for other followers, by position. They are sent to
        this follower, too, because a driver encodes a message object only once. `idle_answer`: if
        there are no events, send the end of the stream."""
        service, table = self.service, self.followers[stream]
        at, end = table[peer], service.shown_end(stream)
        if not end:
            return  # the stream is not known yet
        if at >= end and sent is not None and (ended := self._end_event(stream)):
            out.append(Send(peer, self.make(stream, ended, end)))
        sent = {} if sent is None else sent
        budget, is_readable = self.messages_max, True
        while at < end and peer not in self.congested and budget:
            budget -= 1
            message: Any = sent.get(at)
            if message is None:
                batches = service.at_hand(stream, at)
                end = service.shown_end(stream)
                if batches is None:
                    self.waiting.setdefault(stream, {})[peer] = at
                    self.load(stream, at, end, out)
                    is_readable = idle_answer = False
                    break
                if not batches:
                    is_readable = False  # retention cannot index the rest, so it is not shown
                    break
                message = sent[at] = self.make(stream, tuple(batches), end)
            at = message.batches[-1].hi
            idle_answer = False
            out.append(Send(peer, message))
        table[peer] = at
        if idle_answer:
            out.append(Send(peer, self.make(stream, self._end_event(stream), end)))
        elif is_readable and at < end and peer not in self.congested:
            self.news[stream] = None


_Key = tuple[Peer, int, int, int]  # peer, range, number of the filter


@dataclass(slots=True)
class _Request:
    """A request for a range that is not fully answered."""

    peer: Peer
    stream: LogId
    key: _Key
    lo: int  # the next position to send
    hi: int  # 0: up to the end of the stream
    make: MakeRange
    passing: Passing | None
    is_spent: Callable[[], bool]
    made: int = 0  # messages sent so far


class Ranges:
    """Answers requests for ranges of positions. An answer waits while its next piece is loaded from
    the disk; other answers are not delayed by that."""

    def __init__(
        self,
        service: Forfeiting,
        make: MakeRange,
        messages_max: int,
        stops: Callable[[Peer], bool],
        *,
        make_lost: MakeLost | None = None,
        end_event: EndEvent | None = None,
        load: LoadPiece = load_below,
    ) -> None:
        """`stops` returns whether to make no further message, because the peer's queue is full.

        `make_lost` makes the message about a range that was declared lost; without it an answer
        ends at the first hole. If a range begins after the end of a deleted stream, the answer has
        the stream's End event (`end_event`).
        """
        self.service = service
        self.make = make
        self.messages_max = messages_max  # most messages of one answer
        self.stops = stops
        self.make_lost = make_lost
        self.end_event = end_event
        self.load = load
        # Stream → the requests that wait for a piece.
        self.waiting: dict[LogId, dict[_Key, _Request]] = {}
        self.count = 0  # requests that wait

    def answer(
        self,
        peer: Peer,
        stream: LogId,
        lo: int,
        hi: int,
        out: list[Any],
        *,
        number: int = 0,
        make: MakeRange | None = None,
        passing: Passing | None = None,
        is_spent: Callable[[], bool] = lambda: False,
    ) -> None:
        """Answer a request for [lo, hi); `hi` 0 means up to the end of the stream.

        The messages contain the first part of the range, and the peer requests the next part after
        the last message. At least one message is made in any case, because the peer waits for it.
        If the peer repeats a request that waits, it gets one answer.

        The other arguments are for a peer with a filter: `number` stands for the filter, `make` is
        used for this answer, `passing` applies the filter to batches, and `is_spent` returns
        whether it has cost so much that this message must be the last one.
        """
        key = (peer, lo, hi, number)
        self._forget(stream, key)
        request = _Request(peer, stream, key, lo, hi, make or self.make, passing, is_spent)
        self._go_on(request, out)

    def loaded(self, stream: LogId, lo: int, out: list[Any]) -> None:
        """The piece at `lo` was loaded: continue the answers that wait for it."""
        for key, request in list(self.waiting.get(stream, {}).items()):
            if request.lo == lo:
                self._forget(stream, key)
                self._go_on(request, out)

    def taken_back(self, stream: LogId, out: list[Any]) -> None:
        """Positions of the stream were given up, and nothing more of it will be loaded: continue
        all answers that wait."""
        for key, request in list(self.waiting.get(stream, {}).items()):
            self._forget(stream, key)
            self._go_on(request, out)

    def remove_peer(self, peer: Peer) -> None:
        if self.count:
            for stream, table in list(self.waiting.items()):
                for key in [key for key in table if key[0] == peer]:
                    self._forget(stream, key)

    def _forget(self, stream: LogId, key: _Key) -> None:
        table = self.waiting.get(stream)
        if table is not None and table.pop(key, None) is not None:
            self.count -= 1
            if not table:
                del self.waiting[stream]

    def _wait(self, request: _Request, upto: int, out: list[Any]) -> None:
        """Continue the answer when its next piece is loaded."""
        stream = request.stream
        if self.count >= WAITING_MAX:  # the peer will request it again, here or elsewhere
            lo, end = request.lo, self.service.shown_end(stream)
            out.append(Send(request.peer, request.make(stream, lo, lo, end, True, ())))
            return
        self.count += 1
        self.waiting.setdefault(stream, {})[request.key] = request
        self.load(stream, request.lo, upto, out)

    def _go_on(self, request: _Request, out: list[Any]) -> None:
        """Send what there is of the rest of an answer."""
        service, make, make_lost = self.service, request.make, self.make_lost
        peer, stream, lo, hi = request.peer, request.stream, request.lo, request.hi
        end_of = service.shown_end if make_lost is None else service.readable_end
        end = end_of(stream)
        if not end or lo <= 0:
            out.append(Send(peer, make(stream, lo, lo, end, True, ())))
            return
        upto = min(hi or end, end)
        while lo < upto:
            at = lo
            lost = None if make_lost is None else service.lost_at(stream, lo)
            batches: tuple[Batch, ...] = ()
            if lost is not None:
                lo = min(lost[0], upto)
            else:
                piece = service.at_hand(stream, lo, upto)
                if piece is None:
                    self._wait(request, upto, out)
                    return
                batches = tuple(piece)
                if not batches:
                    break  # retention cannot index the rest, so it is not shown
                lo = batches[-1].hi
                if request.passing is not None:
                    batches = tuple(request.passing(batches))
            request.lo = lo
            request.made += 1
            is_last = lo >= upto or request.made >= self.messages_max
            is_last = is_last or self.stops(peer) or request.is_spent()
            if make_lost is not None and lost is not None:
                message = make_lost(stream, at, lo, end, is_last, lost[1])
            else:
                # The last message answers the whole range, also its part beyond the stream's end.
                answered = max(lo, hi) if lo >= upto else lo
                message = make(stream, at, answered, end, is_last, batches)
            out.append(Send(peer, message))
            if is_last:
                return
        end = end_of(stream)
        ended = () if self.end_event is None or lo < end else tuple(self.end_event(stream))
        out.append(Send(peer, make(stream, lo, max(lo, hi), end, True, ended)))
