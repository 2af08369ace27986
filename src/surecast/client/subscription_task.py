"""How a subscription begins, finds its streams and ends.

A subscription to one open stream takes a place on a reader it may share. A subscription by name or
pattern has readers of its own, one for each delivery it meets, and keeps asking the region which
streams match; it reads those that appear later from their first position on.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from surecast.client.cursor import Cursor
from surecast.client.rules import ns_of
from surecast.client.subscription_buffer import SubscriptionBuffer
from surecast.core.endpoint import Delivery, WhereIs, WhichStreams
from surecast.core.names import is_name
from surecast.core.streams import StreamInfo
from surecast.core.types import SECOND, LogId
from surecast.endpoint.endpoint import Endpoint
from surecast.endpoint.error_messages import not_supported, subscription_error
from surecast.endpoint.readers import Reader, Readers
from surecast.errors import NotSupported, SurecastError, UsageError

__all__ = ["Start", "SubscriptionSpec", "SubscriptionTask", "check_start"]

log = logging.getLogger("surecast.client")

Start = str | int | datetime  # "earliest", "latest", a position or a time

_NOW = -1  # what WhereIs takes for "where does it end?"


def check_start(start: Start) -> None:
    """Refuse now what could not be found later."""
    if isinstance(start, datetime):
        ns_of(start)
    elif type(start) is int:
        if start < 1:
            raise UsageError(f"positions begin at 1; there is no start={start}")
    elif start not in ("earliest", "latest"):
        raise UsageError(f'start is "earliest", "latest", a seq or a datetime, not {start!r}')


@dataclass(frozen=True, slots=True)
class SubscriptionSpec:
    """What a user wants to read. Either `info` (one open stream) or `pattern`."""

    pattern: str
    info: StreamInfo | None
    start: Start
    voids: bool
    name: str | None
    manual: bool

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


class SubscriptionTask:
    """What a subscription does by itself; the object that the user holds may be let go of at any
    time."""

    def __init__(self, spec: SubscriptionSpec, endpoint: Endpoint, readers: Readers) -> None:
        self.spec = spec
        self._endpoint = endpoint
        self._control = endpoint.control
        self._options = endpoint.options
        self._readers = readers
        if spec.info is not None:
            self._check(spec.info)
        self.buffer = SubscriptionBuffer(
            self._options, spec.voids, spec.name is not None, spec.manual
        )
        self._loop = asyncio.get_running_loop()
        self._complete = False  # all streams that were there at the beginning are known
        self._joining: dict[LogId, asyncio.Task[None]] = {}  # streams that are not followed yet
        self._leased: dict[str, Reader] = {}  # by delivery
        self._leasing = asyncio.Lock()
        self._watch: int | None = None
        self._beginning = self._loop.create_task(self._begin())
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
        if not buffer.ended:
            self._follow(spec.info, await self._lease(spec.info), start)
            await self._store_beginning()
            buffer.set_ready()

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
        for info, end in zip(answer.infos, answer.ends, strict=True):
            self._meet(info, end)
        if answer.complete and not self._complete:
            self._complete = True
            self._look_if_ready()

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
        if begins is None or reader is None:
            self._joining[stream] = self._loop.create_task(self._join(info, begins))
        else:
            self._follow(info, reader, begins)

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

    async def _join(self, info: StreamInfo, start: int | None) -> None:
        """Follow a stream once its reader is open. `start` None: ask the region where to begin."""
        try:
            begins = await self._find_start(info) if start is None else start
            self._follow(info, await self._lease(info), begins)
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
        located = await self._control.ask(WhereIs(stream, time_ns))
        if located.why:
            raise subscription_error(info.name, located.why)
        found: int = located.seq
        return found

    def _follow(self, info: StreamInfo, reader: Reader, start: int) -> None:
        asked, not_before_ns = self.spec.start, 0
        if isinstance(asked, datetime) and info.stream_id not in self._stored():
            # Its region may be behind that time. A time to come means the end, as it is now.
            not_before_ns = ns_of(asked) if asked <= datetime.now(UTC) else 0
        ordered = self._endpoint.delivery_of(info).ordered
        self.buffer.add(info, reader, start, not_before_ns, ordered=ordered)

    def _look_if_ready(self) -> None:
        known = self._complete and not self._joining and not self.buffer.ended
        if known and self._closing is None and self._beginning.done():
            self._beginning = self._loop.create_task(self._be_ready())

    async def _be_ready(self) -> None:
        try:
            await self._store_beginning()
            self.buffer.set_ready()
        except SurecastError as problem:
            self.buffer.fail(problem)

    async def _store_beginning(self) -> None:
        """So that a named subscription begins here again, even if it never reads anything."""
        cursor = self.buffer.cursor
        if cursor is not None:
            if self.spec.info is None:
                cursor.begin()
            await cursor.stored_at_least(cursor.all_positions())

    # ------------------------------------------------------------ the end

    async def close(self, why: SurecastError | None = None) -> None:
        """Store how far things are, then leave. The iterating task gets `why` as an exception."""
        if self.buffer.forked:
            return  # the parent reads on
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(why))
        await asyncio.shield(self._closing)

    async def _close(self, why: SurecastError | None) -> None:
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
            self._closing = self._loop.create_task(self._close(None))
