"""Schemas of events as text: the form for the command line, HTTP, configuration and messages.

    sym string not null, px float64, qty int64, at timestamp, `odd name` decimal(10, 2)

Types: bool, int8, int16, int32, int64, float32, float64, string, binary, timestamp (microseconds,
in UTC; or timestamp(s), (ms), (us), (ns)), date, decimal(precision, scale), list(type). A field may
be null unless it is declared `not null`.
"""

import re
from typing import Final, NoReturn

import pyarrow as pa

from surecast.columns.typed import FIELDS_MAX, LISTS_MAX
from surecast.errors import UsageError

__all__ = ["parse_schema", "schema_text"]

RESERVED: Final = (
    "key",
    "value",
    "tag",
    "time",
    "stream",
    "seq",
    "kind",
    "range",
)  # of every event
_NAMES: Final = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
}
_TEXTS: Final = {kind: name for name, kind in _NAMES.items()}
_UNITS: Final = ("s", "ms", "us", "ns")
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # other names are written in backquotes
# Controls, line separators, marks of writing direction, surrogates.
_UNREADABLE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|([(),]))\s*")


def schema_text(schema: pa.Schema) -> str:
    """The canonical text. Raises UsageError for a field that a stream's schema cannot have."""
    if len(schema) > FIELDS_MAX:
        raise UsageError(f"a schema has at most {FIELDS_MAX} fields, not {len(schema):,}")
    if not len(schema):
        raise UsageError("a schema has at least one field")
    seen: dict[str, None] = {}
    for name in schema.names:
        if name in RESERVED:
            raise UsageError(f"the field {name!r} needs another name: every event has a {name}")
        if name in seen or not name:
            raise UsageError(
                f"two fields have the name {name!r}" if name else "a field has no name"
            )
        if _UNREADABLE.search(name):
            raise UsageError(f"the name {name!a} has characters that cannot be read")
        seen[name] = None
    return ", ".join(
        f"{_name_text(field.name)} {_type_text(field.name, field.type)}"
        + ("" if field.nullable else " not null")
        for field in schema
    )


def _name_text(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _type_text(name: str, kind: pa.DataType, lists: int = 0) -> str:
    if kind in _TEXTS:
        return _TEXTS[kind]
    if pa.types.is_timestamp(kind) and kind.tz in ("UTC", "+00:00", "Z"):
        return "timestamp" if kind.unit == "us" else f"timestamp({kind.unit})"
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind) and lists < LISTS_MAX and kind.value_field.nullable:
        return f"list({_type_text(name, kind.value_type, lists + 1)})"
    hint = ""
    if pa.types.is_timestamp(kind):
        hint = ": timestamps are in UTC, such as pa.timestamp('us', 'UTC')"
    elif pa.types.is_unsigned_integer(kind):
        hint = ": whole numbers have a sign, such as pa.int64()"
    elif pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        hint = ": use pa.string()"
    elif pa.types.is_list(kind):
        hint = f": lists have values that may be null, and at most {LISTS_MAX} levels"
    raise UsageError(f"the field {name!r} has the type {kind}, which streams do not support{hint}")


def parse_schema(text: str) -> pa.Schema:
    """The schema of a text. Raises UsageError that says what is wrong, and where."""
    schema = pa.schema(_Parser(text).fields())
    schema_text(schema)  # checks the names
    return schema


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fields(self) -> list[pa.Field]:
        found = []
        while True:
            name = self.take("a field name")
            name = name[1:-1].replace("``", "`") if name[0] == "`" else name
            if _UNREADABLE.search(name):
                raise UsageError(f"the name {name!a} has characters that cannot be read")
            kind = self.type(0)
            nullable = not self.takes("not")
            if not nullable and not self.takes("null"):
                self.refuse("`null` after `not`")
            found.append(pa.field(name, kind, nullable))
            if self.at == len(self.text):
                return found
            if not self.takes(","):
                self.refuse("a comma or the end")

    def type(self, lists: int) -> pa.DataType:
        begin, name = self.at, self.take("a type").lower()
        if name in _NAMES:
            return _NAMES[name]
        match name:
            case "timestamp":
                unit = self.arguments(1)[0] if self.takes("(") else "us"
                if unit in _UNITS:
                    return pa.timestamp(unit, "UTC")
            case "decimal" if self.takes("("):
                digits = self.arguments(2)
                if all(re.fullmatch("[0-9]{1,2}", word) for word in digits):
                    precision, scale = map(int, digits)
                    if 1 <= precision <= 38 and scale <= precision:
                        return pa.decimal128(precision, scale)
            case "list" if lists < LISTS_MAX and self.takes("("):
                kind = self.type(lists + 1)
                if self.takes(")"):
                    return pa.list_(kind)
        self.at = begin
        self.refuse(f"a type ({', '.join(_NAMES)}, timestamp, decimal(10, 2) or list(string))")

    def arguments(self, count: int) -> list[str]:
        """Words in parentheses; the opening one is taken already."""
        words = [self.take("a word").lower()]
        while len(words) < count and self.takes(","):
            words.append(self.take("a word").lower())
        if len(words) != count or not self.takes(")"):
            self.refuse("')'")
        return words

    def take(self, wanted: str) -> str:
        match = _TOKEN.match(self.text, self.at)
        if match is None or match[3]:
            self.refuse(wanted)
        self.at = match.end()
        return match[1] or match[2]

    def takes(self, word: str) -> bool:
        match = _TOKEN.match(self.text, self.at)
        if match is None or (match[2] or match[3] or "").lower() != word:
            return False
        self.at = match.end()
        return True

    def refuse(self, wanted: str) -> NoReturn:
        rest = self.text[self.at : self.at + 20]
        found = repr(rest) if rest else "the end"
        raise UsageError(f"schema: {found} where {wanted} should be (at character {self.at + 1})")
