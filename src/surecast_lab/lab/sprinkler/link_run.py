"""Simulates the runs of Sprinkler E4: four regions, a stream from each, and a link that fails.

`simulate(seed, plan)` returns the deliveries to the subscriber of each region, with their times. If
the regions have mesh clients instead, a delivery is recorded when all clients of the region have
the batch.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from surecast.columns.batch import Batch
from surecast.core.endpoint import Follow
from surecast.core.types import MS, SECOND
from surecast.protocols.sprinkler.config import BULK_DEADLINE_NS, bulk_mesh
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.subscriber import Subscriber
from surecast.sim.links import Link
from surecast_lab.lab.sprinkler.driver import BATCH_NS, RATE, Driver, Load
from surecast_lab.lab.sprinkler.mesh_run import add_mesh
from surecast_lab.swarm.cluster import Cluster

__all__ = [
    "DELAYS_MS",
    "FAILED",
    "FULL",
    "MESH",
    "MESH_QUICK",
    "QUICK",
    "REGIONS",
    "Plan",
    "Run",
    "simulate",
]

REGIONS = ("r0", "r1", "r2", "r3")
FAILED = ("r2", "r3")  # the regions at the ends of the link that fails
# One-way delays, as between Seattle, Los Angeles, Dallas and Virginia. Of the paper's values only
# the 15 ms of the failed link are known.
DELAYS_MS = {
    ("r0", "r1"): 10,
    ("r0", "r2"): 22,
    ("r0", "r3"): 32,
    ("r1", "r2"): 18,
    ("r1", "r3"): 30,
    ("r2", "r3"): 15,
}
BETWEEN_BPS, WITHIN_BPS = 10_000_000_000, 1_000_000_000
WITHIN_NS = 1 * MS
LOOK_NS = 10 * MS  # how often sources are sampled
DRAIN_NS = 2 * SECOND  # within this time after publishing ends, all events must be everywhere


@dataclass(frozen=True, slots=True)
class Plan:
    """Times, in seconds from the start of the simulation, and the load."""

    cut_s: int  # the link fails
    mend_s: int  # the link is repaired
    end_s: int  # publishing ends
    rate: int = RATE  # events a second and region
    clients: int = 0  # in the mesh of each region; 0: one thin subscriber


FULL = Plan(19, 41, 60)
QUICK = Plan(3, 7, 10)  # the cut must last longer than the timeout of sessions
# The total rate is that of E2, because four streams at the paper's rate would fill uplinks of 1
# Gb/s without room for copies. The phases take half the paper's time, because nothing changes in
# the remaining time.
MESH = Plan(9, 20, 30, 3 * RATE // 4, 100)
MESH_QUICK = Plan(3, 7, 10, 3 * RATE // 4, 10)


@dataclass(slots=True)
class Run:
    """The deliveries of one simulated run."""

    plan: Plan
    deliveries: dict[tuple[str, str], list[tuple[int, int, int]]] = field(default_factory=dict)
    """(origin, region) → for each batch of the stream from region `origin`: the position after it,
    when all clients of `region` had the batch, and when the head of `origin` accepted it."""
    sources: list[tuple[int, str, str, str]] = field(default_factory=list)
    """(time, origin, region, source): from `time` on, `region` pulls the stream of `origin` from
    the region `source`; "": from none."""
    published: dict[str, int] = field(default_factory=dict)  # number of events, by origin
    unacknowledged: int = 0  # batches whose publisher had no acknowledgement at the end
    refused: int = 0  # answers that refused a batch
    counts: Counter[str] = field(default_factory=Counter)  # counters of all mesh clients, summed
    misplaced: int = 0  # batches that did not continue the previous one, or had gaps
    inputs: int = 0  # inputs of all state machines

    @property
    def missing(self) -> int:
        """Events that were not delivered to some subscriber."""
        return sum(
            self.published[origin] - (self.deliveries[origin, region][-1][0] - 1)
            for origin in REGIONS
            for region in REGIONS
        )


def simulate(seed: int, plan: Plan) -> Run:
    cluster, readers = _build(seed, plan)
    world = cluster.world
    run = Run(plan, {(origin, region): [] for origin in REGIONS for region in REGIONS})
    origins: dict[bytes, str] = {}  # stream → the region that publishes it
    positions: dict[tuple[str, bytes], int] = {}  # (reader, stream) → the next position
    # (origin, region, end of a batch) → the number of the region's readers that have the batch.
    having: Counter[tuple[str, str, int]] = Counter()

    def on_opened(now_ns: int, name: str, event: Any) -> None:
        origins[event.info.stream_id] = name.split("/")[0]
        for reader in (name for names in readers.values() for name in names):
            world.at(now_ns, reader, Follow(event.info.stream_id, 1))

    def on_deliver(now_ns: int, name: str, stream: bytes, batches: tuple[Batch, ...]) -> None:
        origin, region = origins[stream], name.split("/")[0]
        for batch in batches:
            misplaced = batch.lo != positions.get((name, stream), 1) or batch.rows != batch.count
            run.misplaced += misplaced
            positions[name, stream] = batch.hi
            having[origin, region, batch.hi] += 1
            if having[origin, region, batch.hi] == len(readers[region]):
                del having[origin, region, batch.hi]
                run.deliveries[origin, region].append((batch.hi, now_ns, batch.time_ns))

    for region in REGIONS:
        world.on_emit(f"{region}/driver", on_opened)
        for name in readers[region]:
            world.on_deliver(name, on_deliver)
    world.call(plan.cut_s * SECOND, lambda world: world.cut(*FAILED))
    world.call(plan.mend_s * SECOND, lambda world: world.mend(*FAILED))
    known: dict[tuple[str, str], str] = {}  # (origin, region) → the source when last sampled
    for now_ns in range(LOOK_NS, plan.end_s * SECOND + DRAIN_NS + 1, LOOK_NS):
        world.run(now_ns)
        for pair, source in _sources(cluster, origins):
            if known.get(pair) != source:
                known[pair] = source
                run.sources.append((now_ns, *pair, source))
    for region in REGIONS:
        driver = world.machine(f"{region}/driver")
        run.published[region] = driver.next_no - 1
        run.unacknowledged += len(driver.waiting)
        run.refused += driver.refused
        for name in readers[region]:
            run.counts.update(cluster.counters.get(name, {}))
    run.inputs = world.inputs
    return run


def _build(seed: int, plan: Plan) -> tuple[Cluster, dict[str, list[str]]]:
    """The cluster, and the names of the readers in each region."""
    cluster = Cluster(
        seed,
        dict.fromkeys(REGIONS, 3),
        publishers=0,
        subscribers=0,
        mesh=bulk_mesh(),
    )
    world = cluster.world
    for (a, b), delay_ms in DELAYS_MS.items():
        delay_ns = delay_ms * MS
        world.set_link(a, b, Link(delay_ns, jitter_ns=delay_ns // 20, bandwidth_bps=BETWEEN_BPS))
    readers = {}
    for region in cluster.regions:
        world.set_link(region, region, Link(WITHIN_NS, bandwidth_bps=WITHIN_BPS))
        readers[region] = _add_clients(cluster, region, plan)
    return cluster, readers


def _add_clients(cluster: Cluster, region: str, plan: Plan) -> list[str]:
    """Add the driver and the readers of a region; returns the readers' names."""
    replicas = cluster.regions[region]
    load = Load(plan.end_s * SECOND, rate=plan.rate)
    if plan.clients:
        # A client keeps the batches of two seconds for other clients.
        keep = 2 * SECOND // BATCH_NS * load.batch_bytes
        options = {
            "keep_bytes_max": keep,
            "deadline_ns_min": BULK_DEADLINE_NS,
        }
        names = add_mesh(cluster, region, plan.clients, True, **options)
    else:
        names = [f"{region}/subscriber"]
        # The tail first, because the head's uplink also carries the chain's traffic.
        config = SubscriberConfig(replicas[::-1])
        cluster.world.add(names[0], lambda _: Subscriber(config, {}))
    make = partial(Driver, f"from-{region}", replicas[0], load)
    cluster.world.add(f"{region}/driver", lambda context: make(context.rng))
    return names


def _sources(cluster: Cluster, origins: dict[bytes, str]) -> list[tuple[tuple[str, str], str]]:
    """((origin, region), source) as in `Run.sources`, from the current state of the heads."""
    found = []
    for region, replicas in cluster.regions.items():
        head = cluster.world.machine(replicas[0]).layers["sprinkler"]
        for stream_id, stream in head.streams.items():
            source = stream.source.region if stream.source else ""
            if stream_id in origins and origins[stream_id] != region:
                found.append(((origins[stream_id], region), source))
    return found
