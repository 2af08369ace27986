"""Reports the progress of Spark's jobs to a callback, from Spark's status tracker.

    with watch(spark, "audit", lambda done, total, note: bar.update(done, note, total)):
        ...                                              # jobs that this thread starts

Progress is counted in tasks. Spark plans one job after the other, so `total` grows during the work,
and a progress bar may go backwards. Spark Connect has no status tracker, but reports its progress
by itself.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Callback", "RowsOf", "Said", "interrupts", "until", "watch"]

Callback = Callable[[int, int, str], None]  # tasks done, tasks known so far, a short note
Said = Callable[[int, str], None]  # rows read so far, a short note

LOOK_S: Final = 0.25  # between two reports
SETTLE_S: Final = 2.0  # how long the last report may wait until all jobs are known to be over


@contextmanager
def watch(spark: SparkSession, group: str, callback: Callback) -> Iterator[None]:
    """Call `callback` from a separate thread while the block runs, and once at its end.

    While the block runs, the jobs that this thread starts belong to the job group `group`, and
    their progress is reported. The jobs of a streaming query have their own group, whose name is
    the query's `runId`: pass this as `group`.
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
    # Spark's status tracker learns a little later that a job is over.
    limit = time.monotonic() + SETTLE_S
    last = jobs.look()
    while jobs.running and time.monotonic() < limit:
        time.sleep(0.02)
        last = jobs.look()
    callback(*last)


@contextmanager
def interrupts() -> Iterator[Event]:
    """While the block runs, the first Ctrl-C only sets the event that this yields. A second Ctrl-C
    raises KeyboardInterrupt.

    For code that waits for a query: an exception in the middle of a request to the JVM would leave
    the request incomplete, and all later requests without an answer.
    """
    asked = Event()
    if current_thread() is not main_thread():  # other threads receive no signals
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
    """Wait until a query ends, or stop it at Ctrl-C; report to `say` meanwhile. Returns how many
    rows the query has read, and whether it was stopped."""
    rows = RowsOf()
    with interrupts() as asked:
        while not query.awaitTermination(1):
            say(rows.count(query), query.status["message"])
            if asked.is_set():
                query.stop()
                return rows.count(query), True
    return rows.count(query), False


class RowsOf:
    """Counts the rows that a query has read. `count` must be called often, because Spark keeps the
    progress of only the last 100 batches."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # batch -> rows counted; the same batch is reported often
        self._total = 0

    def count(self, query: StreamingQuery) -> int:
        for progress in query.recentProgress:
            batch, rows = progress["batchId"], int(progress["numInputRows"])
            self._total += max(0, rows - self._of.get(batch, 0))
            self._of[batch] = max(rows, self._of.get(batch, 0))
        return self._total


# What `setJobGroup` changes; restored at the end of the block.
_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


def _look(jobs: _Jobs, callback: Callback, over: Event) -> None:
    while not over.wait(LOOK_S):
        callback(*jobs.look())


class _Jobs:
    """Counts the tasks of a job group; the tasks of finished jobs are counted once and kept."""

    def __init__(self, tracker: StatusTracker, group: str) -> None:
        self.tracker = tracker
        self.group = group
        self.running = False  # whether `look` has found a job that is not over
        self._finished = 0  # completed tasks of finished jobs
        # Jobs that are finished and counted, and jobs of this group from before the block.
        self._over: set[int] = set(tracker.getJobIdsForGroup(group))

    def look(self) -> tuple[int, int, str]:
        """The arguments for a `Callback`."""
        done = total = running = 0
        self.running = False
        for job in self.tracker.getJobIdsForGroup(self.group):
            if job in self._over or (info := self.tracker.getJobInfo(job)) is None:
                continue
            stages = [self.tracker.getStageInfo(stage) for stage in info.stageIds]
            known = [stage for stage in stages if stage is not None]
            completed = sum(stage.numCompletedTasks for stage in known)
            if info.status in ("SUCCEEDED", "FAILED"):  # its skipped tasks will not run
                self._over.add(job)
                self._finished += completed
                continue
            self.running = True
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

    handler: Any = tell  # its declared type exists only where grpc is installed
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
