"""Subscription, the result of `subscribe`: an asynchronous iterator of events or Arrow batches.

`SubscriptionTask` finds the streams and follows them in the background, and `SubscriptionBuffer`
holds the received batches. This file has the part that users call.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from surecast.client.events import Event
from surecast.client.rules import check_position, where_text
from surecast.client.subscription_buffer import SubscriptionBuffer
from surecast.client.subscription_task import SubscriptionTask, caller_unless_failing
from surecast.client.timeouts import Timeout, deadline_of, seconds_of, within
from surecast.core.endpoint import Lost
from surecast.endpoint.forking import forked
from surecast.errors import EventsLost, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Subscription"]


# The metadata of an Arrow batch has the id of its stream under this key, for `ack`.
_STREAM_ID: Final = b"surecast.stream_id"


class Subscription:
    """Events of one stream or several. The events of each stream are in order, without gaps or
    repetitions. (A stream whose delivery has no positions yields its events as they arrive.)

        async for event in stream.subscribe(start="earliest"):
            print(event.seq, event.key, event.value)

    A subscription begins to receive events when it is created. It buffers up to
    `ClientOptions.buffer_bytes_max` bytes of them. If the program leaves a loop over it, another
    loop over the same object continues after the last event of the first. The subscription ends
    with `close()`, with its `async with` block, or when the program drops the object (no variable
    refers to it any more). Only one task at a time may iterate.

    With a `stop` the loop ends when every position below the stop was read or skipped as void.
    With a `timeout`, a step of a loop over events or batches raises TimedOut if it takes longer.
    No event is lost then: another loop continues at the same event.

    If the stream's delivery could not deliver some events, the loop yields one event of kind "lost"
    for them, with or without `voids`, and continues after them.

    With a filter (`where=`), only the events that pass it are read; the others count as void with
    the reason "filtered".

    A *named* subscription (`name=`) keeps its position in the region. Requesting the next event
    acknowledges the previous one, and so does a clean exit: `close()`, or the end of the `async
    with` block of the subscription or of the client. If an exception ends the block, nothing more
    is acknowledged. With `ack="manual"` only `ack` acknowledges. After a restart the subscription
    continues after the last acknowledged event, so events that were being processed at a crash are
    delivered again. If it has a `stop`, its position is stored before the loop ends.
    """

    def __init__(self, task: SubscriptionTask, timeout_s: float | None = None) -> None:
        self._task = task
        self._timeout_s = timeout_s  # of each step of an iteration
        self._buffer: SubscriptionBuffer = task.buffer
        # Ends the subscription when this object is garbage-collected, but not at interpreter exit.
        weakref.finalize(self, task.forget).atexit = False

    def __repr__(self) -> str:
        spec = self._task.spec
        named = "" if spec.name is None else f" name={spec.name!r}"
        where = f" where={self._task.where!r}" if self._task.where else ""
        return f"<Subscription {spec.pattern!r}{named}{where}>"

    # ------------------------------------------------------------ reading

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._named() if self._buffer.named else self._unnamed()

    async def __anext__(self) -> Event:
        """The next event: `await anext(sub)`. A loop over the subscription is faster."""
        return await self._next(self._timeout_s)

    async def next(self, *, timeout: Timeout = None) -> Event:
        """The next event, as by `await anext(sub)`; raises StopAsyncIteration at the end.

            event = await sub.next(timeout=0.5)  # TimedOut if there is none; no event is lost

        The default of `timeout` is the `timeout` of the subscription.
        """
        seconds = seconds_of(timeout)
        return await self._next(self._timeout_s if seconds is None else seconds)

    async def _next(self, timeout_s: float | None) -> Event:
        buffer = self._buffer
        while True:
            for event in buffer.rows:  # an iterator: takes only the next event of the batch
                buffer.current_event = event
                if buffer.cursor is not None:
                    buffer.consumer = asyncio.current_task()
                    buffer.cursor.moved()
                return event
            if not await buffer.next_rows(timeout_s):
                raise StopAsyncIteration

    async def _unnamed(self) -> AsyncGenerator[Event, None]:
        """Iterates over a subscription without a name. Within a batch, an event costs only one step
        of a generator.

        All iterations share the iterator `buffer.rows`, so a loop continues where the previous one
        was left.
        """
        buffer = self._buffer
        while True:
            for event in buffer.rows:
                yield event
            if not await buffer.next_rows(self._timeout_s):
                return

    async def _named(self) -> AsyncGenerator[Event, None]:
        """Iterates over a named subscription: also notes which event is being processed."""
        buffer = self._buffer
        # The rest of the current batch goes to this task, also if another task has begun it.
        buffer.consumer = asyncio.current_task()
        while True:
            for event in buffer.rows:
                buffer.current_event = event
                cursor = buffer.cursor
                if cursor is not None and not cursor.armed:
                    cursor.moved()
                yield event
            if not await buffer.next_rows(self._timeout_s):
                return

    def batches(self, *, voids: bool | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Iterates over whole batches, as `pyarrow.RecordBatch` with the columns stream, seq, key,
        value, tag and timestamp. If the stream has a schema, a column `attributes` follows: a
        struct of the typed columns. Keys, values and attributes are not copied. If the schema is
        changed while the stream is read, the struct of later batches has more fields.

            async for batch in stream.subscribe(start=1).batches():
                total += pc.sum(pc.binary_length(batch.column("value"))).as_py()

        Void positions are left out, so `seq` has gaps. With `voids=True`, here or in `subscribe`,
        they are included, and the batches have three more columns: `kind` ("event" or "void"),
        `range` and `reason`. A run of void positions is one row, as in Spark: `seq` is its last
        position, `range` the number of its positions, and `reason` says why they are void; key,
        value and tag are null. A row of an event has range 1 and no reason. Together, these rows
        cover every position once.

        Lost events raise EventsLost, with their `stream` and `range`, with or without `voids`. The
        next call of `batches()` continues after them.
        """
        if length_hint(self._buffer.rows):  # events of the current batch that were not read yet
            raise UsageError(
                "only some events of the current batch were read: read the others event by event "
                "first, or create another subscription for batches"
            )
        return self._batches(self._buffer.voids if voids is None else voids)

    async def _batches(self, voids: bool) -> AsyncGenerator[pa.RecordBatch, None]:
        from surecast.client.arrow import record_batch_of, record_batch_with_voids

        buffer = self._buffer
        convert = record_batch_with_voids if voids else record_batch_of
        deadline = deadline_of(self._timeout_s)
        while (taken := await buffer.next_item(deadline)) is not None:
            progress, item = taken
            if isinstance(item, Lost):
                raise EventsLost(progress.name, item.lo, item.hi, item.why)
            table = convert(item, progress.name, progress.schema)  # the schema up to this batch
            if table is not None:
                if buffer.named:
                    table = table.replace_schema_metadata({_STREAM_ID: progress.stream})
                yield table
                deadline = deadline_of(self._timeout_s)

    async def ready(self, *, timeout: Timeout = None) -> Subscription:
        """Wait until the position at which the subscription starts is known in each stream. With
        "latest" it gets all events that are published after this call has returned.

        A subscription by pattern is ready when it knows all existing streams that match. The
        default of `timeout` is the `timeout` of the subscription.
        """
        limit = self._timeout_s if timeout is None else timeout
        pattern = self._task.spec.pattern
        waited_for = f"the region to report where the subscription to {pattern!r} starts"
        async with within(limit, waited_for):
            await self._buffer.ready()
        return self

    # ------------------------------------------------------------ filters

    async def change(self, *, where: str | None, timeout: Timeout = None) -> dict[str, int]:
        """Replace the filter; None removes it.

            begins = await sub.change(where="sym == 'IBM' and qty > 500")

        Returns a position for each stream. Of the events below it, those were delivered that pass
        the old filter. From it on, events are delivered that pass the new filter. It is the first
        position that the subscription has not passed: the position after the last event that the
        program has got, or a later one, if no event after that has passed the old filter so far.
        Events that were received and not read yet are read again with the new filter.

        Raises UsageError if the filter does not fit a stream. Then the old one stays.
        """
        text = where_text(where)
        waited_for = f"the filter of the subscription to {self._task.spec.pattern!r} to be changed"
        async with within(self._timeout_s if timeout is None else timeout, waited_for):
            return await self._task.change(text)

    @property
    def where(self) -> str | None:
        """The filter; None if there is none."""
        return self._task.where or None

    @property
    def matched(self) -> int:
        """The number of events that have passed the filter and that the program has got; 0 without
        a filter."""
        return self._buffer.matched

    @property
    def filtered(self) -> int:
        """The number of events that did not pass the filter, up to the end of the batch that the
        program reads. After `change`, events that are judged again are counted again."""
        return self._buffer.filtered

    # ------------------------------------------------------------ acknowledging

    async def ack(self, item: Event | pa.RecordBatch, *, timeout: Timeout = None) -> None:
        """Acknowledge this event (or batch) and all events before it in the same stream.

        Returns when the acknowledgement is on disk at every replica of the region. After TimedOut
        it is stored later: with the next acknowledgement, or when the subscription is closed.
        """
        buffer = self._buffer
        if buffer.forked:
            raise forked()
        if buffer.cursor is None:
            raise UsageError(
                "only a named subscription keeps its position: subscribe(..., name=...)"
                if self._task.spec.name is None
                else "nothing has been read yet: there is nothing to acknowledge"
            )
        stream, end, time_ns, stream_id = _position_of(item)
        try:
            progress = buffer.progress_of(stream, end, time_ns, stream_id)
        except KeyError:
            buffer.cursor.check()  # if another reader took the name, that error says more
            raise UsageError(f"{stream} up to {end - 1} was not read by {self!r}") from None
        if progress is None:
            return  # the stream was deleted: there is no position to store
        waited_for = (
            f"position {end} of {stream!r} to be stored for the subscription named "
            f"{buffer.cursor.name!r}; the position may be stored later"
        )
        async with within(timeout, waited_for):
            buffer.acknowledge(progress, end)
            await buffer.cursor.stored_at_least({progress.stream: end})

    # ------------------------------------------------------------ ending

    async def close(self, *, timeout: Timeout = None) -> None:
        """End the subscription. A named subscription stores its position first; if that takes
        longer than `timeout`, this continues in the background.

        The last event (or batch) that the program got is acknowledged, too, except in two cases: an
        exception is being handled (`close()` in a `finally` block), or another task got the event
        and still runs or has failed. With `ack="manual"` only `ack` acknowledges.
        """
        await self._close(caller_unless_failing(asyncio.current_task()), timeout)

    async def _close(self, by: object, timeout: Timeout = None) -> None:
        """Close; for `by` see `SubscriptionBuffer.finish`. None: nothing more is acknowledged."""
        waited_for = f"{self!r} to store its position; the subscription is closed in the background"
        async with within(timeout, waited_for):
            await self._task.close(by=by)

    async def __aenter__(self) -> Subscription:
        return await self.ready()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(asyncio.current_task() if problem is None else None)


def _position_of(item: Any) -> tuple[str, int, int, bytes]:
    """For an event or an Arrow batch: the name of its stream, the first position after it, the time
    of its last event, and the id of the stream, or b"" if the id is not known."""
    stream_id = b""
    try:
        if isinstance(item, Event):
            stream, seq, time_ns = item.stream, item.seq, item.time_ns
        else:
            stream, seq = item.column("stream")[0].as_py(), item.column("seq")[-1].as_py()
            time_ns = 1_000 * (item.column("timestamp")[-1].value or 0)
            stream_id = (item.schema.metadata or {}).get(_STREAM_ID, b"")
        check_position("ack", seq)
    except (AttributeError, KeyError, IndexError, TypeError):
        raise UsageError(
            f"ack takes an event or a batch of the subscription, not {item!r}"
        ) from None
    return stream, seq + 1, time_ns, stream_id
