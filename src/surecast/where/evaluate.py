"""Evaluates bound filters on batches: which rows pass."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surecast.where.binding import Bound, BoundAnd, BoundOr, BoundTest, Op
from surecast.where.columns import Column, Kind, array_of

__all__ = ["Columns", "Evaluation", "Rows", "numbers_of", "passes"]

Rows = np.ndarray[Any, np.dtype[np.bool_]]
# The columns of a batch by name. One that is missing has no values.
Columns = Mapping[str, pa.Array]

_DTYPES: Final = {
    pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32, pa.int64(): np.int64,
    pa.float32(): np.float32, pa.float64(): np.float64, pa.date32(): np.int32,
}  # fmt: skip
_NUMBERS: Final[dict[Op, Callable[[Any, Any], Any]]] = {
    Op.EQUAL: np.equal, Op.LESS: np.less, Op.AT_MOST: np.less_equal,
    Op.MORE: np.greater, Op.AT_LEAST: np.greater_equal,
}  # fmt: skip
_TEXTS: Final[dict[Op, Callable[[Any, Any], Any]]] = {
    Op.EQUAL: pc.equal, Op.LESS: pc.less, Op.AT_MOST: pc.less_equal,
    Op.MORE: pc.greater, Op.AT_LEAST: pc.greater_equal,
}  # fmt: skip


def passes(bound: Bound, columns: Columns, rows: int) -> Rows:
    """For each row of a batch, whether it passes the filter. Raises UsageError if a column does not
    have the type that the filter was bound to. The arrays must be valid: pyarrow trusts the offsets
    in them."""
    return Evaluation(columns, rows).passes(bound)


class Evaluation:
    """The columns of a batch; what several tests need of a column is computed once."""

    def __init__(self, columns: Columns, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        # Column → rows with a value; None if all rows have one.
        self.has: dict[str, Rows | None] = {}
        self.numbers: dict[str, Any] = {}  # column → its values as a numpy array
        # Column of floats → rows with a value that is not NaN.
        self.comparable: dict[str, Rows] = {}

    def passes(self, bound: Bound) -> Rows:
        """A new array: the caller may change it."""
        match bound:
            case BoundTest():
                return self._test(bound)
            case BoundAnd(parts):
                if not parts:
                    return np.ones(self.rows, np.bool_)
                found = self.passes(parts[0])
                for part in parts[1:]:
                    if not found.any():
                        break
                    found &= self.passes(part)
                return found
            case BoundOr(parts):
                if not parts:
                    return np.zeros(self.rows, np.bool_)
                found = self.passes(parts[0])
                for part in parts[1:]:
                    if found.all():
                        break
                    found |= self.passes(part)
                return found

    def _test(self, test: BoundTest) -> Rows:
        name = test.column.name
        array = array_of(test.column, self.columns, self.rows)
        if array is None:
            return np.full(self.rows, test.op is Op.EXISTS and test.negated)
        has = self._has(name, array)
        if test.op is Op.EXISTS:
            if has is None:
                return np.full(self.rows, not test.negated)
            return ~has if test.negated else has.copy()
        if test.column.kind in (Kind.STRING, Kind.BINARY):
            found, comparable = _text(test, array), has
        else:
            found, comparable = self._number(test, array, has)
        if test.negated:
            found = ~found
        return found if comparable is None else found & comparable

    def _has(self, name: str, array: pa.Array) -> Rows | None:
        if name not in self.has:
            has = None
            if array.null_count:
                has = array.is_valid().to_numpy(zero_copy_only=False)
            self.has[name] = has
        return self.has[name]

    def _number(
        self, test: BoundTest, array: pa.Array, has: Rows | None
    ) -> tuple[Rows, Rows | None]:
        """The rows that pass, if they have a value that is not NaN; and the rows that have one
        (None: all rows). A test that is not negated is false for NaN anyway."""
        column = test.column
        values = self.numbers.get(column.name)
        if values is None:
            values = self.numbers[column.name] = numbers_of(column, array)
        comparable = has
        if column.kind is Kind.FLOAT and test.negated:
            comparable = self.comparable.get(column.name)
            if comparable is None:
                comparable = ~np.isnan(values)
                if has is not None:
                    comparable &= has
                self.comparable[column.name] = comparable
        return _compare(test, values), comparable


def numbers_of(column: Column, array: pa.Array) -> Any:
    """The values as a numpy array; anything where there is none. Floats are float64."""
    if column.kind is Kind.BOOL:
        return array.fill_null(False).to_numpy(zero_copy_only=False)
    dtype = np.dtype(_DTYPES.get(column.type, np.int64))  # timestamps are int64
    buffer = array.buffers()[1]
    if buffer is None:  # no row
        return np.zeros(len(array), np.float64 if column.kind is Kind.FLOAT else dtype)
    values = np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
    return values.astype(np.float64, copy=False) if column.kind is Kind.FLOAT else values


def _compare(test: BoundTest, values: Any) -> Rows:
    if test.op is Op.BETWEEN:
        low, high = test.values
        found: Rows = (values >= low) & (values <= high)
    elif test.op is Op.IN:
        found = np.isin(values, np.array(test.values, values.dtype))
    else:
        found = _NUMBERS[test.op](values, values.dtype.type(test.values[0]))
    return found


def _text(test: BoundTest, array: pa.Array) -> Rows:
    """The rows of strings or bytes that pass, if they have a value."""
    match test.op:
        case Op.STARTS_WITH:
            found = pc.starts_with(array, pattern=test.values[0])
        case Op.CONTAINS:
            found = pc.match_substring(array, pattern=test.values[0])
        case Op.IN:
            wanted = pa.array(test.values, pa.binary()).cast(array.type)
            found = pc.is_in(array, value_set=wanted)
        case Op.BETWEEN:
            low, high = (_scalar(value, array) for value in test.values)
            found = pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))
        case _:
            found = _TEXTS[test.op](array, _scalar(test.values[0], array))
    result: Rows = found.fill_null(False).to_numpy(zero_copy_only=False)
    return result


def _scalar(value: bytes, array: pa.Array) -> pa.Scalar:
    return pa.scalar(value, pa.binary()).cast(array.type)
