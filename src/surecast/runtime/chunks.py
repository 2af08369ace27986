"""Chunk: the receive buffer of a TCP connection, and of a node's datagrams.

Received bytes are not copied: a batch is a view into the memory that it was received in. So this
memory must not be overwritten while a batch refers to it. A connection fills a chunk from front to
back. When the chunk is full, the connection continues with a new chunk, to whose start the received
part of an unfinished frame is copied. If no batch refers to the old chunk any more, the connection
fills the old chunk from its start instead. This is faster, because its pages are in memory already,
and a connection with little traffic never needs a second chunk.
"""

import sys
from typing import Final

import numpy as np

__all__ = ["CHUNK_BYTES", "Chunk"]

CHUNK_BYTES: Final = 256 << 10
_ROOM_MIN: Final = 64 << 10  # with less room in a chunk, receives would be too small


class Chunk:
    """A receive buffer (see the module).

    `view` is its memory. `view[at:fill]` was received, and the connection has not taken it out as
    frames yet. `view` is writable, so slices of it may be passed on only as read-only views.
    """

    __slots__ = ("_array", "at", "fill", "view")

    view: memoryview

    def __init__(self) -> None:
        self.at = 0
        self.fill = 0
        self._allocate(CHUNK_BYTES)

    def room(self, frame_bytes: int) -> memoryview:
        """The memory to receive into. It has room for a frame of `frame_bytes` from `at` on."""
        at, fill, size = self.at, self.fill, len(self.view)
        full = size - fill < _ROOM_MIN or at + frame_bytes > size
        # Also start over when all received bytes were taken out, to use the same pages again.
        if full or (fill and at == fill):
            # A larger chunk (allocated for one large frame) is replaced when full, never refilled.
            if size == CHUNK_BYTES >= frame_bytes and self._unseen():
                self.view[: fill - at] = self.view[at:fill]
                self.at, self.fill = 0, fill - at
            elif full:
                self._replace(frame_bytes)
        return self.view[self.fill :]

    def _unseen(self) -> bool:
        """Whether no batch or other view refers to the chunk. Each of them holds a reference to
        `_array`."""
        self.view.release()
        unseen = sys.getrefcount(self._array) == 2  # `self._array`, and the argument of the call
        self.view = self._array.data
        return unseen

    def _replace(self, frame_bytes: int) -> None:
        """Continue with a new chunk; the unfinished frame is copied to its start."""
        rest = self.view[self.at : self.fill]
        # The system provides a page only when bytes are written to it. So a frame with a large size
        # in its header takes address space, but no memory until its bytes arrive.
        self._allocate(max(CHUNK_BYTES, frame_bytes))
        self.view[: len(rest)] = rest
        self.at, self.fill = 0, len(rest)

    def _allocate(self, nbytes: int) -> None:
        self._array = np.empty(nbytes, np.uint8)
        self.view = self._array.data
