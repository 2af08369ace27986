"""One seed of nakcast's swarm: nakcast and broadcast streams on the same chains, under faults.

Links between readers and servers lose, duplicate and reorder datagrams all the time. Servers repeat
only a limited number of positions, which is drawn, so that readers which were away lose some. In
half of the seeds one replica starts without the protocol: streams of the delivery are refused in
its region until it is replaced. The verdict on the streams comes from the clients' records alone
(`protocols.nakcast.checks`, `protocols.sprinkler.checks`). In addition the replicas are checked at
the end: no layer knows a stream of the other delivery, and a nakcast stream is in no other region.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar

from msgspec import field

from surecast.columns.retention import KeepAll, KeepLast, Policy
from surecast.core.compose import scope_tag
from surecast.core.machine import HandlerMachine
from surecast.core.streams import StreamSpec
from surecast.core.types import MS, SECOND
from surecast.protocols.nakcast import checks
from surecast.protocols.nakcast.checks import CHECKS, Given
from surecast.protocols.nakcast.reader import Reader
from surecast.protocols.sprinkler.checks import Reading, Record, Tally
from surecast.sim.faults import Timed, draw
from surecast.sim.links import Link
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast_lab.swarm.cluster import Cluster
from surecast_lab.swarm.cluster_scenario import (
    ClusterPlan,
    ClusterScenario,
    draw_cluster,
    draw_span,
)
from surecast_lab.swarm.trial import WARM_UP_NS
from surecast_lab.swarm.workload import draw_workload

__all__ = ["SCENARIO", "NakcastScenario", "Plan"]

DELIVERY = "nakcast"
REPLACED_NS = WARM_UP_NS  # when the replica that lacks the protocol is replaced
READER_FAULTS = ("crash", "pause", "cut", "one-way cut", "isolate", "degrade")
PATIENCE_NS = 600 * SECOND  # of publishers without a reachable server: it will come back


class Plan(ClusterPlan):
    nakcast_streams: dict[str, tuple[str, Policy]] = field(
        default_factory=dict
    )  # name → (owner, retention)
    readers: list[str] = field(default_factory=list)
    reader_faults: list[Timed] = field(default_factory=list)
    link: dict[str, Any] = field(default_factory=dict)  # between readers and servers
    settings: dict[str, int] = field(default_factory=dict)  # of the servers
    lacks: str = ""  # the replica that starts without the protocol

    @property
    def timed_faults(self) -> Sequence[Timed]:
        return [*self.faults, *self.reader_faults]


def draw_plan(seed: int) -> Plan:
    rng = Random(f"{seed}/nakcast")
    plan = draw_cluster(rng, rng.randint(1, 3), Plan)
    places = list(plan.regions)
    plan.streams = dict(list(plan.streams.items())[:2])
    plan.nakcast_streams = {
        f"n{number}": (rng.choice(places), _draw_policy(rng)) for number in range(rng.randint(1, 3))
    }
    plan.readers = [f"{place}/nak{n}" for place in places for n in range(rng.randint(1, 2))]
    plan.reader_faults = _draw_faults(rng, plan)
    plan.link = {
        "loss": rng.choice((0.0, 0.05, 0.3)),
        "duplicate": rng.choice((0.0, 0.1)),
        "reorder": rng.choice((0.0, 0.2)),
        "jitter_ns": rng.choice((0, 2 * MS)),
    }
    plan.settings = {
        "repair_max": rng.choice((20, 100, 100, 100_000)),
        "datagram_bytes_max": rng.choice((512, 8 << 10)),
        "answers_max": rng.choice((2, 256)),
        "answer_bytes_max": rng.choice((1_000, 256 << 10)),
        "reads_max": rng.choice((1, 16)),
    }
    several = [place for place, count in plan.regions.items() if count > 1]
    if several and rng.random() < 0.5:
        place = rng.choice(several)
        plan.lacks = f"{place}/{rng.randrange(plan.regions[place])}"
    return plan


def _draw_policy(rng: Random) -> Policy:
    return rng.choice((KeepAll(), KeepLast(rng.randint(5, 80))))


def _draw_faults(rng: Random, plan: Plan) -> list[Timed]:
    """Draw faults of readers, and of the links between them and their servers."""
    found = []
    for _ in range(rng.randint(2, 8)):
        name = rng.choice(plan.readers)
        region = name.split("/")[0]
        pairs = [(name, f"{region}/{n}") for n in range(plan.regions[region])]
        at_ns, for_ns = draw_span(rng, plan.duration_ns)
        found.append(Timed(at_ns, for_ns, draw(rng, [name], pairs, READER_FAULTS)))
    return found


class NakcastScenario(ClusterScenario[Plan]):
    """`types` replace layer classes of the replicas: tests pass subclasses that break one rule."""

    protocols: ClassVar[frozenset[str]] = frozenset({DELIVERY})

    def __init__(self, *, types: tuple[type[Any], ...] = ()) -> None:
        super().__init__()
        self.types = types
        self.repair_max = 0
        self.nakcast_streams: dict[str, tuple[str, Policy]] = {}
        self.lost = 0  # positions

    def draw(self, seed: int) -> Plan:
        return draw_plan(seed)

    def build(self, seed: int, plan: Plan, trace: Trace | None) -> World:
        self.repair_max, self.nakcast_streams = plan.settings["repair_max"], plan.nakcast_streams
        self.cluster = cluster = self.make_cluster(
            seed,
            plan,
            trace,
            server=plan.settings,
            publisher={"owner_ns": PATIENCE_NS},
            types=self.types,
            without={plan.lacks: {DELIVERY}} if plan.lacks else None,
            judges={DELIVERY: self._judge_stream},
        )
        for name, (owner, policy) in plan.streams.items():
            cluster.open(name, owner, policy)
        self._open_nakcast_streams(plan, cluster)
        for name in plan.readers:
            region = name.split("/")[0]
            cluster.add_reader(name, DELIVERY)
            for server in cluster.regions[region]:
                cluster.world.set_link(name, server, Link(300_000, **plan.link))
        rng, end_ns = Random(f"{seed}/workload"), WARM_UP_NS + plan.duration_ns
        draw_workload(cluster, rng, plan.streams, plan.publishers, plan.keys, end_ns)
        draw_workload(
            cluster, rng, plan.nakcast_streams, plan.publishers, plan.keys, end_ns, collects=False
        )
        return cluster.world

    def _open_nakcast_streams(self, plan: Plan, cluster: Cluster) -> None:
        region = plan.lacks.split("/")[0]
        if plan.lacks:
            spec = StreamSpec(KeepAll(), DELIVERY)
            cluster.expect_refusal(SECOND, f"{region}/pub0", "refused", "no-delivery", spec)
            replica = plan.lacks
            cluster.world.call(REPLACED_NS, lambda _: cluster.reinstall(replica))
        for name, (owner, policy) in plan.nakcast_streams.items():
            # The head learns the protocols of the new replica when a session with it opens.
            at_ns = REPLACED_NS + SECOND if owner == region else 0
            cluster.open(name, owner, policy, at_ns, delivery=DELIVERY, read_in=[owner])

    def handlers(self) -> dict[type[HandlerMachine], list[str]]:
        replicas = [node for nodes in self.cluster.regions.values() for node in nodes]
        layers = dict.fromkeys(self.layers(), replicas)
        return {**layers, Reader: self.cluster.readers_by(DELIVERY)}

    # ------------------------------------------------------------ after healing

    def audit(self) -> list[str]:
        """Read every replica with new readers."""
        found = super().audit()
        for nodes in self.cluster.regions.values():
            for node in nodes:
                self.cluster.add_reader(f"{node}.audit", DELIVERY, servers=(node,))
        world = self.cluster.world
        if not world.run(world.now_ns + 30 * SECOND, until=lambda _: self.settled()):
            found.append(f"a new reader did not reach the end: {self.unsettled()}")
        return found

    def judge(self) -> Tally:
        tally = super().judge()
        tally.violations += self._mixed()
        return tally

    def clients_did(self) -> dict[str, int]:
        return {"positions reported lost": self.lost}

    def _judge_stream(self, record: Record, tally: Tally) -> None:
        keep = record.policy.n if isinstance(record.policy, KeepLast) else 0
        everybody = [*record.readings, *record.audits]
        readings = [_given(reading) for reading in everybody]
        seen = checks.Record(
            record.stream, self.repair_max, keep, record.offered, record.acked, readings
        )
        tally.published += len(record.offered)
        tally.acked += len(record.acked)
        for reading in everybody:
            tally.delivered += len(reading.events)
            tally.void += sum(hi - lo for lo, hi, _ in reading.voids)
            tally.misordered += len(reading.faults)
            tally.violations += [f"{record.stream}: {fault}" for fault in reading.faults[:5]]
            self.lost += sum(hi - lo for lo, hi, _ in reading.lost)
        for check in CHECKS:
            tally.violations += check(seen)[:5]

    def _mixed(self) -> list[str]:
        """Violations of separation: a layer that knows streams of the other delivery, a region that
        has nakcast streams of another one, or a log written by the nakcast layer."""
        cluster, wrong = self.cluster, []
        homes = {
            cluster.streams[n]: owner
            for n, (owner, _) in self.nakcast_streams.items()
            if n in cluster.streams
        }
        ours = set(homes)
        for region, nodes in cluster.regions.items():
            for node in nodes:
                machine = cluster.world.machine(node)
                if machine is None:
                    continue
                layers = machine.layers
                here = ours.intersection(layers["streams"].streams)
                if away := [stream for stream in here if homes[stream] != region]:
                    wrong.append(f"{node} has streams of another region: {away}")
                if set(layers[DELIVERY].streams) != here:
                    wrong.append(f"{node}: {DELIVERY} knows other streams than its own")
                if ours.intersection(layers["sprinkler"].streams):
                    wrong.append(f"{node}: broadcast knows streams of {DELIVERY}")
                disk = cluster.world.nodes[node].disk
                own = [log for log in disk.logs() if disk.scope_of(log) == scope_tag(DELIVERY)]
                if own:
                    wrong.append(f"{node}: {DELIVERY} wrote to {len(own)} logs")
        return wrong


def _given(reading: Reading) -> checks.Reading:
    """Convert a reading to the type of nakcast's checks. (`Reading` itself checks the order.)"""
    given = [Given("event", event.seq, event.seq + 1, event.value) for event in reading.events]
    given += [Given("void", lo, hi) for lo, hi, _ in reading.voids]
    given += [Given("lost", lo, hi) for lo, hi, _ in reading.lost]
    return checks.Reading(reading.reader, 1, sorted(given, key=lambda one: one.lo))


SCENARIO = NakcastScenario
