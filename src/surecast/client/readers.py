"""The nodes that read: each follows any number of streams, each stream once.

Two subscriptions to one stream read it from different places, so they need two readers. Readers are
kept when their subscriptions end, for the next.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable

from surecast.client.link import Link
from surecast.client.options import ClientOptions
from surecast.columns.batch import Batch
from surecast.core.machine import NodeContext
from surecast.core.types import LogId, Machine
from surecast.errors import NotSupported, UsageError
from surecast.protocols.sprinkler.client import Client as MeshClient
from surecast.protocols.sprinkler.config import ClientConfig, SubscriberConfig
from surecast.protocols.sprinkler.messages import Follow, Unfollow
from surecast.protocols.sprinkler.subscriber import Subscriber
from surecast.runtime.book import is_loopback
from surecast.runtime.node import Node

__all__ = ["Reader", "Readers"]

Taker = Callable[[LogId, tuple[Batch, ...]], None]


class Reader:
    """One node, and who is given what of its streams."""

    node: Node

    def __init__(self, shared: bool) -> None:
        self.shared = shared  # may serve several subscriptions
        self.takers: dict[LogId, Taker] = {}

    def deliver(self, stream: LogId, batches: tuple[Batch, ...]) -> None:
        taker = self.takers.get(stream)
        if taker is not None:
            taker(stream, batches)

    def claim(self, stream: LogId, taker: Taker) -> None:
        self.takers[stream] = taker

    def follow(self, stream: LogId, start: int) -> None:
        self.node.give(Follow(stream, start))

    def unfollow(self, stream: LogId) -> None:
        self.node.give(Unfollow(stream))

    def release(self, stream: LogId) -> None:
        if self.takers.pop(stream, None) is not None:
            self.unfollow(stream)


class Readers:
    """The readers of one client."""

    def __init__(
        self,
        link: Link,
        replicas: tuple[str, ...],
        mesh: bool,
        options: ClientOptions,
    ) -> None:
        own_host = link.region.own_host
        if mesh and not is_loopback(own_host) and not options.insecure:
            raise NotSupported(
                "mesh=True beyond one machine comes with encryption: members connect to each "
                f"other, and this one would listen on {own_host}. On a network you trust, connect "
                "with options=ClientOptions(insecure=True)"
            )
        self._link = link
        self._replicas = replicas
        self._mesh = mesh
        self._own_host = own_host
        self._options = options
        self.all: list[Reader] = []

    async def lease(self, stream: LogId | None, taker: Taker) -> Reader:
        """A reader that does not follow `stream` yet and has it claimed for `taker`.

        None: a reader for a pattern, whose streams nobody knows yet; it serves nobody else.
        """
        if stream is not None:
            for reader in self.all:
                if reader.shared and stream not in reader.takers:
                    reader.claim(stream, taker)
                    return reader
        if len(self.all) >= self._options.readers_max:
            raise UsageError(
                f"this client has {len(self.all)} connections for reading already "
                "(ClientOptions.readers_max): close subscriptions that are no longer read, or let "
                "several consumers share one"
            )
        reader = Reader(shared=stream is not None)
        if stream is not None:
            reader.claim(stream, taker)
        self.all.append(reader)
        await self._start(reader)
        return reader

    async def _start(self, reader: Reader) -> None:
        """Before the first await the node runs: whoever claims the reader meanwhile may use it."""
        name = f"c-{secrets.token_hex(8)}"
        listen = (self._own_host, 0) if self._mesh else None
        if listen is not None:
            host = f"[{listen[0]}]" if ":" in listen[0] else listen[0]
            name = f"{name}@{host}:0"
        reader.node = self._link.node(
            name, "reader", self._machine, listen=listen, on_deliver=reader.deliver
        )
        try:
            await reader.node.start()
        except BaseException:
            self.all.remove(reader)
            reader.node.kill()
            raise

    def _machine(self, ctx: NodeContext) -> Machine:
        counters: Counter[str] = Counter()
        if not self._mesh:
            return Subscriber(SubscriberConfig(self._replicas), {}, counters)
        config = ClientConfig(ctx.name, self._replicas, streams_max=self._options.streams_max)
        return MeshClient(config, {}, ctx.rng, counters)

    async def give_back(self, reader: Reader) -> None:
        """A reader that served a pattern has no further use."""
        if not reader.shared and reader in self.all:
            self.all.remove(reader)
            await reader.node.stop()

    async def stop(self) -> None:
        readers, self.all = self.all, []
        await asyncio.gather(*(reader.node.stop() for reader in readers))
