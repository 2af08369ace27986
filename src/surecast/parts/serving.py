"""Sends streams to their followers, up to the shown end, as fast as each peer takes them.

A machine has one `Serving` for each type of message in which it sends events. New events are sent
at the end of the pass, so that several commits make one message. The machine calls `serve` in its
handlers of `EndOfPass(SERVE)` and of `StreamsMoved`. A follower of an unknown stream waits until it
is known.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from surecast.columns.batch import Batch
from surecast.core.types import AtEndOfPass, LogId, Message, Peer, Send

__all__ = ["SERVE", "Serving", "send_range"]

SERVE: Final = "serve"  # the key of the end of a pass

MakeEvents = Callable[[LogId, tuple[Batch, ...], int], Message]  # stream, batches, end shown here
# stream, lo, hi, end shown here, whether it is the last message, batches
MakeRange = Callable[[LogId, int, int, int, bool, tuple[Batch, ...]], Message]
# stream, lo, hi, end shown here, whether it is the last message, why
MakeLost = Callable[[LogId, int, int, int, bool, str], Message]
EndEvent = Callable[[LogId], list[Batch]]  # stream; empty if it is not deleted


class Readable(Protocol):
    """The part of `core.streams.Streams` that is needed here."""

    def shown_end(self, stream: LogId) -> int: ...

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]: ...


class Forfeiting(Readable, Protocol):
    """`Readable`, and the calls for ranges that may be lost."""

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
        """`end_event`: followers that begin after the end of a deleted stream are sent this."""
        self.service = service
        self.end_event = end_event
        self.make = make
        self.messages_max = messages_max  # to one follower in one call of `serve`
        self.followers: dict[LogId, dict[Peer, int]] = {}  # → the next position to send
        self.count = 0  # of all followers
        self.news: dict[LogId, None] = {}  # streams with events to send to their followers
        self.congested: dict[Peer, None] = {}
        self.is_due = False  # `serve` will be called at the end of the pass

    # ------------------------------------------------------------ followers

    def follow(self, stream: LogId, peer: Peer, start: int, out: list[Any]) -> None:
        """Send a stream from `start` on; if there is nothing to send, send just its end, or the
        End event if it is deleted."""
        table = self.followers.setdefault(stream, {})
        self.count += peer not in table
        table[peer] = start
        self._serve_one(stream, peer, out, idle_answer=True)
        self._serve_rest(out)

    def has_room(self, stream: LogId, peer: Peer, count_max: int) -> bool:
        """Whether a peer may follow a stream. A peer that already follows it may always restart."""
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
        """More of the stream is shown: the next `serve` sends it."""
        if stream in self.followers:
            self.news[stream] = None

    def soon(self, out: list[Any]) -> None:
        """Request the end of the pass, where the machine calls `serve`."""
        if not self.is_due:
            self.is_due = True
            out.append(AtEndOfPass(SERVE))

    def serve(self, out: list[Any]) -> None:
        """Send new events; what exceeds `messages_max` is sent at the end of the next pass."""
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
        """Send to one follower. `sent` has the messages already made for others, by position: a
        driver encodes each only once. `idle_answer`: send the end if there are no events."""
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
                    is_readable = False  # it cannot be indexed from here on, so it is not shown
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
) -> list[Message]:
    """Messages with the first part of [lo, hi) (`hi` 0: up to the end); the peer requests the rest.

    The first message is made even if the peer's queue is full: the peer sends a request only after
    the last message of the one before. `stops` returns whether to make no further message. Without
    `make_lost` the range ends at the first hole. If the range begins after the end of a deleted
    stream, the answer has its End event, given by `end_event`.
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
                break  # it cannot be indexed from here on, so it is not shown
            lo = batches[-1].hi
        is_last = lo >= upto or len(made) + 1 >= messages_max or stops()
        if make_lost is not None and lost is not None:
            made.append(make_lost(stream, at, lo, end, is_last, lost[1]))
        else:
            made.append(make(stream, at, max(lo, hi) if lo >= upto else lo, end, is_last, batches))
        if is_last:
            return made
    end = end_of(stream)
    ended = () if end_event is None or lo < end else tuple(end_event(stream))
    made.append(make(stream, lo, max(lo, hi), end, True, ended))
    return made
