"""What the declared type of a field is made of."""

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
        found = todo.pop()
        yield found
        if isinstance(found, inspect.StructType):
            if found.cls in seen:
                continue
            seen.append(found.cls)
        for name in ("types", "item_types"):  # of unions and tuples
            todo += getattr(found, name, ())
        for name in ("item_type", "key_type", "value_type"):  # of collections and mappings
            if (inner := getattr(found, name, None)) is not None:
                todo.append(inner)
        todo += [field.type for field in getattr(found, "fields", ())]  # of structs and their like
