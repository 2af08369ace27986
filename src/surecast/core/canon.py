"""Effects as bytes: equal for equal effects in any process, different for different ones.

`digest` is what a recording keeps of the effects of a step. Behind it stands one MessagePack text:
for each effect its type, the type of what it carries (a message, an event) and the effect itself.
MessagePack leaves out the types of structs, so a field that may hold anything is looked at first:
scalars and tuples of them speak for themselves, all else is spelled out by `plain`. Sets have no
order that two processes agree on and are refused. A batch counts by its header, which contains the
CRC of its body, an enclosed message by its type and all its fields.
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

DIGEST_SIZE: Final = 8
# MessagePack extensions:
_BATCH: Final = 1  # the header of a batch
_ENCLOSED: Final = 2  # an enclosed message, spelled out by `plain`
_SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes))
_CARRIES: Final[dict[type, str]] = {
    Send: "message", Emit: "event", PassDown: "command", Received: "message", FromBelow: "event",
    Command: "input",
}  # fmt: skip


def name_of(kind: type) -> str:
    """What recordings and traces call a type. A type that moves to another file keeps its name.

    A message is called by its tag, another type of a protocol "protocol/Name", a type of the
    vocabulary (`core`, `columns`) by its class name alone. Types from elsewhere, such as those of
    tests, are "module:Name".
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
    """The name without a module: for people to read."""
    return name_of(kind).rpartition(":")[2]


class Form(NamedTuple):
    """What must be known of a type to encode its values."""

    name: str
    carries: str  # the field whose value has a type worth naming, or ""
    fields: tuple[tuple[str, bool], ...]  # of a struct: name, and whether it may hold anything
    open: tuple[str, ...]  # the names of the latter
    easy: bool  # a struct whose declared types say all


class _Forms(dict[type, Form]):
    """Made when a type is first met."""

    def __missing__(self, kind: type) -> Form:
        fields: tuple[tuple[str, bool], ...] = ()
        is_struct = issubclass(kind, msgspec.Struct)
        if is_struct:
            found = msgspec.structs.fields(kind)
            fields = tuple((f.name, _is_open(kind, f.name, f.type)) for f in found)
        names = tuple(name for name, is_open in fields if is_open)
        form = Form(name_of(kind), _CARRIES.get(kind, ""), fields, names, is_struct and not names)
        self[kind] = form
        return form


def _is_open(owner: type, field: str, declared: Any) -> bool:
    """Whether the declared type leaves open what a value's type is; refuses what has no form."""
    try:
        for found in parts_of(declared):
            if isinstance(found, inspect.SetType | inspect.FrozenSetType):
                raise UsageError(f"{owner.__name__}.{field} is a set: it has no order to record")
            if isinstance(found, inspect.AnyType):
                return True
            if isinstance(found, inspect.CustomType) and found.cls not in (Batch, Enclosed):
                name = found.cls.__name__
                raise UsageError(f"{owner.__name__}.{field}: {name} cannot be recorded")
    except TypeError as error:
        raise UsageError(f"{owner.__name__}.{field} cannot be recorded: {error}") from None
    return False


FORMS: Final = _Forms()


# ---------------------------------------------------------------- effects


def digest(effects: Sequence[Any]) -> bytes:
    return blake2b(canonical(effects), digest_size=DIGEST_SIZE).digest()


def labels(effects: Iterable[Any]) -> list[str]:
    """The effects' types in short, such as "Send.chain/Forward"."""
    return [_LABELS[type(effect), _inner(effect)] for effect in effects]


def canonical(effects: Sequence[Any]) -> bytes:
    """See the module."""
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
    """Whether MessagePack says all there is to say about a value."""
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
        raise TypeError(f"{type(value).__name__} has no form")
    if value.body is None:
        raise TypeError("a synthetic batch has no body to tell it from others")
    header = (
        value.kind, value.stream_id, value.schema_id, value.publisher, value.pub_no, value.lo,
        value.count, value.rows, value.time_ns, value.epoch, value.reason, value.body_crc,
        value.nbytes, value.form,
    )  # fmt: skip
    return msgspec.msgpack.Ext(_BATCH, _ENCODE_PLAIN(header))


_ENCODE_PLAIN: Final = msgspec.msgpack.Encoder().encode
_ENCODE: Final = msgspec.msgpack.Encoder(enc_hook=_extension).encode


# ---------------------------------------------------------------- any value

_SMALL: Final = 1 << 63


def plain(value: Any) -> Any:
    """A value as one that MessagePack keeps whole: `unplain` of it is the same, types and all.

    A tuple becomes a list; everything that is no scalar or tuple a dict of one entry. Batches and
    enclosed messages stay what they are: the encoder has to know them.
    """
    kind = type(value)
    if kind is int and not -_SMALL <= value < _SMALL:
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
    """The value `plain` was given; `struct_type` finds the struct of a name."""
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
    raise PeerError("a recorded value makes no sense")


def may_begin(kind: type[msgspec.Struct], count: int) -> bool:
    """Whether the first `count` fields make a struct: the others were added since, with defaults.

    (Every version may add last fields that have a default: docs/compatibility.md.)
    """
    fields = len(kind.__struct_fields__)
    return fields - len(kind.__struct_defaults__) <= count <= fields
