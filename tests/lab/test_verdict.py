"""The frame around every experiment: files, JSON keys, order, what a run needs."""

import json

import pytest

from surecast.errors import UsageError
from surecast.lab import Experiment, Verdict, experiments
from surecast.lab.verdict import spread


def measured(progress, quick, seeds):
    progress(0, 1, "at work")
    rows = [{"seed": seed, "value": 2.0 * seed} for seed in seeds]
    rows[-1] |= {"extra": "only here"}
    verdict = Verdict(
        id="toy", paper={"x": 1}, ours={"x": spread([row["value"] for row in rows])},
        reproduced=True, beaten=False, scale="quick" if quick else "full", seeds=list(seeds),
        notes=[],
    )  # fmt: skip
    return rows, verdict


def draw(rows, path):
    path.write_text(f"{len(rows)} points")


TOY = Experiment("toy", "Toy", "Why?", "Because.", measured, draw)


def test_a_run_leaves_table_figure_and_verdict(tmp_path):
    import pyarrow.parquet as pq

    told = []
    verdict = TOY.run(lambda *step: told.append(step), tmp_path / "new", quick=True, seeds=(4, 5))
    files = TOY.files(tmp_path / "new")
    assert told == [(0, 1, "at work")]
    assert pq.read_table(files["table"]).to_pylist() == [
        {"seed": 4, "value": 8.0, "extra": None},
        {"seed": 5, "value": 10.0, "extra": "only here"},
    ]
    assert files["figure"].read_text() == "2 points"
    written = json.loads(files["verdict"].read_bytes())
    assert list(written) == [
        *("id", "paper", "ours", "reproduced", "beaten", "scale", "seeds", "notes", "wall_s")
    ]
    assert written["ours"] == {"x": {"mean": 9.0, "min": 8.0, "max": 10.0}}
    assert written["scale"] == verdict.scale == "quick"
    assert written["seeds"] == [4, 5]


def test_a_run_without_seeds_is_refused(tmp_path):
    with pytest.raises(UsageError, match="seed"):
        TOY.run(lambda *_: None, tmp_path, seeds=())


def test_the_experiments_are_named_by_system_and_number():
    found = experiments()
    assert {"sprinkler-e5", "sprinkler-e6"} <= found.keys()
    for name, experiment in found.items():
        assert name == experiment.id
        assert experiment.question.endswith("?")
        assert experiment.title
        assert experiment.paper
