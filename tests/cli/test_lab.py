"""`surecast lab`: listing, running, judging and reporting, with a toy experiment."""

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
    """The toy experiment with a fixed verdict; the paper's figure is 0.85."""

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
def test_run_shows_the_papers_figures_beside_ours_and_writes_files(
    reproduced: bool, tmp_path: Path
) -> None:
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
def test_failed_points_give_exit_code_1_and_the_commands_that_repeat_them(
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
    assert isinstance(again.exception, ValueError), "the original error, for debugging"
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
def test_incompatible_options_are_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], hint: str
) -> None:
    offer(monkeypatch, TOY)
    done = lab("run", *words, "--out", tmp_path)
    assert done.exit_code == 2
    assert hint in done.stderr


def test_an_experiment_with_real_processes_refuses_sweep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(monkeypatch, replace(TOY, alone=True))
    done = lab("run", "toy", "--sweep", "--out", tmp_path)
    assert isinstance(done.exception, UsageError)
    assert "without --sweep" in str(done.exception)


@pytest.mark.slow
def test_report_writes_pages_and_lists_missing_experiments(
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


def test_list_shows_the_question_of_each_experiment() -> None:
    listed = json.loads(lab("list", "--json").stdout)
    assert [entry["id"] for entry in listed] == list(surecast_lab.lab.experiments())
    assert {"sprinkler-e5", "sprinkler-e6"} <= {entry["id"] for entry in listed}
    assert all(entry["question"] and entry["paper"] and entry["setup"] for entry in listed)
    assert lab("list").stdout.count("sprinkler-e6") == 1
