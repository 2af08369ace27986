"""Looking at a store's directory from outside: what it holds, and whether all of it is right.

It is read as when the store is opened (`recovery.py`), so both find the same damage. But nothing is
written and no lock is taken. A store that is in use changes meanwhile: to be sure, stop the node
first.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from surecast.columns.batch import COLLECTED, REASON_NAMES
from surecast.columns.retention import Policy, RetentionIndex
from surecast.core.disk import read_through
from surecast.core.types import Batch, Disk, LogId
from surecast.errors import PeerError, StorageError
from surecast.storage.check import Progress
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Paths
from surecast.storage.memory import Hole
from surecast.storage.recovery import Replay

__all__ = ["Holdings", "StreamInfo", "Verdict", "batches", "info", "verify"]

_MAPS_MAX = 16
_READ_BYTES: Final = 1 << 20  # of a log at a time


@dataclass
class StreamInfo:
    """One log, from the segments' indices and the journal."""

    log: LogId
    end: int  # the first position it does not hold
    live: int = 0  # what retention leaves, as `surecast status` counts it
    void: int = 0
    void_reasons: dict[str, int] = field(default_factory=dict)  # void positions by reason
    rows: int = 0  # events in the files: those that are live, and void ones not compacted away yet
    batches: int = 0
    nbytes: int = 0
    journal_bytes: int = 0  # of them, those that have not moved yet
    unreadable: int = 0  # positions that are neither live nor void, but lost here
    segments: int = 0
    time_first_ns: int | None = None
    time_last_ns: int | None = None

    def add(self, batches: int, rows: int, nbytes: int, first_ns: int, last_ns: int) -> None:
        self.batches += batches
        self.rows += rows
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


def info(
    path: str | os.PathLike[str], policies: Mapping[LogId, Policy] = MappingProxyType({})
) -> Holdings:
    """What a directory holds; StorageError if it is no store, or of a later version.

    `policies` has what each stream keeps, as it was created. Other logs have no retention: each of
    their entries counts as live.
    """
    folder, replay = _played(path, "all", _silent)
    disk = replay.disk
    segments = [folder.segment(number) for number in folder.numbers("segment")]
    journals = [folder.journal(number) for number in replay.ends]
    streams, problems = [], replay.problems()
    for log in disk.logs():
        found = _stream(disk.pieces(log, 1, disk.end(log)), log)
        if log in policies and (problem := _count(found, disk, policies[log])):
            problems.append(problem)
        streams.append(found)
    return Holdings(
        folder.path,
        replay.incarnation,
        streams,
        {name: len(disk.state(name) or b"") for name in disk.states()},
        len(segments),
        sum(one.stat().st_size for one in segments),
        len(journals),
        sum(one.stat().st_size for one in journals),
        replay.cut_bytes,
        problems,
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
            batches, rows, first_ns, last_ns = piece.summary()
            found.add(batches, rows, piece.nbytes, first_ns, last_ns)
        elif isinstance(piece, Hole):
            found.unreadable += piece.hi - piece.lo
        else:
            found.add(1, piece.rows, piece.nbytes, piece.time_ns, piece.time_ns)
            found.journal_bytes += piece.nbytes
    found.segments = len(segments)
    found.live = found.rows
    found.void = found.end - 1 - found.live - found.unreadable
    return found


def _count(found: StreamInfo, disk: Disk, policy: Policy) -> str:
    """Count live and void positions by the stream's rules; what is wrong with the log, or "".

    Positions that cannot be read are fed as void, so that the rules apply to all others.
    """
    index = RetentionIndex(policy)

    def lend(lo: int, hi: int) -> Iterator[Batch]:
        return _read(disk, found.log, lo, hi)

    problem = ""
    try:
        for batch in lend(1, found.end):
            index.feed(batch, lend)
    except (PeerError, ValueError) as wrong:
        problem = f"{found.log.hex()}: no rule applies from position {index.end:,} on: {wrong}"
    holes = sum(min(hi, index.end) - lo for lo, hi in disk.holes(found.log) if lo < index.end)
    counts = index.counts()
    counts.void[COLLECTED] -= holes
    found.live = counts.live
    found.void_reasons = {REASON_NAMES[reason]: count for reason, count in counts.void.items()}
    found.void = sum(found.void_reasons.values())
    found.unreadable = found.end - 1 - found.live - found.void
    return problem


def _read(disk: Disk, log: LogId, lo: int, hi: int) -> Iterator[Batch]:
    """The batches of [lo, hi), with a void one for each range that cannot be read."""
    for first, last in [*disk.holes(log), (hi, hi)]:
        upto = min(first, hi)
        if lo < upto:
            yield from read_through(disk, log, lo, upto, _READ_BYTES)
            lo = upto
        if lo < min(last, hi):
            yield Batch.void(log, lo, min(last, hi), COLLECTED)
            lo = min(last, hi)


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
