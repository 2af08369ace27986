"""The client: one connection to a region, its streams and its subscriptions."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from surecast.client.stream import Stream
from surecast.client.subscription import Subscription
from surecast.client.subscription_task import (
    Start,
    SubscriptionSpec,
    SubscriptionTask,
    check_start,
)
from surecast.columns.rules import Policy
from surecast.core.endpoint import WhereIs, WhichStreams
from surecast.core.names import is_name, is_pattern
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.core.types import SECOND, LogId
from surecast.endpoint.discovery import parse_url
from surecast.endpoint.endpoint import Endpoint
from surecast.endpoint.error_messages import bad_name, subscription_error
from surecast.endpoint.forking import forked, watch
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.publishers import Outbox
from surecast.endpoint.readers import Readers
from surecast.errors import Closed, NotSupported, PublishError, UsageError

if TYPE_CHECKING:
    from surecast.server.local import LocalRegion

__all__ = ["Client"]

log = logging.getLogger("surecast.client")


class Client:
    """A client of a region. `surecast.connect(url)` and `surecast.local()` make one.

        async with surecast.connect("surecast://127.0.0.1:7400") as client:
            stream = await client.stream("orders.eu")

    `client = await surecast.connect(url)` works, too; then `await client.close()` at the end. It
    reconnects by itself, and resumes without loss or repetition. All methods are for the event
    loop it was opened in; `surecast.sync` is for programs without one.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        mesh: bool = False,
        options: ClientOptions | None = None,
        local: LocalRegion | None = None,
    ) -> None:
        addresses = [] if local is not None else parse_url(url)
        self._endpoint = Endpoint(addresses, token=token, options=options, broken=self._broken)
        self._endpoint.is_wanted = self._is_reading
        self._mesh = mesh
        self._local = local
        self._subscriptions: weakref.WeakSet[SubscriptionTask] = weakref.WeakSet()
        self._readers: Readers
        self._state: Literal["new", "open", "closed", "forked"] = "new"

    # ------------------------------------------------------------ its life

    async def open(self) -> Client:
        """Connect. `async with` and `await surecast.connect(...)` do it for you."""
        if self._state == "open":
            return self
        self._check_not_closed()
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
        watch(self)
        return self

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
        if problem is None:
            await self.close()
            return
        try:
            await self.close()
        except (PublishError, Closed) as lost:  # must not hide what ended the block
            log.warning("while closing after %r: %s", problem, lost)

    async def close(self) -> None:
        """Publish what is under way, store the places of named subscriptions, disconnect.

        Raises what the last `flush()` would have. What is not acknowledged within
        `ClientOptions.close_timeout_ns` is given up: it may or may not be published.
        """
        if self._state == "new":
            self._state = "closed"
        if self._state != "open":  # in a forked child the parent closes it
            return
        self._state = "closed"
        try:
            closed = "the client was closed while this subscription was read"
            await asyncio.gather(*(task.close(Closed(closed)) for task in self._subscriptions))
            await self._flush_before_close()
        finally:
            await self._stop()

    async def _flush_before_close(self) -> None:
        timeout_s = self._endpoint.options.close_timeout_ns / SECOND
        try:
            async with asyncio.timeout(timeout_s):
                await self._endpoint.flush()
        except TimeoutError:
            left = sum(outbox.unacknowledged for outbox in self._endpoint.outboxes.values())
            raise Closed(
                f"closed with {left} batches not acknowledged after "
                f"{timeout_s:g} s: they may or may not be published"
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
            raise Closed("this client is closed: make another with surecast.connect(...)")

    def _check(self) -> None:
        self._check_not_closed()
        if self._state == "new":
            raise UsageError(
                "the client is not connected: use `async with surecast.connect(...) as client` or "
                "`client = await surecast.connect(...)`"
            )

    # ------------------------------------------------------------ the region

    @property
    def region(self) -> str:
        """The name of the region it is connected to."""
        self._check()
        return self._endpoint.link.region.name

    @property
    def servers(self) -> dict[str, tuple[str, int]]:
        """Where the region's servers are reached, by their names."""
        self._check()
        return dict(self._endpoint.link.region.replicas)

    @property
    def http(self) -> dict[str, str]:
        """Where the region's servers show their state, by their names."""
        self._check()
        return dict(self._endpoint.link.region.http)

    def _broken(self, problem: str) -> None:
        for task in list(self._subscriptions):
            task.buffer.fail(Closed(problem))

    def _is_reading(self) -> bool:
        return any(not task.buffer.ended for task in self._subscriptions)

    # ------------------------------------------------------------ streams

    async def stream(
        self,
        name: str,
        *,
        retain: Policy | None = None,
        delivery: str = "",
        options: Mapping[str, str] | None = None,
        schema: Any = None,
    ) -> Stream:
        """Open a stream, or create it.

            stream = await client.stream("cache.invalidate", retain=surecast.latest_per_key())

        `delivery` says how the events of a new stream reach those who read them (default
        "broadcast"), with `options` of that delivery, and `retain` what it keeps (default
        `keep_all()`). All of them must agree with what an old stream has; leave them out to take
        the stream as it is.
        """
        self._check()
        if schema is not None:
            raise NotSupported("schema= comes with a later version; events are bytes")
        if not isinstance(delivery, str):
            raise UsageError(f"delivery is the name of a delivery, not {delivery!r}")
        if retain is not None and not isinstance(retain, Policy):
            raise UsageError(
                "retain is keep_all(), keep_last(n), keep_for(timedelta) or latest_per_key(), not "
                f"{retain!r}"
            )
        if not isinstance(name, str) or not is_name(name):
            raise UsageError(bad_name(name))
        spec = StreamSpec(retain, delivery, options=_sorted_options(options))
        info = await self._endpoint.open_stream(name, spec)
        return Stream(self, info, self._endpoint.outbox(info))

    def _supports(self, info: StreamInfo, verb: str) -> bool:
        return self._endpoint.supports(info, verb)

    def _check_verb(self, info: StreamInfo, verb: str, said: str) -> None:
        self._endpoint.check_verb(info, verb, said)

    def _named_outbox(self, info: StreamInfo, publisher: bytes, pub_no: int) -> Outbox:
        self._check()
        return self._endpoint.named_outbox(info, publisher, pub_no)

    async def streams(self, pattern: str = ">") -> list[StreamInfo]:
        """The streams that match, as this region knows them, by name."""
        return [info for info, _ in await self.ends(pattern)]

    async def ends(self, pattern: str = ">") -> list[tuple[StreamInfo, int]]:
        """The streams that match, by name, and the first position that each does not have yet."""
        self._check()
        _check_pattern(pattern)
        found: dict[bytes, tuple[StreamInfo, int]] = {}
        complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(answer: Any) -> None:
            if complete.done():
                return
            if isinstance(answer, Exception):
                complete.set_exception(answer)
            elif answer.why:
                complete.set_exception(subscription_error(pattern, answer.why))
            else:
                for info, end in zip(answer.infos, answer.ends, strict=True):
                    found[info.stream_id] = info, end
                if answer.complete:
                    complete.set_result(None)

        token = self._endpoint.control.watch(WhichStreams(pattern), told)
        try:
            await complete
        finally:
            self._endpoint.control.drop(token)
        return sorted(found.values(), key=lambda one: one[0].name)

    async def locate(self, stream: LogId, time_ns: int) -> int:
        """The position of the first event not older than `time_ns`; the end if there is none."""
        self._check()
        located = await self._endpoint.control.ask(WhereIs(stream, time_ns))
        if located.why:
            raise subscription_error(stream.hex(), located.why)
        found: int = located.seq
        return found

    async def flush(self) -> None:
        """Wait until all that was published is acknowledged.

        Raises PublishError if events of `publish_soon` could not be published since the last time.
        """
        self._check()
        await self._endpoint.flush()

    # ------------------------------------------------------------ subscriptions

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start = "latest",
        voids: bool = False,
        name: str | None = None,
        ack: Literal["auto", "manual"] = "auto",
        where: Any = None,
    ) -> Subscription:
        """Read all streams that match, also those that appear later (from their first event on).

            async for event in client.subscribe("cache.>", start="earliest"):
                print(event.stream, event.seq, event.value)

        In a pattern `*` stands for one token and a last `>` for one or more; a name without them
        is waited for until the stream exists. Order holds within each stream. The rest as in
        `Stream.subscribe`.
        """
        self._check()
        _check_pattern(pattern)
        return self._subscribe(pattern, None, start, voids, name, ack, where)

    def _subscribe(
        self,
        pattern: str,
        info: StreamInfo | None,
        start: Start,
        voids: bool,
        name: str | None,
        ack: str,
        where: Any,
    ) -> Subscription:
        self._check()
        check_start(start)
        if where is not None:
            raise NotSupported("where= comes with delivery='filtered', in a later version")
        if ack not in ("auto", "manual"):
            raise UsageError(f'ack is "auto" or "manual", not {ack!r}')
        if ack == "manual" and name is None:
            raise UsageError(
                'ack="manual" needs a name=: only a named subscription keeps its place'
            )
        if name is not None and not is_name(name):
            raise UsageError(
                f"a subscription's name is made like a stream's, such as billing.eu, not {name!r}"
            )
        spec = SubscriptionSpec(pattern, info, start, voids, name, ack == "manual")
        task = SubscriptionTask(spec, self._endpoint, self._readers)
        self._subscriptions.add(task)
        return Subscription(task)


def _sorted_options(options: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"options are names and values, such as {{'rate': '5'}}, not {options!r}")
    found = dict(options or {})
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"options have names and values of type str, not {key!r}: {value!r}")
    return tuple(sorted(found.items()))


def _check_pattern(pattern: str) -> None:
    if not isinstance(pattern, str) or not is_pattern(pattern):
        raise UsageError(
            f"{pattern!r} is no name or pattern of streams: tokens with dots between them, * for "
            "any one token, > at the end for one or more, such as orders.* or orders.>"
        )
