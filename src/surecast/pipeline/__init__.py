"""Reads streams as Spark tables and writes Spark tables to streams, through PySpark.

    spark.read.format("surecast").option("subscribe", "orders").load()

Problem: a data engineer wants a stream's events in a query, each exactly once. Positions that
retention removed must not count as lost, and lost positions must not be missing silently.
Idea: a Spark offset is the next position of a stream, which is the same in every region. A task
reads ranges of positions. The stream's own batches are transferred and joined to the size that
suits Spark.

session.py   creates a SparkSession with working defaults
settings.py  its settings, from the caller, spark-submit or our defaults
source.py    the data source: the classes that Spark calls to read
options.py   parses and checks a reader's options
offsets.py   where a query begins and ends; how its progress is stored
filters.py   turns filters into narrower ranges
plan.py      cuts ranges of positions into tasks
region.py    blocking requests to a region: its streams, their ends, their void positions
files.py     reads batches from a server's segments, where this machine can see them
loss.py      distinguishes lost positions from void and from late ones
fetch.py     what one task does: it reads the batches of a range, from files or servers
rows.py      converts batches to Spark's columns
sink.py      the classes that Spark calls to write
sink_*.py    a writer's options; conversion of rows to batches of events
staging*.py  how rows are published exactly once: the decisions, and the IO that they need

No module here imports pyspark before it is needed.
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
