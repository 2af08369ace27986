"""Progress from the status tracker: of the block's own jobs, and all of them at its end."""

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from surecast.pipeline.progress import watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Told = list[tuple[int, int, str]]


def slow(spark: "SparkSession", tasks: int) -> int:
    """A job of so many tasks that take a moment each."""

    def wait(batches):  # type: ignore[no-untyped-def]
        import time

        time.sleep(0.3)
        yield from batches

    return spark.range(0, tasks, 1, tasks).mapInArrow(wait, "id bigint").count()


def test_tasks_are_counted_while_they_run_and_all_at_the_end(spark: "SparkSession") -> None:
    told: Told = []
    slow(spark, 2)  # not ours
    with watch(spark, "ours", lambda *words: told.append(words)):
        assert slow(spark, 6) == 6
    done, total, _ = told[-1]
    assert done == total >= 6
    assert done < 12, "counts what was before"
    assert all(before[0] <= after[0] for before, after in pairwise(told))
    assert any(0 < done < total for done, total, _ in told), told
    assert any("running" in note for _, _, note in told), told


def test_a_second_block_begins_at_zero_and_properties_are_put_back(spark: "SparkSession") -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.jobGroup.id", "somebody's")
    try:
        first: Told = []
        second: Told = []
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


def test_what_fails_in_the_block_is_raised(spark: "SparkSession") -> None:
    told: Told = []
    with (
        pytest.raises(ZeroDivisionError),
        watch(spark, "failing", lambda *words: told.append(words)),
    ):
        raise ZeroDivisionError
