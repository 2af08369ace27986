"""archive: streams → partitioned Parquet, exactly once, resumable.

    surecast pipeline archive "orders.>" --to s3a://lake/orders

A streaming query with our source and Spark's file sink. Its place is kept beside the files
(`_checkpoint`), so that running it again goes on where it ended, also after a crash, also against
another region. Files that a crashed run left are not part of the archive: read it with Spark, which
knows (`_spark_metadata`), or with `read` here. Where that list is without our place, or our place
without the list, Spark would pass over batches that it takes for written: then nothing is begun.

Rows are those of the source, voids included: together they cover every position once. A void is
archived as it was when the query came by; what became void later is left out by `compact`. With
failOnDataLoss=false so is what was lost: rows of kind `lost`, in the partition of unknown days.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from surecast.errors import UsageError
from surecast.pipeline.progress import Said, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["DAY", "archive", "follow", "read"]

CHECKPOINT: Final = "_checkpoint"
FILES: Final = "_spark_metadata"  # Spark's list of the files that count
DAY: Final = "day"  # the partition below `stream`: the day of the row's time


def follow(
    spark: SparkSession,
    to: str,
    options: Mapping[str, str],
    *,
    once: bool = True,
    every: str = "10 seconds",
) -> StreamingQuery:
    """Start to archive. `once`: what there is now, then the query ends by itself."""
    from pyspark.sql import functions as f

    if not to:
        raise UsageError("archive needs a folder to write to: --to PATH")
    _check_folder(spark, to)
    rows = spark.readStream.format("surecast").options(**{"includeVoids": "true", **options}).load()
    day = f.coalesce(f.date_format("timestamp", "yyyy-MM-dd"), f.lit("unknown"))
    writer = (
        rows.withColumn(DAY, day)
        .writeStream.format("parquet")
        .option("path", to)
        .option("checkpointLocation", f"{to.rstrip('/')}/{CHECKPOINT}")
        .partitionBy("stream", DAY)
        .queryName(f"archive to {to}")
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
    return writer.start()


def _check_folder(spark: SparkSession, to: str) -> None:
    """UsageError for a folder that is neither new nor an archive, whole."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return  # of Spark Connect: only its server can see the folder
    path = jvm.org.apache.hadoop.fs.Path(to)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())

    def names(where: Any) -> set[str]:
        there = system.listStatus(where) if system.exists(where) else ()
        return {status.getPath().getName() for status in there}

    if system.exists(path) and not system.getFileStatus(path).isDirectory():
        raise UsageError(f"{to} is a file: archive needs a folder (--to PATH)")
    found = names(path)
    place = jvm.org.apache.hadoop.fs.Path(path, f"{CHECKPOINT}/commits")
    if CHECKPOINT not in found and found:
        raise UsageError(
            f"{to} has something in it ({', '.join(sorted(found)[:3])}), and not the place of an "
            f"archive ({CHECKPOINT}): rows would be passed over, or what is there would be hidden "
            "from Spark. Give a folder that is new, or one that archive wrote, whole (--to PATH)"
        )
    if FILES not in found and names(place):
        raise UsageError(
            f"{to} is no whole archive: it has its place ({CHECKPOINT}), and not Spark's list of "
            f"its files ({FILES}). Restore that, or archive into a new folder (--to PATH)"
        )


def archive(
    spark: SparkSession, to: str, options: Mapping[str, str], say: Said = lambda rows, word: None
) -> int:
    """Archive what there is now; the rows that were added. Raises what ended the query."""
    query = follow(spark, to, options)
    rows, interrupted = until(query, say)
    if interrupted:
        raise KeyboardInterrupt
    return rows


def read(spark: SparkSession, path: str) -> DataFrame:
    """An archive as a DataFrame with the columns of the source.

    Spark is told their types: by the names of its folders it would take stream 007 for a 7.
    """
    from surecast.pipeline.rows import DDL, SCHEMA

    return spark.read.schema(DDL).parquet(path).select(*SCHEMA.names)
