"""Retention: which positions of a stream are void (their events are obsolete), and why.

Three kinds of events in the stream itself make positions void, by the rules in rules.py: a CONFIG
event sets the stream's retention policy (or its schema, which makes no position void), a COLLECT
event (*GC event*) collects the events that match a predicate, and under LatestPerKey an event
supersedes the previous one with its key. Every replica feeds the committed batches of a stream, in
order, to its own RetentionIndex, and all replicas compute the same void positions. The result does
not depend on clocks, on when a replica joined, on how events were divided into batches, or on
whether batches were compacted before they were fed.

The rules:
- A GC event can make only positions below its own position void. The same holds for an event under
  LatestPerKey.
- A position made void by a GC event has the event's reason (COLLECTED or EXPIRED). The reason is
  SUPERSEDED under LatestPerKey, and EXPIRED under KeepLast.
- BeforeSeq, KeepLast and End make all positions below a certain one void. From then on all of them
  have this rule's reason, also those that were void before. So void ranges merge, and their number
  does not grow with the stream. Under all other rules (by key, tag or time) positions that are
  already void keep their reason, because a replica may not know their keys and times.
- When an event is fed, its own rule is applied first, then KeepLast.
- Replicas may have different reasons for a position. Example: event B supersedes event A, and is
  then collected by key or time. A replica that is fed a void position in place of B does not know
  B's key. It makes A void only when it applies the GC event, with that event's reason. The void
  positions are the same at all replicas, and both reasons are true.
- An End event (a CONFIG event with which a stream is deleted) makes everything below it void except
  CONFIG events. No event follows it.
- CONFIG events are never void. COLLECT events have neither key nor tag, so only predicates on
  positions and times, and KeepLast, can make them void.
- An event whose key is null matches no predicate on keys and supersedes nothing. An empty key is a
  key like any other.
- A CONFIG event is the first event under its policy: KeepLast counts it, and LatestPerKey leaves
  one live row per key below it.
- KeepFor has no effect here: the stream's head appends GC events that expire old events. So
  replicas need no clocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    DATA,
    EXPIRED,
    NONE,
    REASONS,
    SUPERSEDED,
    Batch,
)
from surecast.columns.column import Body, Column, Int64s
from surecast.columns.compaction import by_position, strip
from surecast.columns.intervals import IntervalSet
from surecast.columns.keytable import KeyTable
from surecast.columns.rules import (
    BeforeSeq,
    BeforeTime,
    Collect,
    End,
    KeepAll,
    KeepFor,
    KeepLast,
    KeyIs,
    KeyPrefix,
    LatestPerKey,
    NewSchema,
    Policy,
    Predicate,
    TagIs,
    check_event,
    decode_collect,
    decode_config,
    encode_collect,
    encode_policy,
    is_end,
)
from surecast.errors import PeerError

__all__ = [
    "BeforeSeq",
    "BeforeTime",
    "Collect",
    "Counts",
    "End",
    "KeepAll",
    "KeepFor",
    "KeepLast",
    "KeyIs",
    "KeyPrefix",
    "LatestPerKey",
    "NewSchema",
    "Policy",
    "Predicate",
    "RetentionIndex",
    "TagIs",
    "check_event",
    "decode_collect",
    "decode_config",
    "encode_collect",
    "encode_policy",
    "is_end",
    "matching",
]

# ---------------------------------------------------------------- one batch


def matching(batch: Batch, predicate: Predicate) -> Int64s:
    """The positions of the live rows of a batch that a predicate matches."""
    from surecast.columns import kernels

    if isinstance(predicate, BeforeSeq):
        return batch.seqs()[: kernels.before_seq(batch.seqs(), predicate.seq)]
    if isinstance(predicate, BeforeTime):
        return batch.seqs()[: kernels.before_time(batch.times(), predicate.time_ns)]
    if batch.kind != DATA:
        return _NO_POSITIONS  # neither key nor tag
    match predicate:
        case KeyIs(wanted):
            column, match = batch.keys(), kernels.match_equal
        case KeyPrefix(wanted):
            column, match = batch.keys(), kernels.match_prefix
        case TagIs(wanted):
            tags = batch.tags()
            if tags is None:
                return _NO_POSITIONS
            column, match = tags, kernels.match_equal
    found = np.empty(batch.rows, np.int64)
    valid = _ALL_VALID if column.valid is None else column.valid
    seqs, sought = batch.seqs(), np.frombuffer(wanted, np.uint8)
    return found[: match(column.offsets, column.data, valid, seqs, sought, found)]


_NO_POSITIONS: Final = np.empty(0, np.int64)
_ALL_VALID: Final = np.empty(0, np.bool_)


def _value(batch: Batch) -> bytes:
    """The value of the only event of a COLLECT or CONFIG batch."""
    return batch.values().data.tobytes()


# ---------------------------------------------------------------- the index

Read = Callable[[int, int], Iterable[Batch]]  # read(lo, hi) returns the batches of [lo, hi)


class Counts(NamedTuple):
    """The counts of a stream in `surecast status`, `surecast log info` and HTTP."""

    live: int  # positions that are not void, including those of COLLECT and CONFIG events
    void: dict[int, int]  # reason → positions, for all of REASONS


class RetentionIndex:
    """The void positions of one stream. Every committed batch is fed to it."""

    __slots__ = (
        "_below", "_configs", "_keys", "_low", "_spans", "end", "ended", "policy", "voids",
    )  # fmt: skip

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.voids = {reason: IntervalSet() for reason in REASONS}  # no position is in two sets
        self.end = 1  # the first position not fed
        self.ended = 0  # the position of the End event; 0: the stream is not deleted
        self._low = 1  # below this position, only CONFIG events are live
        # (reason, hi): all void positions below hi have this reason, by the last `_void_below`.
        self._below = (NONE, 1)
        self._configs = IntervalSet()  # positions of CONFIG events, which no rule voids
        self._spans = _TimeSpans()
        # The newest position of each key; None if the policy is not LatestPerKey.
        self._keys = KeyTable() if isinstance(policy, LatestPerKey) else None

    def feed(self, batch: Batch, read: Read) -> None:
        """Apply the next committed batch. `read(lo, hi)` returns earlier batches; a few rules must
        scan them."""
        if batch.lo != self.end:
            raise ValueError(f"{batch!r} does not follow position {self.end - 1}")
        self._check_not_ended(batch)
        hi = batch.hi
        self._spans.append(batch)
        if batch.rows < batch.count:
            self.voids[batch.reason].update(batch.holes())
        if batch.kind == DATA:
            if self._keys is not None:
                self._put(batch, self._keys)
        elif batch.kind == COLLECT:
            collect = decode_collect(_value(batch))
            self._collect(collect.predicate, collect.reason, read)
        elif batch.kind == CONFIG:
            self._configs.add(batch.lo, hi)
            config = decode_config(_value(batch))
            if isinstance(config, End):
                self._end_stream()
            elif not isinstance(config, NewSchema):
                self._configure(config, read)
        self.end = hi
        if isinstance(self.policy, KeepLast):
            self._void_below(hi - self.policy.n, EXPIRED)
            self._low = max(self._low, hi - self.policy.n)

    def feed_many(self, batches: Sequence[Batch], read: Read) -> None:
        """`feed` consecutive batches. For dense batches this is much faster than single calls."""
        run: list[Batch] = []
        for batch in batches:
            if batch.kind == DATA and batch.rows == batch.count and batch.body is not None:
                run.append(batch)
                continue
            if run:
                self._feed_run(run)
                run = []
            self.feed(batch, read)
        if run:
            self._feed_run(run)

    def _feed_run(self, run: list[Batch]) -> None:
        """`feed` consecutive dense DATA batches, which contain no CONFIG and COLLECT events."""
        problem: Exception | None = None
        columns: list[Column | Body] = []
        end = self.end
        for batch in run:
            try:
                if batch.lo != end:
                    raise ValueError(f"{batch!r} does not follow position {end - 1}")
                self._check_not_ended(batch)
                keys = None if self._keys is None else batch.fixed_keys(8) or batch.keys()
                self._spans.append(batch)
            except (PeerError, ValueError) as error:
                problem = error  # raised after the batches before it are fed
                break
            end = batch.hi
            if keys is not None:
                columns.append(keys)
        if self._keys is not None and columns:
            self._void_many(self._keys.put_many(columns, self.end), SUPERSEDED)
        self.end = end
        if isinstance(self.policy, KeepLast):
            self._void_below(end - self.policy.n, EXPIRED)
            self._low = max(self._low, end - self.policy.n)
        if problem is not None:
            raise problem

    def apply(self, batch: Batch) -> list[Batch]:
        """`batch` without the rows that are void now. The batch must have been fed, alone or as a
        part of another one.

        All its positions stay covered. Returns one batch, or several if reasons differ.
        """
        assert batch.hi <= self.end
        return strip(batch, self.voids)

    def first_at(self, time_ns: int, read: Read) -> int:
        """The first position whose time is not before `time_ns`; `end` if there is none."""
        return self._first_at(BeforeTime(time_ns), read)

    def void_at(self, lo: int, hi: int) -> list[tuple[int, int, int]]:
        """The void runs within [lo, hi) as (lo, hi, reason), in order."""
        return by_position({reason: voids.clip(lo, hi) for reason, voids in self.voids.items()})

    def live(self, lo: int, hi: int) -> IntervalSet:
        """The positions within [lo, hi) that are not void."""
        found = IntervalSet([(lo, hi)])
        for voids in self.voids.values():
            found.difference_update(voids.clip(lo, hi))
        return found

    def counts(self) -> Counts:
        """How many of the positions fed so far are live, and how many are void."""
        void = {reason: voids.total() for reason, voids in self.voids.items()}
        return Counts(self.end - 1 - sum(void.values()), void)

    # ------------------------------------------------------------ rules

    def _configure(self, policy: Policy, read: Read) -> None:
        """Apply `policy`, which was set by the CONFIG event at position `end`."""
        self.policy = policy
        if not isinstance(policy, LatestPerKey):
            self._keys = None
        elif self._keys is None:
            self._keys = KeyTable()
            for batch in read(self._floor(), self.end):
                for part in self.apply(batch):
                    if part.kind == DATA:
                        self._put(part, self._keys)

    def _end_stream(self) -> None:
        """Apply the End event at `end`."""
        self._void_below(self.end, COLLECTED)
        self.ended = self.end
        self._keys = None  # no row follows that could supersede another

    def _check_not_ended(self, batch: Batch) -> None:
        if self.ended:
            raise ValueError(f"{batch!r} follows the end of a deleted stream")

    def _put(self, batch: Batch, keys: KeyTable) -> None:
        """Under LatestPerKey: make the earlier events with the keys of `batch` void."""
        self._void_many(keys.put(batch.keys(), batch.seqs()), SUPERSEDED)

    def _collect(self, predicate: Predicate, reason: int, read: Read) -> None:
        """Apply the GC event at `end` to the positions below it."""
        low = self._floor()
        if isinstance(predicate, BeforeSeq):
            self._void_below(min(predicate.seq, self.end), reason)
        elif isinstance(predicate, BeforeTime):
            older = self.live(low, self._first_at(predicate, read))
            older.difference_update(self._configs)
            self.voids[reason].update(older)
        elif isinstance(predicate, KeyIs) and self._keys is not None:
            newest = self._keys.get(predicate.key)  # the only one of this key that can be live
            self._void_many(np.array([newest] if newest else [], np.int64), reason)
        elif isinstance(predicate, TagIs) and not isinstance(self.policy, KeepAll):
            return  # `check_event` refuses such an event; if one exists, all replicas ignore it
        else:
            for batch in read(low, self.end):
                self._void_many(matching(batch, predicate), reason)
        if self._keys is not None:
            self._keys.floor = self._floor()

    def _first_at(self, predicate: BeforeTime, read: Read) -> int:
        """The first position whose time is not before the predicate's; at most `end`."""
        lo, hi = self._spans.find(predicate.time_ns, self.end)
        if lo < hi:
            for batch in read(lo, hi):
                old = matching(batch, predicate).size
                if old < batch.rows:
                    return int(batch.seqs()[old])
        return hi

    # ------------------------------------------------------------ making positions void

    def _floor(self) -> int:
        """The lowest live position that is not a CONFIG event, or `end`."""
        low = 0
        while low < self._low:
            low = self._low
            for covered in (*self.voids.values(), self._configs):
                self._low = covered.lowest_missing(self._low)
        return low

    def _void_below(self, hi: int, reason: int) -> None:
        """Make everything below `hi` void except CONFIG events, with this reason from now on."""
        lo = self._below[1] if self._below[0] == reason else 1
        if lo >= hi:
            return
        self._below = reason, hi
        for other in self._others(reason):
            if other:
                other.discard(lo, hi)
        if not self._configs:
            self.voids[reason].add(lo, hi)
            return
        fresh = IntervalSet([(lo, hi)])
        fresh.difference_update(self._configs.clip(lo, hi))
        self.voids[reason].update(fresh)

    def _void_many(self, positions: Int64s, reason: int) -> None:
        """Make these positions void (none is a CONFIG event). Those that are void already keep
        their reason."""
        for other in self._others(reason):
            if other and positions.size:
                positions = positions[~other.contains_many(positions)]
        self.voids[reason].add_many(positions)

    def _others(self, reason: int) -> list[IntervalSet]:
        """The positions that are void for other reasons."""
        return [voids for other, voids in self.voids.items() if other != reason]


class _TimeSpans:
    """Finds the first position at or after a time, in bounded memory.

    It stores the times of the first and last row of each *span* of consecutive positions. If they
    differ (a batch with explicit times, or spans joined to save memory), the result of a query is a
    range of the log, in which the caller must search.
    """

    __slots__ = ("_ends", "_firsts", "_lasts")

    def __init__(self) -> None:
        # For each span: the position after it, and the times of its first and last row.
        self._ends = array("q")
        self._firsts = array("q")
        self._lasts = array("q")

    def append(self, batch: Batch) -> None:
        """Add the next batch: extend the last span, or begin a new one."""
        first = last = batch.time_ns
        lasts = self._lasts
        if batch.rows and batch.explicit:
            times = batch.times()
            first, last = int(times[0]), int(times[-1])
        elif not batch.rows:
            if lasts:
                self._ends[-1] = batch.hi  # void positions may have any time
                return
            first = last = 0
        if lasts:
            if first < lasts[-1]:
                raise ValueError(f"{batch!r} is older than what comes before it")
            if self._firsts[-1] == lasts[-1] == last:
                self._ends[-1] = batch.hi
                return
        self._ends.append(batch.hi)
        self._firsts.append(first)
        lasts.append(last)
        if len(lasts) > _SPANS_MAX:  # join pairs of spans
            self._ends = self._ends[1::2]
            self._firsts = self._firsts[:-1:2]
            self._lasts = lasts[1::2]

    def find(self, time_ns: int, end: int) -> tuple[int, int]:
        """A range [lo, hi): all rows below lo are older than `time_ns`, and no row from hi on is.

        So the first row at or after `time_ns` is in this range or at hi. The range is often empty;
        it ends at `end` at the latest.
        """
        span = bisect_left(self._lasts, time_ns)
        lo = self._ends[span - 1] if span else 1
        if span == len(self._lasts) or self._firsts[span] >= time_ns:
            return min(lo, end), min(lo, end)
        return min(lo, end), min(self._ends[span], end)


_SPANS_MAX: Final = (1 << 16) + 1  # odd: with one more span the number is even, for joining pairs
