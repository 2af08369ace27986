"""The segments of a stream on this server's disk, for readers with access to its files.

A reader on the same machine (or with the same disks mounted) maps the segments itself instead of
receiving the events. It needs to know which parts of which segments currently hold the positions,
and which of these positions are void: files are not rewritten for each event that becomes obsolete.
Files are removed when a move or a compaction has replaced them; a reader that misses a file repeats
the request.

Only committed positions that retention has processed are included.
"""

from typing import Final

import msgspec

from surecast.columns.batch import REASON_NAMES
from surecast.columns.intervals import IntervalSet
from surecast.core.streams import StreamState
from surecast.errors import StorageError
from surecast.server.region import RegionServer
from surecast.storage.extents import Extent
from surecast.storage.segments import SegmentStore

__all__ = ["FileExtent", "StreamFiles", "files_of"]

RUNS_MAX: Final = 100_000  # void ranges in one answer; then it is about fewer positions
EXTENTS_MAX: Final = 256  # in one answer


class FileExtent(msgspec.Struct, array_like=True):
    """Positions [lo, hi) are in this run of this segment, whose index has this checksum."""

    segment: int
    run: int
    lo: int
    hi: int
    index_crc: int


class StreamFiles(msgspec.Struct):
    """Positions [lo, hi), possibly fewer than requested. Those without an extent are not in
    segments."""

    stream_id: str
    directory: str  # "": nothing is kept on disk
    lo: int
    hi: int
    voids: dict[str, bytes]  # by reason: IntervalSet.to_bytes
    extents: list[FileExtent]


def files_of(server: RegionServer, name: str, lo: int, hi: int) -> StreamFiles | None:
    """The files of a stream, or None if there is no such stream. Call it in the event loop's
    thread; it changes nothing."""
    if server.replica is None:
        return None
    info = server.streams.named(name)
    stream = server.streams.streams.get(info.stream_id) if info is not None else None
    if stream is None:
        return None
    hi = max(lo, min(hi, stream.committed, stream.index.end))
    voids, hi = _voids(stream, lo, hi)
    directory = ""
    extents: list[FileExtent] = []
    store = server.replica.store
    if isinstance(store, SegmentStore):
        directory = store.path
        extents, hi = _extents(store, stream, lo, hi)
    return StreamFiles(
        stream.info.stream_id.hex(),
        directory,
        lo,
        hi,
        {REASON_NAMES[reason]: runs.clip(lo, hi).to_bytes() for reason, runs in voids.items()},
        extents,
    )


def _voids(stream: StreamState, lo: int, hi: int) -> tuple[dict[int, IntervalSet], int]:
    """The void positions of [lo, hi) by reason, and the end up to which they are complete."""
    voids = {reason: runs.clip(lo, hi) for reason, runs in stream.index.voids.items()}
    for intervals in voids.values():
        if intervals.runs > RUNS_MAX:
            hi = min(hi, int(intervals.to_arrays()[0][RUNS_MAX]))
    return voids, hi


def _extents(
    store: SegmentStore, stream: StreamState, lo: int, hi: int
) -> tuple[list[FileExtent], int]:
    found: list[FileExtent] = []
    if lo >= hi or stream.quarantined:
        return found, hi
    for piece in store.disk.pieces(stream.info.stream_id, lo, hi):
        if type(piece) is not Extent:
            continue
        if len(found) == EXTENTS_MAX:
            return found, piece.lo
        try:
            mapped = piece.segment.shelf.mapped(piece.segment.number)
            crc = mapped.run(piece.run).index_crc
        except StorageError:
            continue  # damaged: reported when the server itself reads there
        found.append(
            FileExtent(piece.segment.number, piece.run, max(lo, piece.lo), min(hi, piece.hi), crc)
        )
    return found, hi
