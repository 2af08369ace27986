"""What one subscription has received and not read: a bounded buffer, and how far each stream is.

Readers put batches and lost ranges in, the task that iterates takes them out. When the buffer is
full, its streams are unfollowed, which stops the server from sending; when it is half empty they
are followed again from the first position that is not here. Positions are the same everywhere, so
this loses nothing of a delivery with positions (`StreamProgress`; else `UnorderedProgress`).

`current_event` is the event that the user deals with right now: all events before it are dealt
with. An automatic acknowledgement needs no more, and it costs one assignment an event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final

from surecast.client.cursor import Cursor
from surecast.client.events import Event
from surecast.client.rows import events_of, lost_event
from surecast.client.stream_progress import StreamProgress, UnorderedProgress
from surecast.columns.batch import Batch
from surecast.core.endpoint import Lost
from surecast.core.streams import StreamInfo
from surecast.core.types import LogId
from surecast.endpoint.forking import forked, watch
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.readers import Reader
from surecast.errors import SurecastError, UsageError

__all__ = ["LOST_BYTES", "Item", "SubscriptionBuffer"]

ROWS_JOINED: Final = 256  # events: small batches of one stream are handed out together up to this
LOST_BYTES: Final = 256  # what a lost range counts for in the buffer

Item = Batch | Lost


class SubscriptionBuffer:
    """See the module. All methods are for the thread of the event loop."""

    def __init__(self, options: ClientOptions, voids: bool, named: bool, manual: bool) -> None:
        self.options = options
        self.voids = voids
        self.named = named
        self.manual = manual  # only what the user acknowledges is dealt with
        self.streams: dict[LogId, StreamProgress] = {}
        self.by_name: dict[str, StreamProgress] = {}
        self.cursor: Cursor | None = None  # of a named subscription, once it begins
        self.rows: Iterator[Event] = iter(())  # of the batch being read, shared by all iterations
        self.current_event: Event | None = None
        self.current: tuple[StreamProgress, int] | None = None  # being read: stream, up to where
        self.nbytes = 0  # received and not taken out
        self.paused = False  # nothing is followed until the buffer is half empty
        self._inbox: deque[tuple[StreamProgress, Item]] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._end: SurecastError | None = None
        self._closed = False
        self.forked = False  # this is a child of the process that reads
        self._turn_rows = 0  # read since other tasks had a turn
        watch(self)

    # ------------------------------------------------------------ what comes in

    def add(
        self,
        info: StreamInfo,
        reader: Reader,
        start: int,
        not_before_ns: int = 0,
        *,
        ordered: bool = True,
    ) -> None:
        """Read a stream from `start` on."""
        if self.ended:
            return
        kind = StreamProgress if ordered else UnorderedProgress
        progress = kind(info, reader, start, not_before_ns)
        self.streams[progress.stream] = self.by_name[progress.name] = progress
        reader.claim(progress.stream, self)
        if self.paused:
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
        self._taken_in()

    def take_lost(self, lost: Lost) -> None:
        """Events that will not come; they have their turn among those that did."""
        progress = self.streams.get(lost.stream)
        if progress is None or self.ended:
            return
        admitted = progress.admit_lost(lost)
        if admitted is not None:
            self._put_lost(progress, admitted)
            self._taken_in()

    def _put_lost(self, progress: StreamProgress, lost: Lost) -> None:
        self.nbytes += LOST_BYTES
        self._inbox.append((progress, lost))

    def _taken_in(self) -> None:
        if self.nbytes >= self.options.buffer_bytes_max:
            self._pause()
        self._wake()

    def _pause(self) -> None:
        self.paused = True
        for progress in self.streams.values():
            if not progress.paused:
                progress.paused = True
                progress.reader.unfollow(progress.stream)

    def _resume(self) -> None:
        self.paused = False
        for progress in self.streams.values():
            if progress.paused:
                missed = progress.follow()
                if missed is not None:
                    self._put_lost(progress, missed)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ------------------------------------------------------------ what goes out

    async def next_item(self) -> tuple[StreamProgress, Item] | None:
        """The next batch or lost range; what was read before is dealt with. None: closed."""
        self._finish_current()
        if self._waiter is not None:
            raise UsageError("two tasks iterate over one subscription: give each its own")
        if self._turn_rows >= self.options.turn_rows_max:
            self._turn_rows = 0
            await asyncio.sleep(0)  # a loop that always finds something lets other tasks run
        while not self._inbox or self._end is not None:
            if self._end is not None:
                raise type(self._end)(*self._end.args)
            if self._closed:
                return None
            self._turn_rows = 0
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take_out()

    def _take_out(self) -> tuple[StreamProgress, Item]:
        progress, item = self._inbox.popleft()
        self.current = progress, item.hi
        if isinstance(item, Lost):
            self._turn_rows += 1
            self.nbytes -= LOST_BYTES
        else:
            self._turn_rows += item.rows or 1
            self.nbytes -= item.nbytes
        if self.paused and self.nbytes <= self.options.buffer_bytes_max // 2:
            self._resume()
        return progress, item

    def _finish_current(self) -> None:
        self.current_event = None
        if self.current is not None:
            progress, end = self.current
            self.current = None
            progress.read = end
            if self.cursor is not None:
                self.cursor.moved()

    async def next_rows(self) -> bool:
        """Put the next events into `rows`: a batch, or several small ones. False: closed."""
        events: list[Event] = []
        while not events:
            found = await self.next_item()
            if found is None:
                return False
            progress, item = found
            events = self._events_of(progress, item)
            while len(events) < ROWS_JOINED and self._inbox and self._inbox[0][0] is progress:
                events += self._events_of(*self._take_out())
        self.rows = iter(events)
        return True

    def _events_of(self, progress: StreamProgress, item: Item) -> list[Event]:
        if isinstance(item, Lost):
            return [lost_event(progress.name, item)]
        return events_of(item, progress.name, self.voids)

    def positions(self) -> dict[LogId, int]:
        """How far each stream has been dealt with."""
        if self.manual:
            return {stream: progress.acked for stream, progress in self.streams.items()}
        found = {stream: progress.read for stream, progress in self.streams.items()}
        event = self.current_event  # one look: another thread may change it
        if event is not None and self.current is not None:
            progress = self.current[0]
            found[progress.stream] = max(progress.read, event.seq + 1 - event.count)
        return found

    def handed(self, progress: StreamProgress) -> int:
        """The first position of a stream that the user has not been given.

        Event by event that is the one behind the current event; of batches, the end of the last.
        """
        if self.current is None or self.current[0] is not progress:
            return progress.read
        end = self.current[1] if self.current_event is None else self.current_event.seq + 1
        return max(progress.read, end)

    def acknowledge(self, progress: StreamProgress, end: int) -> None:
        """All below `end` is dealt with, says the user."""
        progress.acked = max(progress.acked, end)
        progress.read = max(progress.read, end)

    # ------------------------------------------------------------ beginning and end

    async def ready(self) -> None:
        """Wait until it is known where each of the streams there are begins."""
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
        deque(self.rows, maxlen=0)  # an iteration under way finds nothing more

    def fail(self, problem: SurecastError) -> None:
        """Nothing more will come, and the user should know why."""
        if self._end is None and not self._closed:
            self._end = problem
            self._inbox.clear()
            self._leave()

    def close(self) -> None:
        """Nothing more is wanted."""
        if not self._closed:
            self._closed = True
            self._leave()

    def _leave(self) -> None:
        """Give up all that is not read; an iteration under way finds nothing more."""
        deque(self.rows, maxlen=0)
        self.current = self.current_event = None
        for progress in self.streams.values():
            progress.reader.release(progress.stream)
        self.nbytes = 0
        self._inbox.clear()
        self.set_ready()
        self._wake()

    @property
    def ended(self) -> bool:
        return self._closed or self._end is not None
