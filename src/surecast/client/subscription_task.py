"""How a subscription begins, finds its streams and ends.

A subscription to one open stream takes a place on a reader it may share. A subscription by name or
pattern has readers of its own, one for each delivery it meets, and keeps asking the region which
streams match; it reads those that appear later from their first position on. With a stop it reads
the streams that match at the beginning, and no others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from surecast.client.cursor import Cursor
from surecast.client.rules import check_position, ns_of, shown
from surecast.client.stream_progress import NEVER
from surecast.client.subscription_buffer import SubscriptionBuffer
from surecast.core.endpoint import Delivery, WhereIs, WhichStreams
from surecast.core.names import is_name
from surecast.core.streams import StreamInfo
from surecast.core.types import SECOND, LogId
from surecast.core.wire import SEQ_END_MAX
from surecast.endpoint.endpoint import Endpoint
from surecast.endpoint.error_messages import not_supported, subscription_error
from surecast.endpoint.readers import Reader, Readers
from surecast.errors import NotSupported, StreamDeleted, SurecastError, UsageError

__all__ = [
    "Start",
    "Stop",
    "SubscriptionSpec",
    "SubscriptionTask",
    "check_start",
    "check_stop",
    "leaving",
]

log = logging.getLogger("surecast.client")

Start = Literal["earliest", "latest"] | int | datetime  # an end, a position or a time
Stop = Literal["latest"] | int | datetime  # the end now, the position behind the last, or a time

_NOW = -1  # what WhereIs takes for "where does it end?"
CLOCK_S: Final = 60.0  # at the latest after this the wall clock is looked at again


def check_start(start: Start) -> None:
    """Refuse now what could not be found later."""
    if isinstance(start, datetime):
        ns_of(start)
    elif type(start) is int:
        check_position("start", start)
    elif not isinstance(start, str) or start not in ("earliest", "latest"):
        raise UsageError(f'start is "earliest", "latest", a seq or a datetime, not {start!r}')


def check_stop(stop: Stop | None) -> None:
    """Refuse now what could never be reached."""
    if stop is None:
        return
    if isinstance(stop, datetime):
        ns_of(stop)
    elif type(stop) is int:
        if not 1 <= stop <= SEQ_END_MAX:
            raise UsageError(f"stop is a position from 1 to {SEQ_END_MAX:,}, not {shown(stop)}")
    elif not isinstance(stop, str) or stop != "latest":
        raise UsageError(f'stop is "latest", a seq, a datetime or None, not {stop!r}')


def leaving(who: object) -> object:
    """`who`, a task or thread that calls `close()`, or None if an exception may be the reason: one
    is being handled, as in a `finally` block that an exception has led to."""
    return who if sys.exc_info()[0] is None else None


@dataclass(frozen=True, slots=True)
class SubscriptionSpec:
    """What a user wants to read. Either `info` (one open stream) or `pattern`."""

    pattern: str
    info: StreamInfo | None
    start: Start
    voids: bool
    name: str | None
    manual: bool
    stop: Stop | None = None

    @property
    def has_wildcard(self) -> bool:
        return self.info is None and not is_name(self.pattern)

    def check(self, delivery: Delivery) -> None:
        """Raise NotSupported if streams of the delivery cannot be read like that."""
        verbs = delivery.verbs
        if not delivery.ordered:
            verbs -= {"name", "time"}  # both are about positions
        if self.has_wildcard and "pattern" not in verbs:
            raise not_supported(f"a pattern such as {self.pattern!r}", delivery)
        if self.name is not None and "name" not in verbs:
            raise not_supported("name=", delivery)
        if isinstance(self.start, datetime) and "time" not in verbs:
            raise not_supported("start= with a datetime", delivery)
        if isinstance(self.start, int) and not delivery.ordered:
            raise not_supported("start= with a position", delivery)
        if self.stop is not None and not delivery.ordered:
            raise not_supported("stop=", delivery)
        if isinstance(self.stop, datetime) and "time" not in verbs:
            raise not_supported("stop= with a datetime", delivery)


class SubscriptionTask:
    """What a subscription does by itself; the object that the user holds may be let go of at any
    time."""

    def __init__(
        self,
        spec: SubscriptionSpec,
        endpoint: Endpoint,
        readers: Readers,
        dropped: Callable[[SubscriptionTask], None] = lambda task: None,
    ) -> None:
        """`dropped` is told when the user's object is gone and an event was in hand."""
        self.spec = spec
        self._dropped = dropped
        self._in_hand: dict[LogId, int] = {}  # when it was dropped
        self._endpoint = endpoint
        self._control = endpoint.control
        self._options = endpoint.options
        self._readers = readers
        if spec.info is not None:
            self._check(spec.info)
        self.buffer = SubscriptionBuffer(
            self._options, spec.voids, spec.name is not None, spec.manual, spec.info is not None
        )
        self.buffer.label = spec.pattern
        self._loop = asyncio.get_running_loop()
        self._complete = False  # all streams that were there at the beginning are known
        self._matched = False  # any stream, so far
        self._joining: dict[LogId, asyncio.Task[None]] = {}  # streams that are not followed yet
        self._leased: dict[str, Reader] = {}  # by delivery
        self._leasing = asyncio.Lock()
        self._watch: int | None = None
        self._beginning = self._loop.create_task(self._begin())
        self._stopping: asyncio.Task[None] | None = None  # waits until the time of the stop
        self._closing: asyncio.Task[None] | None = None

    def _check(self, info: StreamInfo) -> None:
        """Raise NotSupported if the stream cannot be read by this client, or not like that."""
        delivery = self._endpoint.delivery_of(info)
        self.spec.check(delivery)
        self._readers.check(delivery)

    # ------------------------------------------------------------ the beginning

    async def _begin(self) -> None:
        try:
            await self._attach_and_follow()
        except SurecastError as problem:
            self.buffer.fail(problem)

    async def _attach_and_follow(self) -> None:
        spec, buffer = self.spec, self.buffer
        if spec.name is not None:
            buffer.cursor = Cursor(
                spec.name, self._control, self._options, buffer.positions, buffer.fail
            )
            await buffer.cursor.attach()
        if spec.info is None:
            self._watch = self._control.watch(WhichStreams(spec.pattern), self._told)
            return
        start = await self._find_start(spec.info)
        stop = await self._find_stop(spec.info, start)
        if not buffer.ended:
            self._follow(spec.info, await self._lease(spec.info), start, stop)
            await self._store_beginning()
            self._is_ready()

    async def _lease(self, info: StreamInfo) -> Reader:
        """The reader of the stream's delivery; opened when its first stream is met."""
        async with self._leasing:
            reader = self._leased.get(info.delivery)
            if reader is None:
                stream = None if self.spec.info is None else info.stream_id
                delivery = self._endpoint.delivery_of(info)
                reader = await self._readers.lease(delivery, stream, self.buffer)
                self._leased[info.delivery] = reader
            return reader

    def _told(self, answer: Any) -> None:
        """Streams that match: those that were there, then those that appear."""
        if self.buffer.ended:
            return
        if isinstance(answer, SurecastError):
            self.buffer.fail(answer)
            return
        if answer.why:
            self.buffer.fail(subscription_error(self.spec.pattern, answer.why))
            return
        self._matched = self._matched or bool(answer.infos)
        for info, end in zip(answer.infos, answer.ends, strict=True):
            self._meet(info, end)
        if answer.complete and not self._complete:
            self._complete = True
            if not self._matched and self.spec.stop is None:
                self._log_waiting()
            if self.spec.stop is not None and self._watch is not None:
                self._control.drop(self._watch)  # those that appear later are not read
            self._look_if_ready()

    def _log_waiting(self) -> None:
        """Once. A name may be misspelt; a pattern may well match nothing for a while."""
        if self.spec.has_wildcard:
            log.info("no stream matches %r yet: waiting for one", self.spec.pattern)
        else:
            log.warning("there is no stream %r yet: waiting until it is created", self.spec.pattern)

    def _meet(self, info: StreamInfo, end: int) -> None:
        stream, start = info.stream_id, self.spec.start
        if stream in self.buffer.streams or stream in self._joining:
            return
        try:
            self._check(info)
        except NotSupported as problem:
            if self.spec.has_wildcard:
                log.warning(
                    "stream %r is left out of %r: %s", info.name, self.spec.pattern, problem
                )
            else:
                self.buffer.fail(problem)
            return
        if len(self.buffer.streams) + len(self._joining) >= self._options.streams_max:
            self.buffer.fail(
                SurecastError(
                    f"more than {self._options.streams_max:,} streams match {self.spec.pattern!r} "
                    "(ClientOptions.streams_max): use a narrower pattern, or raise the limit"
                )
            )
            return
        known, cursor = stream in self._stored(), self.buffer.cursor
        if self._complete or (cursor is not None and cursor.has_begun):
            start = "earliest"  # it has appeared since: all its events are news
        to_locate = isinstance(start, datetime) and not known
        begins = None if to_locate else self._known_start(info, start, end)
        reader = self._leased.get(info.delivery)
        if begins is None or reader is None or isinstance(self.spec.stop, datetime):
            self._joining[stream] = self._loop.create_task(self._join(info, begins, end))
        else:
            self._follow(info, reader, begins, self._known_stop(info, end))

    def _stored(self) -> dict[LogId, int]:
        """Where a named subscription was in streams that it knows."""
        return {} if self.buffer.cursor is None else self.buffer.cursor.stored

    def _known_start(self, info: StreamInfo, start: Start, end: int) -> int:
        if stored := self._stored().get(info.stream_id):
            return stored
        if isinstance(start, int):
            return start
        if start != "latest":
            return 1
        return end if self._endpoint.delivery_of(info).ordered else 0

    def _known_stop(self, info: StreamInfo, end: int) -> int:
        """The first position that is not wanted of a stream that ends at `end`.

        The region may be behind what the owner has acknowledged to this client: that is waited for.
        A time to come is known when it has passed.
        """
        stop = self.spec.stop
        if stop == "latest":
            return max(end, self._endpoint.acknowledged_end(info.stream_id))
        return stop if isinstance(stop, int) else NEVER

    async def _find_stop(self, info: StreamInfo, start: int, end: int = 0) -> int:
        """`_known_stop`, asked of the region if need be. `end` 0: the end is not known either."""
        stop = self.spec.stop
        if isinstance(stop, datetime) and stop <= datetime.now(UTC):
            return await self._locate(info.stream_id, info.name, ns_of(stop))
        if stop == "latest" and not end:
            begins_at_end = self.spec.start == "latest" and info.stream_id not in self._stored()
            end = start if begins_at_end else await self._locate(info.stream_id, info.name, _NOW)
        return self._known_stop(info, end)

    async def _join(self, info: StreamInfo, start: int | None, end: int) -> None:
        """Follow a stream once its reader is open. `start` None: ask the region where to begin."""
        try:
            begins = await self._find_start(info) if start is None else start
            stop = await self._find_stop(info, begins, end)
            self._follow(info, await self._lease(info), begins, stop)
        except StreamDeleted:
            log.info("stream %r was deleted before it was read", info.name)
        except SurecastError as problem:
            self.buffer.fail(problem)
        finally:
            del self._joining[info.stream_id]
            self._look_if_ready()

    async def _find_start(self, info: StreamInfo) -> int:
        """Where to begin in a stream whose end we do not know."""
        stream, start = info.stream_id, self.spec.start
        is_asked = isinstance(start, datetime) or start == "latest"
        if stream in self._stored() or not is_asked or not self._endpoint.delivery_of(info).ordered:
            return self._known_start(info, start, 1)
        time_ns = ns_of(start) if isinstance(start, datetime) else _NOW
        return await self._locate(stream, info.name, time_ns)

    async def _locate(self, stream: LogId, name: str, time_ns: int) -> int:
        """The first position of a stream at or after a time; _NOW: its end."""
        located = await self._control.ask(WhereIs(stream, time_ns))
        if located.why:
            raise subscription_error(name, located.why)
        found: int = located.seq
        return found

    def _follow(self, info: StreamInfo, reader: Reader, start: int, stop: int = NEVER) -> None:
        asked, not_before_ns = self.spec.start, 0
        if isinstance(asked, datetime) and info.stream_id not in self._stored():
            # Its region may be behind that time. A time to come means the end, as it is now.
            not_before_ns = ns_of(asked) if asked <= datetime.now(UTC) else 0
        ordered = self._endpoint.delivery_of(info).ordered
        before_ns = ns_of(self.spec.stop) if isinstance(self.spec.stop, datetime) else 0
        self.buffer.add(
            info, reader, start, not_before_ns, ordered=ordered, stop=stop, before_ns=before_ns
        )

    def _look_if_ready(self) -> None:
        known = self._complete and not self._joining and not self.buffer.ended
        if known and self._closing is None and self._beginning.done():
            self._beginning = self._loop.create_task(self._be_ready())

    async def _be_ready(self) -> None:
        try:
            await self._store_beginning()
            self._is_ready()
        except SurecastError as problem:
            self.buffer.fail(problem)

    def _is_ready(self) -> None:
        """The streams that were there at the beginning are known; with a stop, no others come."""
        self.buffer.set_ready()
        stop = self.spec.stop
        if stop is not None:
            self.buffer.set_complete()
        if isinstance(stop, datetime) and self._stopping is None:
            self._stopping = self._loop.create_task(self._stop_in_time(stop))

    async def _stop_in_time(self, stop: datetime) -> None:
        """Wait until the time of the stop, then ask for its position in each stream that has no
        stop yet. (If the time had passed at the beginning, all of them have one.)"""
        buffer, time_ns = self.buffer, ns_of(stop)
        try:
            while (left_s := (stop - datetime.now(UTC)).total_seconds()) > 0:
                await asyncio.sleep(min(left_s, CLOCK_S))
            for stream, progress in list(buffer.streams.items()):
                if progress.stop == NEVER and not buffer.ended:
                    await self._set_stop(stream, progress.name, time_ns)
        except SurecastError as problem:
            buffer.fail(problem)

    async def _set_stop(self, stream: LogId, name: str, time_ns: int) -> None:
        with suppress(StreamDeleted):  # its last event, which ends it, is on its way
            self.buffer.set_stop(stream, await self._locate(stream, name, time_ns))

    async def _store_beginning(self) -> None:
        """So that a named subscription begins here again, even if it never reads anything."""
        cursor = self.buffer.cursor
        if cursor is not None:
            if self.spec.info is None:
                cursor.begin()
            await cursor.stored_at_least(cursor.all_positions())

    # ------------------------------------------------------------ the end

    async def close(self, why: SurecastError | None = None, by: object = None) -> None:
        """Store how far things are, then leave. The iterating task gets `why` as an exception.

        `by`: the task or thread that closes it without an exception (`leaving`).
        """
        if self.buffer.forked:
            return  # the parent reads on
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(why, by))
        await asyncio.shield(self._closing)

    async def _close(self, why: SurecastError | None, by: object = None) -> None:
        if by is not None:
            self.buffer.finish(by)
        await self._stop_beginning()
        buffer = self.buffer
        try:
            if buffer.cursor is not None:
                with suppress(SurecastError, TimeoutError):
                    async with asyncio.timeout(self._options.close_timeout_ns / SECOND):
                        await buffer.cursor.close()
        finally:
            if why is not None:
                buffer.fail(why)
            else:
                buffer.close()
            for reader in self._leased.values():
                await self._readers.give_back(reader)

    async def _stop_beginning(self) -> None:
        tasks = [self._beginning, *self._joining.values()]
        if self._stopping is not None:
            tasks.append(self._stopping)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if self._watch is not None:
            self._control.drop(self._watch)

    def forget(self) -> None:
        """The user's object is gone; may be called by any thread, at any time."""
        if self.buffer.forked:
            return
        with suppress(RuntimeError):  # the loop is closed, and everything with it
            self._loop.call_soon_threadsafe(self._forget)

    def _forget(self) -> None:
        if self._closing is None and not self._loop.is_closed():
            self._in_hand = self.buffer.in_hand()
            self._closing = self._loop.create_task(self._close(None))
            if self._in_hand and self.buffer.named:
                self._dropped(self)

    async def settle(self, by: object) -> None:
        """Of a dropped one: the client is closed without an exception. `break` left the loop, or
        an exception that the program has handled: what was in hand is dealt with."""
        cursor = self.buffer.cursor
        if cursor is not None and self.buffer.is_dealt_with(by):
            with suppress(SurecastError, TimeoutError):
                async with asyncio.timeout(self._options.close_timeout_ns / SECOND):
                    await cursor.store_later(self._in_hand)
