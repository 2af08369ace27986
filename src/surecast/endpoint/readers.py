"""The nodes that read: each follows any number of streams, each stream once.

A node has one reader for each delivery, so it follows streams of all of them.

Two subscriptions to one stream read it from different places, so they need two readers. Readers are
kept when their subscriptions end, for the next.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from surecast.columns.batch import Batch
from surecast.core.endpoint import Follow, Place, Unfollow
from surecast.core.types import Command, LogId
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.region_link import RegionLink
from surecast.errors import NotSupported, UsageError
from surecast.registry import deliveries, readers
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

    def follow(self, stream: LogId, delivery: str, start: int) -> None:
        self.node.give(Command(delivery, Follow(stream, start)))

    def unfollow(self, stream: LogId, delivery: str) -> None:
        self.node.give(Command(delivery, Unfollow(stream)))

    def release(self, stream: LogId, delivery: str) -> None:
        if self.takers.pop(stream, None) is not None:
            self.unfollow(stream, delivery)


class Readers:
    """The readers of one client."""

    def __init__(
        self,
        link: RegionLink,
        place: Place,
        options: ClientOptions,
    ) -> None:
        own_host = link.region.own_host
        if place.mesh and not is_loopback(own_host) and not options.insecure:
            raise NotSupported(
                "mesh=True beyond one machine comes with encryption: members connect to each "
                f"other, and this one would listen on {own_host}. On a network you trust, connect "
                "with options=ClientOptions(insecure=True)"
            )
        self._link = link
        self._place = place
        self._own_host = own_host
        self._options = options
        self.all: list[Reader] = []
        self.deliveries = frozenset(deliveries())  # streams of others cannot be read

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
        place = self._place
        listen = (self._own_host, 0) if place.mesh else None
        if listen is not None:
            host = f"[{listen[0]}]" if ":" in listen[0] else listen[0]
            name = f"{name}@{host}:0"
        reader.node = self._link.node(
            name,
            "reader",
            lambda ctx: readers(ctx, place),
            listen=listen,
            on_deliver=reader.deliver,
        )
        try:
            await reader.node.start()
        except BaseException:
            self.all.remove(reader)
            reader.node.kill()
            raise

    async def give_back(self, reader: Reader) -> None:
        """A reader that served a pattern has no further use."""
        if not reader.shared and reader in self.all:
            self.all.remove(reader)
            await reader.node.stop()

    async def stop(self) -> None:
        stopped, self.all = self.all, []
        await asyncio.gather(*(reader.node.stop() for reader in stopped))
