"""Column: variable-length byte strings in numpy arrays, in Arrow's layout.

`Columns` are all the columns of one batch's body.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from surecast.errors import UsageError

if TYPE_CHECKING:
    from surecast.columns.typed import Attributes

__all__ = [
    "TAGGED",
    "TYPED",
    "Body",
    "Bools",
    "Column",
    "Columns",
    "Int32s",
    "Int64s",
    "column_of",
    "concat",
    "null_column",
    "uniform_offsets",
]

Body = bytes | memoryview
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

DATA_MAX = (1 << 31) - 1  # most bytes of a column: its offsets have 32 bits
NO_BYTES: Bytes = np.empty(0, np.uint8)
# The bits of a batch's schema id.
TAGGED: Final = 1  # the body has a column of tags
TYPED: Final = 2  # the body has attributes (typed.py)


class Column(NamedTuple):
    """Row i is data[offsets[i]:offsets[i + 1]], or null where valid[i] is false."""

    offsets: Int32s
    data: Bytes
    valid: Bools | None = None  # None: no nulls
    width: int = -1  # bytes of every row, including nulls; -1: not known, or rows differ

    def to_list(self) -> list[bytes | None]:
        """The rows as Python objects, for tests and slow paths."""
        data = self.data.tobytes()
        ends = self.offsets.tolist()
        rows: list[bytes | None] = [data[a:b] for a, b in pairwise(ends)]
        if self.valid is not None:
            rows = [row if ok else None for row, ok in zip(rows, self.valid.tolist(), strict=True)]
        return rows

    def part(self, first: int, last: int) -> Column:
        """Rows [first, last), sharing memory."""
        valid = None if self.valid is None else self.valid[first:last]
        return Column(self.offsets[first : last + 1], self.data, valid, self.width)

    def take(self, rows: Int64s) -> Column:
        """The rows at these indices, as a copy."""
        if self.width > 0 and self.valid is None:
            first, last = int(self.offsets[0]), int(self.offsets[-1])
            items = self.data[first:last].reshape(-1, self.width)
            offsets = uniform_offsets(rows.size, self.width)
            return Column(offsets, items[rows].reshape(-1), None, self.width)
        starts = self.offsets[rows].astype(np.int64)
        lengths = self.offsets[rows + 1] - starts
        ends = np.zeros(rows.size + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
        valid = None if self.valid is None else self.valid[rows]
        return Column(ends.astype(np.int32), self.data[places], valid, self.width)


class Columns(NamedTuple):
    """The columns of a body; `seqs` and `times` if rows have explicit positions and times."""

    keys: Column
    values: Column
    tags: Column | None = None
    seqs: Int64s | None = None
    times: Int64s | None = None
    attributes: Attributes | None = None

    @property
    def schema_id(self) -> int:
        return (self.tags is not None) * TAGGED + (self.attributes is not None) * TYPED

    def part(self, first: int, last: int) -> Columns:
        """Rows [first, last), sharing memory."""
        return Columns(
            self.keys.part(first, last),
            self.values.part(first, last),
            None if self.tags is None else self.tags.part(first, last),
            None if self.seqs is None else self.seqs[first:last],
            None if self.times is None else self.times[first:last],
            None if self.attributes is None else self.attributes.part(first, last),
        )

    def take(self, rows: Int64s) -> Columns:
        """The rows at these indices, as a copy."""
        return Columns(
            self.keys.take(rows),
            self.values.take(rows),
            None if self.tags is None else self.tags.take(rows),
            None if self.seqs is None else self.seqs[rows],
            None if self.times is None else self.times[rows],
            None if self.attributes is None else self.attributes.take(rows),
        )


def column_of(items: Sequence[bytes | None]) -> Column:
    """Join Python byte strings into a column."""
    valid = None
    strings: Any = items
    try:
        joined = b"".join(strings)
    except TypeError:  # an item is None, or is not bytes
        valid = np.fromiter((item is not None for item in items), np.bool_, len(items))
        strings = [b"" if item is None else item for item in items]
        try:
            joined = b"".join(strings)
        except TypeError:
            raise UsageError("keys, values and tags are bytes") from None
    if len(joined) > DATA_MAX:
        raise UsageError(f"a batch column holds at most {DATA_MAX} bytes, not {len(joined)}")
    offsets = np.zeros(len(strings) + 1, np.int32)
    np.fromiter(map(len, strings), np.int32, len(strings)).cumsum(out=offsets[1:])
    return Column(offsets, np.frombuffer(joined, np.uint8), valid)


def uniform_offsets(rows: int, width: int) -> Int32s:
    """The offsets of rows that all have this width. Up to _SHARED_ROWS rows, the result is a view
    of an array that all columns of this width share."""
    if rows > _SHARED_ROWS:
        return np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    shared = _OFFSETS.get(width)
    if shared is None:
        if len(_OFFSETS) >= _SHARED_WIDTHS:
            _OFFSETS.clear()
        shared = np.arange(_SHARED_ROWS + 1, dtype=np.int32) * np.int32(width)
        shared.flags.writeable = False
        _OFFSETS[width] = shared
    return shared[: rows + 1]


_SHARED_ROWS = 1 << 13  # times the largest fixed width (forms.py), this is less than 2^31
_SHARED_WIDTHS = 64  # most arrays that are kept
_OFFSETS: dict[int, Int32s] = {}  # width → the shared array


def null_column(rows: int) -> Column:
    """A column of nulls."""
    return Column(np.zeros(rows + 1, np.int32), NO_BYTES, np.zeros(rows, np.bool_))


def concat(columns: Sequence[Column]) -> Column:
    """The columns concatenated, as a copy."""
    width = columns[0].width
    if width >= 0 and all(c.width == width and c.valid is None for c in columns):
        return _concat_uniform(columns, width)
    offsets: list[Int32s] = [np.zeros(1, np.int32)]
    data: list[Bytes] = []
    total = 0
    for column in columns:
        first, last = int(column.offsets[0]), int(column.offsets[-1])
        offsets.append(column.offsets[1:] + np.int32(total - first))
        data.append(column.data[first:last])
        total += last - first
        if total > DATA_MAX:
            raise UsageError(f"a batch column holds at most {DATA_MAX} bytes")
    valid = None
    if any(column.valid is not None for column in columns):
        valid = np.concatenate([_valid_of(column) for column in columns])
    return Column(np.concatenate(offsets), np.concatenate(data), valid)


def _concat_uniform(columns: Sequence[Column], width: int) -> Column:
    rows = sum(column.offsets.size - 1 for column in columns)
    if rows * width > DATA_MAX:
        raise UsageError(f"a batch column holds at most {DATA_MAX} bytes")
    data = [column.data[column.offsets[0] : column.offsets[-1]] for column in columns]
    return Column(uniform_offsets(rows, width), np.concatenate(data), None, width)


def _valid_of(column: Column) -> Bools:
    return np.ones(column.offsets.size - 1, np.bool_) if column.valid is None else column.valid


def unpack_valid(bitmap: Bytes, rows: int) -> Bools:
    """Arrow's validity bits as bools."""
    return np.unpackbits(bitmap, count=rows, bitorder="little").view(np.bool_)


def aligned(numbers: Any) -> Any:
    """The array itself, or a copy if it is not aligned.

    A frame may start at any offset of a receive buffer, and kernels are compiled for aligned
    arrays.
    """
    return numbers if numbers.flags.aligned else numbers.copy()
