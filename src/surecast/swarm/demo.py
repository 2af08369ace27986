"""The demo: a real deployment on this machine, a million events, a cut line, a killed server.

Three regions of two replicas and a witness each, as `surecast up` starts them, data on disk, a
wide-area network between them; a publisher in east, two mesh subscribers in every region and a thin
one in west, each a process that uses the client library. The story:

    steady     events flow to all regions
    cut        the line east – west is cut; west goes on through north
    failover   the head of east is killed (SIGKILL) and started again two seconds later
    away       the line north – west is cut, too: west is alone, and most of the events are
               published, as fast as they are acknowledged
    catch-up   both lines are mended; west is sent what is not outdated by now
    last       a few more events, to see that all is well
    audit      every process ends, and their ledgers are judged: by Spark, whose verdict counts,
               and by numpy, which has to agree

Every step waits for a condition, not for the clock, so that a slow machine lives the same story.
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
from surecast.runtime.relay import RelayProcess, RelaySpec
from surecast.server.cluster import Cluster
from surecast.swarm import demo_clients
from surecast.swarm.audit import judge
from surecast.swarm.children import Child, Children
from surecast.swarm.demo_audit import EarlySpark, Latency, agreed, check_spark
from surecast.swarm.demo_clients import STREAM, ClientSpec
from surecast.swarm.demo_cluster import bytes_into, free_layout, lead_through, look, wire
from surecast.swarm.ledger import Marks, OfferedEvents, ReadEvents, load_offered, load_read
from surecast.swarm.traces import trace_offered, trace_read

__all__ = ["Demo", "DemoFailed", "run_demo"]

REGIONS, REPLICAS, MESHED = 3, 2, 2
OWNER, AWAY, THIRD = "east", "west", "north"
SHARES = {"steady": 0.1, "cut": 0.1, "failover": 0.1, "away": 0.65}  # of the events; then the last
BATCH_ROWS, BATCHES_MIN = 500, 400  # a small run has small batches, or its acts have too few
PACED_S = 4.0  # what the events of a quiet act take
LAST_S = 2.0
KEPT_LOOKS = 50  # at what regions keep, before they are told apart
DOWN_S = 2.0  # from the kill to the new start
READY_S_MAX = 60.0
STUCK_S = 60.0  # nothing has moved for so long: something is wrong
LISTEN_S = 0.05
LOOK_S = 0.2  # how often servers are asked for their state

Progress = Callable[[str, str, int], None]  # the act, a word on it, events acknowledged


class DemoFailed(SurecastError):
    """The story did not come to its end; the message says where it stood."""


class Fault(msgspec.Struct):
    """Something that was broken, and when; seconds from the first event on."""

    what: str
    begin_s: float
    end_s: float = 0.0


class Line(msgspec.Struct):
    """Where a client stood when, for the figure."""

    at_s: list[float]
    position: list[int]


class Demo(msgspec.Struct):
    """What a run leaves behind."""

    events: int
    seed: int
    tally: Tally
    judge: str  # who spoke: spark, numpy
    latency: dict[str, Latency]  # by region; empty if numpy spoke alone
    seconds: float  # all of it, from the first process to the verdict
    audit_s: float  # of that, the judging
    faults: list[Fault]
    lines: dict[str, Line]  # by reader, and "acknowledged"
    burst_events: int  # published while west was away ...
    burst_s: float  # ... within this time, acknowledged by two disks
    longest_pause_s: float  # between two acknowledgements around the failover
    down_s: float  # from the kill to the new start
    switched_to: str  # where west got its events from while its line to east was cut
    missed_events: int  # that west had not got when it came back ...
    missed_bytes: int  # ... as they were published
    shipped_bytes: int  # over its lines, until it had all
    catch_up_s: float
    kept: dict[str, int]  # events that each region still holds


def run_demo(
    events: int, seed: int, folder: Path, progress: Progress, use_spark: bool = True
) -> Demo:
    """The whole story; `folder` gets configuration, data, logs, ledgers and the trace."""
    if use_spark:
        check_spark()
    began = time.monotonic()
    with ExitStack() as stack:
        story = Story(events, seed, folder, progress, stack, EarlySpark() if use_spark else None)
        try:
            story.begin()
            story.steady()
            story.cut()
            story.failover()
            story.away()
            story.catch_up()
            story.last()
            story.finish()
        finally:
            story.stop()
    return story.told(began)


class Story:
    """One run. Its methods are the acts, in order; each leaves figures behind."""

    def __init__(
        self,
        events: int,
        seed: int,
        folder: Path,
        progress: Progress,
        stack: ExitStack,
        spark: EarlySpark | None,
    ) -> None:
        self.events, self.seed, self.folder = events, seed, folder
        self.progress = progress
        self.spark = spark
        self.act = f"starting {REGIONS} regions × {REPLICAS} replicas, and their witnesses"
        self.faults: list[Fault] = []
        self.began_ns = 0
        self.target = 0  # events that were ordered so far
        self.switched_to = ""
        self.kept: dict[str, int] = {}
        progress(self.act, "", 0)
        self.relay = stack.enter_context(RelayProcess(RelaySpec(seed)))
        layout = lead_through(self.relay, free_layout(folder, REGIONS, REPLICAS))
        self.cluster = stack.enter_context(Cluster(layout))
        self.children = stack.enter_context(Children())

    # ------------------------------------------------------------ the acts

    def begin(self) -> None:
        self.cluster.wait_ready(
            READY_S_MAX, lambda done, all_: self.progress(self.act, f"{done} of {all_} ready", 0)
        )
        self.act = "connecting the clients"
        rows = max(1, min(BATCH_ROWS, self.events // BATCHES_MIN))
        self.publisher = self._client(
            "publisher", OWNER, events=self.events, batch_rows=rows, seed=self.seed
        )
        self.readers: dict[str, list[Child]] = {}
        for region in self.cluster.layout.regions():
            names = [f"{region}-mesh-{i + 1}" for i in range(MESHED)]
            self.readers[region] = [self._client(name, region, mesh=True) for name in names]
        self.readers[AWAY].append(self._client(f"{AWAY}-thin", AWAY, voids=True))
        self.until(lambda: self.children.every("ready"))

    def steady(self) -> None:
        self.act = "events flow to all regions"
        if self.spark is not None:
            self.spark.start()  # a quiet act: there is time for it
        self.began_ns = time.monotonic_ns()
        self._publish("steady", PACED_S)
        self.until(lambda: self.reached(self.target))

    def cut(self) -> None:
        self.act = f"line {OWNER} – {AWAY} cut: {AWAY} goes on through {THIRD}"
        self.relay.cut(wire(OWNER, AWAY))
        self.line_fault = self._fault(f"line {OWNER} – {AWAY} cut")
        self._publish("cut", PACED_S)
        self.until(self._has_source, LOOK_S)
        self.until(lambda: self.reached(self.target))

    def failover(self) -> None:
        head = self._head(OWNER)
        self.act = f"{head}, the head of {OWNER}, killed"
        self._publish("failover", PACED_S)
        under_way = self.acked + 1
        self.until(lambda: self.acked >= under_way)
        self.cluster.kill(head)
        fault = self._fault(f"{head} killed")
        self.killed_ns = time.monotonic_ns()
        back_ns = self.killed_ns + int(DOWN_S * 1e9)
        self.until(lambda: time.monotonic_ns() >= back_ns)
        self.act = f"{head} started again: publishes wait until it has joined"
        self.cluster.start(head)
        self.until(lambda: self.acked >= self.target)
        self.until(lambda: len(self._chain(OWNER).get("members", ())) == REPLICAS, LOOK_S)
        fault.end_s = self._now_s()
        self.until(lambda: self.reached(self.target))
        self.failover_ended_ns = time.monotonic_ns()

    def away(self) -> None:
        self.act = f"line {THIRD} – {AWAY} cut, too: {AWAY} is alone"
        self.relay.cut(wire(THIRD, AWAY))
        self.away_fault = self._fault(f"{AWAY} alone")
        self.until(self._is_alone, LOOK_S)
        self.missed_from = self.least(AWAY)
        self._bytes_before = bytes_into(self.relay, AWAY, [OWNER, THIRD])
        raw_before = self.publisher.state["raw_bytes"]
        self.burst_from_ns, self.burst_from = time.monotonic_ns(), self.target
        self._publish("away", 0.0)
        self.until(lambda: self.reached(self.target, OWNER, THIRD))
        self.raw_bytes = self.publisher.state["raw_bytes"] - raw_before

    def catch_up(self) -> None:
        self.act = f"lines mended: {AWAY} catches up"
        self.mended_ns = time.monotonic_ns()
        self.relay.mend(wire(OWNER, AWAY))
        self.relay.mend(wire(THIRD, AWAY))
        self.line_fault.end_s = self.away_fault.end_s = self._now_s()
        self.until(lambda: self.reached(self.target))
        shipped = bytes_into(self.relay, AWAY, [OWNER, THIRD])
        self.shipped_bytes = shipped - self._bytes_before

    def last(self) -> None:
        self.act = "a few more events"
        self._publish("last", LAST_S)
        self.until(lambda: self.reached(self.target))

    def finish(self) -> None:
        """All has arrived: the clients write their ledgers and end."""
        self.act = "clients write down what they got"
        for _ in range(KEPT_LOOKS):  # retention is fed a moment after the events are there
            for region in self.cluster.layout.regions():
                streams = self._look(region).get("streams", [])
                self.kept[region] = next((s["live"] for s in streams if s["name"] == STREAM), 0)
            if len(set(self.kept.values())) == 1:
                break
            time.sleep(0.1)
        for child in self.children.all.values():
            child.tell(finish=True)
        self.until(lambda: self.children.every("saved"))

    def stop(self) -> None:
        """End the servers in order; what is left of them is ended by force, as in any case."""
        self.act = "stopping the servers"
        stopping = Thread(target=self.cluster.stop)
        stopping.start()
        while stopping.is_alive():
            stopping.join(LISTEN_S)
            self._tell()

    # ------------------------------------------------------------ the verdict

    def told(self, began: float) -> Demo:
        """Everything, once all processes have ended."""
        audit_began = time.monotonic()
        offered = load_offered(self._ledger("publisher"))
        names = {child.name: region for region, c in self.readers.items() for child in c}
        lines = {"acknowledged": self._line(offered.marks)}
        marks: dict[str, Marks] = {}
        end = max(child.state["position"] for r in self.readers.values() for child in r)

        def heard() -> Iterator[ReadEvents]:
            for name, region in names.items():
                ledger = load_read(self._ledger(name))
                marks[name] = ledger.marks
                if self.spark is not None:
                    trace_read(self.folder / "trace", STREAM, region, ledger)
                yield ledger

        tally = judge(offered, heard(), end, self._say_audit)
        latency: dict[str, Latency] = {}
        if self.spark is not None:
            tally, latency = self._judged_by_spark(self.spark, offered, tally)
        lines.update((name, self._line(found)) for name, found in marks.items())
        burst_events = round(self.events * SHARES["away"])
        return Demo(
            events=self.events,
            seed=self.seed,
            tally=tally,
            judge="numpy" if self.spark is None else "spark",
            latency=latency,
            seconds=time.monotonic() - began,
            audit_s=time.monotonic() - audit_began,
            faults=self.faults,
            lines=lines,
            burst_events=burst_events,
            burst_s=self._burst_s(offered.marks, self.burst_from + burst_events),
            longest_pause_s=self._longest_pause_s(offered.marks),
            down_s=DOWN_S,
            switched_to=self.switched_to,
            missed_events=self.burst_from + burst_events + 1 - self.missed_from,
            missed_bytes=self.raw_bytes,
            shipped_bytes=self.shipped_bytes,
            catch_up_s=self._catch_up_s(marks, self.burst_from + burst_events),
            kept=self.kept,
        )

    def _judged_by_spark(
        self, spark: EarlySpark, offered: OfferedEvents, tally: Tally
    ) -> tuple[Tally, dict[str, Latency]]:
        trace = self.folder / "trace"
        trace_offered(trace, STREAM, "publisher", offered)
        try:
            found = spark.audit(trace, self._say_audit)
        finally:
            spark.stop()
        regions = msgspec.to_builtins(found.regions)
        return agreed(found, tally), msgspec.convert(regions, dict[str, Latency])

    def _say_audit(self, words: str) -> None:
        act = "audit" if self.spark is None else "audit, by Spark and by numpy"
        self.progress(act, words, self.events)

    def _burst_s(self, marks: Marks, acked: int) -> float:
        """From the first event of the burst to the last acknowledgement."""
        at_ns = marks.at_ns[np.searchsorted(marks.position, acked)]
        return float(at_ns - self.burst_from_ns) / 1e9

    def _longest_pause_s(self, marks: Marks) -> float:
        """Between two acknowledgements, from the kill to the end of the act."""
        within = (marks.at_ns >= self.killed_ns) & (marks.at_ns <= self.failover_ended_ns)
        before = marks.at_ns[marks.at_ns < self.killed_ns][-1:]
        gaps = np.diff(np.concatenate((before, marks.at_ns[within])))
        return float(gaps.max(initial=0)) / 1e9

    def _catch_up_s(self, marks: dict[str, Marks], acked: int) -> float:
        """From the mending to the last subscriber in west that has all."""
        there = [marks[child.name] for child in self.readers[AWAY]]
        ends = [m.at_ns[np.searchsorted(m.position, acked + 1)] for m in there]
        return float(max(ends) - self.mended_ns) / 1e9

    def _line(self, marks: Marks) -> Line:
        at_s = ((marks.at_ns - self.began_ns) / 1e9).round(3)
        return Line(at_s.tolist(), marks.position.tolist())

    # ------------------------------------------------------------ waiting

    def until(self, condition: Callable[[], Any], every_s: float = LISTEN_S) -> None:
        """Wait for it, listening to the clients; DemoFailed if a server ends or nothing moves."""
        stands, moved = "", time.monotonic()
        while not condition():
            look_again = time.monotonic() + every_s
            while time.monotonic() < look_again:
                self.children.listen(LISTEN_S)
            for name, code in self.cluster.dead():
                words = self.cluster.last_lines(name)
                raise DemoFailed(f"{name} ended by itself, exit code {code}:\n{words}")
            if stands != (stands := self.stand()):
                moved = time.monotonic()
            elif time.monotonic() > moved + STUCK_S:
                raise DemoFailed(f"{self.act}: nothing has moved for {STUCK_S:.0f} s. {stands}")
            self._tell()

    def reached(self, events: int, *regions: str) -> bool:
        """Is everything acknowledged so far at every subscriber (of these regions)?"""
        return self.acked >= events and all(
            self.least(region) > events for region in (regions or self.readers)
        )

    def least(self, region: str) -> int:
        return min(int(child.state.get("position", 1)) for child in self.readers[region])

    @property
    def acked(self) -> int:
        publisher = self.children.all.get("publisher")
        return int(publisher.state.get("acked", 0)) if publisher is not None else 0

    def stand(self) -> str:
        """How far everybody is, in words."""
        at = {child.name: child.state.get("position") for child in self.children.all.values()}
        at.pop("publisher", None)
        return f"{self.acked:,} of {self.target:,} events acknowledged; subscribers at {at}"

    def _tell(self) -> None:
        self.progress(self.act, "", self.acked)

    # ------------------------------------------------------------ small things

    def _client(self, name: str, region: str, **rest: Any) -> Child:
        nodes = self.cluster.layout.of(region)
        role = "publisher" if name == "publisher" else "reader"
        url = "surecast://" + ",".join(node.listen for node in nodes)
        spec = ClientSpec(role, name, url, str(self._ledger(name)), **rest)
        log = self.folder / "logs" / f"{name}.log"
        return self.children.start(name, demo_clients.command(spec), log)

    def _ledger(self, name: str) -> Path:
        return self.folder / f"{name}.npz"

    def _publish(self, act: str, seconds: float) -> None:
        """Order the act's share of the events; the last act has what is left."""
        count = self.events - self.target
        if act in SHARES:
            count = round(self.events * SHARES[act])
        self.target += count
        self.publisher.tell(events=count, seconds=seconds)

    def _fault(self, what: str) -> Fault:
        fault = Fault(what, self._now_s())
        self.faults.append(fault)
        return fault

    def _now_s(self) -> float:
        return round((time.monotonic_ns() - self.began_ns) / 1e9, 3)

    def _look(self, region: str, place: str = "tail") -> dict[str, Any]:
        """The state of a region as the replica at this place of its chain knows it."""
        found = [look(self.cluster, node.name) for node in self.cluster.layout.of(region)]
        there = [s for s in found if (s.get("chain") or {}).get("place") in (place, "alone")]
        return (there or found)[0]

    def _chain(self, region: str) -> dict[str, Any]:
        return self._look(region).get("chain") or {}

    def _head(self, region: str) -> str:
        members = self._chain(region).get("members")
        if not members:
            raise DemoFailed(f"{region} has no chain: nobody there answers")
        return str(members[0])

    def _has_source(self) -> bool:
        """Who does west get its events from, now that it cannot get them from their owner?"""
        streams = self._look(AWAY, "head").get("streams", [])
        sources = [s["source"] for s in streams if s["name"] == STREAM and s["source"] != OWNER]
        self.switched_to = "".join(sources)
        return bool(self.switched_to) or self.reached(self.target)

    def _is_alone(self) -> bool:
        """No server has a session across west's border: nothing more is sent into its cut lines."""
        for node in self.cluster.layout.nodes:
            if node.role == "replica":
                links = look(self.cluster, node.name).get("links")
                if links is None:
                    return False
                across = [link for link in links if AWAY in (link["region"], node.region)]
                if any(link["up"] and link["region"] != node.region for link in across):
                    return False
        return True
