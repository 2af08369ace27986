"""The receive buffers of a connection.

Batches are views into the memory they were received in, so that memory must not be written to
while a batch refers to it. A connection fills a chunk from front to back; frames are slices of it,
without a copy. When the chunk is full, the received part of an unfinished frame is copied to the
start of the next one. A chunk without any views left is filled again from its start: its pages are
warm, and a connection with little traffic never needs a second chunk.
"""

import sys
from typing import Final

import numpy as np

__all__ = ["CHUNK_BYTES", "Chunk"]

CHUNK_BYTES: Final = 256 << 10
_ROOM_MIN: Final = 64 << 10  # with less room receives become short: take a new chunk


class Chunk:
    """`view[at:fill]` is received, but not yet taken out as frames. `view` is writable: pass on
    slices of it only as read-only views."""

    __slots__ = ("_array", "at", "fill", "view")

    view: memoryview

    def __init__(self) -> None:
        self.at = 0
        self.fill = 0
        self._allocate(CHUNK_BYTES)

    def room(self, frame_bytes: int) -> memoryview:
        """The memory to receive into, with room for a whole frame that starts at `at`."""
        at, fill, size = self.at, self.fill, len(self.view)
        full = size - fill < _ROOM_MIN or at + frame_bytes > size
        if full or (fill and at == fill):
            if size == CHUNK_BYTES >= frame_bytes and self._unseen():
                self.view[: fill - at] = self.view[at:fill]
                self.at, self.fill = 0, fill - at
            elif full:
                self._replace(frame_bytes)
        return self.view[self.fill :]

    def _unseen(self) -> bool:
        """Whether there is no other view of the chunk; each would hold a reference to it."""
        self.view.release()
        unseen = sys.getrefcount(self._array) == 2
        self.view = self._array.data
        return unseen

    def _replace(self, frame_bytes: int) -> None:
        rest = self.view[self.at : self.fill]
        # The pages are not touched before bytes arrive: a large claimed length takes address
        # space, not memory.
        self._allocate(max(CHUNK_BYTES, frame_bytes))
        self.view[: len(rest)] = rest
        self.at, self.fill = 0, len(rest)

    def _allocate(self, nbytes: int) -> None:
        self._array = np.empty(nbytes, np.uint8)
        self.view = self._array.data
