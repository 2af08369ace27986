"""Decides which part of a log to compact next: rewrite without void (obsolete) events.

A log is divided into *pieces* and compacted piece by piece, so that one rewrite is bounded however
long the log is. A piece is rewritten when a certain share of its rows (events) has become void
since it was last written, or when it consists of many tiny batches. Neighbouring pieces that have
also shrunk, or are not much larger, are rewritten together with it, and all become one piece. So
the number of pieces stays proportional to the number of live (not void) events, and the total
amount of rewritten data is a small multiple of the published data.
"""

from dataclasses import dataclass

import numpy as np

from surecast.columns.batch import Batch
from surecast.columns.column import Int64s
from surecast.columns.intervals import IntervalSet

__all__ = ["Piece", "Pieces"]

# The batches of a piece are worth joining if they have fewer rows than SMALL_ROWS on average, and
# there are at least BATCHES_MIN of them.
SMALL_ROWS = 16
BATCHES_MIN = 64
JOINED = 4  # a neighbour up to this many times as large as the piece is rewritten with it
AT_ONCE = 8  # most pieces that are rewritten together, which bounds what a rewrite reads


@dataclass(slots=True)
class Piece:
    """Positions [lo, hi) of a log."""

    lo: int
    hi: int
    rows: int = 0  # this, `nbytes` and `batches` are as when the piece was last written
    nbytes: int = 0
    batches: int = 0

    @property
    def is_tiny_batches(self) -> bool:
        """Whether it consists of many tiny batches."""
        return self.batches >= BATCHES_MIN and self.rows < SMALL_ROWS * self.batches


class Pieces:
    """The pieces of one log: closed pieces, contiguous from position 1, and the open piece at the
    end, which still grows."""

    def __init__(self, rows_max: int = 1 << 16, nbytes_max: int = 8 << 20) -> None:
        self.rows_max = rows_max
        self.nbytes_max = nbytes_max
        self.closed: list[Piece] = []
        self.open = Piece(1, 1)
        self.under_way: tuple[int, int] | None = None  # the range that is being rewritten
        # How many positions were void when `begin` last found nothing worth rewriting. If it is
        # still this number, `begin` need not look at all pieces. -1: look in any case.
        self.looked = -1
        # Whether the open piece may be closed before it is full. The service sets this to true
        # once per period, and `begin` to false. (In a busy stream the open piece would otherwise
        # be closed and rewritten again and again.)
        self.tidy = True

    def note(self, batch: Batch) -> None:
        """Add the next batch of the log to the open piece."""
        piece = self.open
        piece.hi = batch.hi
        piece.rows += batch.rows
        piece.nbytes += batch.nbytes
        piece.batches += 1
        if piece.rows >= self.rows_max or piece.nbytes >= self.nbytes_max:
            self._close()

    def finish(self) -> None:
        """Close the open piece, because the log will not grow any more. It is then rewritten like
        the others, however small it is."""
        if self.open.rows:
            self._close()

    def begin(self, voids: list[IntervalSet], share: float) -> tuple[int, int] | None:
        """The range [lo, hi) to rewrite now. None if no part is worth it, or if a rewrite is
        running.

        `voids` are the void positions of the log. A piece is worth a rewrite if at least `share` of
        its rows have become void."""
        if self.under_way:
            return None
        total = sum(positions.total() for positions in voids)
        if total == self.looked:
            return None
        tidied, self.tidy = self.tidy, False
        if tidied:
            self._close_if_worth_it(voids, share)
        if not self.closed:
            return None
        live = self._live(voids)
        gone = [piece.rows - rows for piece, rows in zip(self.closed, live, strict=True)]
        worth = [
            i
            for i, piece in enumerate(self.closed)
            if gone[i] >= max(1, share * piece.rows) or piece.is_tiny_batches
        ]
        if not worth:
            self.looked = total if tidied else -1
            return None
        first = max(worth, key=lambda i: gone[i])
        self.under_way = self._with_neighbours(first, live, gone, share)
        return self.under_way

    def _close_if_worth_it(self, voids: list[IntervalSet], share: float) -> None:
        piece = self.open
        if piece.rows < SMALL_ROWS:
            return
        gone = sum(positions.clip(piece.lo, piece.hi).total() for positions in voids)
        # Do not count positions that were void already when the piece was written (those without a
        # row).
        gone -= piece.hi - piece.lo - piece.rows
        if gone >= max(1, share * piece.rows):
            self._close()

    def _close(self) -> None:
        self.closed.append(self.open)
        self.open = Piece(self.open.hi, self.open.hi)
        self.looked = -1

    def _with_neighbours(
        self, first: int, live: list[int], gone: list[int], share: float
    ) -> tuple[int, int]:
        """The range of closed piece number `first` and of the neighbours to rewrite with it."""
        # The pieces [first, last): `rows` are left after the rewrite, `held` are there before it.
        last, rows, held = first + 1, live[first], self.closed[first].rows

        def joins(i: int) -> bool:
            shrunk = gone[i] >= max(1, share * self.closed[i].rows)
            near = live[i] <= JOINED * held and 4 * live[i] <= self.rows_max
            fits = rows + live[i] <= self.rows_max and last - first < AT_ONCE
            return fits and (shrunk or near)

        while last < len(self.closed) and joins(last):
            rows, held = rows + live[last], held + self.closed[last].rows
            last += 1
        while first > 0 and joins(first - 1):
            first -= 1
            rows, held = rows + live[first], held + self.closed[first].rows
        return self.closed[first].lo, self.closed[last - 1].hi

    def done(self, lo: int, hi: int, rows: int) -> None:
        """[lo, hi) was rewritten and has this number of rows now."""
        self.under_way = None
        inside = [i for i, piece in enumerate(self.closed) if lo <= piece.lo and piece.hi <= hi]
        if not inside:
            return
        first, last = inside[0], inside[-1] + 1
        old = self.closed[first:last]
        held = sum(piece.rows for piece in old)
        nbytes = sum(piece.nbytes for piece in old) * rows // max(held, 1)
        self.closed[first:last] = [Piece(lo, hi, rows, nbytes, 1)]
        self.looked = -1

    def failed(self) -> None:
        """The rewrite failed, and the log is unchanged."""
        self.under_way = None

    def _live(self, voids: list[IntervalSet]) -> list[int]:
        """The number of live positions in each closed piece."""
        edges = np.array([*(piece.lo for piece in self.closed), self.closed[-1].hi], np.int64)
        below = sum((_below(runs, edges) for runs in voids), np.zeros(edges.size, np.int64))
        counts: list[int] = (np.diff(edges) - np.diff(below)).tolist()
        return counts


def _below(voids: IntervalSet, edges: Int64s) -> Int64s:
    """The number of positions of `voids` below each edge."""
    los, his = voids.to_arrays()
    if not los.size:
        return np.zeros(edges.size, np.int64)
    whole = np.concatenate((np.zeros(1, np.int64), np.cumsum(his - los)))  # in runs before each run
    run = np.searchsorted(los, edges, "right") - 1  # the last run that begins at or below the edge
    inside = np.minimum(edges, his[run]) - los[run]
    counts: Int64s = np.where(run < 0, 0, whole[np.maximum(run, 0)] + inside)
    return counts
