"""The answer of `/v1/streams/NAME/files`: where a stream's events are on this server's disk.

The store keeps older events in *segment* files (`storage.segment_file`). A reader on the same
machine, such as a Spark task, maps these files itself instead of receiving the events. It has to
know which segments hold the positions that it reads, and which of the positions are void (obsolete
by the stream's retention rule): a file is not rewritten for each event that becomes obsolete.

The server removes a segment file when background work has copied its events to another one. A
reader that finds a file missing repeats the request. The answer has only committed positions that
the retention rule has processed.
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

# An answer that would exceed one of these bounds covers fewer positions than requested.
RUNS_MAX: Final = 100_000  # ranges of void positions, for each reason
EXTENTS_MAX: Final = 256


class FileExtent(msgspec.Struct, array_like=True):
    """Positions [lo, hi) are in this part of a segment file."""

    segment: int  # the number in the file's name
    run: int  # the number of the run, which is the part of the file that belongs to one log
    lo: int
    hi: int
    index_crc: int  # the checksum of the run's index, to detect that the file is a different one


class StreamFiles(msgspec.Struct):
    """Where positions [lo, hi) of a stream are; they may be fewer than requested. Positions that
    are neither void nor in an extent are not in files: readers get their events from the server."""

    stream_id: str
    directory: str  # the folder of the segment files; "": this server keeps nothing on disk
    lo: int
    hi: int
    voids: dict[str, bytes]  # the void positions by reason, encoded by IntervalSet.to_bytes
    extents: list[FileExtent]


def files_of(server: RegionServer, name: str, lo: int, hi: int) -> StreamFiles | None:
    """The files of a stream, or None if there is no such stream.

    Must be called in the event loop's thread. It changes nothing.
    """
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
    """The void positions of [lo, hi) by reason, and the end up to which they are listed.

    That end is below `hi` if a reason has more than RUNS_MAX ranges.
    """
    voids = {reason: runs.clip(lo, hi) for reason, runs in stream.index.voids.items()}
    for intervals in voids.values():
        if intervals.runs > RUNS_MAX:
            # Ends where the first range that is left out begins.
            hi = min(hi, int(intervals.to_arrays()[0][RUNS_MAX]))
    return voids, hi


def _extents(
    store: SegmentStore, stream: StreamState, lo: int, hi: int
) -> tuple[list[FileExtent], int]:
    """The extents that hold [lo, hi), and the end up to which they are listed."""
    found: list[FileExtent] = []
    # Part of the log of a quarantined stream cannot be read, so its readers are not sent to files.
    if lo >= hi or stream.quarantined:
        return found, hi
    for piece in store.disk.pieces(stream.info.stream_id, lo, hi):
        if type(piece) is not Extent:
            continue  # these positions are not in a segment file
        if len(found) == EXTENTS_MAX:
            return found, piece.lo
        try:
            mapped = piece.segment.shelf.mapped(piece.segment.number)
            crc = mapped.run(piece.run).index_crc
        except StorageError:
            continue  # the file is damaged; the server reports that when it reads there itself
        found.append(
            FileExtent(piece.segment.number, piece.run, max(lo, piece.lo), min(hi, piece.hi), crc)
        )
    return found, hi
