"""Looking at a store's directory from outside: what it holds, and whether all of it is right.

It is read as when the store is opened (`recovery.py`), so both find the same damage. But nothing is
written and no lock is taken. A store that is in use changes meanwhile: to be sure, stop the node
first.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from surecast.core.types import Batch, LogId
from surecast.errors import StorageError
from surecast.storage.check import Progress
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Paths
from surecast.storage.memory import Hole
from surecast.storage.recovery import Replay

__all__ = ["Holdings", "StreamInfo", "Verdict", "batches", "info", "verify"]

_MAPS_MAX = 16


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
    unreadable: int = 0  # positions that are neither live nor void, but lost here
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
    problems: list[str]  # damage, as `verify` would name it


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
    """What a directory holds; StorageError if it is no store, or of a later version."""
    folder, replay = _played(path, "all", _silent)
    disk = replay.disk
    segments = [folder.segment(number) for number in folder.numbers("segment")]
    journals = [folder.journal(number) for number in replay.ends]
    return Holdings(
        folder.path,
        replay.incarnation,
        [_stream(disk.pieces(log, 1, disk.end(log)), log) for log in disk.logs()],
        {name: len(disk.state(name) or b"") for name in disk.states()},
        len(segments),
        sum(one.stat().st_size for one in segments),
        len(journals),
        sum(one.stat().st_size for one in journals),
        replay.cut_bytes,
        replay.problems(),
    )


def batches(path: str | os.PathLike[str], log: LogId) -> list[Batch]:
    """All that can be read in a directory of one log, which should be a small one."""
    disk = _played(path, "none", _silent)[1].disk
    found: list[Batch] = []
    at = 1
    for lo, hi in [*disk.holes(log), (disk.end(log), 0)]:
        found += disk.read(log, at, lo, 1 << 62)
        at = hi
    return found


def verify(path: str | os.PathLike[str], on_progress: Progress | None = None) -> Verdict:
    """Read every record of a directory and check it; the problems name file and offset."""
    folder, replay = _played(path, "all", on_progress or _silent)
    paths = [folder.segment(number) for number in folder.numbers("segment")]
    verdict = Verdict(len(paths), len(replay.ends), replay.records + replay.batches)
    paths += [folder.journal(number) for number in replay.ends]
    verdict.nbytes = sum(one.stat().st_size for one in paths)
    verdict.torn_bytes = replay.cut_bytes
    verdict.problems = replay.problems()
    return verdict


def _played(
    path: str | os.PathLike[str], check: str, on_progress: Progress
) -> tuple[Paths, Replay]:
    """The store as it would be if it were opened."""
    folder = _existing(path)
    replay = Replay(folder, Shelf(folder, _MAPS_MAX))
    replay.run(check, None, on_progress)
    return folder, replay


def _silent(done: int, total: int) -> None:
    pass


def _stream(pieces: list[Batch | Extent | Hole], log: LogId) -> StreamInfo:
    found = StreamInfo(log, pieces[-1].hi)
    segments: dict[int, None] = {}
    for piece in pieces:
        if isinstance(piece, Extent):
            segments[piece.segment.number] = None
            batches, live, first_ns, last_ns = piece.summary()
            found.add(batches, live, piece.nbytes, first_ns, last_ns)
        elif isinstance(piece, Hole):
            found.unreadable += piece.hi - piece.lo
        else:
            found.add(1, piece.rows, piece.nbytes, piece.time_ns, piece.time_ns)
            found.journal_bytes += piece.nbytes
    found.segments = len(segments)
    found.void = found.end - 1 - found.live - found.unreadable
    return found


def _existing(path: str | os.PathLike[str]) -> Paths:
    folder = Paths(path)
    if not folder.path.is_dir():
        raise StorageError(f"{folder.path} is no directory")
    files = folder.manifest.exists() or folder.ends.exists()
    if not files and not folder.numbers("journal") and not folder.numbers("segment"):
        raise StorageError(
            f"{folder.path} holds neither a manifest nor a journal: is it a node's data directory?"
        )
    return folder
