"""The background work of a subscription: it finds the streams and follows them, and ends.

There are two kinds of subscriptions. One reads a single open stream (`Stream.subscribe`), with a
reader that other subscriptions may share (`endpoint.readers`). The other reads all streams that
match a name or pattern (`Client.subscribe`), with readers of its own, one for each delivery of
these streams. It keeps a query open that reports new matching streams, and reads each new stream
from position 1 on. With a stop it reads only the streams that match at the beginning.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from surecast.client.cursor import Cursor
from surecast.client.rules import check_position, ns_of, shown
from surecast.client.stream_progress import NEVER, StreamProgress
from surecast.client.subscription_buffer import SubscriptionBuffer
from surecast.core.endpoint import Delivery, WhereIs, WhichStreams
from surecast.core.names import is_name
from surecast.core.streams import StreamInfo
from surecast.core.types import SECOND, LogId
from surecast.core.wire import SEQ_END_MAX
from surecast.endpoint.endpoint import Endpoint
from surecast.endpoint.error_messages import not_supported, only_at_owner, subscription_error
from surecast.endpoint.readers import Reader, Readers
from surecast.errors import FilterError, NotSupported, StreamDeleted, SurecastError, UsageError

if TYPE_CHECKING:
    from surecast.where.batches import BatchFilter

__all__ = [
    "Start",
    "Stop",
    "SubscriptionSpec",
    "SubscriptionTask",
    "caller_unless_failing",
    "check_start",
    "check_stop",
]

log = logging.getLogger("surecast.client")

# Where a subscription begins: at position 1, at the current end of the stream, at a position, or at
# the first event that is not older than a time.
Start = Literal["earliest", "latest"] | int | datetime
# Where it ends: at the current end, before a position, or before the first event that is not older
# than a time.
Stop = Literal["latest"] | int | datetime

_NOW = -1  # as the time of a WhereIs query: the answer is the end of the stream
# While waiting for a time, the wall clock is read at least this often, because it may be set.
CLOCK_S: Final = 60.0
ASK_AGAIN_S: Final = 0.05  # between two questions for the schema of a stream
UNLISTED_MAX: Final = 20  # after so many answers without the stream, its schema is given up


def check_start(start: Start) -> None:
    """Raise UsageError for a start that is not valid."""
    if isinstance(start, datetime):
        ns_of(start)
    elif type(start) is int:
        check_position("start", start)
    elif not isinstance(start, str) or start not in ("earliest", "latest"):
        raise UsageError(f'start is "earliest", "latest", a position or a datetime, not {start!r}')


def check_stop(stop: Stop | None) -> None:
    """Raise UsageError for a stop that is not valid."""
    if stop is None:
        return
    if isinstance(stop, datetime):
        ns_of(stop)
    elif type(stop) is int:
        if not 1 <= stop <= SEQ_END_MAX:
            raise UsageError(f"stop is a position from 1 to {SEQ_END_MAX:,}, not {shown(stop)}")
    elif not isinstance(stop, str) or stop != "latest":
        raise UsageError(f'stop is "latest", a position, a datetime or None, not {stop!r}')


def caller_unless_failing(caller: object) -> object:
    """Returns `caller`, the task or thread that calls `close()`, or None if it is handling an
    exception, as in a `finally` block: then the last event may not have been processed."""
    return caller if sys.exc_info()[0] is None else None


@dataclass(frozen=True, slots=True)
class SubscriptionSpec:
    """The arguments of `subscribe`. If `info` is set, that open stream is read, otherwise the
    streams that match `pattern`."""

    pattern: str  # of an open stream: its name
    info: StreamInfo | None
    start: Start
    voids: bool
    name: str | None  # of a named subscription
    manual: bool  # whether `ack` is "manual"
    stop: Stop | None = None
    where: str = ""  # the filter at the beginning

    @property
    def has_wildcard(self) -> bool:
        """Whether the pattern may match several streams."""
        return self.info is None and not is_name(self.pattern)

    def check(self, delivery: Delivery) -> None:
        """Raise NotSupported if the delivery does not support these arguments."""
        verbs = delivery.verbs
        if not delivery.ordered:
            verbs -= {"name", "time"}  # subscriptions with a name or from a time need positions
        if self.has_wildcard and "pattern" not in verbs:
            raise not_supported(f"a pattern such as {self.pattern!r}", delivery)
        if self.name is not None and "name" not in verbs:
            raise not_supported("name=", delivery)
        if self.where and "where" not in verbs:
            raise not_supported("where=", delivery)
        if isinstance(self.start, datetime) and "time" not in verbs:
            raise not_supported("start= with a datetime", delivery)
        if isinstance(self.start, int) and not delivery.ordered:
            raise not_supported("start= with a position", delivery)
        if self.stop is not None and not delivery.ordered:
            raise not_supported("stop=", delivery)
        if isinstance(self.stop, datetime) and "time" not in verbs:
            raise not_supported("stop= with a datetime", delivery)


class SubscriptionTask:
    """The background work of a subscription (see the module). This object is separate from
    `Subscription`, so that it can clean up when the user drops the Subscription (no variable refers
    to it any more)."""

    def __init__(
        self,
        spec: SubscriptionSpec,
        endpoint: Endpoint,
        readers: Readers,
        dropped: Callable[[SubscriptionTask], None] = lambda task: None,
    ) -> None:
        """`dropped` is called if the user drops the Subscription while an event of it is being
        processed."""
        self.spec = spec
        self.where = spec.where  # the filter; "" if there is none
        self._dropped = dropped
        # The result of `SubscriptionBuffer.in_hand` when the Subscription was dropped.
        self._in_hand: dict[LogId, int] = {}
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
        self.buffer.learn = self._learn
        # By stream: the task that asks for its schema.
        self._learning: dict[LogId, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._complete = False  # whether all streams that existed at the beginning are known
        self._matched = False  # whether any stream has matched so far
        # By stream: the task that makes a query or opens a reader before the stream is followed.
        self._joining: dict[LogId, asyncio.Task[None]] = {}
        self._leased: dict[str, Reader] = {}  # the readers in use, by delivery
        self._leasing = asyncio.Lock()  # so that only one reader is opened for a delivery
        # The readers of `_lease_again`, by stream.
        self._leased_again: dict[LogId, Reader] = {}
        self._watch: int | None = None  # the token of the query for matching streams
        self._beginning = self._loop.create_task(self._begin())  # later `_be_ready`
        # With a stop that is a time: waits for that time.
        self._stopping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def _check(self, info: StreamInfo) -> None:
        """Raise NotSupported if this client cannot read the stream with these arguments, and
        UsageError if the filter does not fit the columns of the stream."""
        delivery = self._endpoint.delivery_of(info)
        self.spec.check(delivery)
        self._readers.check(delivery)
        if self.spec.name is not None and self._endpoint.is_remote(info):
            raise only_at_owner("name=", info)
        self._filter_of(info, self.where)

    def _filter_of(self, info: StreamInfo, where: str) -> BatchFilter | None:
        """The filter of the subscription in a stream. Raises UsageError if it does not fit the
        columns of the stream."""
        if not where:
            return None
        from surecast.where.batches import batch_filter

        try:
            return batch_filter(where, info.schema)
        except FilterError as problem:
            if self.spec.info is not None:
                raise
            raise UsageError(f"stream {info.name!r}: {problem}") from None

    # ------------------------------------------------------------ another filter

    async def change(self, where: str) -> dict[str, int]:
        """Replace the filter (`Subscription.change`)."""
        buffer = self.buffer
        await buffer.ready()
        while True:
            if buffer.ended or self._closing is not None:
                raise UsageError("the subscription has ended")
            infos = {stream: progress.info for stream, progress in buffer.streams.items()}
            for info in infos.values():
                delivery = self._endpoint.delivery_of(info)
                if "where" not in delivery.verbs or not delivery.ordered:
                    raise not_supported("change(where=)", delivery)
            filters = {}
            for stream, info in infos.items():
                if stream in buffer.streams:
                    filters[stream] = await self._changed_filter(
                        buffer.streams[stream], info, where
                    )
            if filters.keys() == buffer.streams.keys() and not await self._lease_again(infos):
                break
        readers, self._leased_again = self._leased_again, {}
        self.where = where
        return buffer.change(filters, readers)

    async def _changed_filter(
        self, progress: StreamProgress, info: StreamInfo, where: str
    ) -> BatchFilter | None:
        """The new filter of a stream, whose schema may have been changed since `info`."""
        if progress.schema is not None:
            info = msgspec.structs.replace(info, schema=progress.schema.text)
        try:
            return self._filter_of(info, where)
        except UsageError:
            current = await self._endpoint.current(info.stream_id, info.name)
            if current is None or current.schema == info.schema:
                raise
            return self._filter_of(current, where)

    async def _lease_again(self, infos: dict[LogId, StreamInfo]) -> bool:
        """Find a reader for a stream that was received up to its stop, and whose reader was given
        to another subscription since. Returns False if there is no such stream."""
        for stream, info in infos.items():
            progress = self.buffer.streams[stream]
            taker = progress.reader.takers.get(stream)
            if progress.finished and taker is not None and stream not in self._leased_again:
                delivery = self._endpoint.delivery_of(info)
                reader = await self._readers.lease(delivery, stream, self.buffer)
                self._leased_again[stream] = reader
                return True
        return False

    # ------------------------------------------------------------ the beginning

    async def _begin(self) -> None:
        try:
            await self._attach_and_follow()
        except SurecastError as problem:
            self.buffer.fail(problem)

    async def _attach_and_follow(self) -> None:
        """Take the name of a named subscription, then follow the stream, or query for streams."""
        spec, buffer = self.spec, self.buffer
        if spec.name is not None:
            buffer.cursor = Cursor(
                spec.name, self._control, self._options, buffer.positions, buffer.fail
            )
            await buffer.cursor.attach()
        if spec.info is None:
            self._watch = self._control.watch(WhichStreams(spec.pattern), self._on_streams)
            return
        start = await self._find_start(spec.info)
        stop = await self._find_stop(spec.info, start)
        if not buffer.ended:
            self._follow(spec.info, await self._lease(spec.info), start, stop)
            await self._store_beginning()
            self._is_ready()

    async def _lease(self, info: StreamInfo) -> Reader:
        """The reader for the stream's delivery. It is opened for the first stream that needs it."""
        async with self._leasing:
            reader = self._leased.get(info.delivery)
            if reader is None:
                stream = None if self.spec.info is None else info.stream_id
                delivery = self._endpoint.delivery_of(info)
                reader = await self._readers.lease(delivery, stream, self.buffer)
                self._leased[info.delivery] = reader
            return reader

    def _on_streams(self, answer: Any) -> None:
        """Called with matching streams: first the existing ones, then new ones as they appear."""
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
            if not self._matched:
                self._log_no_match()
            if self.spec.stop is not None and self._watch is not None:
                self._control.drop(self._watch)  # streams that appear later are not read
            self._look_if_ready()

    def _log_no_match(self) -> None:
        """Log that no stream matches: a warning for a name, which may be misspelt."""
        if self.spec.stop is not None:
            log.warning("no stream matches %r: there is nothing to read", self.spec.pattern)
        elif self.spec.has_wildcard:
            log.info("no stream matches %r yet: waiting for one", self.spec.pattern)
        else:
            log.warning("there is no stream %r yet: waiting until it is created", self.spec.pattern)

    def _meet(self, info: StreamInfo, end: int) -> None:
        """Begin to read a matching stream, unless it is read already. `end` is its end now."""
        stream, start = info.stream_id, self.spec.start
        if stream in self.buffer.streams or stream in self._joining:
            return
        try:
            self._check(info)
        except UsageError as problem:
            if self.spec.has_wildcard and isinstance(problem, NotSupported):
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
        has_position, cursor = stream in self._stored(), self.buffer.cursor
        if self._complete or (cursor is not None and cursor.has_begun):
            start = "earliest"  # the stream is new, unless a position is stored: read all of it
        is_remote = self._endpoint.is_remote(info)
        if is_remote:
            end = 0  # this region does not know it
        needs_query = not has_position and (
            isinstance(start, datetime) or (is_remote and start == "latest")
        )
        begins = None if needs_query else self._known_start(info, start, end)
        reader = self._leased.get(info.delivery)
        stops_by_query = isinstance(self.spec.stop, datetime) or (
            is_remote and self.spec.stop == "latest"
        )
        if begins is None or reader is None or stops_by_query:
            self._joining[stream] = self._loop.create_task(self._join(info, begins, end))
        else:
            self._follow(info, reader, begins, self._known_stop(info, end))

    def _stored(self) -> dict[LogId, int]:
        """The stored positions of a named subscription, by stream."""
        return {} if self.buffer.cursor is None else self.buffer.cursor.stored

    def _known_start(self, info: StreamInfo, start: Start, end: int) -> int:
        """The first position to read, if no query is needed: a stored position, or `start`."""
        if stored := self._stored().get(info.stream_id):
            return stored
        if isinstance(start, int):
            return start
        if start != "latest":
            return 1
        # A stream without positions is followed from 0, which means its end (`Follow`).
        return end if self._endpoint.delivery_of(info).ordered else 0

    def _known_stop(self, info: StreamInfo, end: int) -> int:
        """The first position that is not read in a stream that ends at `end` now.

        With "latest" it includes all events that were acknowledged to this client. (If another
        region owns the stream, this region may not have received them yet.) If the stop is a time
        in the future, its position becomes known when that time has passed (`_stop_in_time`).
        """
        stop = self.spec.stop
        if stop == "latest":
            return max(end, self._endpoint.acknowledged_end(info.stream_id))
        return stop if isinstance(stop, int) else NEVER

    async def _find_stop(self, info: StreamInfo, start: int, end: int = 0) -> int:
        """The same as `_known_stop`, with a query to the region if necessary. `end` is 0 if the end
        of the stream is not known."""
        stop = self.spec.stop
        if isinstance(stop, datetime) and stop <= datetime.now(UTC):
            return await self._locate(info.stream_id, info.name, ns_of(stop))
        if stop == "latest" and not end:
            begins_at_end = self.spec.start == "latest" and info.stream_id not in self._stored()
            end = start if begins_at_end else await self._locate(info.stream_id, info.name, _NOW)
        return self._known_stop(info, end)

    async def _join(self, info: StreamInfo, start: int | None, end: int) -> None:
        """Open the reader of a stream, then follow the stream. If `start` is None, first query the
        region for the position of the start. `end` is the end of the stream."""
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
        """The first position to read in a stream whose end is not known; may query the region."""
        stream, start = info.stream_id, self.spec.start
        by_query = isinstance(start, datetime) or start == "latest"
        if stream in self._stored() or not by_query or not self._endpoint.delivery_of(info).ordered:
            return self._known_start(info, start, 1)  # which does not use the end in these cases
        time_ns = ns_of(start) if isinstance(start, datetime) else _NOW
        return await self._locate(stream, info.name, time_ns)

    async def _locate(self, stream: LogId, name: str, time_ns: int) -> int:
        """The position of the first event at or after a time; with _NOW, the stream's end."""
        located = await self._control.ask(WhereIs(stream, time_ns))
        if located.why:
            raise subscription_error(name, located.why)
        seq: int = located.seq
        return seq

    def _follow(self, info: StreamInfo, reader: Reader, start: int, stop: int = NEVER) -> None:
        """Add the stream to the buffer, which then follows it."""
        time, not_before_ns = self.spec.start, 0
        if isinstance(time, datetime) and info.stream_id not in self._stored():
            # The region's copy of the stream may end before that time. Then older events arrive,
            # which `not_before_ns` leaves out. If the time is in the future, the subscription
            # starts at the current end, and no event is left out.
            not_before_ns = ns_of(time) if time <= datetime.now(UTC) else 0
        ordered = self._endpoint.delivery_of(info).ordered
        before_ns = ns_of(self.spec.stop) if isinstance(self.spec.stop, datetime) else 0
        self.buffer.add(
            info,
            reader,
            start,
            not_before_ns,
            ordered=ordered,
            stop=stop,
            before_ns=before_ns,
            chosen=self._filter_of(info, self.where),
        )

    def _look_if_ready(self) -> None:
        """Become ready if all streams that existed at the beginning are followed."""
        followed = self._complete and not self._joining and not self.buffer.ended
        if followed and self._closing is None and self._beginning.done():
            self._beginning = self._loop.create_task(self._be_ready())

    async def _be_ready(self) -> None:
        try:
            await self._store_beginning()
            self._is_ready()
        except SurecastError as problem:
            self.buffer.fail(problem)

    def _is_ready(self) -> None:
        """Called when the streams that existed at the beginning are followed."""
        self.buffer.set_ready()
        stop = self.spec.stop
        if stop is not None:
            self.buffer.set_complete()
        if isinstance(stop, datetime) and self._stopping is None:
            self._stopping = self._loop.create_task(self._stop_in_time(stop))

    async def _stop_in_time(self, stop: datetime) -> None:
        """Wait for the time of the stop, then query the position of that time in each stream that
        has no stop position yet. (If the time had passed at the beginning, every stream has one.)
        """
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
        """Have a stream read only up to the first event at or after a time."""
        with suppress(StreamDeleted):  # the stream will end with its last event
            self.buffer.set_stop(stream, await self._locate(stream, name, time_ns))

    async def _store_beginning(self) -> None:
        """Store the start positions of a named subscription, so that the next subscription of this
        name begins there even if this one reads nothing."""
        cursor = self.buffer.cursor
        if cursor is not None:
            if self.spec.info is None:
                cursor.begin()
            await cursor.stored_at_least(cursor.all_positions())

    # ------------------------------------------------------------ changes of schemas

    def _learn(self, progress: StreamProgress) -> None:
        """Ask the region for the schema of a stream, in the background."""
        if progress.stream not in self._learning:
            task = self._loop.create_task(self._ask_schema(progress))
            self._learning[progress.stream] = task

    async def _ask_schema(self, progress: StreamProgress) -> None:
        """Ask until the answer extends the schema that is known. The server that answers may have
        indexed less than the one that sent the events. It may also have deleted the stream: then
        the names of the columns, whose events are obsolete, are not known any more."""
        known, missing = progress.schema, 0
        try:
            while progress.schema is known:
                info = await self._endpoint.current(progress.stream, progress.name)
                missing = 0 if info is not None else missing + 1
                if info is not None:
                    progress.take_schema(info.schema)
                elif missing >= UNLISTED_MAX:
                    log.warning("the schema of %r is not known any more", progress.name)
                    progress.unnamed = True
                    break
                if progress.schema is known:
                    await asyncio.sleep(ASK_AGAIN_S)
        except SurecastError as problem:
            self.buffer.fail(problem)
        finally:
            del self._learning[progress.stream]
            self.buffer.learned()

    # ------------------------------------------------------------ the end

    async def close(self, why: SurecastError | None = None, by: object = None) -> None:
        """Store the positions of a named subscription, then end the subscription.

        If `why` is given, the task that iterates gets it as an exception. `by` is the task or
        thread that closes, or None (`caller_unless_failing`).
        """
        if self.buffer.forked:
            return  # the parent continues to read
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
            for stream, reader in self._leased_again.items():  # `change` was interrupted
                reader.release(stream)
            for reader in self._leased.values():
                await self._readers.give_back(reader)

    async def _stop_beginning(self) -> None:
        """Cancel the tasks that find and follow streams."""
        tasks = [self._beginning, *self._joining.values(), *self._learning.values()]
        if self._stopping is not None:
            tasks.append(self._stopping)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if self._watch is not None:
            self._control.drop(self._watch)

    def forget(self) -> None:
        """Called when the user's Subscription is garbage-collected, in any thread."""
        if self.buffer.forked:
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._forget)

    def _forget(self) -> None:
        """Close in the background. If an event was being processed, inform the client."""
        if self._closing is None and not self._loop.is_closed():
            self._in_hand = self.buffer.in_hand()
            self._closing = self._loop.create_task(self._close(None))
            if self._in_hand and self.buffer.named:
                self._dropped(self)

    async def settle(self, by: object) -> None:
        """Called for a dropped subscription when the client is closed without an exception. In that
        case its loop was left by `break`, or by an exception that the program has handled. So the
        event that was being processed counts as processed, and its position is stored."""
        cursor = self.buffer.cursor
        if cursor is not None and self.buffer.is_processed(by):
            with suppress(SurecastError, TimeoutError):
                async with asyncio.timeout(self._options.close_timeout_ns / SECOND):
                    await cursor.store_later(self._in_hand)
