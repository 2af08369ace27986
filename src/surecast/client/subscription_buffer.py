"""The buffer of one subscription: received and unread batches, and the progress of each stream.

Readers put batches and lost ranges in, the task that iterates takes them out. When the buffer is
full, its streams are unfollowed, which stops the server from sending; when it is half empty they
are followed again from the first position not received. Positions are the same everywhere, so
nothing is lost of a delivery with positions (`StreamProgress`; else `UnorderedProgress`).

A subscription with a stop ends when all its streams are known, all positions below their stops were
received (void and lost ones included), and everything was read.

`current_event` is the event that the user is processing: all events before it are processed. This
is all that automatic acknowledgements need, at the cost of one assignment per event. `consumer` is
the task or thread that processes it; if that one closes the subscription without an exception, the
current event counts as processed, too (`finish`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from operator import length_hint
from typing import Final, NamedTuple

from surecast.client.cursor import Cursor
from surecast.client.events import Event, events_of, lost_event
from surecast.client.stream_progress import NEVER, StreamProgress, UnorderedProgress
from surecast.client.timeouts import Deadline, deadline_of, timed_out
from surecast.columns.batch import CONFIG, Batch
from surecast.columns.rules import is_end
from surecast.core.endpoint import Lost
from surecast.core.streams import StreamInfo
from surecast.core.types import LogId
from surecast.endpoint.forking import forked, watch
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.readers import Reader
from surecast.errors import StreamDeleted, SurecastError, UsageError

__all__ = ["IN_TRANSIT", "LOST_BYTES", "Item", "SubscriptionBuffer"]

log = logging.getLogger("surecast.client")

ROWS_JOINED: Final = 256  # events: small batches of one stream are handed out together up to this
LOST_BYTES: Final = 256  # bytes counted for a lost range in the buffer
IN_TRANSIT: Final = "in transit"  # a `consumer`: the item is on its way to the user's thread

Item = Batch | Lost


class DeletedStream(NamedTuple):
    """How far a deleted stream was read."""

    end: int
    time_ns: int  # of its last event


class SubscriptionBuffer:
    """The buffer of one subscription (see the module). Use it in the event loop's thread."""

    def __init__(
        self, options: ClientOptions, voids: bool, named: bool, manual: bool, single: bool = False
    ) -> None:
        self.options = options
        self.voids = voids
        self.named = named
        self.manual = manual  # only the user's `ack` acknowledges
        self.single = single  # of one open stream: it ends when the stream is deleted
        self.deleted: dict[str, DeletedStream] = {}  # by name: the last one
        self.streams: dict[LogId, StreamProgress] = {}
        # More than one of a name: the last event of the older one, its deletion, was not read yet.
        self.by_name: dict[str, list[StreamProgress]] = {}
        self.cursor: Cursor | None = None  # of a named subscription, once it begins
        self.rows: Iterator[Event] = iter(())  # of the batch being read, shared by all iterations
        self.current_event: Event | None = None
        self.current: tuple[StreamProgress, int] | None = None  # being read: stream, end of batch
        self.consumer: object = None  # the reading task, or with `surecast.sync` thread
        self.label = ""  # the name or pattern, for messages
        self.nbytes = 0  # received and not taken out
        self.paused = False  # nothing is followed until the buffer is half empty
        # None: the stream has ended before the first position wanted (`take_ended`).
        self._inbox: deque[tuple[StreamProgress, Item | None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None  # result True: timed out
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._end: SurecastError | None = None
        self._closed = False
        self._unfinished = 0  # streams with positions below their stop that were not received
        self._complete = False  # it has a stop, and no further streams are added
        self.forked = False  # this is a child of the process that reads
        self._turn_rows = 0  # rows read since other tasks had a turn
        watch(self)

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
    ) -> None:
        """Read a stream from `start` on, up to `stop` or the first event not before `before_ns`."""
        if self.ended:
            return
        kind = StreamProgress if ordered else UnorderedProgress
        progress = kind(info, reader, start, not_before_ns, stop, before_ns)
        self.streams[progress.stream] = progress
        self.by_name.setdefault(progress.name, []).append(progress)
        reader.claim(progress.stream, self)
        self._unfinished += 1
        if progress.next >= progress.stop:
            self._finish(progress)
        elif self.paused:
            progress.paused = True
        else:
            progress.follow()

    def take_in(self, stream: LogId, batches: tuple[Batch, ...]) -> None:
        progress = self.streams.get(stream)
        if progress is None or self.ended:
            return
        for batch in batches:
            admitted = progress.admit(batch)
            if admitted is not None:
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

    def take_ended(self, stream: LogId) -> None:
        """The stream was deleted, and ends before the first position wanted."""
        progress = self.streams.get(stream)
        if progress is not None and not progress.finished and not self.ended:
            self._finish(progress)
            self._inbox.append((progress, None))
            self._wake()

    def _put_lost(self, progress: StreamProgress, lost: Lost) -> None:
        self.nbytes += LOST_BYTES
        self._inbox.append((progress, lost))

    def set_stop(self, stream: LogId, stop: int) -> None:
        """Set a stop that was not known when the stream was added."""
        progress = self.streams.get(stream)
        if progress is None:
            return  # it was deleted meanwhile
        progress.stop = min(progress.stop, max(stop, progress.next))
        if not self.ended:
            self._look_if_finished(progress)
            self._wake()

    def set_complete(self) -> None:
        """Called when all streams that are read up to a stop have been added."""
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
        if self.nbytes >= self.options.buffer_bytes_max:
            self._pause()
        self._wake()

    def _pause(self) -> None:
        self.paused = True
        for progress in self.streams.values():
            if not progress.paused and not progress.finished:
                progress.paused = True
                progress.reader.unfollow(progress.stream)

    def _resume(self) -> None:
        self.paused = False
        for progress in self.streams.values():
            if progress.paused and not progress.finished:
                missed = progress.follow()
                if missed is not None:
                    self._put_lost(progress, missed)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    # ------------------------------------------------------------ to the user

    async def next_item(
        self, deadline: Deadline | None = None
    ) -> tuple[StreamProgress, Item] | None:
        """The next batch or lost range; the previous one counts as processed. None if the
        subscription is closed or everything below its stop was read."""
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
        while not self._inbox or self._end is not None:
            if self._end is not None:
                raise type(self._end)(*self._end.args)
            if self._closed:
                return None
            if self._complete and not self._unfinished:
                await self._store_positions(deadline)
                return None
            self._turn_rows = 0
            await self._wait(deadline)
            self._leave_ended()
        return self._take_out()

    async def _wait(self, deadline: Deadline | None) -> None:
        """Wait until something is received or changed; raises TimedOut after the deadline."""
        self._waiter = waiter = self._loop.create_future()
        timer = None
        if deadline is not None:
            timer = self._loop.call_at(deadline.at, _expire, waiter)
        try:
            if await waiter and deadline is not None:
                raise timed_out(
                    deadline.seconds,
                    f"the next event of {self.label!r}; the subscription can be read further",
                )
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def _store_positions(self, deadline: Deadline | None) -> None:
        """Store the end of a named subscription that was read up to its stop."""
        for progress in self.streams.values():
            progress.read = max(progress.read, progress.next)  # older events were left out
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
        progress, item = self._inbox.popleft()
        assert item is not None  # `_leave_ended` has removed it
        self.current = progress, item.hi
        if isinstance(item, Lost):
            self._turn_rows += 1
            self.nbytes -= LOST_BYTES
        else:
            self._turn_rows += item.rows or 1
            self.nbytes -= item.nbytes
            if item.kind == CONFIG and is_end(item):
                self._leave_deleted(progress, item.time_ns)
        if self.paused and self.nbytes <= self.options.buffer_bytes_max // 2:
            self._resume()
        return progress, item

    def _leave_ended(self) -> None:
        while self._inbox and self._inbox[0][1] is None:
            progress, _ = self._inbox.popleft()
            if progress.stream in self.streams:
                self._leave_deleted(progress, 0)

    def _leave_deleted(self, progress: StreamProgress, time_ns: int) -> None:
        """Called when the last event of a deleted stream is taken out. A subscription of one stream
        ends; others continue without the stream."""
        if self.single:
            self._end = StreamDeleted(progress.name)  # raised when the user asks for more
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
        self.current_event = None
        if self.current is not None:
            progress, end = self.current
            self.current = None
            progress.read = end
            if self.cursor is not None:
                self.cursor.moved()

    async def next_rows(self, timeout_s: float | None = None) -> bool:
        """Put the next events into `rows`: a batch, or several small ones. Returns False if there
        are no more."""
        events: list[Event] = []
        deadline = deadline_of(timeout_s)
        while not events:
            taken = await self.next_item(deadline)
            if taken is None:
                return False
            progress, item = taken
            events = self._events_of(progress, item)
            while len(events) < ROWS_JOINED and self._inbox and self._inbox[0][0] is progress:
                if self._inbox[0][1] is None:
                    break
                events += self._events_of(*self._take_out())
        self.rows = iter(events)
        return True

    def _events_of(self, progress: StreamProgress, item: Item) -> list[Event]:
        if isinstance(item, Lost):
            return [lost_event(progress.name, item)]
        return events_of(item, progress.name, self.voids)

    def positions(self) -> dict[LogId, int]:
        """The first position of each stream that is not processed."""
        if self.manual:
            return {stream: progress.acked for stream, progress in self.streams.items()}
        positions = {stream: progress.read for stream, progress in self.streams.items()}
        event = self.current_event  # read it once: another thread may change it
        if event is not None and self.current is not None:
            progress = self.current[0]
            positions[progress.stream] = max(progress.read, event.seq + 1 - event.count)
        return positions

    def in_hand(self) -> dict[LogId, int]:
        """The position after the last event or batch that the user got and has not moved on from.

        Empty with manual acknowledgements, if nothing of it has reached the user, or if the stream
        was deleted.
        """
        if self.manual or self.current is None or self.current[0].stream not in self.streams:
            return {}
        progress, end = self.current
        if self.current_event is not None:
            end = self.current_event.seq + 1
        elif length_hint(self.rows):
            return {}
        return {progress.stream: end}

    def finish(self, by: object) -> None:
        """`by`, a task or thread, closes the subscription without an exception: the item in hand
        counts as processed, unless another task or thread is still processing it."""
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
            log.warning("not acknowledged: the event that a task read that failed: %r", problem)
        return problem is None

    def handed(self, progress: StreamProgress) -> int:
        """The first position of a stream that the user has not received: the one after the current
        event, or the end of the last batch."""
        if self.current is None or self.current[0] is not progress:
            return progress.read
        end = self.current[1] if self.current_event is None else self.current_event.seq + 1
        return max(progress.read, end)

    def progress_of(
        self, stream: str, end: int, time_ns: int, stream_id: LogId = b""
    ) -> StreamProgress | None:
        """The stream of a position that the user acknowledges: the event before `end`.

        None if that stream was deleted: there is no position to store. Raises KeyError if the
        position was not read. The name may belong to another stream by now. The event's own
        `stream` object tells them apart, except in a copy of the event, or if the name has one
        character (Python has one object for all equal ones). Then the times decide, because no
        event of a deleted stream is later than its last one.
        """
        named = self.by_name.get(stream, ())
        found = self.streams.get(stream_id)
        former = self.deleted.get(stream)
        if found is None and stream_id and former is not None:
            return None
        if found is None:
            found = next((one for one in named if one.name is stream and len(stream) > 1), None)
        if found is None:
            if former is not None and end <= former.end and time_ns <= former.time_ns:
                return None
            found = next((one for one in named if end <= self.handed(one)), None)
        if found is None or end > self.handed(found):
            raise KeyError(stream)
        return found

    def acknowledge(self, progress: StreamProgress, end: int) -> None:
        """The user has acknowledged all positions below `end`."""
        progress.acked = max(progress.acked, end)
        progress.read = max(progress.read, end)

    # ------------------------------------------------------------ beginning and end

    async def ready(self) -> None:
        """Wait until the start of each existing stream is known."""
        if self.forked:
            raise forked()
        await asyncio.wait([self._ready])
        if self._end is not None:
            raise type(self._end)(*self._end.args)

    def set_ready(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _on_fork(self) -> None:
        self.forked = True
        self._end = forked()
        self._waiter = self.current = self.current_event = None
        deque(self.rows, maxlen=0)  # ends an iteration in progress

    def fail(self, problem: SurecastError) -> None:
        """End the subscription; the next read raises `problem`."""
        if self._end is None and not self._closed:
            self._end = problem
            self._inbox.clear()
            self._leave()

    def close(self) -> None:
        """End the subscription; the next read ends its loop."""
        if not self._closed:
            self._closed = True
            self._leave()

    def _leave(self) -> None:
        """Drop everything unread, which ends an iteration in progress, and release the readers."""
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
        return self._closed or self._end is not None


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(True)
