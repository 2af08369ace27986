"""Streams in Spark, and Spark in streams, through PySpark.

    spark.read.format("surecast").option("subscribe", "orders").load()

Problem: a data engineer wants a stream's events in a query, each exactly once, with nothing taken
for something else: what retention removed is not lost, and what is lost is not silently missing.
Idea: a Spark offset is the next position of a stream, which is the same in every region; a task
reads ranges of positions; and what moves is the stream's own batches, joined to the size Spark
likes.

session.py   a SparkSession that works
settings.py  what it is told, and by whom: the caller, spark-submit, or us
source.py    the data source: what Spark calls
options.py   what a reader may be told, and what is wrong with it
offsets.py   where to begin and to end; how a query's place is written down
filters.py   which filters become narrower ranges
plan.py      ranges of positions cut into tasks
region.py    a region, asked without await: its streams, their ends, their batches
files.py     batches straight from a server's segments, where this machine can see them
loss.py      what is lost, told apart from what is void and what is late
fetch.py     what one task does: batches of a range, from files or servers
rows.py      batches as Spark's columns
sink.py      the other direction: what Spark calls to write
sink_*.py    its options; rows as batches of events
staging*.py  how rows are published once: the decisions, and what they need done

Nothing here loads pyspark before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surecast.pipeline.session import find_java, package_zip, spark_session

__all__ = ["find_java", "package_zip", "spark_session"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from surecast.pipeline import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
