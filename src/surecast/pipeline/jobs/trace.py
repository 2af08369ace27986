"""Traces: the records of a run's publishers and readers, as Parquet files that `audit` checks.

A trace is a folder with three tables. Every client writes its own files, independently of others:

published/  a row for every event that a publisher offered
    stream string, publisher string
    number bigint       counts the events that this publisher offered to this stream, from 1
    key binary          null if it has none
    value binary        unique in the stream: it identifies the event
    seq bigint          the position in the acknowledgement; null if it was not acknowledged
    offered_ns bigint   when it was offered; null if not measured
    attributes binary   its attributes, in any form that is the same in both tables; null, or no
                        column, if it has none

delivered/  a row for every event and range that a reader received, in the order of delivery
    stream string, reader string
    number bigint       1, 2, 3, … for each reader of a stream
    kind string         event, void (only for readers that request voids), or lost
    seq bigint          its position; for a void or lost range, the last position
    range bigint        number of positions: 1 for an event, otherwise the size of the range
    key binary, value binary
    timestamp timestamp  the time that the owner of the stream assigned to the event
    got_ns bigint       when it was delivered; null if not measured
    attributes binary   as above

readers/    a row for every reader, also for one that received nothing
    stream string, region string, reader string
    first bigint        the position from which it was to read
    voids boolean       whether it requested voids; if true, its rows must cover every position
    malformed bigint    number of damaged events that it could not represent in `delivered`; the
                        demo's readers record only keys and values of eight bytes

A latency is `got_ns` - `offered_ns`, so both must be nanoseconds of the same clock. On one machine,
CLOCK_MONOTONIC is the same for all processes. With processes on several machines, use their
synchronised system time; a latency is then wrong by the difference between two machines' clocks.
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
    "seq bigint, offered_ns bigint, attributes binary",
    "delivered": "stream string, reader string, number bigint, kind string, seq bigint, "
    "range bigint, key binary, value binary, timestamp timestamp, got_ns bigint, "
    "attributes binary",
    "readers": "stream string, region string, reader string, first bigint, voids boolean, "
    "malformed bigint",
}


class Trace(NamedTuple):
    """The tables of a trace, with the columns listed above."""

    published: DataFrame
    delivered: DataFrame
    readers: DataFrame


def load(spark: SparkSession, folder: str) -> Trace:
    """Load the tables of a trace from a folder that Spark can read."""
    from pyspark.errors import AnalysisException

    tables = []
    for name, ddl in TABLES.items():
        path = f"{folder.rstrip('/')}/{name}"
        try:
            tables.append(spark.read.schema(ddl).parquet(path))
        except AnalysisException as problem:
            raise UsageError(
                f"{folder} is not a trace: {path} cannot be read ({_first_line(problem)}). A trace "
                f"is a folder with {', '.join(TABLES)}, each a folder of Parquet files"
            ) from None
    return Trace(*tables)


def save(folder: Path, table: str, name: str, columns: dict[str, Any]) -> None:
    """Write a client's rows of one table, given as arrays by column (`attributes` may be missing).
    The file appears complete or not at all."""
    import pyarrow.parquet as pq

    path = folder / table / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{name}.part")  # Spark ignores names that begin with a dot
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
    found = pa.table(columns)
    if "attributes" in schema.names and "attributes" not in found.schema.names:
        found = found.append_column("attributes", pa.nulls(found.num_rows, pa.binary()))
    return found.select(schema.names).cast(schema)


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0]
