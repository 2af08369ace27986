"""The verdict of the demo: Spark's audit job judges the clients' logs.

The clients' logs are written as tables (a *trace*), which the audit job (pipeline/jobs) reads. A
second, independent judge (numpy, swarm/audit.py) gets the same logs, and the two must agree. Spark
starts slowly, so it is started in a separate thread while the demo runs.
"""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from surecast.errors import SurecastError
from surecast.pipeline.jobs.audit import Audit, Latency
from surecast.protocols.sprinkler.checks import Tally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EarlySpark", "Latency", "agreed", "check_spark", "judged_by_both"]

# The fields of an Audit (of Spark) and a Tally (of numpy) that must be equal.
COUNTS = ("published", "acked", "delivered", "void", "lost", "duplicated", "misordered")
CORES = 2  # of this machine, while servers and clients still run

Say = Callable[[str], None]


def check_spark() -> None:
    """Raise UsageError if PySpark or Java is missing; called before the demo starts."""
    from surecast.pipeline.session import find_java, running_session

    running_session()
    find_java()


class EarlySpark:
    """A Spark session that starts in the background; `audit` waits for it."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._problem: BaseException | None = None
        self._thread = Thread(target=self._start, name="start of Spark", daemon=True)
        self.start = self._thread.start

    def _start(self) -> None:
        from surecast.pipeline.session import spark_session

        try:
            cores = min(CORES, os.cpu_count() or 1)
            self._session = spark_session(f"local[{cores}]", app="surecast demo")
        except BaseException as problem:
            self._problem = problem

    def audit(self, trace: Path, say: Say) -> Audit:
        """Judge the trace, then end the session and its JVM."""
        from surecast.columns.rules import LatestPerKey
        from surecast.pipeline.jobs.audit import audit
        from surecast.pipeline.jobs.trace import load
        from surecast.pipeline.progress import watch

        say("waiting for Spark")
        self._thread.join()
        if self._session is None:
            raise SurecastError(f"Spark did not start: {self._problem}") from self._problem

        def progress(done: int, total: int, note: str) -> None:
            say(f"{done} of {total} tasks done")

        try:
            with watch(self._session, "audit of the demo", progress):
                return audit(load(self._session, str(trace)), LatestPerKey())
        finally:
            self._session.stop()


def judged_by_both(
    spark: EarlySpark, trace: Path, tally: Tally, say: Say
) -> tuple[Tally, dict[str, Latency]]:
    """Spark's verdict on the trace, compared with numpy's `tally`; and the latencies by region."""
    found = spark.audit(trace, say)
    return agreed(found, tally), found.regions


def agreed(found: Audit, tally: Tally) -> Tally:
    """Spark's verdict. If numpy's judge has other counts, this is added as a violation."""
    verdict = Tally(**{name: getattr(found, name) for name in COUNTS})
    verdict.violations = list(found.violations)
    differ = [
        f"{name} {ours:,} and {theirs:,}"
        for name in COUNTS
        if (ours := getattr(found, name)) != (theirs := getattr(tally, name))
    ]
    # If events are faulty, the two judges may count them differently; they need only agree that
    # there are violations.
    if bool(found.violations) != bool(tally.violations) or (differ and found.sound):
        words = "; ".join([*differ, *tally.violations[:3]])
        verdict.violations.append(f"the judges disagree, Spark's and numpy's: {words}")
    return verdict
