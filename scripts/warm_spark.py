"""Prepares Spark so that it starts in little more than half the time; only the tests use this.

    .venv/bin/python -m scripts.warm_spark

The product does not use this script, because the script changes installed packages.

A new JVM spends its first seconds on loading Spark's classes. Java can store loaded classes in
a file and map that file at the next start ("class data sharing"). This script creates such a file,
about 200 MB, in the virtual environment. `java_classes.py` has its path and options for a JVM;
`tests/java.py` passes these to every JVM that the tests start. The file is valid for this Java and
these jars only; another JVM ignores it without a message.

Every Python process that Spark starts imports PySpark from a zip of sources, and compiles the
sources each time. So this script adds the compiled modules to that zip of the installed PySpark.
Another version of Python ignores them.

`make test` runs this script in parallel with the tests. Tests that need it call `wait_until_made`,
which waits until the script has ended.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import shutil
import sys
import tempfile
import warnings
from contextlib import suppress
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile

from scripts import java_classes
from surecast.errors import SurecastError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compile_zip", "make_classes", "wait_until_made", "zips"]

_LIGHT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXIT_S: Final = 120.0
_UNCHECKED: Final = 1  # flag of compiled code: Python does not compare it with its source
_UNUSED: Final = ("pyspark/ml/", "pyspark/mllib/", "pyspark/pandas/")


def wait_until_made() -> None:
    """Wait while another process creates the file."""
    with suppress(FileNotFoundError), _lock().open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _lock() -> Path:
    return java_classes.CLASSES.with_suffix(".lock")


def zips() -> list[Path]:
    """The zips that the installed PySpark puts first in the path of its Python processes."""
    import pyspark

    return sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))


def compile_zip(path: Path) -> int:
    """Append compiled modules to the zip; returns their number, 0 the second time.

    Existing members keep their place, so a process that has the zip open can continue to read it.
    If compiled modules must be replaced (another Python created them, or the sources changed), the
    zip is rewritten, and such a process fails at its next import.
    """
    with ZipFile(path) as old:
        members = {info.filename: info for info in old.infolist()}
        sources = {
            name: old.read(name)
            for name in members
            if name.endswith(".py") and not name.startswith(_UNUSED) and "/tests/" not in name
        }
        headers = {f"{name}c": _header(source) for name, source in sources.items()}
        known = {
            name for name, header in headers.items()
            if name in members and old.read(name).startswith(header)
        }  # fmt: skip
        stale = {name for name in members if name.endswith(".pyc")} - known
        kept = {name: old.read(name) for name in members if name not in stale} if stale else {}
    made = {
        name: header + code
        for name, header in headers.items()
        if name not in known and (code := _code(sources[name[:-1]], path / name[:-1]))
    }
    if not (made or stale):
        return 0
    part = path.with_suffix(f".{os.getpid()}")
    try:
        shutil.copy2(path, part)
        with ZipFile(part, "w" if stale else "a", ZIP_DEFLATED) as new:
            for name, data in kept.items():
                new.writestr(members[name], data)
            for name, data in made.items():
                new.writestr(name, data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return len(made)


def _header(source: bytes) -> bytes:
    return MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + source_hash(source)


def _code(source: bytes, at: Path) -> bytes | None:
    """The compiled module; None if this Python cannot compile it."""
    with warnings.catch_warnings(action="ignore"):  # Spark's sources cause warnings
        try:
            return marshal.dumps(compile(source, str(at), "exec", dont_inherit=True, optimize=0))
        except SyntaxError:
            return None


def make_classes() -> None:
    """Create the file: run a session that uses what our jobs use, and store its classes."""
    from surecast.pipeline.session import spark_session

    part = java_classes.CLASSES.with_suffix(f".{os.getpid()}")
    options = f"-XX:ArchiveClassesAtExit={part} {_LIGHT} {java_classes.SILENT}"
    os.environ["SPARK_SUBMIT_OPTS"] = options
    java_classes.CLASSES.unlink(missing_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="surecast-") as folder:
            spark = spark_session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
            _run_typical_queries(spark, Path(folder))
            _end(spark)
        part.replace(java_classes.CLASSES)  # atomic: a JVM that maps an incomplete file crashes
    finally:
        part.unlink(missing_ok=True)


def _run_typical_queries(spark: SparkSession, folder: Path) -> None:
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
    """Stop the JVM and wait until it has written its file."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    if process.wait(EXIT_S):
        folder = java_classes.CLASSES.parent
        raise SurecastError(f"Java ended with {process.returncode}: is there room in {folder}?")


def main() -> None:
    java_classes.CLASSES.parent.mkdir(parents=True, exist_ok=True)
    with _lock().open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for found in zips():
            try:
                compile_zip(found)
            except OSError as problem:
                print(f"{found} is not changed: {problem}", file=sys.stderr)
        make_classes()


if __name__ == "__main__":
    main()
