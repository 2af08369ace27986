"""Traces: what publishers and readers of a run wrote down, as Parquet files that `audit` judges.

A trace is a folder with three tables. Every client writes files of its own and needs no other:

published/  a row for every event that somebody offered
    stream string, publisher string
    number bigint       its number among what this publisher offered to this stream, from 1
    key binary          null: none
    value binary        no two of a stream alike: that is how an event is known again
    seq bigint          the position it was acknowledged with; null: it was not
    offered_ns bigint   when; null: nobody looked

delivered/  a row for everything that a reader was given, in the order it was given
    stream string, reader string
    number bigint       1, 2, 3, … for each reader of a stream
    kind string         event, void (only of readers that ask for voids), or lost
    seq bigint          its position; of a void and of what is lost, the last of its range
    range bigint        how many positions: 1, or as many as are void or lost
    key binary, value binary
    timestamp timestamp  the event's time as the stream has it
    got_ns bigint       when it came; null: nobody looked

readers/    a row for every reader, also for one that was given nothing
    stream string, region string, reader string
    first bigint        the position it asked to begin with
    voids boolean       it asked for voids, so that nothing may be passed over without a word
    malformed bigint    events that it could not write down as they were

`offered_ns` and `got_ns` are nanoseconds of one clock. On one machine CLOCK_MONOTONIC is the same
for all processes; between machines a latency is as good as their clocks agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from surecast.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TABLES", "Trace", "load", "save"]

TABLES: Final = {
    "published": "stream string, publisher string, number bigint, key binary, value binary, "
    "seq bigint, offered_ns bigint",
    "delivered": "stream string, reader string, number bigint, kind string, seq bigint, "
    "range bigint, key binary, value binary, timestamp timestamp, got_ns bigint",
    "readers": "stream string, region string, reader string, first bigint, voids boolean, "
    "malformed bigint",
}


class Trace(NamedTuple):
    published: DataFrame
    delivered: DataFrame
    readers: DataFrame


def load(spark: SparkSession, folder: str) -> Trace:
    """The tables of a trace, wherever Spark can read."""
    from pyspark.errors import AnalysisException

    tables = []
    for name, ddl in TABLES.items():
        path = f"{folder.rstrip('/')}/{name}"
        try:
            tables.append(spark.read.schema(ddl).parquet(path))
        except AnalysisException as problem:
            raise UsageError(
                f"{folder} is no trace: {path} cannot be read ({_first_line(problem)}). A trace is "
                f"a folder with {', '.join(TABLES)}, Parquet files each"
            ) from None
    return Trace(*tables)


def save(folder: Path, table: str, name: str, columns: dict[str, Any]) -> None:
    """Write a client's rows of one table: arrays by column. There is no file, or all of it."""
    import pyarrow.parquet as pq

    path = folder / table / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{name}.part")  # Spark passes over names that begin with a dot
    pq.write_table(_table(table, columns), part, compression="snappy")
    part.replace(path)


def _table(table: str, columns: dict[str, Any]) -> pa.Table:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    fields = (field.split() for field in TABLES[table].split(", "))
    schema = pa.schema([(name, types[kind]) for name, kind in fields])
    return pa.table(columns).select(schema.names).cast(schema)


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0]
