"""Simulated regions of replicas, with records of what their clients did and received.

    cluster = Cluster(seed=7, regions={"east": 2, "west": 2})
    cluster.open("prices", "east", LatestPerKey())
    cluster.offer(1 * SECOND, "east/pub0", "prices", [b"81"], [b"IBM"])
    cluster.world.run(until_ns=5 * SECOND)
    cluster.judge().violations  # []

Tests, the lab and the swarms build their clusters with the class `Cluster`: regions whose replicas
form a chain, each with a configuration service (the witness, which decides who is in the chain),
publishers and readers. Readers are *thin* subscribers, which get all events from a server, *mesh
clients*, which also exchange events with each other, or readers of another delivery. An *audit* is
a reader that is added at the end and reads everything again from one replica.

A stream's delivery is the protocol that carries its events to readers. Streams of several
deliveries may share the chains: `open(..., delivery="x")` creates a stream of the delivery "x",
`add_reader("east/x0", "x")` adds a reader of its streams, and `judges["x"]` judges them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from surecast import registry
from surecast.columns.batch import DATA, Batch
from surecast.columns.retention import Policy
from surecast.columns.typed import Attributes
from surecast.core.endpoint import (
    Acked,
    Failed,
    Follow,
    Following,
    Lost,
    Offer,
    OfferBatch,
    Open,
    Opened,
    Place,
    Unfollow,
)
from surecast.core.machine import HandlerMachine, NodeContext
from surecast.core.roles import Deployment
from surecast.core.streams import DEFAULT_DELIVERY, StreamInfo, StreamSpec
from surecast.core.types import MS, SECOND, LogId, Machine
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

__all__ = ["Cluster", "JudgeOfStream"]

JudgeOfStream = Callable[[Record, Tally], None]  # adds counts and violations to the tally


def _split(options: dict[str, Any], common: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Distribute options of replicas to the roles (layers) of a replica, except the chain.

    Each option goes to every role whose config class has a field of this name. An entry of
    `options` that no role has is an error; such an entry of `common` is ignored.
    """
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
        publisher_type: type[Publisher] = Publisher,
        mesh: MeshConfig | None = None,
        client: dict[str, Any] | None = None,
        publisher: dict[str, Any] | None = None,
        trace: Trace | None = None,
        reencode: Callable[[Any], Any] | None = None,
        without: Mapping[str, Collection[str]] | None = None,
        judges: Mapping[str, JudgeOfStream] | None = None,
        validate: bool | None = None,
    ) -> None:
        """`validate`: as in `World`. It is off by default if machines are replaced (`types`,
        `client_type`), because such tests break a rule on purpose and check what clients
        observe."""
        self.world = World(
            seed,
            Link(300_000),
            trace=trace,
            reencode=reencode,
            record=False,
            validate=not types and client_type is MeshPeer if validate is None else validate,
        )
        self.regions = {
            region: tuple(f"{region}/{n}" for n in range(count))
            for region, count in regions.items()
        }
        self.types = types  # replace a replica's own layer classes (`stacks.region_replica`)
        self.client_type = client_type
        self.publisher_type = publisher_type
        self.mesh = mesh or MeshConfig()
        self.client_options = client or {}
        self.role_options = {"chain": chain or {}, **_split(server or {}, {"mesh": self.mesh})}
        self.publisher_options = publisher or {}
        self.without = {name: frozenset(lacks) for name, lacks in (without or {}).items()}
        self.counters: dict[str, Counter[str]] = {}  # by node, over all its restarts
        self.records: dict[str, Record] = {}
        self.owners: dict[str, str] = {}
        self.deliveries: dict[str, str] = {}  # stream → delivery, if it is not the default one
        self.read_in: dict[str, Collection[str]] = {}  # stream → its regions, unless in all
        self.judges = {DEFAULT_DELIVERY: check, **(judges or {})}  # by delivery
        self.schemas: dict[str, str] = {}  # stream → its schema, if `open` is not given one
        # Makes the attributes of new events (stream, their number) if `offer` is not given any.
        self.rows_of: Callable[[str, int], Attributes] | None = None
        self.streams: dict[str, LogId] = {}
        self.names: dict[LogId, str] = {}
        self.offered: dict[tuple[str, str], list[list[bytes]]] = {}  # (publisher, stream) batches
        self.numbers: dict[tuple[str, str], int] = {}
        self.readings: dict[tuple[str, LogId], Reading] = {}
        self.stood: dict[LogId, int] = {}  # the end of each stream when the last audit began
        self.failed: list[Failed] = []
        self.refused: dict[str, list[bytes]] = {}  # stream → the values of failed publishes
        self.unopened: list[Opened] = []  # streams whose creation was refused
        # A stream that is created under the name of a deleted stream has its own record:
        # name → the record of the new stream.
        self.renewed: dict[str, str] = {}
        self.refusals: dict[str, str] = {}  # streams that must be refused → expected reason
        self.publishers: list[str] = []
        self.subscribers: list[str] = []  # all readers except those that left
        self.readers: dict[str, str] = {}  # readers of other deliveries → the delivery
        self.clients: dict[str, dict[str, int]] = {}  # mesh client → {stream: start}
        self.callers: list[str] = []  # clients that send queries (`query_clients.py`)
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
            self._check_lacks(name)

    def _add_replica(self, region: str, name: str, service: str) -> None:
        counters = self.counters[name] = Counter()
        deployment = Deployment(region, name, dict(self.regions), service)
        made = configs(deployment, self.role_options)

        def factory(ctx: NodeContext) -> Any:
            lacks = self.lacks(name)
            has = {role: config for role, config in made.items() if role not in lacks}
            return region_replica(has, ctx.disk, ctx.rng, counters, types=self.types)

        self.world.add(name, factory)

    def lacks(self, replica: str) -> frozenset[str]:
        """The protocols that a replica lacks from its next start on. The protocols that it lists
        for its peers (`PeerUp.speaks`) follow from its layers."""
        return self.without.get(replica, frozenset())

    def reinstall(self, replica: str, without: Collection[str] = ()) -> None:
        """Restart a replica on its disk with software that lacks these protocols."""
        self.without[replica] = frozenset(without)
        self.world.crash(replica, lose_unsynced=False)
        self.world.restart(replica)
        self._check_lacks(replica)

    def _check_lacks(self, replica: str) -> None:
        found = self.lacks(replica).intersection(self.world.nodes[replica].speaks)
        assert not found, f"{replica} must lack {', '.join(sorted(found))}"

    def add_publisher(self, name: str) -> None:
        """Add a publisher of the region that its name begins with."""
        self._add_publisher(name, self.regions[name.split("/")[0]])

    def _add_publisher(self, name: str, replicas: tuple[str, ...]) -> None:
        counters = self.counters[name] = Counter()
        config = PublisherConfig(replicas, **self.publisher_options)
        self.world.add(name, lambda ctx: self.publisher_type(config, ctx.rng, counters))
        self.world.on_emit(name, self._on_publisher)
        self.publishers.append(name)

    def add_subscriber(self, name: str, replicas: tuple[str, ...] = ()) -> None:
        """Add a thin subscriber that follows every stream from its first position.

        By default it reads from any replica of its region. If `replicas` is given, it reads from
        these, and its deliveries are recorded as an audit.
        """
        region = name.split("/")[0]
        config = SubscriberConfig(replicas or self.regions[region])
        counters = self.counters[name] = Counter()
        self.world.add(name, lambda ctx: Subscriber(config, {}, counters))
        self.world.on_deliver(name, self._on_deliver)
        self.world.on_emit(name, self._on_reader)
        self.subscribers.append(name)
        self._follow_all(name, bool(replicas))

    def add_reader(self, name: str, delivery: str, *, servers: tuple[str, ...] = ()) -> None:
        """Add the registry's reader for a delivery. It follows all streams of the delivery that can
        be read in its region.

        By default it reads from any replica of its region. If `servers` is given, it reads from
        these, and its deliveries are recorded as an audit. After a crash and restart it continues
        at the position it had reached.
        """
        region = name.split("/")[0]
        place = Place(region, servers or self.regions[region])
        counters = self.counters[name] = Counter()

        def factory(ctx: NodeContext) -> Machine:
            if ctx.incarnation > 1:
                self.world.call(self.world.now_ns, partial(self._resume, name))
            return _counting(registry.reader(delivery, ctx, place), counters)

        self.readers[name] = delivery
        self.world.add(name, factory)
        self.world.on_deliver(name, self._on_deliver)
        self.world.on_emit(name, self._on_reader)
        self.subscribers.append(name)
        self._follow_all(name, bool(servers))

    def _resume(self, name: str, world: World) -> None:
        for (reader, stream), reading in self.readings.items():
            if reader == name:
                world.at(world.now_ns, name, Follow(stream, reading.position))

    def add_client(
        self, name: str, follows: dict[str, int] | None = None, replicas: tuple[str, ...] = ()
    ) -> None:
        """Add a mesh client. `follows`: stream → start (0: the latest); by default all from 1.

        After a crash and restart it continues, as an application does, at the position it had
        reached.
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
        self.world.on_emit(name, self._on_reader)
        for stream, start in self.clients[name].items():
            self._reading_from(name, stream, start)
        self.subscribers.append(name)
        self.world.add(name, factory)

    def remove_client(self, name: str) -> None:
        """Remove a client permanently; its deliveries until now are still judged."""
        self.subscribers.remove(name)
        self.gone.append(name)
        for (reader, _), reading in self.readings.items():
            reading.left = reading.left or reader == name
        self.world.crash(name)

    def follow(self, name: str, stream: str, start: int) -> None:
        """Have a mesh client follow one more stream, from `start` on (0: the latest)."""
        self.clients[name][stream] = start
        self._reading_from(name, stream, start)
        self.world.at(self.world.now_ns, name, Follow(self.streams[stream], start))

    def unfollow(self, name: str, stream: str) -> None:
        """Have a mesh client unfollow a stream; its deliveries until now are still judged."""
        del self.clients[name][stream]
        self.readings[name, self.streams[stream]].left = True
        self.world.at(self.world.now_ns, name, Unfollow(self.streams[stream]))

    def _on_reader(self, _now_ns: int, name: str, event: Any) -> None:
        if isinstance(event, Following):
            reading = self.readings[name, event.stream]
            if not reading.position:
                reading.position = event.start
        elif isinstance(event, Lost):
            self.readings[name, event.stream].lose(event.lo, event.hi, event.why)

    # ------------------------------------------------------------ driving

    def open(
        self,
        stream: str,
        owner: str,
        policy: Policy,
        at_ns: int = 0,
        opener: str = "",
        delivery: str = "",
        read_in: Collection[str] = (),
        schema: str = "",
    ) -> None:
        """Have a publisher (by default one of the owner's region) create a stream.

        `read_in`: the regions where the stream can be read; by default all.
        """
        assert not delivery or delivery in self.judges, f"no judge for streams of {delivery!r}"
        schema = schema or self.schemas.get(stream, "")
        self.records[stream] = Record(stream, policy, schema=schema)
        self.owners[stream] = owner
        if delivery:
            self.deliveries[stream] = delivery
        if read_in:
            self.read_in[stream] = frozenset(read_in)
        spec = StreamSpec(policy, delivery, schema)
        self.world.at(at_ns, opener or f"{owner}/pub0", Open(stream, spec))

    def expect_refusal(
        self, at_ns: int, opener: str, stream: str, why: str, spec: StreamSpec
    ) -> None:
        """Have a publisher try to create a stream; any answer but a refusal with reason `why` is a
        violation. The name must not be used for another stream."""
        self.refusals[stream] = why
        self.world.at(at_ns, opener, Open(stream, spec))

    def offer(
        self,
        at_ns: int,
        publisher: str,
        stream: str,
        values: list[bytes],
        keys: list[bytes | None] | None = None,
        tags: list[bytes | None] | None = None,
        kind: int = DATA,
        attributes: Attributes | None = None,
    ) -> None:
        """Have a publisher offer these values at `at_ns`, or later when the stream is open.
        `attributes` has a row for each value, if the stream has a schema."""

        def do(world: World) -> None:
            stream_id = self.streams.get(stream)
            if stream_id is None:
                world.call(world.now_ns + 20 * MS, do)
                return
            line = (publisher, stream)
            held = attributes
            if held is None and self.rows_of and kind == DATA and self.records[stream].schema:
                held = self.rows_of(stream, len(values))
            number = self.numbers.setdefault(line, 1)
            for i, value in enumerate(values):
                key = keys[i] if keys else None
                tag = tags[i] if tags else None
                row = held.row_bytes(i) if held else b""
                event = Offered(publisher, number + i, kind, key, value, tag, row)
                assert value not in self.records[stream].offered, "values must be unique"
                self.records[stream].offered[value] = event
            self.numbers[line] = number + len(values)
            self.offered.setdefault(line, []).append(values)
            command: Any = Offer(stream_id, values, keys, tags, kind)
            if held:
                batch = Batch.of(stream_id, values, keys, tags, held)
                command = OfferBatch(stream_id, batch, 0)
            world.at(world.now_ns, publisher, command)

        self.world.call(at_ns, do)

    def _reading(self, name: str, stream: LogId, audit: bool = False) -> Reading:
        record = self.records[self.names[stream]]
        reading = self.readings[name, stream] = Reading(name, schema=record.schema)
        reading.settled = self.stood.get(stream, 1)
        (record.audits if audit else record.readings).append(reading)
        return reading

    def _reading_from(self, name: str, stream: str, start: int) -> None:
        reading = self._reading(name, self.streams[stream])
        reading.position = start
        if start != 1:
            reading.schema = ""  # it may be changed below `start`

    def _follow_all(self, name: str, audit: bool) -> None:
        for stream, stream_id in self.streams.items():
            if self._reads(name, stream):
                self._follow(name, stream_id, audit)

    def _follow(self, name: str, stream: LogId, audit: bool = False) -> None:
        self._reading(name, stream, audit)
        self.world.at(self.world.now_ns, name, Follow(stream, 1))

    def _on_publisher(self, _now_ns: int, name: str, event: Any) -> None:
        if isinstance(event, Opened):
            if event.info is None and event.why == self.refusals.get(event.name):
                del self.refusals[event.name]
            elif event.info is None or event.why or event.name not in self.records:
                self.unopened.append(event)
            else:
                self._on_opened(self.renewed.get(event.name, event.name), event.info)
        elif isinstance(event, Acked):
            stream = self.names[event.stream]
            values = self.offered[name, stream].pop(0)
            record = self.records[stream]
            for i, value in enumerate(values):
                record.acked[value] = event.seq + i
        elif isinstance(event, Failed):
            self.failed.append(event)
            stream = self.names[event.stream]
            self.refused.setdefault(stream, []).extend(self.offered[name, stream].pop())

    def _on_opened(self, stream: str, info: StreamInfo) -> None:
        if stream in self.streams or info.stream_id in self.names:
            return
        assert info.owner == self.owners[stream], info
        assert info.delivery == self.delivery_of(stream), info
        self.streams[stream] = info.stream_id
        self.names[info.stream_id] = stream
        for reader in self.subscribers:
            if reader not in self.clients and self._reads(reader, stream):
                self._follow(reader, info.stream_id)

    def _on_deliver(self, _now_ns: int, name: str, stream: LogId, batches: tuple[Any, ...]) -> None:
        self.readings[name, stream].take(batches)

    # ------------------------------------------------------------ observing

    def members(self, region: str) -> tuple[Member, ...]:
        """The members of the chain by the configuration service; () while it is down."""
        service = self.world.machine(f"{region}/config")
        return service.tables[region].members if service else ()

    def unacknowledged(self, names: Iterable[str] | None = None) -> int:
        machines = (self.world.machine(n) for n in (names or self.publishers))
        return sum(m.unacknowledged for m in machines if m)

    def position(self, reader: str, stream: str) -> int:
        return self.readings[reader, self.streams[stream]].position

    def readers_of(self, stream: str) -> list[str]:
        return [reader for reader in self.subscribers if self._reads(reader, stream)]

    def _reads(self, reader: str, stream: str) -> bool:
        if reader in self.clients:
            return stream in self.clients[reader]
        if stream not in self.streams:
            return False
        if reader.split("/")[0] not in self.read_in.get(stream, self.regions):
            return False
        return self.readers.get(reader, DEFAULT_DELIVERY) == self.delivery_of(stream)

    def delivery_of(self, stream: str) -> str:
        return self.deliveries.get(stream, DEFAULT_DELIVERY)

    def thin_readers(self) -> list[str]:
        """The readers that use the stream service's own subscriber."""
        others = {*self.clients, *self.readers}
        return [name for name in self.subscribers if name not in others]

    def readers_by(self, delivery: str) -> list[str]:
        """The readers that `add_reader` added for this delivery."""
        return [name for name, reads in self.readers.items() if reads == delivery]

    def settled(self, readers: list[str] | None = None) -> bool:
        """Whether all offers are acknowledged, and all readers have reached the same end, which is
        after all acknowledged events."""
        if len(self.streams) < len(self.records) or self.unacknowledged():
            return False
        for stream, record in self.records.items():
            ends = {self.position(r, stream) for r in readers or self.readers_of(stream)}
            if len(ends) != 1 or ends.pop() <= max(record.acked.values(), default=0):
                return False
        return True

    def audit(self, within_ns: int = 30 * SECOND) -> bool:
        """Read every replica from the first position of every stream of the default delivery, with
        new subscribers; returns whether they reached the end.

        First wait two seconds, so that the positions that all readers have reached also arrive at
        all replicas. The judge applies the retention rules to the audit only up to these positions,
        because events may expire during the audit.
        """
        for name, stream in self.streams.items():
            reached = [self.position(reader, name) for reader in self.readers_of(name)]
            self.stood[stream] = min(reached, default=1)
        self.world.run(self.world.now_ns + 2 * SECOND)
        for nodes in self.regions.values():
            for node in nodes:
                self.add_subscriber(f"{node}.audit{len(self.subscribers)}", (node,))
        limit_ns = self.world.now_ns + within_ns
        return self.world.run(limit_ns, until=lambda _: self.settled())

    def judge(self) -> Tally:
        tally = Tally()
        for stream, record in self.records.items():
            self.judges[self.delivery_of(stream)](record, tally)
        for opened in self.unopened:
            what = f"not opened: {opened.why}" if opened.info is None or opened.why else "opened"
            tally.violations.append(f"{opened.name}: {what}")
        for name, why in self.refusals.items():
            tally.violations.append(f"{name}: was not refused with {why!r}")
        for failed in self.failed:
            name = self.names[failed.stream]
            tally.violations.append(f"{name}: publish {failed.pub_no} failed: {failed.why}")
        return tally


def _counting(machine: Machine, counters: Counter[str]) -> Machine:
    """Give a machine, or its layers, counters that survive a restart; returns the machine."""
    for part in getattr(machine, "layers", {"": machine}).values():
        if isinstance(part, HandlerMachine):
            part.counters = counters
    return machine
