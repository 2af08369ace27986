"""archive: copies streams to partitioned Parquet files, exactly once; an archive can be continued.

    surecast pipeline archive "orders.>" --to s3a://lake/orders

The job is a streaming query that reads with Surecast's source and writes with Spark's file sink.
Its checkpoint is stored beside the files (`_checkpoint`). So the next run continues where the last
one ended, also after a crash and also with another region.

Spark keeps a list of the archive's valid files (`_spark_metadata`), because a crashed run may leave
other files. So an archive must be read with Spark, or with `read` here. If only the list or only
the checkpoint exists, Spark would skip batches that it assumes to be written, so the job refuses to
start.

The archive has the rows of the source with a row for each void range, so together they cover every
position once. A position is archived as void if it was void when the query read it; `compact`
removes events that became void later. With failOnDataLoss=false, lost ranges are archived as rows
of kind `lost`, in the partition of unknown days.

If the streams have a schema, the files have it, too (attributes.py), and a column `tag`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from surecast.errors import UsageError
from surecast.pipeline.options import COLUMNS
from surecast.pipeline.progress import Said, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

__all__ = ["DAY", "archive", "follow", "read"]

CHECKPOINT: Final = "_checkpoint"  # the query's progress
FILES: Final = "_spark_metadata"  # Spark's list of the valid files
DAY: Final = "day"  # the folder level below `stream`: the day of the row's time, or "unknown"


def follow(
    spark: SparkSession,
    to: str,
    options: Mapping[str, str],
    *,
    once: bool = True,
    every: str = "10 seconds",
) -> StreamingQuery:
    """Start the query that archives to the folder `to`. With `once`, it ends after the events that
    exist now; otherwise it looks for new events at the interval `every`."""
    from pyspark.sql import functions as f

    if not to:
        raise UsageError("archive needs a folder to write to: --to PATH")
    _check_folder(spark, to)
    if any(name.lower() == "where" for name in options):
        raise UsageError(
            "archive takes no option where: the positions of other events would be archived as "
            "void. Archive all events, and filter when the archive is read"
        )
    reader = spark.readStream.format("surecast").options(**{"includeVoids": "true", **options})
    rows = reader.load()
    if _fields(rows) is not None:
        rows = reader.option("columns", ",".join((*COLUMNS, "tag"))).load()
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
    """Raise UsageError unless the folder is new or empty, or a complete archive."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return  # Spark Connect: only its server can see the folder
    path = jvm.org.apache.hadoop.fs.Path(to)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())

    def names(folder: Any) -> set[str]:
        files = system.listStatus(folder) if system.exists(folder) else ()
        return {status.getPath().getName() for status in files}

    if system.exists(path) and not system.getFileStatus(path).isDirectory():
        raise UsageError(f"{to} is a file: archive needs a folder (--to PATH)")
    found = names(path)
    commits = jvm.org.apache.hadoop.fs.Path(path, f"{CHECKPOINT}/commits")  # finished batches
    if CHECKPOINT not in found and found:
        raise UsageError(
            f"{to} is not empty ({', '.join(sorted(found)[:3])}), but has no checkpoint of an "
            f"archive ({CHECKPOINT}): rows would be skipped, or the files in it would be hidden "
            "from Spark. Give a new folder, or a complete one that archive wrote (--to PATH)"
        )
    if FILES not in found and names(commits):
        raise UsageError(
            f"{to} is not a complete archive: it has its checkpoint ({CHECKPOINT}), but not "
            f"Spark's list of its files ({FILES}). Restore this list, or archive into a new folder "
            "(--to PATH)"
        )


def archive(
    spark: SparkSession, to: str, options: Mapping[str, str], say: Said = lambda rows, word: None
) -> int:
    """Archive the events that exist now, and return the number of rows added. If the query fails,
    its error is raised."""
    query = follow(spark, to, options)
    rows, interrupted = until(query, say)
    if interrupted:
        raise KeyboardInterrupt
    return rows


def read(spark: SparkSession, path: str) -> DataFrame:
    """An archive as a DataFrame with the columns of the source.

    The types are given explicitly: from the folder names Spark would infer 7 for stream 007. If
    columns were added to the schema of the streams, they are null in older rows.
    """
    from surecast.pipeline.attributes import schema_in
    from surecast.pipeline.source import columns_type

    found = spark.read.parquet(path)
    text = ""
    names: tuple[str, ...] = COLUMNS
    if _fields(found) is not None:
        fields = _fields(spark.read.option("mergeSchema", "true").parquet(path))
        assert fields is not None
        text, names = schema_in(fields).text, (*COLUMNS, "tag")
    return spark.read.schema(columns_type(names, text)).parquet(path).select(*names)


def _fields(rows: DataFrame) -> StructType | None:
    """The type of the column `attributes`, if it is that of streams with a schema."""
    from pyspark.sql.types import StructType

    kinds = {field.name: field.dataType for field in rows.schema.fields}
    kind = kinds.get("attributes")
    return kind if isinstance(kind, StructType) else None
