"""`surecast pipeline workload|compact|audit`: results, messages and exit codes."""

import asyncio
import json
import pickle
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from surecast.cli.main import app
from surecast.cli.options import exit_code
from surecast.cli.spark import ours
from surecast.errors import (
    ConnectError,
    DataLoss,
    JobFailed,
    Silent,
    SurecastError,
    UsageError,
)
from surecast.pipeline import staging_io
from surecast.pipeline.loss import LostEnd, end_error
from tests.pipeline.test_audit import write
from tests.surecast_lab.swarm.runs import Run, lose

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS, KEYS = 50_000, 1000


def pipeline(*words: object) -> Result:
    return CliRunner().invoke(app, ["pipeline", *map(str, words)])


def json_of(done: Result) -> Any:
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return json.loads(done.stdout)


def refused(done: Result) -> tuple[int, str]:
    """The exit code and text of an error of ours, as `run` in cli/main.py shows it."""
    if isinstance(done.exception, SurecastError):
        return exit_code(done.exception), str(done.exception)
    return done.exit_code, " ".join(done.output.replace("│", " ").split())


@pytest.fixture(scope="module")
def archive(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("pipeline") / "zipf"
    done = pipeline("workload", "--events", EVENTS, "--keys", KEYS, "--to", to, "--json")
    assert done.exit_code == 0, done.output
    facts = json_of(done)
    assert (facts["events"], facts["keys"], facts["to"]) == (EVENTS, KEYS, str(to))
    assert facts["fit"]["plausible"]
    return to


# ---------------------------------------------------------------- workload


def test_a_workload_is_described_in_text(archive: Path) -> None:
    done = pipeline("workload", "--events", 1000, "--count", "--keys", 5)
    assert done.exit_code == 0, done.output
    assert "1,000 events" in done.stdout
    assert "follow the law, p = " in done.stdout


def test_the_keys_of_a_population_are_not_tested_for_fit(archive: Path) -> None:
    facts = json_of(
        pipeline("workload", "--events", 1000, "--count", "--law", "population", "--json")
    )
    assert "fit" not in facts


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--events", 10], "10 keys are too few"),
        (["--events", 1000, "--keys", 1], "a distribution with one key"),
    ],
    ids=["few", "one"],
)
def test_a_workload_too_small_to_test_is_still_written(
    archive: Path, tmp_path: Path, words: list[object], reason: str
) -> None:
    done = pipeline("workload", *words, "--to", tmp_path / "made")
    assert done.exit_code == 0, done.output
    assert "events in " in done.stdout
    assert f"; not judged: {reason}" in done.stdout
    facts = json_of(pipeline("workload", *words, "--count", "--json"))
    assert (facts["unjudged"].startswith(reason), "fit" in facts) == (True, False)


def test_keys_that_follow_another_law_are_exit_code_1(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surecast.parts.workload import Zipf

    monkeypatch.setattr("surecast.pipeline.jobs.workload.law_of", lambda _: Zipf(1000, 1.5))
    done = pipeline("workload", "--events", 100_000, "--count", "--keys", 1000)
    assert done.exit_code == 1
    assert "do NOT follow the law" in done.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--events", 10], "--to FOLDER"),
        (["--events", 10, "--count", "--law", "pareto"], "one of zipf, zeta, population"),
        (["--events", 10, "--count", "--law", "zeta", "--skew", 1.0], "skew must be above 1"),
    ],
    ids=["nowhere", "law", "skew"],
)
def test_invalid_workload_options_are_exit_code_2(words: list[object], reason: str) -> None:
    code, text = refused(pipeline("workload", *words))
    assert (code, reason in text) == (2, True), text


def test_an_existing_folder_is_not_overwritten(archive: Path) -> None:
    code, text = refused(pipeline("workload", "--events", 10, "--to", archive))
    assert (code, "exists already" in text) == (2, True), text


# ---------------------------------------------------------------- archive


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], "true"), (["--no-fail-on-data-loss"], "false")],
    ids=["fail", "go on"],
)
def test_an_archive_may_continue_after_a_loss(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    options_given: dict[str, str] = {}

    def archived(_spark: object, _to: str, options: dict[str, str], _say: object) -> int:
        options_given.update(options)
        return 7

    monkeypatch.setattr("surecast.pipeline.jobs.archive.archive", archived)
    done = pipeline("archive", "orders.>", "--to", "x", *words)
    assert done.exit_code == 0, done.output
    assert "7 rows" in done.stdout
    assert (options_given["subscribePattern"], options_given["failOnDataLoss"]) == (
        "orders.>",
        expected,
    )


# ---------------------------------------------------------------- top-keys


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ([], "latest"),
        (["--once"], "earliest"),
        (["--once", "--from", "latest"], "latest"),
        (["--from", "earliest"], "earliest"),
    ],
)
def test_once_counts_existing_events_from_the_beginning(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, words: list[str], start: str
) -> None:
    options_given: dict[str, str] = {}

    class Ended:
        recentProgress = ()

        def awaitTermination(self, _seconds: float) -> bool:
            return True

    def counted(_spark: object, options: dict[str, str], _tell: object, **_: object) -> Ended:
        options_given.update(options)
        return Ended()

    monkeypatch.setattr("surecast.pipeline.jobs.top_keys.top_keys", counted)
    done = pipeline("top-keys", "orders", *words)
    assert done.exit_code == 0, done.output
    assert options_given["startingOffsets"] == start


# ---------------------------------------------------------------- compact


def test_compact_leaves_one_event_a_key(
    archive: Path, tmp_path: Path, spark: "SparkSession"
) -> None:
    to = tmp_path / "small"
    done = pipeline("compact", archive, "--to", to, "--retain", "latest-per-key", "--json")
    facts = json_of(done)
    rows = spark.read.parquet(str(to))
    keys = spark.read.parquet(str(archive)).select("key").distinct().count()
    assert (facts["before"], facts["left"]) == (EVENTS, keys)
    assert rows.where("kind = 'event'").count() == keys
    assert rows.selectExpr("sum(range)").first() == (EVENTS,)
    assert facts["saved"] == pytest.approx(1 - keys / EVENTS)
    collected = tmp_path / "collected"
    done = pipeline(
        "compact", to, "--to", collected, "--retain", "keep-all",
        "--collect", f"before-seq:{EVENTS - 100}", "--collect", "prefix:no such key",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    left = spark.read.parquet(str(collected)).where("kind = 'event'")
    assert left.selectExpr(f"min(seq) >= {EVENTS - 100}").first() == (True,)
    assert f"of {keys:,} events are left" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--retain", "forever"], 2, "Valid: keep-all, latest-per-key"),
        (["--retain", "keep-all", "--collect", "older:5"], 2, "is not one of before-seq:N"),
        (["--retain", "keep-all", "--collect", "before-seq:x"], 2, "before-seq:x"),
        (["--retain", "keep-all", "--collect", "before-time:2025-01-01"], 2, "no time zone"),
        (["--retain", "keep-last:5", "--collect", "tag:t"], 2, "keep-all"),
    ],
    ids=["retain", "collect", "number", "zone", "tag"],
)
def test_invalid_rules_are_exit_code_2(
    archive: Path, tmp_path: Path, words: list[str], code: int, reason: str
) -> None:
    found, text = refused(pipeline("compact", archive, "--to", tmp_path / "x", *words))
    assert (found, reason in text) == (code, True), text


def test_an_archive_that_lacks_positions_is_exit_code_1(
    archive: Path, tmp_path: Path, spark: "SparkSession"
) -> None:
    spark.read.parquet(str(archive)).where("seq <> 77").write.parquet(str(tmp_path / "holed"))
    words = ["compact", tmp_path / "holed", "--to", tmp_path / "x", "--retain", "keep-all"]
    code, text = refused(pipeline(*words))
    assert code == 1
    assert "no row for positions 77" in text
    assert "--holes-are-void" in text
    assert pipeline(*words, "--holes-are-void").exit_code == 0
    nowhere = ["compact", tmp_path / "none", "--to", tmp_path / "y", "--retain", "keep-all"]
    code, text = refused(pipeline(*nowhere))
    assert (code, "PATH_NOT_FOUND" in text, "none" in text) == (1, True, True), text


@pytest.mark.parametrize("words", [["replay"], ["compact", "--retain", "keep-all"]])
def test_a_stream_that_is_not_in_the_archive_is_refused_with_those_that_are(
    archive: Path, tmp_path: Path, words: list[str]
) -> None:
    code, text = refused(pipeline(*words, archive, "--to", tmp_path / "x", "--stream", "orders"))
    assert (code, "no stream 'orders'; it has workload" in text) == (2, True), text


# ---------------------------------------------------------------- audit


def test_a_sound_trace_is_exit_code_0_and_an_altered_one_1(
    spark: "SparkSession", tmp_path: Path
) -> None:
    sound, spoilt = Run(4), Run(4)
    for run in (sound, spoilt):
        run.offered.offered_ns = np.arange(run.offered.seq.size)
    lose(spoilt)
    write(tmp_path / "sound", "s", sound)
    write(tmp_path / "spoilt", "s", spoilt)
    done = pipeline("audit", tmp_path / "sound", "--retain", "latest-per-key")
    assert done.exit_code == 0, done.output
    assert "lost 0, duplicated 0, misordered 0" in done.stdout
    assert "latency in region-r0" in done.stdout
    done = pipeline("audit", tmp_path / "spoilt", "--retain", "latest-per-key", "--json")
    assert done.exit_code == 1
    facts = json.loads(done.stdout)
    assert (facts["sound"], facts["lost"]) == (False, 1)
    assert facts["violations"][0].startswith("G4 r0: neither delivered nor outdated")
    code, text = refused(pipeline("audit", tmp_path))
    assert (code, "is not a trace" in text) == (2, True), text


# ---------------------------------------------------------------- errors of Spark


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("x\nsurecast.errors.UsageError: option y is not z\n  at", UsageError, "option y is not z"),
        ("surecast.errors.ConnectError: nobody", ConnectError, "nobody"),
        ("at\nsurecast.errors.DataLoss: data was lost: x\n SQL", DataLoss, "data was lost: x"),
        ("[PATH_NOT_FOUND] no such path: a.\nmore", JobFailed, "[PATH_NOT_FOUND] no such path: a."),
        ("Job aborted\nValueError: bad\n", JobFailed, "ValueError: bad"),
    ],
)
def test_our_errors_are_extracted_from_errors_of_spark(
    text: str, kind: type[SurecastError], words: str
) -> None:
    found = ours(RuntimeError(text))
    assert (type(found), str(found)) == (kind, words)


def test_a_silent_region_is_reported_once_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging_io, "PATIENCE_S", 0.01)
    with pytest.raises(Silent) as silent:
        asyncio.run(staging_io.patient(asyncio.sleep(60)))
    assert "nothing is lost" not in silent.value.what
    for problem in (silent.value, pickle.loads(pickle.dumps(silent.value))):
        said = "".join(traceback.format_exception_only(problem))
        found = ours(RuntimeError(f"An error occurred while calling o99.save.\n{said}\tat x.y"))
        assert (type(found), str(found)) == (Silent, str(silent.value))
    assert str(found).count("nothing is lost") == 1
    assert exit_code(found) == 3


def test_data_loss_is_recognised_by_its_class_name() -> None:
    loss = end_error([LostEnd("stream 'x' is gone")])
    text = f"{type(loss).__module__}.{type(loss).__qualname__}: {loss}"
    assert isinstance(ours(RuntimeError(text)), DataLoss)
    assert exit_code(loss) == 1
    assert "--no-fail-on-data-loss" in str(loss)
