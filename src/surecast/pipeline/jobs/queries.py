"""Spark queries that an audit (judge.py) uses several times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

__all__ = ["examples", "falls", "in_order", "latest", "many", "shown", "small_table"]

SHOWN_MAX: Final = 5  # examples in the text of one violation


def small_table(spark: SparkSession, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
    """A DataFrame of a few local rows. They are passed as Arrow data, which becomes part of the
    query plan, so no Spark job is needed to create it."""
    import pyarrow as pa

    types = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string()}
    fields = [field.split() for field in ddl.split(", ")]
    columns = zip(*rows, strict=True) if rows else ((),) * len(fields)
    arrays = [pa.array(c, types[f[1]]) for c, f in zip(columns, fields, strict=True)]
    return spark.createDataFrame(pa.table(arrays, [name for name, _ in fields]), ddl)


# ---------------------------------------------------------------- order


def in_order(
    rows: DataFrame, group: str, place: str, chunk_rows: int, **tell: Column
) -> dict[Any, list[Row]]:
    """Examine the rows of each group in the order of the column `place`, chunk by chunk.

    A row covers the positions from `lo` to `last`. Positions should rise from row to row; they
    *fall* if a row begins at or before the `last` of the previous row. Returns, by group, a result
    row for each chunk, in order:

    - `fell`: how often positions fall; `fell_after`: the smallest `last` after which they fall
    - `again`: how often a row has the same place as the row before it
    - `first_lo`, `final_last`: where the chunk begins and ends
    - the columns of the aggregates `tell`
    """
    chunk = F.floor((F.col(place) - 1) / chunk_rows)
    window = Window.partitionBy(group, "chunk").orderBy(place)
    before = {"before": F.lag("last").over(window), "place_before": F.lag(place).over(window)}
    if "time_us" in rows.columns:
        # Void ranges may have no time, so a row is compared with all earlier rows of its chunk.
        all_before = window.rowsBetween(Window.unboundedPreceding, -1)
        before["time_before"] = F.max("time_us").over(all_before)
    fell = F.col("lo") <= F.col("before")
    chunks = (
        rows.withColumn("chunk", chunk)
        .withColumns(before)
        .groupBy(group, "chunk")
        .agg(
            F.count_if(fell).alias("fell"),
            F.min(F.when(fell, F.col("before"))).alias("fell_after"),
            F.min_by("lo", place).alias("first_lo"),
            F.max_by("last", place).alias("final_last"),
            F.count_if(F.col(place) == F.col("place_before")).alias("again"),
            *(column.alias(name) for name, column in tell.items()),
        )
    )
    found: dict[Any, list[Row]] = {}
    for row in sorted(chunks.collect(), key=lambda row: row["chunk"]):
        found.setdefault(row[group], []).append(row)
    return found


def falls(chunks: list[Row]) -> tuple[int, int]:
    """How often positions fall, within and between chunks; and the first position after which they
    fall."""
    over = [
        before["final_last"]
        for before, after in pairwise(chunks)
        if after["first_lo"] <= before["final_last"]
    ]
    inside = [row["fell_after"] for row in chunks if row["fell"]]
    fell = sum(row["fell"] for row in chunks) + len(over)
    return fell, min([*inside, *over], default=0)


# ---------------------------------------------------------------- examples


def many() -> Column:
    """The number of rows, as column `n`."""
    return F.count("*").alias("n")


def examples(rows: DataFrame, group: str) -> list[Row]:
    """For each group: the number of rows (n), and the first few values of column `at`."""
    ranked = Window.partitionBy(group).orderBy("at")
    few = rows.select(group, "at").withColumn("rank", F.row_number().over(ranked))
    found = few.groupBy(group).agg(
        many(),
        F.sort_array(F.collect_list(F.when(F.col("rank") <= SHOWN_MAX, F.col("at")))).alias("some"),
    )
    return sorted(found.collect(), key=lambda row: row[group])


def latest(rows: DataFrame, group: list[str], place: str) -> DataFrame:
    """The last row of each group."""
    ranked = Window.partitionBy(*group).orderBy(F.desc(place))
    numbered = rows.withColumn("rank", F.row_number().over(ranked))
    return numbered.where("rank = 1").drop("rank")


def shown(row: Row) -> str:
    """A row of `examples` as text."""
    more = row["n"] - len(row["some"])
    numbers = ", ".join(f"{at:,}" for at in row["some"])
    return numbers + (f" and {more:,} more" if more else "")
