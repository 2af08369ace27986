"""Running an experiment in this process: its files, reuse of points, failures."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from tests.surecast_lab.lab.toys import TOY, run_point, toy

from surecast.errors import UsageError
from surecast_lab.lab import points
from surecast_lab.lab.run import PointFailed, Where, point_called, run, run_one

HERE = Where(jobs=1)


def quiet(*_):
    pass


def test_a_run_leaves_rows_summary_figure_and_verdict(tmp_path):
    progress = []
    out = tmp_path / "new"
    verdict = run(TOY, lambda *step: progress.append(step), out, True, (4, 5), HERE)
    files = TOY.files(out)
    assert progress[0][:2] == (0, 6)
    assert progress[-1][:2] == (6, 6)
    made = [row for point in TOY.points(True, [4, 5]) for row in run_point(point)]
    kept = pq.read_table(files["table"]).to_pylist()
    assert [{k: v for k, v in row.items() if v is not None} for row in kept] == [
        {k: v for k, v in row.items() if v is not None} for row in made
    ]
    summary = pq.read_table(files["summary"])
    assert files["figure"].read_text() == (
        f"{summary.num_rows} lines, mean of 2 seeds, 95 % confidence"
    )
    written = json.loads(files["verdict"].read_bytes())
    assert written["ours"]["y"].keys() == {"mean", "ci95", "min", "max", "n"}
    assert (written["seeds"], written["points"], written["quick"]) == ([4, 5], 6, True)
    assert written["machine"]["cores"]
    assert verdict.wall_s >= 0


@pytest.mark.slow
def test_processes_give_the_same_rows_as_a_loop(tmp_path):
    for jobs in (1, 2):
        run(TOY, quiet, tmp_path / str(jobs), seeds=(1, 2), where=Where(jobs=jobs))
    one, two = (pq.read_table(TOY.files(tmp_path / str(jobs))["table"]) for jobs in (1, 2))
    assert one.to_pylist() == two.to_pylist()


def test_points_that_exist_are_not_run_again(tmp_path):
    run(TOY, quiet, tmp_path, seeds=(1, 2), where=HERE)
    progress = []
    never = replace(TOY, run_point=None)  # fails if it is called
    run(never, lambda *step: progress.append(step), tmp_path, seeds=(1, 2), where=HERE)
    assert progress == [(6, 6, "6 from earlier runs")]
    with pytest.raises(PointFailed):
        run(never, quiet, tmp_path, seeds=(1, 2), where=HERE, fresh=True)


def test_only_missing_points_are_run(tmp_path):
    run(TOY, quiet, tmp_path, seeds=(1,), where=HERE)
    calls = []

    def counted(point):
        calls.append((point["scale"], point["seed"]))
        return run_point(point)

    counting = replace(TOY, run_point=counted)
    run(counting, quiet, tmp_path, seeds=(1, 2), where=HERE)
    assert calls == [(1, 2), (10, 2), (100, 2)]


def test_the_heaviest_points_begin_first_and_rows_keep_their_order(tmp_path):
    calls = []

    def counted(point):
        calls.append(point["scale"])
        return run_point(point)

    heavy = replace(TOY, run_point=counted, weight=lambda point: float(point["scale"]))
    run(heavy, quiet, tmp_path, seeds=(1,), where=HERE)
    assert calls == [100, 10, 1]
    kept = pq.read_table(heavy.files(tmp_path)["table"]).to_pylist()
    assert list(dict.fromkeys(row["scale"] for row in kept)) == [1, 10, 100]


def test_failed_points_are_named_with_the_command_and_the_others_are_kept(tmp_path):
    failing = toy({(10, 2): "raise"})
    with pytest.raises(PointFailed) as caught:
        run(failing, quiet, tmp_path, quick=True, seeds=(1, 2), where=HERE)
    (failed,) = caught.value.failed
    assert failed.point["scale"] == 10
    assert "scale 10 is too much" in failed.why
    words = failed.repeat.split()
    assert words[:5] == ["surecast", "lab", "run", "toy", "--point"]
    assert words[6:] == ["--seed", "2", "--quick"]
    assert failed.repeat in str(caught.value)
    assert "1 of 6 points" in str(caught.value)
    assert len(list((tmp_path / "toy" / "points").glob("*/seed-*.parquet"))) == 5
    assert not failing.files(tmp_path)["verdict"].exists()


def test_a_failed_point_can_be_repeated_by_its_name(tmp_path):
    failing = toy({(10, 1): "raise"})
    (point,) = (p for p in failing.points(False, [1]) if "trouble" in p)
    name = points.name_of(point)
    assert point_called(failing, name, 1, quick=False) == point
    with pytest.raises(ValueError, match="too much"):
        run_one(failing, point, tmp_path)
    with pytest.raises(UsageError, match="--point is one of"):
        point_called(failing, "nothing", 1, quick=False)
    rows = run_one(TOY, {"scale": 10, "seed": 1}, tmp_path)
    assert len(rows) == 5


def test_a_crashed_process_is_a_failed_point(tmp_path):
    with pytest.raises(PointFailed, match="process died"):
        run(toy({(10, 1): "die"}), quiet, tmp_path, seeds=(1,), where=Where(jobs=2))


def test_real_processes_are_measured_anew_and_one_after_the_other(tmp_path):
    calls = []

    def counted(point):
        calls.append(point["scale"])
        return run_point(point)

    alone = replace(TOY, run_point=counted, alone=True)
    for _ in range(2):
        run(alone, quiet, tmp_path, seeds=(1,))
    assert calls == [1, 10, 100] * 2
    with pytest.raises(UsageError, match="without --sweep"):
        run(alone, quiet, tmp_path, where=Where(spark=object(), master="local"))


def test_a_run_without_seeds_is_refused(tmp_path):
    with pytest.raises(UsageError, match="seed"):
        run(TOY, quiet, tmp_path, seeds=())


def test_groups_that_hide_rows_are_an_assertion(tmp_path):
    blurred = replace(
        TOY, by={"measure": str, "scale": int}, values={**TOY.values, "x": int}
    )  # four x in one group
    with pytest.raises(AssertionError, match="does not distinguish all rows"):
        run(blurred, quiet, tmp_path, seeds=(1,), where=HERE)
