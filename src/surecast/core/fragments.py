"""State that may be larger than a message: sent in parts, put together again in order."""

from collections.abc import Iterator
from typing import Final

__all__ = ["PART_BYTES", "Parts", "parts_of"]

PART_BYTES: Final = 256 << 10
TOTAL_MAX: Final = 256 << 20  # of one state


def parts_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(where it begins, the bytes) of each part; one, which is empty, of nothing."""
    for at in range(0, max(len(data), 1), PART_BYTES):
        yield at, data[at : at + PART_BYTES]


class Parts:
    """What has come so far of one such state. A session brings parts in order or not at all."""

    def __init__(self) -> None:
        self._got = bytearray()

    def take(self, at: int, data: bytes, total: int) -> bytes | None:
        """The whole, once its last part is here; a part out of its place begins nothing."""
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
