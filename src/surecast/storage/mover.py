"""Moves and compactions: the background work on a store's files.

A **move** begins when the journal continues in a new file. It writes the batches that are in memory
at this point to a segment, one run (sequence of batches) per log, syncs the segment and writes a
new manifest. After that, the older journals are not needed any more. A move writes one file, or a
few, for any number of streams.

A log that grows a little with every move would end up in many small extents. So a move also joins
small adjacent extents, and rewrites the useful part of segments most of whose bytes no log refers
to (`plan.py`).

A **compaction** reads a range of a log and leaves out void (obsolete) events. Its result is a list
of batches if it is small, otherwise an extent in a new segment. The store (segments.py) puts the
result into the log and records it in the journal.

If a step fails, everything stays as it was; new files are removed, at the latest by the next
opening. The code runs in the store's background thread. It does not change what state machines
read.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final, NamedTuple

from surecast.columns.compaction import compacted
from surecast.core.types import Batch, Compact, LogId
from surecast.errors import StorageError
from surecast.storage.config import StorageConfig
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Folder
from surecast.storage.manifest import Extents, Holes, Manifest, UncertainError, write_manifest
from surecast.storage.memory import Hole
from surecast.storage.plan import Group, count, groups_of, worn_out
from surecast.storage.segment_disk import batches_of, own
from surecast.storage.segment_file import SegmentWriter

__all__ = ["Job", "Mover", "Snapshot"]

log = logging.getLogger("surecast.storage")

# Called after each slice of work, so that other threads can run; may raise to stop the work.
BetweenSlices = Callable[[], None]

_REWRITE_RATIO: Final = 4  # bytes of old extents a move may rewrite, per journal_bytes_max


class Snapshot(NamedTuple):
    """The content of a store at the moment when a new journal file begins."""

    logs: dict[LogId, list[Any]]  # all pieces of the logs that changed since the last move
    states: list[tuple[str, bytes]]
    incarnation: int
    held: list[Extent]  # extents that records of older journals refer to; keeps their files
    scopes: dict[LogId, int]  # the layers that `logs` belong to, if known (`core.compose`)


class Job(NamedTuple):
    """A compaction, and the pieces that cover its range."""

    effect: Compact
    pieces: list[Any]


class Mover:
    """Performs moves and compactions, and knows which segments the manifest refers to."""

    def __init__(
        self,
        folder: Folder,
        shelf: Shelf,
        config: StorageConfig,
        manifest: Manifest,
    ) -> None:
        self.moves = 0  # number of successful moves
        self._folder = folder
        self._shelf = shelf
        self._config = config
        self._segment_next = manifest.segment_next
        self._journal = manifest.journal  # older ones are not needed any more
        self._logs: dict[LogId, list[Any]] = {}  # extents and holes, as the manifest has them
        self.scopes = dict(manifest.scopes)
        self._certain = True  # whether it is known which manifest is on disk
        self._live: dict[int, int] = {}  # bytes of each segment that the manifest refers to
        self._sizes: dict[int, int] = {}  # sizes of segments' files, by number

    def load(self, logs: dict[LogId, list[Any]]) -> None:
        """Set the pieces of each log, as the manifest on disk has them."""
        self._logs = logs
        for pieces in logs.values():
            self._count(pieces, 1)

    # ------------------------------------------------------------ moves

    def move(
        self, snapshot: Snapshot, journal: int, between_slices: BetweenSlices
    ) -> list[tuple[LogId, list[Group]]]:
        """Write `snapshot`, the content at the beginning of `journal`, to segments and a new
        manifest. Returns the new groups of each log."""
        self.scopes.update(snapshot.scopes)
        try:
            written = self._write(self._plan(snapshot, rewrite_old=True), between_slices)
        except StorageError as problem:  # an old extent that should be rewritten cannot be read
            log.error("%s; it is not rewritten", problem)
            written = self._write(self._plan(snapshot, rewrite_old=False), between_slices)
        after = {name: pieces for name, pieces in self._logs.items() if name not in snapshot.logs}
        after.update({name: [g.extent for g in groups] for name, groups in written.items()})
        try:
            self._replace_manifest(after, snapshot, journal)
        except UncertainError:
            raise  # keep the segments: the new manifest, which needs them, may be on disk
        except OSError:
            new = [g.extent.segment.number for gs in written.values() for g in gs if g.is_new]
            self.remove(list(dict.fromkeys(new)))
            raise
        self._journal = journal
        for name in (*snapshot.logs, *written):
            self._count(self._logs.get(name, ()), -1)
            self._logs.pop(name, None)
        for name in written:
            self._count(after[name], 1)
        self._logs = after
        self.moves += 1
        self.tidy()
        return [(name, [g for g in groups if g.is_new]) for name, groups in written.items()]

    def _plan(self, snapshot: Snapshot, rewrite_old: bool) -> dict[LogId, list[Group]]:
        """The groups of each log that changes. With `rewrite_old`, old extents may be joined, and
        those of mostly unused segments are rewritten."""
        config = self._config
        logs = {name: pieces for name, pieces in snapshot.logs.items() if pieces}
        if not rewrite_old:
            return {name: groups_of(pieces, (), 0) for name, pieces in sorted(logs.items())}
        live = dict(self._live)
        for name, pieces in snapshot.logs.items():
            count(live, self._logs.get(name, ()), -1)
            count(live, pieces, 1)
        sizes = {number: self._size(number) for number in live}
        left = _REWRITE_RATIO * config.journal_bytes_max
        worn = worn_out(sizes, live, left)
        for number in worn:
            mapped = self._shelf.mapped(number)
            for run in range(mapped.runs):
                name = mapped.run(run).log
                if name in self._logs and name not in snapshot.logs:
                    logs[name] = list(self._logs[name])
        groups: dict[LogId, list[Group]] = {}
        for name, pieces in sorted(logs.items()):
            # Streams that grow at the same rate would all be joined by the same move. The limit
            # on rewritten bytes leaves some of them to the next move.
            groups[name] = groups_of(pieces, worn, config.run_bytes_min if left > 0 else 0)
            left -= sum(group.old_bytes for group in groups[name])
        return groups

    def _count(self, pieces: Sequence[Any], sign: int) -> None:
        count(self._live, pieces, sign)

    def segments(self) -> dict[int, None]:
        """The segments that the manifest on disk refers to."""
        return dict.fromkeys(self._live)

    def _size(self, number: int) -> int:
        size = self._sizes.get(number)
        if size is None:
            try:
                size = self._sizes[number] = self._folder.segment(number).stat().st_size
            except OSError as problem:
                raise StorageError(f"cannot read segment {number}: {problem}") from problem
        return size

    def _write(
        self, groups: dict[LogId, list[Group]], between_slices: BetweenSlices
    ) -> dict[LogId, list[Group]]:
        """Write new groups to segments and sync these. Returns all groups with their extents."""
        with _Segments(self, between_slices) as segments:
            done: dict[LogId, list[Group]] = {}
            for name, planned in groups.items():
                done[name] = [
                    group._replace(extent=segments.write(name, group.pieces))
                    if group.is_new
                    else group
                    for group in planned
                ]
            segments.finish()
            return done

    def _replace_manifest(
        self, logs: dict[LogId, list[Any]], snapshot: Snapshot, journal: int
    ) -> None:
        manifest = Manifest(
            journal,
            snapshot.incarnation,
            self._segment_next,
            {n: rows for n, pieces in logs.items() if (rows := _rows(pieces))},
            snapshot.states,
            {n: holes for n, pieces in logs.items() if (holes := _holes(pieces))},
            {n: scope for n in logs if (scope := self.scopes.get(n, 0))},
        )
        try:
            write_manifest(self._folder, manifest)
        except UncertainError:
            self._certain = False
            raise
        self._certain = True

    def tidy(self) -> None:
        """Remove unused journals and segments. If that fails, the next opening removes them."""
        if not self._certain:
            return
        old = [n for n in self._folder.numbers("journal") if n < self._journal]
        paths = [self._folder.journal(number) for number in old]
        for number in self._shelf.take_gone():
            paths.append(self._folder.segment(number))
            self._sizes.pop(number, None)
        for path in paths:
            with suppress(OSError):
                os.unlink(path)

    # ------------------------------------------------------------ compactions

    def compact(self, job: Job, between_slices: BetweenSlices) -> list[Any]:
        """Returns the pieces that replace the range of the compaction. Raises OSError or
        StorageError."""
        effect = job.effect
        batches = _read_slowly(job.pieces, effect.lo, effect.hi, between_slices)
        made = compacted(batches, effect.voids, effect.rows_max)
        if sum(batch.nbytes for batch in made) <= self._config.inline_bytes_max:
            return [own(batch) for batch in made]  # copies: views would keep a segment mapped
        with _Segments(self, between_slices) as segments:
            extents = [segments.write(effect.log, made)]
            segments.finish()
        return list(extents)

    def copy(self, batches: Iterable[tuple[LogId, Batch]]) -> list[tuple[LogId, Extent]]:
        """Write batches to new segments and sync these. Consecutive batches of a log become one
        run. Returns the log and extent of each run."""
        with _Segments(self, lambda: None) as segments:
            # One run for each pair (number, log); `item` is (number, log, batch).
            runs = groupby(_numbered(batches), lambda item: item[:2])
            made = [(n, segments.write(n, (item[2] for item in items))) for (_, n), items in runs]
            segments.finish()
        return made

    def new_segment(self, between_slices: BetweenSlices) -> tuple[int, SegmentWriter]:
        number = self._segment_next
        self._segment_next += 1
        path = self._folder.segment(number)
        return number, SegmentWriter(path, number, between_slices, self._folder.file_mode)

    @property
    def segment_bytes_max(self) -> int:
        return self._config.segment_bytes_max

    def sync_folder(self) -> None:
        self._folder.sync()

    def extent(self, number: int, run: int, lo: int, hi: int, nbytes: int, time_max: int) -> Extent:
        return Extent(self._shelf.segment(number), run, lo, hi, nbytes, time_max)

    def remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with suppress(OSError):
                os.unlink(self._folder.segment(number))


def _numbered(
    batches: Iterable[tuple[LogId, Batch]],
) -> Iterator[tuple[int, LogId, Batch]]:
    """Number the batches so that consecutive batches of one log have the same number."""
    number, last, end = 0, b"", 0
    for name, batch in batches:
        number += name != last or batch.lo != end  # a new run begins
        last, end = name, batch.hi
        yield number, name, batch


def _rows(pieces: Sequence[Any]) -> Extents:
    return [piece.row() for piece in pieces if type(piece) is Extent]


def _holes(pieces: Sequence[Any]) -> Holes:
    return [(piece.lo, piece.hi, piece.why) for piece in pieces if type(piece) is Hole]


def _read_slowly(pieces: list[Any], lo: int, hi: int, between_slices: BetweenSlices) -> list[Batch]:
    """Like `batches_of`, with a pause after each megabyte."""
    out: list[Batch] = []
    while lo < hi:
        batches = batches_of(pieces, lo, hi, 1 << 20)
        assert batches, "the pieces of a compaction do not cover its range"
        out += batches
        lo = batches[-1].hi
        between_slices()
    return out


class _Segments:
    """A context manager that writes segments one after the other, and removes all of them if its
    block ends with an error."""

    def __init__(self, mover: Mover, between_slices: BetweenSlices) -> None:
        self._mover = mover
        self._between_slices = between_slices
        self._numbers: list[int] = []
        self._writer: SegmentWriter | None = None

    def __enter__(self) -> "_Segments":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        if kind is not None:
            self._mover.remove(self._numbers)

    def write(self, name: LogId, pieces: Iterable[Any]) -> Extent:
        """Write the batches of consecutive pieces as one run; returns its extent."""
        writer = self._open()
        run = writer.begin(name, self._mover.scopes.get(name, 0))
        lo = hi = 0
        for piece in pieces:
            lo, hi = lo or piece.lo, piece.hi
            if type(piece) is Batch:
                writer.add(piece)
            else:
                for batch in piece.batches(piece.lo, piece.hi):
                    writer.add(batch)
        nbytes, time_max = writer.end()
        return self._mover.extent(self._numbers[-1], run, lo, hi, nbytes, time_max)

    def _open(self) -> SegmentWriter:
        writer = self._writer
        if writer is not None and writer.size >= self._mover.segment_bytes_max:
            self._end()
            writer = None
        if writer is None:
            number, writer = self._mover.new_segment(self._between_slices)
            self._numbers.append(number)
            self._writer = writer
        return writer

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.finish()
            self._writer.close()
            self._writer = None

    def finish(self) -> None:
        """Sync the last segment and the directory."""
        if self._numbers:
            self._end()
            self._mover.sync_folder()
