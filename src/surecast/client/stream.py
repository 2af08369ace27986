"""Stream: the object with which users publish to a stream and read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

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
from surecast.columns.schema import read_schema, schema_text
from surecast.core.streams import StreamInfo
from surecast.endpoint.attributes import writer_of
from surecast.endpoint.endpoint import BatchFutures, acknowledged, send, send_all
from surecast.endpoint.prepared import ArrowStream, PreparedBatch, prepared_batches
from surecast.endpoint.publishers import EVENT_OVERHEAD, Outbox
from surecast.errors import TimedOut, UsageError

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from surecast.client.connection import Client

__all__ = ["Stream", "StreamInfo"]

# The largest number that `named` accepts for its first event. Later events may get larger ones.
PUB_NO_MAX: Final = (1 << 62) - 1


class Stream:
    """An open stream, created by `await client.stream(name)`.

    A program may open a stream several times. Events that one client publishes to a stream keep the
    order of the calls, even if it uses several Stream objects.
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
        """The stream's retention rule, fixed when the stream was created."""
        return self._info.retention

    @property
    def delivery(self) -> str:
        """How the stream's events reach readers, fixed when the stream was created."""
        return self._info.delivery

    @property
    def schema(self) -> pa.Schema | None:
        """The types of the events' attributes, as far as this program knows: `change` adds some,
        here or in another program. None: events have no attributes."""
        schema = self._current().schema
        return read_schema(schema).arrow() if schema else None

    def _current(self) -> StreamInfo:
        """The stream with the newest schema that this program has seen."""
        writer = self._outbox.writer
        if writer is None or writer.schema.text == self._info.schema:
            return self._info
        return msgspec.structs.replace(self._info, schema=writer.schema.text)

    @property
    def stream_id(self) -> bytes:
        """16 random bytes that identify this stream. A stream that is created under the same name
        after this one was deleted has another id."""
        return self._info.stream_id

    @property
    def owner(self) -> str:
        """The region that assigns positions to the stream's events."""
        return self._info.owner

    def supports(self, verb: str) -> bool:
        """Whether the stream's delivery supports a verb, that is, a feature of this interface:
        "pattern", "name" or "time" (subscriptions by pattern, with a name, from a time on),
        "retain", "collect", "publisher" (named publishers) or "delete"."""
        return self._client._supports(self._info, verb)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    # ------------------------------------------------------------ publishing

    async def publish(
        self,
        value: bytes | Mapping[str, Any],
        *,
        key: bytes | None = None,
        tag: bytes | None = None,
        timeout: Timeout = None,
    ) -> int:
        """Publish an event; returns its position when every replica in the chain of the region that
        owns the stream has it on disk.

            seq = await stream.publish(b"on", key=b"lamp:7")
            seq = await trades.publish({"sym": "IBM", "px": 81.2})  # the stream has a schema

        In a stream with a schema, an event is a dict of its attributes. It may also have "value",
        "key" and "tag". Attributes that are left out are null.

        The call waits while `ClientOptions.outbox_bytes_max` bytes are not acknowledged. If it is
        cancelled or times out, the event may still be published (see `maybe_taken` of TimedOut).
        Retries, reconnects and failovers never publish an event twice.
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
            except asyncio.CancelledError:  # perhaps because the time is over
                if self._outbox.waits_for_room(future):
                    limit.maybe_taken = False
                    limit.what = (
                        f"room to publish an event of {self.name!r}; the event is not published"
                    )
                raise

    def publish_soon(
        self,
        value: bytes | Mapping[str, Any],
        *,
        key: bytes | None = None,
        tag: bytes | None = None,
    ) -> None:
        """Publish an event in the background, in a batch with others.

            for row in rows:
                stream.publish_soon(row)
            await client.flush()  # waits until all of them are acknowledged

        Raises QueueFull while `ClientOptions.outbox_bytes_max` bytes are not acknowledged; the
        event is not published then. If an event fails later, the next `flush()` raises the error.
        """
        self._outbox.publish_soon(value, key, tag)

    async def publish_many(
        self,
        values: Iterable[bytes] | Iterable[Mapping[str, Any]] | ArrowStream,
        *,
        keys: Iterable[bytes | None] | None = None,
        tags: Iterable[bytes | None] | None = None,
        timeout: Timeout = None,
    ) -> Seqs:
        """Publish many events in order; returns their positions when all are on disk, as with
        `publish`.

            seqs = await stream.publish_many([b"a", b"b"], keys=[b"k1", b"k2"])
            seqs = await stream.publish_many(table)  # columns value, and optionally key and tag

        A table is a pyarrow Table or RecordBatch, a frame of pandas or polars, or anything else
        with `__arrow_c_stream__`. In a stream with a schema, give dicts, as for `publish`, or a
        table with the columns of the schema (those that may be null can be left out) and optionally
        value, key and tag. If a row does not fit the schema, nothing is published, and the error
        names the column, the row (counted from 0) and the type.

        Events are sent in batches. Events of other publishers may get positions between two
        batches, so the positions are returned as ranges (`Seqs`). If some batches fail,
        `acknowledged` of the error has the positions of the others. `acknowledged` of TimedOut has
        the positions of the batches that were acknowledged in time. Batches that were sent but not
        acknowledged may still be published (then `maybe_taken` is true); the others are not.
        """
        outbox = self._outbox
        batches = prepared_batches(outbox.stream, values, keys, tags, outbox.options, outbox.writer)
        futures: BatchFutures = []
        limit = within(timeout, f"the acknowledgement of events of {self.name!r}")
        try:
            async with limit:
                return Seqs(await send_all(self._outbox, batches, futures))
        except TimedOut as problem:
            problem.acknowledged = acknowledged(futures)
            # `send_all` has cancelled the futures of the batches that were not acknowledged.
            problem.maybe_taken = any(future.cancelled() for future in futures)
            raise

    async def publish_batch(
        self, batch: Batch, *, timeout: Timeout = None
    ) -> asyncio.Future[tuple[int, int]]:
        """Publish a batch unchanged, for connectors that build their own batches.

        Returns when there is room for the batch. The future gets the batch's first position and its
        end when it is on disk. Both are 0 if a named publisher published this batch before, so long
        ago that its positions are not known any more.
        """
        if not isinstance(batch, Batch):
            raise UsageError(
                f"publish_batch takes a surecast.columns.batch.Batch, not {type(batch).__name__}; "
                "for rows and tables there is publish_many(...)"
            )
        waited_for = f"room to publish a batch of {self.name!r}; the batch may still be published"
        async with within(timeout, waited_for, maybe_taken=True):
            return await send(self._outbox, PreparedBatch(batch, batch.nbytes))

    def named(self, publisher: str | bytes | UUID, pub_no: int) -> Stream:
        """This stream for a *named publisher*: a program that numbers its events itself, so that it
        can publish exactly once across restarts.

            line = stream.named("invoices", next_no)

        `publisher` is any string, a UUID or any 16 bytes; equal names are the same publisher in all
        processes. Events published through the returned Stream get the numbers `pub_no`, `pub_no` +
        1, and so on. The first number under a new name is 1, and no number may be left out. The
        stream's owner publishes an event only if it has not accepted its number from this publisher
        before. So a program may repeat its batches from the beginning of any of them on, if they
        are identical (also in where each begins and ends) and in order: each of them is published
        once. `publish_batch` keeps the batches as they are; other calls may join events.

        After a failure the returned Stream accepts nothing more. Wait until all of its batches are
        acknowledged or have failed, then call `named` again with the number of the first event to
        repeat. Named publishers never expire.
        """
        return self.published_as(publisher_id(publisher), pub_no)

    def published_as(self, publisher: bytes, pub_no: int) -> Stream:
        """The same as `named`, for connectors that have the publisher's id already: `publisher` is
        used unchanged, while `named` computes an id from it (publisher_id.py).

        The first eight bytes are read as a big-endian number. Zero: the servers never forget the
        publisher. Otherwise it must be the time at which the id was created, in nanoseconds since
        1970; the servers forget the publisher when it has published nothing for
        `chain.publisher_ttl_ns`. An id with a wrong time may be refused as expired.
        """
        self._client._check_verb(self._info, "publisher", "a named publisher")
        if len(publisher) != 16 or publisher == NO_PUBLISHER:
            raise UsageError("the id of a publisher is 16 bytes, not all zero")
        if type(pub_no) is not int or not 1 <= pub_no <= PUB_NO_MAX:
            raise UsageError(
                f"the numbers of a publisher are whole numbers from 1 to {PUB_NO_MAX:,}, not "
                f"{shown(pub_no)}"
            )
        info = self._current()
        return Stream(self._client, info, self._client._named_outbox(info, publisher, pub_no))

    async def collect(self, which: Predicate, *, timeout: Timeout = None) -> int:
        """Declare events obsolete: they become void in every region.

            await stream.collect(surecast.before_seq(10_000))

        The declaration gets a position in the stream, which is returned. It applies to events at
        earlier positions. `which` is a result of before_seq, before_time, key_is, key_prefix or
        tag_is. After TimedOut the declaration may still be published.
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
        return await self._publish_instruction(COLLECT, value, timeout, waited_for)

    async def delete(self, *, timeout: Timeout = None) -> int:
        """Delete the stream in every region. This cannot be undone.

            await (await client.stream("orders.test")).delete()

        The deletion gets the last position of the stream, which is returned. All events before it
        become void, and nothing can be published after it. Publishers get StreamDeleted, and so do
        subscriptions of this stream (`Stream.subscribe`) once they have read the rest of it.
        Subscriptions by name or pattern (`Client.subscribe`) continue without the stream. The name
        can be used again for a new stream, which begins at position 1. A region that cannot be
        reached now keeps the old stream until it can be reached again.
        """
        self._client._check_verb(self._info, "delete", "delete()")
        waited_for = (
            f"the acknowledgement of delete() on {self.name!r}; the stream may still be deleted"
        )
        return await self._publish_instruction(CONFIG, encode_policy(End()), timeout, waited_for)

    async def change(self, *, schema: pa.Schema | str, timeout: Timeout = None) -> int | None:
        """Change the stream's schema: add fields to it, which may be null, at its end.

            await trades.change(schema="sym string not null, px float64, qty int64, venue string")

        `schema` is the whole new schema. The change is an event of the stream. It returns its
        position, or None if the stream has this schema already. Events before it have null in the
        new fields. Programs that do not know them go on publishing and reading. Fields cannot be
        removed, moved, renamed or given another type: then StreamConfigMismatch names the field.
        After TimedOut the schema may still be changed.
        """
        text = schema_text_of(schema)
        if not text:
            raise UsageError("change takes the whole new schema: schema=...")
        waited_for = f"the schema of {self.name!r} to be changed; it may still be changed"
        async with within(timeout, waited_for, maybe_taken=True):
            seq = await self._client._endpoint.change(self._current(), text)
        if (writer := writer_of(text)) is not None:
            self._outbox.take_schema(writer)
            self._client._endpoint.outbox(self._current())  # of Streams that are opened without it
        return seq

    async def _publish_instruction(
        self, kind: int, value: bytes, timeout: Timeout, waited_for: str
    ) -> int:
        """Publish an instruction (COLLECT or CONFIG) and return its position."""
        batch = Batch.of(self._info.stream_id, [value], kind=kind)
        async with within(timeout, waited_for, maybe_taken=True):
            in_flight, added = self._outbox.publish_batch(batch, len(value) + EVENT_OVERHEAD)
            await added
            assert in_flight.positions is not None
            return (await in_flight.positions)[0]

    # ------------------------------------------------------------ reading

    def subscribe(
        self,
        start: Start = "latest",
        *,
        stop: Stop | None = None,
        voids: bool = False,
        name: str | None = None,
        ack: Literal["auto", "manual"] = "auto",
        where: str | None = None,
        timeout: Timeout = None,
    ) -> Subscription:
        """Read the stream.

            async for event in stream.subscribe(start="earliest"): ...
            async for event in stream.subscribe(start="earliest", stop="latest"): ...  # ends

        `start` is "earliest", "latest" (the current end, fixed once `await sub.ready()` returns), a
        position, or a datetime with a time zone.

        `stop` says where the subscription ends; without it, the subscription does not end. "latest"
        is the current end, including all events acknowledged to this client. A position is the
        first one that is not read; the subscription waits until all positions before it exist.
        With a datetime, the events before that time are read.

        `where` is a filter, such as "sym == 'IBM' and qty > 100" (docs/filters.md). Only events
        that pass it are returned.

        With `voids`, ranges of void positions are returned, too. For `name`, `ack` and `timeout`
        see Subscription.
        """
        return self._client._subscribe(
            self.name, self._current(), start, voids, name, ack, where, stop, timeout
        )

    async def read(
        self,
        start: Start = "earliest",
        stop: Stop = "latest",
        *,
        voids: bool = False,
        where: str | None = None,
        timeout: Timeout = None,
    ) -> pa.Table:
        """The events from `start` up to `stop`, in one table with the columns of `batches()`.

            table = await stream.read()  # all current events
            table = await stream.read(start=seqs.first, stop=seqs.last + 1)

        `start`, `stop`, `voids` and `where` are those of `subscribe`. Raises UsageError if the
        table would be larger than `ClientOptions.read_bytes_max`, and EventsLost if events were
        lost.
        """
        if stop is None:
            raise UsageError('a read has an end: stop is "latest", a position or a datetime')
        from surecast.client.table import read_table

        async with (
            within(timeout, f"all events of {self.name!r} up to {stop!r}"),
            self.subscribe(start, stop=stop, voids=voids, where=where) as sub,
        ):
            schema = self._current().schema
            return await read_table(sub._buffer, read_schema(schema) if schema else None)


def schema_text_of(schema: pa.Schema | str | None) -> str:
    """The canonical text of a schema; "" if there is none (None, or "" as in StreamInfo)."""
    if schema is None or schema == "":
        return ""
    if isinstance(schema, str):
        return read_schema(schema).text
    import pyarrow as pa

    if not isinstance(schema, pa.Schema):
        raise UsageError(
            "schema= is a pyarrow.Schema, or text such as 'sym string not null, px float64', not "
            f"{schema!r:.60}"
        )
    return schema_text(schema)
