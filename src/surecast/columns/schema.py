"""Schemas of events as text: the form for the command line, HTTP, configuration and messages.

    sym string not null, px float64, qty int64, at timestamp, `odd name` decimal(10, 2)

Types: bool, int8, int16, int32, int64, float32, float64, string, binary, timestamp (microseconds,
in UTC; or timestamp(s), (ms), (us), (ns)), date, decimal(precision, scale), list(type). A field may
be null unless it is declared `not null`.

A stream's schema can be *changed*: nullable fields are added at its end, and nothing else. So the
columns of a batch are the first columns of every later schema, and are null in the others.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from surecast.columns.typed import (
    FIELDS_MAX,
    LISTS_MAX,
    NOT_NULL,
    Type,
    Types,
    arrow_types,
    types_of,
)
from surecast.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Schema",
    "difference",
    "extends",
    "parse_schema",
    "read_schema",
    "schema_of",
    "schema_text",
]

TEXT_MAX: Final = 1 << 14  # characters of a schema to which a stream can be changed
# Names that fields must not have: events and their form in JSON use them.
RESERVED: Final = (
    "key", "value", "tag", "time", "stream", "seq", "kind", "range", "attributes",
    "key_base64", "value_base64", "tag_base64",
)  # fmt: skip
_NAMES: Final = {
    "bool": Type.BOOL,
    "int8": Type.INT8,
    "int16": Type.INT16,
    "int32": Type.INT32,
    "int64": Type.INT64,
    "float32": Type.FLOAT32,
    "float64": Type.FLOAT64,
    "string": Type.STRING,
    "binary": Type.BINARY,
    "date": Type.DATE,
}
_UNITS: Final = {
    "s": Type.TIMESTAMP_S,
    "ms": Type.TIMESTAMP_MS,
    "us": Type.TIMESTAMP_US,
    "ns": Type.TIMESTAMP_NS,
}
_TEXTS: Final = {
    **{kind: name for name, kind in _NAMES.items()},
    **{kind: f"timestamp({unit})" for unit, kind in _UNITS.items()},
    Type.TIMESTAMP_US: "timestamp",
}
# What people write for a type → what to write here.
_SIMILAR: Final = {
    "int": "int64 or int32", "integer": "int64 or int32", "long": "int64", "bigint": "int64",
    "short": "int16", "byte": "int8", "float": "float32 or float64", "double": "float64",
    "real": "float32", "text": "string", "str": "string", "utf8": "string", "varchar": "string",
    "boolean": "bool", "bytes": "binary", "date32": "date", "datetime": "timestamp",
    "numeric": "decimal(precision, scale)", "array": "list(type)",
}  # fmt: skip
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # other names are written in backquotes
# Controls, line separators, marks of writing direction, surrogates.
_UNREADABLE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|([(),]))\s*")


class Schema:
    """A stream's schema: the names and types of its fields. It is known without pyarrow, which
    servers do not load; `arrow` loads it."""

    __slots__ = ("_arrow", "names", "text", "type_names", "types")

    def __init__(self, names: tuple[str, ...], types: Types) -> None:
        _check_names(names)
        self.names = names
        self.types = types
        self._arrow: pa.Schema | None = None
        # The types as they are written in the text.
        self.type_names = tuple(_type_text(node.code) for node in types.nodes)
        # The canonical text.
        self.text = ", ".join(
            f"{_name_text(name)} {type_name}" + ("" if node.nullable else " not null")
            for name, type_name, node in zip(names, self.type_names, types.nodes, strict=True)
        )

    def __repr__(self) -> str:
        return f"Schema({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return read_schema, (self.text,)

    def arrow(self) -> pa.Schema:
        if self._arrow is None:
            import pyarrow as pa

            fields = zip(self.names, self.types.arrow_schema(), strict=True)
            self._arrow = pa.schema(field.with_name(name) for name, field in fields)
        return self._arrow


@lru_cache(1024)
def read_schema(text: str) -> Schema:
    """The schema of a text. Raises UsageError that says what is wrong, and where."""
    fields = _Parser(text).fields()
    names = tuple(name for name, _ in fields)
    _check_names(names)  # `types_of` would raise PeerError for too many
    return Schema(names, types_of(b"".join(code for _, code in fields)))


def difference(earlier: Schema, later: Schema) -> str:
    """Why a stream of the schema `earlier` cannot be changed to `later`: what is wrong with which
    field. "" if it can: `later` has further fields at its end, which may be null, or is equal."""
    before, after = _fields(earlier), _fields(later)
    for at, (name, (kind, nullable)) in enumerate(before.items()):
        if name not in after:
            return f"the field {name!r} is missing: fields cannot be removed or renamed"
        new_kind, new_nullable = after[name]
        if new_kind != kind:
            return f"the field {name!r} is {kind}, and cannot become {new_kind}"
        if new_nullable != nullable:
            if new_nullable:
                return f"the field {name!r} is not null, and cannot become nullable"
            return f"the field {name!r} may be null, and cannot become not null"
        if later.names[at] != name:
            return f"the field {name!r} has another place: new fields follow the existing ones"
    for name in later.names[len(earlier.names) :]:
        if not after[name][1]:
            return (
                f"the new field {name!r} is not null: earlier events have no value for it, so new "
                "fields may be null"
            )
    return ""


def _fields(schema: Schema) -> dict[str, tuple[str, bool]]:
    """By name: the type as text, and whether the field may be null."""
    nodes = zip(schema.names, schema.type_names, schema.types.nodes, strict=True)
    return {name: (kind, node.nullable) for name, kind, node in nodes}


def extends(later: str, earlier: str) -> bool:
    """Whether a stream with the schema `earlier` may be changed to `later`, or they are equal. Both
    are texts, which may come from a peer or a later version; "" is no schema."""
    if later == earlier:
        return True
    if len(later) > TEXT_MAX:
        return False
    try:
        return bool(earlier) and not difference(read_schema(earlier), read_schema(later))
    except UsageError:
        return False


def schema_of(schema: pa.Schema) -> Schema:
    """The schema with these Arrow fields. Raises UsageError for a field that a stream's schema
    cannot have."""
    _check_names(tuple(schema.names))
    codes = []
    for field in schema:
        code = _code_of(field.name, field.type)
        codes.append(code if field.nullable else bytes([code[0] | NOT_NULL]) + code[1:])
    return Schema(tuple(schema.names), types_of(b"".join(codes)))


def schema_text(schema: pa.Schema) -> str:
    """The canonical text. Raises UsageError for a field that a stream's schema cannot have."""
    return schema_of(schema).text


def parse_schema(text: str) -> pa.Schema:
    """The Arrow schema of a text. Raises UsageError that says what is wrong, and where."""
    return read_schema(text).arrow()


def _check_names(names: tuple[str, ...]) -> None:
    if len(names) > FIELDS_MAX:
        raise UsageError(f"a schema has at most {FIELDS_MAX} fields, not {len(names):,}")
    if not names:
        raise UsageError("a schema has at least one field")
    seen: dict[str, None] = {}
    for name in names:
        if name in RESERVED:
            has = name if name == "attributes" else f"a {name.removesuffix('_base64')}"
            raise UsageError(f"the field {name!r} needs another name: every event has {has}")
        if name in seen or not name:
            raise UsageError(
                f"two fields have the name {name!r}" if name else "a field has no name"
            )
        if _UNREADABLE.search(name):
            raise UsageError(f"the name {name!a} has characters that cannot be read")
        seen[name] = None


def _name_text(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _type_text(code: bytes) -> str:
    """The type of a code without NOT_NULL."""
    kind = Type(code[0])
    if kind is Type.LIST:
        return f"list({_type_text(code[1:])})"
    if kind is Type.DECIMAL:
        return f"decimal({code[1]}, {code[2]})"
    return _TEXTS[kind]


def _code_of(name: str, kind: pa.DataType, lists: int = 0) -> bytes:
    """The code of an Arrow type."""
    import pyarrow as pa

    for number, known in arrow_types().items():
        if kind == known:
            return bytes([number])
    if pa.types.is_timestamp(kind) and kind.tz in ("+00:00", "Z"):  # other names of UTC
        return bytes([_UNITS[kind.unit]])
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return bytes([Type.DECIMAL, kind.precision, kind.scale])
    if pa.types.is_list(kind) and lists < LISTS_MAX and kind.value_field.nullable:
        return bytes([Type.LIST]) + _code_of(name, kind.value_type, lists + 1)
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


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fields(self) -> list[tuple[str, bytes]]:
        """Names and codes of types."""
        found: list[tuple[str, bytes]] = []
        while True:
            name = self.take("a field name")
            name = name[1:-1].replace("``", "`") if name[0] == "`" else name
            kind = self.type(0)
            nullable = not self.takes("not")
            if not nullable and not self.takes("null"):
                self.refuse("`null` after `not`")
            found.append((name, kind if nullable else bytes([kind[0] | NOT_NULL]) + kind[1:]))
            if self.at == len(self.text):
                return found
            if not self.takes(","):
                self.refuse("a comma or the end")

    def type(self, lists: int) -> bytes:
        begin, name = self.at, self.take("a type").lower()
        if name in _NAMES:
            return bytes([_NAMES[name]])
        match name:
            case "timestamp":
                unit = self.arguments(1)[0] if self.takes("(") else "us"
                if unit in _UNITS:
                    return bytes([_UNITS[unit]])
            case "decimal" if self.takes("("):
                digits = self.arguments(2)
                if all(re.fullmatch("[0-9]{1,2}", word) for word in digits):
                    precision, scale = map(int, digits)
                    if 1 <= precision <= 38 and scale <= precision:
                        return bytes([Type.DECIMAL, precision, scale])
            case "list" if lists < LISTS_MAX and self.takes("("):
                kind = self.type(lists + 1)
                if self.takes(")"):
                    return bytes([Type.LIST]) + kind
        self.at = begin
        hint = f": did you mean {_SIMILAR[name]}?" if name in _SIMILAR else ""
        if name == "decimal":
            hint = ": a decimal has a precision of 1 to 38 and a scale, such as decimal(10, 2)"
        types = f"{', '.join(_NAMES)}, timestamp, decimal(10, 2) or list(string)"
        self.refuse(f"a type ({types})", hint)

    def arguments(self, count: int) -> list[str]:
        """Words in parentheses; the opening one is taken already."""
        words = [self.take("a word").lower()]
        while len(words) < count:
            if not self.takes(","):
                self.refuse("a comma")
            words.append(self.take("a word").lower())
        if not self.takes(")"):
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

    def refuse(self, wanted: str, hint: str = "") -> NoReturn:
        rest = self.text[self.at : self.at + 20]
        found = repr(rest) if rest else "the end"
        raise UsageError(
            f"schema: {found} where {wanted} should be (at character {self.at + 1}){hint}"
        )
