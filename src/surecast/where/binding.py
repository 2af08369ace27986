"""Binding: a filter is checked against the columns of events, and made exact for their types.

In a bound filter, `not` is part of the tests, and the literals are values of the columns' types. A
test that is false for every event becomes `NONE`; one that is true for every event that has a value
becomes a test of existence.
"""

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from typing import Any, Final

import msgspec

from surecast.errors import FilterError
from surecast.where.columns import Column, Kind, number_of, text_of, truth_of
from surecast.where.text import SUGGESTED_MAX
from surecast.where.tree import And, ColumnTest, Node, Not, Or

__all__ = ["ALL", "NONE", "Bound", "BoundAnd", "BoundOr", "BoundTest", "Op", "bind"]

_NAMED_MAX: Final = 20  # columns in an error message


class Op(Enum):
    EXISTS = "exists"
    EQUAL = "=="
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="
    IN = "in"
    BETWEEN = "between"
    STARTS_WITH = "startswith"
    CONTAINS = "contains"


class BoundTest(msgspec.Struct, frozen=True, gc=False):
    """A test of a column. `values` are int, float, bool or bytes, as the column's kind says; those
    of IN are sorted. BETWEEN includes both of its values.

    An event without a value, or with NaN, fails the test, also if it is `negated`. EXISTS is the
    exception: it looks only for a value, and `negated` accepts events without one. Negated
    comparisons (LESS to AT_LEAST) do not occur.
    """

    column: Column
    op: Op
    values: tuple[Any, ...] = ()
    negated: bool = False


class BoundAnd(msgspec.Struct, frozen=True):
    parts: tuple["Bound", ...]


class BoundOr(msgspec.Struct, frozen=True):
    parts: tuple["Bound", ...]


Bound = BoundTest | BoundAnd | BoundOr
ALL: Final = BoundAnd(())  # every event
NONE: Final = BoundOr(())  # no event

_OPPOSITE: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_COMPARED: Final = {"<": Op.LESS, "<=": Op.AT_MOST, ">": Op.MORE, ">=": Op.AT_LEAST}


def bind(node: Node, columns: Mapping[str, Column]) -> Bound:
    """The bound form of a filter for events with these columns. Raises FilterError if it names
    another column, or a literal does not fit its column."""
    return _bind(node, columns, negated=False)


def _bind(node: Node, columns: Mapping[str, Column], negated: bool) -> Bound:
    match node:
        case Not(part):
            return _bind(part, columns, not negated)
        case And(parts) | Or(parts):
            bound = [_bind(part, columns, negated) for part in parts]
            return _all(bound) if isinstance(node, And) is not negated else _any(bound)
        case ColumnTest():
            return _test(node, _column(node, columns), negated)


def _all(parts: list[Bound]) -> Bound:
    if NONE in parts:
        return NONE
    left: list[Bound] = []
    for part in parts:  # ALL has no parts
        left += part.parts if isinstance(part, BoundAnd) else (part,)
    return left[0] if len(left) == 1 else BoundAnd(tuple(left))


def _any(parts: list[Bound]) -> Bound:
    if ALL in parts:
        return ALL
    left: list[Bound] = []
    for part in parts:  # NONE has no parts
        left += part.parts if isinstance(part, BoundOr) else (part,)
    return left[0] if len(left) == 1 else BoundOr(tuple(left))


def _column(test: ColumnTest, columns: Mapping[str, Column]) -> Column:
    column = columns.get(test.column)
    if column is not None:
        return column
    by_lower = {name.lower(): name for name in columns}
    wanted = test.column.lower() if len(test.column) <= SUGGESTED_MAX else ""
    close = [by_lower[name] for name in get_close_matches(wanted, by_lower, 1)]
    known = ", ".join(list(columns)[:_NAMED_MAX]) + (", …" if len(columns) > _NAMED_MAX else "")
    meant = f"did you mean {close[0]!r}?" if close else f"the columns are {known}"
    name = ascii(test.column[:SUGGESTED_MAX])
    raise FilterError(f"there is no column {name} that filters can test; {meant}", test.at)


def _test(test: ColumnTest, column: Column, negated: bool) -> Bound:
    if test.operator == "exists":
        return BoundTest(column, Op.EXISTS, (), negated)
    match column.kind:
        case Kind.BOOL:
            return _of_bools(test, column, negated)
        case Kind.STRING | Kind.BINARY:
            return _of_texts(test, column, negated)
        case Kind.FLOAT:
            return _of_floats(test, column, negated)
    return _of_whole(test, column, negated)


def _never(column: Column, negated: bool) -> Bound:
    """A test that no value passes, or its negation, which every value passes (NaN does not)."""
    if not negated:
        return NONE
    if column.kind is Kind.FLOAT:  # `exists` would accept NaN
        return BoundTest(column, Op.IN, (), True)
    return BoundTest(column, Op.EXISTS)


def _always(column: Column, negated: bool) -> Bound:
    return _never(column, not negated)


def _refuse(test: ColumnTest, column: Column) -> FilterError:
    return FilterError(
        f"{column.name} is a {column.kind.value}: {test.operator} is for {_WANTED[test.operator]}",
        test.at,
    )


_ORDERED: Final = "numbers, strings, bytes, timestamps and dates"
_WANTED: Final = {
    **dict.fromkeys(("<", "<=", ">", ">=", "between"), _ORDERED),
    **dict.fromkeys(("startswith", "contains"), "strings and bytes"),
}  # fmt: skip


def _of_bools(test: ColumnTest, column: Column, negated: bool) -> Bound:
    if test.operator not in ("==", "!=", "in"):
        raise _refuse(test, column)
    values = [truth_of(column, value, test.at) for value in test.values]
    if test.operator == "!=":
        negated = not negated
    return _of_values(column, values, negated)


def _of_texts(test: ColumnTest, column: Column, negated: bool) -> Bound:
    values = [text_of(column, value, test.at) for value in test.values]
    match test.operator:
        case "==":
            return _of_values(column, values, negated)
        case "!=":
            return _of_values(column, values, not negated)
        case "in":
            return _of_values(column, values, negated)
        case "between":
            return _between(column, values[0], values[1], negated)
        case "startswith" | "contains":
            if not values[0]:
                return _always(column, negated)
            op = Op.STARTS_WITH if test.operator == "startswith" else Op.CONTAINS
            return BoundTest(column, op, (values[0],), negated)
    operator = _OPPOSITE[test.operator] if negated else test.operator
    return BoundTest(column, _COMPARED[operator], (values[0],))


def _of_values(column: Column, values: list[Any], negated: bool) -> Bound:
    """The test whether the column has one of these values."""
    values = sorted(set(values))
    if not values:
        return _never(column, negated)
    if len(values) == 1:
        return BoundTest(column, Op.EQUAL, (values[0],), negated)
    return BoundTest(column, Op.IN, tuple(values), negated)


def _between(column: Column, low: Any, high: Any, negated: bool) -> Bound:
    if low > high:
        return _never(column, negated)
    if low == high:
        return BoundTest(column, Op.EQUAL, (low,), negated)
    return BoundTest(column, Op.BETWEEN, (low, high), negated)


# ---------------------------------------------------------------- numbers


def _of_whole(test: ColumnTest, column: Column, negated: bool) -> Bound:
    if test.operator in ("startswith", "contains"):
        raise _refuse(test, column)
    numbers = [number_of(column, value, test.at) for value in test.values]
    low, high = column.low, column.high
    match test.operator:
        case "==" | "!=" | "in":
            fit = [int(n) for n in numbers if n == math.floor(n) and low <= n <= high]
            return _of_values(column, fit, negated is not (test.operator == "!="))
        case "between":
            least, most = math.ceil(numbers[0]), math.floor(numbers[1])
            if least > most or least > high or most < low:
                return _never(column, negated)
            if least <= low and most >= high:
                return _always(column, negated)
            return _between(column, max(least, low), min(most, high), negated)
    operator = _OPPOSITE[test.operator] if negated else test.operator
    if operator in ("<", "<="):
        # The largest number that passes.
        most = math.ceil(numbers[0]) - 1 if operator == "<" else math.floor(numbers[0])
        if most < low or most >= high:
            return _never(column, negated=most >= high)
        return BoundTest(column, Op.AT_MOST, (most,))
    least = math.floor(numbers[0]) + 1 if operator == ">" else math.ceil(numbers[0])
    if least > high or least <= low:
        return _never(column, negated=least <= low)
    return BoundTest(column, Op.AT_LEAST, (least,))


def _of_floats(test: ColumnTest, column: Column, negated: bool) -> Bound:
    if test.operator in ("startswith", "contains"):
        raise _refuse(test, column)
    numbers = [number_of(column, value, test.at) for value in test.values]
    match test.operator:
        case "==" | "!=" | "in":
            fit = [below for n in numbers if (below := _below(n)) == n]
            return _of_values(column, fit, negated is not (test.operator == "!="))
        case "between":
            return _between(column, _above(numbers[0]), _below(numbers[1]), negated)
    operator = _OPPOSITE[test.operator] if negated else test.operator
    exact = _below(numbers[0]) == numbers[0]
    if operator in ("<", "<="):
        op = Op.LESS if exact and operator == "<" else Op.AT_MOST
        return BoundTest(column, op, (_below(numbers[0]),))
    op = Op.MORE if exact and operator == ">" else Op.AT_LEAST
    return BoundTest(column, op, (_above(numbers[0]),))


def _below(number: Fraction | int) -> float:
    """The largest float64 that is not more than `number`."""
    return _float(number, lambda found: found > number, -math.inf)


def _above(number: Fraction | int) -> float:
    """The smallest float64 that is not less than `number`."""
    return _float(number, lambda found: found < number, math.inf)


def _float(number: Fraction | int, wrong: Callable[[float], bool], towards: float) -> float:
    try:
        found = float(number)  # the nearest one; of -0.0, which is Fraction(0) here, 0.0
    except OverflowError:
        found = math.inf if number > 0 else -math.inf
    if wrong(found):
        found = math.nextafter(found, towards)
    return found
