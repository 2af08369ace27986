"""Events that come by HTTP, published by an endpoint inside the server.

A request is one `publish_many`: its events stand behind each other, unless it is larger than a
batch. A request that is sent again is published again: whoever needs exactly once uses the client.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
from starlette.exceptions import HTTPException

from surecast.columns.batch import CONFIG, Batch
from surecast.columns.rules import End, encode_policy
from surecast.core.policies import parse_policy
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.endpoint.chunks import Chunk, chunks_of
from surecast.endpoint.endpoint import Endpoint, send_all
from surecast.endpoint.publishers import Outbox
from surecast.errors import (
    NotSupported,
    OwnerUnreachable,
    PublishError,
    QueueFull,
    StreamConfigMismatch,
    StreamDeleted,
    SurecastError,
    UsageError,
)
from surecast.server.ndjson import Pair, parse_slices
from surecast.server.operations import NDJSON, OCTETS
from surecast.server.region import RegionServer

__all__ = ["Publishing", "check_content", "spec_of"]

CLOSE_S = 1.0  # for what is under way when the process ends
SLICE_LINES = 500  # parsed at a time
STATUS: list[tuple[type[SurecastError], int]] = [
    (OwnerUnreachable, 503),
    (StreamDeleted, 404),
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
        self, name: str, body: bytes, lines: bool, key: str | None, spec: StreamSpec
    ) -> list[tuple[int, int]]:
        """The positions the events were given, as half-open runs.

        A stream that does not exist is created as `spec` says; one that does must agree with it.
        """
        async with self._answering():
            pairs = await _parsed(body) if lines else [(_key(key), body)]
            if not pairs:
                raise UsageError("no events in the request")
            outbox = await self._outbox(name, spec)
            values, keys = [value for _, value in pairs], [key for key, _ in pairs]
            chunks = chunks_of(outbox.stream, values, keys, None, outbox.options)
            return await send_all(outbox, chunks)

    async def delete(self, info: StreamInfo) -> int:
        """Delete this very stream; its last position."""
        async with self._answering():
            outbox = (await self.connected()).outbox(info)
            batch = Batch.of(outbox.stream, [encode_policy(End())], kind=CONFIG)
            ((seq, _),) = await send_all(outbox, [Chunk(batch, batch.nbytes)])
            return seq

    async def _outbox(self, name: str, spec: StreamSpec) -> Outbox:
        endpoint = await self.connected()
        return endpoint.outbox(await endpoint.open_stream(name, spec))

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """What is raised within, or takes too long, becomes an answer."""
        timeout_s = self.server.config.http.publish_timeout_ns / 1e9
        try:
            async with asyncio.timeout(timeout_s):
                yield
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

    async def connected(self) -> Endpoint:
        """The endpoint, once it is open."""
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


def spec_of(retain: str | None, delivery: str | None) -> StreamSpec:
    """The query parameters of these names, as what a stream is opened with."""
    if delivery == "":
        raise HTTPException(400, "?delivery= is empty: name a delivery, or leave it out")
    try:
        policy = None if retain is None else parse_policy(retain)
    except UsageError as problem:
        raise HTTPException(400, str(problem)) from None
    return StreamSpec(policy, delivery or "")


def check_content(media: str, body: bytes) -> None:
    """Refuse JSON that does not come under one of the media types that say what to do with it.

    It would be published as one event, although its sender most likely meant lines of events.
    """
    if media in (NDJSON, OCTETS) or not (media == "application/json" or _is_json(body)):
        return
    given = f"has Content-Type: {media[:100]}" if media else "has no Content-Type"
    raise HTTPException(
        415,
        f"the body is JSON and {given}. To publish events, one JSON object a line, send the header "
        f"Content-Type: {NDJSON}; to publish the whole body as one event, Content-Type: {OCTETS}",
    )


def _is_json(body: bytes) -> bool:
    """Whether it is a JSON object or array, or lines of which the first is one."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    for part in (body, body.lstrip().partition(b"\n")[0]):
        try:
            msgspec.json.decode(part, type=msgspec.Raw)
            return True
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return False


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
