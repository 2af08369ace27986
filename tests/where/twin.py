"""Filters in plain Python, one event at a time: what the evaluators are compared with.

It works on the tree as it was written, with Python's exact comparison of numbers, and knows nothing
of binding.
"""

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from surecast.where.tree import And, ColumnTest, Node, Not, Or

__all__ = ["accepts"]

# Column → its value: None, bool, int, float, str, bytes, date, or for timestamps the exact number
# of seconds since 1970.
Event = Mapping[str, Any]


def accepts(node: Node, event: Event, negated: bool = False) -> bool:
    if isinstance(node, Not):
        return accepts(node.part, event, not negated)
    if isinstance(node, And | Or):
        found = [accepts(part, event, negated) for part in node.parts]
        return all(found) if isinstance(node, And) != negated else any(found)
    value = event.get(node.column)
    if node.operator == "exists":
        return (value is not None) != negated
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    return passes(node, value) != negated


def passes(test: ColumnTest, value: Any) -> bool:
    given = [like(value, literal) for literal in test.values]
    value = value.encode() if isinstance(value, str) else value
    match test.operator:
        case "==":
            return value == given[0]
        case "!=":
            return value != given[0]
        case "<":
            return value < given[0]
        case "<=":
            return value <= given[0]
        case ">":
            return value > given[0]
        case ">=":
            return value >= given[0]
        case "in":
            return value in given
        case "between":
            return given[0] <= value <= given[1]
        case "startswith":
            return bool(value.startswith(given[0]))
        case "contains":
            return given[0] in value
    raise AssertionError(test.operator)


def like(value: Any, literal: Any) -> Any:
    """The literal as something that Python compares exactly with the value."""
    if isinstance(value, str | bytes):
        return literal.encode() if isinstance(literal, str) else literal
    if isinstance(value, date):
        return date.fromisoformat(literal)
    if isinstance(value, Fraction):
        return seconds(literal)
    if isinstance(value, float) and isinstance(literal, Decimal):
        nearest = float(literal)
        return nearest if math.isfinite(nearest) and nearest else Fraction(literal)
    return literal


def seconds(text: str) -> Fraction:
    """Seconds since 1970 of a timestamp in ISO format, with any number of digits."""
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    at = datetime.fromisoformat(whole + rest[len(digits) :])
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return Fraction(since.days * 86400 + since.seconds) + Fraction(
        int(digits or "0"), 10 ** len(digits)
    )
