"""One node of a deployment as a process of its own: what runs in it, and how it is steered.

`run(spec, control)` is the life of such a process. Its machine is built by `build`, the same
function that a recording names to have it built again. What a reader is given is written, batch by
batch as it came, to a file beside the node's journal: that file is the application. A process that
is killed and started again goes on where its file ends.

Commands come over a pipe, one answer to each; the process ends with the pipe.
"""

import asyncio
import logging
import os
import sys
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from surecast.columns.batch import Batch
from surecast.core.types import LogId
from surecast.core.wire import HEADER_SIZE, Codec, decode_batch, encode_batch, frame_size
from surecast.protocols.chain.config import ChainConfig
from surecast.protocols.chain.service import ConfigService
from surecast.protocols.sprinkler.client import Client
from surecast.protocols.sprinkler.config import (
    ClientConfig,
    MeshConfig,
    ProxyConfig,
    PublisherConfig,
    SubscriberConfig,
)
from surecast.protocols.sprinkler.messages import Acked, Failed, Follow, Offer, Opened
from surecast.protocols.sprinkler.publisher import Publisher
from surecast.protocols.sprinkler.subscriber import Subscriber
from surecast.registry import message_types
from surecast.runtime.book import AddressBook
from surecast.runtime.node import Node
from surecast.runtime.recorder import Recorder, recording_path
from surecast.runtime.run import run as run_loop
from surecast.stacks import region_replica
from surecast.storage.journal import Journal
from surecast.storage.store import MemoryStore, Store

__all__ = ["ProcessSpec", "build", "delivered_path", "log_path", "read_delivered", "run"]

UNACKNOWLEDGED_MAX = 200  # batches; a load waits while there are more


class ProcessSpec(msgspec.Struct, frozen=True):
    name: str
    role: str  # replica, service, publisher, client, subscriber
    args: dict[str, Any]  # of `build`, beside the role
    listen: tuple[str, int]
    book: dict[str, tuple[str, int]]  # whom it reaches where: at home, or through a relay
    folder: str
    seed: int
    life: int = 1  # how often it was started
    record: bool = False


def build(ctx: Any, args: dict[str, Any]) -> Any:
    """The machine of a node: `args` has its role and what that needs."""
    role, region = args["role"], args.get("region", "")
    replicas = tuple(args.get("replicas", ()))
    counters: Counter[str] = Counter()
    if role == "replica":
        regions = {name: tuple(nodes) for name, nodes in args["regions"].items()}
        chain = ChainConfig(
            region, ctx.name, f"{region}/config", len(regions[region]), **args.get("chain", {})
        )
        proxy = ProxyConfig(region, ctx.name, regions, mesh=MeshConfig(**args.get("mesh", {})))
        return region_replica(chain, proxy, ctx.disk, ctx.rng, counters)
    if role == "service":
        return ConfigService({region: replicas}, ctx.disk, counters)
    if role == "publisher":
        return Publisher(PublisherConfig(replicas), ctx.rng, counters)
    starts = {bytes.fromhex(stream): start for stream, start in args["starts"].items()}
    if role == "client":
        config = ClientConfig(ctx.name, replicas, MeshConfig(**args.get("mesh", {})))
        return Client(config, starts, ctx.rng, counters)
    assert role == "subscriber", role
    return Subscriber(SubscriberConfig(replicas), starts, counters)


# ---------------------------------------------------------------- what a reader was given


def file_name(node: str) -> str:
    return node.partition("@")[0].replace("/", ".")


def log_path(spec: ProcessSpec) -> Path:
    return Path(spec.folder) / f"{file_name(spec.name)}.log"


def delivered_path(folder: str, node: str) -> Path:
    return Path(folder) / f"{file_name(node)}.delivered"


def read_delivered(path: Path) -> list[Batch]:
    """The batches in the file, in order; an unfinished one at its end is not there."""
    data = memoryview(path.read_bytes() if path.exists() else b"")
    found = []
    while len(data) >= HEADER_SIZE:
        size = frame_size(data)
        if size is None or size > len(data):
            break
        found.append(decode_batch(data)[0])
        data = data[size:]
    return found


class Notebook:
    """The file of what was delivered, and how far each stream has come in it."""

    def __init__(self, path: Path) -> None:
        self.positions: dict[LogId, int] = {}
        kept = 0
        for batch in read_delivered(path):
            self.positions[batch.stream_id] = batch.hi
            kept += batch.nbytes
        self.file = path.open("ab", buffering=0)
        self.file.truncate(kept)

    def take(self, stream: LogId, batches: tuple[Batch, ...]) -> None:
        frames = [part for batch in batches for part in encode_batch(batch)]
        self.file.write(b"".join(frames))  # in one piece: a kill comes before it or after it
        self.positions[stream] = batches[-1].hi


# ---------------------------------------------------------------- the process


class Resident:
    """A node, what it was asked to do and what came of it."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.codec = Codec(message_types())
        self.opened: dict[str, LogId] = {}
        self.offered: list[tuple[LogId, int, list[bytes], list[bytes | None] | None]] = []
        self.acked: list[tuple[LogId, int, int, int]] = []
        self.ends: dict[LogId, int] = {}  # how far what was acknowledged reaches
        self.failed: list[str] = []
        self.loads: list[asyncio.Task[None]] = []
        self.numbers: Counter[LogId] = Counter()
        folder = Path(spec.folder)
        self.notebook = Notebook(delivered_path(spec.folder, spec.name))
        args = {"role": spec.role, **spec.args}
        if spec.role in ("client", "subscriber"):
            args["starts"] = {s.hex(): at for s, at in self.notebook.positions.items()}
        self.store: Store = MemoryStore(incarnation=spec.life)
        if spec.role in ("replica", "service"):
            self.store = Journal(folder / file_name(spec.name))
        self.node = Node(
            spec.name,
            lambda ctx: build(ctx, args),
            book=AddressBook(spec.book),
            codec=self.codec,
            listen=spec.listen,
            disk=self.store,
            seed=spec.seed,
            region=spec.args.get("region", ""),
            role=spec.role,
            recorder=self._recorder(args) if spec.record else None,
            on_deliver=self.notebook.take,
            on_emit=self._on_emit,
        )

    def _recorder(self, args: dict[str, Any]) -> Recorder:
        spec, life = self.spec, self.store.incarnation
        return Recorder(
            recording_path(Path(spec.folder), spec.name, life),
            node=spec.name,
            build="surecast.swarm.process:build",
            args=args,
            seed=spec.seed,
            incarnation=life,
            codec=self.codec,
            disk=self.store.disk,
        )

    def _on_emit(self, event: Any) -> None:
        if isinstance(event, Opened):
            assert event.info is not None, event.why
            self.opened[event.name] = event.info.stream_id
        elif isinstance(event, Acked):
            self.acked.append((event.stream, event.pub_no, event.count, event.seq))
            end = event.seq + event.count
            self.ends[event.stream] = max(end, self.ends.get(event.stream, 1))
        elif isinstance(event, Failed):
            self.failed.append(f"publish {event.pub_no} failed: {event.why}")

    # ------------------------------------------------------------ commands

    def give(self, inp: Any) -> None:
        self.node.give(inp)

    def follow(self, streams: list[LogId], start: int) -> None:
        for stream in streams:
            if stream not in self.notebook.positions:
                self.node.give(Follow(stream, start))

    def publish(self, stream: LogId, rows: int, every_ns: int, keys: int) -> None:
        """Offer a batch of unique values now and then, until told to stop."""
        self.loads.append(asyncio.create_task(self._publish(stream, rows, every_ns, keys)))

    async def _publish(self, stream: LogId, rows: int, every_ns: int, keys: int) -> None:
        rng = Random(f"{self.spec.seed}/{self.spec.name}/load")
        while True:
            await asyncio.sleep(every_ns / 1e9)
            if self._unacknowledged() > UNACKNOWLEDGED_MAX:
                continue
            first = self.numbers[stream] + 1
            self.numbers[stream] += rows
            values = [f"{self.spec.name}.{first + i}".encode() for i in range(rows)]
            picked: list[bytes | None] = [f"k{rng.randrange(keys)}".encode() for _ in values]
            self.offered.append((stream, first, values, picked))
            self.node.give(Offer(stream, values, picked))

    def quiet(self) -> None:
        for load in self.loads:
            load.cancel()
        self.loads.clear()

    def _unacknowledged(self) -> int:
        machine = self.node.machine
        return machine.unacknowledged if isinstance(machine, Publisher) else 0

    def status(self) -> dict[str, Any]:
        return {
            "positions": dict(self.notebook.positions),
            "opened": self.opened,
            "unacknowledged": self._unacknowledged(),
            "ends": self.ends,
        }

    def results(self) -> dict[str, Any]:
        machine: Any = self.node.machine
        layers = getattr(machine, "layers", (machine,))
        counters: Counter[str] = sum((layer.counters for layer in layers), Counter())
        return {
            "offered": self.offered,
            "acked": self.acked,
            "failed": self.failed,
            "counters": dict(counters),
        }


def run(spec: ProcessSpec, control: Connection) -> None:
    """Live until whoever started us is gone."""
    sys.stderr = log_path(spec).open("a", buffering=1)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    run_loop(_live(spec, control))


async def _live(spec: ProcessSpec, control: Connection) -> None:
    resident = Resident(spec)
    await resident.node.start()
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def on_command() -> None:
        os.set_blocking(control.fileno(), True)  # the loop makes it what it likes
        try:
            verb, *args = control.recv()
            control.send(getattr(resident, verb)(*args))
        except (EOFError, OSError):
            over.set_result(None)
        except Exception as problem:
            over.set_exception(problem)
        if over.done():
            loop.remove_reader(control.fileno())

    loop.add_reader(control.fileno(), on_command)
    control.send("ready")
    ends = (over, resident.node.failed)
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(control.fileno())
    resident.quiet()
    await resident.node.stop()
    for end in ends:
        if end.done():
            end.result()  # what went wrong ends the process, and stands in its log
