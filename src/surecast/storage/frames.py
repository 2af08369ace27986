"""Reads frames (encoded batches) from a file that may be damaged, and finds all readable frames.

The header of a frame contains the length of the frame. So reading continues at the next frame if
only the body of a frame is damaged. If a header is damaged, the next frame has to be searched for.
The search could also find bytes inside an event that look like a frame. Therefore, if it is known
where the frames end, an offset is accepted only if an unbroken sequence of frames leads from there
to exactly that end. Frames begin at multiples of 8.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from surecast.core.types import Batch
from surecast.core.wire import HEADER_SIZE, MAGIC, batch_head, decode_batch
from surecast.errors import PeerError
from surecast.storage.config import LOG_LIMITS

__all__ = ["Lost", "find", "read_frame", "walk"]

_CHUNK: Final = 1 << 20  # bytes searched at a time


class Lost(NamedTuple):
    """One or more frames that cannot be read."""

    at: int  # offset of the first of them
    log: bytes  # b"", with `lo` = `hi` = 0, if the header cannot be read
    lo: int  # the positions [lo, hi) are lost
    hi: int
    why: str  # why it cannot be read


def read_frame(view: memoryview, at: int, end: int) -> tuple[Batch, int]:
    """The batch at an offset, and where its frame ends. Raises PeerError if it is damaged."""
    batch, size = decode_batch(view[at:end], LOG_LIMITS, validate=False)
    return batch, at + size


def walk(view: memoryview, at: int, end: int, closed: bool) -> Iterator[tuple[int, Batch | Lost]]:
    """The offset and content of each frame between two offsets. `closed` states that the last frame
    ends exactly at `end`; otherwise other data may follow the frames."""
    while at < end:
        start = at
        try:
            batch, at = read_frame(view, start, end)
            yield start, batch
        except PeerError as problem:
            at, lost = _damaged(view, start, end, str(problem))
            if not at:  # the header is damaged, too
                at = _resume(view, start + 8, end, closed)
            yield start, lost


def find(view: memoryview, what: bytes, at: int, end: int) -> Iterator[int]:
    """The offsets from `at` on, multiples of 8, at which `what` is found."""
    while at < end:
        # The chunks overlap, so that `what` is also found across the end of a chunk.
        chunk = bytes(view[at : min(at + _CHUNK + len(what) - 1, end)])
        place = chunk.find(what)
        while place >= 0:
            if not (at + place) % 8:
                yield at + place
            place = chunk.find(what, place + 1)
        at += _CHUNK


def _damaged(view: memoryview, at: int, end: int, why: str) -> tuple[int, Lost]:
    """Where the damaged frame at `at` ends according to its header, and the `Lost` to report.
    The end is 0 if the header is damaged, too."""
    try:
        log, lo, hi, size = batch_head(view[at : min(at + HEADER_SIZE, end)], LOG_LIMITS)
    except PeerError:
        return 0, Lost(at, b"", 0, 0, why)
    return min(at + size, end), Lost(at, log, lo, hi, why)


def _resume(view: memoryview, at: int, end: int, closed: bool) -> int:
    """Where the next frame from `at` on begins; `end` if there is none."""
    for place in find(view, MAGIC, at, end):
        if _leads(view, place, end) if closed else _size(view, place, end):
            return place
    return end


def _leads(view: memoryview, at: int, end: int) -> bool:
    """Whether headers follow each other from `at` up to exactly `end`."""
    while at < end and (size := _size(view, at, end)):
        at += size
    return at == end


def _size(view: memoryview, at: int, end: int) -> int:
    """The size of the frame at `at` according to its header; 0 if there is no valid header."""
    try:
        return batch_head(view[at : min(at + HEADER_SIZE, end)], LOG_LIMITS)[3]
    except PeerError:
        return 0
