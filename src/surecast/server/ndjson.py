"""Events as lines of JSON, the same at the HTTP port and in the shell.

    {"key": "user:42", "value": "some text"}
    {"key_base64": "AP8=", "value_base64": "AP8="}

A value that is neither text nor null is taken as its JSON text. What `surecast subscribe --json`
prints is accepted, too: of it, key and value count, and lines of kind "void" are refused.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from surecast.errors import UsageError

__all__ = ["Pair", "as_json", "parse_line", "parse_lines", "parse_slices"]

Pair = tuple[bytes | None, bytes]  # key, value

_KNOWN = {"key", "key_base64", "value", "value_base64"}
_SHOWN = {"stream", "seq", "time", "kind", "range", "reason", "tag", "tag_base64"}  # by subscribe
_decoder = msgspec.json.Decoder()


def parse_lines(lines: Iterable[bytes], first: int = 1) -> Iterator[Pair]:
    """The events in `lines`; empty lines are skipped. UsageError names the line that is wrong."""
    for number, line in enumerate(lines, first):
        if line.strip():
            try:
                yield parse_line(line)
            except UsageError as problem:
                raise UsageError(f"line {number}: {problem}") from None


def parse_slices(body: bytes, lines_max: int) -> Iterator[list[Pair]]:
    """The events in `body`, as of so many lines at a time."""
    at, number = 0, 0
    while at < len(body):
        lines: list[bytes] = []
        while at < len(body) and len(lines) < lines_max:
            end = body.find(b"\n", at)
            end = len(body) if end < 0 else end
            lines.append(body[at:end])
            at = end + 1
        yield list(parse_lines(lines, number + 1))
        number += len(lines)


def parse_line(line: bytes) -> Pair:
    try:
        found = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise UsageError(f"not JSON: {problem}") from None
    except UnicodeDecodeError:
        raise UsageError("not UTF-8; other bytes go into key_base64 and value_base64") from None
    if not isinstance(found, dict):
        raise UsageError('not an object; write {"key": ..., "value": ...}')
    if unknown := sorted(found.keys() - _KNOWN - _SHOWN):
        raise UsageError(f"unknown field {unknown[0]!r}; allowed: {', '.join(sorted(_KNOWN))}")
    if found.get("kind", "event") != "event":
        raise UsageError(f"a {found['kind']!r} cannot be published")
    value = _bytes(found, "value")
    return _bytes(found, "key"), b"" if value is None else value


def as_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """A field for `data`: text where it is text, base64 where it is not."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _bytes(found: dict[str, Any], name: str) -> bytes | None:
    coded = f"{name}_base64"
    if coded in found:
        if name in found:
            raise UsageError(f"both {name} and {coded}")
        try:
            return base64.b64decode(found[coded], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise UsageError(f"{coded} is not base64") from None
    given = found.get(name)
    if given is None:
        return None
    if isinstance(given, str):
        return given.encode()
    if name == "key":
        raise UsageError("a key is text (or use key_base64)")
    return msgspec.json.encode(given)
