"""The nodes of a filter as it was written. In messages and on disk, filters are text."""

from collections.abc import Iterator
from decimal import Decimal

import msgspec

__all__ = ["OPERATORS", "And", "ColumnTest", "Literal", "Node", "Not", "Or", "tests_in"]

# A number (with a point or an exponent: Decimal), string, bytes or bool. Timestamps and dates are
# written as strings.
Literal = bool | int | Decimal | str | bytes

OPERATORS = (
    "==", "!=", "<", "<=", ">", ">=", "in", "between", "startswith", "contains", "exists",
)  # fmt: skip


class ColumnTest(msgspec.Struct, frozen=True, gc=False):
    """A column compared with literals: two of `between`, none of `exists`, any number of `in`, one
    of the other operators."""

    column: str
    operator: str
    values: tuple[Literal, ...] = ()
    at: int = 0  # where the test begins in the text: the number of characters before it


class Not(msgspec.Struct, frozen=True):
    part: "Node"


class And(msgspec.Struct, frozen=True):
    """All parts, at least two, accept the event."""

    parts: tuple["Node", ...]


class Or(msgspec.Struct, frozen=True):
    """One of the parts, at least two, accepts the event."""

    parts: tuple["Node", ...]


Node = ColumnTest | Not | And | Or


def tests_in(node: Node) -> Iterator[ColumnTest]:
    """The tests of a filter, from left to right."""
    if isinstance(node, ColumnTest):
        yield node
        return
    for part in (node.part,) if isinstance(node, Not) else node.parts:
        yield from tests_in(part)
