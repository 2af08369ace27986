"""What a broker knows of a stream (`Pieces`), and the same for a stream's log (`LogPieces`).

A *piece* is the knowledge of a range: its events, and that all other positions of it are final. The
positions outside all pieces are unknown here: they may hold events.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from surecast.columns.batch import Batch
from surecast.columns.intervals import IntervalSet
from surecast.core.streams import Streams
from surecast.core.types import LogId
from surecast.protocols.gryphon.messages import Stamps

__all__ = ["Known", "LogPieces", "Piece", "Pieces"]

_OVERHEAD = 100  # bytes that a piece counts in addition to its events


class Piece(NamedTuple):
    lo: int
    hi: int
    batches: tuple[Batch, ...]  # with the events of [lo, hi), in order
    stamps: Stamps | None  # of the positions without an event

    def part(self, lo: int, hi: int) -> Piece:
        """This piece within [lo, hi), which must overlap it."""
        lo, hi = max(lo, self.lo), min(hi, self.hi)
        if lo == self.lo and hi == self.hi:
            return self
        inside = (batch for batch in self.batches if batch.lo < hi and batch.hi > lo)
        cut = (batch.slice(lo, hi) for batch in inside)
        return Piece(lo, hi, tuple(batch for batch in cut if batch.rows), self.stamps)

    @property
    def nbytes(self) -> int:
        return _OVERHEAD + sum(batch.nbytes for batch in self.batches)

    @property
    def is_dense(self) -> bool:
        """Whether every position has an event."""
        return sum(batch.rows for batch in self.batches) == self.hi - self.lo


class Known(Protocol):
    """The part of `Pieces` that `LogPieces` has, too."""

    def piece_from(self, lo: int, hi: int) -> Piece | None:
        """Knowledge that begins at `lo` and ends at `hi` or before; None if `lo` is unknown."""

    def next_known(self, lo: int) -> int | None:
        """The first known position at or after `lo`."""

    def missing(self, lo: int, hi: int) -> IntervalSet:
        """The unknown positions of [lo, hi)."""


class Pieces:
    """Pieces that do not overlap, by position. Old ones are dropped to limit the memory."""

    def __init__(self) -> None:
        self._los: list[int] = []
        self._pieces: list[Piece] = []
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def _index(self, lo: int) -> int:
        """The index of the piece that contains `lo`, or of the next one."""
        index = bisect_right(self._los, lo) - 1
        if index >= 0 and self._pieces[index].hi > lo:
            return index
        return index + 1

    def add(self, piece: Piece) -> list[Piece]:
        """Add what is new of `piece`, and return it."""
        new = [piece.part(lo, hi) for lo, hi in self.missing(piece.lo, piece.hi)]
        for part in new:
            index = bisect_right(self._los, part.lo)
            self._los.insert(index, part.lo)
            self._pieces.insert(index, part)
            self.nbytes += part.nbytes
        return new

    def piece_from(self, lo: int, hi: int) -> Piece | None:
        index = self._index(lo)
        if index == len(self._pieces) or self._pieces[index].lo > lo or lo >= hi:
            return None
        return self._pieces[index].part(lo, hi)

    def next_known(self, lo: int) -> int | None:
        index = self._index(lo)
        return max(lo, self._los[index]) if index < len(self._pieces) else None

    def missing(self, lo: int, hi: int) -> IntervalSet:
        found, index = IntervalSet(), self._index(lo)
        while lo < hi:
            if index == len(self._pieces):
                found.add(lo, hi)
                break
            piece = self._pieces[index]
            found.add(lo, min(piece.lo, hi))
            lo, index = piece.hi, index + 1
        return found

    def parts(self, lo: int, hi: int) -> Iterator[Piece]:
        """The known parts of [lo, hi), in order."""
        index = self._index(lo)
        while index < len(self._pieces) and self._pieces[index].lo < hi:
            yield self._pieces[index].part(lo, hi)
            index += 1

    def drop_below(self, end: int) -> None:
        """Drop the pieces that end at `end` or before."""
        count = bisect_right(self._los, end - 1)
        if count and self._pieces[count - 1].hi > end:
            count -= 1
        self._drop(count)

    def shrink(self, nbytes_max: int) -> None:
        """Drop the oldest pieces until the others have at most `nbytes_max` bytes."""
        count, left = 0, self.nbytes
        while left > nbytes_max and count < len(self._pieces):
            left -= self._pieces[count].nbytes
            count += 1
        self._drop(count)

    def _drop(self, count: int) -> None:
        if count:
            self.nbytes -= sum(piece.nbytes for piece in self._pieces[:count])
            del self._los[:count], self._pieces[:count]


class LogPieces:
    """The log of a stream, at a replica of the region that owns it. Nothing is unknown below the
    end that is shown. Reads return a limited number of bytes."""

    def __init__(self, service: Streams, stream: LogId) -> None:
        self._service = service
        self._stream = stream

    def piece_from(self, lo: int, hi: int) -> Piece | None:
        hi = min(hi, self._service.shown_end(self._stream))
        batches = self._service.readable(self._stream, lo, hi) if lo < hi else []
        if not batches:
            return None
        return Piece(lo, batches[-1].hi, tuple(batch for batch in batches if batch.rows), None)

    def next_known(self, lo: int) -> int | None:
        return lo if lo < self._service.shown_end(self._stream) else None

    def missing(self, lo: int, hi: int) -> IntervalSet:
        end = max(self._service.shown_end(self._stream), 1)
        return IntervalSet([(max(lo, end), hi)] if max(lo, end) < hi else [])
