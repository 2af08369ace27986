"""Checks users' rows and tables against a stream's schema, and makes attributes of them.

A row is a mapping from field names to Python values. It may also have `value`, `key` and `tag`,
which are bytes. A table has columns of these names. Values are converted only if nothing is lost
(but floats are rounded to float32): an int64 column takes the int32 values of a table, but no
floats, and no text. Errors name the column, its type and, if there is one, the row; they are raised
before anything is published.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from surecast.columns.column import Int64s
from surecast.columns.schema import Schema, read_schema
from surecast.columns.typed import Attributes, Node, Type
from surecast.endpoint.error_messages import encode_hint
from surecast.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Fields", "RowWriter", "TypedRow", "fields_of", "shown", "writer_of"]

BESIDE: Final = ("value", "key", "tag")  # the columns that every event has
_SHOWN: Final = 60  # characters of a value in messages
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_UNITS: Final = {  # microseconds; 0: less than one
    Type.TIMESTAMP_S: 1_000_000, Type.TIMESTAMP_MS: 1000, Type.TIMESTAMP_US: 1,
    Type.TIMESTAMP_NS: 0,
}  # fmt: skip
_FLOAT32_END: Final = 3.4028235677973366e38  # from here on, float32 rounds to infinity
_SCALARS: Final = (np.number, np.bool_, np.str_)
_EXACT: Final = Context(prec=80)  # more digits than any decimal128 has

Fields = tuple[Any, ...]  # the values of a row, in the order of the schema
# Returns the value as pyarrow takes it, and the bytes that are counted in addition to
# `Node.fixed_bytes`. Raises _Wrong.
_Check = Callable[[Any], tuple[Any, int]]


class _Wrong(Exception):
    """A value does not fit its column; the text says why, or is empty."""


class TypedRow(NamedTuple):
    """A checked row."""

    schema: Schema
    fields: Fields
    value: bytes
    key: bytes | None
    tag: bytes | None
    nbytes: int  # of the fields


@lru_cache(64)
def writer_of(schema: str) -> RowWriter | None:
    """The writer of a stream with this schema (as in StreamInfo); None if it has none."""
    return RowWriter(read_schema(schema)) if schema else None


class RowWriter:
    """Makes the attributes of events for one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._arrow = schema.arrow()
        nodes = schema.types.nodes
        self._checks = [
            (name, node.nullable, type_name, _check_of(node))
            for name, node, type_name in zip(schema.names, nodes, schema.type_names, strict=True)
        ]
        self._row_bytes = sum(node.fixed_bytes for node in nodes)
        # What a batch may have in addition to the bytes of its rows.
        self.overhead = schema.types.overhead
        self._names = frozenset((*schema.names, *BESIDE))

    # ------------------------------------------------------------ rows

    def row(self, row: Any, number: int | None = None) -> TypedRow:
        """A checked row. `number` is that of the row in a list, for messages."""
        place = "the event" if number is None else f"row {number}"
        if hasattr(row, "__arrow_c_stream__") or isinstance(row, list):
            raise UsageError("publish takes one event; for a table or a list use publish_many(...)")
        if not isinstance(row, Mapping):
            raise UsageError(
                "the stream has a schema, so an event is a dict of its fields, such as "
                f"{{{self.schema.names[0]!r}: ...}}; {place} is {shown(row)}. Bytes beside the "
                "fields go into 'value'"
            )
        if not row.keys() <= self._names:
            for name in row:
                if name not in self._names:
                    prefix = "" if number is None else f"row {number}: "
                    raise UsageError(prefix + self.unknown(name))
        fields = []
        nbytes = self._row_bytes
        get = row.get
        for name, nullable, type_name, check in self._checks:
            value = get(name)
            if value is None:
                if not nullable:
                    raise UsageError(
                        f"column {name!r} is {type_name} and not null, but {place} has no value"
                    )
            else:
                try:
                    value, size = check(value)
                except _Wrong as wrong:
                    why = f": {wrong}" if str(wrong) else ""
                    raise UsageError(
                        f"column {name!r} is {type_name}, and {place} has {shown(value)} "
                        f"({type(value).__name__}){why}"
                    ) from None
                nbytes += size
            fields.append(value)
        value, key, tag = get("value", b""), get("key"), get("tag")
        for what, data in (("value", value), ("key", key), ("tag", tag)):
            if type(data) is not bytes and (data is not None or what == "value"):
                hint = encode_hint(what, data)
                raise UsageError(f"a {what} is bytes, and {place} has {shown(data)}{hint}")
        return TypedRow(self.schema, tuple(fields), value, key, tag, nbytes)

    def unknown(self, name: Any) -> str:
        """The message for a field that the schema does not have."""
        near = difflib.get_close_matches(str(name)[:_SHOWN], self.schema.names, 1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        if str(name).startswith("__index_level_"):
            return "the data frame has an index: give publish_many(df.reset_index(drop=True))"
        names = ", ".join(self.schema.names[:8]) + (", ..." if len(self.schema.names) > 8 else "")
        return f"the schema has no column {shown(name)}{hint or f' (it has {names})'}"

    def attributes(self, rows: Iterable[Fields]) -> Attributes:
        """The attributes of checked rows."""
        import pyarrow as pa

        types = self.schema.types
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), self._arrow, strict=True)
        ]
        table = pa.RecordBatch.from_arrays(arrays, schema=types.arrow_schema())
        return Attributes(types, table.num_rows, table=table)

    # ------------------------------------------------------------ tables

    def table(self, table: pa.Table | pa.RecordBatch) -> tuple[pa.Table, pa.Table]:
        """The columns value, key and tag of a table, and its attributes with exactly the types of
        the schema."""
        import pyarrow as pa

        names = table.schema.names
        for name in names:
            if name not in self._names:
                raise UsageError(self.unknown(name))
            if names.count(name) > 1:
                raise UsageError(f"the table has two columns {name!r}")
        arrays = []
        for field, type_name in zip(self._arrow, self.schema.type_names, strict=True):
            if field.name in names:
                arrays.append(_cast(field, type_name, table.column(field.name)))
            elif field.nullable:
                arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            else:
                raise UsageError(
                    f"the table has no column {field.name!r}, which is {type_name} and not null"
                )
        attributes = pa.Table.from_arrays(arrays, schema=self.schema.types.arrow_schema())
        try:
            attributes.validate(full=True)  # arrays of other libraries may be invalid
        except pa.ArrowException as problem:
            raise UsageError(f"the table is not valid: {_first_line(problem)}") from None
        beside = [name for name in BESIDE if name in names]
        columns = [table.column(name) for name in beside]
        return (
            pa.table(dict(zip(beside, columns, strict=True))),
            attributes,
        )

    def sizes(self, attributes: pa.Table, rows: int) -> Int64s:
        """The bytes of each row of the second result of `table`."""
        sizes = np.zeros(rows, np.int64)
        for node, column in zip(self.schema.types.nodes, attributes.columns, strict=True):
            at = 0
            for chunk in column.chunks:
                sizes[at : at + len(chunk)] += _sizes(node, chunk)
                at += len(chunk)
        return sizes

    def part(self, attributes: pa.Table, lo: int, hi: int) -> Attributes:
        """Rows [lo, hi) of the second result of `table`."""
        import pyarrow as pa

        rows = attributes.slice(lo, hi - lo).combine_chunks()
        arrays = [
            column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
            for column in rows.columns
        ]
        types = self.schema.types
        return Attributes(
            types, hi - lo, table=pa.RecordBatch.from_arrays(arrays, schema=types.arrow_schema())
        )


# ---------------------------------------------------------------- single values


def shown(value: Any) -> str:
    """A value for a message."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print numbers of thousands of digits
        return f"a number of {value.bit_length():,} bits" if type(value) is int else "a value"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _plain(value: Any) -> Any:
    """A number, bool or text of numpy as a Python value."""
    is_number = isinstance(value, _SCALARS) and not isinstance(value, np.timedelta64)
    return value.item() if is_number else value


def _check_of(node: Node) -> _Check:
    """The check of the values of a column."""
    match node.type:
        case Type.BOOL:
            return _bool
        case Type.INT8 | Type.INT16 | Type.INT32 | Type.INT64:
            return partial(_integer, 1 << (8 * node.width - 1))
        case Type.FLOAT32 | Type.FLOAT64:
            return partial(_float, node.type is Type.FLOAT32)
        case Type.STRING:
            return _string
        case Type.BINARY:
            return _binary
        case Type.DATE:
            return _date
        case Type.DECIMAL:
            assert node.digits is not None
            return partial(_decimal, *node.digits)
        case Type.LIST:
            assert node.child is not None
            return partial(_list, _check_of(node.child), node.child.fixed_bytes)
    return partial(_timestamp, _UNITS[node.type])


def _bool(value: Any) -> tuple[Any, int]:
    if type(value) is not bool:
        value = _plain(value)
        if type(value) is not bool:
            raise _Wrong
    return value, 0


def _integer(limit: int, value: Any) -> tuple[Any, int]:
    if type(value) is not int:
        value = _plain(value)
        if type(value) is not int:
            raise _Wrong
    if not -limit <= value < limit:
        raise _Wrong("out of range")
    return value, 0


def _float(is_single: bool, value: Any) -> tuple[Any, int]:
    if type(value) is not float:
        value = _plain(value)
        if type(value) is int:
            return _float_of(is_single, value), 0
        if type(value) is not float:
            raise _Wrong
    if is_single and _FLOAT32_END <= abs(value) < math.inf:
        raise _Wrong("out of range")
    return value, 0


def _float_of(is_single: bool, value: int) -> float:
    """The float that is exactly this number."""
    try:
        made = float(value)
    except OverflowError:
        raise _Wrong("out of range") from None
    if is_single and abs(made) >= _FLOAT32_END:
        raise _Wrong("out of range")
    if made != value or (is_single and float(np.float32(made)) != value):
        raise _Wrong("it has too many digits")
    return made


def _string(value: Any) -> tuple[Any, int]:
    if type(value) is not str:
        value = _plain(value)
        if type(value) is not str:
            raise _Wrong
    if value.isascii():
        return value, len(value)
    try:
        return value, len(value.encode())
    except UnicodeEncodeError:
        raise _Wrong("not valid Unicode") from None


def _binary(value: Any) -> tuple[Any, int]:
    if type(value) is not bytes:
        raise _Wrong
    return value, len(value)


def _date(value: Any) -> tuple[Any, int]:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _Wrong
    return value, 0


def _timestamp(unit: int, value: Any) -> tuple[Any, int]:
    """The number of units since 1970, from a datetime; in nanoseconds also from that number."""
    if not unit and type(value) is int:
        if not -(1 << 63) <= value < 1 << 63:
            raise _Wrong("out of range")
        return value, 0
    if not isinstance(value, datetime):
        raise _Wrong
    if value.tzinfo is None or value.utcoffset() is None:
        raise _Wrong("it has no time zone")
    micros = (value - _EPOCH) // _MICROSECOND
    nanos = getattr(value, "nanosecond", 0)  # of pandas' Timestamp
    if not unit:
        count = micros * 1000 + nanos
        if not -(1 << 63) <= count < 1 << 63:
            raise _Wrong("out of range")
        return count, 0
    count, rest = divmod(micros, unit)
    if rest or nanos:
        raise _Wrong("it is more precise than the column")
    return count, 0


def _decimal(precision: int, scale: int, value: Any) -> tuple[Any, int]:
    value = _plain(value)
    if type(value) is int:
        value = Decimal(value)
    if not isinstance(value, Decimal):
        raise _Wrong
    if not value.is_finite():
        raise _Wrong("not a finite number")
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    trimmed = "".join(map(str, digits)).rstrip("0") if any(digits) else ""
    exponent += len(digits) - len(trimmed)
    if trimmed and -exponent > scale:
        raise _Wrong(f"more than {scale} digits after the point")
    if trimmed and len(trimmed) + exponent > precision - scale:
        raise _Wrong("out of range")
    return value.quantize(Decimal(1).scaleb(-scale), context=_EXACT), 0


def _list(check: _Check, item_bytes: int, value: Any) -> tuple[Any, int]:
    if not isinstance(value, list | tuple):
        raise _Wrong
    made = []
    nbytes = item_bytes * len(value)
    for item in value:
        if item is not None:
            item, size = check(item)
            nbytes += size
        made.append(item)
    return made, nbytes


# ---------------------------------------------------------------- back to Python values


def fields_of(attributes: Attributes) -> list[Fields]:
    """The values of each row. Timestamps are datetimes in UTC. Timestamps in nanoseconds are ints,
    and so are dates and times that Python's datetime does not have, in the column's unit since
    1970."""
    nodes, columns = attributes.types.nodes, attributes.table().columns
    return list(zip(*map(_values, nodes, columns), strict=True))


def _values(node: Node, column: pa.Array) -> list[Any]:
    import pyarrow as pa

    leaf, lists = node, 0
    while leaf.child is not None:
        leaf, lists = leaf.child, lists + 1
    convert: Callable[[int], Any]
    if leaf.type in _UNITS:
        plain, convert = pa.int64(), partial(_time_of, _UNITS[leaf.type])
    elif leaf.type is Type.DATE:
        plain, convert = pa.int32(), _date_of
    else:
        values: list[Any] = column.to_pylist()
        return values
    for _ in range(lists):
        plain = pa.list_(plain)
    return [_each(convert, value) for value in column.cast(plain).to_pylist()]


def _each(convert: Callable[[int], Any], value: Any) -> Any:
    """The value, or the values of a list, converted."""
    if value is None:
        return None
    return [_each(convert, item) for item in value] if type(value) is list else convert(value)


def _time_of(unit: int, count: int) -> datetime | int:
    try:
        return _EPOCH + timedelta(microseconds=count * unit) if unit else count
    except OverflowError:
        return count


def _date_of(days: int) -> date | int:
    try:
        return _EPOCH.date() + timedelta(days)
    except OverflowError:
        return days


# ---------------------------------------------------------------- columns of tables


def _sizes(node: Node, array: pa.Array) -> Int64s:
    """The bytes of each row of a column."""
    import pyarrow.compute as pc

    sizes = np.full(len(array), node.fixed_bytes, np.int64)
    if node.child is not None:
        offsets = array.offsets.to_numpy(zero_copy_only=False)
        first, last = int(offsets[0]), int(offsets[-1])
        inner = _sizes(node.child, array.values.slice(first, last - first))
        before = np.concatenate(([0], np.cumsum(inner)))  # what the values before each one take
        sizes += np.diff(before[offsets - first])
    elif node.type in (Type.STRING, Type.BINARY):
        lengths = pc.fill_null(pc.binary_length(array), 0)
        sizes += lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def _without_hidden(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without what its null rows hold, for example what a user has masked."""
    import pyarrow as pa

    kind = column.type
    sized = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_list(kind)
    if not sized or not column.null_count:
        return column
    return column.take(pa.array(np.arange(len(column))))


def _cast(field: pa.Field, type_name: str, column: Any) -> pa.ChunkedArray:
    """A column of a table as the type of a field, without loss. Rows are counted from 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(column, pa.ChunkedArray):
        column = pa.chunked_array([column], column.type)
    if pa.types.is_dictionary(column.type):
        try:
            column = pc.cast(column, column.type.value_type)
        except pa.ArrowException as problem:
            raise UsageError(
                f"column {field.name!r} is {column.type}, which cannot be decoded: "
                f"{_first_line(problem)}"
            ) from None
    if not field.nullable and column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise UsageError(
            f"column {field.name!r} is {type_name} and not null, but row {row} has no value"
        )
    if column.type == field.type:
        return _without_hidden(column)
    if not _may_cast(column.type, field.type):
        hint = ""
        if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(field.type):
            hint = ": its times have no time zone. Give them one, for example with dt.tz_localize"
        elif pa.types.is_floating(column.type) and pa.types.is_integer(field.type):
            hint = (
                ": in pandas, a column of whole numbers with missing values is float; use "
                'astype("Int64")'
            )
        raise UsageError(
            f"column {field.name!r} is {type_name} in the schema, but {column.type} in the "
            f"table{hint}"
        )
    try:
        if pa.types.is_decimal(field.type) and pa.types.is_integer(column.type):
            # pyarrow wants room for every number of the integer type before it looks at the values.
            column = pc.cast(column, pa.decimal256(20 + field.type.scale, field.type.scale))
        made = pc.cast(column, field.type)
    except pa.ArrowException as problem:
        row = _first_wrong(column, field.type)
        raise UsageError(
            f"column {field.name!r} is {type_name}, and row {row} has {_cell(column, row)} "
            f"({column.type}): {_first_line(problem)}"
        ) from None
    if _grew_infinite(column, made):
        raise UsageError(f"column {field.name!r} is {type_name}, and has a number out of range")
    return _without_hidden(made)


def _cell(column: pa.ChunkedArray, row: int) -> str:
    try:
        return shown(column[row].as_py())
    except (ValueError, OverflowError):  # a time that Python does not have
        return shown(str(column[row].cast("int64")))


def _grew_infinite(before: pa.ChunkedArray, after: pa.ChunkedArray) -> bool:
    """Whether a finite number became an infinite float32."""
    import pyarrow as pa
    import pyarrow.compute as pc

    leaf = after.type
    while pa.types.is_list(leaf):
        leaf = leaf.value_type
    if not pa.types.is_float32(leaf) or after.null_count == len(after):
        return False
    while pa.types.is_list(after.type):
        before, after = pc.list_flatten(before), pc.list_flatten(after)
    if not pa.types.is_floating(before.type):
        return False
    infinite = pc.sum(pc.is_inf(after)).as_py() or 0
    return bool(infinite != (pc.sum(pc.is_inf(before)).as_py() or 0))


def _first_line(problem: Exception) -> str:
    return str(problem).partition("\n")[0][:120]


def _first_wrong(column: pa.ChunkedArray, kind: pa.DataType) -> int:
    """The first row that cannot be cast, found by halves."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lo, hi = 0, len(column)
    while hi - lo > 1:
        middle = (lo + hi) // 2
        try:
            pc.cast(column.slice(lo, middle - lo), kind)
            lo = middle
        except pa.ArrowException:
            hi = middle
    return lo


def _may_cast(has: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type mean the same as values of the other one. pyarrow then checks that
    each value fits."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_null(has):
        return True
    if kinds.is_list(wanted):
        lists = kinds.is_list(has) or kinds.is_large_list(has)
        same = lists and has.value_type == wanted.value_type
        return same or (
            lists
            and not kinds.is_decimal(wanted.value_type)
            and _may_cast(has.value_type, wanted.value_type)
        )
    if kinds.is_integer(wanted):
        return bool(kinds.is_integer(has))
    if kinds.is_floating(wanted):
        return bool(kinds.is_floating(has) or kinds.is_integer(has))
    if kinds.is_string(wanted):
        return bool(kinds.is_large_string(has) or kinds.is_string_view(has))
    if kinds.is_binary(wanted):
        texts = (kinds.is_large_binary, kinds.is_fixed_size_binary, kinds.is_binary_view)
        return any(test(has) for test in texts)
    if kinds.is_date(wanted):
        return bool(kinds.is_date(has))
    if kinds.is_timestamp(wanted):
        return bool(kinds.is_timestamp(has) and has.tz is not None)
    if kinds.is_decimal(wanted):
        return bool(kinds.is_decimal(has) or kinds.is_integer(has))
    return False
