"""Frames in a file, some of which may be damaged: each that reads is found.

A frame says by its header how long it is, so behind one whose body is damaged reading goes on at
the next. Behind a damaged header the next frame is searched for. What is found by searching could
also be bytes of an event that look like a frame. So where the end of the frames is known, a place
is taken for one only if frames follow each other from there to that end.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from surecast.core.types import Batch
from surecast.core.wire import HEADER_SIZE, MAGIC, batch_head, decode_batch
from surecast.errors import PeerError
from surecast.storage.config import LOG_LIMITS

__all__ = ["Lost", "find", "read_frame", "walk"]

_CHUNK: Final = 1 << 20  # searched at a time


class Lost(NamedTuple):
    """A frame, or several, that do not read."""

    at: int
    log: bytes  # and its positions, if its header reads; else empty
    lo: int
    hi: int
    why: str


def read_frame(view: memoryview, at: int, end: int) -> tuple[Batch, int]:
    """The batch at an offset, and where its frame ends; PeerError if it does not read."""
    batch, size = decode_batch(view[at:end], LOG_LIMITS, validate=False)
    return batch, at + size


def walk(view: memoryview, at: int, end: int, closed: bool) -> Iterator[tuple[int, Batch | Lost]]:
    """What is between two offsets, frame by frame; `closed`: nothing but frames, up to `end`."""
    while at < end:
        start = at
        try:
            found, at = read_frame(view, start, end)
            yield start, found
        except PeerError as problem:
            at, lost = _behind(view, start, end, str(problem))
            if not at:
                at = _resume(view, start + 8, end, closed)
            yield start, lost


def find(view: memoryview, what: bytes, at: int, end: int) -> Iterator[int]:
    """The offsets from `at` on, multiples of 8, where `what` stands."""
    while at < end:
        some = bytes(view[at : min(at + _CHUNK + len(what) - 1, end)])
        found = some.find(what)
        while found >= 0:
            if not (at + found) % 8:
                yield at + found
            found = some.find(what, found + 1)
        at += _CHUNK


def _behind(view: memoryview, at: int, end: int, why: str) -> tuple[int, Lost]:
    """Where the frame at `at` ends by its header (0: that does not read either)."""
    try:
        log, lo, hi, size = batch_head(view[at : min(at + HEADER_SIZE, end)], LOG_LIMITS)
    except PeerError:
        return 0, Lost(at, b"", 0, 0, why)
    return min(at + size, end), Lost(at, log, lo, hi, why)


def _resume(view: memoryview, at: int, end: int, closed: bool) -> int:
    for found in find(view, MAGIC, at, end):
        if _leads(view, found, end) if closed else _size(view, found, end):
            return found
    return end


def _leads(view: memoryview, at: int, end: int) -> bool:
    """Whether headers follow each other from here to the very end."""
    while at < end and (size := _size(view, at, end)):
        at += size
    return at == end


def _size(view: memoryview, at: int, end: int) -> int:
    try:
        return batch_head(view[at : min(at + HEADER_SIZE, end)], LOG_LIMITS)[3]
    except PeerError:
        return 0
