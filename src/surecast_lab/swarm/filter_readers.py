"""Clients that read with filters during faults in the simulator, and their judge.

Each client follows the streams of its region at a server, with a filter that changes at random
moments, also to none, and to filters that servers refuse. The judge knows the filters as Python
functions, and uses neither the parser nor the evaluator of the product. It requires:

- Every position is delivered once, in order: as an event, or as void.
- A position that is void as filtered has no event that passes the filter in force at this position.
- An event is the one that other readers got at this position.
- After healing, every client reaches the end of every stream, even if no event passes its filter.
- Servers apply the filters: of the events that do not pass, only those are delivered whose server
  refused the filter, or whose batch would have become larger.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import msgspec

from surecast.columns.batch import DATA, FILTERED, Batch
from surecast.core.endpoint import Follow, Following
from surecast.core.types import MS, SECOND, LogId
from surecast.protocols.sprinkler.checks import Event
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.subscriber import Subscriber
from surecast.sim.world import World
from surecast_lab.swarm.cluster import Cluster

__all__ = ["FILTERS", "FilterChange", "FilterPlan", "FilterReaders", "draw_filters"]

FINISH_NS = 30 * SECOND  # simulated time in which all clients must reach the ends
SHOWN_MAX = 5

Key = bytes | None
# Text → the same test of an event's key in Python. The last ones are refused by every server.
FILTERS: dict[str, Callable[[Key], bool]] = {
    "": lambda _: True,
    "key == 'k1'": lambda key: key == b"k1",
    "not exists key": lambda key: key is None,
    "exists key and not key startswith 'k1'": lambda key: (
        key is not None and not key.startswith(b"k1")
    ),
    "key in ('k0', 'k2', 'k10') or key == ''": lambda key: key in (b"k0", b"k2", b"k10", b""),
    "key between 'k2' and 'k4'": lambda key: key is not None and b"k2" <= key <= b"k4",
    "key == 'nobody has this key'": lambda _: False,
    "key == 'k1' and": lambda _: True,
    "colour == 'red'": lambda _: True,
}
REFUSED = ("key == 'k1' and", "colour == 'red'")


class FilterChange(msgspec.Struct):
    """A client replaces its filter of one stream."""

    at_ns: int
    node: str
    stream: str
    where: str


class FilterPlan(msgspec.Struct):
    nodes: list[str]
    first: dict[str, str]  # node → its filter at the beginning
    changes: list[FilterChange]


def draw_filters(
    rng: Random, regions: list[str], streams: list[str], start_ns: int, duration_ns: int
) -> FilterPlan:
    nodes = [f"{rng.choice(regions)}/filter{number}" for number in range(rng.randint(2, 4))]
    texts = list(FILTERS)
    changes = []
    for _ in range(rng.randint(2, 8)):
        at_ns, node = start_ns + rng.randrange(duration_ns), rng.choice(nodes)
        stream = rng.choice(streams)
        for _ in range(rng.choice((1, 1, 10))):  # also while batches of earlier filters arrive
            changes.append(FilterChange(at_ns, node, stream, rng.choice(texts)))
            at_ns += rng.randrange(40 * MS)
    return FilterPlan(nodes, {node: rng.choice(texts) for node in nodes}, changes)


@dataclass(slots=True)
class Read:
    """What one client got of one stream."""

    node: str
    position: int = 1
    rules: list[tuple[int, str]] = field(default_factory=list)  # (first position, filter)
    events: list[Event] = field(default_factory=list)
    voids: list[tuple[int, int, int]] = field(default_factory=list)  # (lo, hi, reason)
    awaited: int = 0  # the token of a Follow that the machine has not confirmed

    def take(self, batch: Batch) -> str:
        """Take a delivered batch as a client does. Returns what is wrong with it."""
        if self.awaited and batch.is_filtered:
            return ""  # perhaps filtered by an earlier filter; it will come again
        if batch.hi <= self.position:
            return ""
        if batch.lo > self.position:
            if self.awaited:
                return ""
            return f"{self.node}: at {self.position}, gap before [{batch.lo}, {batch.hi})"
        part = batch.slice(self.position, batch.hi)
        self.position = part.hi
        for row in part.to_rows():
            self.events.append(Event(row.seq, row.time_ns, part.kind, row.key, row.value, row.tag))
        los, his, reasons = part.void_runs()
        self.voids += zip(los.tolist(), his.tolist(), reasons.tolist(), strict=True)
        return ""

    def rule_at(self, seq: int) -> str:
        return [where for begin, where in self.rules if begin <= seq][-1]


class FilterReaders:
    """The clients of a plan in a cluster."""

    def __init__(self, cluster: Cluster, plan: FilterPlan) -> None:
        self.cluster, self.plan = cluster, plan
        self.reads: dict[tuple[str, LogId], Read] = {}
        self.violations: list[str] = []
        self.tokens = 0
        self.changed = 0
        self.dropped = 0  # events that passed no filter, and were left out by a server
        self.kept = 0  # events that did not pass, and were delivered
        for node in plan.nodes:
            self._add(node)
        cluster.world.call(0, self._follow_new)
        for change in plan.changes:
            cluster.world.call(change.at_ns, partial(self._change, change))

    def _add(self, node: str) -> None:
        cluster = self.cluster
        config = SubscriberConfig(cluster.regions[node.split("/")[0]])
        counters = cluster.counters[node] = Counter()
        cluster.world.on_deliver(node, self._on_deliver)
        cluster.world.on_emit(node, self._on_emit)
        cluster.world.add(node, lambda _ctx: Subscriber(config, {}, counters))

    def _follow_new(self, world: World) -> None:
        """Follow the streams that exist, and look for further ones later."""
        for stream in self.cluster.streams.values():
            for node in self.plan.nodes:
                if (node, stream) not in self.reads:
                    self.reads[node, stream] = Read(node)
                    self._follow(node, stream, self.plan.first[node], world)
        world.call(world.now_ns + SECOND // 2, self._follow_new)

    def _change(self, change: FilterChange, world: World) -> None:
        stream = self.cluster.streams.get(change.stream)
        if (change.node, stream) in self.reads:
            assert stream is not None
            self.changed += 1
            self._follow(change.node, stream, change.where, world)

    def _follow(self, node: str, stream: LogId, where: str, world: World) -> None:
        read = self.reads[node, stream]
        read.rules.append((read.position, where))
        self.tokens += 1
        read.awaited = self.tokens
        world.at(world.now_ns, node, Follow(stream, read.position, where, self.tokens))

    def _on_emit(self, _now_ns: int, node: str, event: Any) -> None:
        if isinstance(event, Following) and event.token == self.reads[node, event.stream].awaited:
            self.reads[node, event.stream].awaited = 0

    def _on_deliver(
        self, _now_ns: int, node: str, stream: LogId, batches: tuple[Batch, ...]
    ) -> None:
        read = self.reads[node, stream]
        for batch in batches:
            if wrong := read.take(batch):
                self.violations.append(f"{self.cluster.names[stream]}: {wrong}")

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """Called after healing: wait until every client is at the end of each stream, and judge."""
        cluster, world = self.cluster, self.cluster.world

        def behind() -> list[str]:
            ends = {
                stream: min(cluster.position(region, name) for region in cluster.readers_of(name))
                for name, stream in cluster.streams.items()
            }
            return [
                f"{cluster.names[stream]}: {node} is at {read.position} of {ends[stream]}"
                for (node, stream), read in self.reads.items()
                if read.position < ends[stream]
            ]

        if not world.run(world.now_ns + FINISH_NS, until=lambda _: not behind()):
            self.violations += [f"did not reach the end: {one}" for one in behind()[:SHOWN_MAX]]
        for (_, stream), read in self.reads.items():
            self.violations += self._judge(stream, read)[:SHOWN_MAX]

    def _judge(self, stream: LogId, read: Read) -> list[str]:
        name = self.cluster.names[stream]
        record = self.cluster.records[name]
        known: dict[int, Event] = {}
        for other in (*record.readings, *record.audits):
            known |= {event.seq: event for event in other.events}
        found = []
        for event in read.events:
            if known.get(event.seq, event) != event or event.kind != DATA:
                if event.kind == DATA:
                    found.append(f"{name}: {read.node} got {event}, others {known[event.seq]}")
                continue
            self.kept += not FILTERS[read.rule_at(event.seq)](event.key)
        for lo, hi, reason in read.voids:
            if reason != FILTERED:
                continue
            for seq in range(lo, hi):
                where, there = read.rule_at(seq), known.get(seq)
                if where in REFUSED or not where:
                    found.append(f"{name}: {read.node}: {seq} is filtered by {where!r}")
                elif there is not None and (there.kind != DATA or FILTERS[where](there.key)):
                    found.append(f"{name}: {read.node} did not get {there}, filter {where!r}")
                self.dropped += 1
        return found

    def counts(self) -> dict[str, int]:
        return {
            "filters changed": self.changed,
            "events dropped by filters": self.dropped,
            "events delivered that do not pass": self.kept,
        }
