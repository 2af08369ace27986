"""Splits state that may be larger than a message into parts, and joins received parts."""

from collections.abc import Iterator
from typing import Final

__all__ = ["PART_BYTES", "Parts", "parts_of"]

PART_BYTES: Final = 256 << 10  # bytes of one part
TOTAL_MAX: Final = 256 << 20  # most bytes of one state


def parts_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, bytes) of each part; for empty `data` one empty part."""
    for at in range(0, max(len(data), 1), PART_BYTES):
        yield at, data[at : at + PART_BYTES]


class Parts:
    """Collects the received parts of one state. A session delivers parts in order or not at all."""

    def __init__(self) -> None:
        self._got = bytearray()  # the parts received so far, joined

    def take(self, at: int, data: bytes, total: int) -> bytes | None:
        """Add the part at offset `at` of a state of `total` bytes. With the last part, returns the
        whole state, else None.

        A part at an unexpected offset discards what was collected.
        """
        if at == 0:
            self._got = bytearray()
        if at != len(self._got) or (total and not data) or total > TOTAL_MAX:
            self._got = bytearray()
            return None
        self._got += data
        if len(self._got) < total:
            return None
        whole, self._got = bytes(self._got), bytearray()
        return whole
