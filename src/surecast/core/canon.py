"""A canonical encoding of a machine's effects, for recordings of runs and for their replay.

Equal effects have equal bytes in any process, and different effects have different bytes. A
recording contains a digest of these bytes for each step, and a replay must produce the same digest.

The bytes (`canonical`) are MessagePack: for each effect its type, the type of the message or event
that it carries, and the effect itself. MessagePack does not encode the types of structs. Therefore
fields that may hold values of any type are examined first. Scalars and tuples of scalars are
encoded directly, all other values by `plain`, which includes their types. Sets are refused, because
their order differs between processes. A batch is represented by its header, which contains the CRC
of its body; an enclosed message by its type and all its fields.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from surecast.core.fields import parts_of
from surecast.core.types import (
    Batch,
    Command,
    Emit,
    Enclosed,
    FromBelow,
    Message,
    PassDown,
    Received,
    Send,
    tag_of,
)
from surecast.errors import PeerError, UsageError

__all__ = [
    "FORMS",
    "Form",
    "canonical",
    "digest",
    "label_of",
    "labels",
    "may_begin",
    "name_of",
    "plain",
    "unplain",
]

DIGEST_SIZE: Final = 8  # bytes
# MessagePack extensions:
_BATCH: Final = 1  # the header of a batch
_ENCLOSED: Final = 2  # an enclosed message, as `plain` encodes it
_SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes))
# Types whose main content is another struct → the field with this struct.
_CARRIES: Final[dict[type, str]] = {
    Send: "message", Emit: "event", PassDown: "command", Received: "message", FromBelow: "event",
    Command: "input",
}  # fmt: skip


def name_of(kind: type) -> str:
    """The name of a type in recordings and traces. It stays the same if the type moves to another
    file.

    The name of a message is its tag, that of another type of a protocol "protocol/Name", that of a
    type in `core` or `columns` its class name alone. Other types, such as those of tests, are named
    "module:Name".
    """
    if issubclass(kind, Message):
        return tag_of(kind)
    parts = kind.__module__.split(".")
    if parts[:2] == ["surecast", "protocols"] and len(parts) > 2:
        return f"{parts[2]}/{kind.__qualname__}"
    if parts[0] == "surecast" and parts[1:2] in (["core"], ["columns"]):
        return kind.__qualname__
    return f"{kind.__module__}:{kind.__qualname__}"


def label_of(kind: type) -> str:
    """The name of a type without its module, for people to read."""
    return name_of(kind).rpartition(":")[2]


class Form(NamedTuple):
    """How values of one type are encoded."""

    name: str
    carries: str  # the field whose value's type is recorded as well, or ""
    fields: tuple[tuple[str, bool], ...]  # for each field of a struct: its name, whether it is open
    open: tuple[str, ...]  # the names of open fields, which may hold values of any type
    easy: bool  # a struct without open fields, which MessagePack encodes without loss


class _Forms(dict[type, Form]):
    """Type → form; a form is made when its type is first looked up."""

    def __missing__(self, kind: type) -> Form:
        fields: tuple[tuple[str, bool], ...] = ()
        is_struct = issubclass(kind, msgspec.Struct)
        if is_struct:
            declared = msgspec.structs.fields(kind)
            fields = tuple((f.name, _is_open(kind, f.name, f.type)) for f in declared)
        names = tuple(name for name, is_open in fields if is_open)
        form = Form(name_of(kind), _CARRIES.get(kind, ""), fields, names, is_struct and not names)
        self[kind] = form
        return form


def _is_open(owner: type, field: str, declared: Any) -> bool:
    """Whether a field may hold values of any type; UsageError if its type cannot be recorded."""
    try:
        for part in parts_of(declared):
            if isinstance(part, inspect.SetType | inspect.FrozenSetType):
                raise UsageError(f"{owner.__name__}.{field} is a set: it has no order to record")
            if isinstance(part, inspect.AnyType):
                return True
            if isinstance(part, inspect.CustomType) and part.cls not in (Batch, Enclosed):
                name = part.cls.__name__
                raise UsageError(f"{owner.__name__}.{field}: {name} cannot be recorded")
    except TypeError as error:
        raise UsageError(f"{owner.__name__}.{field} cannot be recorded: {error}") from None
    return False


FORMS: Final = _Forms()


# ---------------------------------------------------------------- effects


def digest(effects: Sequence[Any]) -> bytes:
    return blake2b(canonical(effects), digest_size=DIGEST_SIZE).digest()


def labels(effects: Iterable[Any]) -> list[str]:
    """The type of each effect and of what it carries, such as "Send.chain/Forward"."""
    return [_LABELS[type(effect), _inner(effect)] for effect in effects]


def canonical(effects: Sequence[Any]) -> bytes:
    """The effects as MessagePack, the input of `digest`; UsageError if they cannot be recorded."""
    parts: list[Any] = []
    for effect in effects:
        form = FORMS[type(effect)]
        inner = ""
        if form.carries:
            carried = getattr(effect, form.carries)
            inner_form = FORMS[type(carried)]
            inner = inner_form.name
            easy = inner_form.easy or _is_easy(carried, inner_form)
        else:
            easy = form.easy or _is_easy(effect, form)
        parts += (form.name, inner, effect if easy else plain(effect))
    try:
        try:
            return _ENCODE(parts)
        except OverflowError:  # an integer of more than 64 bits
            return _ENCODE([plain(effect) for effect in effects])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"these effects cannot be recorded: {error}") from None


def _inner(effect: Any) -> type | None:
    carries = _CARRIES.get(type(effect))
    return type(getattr(effect, carries)) if carries is not None else None


class _Labels(dict[tuple[type, type | None], str]):
    def __missing__(self, kinds: tuple[type, type | None]) -> str:
        self[kinds] = label = ".".join(label_of(kind) for kind in kinds if kind is not None)
        return label


_LABELS: Final = _Labels()


def _is_easy(value: Any, form: Form) -> bool:
    """Whether MessagePack encodes a value without losing a type."""
    if not form.fields:
        return _is_simple(value)
    return all(_is_simple(getattr(value, name)) for name in form.open)


def _is_simple(value: Any) -> bool:
    kind = type(value)
    return kind in _SCALARS or (kind is tuple and all(map(_is_simple, value)))


def _extension(value: Any) -> msgspec.msgpack.Ext:
    if isinstance(value, Enclosed):
        return msgspec.msgpack.Ext(_ENCLOSED, _ENCODE(plain(value.message)))
    if not isinstance(value, Batch):
        raise TypeError(f"{type(value).__name__} cannot be encoded")
    if value.body is None:
        raise TypeError("a synthetic batch has no body, so it cannot be told from others")
    header: tuple[int | bytes, ...] = (
        value.kind, value.stream_id, value.schema_id, value.publisher, value.pub_no, value.lo,
        value.count, value.rows, value.time_ns, value.epoch, value.reason, value.body_crc,
        value.nbytes, value.form,
    )  # fmt: skip
    if value.filtered is not None:
        header += (value.filtered.to_bytes(),)
    return msgspec.msgpack.Ext(_BATCH, _ENCODE_PLAIN(header))


_ENCODE_PLAIN: Final = msgspec.msgpack.Encoder().encode
_ENCODE: Final = msgspec.msgpack.Encoder(enc_hook=_extension).encode


# ---------------------------------------------------------------- any value

_INTEGER_END: Final = 1 << 63  # MessagePack encodes integers from -_INTEGER_END to below this


def plain(value: Any) -> Any:
    """A value in a form that MessagePack encodes without loss; `unplain` is the inverse.

    A tuple becomes a list. Anything that is neither a scalar nor a tuple becomes a dict of one
    entry: {"i": text} for a large integer, {"l": items} for a list, {"d": [[key, value], ...]} for
    a dict, {"s": [type name, field, ...]} for a struct. Batches and enclosed messages are left as
    they are: the encoder handles them.
    """
    kind = type(value)
    if kind is int and not -_INTEGER_END <= value < _INTEGER_END:
        return {"i": str(value)}
    if kind in _SCALARS or kind is Batch or kind is Enclosed:
        return value
    if kind is tuple:
        return [plain(item) for item in value]
    if kind is list:
        return {"l": [plain(item) for item in value]}
    if kind is dict:
        return {"d": [[plain(k), plain(v)] for k, v in value.items()]}
    if kind is memoryview or kind is bytearray:
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        form = FORMS[kind]
        return {"s": [form.name, *(plain(getattr(value, name)) for name, _ in form.fields)]}
    raise UsageError(f"a value of type {kind.__name__} cannot be recorded")


def unplain(value: Any, struct_type: Callable[[str], type[msgspec.Struct]]) -> Any:
    """The inverse of `plain`; `struct_type` returns the struct type of a name."""
    if isinstance(value, list):
        return tuple([unplain(item, struct_type) for item in value])
    if not isinstance(value, dict):
        return value
    match value:
        case {"i": str(digits)} if len(digits) < 100 and digits.removeprefix("-").isdecimal():
            return int(digits)
        case {"l": list(items)}:
            return [unplain(item, struct_type) for item in items]
        case {"d": list(items)} if all(isinstance(i, list) and len(i) == 2 for i in items):
            return {unplain(k, struct_type): unplain(v, struct_type) for k, v in items}
        case {"s": [str(name), *fields]}:
            kind = struct_type(name)
            if may_begin(kind, len(fields)):
                values = [unplain(field, struct_type) for field in fields]
                return kind(**dict(zip(kind.__struct_fields__, values, strict=False)))
    raise PeerError("a recorded value is not valid")


def may_begin(kind: type[msgspec.Struct], count: int) -> bool:
    """Whether the first `count` fields are enough to make a struct of this type.

    A recording by an older version lacks the fields that were added since. New fields are added at
    the end and have defaults (docs/compatibility.md).
    """
    fields = len(kind.__struct_fields__)
    return fields - len(kind.__struct_defaults__) <= count <= fields
