"""How a subscription begins, finds its streams and ends.

A subscription to one open stream takes a place on a reader it may share. One by name or pattern has
a reader of its own and keeps asking the region which streams match; it meets those that appear
later at their first position.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from surecast.client.cursor import Cursor
from surecast.client.feed import Feed
from surecast.client.rules import ns_of
from surecast.core.endpoint import WhereIs, WhichStreams
from surecast.core.names import is_name
from surecast.core.streams import StreamInfo
from surecast.core.types import SECOND, LogId
from surecast.endpoint.control import Control
from surecast.endpoint.error_messages import subscription_error, unknown_delivery
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.readers import Readers
from surecast.errors import SurecastError, UsageError

__all__ = ["Ask", "Reading", "Start", "check_start"]

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
class Ask:
    """What a user wants to read. Either `info` (one open stream) or `pattern`."""

    pattern: str
    info: StreamInfo | None
    start: Start
    voids: bool
    name: str | None
    manual: bool


class Reading:
    """A subscription's inner life; the object that the user holds may be forgotten at any time."""

    def __init__(
        self, ask: Ask, control: Control, readers: Readers, options: ClientOptions
    ) -> None:
        self.ask = ask
        self.feed = Feed(options, ask.voids, ask.name is not None, ask.manual)
        self._control = control
        self._readers = readers
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._complete = False  # all streams that were there at the beginning are known
        self._locating: dict[LogId, asyncio.Task[None]] = {}
        self._watch: int | None = None
        self._beginning = self._loop.create_task(self._begin())
        self._closing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ the beginning

    async def _begin(self) -> None:
        try:
            await self._begin_at_all()
        except SurecastError as problem:
            self.feed.fail(problem)

    async def _begin_at_all(self) -> None:
        ask, feed = self.ask, self.feed
        if ask.name is not None:
            feed.cursor = Cursor(
                ask.name, self._control, self._options, feed.positions, self.feed.fail
            )
            await feed.cursor.attach()
        if ask.info is None:
            feed.reader = await self._readers.lease(None, feed.take_in)
            self._watch = self._control.watch(WhichStreams(ask.pattern), self._told)
            return
        stream = ask.info.stream_id
        start = await self._find_start(ask.info)
        if not feed.ended:
            feed.reader = await self._readers.lease(stream, feed.take_in)
            self._follow(ask.info, start)
            await self._store_beginning()
            feed.is_ready()

    def _told(self, answer: Any) -> None:
        """Streams that match: those that were there, then those that appear."""
        if isinstance(answer, SurecastError):
            self.feed.fail(answer)
            return
        if answer.why:
            self.feed.fail(subscription_error(self.ask.pattern, answer.why))
            return
        for info, end in zip(answer.infos, answer.ends, strict=True):
            self._meet(info, end)
        if answer.complete and not self._complete:
            self._complete = True
            self._look_if_ready()

    def _meet(self, info: StreamInfo, end: int) -> None:
        stream, start = info.stream_id, self.ask.start
        if stream in self.feed.lines or stream in self._locating:
            return
        if info.delivery not in self._readers.deliveries:
            problem = unknown_delivery(info)
            if is_name(self.ask.pattern):
                self.feed.fail(problem)
            else:
                log.warning("left out: %s", problem)
            return
        if len(self.feed.lines) >= self._options.streams_max:
            self.feed.fail(
                SurecastError(
                    f"more than {self._options.streams_max:,} streams match {self.ask.pattern!r} "
                    "(ClientOptions.streams_max): use a narrower pattern, or raise the limit"
                )
            )
            return
        known, cursor = stream in self._stored(), self.feed.cursor
        if self._complete or (cursor is not None and cursor.has_begun):
            start = "earliest"  # it has appeared since: all its events are news
        if isinstance(start, datetime) and not known:
            self._locating[stream] = self._loop.create_task(self._locate_and_follow(info))
        else:
            self._follow(info, self._known_start(stream, start, end))

    def _stored(self) -> dict[LogId, int]:
        """Where a named subscription was in streams that it knows."""
        return {} if self.feed.cursor is None else self.feed.cursor.stored

    def _known_start(self, stream: LogId, start: Start, end: int) -> int:
        if stored := self._stored().get(stream):
            return stored
        if isinstance(start, int):
            return start
        return end if start == "latest" else 1

    async def _locate_and_follow(self, info: StreamInfo) -> None:
        try:
            self._follow(info, await self._find_start(info))
        except SurecastError as problem:
            self.feed.fail(problem)
        finally:
            del self._locating[info.stream_id]
            self._look_if_ready()

    async def _find_start(self, info: StreamInfo) -> int:
        """Where to begin in a stream whose end we do not know."""
        stream, start = info.stream_id, self.ask.start
        if stream in self._stored() or isinstance(start, int) or start == "earliest":
            return self._known_start(stream, start, 1)
        time_ns = ns_of(start) if isinstance(start, datetime) else _NOW
        located = await self._control.ask(WhereIs(stream, time_ns))
        if located.why:
            raise subscription_error(info.name, located.why)
        found: int = located.seq
        return found

    def _follow(self, info: StreamInfo, start: int) -> None:
        asked, not_before_ns = self.ask.start, 0
        if isinstance(asked, datetime) and info.stream_id not in self._stored():
            # Its region may be behind that time. A time to come means the end, as it is now.
            not_before_ns = ns_of(asked) if asked <= datetime.now(UTC) else 0
        self.feed.add(info, start, not_before_ns)

    def _look_if_ready(self) -> None:
        if self._complete and not self._locating and self._beginning.done():
            self._beginning = self._loop.create_task(self._be_ready())

    async def _be_ready(self) -> None:
        try:
            await self._store_beginning()
            self.feed.is_ready()
        except SurecastError as problem:
            self.feed.fail(problem)

    async def _store_beginning(self) -> None:
        """So that a named subscription begins here again, even if it never reads anything."""
        cursor = self.feed.cursor
        if cursor is not None:
            if self.ask.info is None:
                cursor.begin()
            await cursor.stored_at_least(cursor.all_positions())

    # ------------------------------------------------------------ the end

    async def close(self, why: SurecastError | None = None) -> None:
        """Store how far things are, then leave. Whoever iterates is told `why`, if there is one."""
        if self.feed.forked:
            return  # the parent reads on
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(why))
        await asyncio.shield(self._closing)

    async def _close(self, why: SurecastError | None) -> None:
        await self._stop_beginning()
        feed = self.feed
        try:
            if feed.cursor is not None:
                with suppress(SurecastError, TimeoutError):
                    async with asyncio.timeout(self._options.close_timeout_ns / SECOND):
                        await feed.cursor.close()
        finally:
            if why is not None:
                feed.fail(why)
            else:
                feed.close()
            if feed.reader is not None:
                await self._readers.give_back(feed.reader)

    async def _stop_beginning(self) -> None:
        tasks = [self._beginning, *self._locating.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if self._watch is not None:
            self._control.drop(self._watch)

    def forget(self) -> None:
        """The user has let go of it; may be called by any thread, at any time."""
        if self.feed.forked:
            return
        with suppress(RuntimeError):  # the loop is closed, and everything with it
            self._loop.call_soon_threadsafe(self._forget)

    def _forget(self) -> None:
        if self._closing is None and not self._loop.is_closed():
            self._closing = self._loop.create_task(self._close(None))
