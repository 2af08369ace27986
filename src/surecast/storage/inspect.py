"""Looking at a store's directory from outside: what it holds, and whether all of it is right.

Nothing is written and no lock is taken. A store that is in use changes meanwhile, so whoever wants
to be sure stops the node first.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from surecast.core.types import Batch, LogId
from surecast.errors import StorageError
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Paths
from surecast.storage.manifest import read_manifest
from surecast.storage.records import Moved, read_records
from surecast.storage.recovery import Replay, content_of, journals_of
from surecast.storage.segment_file import Mapped, Run

__all__ = ["Holdings", "StreamInfo", "Verdict", "batches", "info", "verify"]

_MAPS_MAX = 16
Progress = Callable[[int, int], None]  # bytes read, of so many


@dataclass
class StreamInfo:
    """One log, from the segments' indices and the journal."""

    log: LogId
    end: int  # the first position it does not hold
    live: int = 0
    void: int = 0
    batches: int = 0
    nbytes: int = 0
    journal_bytes: int = 0  # of them, those that have not moved yet
    segments: int = 0
    time_first_ns: int | None = None
    time_last_ns: int | None = None

    def add(self, batches: int, live: int, nbytes: int, first_ns: int, last_ns: int) -> None:
        self.batches += batches
        self.live += live
        self.nbytes += nbytes
        times = [t for t in (self.time_first_ns, first_ns) if t is not None]
        self.time_first_ns = min(times)
        times = [t for t in (self.time_last_ns, last_ns) if t is not None]
        self.time_last_ns = max(times)


@dataclass
class Holdings:
    """A whole directory."""

    path: Path
    lives: int
    streams: list[StreamInfo]
    states: dict[str, int]  # name → bytes
    segments: int
    segment_bytes: int
    journals: int
    journal_bytes: int
    torn_bytes: int


@dataclass
class Verdict:
    """What `verify` has read, and what was wrong with it."""

    segments: int = 0
    journals: int = 0
    records: int = 0
    nbytes: int = 0
    torn_bytes: int = 0  # at the end of the last journal: what a crash leaves, not damage
    problems: list[str] = field(default_factory=list)


def info(path: str | os.PathLike[str]) -> Holdings:
    """What a directory holds; StorageError if it is no store, or cannot be opened as it is."""
    folder, journals, replay = _played(path)
    disk = replay.disk
    segments = [folder.segment(number) for number in folder.numbers("segment")]
    return Holdings(
        folder.path,
        replay.incarnation,
        [_stream(disk.pieces(log, 1, disk.end(log)), log) for log in disk.logs()],
        {name: len(disk.state(name) or b"") for name in disk.states()},
        len(segments),
        sum(one.stat().st_size for one in segments),
        len(journals),
        sum(folder.journal(number).stat().st_size for number in journals),
        replay.cut_bytes,
    )


def batches(path: str | os.PathLike[str], log: LogId) -> list[Batch]:
    """All that a directory holds of one log, which should be a small one."""
    disk = _played(path)[2].disk
    return disk.read(log, 1, disk.end(log), 1 << 62)


def _played(path: str | os.PathLike[str]) -> tuple[Paths, list[int], Replay]:
    """The store as it would be if it were opened."""
    folder = _existing(path)
    manifest = read_manifest(folder.manifest)
    journals = journals_of(folder, manifest)
    replay = Replay(Shelf(folder, _MAPS_MAX), manifest)
    for number in journals:
        replay.play(folder.journal(number))
    return folder, journals, replay


def _stream(pieces: list[Batch | Extent], log: LogId) -> StreamInfo:
    found = StreamInfo(log, pieces[-1].hi)
    segments: dict[int, None] = {}
    for piece in pieces:
        if isinstance(piece, Extent):
            segments[piece.segment.number] = None
            batches, live, first_ns, last_ns = piece.summary()
            found.add(batches, live, piece.nbytes, first_ns, last_ns)
        else:
            found.add(1, piece.rows, piece.nbytes, piece.time_ns, piece.time_ns)
            found.journal_bytes += piece.nbytes
    found.segments = len(segments)
    found.void = found.end - 1 - found.live
    return found


def _existing(path: str | os.PathLike[str]) -> Paths:
    folder = Paths(path)
    if not folder.path.is_dir():
        raise StorageError(f"{folder.path} is no directory")
    if not folder.manifest.exists() and not folder.numbers("journal"):
        raise StorageError(
            f"{folder.path} holds neither a manifest nor a journal: is it a node's data directory?"
        )
    return folder


# ---------------------------------------------------------------- verify


def verify(path: str | os.PathLike[str], on_progress: Progress | None = None) -> Verdict:
    """Read every record of a directory and check it; the problems name file and offset."""
    folder = _existing(path)
    return _Verifier(folder, on_progress or (lambda done, total: None)).run()


class _Verifier:
    def __init__(self, folder: Paths, on_progress: Progress) -> None:
        self.folder = folder
        self.verdict = Verdict()
        self._on_progress = on_progress
        paths = [folder.segment(n) for n in folder.numbers("segment")]
        paths += [folder.journal(n) for n in folder.numbers("journal")]
        self._total = sum(one.stat().st_size for one in paths)
        self._done = 0

    def run(self) -> Verdict:
        verdict, folder = self.verdict, self.folder
        for number in folder.numbers("segment"):
            verdict.segments += 1
            before = self._done
            self._try(self._segment, number)
            self._done = before  # whatever could not be read
            self._count(folder.segment(number).stat().st_size)
        try:
            manifest = read_manifest(folder.manifest)
            journals = journals_of(folder, manifest)
            self._extents(manifest.logs)
        except StorageError as problem:
            verdict.problems.append(str(problem))
            journals = folder.numbers("journal")
        for number in journals:
            verdict.journals += 1
            self._try(self._journal, number, number == journals[-1])
        return verdict

    def _try(self, check: Callable[..., None], *args: object) -> None:
        try:
            check(*args)
        except (StorageError, OSError) as problem:
            self.verdict.problems.append(str(problem))

    def _segment(self, number: int) -> None:
        mapped = Mapped(self.folder.segment(number), number)
        for place in range(mapped.runs):
            run = mapped.run(place)
            try:
                los, offsets, *_ = mapped.index(run, place)
            except StorageError as problem:
                self.verdict.problems.append(str(problem))
                continue
            ends = [*offsets[1:].tolist(), run.at + run.nbytes]
            for lo, at, end in zip(los.tolist(), offsets.tolist(), ends, strict=True):
                self._try(self._record, mapped, at, end, lo)
                self._count(end - at)

    def _record(self, mapped: Mapped, at: int, end: int, lo: int) -> None:
        self.verdict.records += 1
        _, size = mapped.batch(at, lo)
        if at + size != end:
            raise StorageError(
                f"{mapped.path}: the record at offset {at:,} is damaged: it ends at {at + size:,}"
            )

    def _extents(self, logs: dict[LogId, list[tuple[int, int, int, int, int, int]]]) -> None:
        """What the manifest refers to is there, and follows without gaps."""
        for log, rows in logs.items():
            name = log.hex()
            for before, after in pairwise([(0, 0, 1, 1, 0, 0), *rows]):
                if before[3] != after[2]:
                    self._say(f"stream {name}: nothing holds [{before[3]:,}, {after[2]:,})")
            for number, run, lo, hi, *_ in rows:
                self._try(self._extent, log, number, run, lo, hi)

    def _extent(self, log: LogId, number: int, place: int, lo: int, hi: int) -> None:
        run: Run = Mapped(self.folder.segment(number), number).run(place)
        if run.log != log or not run.lo <= lo < hi <= run.hi:
            self._say(
                f"segment {number} should, but does not hold [{lo:,}, {hi:,}) of stream {log.hex()}"
            )

    def _say(self, what: str) -> None:
        self.verdict.problems.append(f"{self.folder.manifest}: {what}")

    def _journal(self, number: int, last: bool) -> None:
        path = self.folder.journal(number)
        data, end = content_of(path), 0
        try:
            for end, record in read_records(data):
                self.verdict.records += 1
                self._count(0, at=end)
                if isinstance(record, Moved):
                    for segment, run, lo, hi, *_ in record.extents:
                        self._try(self._extent, record.log, segment, run, lo, hi)
        except StorageError as problem:
            raise StorageError(f"{path}: {problem}") from problem
        finally:
            self._count(len(data))
        if end < len(data) and last:
            self.verdict.torn_bytes = len(data) - end
        elif end < len(data):
            raise StorageError(
                f"{path}: the record at offset {end:,} is damaged: a later journal was begun when "
                "it was on disk"
            )

    def _count(self, nbytes: int, at: int = 0) -> None:
        self._done += nbytes
        self.verdict.nbytes = self._done
        self._on_progress(self._done + at, self._total)
