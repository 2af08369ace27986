"""Attributes as JSON, for the command line and for HTTP.

A field is written by its type: numbers as numbers, strings as text, bytes in base64, dates as
"2026-11-19", timestamps as "2026-11-19T08:30:00.500000+00:00", decimals as text such as "81.20".
Timestamps in nanoseconds have up to nine digits after the point. NaN and the infinities, which JSON
does not have, are the texts "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final

from surecast.columns.schema import Schema
from surecast.columns.typed import Node, Type
from surecast.endpoint.attributes import shown
from surecast.errors import UsageError

__all__ = ["from_json", "to_json"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# `fromisoformat` would drop digits after the sixth. A fraction is only of seconds.
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d)?)(?:(?<=:\d\d:\d\d)\.(\d+))? ?"
    r"([Zz]|[+-]\d\d:\d\d)?",
    re.ASCII,
)
_DECIMAL_MAX: Final = 100  # characters of a decimal
_EXAMPLE: Final = "2026-11-19T08:30:00Z"
_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def from_json(schema: Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a JSON object as Python values. Raises UsageError if a text cannot be read; the
    check of the row (attributes.py) refuses what has another type."""
    found = dict(row)
    columns = zip(schema.names, schema.types.nodes, schema.type_names, strict=True)
    for name, node, type_name in columns:
        if name in found:
            value = found[name]
            try:
                found[name] = _read(node, value)
            except (ValueError, OverflowError, InvalidOperation) as problem:
                why = str(problem) if type(problem) is _NotReadable else "it cannot be read"
                raise UsageError(
                    f"column {name!r} is {type_name}, and the event has {shown(value)}: {why}"
                ) from None
    return found


class _NotReadable(ValueError):
    """The text says what is wrong, and how to write the value."""


def _read(node: Node, value: Any) -> Any:
    if node.child is not None and isinstance(value, list):
        return [_read(node.child, item) for item in value]
    if value is None:
        return None
    if isinstance(value, str):
        read = _READERS.get(node.type)
        return value if read is None else read(value)
    if node.type is Type.DECIMAL and not isinstance(value, int):
        raise _NotReadable('write decimals as text, such as "1.25"')
    if node.type in _TIMES and not isinstance(value, list | dict):
        example = "2026-11-19" if node.type is Type.DATE else _EXAMPLE
        raise _NotReadable(f"write dates and times as text, such as {example}")
    return value


def _read_float(text: str) -> Any:
    return _FLOATS.get(text, text)


def _read_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise _NotReadable("it is not base64") from None


def _read_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise _NotReadable("it is not a date such as 2026-11-19") from None


def _read_decimal(text: str) -> Decimal:
    if len(text) > _DECIMAL_MAX:
        raise _NotReadable(f"decimals have at most {_DECIMAL_MAX} characters")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise _NotReadable("it is not a decimal number") from None


def _count(text: str, unit_ns: int) -> int:
    """The units since 1970."""
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        moment, fraction, zone = match.groups()
        if zone is None:
            raise _NotReadable("it has no time zone: append Z, or for example +01:00")
        zone = "+00:00" if zone in ("Z", "z") else zone
        seconds = (datetime.fromisoformat(moment + zone) - _EPOCH) // timedelta(seconds=1)
    except (ValueError, OverflowError) as problem:
        if isinstance(problem, _NotReadable):
            raise
        raise _NotReadable(f"it is not a time such as {_EXAMPLE}") from None
    digits = (fraction or "").rstrip("0")
    if len(digits) > 9 or int(digits.ljust(9, "0") or 0) % unit_ns:
        raise _NotReadable("it is more precise than the column")
    return (seconds * 10**9 + int(digits.ljust(9, "0") or 0)) // unit_ns


def _read_time(unit_ns: int, text: str) -> datetime:
    return _EPOCH + timedelta(microseconds=_count(text, unit_ns) * (unit_ns // 1000))


def _read_nanoseconds(text: str) -> int:
    return _count(text, 1)


_READERS: Final[dict[Type, Callable[[str], Any]]] = {
    Type.FLOAT32: _read_float,
    Type.FLOAT64: _read_float,
    Type.BINARY: _read_bytes,
    Type.DATE: _read_date,
    Type.DECIMAL: _read_decimal,
    Type.TIMESTAMP_S: partial(_read_time, 10**9),
    Type.TIMESTAMP_MS: partial(_read_time, 10**6),
    Type.TIMESTAMP_US: partial(_read_time, 10**3),
    Type.TIMESTAMP_NS: _read_nanoseconds,
}
_TIMES: Final = (Type.DATE, Type.TIMESTAMP_S, Type.TIMESTAMP_MS, Type.TIMESTAMP_US)


def to_json(schema: Schema, fields: Sequence[Any]) -> dict[str, Any]:
    """The attributes of an event, in the form that `from_json` reads. `fields` are their values, in
    the order of the schema."""
    # An event of an earlier version of the schema has fewer fields.
    columns = zip(schema.names, schema.types.nodes, fields, strict=False)
    return {name: _written(node, value) for name, node, value in columns}


def _written(node: Node, value: Any) -> Any:
    if isinstance(value, list) and node.child is not None:
        return [_written(node.child, item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, date):  # also a datetime
        return value.isoformat()
    if node.type is Type.TIMESTAMP_NS and isinstance(value, int):
        return _nanoseconds_text(value)
    return value


def _nanoseconds_text(count: int) -> str:
    seconds, nanos = divmod(count, 10**9)
    text = (_EPOCH + timedelta(seconds=seconds)).isoformat()  # int64 reaches the years 1677 to 2262
    fraction = f"{nanos:09d}".rstrip("0")
    return text.replace("+00:00", f".{fraction}+00:00" if fraction else "+00:00")
