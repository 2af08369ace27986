"""Reads frames from a file, some of which may be damaged; finds every readable frame.

A frame's header holds its length, so after a frame with a damaged body reading continues at the
next frame. After a damaged header the next frame is searched for. The search could also find bytes
of an event that look like a frame. Therefore, if the end of the frames is known, a place is
accepted only if frames follow each other from there to that end.
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

    at: int
    log: bytes  # empty, and `lo` and `hi` 0, if the header cannot be read
    lo: int
    hi: int
    why: str


def read_frame(view: memoryview, at: int, end: int) -> tuple[Batch, int]:
    """The batch at an offset, and where its frame ends. Raises PeerError if it is damaged."""
    batch, size = decode_batch(view[at:end], LOG_LIMITS, validate=False)
    return batch, at + size


def walk(view: memoryview, at: int, end: int, closed: bool) -> Iterator[tuple[int, Batch | Lost]]:
    """The offset and content of each frame between two offsets. `closed`: there are only frames up
    to `end`."""
    while at < end:
        start = at
        try:
            batch, at = read_frame(view, start, end)
            yield start, batch
        except PeerError as problem:
            at, lost = _behind(view, start, end, str(problem))
            if not at:
                at = _resume(view, start + 8, end, closed)
            yield start, lost


def find(view: memoryview, what: bytes, at: int, end: int) -> Iterator[int]:
    """The offsets from `at` on, multiples of 8, at which `what` is found."""
    while at < end:
        chunk = bytes(view[at : min(at + _CHUNK + len(what) - 1, end)])
        place = chunk.find(what)
        while place >= 0:
            if not (at + place) % 8:
                yield at + place
            place = chunk.find(what, place + 1)
        at += _CHUNK


def _behind(view: memoryview, at: int, end: int, why: str) -> tuple[int, Lost]:
    """Where the frame at `at` ends according to its header (0: the header is damaged, too), and
    the loss to report."""
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
    try:
        return batch_head(view[at : min(at + HEADER_SIZE, end)], LOG_LIMITS)[3]
    except PeerError:
        return 0
