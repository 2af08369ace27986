"""Reads streams as Spark tables and writes Spark tables to streams, through PySpark.

    spark.read.format("surecast").option("subscribe", "orders").load()

Problem: a query should get each event of a stream exactly once. An event that retention removed
(its position is then *void*) must not count as lost, and lost events must not be missing silently.

Idea: Spark's offset for a stream is the next position (event number) to read, which is the same in
every region. A task reads ranges of positions. Batches are transferred as the stream has them, and
are then joined to the size that suits Spark. docs/pipeline.md is the guide for users.

session.py   creates a SparkSession with working defaults
settings.py  the settings of a session, from the caller, spark-submit or our defaults
source.py    the data source: the classes that Spark calls to read
options.py   parses and checks a reader's options
offsets.py   where a query begins and ends; how its progress is stored
filters.py   turns a query's filters into narrower ranges of positions
plan.py      cuts ranges of positions into tasks
region.py    blocking requests to a region: its streams, their ends, their void positions
files.py     reads batches directly from a server's segment files, if this machine can access them
loss.py      decides whether missing positions are lost, or may still arrive
fetch.py     reads the batches of one task, from files or servers
rows.py      converts batches to Spark's columns
sink.py      the classes that Spark calls to write
sink_*.py    a writer's options; conversion of rows to batches of events
staging*.py  how rows are published exactly once: the decisions, and the IO that they need
progress.py  reports the progress of Spark's jobs
sweep.py     runs independent Python tasks on Spark
jobs/        the jobs of `surecast pipeline`

pyspark is imported only when it is needed.
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
