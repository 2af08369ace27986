"""Walks through the declared type of a field, including nested types.

Used to check that messages and recorded types can be encoded.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import inspect

__all__ = ["parts_of"]


def parts_of(declared: Any) -> Iterator[inspect.Type]:
    """The declared type and all types inside it, nested structs included, each struct once.

    Raises TypeError or NameError if the type cannot be resolved.
    """
    todo: list[inspect.Type] = [inspect.type_info(declared)]
    seen: list[type] = []
    while todo:
        part = todo.pop()
        yield part
        if isinstance(part, inspect.StructType):
            if part.cls in seen:
                continue
            seen.append(part.cls)
        for name in ("types", "item_types"):  # of unions and tuples
            todo += getattr(part, name, ())
        for name in ("item_type", "key_type", "value_type"):  # of collections and mappings
            if (inner := getattr(part, name, None)) is not None:
                todo.append(inner)
        todo += [field.type for field in getattr(part, "fields", ())]  # of structs, dataclasses …
