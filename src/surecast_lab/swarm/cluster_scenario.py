"""Base classes of swarm scenarios with regions of replicas: drawing a cluster, and judging it.

A plan has 1-5 regions with chains of 1-3 replicas, streams with various retention rules,
publishers, and faults of servers and of the links between them. The scenario of a protocol derives
its plan from `ClusterPlan` and itself from `ClusterScenario`. It adds what is specific to the
protocol: streams of its delivery, readers, further faults, and a judge.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, TypeVar

import msgspec

from surecast.columns.retention import KeepAll, KeepFor, KeepLast, LatestPerKey, Policy
from surecast.core.machine import HandlerMachine
from surecast.core.types import MS, SECOND, protocols_of
from surecast.protocols.chain.service import ConfigService
from surecast.protocols.sprinkler.checks import Tally
from surecast.protocols.streams.publisher import Publisher
from surecast.protocols.streams.subscriber import Subscriber
from surecast.sim.faults import KINDS, Fault, Timed, Wipe, draw
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast.stacks import replica_layers
from surecast_lab.swarm.cluster import Cluster
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import WARM_UP_NS, Scenario

__all__ = ["ClusterPlan", "ClusterScenario", "draw_cluster", "draw_span", "reencoder"]


class ClusterPlan(msgspec.Struct):
    """The regions, their streams and publishers, and the faults of servers and links."""

    regions: dict[str, int]
    delays_ms: dict[str, int]
    streams: dict[str, tuple[str, Policy]]  # name → (owner, retention)
    publishers: int
    duration_ns: int
    faults: list[Timed]
    keys: int
    reencode: bool

    @property
    def timed_faults(self) -> Sequence[Timed]:
        return self.faults

    def delay_ns(self, a: str, b: str) -> int:
        return self.delays_ms[f"{min(a, b)}-{max(a, b)}"] * MS

    def replicas(self) -> list[str]:
        return [f"{r}/{n}" for r, count in self.regions.items() for n in range(count)]


C = TypeVar("C", bound=ClusterPlan)


def draw_cluster(rng: Random, count: int, kind: type[C]) -> C:
    """Draw a plan of `kind` with `count` regions; the subclass's own fields have their defaults."""
    names = ("east", "west", "north", "south", "centre")
    regions = {name: rng.randint(1, 3) for name in names[:count]}
    places = list(regions)
    delays = {f"{a}-{b}": rng.randint(5, 80) for a in places for b in places if a < b}
    policies: list[Policy] = [
        LatestPerKey(),
        KeepAll(),
        KeepLast(rng.randint(20, 200)),
        KeepFor(rng.randint(2, 10) * SECOND),
    ]
    rng.shuffle(policies)
    streams = {f"s{i}": (rng.choice(places), policies[i]) for i in range(rng.randint(2, 4))}
    duration_ns = rng.randint(8, 20) * SECOND
    publishers = max(2, rng.randint(1, 3))  # of each region, so that every stream has several
    plan = kind(regions, delays, streams, publishers, duration_ns, [], rng.randint(5, 60), False)
    plan.reencode = rng.random() < 0.3
    services = [f"{r}/config" for r in regions]
    nodes = plan.replicas() * 3 + services
    pairs = [(a, b) for a in places for b in places if a < b]
    pairs += [
        (f"{r}/{i}", f"{r}/{j}") for r, n in regions.items() for i in range(n) for j in range(i)
    ]
    pairs += [(f"{r}/config", f"{r}/{i}") for r, n in regions.items() for i in range(n)]
    kinds = (*KINDS, "crash", "crash", "cut", "wipe", "region")
    for _ in range(rng.randint(3, 14)):
        at_ns, for_ns = draw_span(rng, duration_ns)
        fault = rng.choice(kinds)
        if fault == "region":  # every replica of a region at about the same time
            region = rng.choice(places)
            for n in range(regions[region]):
                crash = draw(rng, [f"{region}/{n}"], pairs, ["crash"])
                late_ns = rng.randrange(50 * MS)
                plan.faults.append(Timed(at_ns + late_ns, for_ns + rng.randrange(SECOND), crash))
        else:
            plan.faults.append(Timed(at_ns, for_ns, draw(rng, nodes, pairs, [fault])))
    return plan


def draw_span(rng: Random, duration_ns: int) -> tuple[int, int]:
    """Draw when a fault begins, and how long it lasts."""
    at_ns = WARM_UP_NS + rng.randrange(duration_ns)
    return at_ns, int(min(rng.expovariate(1 / (1.5 * SECOND)), 8 * SECOND)) + 20 * MS


class ClusterScenario(Scenario[C]):
    """A scenario that runs on a `Cluster`."""

    # Coverage (how often each message handler ran) is counted for the layers of these protocols.
    protocols: ClassVar[frozenset[str]] = frozenset({"chain", "streams"})

    cluster: Cluster

    def __init__(self) -> None:
        self.wiped: dict[str, bool] = {}  # regions with a wiped disk

    def build(self, seed: int, plan: C, trace: Trace | None) -> World:
        self.cluster = self.make_cluster(seed, plan, trace)
        return self.cluster.world

    def make_cluster(self, seed: int, plan: C, trace: Trace | None, **options: Any) -> Cluster:
        """A cluster with the plan's regions and publishers; `options` are passed to `Cluster`."""
        return Cluster(
            seed,
            plan.regions,
            delay_ns=plan.delay_ns,
            publishers=plan.publishers,
            trace=trace,
            reencode=reencoder() if plan.reencode else None,
            **options,
        )

    @property
    def counters(self) -> Mapping[str, Counter[str]]:
        return self.cluster.counters

    def handlers(self) -> dict[type[HandlerMachine], list[str]]:
        cluster = self.cluster
        replicas = [node for nodes in cluster.regions.values() for node in nodes]
        return {
            **dict.fromkeys(self.layers(), replicas),
            Publisher: cluster.publishers,
            Subscriber: cluster.thin_readers(),
            ConfigService: [f"{region}/config" for region in cluster.regions],
        }

    def layers(self) -> list[type[HandlerMachine]]:
        """The layers of a replica that belong to `protocols`."""
        return [
            kind
            for kind in replica_layers().values()
            if self.protocols.issuperset(protocols_of(kind.handlers))
        ]

    # ------------------------------------------------------------ faults

    def allows(self, fault: Fault) -> bool:
        return not isinstance(fault, Wipe) or self._may_wipe(fault.name)

    def _may_wipe(self, name: str) -> bool:
        """Whether the disk of `name` may be wiped: only if another full member of the chain is
        running, and once per region. Chain replication does not promise to survive more."""
        region = name.split("/")[0]
        others = [m.name for m in self.cluster.members(region) if m.name != name]
        alive = any(self.cluster.world.machine(n) is not None for n in others)
        if name.endswith("/config") or not alive or region in self.wiped:
            return False
        self.wiped[region] = True
        return True

    def in_flight(self) -> bool:
        return self.cluster.unacknowledged() > 0

    def gone(self) -> Collection[str]:
        return self.cluster.gone

    # ------------------------------------------------------------ after healing

    def settled(self) -> bool:
        return self.cluster.settled()

    def unsettled(self) -> str:
        cluster = self.cluster
        machines = {name: cluster.world.machine(name) for name in cluster.publishers}
        waiting = {name: one.unacknowledged for name, one in machines.items() if one}
        ends = {
            name: {r: cluster.position(r, name) for r in cluster.readers_of(name)}
            for name in cluster.streams
        }
        return f"G9 no convergence after healing: unacknowledged {waiting}, positions {ends}"

    def audit(self) -> list[str]:
        if self.cluster.audit():
            return []
        return [f"a new reader did not reach the end: {self.unsettled()}"]

    def judge(self) -> Tally:
        return self.cluster.judge()

    def show(self, timeline: Timeline, heal_ns: int) -> None:
        timeline.watch(self.cluster, heal_ns)


def reencoder() -> Callable[[Any], Any]:
    """A function that encodes and decodes every message, as a real node does."""
    from surecast.core.wire import Codec
    from surecast.registry import message_types

    codec = Codec(message_types())

    def reencode(message: Any) -> Any:
        return codec.decode(memoryview(b"".join(codec.encode(message))))[0]

    return reencode
