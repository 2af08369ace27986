"""Batches as the compiled loops of the filter index read them: every value is a whole number.

A float is replaced by its *order number*: the whole number of the same bits, changed so that order
numbers have the order of the floats. A string or bytes are replaced by their *code*: the index
numbers the texts with which its tests compare for equality. Other values are what they are.
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np

from surecast.where.binding import Op
from surecast.where.columns import Column, Kind, array_of
from surecast.where.evaluate import Columns, numbers_of
from surecast.where.kernels import COMPARABLE, HAS, codes_of, put_texts

__all__ = [
    "Bytes",
    "Codes",
    "Int32s",
    "Int64s",
    "Rows",
    "number_range",
    "order_number",
    "order_numbers",
    "pool",
    "rows_of",
]

Int32s = np.ndarray[Any, np.dtype[np.int32]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_TEXTS: Final = (Kind.STRING, Kind.BINARY)
_TABLE_MIN: Final = 16  # places of a table of texts
_INT64_MIN: Final = int(np.iinfo(np.int64).min)
_INT64_MAX: Final = int(np.iinfo(np.int64).max)
_FLOAT: Final = struct.Struct("<d")
_WHOLE: Final = struct.Struct("<q")


def order_number(value: float) -> int:
    """The order number of a float. -0.0 has that of 0.0."""
    (bits,) = _WHOLE.unpack(_FLOAT.pack(value + 0.0))
    return int(bits if bits >= 0 else bits ^ _INT64_MAX)


def number_range(op: Op, values: list[int]) -> tuple[int, int]:
    """The lowest and the highest number that passes."""
    match op:
        case Op.LESS:
            return _INT64_MIN, values[0] - 1
        case Op.AT_MOST:
            return _INT64_MIN, values[0]
        case Op.MORE:
            return values[0] + 1, _INT64_MAX
        case Op.AT_LEAST:
            return values[0], _INT64_MAX
        case Op.BETWEEN:
            return values[0], values[1]
    assert op is Op.EQUAL
    return values[0], values[0]


def order_numbers(column: Column, array: Any) -> tuple[Int64s, Any]:
    """The whole numbers of a column's values, anything where there is none; and which are NaN."""
    if column.kind is not Kind.FLOAT:
        return numbers_of(column, array).astype(np.int64, copy=False), False
    with np.errstate(invalid="ignore"):  # cells without a value may hold anything
        values = numbers_of(column, array) + 0.0  # -0.0 becomes 0.0
    bits = values.view(np.int64)
    return np.where(bits >= 0, bits, bits ^ _INT64_MAX), np.isnan(values)


def pool(texts: list[bytes]) -> tuple[Bytes, Int64s]:
    """Texts one after the other, and where they begin and end."""
    bounds = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=bounds[1:])
    return np.frombuffer(b"".join(texts), np.uint8), bounds


class _Texts:
    """The codes of the texts of one column, with a hash table."""

    def __init__(self) -> None:
        self.codes: dict[bytes, int] = {}
        self.data, self.bounds = pool([])
        self.table: Int32s = np.full(_TABLE_MIN, -1, np.int32)

    def code(self, text: bytes) -> int:
        return self.codes.setdefault(text, len(self.codes))

    def write(self, offsets: Int32s, data: Bytes, width: int, slot: int, cells: Int64s) -> None:
        """Write the codes of a batch's texts into its cells."""
        known = self.bounds.size - 1
        if known < len(self.codes):  # texts were added
            data_added, bounds_added = pool(list(self.codes)[known:])
            self.bounds = np.concatenate((self.bounds, self.data.size + bounds_added[1:]))
            self.data = np.concatenate((self.data, data_added))
            if 2 * len(self.codes) > self.table.size:
                self.table = np.full(1 << (3 * len(self.codes)).bit_length(), -1, np.int32)
                known = 0
            put_texts(self.data, self.bounds, known, self.table)
        codes_of(offsets, data, self.data, self.bounds, self.table, width, slot, cells)


class Codes:
    """The columns that an index tests, and the codes of texts."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}  # column → its number
        self.columns: list[Column] = []
        self.read: set[int] = set()  # slots with tests that read the text itself
        self._texts: list[_Texts] = []

    def slot(self, column: Column) -> int:
        found = self.slots.get(column.name)
        if found is None:
            found = self.slots[column.name] = len(self.columns)
            self.columns.append(column)
            self._texts.append(_Texts())
        return found

    def number(self, slot: int, value: Any) -> int:
        """The whole number that stands for a value."""
        kind = self.columns[slot].kind
        if kind in _TEXTS:
            return self._texts[slot].code(value)
        return order_number(value) if kind is Kind.FLOAT else int(value)

    def texts(self, slot: int) -> _Texts:
        return self._texts[slot]


class Rows(NamedTuple):
    """A batch; kernels.py describes the arrays."""

    columns: Columns
    size: int  # rows
    width: int
    cells: Int64s
    states: Bytes
    spans: Int64s
    texts: Bytes

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The parameters of the kernels."""
        return self.width, self.cells, self.states, self.spans, self.texts


def rows_of(codes: Codes, columns: Columns, count: int) -> Rows:
    width = len(codes.columns)
    cells, states = np.zeros((count, width), np.int64), np.zeros((count, width), np.uint8)
    spans = np.zeros((count, width, 2) if codes.read else (0, 0, 2), np.int64)
    texts, size = [], 0
    for slot, column in enumerate(codes.columns):
        array = array_of(column, columns, count)
        if array is None:
            continue
        states[:, slot] = HAS | COMPARABLE
        if array.null_count:
            states[:, slot] *= array.is_valid().to_numpy(zero_copy_only=False)
        if column.kind in _TEXTS:
            offsets, data = _text_buffers(array)
            codes.texts(slot).write(offsets, data, width, slot, cells.reshape(-1))
            if slot in codes.read:
                spans[:, slot, 0] = offsets[:-1] + np.int64(size - offsets[0])
                spans[:, slot, 1] = offsets[1:] + np.int64(size - offsets[0])
                texts.append(data[offsets[0] : offsets[-1]])
                size += texts[-1].size
        else:
            cells[:, slot], is_nan = order_numbers(column, array)
            if column.kind is Kind.FLOAT:
                states[is_nan, slot] &= HAS
    held = np.concatenate(texts) if texts else np.empty(0, np.uint8)
    return Rows(
        columns, count, width, cells.reshape(-1), states.reshape(-1), spans.reshape(-1), held
    )


def _text_buffers(array: Any) -> tuple[Int32s, Bytes]:
    _, bounds, held = array.buffers()
    if bounds is None:  # no row
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    offsets = np.frombuffer(bounds, np.int32, len(array) + 1, 4 * array.offset)
    data = np.empty(0, np.uint8) if held is None else np.frombuffer(held, np.uint8)
    return offsets, data
