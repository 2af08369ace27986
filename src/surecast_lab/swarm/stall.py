"""A test of back-pressure with real processes: at full load, one subscriber stops reading.

The other subscribers must continue, the servers' memory must stay bounded, and the subscriber must
miss nothing.

The deployment is one region with a chain of two replicas, a publisher at full speed, and four
subscribers. Some of them are thin (they get all events from a server), others are mesh clients
(they exchange events with each other). One subscriber stalls, in one of two ways: *stopped* means
that its process is suspended (SIGSTOP); *held* means that its program takes no more batches, so
that the client's buffer fills. When it continues, it must get every event that was not replaced by
a later one (`load.py` checks this). The rates of the other subscribers before and during the stall
are reported; the only requirement is that they make progress. A server's memory may grow by at most
two journals, the queue of one peer and a tolerance; the sum of its queues must stay within six
times `queue_bytes_max` (four subscribers and two other peers).

    python -m surecast_lab.swarm.stall [--seconds 30] [--case thin-stopped]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from surecast.errors import SurecastError
from surecast_lab.swarm.process_cluster import ProcessCluster

__all__ = ["CASES", "Case", "StallResult", "run_stall"]


class Case(msgspec.Struct, frozen=True):
    mesh: bool
    how: str  # stopped, held
    retain: str  # all, latest


CASES = {
    "thin-stopped": Case(False, "stopped", "latest"),
    "mesh-stopped": Case(True, "stopped", "all"),
    "thin-held": Case(False, "held", "all"),
    "mesh-held": Case(True, "held", "latest"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "storage": {"journal_bytes_max": 8 << 20, "segment_bytes_max": 64 << 20},
    "runtime": {"high_water_bytes": 1 << 20, "queue_bytes_max": 16 << 20},
}
WARM = 200_000  # positions that all readers pass before the first measurement
MEASURED = 400_000  # positions that all readers advance in the measurement before the stall
SLACK_BYTES = 64 << 20  # tolerance for a server's memory
STREAM = "load"


class StallResult(msgspec.Struct):
    case: str
    violations: list[str]
    published: int = 0
    stalled_s: float = 0.0
    rate_before: float = 0.0  # positions per second of the slowest other subscriber
    rate_during: float = 0.0
    published_meanwhile: int = 0  # positions published during the stall
    skipped: int = 0  # positions that became void before the stalled subscriber read them
    memory_before: int = 0  # bytes, of the server that uses most
    memory_peak: int = 0
    queued_peak: int = 0  # bytes that one server had queued for all its peers, at most

    @property
    def memory_allowed(self) -> int:
        """The memory before the stall, plus two journals (one is being written, one is being moved
        to segments), the queue of one peer, and a tolerance."""
        journal = SETTINGS["storage"]["journal_bytes_max"]
        queue = SETTINGS["runtime"]["queue_bytes_max"]
        return int(self.memory_before + 2 * journal + queue + SLACK_BYTES)


def run_stall(
    name: str,
    folder: Path,
    *,
    events: int = 1_000_000,
    seconds: float = 0.0,
    say: Callable[[str], None] = lambda _: None,
) -> StallResult:
    """Run a case. The stall lasts until each of the other subscribers has advanced by `events`
    positions, and at least for `seconds`."""
    result = StallResult(name, [])
    try:
        with ProcessCluster(folder, 1, {"east": 2}, 0, settings=SETTINGS) as cluster:
            _Stall(cluster, CASES[name], result, say).run(events, seconds)
    except SurecastError as error:
        result.violations.append(str(error))
    return result


class _Stall:
    """One run of a case."""

    def __init__(
        self, cluster: ProcessCluster, case: Case, result: StallResult, say: Callable[[str], None]
    ) -> None:
        self.cluster, self.case, self.result, self.say = cluster, case, result, say
        args = {"stream": STREAM, "retain": case.retain}
        self.pump = cluster.add_user("east/pump", "pump", args)
        meshed = {"victim": case.mesh, "thin": False, "mesh-1": True, "mesh-2": True}
        self.readers = [
            cluster.add_user(f"east/{reader}", "gauge", {**args, "mesh": mesh})
            for reader, mesh in meshed.items()
        ]
        self.victim, *self.others = self.readers

    def run(self, events: int, seconds: float) -> None:
        cluster, result = self.cluster, self.result
        cluster.wait(lambda: self._lowest_position(self.readers) > WARM)
        result.rate_before = self._rate(MEASURED, seconds / 3)
        result.memory_before = self._record_servers()
        self.say(f"{result.rate_before:,.0f} positions a second; {self.victim} stalls")
        self._begin()
        began, published = time.monotonic(), self._published()
        result.rate_during = self._rate(events, seconds)
        result.stalled_s = time.monotonic() - began
        result.published_meanwhile = self._published() - published
        self.say(f"{result.rate_during:,.0f} positions a second; the stall ends")
        self._end()
        at = self._lowest_position(self.others)
        cluster.wait(
            lambda: self._record_servers() > 0 and self._lowest_position([self.victim]) > at, 300.0
        )
        self.say("it has reached the others' position at the end of the stall; publishing ends")
        self._finish()
        self._judge()

    # ------------------------------------------------------------ the stall

    def _begin(self) -> None:
        if self.case.how == "stopped":
            self.cluster.stop(self.victim)
        else:
            self.cluster.workers[self.victim].ask("hold")

    def _end(self) -> None:
        if self.case.how == "stopped":
            self.cluster.cont(self.victim)
        else:
            self.cluster.workers[self.victim].ask("go_on")

    def _rate(self, events: int, seconds: float) -> float:
        """The rate of the slowest other subscriber, over at least `events` and `seconds`."""
        first, began = self._lowest_position(self.others), time.monotonic()

        def is_over() -> bool:
            self._record_servers()
            enough = self._lowest_position(self.others) >= first + events
            return enough and time.monotonic() - began >= seconds

        self.cluster.wait(is_over, 300.0)
        return (self._lowest_position(self.others) - first) / (time.monotonic() - began)

    # ------------------------------------------------------------ observing

    def _lowest_position(self, readers: list[str]) -> int:
        ask = [self.cluster.workers[name].ask("status") for name in readers]
        return min(int(status["position"]) for status in ask)

    def _published(self) -> int:
        published: int = self.cluster.workers[self.pump].ask("status")["published"]
        return published

    def _record_servers(self) -> int:
        """Record the servers' memory and queues; returns the memory of the largest server."""
        names = self.cluster.regions["east"]
        now = max(self.cluster.workers[name].memory_bytes() for name in names)
        queued = max(self.cluster.server(name).queued_bytes for name in names)
        self.result.memory_peak = max(self.result.memory_peak, now)
        self.result.queued_peak = max(self.result.queued_peak, queued)
        return now

    # ------------------------------------------------------------ the end

    def _finish(self) -> None:
        pump = self.cluster.workers[self.pump]
        pump.ask("quiet")
        self.cluster.wait(lambda: bool(pump.ask("status")["quiet"]))
        self.result.published = self._published()
        self.cluster.wait(
            lambda: self._lowest_position(self.readers) > self.result.published, 300.0
        )

    def _judge(self) -> None:
        result, end = self.result, self.result.published + 1
        wrong = result.violations
        wrong += self.cluster.workers[self.pump].ask("status")["faults"]
        for name in self.readers:
            worker = self.cluster.workers[name]
            status, missing = worker.ask("status"), worker.ask("missing", end)
            wrong += [f"{name}: {fault}" for fault in status["faults"]]
            if missing:
                wrong.append(f"{name} lacks events that were not replaced: {missing[:5]}")
            if self.case.retain == "all" and status["events"] != result.published:
                wrong.append(f"{name} got {status['events']} events of {result.published}")
            if name == self.victim:
                result.skipped = result.published - status["events"]
        if result.memory_peak > result.memory_allowed:
            wrong.append(
                f"a server held {result.memory_peak:,} bytes, at most {result.memory_allowed:,} "
                "were expected"
            )
        most = SETTINGS["runtime"]["queue_bytes_max"] * (len(self.readers) + 2)
        if result.queued_peak > most:
            wrong.append(f"{result.queued_peak:,} bytes were queued, at most {most:,} allowed")


# ---------------------------------------------------------------- from the shell


def main() -> None:
    parser = argparse.ArgumentParser(description="Stop one of the subscribers at full load.")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="the stall lasts at least so long"
    )
    parser.add_argument("--case", choices=list(CASES), help="run only this case")
    options = parser.parse_args()
    bad = 0
    for name in [options.case] if options.case else CASES:
        with tempfile.TemporaryDirectory(prefix="surecast-stall-") as folder:
            result = run_stall(name, Path(folder), seconds=options.seconds, say=_say)
        bad += bool(result.violations)
        print(
            f"{name}: {'VIOLATED' if result.violations else 'ok'}, stalled "
            f"{result.stalled_s:.0f} s while {result.published_meanwhile:,} of "
            f"{result.published:,} events were published; {result.skipped:,} became void before it "
            f"read them. Others: {result.rate_before:,.0f} positions/s before, "
            f"{result.rate_during:,.0f} during. Largest server: "
            f"{result.memory_before >> 20} MiB before, {result.memory_peak >> 20} at most; "
            f"queued at most {result.queued_peak >> 10:,} KiB",
            flush=True,
        )
        for violation in result.violations:
            print(f"  {violation}")
    sys.exit(1 if bad else 0)


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"  {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
