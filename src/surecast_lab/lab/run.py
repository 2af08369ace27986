"""Runs an experiment: its points, its verdict, and the files with its results (`surecast lab run`).

A point is one run with certain parameters and a seed. Points run in processes of this machine or as
Spark tasks; the files (lab/points.py) and rows are the same. Points whose files exist are not run
again, so a run that was killed continues where it ended.
"""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from surecast.errors import SurecastError, UsageError
from surecast_lab.lab import points as files
from surecast_lab.lab.points import Task
from surecast_lab.lab.pool import Done, run_here
from surecast_lab.lab.summary import STATISTICS, Summary, summarise, summarise_on_spark
from surecast_lab.lab.verdict import Experiment, Point, Progress, Row, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Failed",
    "PointFailed",
    "Where",
    "demand_sweepable",
    "point_called",
    "run",
    "run_one",
]

FAILURES_SHOWN = 20


class PointFailed(SurecastError):
    """Some points failed, so there is no verdict. The message has a command to repeat each
    point."""

    def __init__(self, message: str, failed: list["Failed"]) -> None:
        super().__init__(message)
        self.failed = failed


@dataclass(frozen=True, slots=True)
class Failed:
    """A point that failed."""

    point: Point
    why: str  # the exception, with its traceback
    repeat: str  # the command that repeats the point


@dataclass(frozen=True, slots=True)
class Where:
    """Where points run: in processes of this machine, or on Spark."""

    jobs: int = 0  # processes; 0: one per core; 1: in this one
    spark: "SparkSession | None" = None
    master: str = ""  # as given by the user

    def __str__(self) -> str:
        return f"Spark, {self.master}" if self.spark is not None else "processes of this machine"


def run(
    experiment: Experiment,
    progress: Progress,
    out_dir: Path,
    quick: bool = False,
    seeds: Sequence[int] = (1, 2, 3),
    where: Where | None = None,
    fresh: bool = False,
    any_source: bool = False,
) -> Verdict:
    """Run missing points, write rows, summary, figure and verdict, and return the verdict.

    `quick` runs a small variant for tests. Use several seeds, because a result needs a confidence
    interval; one seed is enough for a first look. `fresh` runs points again even if their files
    exist. `any_source` also reuses files that were made with other source code, for example if only
    comments or figures have changed since.
    """
    from surecast_lab.bench.machine import circumstances

    if not seeds:
        raise UsageError(f"{experiment.id} needs at least one seed")
    where = where or Where()
    if where.spark is not None:
        demand_sweepable(experiment)
    started = time.perf_counter()
    about = circumstances()  # date, commit and machine
    points = experiment.points(quick, list(seeds))
    tasks = files.tasks_of(experiment, out_dir, points, about["commit"], any_source)
    if fresh or experiment.alone:
        for task in tasks:
            task.path.unlink(missing_ok=True)
    _run_missing(experiment, tasks, progress, where, quick)
    kept = files.read(tasks)
    summary = _summarise(experiment, tasks, kept.rows, where)
    verdict = experiment.verdict_of(kept.rows)
    verdict.quick = quick
    verdict.points = len(tasks)
    verdict.points_s = round(kept.seconds, 1)
    verdict.wall_s = round(time.perf_counter() - started, 2)
    verdict.ran = "one after the other" if experiment.alone else str(where)
    verdict.date, verdict.machine = about["date"], about["machine"]
    verdict.commit = ", ".join(kept.commits)
    _write_files(experiment, out_dir, kept.rows, summary, verdict)
    return verdict


def demand_sweepable(experiment: Experiment) -> None:
    """UsageError for an experiment that cannot run on Spark."""
    if experiment.alone:
        raise UsageError(
            f"{experiment.id} measures real processes that need the machine for themselves, so it "
            f"cannot run on Spark. Run it without --sweep: surecast lab run {experiment.id}"
        )


def _run_missing(
    experiment: Experiment, tasks: list[Task], progress: Progress, where: Where, quick: bool
) -> None:
    from surecast.pipeline.sweep import run_tasks

    missing = [task for task in tasks if not files.is_done(task)]
    missing.sort(key=lambda task: -experiment.weight(task.point))
    reused = len(tasks) - len(missing)
    progress(reused, len(tasks), f"{reused} from earlier runs" if reused else "")

    def tell(done: int, _: int, note: str) -> None:
        progress(reused + done, len(tasks), note)

    if not missing:
        return
    if where.spark is not None:
        answers = run_tasks(where.spark, files.perform, missing, tell)
    else:
        one = experiment.alone or len(missing) == 1
        answers = _here(missing, tell, 1 if one else where.jobs)
    failed = [
        Failed(missing[number].point, error, _repeat(experiment, missing[number], quick))
        for number, _, error in answers
        if error
    ]
    if failed:
        raise PointFailed(_failure_report(experiment, failed, len(tasks)), failed)
    for task in missing:
        if not files.is_done(task):
            raise SurecastError(
                f"a task of {experiment.id} has written {task.path}, but the file is not on this "
                "machine: --out must be a folder that this machine and all executors share"
            )


def _here(missing: list[Task], tell: Progress, jobs: int) -> list[Done]:
    """Run the tasks in processes of this machine."""
    found = []
    tell(0, 0, describe(missing[0].point))
    for done in run_here(files.perform, missing, jobs):
        found.append(done)
        tell(len(found), 0, describe(missing[done[0]].point))
    return found


def describe(point: Point) -> str:
    return ", ".join(f"{key} {value}" for key, value in point.items())


def _repeat(experiment: Experiment, task: Task, quick: bool) -> str:
    words = ["surecast", "lab", "run", experiment.id, "--point", task.name]
    words += ["--seed", str(task.point["seed"])] + ["--quick"] * quick
    return shlex.join(words)


def _failure_report(experiment: Experiment, failed: list[Failed], total: int) -> str:
    lines = [
        f"{experiment.id}: {len(failed)} of {total} points failed; the results of the others are "
        "kept"
    ]
    for one in failed[:FAILURES_SHOWN]:
        why = one.why.strip().splitlines()[0]
        lines += [f"  {describe(one.point)}: {why}", f"    repeat it with: {one.repeat}"]
    if len(failed) > FAILURES_SHOWN:
        lines.append(f"  ... and {len(failed) - FAILURES_SHOWN} more")
    return "\n".join(lines)


def _summarise(experiment: Experiment, tasks: list[Task], rows: list[Row], where: Where) -> Summary:
    seeds = len({task.point["seed"] for task in tasks})
    if where.spark is not None:
        paths = [task.path for task in tasks]
        summary = summarise_on_spark(where.spark, paths, experiment.by, experiment.values, seeds)
    else:
        summary = summarise(rows, list(experiment.by), list(experiment.values))
    # If a group had two rows of one seed, they would count as two seeds.
    assert summary.seeds <= seeds, f"{experiment.id}: `by` does not distinguish all rows of a seed"
    return summary


def _write_files(
    experiment: Experiment, out_dir: Path, rows: list[Row], summary: Summary, verdict: Verdict
) -> None:
    made = experiment.files(out_dir)
    note = {"experiment": experiment.id, "commit": verdict.commit}
    files.write(rows, experiment.columns, made["table"], note)
    columns = {**experiment.by, "value": str, **STATISTICS}
    files.write(summary.rows, columns, made["summary"], note)
    experiment.draw(summary, made["figure"])
    made["verdict"].write_bytes(verdict.to_json())


# ---------------------------------------------------------------- one point


def point_called(experiment: Experiment, name: str, seed: int, quick: bool) -> Point:
    """The point with the name that a failure report gives; UsageError if there is none."""
    found = {files.name_of(point): point for point in experiment.points(quick, [seed])}
    if name not in found:
        known = "\n  ".join(found)
        raise UsageError(f"{experiment.id} has no point {name!r}; --point is one of:\n  {known}")
    return found[name]


def run_one(experiment: Experiment, point: Point, out_dir: Path) -> list[Row]:
    """Run one point in this process, also if its file exists, without catching its errors."""
    from surecast_lab.bench.machine import commit

    (task,) = files.tasks_of(experiment, out_dir, [point], commit())
    task.path.unlink(missing_ok=True)
    files.perform(task)
    return files.read([task]).rows
