"""Sending streams to those who follow them, as far as they are shown and the peers keep up.

A machine has one `Serving` for each kind of message in which it sends events. Subscriptions to
streams that are not known yet wait for them.
"""

from collections.abc import Callable
from typing import Any, Protocol

from surecast.columns.batch import Batch
from surecast.core.types import LogId, Message, Peer, Send

__all__ = ["Serving", "send_range"]

MakeEvents = Callable[[LogId, tuple[Batch, ...], int], Message]  # stream, batches, end of the copy
# stream, lo, hi, end of the copy, whether it is the last, batches
MakeRange = Callable[[LogId, int, int, int, bool, tuple[Batch, ...]], Message]


class Readable(Protocol):
    """The part of `core.streams.Streams` that is needed here."""

    def shown_end(self, stream: LogId) -> int: ...

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]: ...


class Serving:
    """Who follows what, and the next position each is to be sent."""

    def __init__(self, service: Readable, make: MakeEvents, messages_max: int) -> None:
        self.service = service
        self.make = make
        self.messages_max = messages_max  # to one peer at a time
        self.followers: dict[LogId, dict[Peer, int]] = {}
        self.count = 0  # of all of them
        self.news: dict[LogId, None] = {}  # streams that have something for their followers
        self.congested: dict[Peer, None] = {}

    # ------------------------------------------------------------ who follows what

    def add(self, stream: LogId, peer: Peer, start: int) -> None:
        table = self.followers.setdefault(stream, {})
        self.count += peer not in table
        table[peer] = start

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

    def moved(self, stream: LogId) -> bool:
        """More of the stream is shown: whether somebody follows it. `serve` sends it."""
        if stream not in self.followers:
            return False
        self.news[stream] = None
        return True

    def serve(self, out: list[Any]) -> None:
        """Send what is new. What does not fit into one go stays in `news`."""
        news, self.news = self.news, {}
        for stream in news:
            sent: dict[int, Message] = {}
            for peer in self.followers.get(stream, {}):
                self.serve_one(stream, peer, out, sent)

    def writable(self, peer: Peer, out: list[Any]) -> None:
        """The peer's queue has drained."""
        self.congested.pop(peer, None)
        for stream, table in self.followers.items():
            if peer in table:
                self.serve_one(stream, peer, out)

    def serve_one(
        self,
        stream: LogId,
        peer: Peer,
        out: list[Any],
        sent: dict[int, Message] | None = None,
        idle_answer: bool = False,
    ) -> None:
        """`sent`: what others were sent from a position on; a driver encodes it once."""
        service, table = self.service, self.followers[stream]
        at, end = table[peer], service.shown_end(stream)
        if not end:
            return  # not known yet
        sent = {} if sent is None else sent
        budget, is_readable = self.messages_max, True
        while at < end and peer not in self.congested and budget:
            budget -= 1
            message: Any = sent.get(at)
            if message is None:
                batches = tuple(service.readable(stream, at))
                end = service.shown_end(stream)
                if not batches:
                    is_readable = False  # it could not be indexed, and is shown only up to there
                    break
                message = sent[at] = self.make(stream, batches, end)
            at = message.batches[-1].hi
            idle_answer = False
            out.append(Send(peer, message))
        table[peer] = at
        if idle_answer:
            out.append(Send(peer, self.make(stream, (), end)))
        elif is_readable and at < end and peer not in self.congested:
            self.news[stream] = None


def send_range(
    service: Readable,
    make: MakeRange,
    stream: LogId,
    lo: int,
    hi: int,
    *,
    messages_max: int,
    stops: Callable[[], bool],
) -> list[Message]:
    """Messages with a large part of [lo, hi) (`hi` 0: all there is); the asker then asks again.

    The first is made whatever the asker's queue is like: it asks only when it has the last. `stops`
    says whether there should be no more.
    """
    end = service.shown_end(stream)
    if not end or lo <= 0:
        return [make(stream, lo, lo, end, True, ())]
    made: list[Message] = []
    upto = min(hi or end, end)
    while lo < upto:
        batches = tuple(service.readable(stream, lo, upto))
        if not batches:
            break  # it could not be indexed, and is shown only up to there
        at, lo = lo, batches[-1].hi
        is_last = lo >= upto or len(made) + 1 >= messages_max or stops()
        made.append(make(stream, at, max(lo, hi) if lo >= upto else lo, end, is_last, batches))
        if is_last:
            return made
    made.append(make(stream, lo, max(lo, hi), service.shown_end(stream), True, ()))
    return made
