"""The same surface without await, for scripts, notebooks and threads.

A thread of its own runs the event loop and the ordinary client. Calls are handed over to it and
waited for. Iteration hands over whole batches, never single events: inside a batch a loop is as
fast as over a list. `publish_soon` only appends to a list, which the other thread empties.

Methods may be called from several threads; one at a time may iterate over a subscription. A process
that forks keeps its clients; the child has to connect by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from surecast import client as asynchronous
from surecast.client.connection import Client as AsyncClient
from surecast.client.events import Event, Seqs
from surecast.client.publisher_id import publisher_id
from surecast.client.stream import Stream as AsyncStream
from surecast.client.subscription import Subscription as AsyncSubscription
from surecast.client.subscription_task import Start
from surecast.columns.batch import Batch
from surecast.columns.rules import Policy, Predicate
from surecast.core.streams import StreamInfo
from surecast.core.types import LogId
from surecast.endpoint.forking import forked, watch
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.publishers import Outbox
from surecast.errors import Closed

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

__all__ = ["Client", "Stream", "Subscription", "connect", "local"]

T = TypeVar("T")

ENDS_S = 2.0  # for the loop to end; the look-up of a name cannot be called off


def connect(
    url: str = "surecast://127.0.0.1:7400",
    *,
    token: str = "",
    mesh: bool = False,
    options: ClientOptions | None = None,
) -> Client:
    """Connect to the region at `url`; see `surecast.connect`.

    with surecast.sync.connect() as client: ...
    """
    return Client(asynchronous.connect(url, token=token, mesh=mesh, options=options))


def local(
    data_dir: str | Path | None = None,
    *,
    mesh: bool = False,
    options: ClientOptions | None = None,
    start: str = "ask",
) -> Client:
    """A client with a region of its own, in this process; see `surecast.local`."""
    return Client(asynchronous.local(data_dir, mesh=mesh, options=options, start=start))


class Loop:
    """An event loop in a thread."""

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.closed = self.forked = False
        begun = threading.Event()
        # A daemon: a program that forgets to close its client can end all the same.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live(begun)), name="surecast", daemon=True
        )
        self._thread.start()
        begun.wait()
        watch(self)

    async def _live(self, begun: threading.Event) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        begun.set()
        await self._over.wait()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done there, and wait."""
        if self.forked:
            work.close()
            raise forked()
        if self.closed:
            work.close()
            raise Closed("this client is closed: make another with surecast.sync.connect(...)")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C here must not leave it waiting there
            raise

    def _on_fork(self) -> None:
        self.forked = True

    def stop(self) -> None:
        if not self.closed and not self.forked:
            self.closed = True
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join(ENDS_S)


class Client:
    """See `surecast.Client`; connected when it is made, closed by `close()` or its `with` block."""

    def __init__(self, inner: AsyncClient) -> None:
        self._inner = inner
        self._loop = Loop()
        self._lines: dict[Outbox, Line] = {}
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
        if self._loop.forked:
            return  # the parent closes it
        try:
            self._loop.call(self._inner.__aexit__(kind, problem, trace))
        finally:
            self._loop.stop()

    def close(self) -> None:
        """See `surecast.Client.close`."""
        if not self._loop.closed:
            self.__exit__(None, None, None)

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
        retain: Policy | None = None,
        delivery: str = "",
        options: Mapping[str, str] | None = None,
        schema: Any = None,
    ) -> Stream:
        """Open a stream, or create it; see `surecast.Client.stream`."""
        inner = self._loop.call(
            self._inner.stream(
                name, retain=retain, delivery=delivery, options=options, schema=schema
            )
        )
        line = self._lines.setdefault(inner._outbox, Line(inner._outbox, self._loop))
        return Stream(inner, line, self._loop)

    def streams(self, pattern: str = ">") -> list[StreamInfo]:
        return self._loop.call(self._inner.streams(pattern))

    def ends(self, pattern: str = ">") -> list[tuple[StreamInfo, int]]:
        """The streams that match, and where they end; see `surecast.Client.ends`."""
        return self._loop.call(self._inner.ends(pattern))

    def locate(self, stream: LogId, time_ns: int) -> int:
        """The first position at or after a time; see `surecast.Client.locate`."""
        return self._loop.call(self._inner.locate(stream, time_ns))

    def flush(self) -> None:
        """Wait until all that was published is acknowledged; see `surecast.Client.flush`."""
        self._loop.call(self._inner.flush())

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start = "latest",
        voids: bool = False,
        name: str | None = None,
        ack: Literal["auto", "manual"] = "auto",
        where: Any = None,
    ) -> Subscription:
        """Read all streams that match; see `surecast.Client.subscribe`."""

        async def begin() -> AsyncSubscription:
            return self._inner.subscribe(
                pattern, start=start, voids=voids, name=name, ack=ack, where=where
            )

        return Subscription(self._loop.call(begin()), self._loop)


class Line:
    """Events of `publish_soon` on their way to the other thread, for one stream."""

    def __init__(self, outbox: Outbox, loop: Loop) -> None:
        self._outbox = outbox
        self._loop = loop.loop
        self._lock = threading.Lock()
        self._events: list[tuple[bytes, bytes | None, bytes | None, int]] = []
        self._nbytes = 0

    def add(self, value: bytes, key: bytes | None, tag: bytes | None) -> None:
        outbox = self._outbox
        size = outbox.size_of(value, key, tag)
        with self._lock:
            nbytes = outbox.nbytes + self._nbytes + size
            if outbox.is_blocked or nbytes > outbox.options.outbox_bytes_max:
                raise outbox.full()
            self._events.append((value, key, tag, size))
            self._nbytes += size
            if len(self._events) > 1:
                return  # whoever came first has called
        self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            events, self._events = self._events, []
            self._nbytes = 0
            for event in events:
                self._outbox.accept(*event)


class Stream:
    """See `surecast.Stream`."""

    def __init__(self, inner: AsyncStream, line: Line, loop: Loop) -> None:
        self._inner = inner
        self._line = line
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
    def stream_id(self) -> bytes:
        return self._inner.stream_id

    @property
    def owner(self) -> str:
        return self._inner.owner

    def supports(self, verb: str) -> bool:
        return self._inner.supports(verb)

    def __repr__(self) -> str:
        return repr(self._inner)

    def publish(self, value: bytes, *, key: bytes | None = None, tag: bytes | None = None) -> int:
        """Publish an event and return its position; see `surecast.Stream.publish`."""
        return self._loop.call(self._inner.publish(value, key=key, tag=tag))

    def publish_soon(
        self, value: bytes, *, key: bytes | None = None, tag: bytes | None = None
    ) -> None:
        """Publish in the background; see `surecast.Stream.publish_soon`."""
        self._line.add(value, key, tag)

    def publish_many(
        self,
        values: Iterable[bytes] | pa.Table | pa.RecordBatch,
        *,
        keys: Iterable[bytes | None] | None = None,
        tags: Iterable[bytes | None] | None = None,
    ) -> Seqs:
        """Publish many events and return their positions; see `surecast.Stream.publish_many`."""
        return self._loop.call(self._inner.publish_many(values, keys=keys, tags=tags))

    def publish_batch(self, batch: Batch) -> tuple[int, int]:
        """Publish a batch as it is, and wait; see `surecast.Stream.publish_batch`."""

        async def work() -> tuple[int, int]:
            return await (await self._inner.publish_batch(batch))

        return self._loop.call(work())

    def named(self, publisher: str | bytes | UUID, pub_no: int) -> Stream:
        """This stream for a publisher that numbers by itself; see `surecast.Stream.named`."""
        return self.published_as(publisher_id(publisher), pub_no)

    def published_as(self, publisher: bytes, pub_no: int) -> Stream:
        """`named` by the id on the wire; see `surecast.Stream.published_as`."""

        async def work() -> AsyncStream:
            return self._inner.published_as(publisher, pub_no)

        inner = self._loop.call(work())
        return Stream(inner, Line(inner._outbox, self._loop), self._loop)

    def collect(self, which: Predicate) -> int:
        """Declare events obsolete; see `surecast.Stream.collect`."""
        return self._loop.call(self._inner.collect(which))

    def subscribe(
        self,
        start: Start = "latest",
        *,
        voids: bool = False,
        name: str | None = None,
        ack: Literal["auto", "manual"] = "auto",
        where: Any = None,
    ) -> Subscription:
        """Read the stream; see `surecast.Stream.subscribe`."""

        async def begin() -> AsyncSubscription:
            return self._inner.subscribe(start, voids=voids, name=name, ack=ack, where=where)

        return Subscription(self._loop.call(begin()), self._loop)


class Subscription:
    """See `surecast.Subscription`: a plain iterator here."""

    def __init__(self, inner: AsyncSubscription, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)

    def __iter__(self) -> Iterator[Event]:
        buffer = self._inner._buffer
        while True:
            if buffer.named:
                for event in buffer.rows:
                    buffer.current_event = event
                    if buffer.cursor is not None and not buffer.cursor.armed:
                        buffer.cursor.moved_elsewhere()
                    yield event
            else:
                yield from buffer.rows
            if not self._loop.call(buffer.next_rows()):
                return

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Whole batches; see `surecast.Subscription.batches`."""
        batches = self._inner.batches()

        async def fetch() -> pa.RecordBatch | None:
            return await anext(batches, None)

        while (found := self._loop.call(fetch())) is not None:
            yield found

    def ready(self) -> Subscription:
        self._loop.call(self._inner.ready())
        return self

    def ack(self, item: Event | pa.RecordBatch) -> None:
        """All events up to this one are dealt with; see `surecast.Subscription.ack`."""
        self._loop.call(self._inner.ack(item))

    def close(self) -> None:
        if not self._loop.forked:
            self._loop.call(self._inner.close())

    def __enter__(self) -> Subscription:
        return self.ready()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
