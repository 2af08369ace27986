"""The sizes of messages on a simulated link, estimated without encoding the messages."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from surecast.core.types import Batch, Enclosed

__all__ = ["BASE_BYTES", "Sizes", "enclosed_bytes"]

BASE_BYTES = 64  # header, tag and small fields of any message

_SCALARS = (int, float, bool, str, type(None))  # fields of these types are part of BASE_BYTES


class Sizes:
    """Computes the sizes of messages.

    The size of a message is its attribute `nbytes`, if it has one. Otherwise it is BASE_BYTES plus
    the sizes of the batches, bytes and collections in its fields. A message enclosed in another one
    (`Enclosed`) has the same size as if it were sent separately.
    """

    def __init__(self) -> None:
        self.sizers: dict[type, Callable[[Any], int]] = {}  # for each type seen so far

    def of(self, message: Any) -> int:
        kind = type(message)
        sizer = self.sizers.get(kind)
        if sizer is None:
            sizer = self.sizers[kind] = _sizer(kind)
        return sizer(message)


def _sizer(kind: type) -> Callable[[Any], int]:
    """A function for the size of a type's messages; simple types get a faster one."""
    if hasattr(kind, "nbytes"):  # a field or a property
        return attrgetter("nbytes")
    fields = _large_fields(kind)
    names = list(fields)
    if not names:
        return lambda message: BASE_BYTES
    get = attrgetter(*names)
    if len(names) > 1:
        return lambda message: BASE_BYTES + sum(map(_payload, get(message)))
    if fields[names[0]] is bytes:
        return lambda message: BASE_BYTES + len(get(message))
    return lambda message: BASE_BYTES + _payload(get(message))


def _large_fields(kind: type) -> dict[str, Any]:
    """The fields that may hold more than a scalar, and their types."""
    if not issubclass(kind, msgspec.Struct):
        return dict.fromkeys(getattr(kind, "__slots__", ()), Any)
    try:
        fields = msgspec.structs.fields(kind)
    except Exception:  # type hints that cannot be resolved: look into every field
        return dict.fromkeys(kind.__struct_fields__, Any)
    return {field.name: field.type for field in fields if field.type not in _SCALARS}


def _payload(value: Any) -> int:
    """The bytes of a field beyond the message's base size."""
    kind = type(value)
    if kind is bytes or kind is memoryview:
        return len(value)
    if kind is Batch:
        nbytes: int = value.nbytes
        return nbytes
    if kind is Enclosed:
        return enclosed_bytes(value)
    if kind is tuple or kind is list:
        return sum(map(_item, value))
    if kind is dict:
        return sum(map(_item, value)) + sum(map(_item, value.values()))
    if isinstance(value, msgspec.Struct):
        return sum(_item(getattr(value, name)) for name in value.__struct_fields__)
    return int(getattr(value, "nbytes", 0))


def enclosed_bytes(enclosed: Enclosed) -> int:
    """The size of the enclosed message, as if it were sent separately."""
    return _ENCLOSED_SIZES.of(enclosed.message)


def _item(value: Any) -> int:
    """The bytes of an item of a collection, or of a field of a nested struct."""
    kind = type(value)
    return 8 if kind is int or kind is str or kind is float else _payload(value)


_ENCLOSED_SIZES = Sizes()
