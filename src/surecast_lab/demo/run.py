"""Runs the demo: a real deployment on this machine, a million events, a cut link, a killed server.

The deployment has three regions (east, north and west) of two replicas and a witness each, started
as by `surecast up`, with data on disk. A relay between the regions adds the delays of a wide-area
network. Clients are processes that use the client library: a publisher in east, two mesh
subscribers in every region (they exchange events with each other), and a thin subscriber in west
(it gets all events from a server). The stream keeps the latest event of each key. The steps:

    steady     events flow to all regions
    cut        the link between east and west is cut; west gets the events through north
    failover   the head of east is killed (SIGKILL) and started again two seconds later
    away       the link between north and west is cut, too. While west is isolated, most of the
               events are published, as fast as possible
    catch-up   both links are restored; west gets only the events that are still valid
    last       a few more events are published, to check that everything works
    audit      all processes end, and the clients' logs are judged: by Spark, whose verdict is
               reported, and by numpy, which must agree

Every step waits for a condition and not for a fixed time, so a slow machine runs the same steps.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np

from surecast.errors import SurecastError
from surecast.protocols.sprinkler.checks import Tally
from surecast.server.cluster import Cluster
from surecast_lab.demo.audit import EarlySpark, Latency, check_spark, judged_by_both
from surecast_lab.demo.clients import STREAM, Publishing, Reading
from surecast_lab.swarm.audit import judge
from surecast_lab.swarm.audit_log import Int64s, Marks, ReadEvents, load_offered, load_read
from surecast_lab.swarm.traces import trace_offered, trace_read
from surecast_lab.testing.deployment import bytes_into, free_layout, lead_through, look, url, wire
from surecast_lab.testing.relay import RelayProcess, RelaySpec
from surecast_lab.testing.workers import Workers

__all__ = ["Demo", "DemoFailed", "run_demo"]

REGIONS, REPLICAS = 3, 2  # the number of regions, and of replicas in each
MESHED = 2  # mesh subscribers in each region
OWNER, AWAY, THIRD = "east", "west", "north"
# The share of the events that each step publishes; the step "last" publishes the rest.
SHARES = {"steady": 0.1, "cut": 0.1, "failover": 0.1, "away": 0.65}
# Events of a batch. Small runs have smaller batches, so that there are at least BATCHES_MIN.
BATCH_ROWS, BATCHES_MIN = 500, 400
# The duration of publishing in the steps "steady", "cut" and "failover", and in "last". In "away"
# the publisher is as fast as possible.
PACED_S, LAST_S = 4.0, 2.0
# At the end the regions are asked how many events they keep, until all give the same number, but at
# most this number of times.
KEPT_LOOKS = 50
DOWN_S = 2.0  # from the kill to the new start
READY_S_MAX = 60.0
STUCK_S = 60.0  # the demo fails after this time without progress
LOOK_S = 0.05  # interval at which clients are asked for their state
SERVERS_LOOK_S = 0.2  # the same for servers

Progress = Callable[[str, str, int], None]  # the step, a note on it, events acknowledged


class DemoFailed(SurecastError):
    """The demo did not complete; the message names the step."""


class Fault(msgspec.Struct):
    """A fault and its times, in seconds from the first event."""

    what: str
    begin_s: float
    end_s: float = 0.0


class ClientTrack(msgspec.Struct):
    """A client's positions over time, for the figure."""

    at_s: list[float]
    position: list[int]


class Demo(msgspec.Struct):
    """The results of a run."""

    events: int
    seed: int
    judge: str  # "spark" (and numpy must agree), or "numpy" alone
    tally: Tally = msgspec.field(default_factory=Tally)
    latency: dict[str, Latency] = {}  # by region; empty if numpy judged alone
    seconds: float = 0.0  # from the start of the first process to the verdict
    audit_s: float = 0.0  # the part of it that judging took
    faults: list[Fault] = []
    tracks: dict[str, ClientTrack] = {}  # by the reader's name; "acknowledged": the publisher's
    burst_events: int = 0  # events published while west was isolated
    burst_s: float = 0.0  # time until they were acknowledged, that is, on two disks
    longest_pause_s: float = 0.0  # between two acknowledgements around the failover
    down_s: float = DOWN_S  # from the kill to the new start
    switched_to: str = ""  # the region from which west got events while its link to east was cut
    missed_events: int = 0  # events that west lacked when its links were restored
    missed_bytes: int = 0  # the size of these events as published
    shipped_bytes: int = 0  # bytes sent to west until it was up to date
    catch_up_s: float = 0.0
    kept: dict[str, int] = {}  # events that each region still holds


def run_demo(
    events: int, seed: int, folder: Path, progress: Progress, use_spark: bool = True
) -> Demo:
    """Run all steps; `folder` gets configuration, data, the clients' logs, the processes' logs and
    the trace."""
    if use_spark:
        check_spark()
    result = Demo(events, seed, "spark" if use_spark else "numpy")
    began = time.monotonic()
    with ExitStack() as stack:
        run = Run(result, folder, progress, stack, EarlySpark() if use_spark else None)
        try:
            for step in (
                run.begin, run.steady, run.cut, run.failover, run.away, run.catch_up, run.last,
                run.finish,
            ):  # fmt: skip
                step()
        finally:
            run.stop()
    run.audit()
    result.seconds = time.monotonic() - began
    return result


class Run:
    """One run. Its methods are the steps, in order; each adds to the result."""

    def __init__(
        self,
        result: Demo,
        folder: Path,
        progress: Progress,
        stack: ExitStack,
        spark: EarlySpark | None,
    ) -> None:
        self.result, self.folder, self.progress, self.spark = result, folder, progress, spark
        self.state: dict[str, dict[str, int]] = {}  # client → the last answer of its `status`
        self.target = 0  # events that the publisher was told to publish so far
        self._step(f"starting {REGIONS} regions × {REPLICAS} replicas, and their witnesses")
        self.relay = stack.enter_context(RelayProcess(RelaySpec(result.seed)))
        self.layout = lead_through(self.relay, free_layout(folder, REGIONS, REPLICAS))
        self.cluster = stack.enter_context(Cluster(self.layout))
        self.clients = stack.enter_context(Workers(folder / "logs"))
        self.readers = {
            region: [f"{region}-mesh-{i + 1}" for i in range(MESHED)]
            for region in self.layout.regions()
        }
        self.readers[AWAY].append(f"{AWAY}-thin")

    # ------------------------------------------------------------ the steps

    def begin(self) -> None:
        """Wait for the servers, then start the clients."""
        self.cluster.wait_ready(
            READY_S_MAX, lambda done, all_: self.progress(self.step, f"{done} of {all_} ready", 0)
        )
        self._step("connecting the clients")
        events = self.result.events
        rows = max(1, min(BATCH_ROWS, events // BATCHES_MIN))
        where = url(self.layout, OWNER), self._log("publisher")
        self.clients.start("publisher", Publishing, *where, events, rows, self.result.seed)
        for region, names in self.readers.items():
            for name in names:
                where, mesh = (url(self.layout, region), self._log(name)), "mesh" in name
                self.clients.start(name, Reading, *where, mesh, not mesh)
        self.clients.ready()

    def steady(self) -> None:
        self._step("events flow to all regions")
        if self.spark is not None:
            self.spark.start()  # now, because this step leaves processor time for it
        self.began_ns = time.monotonic_ns()
        self._publish("steady", PACED_S)
        self.until(lambda: self.reached(self.target))

    def cut(self) -> None:
        self._step(f"link {OWNER} – {AWAY} cut: {AWAY} gets the events through {THIRD}")
        self.relay.cut(wire(OWNER, AWAY))
        self.link_fault = self._fault(f"link {OWNER} – {AWAY} cut")
        self._publish("cut", PACED_S)
        self.until(self._has_source, SERVERS_LOOK_S)
        self.until(lambda: self.reached(self.target))

    def failover(self) -> None:
        members = self._status_part(OWNER, "chain").get("members")
        if not members:
            raise DemoFailed(f"{OWNER} has no chain: no server there answers")
        head = str(members[0])
        self._step(f"{head}, the head of {OWNER}, killed")
        self._publish("failover", PACED_S)
        # The head is killed while events of this step are being acknowledged.
        under_way = self.acked + 1
        self.until(lambda: self.acked >= under_way)
        self.cluster.kill(head)
        fault = self._fault(f"{head} killed")
        self.killed_ns = time.monotonic_ns()
        self.until(lambda: time.monotonic_ns() >= self.killed_ns + DOWN_S * 1e9)
        self._step(f"{head} started again: publishes wait until it has joined")
        self.cluster.start(head)
        self.until(lambda: self.acked >= self.target)
        self.until(
            lambda: len(self._status_part(OWNER, "chain").get("members", ())) == REPLICAS,
            SERVERS_LOOK_S,
        )
        fault.end_s = self._now_s()
        self.until(lambda: self.reached(self.target))
        self.failover_ended_ns = time.monotonic_ns()

    def away(self) -> None:
        result = self.result
        self._step(f"link {THIRD} – {AWAY} cut, too: {AWAY} is isolated")
        self.relay.cut(wire(THIRD, AWAY))
        self.away_fault = self._fault(f"{AWAY} isolated")
        self.until(self._is_isolated, SERVERS_LOOK_S)
        missed_from = self.least(AWAY)
        # These counters grow from the start of the demo. Subtract their values now; their values
        # at the end of the burst, or of the catch-up, are added then.
        result.shipped_bytes = -bytes_into(self.relay, AWAY, [OWNER, THIRD])
        result.missed_bytes = -self.state["publisher"]["raw_bytes"]
        self.burst_from_ns = time.monotonic_ns()
        result.burst_events = self._publish("away", 0.0)
        result.missed_events = self.target + 1 - missed_from
        self.burst_end = self.target
        self.until(lambda: self.reached(self.target, OWNER, THIRD))
        result.missed_bytes += self.state["publisher"]["raw_bytes"]

    def catch_up(self) -> None:
        self._step(f"links restored: {AWAY} catches up")
        self.mended_ns = time.monotonic_ns()
        self.relay.mend(wire(OWNER, AWAY))
        self.relay.mend(wire(THIRD, AWAY))
        self.link_fault.end_s = self.away_fault.end_s = self._now_s()
        self.until(lambda: self.reached(self.target))
        self.result.shipped_bytes += bytes_into(self.relay, AWAY, [OWNER, THIRD])

    def last(self) -> None:
        self._step("a few more events")
        self._publish("last", LAST_S)
        self.until(lambda: self.reached(self.target))

    def finish(self) -> None:
        """Let the clients write their logs, after all deliveries."""
        self._step("the clients write their logs")
        kept = self.result.kept
        for _ in range(KEPT_LOOKS):  # retention processes events a moment after their commit
            for region in self.layout.regions():
                streams = self._status_part(region, "streams")
                kept[region] = next((s["live"] for s in streams if s["name"] == STREAM), 0)
            if len(set(kept.values())) == 1:
                break
            time.sleep(0.1)
        self.clients.ask_all(self.clients, "save")
        self.clients.end([*self.clients])

    def stop(self) -> None:
        """Stop the servers, and wait until they have ended."""
        self._step("stopping the servers")
        stopping = Thread(target=self.cluster.stop)
        stopping.start()
        while stopping.is_alive():
            stopping.join(LOOK_S)
            self.progress(self.step, "", self.acked)

    # ------------------------------------------------------------ the verdict

    def audit(self) -> None:
        """Judge the clients' logs, after all processes have ended."""
        began = time.monotonic()
        result, spark, trace = self.result, self.spark, self.folder / "trace"
        offered = load_offered(self._log("publisher"))
        marks = {"acknowledged": offered.marks}
        end = max(self.state[name]["position"] for names in self.readers.values() for name in names)

        def read() -> Iterator[ReadEvents]:
            for region, names in self.readers.items():
                for name in names:
                    log = load_read(self._log(name))
                    marks[name] = log.marks
                    if spark is not None:
                        trace_read(trace, STREAM, region, log)
                    yield log

        result.tally = judge(offered, read(), end, self._say_audit)
        if spark is not None:
            trace_offered(trace, STREAM, "publisher", offered)
            result.tally, result.latency = judged_by_both(
                spark, trace, result.tally, self._say_audit
            )
        result.tracks = {name: self._track(found) for name, found in marks.items()}
        acked_ns = _reached_ns(offered.marks, self.burst_end)
        result.burst_s = (acked_ns - self.burst_from_ns) / 1e9
        there_ns = max(_reached_ns(marks[name], self.burst_end + 1) for name in self.readers[AWAY])
        result.catch_up_s = (there_ns - self.mended_ns) / 1e9
        result.longest_pause_s = self._longest_pause_s(offered.marks.at_ns)
        result.audit_s = time.monotonic() - began

    def _say_audit(self, words: str) -> None:
        step = "audit" if self.spark is None else "audit, by Spark and by numpy"
        self.progress(step, words, self.result.events)

    def _longest_pause_s(self, at_ns: Int64s) -> float:
        """The longest time between two acknowledgements, from the kill to the end of the step."""
        within = (at_ns >= self.killed_ns) & (at_ns <= self.failover_ended_ns)
        before = at_ns[at_ns < self.killed_ns][-1:]
        gaps = np.diff(np.concatenate((before, at_ns[within])))
        return float(gaps.max(initial=0)) / 1e9

    def _track(self, marks: Marks) -> ClientTrack:
        at_s = ((marks.at_ns - self.began_ns) / 1e9).round(3)
        return ClientTrack(at_s.tolist(), marks.position.tolist())

    # ------------------------------------------------------------ waiting

    def until(self, condition: Callable[[], Any], every_s: float = LOOK_S) -> None:
        """Wait for a condition; DemoFailed if a server ends, or if no client makes progress."""
        before, moved = self.state, time.monotonic()
        while not condition():
            time.sleep(every_s)
            self.state = self.clients.ask_all(self.clients, "status")
            for name, code in self.cluster.dead():
                words = self.cluster.last_lines(name)
                raise DemoFailed(f"{name} ended unexpectedly, exit code {code}:\n{words}")
            if self.state != before:
                before, moved = self.state, time.monotonic()
            elif time.monotonic() > moved + STUCK_S:
                raise DemoFailed(
                    f"{self.step}: no progress for {STUCK_S:.0f} s. {self.acked:,} of "
                    f"{self.target:,} events acknowledged; clients: {self.state}"
                )
            self.progress(self.step, "", self.acked)

    def reached(self, events: int, *regions: str) -> bool:
        """Whether `events` events are acknowledged and have reached every subscriber (of these
        regions)."""
        # After n events the position of a subscriber, the next one to be read, is n + 1.
        return self.acked >= events and all(
            self.least(region) > events for region in (regions or self.readers)
        )

    def least(self, region: str) -> int:
        """The position of the subscriber in this region that is furthest behind."""
        return min(self.state.get(name, {}).get("position", 1) for name in self.readers[region])

    @property
    def acked(self) -> int:
        return self.state.get("publisher", {}).get("acked", 0)

    # ------------------------------------------------------------ helpers

    def _step(self, what: str) -> None:
        self.step = what
        self.progress(what, "", self.acked)

    def _log(self, client: str) -> Path:
        return self.folder / f"{client}.npz"

    def _publish(self, step: str, seconds: float) -> int:
        """Let the publisher publish the step's share of the events; the last step has the rest."""
        events = self.result.events
        count = round(events * SHARES[step]) if step in SHARES else events - self.target
        self.target += count
        self.clients.ask("publisher", "publish", count, seconds)
        return count

    def _fault(self, what: str) -> Fault:
        self.result.faults.append(fault := Fault(what, self._now_s()))
        return fault

    def _now_s(self) -> float:
        return round((time.monotonic_ns() - self.began_ns) / 1e9, 3)

    def _status_part(self, region: str, what: str, place: str = "tail") -> Any:
        """A part of a region's status, from the replica at this place of its chain."""
        found = [look(self.cluster, node.name) for node in self.layout.of(region)]
        there = [s for s in found if (s.get("chain") or {}).get("place") in (place, "alone")]
        return (there or found)[0].get(what) or {}

    def _has_source(self) -> bool:
        """Record the region from which west gets the stream, unless it is the owner. Returns
        whether it is another region, or all events have arrived."""
        streams = self._status_part(AWAY, "streams", "head")
        sources = [s["source"] for s in streams if s["name"] == STREAM and s["source"] != OWNER]
        self.result.switched_to = "".join(sources)
        return bool(sources) or self.reached(self.target)

    def _is_isolated(self) -> bool:
        """Whether no server has a session between west and another region, so that nothing more is
        sent into the cut links."""
        for node in self.layout.nodes:
            if node.role == "replica":
                links = look(self.cluster, node.name).get("links")
                if links is None:
                    return False
                across = [link for link in links if AWAY in (link["region"], node.region)]
                if any(link["up"] and link["region"] != node.region for link in across):
                    return False
        return True


def _reached_ns(marks: Marks, position: int) -> float:
    """When the position, or the number of acknowledged events, first was at least this value."""
    return float(marks.at_ns[np.searchsorted(marks.position, position)])
