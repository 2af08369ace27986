"""How far Spark's jobs are, as its status tracker knows it, told to a callback.

    with watch(spark, "audit", lambda done, total, note: bar.update(done, note, total)):
        ...                                              # whatever this thread asks of Spark

The unit is a task. Spark plans job by job, so `total` grows while it works; a bar that runs
backwards now and then is an honest one. Spark Connect has no tracker but tells its progress itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Callback", "RowsOf", "Said", "interrupts", "until", "watch"]

Callback = Callable[[int, int, str], None]  # tasks done, tasks known of, a word
Said = Callable[[int, str], None]  # rows taken so far, and a word

LOOK_S: Final = 0.25


@contextmanager
def watch(spark: SparkSession, group: str, callback: Callback) -> Iterator[None]:
    """Call back while the block runs, and once at its end; from a thread of its own.

    The jobs of this thread belong to `group` meanwhile. For a streaming query, whose jobs are its
    own, give its `runId`.
    """
    from pyspark.sql.utils import is_remote

    if is_remote():
        with _watch_remote(spark, callback):
            yield
        return
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    context.setJobGroup(group, group)
    jobs = _Jobs(context.statusTracker(), group)
    over = Event()
    looker = Thread(target=_look, args=(jobs, callback, over), name=f"watch {group}", daemon=True)
    looker.start()
    try:
        yield
    finally:
        over.set()
        looker.join()
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None unsets it
    callback(*jobs.look())


@contextmanager
def interrupts() -> Iterator[Event]:
    """Ctrl-C as an event, for who waits for a query; a second one is raised as ever.

    Raised in the midst of a question to the JVM it would leave that half asked, and every question
    after it without an answer.
    """
    asked = Event()
    if current_thread() is not main_thread():  # others are told of no signal
        yield asked
        return

    def note(number: int, frame: Any) -> None:
        if asked.is_set():
            signal.default_int_handler(number, frame)
        asked.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def until(query: StreamingQuery, say: Said) -> tuple[int, bool]:
    """Wait until a query ends, or is stopped by Ctrl-C; the rows it took, and whether it was."""
    rows = RowsOf()
    with interrupts() as asked:
        while not query.awaitTermination(1):
            say(rows.count(query), query.status["message"])
            if asked.is_set():
                query.stop()
                return rows.count(query), True
    return rows.count(query), False


class RowsOf:
    """How many rows a query has taken, if it is asked often: Spark knows its last 100 batches."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # batch -> rows; none while it waits for some
        self._total = 0

    def count(self, query: StreamingQuery) -> int:
        for progress in query.recentProgress:
            batch, rows = progress["batchId"], int(progress["numInputRows"])
            self._total += max(0, rows - self._of.get(batch, 0))
            self._of[batch] = max(rows, self._of.get(batch, 0))
        return self._total


_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


def _look(jobs: _Jobs, callback: Callback, over: Event) -> None:
    while not over.wait(LOOK_S):
        callback(*jobs.look())


class _Jobs:
    """The tasks of a group's jobs; those of finished jobs are counted once and remembered."""

    def __init__(self, tracker: StatusTracker, group: str) -> None:
        self.tracker = tracker
        self.group = group
        self._finished = 0  # tasks
        self._over: set[int] = set(tracker.getJobIdsForGroup(group))  # not of this block

    def look(self) -> tuple[int, int, str]:
        done = total = running = 0
        for job in self.tracker.getJobIdsForGroup(self.group):
            if job in self._over or (info := self.tracker.getJobInfo(job)) is None:
                continue
            stages = [self.tracker.getStageInfo(stage) for stage in info.stageIds]
            known = [stage for stage in stages if stage is not None]
            completed = sum(stage.numCompletedTasks for stage in known)
            if info.status in ("SUCCEEDED", "FAILED"):  # tasks it did not need are no more to come
                self._over.add(job)
                self._finished += completed
                continue
            done += completed
            total += sum(stage.numTasks for stage in known)
            running += sum(stage.numActiveTasks for stage in known)
        note = f"{running} running" if running else ""
        return self._finished + done, self._finished + total, note


@contextmanager
def _watch_remote(spark: SparkSession, callback: Callback) -> Iterator[None]:
    def tell(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        completed = sum(stage.num_completed_tasks for stage in stages or ())
        total = sum(stage.num_tasks for stage in stages or ())
        callback(completed, total, f"{inflight_tasks} running" if inflight_tasks else "")

    told: Any = tell  # the type that is asked for exists only where grpc is installed
    spark.registerProgressHandler(told)
    try:
        yield
    finally:
        spark.removeProgressHandler(told)
