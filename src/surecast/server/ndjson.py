"""Parses events given as lines of JSON; the HTTP port and `surecast publish` use the same format.

    {"key": "user:42", "value": "some text"}
    {"key_base64": "AP8=", "value_base64": "AP8=", "tag": "red"}

A value that is neither text nor null is published as its JSON text. If the stream has a schema, its
fields are beside key and value, or in an object `attributes`, in the form of attributes_json.py:

    {"key": "IBM", "sym": "IBM", "px": 81.2}

The output of `surecast subscribe --json` is accepted as input, too: in lines with a field `kind`,
stream, position and time are ignored. Its lines of kind "void", which report obsolete positions,
are refused.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from surecast.endpoint.attributes import RowWriter, TypedRow
from surecast.endpoint.attributes_json import from_json
from surecast.errors import UsageError

__all__ = [
    "Parsed",
    "as_json",
    "columns_of",
    "parse_line",
    "parse_lines",
    "parse_row",
    "parse_slices",
]

Parsed = tuple[bytes | None, bytes, bytes | None]  # key, value, tag

_KNOWN = {"key", "key_base64", "value", "value_base64", "tag", "tag_base64"}
# Further fields in the output of `surecast subscribe --json`, all of which have a kind.
_SHOWN = {"stream", "seq", "time", "kind"}
_decoder = msgspec.json.Decoder()
T = TypeVar("T")


def parse_lines(lines: Iterable[bytes], first: int, parse: Callable[[bytes], T]) -> Iterator[T]:
    """The events in `lines`, as `parse` returns them; empty lines are skipped. `first` is the
    number of the first line.

    Raises UsageError with the number of the line that is wrong.
    """
    for number, line in enumerate(lines, first):
        if line.strip():
            try:
                yield parse(line)
            except UsageError as problem:
                raise UsageError(f"line {number}: {problem}") from None


def parse_slices(body: bytes, lines_max: int, parse: Callable[[bytes], T]) -> Iterator[list[T]]:
    """The events in `body`, as lists with the events of at most `lines_max` lines each."""
    at, number = 0, 0
    while at < len(body):
        lines: list[bytes] = []
        while at < len(body) and len(lines) < lines_max:
            end = body.find(b"\n", at)
            end = len(body) if end < 0 else end
            lines.append(body[at:end])
            at = end + 1
        yield list(parse_lines(lines, number + 1, parse))
        number += len(lines)


def parse_line(line: bytes) -> Parsed:
    """The event in a line; a missing value is published as empty. Raises UsageError."""
    fields = _object(line)
    if unknown := sorted(fields.keys() - _KNOWN):
        raise UsageError(
            f"unknown field {unknown[0]!r}; allowed: {', '.join(sorted(_KNOWN))}. Other fields are "
            "for streams that were created with a schema"
        )
    value = _bytes(fields, "value")
    return _bytes(fields, "key"), b"" if value is None else value, _bytes(fields, "tag")


def parse_row(line: bytes, writer: RowWriter) -> TypedRow:
    """The event in a line, checked against the schema of `writer`. Raises UsageError if it does not
    fit."""
    fields = _object(line)
    nested = fields.pop("attributes", {})
    if not isinstance(nested, dict):
        raise UsageError('attributes are an object, such as {"px": 81.2}')
    rest = {name: item for name, item in fields.items() if name not in _KNOWN}
    if twice := sorted(rest.keys() & nested.keys()):
        raise UsageError(f"the field {twice[0]!r} is given twice")
    row = from_json(writer.schema, rest | nested)
    for name in ("key", "value", "tag"):
        data = _bytes(fields, name)
        if data is not None:
            row[name] = data
    return writer.row(row)


def columns_of(
    events: Iterable[Parsed],
) -> tuple[list[bytes | None] | None, list[bytes], list[bytes | None] | None]:
    """Keys, values and tags. None: no event has a key or a tag."""
    keys: list[bytes | None] = []
    values: list[bytes] = []
    tags: list[bytes | None] = []
    for key, value, tag in events:
        keys.append(key)
        values.append(value)
        tags.append(tag)
    has_keys = any(key is not None for key in keys)
    return keys if has_keys else None, values, tags if any(t is not None for t in tags) else None


def _object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line, which is an event."""
    try:
        fields = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise UsageError(f"not JSON: {problem}") from None
    except UnicodeDecodeError:
        raise UsageError("not UTF-8; other bytes go into key_base64 and value_base64") from None
    if not isinstance(fields, dict):
        raise UsageError('not an object; write {"key": ..., "value": ...}')
    if fields.get("kind", "event") != "event":
        raise UsageError(f"a {fields['kind']!r} cannot be published")
    if "kind" in fields:
        fields = {name: item for name, item in fields.items() if name not in _SHOWN}
    return fields


def as_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """The JSON field for `data`: {name: text} if `data` is UTF-8, else {name_base64: ...}."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    """The bytes of the field `name` or its base64 form; None if there is neither, or it is null."""
    coded = f"{name}_base64"
    if coded in fields:
        if name in fields:
            raise UsageError(f"both {name} and {coded}")
        try:
            return base64.b64decode(fields[coded], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise UsageError(f"{coded} is not base64") from None
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if name != "value":
        raise UsageError(f"a {name} is text (or use {name}_base64)")
    return msgspec.json.encode(value)
