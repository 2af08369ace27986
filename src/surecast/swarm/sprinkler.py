"""One seed of Sprinkler's swarm: draw a deployment and its misfortunes, run, heal, judge.

The seed decides everything: 3-5 regions with chains of 1-3, streams with all sorts of retention,
publishers that retry, and faults of every kind, many of them while publishes are under way. Then
all is healed, and within a bounded time every publish must be acknowledged and every reader in
every region must be at the same end; fresh readers then read every region from the first
position. The verdict comes from the clients' records alone (`protocols.sprinkler.checks`).

Publishers of other regions than the owner's publish through their own, streams are created from
anywhere, and clients hold named subscriptions, watch patterns, ask for times and read ranges
(`callers.py`).

A plan may also have a crowd of mesh clients in it; `mesh.py` draws such plans, without the latter.
"""

from collections import Counter
from random import Random
from typing import Any

import msgspec

from surecast.columns.retention import KeepAll, KeepFor, KeepLast, LatestPerKey, Policy
from surecast.core.machine import HandlerMachine
from surecast.core.types import MS, SECOND, tag_of
from surecast.protocols.chain.messages import Patch, Wanted
from surecast.protocols.chain.service import ConfigService
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.sprinkler.messages import Doubt, Hide, RegionBehind
from surecast.protocols.streams.fetcher import Fetcher
from surecast.protocols.streams.inquirer import Inquirer
from surecast.protocols.streams.publisher import Publisher
from surecast.protocols.streams.subscriber import Subscriber
from surecast.sim.faults import KINDS, Crash, Fault, Pause, Timed, Wipe, draw
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast.stacks import replica_layers
from surecast.swarm.callers import ONLY_HERE, Callers, CallersPlan, draw_callers
from surecast.swarm.cluster import Cluster
from surecast.swarm.crowd import Crowd, MeshPlan
from surecast.swarm.damage import DamagePlan, Damages, draw_damage
from surecast.swarm.range_readers import draw_ranges
from surecast.swarm.story import Story
from surecast.swarm.workload import draw_workload

__all__ = ["WARM_UP_NS", "Plan", "SeedResult", "draw_deployment", "draw_plan", "run_seed"]

WARM_UP_NS = 2 * SECOND  # chains found themselves before faults begin
REJOIN_NS = 5 * SECOND
SETTLE_NS = 90 * SECOND  # simulated time to converge after healing ...
MESH_SETTLE_NS = 15 * SECOND  # ... where there are meshes; most need a second
DAMAGED = 0.5  # of the seeds, whose disks are damaged or rolled back
NEED_DAMAGE = (RegionBehind, Patch, Wanted)  # sent only when a disk has lost something
PATIENCE_NS = 600 * SECOND  # of publishers with an owner out of reach: it will be back


class SeedResult(msgspec.Struct):
    seed: int
    ok: bool
    violations: list[str]
    simulated_ns: int
    settled_ns: int  # how long after healing all was acknowledged and everybody at the same end
    faults: dict[str, int]
    faults_in_flight: int
    published: int
    acked: int
    delivered: int
    void: int
    lost: int
    duplicated: int
    misordered: int
    clients: dict[str, int]  # of the mesh: how many came, left, ...; positions they got from whom
    coverage: dict[str, int]
    counters: dict[str, int]
    inputs: int
    trace_digest: str = ""
    callers: dict[str, int] = {}  # how often something was asked and answered


class Abroad(msgspec.Struct):
    """What is asked of a region by others, or from outside."""

    owners: dict[str, str]  # the table: prefix → region
    openers: dict[str, str]  # stream → the publisher that creates it
    publishers: dict[str, list[str]]  # stream → those of other regions that publish to it
    late: dict[str, tuple[str, Policy, int]]  # further streams: owner, retention, when
    server: dict[str, int]  # settings that make retention and compaction work in small steps
    callers: CallersPlan


class Plan(msgspec.Struct):
    """What a seed draws."""

    regions: dict[str, int]
    delays_ms: dict[str, int]
    streams: dict[str, tuple[str, Policy]]  # name → (owner, retention)
    publishers: int
    duration_ns: int
    faults: list[Timed]
    keys: int
    reencode: bool
    mesh: MeshPlan | None = None
    abroad: Abroad | None = None
    damage: DamagePlan | None = None


def draw_plan(seed: int) -> Plan:
    rng = Random(f"{seed}/plan")
    plan = draw_deployment(rng, rng.randint(3, 5))
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
    if rng.random() < 0.8:  # else each region owns what is made there
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
    callers = draw_callers(rng, places, list(plan.streams), WARM_UP_NS, plan.duration_ns)
    return Abroad(owners, openers, publishers, late, server, callers)


def draw_deployment(rng: Random, count: int) -> Plan:
    """`count` regions, what is published there, and what befalls servers and links."""
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
    plan = Plan(regions, delays, streams, publishers, duration_ns, [], rng.randint(5, 60), False)
    plan.reencode = rng.random() < 0.3
    replicas = [f"{r}/{n}" for r, count in regions.items() for n in range(count)]
    services = [f"{r}/config" for r in regions]
    nodes = replicas * 3 + services
    pairs = [(a, b) for a in places for b in places if a < b]
    pairs += [
        (f"{r}/{i}", f"{r}/{j}") for r, n in regions.items() for i in range(n) for j in range(i)
    ]
    pairs += [(f"{r}/config", f"{r}/{i}") for r, n in regions.items() for i in range(n)]
    kinds = (*KINDS, "crash", "crash", "cut", "wipe", "region")
    for _ in range(rng.randint(3, 14)):
        at_ns, for_ns = draw_span(rng, duration_ns)
        kind = rng.choice(kinds)
        if kind == "region":  # every replica of a region at about the same time
            region = rng.choice(places)
            for n in range(regions[region]):
                fault = draw(rng, [f"{region}/{n}"], pairs, ["crash"])
                late_ns = rng.randrange(50 * MS)
                plan.faults.append(Timed(at_ns + late_ns, for_ns + rng.randrange(SECOND), fault))
        else:
            plan.faults.append(Timed(at_ns, for_ns, draw(rng, nodes, pairs, [kind])))
    return plan


def draw_span(rng: Random, duration_ns: int) -> tuple[int, int]:
    """From when on, and how long, a fault lasts."""
    at_ns = WARM_UP_NS + rng.randrange(duration_ns)
    return at_ns, int(min(rng.expovariate(1 / (1.5 * SECOND)), 8 * SECOND)) + 20 * MS


def run_seed(
    seed: int,
    *,
    plan: Plan | None = None,
    types: tuple[type[Any], ...] = (),
    client_type: type[MeshPeer] = MeshPeer,
    chain: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    trace: Trace | None = None,
    story: Story | None = None,
) -> SeedResult:
    """Run one seed; the same seed gives the same run in every process."""
    plan = plan or draw_plan(seed)
    mesh, abroad = plan.mesh, plan.abroad
    drawn: dict[str, Any] = {**abroad.server, "owners": abroad.owners} if abroad else {}
    if plan.damage:  # a lone owner that was rolled back must not number before it could ask
        drawn["ask_ns"] = PATIENCE_NS
    cluster = Cluster(
        seed,
        plan.regions,
        delay_ns=lambda a, b: plan.delays_ms[f"{min(a, b)}-{max(a, b)}"] * MS,
        publishers=plan.publishers,
        chain=chain,
        server={**drawn, **(server or {})},
        publisher={"owner_ns": PATIENCE_NS},
        types=types,
        client_type=client_type,
        mesh=mesh.config if mesh else None,
        client=mesh.client if mesh else None,
        trace=trace,
        reencode=_reencoder() if plan.reencode else None,
    )
    trial = Trial(seed, plan, cluster, story)
    trial.run()
    return trial.result()


class Trial:
    """One seed's world on its way."""

    def __init__(self, seed: int, plan: Plan, cluster: Cluster, story: Story | None) -> None:
        self.seed, self.plan, self.cluster, self.story = seed, plan, cluster, story
        self.violations: list[str] = []
        self.suffered: Counter[str] = Counter()  # faults
        self.in_flight = 0  # those that met publishes under way
        self.wiped: dict[str, bool] = {}  # regions
        self.settled_ns = 0
        abroad = plan.abroad
        for name, (owner, policy) in plan.streams.items():
            cluster.open(name, owner, policy, 0, abroad.openers.get(name, "") if abroad else "")
        rng, end_ns = Random(f"{seed}/workload"), WARM_UP_NS + plan.duration_ns
        others = abroad.publishers if abroad else None
        draw_workload(cluster, rng, plan.streams, plan.publishers, plan.keys, end_ns, others)
        self.callers: Callers | None = None
        if abroad:
            self._open_late(abroad, rng)
            self.callers = Callers(cluster, abroad.callers, Random(f"{seed}/callers"))
        self.heal_ns = end_ns + SECOND
        self.crowd = Crowd(cluster, plan.mesh) if plan.mesh else None
        self.damages: Damages | None = None
        if plan.damage:
            holds = [hold.node.split("/")[0] for hold in abroad.callers.holds] if abroad else []
            self.damages = Damages(cluster, plan.damage, holds)
        for timed in (*plan.faults, *(plan.damage.faults if plan.damage else ())):
            self._schedule(timed)
        if story is not None:
            story.watch(cluster, self.heal_ns)

    def _open_late(self, abroad: Abroad, rng: Random) -> None:
        """A few events each, by whoever created the stream."""
        for name, (owner, policy, at_ns) in abroad.late.items():
            opener = abroad.openers[name]
            self.cluster.open(name, owner, policy, at_ns, opener)
            late = {name: (owner, policy)}
            until_ns = at_ns + SECOND
            draw_workload(self.cluster, rng, late, 1, 5, until_ns, {name: [opener]}, at_ns)

    # ------------------------------------------------------------ faults

    def _schedule(self, timed: Timed) -> None:
        fault = timed.fault

        def apply(world: World) -> None:
            if not self._may_befall(fault):
                return
            self.suffered[type(fault).__name__.lower()] += 1
            if self.cluster.unacknowledged():
                self.in_flight += 1
            if self.crowd and getattr(fault, "name", "") in self.cluster.clients:
                what = {Crash: "crashed", Pause: "stalled"}.get(type(fault))
                self.crowd.counts.update([what] if what else [])
            if self.story is not None:
                end_ns = world.now_ns + timed.for_ns
                self.story.suffer(fault, self.cluster.clients, world.now_ns, end_ns)
            fault.apply(world)
            world.call(world.now_ns + timed.for_ns, heal)

        def heal(world: World) -> None:
            if getattr(fault, "name", "") not in self.cluster.gone:
                fault.heal(world)

        self.cluster.world.call(timed.at_ns, apply)

    def _may_befall(self, fault: Fault) -> bool:
        """Some clients have not come yet or left, and not every disk may go."""
        names = [getattr(fault, field, "") for field in ("name", "a", "b")]
        if self.crowd and any(map(self.crowd.is_away, names)):
            return False
        if self.damages and not self.damages.may_befall(fault):
            return False
        return not isinstance(fault, Wipe) or self._may_wipe(fault.name)

    def _may_wipe(self, name: str) -> bool:
        """A disk may go only while another full member lives, and once a region: more than that is
        beyond what replicas promise."""
        region = name.split("/")[0]
        others = [m.name for m in self.cluster.members(region) if m.name != name]
        alive = any(self.cluster.world.machine(n) is not None for n in others)
        if name.endswith("/config") or not alive or region in self.wiped:
            return False
        self.wiped[region] = True
        return True

    # ------------------------------------------------------------ running and judging

    def run(self) -> None:
        cluster, world = self.cluster, self.cluster.world
        try:
            world.run(self.heal_ns)
            cluster.heal()
            limit_ns = self.heal_ns + (MESH_SETTLE_NS if self.crowd else SETTLE_NS)
            settled = world.run(limit_ns, until=lambda _: self._settled())
            self.settled_ns = world.now_ns - self.heal_ns
            if not settled:
                self.violations.append(_unsettled(cluster))
            asked = self.crowd.requests() if self.crowd else 0
            world.run(world.now_ns + REJOIN_NS)  # replicas that were dropped learn and come back
            if self.crowd and settled:
                self.crowd.mind_quiet(self.crowd.requests() - asked, REJOIN_NS)
            if settled and not cluster.audit():
                self.violations.append(f"a fresh reader did not reach it: {_unsettled(cluster)}")
            elif settled and self.callers:
                self.callers.finish()
                # Expiry has gone on meanwhile: judge when everybody has the same again.
                world.run(world.now_ns + SETTLE_NS, until=lambda _: self._settled())
        except Exception as problem:  # whatever a machine raises is a crash loop in production
            notes = " ".join(getattr(problem, "__notes__", []))
            self.violations.append(f"a machine failed: {problem!r} {notes[:500]}")

    def _settled(self) -> bool:
        return self.cluster.settled() and not (self.crowd and self.crowd.to_come)

    def result(self) -> SeedResult:
        cluster, violations = self.cluster, self.violations
        tally = cluster.judge()
        violations += tally.violations
        clients: dict[str, int] = {}
        counters = sum(cluster.counters.values(), Counter())
        if self.callers:
            violations += self.callers.violations
        if self.damages:
            violations += self.damages.violations
        if self.crowd:
            violations += self.crowd.violations.values()
            clients = dict(self.crowd.counts)
            clients["got from peers"] = counters["mesh.positions-from-peers"]
            clients["got from servers"] = counters["mesh.positions-from-server"]
        if tally.acked < 0.9 * tally.published:
            violations.append(
                f"only {tally.acked} of {tally.published} publishes were acknowledged"
            )
        trace = cluster.world.trace
        return SeedResult(
            seed=self.seed,
            ok=not violations,
            violations=violations[:20],
            simulated_ns=cluster.world.now_ns,
            settled_ns=self.settled_ns,
            faults=dict(self.suffered),
            faults_in_flight=self.in_flight,
            published=tally.published,
            acked=tally.acked,
            delivered=tally.delivered,
            void=tally.void,
            lost=tally.lost,
            duplicated=tally.duplicated,
            misordered=tally.misordered,
            clients=clients,
            coverage=_coverage(cluster, damaged=self.damages is not None),
            counters={k: v for k, v in sorted(counters.items()) if "." in k},
            inputs=cluster.world.inputs,
            trace_digest=trace.digest() if trace is not None else "",
            callers=self.callers.counts() if self.callers else {},
        )


def _unsettled(cluster: Cluster) -> str:
    waiting = {n: m.unacknowledged for n in cluster.publishers if (m := cluster.world.machine(n))}
    ends = {
        name: {r: cluster.position(r, name) for r in cluster.readers_of(name)}
        for name in cluster.streams
    }
    return f"G9 no convergence after healing: unacknowledged {waiting}, positions {ends}"


def _coverage(cluster: Cluster, damaged: bool) -> dict[str, int]:
    """How often each message handler ran, by role; every handler is listed, but for those of the
    mesh where there is none, of callers where there are none, of damage where there is none, and
    of two histories of a stream, which no swarm makes."""
    replicas = [node for nodes in cluster.regions.values() for node in nodes]
    roles: dict[type[HandlerMachine], list[str]] = {
        **dict.fromkeys(replica_layers().values(), replicas),
        Publisher: cluster.publishers,
        Subscriber: [name for name in cluster.subscribers if name not in cluster.clients],
        Inquirer: cluster.callers,
        Fetcher: cluster.callers,
        ConfigService: [f"{region}/config" for region in cluster.regions],
        MeshPeer: list(cluster.clients),
    }
    return {
        f"{role.__name__}.{name}": sum(cluster.counters[node][tag_of(message)] for node in nodes)
        for role, nodes in roles.items()
        for message, name in role.handlers.items()
        if message not in (Doubt, Hide)  # which need two histories
        and (damaged or message not in NEED_DAMAGE)
        and (cluster.clients or message not in MeshPeer.handlers)
        and (
            cluster.callers
            or not (role in (Inquirer, Fetcher) or (nodes is replicas and message in ONLY_HERE))
        )
    }


def _reencoder() -> Any:
    from surecast.core.wire import Codec
    from surecast.registry import message_types

    codec = Codec(message_types())

    def reencode(message: Any) -> Any:
        return codec.decode(memoryview(b"".join(codec.encode(message))))[0]

    return reencode
