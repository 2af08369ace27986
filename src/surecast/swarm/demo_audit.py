"""The demo's verdict: its ledgers as a trace, judged by the Spark audit (pipeline/jobs/audit.py).

Spark takes its time to start, so it does that in a thread of its own while the story is told. The
judge of swarm/audit.py hears the same ledgers, and the two must agree.
"""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import msgspec

from surecast.errors import SurecastError
from surecast.protocols.sprinkler.checks import Tally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from surecast.pipeline.jobs.audit import Audit

__all__ = ["EarlySpark", "Latency", "agreed", "check_spark"]

COUNTS = ("published", "acked", "delivered", "void", "lost", "duplicated", "misordered")
CORES = 2  # of this machine, while servers and clients still live

Say = Callable[[str], None]


class Latency(msgspec.Struct):
    """From the publisher's call to a reader's hands, of one region."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


def check_spark() -> None:
    """UsageError, before any work, if there is no PySpark or no Java for it."""
    from surecast.pipeline.session import find_java, running_session

    running_session()
    find_java()


class EarlySpark:
    """A session that starts beside something else; `audit` waits for it."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._problem: BaseException | None = None
        self._thread = Thread(target=self._start, name="start of Spark", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _start(self) -> None:
        from surecast.pipeline.session import spark_session

        try:
            cores = min(CORES, os.cpu_count() or 1)
            self._session = spark_session(f"local[{cores}]", app="surecast demo")
        except BaseException as problem:
            self._problem = problem

    def audit(self, trace: Path, say: Say) -> "Audit":
        from surecast.columns.rules import LatestPerKey
        from surecast.pipeline.jobs.audit import audit
        from surecast.pipeline.jobs.trace import load
        from surecast.pipeline.progress import watch

        say("waiting for Spark")
        self._thread.join()
        if self._session is None:
            raise SurecastError(f"Spark did not start: {self._problem}") from self._problem

        def told(done: int, total: int, note: str) -> None:
            say(f"{done} of {total} tasks done")

        with watch(self._session, "audit of the demo", told):
            return audit(load(self._session, str(trace)), LatestPerKey())

    def stop(self) -> None:
        """End the session, and the JVM with it."""
        self._thread.join()
        if self._session is not None:
            self._session.stop()


def agreed(found: "Audit", tally: Tally) -> Tally:
    """Spark's verdict; where numpy's judge counts otherwise, that is a violation as well."""
    verdict = Tally(**{name: getattr(found, name) for name in COUNTS})
    verdict.violations = list(found.violations)
    counts: dict[str, Any] = {name: (getattr(found, name), getattr(tally, name)) for name in COUNTS}
    differ = [
        f"{name} {ours:,} and {theirs:,}"
        for name, (ours, theirs) in counts.items()
        if ours != theirs
    ]
    if bool(found.violations) != bool(tally.violations) or (differ and found.sound):
        words = "; ".join([*differ, *tally.violations[:3]])
        verdict.violations.append(f"the judges disagree, Spark's and numpy's: {words}")
    return verdict
