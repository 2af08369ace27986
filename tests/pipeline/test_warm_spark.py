"""Faster starts of Spark in the tests: an archive of Java classes, and compiled modules."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from scripts import java_classes
from scripts import warm_spark as warm
from surecast.pipeline.session import find_java
from tests import java
from tests.programs import lack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_maps_the_class_archive(spark: "SparkSession") -> None:
    if not java_classes.CLASSES.exists():
        lack("no file of Java's classes: scripts/warm_spark.py makes it")
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid = jvm.java.lang.ProcessHandle.current().pid()
    assert str(java_classes.CLASSES) in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("content", [None, b"", b"not a class archive" * 1000])
def test_java_starts_silently_if_the_archive_is_missing_or_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr(java_classes, "CLASSES", tmp_path / "classes.jsa")
    if content is not None:
        java_classes.CLASSES.write_bytes(content)
    options = java_classes.java_options().split()
    assert (f"-XX:SharedArchiveFile={java_classes.CLASSES}" in options) == (content is not None)
    plain, with_file = (
        subprocess.run(
            [find_java() / "bin" / "java", *words, "-version"], capture_output=True, text=True
        )
        for words in ([], options)
    )
    assert with_file.returncode == 0
    assert with_file.stdout == plain.stdout
    assert with_file.stderr == plain.stderr or content is not None
    assert with_file.stderr.replace(", sharing", "") == plain.stderr.replace(", sharing", "")


def test_the_archive_is_passed_to_java_once_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_classes, "CLASSES", tmp_path / "classes.jsa")
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        monkeypatch.setenv(name, "")  # restored afterwards
    monkeypatch.setattr(java, "_BY_USER", dict.fromkeys(java._BY_USER))
    for there in (False, True):
        java.set_java_options()
        options = os.environ["SPARK_SUBMIT_OPTS"].split()
        assert (f"-XX:SharedArchiveFile={java_classes.CLASSES}" in options) == there
        assert "-XX:TieredStopAtLevel=1" in options
        java_classes.CLASSES.write_bytes(b"")
    monkeypatch.setattr(java, "_BY_USER", {**java._BY_USER, "SPARK_SUBMIT_OPTS": "-Xmx1g"})
    java.set_java_options()
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Xmx1g"


def test_other_processes_wait_while_the_archive_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_classes, "CLASSES", tmp_path / "share" / "classes.jsa")
    warm.wait_until_made()  # returns at once if nobody creates it
    begun, may_end, done = Event(), Event(), Event()

    def make() -> None:
        begun.set()
        may_end.wait()

    def wait() -> None:
        warm.wait_until_made()
        done.set()

    monkeypatch.setattr(warm, "zips", list)
    monkeypatch.setattr(warm, "make_classes", make)
    threads = [Thread(target=work) for work in (warm.main, wait)]
    threads[0].start()
    begun.wait()
    threads[1].start()
    assert not done.wait(0.1)
    may_end.set()
    for thread in threads:
        thread.join()
    assert done.is_set()


# ---------------------------------------------------------------- modules in a zip


def imported(path: Path) -> str:
    """The constant that another process imports from the zip, and the file it comes from."""
    words = "import thing.part as p; print(p.WORD, p.__loader__.get_filename('thing.part'))"
    done = subprocess.run(
        [sys.executable, "-c", words],
        env={"PYTHONPATH": str(path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(f"{path}/", "").strip()


def write_zip(path: Path, files: dict[str, bytes]) -> None:
    with ZipFile(path, "w") as made:
        for name, data in files.items():
            made.writestr(name, data)


def read_zip(path: Path) -> dict[str, bytes]:
    with ZipFile(path) as made:
        return {name: made.read(name) for name in made.namelist()}


def test_modules_in_a_zip_are_compiled_once(tmp_path: Path) -> None:
    path = tmp_path / "some.zip"
    sources = {"thing/__init__.py": b"", "thing/part.py": b"WORD = 'one'\n", "thing/data": b"x"}
    write_zip(path, sources)
    assert imported(path) == "one thing/part.py"
    assert warm.compile_zip(path) == 2
    assert imported(path) == "one thing/part.pyc"
    assert warm.compile_zip(path) == 0
    found = read_zip(path)
    assert {name: found[name] for name in sources} == sources
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_that_has_the_zip_open_can_still_import(tmp_path: Path) -> None:
    path = tmp_path / "some.zip"
    write_zip(path, {"thing/__init__.py": b"", "thing/part.py": b"WORD = 'one'\n", "a.py": b""})
    words = "import a; print('begun', flush=True); input(); import thing.part as p; print(p.WORD)"
    process = subprocess.Popen(
        [sys.executable, "-c", words],
        env={"PYTHONPATH": str(path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert warm.compile_zip(path) == 3
    output, _ = process.communicate("go on\n", timeout=60)
    assert output == "one\n"


def test_modules_compiled_by_another_python_or_from_another_source_are_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "some.zip"
    write_zip(path, {"thing/__init__.py": b"", "thing/part.py": b"WORD = 'one'\n"})
    warm.compile_zip(path)
    found = read_zip(path)
    old = found["thing/part.pyc"]
    write_zip(path, {**found, "thing/part.pyc": b"\0\0\r\n" + old[4:]})
    assert imported(path) == "one thing/part.py", "the other file is ignored"
    assert warm.compile_zip(path) == 1
    assert read_zip(path)["thing/part.pyc"] == old
    write_zip(path, {**found, "thing/part.py": b"WORD = 'two'\n"})
    assert warm.compile_zip(path) == 1
    assert imported(path) == "two thing/part.pyc"


@pytest.mark.slow
def test_sparks_processes_import_from_the_compiled_zips(spark: "SparkSession") -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import pyarrow as pa
        import pyspark.worker

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [pyspark.worker.__file__]})

    (row,) = spark.range(1).mapInArrow(where, "file string").collect()
    assert any(row.file.startswith(f"{path}/") for path in warm.zips())
    if not row.file.endswith(".pyc"):
        lack("PySpark's zip is not compiled: scripts/warm_spark.py does it")
