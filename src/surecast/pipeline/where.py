"""Filters (`surecast.where`) in queries of Spark: option `where`, and conditions of Spark.

Spark's own comparison differs: NaN is its largest number, null makes a condition null, and a list
in `isin` distinguishes -0.0 from 0.0. So each test here has guards, and a condition is never null.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from surecast.columns.schema import Schema
from surecast.errors import FilterError, UsageError
from surecast.where.binding import Bound, BoundAnd, BoundOr, BoundTest, Op, bind
from surecast.where.columns import Kind, columns_of
from surecast.where.text import parse

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["bound_filter", "condition"]

_LARGEST: Final = (1 << 63) - 1
_COMPARED: Final[dict[Op, Callable[[Any, Any], Any]]] = {
    Op.EQUAL: lambda column, value: column == value,
    Op.LESS: lambda column, value: column < value,
    Op.AT_MOST: lambda column, value: column <= value,
    Op.MORE: lambda column, value: column > value,
    Op.AT_LEAST: lambda column, value: column >= value,
}


def bound_filter(text: str, schema: Schema | None) -> Bound:
    """The filter of option `where`, for events of streams with this schema (None: they have
    none)."""
    try:
        return bind(parse(text), columns_of(pa.schema([]) if schema is None else schema.arrow()))
    except FilterError as problem:
        raise UsageError(f"option where: {problem}") from None


def condition(bound: Bound, columns: "Mapping[str, Column]") -> "Column":
    """The condition that is true for the rows that pass the filter, and false for all others.

    `columns` has the Spark column for each column of the filter; one that is missing has no values.
    """
    from pyspark.sql import functions as F

    match bound:
        case BoundAnd(parts):
            found = F.lit(True)
            for part in parts:
                found = found & condition(part, columns)
            return found
        case BoundOr(parts):
            found = F.lit(False)
            for part in parts:
                found = found | condition(part, columns)
            return found
        case BoundTest():
            return _test(bound, columns.get(bound.column.name))


def _test(test: BoundTest, column: "Column | None") -> "Column":
    from pyspark.sql import functions as F

    if column is None:
        return F.lit(test.op is Op.EXISTS and test.negated)
    has = column.isNotNull()
    if test.op is Op.EXISTS:
        return ~has if test.negated else has
    if test.column.kind is Kind.FLOAT:
        has = has & ~F.isnan(column)
    found = _compared(test, _comparable(test, column), [_literal(test, v) for v in test.values])
    return has & (~found if test.negated else found)


def _comparable(test: BoundTest, column: "Column") -> "Column":
    """The column in a form in which Spark compares it as filters do."""
    from pyspark.sql import functions as F

    match test.column.kind:
        case Kind.FLOAT:
            return column.cast("double") + F.lit(0.0)  # -0.0 becomes 0.0
        case Kind.INTEGER:
            return column.cast("long")
        case Kind.DATE:
            return F.unix_date(column).cast("long")
        case Kind.TIMESTAMP:
            if test.column.unit_ns < 1000:
                raise UsageError(
                    f"{test.column.name} has nanoseconds, which Spark's timestamps do not have: "
                    "filter this column when the events are read (option where)"
                )
            return F.unix_micros(column)
    return column


def _literal(test: BoundTest, value: Any) -> Any:
    match test.column.kind:
        case Kind.STRING:
            return value.decode()
        case Kind.BINARY:
            return bytearray(value)
        case Kind.TIMESTAMP:
            micros = value * (test.column.unit_ns // 1000)
            return max(-_LARGEST - 1, min(micros, _LARGEST))  # no timestamp of Spark is beyond
    return value


def _compared(test: BoundTest, column: "Column", values: list[Any]) -> "Column":
    from pyspark.sql import functions as F

    match test.op:
        case Op.IN:
            return column.isin(values) if values else F.lit(False)
        case Op.BETWEEN:
            return (column >= F.lit(values[0])) & (column <= F.lit(values[1]))
        case Op.STARTS_WITH:
            return F.startswith(column, F.lit(values[0]))
        case Op.CONTAINS:
            return F.contains(column, F.lit(values[0]))
    found: Column = _COMPARED[test.op](column, F.lit(values[0]))
    return found
