"""The swarm scenario `gryphon`: filtered streams through trees of brokers.

Below one or two regions there are cells of brokers, drawn as a forest. Subscribers with random
filters join at brokers of the lowest cells and at the regions' replicas; they leave, change their
filter, crash and move to other brokers. Replicas and brokers crash and stall, links are cut, also
in one direction.

The verdict uses only what publishers and subscribers have observed. Which events a subscriber
should get is decided by Python functions, not by the filters that brokers evaluate.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from functools import partial
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
from msgspec import field

from surecast import registry
from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll, KeepLast, LatestPerKey, Policy
from surecast.columns.schema import read_schema
from surecast.columns.typed import Attributes
from surecast.core.endpoint import Follow, Following, OfferBatch, Open, Place, Unfollow
from surecast.core.machine import HandlerMachine, NodeContext
from surecast.core.streams import StreamSpec
from surecast.core.types import MS, SECOND, Machine
from surecast.protocols.gryphon.broker import DELIVERY, Broker
from surecast.protocols.gryphon.config import GryphonConfig
from surecast.protocols.gryphon.messages import Find, Found, Refused
from surecast.protocols.gryphon.pubend import Pubend
from surecast.protocols.gryphon.reader import Reader
from surecast.protocols.sprinkler.checks import Reading, Record, Tally
from surecast.sim.faults import Timed, draw
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast_lab.swarm.cluster_scenario import (
    ClusterPlan,
    ClusterScenario,
    draw_cluster,
    draw_span,
)
from surecast_lab.swarm.trial import WARM_UP_NS

__all__ = ["SCENARIO", "GryphonScenario", "Plan"]

SCHEMA = "sym string not null, qty int64, px float64"
SYMBOLS = ("IBM", "AAPL", "MSFT", "\u00dcB", "")
BROKER_FAULTS = ("crash", "crash", "pause", "cut", "one-way cut", "isolate")
PATIENCE_NS = 600 * SECOND  # publishers wait this long for an unreachable server; all come back
CHANGES = ("change", "leave", "move", "sleep")

# Counters of brokers that show how often a rule has decided something.
RULES = {
    "too-old": "B2, B8 not sent again",
    "stale-filter": "B7 filter not applied above",
    "fetched": "B9 reads at the owner",
    "silence": "B11 silences",
    "widened": "B13 filters widened",
    "expected": "acknowledgements expected",
    "nacks": "requests of brokers",
    "nacks-joined": "requests joined",
    "paused": "slow subscribers",
}

Event = tuple[str, int | None, float | None]  # the attributes of an event, as in SCHEMA


class Plan(ClusterPlan):
    filtered: dict[str, tuple[str, Policy]] = field(default_factory=dict)  # name → owner, rule
    cells: dict[str, list[str]] = field(default_factory=dict)
    above: dict[str, str] = field(default_factory=dict)
    # Subscriber → (servers, stream, start, number of its filter, when it joins)
    subscribers: dict[str, tuple[list[str], str, int, int, int]] = field(default_factory=dict)
    changes: list[tuple[int, str, str, int]] = field(default_factory=list)  # at, who, what, number
    broker_faults: list[Timed] = field(default_factory=list)
    settings: dict[str, int] = field(default_factory=dict)  # of brokers and replicas

    @property
    def timed_faults(self) -> Sequence[Timed]:
        return [*self.faults, *self.broker_faults]

    def brokers(self) -> list[str]:
        return [broker for cell in self.cells.values() for broker in cell]


def draw_plan(seed: int) -> Plan:
    rng = Random(f"{seed}/gryphon")
    plan = draw_cluster(rng, rng.randint(1, 2), Plan)
    places = list(plan.regions)
    plan.streams = {}
    rules: list[Policy] = [KeepAll(), KeepAll(), KeepLast(rng.randint(50, 300)), LatestPerKey()]
    plan.filtered = {
        f"f{number}": (rng.choice(places), rng.choice(rules)) for number in range(rng.randint(2, 4))
    }
    leaves = _draw_forest(rng, plan, places)
    plan.settings = {
        "gap_ns": rng.choice((2, 10, 200)) * MS,
        "repeat_ns": rng.choice((30, 600)) * MS,
        "expected_ns": rng.choice((1, 4)) * SECOND,
        "cache_bytes_max": rng.choice((2_000, 16 << 20)),
        "queue_bytes_max": rng.choice((1, 1_000, 1 << 20)),
        "filters_max": rng.choice((2, 10_000)),
        "again_max": rng.choice((20, 100_000)),
        "resume": rng.random() < 0.6,
        "nack_positions_max": rng.choice((5, 10_000)),
    }
    end_ns = WARM_UP_NS + plan.duration_ns
    for number in range(rng.randint(5, 40)):
        servers = rng.sample(leaves, min(len(leaves), rng.randint(1, 3)))
        if rng.random() < 0.25:
            place = rng.choice(places)
            servers = [f"{place}/{n}" for n in range(plan.regions[place])]
        start = rng.choice((1, 1, 0, rng.randint(1, 200)))
        at_ns = rng.choice((100 * MS, rng.randrange(end_ns)))
        stream = rng.choice(list(plan.filtered))
        who = f"sub{number}"
        plan.subscribers[who] = (servers, stream, start, rng.randrange(len(FILTERS)), at_ns)
        for _ in range(rng.choice((0, 0, 1, 2, 4))):
            what = rng.choice(CHANGES)
            when_ns = rng.randrange(at_ns, end_ns + SECOND)
            plan.changes.append((when_ns, who, what, rng.randrange(1 << 30)))
    pairs = _links(plan)
    for _ in range(rng.randint(3, 14)):
        at_ns, for_ns = draw_span(rng, plan.duration_ns)
        fault = draw(rng, plan.brokers(), pairs, BROKER_FAULTS)
        plan.broker_faults.append(Timed(at_ns, for_ns, fault))
    return plan


def _draw_forest(rng: Random, plan: Plan, places: list[str]) -> list[str]:
    """Draw cells of brokers, each below another one or below the regions. Returns the brokers at
    which subscribers may join."""
    inner: list[str] = []
    for number in range(rng.randint(1, 3)):
        cell = f"ib{number}"
        plan.cells[cell] = [f"{cell}/{n}" for n in range(rng.randint(1, 3))]
        if inner and rng.random() < 0.5:
            plan.above[cell] = rng.choice(inner)
        inner.append(cell)
    leaves = []
    for number in range(rng.randint(1, 5)):
        cell = f"sb{number}"
        plan.cells[cell] = [f"{cell}/0"]
        plan.above[cell] = rng.choice(inner)
        leaves += plan.cells[cell]
    return [*leaves, rng.choice(plan.cells[rng.choice(inner)])]


def _links(plan: Plan) -> list[tuple[str, str]]:
    """The pairs of neighbours."""
    pairs = []
    for cell, brokers in plan.cells.items():
        if cell in plan.above:
            above = plan.cells[plan.above[cell]]
        else:
            above = plan.replicas()
        pairs += [(a, b) for a in above for b in brokers]
        pairs += [(a, b) for a in brokers for b in brokers if a < b]
    return pairs


# ------------------------------------------------------------ filters, and what they mean


def _more(event: Event, than: int) -> bool:
    return event[1] is not None and event[1] > than


FILTERS: tuple[tuple[str, Callable[[Event], bool]], ...] = (
    ("", lambda _: True),
    ("sym == 'IBM'", lambda e: e[0] == "IBM"),
    ("sym in ('AAPL', '\u00dcB')", lambda e: e[0] in ("AAPL", "\u00dcB")),
    ("sym == ''", lambda e: e[0] == ""),
    ("qty > 90", lambda e: _more(e, 90)),
    ("qty >= 50.5", lambda e: _more(e, 50)),
    ("not qty > 50", lambda e: e[1] is not None and e[1] <= 50),
    ("not exists qty", lambda e: e[1] is None),
    ("px between 0.25 and 0.5", lambda e: e[2] is not None and 0.25 <= e[2] <= 0.5),
    ("sym == 'IBM' and qty > 50 or px > 0.9",
     lambda e: (e[0] == "IBM" and _more(e, 50)) or (e[2] is not None and e[2] > 0.9)),
    ("sym startswith 'A' and not (px > 0.5)",
     lambda e: e[0].startswith("A") and e[2] is not None and e[2] <= 0.5),
    ("qty > 1000000", lambda _: False),
)  # fmt: skip


@dataclass(slots=True)
class Subscriber:
    """A subscription as its application sees it."""

    name: str
    servers: tuple[str, ...]
    stream: str
    reading: Reading
    # (first position, number of the filter): which filter judges from this position on.
    filters: list[tuple[int, int]] = member(default_factory=list)
    joined: bool = False

    @property
    def where(self) -> int:
        return self.filters[-1][1]

    def wanted(self, seq: int, event: Event) -> bool:
        number = next(number for first, number in reversed(self.filters) if first <= seq)
        return FILTERS[number][1](event)


class GryphonScenario(ClusterScenario[Plan]):
    """`types`: subclasses that replace layer classes of the replicas; `broker`: one that replaces
    `Broker`. Tests pass subclasses that break one rule, and expect violations."""

    protocols: ClassVar[frozenset[str]] = frozenset({"gryphon"})

    def __init__(self, *, types: tuple[type[Any], ...] = (), broker: type[Broker] = Broker) -> None:
        super().__init__()
        self.types = types
        self.broker = broker
        self.plan = Plan({}, {}, {}, 0, 0, [], 0, False)
        self.subscribers: dict[str, Subscriber] = {}
        self.events: dict[str, dict[bytes, Event]] = {}  # stream → value → attributes
        self.keys: dict[bytes, bytes] = {}  # value → key
        self.did: Counter[str] = Counter()

    def draw(self, seed: int) -> Plan:
        return draw_plan(seed)

    def build(self, seed: int, plan: Plan, trace: Trace | None) -> World:
        self.plan = plan
        tree: dict[str, Any] = {
            "cells": {cell: tuple(brokers) for cell, brokers in plan.cells.items()},
            "above": plan.above,
        }
        options: dict[str, Any] = {**plan.settings, **tree}
        self.cluster = cluster = self.make_cluster(
            seed, plan, trace, server=options, publisher={"owner_ns": PATIENCE_NS},
            types=self.types, judges={DELIVERY: self._judge_stream}, subscribers=0,
        )  # fmt: skip
        for name in plan.brokers():
            self._add_broker(name, GryphonConfig(name, regions=cluster.regions, **options))
        for name, (owner, policy) in plan.filtered.items():
            cluster.records[name] = Record(name, policy)
            cluster.owners[name], cluster.deliveries[name] = owner, DELIVERY
            self.events[name] = {}
            spec = StreamSpec(policy, DELIVERY, read_schema(SCHEMA).text)
            cluster.world.at(0, f"{owner}/pub0", Open(name, spec))
        self._publish(plan, Random(f"{seed}/workload"))
        for who, (servers, stream, start, where, at_ns) in plan.subscribers.items():
            self._add_subscriber(who, servers, stream, start, where, at_ns)
        for at_ns, who, what, number in sorted(plan.changes):
            cluster.world.call(at_ns, partial(self._change, who, what, number))
        return cluster.world

    def _add_broker(self, name: str, config: GryphonConfig) -> None:
        config.validate()
        counters = self.cluster.counters[name] = Counter()
        kind = self.broker
        self.cluster.world.add(name, lambda ctx: kind(config, ctx.rng, counters))

    # ------------------------------------------------------------ publishers

    def _publish(self, plan: Plan, rng: Random) -> None:
        names = [f"k{i}".encode() for i in range(plan.keys)]
        for stream, (owner, _) in plan.filtered.items():
            for number in range(plan.publishers):
                at_ns, count = 100 * MS, 0
                while at_ns < WARM_UP_NS + plan.duration_ns:
                    at_ns += int(rng.expovariate(1 / (150 * MS)))
                    rows = rng.choice((1, 1, 2, 5, 20))
                    values = [f"{stream}.{number}.{count + i}".encode() for i in range(rows)]
                    events = [_draw_event(rng) for _ in range(rows)]
                    keys = rng.choices(names, k=rows)
                    count += rows
                    self._offer(at_ns, f"{owner}/pub{number}", stream, values, keys, events)

    def _offer(
        self, at_ns: int, publisher: str, stream: str, values: list[bytes], keys: list[bytes],
        events: list[Event],
    ) -> None:  # fmt: skip
        cluster = self.cluster
        self.events[stream].update(zip(values, events, strict=True))
        self.keys.update(zip(values, keys, strict=True))

        def do(world: World) -> None:
            stream_id = cluster.streams.get(stream)
            if stream_id is None:
                world.call(world.now_ns + 20 * MS, do)
                return
            cluster.records[stream].offered.update(dict.fromkeys(values))  # type: ignore[arg-type]
            cluster.offered.setdefault((publisher, stream), []).append(values)
            batch = Batch.of(stream_id, values, keys, attributes=_attributes(events))
            world.at(world.now_ns, publisher, OfferBatch(stream_id, batch, 1))

        cluster.world.call(at_ns, do)

    # ------------------------------------------------------------ subscribers

    def _add_subscriber(
        self, who: str, servers: Sequence[str], stream: str, start: int, where: int, at_ns: int
    ) -> None:
        world = self.cluster.world
        reading = Reading(who, position=start)
        subscriber = Subscriber(who, tuple(servers), stream, reading, [(max(start, 1), where)])
        self.subscribers[who] = subscriber
        self.cluster.counters[who] = counters = Counter[str]()

        def factory(ctx: NodeContext) -> Machine:
            if ctx.incarnation > 1:
                world.call(world.now_ns, lambda _: self._follow(subscriber))
            machine = registry.reader(DELIVERY, ctx, Place("", subscriber.servers))
            for part in getattr(machine, "layers", {"": machine}).values():
                part.counters = counters
            return machine

        world.add(who, factory)
        world.on_deliver(who, lambda _ns, _who, _id, batches: reading.take(batches))
        world.on_emit(who, lambda _ns, _who, event: _begin(subscriber, event))
        world.call(at_ns, lambda _: self._join(subscriber))

    def _join(self, subscriber: Subscriber) -> None:
        world = self.cluster.world
        if subscriber.stream not in self.cluster.streams:
            world.call(world.now_ns + 100 * MS, lambda _: self._join(subscriber))
            return
        subscriber.joined = True
        self._follow(subscriber)

    def _follow(self, subscriber: Subscriber) -> None:
        if not subscriber.joined or subscriber.reading.left:
            return
        world, stream = self.cluster.world, self.cluster.streams[subscriber.stream]
        text = FILTERS[subscriber.where][0]
        position = subscriber.reading.position
        world.at(world.now_ns, subscriber.name, Follow(stream, position, text))

    def _change(self, who: str, what: str, number: int, _world: World) -> None:
        """A subscriber changes its filter, leaves, moves to other servers, or sleeps."""
        subscriber, world = self.subscribers[who], self.cluster.world
        reading = subscriber.reading
        if not subscriber.joined or reading.left or world.machine(who) is None:
            return
        self.did[what] += 1
        if what == "change":
            if not reading.position:
                return  # it is not known where the first filter begins
            subscriber.filters.append((reading.position, number % len(FILTERS)))
            world.at(world.now_ns, who, Unfollow(self.cluster.streams[subscriber.stream]))
            self._follow(subscriber)
        elif what == "leave":
            reading.left = True
            world.at(world.now_ns, who, Unfollow(self.cluster.streams[subscriber.stream]))
        else:
            if what == "move":
                others = [*self.plan.brokers(), *self.plan.replicas()]
                subscriber.servers = (others[number % len(others)],)
            world.crash(who)
            asleep_ns = 20 * MS if what == "move" else number % (4 * SECOND)
            world.call(world.now_ns + asleep_ns, lambda w: w.restart(who))

    def handlers(self) -> dict[type[HandlerMachine], list[str]]:
        replicas = [node for nodes in self.cluster.regions.values() for node in nodes]
        return {
            Pubend: replicas,
            Broker: self.plan.brokers(),
            Reader: list(self.subscribers),
        }

    def is_expected(self, role: type[HandlerMachine], message: type[Any]) -> bool:
        """Positions of times are not asked for, and all filters are valid."""
        return message not in (Find, Found, Refused)

    # ------------------------------------------------------------ after healing

    def settled(self) -> bool:
        cluster = self.cluster
        if len(cluster.streams) < len(cluster.records) or cluster.unacknowledged():
            return False
        ends = {name: max(r.acked.values(), default=0) for name, r in cluster.records.items()}
        return all(
            subscriber.reading.left or subscriber.reading.position > ends[subscriber.stream]
            for subscriber in self.subscribers.values()
        )

    def unsettled(self) -> str:
        ends = {n: max(r.acked.values(), default=0) for n, r in self.cluster.records.items()}
        behind = {
            s.name: (s.stream, s.reading.position, s.servers)
            for s in self.subscribers.values()
            if not s.reading.left and s.reading.position <= ends[s.stream]
        }
        waiting = self.cluster.unacknowledged()
        return f"9 not everybody gets to the end {ends}: {behind}; unacknowledged {waiting}"

    def audit(self) -> list[str]:
        """In the end everything is acknowledged (guarantee 9)."""
        world = self.cluster.world
        limit_ns = world.now_ns + 60 * SECOND
        if world.run(limit_ns, until=lambda _: not self._not_final()):
            return []
        return [f"9 not all is acknowledged: {self._not_final()}"]

    def _not_final(self) -> list[str]:
        """Streams at their owners' replicas with brokers below that have not acknowledged all."""
        found = []
        for nodes in self.cluster.regions.values():
            for node in nodes:
                machine = self.cluster.world.machine(node)
                if machine is None:
                    continue
                layer = machine.layers["gryphon"]
                for line in layer.lines.values():
                    if layer.is_owner(line) and line.below and line.final < line.top:
                        found.append(f"{node} {line.info.name}: {line.final} of {line.top}")
        return found

    def clients_did(self) -> dict[str, int]:
        totals = sum(self.cluster.counters.values(), Counter[str]())
        return {**self.did, **{what: totals[f"gryphon.{name}"] for name, what in RULES.items()}}

    def _judge_stream(self, record: Record, tally: Tally) -> None:
        events, policy = self.events[record.stream], record.policy
        tally.published += len(record.offered)
        tally.acked += len(record.acked)
        seqs = {seq: value for value, seq in record.acked.items()}
        last_of = {self.keys[value]: seq for seq, value in sorted(seqs.items())}
        end = max(seqs, default=0) + 1
        for subscriber in self.subscribers.values():
            reading = subscriber.reading
            if subscriber.stream != record.stream or not subscriber.joined:
                continue
            tally.delivered += len(reading.events)
            tally.void += sum(hi - lo for lo, hi, _ in reading.voids)
            tally.misordered += len(reading.faults)
            tally.violations += [f"1 {fault}" for fault in reading.faults[:5]]
            got: dict[int, bytes] = {}
            for event in reading.events:
                got[event.seq] = event.value
                known = seqs.get(event.seq, event.value)
                if event.value not in events or known != event.value:
                    tally.violations.append(f"1 {reading.reader} got {event}, not {known!r}")
                elif not subscriber.wanted(event.seq, events[event.value]):
                    tally.violations.append(f"1 {reading.reader} got {event}, which does not pass")
            first = subscriber.filters[0][0]
            for seq, value in seqs.items():
                if not first <= seq < reading.position or seq in got:
                    continue
                if isinstance(policy, KeepLast) and seq < end - policy.n:
                    continue
                if isinstance(policy, LatestPerKey) and last_of[self.keys[value]] > seq:
                    continue
                if subscriber.wanted(seq, events[value]):
                    tally.lost += 1
                    tally.violations.append(f"1 {reading.reader} missed {seq} of {record.stream}")


def _begin(subscriber: Subscriber, event: Any) -> None:
    """A subscriber that reads from the latest position on learns which one this is."""
    if isinstance(event, Following) and not subscriber.reading.position:
        subscriber.reading.position = event.start
        subscriber.filters[0] = (event.start, subscriber.filters[0][1])


def _draw_event(rng: Random) -> Event:
    return (
        rng.choice(SYMBOLS),
        rng.choice((None, rng.randint(0, 100))),
        rng.choice((None, float("nan"), rng.random(), rng.random(), rng.random())),
    )


def _attributes(events: Sequence[Event]) -> Attributes:
    types = read_schema(SCHEMA).types
    schema = types.arrow_schema()
    columns = [
        pa.array(list(column), schema.types[i])
        for i, column in enumerate(zip(*events, strict=True))
    ]
    table = pa.RecordBatch.from_arrays(columns, schema=schema)
    return Attributes(types, len(events), table=table)


SCENARIO = GryphonScenario
