"""The client API without await, for scripts, notebooks and threads (`surecast.sync`).

The event loop and the asynchronous client run in a separate thread. A call of a method here has its
work done in that thread and waits for the result. A loop over a subscription takes whole batches
from that thread, never single events, so inside a batch it is as fast as a loop over a list.
`publish_soon` only appends to a list, which the other thread empties.

Methods may be called from several threads, but only one thread at a time may iterate over a
subscription. A process may fork and continue to use its clients; the child has to create new ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from surecast import client as asynchronous
from surecast.client.connection import Client as AsyncClient
from surecast.client.events import Event, Seqs
from surecast.client.publisher_id import publisher_id
from surecast.client.stream import Stream as AsyncStream
from surecast.client.subscription import Subscription as AsyncSubscription
from surecast.client.subscription_buffer import IN_TRANSIT
from surecast.client.subscription_task import Start, Stop, caller_unless_failing
from surecast.client.timeouts import Timeout, seconds_of, within
from surecast.columns.batch import Batch
from surecast.columns.rules import Policy, Predicate
from surecast.core.status import SubscriptionInfo
from surecast.core.streams import StreamInfo
from surecast.endpoint.forking import call_on_fork, forked
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.prepared import ArrowStream
from surecast.endpoint.publishers import NewEvent, Outbox
from surecast.errors import Closed

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

__all__ = ["Client", "Stream", "Subscription", "connect", "local"]

T = TypeVar("T")

# How many seconds to wait until the event loop's thread has ended. It may need longer, because a
# host name lookup cannot be cancelled; then it ends later.
ENDS_S = 2.0


def connect(
    url: str = "surecast://127.0.0.1:7400",
    *,
    token: str = "",
    mesh: bool = False,
    options: ClientOptions | None = None,
    timeout: Timeout = None,
) -> Client:
    """Connect to the region at `url`; see `surecast.connect`.

    with surecast.sync.connect() as client: ...
    """
    return Client(
        asynchronous.connect(url, token=token, mesh=mesh, options=options, timeout=timeout)
    )


def local(
    data_dir: str | Path | None = None,
    *,
    mesh: bool = False,
    options: ClientOptions | None = None,
    start: Literal["ask", "trust"] = "ask",
    timeout: Timeout = None,
) -> Client:
    """A client with a region of its own, in this process; see `surecast.local`."""
    return Client(
        asynchronous.local(data_dir, mesh=mesh, options=options, start=start, timeout=timeout)
    )


class Loop:
    """An event loop in a thread of its own."""

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.closed = self.forked = False
        begun = threading.Event()  # set when `loop` is set
        # A daemon thread, so that the program can end without closing its client.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(begun)), name="surecast", daemon=True
        )
        self._thread.start()
        begun.wait()
        call_on_fork(self)

    async def _run(self, begun: threading.Event) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        begun.set()
        await self._over.wait()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop and wait for its result."""
        if self.forked:
            work.close()
            raise forked()
        if self.closed:
            work.close()
            raise Closed("this client is closed: create another with surecast.sync.connect(...)")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # after Ctrl-C in this thread, the work must not continue in the loop
            raise

    def _on_fork(self) -> None:
        self.forked = True

    def stop(self) -> None:
        """End the event loop and its thread."""
        if not self.closed and not self.forked:
            self.closed = True
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join(ENDS_S)


class Client:
    """See `surecast.Client`. The constructor connects; `close()` or the `with` block closes it."""

    def __init__(self, inner: AsyncClient) -> None:
        self._inner = inner
        self._loop = Loop()
        self._soon_buffers: dict[Outbox, SoonBuffer] = {}  # one per opened stream
        try:
            self._loop.call(inner.open())
        except BaseException:
            self._loop.stop()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(problem, threading.current_thread() if problem is None else None)

    def _leave(self, problem: BaseException | None, by: object) -> None:
        if self._loop.forked:
            return  # the parent process closes the client
        try:
            self._loop.call(self._inner._leave(problem, by))
        finally:
            self._loop.stop()

    def close(self, *, timeout: Timeout = None) -> None:
        """See `surecast.Client.close`."""
        seconds = seconds_of(timeout)  # raises before anything is closed
        if self._loop.closed or self._loop.forked:
            return
        try:
            self._loop.call(
                self._inner._close(caller_unless_failing(threading.current_thread()), seconds)
            )
        finally:
            self._loop.stop()

    @property
    def region(self) -> str:
        return self._inner.region

    @property
    def servers(self) -> dict[str, tuple[str, int]]:
        return self._inner.servers

    @property
    def http(self) -> dict[str, str]:
        return self._inner.http

    def stream(
        self,
        name: str,
        *,
        retain: Policy | str | None = None,
        delivery: str = "",
        options: Mapping[str, str] | None = None,
        schema: pa.Schema | str | None = None,
        create: bool = True,
        timeout: Timeout = None,
    ) -> Stream:
        """Open a stream, or create it; see `surecast.Client.stream`."""
        inner = self._loop.call(
            self._inner.stream(
                name,
                retain=retain,
                delivery=delivery,
                options=options,
                schema=schema,
                create=create,
                timeout=timeout,
            )
        )
        buffer = self._soon_buffers.setdefault(inner._outbox, SoonBuffer(inner._outbox, self._loop))
        return Stream(inner, buffer, self._loop)

    def streams(self, pattern: str = ">", *, timeout: Timeout = None) -> list[StreamInfo]:
        return self._loop.call(self._inner.streams(pattern, timeout=timeout))

    def ends(self, pattern: str = ">", *, timeout: Timeout = None) -> list[tuple[StreamInfo, int]]:
        """The streams that match, and their ends; see `surecast.Client.ends`."""
        return self._loop.call(self._inner.ends(pattern, timeout=timeout))

    def locate(self, stream_id: bytes, time: datetime, *, timeout: Timeout = None) -> int:
        """The first position at or after a time; see `surecast.Client.locate`."""
        return self._loop.call(self._inner.locate(stream_id, time, timeout=timeout))

    def flush(self, *, timeout: Timeout = None) -> None:
        """Wait until all published events are acknowledged; see `surecast.Client.flush`."""
        self._loop.call(self._inner.flush(timeout=timeout))

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start = "latest",
        stop: Stop | None = None,
        voids: bool = False,
        name: str | None = None,
        ack: Literal["auto", "manual"] = "auto",
        where: str | None = None,
        timeout: Timeout = None,
    ) -> Subscription:
        """Read all streams that match; see `surecast.Client.subscribe`."""

        async def begin() -> AsyncSubscription:
            return self._inner.subscribe(
                pattern,
                start=start,
                stop=stop,
                voids=voids,
                name=name,
                ack=ack,
                where=where,
                timeout=timeout,
            )

        return Subscription(self._loop.call(begin()), self._loop)

    def subscriptions(self, *, timeout: Timeout = None) -> list[SubscriptionInfo]:
        """The named subscriptions of the region; see `surecast.Client.subscriptions`."""
        return self._loop.call(self._inner.subscriptions(timeout=timeout))

    def reset_subscription(
        self,
        name: str,
        start: Start,
        *,
        streams: str | Iterable[str] | None = None,
        force: bool = False,
        timeout: Timeout = None,
    ) -> dict[str, int]:
        """Move a named subscription; see `surecast.Client.reset_subscription`."""
        return self._loop.call(
            self._inner.reset_subscription(
                name, start, streams=streams, force=force, timeout=timeout
            )
        )

    def delete_subscription(
        self, name: str, *, force: bool = False, timeout: Timeout = None
    ) -> None:
        """Delete a named subscription; see `surecast.Client.delete_subscription`."""
        self._loop.call(self._inner.delete_subscription(name, force=force, timeout=timeout))


class SoonBuffer:
    """Events of `publish_soon` for one stream, queued until the event loop's thread takes them."""

    def __init__(self, outbox: Outbox, loop: Loop) -> None:
        self._outbox = outbox
        self._loop = loop.loop
        self._lock = threading.Lock()
        self._events: list[NewEvent] = []
        self._nbytes = 0  # the sum of their sizes

    def add(self, value: Any, key: bytes | None, tag: bytes | None) -> None:
        """Queue an event, or raise QueueFull if the outbox has no room for it."""
        outbox = self._outbox
        event = outbox.checked(value, key, tag)
        with self._lock:
            nbytes = outbox.nbytes + self._nbytes + event.size
            if outbox.is_blocked or nbytes > outbox.options.outbox_bytes_max:
                raise outbox.full()
            self._events.append(event)
            self._nbytes += event.size
            if len(self._events) > 1:
                return  # `_hand_over` was scheduled with the first event
        self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        """Give the queued events to the outbox. Runs in the event loop's thread."""
        with self._lock:
            events, self._events = self._events, []
            self._nbytes = 0
            for event in events:
                self._outbox.accept(event)


class Stream:
    """See `surecast.Stream`."""

    def __init__(self, inner: AsyncStream, buffer: SoonBuffer, loop: Loop) -> None:
        self._inner = inner
        self._soon_buffer = buffer
        self._loop = loop

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def retain(self) -> Policy:
        return self._inner.retain

    @property
    def delivery(self) -> str:
        return self._inner.delivery

    @property
    def schema(self) -> pa.Schema | None:
        return self._inner.schema

    @property
    def stream_id(self) -> bytes:
        return self._inner.stream_id

    @property
    def owner(self) -> str:
        return self._inner.owner

    def supports(self, verb: str) -> bool:
        return self._inner.supports(verb)

    def __repr__(self) -> str:
        return repr(self._inner)

    def publish(
        self,
        value: bytes | Mapping[str, Any],
        *,
        key: bytes | None = None,
        tag: bytes | None = None,
        timeout: Timeout = None,
    ) -> int:
        """Publish an event and return its position; see `surecast.Stream.publish`."""
        return self._loop.call(self._inner.publish(value, key=key, tag=tag, timeout=timeout))

    def publish_soon(
        self,
        value: bytes | Mapping[str, Any],
        *,
        key: bytes | None = None,
        tag: bytes | None = None,
    ) -> None:
        """Publish in the background; see `surecast.Stream.publish_soon`."""
        self._soon_buffer.add(value, key, tag)

    def publish_many(
        self,
        values: Iterable[bytes] | Iterable[Mapping[str, Any]] | ArrowStream,
        *,
        keys: Iterable[bytes | None] | None = None,
        tags: Iterable[bytes | None] | None = None,
        timeout: Timeout = None,
    ) -> Seqs:
        """Publish many events and return their positions; see `surecast.Stream.publish_many`."""
        return self._loop.call(
            self._inner.publish_many(values, keys=keys, tags=tags, timeout=timeout)
        )

    def publish_batch(self, batch: Batch, *, timeout: Timeout = None) -> tuple[int, int]:
        """Publish a batch unchanged; returns its first position and its end when it is on disk. See
        `surecast.Stream.publish_batch`."""
        waited_for = (
            f"the acknowledgement of a batch of {self.name!r}; the batch may still be published"
        )

        async def work() -> tuple[int, int]:
            async with within(timeout, waited_for, maybe_taken=True):
                return await (await self._inner.publish_batch(batch))

        return self._loop.call(work())

    def named(self, publisher: str | bytes | UUID, pub_no: int) -> Stream:
        """This stream for a publisher with its own numbers; see `surecast.Stream.named`."""
        return self.published_as(publisher_id(publisher), pub_no)

    def published_as(self, publisher: bytes, pub_no: int) -> Stream:
        """`named` with the 16-byte id; see `surecast.Stream.published_as`."""

        async def work() -> AsyncStream:
            return self._inner.published_as(publisher, pub_no)

        inner = self._loop.call(work())
        return Stream(inner, SoonBuffer(inner._outbox, self._loop), self._loop)

    def change(self, *, schema: pa.Schema | str, timeout: Timeout = None) -> int | None:
        """Add fields to the stream's schema; see `surecast.Stream.change`."""
        return self._loop.call(self._inner.change(schema=schema, timeout=timeout))

    def collect(self, which: Predicate, *, timeout: Timeout = None) -> int:
        """Declare events obsolete; see `surecast.Stream.collect`."""
        return self._loop.call(self._inner.collect(which, timeout=timeout))

    def delete(self, *, timeout: Timeout = None) -> int:
        """Delete the stream; see `surecast.Stream.delete`."""
        return self._loop.call(self._inner.delete(timeout=timeout))

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
        """Read the stream; see `surecast.Stream.subscribe`."""

        async def begin() -> AsyncSubscription:
            return self._inner.subscribe(
                start, stop=stop, voids=voids, name=name, ack=ack, where=where, timeout=timeout
            )

        return Subscription(self._loop.call(begin()), self._loop)

    def read(
        self,
        start: Start = "earliest",
        stop: Stop = "latest",
        *,
        voids: bool = False,
        where: str | None = None,
        timeout: Timeout = None,
    ) -> pa.Table:
        """The events from `start` up to `stop` as a table; see `surecast.Stream.read`."""
        return self._loop.call(
            self._inner.read(start, stop, voids=voids, where=where, timeout=timeout)
        )


class Subscription:
    """See `surecast.Subscription`; here it is a plain iterator.

    event = next(sub)  # waits for the next event
    event = next(sub, None)  # None at the end: at the stop, or after close()
    event = sub.next(timeout=0.5)  # TimedOut if no event arrives in that time
    """

    def __init__(self, inner: AsyncSubscription, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)

    def __iter__(self) -> Iterator[Event]:
        """Iterates over events. Only a new batch needs a call to the other thread."""
        buffer, timeout_s = self._inner._buffer, self._inner._timeout_s
        # The rest of the current batch goes to this thread, also if another thread has begun it.
        buffer.consumer = threading.current_thread()
        while True:
            if buffer.named:
                for event in buffer.rows:
                    self._hand_out(event)
                    yield event
            else:
                yield from buffer.rows
            if not self._take(lambda: buffer.next_rows(timeout_s)):
                return

    def _take(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work`, which takes items out of the buffer, in the event loop's thread. After that,
        this thread is the consumer of the items."""
        buffer = self._inner._buffer

        async def take() -> T:
            taken = await work()
            # Ctrl-C may now end the wait of the user's thread, which then never gets the item. So
            # that thread is not the consumer of the item yet.
            buffer.consumer = IN_TRANSIT
            return taken

        taken = self._loop.call(take())
        buffer.consumer = threading.current_thread()
        return taken

    def __next__(self) -> Event:
        return self._next(self._inner._timeout_s)

    def next(self, *, timeout: Timeout = None) -> Event:
        """The next event; raises StopIteration at the end. See `surecast.Subscription.next`."""
        seconds = seconds_of(timeout)
        return self._next(self._inner._timeout_s if seconds is None else seconds)

    def _next(self, timeout_s: float | None) -> Event:
        buffer = self._inner._buffer
        while True:
            for event in buffer.rows:
                if buffer.named:
                    buffer.consumer = threading.current_thread()
                    self._hand_out(event)
                return event
            if not self._take(lambda: buffer.next_rows(timeout_s)):
                raise StopIteration

    def _hand_out(self, event: Event) -> None:
        """Note which event of a named subscription the user gets now. All events before it count as
        processed."""
        buffer = self._inner._buffer
        buffer.current_event = event
        if buffer.cursor is not None and not buffer.cursor.armed:
            buffer.cursor.moved_elsewhere()

    def batches(self, *, voids: bool | None = None) -> Iterator[pa.RecordBatch]:
        """Whole batches; see `surecast.Subscription.batches`."""
        batches = self._inner.batches(voids=voids)

        async def fetch() -> pa.RecordBatch | None:
            return await anext(batches, None)

        while (batch := self._take(fetch)) is not None:
            yield batch

    def ready(self, *, timeout: Timeout = None) -> Subscription:
        self._loop.call(self._inner.ready(timeout=timeout))
        return self

    def change(self, *, where: str | None, timeout: Timeout = None) -> dict[str, int]:
        """Replace the filter; see `surecast.Subscription.change`."""
        return self._loop.call(self._inner.change(where=where, timeout=timeout))

    @property
    def where(self) -> str | None:
        return self._inner.where

    @property
    def matched(self) -> int:
        return self._inner.matched

    @property
    def filtered(self) -> int:
        return self._inner.filtered

    def ack(self, item: Event | pa.RecordBatch, *, timeout: Timeout = None) -> None:
        """Acknowledge this event and all before it; see `surecast.Subscription.ack`."""
        self._loop.call(self._inner.ack(item, timeout=timeout))

    def close(self, *, timeout: Timeout = None) -> None:
        """End the subscription; see `surecast.Subscription.close`. If another thread got the last
        event, that event is not acknowledged."""
        self._close(caller_unless_failing(threading.current_thread()), timeout)

    def _close(self, by: object, timeout: Timeout = None) -> None:
        if not self._loop.forked:
            self._loop.call(self._inner._close(by, timeout))

    def __enter__(self) -> Subscription:
        return self.ready()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(threading.current_thread() if problem is None else None)
