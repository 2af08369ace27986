"""Runs independent tasks on Spark: one Spark task each, and a failure affects only its task.

    for number, result, error in run_tasks(spark, simulate, points, progress): ...

The experiments of `surecast_lab` use this file. The function and the tasks are pickled. So
executors must be able to import the function (`session.spark_session` sends this package to them),
and tasks should be plain data. The function is called once per task, or again if its executor is
lost, so it must be safe to repeat.

An exception in a task is returned as text. If a Python process *crashes* (out of memory, a fault in
native code), Spark fails the whole job. The job is then run again in halves, until the task that
crashes its process runs alone.
"""

import pickle
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from surecast.errors import SurecastError
from surecast.pipeline.progress import watch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Done", "run_tasks"]

Task = TypeVar("Task")
Progress = Callable[[int, int, str], None]  # (tasks done, tasks in all, a short note)
Done = tuple[int, Any, str]  # the task's number, its result, its error ("" if it succeeded)

SCHEMA = "number BIGINT, result BINARY, error STRING"


def run_tasks(
    spark: "SparkSession",
    function: Callable[[Task], Any],
    tasks: Sequence[Task],
    progress: Progress = lambda *_: None,
) -> list[Done]:
    """Call `function` with every task. Tasks are started in the given order, when cores are free.

    The results are in the order of the tasks. Tasks that failed have a result, too.
    """
    done: list[Done] = []
    waiting = [list(range(len(tasks)))] if tasks else []  # the tasks of each job to run
    while waiting:
        numbers = waiting.pop()
        before = len(done)

        def tell(count: int, _: int, note: str, before: int = before) -> None:
            progress(min(before + count, len(tasks)), len(tasks), note)

        try:
            done += _job(spark, function, {n: tasks[n] for n in numbers}, tell)
        except _job_failures() as problem:
            _let_interrupts_through(problem)
            _check_alive(spark, problem)
            if len(numbers) == 1:
                done.append((numbers[0], None, f"its process died: {_first_line(problem)}"))
                continue
            half = len(numbers) // 2
            waiting += [numbers[half:], numbers[:half]]
    progress(len(tasks), len(tasks), "")
    return sorted(done, key=lambda one: one[0])


def _job(
    spark: "SparkSession", function: Callable[[Any], Any], tasks: dict[int, Any], progress: Progress
) -> list[Done]:
    """Run one Spark job with a partition per task."""
    numbers = list(tasks)

    def perform(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        for batch in batches:
            for place in batch.column(0).to_pylist():  # indices into `numbers`
                number = numbers[place]
                result, error = _attempt(function, tasks[number])
                made = {"number": [number], "result": [result], "error": [error]}
                yield pa.RecordBatch.from_pydict(made, _arrow_schema())

    group = f"surecast-sweep-{uuid.uuid4().hex[:8]}"
    placed = spark.range(0, len(numbers), 1, len(numbers))
    with watch(spark, group, progress):
        found = placed.mapInArrow(perform, SCHEMA).toArrow()
    return [
        (row["number"], None if row["error"] else pickle.loads(row["result"]), row["error"])
        for row in found.to_pylist()
    ]


def _attempt(function: Callable[[Any], Any], task: Any) -> tuple[bytes, str]:
    try:
        return pickle.dumps(function(task)), ""
    except Exception as error:
        return b"", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def _arrow_schema() -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([("number", pa.int64()), ("result", pa.binary()), ("error", pa.string())])


def _job_failures() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _let_interrupts_through(problem: BaseException) -> None:
    """If Ctrl-C caused a failure, raise its KeyboardInterrupt. Ctrl-C cancels the job, and Spark
    reports only the cancellation."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        cause = cause.__context__


def _check_alive(spark: "SparkSession", problem: Exception) -> None:
    """Raise SurecastError if Spark itself no longer works: then every task would fail."""
    try:
        spark.range(1).collect()
    except Exception as error:
        raise SurecastError(
            f"Spark stopped in the middle of a sweep: {_first_line(problem)}. Start it again: "
            "finished tasks are not repeated"
        ) from error


def _first_line(problem: Exception) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
