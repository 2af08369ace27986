"""Summarises the rows of an experiment over its seeds: mean, 95 % confidence interval, quartiles.

Rows that differ only in their seed form a group; each value is summarised per group. There are two
implementations: `summarise` in numpy, and `summarise_on_spark` as Spark SQL over the files of the
points. A test checks that they agree. Figures are drawn from a `Summary`, never from single seeds.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surecast_lab.lab.student import t_factor
from surecast_lab.lab.verdict import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["STATISTICS", "Series", "Summary", "summarise", "summarise_on_spark"]

# The columns for each group and value. `low` and `high` are the bounds of the confidence interval
# (None for a single seed).
STATISTICS = {
    "n": int,  # the number of seeds
    "mean": float,
    "low": float,
    "high": float,
    "min": float,
    "q1": float,
    "median": float,
    "q3": float,
    "max": float,
}
SPARK_TYPES = {str: "STRING", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a figure: a value against a column. With a single seed low = mean = high."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]

    def scaled(self, factor: float) -> "Series":
        ys = ([factor * y for y in of] for of in (self.mean, self.low, self.high))
        return Series(self.x, *ys)

    def only(self, xs: Container[float]) -> "Series":
        """Only the points at these x."""
        kept = [place for place, x in enumerate(self.x) if x in xs]
        return Series(*([of[n] for n in kept] for of in (self.x, self.mean, self.low, self.high)))


@dataclass(frozen=True, slots=True)
class Summary:
    """The table for a figure. A row has a group, the name of a value, and its statistics."""

    rows: list[Row]

    def pick(self, value: str, **where: Any) -> list[Row]:
        """The rows of `value` whose columns have the values in `where`."""
        return [
            row
            for row in self.rows
            if row["value"] == value and all(row[name] == is_ for name, is_ in where.items())
        ]

    def line(self, x: str, value: str, **where: Any) -> Series:
        """`value` along `x`, for the groups that match `where`."""
        rows = sorted(self.pick(value, **where), key=lambda row: row[x])
        return Series(
            [row[x] for row in rows],
            [row["mean"] for row in rows],
            [row["mean"] if row["low"] is None else row["low"] for row in rows],
            [row["mean"] if row["high"] is None else row["high"] for row in rows],
        )

    def mean(self, value: str, **where: Any) -> float:
        (row,) = self.pick(value, **where)
        return float(row["mean"])

    def each(self, column: str, **where: Any) -> list[Any]:
        """The distinct values of a column in the groups that match `where`, sorted."""
        found = {
            row[column]
            for row in self.rows
            if row[column] is not None and all(row[name] == is_ for name, is_ in where.items())
        }
        return sorted(found)

    @property
    def seeds(self) -> int:
        return int(max(row["n"] for row in self.rows))

    @property
    def caption(self) -> str:
        """The meaning of bands and bars, for a title."""
        return "one seed" if self.seeds == 1 else f"mean of {self.seeds} seeds, 95 % confidence"


def summarise(rows: Iterable[Row], by: Sequence[str], values: Sequence[str]) -> Summary:
    """Summarise in this process. Values that are None are ignored."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        group = tuple(row.get(name) for name in by)
        for value in values:
            if (amount := row.get(value)) is not None:
                groups.setdefault((*group, value), []).append(float(amount))
    names = (*by, "value")
    found = [dict(zip(names, group, strict=True)) | _statistics(of) for group, of in groups.items()]
    return Summary(sorted(found, key=lambda row: _order(row, names)))


def _statistics(amounts: Sequence[float]) -> Row:
    import numpy as np

    n = len(amounts)
    mean = float(np.mean(amounts))
    half = t_factor(n) * float(np.std(amounts, ddof=1)) / n**0.5 if n > 1 else None
    least, q1, median, q3, most = (float(q) for q in np.quantile(amounts, (0, 0.25, 0.5, 0.75, 1)))
    return {
        "n": n,
        "mean": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
        "min": least,
        "q1": q1,
        "median": median,
        "q3": q3,
        "max": most,
    }


def _order(row: Row, names: Sequence[str]) -> list[tuple[bool, Any]]:
    """The sort key of a row: by column, None first, as in SQL."""
    return [(row[name] is not None, row[name] if row[name] is not None else 0) for name in names]


# ---------------------------------------------------------------- the same as SQL

# {group}: the columns `by`; {values}: the columns to summarise, {numbers}: the same, converted to
# DOUBLE; {points}: the rows of all points; {student}: a table of n and the t factor for n seeds.
SUMMARY_SQL = """
WITH amounts AS (
    SELECT * FROM (SELECT {group}, {numbers} FROM {points})
    UNPIVOT (amount FOR value IN ({values}))
), groups AS (
    SELECT {group}, value,
           count(amount)                               AS n,
           avg(amount)                                 AS mean,
           stddev_samp(amount) / sqrt(count(amount))   AS error,
           min(amount)                                 AS min,
           percentile(amount, array(0.25, 0.5, 0.75))  AS quartiles,
           max(amount)                                 AS max
    FROM amounts GROUP BY {group}, value
)
SELECT {group}, value, n, mean,
       mean - factor * error AS low, mean + factor * error AS high,
       min, quartiles[0] AS q1, quartiles[1] AS median, quartiles[2] AS q3, max
FROM groups LEFT JOIN {student} USING (n)
ORDER BY {group}, value
"""


def summarise_on_spark(
    spark: "SparkSession",
    files: Sequence[Path],
    by: Mapping[str, type],
    values: Mapping[str, type],
    seeds: int,
) -> Summary:
    """The same as `summarise`, computed by Spark from the files of the points. `seeds` is the
    largest number of seeds of a group."""
    columns = {"seed": int, **by, **values}
    schema = ", ".join(f"{_quoted(name)} {SPARK_TYPES[kind]}" for name, kind in columns.items())
    points = spark.read.schema(schema).parquet(*map(str, files))
    factors = [(n, t_factor(n) if n > 1 else None) for n in range(1, max(2, seeds) + 1)]
    student = spark.createDataFrame(factors, "n BIGINT, factor DOUBLE")
    text = SUMMARY_SQL.format(
        group=", ".join(map(_quoted, by)),
        numbers=", ".join(f"CAST({_quoted(name)} AS DOUBLE) AS {_quoted(name)}" for name in values),
        values=", ".join(map(_quoted, values)),
        points="{points}",
        student="{student}",
    )
    found = spark.sql(text, points=points, student=student)
    rows: list[Row] = found.toArrow().to_pylist()
    return Summary(rows)


def _quoted(name: str) -> str:
    return f"`{name}`"
