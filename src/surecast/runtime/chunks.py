"""What a connection receives into.

Batches are views into the memory they were received in, so that memory must not be written to
while one lives. A connection fills a chunk from front to back; frames are cut out of it where they
lie. When the chunk is full the next one begins with what is there of an unfinished frame. A chunk
that nobody has a view into any more is filled again from its start: its pages are warm, and a
connection that carries only small talk never needs a second one.
"""

import sys
from typing import Final

import numpy as np

__all__ = ["CHUNK_BYTES", "Chunk"]

CHUNK_BYTES: Final = 256 << 10
_ROOM_MIN: Final = 64 << 10  # less room than this makes short receives: time for a new chunk


class Chunk:
    """`view[at:fill]` is received and not cut out yet. `view` is writable: hand on slices of it
    only as read-only views."""

    __slots__ = ("_array", "at", "fill", "view")

    view: memoryview

    def __init__(self) -> None:
        self.at = 0
        self.fill = 0
        self._allocate(CHUNK_BYTES)

    def room(self, frame_bytes: int) -> memoryview:
        """Where to receive into, with room for the whole of a frame that starts at `at`."""
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
        """Whether nobody else has a view into the chunk: each would hold a reference to it."""
        self.view.release()
        unseen = sys.getrefcount(self._array) == 2
        self.view = self._array.data
        return unseen

    def _replace(self, frame_bytes: int) -> None:
        rest = self.view[self.at : self.fill]
        # Not touched before bytes arrive: a claimed length costs addresses, not memory.
        self._allocate(max(CHUNK_BYTES, frame_bytes))
        self.view[: len(rest)] = rest
        self.at, self.fill = 0, len(rest)

    def _allocate(self, nbytes: int) -> None:
        self._array = np.empty(nbytes, np.uint8)
        self.view = self._array.data
