"""Lists, resets and deletes named subscriptions for HTTP requests; http.py uses it.

A *named subscription* is a read position in each stream that the region keeps for a client. The
head of the region's chain executes these requests. Any other server forwards them to the head,
through the endpoint that it also publishes with, so every server gives the same answers.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from surecast.core.names import matches
from surecast.core.streams import StreamInfo
from surecast.endpoint.subscriptions import AtTime, Begin, Subscriptions
from surecast.errors import SubscriptionInUse, SurecastError, UnknownSubscription, UsageError
from surecast.server.operations import SubscriptionList, SubscriptionReset
from surecast.server.publishing import Publishing
from surecast.server.region import RegionServer

__all__ = ["HttpSubscriptions"]

# The HTTP status for each kind of error.
STATUS: Final[list[tuple[type[SurecastError], int]]] = [
    (UnknownSubscription, 404),
    (SubscriptionInUse, 409),
    (UsageError, 400),
]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_NS_MAX: Final = (1 << 62) - 1  # nanoseconds since 1970: a time in the year 2116


class HttpSubscriptions:
    """The routes under /v1/subscriptions."""

    def __init__(self, server: RegionServer, publishing: Publishing) -> None:
        self._server = server
        self._publishing = publishing

    async def page(self, query: QueryParams) -> SubscriptionList:
        """A page of the list. `after` and `next` have the form NAME/STREAM, where STREAM is the id
        of a stream in hex: the page begins after this stream of this subscription."""
        name, _, stream = query.get("after", "").partition("/")
        try:
            after = name, bytes.fromhex(stream)
        except ValueError:
            raise HTTPException(400, "after must be `next` of the previous page") from None
        async with self._region() as region:
            infos, following = await region.page(after)
        next_page = "" if following is None else f"{following[0]}/{following[1].hex()}"
        return SubscriptionList(infos, next_page)

    async def reset(self, name: str, query: QueryParams) -> SubscriptionReset:
        begin, force = parse_begin(query.get("start", "")), parse_force(query)
        streams = query.getlist("stream") or None
        async with self._region() as region:
            positions = await region.reset(name, begin, streams, force)
        return SubscriptionReset(name, positions)

    async def delete(self, name: str, query: QueryParams) -> None:
        force = parse_force(query)
        async with self._region() as region:
            await region.delete(name, force)

    @asynccontextmanager
    async def _region(self) -> AsyncIterator[Subscriptions]:
        """The region's subscriptions; their exceptions become HTTP answers."""
        timeout_s = self._server.config.http.publish_timeout_ns / 1e9
        try:
            async with asyncio.timeout(timeout_s):
                endpoint = await self._publishing.connected()
                yield Subscriptions(endpoint.control, self._ends)
        except TimeoutError:
            raise HTTPException(
                504, f"the region's head did not answer within {timeout_s:g} s; try again"
            ) from None
        except SurecastError as problem:
            code = next((code for kind, code in STATUS if isinstance(problem, kind)), 500)
            raise HTTPException(code, str(problem)) from problem

    async def _ends(self, pattern: str) -> list[tuple[StreamInfo, int]]:
        """The streams whose names match `pattern`, each with its committed end."""
        service = self._server.streams
        # A name may have belonged to streams that are deleted; `named` returns the existing one.
        return [
            (stream.info, service.committed_end(stream.info.stream_id))
            for stream in service.streams.values()
            if matches(pattern, stream.info.name) and service.named(stream.info.name) == stream.info
        ]


def parse_begin(text: str) -> Begin:
    """The place in ?start=: "earliest", "latest", a position such as "17", or a time with a zone
    such as "2026-01-31T12:00:00Z"."""
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return int(text)
    time_ns = -1
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            time_ns = (time - _EPOCH) // timedelta(microseconds=1) * 1000
    except ValueError:
        pass
    if not 0 <= time_ns <= _TIME_NS_MAX:
        raise HTTPException(
            400,
            "start is earliest, latest, a position, or a time from 1970 to 2115 with a zone such "
            f"as 2026-01-31T12:00:00Z, not {text!r:.80}",
        )
    return AtTime(time_ns)


def parse_force(query: QueryParams) -> bool:
    text = query.get("force", "false")
    if text not in ("true", "false"):
        raise HTTPException(400, f"force is true or false, not {text!r}")
    return text == "true"
