"""top-keys: the most frequent keys of each time window, by Structured Streaming with watermarks.

    surecast pipeline top-keys "cache.>" --window "10 seconds" --top 5

A window is reported when the watermark has passed its end. Events that are older than the newest
event by more than `late` are not counted. Windows are defined by the times of the events, so a
query that was stopped counts the same windows after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from surecast.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["TopKey", "counts", "top_keys"]


class TopKey(NamedTuple):
    """One row of the result; `rank` 1 is the most frequent key of its stream and window."""

    begin: datetime  # of the window
    end: datetime
    stream: str
    rank: int
    key: bytes | None  # None: all events without a key
    events: int  # number of events with this key


def counts(rows: DataFrame, window: str, late: str) -> DataFrame:
    """The number of events of each key, stream and window: begin, end, stream, key, events."""
    from pyspark.sql import functions as f

    counted = (
        rows.where(f.col("kind") == "event")
        .withWatermark("timestamp", late)
        .groupBy(f.window("timestamp", window), "stream", "key")
        .agg(f.count(f.lit(1)).alias("events"))
    )
    return counted.select(
        f.col("window.start").alias("begin"), f.col("window.end").alias("end"),
        "stream", "key", "events",
    )  # fmt: skip


def top_keys(
    spark: SparkSession,
    options: Mapping[str, str],
    tell: Callable[[list[TopKey]], None],
    *,
    window: str = "10 seconds",
    late: str = "10 seconds",
    top: int = 10,
    checkpoint: str = "",
    once: bool = False,
    every: str = "2 seconds",
) -> StreamingQuery:
    """Start the query. `tell` is called with the `top` keys of each complete window, in order.

    `window` and `late` are intervals in Spark's notation. With `once`, the query ends after the
    events that exist now; otherwise it looks for new events at the interval `every`.

    With a `checkpoint`, a restarted query continues where it was stopped. The windows of its last
    batch may then be reported twice, because Spark calls `foreachBatch` at least once.
    """
    if top < 1:
        raise UsageError(f"top={top}: at least one key a window")
    rows = spark.readStream.format("surecast").options(**options).load()

    def show(batch: DataFrame, _number: int) -> None:
        rows = _ranked(batch, top).collect()
        if rows:
            tell([TopKey(*row) for row in rows])

    writer = counts(rows, window, late).writeStream.outputMode("append").foreachBatch(show)
    if checkpoint:
        writer = writer.option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
    return writer.start()


def _ranked(batch: DataFrame, top: int) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("begin", "stream").orderBy(f.desc("events"), "key")
    ranked = batch.withColumn("rank", f.row_number().over(order)).where(f.col("rank") <= top)
    columns = ("begin", "end", "stream", "rank", "key", "events")
    return ranked.select(*columns).orderBy("begin", "stream", "rank")
