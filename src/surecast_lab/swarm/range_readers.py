"""Clients that read ranges of positions during faults in the simulator, and their judge.

They do what tasks of a batch job (Spark) do. Each client reads one range after the other; a new
request replaces a range that is not complete. Some ranges reach beyond the current end of the
stream, and some clients pause for a while. The judge compares the deliveries with the requests and
with the deliveries of the stream's other readers. It requires:

- Positions are delivered in order, without gaps, and none is outside the range.
- After healing, all existing positions of each client's current range are delivered.
- At each position there is the event that other readers got, and that was acknowledged there.
- A position that is void (its event is obsolete) is also void for the readers of the final audit,
  except in streams whose events expire.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import msgspec

from surecast.columns.batch import COLLECT
from surecast.columns.retention import KeepFor
from surecast.core.endpoint import Ended, Go, Hold, ReadRange, Short
from surecast.core.types import MS, SECOND, Input, LogId
from surecast.protocols.sprinkler.checks import Event, Reading, Record
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.fetcher import Fetcher
from surecast.sim.world import World
from surecast_lab.swarm.cluster import Cluster

__all__ = ["RangeRead", "RangeReaders", "draw_ranges"]

BEYOND = 1.2  # the greatest length of a range, as a share of the rest of the stream
FINISH_NS = 30 * SECOND  # simulated time in which the last ranges must be complete
SHOWN_MAX = 5


class RangeRead(msgspec.Struct):
    """One range. Its positions depend on the length of the stream at `at_ns`."""

    at_ns: int
    node: str
    stream: str
    start: float  # as a share of the stream
    length: float  # as a share of the rest of the stream
    holds_ns: int  # how long the reader pauses soon after its request; 0: no pause


def draw_ranges(
    rng: Random, regions: list[str], streams: list[str], start_ns: int, duration_ns: int
) -> list[RangeRead]:
    nodes = [f"{region}/range" for region in rng.sample(regions, rng.randint(1, 2))]
    return [
        RangeRead(
            start_ns + rng.randrange(duration_ns),
            rng.choice(nodes),
            rng.choice(streams),
            rng.random(),
            rng.random() * BEYOND,
            rng.randint(20 * MS, 500 * MS) if rng.random() < 0.3 else 0,
        )
        for _ in range(rng.randint(6, 12))
    ]


@dataclass(slots=True)
class Asked:
    """One requested range and its deliveries."""

    stream: LogId
    lo: int
    hi: int
    reading: Reading


class RangeReaders:
    """The range readers of a plan in a cluster."""

    def __init__(self, cluster: Cluster, plan: list[RangeRead]) -> None:
        self.cluster, self.plan = cluster, plan
        self.asked: dict[str, list[Asked]] = {}  # by node; the last one is being read
        self.shorts = 0
        self.ended = 0
        self.violations: list[str] = []
        for node in dict.fromkeys(one.node for one in plan):
            self._add(node)
        for one in plan:
            cluster.world.call(one.at_ns, partial(self._read, one))

    def _add(self, node: str) -> None:
        cluster = self.cluster
        config = SubscriberConfig(cluster.regions[node.split("/")[0]])
        counters = cluster.counters[node] = Counter()
        self.asked[node] = []
        cluster.callers.append(node)
        cluster.world.on_deliver(node, self._on_deliver)
        cluster.world.on_emit(node, self._on_emit)
        cluster.world.add(node, lambda _ctx: Fetcher(config, counters))

    def _end(self, stream: str) -> int:
        """The end of the stream by the acknowledgements of its publishers."""
        return max(self.cluster.records[stream].acked.values(), default=0) + 1

    def _read(self, one: RangeRead, world: World) -> None:
        stream, end = self.cluster.streams.get(one.stream), self._end(one.stream)
        if stream is None or end == 1:
            return  # the stream does not exist yet, or is empty
        lo = 1 + int(one.start * (end - 1))
        self._ask(one.node, stream, lo, lo + 1 + int(one.length * (end - lo)))
        if one.holds_ns:
            hold_at_ns = world.now_ns + one.holds_ns // 10
            self._schedule(hold_at_ns, one.node, Hold())
            self._schedule(hold_at_ns + one.holds_ns, one.node, Go())

    def _ask(self, node: str, stream: LogId, lo: int, hi: int) -> None:
        asked = Asked(stream, lo, hi, Reading(f"{node} [{lo}, {hi})", lo))
        self.asked[node].append(asked)
        self._schedule(self.cluster.world.now_ns, node, ReadRange(stream, lo, hi))

    def _schedule(self, at_ns: int, node: str, command: Input) -> None:
        self.cluster.world.at(at_ns, node, command)

    def _on_deliver(self, _now_ns: int, node: str, stream: LogId, batches: tuple[Any, ...]) -> None:
        asked = self.asked[node][-1]
        name, got = self.cluster.names[stream], f"[{batches[0].lo}, {batches[-1].hi})"
        if stream != asked.stream:
            self.violations.append(f"{asked.reading.reader}: got {got} of {name}, another stream")
            return
        asked.reading.take(batches)
        if batches[0].lo < asked.lo or batches[-1].hi > asked.hi:
            self.violations.append(f"{name}: {asked.reading.reader} got {got}, outside its range")

    def _on_emit(self, _now_ns: int, _node: str, event: Any) -> None:
        if isinstance(event, Ended):
            self._check_end(event)
            return
        assert isinstance(event, Short), event
        self.shorts += 1

    def _check_end(self, event: Ended) -> None:
        """Check that all acknowledged positions of a deleted stream are before its reported end."""
        name = self.cluster.names[event.stream]
        last = max(self.cluster.records[name].acked.values(), default=0)
        self.ended += 1
        if last >= event.end:
            self.violations.append(
                f"{name}: {last} was acknowledged, but it is reported to end at {event.end}"
            )

    # ------------------------------------------------------------ the end

    def finish(self, ends: dict[LogId, int]) -> None:
        """Called after healing and the end of publishing: complete the current ranges, let every
        client read every stream, and judge."""
        self._complete(ends)
        for stream, end in ends.items():
            for node in self.asked:
                self._ask(node, stream, 1, end)
            self._complete(ends)
        for ranges in self.asked.values():
            for asked in ranges:
                self._judge(asked)

    def _complete(self, ends: dict[LogId, int]) -> None:
        world = self.cluster.world
        last = [ranges[-1] for ranges in self.asked.values() if ranges]

        def all_read() -> bool:
            return all(a.reading.position >= min(a.hi, ends[a.stream]) for a in last)

        if not world.run(world.now_ns + FINISH_NS, until=lambda _: all_read()):
            got = {a.reading.reader: a.reading.position for a in last}
            self.violations.append(f"ranges were not read: {got}, streams end at {ends.values()}")

    def counts(self) -> dict[str, int]:
        """Ranges read in full and in part, and answers of servers whose copy is too short."""
        ranges = [asked for ranges in self.asked.values() for asked in ranges]
        done = sum(asked.reading.position == asked.hi for asked in ranges)
        return {
            "ranges read": done,
            "ranges read in part": len(ranges) - done,  # replaced, or ends after the stream
            "answers of shorter copies": self.shorts,
            **({"ranges after the end of a deleted stream": self.ended} if self.ended else {}),
        }

    # ------------------------------------------------------------ judging

    def _judge(self, asked: Asked) -> None:
        name, reading = self.cluster.names[asked.stream], asked.reading
        record = self.cluster.records[name]
        found = [*reading.faults, *_wrong_events(record, reading), *_wrong_voids(record, reading)]
        self.violations += [f"{name}: {fault}" for fault in found[:SHOWN_MAX]]


def _wrong_events(record: Record, reading: Reading) -> list[str]:
    """Events that differ from the event that other readers got, or that was acknowledged, at the
    same position."""
    known: dict[int, Event] = {}
    for other in (*record.readings, *record.audits):
        known |= {event.seq: event for event in other.events}
    acked = {seq: value for value, seq in record.acked.items()}
    found = []
    for event in reading.events:
        there, value = known.get(event.seq, event), acked.get(event.seq, event.value)
        if there != event or value != event.value:
            found.append(
                f"{reading.reader}: got {event}; others got {there}; {value!r} was acknowledged"
            )
        elif event.value not in record.offered and event.kind != COLLECT:  # servers append COLLECT
            found.append(f"{reading.reader}: nobody published {event}")
    return found


def _wrong_voids(record: Record, reading: Reading) -> list[str]:
    """Voids at positions where a later audit has an event."""
    if isinstance(record.policy, KeepFor):  # events expire also after the audits
        return []
    live = {event.seq for audit in record.audits for event in audit.events}
    return [
        f"{reading.reader}: [{lo}, {hi}) is void, but {seq} is not"
        for lo, hi, _ in reading.voids
        for seq in range(lo, hi)
        if seq in live
    ]
