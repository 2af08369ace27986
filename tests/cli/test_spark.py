"""What the verbs that run on Spark ask for when they start it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from surecast.cli.main import app
from surecast.errors import UsageError

VERBS = [
    ["pipeline", "workload", "--events", "10", "--count"],
    ["sim", "sprinkler", "--on-spark", "--seeds", "1"],
    ["lab", "run", "sprinkler-e2", "--sweep"],
]


class NoSpark(UsageError):
    """In place of a session."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was asked of Spark, which does not start."""
    said: dict[str, Any] = {}

    def refuse(master: str | None, **more: Any) -> None:
        said.update(more, master=master)
        raise NoSpark("not now")

    monkeypatch.setattr("surecast.pipeline.session.spark_session", refuse)
    monkeypatch.setattr("surecast.pipeline.session.running_session", lambda: None)
    return said


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_without_a_master_spark_is_left_to_what_it_is_set_up_for(
    asked: dict[str, Any], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for more, master in ([], None), (["--master", "local[7]"], "local[7]"):
        done = CliRunner().invoke(app, [*words, *more])
        assert isinstance(done.exception, NoSpark), done.output
        assert asked["master"] == master


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_settings_are_handed_to_spark(
    asked: dict[str, Any], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--conf", "spark.x=a=b", "--conf", " spark.y = 1 2 ", "--conf", "spark.z="]
    done = CliRunner().invoke(app, [*words, *given])
    assert isinstance(done.exception, NoSpark), done.output
    assert asked["conf"] == {"spark.x": "a=b", "spark.y": "1 2", "spark.z": ""}
    for text in ("spark.x", "=7", "spark.executor.memory 4g"):
        done = CliRunner().invoke(app, [*words, "--conf", text])
        assert (done.exit_code, "is not a setting" in done.output) == (2, True), done.output


# A process of its own: what has been imported here cannot be taken back.
WITHOUT = """
import sys
sys.modules["pyspark"] = None
from typer.testing import CliRunner
from surecast.cli.main import app
for line in sys.stdin:
    print(repr(CliRunner().invoke(app, line.split()).exception))
"""
LINES = """\
pipeline archive x --to x
pipeline replay x --to x
pipeline compact x --to x --retain keep-all
pipeline audit x
pipeline workload --events 10 --count
pipeline top-keys x
sim sprinkler --on-spark --seeds 1
lab run sprinkler-e2 --sweep
"""


def test_without_pyspark_the_way_to_get_it_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input=LINES, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    words = """UsageError("this needs PySpark: pip install 'surecast[spark]'")"""
    assert done.stdout.splitlines() == [words] * len(LINES.splitlines()), done.stderr
