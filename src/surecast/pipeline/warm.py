"""`python -m surecast.pipeline.warm`: let Spark start in little more than half the time.

A fresh JVM spends its first seconds on loading Spark's classes. Java can keep what it has loaded in
a file and map that file the next time ("class data sharing"). This makes such a file, about 200 MB,
beside the installed packages; every session started here uses it from then on. It is right for this
Java and these jars only. A JVM that finds them changed does without, and says nothing.

And every Python process that Spark starts, one for each kind of question to a source or sink,
imports PySpark from a zip of sources, which it compiles anew. So the compiled modules are put
beside their sources, in that zip. Another Python than this one passes them over.
"""

from __future__ import annotations

import marshal
import os
import sys
import tempfile
import warnings
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile

from surecast.errors import SurecastError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CLASSES", "compile_zip", "java_options", "make_classes", "zips"]

CLASSES: Final = Path(sys.prefix) / "share" / "surecast" / "spark-classes.jsa"
_SILENT: Final = (
    "-Xlog:cds=off -Xlog:cds+dynamic=off"  # which a file that does not fit is not worth
)
_LIGHT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXIT_S: Final = 120.0
_UNCHECKED: Final = 1  # of compiled code: the source beside it is not looked at
_UNUSED: Final = ("pyspark/ml/", "pyspark/mllib/", "pyspark/pandas/")


def java_options() -> str:
    """What a JVM of Spark is to be started with, if the file is there."""
    return f"-XX:SharedArchiveFile={CLASSES} {_SILENT}" if CLASSES.exists() else ""


def zips() -> list[Path]:
    """What Spark puts before all else in its Python processes' path."""
    import pyspark

    return sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))


def compile_zip(path: Path) -> int:
    """Put compiled modules beside their sources; how many. None a second time."""
    part = path.with_suffix(f".{os.getpid()}")
    made = 0
    try:
        with ZipFile(path) as old, ZipFile(part, "w", ZIP_DEFLATED) as new:
            members = {info.filename: info for info in old.infolist()}
            for name, info in members.items():
                data = old.read(name)
                if not name.endswith(".pyc"):
                    new.writestr(info, data)
                if not name.endswith(".py") or name.startswith(_UNUSED) or "/tests/" in name:
                    continue
                compiled = _compiled(data, str(path / name))
                known = f"{name}c" in members and old.read(f"{name}c") == compiled
                made += not known
                new.writestr(f"{name}c", compiled)
        if made:
            part.replace(path)  # whole: it may be in use
    finally:
        part.unlink(missing_ok=True)
    return made


def _compiled(source: bytes, name: str) -> bytes:
    with warnings.catch_warnings(action="ignore"):  # they are Spark's
        code = compile(source, name, "exec", dont_inherit=True)
    return (
        MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + source_hash(source) + marshal.dumps(code)
    )


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
    for found in zips():
        compile_zip(found)
    make_classes()
