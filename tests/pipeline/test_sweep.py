"""Tasks on Spark: each answered once, failures are isolated; sweeps give the same as plain runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from surecast.errors import SurecastError
from surecast.pipeline.sweep import run_tasks
from surecast_lab.lab import experiments, points, torture
from surecast_lab.lab.run import PointFailed, Where, run
from surecast_lab.lab.summary import summarise, summarise_on_spark
from surecast_lab.lab.verdict import Experiment, Point
from tests.surecast_lab.lab.toys import TOY, run_point, toy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


def quiet(*_: object) -> None:
    pass


# ---------------------------------------------------------------- tasks


def square(n: int) -> dict[str, Any]:
    return {"n": n, "square": n * n, "pid": os.getpid()}


def troubled(n: int) -> int:
    if n == 3:
        raise ValueError("three is not allowed")
    if n == 5:
        os._exit(1)  # like a crash in native code
    return n


def test_every_task_is_answered_in_order_from_other_processes(spark: "SparkSession") -> None:
    reported: list[tuple[int, int, str]] = []
    done = run_tasks(spark, square, [5, 3, 8, 1], lambda *step: reported.append(step))
    assert [number for number, _, _ in done] == [0, 1, 2, 3]
    assert [result["square"] for _, result, _ in done] == [25, 9, 64, 1]
    assert os.getpid() not in {result["pid"] for _, result, _ in done}
    assert reported[-1][:2] == (4, 4)
    assert all(count <= total == 4 for count, total, _ in reported)


def test_without_tasks_no_job_is_run(spark: "SparkSession") -> None:
    assert run_tasks(spark, square, []) == []


def test_a_failed_task_is_reported_and_affects_no_other(spark: "SparkSession") -> None:
    done = run_tasks(spark, troubled, [1, 2, 3, 4])
    assert [result for _, result, _ in done] == [1, 2, None, 4]
    assert [bool(error) for _, _, error in done] == [False, False, True, False]
    assert "three is not allowed" in done[2][2]
    assert "in troubled" in done[2][2], "with the function that failed"


def test_a_crashed_process_loses_only_its_own_task(spark: "SparkSession") -> None:
    done = run_tasks(spark, troubled, list(range(8)))
    assert [result for _, result, _ in done] == [0, 1, 2, None, 4, None, 6, 7]
    assert "process died" in done[5][2]


def test_a_failure_of_spark_is_not_reported_as_failed_tasks(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkException

    from surecast.pipeline import sweep

    def lost(*_: object) -> None:
        raise PySparkException("the driver is gone\nand more")

    monkeypatch.setattr(sweep, "_job", lost)
    monkeypatch.setattr(type(spark), "range", lost)
    with pytest.raises(SurecastError, match="the driver is gone"):
        run_tasks(spark, square, [1, 2])


def test_ctrl_c_ends_a_sweep_although_spark_reports_another_error(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark answers an interrupt with an error that its job was cancelled."""
    from pyspark.errors import PySparkException

    from surecast.pipeline import sweep

    def interrupted(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise PySparkException("Job 7 cancelled")

    monkeypatch.setattr(sweep, "_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_tasks(spark, square, [1, 2])


# ---------------------------------------------------------------- sweeps


def on(spark: "SparkSession") -> Where:
    return Where(spark=spark, master="local[2]")


def close(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == pytest.approx(right, rel=1e-9, abs=1e-9)
    return bool(left == right)


def smallest(name: str) -> Experiment:
    """A simulated experiment with only the points of at most ten clients."""
    whole = experiments()[name]

    def points(quick: bool, seeds: Sequence[int]) -> list[Point]:
        return [point for point in whole.points(quick, seeds) if point["clients"] <= 10]

    return replace(whole, points=points)


@pytest.mark.parametrize(
    "experiment",
    [TOY, smallest("sprinkler-economy")],
    ids=lambda experiment: experiment.id,
)
def test_a_sweep_gives_the_same_results_as_a_plain_run(
    spark: "SparkSession", experiment: Experiment, tmp_path: Path
) -> None:
    """The same rows, the same summary (numpy's against Spark SQL's), the same verdict."""
    plain = run(experiment, quiet, tmp_path / "plain", True, (1, 2, 3))
    swept = run(experiment, quiet, tmp_path / "swept", True, (1, 2, 3), on(spark))
    kept = [experiment.files(tmp_path / how) for how in ("plain", "swept")]
    rows, swept_rows = (pq.read_table(files["table"]).to_pylist() for files in kept)
    assert rows == swept_rows
    summary, swept_summary = (pq.read_table(files["summary"]).to_pylist() for files in kept)
    assert len(summary) == len(swept_summary) > 0
    for left, right in zip(summary, swept_summary, strict=True):
        assert left.keys() == right.keys()
        assert all(close(left[name], right[name]) for name in left), (left, right)
    assert (plain.ours, plain.headline) == (swept.ours, swept.headline)
    assert swept.ran == "Spark, local[2]"


def test_statistics_by_sql_equal_those_of_numpy(spark: "SparkSession", tmp_path: Path) -> None:
    for count in (1, 2, 6):
        out = tmp_path / str(count)
        run(TOY, quiet, out, seeds=range(count), where=Where(jobs=1))
        files = sorted((out / "toy" / "points").rglob("*.parquet"))
        rows = [row for point in TOY.points(False, range(count)) for row in run_point(point)]
        expected = summarise(rows, list(TOY.by), list(TOY.values)).rows
        found = summarise_on_spark(spark, files, TOY.by, TOY.values, count).rows
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            assert all(close(left[name], right[name]) for name in right), (left, right)


def test_a_sweep_runs_only_missing_points(spark: "SparkSession", tmp_path: Path) -> None:
    run(TOY, quiet, tmp_path, seeds=(1,), where=on(spark))
    before = {path: path.stat().st_ino for path in tmp_path.rglob("seed-*.parquet")}
    reported: list[tuple[int, int, str]] = []
    run(TOY, lambda *step: reported.append(step), tmp_path, seeds=(1, 2), where=on(spark))
    assert reported[0] == (3, 6, "3 from earlier runs")
    assert reported[-1][:2] == (6, 6)
    after = {path: path.stat().st_ino for path in tmp_path.rglob("seed-*.parquet")}
    assert len(after) == 6
    assert before.items() <= after.items()


def test_failed_points_of_a_sweep_are_reported_and_the_others_kept(
    spark: "SparkSession", tmp_path: Path
) -> None:
    failing = toy({(10, 2): "raise", (100, 1): "die"})
    with pytest.raises(PointFailed) as caught:
        run(failing, quiet, tmp_path, seeds=(1, 2), where=on(spark))
    failed = {(p.point["scale"], p.point["seed"]): p for p in caught.value.failed}
    assert failed.keys() == {(10, 2), (100, 1)}
    assert "too much" in failed[10, 2].why
    assert "--seed 1" in failed[100, 1].repeat
    assert len(list(tmp_path.rglob("seed-*.parquet"))) == 4
    mended = replace(failing, points=TOY.points)
    assert run(mended, quiet, tmp_path, seeds=(1, 2), where=on(spark)).points == 6


def test_a_folder_that_executors_do_not_share_is_an_error(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "is_done", lambda task: False)  # as if the files were elsewhere
    with pytest.raises(SurecastError, match="--out must be a folder"):
        run(TOY, quiet, tmp_path, seeds=(1,), where=on(spark))


def test_a_killed_sweep_continues_with_the_missing_points(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """A real driver is killed with all its processes when some points are done."""
    words = [sys.executable, "-m", "surecast.cli.main", "lab", "run", "sprinkler-e6", "--quick"]
    words += ["--sweep", "--seeds", "1", "--master", "local[2]", "--out", str(tmp_path)]
    folder = tmp_path / "sprinkler-e6" / "points"
    points.source_digest.cache_clear()  # so that it is the digest that the process computes
    sweep = subprocess.Popen(
        words, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert sweep.stderr is not None
    total = len(experiments()["sprinkler-e6"].points(True, [1]))
    while len(done := list(folder.rglob("seed-*.parquet"))) < 3:
        assert sweep.poll() is None, sweep.stderr.read()
        time.sleep(0.02)
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.wait()
    sweep.stderr.close()
    before = {path: path.stat().st_ino for path in done}
    assert len(before) < total, "it was too late to kill it"
    reported: list[tuple[int, int, str]] = []
    run(
        experiments()["sprinkler-e6"],
        lambda *step: reported.append(step),
        tmp_path,
        True,
        (1,),
        on(spark),
    )
    assert reported[0][0] >= 3
    assert reported[-1][:2] == (total, total)
    after = {path: path.stat().st_ino for path in folder.rglob("seed-*.parquet")}
    assert len(after) == total
    assert before.items() <= after.items(), "finished points were computed again"


# ---------------------------------------------------------------- swarms


def test_seeds_of_a_swarm_on_spark_give_the_same_summary(spark: "SparkSession") -> None:
    seeds = [8, 9]  # cheap ones
    here = torture.merge("sprinkler", torture.run_seeds("sprinkler", seeds, 1))
    there = torture.merge("sprinkler", torture.run_seeds_on_spark(spark, "sprinkler", seeds, quiet))
    assert there == here
    assert json.loads(json.dumps(there)) == there


def test_an_error_of_a_seed_on_spark_is_its_violation(spark: "SparkSession") -> None:
    results = torture.run_seeds_on_spark(spark, "none", [7, 8], quiet)
    assert [result["seed"] for result in results] == [7, 8]
    assert all("no swarm 'none'" in result["violations"][0] for result in results)
    assert not torture.passed(torture.merge("none", results))
