"""Questions that an audit asks of rows, several times each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

__all__ = ["examples", "falls", "in_order", "latest", "many", "shown", "small_table"]

SHOWN_MAX: Final = 5  # examples in one violation's words


def small_table(spark: SparkSession, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
    """A few rows from here; as Arrow they are part of the plan and no job makes them."""
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
    """Go through each group's rows in the order of `place`, chunk by chunk.

    Comes back with what each chunk has to tell, in order: how often a row begins (`lo`) at or
    before the end (`last`) of the one in front of it, after which end first; how often it has the
    same place; where the chunk itself begins and ends; and whatever else is asked for.
    """
    chunk = F.floor((F.col(place) - 1) / chunk_rows)
    window = Window.partitionBy(group, "chunk").orderBy(place)
    before = {"before": F.lag("last").over(window), "place_before": F.lag(place).over(window)}
    if "time_us" in rows.columns:
        # Voids have no time: what counts is the latest of all rows before.
        all_before = window.rowsBetween(Window.unboundedPreceding, -1)
        before["time_before"] = F.max("time_us").over(all_before)
    fell = F.col("lo") <= F.col("before")
    told = (
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
    for row in sorted(told.collect(), key=lambda row: row["chunk"]):
        found.setdefault(row[group], []).append(row)
    return found


def falls(chunks: list[Row]) -> tuple[int, int]:
    """How often it fell, between chunks as well; and after what first."""
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
    return F.count("*").alias("n")


def examples(rows: DataFrame, group: str) -> list[Row]:
    """By group: how many rows (n), and the first few of their column `at`."""
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
    """What `examples` found, in words."""
    more = row["n"] - len(row["some"])
    numbers = ", ".join(f"{at:,}" for at in row["some"])
    return numbers + (f" and {more:,} more" if more else "")
