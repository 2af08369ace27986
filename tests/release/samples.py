"""A message of every type, made from the types of its fields; and values as JSON can hold them."""

from typing import Any

import msgspec
from msgspec import inspect

from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.intervals import IntervalSet
from surecast.core.canon import name_of
from surecast.core.types import Enclosed, Message
from surecast.core.wire import Codec
from surecast.registry import message_types
from surecast.runtime import hello

__all__ = ["all_types", "codec", "contains", "sample", "shown"]

STREAM, PUBLISHER = bytes(range(16)), bytes(range(0xA0, 0xB0))
TIME_NS = 1_700_000_000_000_000_000


def all_types() -> list[type[Message]]:
    """Those of the protocols, and those that drivers say to each other."""
    return [*message_types(), hello.Hello, hello.Refused, hello.Beat, hello.Bye]


def codec() -> Codec:
    return Codec(all_types())


def a_batch() -> Batch:
    """Sparse: it has events and void positions."""
    made = Batch.of(
        STREAM, [b"v%d" % n for n in range(4)], [b"k"] * 4, publisher=PUBLISHER, pub_no=9
    )
    return made.sequenced(11, TIME_NS, 3).without(IntervalSet([(12, 14)]), COLLECTED)


def sample(kind: type[Message]) -> Message:
    """With values that differ from every default."""
    made: Message = _struct(kind)
    return made


def _struct(kind: type[msgspec.Struct]) -> Any:
    fields = msgspec.structs.fields(kind)
    values = [_value(inspect.type_info(field.type), n) for n, field in enumerate(fields)]
    return kind(*values)


def _value(form: inspect.Type, number: int) -> Any:
    match form:
        case inspect.UnionType(types):
            return _value(
                next(one for one in types if not isinstance(one, inspect.NoneType)), number
            )
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 1_000 + number
        case inspect.FloatType():
            return number + 0.5
        case inspect.StrType():
            return f"text {number}"
        case inspect.BytesType():
            return bytes(range(number, number + 16))
        case inspect.LiteralType(values):
            return values[-1]
        case inspect.EnumType(cls):
            return list(cls)[-1]
        case inspect.VarTupleType(item) | inspect.ListType(item):
            items = [_value(item, number + n) for n in range(1, 3)]
            return items if isinstance(form, inspect.ListType) else tuple(items)
        case inspect.TupleType(items):
            return tuple(_value(item, number + n) for n, item in enumerate(items))
        case inspect.DictType(key, value):
            return {_value(key, number): _value(value, number)}
        case inspect.StructType(cls):
            return _struct(cls)
        case inspect.CustomType(cls) if cls is Batch:
            return a_batch()
        case inspect.CustomType(cls) if cls is Enclosed:
            return Enclosed(hello.Refused("an enclosed message"))
        case inspect.NoneType():
            return None
    raise AssertionError(f"no sample of {form}: extend this function")


def shown(value: Any) -> Any:
    """As JSON holds it, without using what encodes messages."""
    if isinstance(value, Batch):
        rows = [[row.seq, row.time_ns, shown(row.key), shown(row.value)] for row in value.to_rows()]
        head = [value.kind, shown(value.stream_id), value.lo, value.hi, value.reason, value.epoch]
        return {"batch": head, "publisher": [shown(value.publisher), value.pub_no], "rows": rows}
    if isinstance(value, Enclosed):
        return {"enclosed": shown(value.message)}
    if isinstance(value, msgspec.Struct):
        fields = {name: shown(getattr(value, name)) for name in value.__struct_fields__}
        return {"type": name_of(type(value)), "fields": fields}
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, tuple | list):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return {"map": [[shown(key), shown(item)] for key, item in value.items()]}
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def contains(now: Any, before: Any) -> bool:
    """Whether `now` says all that `before` said; dictionaries may have more keys than before."""
    if isinstance(before, dict):
        return isinstance(now, dict) and all(
            key in now and contains(now[key], value) for key, value in before.items()
        )
    if isinstance(before, list):
        return (
            isinstance(now, list)
            and len(now) == len(before)
            and all(contains(one, other) for one, other in zip(now, before, strict=True))
        )
    return type(now) is type(before) and bool(now == before)
