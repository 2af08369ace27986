"""A simulated Sprinkler deployment, and the outside record of what its clients did and saw.

    cluster = Cluster(seed=7, regions={"east": 2, "west": 2})
    cluster.open("prices", "east", LatestPerKey())
    cluster.offer(1 * SECOND, "east/pub0", "prices", [b"81"], [b"IBM"])
    cluster.world.run(until_ns=5 * SECOND)
    cluster.judge().violations  # []

Tests, the lab, the demo and the swarm all build their clusters here.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from surecast.columns.batch import DATA
from surecast.columns.retention import Policy
from surecast.core.endpoint import Acked, Failed, Follow, Offer, Open, Opened, Unfollow
from surecast.core.machine import NodeContext
from surecast.core.roles import Deployment
from surecast.core.streams import StreamSpec
from surecast.core.types import MS, SECOND, LogId
from surecast.protocols.chain.messages import Member
from surecast.protocols.sprinkler.checks import Offered, Reading, Record, Tally, check
from surecast.protocols.sprinkler.config import ClientConfig, MeshConfig
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.streams.config import PublisherConfig, SubscriberConfig
from surecast.protocols.streams.publisher import Publisher
from surecast.protocols.streams.subscriber import Subscriber
from surecast.registry import configs, roles, witness
from surecast.sim.links import Link
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast.stacks import region_replica

__all__ = ["Cluster"]


def _split(options: dict[str, Any], common: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Options of replicas by role (but for the chain, which has its own): each goes to every role
    that has a field of this name, and so do those in `common`, if there is one."""
    names = {
        name: {field.name for field in fields(role.config)}
        for name, role in roles().items()
        if name != "chain"
    }
    unknown = [key for key in options if not any(key in known for known in names.values())]
    assert not unknown, f"no options of a replica: {unknown}"
    given = {**common, **options}
    return {
        name: {key: value for key, value in given.items() if key in known}
        for name, known in names.items()
    }


class Cluster:
    """Regions of replicas with their configuration services, publishers and subscribers."""

    def __init__(
        self,
        seed: object,
        regions: dict[str, int],
        *,
        delay_ns: Callable[[str, str], int] = lambda a, b: 20 * MS,
        publishers: int = 1,
        subscribers: int = 1,
        chain: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
        types: tuple[type[Any], ...] = (),
        client_type: type[MeshPeer] = MeshPeer,
        mesh: MeshConfig | None = None,
        client: dict[str, Any] | None = None,
        publisher: dict[str, Any] | None = None,
        trace: Trace | None = None,
        reencode: Callable[[Any], Any] | None = None,
    ) -> None:
        self.world = World(seed, Link(300_000), trace=trace, reencode=reencode, record=False)
        self.regions = {
            region: tuple(f"{region}/{n}" for n in range(count))
            for region, count in regions.items()
        }
        self.types = types  # in place of a replica's own (`stacks.region_replica`)
        self.client_type = client_type
        self.mesh = mesh or MeshConfig()
        self.client_options = client or {}
        self.role_options = {"chain": chain or {}, **_split(server or {}, {"mesh": self.mesh})}
        self.publisher_options = publisher or {}
        self.counters: dict[str, Counter[str]] = {}  # by node, through all its lives
        self.records: dict[str, Record] = {}
        self.owners: dict[str, str] = {}
        self.streams: dict[str, LogId] = {}
        self.names: dict[LogId, str] = {}
        self.offered: dict[tuple[str, str], list[list[bytes]]] = {}  # (publisher, stream) batches
        self.numbers: dict[tuple[str, str], int] = {}
        self.readings: dict[tuple[str, LogId], Reading] = {}
        self.stood: dict[LogId, int] = {}  # where streams ended when the last audit was called
        self.failed: list[Failed] = []
        self.unopened: list[Opened] = []  # streams that somebody was refused
        self.publishers: list[str] = []
        self.subscribers: list[str] = []  # thin readers and mesh clients, but for those that left
        self.clients: dict[str, dict[str, int]] = {}  # mesh client → stream followed and its start
        self.callers: list[str] = []  # who asks questions (`callers.py`)
        self.gone: list[str] = []  # clients that left
        for a in self.regions:
            for b in self.regions:
                if a < b:
                    self.world.set_link(a, b, Link(delay_ns(a, b), jitter_ns=delay_ns(a, b) // 20))
        for region, nodes in self.regions.items():
            self._add_region(region, nodes)
            for n in range(publishers):
                self._add_publisher(f"{region}/pub{n}", nodes)
            for n in range(subscribers):
                self.add_subscriber(f"{region}/sub{n}")

    # ------------------------------------------------------------ building

    def _add_region(self, region: str, nodes: tuple[str, ...]) -> None:
        service = f"{region}/config"
        chains = {region: nodes}
        counters = self.counters[service] = Counter()
        self.world.add(service, lambda ctx: witness(chains, ctx.disk, counters))
        for name in nodes:
            self._add_replica(region, name, service)

    def _add_replica(self, region: str, name: str, service: str) -> None:
        counters = self.counters[name] = Counter()
        deployment = Deployment(region, name, dict(self.regions), service)
        made = configs(deployment, self.role_options)

        def factory(ctx: NodeContext) -> Any:
            return region_replica(made, ctx.disk, ctx.rng, counters, types=self.types)

        self.world.add(name, factory)

    def _add_publisher(self, name: str, replicas: tuple[str, ...]) -> None:
        counters = self.counters[name] = Counter()
        config = PublisherConfig(replicas, **self.publisher_options)
        self.world.add(name, lambda ctx: Publisher(config, ctx.rng, counters))
        self.world.on_emit(name, self._on_publisher)
        self.publishers.append(name)

    def add_subscriber(self, name: str, replicas: tuple[str, ...] = ()) -> None:
        """A thin subscriber that follows every stream from its first position.

        By default it asks any replica of its region; with `replicas` given it is an audit.
        """
        region = name.split("/")[0]
        config = SubscriberConfig(replicas or self.regions[region])
        counters = self.counters[name] = Counter()
        self.world.add(name, lambda ctx: Subscriber(config, {}, counters))
        self.world.on_deliver(name, self._on_deliver)
        self.subscribers.append(name)
        for stream in self.streams.values():
            self._follow(name, stream, bool(replicas))

    def add_client(
        self, name: str, follows: dict[str, int] | None = None, replicas: tuple[str, ...] = ()
    ) -> None:
        """A mesh client of its region. `follows`: stream → start (0 latest); default all from 1.

        When it crashes and comes back it goes on, as an application does, where it had got to.
        """
        region = name.split("/")[0]
        config = ClientConfig(
            name, replicas or self.regions[region][::-1], self.mesh, **self.client_options
        )
        counters = self.counters[name] = Counter()
        self.clients[name] = dict.fromkeys(self.streams, 1) if follows is None else follows

        def factory(ctx: NodeContext) -> MeshPeer:
            followed = [self.streams[stream] for stream in self.clients[name]]
            starts = {stream: self.readings[name, stream].position for stream in followed}
            return self.client_type(config, starts, ctx.rng, counters)

        self.world.on_deliver(name, self._on_deliver)
        self.world.on_emit(name, self._on_following)
        for stream, start in self.clients[name].items():
            self._reading(name, self.streams[stream]).position = start
        self.subscribers.append(name)
        self.world.add(name, factory)

    def remove_client(self, name: str) -> None:
        """A client goes for good; what it got until then is still judged."""
        self.subscribers.remove(name)
        self.gone.append(name)
        for (reader, _), reading in self.readings.items():
            reading.left = reading.left or reader == name
        self.world.crash(name)

    def follow(self, name: str, stream: str, start: int) -> None:
        """A mesh client follows one more stream, from `start` on (0: the latest)."""
        self.clients[name][stream] = start
        self._reading(name, self.streams[stream]).position = start
        self.world.at(self.world.now_ns, name, Follow(self.streams[stream], start))

    def unfollow(self, name: str, stream: str) -> None:
        """A mesh client has had enough of a stream; what it got until then is still judged."""
        del self.clients[name][stream]
        self.readings[name, self.streams[stream]].left = True
        self.world.at(self.world.now_ns, name, Unfollow(self.streams[stream]))

    def heal(self) -> None:
        """`World.heal_all`, but who left for good stays away."""
        self.world.heal_all()
        for name in self.gone:
            self.world.crash(name)

    def _on_following(self, _now_ns: int, name: str, event: Any) -> None:
        reading = self.readings[name, event.stream]
        if not reading.position:
            reading.position = event.start

    # ------------------------------------------------------------ driving

    def open(
        self, stream: str, owner: str, policy: Policy, at_ns: int = 0, opener: str = ""
    ) -> None:
        """Have a publisher (by default one of the owner's region) create a stream."""
        self.records[stream] = Record(stream, policy)
        self.owners[stream] = owner
        self.world.at(at_ns, opener or f"{owner}/pub0", Open(stream, StreamSpec(policy)))

    def offer(
        self,
        at_ns: int,
        publisher: str,
        stream: str,
        values: list[bytes],
        keys: list[bytes | None] | None = None,
        tags: list[bytes | None] | None = None,
        kind: int = DATA,
    ) -> None:
        """Have a publisher offer these values at a time, or as soon as the stream is open."""

        def do(world: World) -> None:
            stream_id = self.streams.get(stream)
            if stream_id is None:
                world.call(world.now_ns + 20 * MS, do)
                return
            line = (publisher, stream)
            number = self.numbers.setdefault(line, 1)
            for i, value in enumerate(values):
                key = keys[i] if keys else None
                tag = tags[i] if tags else None
                event = Offered(publisher, number + i, kind, key, value, tag)
                assert value not in self.records[stream].offered, "values must be unique"
                self.records[stream].offered[value] = event
            self.numbers[line] = number + len(values)
            self.offered.setdefault(line, []).append(values)
            world.at(world.now_ns, publisher, Offer(stream_id, values, keys, tags, kind))

        self.world.call(at_ns, do)

    def _reading(self, name: str, stream: LogId, audit: bool = False) -> Reading:
        reading = self.readings[name, stream] = Reading(name)
        record = self.records[self.names[stream]]
        reading.settled = self.stood.get(stream, 1)
        (record.audits if audit else record.readings).append(reading)
        return reading

    def _follow(self, name: str, stream: LogId, audit: bool = False) -> None:
        self._reading(name, stream, audit)
        self.world.at(self.world.now_ns, name, Follow(stream, 1))

    def _on_publisher(self, _now_ns: int, name: str, event: Any) -> None:
        if isinstance(event, Opened):
            if event.info is None or event.why:
                self.unopened.append(event)
            elif event.name not in self.streams:
                assert event.info.owner == self.owners[event.name], event.info
                self.streams[event.name] = event.info.stream_id
                self.names[event.info.stream_id] = event.name
                for subscriber in self.subscribers:
                    if subscriber not in self.clients:
                        self._follow(subscriber, event.info.stream_id)
        elif isinstance(event, Acked):
            stream = self.names[event.stream]
            values = self.offered[name, stream].pop(0)
            record = self.records[stream]
            for i, value in enumerate(values):
                record.acked[value] = event.seq + i
        elif isinstance(event, Failed):
            self.failed.append(event)
            self.offered[name, self.names[event.stream]].pop()

    def _on_deliver(self, _now_ns: int, name: str, stream: LogId, batches: tuple[Any, ...]) -> None:
        self.readings[name, stream].take(batches)

    # ------------------------------------------------------------ looking

    def members(self, region: str) -> tuple[Member, ...]:
        """Who is in the chain by the configuration service; () while that is down."""
        service = self.world.machine(f"{region}/config")
        return service.tables[region].members if service else ()

    def unacknowledged(self, names: Iterable[str] | None = None) -> int:
        machines = (self.world.machine(n) for n in (names or self.publishers))
        return sum(m.unacknowledged for m in machines if m)

    def position(self, reader: str, stream: str) -> int:
        return self.readings[reader, self.streams[stream]].position

    def readers_of(self, stream: str) -> list[str]:
        return [r for r in self.subscribers if stream in self.clients.get(r, self.streams)]

    def settled(self, readers: list[str] | None = None) -> bool:
        """Everything offered is acknowledged, and all readers are at the same end beyond it."""
        if len(self.streams) < len(self.records) or self.unacknowledged():
            return False
        for stream, record in self.records.items():
            ends = {self.position(r, stream) for r in readers or self.readers_of(stream)}
            if len(ends) != 1 or ends.pop() <= max(record.acked.values(), default=0):
                return False
        return True

    def audit(self, within_ns: int = 30 * SECOND) -> bool:
        """Read every replica afresh, from the first position of every stream.

        What all readers have reached is given a moment to reach all replicas; by the rules up to
        there the audit is judged (expiry goes on meanwhile).
        """
        for name, stream in self.streams.items():
            self.stood[stream] = min(self.position(r, name) for r in self.readers_of(name))
        self.world.run(self.world.now_ns + 2 * SECOND)
        for nodes in self.regions.values():
            for node in nodes:
                self.add_subscriber(f"{node}.audit{len(self.subscribers)}", (node,))
        limit_ns = self.world.now_ns + within_ns
        return self.world.run(limit_ns, until=lambda _: self.settled())

    def judge(self) -> Tally:
        tally = Tally()
        for record in self.records.values():
            check(record, tally)
        tally.violations += [f"{each.name}: not opened: {each.why}" for each in self.unopened]
        for failed in self.failed:
            name = self.names[failed.stream]
            tally.violations.append(f"{name}: publish {failed.pub_no} failed: {failed.why}")
        return tally
