"""Explains filters to people: the text of a bound filter, and why an event passes it or not."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

from surecast.where.binding import Bound, BoundAnd, BoundOr, BoundTest, Op
from surecast.where.columns import Column, Kind
from surecast.where.evaluate import Columns, passes
from surecast.where.text import column_text, literal_text

__all__ = ["bound_text", "tests_of"]


def bound_text(bound: Bound) -> str:
    """A bound filter as text: with its literals as they are compared."""
    match bound:
        case BoundAnd(()):
            return "every event"
        case BoundOr(()):
            return "no event"
        case BoundAnd(parts):
            return " and ".join(_inside(part) for part in parts)
        case BoundOr(parts):
            return " or ".join(_inside(part) for part in parts)
        case BoundTest():
            return _test_text(bound)


def _inside(part: Bound) -> str:
    return bound_text(part) if isinstance(part, BoundTest) else f"({bound_text(part)})"


def _test_text(test: BoundTest) -> str:
    name = column_text(test.column.name)
    values = [_value_text(test.column, value) for value in test.values]
    negated = "not " if test.negated else ""
    match test.op:
        case Op.EXISTS:
            return f"{negated}exists {name}"
        case Op.EQUAL:
            return f"{name} {'!=' if test.negated else '=='} {values[0]}"
        case Op.IN:
            return f"{name} {negated}in ({', '.join(values)})"
        case Op.BETWEEN:
            return f"{name} {negated}between {values[0]} and {values[1]}"
    return f"{name} {negated}{test.op.value} {values[0]}"


def _value_text(column: Column, value: Any) -> str:
    match column.kind:
        case Kind.STRING:
            return literal_text(value.decode())
        case Kind.BOOL | Kind.BINARY:
            return literal_text(value)
        case Kind.DATE:
            return _safely(value, lambda: repr((date(1970, 1, 1) + timedelta(value)).isoformat()))
        case Kind.TIMESTAMP:
            return _safely(value, lambda: repr(_time_text(value * column.unit_ns)))
    return repr(value)


def _safely(value: int, text: Any) -> str:
    """The text of a date; its number, if Python's dates do not reach so far."""
    try:
        return str(text())
    except OverflowError:
        return str(value)


def _time_text(ns: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=ns // 10**9)
    fraction = f".{ns % 10**9:09}".rstrip("0").rstrip(".")
    return f"{at.replace(tzinfo=None).isoformat()}{fraction}Z"


def tests_of(bound: Bound, columns: Columns) -> Iterator[tuple[str, bool]]:
    """Each test of a filter, with its result for the one event in `columns`."""
    if isinstance(bound, BoundTest):
        text = _test_text(bound)
        array = columns.get(bound.column.name)
        if bound.op is not Op.EXISTS and (array is None or array.null_count):
            text += f" ({bound.column.name} has no value)"
        yield text, bool(passes(bound, columns, 1)[0])
        return
    for part in bound.parts:
        yield from tests_of(part, columns)
