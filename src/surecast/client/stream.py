"""A stream as its publishers and readers hold it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from surecast.client.events import Seqs
from surecast.client.publisher_id import publisher_id
from surecast.client.subscription import Subscription
from surecast.client.subscription_task import Start
from surecast.columns.batch import COLLECT, NO_PUBLISHER, Batch
from surecast.columns.rules import Collect, KeepAll, Policy, Predicate, TagIs, encode_collect
from surecast.core.streams import StreamInfo
from surecast.endpoint.chunks import Chunk, chunks_of
from surecast.endpoint.endpoint import send, send_all
from surecast.endpoint.publishers import EVENT_OVERHEAD, Outbox
from surecast.errors import UsageError

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from surecast.client.connection import Client

__all__ = ["Stream"]


class Stream:
    """An open stream. `await client.stream(name)` makes one; as many as you like may be held.

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
        """What the stream keeps, as fixed when it was created."""
        return self._info.retention

    @property
    def delivery(self) -> str:
        """How its events reach those who read them, as fixed when it was created."""
        return self._info.delivery

    @property
    def stream_id(self) -> bytes:
        """16 random bytes that are this stream's own, whatever its name."""
        return self._info.stream_id

    @property
    def owner(self) -> str:
        """The region that gives its events their positions."""
        return self._info.owner

    def supports(self, verb: str) -> bool:
        """Whether its delivery offers `verb`: "pattern", "name", "time", "retain", "collect" or
        "publisher" (named publishers)."""
        return self._client._supports(self._info, verb)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    # ------------------------------------------------------------ publishing

    async def publish(
        self, value: bytes, *, key: bytes | None = None, tag: bytes | None = None
    ) -> int:
        """Publish an event and return its position, once it is on disk at every replica.

            seq = await stream.publish(b"on", key=b"lamp:7")

        Waits while too much is unacknowledged. If it is cancelled the event may still be published;
        retries, reconnects and failovers never publish it twice.
        """
        return await self._outbox.publish(value, key, tag)

    def publish_soon(
        self, value: bytes, *, key: bytes | None = None, tag: bytes | None = None
    ) -> None:
        """Publish in the background, in batches; `await client.flush()` waits for all of it.

            for row in rows:
                stream.publish_soon(row)
            await client.flush()

        Raises QueueFull, and takes nothing, while too much is unacknowledged. If it fails later,
        the next `flush()` says so.
        """
        self._outbox.publish_soon(value, key, tag)

    async def publish_many(
        self,
        values: Iterable[bytes] | pa.Table | pa.RecordBatch,
        *,
        keys: Iterable[bytes | None] | None = None,
        tags: Iterable[bytes | None] | None = None,
    ) -> Seqs:
        """Publish many events in order and return their positions, once all are on disk.

            seqs = await stream.publish_many([b"a", b"b"], keys=[b"k1", b"k2"])
            seqs = await stream.publish_many(table)  # columns value and, if you like, key and tag

        They leave in batches; other publishers' events may come to stand between two of them, which
        is why the answer has runs. If some fail, the error tells which did not (`acknowledged`).
        """
        chunks = chunks_of(self._info.stream_id, values, keys, tags, self._outbox.options)
        return Seqs(await send_all(self._outbox, chunks))

    async def publish_batch(self, batch: Batch) -> asyncio.Future[tuple[int, int]]:
        """Publish a batch as it is; returns when there is room for it.

        The future gets its positions, from and to, when it is on disk (0 and 0: a named publisher's
        that was there before, its place forgotten). For connectors that make their own batches.
        """
        return await send(self._outbox, Chunk(batch, batch.nbytes))

    def named(self, publisher: str | bytes | UUID, pub_no: int) -> Stream:
        """This stream for a publisher that keeps its name and its numbers by itself.

            line = stream.named("invoices", next_no)

        `publisher` is any string, a UUID or any 16 bytes; equal names are the same publisher, in
        whichever process. Its events take the numbers from `pub_no` on. The stream's owner does not
        publish an event again whose number it has taken before from this publisher. So a program
        that repeats its batches from any number on, identical and in order, gets each of them
        published once. After a failure nothing more is taken: begin again from a known number when
        all batches before it have ended. The owner never forgets a named publisher.
        """
        return self.published_as(publisher_id(publisher), pub_no)

    def published_as(self, publisher: bytes, pub_no: int) -> Stream:
        """`named` for a connector that makes its own id on the wire (protocols/chain/dedup.py).

        An id that begins with the time it was made, in ns, is forgotten when it was not used for
        `chain.publisher_ttl_ns`.
        """
        self._client._check_verb(self._info, "publisher", "a named publisher")
        if len(publisher) != 16 or publisher == NO_PUBLISHER:
            raise UsageError("the id of a publisher is 16 bytes, not all zero")
        if pub_no < 1:
            raise UsageError(f"the numbers of a publisher begin at 1, not {pub_no}")
        outbox = self._client._named_outbox(self._info, publisher, pub_no)
        return Stream(self._client, self._info, outbox)

    async def collect(self, which: Predicate) -> int:
        """Declare events obsolete: from here on they are void, in every region.

            await stream.collect(surecast.before_seq(10_000))

        The declaration takes a position in the stream itself, which is returned, and reaches what
        stands before it. See before_seq, before_time, key_is, key_prefix, tag_is.
        """
        self._client._check_verb(self._info, "collect", "collect()")
        if not isinstance(which, Predicate):
            raise UsageError(
                "collect takes before_seq(...), before_time(...), key_is(...), key_prefix(...) or "
                f"tag_is(...), not {which!r}"
            )
        if isinstance(which, TagIs) and not isinstance(self.retain, KeepAll):
            raise UsageError(f"tag_is needs a stream that keeps all events; {self!r} does not")
        value = encode_collect(Collect(which))
        batch = Batch.of(self._info.stream_id, [value], kind=COLLECT)
        sent, placed = self._outbox.publish_batch(batch, len(value) + EVENT_OVERHEAD)
        await placed
        assert sent.whole is not None
        return (await sent.whole)[0]

    # ------------------------------------------------------------ reading

    def subscribe(
        self,
        start: Start = "latest",
        *,
        voids: bool = False,
        name: str | None = None,
        ack: Literal["auto", "manual"] = "auto",
        where: Any = None,
    ) -> Subscription:
        """Read the stream.

            async for event in stream.subscribe(start="earliest"): ...

        `start`: "earliest", "latest" (the end at this moment: `await sub.ready()` to be sure), a
        position or a datetime with a time zone. `voids`: also get ranges that hold no events.
        `name`, `ack`: see Subscription.
        """
        return self._client._subscribe(self.name, self._info, start, voids, name, ack, where)
