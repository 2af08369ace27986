"""Encodes non-negative numbers as bytes (LEB128), with a plain loop for few numbers, else numpy.

Each number has exactly one valid encoding: an encoding padded with zero bits is refused.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from surecast.errors import PeerError

__all__ = ["NUMBER_MAX", "SIZE_MAX", "pack", "unpack"]

Numbers = npt.NDArray[np.int64]

# Limits of one number:
SIZE_MAX: Final = 9  # bytes of a number, 7 bits each
NUMBER_MAX: Final = 1 << 61
_FEW: Final = 64  # up to this many numbers, or bytes, a plain loop is faster
_ZERO = np.zeros(1, np.int64)


def pack(numbers: Numbers) -> bytes:
    """The bytes of all numbers, none of them above NUMBER_MAX."""
    if numbers.size <= _FEW:
        few = bytearray()
        for number in numbers.tolist():
            while number > 0x7F:
                few.append(number & 0x7F | 0x80)
                number >>= 7
            few.append(number)
        return bytes(few)
    sizes = np.ones(numbers.size, np.int64)
    for power in range(1, SIZE_MAX):
        more = numbers >= 1 << 7 * power
        if not more.any():
            break
        sizes += more
    ends = np.cumsum(sizes)
    starts = ends - sizes
    packed = np.empty(int(ends[-1]), np.uint8)
    for index in range(int(sizes.max())):
        has = sizes > index
        low = (numbers[has] >> 7 * index) & 0x7F
        packed[starts[has] + index] = low | np.where(sizes[has] > index + 1, 0x80, 0)
    return packed.tobytes()


def unpack(data: bytes | memoryview) -> Numbers:
    """The inverse of `pack`; PeerError if `data` is not valid or empty."""
    if len(data) <= _FEW:
        return np.array(_unpack_few(bytes(data)), np.int64)
    packed = np.frombuffer(data, np.uint8)
    if packed[-1] & 0x80:
        raise PeerError("truncated number")
    ends = np.flatnonzero(packed < 0x80) + 1
    starts = np.concatenate((_ZERO, ends[:-1]))
    sizes = ends - starts
    if sizes.max() > SIZE_MAX:
        raise PeerError("number too long")
    if (packed[ends[sizes > 1] - 1] == 0).any():
        raise PeerError("padded number")
    numbers: Any = np.zeros(ends.size, np.int64)
    for index in range(int(sizes.max())):
        has = sizes > index
        numbers[has] |= (packed[starts[has] + index] & np.int64(0x7F)) << 7 * index
    checked: Numbers = numbers
    if checked.max() > NUMBER_MAX:
        raise PeerError("number too large")
    return checked


def _unpack_few(data: bytes) -> list[int]:
    numbers = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift >= 7 * SIZE_MAX:
                raise PeerError("number too long")
            continue
        if byte == 0 and shift > 7:
            raise PeerError("padded number")
        if number > NUMBER_MAX:
            raise PeerError("number too large")
        numbers.append(number)
        number = shift = 0
    if shift or not numbers:
        raise PeerError("truncated number")
    return numbers
