"""FilteredServing: sends streams to peers that follow them with a filter.

A follower gets all positions of the stream, and the events that pass its filter; the positions of
the others are void with the reason `FILTERED`. A batch may also be sent as it is, because readers
apply their filter again: if it would become larger, or the filter would cost too much.

Runs in which nothing passes are held back, and sent with the next event that passes. The machine
calls `tell` at intervals, so that a reader whose filter nothing passes learns its position, too.
Followers with the same filter at the same position share messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from surecast.columns.batch import VOID, Batch, coalesce
from surecast.core.types import LogId, Message, Peer, Send
from surecast.errors import PeerError, UsageError
from surecast.parts.serving import Serving

__all__ = ["HELD_MAX", "BatchFilter", "Examiner", "FilteredServing", "joined"]
__all__ += ["without_neighbours"]

HELD_MAX: Final = 64  # batches that are held back for one follower
JOINED_BELOW: Final = 64  # batches with fewer rows, on average, are joined in answers to readers


class BatchFilter(Protocol):
    """A filter that is bound to a stream (`surecast.where.batches`)."""

    def apply(self, batch: Batch) -> Batch: ...

    def cost(self, batch: Batch) -> int: ...


# Functions of the protocol. Parameters of each:
MakeFiltered = Callable[
    [LogId, tuple[Batch, ...], int, int], Message
]  # stream, batches, end, number
MakeRefusal = Callable[[LogId, int, str], Message]  # stream, number of the filter, why
Bind = Callable[[LogId, str], BatchFilter]  # stream, text; raises UsageError
Number = Callable[[str], int]  # text → the number that stands for it in messages


@dataclass(slots=True)
class _Follower:
    where: str
    number: int
    at: int  # the next position to examine
    told: int  # the next position to send
    held: list[Batch] = field(default_factory=list)  # [told, at), in which nothing passes
    filter: BatchFilter | None = None  # None: the stream is not known yet
    waiting: bool = False  # the piece at `at` is being loaded (`Serving.loaded`)


class Examiner:
    """Applies filters until they have cost `left`."""

    def __init__(self, cost_max: int, counters: Counter[str]) -> None:
        self.cost_max = cost_max
        self.left = cost_max
        self.counters = counters

    def passing(self, chosen: BatchFilter, batches: Sequence[Batch]) -> list[Batch]:
        """The batches as a reader with this filter gets them."""
        return without_neighbours([self._one(chosen, batch) for batch in batches])

    def _one(self, chosen: BatchFilter, batch: Batch) -> Batch:
        cost = chosen.cost(batch)
        if cost > self.cost_max:
            self.counters["streams.filter-too-costly"] += 1
            return batch
        self.left -= cost
        try:
            passing = chosen.apply(batch)
        except (UsageError, PeerError):  # for example the batch lacks the types of the schema
            self.counters["streams.filter-failed"] += 1
            return batch
        self.counters["streams.matched"] += passing.rows
        self.counters["streams.filtered"] += batch.rows - passing.rows
        return passing if passing.nbytes <= batch.nbytes else batch


class FilteredServing:
    """The followers of each stream that have a filter. It is used beside a `Serving`, which has the
    other followers, the congested peers and the end of the pass."""

    def __init__(
        self,
        serving: Serving,
        make: MakeFiltered,
        refuse: MakeRefusal,
        bind: Bind,
        number: Number,
        counters: Counter[str],
        *,
        cost_max: int,  # of all filters in one call of `serve`
        chars_max: int,  # of the texts of all filters
    ) -> None:
        self.serving = serving
        self.make = make
        self.refuse = refuse
        self.bind = bind
        self.number = number
        self.counters = counters
        self.cost_max = cost_max
        self.chars_max = chars_max
        self.followers: dict[LogId, dict[Peer, _Follower]] = {}
        self.count = 0  # the number of followers of all streams
        # (stream, text) → the filter, and how many followers have it.
        self.filters: dict[tuple[LogId, str], tuple[BatchFilter, int]] = {}
        self.chars = 0  # of the texts in `filters`
        self.news: dict[LogId, None] = {}  # streams with events to examine
        self.untold: dict[tuple[LogId, Peer], None] = {}  # followers for which batches are held

    # ------------------------------------------------------------ followers

    def follow(self, stream: LogId, peer: Peer, start: int, where: str, out: list[Any]) -> None:
        """Begin to send a stream from `start` on. If there is nothing to send, send its end, or its
        End event if it is deleted."""
        self.remove(stream, peer)
        table = self.followers.setdefault(stream, {})
        follower = table[peer] = _Follower(where, self.number(where), start, start)
        self.count += 1
        examiner = Examiner(self.cost_max, self.counters)
        sent = len(out)
        self._serve_one(stream, peer, follower, out, examiner, {}, {})
        if len(out) == sent and peer in self.followers.get(stream, ()) and not follower.waiting:
            self._answer_idle(stream, peer, follower, out)
        self._serve_rest(out)

    def _answer_idle(self, stream: LogId, peer: Peer, follower: _Follower, out: list[Any]) -> None:
        """Send what is held back and the end of the stream to a peer that was sent nothing yet."""
        end = self.serving.service.shown_end(stream)
        if follower.filter is None or not end:
            return
        batches = tuple(follower.held)
        if follower.at >= end and self.serving.end_event is not None:
            batches += tuple(self.serving.end_event(stream)) if not batches else ()
        self._send(stream, peer, follower, batches, end, out, {})

    def has_room(self, stream: LogId, peer: Peer, count_max: int) -> bool:
        """As `Serving.has_room`."""
        return self.count < count_max or peer in self.followers.get(stream, ())

    def remove(self, stream: LogId, peer: Peer) -> None:
        table = self.followers.get(stream)
        follower = None if table is None else table.pop(peer, None)
        if table is None or follower is None:
            return
        self.count -= 1
        self.untold.pop((stream, peer), None)
        if not table:
            del self.followers[stream]
        if follower.filter is not None:
            key = (stream, follower.where)
            shared, users = self.filters.pop(key)
            if users > 1:
                self.filters[key] = shared, users - 1
            else:
                self.chars -= len(follower.where)

    def remove_peer(self, peer: Peer) -> None:
        for stream in [stream for stream, table in self.followers.items() if peer in table]:
            self.remove(stream, peer)

    def remove_stream(self, stream: LogId) -> None:
        for peer in list(self.followers.get(stream, ())):
            self.remove(stream, peer)
        self.news.pop(stream, None)

    def _has_filter(self, stream: LogId, peer: Peer, follower: _Follower, out: list[Any]) -> bool:
        """Bind the filter of a follower of a known stream. Returns False if it is refused; then the
        peer does not follow the stream any more."""
        if follower.filter is not None:
            return True
        key = (stream, follower.where)
        shared, users = self.filters.get(key, (None, 0))
        if shared is None:
            try:
                if self.chars + len(follower.where) > self.chars_max:
                    raise UsageError("this server has too many filters")
                shared = self.bind(stream, follower.where)
            except UsageError as problem:
                self.counters["streams.filter-refused"] += 1
                self.remove(stream, peer)
                out.append(Send(peer, self.refuse(stream, follower.number, str(problem))))
                return False
            self.chars += len(follower.where)
        self.filters[key] = shared, users + 1
        follower.filter = shared
        return True

    # ------------------------------------------------------------ sending

    def moved(self, stream: LogId) -> None:
        """Note that more events of the stream may be shown. The next `serve` sends them."""
        if stream in self.followers:
            self.news[stream] = None

    def serve(self, out: list[Any]) -> None:
        """Send new events to all followers, as far as the filters may cost."""
        news, self.news = self.news, {}
        examiner = Examiner(self.cost_max, self.counters)
        for stream in news:
            examined: dict[tuple[str, int], list[Batch]] = {}
            sent: dict[tuple[str, int, int], Message] = {}
            table = self.followers.get(stream, {})
            for peer, follower in list(table.items()):
                if examiner.left <= 0:
                    self.news[stream] = None
                    break
                if not follower.waiting:
                    self._serve_one(stream, peer, follower, out, examiner, examined, sent)
                if table.pop(peer, None) is not None:  # the next call begins with the others
                    table[peer] = follower
        self._serve_rest(out)

    def loaded(self, stream: LogId, lo: int, out: list[Any]) -> None:
        """The piece at `lo` was loaded: continue with the followers that wait for it."""
        examiner = Examiner(self.cost_max, self.counters)
        examined: dict[tuple[str, int], list[Batch]] = {}
        sent: dict[tuple[str, int, int], Message] = {}
        for peer, follower in list(self.followers.get(stream, {}).items()):
            if follower.waiting and follower.at == lo:
                follower.waiting = False
                self._serve_one(stream, peer, follower, out, examiner, examined, sent)
        self._serve_rest(out)

    def writable(self, peer: Peer, out: list[Any]) -> None:
        """The peer's queue has drained."""
        for stream, table in self.followers.items():
            if peer in table:
                self.news[stream] = None
        self._serve_rest(out)

    def tell(self, out: list[Any]) -> None:
        """Send what is held back, so that readers know their positions."""
        sent: dict[LogId, dict[tuple[str, int, int], Message]] = {}
        for stream, peer in list(self.untold):
            if peer not in self.serving.congested:
                follower = self.followers[stream][peer]
                end, shared = self.serving.service.shown_end(stream), sent.setdefault(stream, {})
                self._send(stream, peer, follower, tuple(follower.held), end, out, shared)

    def _serve_rest(self, out: list[Any]) -> None:
        if self.news:
            self.serving.soon(out)

    def _serve_one(
        self,
        stream: LogId,
        peer: Peer,
        follower: _Follower,
        out: list[Any],
        examiner: Examiner,
        examined: dict[tuple[str, int], list[Batch]],
        sent: dict[tuple[str, int, int], Message],
    ) -> None:
        """Send new events to one follower. `examined` has batches as other followers got them, by
        filter and position, and `sent` the messages, by filter and range."""
        serving, service, where = self.serving, self.serving.service, follower.where
        end = service.shown_end(stream)
        if not end or not self._has_filter(stream, peer, follower, out):
            return
        assert follower.filter is not None
        at, budget, is_readable = follower.at, serving.messages_max, True
        if at >= end and serving.end_event is not None and (ended := serving.end_event(stream)):
            out.append(Send(peer, self.make(stream, tuple(ended), end, follower.number)))
        while at < end and peer not in serving.congested and budget and examiner.left > 0:
            budget -= 1
            batches = examined.get((where, at))
            if batches is None:
                found = service.at_hand(stream, at)
                end = service.shown_end(stream)
                if found is None:
                    follower.waiting = True
                    serving.load(stream, at, end, out)
                    is_readable = False
                    break
                if not found:
                    is_readable = False  # retention cannot index the rest, so it is not shown
                    break
                batches = examined[where, at] = examiner.passing(follower.filter, found)
            follower.at = at = batches[-1].hi
            follower.held = without_neighbours([*follower.held, *batches])
            if len(follower.held) > HELD_MAX or any(batch.rows for batch in batches):
                self._send(stream, peer, follower, tuple(follower.held), end, out, sent)
        if follower.held:
            self.untold[stream, peer] = None
        if is_readable and at < end and peer not in serving.congested:
            self.news[stream] = None

    def _send(
        self,
        stream: LogId,
        peer: Peer,
        follower: _Follower,
        batches: tuple[Batch, ...],
        end: int,
        out: list[Any],
        sent: dict[tuple[str, int, int], Message],
    ) -> None:
        key = (follower.where, follower.told, follower.at)
        message = sent.get(key)
        if message is None:
            message = sent[key] = self.make(stream, batches, end, follower.number)
        follower.told, follower.held = follower.at, []
        self.untold.pop((stream, peer), None)
        out.append(Send(peer, message))


def without_neighbours(batches: list[Batch]) -> list[Batch]:
    """The batches, with neighbouring void ranges of the same reason joined."""
    made: list[Batch] = []
    for batch in batches:
        last = made[-1] if made else None
        if (
            last is not None
            and last.kind == batch.kind == VOID
            and last.reason == batch.reason
            and last.filtered is None
            and batch.filtered is None
        ):
            made[-1] = Batch.void(
                batch.stream_id, last.lo, batch.hi, batch.reason,
                time_ns=max(last.time_ns, batch.time_ns), epoch=max(last.epoch, batch.epoch),
            )  # fmt: skip
        else:
            made.append(batch)
    return made


def joined(batches: list[Batch], rows_max: int) -> list[Batch]:
    """The batches, which are contiguous. If a filter has left few rows in each, they are joined,
    because a small batch is mostly metadata."""
    rows = sum(batch.rows for batch in batches)
    return coalesce(batches, rows_max) if rows < JOINED_BELOW * len(batches) else batches
