"""Extents, the parts of logs that are in segments, and `Shelf`, the set of segments in use.

A *run* is a sequence of batches of one log in a segment's file. An extent is a run or a part of a
run, and consists of whole batches. A log is a list of batches and extents. Only the location of an
extent is in memory; its batches are read from the file.

A segment's file may be removed when no `Extent` object refers to it any more. Logs, the manifest
and running moves and compactions hold such objects. Python's reference counts track this: when the
last extent of a segment is freed, the segment's number is put on `Shelf.gone`. Batches that were
read before keep the memory map and stay readable.
"""

import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from surecast.core.types import Batch
from surecast.errors import StorageError
from surecast.storage.folder import Paths
from surecast.storage.segment_file import Mapped, Numbers, touch

__all__ = ["Extent", "Segment", "Shelf"]

_LOOK_AHEAD: Final = 64  # entries of an index that are converted to Python integers at a time
_SLICE_BATCHES: Final = 32  # `load` decodes this many batches at a time: less than a millisecond
_TOUCHED_S: Final = 10.0  # after this time without `load`, an index may have left the cache


class Shelf:
    """All segments in use, of which the most recently read ones are mapped."""

    def __init__(self, folder: Paths, maps_max: int) -> None:
        self.folder = folder
        self.gone: deque[int] = deque()  # numbers of segments that no extent refers to any more
        self._maps_max = maps_max
        self._segments: WeakValueDictionary[int, Segment] = WeakValueDictionary()
        self._maps: OrderedDict[int, Mapped] = OrderedDict()
        self._lock = Lock()  # the event loop and the background thread both read segments

    def segment(self, number: int) -> "Segment":
        segment = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = Segment(self, number)
        return segment

    def mapped(self, number: int) -> Mapped:
        with self._lock:
            mapped = self._maps.get(number)
            if mapped is None:
                mapped = self._maps[number] = Mapped(self.folder.segment(number), number)
                if len(self._maps) > self._maps_max:
                    self._maps.popitem(last=False)
            else:
                self._maps.move_to_end(number)
            return mapped

    def take_gone(self) -> list[int]:
        """Numbers of segments whose files may be removed; each is returned once."""
        taken = []
        while self.gone:
            number = self.gone.popleft()
            if number not in self._segments:  # otherwise a new `Segment` object uses the file
                taken.append(number)
        with self._lock:
            for number in taken:
                self._maps.pop(number, None)
        return taken


class Segment:
    """A segment in use; freed with the last extent that refers to it."""

    __slots__ = ("__weakref__", "number", "shelf", "touched")

    def __init__(self, shelf: Shelf, number: int) -> None:
        self.shelf = shelf
        self.number = number
        self.touched = float("-inf")  # the time of the last `Extent.load` (time.monotonic)

    def __del__(self) -> None:
        self.shelf.gone.append(self.number)


class Extent:
    """The batches of [lo, hi) in one run of a segment."""

    __slots__ = ("hi", "lo", "nbytes", "run", "segment", "time_max")

    def __init__(
        self, segment: Segment, run: int, lo: int, hi: int, nbytes: int, time_max: int
    ) -> None:
        self.segment = segment
        self.run = run  # index of the run in the segment
        self.lo = lo
        self.hi = hi
        self.nbytes = nbytes  # size of its frames
        self.time_max = time_max  # no batch of this extent has a later time

    def __repr__(self) -> str:
        return f"Extent([{self.lo}, {self.hi}) in segment {self.segment.number} run {self.run})"

    def row(self) -> tuple[int, int, int, int, int, int]:
        """The extent as a row of the manifest."""
        return self.segment.number, self.run, self.lo, self.hi, self.nbytes, self.time_max

    def located(self, lo: int, hi: int) -> Iterator[tuple[int, Batch]]:
        """Offset and batch of all batches with a position in [lo, hi). Checksums are verified."""
        mapped, los, offsets, *_ = self._index()
        first, last = self._places(los, lo, hi)
        for start in range(first, last, _LOOK_AHEAD):
            some = slice(start, min(start + _LOOK_AHEAD, last))
            for place, at in zip(los[some].tolist(), offsets[some].tolist(), strict=True):
                yield at, mapped.batch(at, place)[0]

    def batches(self, lo: int, hi: int) -> Iterator[Batch]:
        for _, batch in self.located(lo, hi):
            yield batch

    def load(
        self, lo: int, hi: int, nbytes_max: int, between_slices: Callable[[], None]
    ) -> list[Batch]:
        """The batches of [lo, hi), cut at lo and hi, up to the one that exceeds `nbytes_max` bytes.

        For threads: the file is read without the interpreter's lock. Other threads get the lock at
        least after each slice of the work, when `between_slices` is called.
        """
        segment = self.segment
        path = segment.shelf.folder.segment(segment.number)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return self._load(file, lo, hi, nbytes_max, between_slices)
            finally:
                os.close(file)
        except OSError as problem:
            raise StorageError(f"cannot read {path}: {problem}") from problem

    def _load(
        self, file: int, lo: int, hi: int, nbytes_max: int, between_slices: Callable[[], None]
    ) -> list[Batch]:
        segment, now = self.segment, time.monotonic()
        if now - segment.touched > _TOUCHED_S:
            touch(file)
        segment.touched = now
        mapped, los, offsets, *_ = self._index()
        first, last = self._places(los, lo, hi)
        run = mapped.run(self.run)
        out: list[Batch] = []
        nbytes = 0
        while first < last and nbytes <= nbytes_max:
            # All frames that begin within the bound. If the first batch is cut, these are too few:
            # then the loop continues.
            at = int(offsets[first])
            wanted = at + nbytes_max - nbytes
            upto = min(int(np.searchsorted(offsets, wanted, "right")), last)
            upto = max(upto, first + 1)
            end = int(offsets[upto]) if upto < run.batches else run.at + run.nbytes
            frames = memoryview(os.pread(file, end - at, at))
            for start in range(first, upto, _SLICE_BATCHES):
                some = slice(start, min(start + _SLICE_BATCHES, upto))
                for place, begin in zip(los[some].tolist(), offsets[some].tolist(), strict=True):
                    batch = mapped.decode(frames[begin - at :], begin, place)[0]
                    if batch.lo < lo or batch.hi > hi:
                        batch = batch.slice(lo, hi)
                    out.append(batch)
                    nbytes += batch.nbytes
                if start + _SLICE_BATCHES < upto:
                    between_slices()
            first = upto
        return out

    def batch_at(self, seq: int) -> Batch:
        """The batch that holds `seq`."""
        return next(self.batches(seq, seq + 1))

    def clip(self, lo: int, hi: int) -> "Extent":
        """The part of this extent in [lo, hi); both must be boundaries of batches."""
        lo, hi = max(lo, self.lo), min(hi, self.hi)
        if (lo, hi) == (self.lo, self.hi):
            return self
        mapped, los, offsets, *_ = self._index()
        first, last = self._places(los, lo, hi)
        run = mapped.run(self.run)
        end = int(offsets[last]) if last < run.batches else run.at + run.nbytes
        nbytes = end - int(offsets[first])
        return Extent(self.segment, self.run, lo, hi, nbytes, self.time_max)

    def first_at(self, time_ns: int, lo: int, hi: int) -> int | None:
        """The first position of [lo, hi) in a batch whose time is not before `time_ns`."""
        if self.time_max < time_ns:
            return None
        _, los, _, times, _ = self._index()
        first, last = self._places(los, lo, hi)
        # No binary search: void ranges may have time 0, so the times are not sorted.
        late = times[first:last] >= time_ns
        if not late.any():
            return None
        return max(int(los[first + int(late.argmax())]), lo, self.lo)

    def summary(self) -> tuple[int, int, int, int]:
        """Number of batches, number of rows, first and last time, all from the index."""
        _, los, _, times, rows = self._index()
        some = slice(*self._places(los, self.lo, self.hi))
        count, live = len(times[some]), int(rows[some].sum())
        return count, live, int(times[some].min()), int(times[some].max())

    def _index(self) -> tuple[Mapped, Numbers, Numbers, Numbers, Numbers]:
        """The mapped segment, and the first position, offset, time and number of rows of each batch
        of the run."""
        mapped = self.segment.shelf.mapped(self.segment.number)
        return mapped, *mapped.index(mapped.run(self.run), self.run)

    def _places(self, los: Numbers, lo: int, hi: int) -> tuple[int, int]:
        """The batches with a position in both [lo, hi) and this extent: the index of the first one
        in the run, and the index after the last one."""
        lo, hi = max(lo, self.lo), min(hi, self.hi)
        if lo >= hi:
            return 0, 0
        first, last = np.searchsorted(los, (lo, hi - 1), "right").tolist()
        return first - 1, last
