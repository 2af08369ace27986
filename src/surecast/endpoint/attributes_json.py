"""Attributes as JSON, for the command line and for HTTP.

A field is written by its type: numbers as numbers, strings as text, bytes in base64, dates as
"2026-11-19", timestamps as "2026-11-19T08:30:00.5+00:00", decimals as text such as "81.20".
Timestamps in nanoseconds have up to nine digits after the point. NaN and the infinities, which JSON
does not have, are the texts "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from surecast.columns.schema import Schema
from surecast.columns.typed import Node, Type

__all__ = ["from_json", "to_json"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NANOSECONDS: Final = re.compile(r"(.*[Tt ]\d\d:\d\d:\d\d\.\d{6})(\d{1,3})(.*)", re.ASCII)
_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def from_json(schema: Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a JSON object as Python values. A value that has the wrong form is returned as
    it is: the check of the row (attributes.py) refuses it and names its column."""
    found = dict(row)
    for name, node in zip(schema.names, schema.types.nodes, strict=True):
        if name in found:
            found[name] = _read(node, found[name])
    return found


def _read(node: Node, value: Any) -> Any:
    if node.child is not None:
        if isinstance(value, list):
            return [_read(node.child, item) for item in value]
        return value
    read = _READERS.get(node.type)
    if read is None or not isinstance(value, str):
        return value
    try:
        return read(value)
    except (ValueError, OverflowError, InvalidOperation, binascii.Error):
        return value


def _read_float(text: str) -> Any:
    return _FLOATS.get(text, text)


def _read_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _read_nanoseconds(text: str) -> Any:
    match = _NANOSECONDS.fullmatch(text)
    more = 0
    if match is not None:
        text = match[1] + match[3]
        more = int(match[2].ljust(3, "0"))
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        return time  # refused by the check of the row
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000 + more


_READERS: Final[dict[Type, Callable[[str], Any]]] = {
    Type.FLOAT32: _read_float,
    Type.FLOAT64: _read_float,
    Type.BINARY: _read_bytes,
    Type.DATE: date.fromisoformat,
    Type.DECIMAL: Decimal,
    Type.TIMESTAMP_S: datetime.fromisoformat,
    Type.TIMESTAMP_MS: datetime.fromisoformat,
    Type.TIMESTAMP_US: datetime.fromisoformat,
    Type.TIMESTAMP_NS: _read_nanoseconds,
}


def to_json(schema: Schema, fields: Sequence[Any]) -> dict[str, Any]:
    """The attributes of an event, in the form that `from_json` reads. `fields` are their values, in
    the order of the schema."""
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
