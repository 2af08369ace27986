"""The nodes with which a client reads streams, and the choice of one for each subscription.

A *reader* is a node that runs the reading side of one delivery (`Delivery.reader`). It follows any
number of streams, but each only once. So two subscriptions to the same stream, which may be at
different positions, need two readers.

Subscriptions to single streams share readers. Shared readers stay open when the subscriptions end,
for later ones. A subscription by pattern has readers of its own, one for each delivery.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Protocol

from surecast import registry
from surecast.columns.batch import Batch
from surecast.core.endpoint import Delivery, Ended, Follow, Following, Lost, Place, Unfollow
from surecast.core.types import LogId
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.region_link import RegionLink
from surecast.errors import NotSupported, UsageError
from surecast.runtime.addresses import is_loopback, show_address
from surecast.runtime.node import Node

__all__ = ["Reader", "Readers", "Taker"]


class Taker(Protocol):
    """Gets the batches, the lost ranges and the end of a stream from a reader, in their order. The
    buffer of a subscription is a taker."""

    def take_in(self, stream: LogId, batches: tuple[Batch, ...]) -> None: ...

    def take_lost(self, lost: Lost) -> None: ...

    def take_ended(self, ended: Ended) -> None: ...

    def take_following(self, following: Following) -> None: ...


class Reader:
    """One reader (see the module), and the taker of each of its streams."""

    node: Node

    def __init__(self, delivery: str, shared: bool) -> None:
        self.delivery = delivery
        self.shared = shared  # whether it may serve several subscriptions
        self.takers: dict[LogId, Taker] = {}  # by stream; also for streams not followed at present
        self.token = 0  # of the last Follow that had one
        # Streams whose last Follow had a filter.
        self.filtered: dict[LogId, None] = {}

    # The node calls these two methods while it performs the effects of a step, in their order.

    def on_deliver(self, stream: LogId, batches: tuple[Batch, ...]) -> None:
        taker = self.takers.get(stream)
        if taker is not None:
            taker.take_in(stream, batches)

    def on_emit(self, event: Any) -> None:
        if isinstance(event, Lost | Ended | Following):
            taker = self.takers.get(event.stream)
            if taker is None:
                return
            if isinstance(event, Lost):
                taker.take_lost(event)
            elif isinstance(event, Ended):
                taker.take_ended(event)
            elif event.token:
                taker.take_following(event)

    def claim(self, stream: LogId, taker: Taker) -> None:
        """Reserve the stream for a taker, which may then `follow` it until `release`."""
        self.takers[stream] = taker

    def follow(self, stream: LogId, start: int, where: str = "") -> int:
        """Have the stream delivered from position `start` on, with a filter if `where` is not "".

        If there is a filter, or was one before, returns a token. Filtered batches that the taker
        gets before `take_following` with this token may have been filtered by another filter."""
        if not where and stream not in self.filtered:
            self.node.give(Follow(stream, start))
            return 0
        if where:
            self.filtered[stream] = None
        else:  # the token covers what the earlier filter has left
            del self.filtered[stream]
        self.token += 1
        self.node.give(Follow(stream, start, where, self.token))
        return self.token

    def unfollow(self, stream: LogId) -> None:
        """Stop the delivery; the stream stays reserved for its taker."""
        self.node.give(Unfollow(stream))

    def release(self, stream: LogId) -> None:
        """Stop the delivery and end the reservation by `claim`."""
        if self.takers.pop(stream, None) is not None:
            self.unfollow(stream)


class Readers:
    """The readers of one client."""

    def __init__(self, link: RegionLink, place: Place, options: ClientOptions) -> None:
        self._link = link
        self._place = place
        self._own_host = link.region.own_host
        self._options = options
        self.all: list[Reader] = []
        if place.mesh:  # then every reader listens, for connections of other clients
            self._check_may_listen("mesh=True")

    def check(self, delivery: Delivery) -> None:
        """Raise NotSupported if this client cannot run a reader of the delivery."""
        if "listen" in delivery.needs:
            self._check_may_listen(f"delivery={delivery.name!r}")

    def _check_may_listen(self, why: str) -> None:
        """Raise NotSupported if readers of this client must not listen for connections. `why` is
        the argument of the user's call that requires it."""
        if not is_loopback(self._own_host) and not self._options.insecure:
            raise NotSupported(
                f"{why} works only on one machine until connections are encrypted: a reader then "
                f"accepts connections and datagrams, so it would listen on {self._own_host}. On a "
                "network you trust, connect with options=ClientOptions(insecure=True)"
            )

    async def lease(self, delivery: Delivery, stream: LogId | None, taker: Taker) -> Reader:
        """A reader of the delivery for a subscription.

        With a `stream`, it is a shared reader that does not follow this stream, and the stream is
        claimed for `taker`. With None, it is a new reader for the streams of a pattern, which are
        claimed later; no other subscription uses it.
        """
        self.check(delivery)
        if stream is not None:
            for reader in self.all:
                same = reader.delivery == delivery.name
                if same and reader.shared and stream not in reader.takers:
                    reader.claim(stream, taker)
                    return reader
        if len(self.all) >= self._options.readers_max:
            raise UsageError(
                f"this client already has {len(self.all)} connections for reading "
                "(ClientOptions.readers_max): close unused subscriptions, or let several consumers "
                "share one"
            )
        reader = Reader(delivery.name, shared=stream is not None)
        if stream is not None:
            reader.claim(stream, taker)
        self.all.append(reader)
        await self._start(reader, listens=self._place.mesh or "listen" in delivery.needs)
        return reader

    async def _start(self, reader: Reader, listens: bool) -> None:
        """Start the reader's node. `reader.node` is set before the first await, because another
        subscription may use the reader while this call waits."""
        name = f"c-{secrets.token_hex(8)}"
        listen = (self._own_host, 0) if listens else None  # port 0: the system chooses one
        if listen is not None:
            name = f"{name}@{show_address(listen)}"  # peers take the address from the name
        reader.node = self._link.node(
            name,
            "reader",
            lambda ctx: registry.reader(reader.delivery, ctx, self._place),
            listen=listen,
            on_deliver=reader.on_deliver,
            on_emit=reader.on_emit,
        )
        try:
            await reader.node.start()
        except BaseException:
            self.all.remove(reader)
            reader.node.kill()
            raise

    async def give_back(self, reader: Reader) -> None:
        """Stop a reader that is not shared; called when its subscription has ended."""
        if not reader.shared and reader in self.all:
            self.all.remove(reader)
            await reader.node.stop()

    async def stop(self) -> None:
        stopped, self.all = self.all, []
        await asyncio.gather(*(reader.node.stop() for reader in stopped))
