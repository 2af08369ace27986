"""The swarm scenario `sprinkler`: a randomized fault test of the protocol between regions.

A seed determines 3-5 regions with chains of 1-3 replicas, streams with various retention rules,
publishers that retry, and faults, many of them while publishes are in flight. After healing, every
publish must be acknowledged within a bounded time, and every reader in every region must reach the
same end of each stream. Then new readers read every region from the first position. The verdict
uses the clients' records (`protocols.sprinkler.checks`) and a few checks of the state of replicas
and mesh clients (`damage.py`, `mesh_clients.py`).

A publisher may be in another region than the one that owns the stream; its own region then forwards
the events. Streams are created from any region. Further clients use named subscriptions, watch
patterns, send time queries and read ranges (`query_clients.py`, `range_readers.py`). None of this
paragraph applies to plans with mesh clients, which exchange events with each other. (A *plan* is
what a seed determines.) `sprinkler_mesh.py` draws such plans.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar

import msgspec

from surecast.columns.retention import KeepLast, Policy
from surecast.core.machine import HandlerMachine
from surecast.core.sessions import SESSION
from surecast.core.states import StateTable
from surecast.core.types import SECOND
from surecast.protocols.chain.messages import Patch, Wanted
from surecast.protocols.chain.states import LEARNER, REPLICA, SERVICE
from surecast.protocols.sprinkler.checks import Tally
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.sprinkler.messages import Doubt, Hide, RegionBehind
from surecast.protocols.streams.fetcher import Fetcher
from surecast.protocols.streams.inquirer import Inquirer
from surecast.protocols.streams.messages import (
    CursorChanged,
    CursorDelete,
    CursorReset,
    CursorsAre,
    Detach,
    FilterRefused,
    ListCursors,
    RangeLost,
)
from surecast.sim.faults import Crash, Fault, Pause, Timed
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast_lab.swarm import trial
from surecast_lab.swarm.cluster_scenario import ClusterPlan, ClusterScenario, draw_cluster
from surecast_lab.swarm.damage import DamagePlan, Damages, draw_damage
from surecast_lab.swarm.mesh_clients import MeshClients, MeshPlan
from surecast_lab.swarm.query_clients import (
    ONLY_HERE,
    QueryClients,
    QueryClientsPlan,
    draw_query_clients,
)
from surecast_lab.swarm.range_readers import draw_ranges
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import REJOIN_NS, SETTLE_NS, WARM_UP_NS, SeedResult
from surecast_lab.swarm.workload import draw_workload

__all__ = ["SCENARIO", "Plan", "Sprinkler", "draw_plan", "run_seed"]

MESH_SETTLE_NS = 15 * SECOND  # time to settle with meshes; most seeds need one second
DAMAGED = 0.5  # the share of seeds with damaged or rolled-back disks
NEED_DAMAGE = (RegionBehind, Patch, Wanted)  # sent only when a disk has lost something
# Named subscriptions are reset and deleted in `sprinkler_deletion.py`.
ADMINISTRATION = (CursorChanged, CursorDelete, CursorReset, CursorsAre, Detach, ListCursors)
# No seed sends these. The first three need diverging histories or lost positions, FilterRefused a
# reader with a filter (`sprinkler_filters.py`), and the others a client that administers named
# subscriptions.
NEVER_SENT = (Doubt, Hide, RangeLost, FilterRefused, *ADMINISTRATION)
PATIENCE_NS = 600 * SECOND  # publishers wait this long for the owning region; it always recovers


class Abroad(msgspec.Struct):
    """The parts that only a plan without mesh clients has: owners of names, publishers in other
    regions, late streams, settings of servers, and query clients."""

    owners: dict[str, str]  # the table of owners: prefix → region
    openers: dict[str, str]  # stream → the publisher that creates it
    publishers: dict[str, list[str]]  # stream → publishers of other regions
    late: dict[str, tuple[str, Policy, int]]  # streams created later: owner, retention, time
    server: dict[str, int]  # step sizes of retention and compaction, most of them small
    callers: QueryClientsPlan


class Plan(ClusterPlan):
    """What a seed draws."""

    mesh: MeshPlan | None = None
    abroad: Abroad | None = None
    damage: DamagePlan | None = None

    @property
    def timed_faults(self) -> Sequence[Timed]:
        return [*self.faults, *(self.damage.faults if self.damage else ())]


def draw_plan(seed: int) -> Plan:
    rng = Random(f"{seed}/plan")
    plan = draw_cluster(rng, rng.randint(3, 5), Plan)
    plan.abroad = _draw_abroad(Random(f"{seed}/abroad"), plan)
    plan.abroad.callers.ranges = draw_ranges(
        Random(f"{seed}/ranges"),
        list(plan.regions),
        [*plan.streams, *plan.abroad.late],
        WARM_UP_NS,
        plan.duration_ns,
    )
    rng = Random(f"{seed}/damage")
    if rng.random() < DAMAGED:
        plan.damage = draw_damage(rng, plan.regions, WARM_UP_NS, plan.duration_ns)
    return plan


def _draw_abroad(rng: Random, plan: Plan) -> Abroad:
    places = list(plan.regions)
    owners, openers = {}, {}
    late: dict[str, tuple[str, Policy, int]] = {}
    if rng.random() < 0.8:  # otherwise each region owns the streams created there
        owners = {"": rng.choice(places), "late": rng.choice(places), "late.b": rng.choice(places)}
        owners |= {name: owner for name, (owner, _) in plan.streams.items()}
        openers = {name: f"{rng.choice(places)}/pub0" for name in plan.streams}
    names = {"late.a": "late", "late.b.c": "late.b", "more": ""}
    for name in rng.sample(list(names), rng.randint(0, 2)):
        opener = rng.choice(places)
        at_ns = WARM_UP_NS + rng.randrange(plan.duration_ns // 2)
        late[name] = owners.get(names[name], opener), KeepLast(rng.randint(5, 50)), at_ns
        openers[name] = f"{opener}/pub0"
    everybody = [f"{place}/pub{n}" for place in places for n in range(plan.publishers)]
    publishers = {
        name: [p for p in rng.sample(everybody, rng.randint(0, 2)) if not p.startswith(owner)]
        for name, (owner, _) in plan.streams.items()
    }
    server = {
        "piece_rows_max": rng.choice((16, 100, 1 << 16)),
        "feed_rows": rng.choice((1, 16, 1 << 14)),
        "feed_bytes": rng.choice((1, 2_000, 16 << 20)),
    }
    callers = draw_query_clients(rng, places, list(plan.streams), WARM_UP_NS, plan.duration_ns)
    return Abroad(owners, openers, publishers, late, server, callers)


class Sprinkler(ClusterScenario[Plan]):
    """The scenario. `types` and `client_type` replace classes of replicas and of mesh clients;
    `chain` and `server` are options of replicas. Tests break a rule in this way, and expect
    violations."""

    protocols: ClassVar[frozenset[str]] = frozenset({"chain", "streams", "sprinkler"})
    state_tables: Sequence[StateTable] = (REPLICA, LEARNER, SERVICE, SESSION)

    def __init__(
        self,
        *,
        types: tuple[type[Any], ...] = (),
        client_type: type[MeshPeer] = MeshPeer,
        chain: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.types, self.client_type = types, client_type
        self.chain, self.server = chain, server or {}
        self.callers: QueryClients | None = None
        self.mesh_clients: MeshClients | None = None
        self.damages: Damages | None = None
        self.requests = 0  # requests in the mesh until the run had settled

    def draw(self, seed: int) -> Plan:
        return draw_plan(seed)

    def build(self, seed: int, plan: Plan, trace: Trace | None) -> World:
        mesh, abroad = plan.mesh, plan.abroad
        drawn: dict[str, Any] = {**abroad.server, "owners": abroad.owners} if abroad else {}
        if plan.damage:
            # A fault may replace an owner's disk by an older copy. The owner must then wait for all
            # other regions, however long they are silent.
            drawn["ask_ns"] = PATIENCE_NS
        self.cluster = cluster = self.make_cluster(
            seed,
            plan,
            trace,
            chain=self.chain,
            server={**drawn, **self.server},
            publisher={"owner_ns": PATIENCE_NS},
            types=self.types,
            client_type=self.client_type,
            mesh=mesh.config if mesh else None,
            client=mesh.client if mesh else None,
        )
        for name, (owner, policy) in plan.streams.items():
            cluster.open(name, owner, policy, 0, abroad.openers.get(name, "") if abroad else "")
        rng, end_ns = Random(f"{seed}/workload"), WARM_UP_NS + plan.duration_ns
        others = abroad.publishers if abroad else None
        draw_workload(cluster, rng, plan.streams, plan.publishers, plan.keys, end_ns, others)
        if abroad:
            self._open_late(abroad, rng)
            self.callers = QueryClients(cluster, abroad.callers, Random(f"{seed}/callers"))
        if mesh:
            self.mesh_clients = MeshClients(cluster, mesh)
            self.settle_ns = MESH_SETTLE_NS
        if plan.damage:
            named = [hold.node.split("/")[0] for hold in abroad.callers.holds] if abroad else []
            self.damages = Damages(cluster, plan.damage, named)
        return cluster.world

    def _open_late(self, abroad: Abroad, rng: Random) -> None:
        """Open the late streams, each with a few events by the publisher that creates it."""
        for name, (owner, policy, at_ns) in abroad.late.items():
            opener = abroad.openers[name]
            self.cluster.open(name, owner, policy, at_ns, opener)
            late = {name: (owner, policy)}
            until_ns = at_ns + SECOND
            draw_workload(self.cluster, rng, late, 1, 5, until_ns, {name: [opener]}, at_ns)

    def handlers(self) -> dict[type[HandlerMachine], list[str]]:
        cluster = self.cluster
        asking: dict[type[HandlerMachine], list[str]] = {
            Inquirer: cluster.callers,
            Fetcher: cluster.callers,
        }
        mesh: dict[type[HandlerMachine], list[str]] = {MeshPeer: list(cluster.clients)}
        return super().handlers() | (asking if cluster.callers else {}) | mesh

    def is_expected(self, role: type[HandlerMachine], message: type[Any]) -> bool:
        """Whether the plan can lead to this message. Those in NEVER_SENT: never. Those between mesh
        clients, of query clients, or after disk damage: if the plan has these. All others: yes."""
        if message in NEVER_SENT or (message in NEED_DAMAGE and not self.damages):
            return False
        if message in MeshPeer.handlers and not self.cluster.clients:
            return False
        is_server = role in self.layers()
        return bool(self.cluster.callers) or not (is_server and message in ONLY_HERE)

    # ------------------------------------------------------------ faults

    def allows(self, fault: Fault) -> bool:
        """False for clients that are not running, and for disks with the only copy of some data."""
        names = [getattr(fault, field, "") for field in ("name", "a", "b")]
        if self.mesh_clients and any(map(self.mesh_clients.is_away, names)):
            return False
        if self.damages and not self.damages.allows(fault):
            return False
        return super().allows(fault)

    def on_fault(self, fault: Fault) -> None:
        if self.mesh_clients and getattr(fault, "name", "") in self.cluster.clients:
            what = {Crash: "crashed", Pause: "stalled"}.get(type(fault))
            self.mesh_clients.counts.update([what] if what else [])

    # ------------------------------------------------------------ after healing

    def settled(self) -> bool:
        return super().settled() and not (self.mesh_clients and self.mesh_clients.to_come)

    def on_settled(self) -> None:
        self.requests = self.mesh_clients.requests() if self.mesh_clients else 0

    def audit(self) -> list[str]:
        if self.mesh_clients:
            self.mesh_clients.check_quiet(self.mesh_clients.requests() - self.requests, REJOIN_NS)
        found = super().audit()
        if self.callers and not found:
            self.callers.finish()
            # Events may have expired during the audit, and expiry appends an entry to the stream.
            # So wait until all readers have reached the same end again.
            world = self.cluster.world
            world.run(world.now_ns + SETTLE_NS, until=lambda _: self.settled())
        return found

    def judge(self) -> Tally:
        tally = super().judge()
        if self.callers:
            tally.violations += self.callers.violations
        if self.damages:
            tally.violations += self.damages.violations
        if self.mesh_clients:
            tally.violations += self.mesh_clients.violations.values()
        return tally

    def clients_did(self) -> dict[str, int]:
        if not self.mesh_clients:
            return {}
        counters = self.cluster.counters.values()
        return {
            **self.mesh_clients.counts,
            "got from peers": sum(c["mesh.positions-from-peers"] for c in counters),
            "got from servers": sum(c["mesh.positions-from-server"] for c in counters),
        }

    def callers_did(self) -> dict[str, int]:
        return self.callers.counts() if self.callers else {}


SCENARIO = Sprinkler


def run_seed(
    seed: int,
    *,
    plan: Plan | None = None,
    trace: Trace | None = None,
    timeline: Timeline | None = None,
    **options: Any,
) -> SeedResult:
    """Run one seed of `Sprinkler(**options)`."""
    return trial.run_seed(Sprinkler(**options), seed, plan=plan, trace=trace, timeline=timeline)
