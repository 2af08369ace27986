"""`surecast lab`: listing, running and judging, with an experiment of our own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import surecast.lab
from surecast.cli.main import app
from surecast.lab import Experiment, Progress, Verdict


def experiment(reproduced: bool) -> Experiment:
    def measure(
        progress: Progress, quick: bool, seeds: Sequence[int]
    ) -> tuple[list[dict[str, Any]], Verdict]:
        progress(1, 2, "half way")
        verdict = Verdict(
            id="toy-e1",
            paper={"saved": 0.85},
            ours={"saved": {"mean": 0.8612345, "min": 0.86, "max": 0.87}, "extra": "yes"},
            reproduced=reproduced,
            beaten=False,
            scale="quick" if quick else "full",
            seeds=list(seeds),
            notes=["a reading"],
        )
        return [{"x": 1, "y": 2.0}], verdict

    def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
        path.write_bytes(b"figure")

    return Experiment(
        id="toy-e1",
        title="A toy",
        question="Does it run?",
        paper="It saves 85 %.",
        measure=measure,
        draw=draw,
    )


@pytest.fixture(params=[True, False], ids=["reproduced", "not"])
def reproduced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    toy = experiment(request.param)
    monkeypatch.setattr(surecast.lab, "experiments", lambda: {toy.id: toy})
    return bool(request.param)


def lab(*words: object) -> Any:
    return CliRunner().invoke(app, ["lab", *map(str, words)])


def test_run_shows_paper_beside_ours_and_leaves_files(reproduced: bool, tmp_path: Path) -> None:
    done = lab("run", "toy-e1", "--out", tmp_path, "--quick")
    assert done.exit_code == (0 if reproduced else 1), done.output
    assert ("NOT reproduced" in done.stdout) is not reproduced
    assert "paper  0.85" in done.stdout
    assert "ours   0.8612 [0.86, 0.87]" in done.stdout
    assert "half way" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "toy-e1.json",
        "toy-e1.parquet",
        "toy-e1.png",
    ]


def test_json_is_a_list_of_verdicts(reproduced: bool, tmp_path: Path) -> None:
    done = lab("run", "all", "--out", tmp_path, "--json", "--seeds", "2")
    (verdict,) = json.loads(done.stdout)
    assert verdict["reproduced"] is reproduced
    assert verdict["scale"] == "full"
    assert verdict["seeds"] == [1, 2]
    assert {"paper", "ours", "beaten"} <= verdict.keys()


@pytest.mark.usefixtures("reproduced")
def test_an_unknown_experiment_is_wrong_usage() -> None:
    done = lab("run", "toy-e2")
    assert done.exit_code == 2
    assert "toy-e1" in done.stderr


def test_the_real_list_names_what_each_experiment_asks() -> None:
    listed = json.loads(lab("list", "--json").stdout)
    assert [one["id"] for one in listed] == list(surecast.lab.experiments())
    assert {"sprinkler-e5", "sprinkler-e6"} <= {one["id"] for one in listed}
    assert all(one["question"] and one["paper"] for one in listed)
    assert lab("list").stdout.count("sprinkler-e6") == 1
