"""The buffer of one subscription: its unread batches, and its progress in each stream.

The client's readers (`endpoint.readers`) put batches and lost ranges into the buffer, and the task
that iterates over the subscription takes them out. When the buffer is full, it stops following its
streams, so the servers stop sending. When it is half empty, it follows the streams again from the
first position that was not received. In this way no event is lost if the stream's delivery has
positions (`StreamProgress`, otherwise `UnorderedProgress`).

A subscription with a stop ends when three conditions hold: all its streams are known, all positions
below their stops were received (void and lost ones included), and the buffer is empty.

For automatic acknowledgements, `current_event` is the event that the user (the program that reads
the subscription) is processing. All events before it count as processed. `consumer` is the task or
thread that processes it. If the consumer closes the subscription without an exception, the current
event counts as processed, too (`finish`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import TYPE_CHECKING, Final, NamedTuple

from surecast.client.cursor import Cursor
from surecast.client.events import Event, events_of, lost_event
from surecast.client.stream_progress import NEVER, StreamProgress, UnorderedProgress
from surecast.client.timeouts import Deadline, deadline_of, timed_out
from surecast.columns.batch import CONFIG, DATA, Batch
from surecast.columns.rules import is_end
from surecast.core.endpoint import Ended, Following, Lost
from surecast.core.streams import StreamInfo
from surecast.core.types import LogId
from surecast.endpoint.forking import call_on_fork, forked
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.readers import Reader
from surecast.errors import StreamDeleted, SurecastError, UsageError

if TYPE_CHECKING:
    from surecast.where.batches import BatchFilter

__all__ = ["IN_TRANSIT", "LOST_BYTES", "Item", "SubscriptionBuffer"]

log = logging.getLogger("surecast.client")

ROWS_JOINED: Final = 256  # small batches of one stream are joined up to this number of events
LOST_BYTES: Final = 256  # a lost range counts as this number of bytes in the buffer
# The value of `consumer` while an item is passed to the user's thread (`client.sync`).
IN_TRANSIT: Final = "in transit"

Item = Batch | Lost


class DeletedStream(NamedTuple):
    """A stream that was deleted and read to its end."""

    end: int  # the position after its last event
    time_ns: int  # the time of its last event


class SubscriptionBuffer:
    """The buffer of one subscription (see the module). Must be used in the event loop's thread.

    `voids`: events are returned with the void ranges between them. `named`: the subscription has a
    name. `manual`: only the user's `ack` acknowledges. `single`: it reads one open stream, and ends
    when that is deleted.
    """

    def __init__(
        self, options: ClientOptions, voids: bool, named: bool, manual: bool, single: bool = False
    ) -> None:
        self.options = options
        self.voids = voids
        self.named = named
        self.manual = manual
        self.single = single
        self.deleted: dict[str, DeletedStream] = {}  # the last deleted stream of each name
        self.streams: dict[LogId, StreamProgress] = {}  # the streams that are read, by id
        # A name has two streams if one was deleted, a new one was created, and the last event of
        # the deleted one was not read yet.
        self.by_name: dict[str, list[StreamProgress]] = {}
        self.cursor: Cursor | None = None  # of a named subscription, once it begins
        # The rest of the current batch. All iterations take their events from it.
        self.rows: Iterator[Event] = iter(())
        self._events: list[Event] = []  # the events of `rows`, also those that were taken
        # Of a subscription with a filter: the events that have passed, and the others. They are
        # counted when their batch is taken out of the inbox.
        self._matched = self.filtered = 0
        self.current_event: Event | None = None
        # The batch or lost range that the user is processing: its stream, and its end.
        self.current: tuple[StreamProgress, int] | None = None
        self.consumer: object = None  # the reading task, or with `surecast.sync` its thread
        # Asks the region for the schema of a stream; `learned` is called when it is known.
        self.learn: Callable[[StreamProgress], None] = lambda progress: None
        self.label = ""  # the name or pattern of the subscription, for error messages
        self.nbytes = 0  # size of all items in the inbox
        self.paused = False  # whether no stream is followed until the buffer is half empty
        # Received and not taken out. None in place of an item means that the stream was deleted
        # and ends before the first position that was to be read (`take_ended`).
        self._inbox: deque[tuple[StreamProgress, Item | None]] = deque()
        self._loop = asyncio.get_running_loop()
        # Set while a task waits for an item. The result True means that its time is over.
        self._waiter: asyncio.Future[bool] | None = None
        # Done when the start of each existing stream is known, or the subscription has ended.
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._failure: SurecastError | None = None  # the error that ends the subscription
        self._closed = False  # whether it was ended by `close`, without an error
        self._unfinished = 0  # streams that were not received up to their stop
        self._complete = False  # whether there is a stop, and all streams were added
        self.forked = False  # whether this process is a forked child of the one that reads
        self._turn_rows = 0  # events read since other tasks of the program could run
        call_on_fork(self)

    # ------------------------------------------------------------ from readers

    def add(
        self,
        info: StreamInfo,
        reader: Reader,
        start: int,
        not_before_ns: int = 0,
        *,
        ordered: bool = True,
        stop: int = NEVER,
        before_ns: int = 0,
        chosen: BatchFilter | None = None,
    ) -> None:
        """Read a stream from `start` on, up to `stop`. For the other arguments see
        `StreamProgress`; `ordered` is `Delivery.ordered`."""
        if self.ended:
            return
        kind = StreamProgress if ordered else UnorderedProgress
        progress = kind(info, reader, start, not_before_ns, stop, before_ns, chosen)
        self.streams[progress.stream] = progress
        self.by_name.setdefault(progress.name, []).append(progress)
        reader.claim(progress.stream, self)
        self._unfinished += 1
        if progress.next >= progress.stop:
            self._finish(progress)
        elif self.paused:
            progress.paused = True  # `_resume` will follow it
        else:
            progress.follow()

    def take_in(self, stream: LogId, batches: tuple[Batch, ...]) -> None:
        """Put batches into the buffer, as far as they are new (`StreamProgress.admit`)."""
        progress = self.streams.get(stream)
        if progress is None or self.ended:
            return
        for batch in batches:
            admitted = progress.admit(batch)
            if admitted is not None:
                if progress.filter is not None:
                    try:
                        admitted = progress.filter.apply(admitted)
                    except SurecastError as problem:  # the batch does not have the schema's types
                        self.fail(UsageError(f"the filter of stream {progress.name!r}: {problem}"))
                        return
                self.nbytes += admitted.nbytes
                self._inbox.append((progress, admitted))
        self._look_if_finished(progress)
        self._taken_in()

    def take_lost(self, lost: Lost) -> None:
        """Put a lost range into the buffer, in its order among the batches."""
        progress = self.streams.get(lost.stream)
        if progress is None or self.ended:
            return
        admitted = progress.admit_lost(lost)
        if admitted is not None:
            self._put_lost(progress, admitted)
            self._look_if_finished(progress)
            self._taken_in()

    def take_following(self, following: Following) -> None:
        """Called when the reader has begun to deliver a stream with a filter."""
        progress = self.streams.get(following.stream)
        if progress is not None:
            progress.following(following.token)

    def take_ended(self, ended: Ended) -> None:
        """Called when the stream was deleted and ends before the next position to be read."""
        progress = self.streams.get(ended.stream)
        if progress is None or self.ended or not progress.is_behind(ended):
            return
        if not progress.finished:
            self._finish(progress)
            self._inbox.append((progress, None))
            self._wake()

    def _put_lost(self, progress: StreamProgress, lost: Lost) -> None:
        """Append a lost range to the inbox."""
        self.nbytes += LOST_BYTES
        self._inbox.append((progress, lost))

    def set_stop(self, stream: LogId, stop: int) -> None:
        """Set a stop that was not known when the stream was added."""
        progress = self.streams.get(stream)
        if progress is None:
            return  # the stream was deleted meanwhile
        progress.stop = min(progress.stop, max(stop, progress.next))
        if not self.ended:
            self._look_if_finished(progress)
            self._wake()

    def set_complete(self) -> None:
        """Called when all streams of a subscription with a stop have been added."""
        self._complete = True
        self._wake()

    def _look_if_finished(self, progress: StreamProgress) -> None:
        if progress.next >= progress.stop and not progress.finished:
            self._finish(progress)

    def _finish(self, progress: StreamProgress) -> None:
        """Release the stream's reader: all positions below the stop were received."""
        progress.finished = True
        self._unfinished -= 1
        progress.reader.release(progress.stream)

    def _taken_in(self) -> None:
        """Called when something was put into the inbox."""
        if self.nbytes >= self.options.buffer_bytes_max:
            self._pause()
        self._wake()

    def _pause(self) -> None:
        """Stop following all streams, because the buffer is full."""
        self.paused = True
        for progress in self.streams.values():
            if not progress.paused and not progress.finished:
                progress.paused = True
                progress.reader.unfollow(progress.stream)

    def _resume(self) -> None:
        """Follow all streams again."""
        self.paused = False
        for progress in self.streams.values():
            if progress.paused and not progress.finished:
                missed = progress.follow()
                if missed is not None:
                    self._put_lost(progress, missed)

    def _wake(self) -> None:
        """End the wait of `next_item`, which then looks at the buffer again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    # ------------------------------------------------------------ to the user

    async def next_item(
        self, deadline: Deadline | None = None
    ) -> tuple[StreamProgress, Item] | None:
        """The next batch or lost range. With this call the previous one counts as processed.
        Returns None if the subscription is closed, or everything below its stop was read."""
        self._finish_current()
        if self._waiter is not None:
            raise UsageError(
                "two tasks iterate over one subscription: create a subscription for each task"
            )
        self.consumer = asyncio.current_task()
        if self._turn_rows >= self.options.turn_rows_max:
            self._turn_rows = 0
            await asyncio.sleep(0)  # yield to other tasks even if the buffer never runs empty
        self._leave_ended()
        while not self._has_item() or self._failure is not None:
            if self._failure is not None:
                raise type(self._failure)(*self._failure.args)
            if self._closed:
                return None
            if self._complete and not self._unfinished and not self._inbox:
                await self._store_positions(deadline)
                return None
            self._turn_rows = 0
            await self._wait(deadline)
            self._leave_ended()
        return self._take_out()

    def _has_item(self) -> bool:
        """Whether the first item can be taken out. If not all of its columns are known, ask for the
        stream's schema."""
        if not self._inbox:
            return False
        progress, item = self._inbox[0]
        if isinstance(item, Batch) and progress.lacks(item):
            self.learn(progress)
            return False
        return True

    def learned(self) -> None:
        """Called when the schema of a stream is known."""
        self._wake()

    async def _wait(self, deadline: Deadline | None) -> None:
        """Wait for `_wake`; raises TimedOut after the deadline."""
        self._waiter = waiter = self._loop.create_future()
        timer = None
        if deadline is not None:
            timer = self._loop.call_at(deadline.at, _expire, waiter)
        try:
            if await waiter and deadline is not None:
                filtered = ""
                if self.filtered:
                    counts = f"{self.matched:,} have passed, {self.filtered:,} have not"
                    filtered = f" that passes the filter ({counts})"
                raise timed_out(
                    deadline.seconds,
                    f"the next event of {self.label!r}{filtered}; the subscription can be read "
                    "further",
                )
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def _store_positions(self, deadline: Deadline | None) -> None:
        """Store the final position of a named subscription that was read up to its stop."""
        for progress in self.streams.values():
            # Events at the end that were left out by `not_before_ns` count as read, too.
            progress.read = max(progress.read, progress.next)
        cursor = self.cursor
        if cursor is None:
            return
        try:
            async with asyncio.timeout_at(None if deadline is None else deadline.at) as scope:
                await cursor.stored_at_least(cursor.all_positions())
        except TimeoutError:
            if deadline is None or not scope.expired():
                raise
            raise timed_out(
                deadline.seconds,
                f"the position of the subscription named {cursor.name!r} to be stored; it may be "
                "stored later",
            ) from None

    def _take_out(self) -> tuple[StreamProgress, Item]:
        """Take the first item out of the inbox; it becomes the current one."""
        progress, item = self._inbox.popleft()
        assert item is not None  # `_leave_ended` has removed such entries
        self.current = progress, item.hi
        if isinstance(item, Lost):
            self._turn_rows += 1
            self.nbytes -= LOST_BYTES
        else:
            self._turn_rows += item.rows or 1
            self.nbytes -= item.nbytes
            if progress.filter is not None and item.kind != CONFIG:
                self._count(progress, item)
            if item.kind == CONFIG and is_end(item):
                self._leave_deleted(progress, item.time_ns)
            elif item.kind == CONFIG:
                progress.apply(item)
        if self.paused and self.nbytes <= self.options.buffer_bytes_max // 2:
            self._resume()
        return progress, item

    def _count(self, progress: StreamProgress, batch: Batch) -> None:
        """Count the events of a batch that the user of a filter gets."""
        self.filtered += batch.filtered_count
        if batch.kind == DATA:
            self._matched += batch.rows
            progress.event_end = int(batch.seqs()[-1]) + 1

    @property
    def matched(self) -> int:
        """The events that have passed the filter, and that the user has got."""
        left = length_hint(self.rows)
        return self._matched - (_count_events(self._events[-left:]) if left else 0)

    def _leave_ended(self) -> None:
        """Remove streams that have ended (`take_ended`) from the front of the inbox."""
        while self._inbox and self._inbox[0][1] is None:
            progress, _ = self._inbox.popleft()
            if progress.stream in self.streams:
                self._leave_deleted(progress, 0)

    def _leave_deleted(self, progress: StreamProgress, time_ns: int) -> None:
        """Called when the last event of a deleted stream is taken out. A subscription to one open
        stream ends; a subscription by name or pattern continues without the stream."""
        if self.single:
            self._failure = StreamDeleted(progress.name)  # raised by the next call of `next_item`
            return
        if not progress.finished:
            self._finish(progress)
        del self.streams[progress.stream]
        named = self.by_name[progress.name]
        named.remove(progress)
        if not named:
            del self.by_name[progress.name]
        self.deleted.pop(progress.name, None)
        self.deleted[progress.name] = DeletedStream(progress.next, time_ns)
        while len(self.deleted) > self.options.streams_max:
            del self.deleted[next(iter(self.deleted))]
        log.info("stream %r was deleted", progress.name)

    def _finish_current(self) -> None:
        """Called when the user asks for the next item: the current one counts as processed."""
        self.current_event = None
        if self.current is not None:
            progress, end = self.current
            self.current = None
            progress.read = end
            if progress.filter is not None:
                self._acknowledge_filtered(progress)
            if self.cursor is not None:
                self.cursor.moved()

    def _acknowledge_filtered(self, progress: StreamProgress) -> None:
        """If the user has acknowledged all events that it got, the positions that the filter has
        dropped since then are acknowledged, too."""
        if progress.acked >= progress.event_end:
            progress.acked = max(progress.acked, progress.read)

    async def next_rows(self, timeout_s: float | None = None) -> bool:
        """Put the events of the next batch, or of several small ones, into `rows`. Returns False if
        there are no more."""
        events: list[Event] = []
        deadline = deadline_of(timeout_s)
        while not events:
            taken = await self.next_item(deadline)
            if taken is None:
                return False
            progress, item = taken
            events = self._events_of(progress, item)
            while len(events) < ROWS_JOINED and self._inbox and self._inbox[0][0] is progress:
                if (
                    self._inbox[0][1] is None or not self._has_item()
                ):  # the stream has ended, or ...
                    break  # ... its schema was changed
                events += self._events_of(*self._take_out())
        self._events = events
        self.rows = iter(events)
        return True

    def _events_of(self, progress: StreamProgress, item: Item) -> list[Event]:
        if isinstance(item, Lost):
            return [lost_event(progress.name, item)]
        return events_of(item, progress.name, self.voids, progress.schema)

    def change(
        self, filters: dict[LogId, BatchFilter | None], readers: dict[LogId, Reader]
    ) -> dict[str, int]:
        """Replace the filter of each stream. Returns the position from which the new one decides,
        by the name of the stream. `readers`: other readers for streams that were received up to
        their stop, and whose reader was given to another subscription."""
        left = list(self.rows)  # no other thread can take an event meanwhile
        begins = {}
        for stream, progress in self.streams.items():
            begin = progress.read
            if self.current is not None and self.current[0] is progress:
                taken = self._events[: len(self._events) - len(left)]
                if not left:
                    begin = self.current[1]
                elif taken:
                    begin = taken[-1].seq + 1
                self.current = progress, begin
            begins[progress.name] = begin
            progress.change(filters[stream], begin)
            if progress.finished and begin < progress.stop:
                progress.finished = False
                progress.reader = readers.get(stream, progress.reader)
                progress.reader.claim(stream, self)
                self._unfinished += 1
        self._matched -= _count_events(left)
        self._inbox.clear()
        self.nbytes = 0
        self.paused = False
        for progress in self.streams.values():
            if not progress.finished:
                progress.follow()
        self._wake()
        return begins

    def positions(self) -> dict[LogId, int]:
        """The first position of each stream that is not processed, or with `manual` that the user
        has not acknowledged. The cursor stores these positions."""
        if self.manual:
            return {stream: progress.acked for stream, progress in self.streams.items()}
        positions = {stream: progress.read for stream, progress in self.streams.items()}
        event = self.current_event  # read only once, because another thread may change it
        if event is not None and self.current is not None:
            progress = self.current[0]
            positions[progress.stream] = max(progress.read, event.seq + 1 - event.count)
        return positions

    def in_hand(self) -> dict[LogId, int]:
        """The position after the event or batch that the user is processing, by stream.

        Empty if the user acknowledges manually, if no event of the current batch was handed out
        yet, or if the stream was deleted.
        """
        if self.manual or self.current is None or self.current[0].stream not in self.streams:
            return {}
        progress, end = self.current
        if self.current_event is not None:
            end = self.current_event.seq + 1
        elif length_hint(self.rows):  # the number of events in `rows` that were not handed out
            return {}
        return {progress.stream: end}

    def finish(self, by: object) -> None:
        """Called when the task or thread `by` closes the subscription without an exception. The
        event or batch that the user has (`in_hand`) counts as processed then, unless another task
        or thread is still processing it."""
        for stream, end in self.in_hand().items():
            if self.is_processed(by):
                progress = self.streams[stream]
                progress.read = max(progress.read, end)

    def is_processed(self, by: object) -> bool:
        """Whether the consumer is `by` itself, or a task that has ended without an exception."""
        consumer = self.consumer
        if consumer is by:
            return True
        if not isinstance(consumer, asyncio.Task) or not consumer.done() or consumer.cancelled():
            return False
        problem = consumer.exception()
        if problem is not None:
            log.warning("not acknowledged: the last event of a task that failed with %r", problem)
        return problem is None

    def handed(self, progress: StreamProgress) -> int:
        """The first position of a stream that the user has not got: the position after the current
        event, or the end of the last batch."""
        if self.current is None or self.current[0] is not progress:
            return progress.read
        end = self.current[1] if self.current_event is None else self.current_event.seq + 1
        return max(progress.read, end)

    def progress_of(
        self, stream: str, end: int, time_ns: int, stream_id: LogId = b""
    ) -> StreamProgress | None:
        """The stream of an event or batch that the user acknowledges. `end` is the position after
        it, `time_ns` its time, and `stream_id` the id of its stream, or b"" if that is not known.

        Returns None if that stream was deleted, so that there is no position to store. Raises
        KeyError if the event was not read.

        A new stream may have the name of a deleted one. The string object in `Event.stream` tells
        them apart by its identity. This fails for a copy of an event, and for names of one
        character, which are always the same object in Python. Then the times decide: no event of a
        deleted stream is later than the last event of that stream.
        """
        named = self.by_name.get(stream, ())
        progress = self.streams.get(stream_id)
        deleted = self.deleted.get(stream)
        if progress is None and stream_id and deleted is not None:
            return None
        if progress is None:
            progress = next((one for one in named if one.name is stream and len(stream) > 1), None)
        if progress is None:
            if deleted is not None and end <= deleted.end and time_ns <= deleted.time_ns:
                return None
            progress = next((one for one in named if end <= self.handed(one)), None)
        if progress is None or end > self.handed(progress):
            raise KeyError(stream)
        return progress

    def acknowledge(self, progress: StreamProgress, end: int) -> None:
        """Called when the user has acknowledged all positions below `end`."""
        progress.acked = max(progress.acked, end)
        progress.read = max(progress.read, end)
        if progress.filter is not None:
            self._acknowledge_filtered(progress)

    # ------------------------------------------------------------ beginning and end

    async def ready(self) -> None:
        """Wait until the start of each existing stream is known."""
        if self.forked:
            raise forked()
        await asyncio.wait([self._ready])
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def set_ready(self) -> None:
        """Called when the start of each existing stream is known, or the subscription ends."""
        if not self._ready.done():
            self._ready.set_result(None)

    def _on_fork(self) -> None:
        self.forked = True
        self._failure = forked()
        self._waiter = self.current = self.current_event = None
        deque(self.rows, maxlen=0)  # empties the iterator, so that a loop over it ends

    def fail(self, problem: SurecastError) -> None:
        """End the subscription; the next read raises `problem`."""
        if self._failure is None and not self._closed:
            self._failure = problem
            self._inbox.clear()
            self._leave()

    def close(self) -> None:
        """End the subscription; a loop over it ends at its next step."""
        if not self._closed:
            self._closed = True
            self._leave()

    def _leave(self) -> None:
        """Drop all unread events, so that a loop in progress ends, and release the readers."""
        deque(self.rows, maxlen=0)
        self.current = self.current_event = None
        for progress in self.streams.values():
            if not progress.finished:
                progress.reader.release(progress.stream)
        self.nbytes = 0
        self._inbox.clear()
        self.set_ready()
        self._wake()

    @property
    def ended(self) -> bool:
        """Whether the subscription was closed or has failed."""
        return self._closed or self._failure is not None


def _count_events(items: list[Event]) -> int:
    return sum(item.kind == "event" for item in items)


def _expire(waiter: asyncio.Future[bool]) -> None:
    """Called at the deadline of a wait."""
    if not waiter.done():
        waiter.set_result(True)
