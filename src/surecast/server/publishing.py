"""Events that come by HTTP, published by an endpoint inside the server.

A request is one `publish_many`: its events stand behind each other, unless it is larger than a
batch. A request that is sent again is published again: whoever needs exactly once uses the client.
"""

import asyncio
from contextlib import suppress

from starlette.exceptions import HTTPException

from surecast.core.streams import StreamSpec
from surecast.endpoint.chunks import chunks_of
from surecast.endpoint.endpoint import Endpoint, send_all
from surecast.errors import (
    NotSupported,
    OwnerUnreachable,
    PublishError,
    QueueFull,
    StreamConfigMismatch,
    SurecastError,
    UsageError,
)
from surecast.server.ndjson import Pair, parse_slices
from surecast.server.region import RegionServer

__all__ = ["Publishing"]

CLOSE_S = 1.0  # for what is under way when the process ends
SLICE_LINES = 500  # parsed at a time
STATUS: list[tuple[type[SurecastError], int]] = [
    (OwnerUnreachable, 503),
    (NotSupported, 501),
    (QueueFull, 503),
    (PublishError, 502),
    (StreamConfigMismatch, 409),
    (UsageError, 400),
]


class Publishing:
    """The endpoint is made for the first request and kept."""

    def __init__(self, server: RegionServer) -> None:
        self.server = server
        self._endpoint: Endpoint | None = None
        self._closed = False
        self._making = asyncio.Lock()

    async def publish(
        self, name: str, body: bytes, lines: bool, key: str | None
    ) -> list[tuple[int, int]]:
        """The positions the events were given, as half-open runs."""
        timeout_s = self.server.config.http.publish_timeout_ns / 1e9
        try:
            pairs = await _parsed(body) if lines else [(_key(key), body)]
            if not pairs:
                raise UsageError("no events in the request")
            async with asyncio.timeout(timeout_s):
                endpoint = await self._connected()
                outbox = endpoint.outbox(await endpoint.open_stream(name, StreamSpec()))
                values, keys = [value for _, value in pairs], [key for key, _ in pairs]
                chunks = chunks_of(outbox.stream, values, keys, None, outbox.options)
                return await send_all(outbox, chunks)
        except TimeoutError:
            raise HTTPException(
                504, f"not acknowledged within {timeout_s:g} s; it may be published yet"
            ) from None
        except SurecastError as problem:
            code = next((code for kind, code in STATUS if isinstance(problem, kind)), 500)
            raise HTTPException(code, str(problem)) from problem

    async def close(self) -> None:
        """What is under way gets a moment; whoever waits then gets no answer, and knows."""
        self._closed = True
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            with suppress(SurecastError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await endpoint.flush()
            await endpoint.stop("the server is about to end")

    async def _connected(self) -> Endpoint:
        async with self._making:
            if self._closed:
                raise HTTPException(503, "this process is about to end; ask another replica")
            if self._endpoint is None:
                node = self.server.replica
                assert node is not None
                assert node.address is not None
                endpoint = Endpoint([node.address], token=self.server.config.node.token)
                await endpoint.open()
                self._endpoint = endpoint
            return self._endpoint


async def _parsed(body: bytes) -> list[Pair]:
    """The events of a request, a slice at a time: a long one must not hold the servers' loop."""
    pairs: list[Pair] = []
    slices = parse_slices(body, SLICE_LINES)
    for some in slices:
        pairs += some
        await asyncio.sleep(0)
    return pairs


def _key(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
