"""The file of Java's classes: used where it is, done without where it is not or does not fit."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from surecast.pipeline import warm
from tests.programs import lack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_maps_the_file(spark: "SparkSession") -> None:
    if not warm.CLASSES.exists():
        lack("no file of Java's classes: python -m surecast.pipeline.warm makes it")
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid = jvm.java.lang.ProcessHandle.current().pid()
    assert str(warm.CLASSES) in Path(f"/proc/{pid}/maps").read_text()


def test_without_a_file_java_is_told_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "CLASSES", tmp_path / "classes.jsa")
    assert warm.java_options() == ""
    warm.CLASSES.write_bytes(b"")
    assert warm.java_options().startswith(f"-XX:SharedArchiveFile={warm.CLASSES} ")
