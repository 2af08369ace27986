"""Serving: sends streams to the peers that follow them, as fast as each peer receives them.

A server's machine uses it to send events to clients or to other regions, up to the end that readers
may see (`core.streams`). It has one `Serving` for each type of message in which it sends events.
New events are sent at the end of the pass, so that several commits are sent in one message. The
machine calls `serve` in its handlers of `EndOfPass(SERVE)` and of `StreamsMoved`. If a peer follows
a stream that is not known yet, events are sent once it is known. `send_range` answers a request for
a range of positions.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from surecast.columns.batch import Batch
from surecast.core.types import AtEndOfPass, LogId, Message, Peer, Send

__all__ = ["SERVE", "Serving", "send_range"]

SERVE: Final = "serve"  # the key of AtEndOfPass and EndOfPass

# Functions of the protocol that make a message. Parameters of each:
MakeEvents = Callable[[LogId, tuple[Batch, ...], int], Message]  # stream, batches, end shown here
# stream, lo, hi, end shown here, whether it is the last message, batches
MakeRange = Callable[[LogId, int, int, int, bool, tuple[Batch, ...]], Message]
# stream, lo, hi, end shown here, whether it is the last message, why
MakeLost = Callable[[LogId, int, int, int, bool, str], Message]
EndEvent = Callable[[LogId], list[Batch]]  # stream → its End event; empty if it is not deleted
Passing = Callable[[tuple[Batch, ...]], list[Batch]]  # batches → the same positions, filtered


class Readable(Protocol):
    """The part of `core.streams.Streams` that `Serving` needs."""

    def shown_end(self, stream: LogId) -> int: ...

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]: ...


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
    ) -> None:
        """`end_event` returns the last event of a deleted stream, which is sent to followers that
        begin after it."""
        self.service = service
        self.end_event = end_event
        self.make = make  # makes the messages with events
        self.messages_max = messages_max  # most messages to one follower in one call of `serve`
        self.followers: dict[LogId, dict[Peer, int]] = {}  # stream → peer → next position to send
        self.count = 0  # the number of followers of all streams
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
        self._serve_one(stream, peer, out, idle_answer=True)
        self._serve_rest(out)

    def has_room(self, stream: LogId, peer: Peer, count_max: int) -> bool:
        """Whether a peer may follow a stream, if at most `count_max` followers of all streams are
        allowed. A peer that already follows the stream may always start at another position."""
        return self.count < count_max or peer in self.followers.get(stream, ())

    def remove(self, stream: LogId, peer: Peer) -> None:
        table = self.followers.get(stream, {})
        self.count -= table.pop(peer, None) is not None
        if not table:
            self.followers.pop(stream, None)

    def remove_peer(self, peer: Peer) -> None:
        self.congested.pop(peer, None)
        for stream in [stream for stream, table in self.followers.items() if peer in table]:
            self.remove(stream, peer)

    def remove_stream(self, stream: LogId) -> None:
        self.count -= len(self.followers.pop(stream, ()))
        self.news.pop(stream, None)

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
            for peer in self.followers.get(stream, {}):
                self._serve_one(stream, peer, out, sent)
        self._serve_rest(out)

    def writable(self, peer: Peer, out: list[Any]) -> None:
        """The peer's queue has drained."""
        self.congested.pop(peer, None)
        for stream, table in self.followers.items():
            if peer in table:
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
                batches = tuple(service.readable(stream, at))
                end = service.shown_end(stream)
                if not batches:
                    is_readable = False  # retention cannot index the rest, so it is not shown
                    break
                message = sent[at] = self.make(stream, batches, end)
            at = message.batches[-1].hi
            idle_answer = False
            out.append(Send(peer, message))
        table[peer] = at
        if idle_answer:
            out.append(Send(peer, self.make(stream, self._end_event(stream), end)))
        elif is_readable and at < end and peer not in self.congested:
            self.news[stream] = None


def send_range(
    service: Forfeiting,
    make: MakeRange,
    stream: LogId,
    lo: int,
    hi: int,
    *,
    messages_max: int,
    stops: Callable[[], bool],
    make_lost: MakeLost | None = None,
    end_event: EndEvent | None = None,
    passing: Passing | None = None,
) -> list[Message]:
    """The messages that answer a request for [lo, hi); `hi` 0 means up to the end of the stream.

    They contain the first part of the range, and the peer requests the next part after the last
    message. `stops` returns whether to make no further message, because the peer's queue is full.
    At least one message is made in any case, because the peer waits for it. `make_lost` makes the
    message about a range that was declared lost; without it the answer ends at the first hole. If
    the range begins after the end of a deleted stream, the answer has the stream's End event
    (`end_event`). `passing` applies the filter of the peer to batches.
    """
    end_of = service.shown_end if make_lost is None else service.readable_end
    end = end_of(stream)
    if not end or lo <= 0:
        return [make(stream, lo, lo, end, True, ())]
    made: list[Message] = []
    upto = min(hi or end, end)
    while lo < upto:
        at = lo
        lost = None if make_lost is None else service.lost_at(stream, lo)
        batches: tuple[Batch, ...] = ()
        if lost is not None:
            lo = min(lost[0], upto)
        else:
            batches = tuple(service.readable(stream, lo, upto))
            if not batches:
                break  # retention cannot index the rest, so it is not shown
            lo = batches[-1].hi
            if passing is not None:
                batches = tuple(passing(batches))
        is_last = lo >= upto or len(made) + 1 >= messages_max or stops()
        if make_lost is not None and lost is not None:
            made.append(make_lost(stream, at, lo, end, is_last, lost[1]))
        else:
            # The last message answers the whole range, also its part beyond the stream's end.
            answered = max(lo, hi) if lo >= upto else lo
            made.append(make(stream, at, answered, end, is_last, batches))
        if is_last:
            return made
    end = end_of(stream)
    ended = () if end_event is None or lo < end else tuple(end_event(stream))
    made.append(make(stream, lo, max(lo, hi), end, True, ended))
    return made
