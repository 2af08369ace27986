"""What `subscribe` gives: an asynchronous iterator of events, or of Arrow batches."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any

from surecast.client.events import Event
from surecast.client.subscription_buffer import SubscriptionBuffer
from surecast.client.subscription_task import SubscriptionTask
from surecast.core.endpoint import Lost
from surecast.endpoint.forking import forked
from surecast.errors import EventsLost, NotSupported, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Subscription"]


class Subscription:
    """Events of one stream or several, in the order of each stream, without gaps or repetitions
    (of a delivery without positions: as they come).

        async for event in stream.subscribe(start="earliest"):
            print(event.seq, event.key, event.value)

    It begins to read when it is made, up to a bound. Leaving the loop keeps its place: another loop
    over the same object goes on behind. It ends with `close()`, with its `async with` block, or
    when the program lets go of it. One task at a time may iterate.

    Events that the stream's delivery could not bring come as one event of kind "lost", whatever
    `voids` says; reading goes on behind them.

    A *named* subscription (`name=`) keeps its place in the region. Asking for the next event
    acknowledges the one before; with `ack="manual"` only `ack` does. After a restart it goes on
    behind the last event acknowledged, so what was in hand at a crash comes again.
    """

    def __init__(self, task: SubscriptionTask) -> None:
        self._task = task
        self._buffer: SubscriptionBuffer = task.buffer
        weakref.finalize(self, task.forget).atexit = False

    def __repr__(self) -> str:
        spec = self._task.spec
        named = "" if spec.name is None else f" name={spec.name!r}"
        return f"<Subscription {spec.pattern!r}{named}>"

    # ------------------------------------------------------------ reading

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._named() if self._buffer.named else self._unnamed()

    async def __anext__(self) -> Event:
        """One event: `await anext(sub)`. A loop over the subscription is faster."""
        buffer = self._buffer
        while True:
            for event in buffer.rows:
                buffer.current_event = event
                if buffer.cursor is not None:
                    buffer.cursor.moved()
                return event
            if not await buffer.next_rows():
                raise StopAsyncIteration

    async def _unnamed(self) -> AsyncGenerator[Event, None]:
        """The fast path: while a batch lasts, an event costs no more than the step of a generator.

        Iterations share `rows`, so that a loop goes on where the one before was left.
        """
        buffer = self._buffer
        while True:
            for event in buffer.rows:
                yield event
            if not await buffer.next_rows():
                return

    async def _named(self) -> AsyncGenerator[Event, None]:
        buffer = self._buffer
        while True:
            for event in buffer.rows:
                buffer.current_event = event
                cursor = buffer.cursor
                if cursor is not None and not cursor.armed:
                    cursor.moved()
                yield event
            if not await buffer.next_rows():
                return

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Whole batches, without a copy: `pyarrow.RecordBatch` of stream, seq, key, value, tag and
        timestamp.

            async for batch in stream.subscribe(start=1).batches():
                total += pc.sum(pc.binary_length(batch.column("value"))).as_py()

        Positions that are void are not there; they show as steps in `seq`. Lost events raise
        EventsLost, with their `stream` and `range`; the next `batches()` goes on behind them.
        """
        if self._buffer.voids:
            raise NotSupported(
                "batches do not carry voids: iterate over events to get voids, or subscribe "
                "without voids=True; in Spark, includeVoids=true has both"
            )
        if length_hint(self._buffer.rows):
            raise UsageError(
                "this subscription is in the midst of a batch, event by event: read on like that, "
                "or subscribe once more for batches"
            )
        return self._batches()

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        from surecast.client.arrow import record_batch_of

        buffer = self._buffer
        while (found := await buffer.next_item()) is not None:
            progress, item = found
            if isinstance(item, Lost):
                raise EventsLost(progress.name, item.lo, item.hi, item.why)
            table = record_batch_of(item, progress.name)
            if table is not None:
                yield table

    async def ready(self) -> Subscription:
        """Wait until it is known where it begins: from here on, "latest" misses nothing.

        A subscription by pattern is ready when it knows the streams there are.
        """
        await self._buffer.ready()
        return self

    # ------------------------------------------------------------ acknowledging

    async def ack(self, item: Event | pa.RecordBatch) -> None:
        """All events of its stream up to this one (or this batch) are dealt with.

        Returns when that is on disk at every replica of the region.
        """
        buffer = self._buffer
        if buffer.forked:
            raise forked()
        if buffer.cursor is None:
            raise UsageError(
                "only a named subscription keeps its place: subscribe(..., name=...)"
                if self._task.spec.name is None
                else "nothing has been read yet: there is nothing to acknowledge"
            )
        stream, end = _place(item)
        progress = buffer.by_name.get(stream)
        if progress is None or end > buffer.handed(progress):
            buffer.cursor.check()  # a place that was lost is the better reason
            raise UsageError(f"{stream} up to {end - 1} was not read by {self!r}")
        buffer.acknowledge(progress, end)
        await buffer.cursor.stored_at_least({progress.stream: end})

    # ------------------------------------------------------------ ending

    async def close(self) -> None:
        """Read no more. A named subscription stores its place first."""
        await self._task.close()

    async def __aenter__(self) -> Subscription:
        return await self.ready()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _place(item: Any) -> tuple[str, int]:
    """The stream of an event or a batch of events, and the first position behind it."""
    if isinstance(item, Event):
        return item.stream, item.seq + 1
    try:
        return item.column("stream")[0].as_py(), item.column("seq")[-1].as_py() + 1
    except (AttributeError, KeyError, IndexError, TypeError):
        raise UsageError(
            f"ack takes an event or a batch of the subscription, not {item!r}"
        ) from None
