"""IntervalSet: a set of positions, stored as sorted half-open runs with gaps between them.

The implementation is made for two uses:

* A window of outstanding requests has about ten runs and changes by one range at a time. Such a
  change is a bisection and a small move in two flat arrays.
* The void (obsolete) positions of a stream that keeps the latest event per key have 10^5 runs, and
  each batch of events adds a thousand scattered positions. Scattered positions are collected in a
  buffer, which is merged when it has four times as many positions as the set has runs. So adding a
  position takes some tens of nanoseconds, however fragmented the set is. Queries include the
  buffered positions; most queries merge the buffer first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from surecast.columns import varints
from surecast.errors import PeerError

__all__ = ["POSITION_MAX", "IntervalSet"]

Positions = npt.NDArray[np.int64]

POSITION_MAX = 1 << 61  # all positions are below this
_ONE_BY_ONE = 4  # up to this many positions, single insertions are faster than the bulk path
_FEW_CLIPS = 4  # up to this many runs, `intersection` clips the other set by each of them
_FEW_RUNS = 16  # up to this many runs, adding them one by one is faster than a merge
_BUFFER_MIN = 8192  # the least size of a buffer, in positions
# `clip` merges the buffer once its scans have read this many times as much as a merge would.
_SCANS_PER_MERGE = 8
_POSITIONS_PER_WORD = 2  # the bit map for sorting has one 64-bit word for this many positions


class IntervalSet:
    """A mutable set of non-negative integers as half-open runs."""

    __slots__ = ("_buffer", "_buffered", "_his", "_looked", "_los")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        # The starts and ends of the runs, in order.
        self._los = array("q")
        self._his = array("q")
        # The first `_buffered` elements are positions that were added and not merged yet, in any
        # order.
        self._buffer: Positions | None = None
        self._buffered = 0
        self._looked = 0  # buffered positions that `clip` has scanned since the last merge
        for lo, hi in runs:
            self.add(lo, hi)

    @classmethod
    def from_arrays(cls, los: npt.ArrayLike, his: npt.ArrayLike) -> IntervalSet:
        """The union of the ranges [los[i], his[i]), in any order, overlapping or not."""
        lo_array = np.asarray(los, np.int64)
        hi_array = np.asarray(his, np.int64)
        full = lo_array < hi_array
        made = cls()
        made._set_runs(*_union(lo_array[full], hi_array[full]))
        return made

    def copy(self) -> IntervalSet:
        self._settle()
        made = IntervalSet()
        made._los = self._los[:]
        made._his = self._his[:]
        return made

    # ------------------------------------------------------------ changes

    def add(self, lo: int, hi: int) -> None:
        """Add [lo, hi); an empty range adds nothing."""
        if lo >= hi:
            return
        los, his = self._los, self._his
        if not his or lo > his[-1]:
            los.append(lo)
            his.append(hi)
        elif lo >= los[-1]:
            if hi > his[-1]:
                his[-1] = hi
        else:
            first = bisect_left(his, lo)  # the first run that reaches lo
            last = bisect_right(los, hi)  # the first run that begins above hi
            if first == last:
                los.insert(first, lo)
                his.insert(first, hi)
                return
            if lo < los[first]:
                los[first] = lo
            his[first] = max(hi, his[last - 1])
            if last - first > 1:
                del los[first + 1 : last]
                del his[first + 1 : last]

    def add_many(self, positions: npt.ArrayLike) -> None:
        """Add single positions, in any order and with repeats; the argument is copied."""
        given = np.asarray(positions, np.int64)
        count = given.size
        if count <= _ONE_BY_ONE:
            for position in given.tolist():
                self.add(position, position + 1)
            return
        buffer, filled = self._buffer, self._buffered
        if buffer is None or filled + count > buffer.size:
            self._settle()
            filled = 0
            size = max(_BUFFER_MIN, 4 * len(self._los), 4 * count)
            if buffer is None or buffer.size < size:
                buffer = self._buffer = np.empty(size, np.int64)
        buffer[filled : filled + count] = given
        self._buffered = filled + count

    def update(self, other: IntervalSet) -> None:
        """Add every position of `other`."""
        other._settle()
        if len(other._los) <= _FEW_RUNS:
            for lo, hi in zip(other._los, other._his, strict=True):
                self.add(lo, hi)
            return
        self._merge(*other.to_arrays())

    def discard(self, lo: int, hi: int) -> None:
        """Remove every position of [lo, hi)."""
        if lo >= hi:
            return
        self._settle()
        los, his = self._los, self._his
        first = bisect_right(his, lo)  # the first run that ends above lo
        last = bisect_left(los, hi)  # the first run that begins at or above hi
        if first >= last:
            return
        head, tail = los[first], his[last - 1]
        kept_los = array("q")
        kept_his = array("q")
        if head < lo:
            kept_los.append(head)
            kept_his.append(lo)
        if tail > hi:
            kept_los.append(hi)
            kept_his.append(tail)
        los[first:last] = kept_los
        his[first:last] = kept_his

    def difference_update(self, other: IntervalSet) -> None:
        """Remove every position of `other`."""
        other._settle()
        if len(other._los) <= _FEW_RUNS:
            for lo, hi in zip(other._los, other._his, strict=True):
                self.discard(lo, hi)
            return
        if self:
            made = self.difference(other)
            self._los, self._his = made._los, made._his

    def clear(self) -> None:
        self._los = array("q")
        self._his = array("q")
        self._buffered = self._looked = 0

    # ------------------------------------------------------------ new sets

    def union(self, other: IntervalSet) -> IntervalSet:
        made = self.copy()
        made.update(other)
        return made

    def intersection(self, other: IntervalSet) -> IntervalSet:
        small, large = (self, other) if self.runs <= other.runs else (other, self)
        if small.runs <= _FEW_CLIPS:
            made = IntervalSet()
            for lo, hi in small:
                part = large.clip(lo, hi)
                made._los += part._los
                made._his += part._his
            return made
        return _meet(*small._views(), *large._views())

    def difference(self, other: IntervalSet) -> IntervalSet:
        if not self:
            return IntervalSet()
        self._settle()
        other._settle()
        if len(other._los) <= _FEW_RUNS:
            made = self.copy()
            made.difference_update(other)
            return made
        lowest, highest = self._los[0], self._his[-1]
        return self.intersection(other.gaps(lowest, highest))

    def clip(self, lo: int, hi: int) -> IntervalSet:
        """The positions of [lo, hi) that are in the set.

        Scans the buffer instead of merging it, until the scans since the last merge have taken
        longer than a merge would. So `clip` is fast with and without additions between the calls.
        """
        made = IntervalSet()
        if lo >= hi:
            return made
        if self._looked > _SCANS_PER_MERGE * (len(self._los) + self._buffered):
            self._settle()
        los, his = self._los, self._his
        first = bisect_right(his, lo)
        last = bisect_left(los, hi)
        if first < last:
            made._los = los[first:last]
            made._his = his[first:last]
            if made._los[0] < lo:
                made._los[0] = lo
            if made._his[-1] > hi:
                made._his[-1] = hi
        if self._buffered:
            assert self._buffer is not None
            self._looked += self._buffered
            waiting = self._buffer[: self._buffered]
            made.add_many(waiting[(waiting >= lo) & (waiting < hi)])
            made._settle()
        return made

    def gaps(self, lo: int, hi: int) -> IntervalSet:
        """The positions of [lo, hi) that are not in the set."""
        part = self.clip(lo, hi)
        made = IntervalSet()
        if lo >= hi:
            return made
        los, his = part._los, part._his
        if not los:
            made.add(lo, hi)
            return made
        made._los = array("q", (lo,)) + his if los[0] > lo else his[:]
        made._his = los[:] if los[0] > lo else los[1:]
        if his[-1] < hi:
            made._his.append(hi)
        else:
            made._los.pop()
        return made

    # ------------------------------------------------------------ queries

    def __contains__(self, position: int) -> bool:
        return self.contains_range(position, position + 1)

    def contains_range(self, lo: int, hi: int) -> bool:
        """Whether all of [lo, hi) is in the set; true for an empty range."""
        if lo >= hi:
            return True
        self._settle()
        run = bisect_right(self._los, lo) - 1
        return run >= 0 and self._his[run] >= hi

    def contains_many(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """For each position, whether it is in the set."""
        self._settle()
        if not self._los:
            return np.zeros(positions.shape, np.bool_)
        los, his = self._views()
        run = np.searchsorted(los, positions, side="right") - 1
        found: npt.NDArray[np.bool_] = (run >= 0) & (positions < his[run])
        return found

    def contains_sorted(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """`contains_many` for positions in non-decreasing order: one pass over both."""
        if _kernels is None or positions.size <= _FEW_RUNS:
            return self.contains_many(positions)
        los, his = self._views()
        first = bisect_right(self._his, int(positions[0]))
        found = np.empty(positions.size, np.bool_)
        _kernels.cover(los[first:], his[first:], np.ascontiguousarray(positions), found)
        return found

    def lowest(self) -> int | None:
        """The smallest position in the set."""
        self._settle()
        return self._los[0] if self._los else None

    def highest(self) -> int | None:
        """The greatest position in the set, which is one below the end of the last run."""
        self._settle()
        return self._his[-1] - 1 if self._his else None

    def lowest_missing(self, start: int) -> int:
        """The smallest position at or above `start` that is not in the set."""
        self._settle()
        run = bisect_right(self._los, start) - 1
        return max(start, self._his[run]) if run >= 0 else start

    def total(self) -> int:
        """How many positions the set has."""
        self._settle()
        los, his = self._views()
        return int(his.sum() - los.sum())

    @property
    def runs(self) -> int:
        """How many runs the set has."""
        self._settle()
        return len(self._los)

    def to_arrays(self) -> tuple[Positions, Positions]:
        """The runs' starts and ends, as copies."""
        self._settle()
        los, his = self._views()
        return los.copy(), his.copy()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self._settle()
        return iter(list(zip(self._los, self._his, strict=True)))

    def __bool__(self) -> bool:
        return bool(self._los) or self._buffered > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        self._settle()
        other._settle()
        return self._los == other._los and self._his == other._his

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [f"[{lo}, {hi})" for lo, hi in list(self)[:8]]
        more = f" … {self.runs} runs" if self.runs > 8 else ""
        return f"IntervalSet({' '.join(shown)}{more})"

    # ------------------------------------------------------------ wire form

    def to_bytes(self) -> bytes:
        """Varints: the number of runs, then for each run the gap before it and its length."""
        self._settle()
        los, his = self._views()
        if los.size and (los[0] < 0 or his[-1] > POSITION_MAX):
            raise ValueError("positions outside [0, 2**61) have no wire form")
        numbers = np.empty(1 + 2 * los.size, np.int64)
        numbers[0] = los.size
        numbers[1::2] = los
        numbers[3::2] -= his[:-1]
        numbers[2::2] = his - los
        return varints.pack(numbers)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, runs_max: int) -> IntervalSet:
        """The inverse of `to_bytes`; PeerError if the bytes are not valid, or have too many
        runs."""
        if len(data) > varints.SIZE_MAX * (2 * runs_max + 1):
            raise PeerError(f"interval set of {len(data)} bytes exceeds {runs_max} runs")
        numbers = varints.unpack(data)
        if numbers.size == 0 or numbers[0] > runs_max or numbers.size != 1 + 2 * numbers[0]:
            raise PeerError("interval set: run count does not match its bytes, or is too high")
        steps = numbers[1:]
        # Steps are gaps and lengths, alternately. Only the first gap may be 0; the first run then
        # begins at position 0. The sum is a float because a sum of integers could wrap around.
        if steps.size and (steps[1:].min() < 1 or steps.sum(dtype=np.float64) > POSITION_MAX):
            raise PeerError("interval set: an empty run, adjacent runs, or a position out of range")
        edges = np.cumsum(steps)
        if steps.size and edges[-1] > POSITION_MAX:
            raise PeerError("interval set: a position out of range")
        made = cls()
        made._set_runs(edges[0::2], edges[1::2])
        return made

    # ------------------------------------------------------------ inside

    def _views(self) -> tuple[Positions, Positions]:
        """The runs as numpy arrays over the same memory. Callers must drop them before they change
        the set."""
        self._settle()
        return np.frombuffer(self._los, np.int64), np.frombuffer(self._his, np.int64)

    def _set_runs(self, los: Positions, his: Positions) -> None:
        self._los = array("q", los.tobytes())
        self._his = array("q", his.tobytes())

    def _settle(self) -> None:
        """Merge the buffer into the runs."""
        if not self._buffered:
            return
        assert self._buffer is not None
        added = self._buffer[: self._buffered]
        self._buffered = self._looked = 0
        if _kernels is not None:
            self._settle_compiled(added, _kernels)
            return
        ordered = np.sort(added)
        breaks = np.flatnonzero(ordered[1:] - ordered[:-1] > 1)
        los = ordered[np.concatenate((_ZERO, breaks + 1))]
        his = ordered[np.append(breaks, ordered.size - 1)] + 1
        self._merge(los, his)

    def _settle_compiled(self, added: Positions, kernels: Kernels) -> None:
        ordered = np.empty(added.size, np.int64)
        bits = np.empty(added.size // _POSITIONS_PER_WORD + 1, np.uint64)
        size = kernels.sort(added, ordered, np.empty(kernels.digits, np.int64), bits)
        added = ordered[:size]
        keep = bisect_left(self._his, int(added[0]))
        old_los = np.frombuffer(self._los, np.int64)[keep:]
        old_his = np.frombuffer(self._his, np.int64)[keep:]
        los, his = np.empty((2, old_los.size + added.size), np.int64)
        count = kernels.merge(old_los, old_his, added, los, his)
        del old_los, old_his  # an array cannot be resized while a view of it lives
        del self._los[keep:]
        del self._his[keep:]
        self._los.frombytes(los[:count].view(np.uint8).data)
        self._his.frombytes(his[:count].view(np.uint8).data)

    def _merge(self, los: Positions, his: Positions) -> None:
        """Add runs that are in order. Runs of the set that lie below all of them are not
        copied."""
        keep = bisect_left(self._his, int(los[0]))
        if keep < len(self._los):
            old_los = np.frombuffer(self._los, np.int64)[keep:]
            old_his = np.frombuffer(self._his, np.int64)[keep:]
            los, his = _union(np.concatenate((old_los, los)), np.concatenate((old_his, his)))
            del old_los, old_his  # an array cannot be resized while a view of it lives
            del self._los[keep:]
            del self._his[keep:]
        self._los.frombytes(los.tobytes())
        self._his.frombytes(his.tobytes())


_ZERO = np.zeros(1, np.int64)


class Kernels(NamedTuple):
    """The compiled loops of runs.py: `sort_positions`, `merge_positions`, `cover_positions`."""

    sort: Callable[[Positions, Positions, Positions, npt.NDArray[np.uint64]], int]
    merge: Callable[[Positions, Positions, Positions, Positions, Positions], int]
    cover: Callable[[Positions, Positions, Positions, npt.NDArray[np.bool_]], None]
    digits: int  # size of the scratch array that `sort` takes


_kernels: Kernels | None = None


def use_kernels(kernels: Kernels) -> None:
    """Use compiled loops for large sets, once kernels are loaded."""
    global _kernels
    _kernels = kernels


def _union(los: Positions, his: Positions) -> tuple[Positions, Positions]:
    """Merge non-empty ranges in any order.

    Starts and ends are sorted separately, and counted from 0. A run of the union begins at the i-th
    start if and only if i ends are strictly below it: all i ranges that begin before it have ended.
    """
    if los.size == 0:
        return los, his
    los = np.sort(los, kind="stable")  # timsort: our inputs are two sorted halves
    his = np.sort(his, kind="stable")
    begins = np.flatnonzero(los[1:] > his[:-1])
    return los[np.concatenate((_ZERO, begins + 1))], his[np.append(begins, his.size - 1)]


def _meet(los: Positions, his: Positions, los2: Positions, his2: Positions) -> IntervalSet:
    """Intersect two lists of runs: each run of the first list with the overlapping runs of the
    second."""
    first = np.searchsorted(his2, los, side="right")
    counts = np.searchsorted(los2, his, side="left") - first
    counts[counts < 0] = 0
    mine = np.repeat(np.arange(los.size), counts)
    steps = np.arange(mine.size) - np.repeat(np.cumsum(counts) - counts, counts)
    theirs = first[mine] + steps
    made = IntervalSet()
    made._set_runs(np.maximum(los[mine], los2[theirs]), np.minimum(his[mine], his2[theirs]))
    return made
