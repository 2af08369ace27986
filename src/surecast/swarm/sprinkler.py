"""One seed of Sprinkler's swarm: draw a deployment and its misfortunes, run, heal, judge.

The seed decides everything: 3-5 regions with chains of 1-3, streams with all sorts of retention,
publishers that retry, and faults of every kind, many of them while publishes are under way. Then
all is healed, and within a bounded time every publish must be acknowledged and every reader in
every region must be at the same end; fresh readers then read every region from the first
position. The verdict comes from the clients' records alone (`protocols.sprinkler.checks`).
"""

from collections import Counter
from random import Random
from typing import Any

import msgspec

from surecast.columns import retention
from surecast.columns.batch import COLLECT, CONFIG
from surecast.columns.retention import (
    BeforeSeq,
    BeforeTime,
    Collect,
    KeepAll,
    KeepFor,
    KeepLast,
    KeyIs,
    KeyPrefix,
    LatestPerKey,
    Policy,
    TagIs,
)
from surecast.core.types import MS, SECOND
from surecast.protocols.chain.replica import Replica
from surecast.protocols.chain.service import ConfigService
from surecast.protocols.sprinkler.proxy import Proxy
from surecast.protocols.sprinkler.publisher import Publisher
from surecast.protocols.sprinkler.subscriber import Subscriber
from surecast.sim.faults import KINDS, Timed, Wipe, draw
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast.swarm.cluster import Cluster

__all__ = ["Plan", "SeedResult", "draw_plan", "run_seed"]

WARM_UP_NS = 2 * SECOND  # chains found themselves before faults begin
REJOIN_NS = 5 * SECOND
SETTLE_NS = 90 * SECOND  # simulated time to converge after healing


class SeedResult(msgspec.Struct):
    seed: int
    ok: bool
    violations: list[str]
    simulated_ns: int
    faults: dict[str, int]
    faults_in_flight: int
    published: int
    acked: int
    delivered: int
    void: int
    lost: int
    duplicated: int
    misordered: int
    coverage: dict[str, int]
    counters: dict[str, int]
    inputs: int
    trace_digest: str = ""


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


def draw_plan(seed: int) -> Plan:
    rng = Random(f"{seed}/plan")
    names = ("east", "west", "north", "south", "centre")
    regions = {name: rng.randint(1, 3) for name in names[: rng.randint(3, 5)]}
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
        at_ns = WARM_UP_NS + rng.randrange(duration_ns)
        for_ns = int(min(rng.expovariate(1 / (1.5 * SECOND)), 8 * SECOND)) + 20 * MS
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


def run_seed(
    seed: int,
    *,
    plan: Plan | None = None,
    replica_type: type[Replica] = Replica,
    proxy_type: type[Proxy] = Proxy,
    chain: dict[str, Any] | None = None,
    proxy: dict[str, Any] | None = None,
    trace: Trace | None = None,
) -> SeedResult:
    """Run one seed; the same seed gives the same run in every process."""
    plan = plan or draw_plan(seed)
    cluster = Cluster(
        seed,
        plan.regions,
        delay_ns=lambda a, b: plan.delays_ms[f"{min(a, b)}-{max(a, b)}"] * MS,
        publishers=plan.publishers,
        chain=chain,
        proxy=proxy,
        replica_type=replica_type,
        proxy_type=proxy_type,
        trace=trace,
        reencode=_reencoder() if plan.reencode else None,
    )
    for name, (owner, policy) in plan.streams.items():
        cluster.open(name, owner, policy)
    _draw_workload(seed, plan, cluster)
    suffered: Counter[str] = Counter()
    in_flight = [0]
    wiped: dict[str, bool] = {}
    for timed in plan.faults:
        _schedule(cluster, timed, suffered, in_flight, wiped)
    world, violations = cluster.world, []
    heal_ns = WARM_UP_NS + plan.duration_ns + SECOND
    try:
        world.run(heal_ns)
        world.heal_all()
        if not world.run(heal_ns + SETTLE_NS, until=lambda _: cluster.settled()):
            violations.append(_unsettled(cluster))
        world.run(world.now_ns + REJOIN_NS)  # replicas that were dropped learn and come back
        if not violations and not cluster.audit():
            violations.append("G9 a fresh reader did not reach the end: " + _unsettled(cluster))
    except Exception as problem:  # whatever a machine raises is a crash loop in production
        notes = " ".join(getattr(problem, "__notes__", []))
        violations.append(f"a machine failed: {problem!r} {notes[:500]}")
    tally = cluster.judge()
    violations += tally.violations
    if tally.acked < 0.9 * tally.published:
        violations.append(f"only {tally.acked} of {tally.published} publishes were acknowledged")
    counters = sum(cluster.counters.values(), Counter())
    return SeedResult(
        seed=seed,
        ok=not violations,
        violations=violations[:20],
        simulated_ns=world.now_ns,
        faults=dict(suffered),
        faults_in_flight=in_flight[0],
        published=tally.published,
        acked=tally.acked,
        delivered=tally.delivered,
        void=tally.void,
        lost=tally.lost,
        duplicated=tally.duplicated,
        misordered=tally.misordered,
        coverage=_coverage(cluster),
        counters={k: v for k, v in sorted(counters.items()) if "." in k},
        inputs=world.inputs,
        trace_digest=trace.digest() if trace is not None else "",
    )


def _schedule(
    cluster: Cluster,
    timed: Timed,
    suffered: Counter[str],
    in_flight: list[int],
    wiped: dict[str, bool],
) -> None:
    fault = timed.fault

    def apply(world: World) -> None:
        if isinstance(fault, Wipe) and not _may_wipe(cluster, fault.name, wiped):
            return
        suffered[type(fault).__name__.lower()] += 1
        if cluster.unacknowledged():
            in_flight[0] += 1
        fault.apply(world)
        world.call(world.now_ns + timed.for_ns, fault.heal)

    cluster.world.call(timed.at_ns, apply)


def _may_wipe(cluster: Cluster, name: str, wiped: dict[str, bool]) -> bool:
    """A disk may go only while another full member lives, and once a region: more than that is
    beyond what replicas promise."""
    region = name.split("/")[0]
    others = [m.name for m in cluster.members(region) if m.name != name]
    alive = any(cluster.world.machine(n) is not None for n in others)
    if name.endswith("/config") or not alive or region in wiped:
        return False
    wiped[region] = True
    return True


def _draw_workload(seed: int, plan: Plan, cluster: Cluster) -> None:
    rng = Random(f"{seed}/workload")
    keys = [f"k{i}".encode() for i in range(plan.keys)]
    weights = [1 / (i + 1) for i in range(plan.keys)]
    used: set[bytes] = set()
    for name, (owner, policy) in plan.streams.items():
        for p in range(plan.publishers):
            publisher, at_ns, n = f"{owner}/pub{p}", 100 * MS, 0
            while at_ns < WARM_UP_NS + plan.duration_ns:
                at_ns += int(rng.expovariate(1 / (120 * MS)))
                if rng.random() < 0.04:
                    rule = _draw_rule(rng, policy, n, keys, at_ns)
                    if rule[1] not in used:
                        used.add(rule[1])
                        cluster.offer(at_ns, publisher, name, [rule[1]], kind=rule[0])
                    continue
                count = rng.choice((1, 1, 2, 5, 20))
                values = [f"{name}.{publisher}.{n + i}".encode() for i in range(count)]
                n += count
                picked: list[bytes | None] = list(rng.choices(keys, weights, k=count))
                picked = [None if rng.random() < 0.1 else k for k in picked]
                picked = [b"" if k == b"k3" else k for k in picked]  # empty is a key, null is none
                tags = None
                if isinstance(policy, KeepAll) and rng.random() < 0.5:
                    tags = [rng.choice((None, b"red", b"blue")) for _ in values]
                cluster.offer(at_ns, publisher, name, values, picked, tags)


def _draw_rule(
    rng: Random, policy: Policy, n: int, keys: list[bytes], at_ns: int
) -> tuple[int, bytes]:
    """A collect rule, or now and then a change of a stream's retention."""
    if rng.random() < 0.15 and isinstance(policy, KeepLast):
        change = KeepLast(rng.randint(20, 200)) if rng.random() < 0.6 else LatestPerKey()
        return CONFIG, retention.encode_policy(change)
    predicates: list[retention.Predicate] = [
        BeforeSeq(rng.randint(1, max(2, 2 * n))),
        BeforeTime(1_750_000_000 * SECOND + at_ns - rng.randint(0, 3_000) * MS),
        KeyIs(rng.choice(keys)),
        KeyPrefix(rng.choice(keys)[: rng.randint(1, 2)]),
    ]
    if isinstance(policy, KeepAll):
        predicates += [TagIs(b"red")] * 2
    return COLLECT, retention.encode_collect(Collect(rng.choice(predicates)))


def _unsettled(cluster: Cluster) -> str:
    waiting = {n: m.unacknowledged for n in cluster.publishers if (m := cluster.world.machine(n))}
    ends = {
        name: {r: cluster.position(r, name) for r in cluster.subscribers}
        for name in cluster.streams
    }
    return f"G9 no convergence after healing: unacknowledged {waiting}, positions {ends}"


def _coverage(cluster: Cluster) -> dict[str, int]:
    """How often each message handler ran, by role; every handler is listed."""
    replicas = [node for nodes in cluster.regions.values() for node in nodes]
    services = [f"{region}/config" for region in cluster.regions]
    coverage = {}
    for role, nodes in (
        (Replica, replicas),
        (Proxy, replicas),
        (Publisher, cluster.publishers),
        (Subscriber, cluster.subscribers),
        (ConfigService, services),
    ):
        for name in role.handlers.values():
            coverage[f"{role.__name__}.{name}"] = sum(cluster.counters[n][name] for n in nodes)
    return coverage


def _reencoder() -> Any:
    from surecast.core.wire import Codec
    from surecast.registry import message_types

    codec = Codec(message_types())

    def reencode(message: Any) -> Any:
        return codec.decode(memoryview(b"".join(codec.encode(message))))[0]

    return reencode
