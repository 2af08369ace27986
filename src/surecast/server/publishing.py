"""Events that come by HTTP, published by a client inside the server.

A request is one `publish_many`: its events stand behind each other, unless it is larger than a
batch. A request that is sent again is published again: whoever needs exactly once uses the client.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from surecast.core.types import SECOND
from surecast.errors import (
    OwnerUnreachable,
    PublishError,
    QueueFull,
    StreamConfigMismatch,
    SurecastError,
    UsageError,
)
from surecast.runtime.book import show_address
from surecast.server.ndjson import Pair, parse_slices
from surecast.server.region import RegionServer

if TYPE_CHECKING:
    from surecast.client.connection import Client

__all__ = ["Publishing"]

CLOSE_NS = 1 * SECOND  # for what is under way when the process ends
SLICE_LINES = 500  # parsed at a time
STATUS: list[tuple[type[SurecastError], int]] = [
    (OwnerUnreachable, 503),
    (QueueFull, 503),
    (PublishError, 502),
    (StreamConfigMismatch, 409),
    (UsageError, 400),
]


class Publishing:
    """The client is made for the first request and kept."""

    def __init__(self, server: RegionServer) -> None:
        self.server = server
        self._client: Client | None = None
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
                stream = await (await self._connected()).stream(name)
                seqs = await stream.publish_many(
                    [value for _, value in pairs], keys=[key for key, _ in pairs]
                )
            return list(seqs.runs)
        except TimeoutError:
            raise HTTPException(
                504, f"not acknowledged within {timeout_s:g} s; it may be published yet"
            ) from None
        except SurecastError as problem:
            code = next((code for kind, code in STATUS if isinstance(problem, kind)), 500)
            raise HTTPException(code, str(problem)) from problem

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(SurecastError):  # whoever waits for an answer gets none, and knows
                await client.close()

    async def _connected(self) -> "Client":
        async with self._making:
            if self._client is None:
                from surecast.client import connect
                from surecast.client.options import ClientOptions

                node = self.server.replica
                assert node is not None
                assert node.address is not None
                url = f"surecast://{show_address(node.address)}"
                options = ClientOptions(close_timeout_ns=CLOSE_NS)
                token = self.server.config.node.token
                client = connect(url, token=token, options=options)
                self._client = await client.open()
            return self._client


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
