"""Stream: the object with which users publish to a stream and read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

from surecast.client.events import Seqs
from surecast.client.publisher_id import publisher_id
from surecast.client.rules import shown
from surecast.client.subscription import Subscription
from surecast.client.subscription_task import Start, Stop
from surecast.client.timeouts import Timeout, within
from surecast.columns.batch import COLLECT, CONFIG, NO_PUBLISHER, Batch
from surecast.columns.rules import (
    Collect,
    End,
    KeepAll,
    Policy,
    Predicate,
    TagIs,
    check_predicate,
    encode_collect,
    encode_policy,
)
from surecast.core.streams import StreamInfo
from surecast.endpoint.chunks import ArrowStream, Chunk, chunks_of
from surecast.endpoint.endpoint import Sent, acknowledged, send, send_all
from surecast.endpoint.publishers import EVENT_OVERHEAD, Outbox
from surecast.errors import TimedOut, UsageError

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from surecast.client.connection import Client

__all__ = ["Stream", "StreamInfo"]

PUB_NO_MAX: Final = (1 << 62) - 1  # for a first number; leaves room for the following ones


class Stream:
    """An open stream, created by `await client.stream(name)`. There may be several per stream.

    Events published through one client to one stream keep the order of the calls.
    """

    def __init__(self, client: Client, info: StreamInfo, outbox: Outbox) -> None:
        self._client = client
        self._info = info
        self._outbox = outbox

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def retain(self) -> Policy:
        """The stream's retention, fixed when it was created."""
        return self._info.retention

    @property
    def delivery(self) -> str:
        """How its events reach readers, fixed when it was created."""
        return self._info.delivery

    @property
    def stream_id(self) -> bytes:
        """16 random bytes that identify this stream; a new stream of the same name has others."""
        return self._info.stream_id

    @property
    def owner(self) -> str:
        """The region that gives its events their positions."""
        return self._info.owner

    def supports(self, verb: str) -> bool:
        """Whether its delivery offers `verb`: "pattern", "name", "time", "retain", "collect",
        "publisher" (named publishers) or "delete"."""
        return self._client._supports(self._info, verb)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    # ------------------------------------------------------------ publishing

    async def publish(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        tag: bytes | None = None,
        timeout: Timeout = None,
    ) -> int:
        """Publish an event and return its position, once it is on disk at every replica.

            seq = await stream.publish(b"on", key=b"lamp:7")

        Waits for room while `outbox_bytes_max` are unacknowledged. If it is cancelled or times out
        the event may still be published (`maybe_taken` of TimedOut); retries, reconnects and
        failovers never publish it twice.
        """
        if timeout is None:
            return await self._outbox.publish(value, key, tag)
        limit = within(
            timeout,
            f"the acknowledgement of an event of {self.name!r}; the event may still be published",
            maybe_taken=True,
        )
        async with limit:
            future = self._outbox.publish(value, key, tag)
            try:
                return await future
            except asyncio.CancelledError:
                if self._outbox.waits_for_room(future):
                    limit.maybe_taken = False
                    limit.what = (
                        f"room to publish an event of {self.name!r}; the event is not published"
                    )
                raise

    def publish_soon(
        self, value: bytes, *, key: bytes | None = None, tag: bytes | None = None
    ) -> None:
        """Publish in the background, in batches; `await client.flush()` waits for all of it.

            for row in rows:
                stream.publish_soon(row)
            await client.flush()

        Raises QueueFull while `outbox_bytes_max` are unacknowledged; the event is then not
        published. Later failures are raised by the next `flush()`.
        """
        self._outbox.publish_soon(value, key, tag)

    async def publish_many(
        self,
        values: Iterable[bytes] | ArrowStream,
        *,
        keys: Iterable[bytes | None] | None = None,
        tags: Iterable[bytes | None] | None = None,
        timeout: Timeout = None,
    ) -> Seqs:
        """Publish many events in order and return their positions, once all are on disk.

            seqs = await stream.publish_many([b"a", b"b"], keys=[b"k1", b"k2"])
            seqs = await stream.publish_many(table)  # columns value, and optionally key and tag

        A table is a pyarrow Table or RecordBatch, a frame of pandas or polars, or anything else
        with `__arrow_c_stream__`.
        Events are sent in batches; other publishers' events may get positions between two of them,
        so the result has runs. If some fail, `acknowledged` of the error has the positions of the
        others. After TimedOut batches that were sent may still be published (`maybe_taken`), later
        ones are not; `acknowledged` has the positions of acknowledged ones.
        """
        chunks = chunks_of(self._info.stream_id, values, keys, tags, self._outbox.options)
        sent: Sent = []
        limit = within(timeout, f"the acknowledgement of events of {self.name!r}")
        try:
            async with limit:
                return Seqs(await send_all(self._outbox, chunks, sent))
        except TimedOut as problem:
            problem.acknowledged = acknowledged(sent)
            problem.maybe_taken = any(future.cancelled() for future in sent)
            raise

    async def publish_batch(
        self, batch: Batch, *, timeout: Timeout = None
    ) -> asyncio.Future[tuple[int, int]]:
        """Publish a batch unchanged; returns when there is room for it.

        The future gets its first position and its end when it is on disk (0 and 0: a batch of a
        named publisher that was published before, and whose positions are not known any more). For
        connectors that build their own batches.
        """
        waited_for = f"room to publish a batch of {self.name!r}; the batch may still be published"
        async with within(timeout, waited_for, maybe_taken=True):
            return await send(self._outbox, Chunk(batch, batch.nbytes))

    def named(self, publisher: str | bytes | UUID, pub_no: int) -> Stream:
        """This stream for a publisher that keeps its own name and numbers.

            line = stream.named("invoices", next_no)

        `publisher` is any string, a UUID or any 16 bytes; equal names are the same publisher in all
        processes. Its events get the numbers from `pub_no` on. The stream's owner publishes an
        event only if it has not accepted its number from this publisher before. So a program that
        repeats its batches from any number on, identical and in order, gets each of them published
        once. After a failure nothing more is accepted: begin again with a known number when all
        batches before it have ended. Named publishers never expire.
        """
        return self.published_as(publisher_id(publisher), pub_no)

    def published_as(self, publisher: bytes, pub_no: int) -> Stream:
        """`named` for a connector with its own 16-byte id (protocols/chain/dedup.py).

        An id that begins with its time of creation, in ns, expires when it was not used for
        `chain.publisher_ttl_ns`.
        """
        self._client._check_verb(self._info, "publisher", "a named publisher")
        if len(publisher) != 16 or publisher == NO_PUBLISHER:
            raise UsageError("the id of a publisher is 16 bytes, not all zero")
        if type(pub_no) is not int or not 1 <= pub_no <= PUB_NO_MAX:
            raise UsageError(
                f"the numbers of a publisher are whole numbers from 1 to {PUB_NO_MAX:,}, not "
                f"{shown(pub_no)}"
            )
        outbox = self._client._named_outbox(self._info, publisher, pub_no)
        return Stream(self._client, self._info, outbox)

    async def collect(self, which: Predicate, *, timeout: Timeout = None) -> int:
        """Declare events obsolete: they become void in every region.

            await stream.collect(surecast.before_seq(10_000))

        The declaration gets a position in the stream itself, which is returned, and applies to
        events before it. See before_seq, before_time, key_is, key_prefix, tag_is. After TimedOut
        the declaration may still be published.
        """
        self._client._check_verb(self._info, "collect", "collect()")
        if not isinstance(which, Predicate):
            raise UsageError(
                "collect takes before_seq(...), before_time(...), key_is(...), key_prefix(...) or "
                f"tag_is(...), not {which!r}"
            )
        if isinstance(which, TagIs) and not isinstance(self.retain, KeepAll):
            raise UsageError(f"tag_is needs a stream that keeps all events; {self!r} does not")
        waited_for = (
            f"the acknowledgement of collect() on {self.name!r}; the events may still be declared "
            "obsolete"
        )
        check_predicate(which)
        value = encode_collect(Collect(which))
        if len(value) > self._outbox.options.event_bytes_max:
            raise UsageError(
                f"collect takes a key or tag of at most {self._outbox.options.event_bytes_max:,} "
                f"bytes (ClientOptions.event_bytes_max), not {len(value):,}"
            )
        return await self._publish_rule(COLLECT, value, timeout, waited_for)

    async def delete(self, *, timeout: Timeout = None) -> int:
        """Delete the stream in every region. This cannot be undone.

            await (await client.stream("orders.test")).delete()

        The deletion gets the last position of the stream, which is returned. All events before it
        become void, and nothing can be published after it: publishers get StreamDeleted, and so do
        subscriptions of this stream once they have read the rest of it. Subscriptions by name or
        pattern continue without it. The name can be used again, for a new stream that begins at
        position 1; regions that are cut off keep the old one until they are reachable again.
        """
        self._client._check_verb(self._info, "delete", "delete()")
        waited_for = (
            f"the acknowledgement of delete() on {self.name!r}; the stream may still be deleted"
        )
        return await self._publish_rule(CONFIG, encode_policy(End()), timeout, waited_for)

    async def _publish_rule(
        self, kind: int, value: bytes, timeout: Timeout, waited_for: str
    ) -> int:
        batch = Batch.of(self._info.stream_id, [value], kind=kind)
        async with within(timeout, waited_for, maybe_taken=True):
            sent, placed = self._outbox.publish_batch(batch, len(value) + EVENT_OVERHEAD)
            await placed
            assert sent.whole is not None
            return (await sent.whole)[0]

    # ------------------------------------------------------------ reading

    def subscribe(
        self,
        start: Start = "latest",
        *,
        stop: Stop | None = None,
        voids: bool = False,
        name: str | None = None,
        ack: Literal["auto", "manual"] = "auto",
        where: Any = None,
        timeout: Timeout = None,
    ) -> Subscription:
        """Read the stream.

            async for event in stream.subscribe(start="earliest"): ...
            async for event in stream.subscribe(start="earliest", stop="latest"): ...  # ends

        `start`: "earliest", "latest" (the current end, fixed once `await sub.ready()` returns), a
        position or a datetime with a time zone. `stop`: where the subscription ends. "latest" is
        the current end, including all events acknowledged to this client; a position is the first
        that is not read, and the subscription waits for those before it; a datetime means the
        events before that time. `voids`: also get ranges without events. `name`, `ack`, `timeout`:
        see Subscription.
        """
        return self._client._subscribe(
            self.name, self._info, start, voids, name, ack, where, stop, timeout
        )

    async def read(
        self,
        start: Start = "earliest",
        stop: Stop = "latest",
        *,
        voids: bool = False,
        timeout: Timeout = None,
    ) -> pa.Table:
        """The events from `start` up to `stop`, in one table with the columns of `batches()`.

            table = await stream.read()  # all there is now
            table = await stream.read(start=seqs.first, stop=seqs.last + 1)

        `start`, `stop` and `voids` as in `subscribe`; without events it has no rows. A table larger
        than `ClientOptions.read_bytes_max` raises UsageError, lost events raise EventsLost.
        """
        if stop is None:
            raise UsageError('a read has an end: stop is "latest", a seq or a datetime')
        from surecast.client.table import read_table

        async with (
            within(timeout, f"all events of {self.name!r} up to {stop!r}"),
            self.subscribe(start, stop=stop, voids=voids) as sub,
        ):
            return await read_table(sub._buffer)
