"""How many bytes messages take on a simulated wire."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from surecast.core.types import Batch

__all__ = ["BASE_BYTES", "Sizes"]

BASE_BYTES = 64  # header, tag and small fields of any message

_SCALARS = (int, float, bool, str, type(None))


class Sizes:
    """`of(message)`: its own `nbytes` if it has one, else 64 and the batches and buffers in it."""

    def __init__(self) -> None:
        self.types: dict[type, Callable[[Any], int]] = {}  # all that were asked for, to how
        self.fixed: dict[type, int] = {}  # those that hold nothing but scalars

    def of(self, message: Any) -> int:
        sizer = self.types.get(type(message))
        if sizer is None:
            sizer = self._learn(type(message))
        return sizer(message)

    def _learn(self, kind: type) -> Callable[[Any], int]:
        self.types[kind] = sizer = _sizer(kind)
        if sizer is _base:
            self.fixed[kind] = BASE_BYTES
        return sizer


def _base(message: Any) -> int:
    return BASE_BYTES


def _sizer(kind: type) -> Callable[[Any], int]:
    if hasattr(kind, "nbytes"):  # a field or a property
        return attrgetter("nbytes")
    names = _large_fields(kind)
    if not names:
        return _base
    get = attrgetter(*names)
    if len(names) == 1:
        return lambda message: BASE_BYTES + _payload(get(message))
    return lambda message: BASE_BYTES + _payloads(get(message))


def _large_fields(kind: type) -> tuple[str, ...]:
    """The fields that may hold more than a scalar, judged by the type alone."""
    if not issubclass(kind, msgspec.Struct):
        return tuple(getattr(kind, "__slots__", ()))
    try:
        fields = msgspec.structs.fields(kind)
    except Exception:  # hints that cannot be resolved: look into every field
        return kind.__struct_fields__
    return tuple(field.name for field in fields if field.type not in _SCALARS)


def _payload(value: Any) -> int:
    """The bytes of a field beyond the message's base size."""
    kind = type(value)
    if kind is bytes or kind is memoryview:
        return len(value)
    if kind is Batch:
        nbytes: int = value.nbytes
        return nbytes
    if kind is tuple or kind is list:
        return sum(map(_item, value))
    if kind is dict:
        return sum(map(_item, value)) + sum(map(_item, value.values()))
    if isinstance(value, msgspec.Struct):
        return sum(_item(getattr(value, name)) for name in value.__struct_fields__)
    return int(getattr(value, "nbytes", 0))


def _item(value: Any) -> int:
    kind = type(value)
    return 8 if kind is int or kind is str or kind is float else _payload(value)


def _payloads(values: tuple[Any, ...]) -> int:
    return sum(map(_payload, values))
