"""Reading a store's directory without opening the store: what it holds, and whether it is intact.

`surecast log info` and `surecast log verify` use this file. The directory is read by the same code
that opens a store (`recovery.py`), so both find the same damage. But nothing is written and no lock
is taken. A running node changes its files during the reading: for a reliable result, stop the node
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

_MAPS_MAX = 16  # segments mapped at a time
_READ_BYTES: Final = 1 << 20  # bytes of a log that are read at a time


@dataclass
class StreamInfo:
    """One stream's log, from the segments' indices and the journal."""

    log: LogId
    end: int  # the position after the last one
    live: int = 0  # positions whose events are not obsolete, as `surecast status` counts them
    void: int = 0  # positions whose events are obsolete
    void_reasons: dict[str, int] = field(default_factory=dict)  # void positions by reason
    rows: int = 0  # events in the files: live ones, and void ones that are not yet compacted
    batches: int = 0
    nbytes: int = 0
    journal_bytes: int = 0  # part of `nbytes` that has not moved to segments yet
    unreadable: int = 0  # positions that are neither live nor void, but damaged here
    segments: int = 0  # number of segments that contain a part of the log
    deleted: bool = False  # the stream was deleted: the log has an End event
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
    """The contents of a directory; the result of `info`."""

    path: Path
    lives: int  # how often the node was started
    streams: list[StreamInfo]
    states: dict[str, int]  # name → bytes
    segments: int  # number of files
    segment_bytes: int
    journals: int  # number of files
    journal_bytes: int
    torn_bytes: int  # at the end of the last journal: left by a crash, not damage
    problems: list[str]  # damage, as `verify` reports it


@dataclass
class Verdict:
    """The result of `verify`: what was read, and the problems."""

    segments: int = 0  # number of files
    journals: int = 0  # number of files
    records: int = 0  # records of journals, and batches in segments
    nbytes: int = 0  # total size of these files
    torn_bytes: int = 0  # at the end of the last journal: left by a crash, not damage
    problems: list[str] = field(default_factory=list)


def info(
    path: str | os.PathLike[str], policies: Mapping[LogId, Policy] = MappingProxyType({})
) -> Holdings:
    """What a directory holds. Raises StorageError if it is not a store, or of a later version.

    `policies` gives the retention with which each stream was created. A log that is not in
    `policies` has no retention: each of its entries counts as live.
    """
    folder, replay = _played(path, "all", _silent)
    disk = replay.disk
    segments = [folder.segment(number) for number in folder.numbers("segment")]
    journals = [folder.journal(number) for number in replay.ends]
    streams, problems = [], replay.problems()
    for log in disk.logs():
        stream = _stream(disk.pieces(log, 1, disk.end(log)), log)
        if log in policies and (problem := _count(stream, disk, policies[log])):
            problems.append(problem)
        streams.append(stream)
    return Holdings(
        folder.path,
        replay.incarnation,
        streams,
        {name: len(disk.state(name) or b"") for name in disk.states()},
        len(segments),
        sum(path.stat().st_size for path in segments),
        len(journals),
        sum(path.stat().st_size for path in journals),
        replay.cut_bytes,
        problems,
    )


def batches(path: str | os.PathLike[str], log: LogId) -> list[Batch]:
    """All readable batches of a log in a directory; they must fit into memory."""
    disk = _played(path, "none", _silent)[1].disk
    readable: list[Batch] = []
    at = 1
    for lo, hi in [*disk.holes(log), (disk.end(log), 0)]:  # at last, the range after all holes
        readable += disk.read(log, at, lo, 1 << 62)
        at = hi
    return readable


def verify(path: str | os.PathLike[str], on_progress: Progress | None = None) -> Verdict:
    """Read every record of a directory and check it; the problems name file and offset."""
    folder, replay = _played(path, "all", on_progress or _silent)
    paths = [folder.segment(number) for number in folder.numbers("segment")]
    verdict = Verdict(len(paths), len(replay.ends), replay.records + replay.batches)
    paths += [folder.journal(number) for number in replay.ends]
    verdict.nbytes = sum(path.stat().st_size for path in paths)
    verdict.torn_bytes = replay.cut_bytes
    verdict.problems = replay.problems()
    return verdict


def _played(
    path: str | os.PathLike[str], check: str, on_progress: Progress
) -> tuple[Paths, Replay]:
    """Read a directory in the same way as opening the store does."""
    folder = _existing(path)
    replay = Replay(folder, Shelf(folder, _MAPS_MAX))
    replay.run(check, None, on_progress)
    return folder, replay


def _silent(done: int, total: int) -> None:
    pass


def _stream(pieces: list[Batch | Extent | Hole], log: LogId) -> StreamInfo:
    stream = StreamInfo(log, pieces[-1].hi)
    segments: dict[int, None] = {}
    for piece in pieces:
        if isinstance(piece, Extent):
            segments[piece.segment.number] = None
            batches, rows, first_ns, last_ns = piece.summary()
            stream.add(batches, rows, piece.nbytes, first_ns, last_ns)
        elif isinstance(piece, Hole):
            stream.unreadable += piece.hi - piece.lo
        else:
            stream.add(1, piece.rows, piece.nbytes, piece.time_ns, piece.time_ns)
            stream.journal_bytes += piece.nbytes
    stream.segments = len(segments)
    stream.live = stream.rows
    stream.void = stream.end - 1 - stream.live - stream.unreadable
    return stream


def _count(stream: StreamInfo, disk: Disk, policy: Policy) -> str:
    """Count live and void positions by the stream's retention. Returns the log's problem, or "".

    The retention rules need every position, so unreadable positions are passed to them as void.
    They are subtracted from the result.
    """
    index = RetentionIndex(policy)

    def read(lo: int, hi: int) -> Iterator[Batch]:
        return _read(disk, stream.log, lo, hi)

    problem = ""
    try:
        for batch in read(1, stream.end):
            index.feed(batch, read)
    except (PeerError, ValueError) as error:
        problem = (
            f"{stream.log.hex()}: the retention rules cannot be applied from position "
            f"{index.end:,} on: {error}"
        )
    holes = sum(min(hi, index.end) - lo for lo, hi in disk.holes(stream.log) if lo < index.end)
    stream.deleted = index.ended > 0
    counts = index.counts()
    counts.void[COLLECTED] -= holes
    stream.live = counts.live
    stream.void_reasons = {REASON_NAMES[reason]: count for reason, count in counts.void.items()}
    stream.void = sum(stream.void_reasons.values())
    stream.unreadable = stream.end - 1 - stream.live - stream.void
    return problem


def _read(disk: Disk, log: LogId, lo: int, hi: int) -> Iterator[Batch]:
    """The batches of [lo, hi), with a void batch for each unreadable range."""
    for first, last in [*disk.holes(log), (hi, hi)]:  # at last, the range after all holes
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
        raise StorageError(f"{folder.path} is not a directory")
    files = folder.manifest.exists() or folder.ends.exists()
    if not files and not folder.numbers("journal") and not folder.numbers("segment"):
        raise StorageError(
            f"{folder.path} holds neither a manifest nor a journal: is it a node's data directory?"
        )
    return folder
