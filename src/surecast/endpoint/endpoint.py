"""Endpoint: a connection to a region that opens streams, publishes and sends queries.

Each client has one, and so has the HTTP port of each server, for publishing. Subscriptions are not
part of it (readers.py).

An endpoint has three parts: the link to the region's servers (region_link.py); the *control node*,
a state machine in this process that opens streams, publishes and sends queries (control.py); and an
*outbox* for each stream that the program publishes to, which holds the events that the region has
not acknowledged yet (publishers.py).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from surecast import registry
from surecast.columns.batch import CONFIG, Batch
from surecast.columns.rules import KeepAll, NewSchema, encode_policy
from surecast.columns.schema import extends, read_schema
from surecast.core.endpoint import Acked, Delivery, Failed, Place, WhichStreams
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.core.types import SECOND, LogId
from surecast.endpoint.attributes import writer_of
from surecast.endpoint.control import Control
from surecast.endpoint.error_messages import (
    change_error,
    check_change,
    not_supported,
    open_error,
    subscription_error,
    unknown_delivery,
    unknown_schema,
)
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.prepared import PreparedBatch, joined
from surecast.endpoint.publishers import Outbox
from surecast.endpoint.region_link import RegionLink
from surecast.errors import ConnectError, NotSupported, PublishError, UsageError, WrongToken
from surecast.runtime.addresses import Address

__all__ = ["BatchFutures", "Endpoint", "acknowledged", "send", "send_all"]

log = logging.getLogger("surecast.client")

# How long a change of a schema waits until this region knows it, which the owner has acknowledged.
KNOWN_S: Final = 5.0
ASK_AGAIN_S: Final = 0.05


class Endpoint:
    """A connection to a region (see the module). Must be used in its event loop's thread.

    `broken` is called with the reason when a state machine of this connection (the control node or
    a reader) has raised an exception, which is a bug. All calls that wait for the control node have
    already failed by then.
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
        # By stream id. An outbox of a named publisher: by stream id and publisher id.
        self.outboxes: dict[LogId | tuple[LogId, bytes], Outbox] = {}
        # Whether the connection is needed although no call waits for the control node: the client
        # sets a function that returns whether it has subscriptions.
        self.is_wanted: Callable[[], bool] = lambda: False
        self._on_broken = broken
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
        """Stop the control node; calls that still wait fail with `problem`."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        for outbox in self.outboxes.values():
            outbox.stop()
        self.control.fail(problem)
        if self._watchdog is not None:  # it was opened
            await self.control.node.stop()

    def _broken(self, problem: BaseException) -> None:
        """Called when a state machine has raised an exception, which is a bug: fail all waiting
        calls."""
        text = f"the client stopped after an internal error, please report it: {problem!r}"
        self.control.fail(text)
        self._on_broken(text)

    async def _watch_region(self) -> None:
        """Run in the background: while the connection is needed and no server is connected, request
        the servers' addresses again, starting from the url. The servers may have moved."""
        period = self.options.rediscover_every_ns / SECOND
        logged = False  # whether it was logged that the servers refuse the token
        while True:
            await asyncio.sleep(period)
            if (self.control.busy or self.is_wanted()) and not self.link.is_connected():
                try:
                    await self.link.discover()
                    logged = False
                except WrongToken as problem:  # the servers' token was changed
                    if not logged:
                        log.warning("the client cannot reconnect: %s", problem)
                        logged = True
                except ConnectError:
                    pass

    # ------------------------------------------------------------ publishing

    async def open_stream(self, name: str, spec: StreamSpec) -> StreamInfo:
        """Open or create a stream; raises the error if that is not possible."""
        self._check_spec(spec)
        opened = await self.control.open(name, spec)
        if opened.info is None or opened.why:
            raise open_error(opened, spec)
        self.delivery_of(opened.info)  # raises NotSupported if this version does not know it
        return opened.info

    def _check_spec(self, spec: StreamSpec) -> None:
        """Raise UsageError or NotSupported if every server would refuse the spec."""
        if not spec.delivery:
            # The server uses the delivery of the existing stream, or the default. It is not known
            # here, so options cannot be checked.
            if spec.options:
                raise UsageError("options= belong to a delivery: name it with delivery=")
            return
        delivery = self.deliveries.get(spec.delivery)
        if delivery is None:
            known = ", ".join(map(repr, self.deliveries))
            raise NotSupported(f"there is no delivery={spec.delivery!r}; this version has {known}")
        # `verbs` names what clients may do with the streams of a delivery (`core.endpoint.VERBS`).
        # A delivery without retention accepts None and KeepAll, because both are the default.
        if "retain" not in delivery.verbs and spec.retention not in (None, KeepAll()):
            raise not_supported("retain=", delivery)
        delivery.check(spec)

    def delivery_of(self, info: StreamInfo) -> Delivery:
        """The stream's delivery; raises NotSupported if this version does not know it, or cannot
        read the stream's schema."""
        delivery = self.deliveries.get(info.delivery)
        if delivery is None:
            raise unknown_delivery(info)
        if info.schema:
            try:
                read_schema(info.schema)
            except UsageError:
                raise unknown_schema(info) from None
        return delivery

    def is_remote(self, info: StreamInfo) -> bool:
        """Whether only another region has the events of the stream."""
        return not self.delivery_of(info).keeps_copies and info.owner != self.link.region.name

    def supports(self, info: StreamInfo, verb: str) -> bool:
        """Whether the stream's delivery supports a verb, a feature of `core.endpoint.VERBS`."""
        return verb in self.delivery_of(info).verbs

    def check_verb(self, info: StreamInfo, verb: str, call: str) -> None:
        """Raise NotSupported if the stream's delivery does not support a verb (see `supports`).
        `call` is the user's call, for the message."""
        delivery = self.delivery_of(info)
        if verb not in delivery.verbs:
            raise not_supported(call, delivery)

    def outbox(self, info: StreamInfo) -> Outbox:
        """The outbox of a stream; created with the first call. It publishes by the newest schema
        that this program has seen."""
        outbox = self.outboxes.get(info.stream_id)
        writer = writer_of(info.schema)
        if outbox is None or (outbox.is_outdated and not outbox.unacknowledged):
            outbox = Outbox(info.name, info.stream_id, self.control, self.options, writer=writer)
            self.outboxes[info.stream_id] = outbox
        elif writer is not None:
            outbox.take_schema(writer)
        return outbox

    def named_outbox(self, info: StreamInfo, publisher: bytes, pub_no: int) -> Outbox:
        """A new outbox for the named publisher with the id `publisher`, whose next event gets the
        number `pub_no` (`Stream.named`). It replaces an earlier outbox of the same publisher."""
        self.check_verb(info, "publisher", "a named publisher")
        earlier = self.outboxes.get((info.stream_id, publisher))
        if earlier is not None and earlier.unacknowledged:
            raise UsageError(
                f"the publisher {publisher.hex()} has {earlier.unacknowledged} batches in "
                f"{info.name!r} that are not acknowledged: wait for them (flush()) before you call "
                "named() again, or use another client"
            )
        named = (publisher, pub_no)
        writer = writer_of(info.schema)
        outbox = Outbox(info.name, info.stream_id, self.control, self.options, named, writer)
        self.outboxes[info.stream_id, publisher] = outbox
        return outbox

    # ------------------------------------------------------------ streams

    async def matching(self, pattern: str) -> list[tuple[StreamInfo, int]]:
        """The streams of the region that match, each with its end."""
        found: dict[LogId, tuple[StreamInfo, int]] = {}
        complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_answer(answer: Any) -> None:
            if complete.done():
                return
            if isinstance(answer, Exception):
                complete.set_exception(answer)
            elif answer.why:
                complete.set_exception(subscription_error(pattern, answer.why))
            else:
                for info, end in zip(answer.infos, answer.ends, strict=True):
                    found[info.stream_id] = info, end
                if answer.complete:
                    complete.set_result(None)

        token = self.control.watch(WhichStreams(pattern), on_answer)
        try:
            await complete
        finally:
            self.control.drop(token)
        return list(found.values())

    async def current(self, stream: LogId, name: str) -> StreamInfo | None:
        """What the region knows of a stream now; None if it knows no such stream."""
        infos = (info for info, _ in await self.matching(name))
        return next((info for info in infos if info.stream_id == stream), None)

    async def change(self, info: StreamInfo, schema: str) -> int | None:
        """Change the schema of a stream; returns the position of the change, or None if the stream
        has this schema already. Returns when this region knows it, or after KNOWN_S.

        The change is published by a publisher of its own, so that a refusal does not affect events
        that the program publishes meanwhile.
        """
        known = await self.current(info.stream_id, info.name) or info
        if known.schema == schema:
            return None
        check_change(known, schema)
        result = await self._publish_change(info, schema)
        why = result.why if isinstance(result, Failed) else ""
        if why not in ("", "unchanged", "schema-differs"):
            raise change_error(info.name, why)
        for _ in range(round(KNOWN_S / ASK_AGAIN_S)):
            known = await self.current(info.stream_id, info.name) or info
            if why == "schema-differs":
                check_change(known, schema)  # raises once the region knows the owner's schema
            elif extends(known.schema, schema):
                break
            await asyncio.sleep(ASK_AGAIN_S)
        if why == "schema-differs":
            raise change_error(info.name, why)
        return result.seq if isinstance(result, Acked) else None

    async def _publish_change(self, info: StreamInfo, schema: str) -> Acked | Failed:
        publisher = time.time_ns().to_bytes(8, "big") + secrets.token_bytes(8)
        value = encode_policy(NewSchema(schema))
        batch = Batch.of(info.stream_id, [value], kind=CONFIG).numbered(publisher, 1)
        ended: asyncio.Future[Acked | Failed] = asyncio.get_running_loop().create_future()

        def on_result(result: Acked | Failed) -> None:
            if not ended.done():
                ended.set_result(result)

        self.control.offer(info.stream_id, batch, on_result)
        return await ended

    def acknowledged_end(self, stream: LogId) -> int:
        """The position after the last event of a stream that was acknowledged to this program."""
        own = (outbox for outbox in self.outboxes.values() if outbox.stream == stream)
        return max((outbox.acknowledged_end for outbox in own), default=1)

    async def flush(self) -> None:
        """Wait until all published events are acknowledged or have failed. Raises the errors of
        `publish_soon` since the last call."""
        outboxes = list(self.outboxes.values())
        if outboxes:
            await asyncio.wait([outbox.flushed() for outbox in outboxes])
        errors = [error for outbox in outboxes if (error := outbox.take_error()) is not None]
        if errors:
            for other in errors[1:]:
                errors[0].add_note(str(other))
            raise errors[0]


async def send(outbox: Outbox, prepared: PreparedBatch) -> asyncio.Future[tuple[int, int]]:
    """Publish a batch; returns when the outbox has room for it. The returned future gets its
    positions when it is acknowledged."""
    in_flight, added = outbox.publish_batch(prepared.batch, prepared.nbytes)
    await added
    await asyncio.sleep(0)  # lets the node send this batch before the caller builds the next one
    assert in_flight.positions is not None
    return in_flight.positions


# For each batch that an outbox has accepted, the future that gets its first position and its end.
BatchFutures = list["asyncio.Future[tuple[int, int]]"]


async def send_all(
    outbox: Outbox, batches: Iterable[PreparedBatch], futures: BatchFutures | None = None
) -> list[tuple[int, int]]:
    """Publish batches in order; returns their positions when all are acknowledged.

    If some fail, the error has the positions of the others (`acknowledged`). The future of each
    batch that the outbox has accepted is added to the list `futures`, so that a caller that stops
    waiting knows which batches were acknowledged.
    """
    futures = [] if futures is None else futures
    try:
        for prepared in batches:
            futures.append(await send(outbox, prepared))
        if futures:
            await asyncio.wait(futures)
        return joined(future.result() for future in futures)
    except PublishError as problem:
        problem.acknowledged = acknowledged(futures)
        if any(not _has_result(f) and _maybe_taken(f) for f in futures):
            problem.maybe_taken = True  # at least one of the batches may have been published
        raise
    finally:
        for future in futures:
            future.cancel()  # no effect if it is done; otherwise its batch may still be published


def acknowledged(futures: BatchFutures) -> tuple[tuple[int, int], ...]:
    """The positions of the acknowledged batches, as half-open ranges."""
    return tuple(joined(future.result() for future in futures if _has_result(future)))


def _has_result(future: asyncio.Future[tuple[int, int]]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _maybe_taken(future: asyncio.Future[tuple[int, int]]) -> bool:
    """Whether a batch that was sent and is not acknowledged may have been published. This is so
    unless its error says otherwise."""
    problem = future.exception() if future.done() and not future.cancelled() else None
    return getattr(problem, "maybe_taken", True)
