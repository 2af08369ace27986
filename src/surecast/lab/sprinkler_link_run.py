"""The runs behind Sprinkler E4: four regions, a stream from each, and a link that fails.

`simulate(seed, plan)` gives what a subscriber in each region was given, and when.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepLast
from surecast.core.types import MS, SECOND, Emit, Received, Send, SetTimer, Start, TimerFired
from surecast.protocols.sprinkler.config import SubscriberConfig
from surecast.protocols.sprinkler.messages import (
    CreateStream,
    Follow,
    Opened,
    PubAck,
    Publish,
    PubNack,
    StreamOpened,
)
from surecast.protocols.sprinkler.publisher import anonymous_publisher
from surecast.protocols.sprinkler.subscriber import Subscriber
from surecast.sim.links import Link
from surecast.swarm.cluster import Cluster

__all__ = [
    "BATCH_EVENTS",
    "DELAYS_MS",
    "FAILED",
    "FULL",
    "QUICK",
    "RATE",
    "REGIONS",
    "Driver",
    "Plan",
    "Run",
    "simulate",
]

REGIONS = ("r0", "r1", "r2", "r3")
FAILED = ("r2", "r3")
# One-way, as between Seattle, Los Angeles, Dallas and Virginia. Of the paper's own values only the
# failed link's 15 ms are known.
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
RATE = 864_000  # events a second and region, the paper's load
BATCH_NS = 10 * MS
BATCH_EVENTS = RATE * BATCH_NS // SECOND
BATCH_BYTES = 128 + BATCH_EVENTS * 1815 // 100  # a frame of as many real events of ten bytes
RETAINED = 100_000_000  # the paper's rule: events older than this are garbage
LOOK_NS = 10 * MS  # how often sources are looked at
DRAIN_NS = 2 * SECOND  # after publishing has ended, until all must be everywhere


@dataclass(frozen=True, slots=True)
class Plan:
    cut_s: int
    mend_s: int
    end_s: int


FULL = Plan(19, 41, 60)
QUICK = Plan(3, 7, 10)  # the cut still outlasts the sessions over the link


class Driver:
    """Opens a stream and publishes a batch every `BATCH_NS`, whatever the answers are.

    A machine like `protocols.sprinkler.publisher`, but its batches only count events: they are
    never made, so that a second of a million events costs the simulator a few hundred messages.
    """

    def __init__(self, stream: str, head: str, end_ns: int, rng: Random) -> None:
        self.stream = stream
        self.head = head
        self.end_ns = end_ns
        self.rng = rng
        self.publisher = self.stream_id = b""
        self.next_no = 1
        self.waiting: deque[Batch] = deque()  # not acknowledged, oldest first
        self.refused = 0

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        if isinstance(inp, Received):
            return self._on_answer(now_ns, inp.message)
        if isinstance(inp, TimerFired):
            return self._on_timer(now_ns, inp.key)
        if isinstance(inp, Start):
            self.publisher = anonymous_publisher(inp.wall_ns, self.rng)
            # Chains need a moment to form; drivers do not run in step.
            return [SetTimer("open", now_ns + 200 * MS + self.rng.randrange(BATCH_NS))]
        return []

    def _on_timer(self, now_ns: int, key: str) -> list[Any]:
        if key == "open":
            return [Send(self.head, CreateStream(self.stream, KeepLast(RETAINED)))]
        if key == "again":
            return [Send(self.head, Publish(self.stream_id, batch)) for batch in self.waiting]
        if now_ns >= self.end_ns:
            return []
        batch = Batch.synthetic(
            self.stream_id,
            BATCH_EVENTS,
            BATCH_BYTES,
            publisher=self.publisher,
            pub_no=self.next_no,
        )
        self.next_no += batch.count
        self.waiting.append(batch)
        return [
            Send(self.head, Publish(self.stream_id, batch)),
            SetTimer("publish", now_ns + BATCH_NS),
        ]

    def _on_answer(self, now_ns: int, message: Any) -> list[Any]:
        if isinstance(message, StreamOpened):
            if message.info is None:
                return [SetTimer("open", now_ns + 50 * MS)]
            self.stream_id = message.info.stream_id
            return [Emit(Opened(message.name, message.info)), SetTimer("publish", now_ns)]
        if isinstance(message, PubAck):
            while self.waiting and self.waiting[0].pub_no <= message.pub_no:
                self.waiting.popleft()  # a head acknowledges in order
        elif isinstance(message, PubNack):
            self.refused += 1
            return [SetTimer("again", now_ns + 50 * MS)]
        return []


@dataclass(slots=True)
class Run:
    """What the subscribers of one simulated run were given."""

    plan: Plan
    deliveries: dict[tuple[str, str], list[tuple[int, int, int]]] = field(default_factory=dict)
    """(origin, region) → (position reached, when, the head's time) of each batch."""
    sources: list[tuple[int, str, str, str]] = field(default_factory=list)
    """(when, origin, region, source) of every change."""
    published: dict[str, int] = field(default_factory=dict)  # by origin
    unacknowledged: int = 0
    refused: int = 0
    misplaced: int = 0  # batches that did not begin where the last one ended, or were not whole
    inputs: int = 0

    @property
    def missing(self) -> int:
        """Events that some subscriber was not given."""
        return sum(
            self.published[origin] - (self.deliveries[origin, region][-1][0] - 1)
            for origin in REGIONS
            for region in REGIONS
        )


def simulate(seed: int, plan: Plan) -> Run:
    cluster = _build(seed, plan)
    world = cluster.world
    run = Run(plan, {(origin, region): [] for origin in REGIONS for region in REGIONS})
    origins: dict[bytes, str] = {}

    def on_opened(now_ns: int, name: str, event: Any) -> None:
        origins[event.info.stream_id] = name.split("/")[0]
        for region in REGIONS:
            world.at(now_ns, f"{region}/subscriber", Follow(event.info.stream_id, 1))

    def on_deliver(now_ns: int, name: str, stream: bytes, batches: tuple[Batch, ...]) -> None:
        got = run.deliveries[origins[stream], name.split("/")[0]]
        for batch in batches:
            run.misplaced += batch.lo != (got[-1][0] if got else 1) or batch.rows != batch.count
            got.append((batch.hi, now_ns, batch.time_ns))

    for region in REGIONS:
        world.on_emit(f"{region}/driver", on_opened)
        world.on_deliver(f"{region}/subscriber", on_deliver)
    world.call(plan.cut_s * SECOND, lambda world: world.cut(*FAILED))
    world.call(plan.mend_s * SECOND, lambda world: world.mend(*FAILED))
    known: dict[tuple[str, str], str] = {}
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
    run.inputs = world.inputs
    return run


def _build(seed: int, plan: Plan) -> Cluster:
    cluster = Cluster(seed, dict.fromkeys(REGIONS, 3), publishers=0, subscribers=0)
    world = cluster.world
    for (a, b), delay_ms in DELAYS_MS.items():
        delay_ns = delay_ms * MS
        world.set_link(a, b, Link(delay_ns, jitter_ns=delay_ns // 20, bandwidth_bps=BETWEEN_BPS))
    for region in cluster.regions:
        world.set_link(region, region, Link(WITHIN_NS, bandwidth_bps=WITHIN_BPS))
        _add_clients(cluster, region, plan)
    return cluster


def _add_clients(cluster: Cluster, region: str, plan: Plan) -> None:
    replicas = cluster.regions[region]
    # The tail first: the head's uplink is busy with the chain.
    config = SubscriberConfig(replicas[::-1])
    cluster.world.add(f"{region}/subscriber", lambda _: Subscriber(config, {}))
    make = partial(Driver, f"from {region}", replicas[0], plan.end_s * SECOND)
    cluster.world.add(f"{region}/driver", lambda context: make(context.rng))


def _sources(cluster: Cluster, origins: dict[bytes, str]) -> list[tuple[tuple[str, str], str]]:
    """((origin, region), source region or "") as the heads have it now."""
    found = []
    for region, replicas in cluster.regions.items():
        _, proxy = cluster.world.machine(replicas[0]).layers
        for stream_id, stream in proxy.streams.items():
            source = stream.source.region if stream.source else ""
            if stream_id in origins and origins[stream_id] != region:
                found.append(((origins[stream_id], region), source))
    return found
