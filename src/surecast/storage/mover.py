"""Moves and compactions: what a store does to its files in the background.

A **move** begins where a journal ends. It takes the batches of all logs that are still in memory
there and writes them to a segment, one run a log; it syncs the segment, puts a new manifest in
place, and the journals before are not needed any more. However many streams there are, a move makes
one file, or a few.

A log that gets a little with every move would become many small extents. So a move also takes along
small neighbours (`plan.py`), and what is left in segments that are mostly dead.

A **compaction** reads a range of a log, leaves out what is void, and hands back the result: as
batches, if it is small, or as extents of a segment of its own. The store shows it when its answer
is given, and writes that down in the journal.

A step that fails leaves everything as it was: what was written is removed, or is an orphan that the
next opening removes. Runs in the store's second thread; nothing here touches what machines read.
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

Breathe = Callable[[], None]

_TAKEN_ALONG: Final = 4  # journals' worth of old bytes that a move may rewrite


class Snapshot(NamedTuple):
    """What a store holds at one place in the order of effects: the beginning of a journal."""

    logs: dict[LogId, list[Any]]  # the pieces of those that changed since the last move
    states: list[tuple[str, bytes]]
    incarnation: int
    held: list[Extent]  # that records of the journals before refer to
    scopes: dict[LogId, int]  # of those of `logs` whose layer is known


class Job(NamedTuple):
    """A compaction, and the pieces that cover its range."""

    effect: Compact
    pieces: list[Any]


class Mover:
    def __init__(
        self,
        folder: Folder,
        shelf: Shelf,
        config: StorageConfig,
        manifest: Manifest,
    ) -> None:
        self.moves = 0
        self._folder = folder
        self._shelf = shelf
        self._config = config
        self._segment_next = manifest.segment_next
        self._journal = manifest.journal
        self._logs: dict[LogId, list[Any]] = {}  # extents and holes, as the manifest has them
        self.scopes = dict(manifest.scopes)
        self._certain = True  # which manifest is on disk
        self._live: dict[int, int] = {}  # bytes of each segment that the manifest refers to
        self._sizes: dict[int, int] = {}

    def load(self, logs: dict[LogId, list[Any]]) -> None:
        """The pieces of each log as the manifest has them."""
        self._logs = logs
        for pieces in logs.values():
            self._count(pieces, 1)

    # ------------------------------------------------------------ moves

    def move(
        self, snapshot: Snapshot, journal: int, breathe: Breathe
    ) -> list[tuple[LogId, list[Group]]]:
        """Bring the manifest to `snapshot`, where `journal` begins; what has moved where."""
        self.scopes.update(snapshot.scopes)
        try:
            written = self._write(self._plan(snapshot, thrifty=True), breathe)
        except StorageError as problem:  # of a segment it would have taken along
            log.error("%s; it is left alone", problem)
            written = self._write(self._plan(snapshot, thrifty=False), breathe)
        after = {n: some for n, some in self._logs.items() if n not in snapshot.logs}
        after.update({name: [one.extent for one in some] for name, some in written.items()})
        try:
            self._replace_manifest(after, snapshot, journal)
        except UncertainError:
            raise  # a crash may yet bring the new manifest, and its segments with it
        except OSError:
            new = [g.extent.segment.number for some in written.values() for g in some if g.is_new]
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
        return [(name, [g for g in some if g.is_new]) for name, some in written.items()]

    def _plan(self, snapshot: Snapshot, thrifty: bool) -> dict[LogId, list[Group]]:
        """The groups of each log that changes; also of old extents, if it is to be thrifty."""
        config = self._config
        logs = {name: pieces for name, pieces in snapshot.logs.items() if pieces}
        if not thrifty:
            return {name: groups_of(pieces, (), 0) for name, pieces in sorted(logs.items())}
        live = dict(self._live)
        for name, pieces in snapshot.logs.items():
            count(live, self._logs.get(name, ()), -1)
            count(live, pieces, 1)
        sizes = {number: self._size(number) for number in live}
        left = _TAKEN_ALONG * config.journal_bytes_max
        worn = worn_out(sizes, live, left)
        for number in worn:
            mapped = self._shelf.mapped(number)
            for run in range(mapped.runs):
                name = mapped.run(run).log
                if name in self._logs and name not in snapshot.logs:
                    logs[name] = list(self._logs[name])
        groups: dict[LogId, list[Group]] = {}
        for name, pieces in sorted(logs.items()):
            # Many streams grow alike and would all be joined at once: some wait for the next move.
            groups[name] = groups_of(pieces, worn, config.run_bytes_min if left > 0 else 0)
            left -= sum(group.old_bytes for group in groups[name])
        return groups

    def _count(self, pieces: Sequence[Any], sign: int) -> None:
        count(self._live, pieces, sign)

    def segments(self) -> dict[int, None]:
        """All that the manifest on disk refers to."""
        return dict.fromkeys(self._live)

    def _size(self, number: int) -> int:
        size = self._sizes.get(number)
        if size is None:
            try:
                size = self._sizes[number] = self._folder.segment(number).stat().st_size
            except OSError as problem:
                raise StorageError(f"cannot look at segment {number}: {problem}") from problem
        return size

    def _write(
        self, groups: dict[LogId, list[Group]], breathe: Breathe
    ) -> dict[LogId, list[Group]]:
        """Every group as one extent; those that are new in segments on disk."""
        with _Segments(self, breathe) as segments:
            done: dict[LogId, list[Group]] = {}
            for name, some in groups.items():
                done[name] = [
                    group._replace(extent=segments.write(name, group.pieces))
                    if group.is_new
                    else group
                    for group in some
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
            {n: rows for n, some in logs.items() if (rows := _rows(some))},
            snapshot.states,
            {n: holes for n, some in logs.items() if (holes := _holes(some))},
            {n: scope for n in logs if (scope := self.scopes.get(n, 0))},
        )
        try:
            write_manifest(self._folder, manifest)
        except UncertainError:
            self._certain = False
            raise
        self._certain = True

    def tidy(self) -> None:
        """Remove what nobody needs. A file that cannot be removed now is at the next opening."""
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

    def compact(self, job: Job, breathe: Breathe) -> list[Any]:
        """The pieces to put in the place of the range; raises OSError or StorageError."""
        effect = job.effect
        batches = _read_slowly(job.pieces, effect.lo, effect.hi, breathe)
        made = compacted(batches, effect.voids, effect.rows_max)
        if sum(batch.nbytes for batch in made) <= self._config.inline_bytes_max:
            return [own(batch) for batch in made]  # not to keep a segment mapped for them
        with _Segments(self, breathe) as segments:
            extents = [segments.write(effect.log, made)]
            segments.finish()
        return list(extents)

    def copy(self, batches: Iterable[tuple[LogId, Batch]]) -> list[tuple[LogId, Extent]]:
        """Segments on disk with these batches: a run for those of a log that follow each other."""
        with _Segments(self, lambda: None) as segments:
            runs = groupby(_numbered(batches), lambda item: item[:2])
            made = [(n, segments.write(n, (item[2] for item in some))) for (_, n), some in runs]
            segments.finish()
        return made

    def new_segment(self, breathe: Breathe) -> tuple[int, SegmentWriter]:
        number = self._segment_next
        self._segment_next += 1
        path = self._folder.segment(number)
        return number, SegmentWriter(path, number, breathe, self._folder.file_mode)

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
    """With a number that changes where a log's batches do not follow each other."""
    number, last, end = 0, b"", 0
    for name, batch in batches:
        number += name != last or batch.lo != end
        last, end = name, batch.hi
        yield number, name, batch


def _rows(pieces: Sequence[Any]) -> Extents:
    return [piece.row() for piece in pieces if type(piece) is Extent]


def _holes(pieces: Sequence[Any]) -> Holes:
    return [(piece.lo, piece.hi, piece.why) for piece in pieces if type(piece) is Hole]


def _read_slowly(pieces: list[Any], lo: int, hi: int, breathe: Breathe) -> list[Batch]:
    """`batches_of`, a piece or some batches at a time."""
    out: list[Batch] = []
    while lo < hi:
        some = batches_of(pieces, lo, hi, 1 << 20)
        assert some, "the pieces of a compaction do not cover its range"
        out += some
        lo = some[-1].hi
        breathe()
    return out


class _Segments:
    """Segments being written, one after the other; on an error all of them are removed."""

    def __init__(self, mover: Mover, breathe: Breathe) -> None:
        self._mover = mover
        self._breathe = breathe
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
        """A run of these pieces' batches, which follow each other."""
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
            number, writer = self._mover.new_segment(self._breathe)
            self._numbers.append(number)
            self._writer = writer
        return writer

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.finish()
            self._writer.close()
            self._writer = None

    def finish(self) -> None:
        """All of them are on disk, with their names."""
        if self._numbers:
            self._end()
            self._mover.sync_folder()
