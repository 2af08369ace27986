"""`python -m surecast.pipeline.warm`: let Spark start in little more than half the time.

A fresh JVM spends its first seconds on loading Spark's classes. Java can keep what it has loaded in
a file and map that file the next time ("class data sharing"). This makes such a file, about 200 MB,
beside the installed packages; every session started here uses it from then on. It is right for this
Java and these jars only. A JVM that finds them changed does without, and says nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from surecast.errors import SurecastError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CLASSES", "java_options", "make_classes"]

CLASSES: Final = Path(sys.prefix) / "share" / "surecast" / "spark-classes.jsa"
_SILENT: Final = (
    "-Xlog:cds=off -Xlog:cds+dynamic=off"  # which a file that does not fit is not worth
)
_LIGHT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXIT_S: Final = 120.0


def java_options() -> str:
    """What a JVM of Spark is to be started with, if the file is there."""
    return f"-XX:SharedArchiveFile={CLASSES} {_SILENT}" if CLASSES.exists() else ""


def make_classes() -> None:
    """Make the file: a session does a little of all that our jobs do, and is written down."""
    from surecast.pipeline.session import spark_session

    CLASSES.parent.mkdir(parents=True, exist_ok=True)
    part = CLASSES.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={part} {_LIGHT} {_SILENT}"
    CLASSES.unlink(missing_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="surecast-") as folder:
            spark = spark_session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
            _do_a_little(spark, Path(folder))
            _end(spark)
        part.replace(CLASSES)  # whole: a JVM that maps half of one dies
    finally:
        part.unlink(missing_ok=True)


def _do_a_little(spark: SparkSession, folder: Path) -> None:
    from pyspark.sql import functions as sql

    from surecast.client import sync

    def streamed(source: str, options: dict[str, str], target: str, to: dict[str, str]) -> None:
        rows = spark.readStream.format(source).options(**options)
        if source == "parquet":
            rows = rows.schema("key string, value string")
        writer = rows.load().select("key", "value").writeStream.format(target).options(**to)
        checkpoint = str(folder / f"from-{source}")
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()

    with sync.local(folder / "region") as client:
        local = client._inner._local
        assert local is not None
        into, out = str(folder / "into"), str(folder / "out")
        numbers = spark.range(1000).withColumn("key", (sql.col("id") % 9).cast("string"))
        counted = numbers.groupBy("key").agg(sql.count("*").cast("string").alias("value"))
        counted.orderBy("key").write.parquet(into)
        streamed("parquet", {"path": into}, "surecast", {"url": local.url, "stream": "warm"})
        options = {"url": local.url, "subscribe": "warm", "startingOffsets": "earliest"}
        streamed("surecast", options, "parquet", {"path": out})
        read = spark.read.format("surecast").options(**options).load()
        found = read.join(spark.read.parquet(out), "key").select("seq", "key").toArrow()
        assert found.num_rows == 9, found


def _end(spark: SparkSession) -> None:
    """End the JVM and wait until it has written its file."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    if process.wait(EXIT_S):
        raise SurecastError(
            f"Java ended with {process.returncode}: is there room in {CLASSES.parent}?"
        )


if __name__ == "__main__":
    make_classes()
