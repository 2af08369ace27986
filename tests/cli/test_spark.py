"""How the commands that run on Spark start it."""

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
    """Raised in place of starting a session."""


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of `spark_session`, which raises NoSpark."""
    arguments: dict[str, Any] = {}

    def refuse(master: str | None, **more: Any) -> None:
        arguments.update(more, master=master)
        raise NoSpark("not now")

    monkeypatch.setattr("surecast.pipeline.session.spark_session", refuse)
    monkeypatch.setattr("surecast.pipeline.session.running_session", lambda: None)
    return arguments


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_without_the_master_option_spark_uses_its_own_configuration(
    requested: dict[str, Any], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for more, master in ([], None), (["--master", "local[7]"], "local[7]"):
        done = CliRunner().invoke(app, [*words, *more])
        assert isinstance(done.exception, NoSpark), done.output
        assert requested["master"] == master


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_conf_options_are_passed_to_spark(
    requested: dict[str, Any], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--conf", "spark.x=a=b", "--conf", " spark.y = 1 2 ", "--conf", "spark.z="]
    done = CliRunner().invoke(app, [*words, *options])
    assert isinstance(done.exception, NoSpark), done.output
    assert requested["conf"] == {"spark.x": "a=b", "spark.y": "1 2", "spark.z": ""}
    for text in ("spark.x", "=7", "spark.executor.memory 4g"):
        done = CliRunner().invoke(app, [*words, "--conf", text])
        assert (done.exit_code, "is not a setting" in done.output) == (2, True), done.output


# Run in a separate process, because modules imported here cannot be unloaded.
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


def test_without_pyspark_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input=LINES, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    words = """UsageError("this needs PySpark: pip install 'surecast[spark]'")"""
    assert done.stdout.splitlines() == [words] * len(LINES.splitlines()), done.stderr
