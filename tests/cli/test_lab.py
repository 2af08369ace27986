"""`surecast lab`: listing, running, judging and reporting, with an experiment of our own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.surecast_lab.lab.toys import TOY, toy
from typer.testing import CliRunner

import surecast_lab.lab
from surecast.cli.main import app
from surecast.errors import UsageError
from surecast_lab.lab import Experiment, Verdict, points


def judged(reproduced: bool) -> Experiment:
    """The toy; the paper says 0.85."""

    def verdict_of(rows: Sequence[dict[str, Any]]) -> Verdict:
        verdict = TOY.verdict_of(rows)
        verdict.paper, verdict.reproduced = {"saved": 0.85}, reproduced
        verdict.ours = {
            "saved": {"mean": 0.8612345, "ci95": 0.0123, "min": 0.86, "max": 0.87, "n": 3},
            "extra": "yes",
        }
        verdict.notes = ["a reading"]
        return verdict

    return replace(TOY, verdict_of=verdict_of)


def offer(monkeypatch: pytest.MonkeyPatch, experiment: Experiment) -> None:
    monkeypatch.setattr(surecast_lab.lab, "experiments", lambda: {experiment.id: experiment})


@pytest.fixture(params=[True, False], ids=["reproduced", "not"])
def reproduced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    offer(monkeypatch, judged(request.param))
    return bool(request.param)


def lab(*words: object) -> Any:
    return CliRunner().invoke(app, ["lab", *map(str, words)])


@pytest.mark.slow
def test_run_shows_paper_beside_ours_and_leaves_files(reproduced: bool, tmp_path: Path) -> None:
    done = lab("run", "toy", "--out", tmp_path, "--quick")
    assert done.exit_code == (0 if reproduced else 1), done.output
    assert ("NOT reproduced" in done.stdout) is not reproduced
    assert "paper  0.85" in done.stdout
    assert "ours   0.8612 ± 0.012 [0.86, 0.87]" in done.stdout
    assert "9/9" in done.stderr, "three scales, three seeds"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "toy",
        "toy.json",
        "toy.parquet",
        "toy.png",
        "toy.summary.parquet",
    ]


@pytest.mark.slow
def test_json_is_a_list_of_verdicts(reproduced: bool, tmp_path: Path) -> None:
    done = lab("run", "all", "--out", tmp_path, "--json", "--seeds", "2")
    (verdict,) = json.loads(done.stdout)
    assert verdict["reproduced"] is reproduced
    assert verdict["quick"] is False
    assert verdict["seeds"] == [1, 2]
    assert {"paper", "ours", "beaten"} <= verdict.keys()


@pytest.mark.usefixtures("reproduced")
def test_an_unknown_experiment_is_wrong_usage() -> None:
    done = lab("run", "toy-e2")
    assert done.exit_code == 2
    assert "toy" in done.stderr


@pytest.mark.slow
def test_failed_points_end_with_1_and_the_commands_that_repeat_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing = toy({(10, 2): "raise"})
    offer(monkeypatch, failing)
    done = lab("run", "toy", "--out", tmp_path, "--seeds", "2")
    assert done.exit_code == 1
    (point,) = (p for p in failing.points(False, [2]) if p["scale"] == 10)
    command = f"surecast lab run toy --point {points.name_of(point)} --seed 2"
    assert command in done.stderr
    again = lab(*command.split()[2:], "--out", tmp_path)
    assert isinstance(again.exception, ValueError), "the error itself, to be looked at"
    offer(monkeypatch, TOY)
    (mended,) = (p for p in TOY.points(False, [2]) if p["scale"] == 10)
    done = lab("run", "toy", "--point", points.name_of(mended), "--seed", "2", "--out", tmp_path)
    assert done.exit_code == 0
    assert "5 rows" in done.stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["toy", "--seed", "2"], "--point"),
        (["toy", "--point", "x", "--sweep"], "--point"),
        (["toy", "--point", "x", "--seeds", "3"], "--point"),
    ],
)
def test_options_that_do_not_go_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], hint: str
) -> None:
    offer(monkeypatch, TOY)
    done = lab("run", *words, "--out", tmp_path)
    assert done.exit_code == 2
    assert hint in done.stderr


def test_real_processes_are_no_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer(monkeypatch, replace(TOY, alone=True))
    done = lab("run", "toy", "--sweep", "--out", tmp_path)
    assert isinstance(done.exception, UsageError)
    assert "without --sweep" in str(done.exception)


@pytest.mark.slow
def test_report_makes_a_book_and_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(monkeypatch, TOY)
    done = lab("report", "--out", tmp_path)
    assert done.exit_code == 0
    assert "not run yet: toy" in done.stdout
    lab("run", "toy", "--out", tmp_path)
    done = lab("report", "--out", tmp_path, "--to", tmp_path / "book")
    assert "1 of 1 experiments" in done.stdout
    assert "not run" not in done.stdout
    assert (tmp_path / "book" / "toy.html").exists()


def test_the_real_list_names_what_each_experiment_asks() -> None:
    listed = json.loads(lab("list", "--json").stdout)
    assert [one["id"] for one in listed] == list(surecast_lab.lab.experiments())
    assert {"sprinkler-e5", "sprinkler-e6"} <= {one["id"] for one in listed}
    assert all(one["question"] and one["paper"] and one["setup"] for one in listed)
    assert lab("list").stdout.count("sprinkler-e6") == 1
