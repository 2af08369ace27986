"""Reads the intact parts of damaged segments, when a store is opened or inspected.

The manifest and the journal have a *row* for each extent (part of a log in a segment): the segment,
the run, and the positions. `Salvage.pieces` turns a row into pieces of the log: the extent itself
if it is intact, otherwise its readable parts, and holes for the positions that cannot be read. The
result depends on which part of the file is damaged:

- A frame (an encoded batch): its positions become a hole. The index locates the other frames.
- The index of a run: the frames of the run are read one after the other.
- Header, directory or footer of the file: all frames of the file are read one after the other.
- The file is missing, or belongs to another segment: all positions of the row become a hole.

Batches that are found without an index are copied to a new segment; if the folder is only
inspected, they are kept in memory. Only batches of the row's log and positions are used.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from surecast.core.types import Batch, LogId
from surecast.storage.check import Checked, Progress, check_segments, not_checked
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Damaged
from surecast.storage.frames import walk
from surecast.storage.memory import Hole
from surecast.storage.mover import Mover
from surecast.storage.segment_file import FRAMES_AT, Mapped, Misplaced, Run, open_map

__all__ = ["Salvage"]

LogPieces = list[tuple[LogId, Any]]  # logs, each with an extent or a batch
# An extent as it is in the manifest and the journal: number of the segment, index of the run in the
# segment, lo, hi, nbytes, time_max.
Row = tuple[int, int, int, int, int, int]


class Salvage:
    def __init__(self, shelf: Shelf) -> None:
        self.found: list[str] = []  # the problems, in the order they were found
        self.mover: Mover | None = None  # copies batches found without an index; None: no copies
        self._shelf = shelf
        self._folder = shelf.folder
        self._checks: dict[int, Checked] = {}  # by number of the segment
        # By segment and run (-1: the whole file): the pieces found without an index, by log.
        self._copies: dict[tuple[int, int], dict[LogId, list[Any]]] = {}
        self._reported: dict[tuple[int, int], None] = {}  # by segment, and run or offset (-1: file)
        self.scopes: dict[LogId, int] = {}  # the scopes of logs, as found in the segments

    def batches(self) -> int:
        """The number of batches in all checked segments, from their directories."""
        count = 0
        for number, checked in self._checks.items():
            if not checked.missing and checked.problem is None:
                mapped = self._shelf.mapped(number)
                count += sum(mapped.run(place).batches for place in range(mapped.runs))
        return count

    def check(self, numbers: list[int], on_progress: Progress) -> None:
        """Check these segments completely. Segments that are not checked count as intact."""
        self._checks.update(check_segments(self._folder, numbers, on_progress))

    # ------------------------------------------------------------ an extent

    def pieces(self, log: LogId, row: Row) -> list[Any]:
        """Extents, batches and holes that cover exactly the positions of the row."""
        number, place, lo, hi, *_ = row  # `place`: index of the run
        checked = self._checked(number)
        path = self._folder.segment(number)
        if checked.missing:
            return [self._hole(number, lo, hi, f"{path} is missing")]
        if number not in self._checks:  # `check = "none"`: treat it as intact
            return [Extent(self._shelf.segment(number), *row[1:])]
        if checked.problem is not None:
            why = str(checked.problem)
            if isinstance(checked.problem, Misplaced):
                return [self._hole(number, lo, hi, why)]
            self._report(number, -1, why)
            return _covering(self._copy(number, -1).get(log, []), lo, hi, why)
        mapped = self._shelf.mapped(number)
        run = mapped.run(place) if place < mapped.runs else None
        if run is None or run.log != log or not run.lo <= lo < hi <= run.hi:
            return [self._hole(number, lo, hi, f"{path} does not contain the run it should")]
        if place not in checked.runs:
            return [Extent(self._shelf.segment(number), *row[1:])]
        try:
            mapped.index(run, place)
        except Damaged as problem:
            self._report(number, place, str(problem))
            return _covering(self._copy(number, place).get(log, []), lo, hi, str(problem))
        return self._by_index(mapped, run, row)

    def _by_index(self, mapped: Mapped, run: Run, row: Row) -> list[Any]:
        """The pieces of a row whose run has damaged frames: extents between these, and holes."""
        number, place, lo, hi, _, time_max = row
        los, offsets, *_ = mapped.index(run, place)
        first, last = (int(i) for i in np.searchsorted(los, (lo, hi), "left"))
        starts = [*los[first:last].tolist(), hi]
        ends = [*offsets[first:last].tolist()]  # offsets where frames end, and the next ones begin
        ends.append(int(offsets[last]) if last < run.batches else run.at + run.nbytes)
        pieces: list[Any] = []
        begin = 0  # index of the first batch after the last damaged one

        def take(end: int) -> None:  # add an extent of the intact batches before index `end`
            if begin < end:
                segment, nbytes = self._shelf.segment(number), ends[end] - ends[begin]
                pieces.append(Extent(segment, place, starts[begin], starts[end], nbytes, time_max))

        for index, ((a, b), (at, stop)) in enumerate(
            zip(pairwise(starts), pairwise(ends), strict=True)
        ):
            if (why := mapped.problem(at, stop, a, b)) is not None:
                take(index)
                begin = index + 1
                self._report(number, at, why)
                pieces.append(Hole(a, b, why))
        take(len(starts) - 1)
        return pieces

    # ------------------------------------------------------------ a segment

    def everything(self, number: int) -> LogPieces:
        """All readable pieces of a segment; used when there is no manifest."""
        self.force([number])
        checked = self._checked(number)
        if checked.missing or isinstance(checked.problem, Misplaced):
            return []
        if checked.problem is not None:
            self._report(number, -1, str(checked.problem))
            copies = self._copy(number, -1)
            return [(log, piece) for log, some in copies.items() for piece in some]
        mapped = self._shelf.mapped(number)
        readable: LogPieces = []
        for place in range(mapped.runs):
            run = mapped.run(place)
            if run.scope:
                self.scopes[run.log] = run.scope
            time_max = (1 << 63) - 1  # not known
            if checked.runs.get(place) != "index":
                time_max = int(mapped.index(run, place)[2].max())
            row = (number, place, run.lo, run.hi, run.nbytes, time_max)
            pieces = self.pieces(run.log, row)
            readable += [(run.log, piece) for piece in pieces if type(piece) is not Hole]
        return readable

    # ------------------------------------------------------------ inside

    def force(self, numbers: Iterable[int]) -> None:
        """Check those of the segments `numbers` that have not been checked yet."""
        self.check([n for n in numbers if n not in self._checks], lambda done, total: None)

    def _checked(self, number: int) -> Checked:
        return self._checks.get(number) or not_checked(self._folder, number)

    def _copy(self, number: int, place: int) -> dict[LogId, list[Any]]:
        """The batches of a run (-1: of all runs) that are found without an index, by log."""
        copies = self._copies.get((number, place))
        if copies is None:
            batches = self._walk(number, place)
            pieces = self.mover.copy(batches) if self.mover is not None else list(batches)
            copies = self._copies[number, place] = {}
            for log, piece in sorted(pieces, key=lambda item: int(item[1].lo)):
                copies.setdefault(log, []).append(piece)
        return copies

    def _walk(self, number: int, place: int) -> Iterator[tuple[LogId, Batch]]:
        """Yield the readable batches of a run (-1: of all runs), each with its log."""
        if place < 0:
            view = open_map(self._folder.segment(number))
            at, end = FRAMES_AT, len(view)
        else:
            mapped = self._shelf.mapped(number)
            run = mapped.run(place)
            view, at, end = mapped.view, run.at, run.at + run.nbytes
        # A run ends with its last frame; in the file, indices follow after the last run.
        for offset, frame in walk(view, at, end, closed=place >= 0):
            if isinstance(frame, Batch):
                yield frame.stream_id if place < 0 else run.log, frame
            elif frame.hi:  # 0: these bytes may not be a frame at all
                self._report(number, offset, self._damage_at(number, offset, frame.why))

    def _hole(self, number: int, lo: int, hi: int, why: str) -> Hole:
        self._report(number, -1, why)
        return Hole(lo, hi, why)

    def _damage_at(self, number: int, offset: int, why: str) -> str:
        path = self._folder.segment(number)
        return f"{path}: the record at offset {offset:,} is damaged: {why}"

    def _report(self, number: int, place: int, problem: str) -> None:
        """Add a problem to `found`, once for each key of `_reported`."""
        if (number, place) not in self._reported:
            self._reported[number, place] = None
            self.found.append(problem)


def _covering(pieces: list[Any], lo: int, hi: int, why: str) -> list[Any]:
    """The parts of `pieces` in [lo, hi), and holes for the rest."""
    out: list[Any] = []
    for piece in pieces:
        if piece.hi <= lo or piece.lo >= hi:
            continue
        if piece.lo > lo:
            out.append(Hole(lo, piece.lo, why))
        part = piece.clip(lo, hi) if type(piece) is Extent else piece.slice(lo, hi)
        out.append(part)
        lo = part.hi
    if lo < hi:
        out.append(Hole(lo, hi, why))
    return out
