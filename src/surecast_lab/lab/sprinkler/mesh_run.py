"""Simulates the runs of Sprinkler E2, E3 and the mesh economy: regions with many mesh clients.

`simulate(seed, setting)` returns how many events each client received, the latencies until all
clients had an event, whether events came from servers or from other clients, and the backlogs of
uplinks.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from surecast.columns.batch import Batch
from surecast.core.endpoint import Follow
from surecast.core.machine import NodeContext
from surecast.core.types import MS, SECOND, LogId
from surecast.protocols.sprinkler.config import BULK_DEADLINE_NS, ClientConfig, MeshConfig
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.sim.links import Link
from surecast.sim.world import WALL_NS
from surecast_lab.lab.sprinkler.driver import BATCH_NS, OUR_BYTES, RATE, Driver, Load
from surecast_lab.swarm.cluster import Cluster

__all__ = [
    "REPLICAS",
    "Outcome",
    "Setting",
    "add_mesh",
    "simulate",
]

# One-way delays. Those of the paper are in its Figure 5a, which is missing from our copy.
DELAYS_MS = {("r0", "r1"): 15, ("r0", "r2"): 35, ("r1", "r2"): 40}
BETWEEN_BPS, WITHIN_BPS = 10_000_000_000, 1_000_000_000
WITHIN_NS = 1 * MS
REPLICAS = 3
BEGIN_NS = 500 * MS  # publishing begins then, because all regions know the streams by then
LOOK_NS = 50 * MS  # how often uplinks are sampled
FULL_NS = 20 * MS  # an uplink with at least this backlog counts as full


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of one run."""

    mesh: MeshConfig
    clients: int  # in each region that has any
    meshed: tuple[str, ...] = ("r2",)  # regions with clients; r2 is the farthest from the others
    regions: tuple[str, ...] = ("r0", "r1", "r2")
    server_shuffle_ns: int = 1 * SECOND  # how often a server redraws the clients it notifies
    deadline_ns: int = BULK_DEADLINE_NS  # time for a peer to answer before a server is asked
    load: float = 1.0  # as a share of the paper's
    event_bytes: float = OUR_BYTES
    spread: bool = True  # clients use all replicas; False: all use the tail, as in the paper
    keep_ns: int = 2 * SECOND  # Recv: how much traffic of each stream clients keep for peers
    settle_ns: int = 300 * MS  # measuring begins this long after the first event
    measure_ns: int = 1 * SECOND
    drain_ns: int = 0  # time after the end of publishing in which deliveries still count

    @property
    def rate(self) -> int:
        """Events a second and region."""
        return round(RATE * self.load)

    @property
    def from_ns(self) -> int:
        return BEGIN_NS + self.settle_ns

    @property
    def until_ns(self) -> int:
        return self.from_ns + self.measure_ns


@dataclass(slots=True)
class Outcome:
    """The results of one run. Deliveries and counts are of the measured time only."""

    delivered: dict[str, int]  # events by client
    latencies: dict[str, list[tuple[int, int]]]
    """Region that published → for each batch: when the region's head accepted the batch, and the
    time from then until all clients had it (-1 if some lacked it when the run ended)."""
    counts: Counter[str]  # the clients' counters, summed
    backlog_ns: dict[str, int]  # by node: the largest sampled backlog of its uplink
    full_share: float  # the share of samples in which a client's uplink was full
    misplaced: int  # deliveries that did not continue the previous one
    inputs: int  # inputs of all state machines


class _Settled(MeshPeer):
    """A client whose view (its list of known peers) is random from the start.

    In a real mesh, gossip makes views random within about ten seconds. Simulating this would take
    most of the run.
    """

    others: Sequence[str] = ()  # all mesh clients of the region, including this one

    def _follow(self, stream: LogId, start: int) -> None:
        super()._follow(stream, start)
        feed = self.feeds[stream]
        mates = min(self.config.mesh.view_max, len(self.others) - 1)
        drawn = self.rng.sample(self.others, mates + 1)
        feed.view.peers = [peer for peer in drawn if peer != self.config.name][:mates]
        self._shuffle(feed, at_once=True)


def add_mesh(cluster: Cluster, region: str, count: int, spread: bool, **options: Any) -> list[str]:
    """Add mesh clients with random views to a region; they follow no stream yet. Returns their
    names. `options` are fields of `ClientConfig`.
    """
    names = [f"{region}/c{n}" for n in range(count)]
    replicas = cluster.regions[region][::-1]  # the tail first
    settled = type("Settled", (_Settled,), {"others": names})
    for n, name in enumerate(names):
        turn = n % len(replicas) if spread else 0
        config = ClientConfig(name, replicas[turn:] + replicas[:turn], cluster.mesh, **options)
        counters = cluster.counters[name] = Counter()

        def factory(
            ctx: NodeContext, config: ClientConfig = config, counters: Counter[str] = counters
        ) -> Any:
            return settled(config, {}, ctx.rng, counters)

        cluster.world.add(name, factory)
    return names


@dataclass(slots=True)
class _Watch:
    """Observes all deliveries, and records when all clients have an event."""

    setting: Setting
    clients: int  # the number of all clients
    origins: dict[LogId, str] = field(default_factory=dict)  # stream → the region that publishes it
    delivered: Counter[str] = field(
        default_factory=Counter
    )  # client → events, in the measured time
    reached: dict[tuple[LogId, int], list[int]] = field(default_factory=dict)
    """(stream, end of a batch) → the number of clients that have the batch, the time of the last
    delivery, and when the head accepted the batch."""
    ends: dict[tuple[str, LogId], int] = field(default_factory=dict)  # (client, stream) → position
    misplaced: int = 0

    def on_deliver(self, now_ns: int, name: str, stream: LogId, batches: tuple[Batch, ...]) -> None:
        lo, hi = batches[0].lo, batches[-1].hi
        key = (name, stream)
        if self.ends.get(key, 1) != lo:
            self.misplaced += 1
        self.ends[key] = hi
        if self.setting.from_ns <= now_ns < self.setting.until_ns:
            self.delivered[name] += hi - lo
        reached = self.reached
        for batch in batches:
            seen = reached.get((stream, batch.hi))
            if seen is None:
                reached[stream, batch.hi] = [1, now_ns, batch.time_ns - WALL_NS]
            else:
                seen[0] += 1
                seen[1] = now_ns

    def latencies(self) -> dict[str, list[tuple[int, int]]]:
        """`Outcome.latencies`, of the batches that were published in the measured time."""
        found: dict[str, list[tuple[int, int]]] = {origin: [] for origin in self.origins.values()}
        for (stream, _), (count, last_ns, sent_ns) in self.reached.items():
            if self.setting.from_ns <= sent_ns < self.setting.until_ns:
                late_ns = last_ns - sent_ns if count == self.clients else -1
                found[self.origins[stream]].append((sent_ns, late_ns))
        return {origin: sorted(pairs) for origin, pairs in found.items()}


def simulate(seed: object, setting: Setting) -> Outcome:
    cluster, names = _build(seed, setting)
    world = cluster.world
    watch = _Watch(setting, len(names))
    clients = frozenset(names)

    def on_opened(now_ns: int, name: str, event: Any) -> None:
        watch.origins[event.info.stream_id] = name.split("/")[0]
        for client in names:
            world.at(now_ns, client, Follow(event.info.stream_id, 1))

    for region in cluster.regions:
        world.on_emit(f"{region}/driver", on_opened)
    for name in names:
        world.on_deliver(name, watch.on_deliver)
    world.run(setting.from_ns)
    before = _counts(cluster, names)
    backlog_ns: Counter[str] = Counter()
    looks = full = 0
    for now_ns in range(setting.from_ns + LOOK_NS, setting.until_ns + 1, LOOK_NS):
        world.run(now_ns)
        for name, waiting_ns in _backlogs(cluster, names):
            backlog_ns[name] = max(backlog_ns[name], waiting_ns)
            if name in clients:
                looks += 1
                full += waiting_ns > FULL_NS
    counts = _counts(cluster, names)
    counts.subtract(before)  # only those of the measured time
    world.run(setting.until_ns + setting.drain_ns)
    return Outcome(
        {name: watch.delivered[name] for name in names},
        watch.latencies(),
        counts,
        dict(backlog_ns),
        full / max(1, looks),
        watch.misplaced,
        world.inputs,
    )


def _build(seed: object, setting: Setting) -> tuple[Cluster, list[str]]:
    regions = setting.regions
    servers = replace(setting.mesh, shuffle_ns=setting.server_shuffle_ns)
    cluster = Cluster(
        seed,
        dict.fromkeys(regions, REPLICAS),
        publishers=0,
        subscribers=0,
        mesh=setting.mesh,
        server={"mesh": servers},
    )
    world = cluster.world
    for (a, b), delay_ms in DELAYS_MS.items():
        if a in regions and b in regions:
            world.set_link(a, b, Link(delay_ms * MS, bandwidth_bps=BETWEEN_BPS))
    load = Load(setting.until_ns, BEGIN_NS, setting.rate, setting.event_bytes)
    options = {
        "keep_bytes_max": load.batch_bytes * setting.keep_ns // BATCH_NS,
        "deadline_ns_min": setting.deadline_ns,
    }
    names = []
    for region in regions:
        world.set_link(region, region, Link(WITHIN_NS, bandwidth_bps=WITHIN_BPS))
        if region in setting.meshed:
            names += add_mesh(cluster, region, setting.clients, setting.spread, **options)
        make = partial(Driver, f"from-{region}", cluster.regions[region][0], load)
        world.add(f"{region}/driver", partial(_driver, make))
    return cluster, names


def _driver(make: Callable[[Random], Driver], ctx: NodeContext) -> Driver:
    return make(ctx.rng)


def _counts(cluster: Cluster, names: Sequence[str]) -> Counter[str]:
    total: Counter[str] = Counter()
    for name in names:
        total.update(cluster.counters[name])
    return total


def _backlogs(cluster: Cluster, names: Sequence[str]) -> list[tuple[str, int]]:
    """The backlog of the uplink of each client and server, as the time needed to send it."""
    world, found = cluster.world, []
    for name in (*names, *(node for nodes in cluster.regions.values() for node in nodes)):
        node = world.nodes[name]
        # All messages of a node within its region use its uplink, so any destination there will do.
        path = world.network.path(node, world.nodes[f"{node.site}/config"])
        found.append((name, max(0, path.pipe.free_ns - world.now_ns)))
    return found
