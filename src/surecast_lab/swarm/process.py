"""The code that runs in each process of a process cluster: a server, a publisher or a reader.

`process_cluster.py` starts the processes with `testing.workers`. `make(spec)` returns the service
that runs in a process. Replicas and witnesses run the code of `surecast serve`, with the same
configuration document. A publisher or a reader is a machine (the state machine of a protocol) in a
node; `build` creates the machine. A recording of a node contains the name of this function
(`BUILD`), so that a replay can create the same machine. A reader's deliveries are recorded in its
delivery log.
"""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from surecast import registry
from surecast.columns.batch import Batch
from surecast.core.endpoint import Acked, Failed, Follow, OfferBatch, Open, Opened
from surecast.core.roles import Deployment
from surecast.core.types import LogId
from surecast.core.wire import Codec
from surecast.protocols.chain.service import ConfigService
from surecast.protocols.sprinkler.config import ClientConfig, MeshConfig
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.streams.config import PublisherConfig, SubscriberConfig
from surecast.protocols.streams.publisher import Publisher
from surecast.protocols.streams.subscriber import Subscriber
from surecast.registry import configs, message_types, witness
from surecast.runtime.addresses import AddressBook
from surecast.runtime.node import Node
from surecast.runtime.recorder import Recorder, recording_path
from surecast.server.config import build as server_config
from surecast.server.region import RegionServer
from surecast.server.status import Status, look
from surecast.stacks import region_replica
from surecast.storage.store import MemoryStore
from surecast_lab.swarm.cursor_app import CursorApp
from surecast_lab.swarm.delivery_log import DeliveryLog, delivered_path
from surecast_lab.swarm.load import Gauge, Pump
from surecast_lab.swarm.pattern_reader import PatternReader
from surecast_lab.swarm.session_report import SessionReport, report
from surecast_lab.testing.workers import Service

__all__ = ["BUILD", "BUILDS", "ProcessSpec", "build", "make"]

BUILD: Final = "process-swarm"  # the name of `build` in recordings

UNACKNOWLEDGED_MAX = 100  # batches of a stream; above this, the publisher pauses
STREAMS_SHOWN = 100


class ProcessSpec(msgspec.Struct, frozen=True):
    name: str
    role: str  # server (replica or witness), publisher, client, subscriber, or a program's name
    args: dict[str, Any]  # for `build`, without the role; for a server, its configuration document
    listen: tuple[str, int]  # the address of a node that is not a server
    book: dict[str, tuple[str, int]]  # addresses of its peers, or of the relay before them
    folder: str
    seed: int
    life: int = 1  # how often the process was started
    record: bool = False
    without: tuple[str, ...] = ()  # protocols that its version lacks


def build(ctx: Any, args: dict[str, Any]) -> Any:
    """Create the machine of a node; `args` has its role and the role's parameters.

    (Server processes create their machines in `server.nodes`. Tests that run servers inside the
    test process use this function.)
    """
    role, replicas = args["role"], tuple(args.get("replicas", ()))
    counters: Counter[str] = Counter()
    if role == "replica":
        region = args["region"]
        regions = {name: tuple(nodes) for name, nodes in args["regions"].items()}
        made = configs(Deployment(region, ctx.name, regions, f"{region}/config"))
        return region_replica(made, ctx.disk, ctx.rng, counters)
    if role == "service":
        return witness({args["region"]: replicas}, ctx.disk, counters)
    if role == "publisher":
        return Publisher(PublisherConfig(replicas, **args.get("knobs", {})), ctx.rng, counters)
    starts = {bytes.fromhex(stream): start for stream, start in args["starts"].items()}
    if role == "client":
        config = ClientConfig(ctx.name, replicas, MeshConfig(**args.get("mesh", {})))
        return MeshPeer(config, starts, ctx.rng, counters)
    assert role == "subscriber", role
    return Subscriber(SubscriberConfig(replicas), starts, counters)


BUILDS: Final = {BUILD: build}


# ---------------------------------------------------------------- services


class Host:
    """A replica or a witness (in a region of one replica: both), as `surecast serve` runs them."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.server = RegionServer(server_config(spec.args))

    async def start(self) -> None:
        await self.server.start()

    async def stop(self) -> None:
        await self.server.drain()

    def failures(self) -> list[asyncio.Future[None]]:
        return [node.failed for node in self.server.nodes]

    def status(self) -> Status:
        return look(self.server, STREAMS_SHOWN)

    def members(self) -> list[str]:
        """The members of the region's chain, according to the witness in this process."""
        assert self.server.witness is not None
        service = self.server.witness.machine
        assert isinstance(service, ConfigService)
        return [m.name for table in service.tables.values() for m in table.members]

    def results(self) -> dict[str, Any]:
        counters: Counter[str] = sum((node.counters for node in self.server.nodes), Counter())
        counters["store.moves"] = sum(getattr(n.store, "moves", 0) for n in self.server.nodes)
        if self.server.replica is not None:
            lowest = next(iter(self.server.layers.values()))
            counters += lowest.counters  # the other layers use the same counters
        return {"counters": dict(counters)}

    def sessions(self) -> SessionReport:
        return report(self.server.nodes)


class Resident:
    """A publisher or a reader, with its offers, acknowledgements and deliveries."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.codec = Codec(message_types())
        self.opened: dict[str, LogId] = {}
        self.refused: dict[str, str] = {}  # streams that were not opened, and why
        # Batches: stream, number of the first event, values, keys. The index is the batch's token.
        self.offered: list[tuple[LogId, int, list[bytes], list[bytes | None]]] = []
        self.acked: dict[int, int] = {}  # token → seq
        self.ends: dict[LogId, int] = {}  # the end of the acknowledged positions
        self.failed: list[str] = []
        self.loads: list[asyncio.Task[None]] = []
        self.numbers: Counter[LogId] = Counter()
        self.delivery_log = DeliveryLog(delivered_path(spec.folder, spec.name))
        args = {"role": spec.role, **spec.args}
        if spec.role in ("client", "subscriber"):
            args["starts"] = {s.hex(): at for s, at in self.delivery_log.positions.items()}
        self.store = MemoryStore(incarnation=spec.life)
        self.node = Node(
            spec.name,
            lambda ctx: build(ctx, args),
            book=AddressBook(spec.book),
            codec=self.codec,
            listen=spec.listen,
            disk=self.store,
            seed=spec.seed,
            role=spec.role,
            recorder=self._recorder(args) if spec.record else None,
            on_deliver=self.delivery_log.take,
            on_emit=self._on_emit,
        )

    def _recorder(self, args: dict[str, Any]) -> Recorder:
        spec, life = self.spec, self.store.incarnation
        return Recorder(
            recording_path(Path(spec.folder), spec.name, life),
            node=spec.name,
            build=BUILD,
            args=args,
            seed=spec.seed,
            incarnation=life,
            codec=self.codec,
            disk=self.store.disk,
        )

    def _on_emit(self, event: Any) -> None:
        if isinstance(event, Opened):
            self.refused.pop(event.name, None)
            if event.info is None:
                self.refused[event.name] = event.why
            else:
                self.opened[event.name] = event.info.stream_id
        elif isinstance(event, Acked):
            self.acked[event.token] = event.seq
            end = event.seq + event.count
            self.ends[event.stream] = max(end, self.ends.get(event.stream, 1))
        elif isinstance(event, Failed):
            self.failed.append(f"publish {event.pub_no} failed: {event.why}")

    async def start(self) -> None:
        await self.node.start()

    async def stop(self) -> None:
        self.quiet()
        await self.node.stop()

    def failures(self) -> list[asyncio.Future[None]]:
        return [self.node.failed]

    # ------------------------------------------------------------ commands

    def give(self, inp: Any) -> None:
        self.node.give(inp)

    def open(self, inp: Open) -> None:
        self.refused.pop(inp.name, None)
        self.node.give(inp)

    def resume(self, numbers: dict[LogId, int], ends: dict[LogId, int]) -> None:
        """Continue with the numbers of the process before a restart."""
        self.numbers.update(numbers)
        self.ends.update(ends)

    def follow(self, streams: list[LogId], start: int) -> None:
        for stream in streams:
            if stream not in self.delivery_log.positions:
                self.node.give(Follow(stream, start))

    def publish(self, stream: LogId, rows: int, every_ns: int, keys: int) -> None:
        """Offer a batch of unique values every `every_ns`, until `quiet`."""
        self.loads.append(asyncio.create_task(self._publish(stream, rows, every_ns, keys)))

    async def _publish(self, stream: LogId, rows: int, every_ns: int, keys: int) -> None:
        rng = Random(f"{self.spec.seed}/{self.spec.name}/load")
        while True:
            await asyncio.sleep(every_ns / 1e9)
            if self._unacknowledged(stream) > UNACKNOWLEDGED_MAX:
                continue
            first = self.numbers[stream] + 1
            self.numbers[stream] += rows
            values = [f"{self.spec.name}.{first + i}".encode() for i in range(rows)]
            picked: list[bytes | None] = [f"k{rng.randrange(keys)}".encode() for _ in values]
            token = len(self.offered)
            self.offered.append((stream, first, values, picked))
            self.node.give(OfferBatch(stream, Batch.of(stream, values, picked), token))

    def quiet(self) -> None:
        for load in self.loads:
            load.cancel()
        self.loads.clear()

    def _unacknowledged(self, stream: LogId | None = None) -> int:
        machine = self.node.machine
        if not isinstance(machine, Publisher):
            return 0
        if stream is None:
            return machine.unacknowledged
        queue = machine.queues.get(stream)
        return len(queue.waiting) if queue is not None else 0

    def status(self) -> dict[str, Any]:
        return {
            "positions": dict(self.delivery_log.positions),
            "opened": self.opened,
            "refused": self.refused,
            "unacknowledged": self._unacknowledged(),
            "ends": self.ends,
        }

    def results(self) -> dict[str, Any]:
        machine: Any = self.node.machine
        return {
            "offered": self.offered,
            "acked": self.acked,
            "failed": self.failed,
            "counters": dict(machine.counters),
            "numbers": dict(self.numbers),
            "ends": self.ends,
        }

    def sessions(self) -> SessionReport:
        return report([self.node])


# ---------------------------------------------------------------- the process


def make(spec: ProcessSpec) -> Service:
    """Create the service that runs in the process of `spec`."""
    for protocol in spec.without:  # before anything is created from the registry
        del registry.PROTOCOLS[protocol]
    if spec.role == "server":
        return Host(spec)
    if spec.role == "cursor-app":
        return CursorApp(spec.args, delivered_path(spec.folder, spec.name))
    if spec.role == "pattern-reader":
        return PatternReader(spec.args, delivered_path(spec.folder, spec.name))
    users = {"pump": Pump, "gauge": Gauge}
    return users[spec.role](spec.args) if spec.role in users else Resident(spec)
