"""Client: the object that `surecast.connect` returns, the public interface to one region.

A client checks arguments, applies time-outs, opens streams and begins subscriptions. It
communicates with the servers through an `Endpoint` (`surecast.endpoint`).
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Generator, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from surecast.client.rules import ns_of, where_text
from surecast.client.stream import Stream, schema_text_of
from surecast.client.subscription import Subscription
from surecast.client.subscription_task import (
    Start,
    Stop,
    SubscriptionSpec,
    SubscriptionTask,
    caller_unless_failing,
    check_start,
    check_stop,
)
from surecast.client.timeouts import Timeout, seconds_of, timed_out, within
from surecast.columns.rules import Policy, check_policy
from surecast.core.endpoint import WhereIs
from surecast.core.names import is_name, is_pattern
from surecast.core.policies import as_policy
from surecast.core.status import SubscriptionInfo
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.core.types import SECOND, LogId
from surecast.endpoint.discovery import parse_url, show_url
from surecast.endpoint.endpoint import Endpoint
from surecast.endpoint.error_messages import bad_name, subscription_error
from surecast.endpoint.forking import call_on_fork, forked
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.publishers import Outbox
from surecast.endpoint.readers import Readers
from surecast.endpoint.subscriptions import AtTime, Subscriptions
from surecast.errors import Closed, PublishError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from surecast.server.local import LocalRegion

__all__ = ["Client"]

log = logging.getLogger("surecast.client")

# How many named subscriptions that were garbage-collected without `close()` are remembered
# (`Client._on_dropped`). If one is forgotten, the last event that it delivered is not acknowledged,
# so this event is delivered again.
DROPPED_MAX: Final = 1000


class Client:
    """A client of a region, created by `surecast.connect(url)` or `surecast.local()`.

        async with surecast.connect("surecast://127.0.0.1:7400") as client:
            stream = await client.stream("orders.eu")

    `client = await surecast.connect(url)` works, too; then call `await client.close()` at the end.
    A client reconnects automatically and resumes without loss or repetition. All methods must be
    called in the event loop in which it was opened. Programs without an event loop use
    `surecast.sync`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        mesh: bool = False,
        options: ClientOptions | None = None,
        local: LocalRegion | None = None,
        timeout: Timeout = None,
    ) -> None:
        self._open_s = seconds_of(timeout)  # the default time-out of `open`
        addresses = [] if local is not None else parse_url(url)
        self._endpoint = Endpoint(addresses, token=token, options=options, broken=self._broken)
        self._endpoint.is_wanted = self._is_reading
        self._mesh = mesh
        self._local = local  # the region inside this process, of `surecast.local`
        self._subscriptions: weakref.WeakSet[SubscriptionTask] = weakref.WeakSet()
        # Named subscriptions that were garbage-collected without `close()`, by name.
        self._dropped: dict[str, SubscriptionTask] = {}
        self._readers: Readers  # once the client is open
        self._state: Literal["new", "open", "closed", "forked"] = "new"

    # ------------------------------------------------------------ opening and closing

    async def open(self, *, timeout: Timeout = None) -> Client:
        """Connect. `async with` and `await surecast.connect(...)` call this method.

        The default of `timeout` is the `timeout` of `surecast.connect`.
        """
        if self._state == "open":
            return self
        self._check_not_closed()
        addresses = self._endpoint.link.addresses
        waited_for = f"an answer from {show_url(addresses)}" if addresses else "the region to start"
        async with within(self._open_s if timeout is None else timeout, waited_for):
            await self._open()
        return self

    async def _open(self) -> None:
        try:
            if self._local is not None:
                await self._local.start()
                self._endpoint.link.addresses = parse_url(self._local.url)
            place = await self._endpoint.open(self._mesh)
            self._readers = Readers(self._endpoint.link, place, self._endpoint.options)
        except BaseException:
            await self._endpoint.stop("the client could not be opened")
            if self._local is not None:
                await self._local.stop()
            raise
        self._state = "open"
        call_on_fork(self)

    def __await__(self) -> Generator[Any, None, Client]:
        return self.open().__await__()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(problem, asyncio.current_task() if problem is None else None)

    async def _leave(self, problem: BaseException | None, by: object) -> None:
        """Close at the end of an `async with` block, which has ended with the exception `problem`
        or without one (None). For `by` see `_close`."""
        try:
            await self._close(by)
        except (PublishError, Closed) as lost:
            if problem is None:
                raise
            # `problem` is raised, so this error can only be logged.
            cancelled = isinstance(problem, asyncio.CancelledError)
            ended = "was cancelled" if cancelled else f"ended with {type(problem).__name__}"
            log.warning("the client was closed because its `with` block %s: %s", ended, lost)

    async def close(self, *, timeout: Timeout = None) -> None:
        """Finish publishing, store the positions of named subscriptions, disconnect.

        Raises the same errors as `flush()`. The client waits for acknowledgements of published
        events for at most `ClientOptions.close_timeout` and then raises Closed. If `timeout` is
        given, it is the limit instead, and the error is TimedOut. Events that are not acknowledged
        by then may or may not be published. The client is closed in any case. The last event that
        each named subscription has delivered is acknowledged, unless `close` is called while an
        exception is handled, or another task is still processing the event.
        """
        await self._close(caller_unless_failing(asyncio.current_task()), seconds_of(timeout))

    async def _close(self, by: object, limit_s: float | None = None) -> None:
        """Close the client. `by` is the task or thread that closes it. The last event of a named
        subscription is acknowledged if it was received by `by`, or by a task that has ended without
        an error. If `by` is None, the caller is handling an exception, and no last event is
        acknowledged. `limit_s` is the `timeout` of `close`."""
        if self._state == "new":
            self._state = "closed"
        if self._state != "open":  # closed before, or this process is a forked child
            return
        self._state = "closed"
        try:
            await self._finish(limit_s, by)
        finally:
            await self._stop()

    async def _finish(self, limit_s: float | None, by: object) -> None:
        """Close the subscriptions, then wait until published events are acknowledged."""
        closed = "the client was closed while this subscription was read"  # for its readers
        scope = asyncio.timeout(limit_s)
        try:
            async with scope:
                subscriptions = list(self._subscriptions)
                await asyncio.gather(*(task.close(Closed(closed), by) for task in subscriptions))
                if by is not None:
                    await asyncio.gather(*(task.settle(by) for task in self._dropped.values()))
                if limit_s is None:
                    await self._flush_before_close()
                else:
                    await self._endpoint.flush()
        except TimeoutError:
            if limit_s is None or not scope.expired():
                raise
            left = self._unacknowledged
            raise timed_out(
                limit_s,
                f"{left} {'batch' if left == 1 else 'batches'} to be acknowledged, and for the "
                "positions of subscriptions to be stored; both may or may not have happened. The "
                "client is closed",
                maybe_taken=left > 0,
            ) from None

    @property
    def _unacknowledged(self) -> int:
        """The number of unacknowledged batches."""
        return sum(outbox.unacknowledged for outbox in self._endpoint.outboxes.values())

    async def _flush_before_close(self) -> None:
        """Wait for acknowledgements for at most `ClientOptions.close_timeout`."""
        timeout_s = self._endpoint.options.close_timeout_ns / SECOND
        try:
            async with asyncio.timeout(timeout_s):
                await self._endpoint.flush()
        except TimeoutError:
            left = self._unacknowledged
            raise Closed(
                f"closed with {left} {'batch' if left == 1 else 'batches'} not acknowledged after "
                f"{timeout_s:g} s: {'it' if left == 1 else 'they'} may or may not be published"
            ) from None

    async def _stop(self) -> None:
        await self._endpoint.stop("the client is closed")
        await self._readers.stop()
        if self._local is not None:
            await self._local.stop()

    def _on_fork(self) -> None:
        if self._state == "open":
            self._state = "forked"

    def _check_not_closed(self) -> None:
        if self._state == "forked":
            raise forked()
        if self._state == "closed":
            raise Closed("this client is closed: create another with surecast.connect(...)")

    def _check(self) -> None:
        """Raise an error unless the client is open."""
        self._check_not_closed()
        if self._state == "new":
            raise UsageError(
                "the client is not connected: use `async with surecast.connect(...) as client` or "
                "`client = await surecast.connect(...)`"
            )

    # ------------------------------------------------------------ the region

    @property
    def region(self) -> str:
        """The name of the region that this client is connected to."""
        self._check()
        return self._endpoint.link.region.name

    @property
    def servers(self) -> dict[str, tuple[str, int]]:
        """The addresses of the region's servers, by name."""
        self._check()
        return dict(self._endpoint.link.region.replicas)

    @property
    def http(self) -> dict[str, str]:
        """The HTTP addresses of the region's servers, by name."""
        self._check()
        return dict(self._endpoint.link.region.http)

    def _broken(self, problem: str) -> None:
        """Called after an internal error of the endpoint: all subscriptions fail."""
        for task in list(self._subscriptions):
            task.buffer.fail(Closed(problem))

    def _is_reading(self) -> bool:
        """Whether any subscription has not ended."""
        return any(not task.buffer.ended for task in self._subscriptions)

    # ------------------------------------------------------------ streams

    async def stream(
        self,
        name: str,
        *,
        retain: Policy | str | None = None,
        delivery: str = "",
        options: Mapping[str, str] | None = None,
        schema: pa.Schema | str | None = None,
        create: bool = True,
        timeout: Timeout = None,
    ) -> Stream:
        """Open a stream, or create it.

            stream = await client.stream("cache.invalidate", retain=surecast.latest_per_key())
            trades = await client.stream("trades", schema="sym string not null, px float64")

        For a new stream, `delivery` says how its events reach readers (default "broadcast"), and
        `options` are options of that delivery. `retain` says which events the stream keeps
        (default `keep_all()`, or as text "keep-all", see docs/client.md). `schema` gives events
        typed attributes beside key and value: a `pyarrow.Schema`, or text. For an existing stream,
        these arguments must agree with those that it was created with; leave them out to use the
        stream as it is. An earlier version of the schema agrees, too (see `Stream.change`). After
        TimedOut a new stream may still be created. `create=False` only opens an existing stream,
        and raises UsageError if this region knows no stream of that name.

        Names that begin with `_` are meant for internal streams: `streams()`, and patterns that
        begin with `*` or `>`, leave them out.
        """
        self._check()
        if not isinstance(delivery, str):
            raise UsageError(f"delivery is a name such as 'broadcast', not {delivery!r}")
        policy = None if retain is None else as_policy(retain)
        if policy is not None:
            check_policy(policy)
        if not isinstance(name, str) or not is_name(name):
            raise UsageError(bad_name(name))
        spec = StreamSpec(policy, delivery, schema_text_of(schema), _sorted_options(options))
        if not create:
            if spec != StreamSpec():
                raise UsageError(
                    "create=False opens a stream as it is: leave out retain=, delivery=, options= "
                    "and schema="
                )
            known = await self.streams(name, timeout=timeout)
            if not known:
                raise UsageError(
                    f"this region has no stream named {name!r}: correct the name (streams() lists "
                    "them), or leave out create=False to create it"
                )
            return Stream(self, known[0], self._endpoint.outbox(known[0]))
        waited_for = f"the region to open {name!r}; the stream may still be created"
        async with within(timeout, waited_for):
            info = await self._endpoint.open_stream(name, spec)
        return Stream(self, info, self._endpoint.outbox(info))

    def _supports(self, info: StreamInfo, verb: str) -> bool:
        return self._endpoint.supports(info, verb)

    def _check_verb(self, info: StreamInfo, verb: str, call: str) -> None:
        self._endpoint.check_verb(info, verb, call)

    def _named_outbox(self, info: StreamInfo, publisher: bytes, pub_no: int) -> Outbox:
        self._check()
        return self._endpoint.named_outbox(info, publisher, pub_no)

    async def streams(self, pattern: str = ">", *, timeout: Timeout = None) -> list[StreamInfo]:
        """The streams of this region that match the pattern, ordered by name."""
        return [info for info, _ in await self.ends(pattern, timeout=timeout)]

    async def ends(
        self, pattern: str = ">", *, timeout: Timeout = None
    ) -> list[tuple[StreamInfo, int]]:
        """The streams that match the pattern, ordered by name, each with its end: the position that
        its next event gets."""
        self._check()
        _check_pattern(pattern)
        async with within(timeout, f"the region to list the streams that match {pattern!r}"):
            matching = await self._endpoint.matching(pattern)
        return sorted(matching, key=lambda match: match[0].name)

    async def locate(self, stream_id: bytes, time: datetime, *, timeout: Timeout = None) -> int:
        """The position of the first event of a stream that is not older than `time`, or the end of
        the stream if there is no such event.

        seq = await client.locate(stream.stream_id, datetime.now(UTC) - timedelta(hours=1))
        """
        return await self._locate(stream_id, ns_of(time), timeout)

    async def _locate(self, stream: LogId, time_ns: int, timeout: Timeout = None) -> int:
        """The same as `locate`, with the time in nanoseconds since 1970. A `time_ns` of -1 asks for
        the end of the stream."""
        self._check()
        if not isinstance(stream, bytes):
            raise UsageError(f"a stream's id is bytes (Stream.stream_id), not {stream!r:.60}")
        async with within(timeout, f"the region to find a time in the stream {stream.hex()}"):
            located = await self._endpoint.control.ask(WhereIs(stream, time_ns))
        if located.why:
            raise subscription_error(stream.hex(), located.why)
        seq: int = located.seq
        return seq

    async def flush(self, *, timeout: Timeout = None) -> None:
        """Wait until all published events are acknowledged.

        Raises PublishError if events of `publish_soon` have failed since the last call of `flush`.
        After TimedOut, publishing continues.
        """
        self._check()
        waited_for = "published events to be acknowledged; publishing continues"
        async with within(timeout, waited_for, maybe_taken=True):
            await self._endpoint.flush()

    # ------------------------------------------------------------ subscriptions

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start = "latest",
        stop: Stop | None = None,
        voids: bool = False,
        name: str | None = None,
        ack: Literal["auto", "manual"] = "auto",
        where: str | None = None,
        timeout: Timeout = None,
    ) -> Subscription:
        """Read all streams whose names match the pattern.

            async for event in client.subscribe("cache.>", start="earliest"):
                print(event.stream, event.seq, event.value)

        In a pattern `*` stands for one token and a final `>` for one or more tokens. Events are in
        order within each stream. A stream that is created later is read from its first event on;
        this also holds for a name without `*` and `>` if there is no such stream yet. The other
        arguments are those of `Stream.subscribe`. A filter (`where`) must fit the columns of every
        stream; the first one that it does not fit ends the subscription with an error.

        With a `stop`, only the streams that exist at the beginning are read, each up to the stop.
        Then the subscription ends. It ends at once if no stream matches.
        """
        self._check()
        _check_pattern(pattern)
        return self._subscribe(pattern, None, start, voids, name, ack, where, stop, timeout)

    async def subscriptions(self, *, timeout: Timeout = None) -> list[SubscriptionInfo]:
        """The named subscriptions of this region: positions, lag, and whether a client reads.

        for info in await client.subscriptions():
            print(info.name, info.lag, info.connected)
        """
        self._check()
        async with within(timeout, "the region to list its named subscriptions"):
            return await self._named_subscriptions.everything()

    async def reset_subscription(
        self,
        name: str,
        start: Start,
        *,
        streams: str | Iterable[str] | None = None,
        force: bool = False,
        timeout: Timeout = None,
    ) -> dict[str, int]:
        """Move a named subscription: its next reader begins at `start`.

            await client.reset_subscription("billing", "earliest")

        `streams` are names or patterns; the default is all streams in which the subscription has a
        position. Returns the new position in each stream. Raises SubscriptionInUse while a client
        reads under the name. With `force` the position is moved nevertheless: that reader gets the
        error Fenced, and its later acknowledgements have no effect.
        """
        self._check()
        check_start(start)
        begin: Any = AtTime(ns_of(start)) if isinstance(start, datetime) else start
        wanted = [streams] if isinstance(streams, str) else streams
        waited_for = f"the region to reset {name!r}; the subscription may still be reset"
        async with within(timeout, waited_for):
            return await self._named_subscriptions.reset(name, begin, wanted, force)

    async def delete_subscription(
        self, name: str, *, force: bool = False, timeout: Timeout = None
    ) -> None:
        """Delete a named subscription and its positions; `force` as in `reset_subscription`.

        Raises UnknownSubscription if there is no subscription of that name.
        """
        self._check()
        waited_for = f"the region to delete {name!r}; the subscription may still be deleted"
        async with within(timeout, waited_for):
            await self._named_subscriptions.delete(name, force)

    @property
    def _named_subscriptions(self) -> Subscriptions:
        """The named subscriptions of the region."""
        return Subscriptions(self._endpoint.control, self.ends)

    def _subscribe(
        self,
        pattern: str,
        info: StreamInfo | None,
        start: Start,
        voids: bool,
        name: str | None,
        ack: str,
        where: str | None,
        stop: Stop | None,
        timeout: Timeout,
    ) -> Subscription:
        self._check()
        check_start(start)
        check_stop(stop)
        timeout_s = seconds_of(timeout)
        text = where_text(where)
        if ack not in ("auto", "manual"):
            raise UsageError(f'ack is "auto" or "manual", not {ack!r}')
        if ack == "manual" and name is None:
            raise UsageError(
                'ack="manual" needs a name=: only a named subscription keeps its position'
            )
        if name is not None and not is_name(name):
            raise UsageError(
                "a subscription's name follows the rules of stream names, such as billing.eu, not "
                f"{name!r}"
            )
        spec = SubscriptionSpec(pattern, info, start, voids, name, ack == "manual", stop, text)
        task = SubscriptionTask(spec, self._endpoint, self._readers, self._on_dropped)
        if name is not None:
            # The last event of a garbage-collected subscription of this name is delivered to the
            # new subscription, so it must not be acknowledged when the client is closed.
            self._dropped.pop(name, None)
        self._subscriptions.add(task)
        return Subscription(task, timeout_s)

    def _on_dropped(self, task: SubscriptionTask) -> None:
        """Called when the Subscription object of a named subscription was garbage-collected without
        `close()`, usually after a `break` in `async for`. Whether the program has processed the
        last event that it got is not known yet: if the client is closed later without an exception,
        that event is acknowledged. So the subscription is kept here until then."""
        assert task.spec.name is not None
        self._dropped[task.spec.name] = task
        if len(self._dropped) > DROPPED_MAX:
            del self._dropped[next(iter(self._dropped))]


def _sorted_options(options: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """The options of a delivery, checked, as pairs in the order of their names."""
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"options are names and values, such as {{'rate': '5'}}, not {options!r}")
    items = dict(options or {})
    for key, value in items.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"options have names and values of type str, not {key!r}: {value!r}")
    return tuple(sorted(items.items()))


def _check_pattern(pattern: str) -> None:
    if not isinstance(pattern, str) or not is_pattern(pattern):
        raise UsageError(
            f"{pattern!r} is not a valid stream name or pattern: use tokens with dots between "
            "them, * for one token, > at the end for one or more, such as orders.* or orders.>"
        )
