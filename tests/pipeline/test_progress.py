"""Progress from the status tracker: only of the block's own jobs, and complete at its end."""

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from surecast.pipeline.progress import watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Reported = list[tuple[int, int, str]]


def slow(spark: "SparkSession", tasks: int) -> int:
    """A job of `tasks` tasks that take 0.3 seconds each."""

    def wait(batches):  # type: ignore[no-untyped-def]
        import time

        time.sleep(0.3)
        yield from batches

    return spark.range(0, tasks, 1, tasks).mapInArrow(wait, "id bigint").count()


def test_tasks_are_counted_while_they_run_and_all_at_the_end(spark: "SparkSession") -> None:
    reported: Reported = []
    slow(spark, 2)  # not part of the block
    with watch(spark, "ours", lambda *words: reported.append(words)):
        assert slow(spark, 6) == 6
    done, total, _ = reported[-1]
    assert done == total >= 6
    assert done < 12, "an earlier job was counted"
    assert all(before[0] <= after[0] for before, after in pairwise(reported))
    assert any(0 < done < total for done, total, _ in reported), reported
    assert any("running" in note for _, _, note in reported), reported


def test_a_second_block_starts_at_zero_and_restores_properties(spark: "SparkSession") -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.jobGroup.id", "somebody's")
    try:
        first: Reported = []
        second: Reported = []
        with watch(spark, "again", lambda *words: first.append(words)):
            assert context.getLocalProperty("spark.jobGroup.id") == "again"
            slow(spark, 3)
        with watch(spark, "again", lambda *words: second.append(words)):
            pass
        assert first[-1][0] >= 3
        assert second[-1][:2] == (0, 0)
        assert context.getLocalProperty("spark.jobGroup.id") == "somebody's"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


class LateTracker:
    """A status tracker that says of job 1 only at the third question that it is over."""

    def __init__(self) -> None:
        self.asked = 0

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return [1] if self.asked else []

    def getJobInfo(self, job: int) -> Any:
        self.asked += 1
        return SimpleNamespace(status="SUCCEEDED" if self.asked > 3 else "RUNNING", stageIds=[1, 2])

    def getStageInfo(self, stage: int) -> Any:
        skipped = stage == 2
        return SimpleNamespace(numTasks=6, numCompletedTasks=0 if skipped else 6, numActiveTasks=0)


def test_the_last_report_waits_until_spark_knows_that_the_jobs_are_over(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = LateTracker()
    monkeypatch.setattr(type(spark.sparkContext), "statusTracker", lambda context: tracker)
    reported: Reported = []
    with watch(spark, "late", lambda *words: reported.append(words)):
        tracker.asked = 1  # the job is there
    assert reported[-1] == (6, 6, "")


def test_an_exception_in_the_block_is_raised(spark: "SparkSession") -> None:
    reported: Reported = []
    with (
        pytest.raises(ZeroDivisionError),
        watch(spark, "failing", lambda *words: reported.append(words)),
    ):
        raise ZeroDivisionError
