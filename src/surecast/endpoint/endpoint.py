"""A program's connection to a region: where its servers are, the control node, what it publishes.

The client is one such program, and so is a server that publishes what came by HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable

from surecast import registry
from surecast.columns.rules import KeepAll
from surecast.core.endpoint import Delivery, Place
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.core.types import SECOND, LogId
from surecast.endpoint.chunks import Chunk, joined
from surecast.endpoint.control import Control
from surecast.endpoint.error_messages import not_supported, open_error, unknown_delivery
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.publishers import Outbox
from surecast.endpoint.region_link import RegionLink
from surecast.errors import ConnectError, NotSupported, PublishError, UsageError, WrongToken
from surecast.runtime.addresses import Address

__all__ = ["Endpoint", "Sent", "acknowledged", "send", "send_all"]

log = logging.getLogger("surecast.client")


class Endpoint:
    """See the module. For the thread of its event loop.

    `broken` is told when a machine has failed, after all who wait for the control node were told.
    """

    def __init__(
        self,
        addresses: list[Address],
        *,
        token: str = "",
        options: ClientOptions | None = None,
        broken: Callable[[str], None] = lambda problem: None,
    ) -> None:
        self.options = options or ClientOptions()
        self.link = RegionLink(addresses, token, self.options, self._broken)
        self.control = Control()
        self.deliveries = registry.deliveries()  # by name
        self.outboxes: dict[LogId | tuple[LogId, bytes], Outbox] = {}
        self.is_wanted: Callable[[], bool] = lambda: False  # by others than the control node
        self._told_broken = broken
        self._watchdog: asyncio.Task[None] | None = None

    async def open(self, mesh: bool = False) -> Place:
        """Find the region's servers and start the control node."""
        region = await self.link.discover()
        options = self.options
        place = Place(
            region.name,
            tuple(region.replicas),
            mesh,
            options.streams_max,
            options.owner_timeout_ns,
        )
        self.control.node = self.link.node(
            f"control-{secrets.token_hex(8)}",
            "control",
            lambda ctx: registry.control(ctx, place),
            on_emit=self.control.on_emit,
        )
        await self.control.node.start()
        self._watchdog = asyncio.get_running_loop().create_task(self._watch_region())
        return place

    async def stop(self, problem: str) -> None:
        """Whoever still waits is told `problem`."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        for outbox in self.outboxes.values():
            outbox.stop()
        self.control.fail(problem)
        if self._watchdog is not None:  # it was opened
            await self.control.node.stop()

    def _broken(self, problem: BaseException) -> None:
        """A machine has raised: a bug of ours. Nobody shall wait for what will never come."""
        said = f"the client stopped after an internal error, please report it: {problem!r}"
        self.control.fail(said)
        self._told_broken(said)

    async def _watch_region(self) -> None:
        """When nobody can be reached any more, ask the url's addresses where the servers are."""
        period = self.options.rediscover_every_ns / SECOND
        logged = False  # that the token is wrong now
        while True:
            await asyncio.sleep(period)
            if (self.control.busy or self.is_wanted()) and not self.link.is_connected():
                try:
                    await self.link.discover()
                    logged = False
                except WrongToken as problem:  # it was right before: the servers have another now
                    if not logged:
                        log.warning("the client cannot connect again: %s", problem)
                        logged = True
                except ConnectError:
                    pass

    # ------------------------------------------------------------ publishing

    async def open_stream(self, name: str, spec: StreamSpec) -> StreamInfo:
        """Open a stream, or create it; raises what keeps it from being opened."""
        self._check_spec(spec)
        opened = await self.control.open(name, spec)
        if opened.info is None or opened.why:
            raise open_error(opened, spec)
        self.delivery_of(opened.info)
        return opened.info

    def _check_spec(self, spec: StreamSpec) -> None:
        """Raise UsageError for what can be refused before a server is asked."""
        if not spec.delivery:  # as the stream has it, which only the server knows
            if spec.options:
                raise UsageError("options= are those of a delivery: name it with delivery=")
            return
        delivery = self.deliveries.get(spec.delivery)
        if delivery is None:
            known = ", ".join(map(repr, self.deliveries))
            raise NotSupported(f"there is no delivery={spec.delivery!r}; this version has {known}")
        if "retain" not in delivery.verbs and spec.retention not in (None, KeepAll()):
            raise not_supported("retain=", delivery)
        delivery.check(spec)

    def delivery_of(self, info: StreamInfo) -> Delivery:
        """How the stream is delivered; raises NotSupported if this version does not know it."""
        delivery = self.deliveries.get(info.delivery)
        if delivery is None:
            raise unknown_delivery(info)
        return delivery

    def supports(self, info: StreamInfo, verb: str) -> bool:
        return verb in self.delivery_of(info).verbs

    def check_verb(self, info: StreamInfo, verb: str, said: str) -> None:
        """Raise NotSupported if the stream's delivery lacks a verb; `said` is the user's call."""
        delivery = self.delivery_of(info)
        if verb not in delivery.verbs:
            raise not_supported(said, delivery)

    def outbox(self, info: StreamInfo) -> Outbox:
        outbox = self.outboxes.get(info.stream_id)
        if outbox is None:
            outbox = Outbox(info.name, info.stream_id, self.control, self.options)
            self.outboxes[info.stream_id] = outbox
        return outbox

    def named_outbox(self, info: StreamInfo, publisher: bytes, pub_no: int) -> Outbox:
        """One under an identity of the user's; it replaces an earlier one of the same identity."""
        self.check_verb(info, "publisher", "a named publisher")
        earlier = self.outboxes.get((info.stream_id, publisher))
        if earlier is not None and earlier.unacknowledged:
            raise UsageError(
                f"the publisher {publisher.hex()} has {earlier.unacknowledged} batches in "
                f"{info.name!r} that are not acknowledged: wait for them (flush()) before its "
                "numbers begin again, or use another client"
            )
        named = (publisher, pub_no)
        outbox = Outbox(info.name, info.stream_id, self.control, self.options, named)
        self.outboxes[info.stream_id, publisher] = outbox
        return outbox

    def acknowledged_end(self, stream: LogId) -> int:
        """The first position of a stream behind all that this program published and was told of."""
        own = (outbox for outbox in self.outboxes.values() if outbox.stream == stream)
        return max((outbox.acknowledged_end for outbox in own), default=1)

    async def flush(self) -> None:
        """Wait until all that was published is acknowledged; raise what went wrong since."""
        outboxes = list(self.outboxes.values())
        if outboxes:
            await asyncio.wait([outbox.flushed() for outbox in outboxes])
        errors = [error for outbox in outboxes if (error := outbox.take_error()) is not None]
        if errors:
            for other in errors[1:]:
                errors[0].add_note(str(other))
            raise errors[0]


async def send(outbox: Outbox, chunk: Chunk) -> asyncio.Future[tuple[int, int]]:
    """Publish a batch; returns when there is room for it. The future gets its positions."""
    sent, placed = outbox.publish_batch(chunk.batch, chunk.nbytes)
    await placed
    await asyncio.sleep(0)  # let it leave before the next is built
    assert sent.whole is not None
    return sent.whole


Sent = list["asyncio.Future[tuple[int, int]]"]  # of batches: each gets its positions


async def send_all(
    outbox: Outbox, chunks: Iterable[Chunk], sent: Sent | None = None
) -> list[tuple[int, int]]:
    """Publish batches in order; the positions of each, once all are on disk.

    If some fail, the error tells which did not (`acknowledged`). `sent` gets the future of each
    batch that was taken, for a caller that may stop waiting.
    """
    ended: Sent = [] if sent is None else sent
    try:
        for chunk in chunks:
            ended.append(await send(outbox, chunk))
        if ended:
            await asyncio.wait(ended)
        return joined(future.result() for future in ended)
    except PublishError as problem:
        problem.acknowledged = acknowledged(ended)
        if any(not _has_result(f) and _maybe_taken(f) for f in ended):
            problem.maybe_taken = True  # this batch was not sent, but one before it was
        raise
    finally:
        for future in ended:
            future.cancel()


def acknowledged(sent: Sent) -> tuple[tuple[int, int], ...]:
    """The positions, as half-open runs, of those batches that are on disk."""
    return tuple(joined(future.result() for future in sent if _has_result(future)))


def _has_result(future: asyncio.Future[tuple[int, int]]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _maybe_taken(future: asyncio.Future[tuple[int, int]]) -> bool:
    """Of a batch that was sent, and has no positions."""
    problem = future.exception() if future.done() and not future.cancelled() else None
    return getattr(problem, "maybe_taken", True)
