"""The columns that filters test: their types, and literals as values of these types.

A column has a *kind*. Values of the kinds INTEGER, TIMESTAMP and DATE are whole numbers: a
timestamp is counted in the unit of its column since 1970, a date in days. So a comparison with any
literal can be replaced by an exact one with a whole number (binding.py).
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Final, NamedTuple

import pyarrow as pa

from surecast.errors import FilterError, UsageError
from surecast.where.tree import Literal

__all__ = ["KEY", "TIME", "Column", "Kind", "array_of", "column_of", "columns_of", "number_of"]
__all__ += ["text_of", "truth_of"]

_SHOWN: Final = 40  # characters of a literal in error messages
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ]((?:[01]\d|2[0-3]):\d\d(?::\d\d(?:\.(\d{1,9}))?)?)"
    r" ?([Zz]|[+-]\d\d:\d\d)?",
    re.ASCII,
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # of a unit of timestamps


class Kind(Enum):
    BOOL = "bool"
    INTEGER = "whole number"
    FLOAT = "number"
    STRING = "string"
    BINARY = "binary"
    TIMESTAMP = "timestamp"
    DATE = "date"


class Column(NamedTuple):
    name: str
    kind: Kind
    type: pa.DataType
    low: int = 0  # the lowest and highest whole number of the type
    high: int = 0
    unit_ns: int = 1  # of timestamps


def column_of(name: str, kind: pa.DataType) -> Column | None:
    """The column of this name and Arrow type. None if filters cannot test the type."""
    if pa.types.is_boolean(kind):
        return Column(name, Kind.BOOL, kind)
    if pa.types.is_signed_integer(kind):
        return _whole(name, Kind.INTEGER, kind)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return Column(name, Kind.FLOAT, kind)
    if pa.types.is_string(kind):
        return Column(name, Kind.STRING, kind)
    if pa.types.is_binary(kind):
        return Column(name, Kind.BINARY, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _whole(name, Kind.TIMESTAMP, kind, _NS[kind.unit])
    if pa.types.is_date32(kind):
        return _whole(name, Kind.DATE, kind)
    return None


def _whole(name: str, kind: Kind, type_: pa.DataType, unit_ns: int = 1) -> Column:
    bits = type_.bit_width
    return Column(name, kind, type_, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, unit_ns)


KEY: Final = Column("key", Kind.BINARY, pa.binary())
TIME: Final = _whole("time", Kind.TIMESTAMP, pa.timestamp("ns", "UTC"))


def array_of(column: Column, columns: Mapping[str, pa.Array], rows: int) -> pa.Array | None:
    """The values of a column in a batch, or None if the batch does not have it. Raises UsageError
    if they have another type or number: they would be misread."""
    array = columns.get(column.name)
    if array is None:
        return None
    if column.kind is Kind.TIMESTAMP:  # in any time zone
        fits = pa.types.is_timestamp(array.type) and array.type.unit == column.type.unit
    else:
        fits = array.type == column.type
    if not fits or not isinstance(array, pa.Array):
        what = f"{type(array).__name__} of {array.type}"
        raise UsageError(f"{column.name} is {column.type}, but the batch has {what}")
    if len(array) != rows:
        raise UsageError(f"{column.name} has {len(array):,} values in a batch of {rows:,} rows")
    return array


def columns_of(schema: pa.Schema) -> dict[str, Column]:
    """The columns of events with this schema, by name: `key` and `time`, which all events have, and
    those fields that filters can test."""
    found = {KEY.name: KEY, TIME.name: TIME}
    for field in schema:
        if field.name in found:
            raise UsageError(f"a schema cannot have two fields {field.name!r}, nor `key` or `time`")
        if column := column_of(field.name, field.type):
            found[field.name] = column
    return found


def number_of(column: Column, value: Literal, at: int) -> Fraction | int:
    """The literal as an exact number, in the units of a column of whole numbers or floats."""
    if column.kind in (Kind.INTEGER, Kind.FLOAT) and type(value) is int:
        return value
    if column.kind is Kind.INTEGER and isinstance(value, Decimal):
        return Fraction(value)
    if column.kind is Kind.FLOAT and isinstance(value, Decimal):
        # As in other languages, 0.1 means the nearest float64. A number beyond their range, or so
        # small that it would become 0, stays what it is.
        nearest = float(value)
        return Fraction(nearest if math.isfinite(nearest) and nearest else value)
    if column.kind is Kind.TIMESTAMP and isinstance(value, str):
        return Fraction(_time_ns(column, value, at), column.unit_ns)
    if column.kind is Kind.DATE and isinstance(value, str):
        try:
            if not _DATE.fullmatch(value):
                raise ValueError
            return (date.fromisoformat(value) - _EPOCH.date()).days
        except ValueError:
            raise FilterError(
                f"{column.name} is a date, and {value[:_SHOWN]!a} is not one like '2026-11-19'", at
            ) from None
    raise FilterError(f"{column.name} is a {_named(column)}; it cannot be {_compared(value)}", at)


def _time_ns(column: Column, text: str, at: int) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is not None and match[4] is None:
        wanted = "needs a time zone: Z, or for example +01:00"
        raise FilterError(f"the timestamp {text[:_SHOWN]!a} {wanted}", at)
    try:
        if match is None:
            raise ValueError
        day, clock, fraction, zone = match.groups()
        clock = clock.partition(".")[0]
        zone = "+00:00" if zone in ("Z", "z") else zone
        since = datetime.fromisoformat(f"{day}T{clock}{zone}") - _EPOCH
    except ValueError:
        raise FilterError(
            f"{column.name} is a timestamp, and {text[:_SHOWN]!a} is not one like "
            "'2026-11-19T08:30:00Z'",
            at,
        ) from None
    return since // timedelta(seconds=1) * 10**9 + int((fraction or "").ljust(9, "0"))


def text_of(column: Column, value: Literal, at: int) -> bytes:
    """The literal as bytes, in UTF-8, for a column of strings or bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes) and column.kind is Kind.BINARY:
        return value
    raise FilterError(f"{column.name} is a {_named(column)}; it cannot be {_compared(value)}", at)


def truth_of(column: Column, value: Literal, at: int) -> bool:
    if isinstance(value, bool):
        return value
    raise FilterError(f"{column.name} is a bool; it cannot be {_compared(value)}", at)


def _named(column: Column) -> str:
    return f"{column.kind.value} ({column.type})"


def _compared(value: Literal) -> str:
    kinds = {bool: "a bool", int: "a number", Decimal: "a number", str: "a string", bytes: "bytes"}
    return f"compared with {kinds[type(value)]}"
