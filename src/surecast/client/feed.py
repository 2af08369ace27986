"""What one subscription reads: its streams, where it is in each, and a bounded buffer in between.

Readers put batches in, the task that iterates takes them out. When the buffer is full its streams
are unfollowed, which stops the server from sending; when it is half empty they are followed again
from the first position that is not here. Positions are the same everywhere, so nothing is lost.

`hand` is the event that the user deals with right now: all before it are dealt with. That is all an
automatic acknowledgement needs, and it costs the iteration one assignment an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np

from surecast.client.cursor import Cursor
from surecast.client.events import Event
from surecast.client.rows import events_of
from surecast.columns.batch import Batch
from surecast.core.streams import StreamInfo
from surecast.core.types import LogId
from surecast.endpoint.forking import forked, watch
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.readers import Reader
from surecast.errors import SurecastError, UsageError

__all__ = ["Feed", "Line"]

log = logging.getLogger("surecast.client")

ROWS_JOINED: Final = (
    256  # small batches of one stream are handed out together, up to so many events
)


class Line:
    """One stream of a subscription."""

    __slots__ = ("acked", "delivery", "name", "next", "not_before_ns", "paused", "read", "stream")

    def __init__(self, info: StreamInfo, start: int, not_before_ns: int = 0) -> None:
        self.stream = info.stream_id
        self.name = info.name
        self.delivery = info.delivery
        self.next = start  # the first position that is not here
        self.read = start  # the first that the user has not asked to go beyond
        self.acked = start  # the first that the user has not acknowledged by hand
        self.paused = False
        self.not_before_ns = not_before_ns  # older events are not wanted; 0: none are too old

    def wanted(self, batch: Batch) -> Batch | None:
        """The part of `batch` that is not too old. A region that is behind what the time asked for
        begins at its own end, and older events may come first."""
        if batch.rows and int(batch.times()[-1]) >= self.not_before_ns:
            first = int(batch.seqs()[np.searchsorted(batch.times(), self.not_before_ns)])
            self.not_before_ns = 0  # time never runs backwards
            return batch if first == batch.seqs()[0] else batch.slice(first, batch.hi)
        return None


class Feed:
    """See the module. All methods are for the thread of the event loop."""

    def __init__(self, options: ClientOptions, voids: bool, named: bool, manual: bool) -> None:
        self.options = options
        self.voids = voids
        self.named = named
        self.manual = manual  # only what the user acknowledges is dealt with
        self.reader: Reader | None = None
        self.lines: dict[LogId, Line] = {}
        self.names: dict[str, Line] = {}
        self.cursor: Cursor | None = None  # of a named subscription, once it begins
        self.rows: Iterator[Event] = iter(())  # of the batch being read, shared by all iterations
        self.hand: Event | None = None
        self.current: tuple[Line, int] | None = None  # being read: of which stream, up to where
        self.nbytes = 0  # received and not taken out
        self.paused = False  # until half of that is taken out
        self._inbox: deque[tuple[Line, Batch]] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._end: SurecastError | None = None
        self._closed = False
        self.forked = False  # this is a child of the process that reads
        self._turn_rows = 0  # read since other tasks had a turn
        watch(self)

    # ------------------------------------------------------------ what comes in

    def add(self, info: StreamInfo, start: int, not_before_ns: int = 0) -> None:
        """Read a stream from `start` on."""
        if self.ended:
            return
        assert self.reader is not None
        line = Line(info, start, not_before_ns)
        self.lines[line.stream] = self.names[line.name] = line
        self.reader.claim(line.stream, self.take_in)
        if self.paused:
            line.paused = True
        else:
            self.reader.follow(line.stream, line.delivery, start)

    def take_in(self, stream: LogId, batches: tuple[Batch, ...]) -> None:
        line = self.lines.get(stream)
        if line is None or self.ended:
            return
        for batch in batches:
            if batch.hi <= line.next:
                continue  # sent again after a pause
            if batch.lo > line.next:
                log.debug("%s: %r, but %d is next", line.name, batch, line.next)
                break  # of a follow that has been replaced; ours will bring what is missing
            if batch.lo < line.next:
                batch = batch.slice(line.next, batch.hi)
            line.next = batch.hi
            if line.not_before_ns:
                wanted = line.wanted(batch)
                if wanted is None:
                    continue
                batch = wanted
            self.nbytes += batch.nbytes
            self._inbox.append((line, batch))
        if self.nbytes >= self.options.buffer_bytes_max:
            self._pause()
        self._wake()

    def _pause(self) -> None:
        assert self.reader is not None
        self.paused = True
        for line in self.lines.values():
            if not line.paused:
                line.paused = True
                self.reader.unfollow(line.stream, line.delivery)

    def _resume(self) -> None:
        assert self.reader is not None
        self.paused = False
        for line in self.lines.values():
            if line.paused:
                line.paused = False
                self.reader.follow(line.stream, line.delivery, line.next)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ------------------------------------------------------------ what goes out

    async def next_batch(self) -> tuple[Line, Batch] | None:
        """The next batch to read; what was read before is dealt with. None: closed."""
        self._finish_current()
        if self._waiter is not None:
            raise UsageError("two tasks iterate over one subscription: give each its own")
        if self._turn_rows >= self.options.turn_rows_max:
            self._turn_rows = 0
            await asyncio.sleep(0)  # a reader that always finds something is a guest all the same
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

    def _take_out(self) -> tuple[Line, Batch]:
        line, batch = self._inbox.popleft()
        self.current = line, batch.hi
        self._turn_rows += batch.rows or 1
        self.nbytes -= batch.nbytes
        if self.paused and self.nbytes <= self.options.buffer_bytes_max // 2:
            self._resume()
        return line, batch

    def _finish_current(self) -> None:
        self.hand = None
        if self.current is not None:
            line, end = self.current
            self.current = None
            line.read = end
            if self.cursor is not None:
                self.cursor.moved()

    async def next_rows(self) -> bool:
        """Put the next events into `rows`: a batch, or several small ones. False: closed."""
        events: list[Event] = []
        while not events:
            found = await self.next_batch()
            if found is None:
                return False
            line, batch = found
            events = events_of(batch, line.name, self.voids)
            while len(events) < ROWS_JOINED and self._inbox and self._inbox[0][0] is line:
                events += events_of(self._take_out()[1], line.name, self.voids)
        self.rows = iter(events)
        return True

    def positions(self) -> dict[LogId, int]:
        """How far each stream has been dealt with."""
        if self.manual:
            return {stream: line.acked for stream, line in self.lines.items()}
        found = {stream: line.read for stream, line in self.lines.items()}
        hand = self.hand  # one look: another thread may move it
        if hand is not None and self.current is not None:
            line = self.current[0]
            found[line.stream] = max(line.read, hand.seq + 1 - hand.count)
        return found

    def handed(self, line: Line) -> int:
        """The first position of a stream that the user has not been given.

        Event by event that is the one behind the event in hand; of batches, the end of the last.
        """
        if self.current is None or self.current[0] is not line:
            return line.read
        end = self.current[1] if self.hand is None else self.hand.seq + 1
        return max(line.read, end)

    def acknowledge(self, line: Line, end: int) -> None:
        """All below `end` is dealt with, says the user."""
        line.acked = max(line.acked, end)
        line.read = max(line.read, end)

    # ------------------------------------------------------------ its life

    async def ready(self) -> None:
        """Wait until it is known where each of the streams there are begins."""
        if self.forked:
            raise forked()
        await asyncio.wait([self._ready])
        if self._end is not None:
            raise type(self._end)(*self._end.args)

    def is_ready(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _on_fork(self) -> None:
        self.forked = True
        self._end = forked()
        self._waiter = self.current = self.hand = None
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
        self.current = self.hand = None
        if self.reader is not None:
            for line in self.lines.values():
                self.reader.release(line.stream, line.delivery)
        self.nbytes = 0
        self._inbox.clear()
        self.is_ready()
        self._wake()

    @property
    def ended(self) -> bool:
        return self._closed or self._end is not None
