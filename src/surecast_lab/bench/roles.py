"""The code of a benchmark's worker processes: a server, a closed-loop publisher, and a reader.

Publishers (drivers) and readers run the state machines of the client library directly, without the
library's API. This reduces their own cost, so that the servers dominate the measurement.
"""

import asyncio
import time
from collections import Counter
from typing import Any

from surecast.columns.batch import DATA, Batch
from surecast.columns.rules import Policy
from surecast.core.endpoint import Acked, Failed, Follow, OfferBatch, Open, Opened
from surecast.core.machine import Factory
from surecast.core.streams import StreamSpec
from surecast.core.types import LogId, Machine
from surecast.core.wire import Codec
from surecast.protocols.sprinkler.config import ClientConfig
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.streams.config import PublisherConfig, SubscriberConfig
from surecast.protocols.streams.publisher import Publisher
from surecast.protocols.streams.subscriber import Subscriber
from surecast.registry import message_types
from surecast.runtime.addresses import Address, AddressBook
from surecast.runtime.node import Node
from surecast.server.config import build
from surecast.server.region import RegionServer
from surecast_lab.bench.pool import Pool, PoolSpec
from surecast_lab.bench.probe import SyncProbe

__all__ = ["Driver", "Reader", "Server"]

PROBLEMS_MAX = 20  # a reader reports at most this many


class Server:
    """One process of a region, created as by `surecast serve`, without the HTTP port."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.server = RegionServer(build(document))
        self.syncs = SyncProbe()

    async def start(self) -> None:
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()

    def failures(self) -> list[asyncio.Future[None]]:
        return [node.failed for node in self.server.nodes]

    def look(self) -> dict[str, Any]:
        """The committed end of each stream at this server."""
        streams = self.server.streams.streams.values()
        return {"at": time.monotonic(), "ends": {s.info.name: s.committed for s in streams}}

    def sync_times(self) -> list[int]:
        """The duration of each sync of the log since the last call; empty without a data folder."""
        return self.syncs.take()


class Driver:
    """Publishes a pool repeatedly, with at most `window` batches unacknowledged."""

    def __init__(
        self,
        name: str,
        replicas: dict[str, Address],
        stream: str,
        policy: Policy,
        pool: PoolSpec,
        window: int,
    ) -> None:
        config = PublisherConfig(tuple(replicas), inflight_max=window)
        self.node = _node(name, lambda ctx: Publisher(config, ctx.rng), replicas, self._on_emit)
        self.stream, self.policy, self.window = stream, policy, window
        self.pool = Pool(pool)
        self.batches = self.pool.batches
        self.stream_id: LogId = b""
        self.limit = 0  # batches to publish; each call of `publish` increases it
        self.offered = self.acked = 0  # batches
        self.end = 1  # the position after the last acknowledged one
        self.began_at = self.done_at = 0.0

    async def start(self) -> None:
        await self.node.start()
        self.node.give(Open(self.stream, StreamSpec(self.policy)))

    async def stop(self) -> None:
        await self.node.stop()

    def failures(self) -> list[asyncio.Future[None]]:
        return [self.node.failed]

    def publish(self, batches: int) -> None:
        """Publish `batches` more batches."""
        self.limit += batches
        self.began_at = self.began_at or time.monotonic()
        self._fill()

    def halt(self) -> None:
        """Offer no more batches; those in flight are completed."""
        self.limit = self.offered

    def status(self) -> dict[str, Any]:
        """The state of the driver; counts are in events."""
        rows = self.pool.spec.batch
        return {
            "opened": self.stream_id.hex(),
            "offered": self.offered * rows,
            "acked": self.acked * rows,
            "end": self.end,
            "idle": self.offered == self.acked and self.offered >= self.limit,
            "began_at": self.began_at,
            "done_at": self.done_at,
            "at": time.monotonic(),
        }

    def _fill(self) -> None:
        while self.offered < self.limit and self.offered - self.acked < self.window:
            batch = self.batches[self.offered % len(self.batches)]
            self.offered += 1
            self.node.give(OfferBatch(self.stream_id, _moved(batch, self.stream_id), self.offered))

    def _on_emit(self, event: Any) -> None:
        if isinstance(event, Acked):
            self.acked += 1
            self.end = max(self.end, event.seq + event.count)
            self.done_at = time.monotonic()
            self._fill()
        elif isinstance(event, Failed):
            raise AssertionError(f"publish {event.pub_no} of {self.stream} failed: {event.why}")
        elif isinstance(event, Opened):
            assert event.info is not None, f"{self.stream} was not opened: {event.why}"
            self.stream_id = event.info.stream_id


class Reader:
    """Follows streams from their beginning, counts events, and reports faults.

    Every position must be delivered once and in order. With `pools` (stream → its pool), every
    event is compared with the one published at its position.
    """

    def __init__(
        self,
        name: str,
        replicas: dict[str, Address],
        streams: dict[str, str],
        pools: dict[str, PoolSpec] | None = None,
        mesh: bool = False,
    ) -> None:
        self.names = {bytes.fromhex(stream_id): stream for stream, stream_id in streams.items()}
        self.pools = {stream: Pool(spec) for stream, spec in (pools or {}).items()}
        self.positions = dict.fromkeys(streams, 1)
        self.rows = dict.fromkeys(streams, 0)
        self.newest: dict[str, dict[bytes, int]] = {stream: {} for stream in streams}
        self.problems: list[str] = []
        self.at = 0.0  # time of the last delivery

        def make(ctx: Any) -> Machine:
            names = tuple(replicas)
            if not mesh:
                return Subscriber(SubscriberConfig(names), {})
            return MeshPeer(ClientConfig(ctx.name, names), {}, ctx.rng, Counter())

        self.node = _node(name, make, replicas, on_deliver=self._take, listens=mesh)

    async def start(self) -> None:
        await self.node.start()

    async def stop(self) -> None:
        await self.node.stop()

    def failures(self) -> list[asyncio.Future[None]]:
        return [self.node.failed]

    def follow(self) -> None:
        for stream_id in self.names:
            self.node.give(Follow(stream_id, 1))

    def status(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "rows": self.rows,
            "at": self.at,
            "problems": self.problems,
        }

    def verdict(self, stream: str, published: int) -> list[str]:
        """Faults in the newest events of `stream` after `published` events."""
        expected = self.pools[stream].live(published)
        found = self.newest[stream]
        wrong = sum(found.get(key) != number for key, number in expected.items())
        wrong += len(found.keys() - expected.keys())
        if not wrong:
            return []
        return [f"{self.node.name}: {wrong} of {len(expected)} keys of {stream} are not up to date"]

    def _take(self, stream_id: LogId, batches: tuple[Batch, ...]) -> None:
        self.at = time.monotonic()
        stream = self.names[stream_id]
        position = self.positions[stream]
        for batch in batches:
            if batch.lo != position:
                self._report(f"{stream}: got position {batch.lo}, expected {position}")
            position = batch.hi
            if batch.kind == DATA:
                self.rows[stream] += batch.rows
                if self.pools:
                    self._compare(stream, batch)
        self.positions[stream] = position

    def _compare(self, stream: str, batch: Batch) -> None:
        pool, newest = self.pools[stream], self.newest[stream]
        keys, values = batch.keys().to_list(), batch.values().to_list()
        for seq, key, value in zip(batch.seqs().tolist(), keys, values, strict=True):
            if value != pool.value(seq - 1) or key != pool.key(seq - 1):
                self._report(f"{stream}: wrong event at position {seq}")
            if key is not None:
                newest[key] = seq - 1

    def _report(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"{self.node.name}: {problem}")


def _node(
    name: str,
    factory: Factory,
    replicas: dict[str, Address],
    on_emit: Any = None,
    on_deliver: Any = None,
    listens: bool = False,
) -> Node:
    return Node(
        f"{name}@127.0.0.1:0" if listens else name,
        factory,
        book=AddressBook(replicas),
        codec=Codec(message_types()),
        listen=("127.0.0.1", 0) if listens else None,
        seed=name,
        role="client",
        on_emit=on_emit,
        on_deliver=on_deliver,
    )


def _moved(batch: Batch, stream_id: LogId) -> Batch:
    """A batch of `stream_id` with the same body."""
    made = batch.numbered(batch.publisher, 0)
    made.stream_id = stream_id
    return made
