"""Publishes the events of HTTP requests; http.py uses it.

The server connects to itself like a client, with an `Endpoint`, and publishes through that. The
events of one request get consecutive positions, unless they do not fit into one batch. If an HTTP
client repeats a request, its events are published again; only the client library publishes exactly
once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException

from surecast.columns.batch import CONFIG, Batch
from surecast.columns.rules import End, encode_policy
from surecast.columns.schema import read_schema
from surecast.core.policies import parse_policy
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.endpoint.attributes import RowWriter, TypedRow, writer_of
from surecast.endpoint.endpoint import Endpoint, send_all
from surecast.endpoint.prepared import PreparedBatch, prepared_batches
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
from surecast.server.ndjson import columns_of, parse_line, parse_row, parse_slices
from surecast.server.operations import NDJSON, OCTETS
from surecast.server.region import RegionServer

__all__ = ["Publishing", "check_content", "spec_of"]

T = TypeVar("T")
CLOSE_S = 1.0  # time for publishes in progress to be answered when the process ends
ROWS_BYTES_MAX = 32 << 20  # of all attributes in one request
SLICE_LINES = 500  # lines that are parsed before other tasks may run
# The HTTP status for each kind of error; the first match counts.
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
    """Publishes events, changes and deletes streams. The endpoint is made for the first request."""

    def __init__(self, server: RegionServer) -> None:
        self.server = server
        self._endpoint: Endpoint | None = None
        self._closed = False
        self._making = asyncio.Lock()  # held while the endpoint is being opened

    async def publish(
        self, name: str, body: bytes, lines: bool, key: str | None, spec: StreamSpec
    ) -> list[tuple[int, int]]:
        """Publish the events of a request; returns their positions as half-open runs.

        If `lines` is true, each line of the body is an event (ndjson.py). Otherwise the whole body
        is the value of one event, with the key `key`.

        A stream that does not exist is created with `spec`; an existing one must agree with it.
        """
        async with self._answering():
            known = self.server.streams.named(name)
            schema = spec.schema if known is None else known.schema
            values: list[Any]
            keys: list[bytes | None] | None = None
            tags: list[bytes | None] | None = None
            if schema:
                if not lines:
                    raise UsageError(
                        "the stream has a schema: send JSON objects with its fields, one a line, "
                        f"and the header Content-Type: {NDJSON}"
                    )
                # In a thread, because the first call loads pyarrow.
                writer = await asyncio.to_thread(writer_of, schema)
                assert writer is not None
                values = await _parsed(body, _limited(writer))
            else:
                events = await _parsed(body, parse_line) if lines else [(_key(key), body, None)]
                keys, values, tags = columns_of(events)
            if not values:
                raise UsageError("no events in the request")
            outbox = await self._outbox(name, spec)
            batches = prepared_batches(
                outbox.stream, values, keys, tags, outbox.options, outbox.writer
            )
            return await send_all(outbox, batches)

    async def delete(self, info: StreamInfo) -> int:
        """Delete the stream with this id; returns its last position."""
        async with self._answering():
            outbox = (await self.connected()).outbox(info)
            batch = Batch.of(outbox.stream, [encode_policy(End())], kind=CONFIG)
            ((seq, _),) = await send_all(outbox, [PreparedBatch(batch, batch.nbytes)])
            return seq

    async def change(self, info: StreamInfo, schema: str) -> int | None:
        """Change the schema of a stream; returns the position of the change, or None if the stream
        has this schema already."""
        async with self._answering():
            return await (await self.connected()).change(info, schema)

    async def _outbox(self, name: str, spec: StreamSpec) -> Outbox:
        endpoint = await self.connected()
        return endpoint.outbox(await endpoint.open_stream(name, spec))

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Turn exceptions and a time-out within the block into HTTP answers."""
        timeout_s = self.server.config.http.publish_timeout_ns / 1e9
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise HTTPException(
                504, f"not acknowledged within {timeout_s:g} s; it may still be published"
            ) from None
        except SurecastError as problem:
            code = next((code for kind, code in STATUS if isinstance(problem, kind)), 500)
            raise HTTPException(code, str(problem)) from problem

    async def close(self) -> None:
        """Wait up to CLOSE_S for publishes in progress, then stop the endpoint."""
        self._closed = True
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            with suppress(SurecastError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await endpoint.flush()
            await endpoint.stop("the server is stopping")

    async def connected(self) -> Endpoint:
        """The endpoint, which is opened by the first call."""
        async with self._making:
            if self._closed:
                raise HTTPException(503, "this process is stopping; use another replica")
            if self._endpoint is None:
                node = self.server.replica
                assert node is not None
                assert node.address is not None
                endpoint = Endpoint([node.address], token=self.server.config.node.token)
                await endpoint.open()
                self._endpoint = endpoint
            return self._endpoint


def spec_of(retain: str | None, delivery: str | None, schema: str | None) -> StreamSpec:
    """The StreamSpec of the query parameters `retain`, `delivery` and `schema`."""
    if delivery == "":
        raise HTTPException(400, "?delivery= is empty: name a delivery, or leave it out")
    try:
        policy = None if retain is None else parse_policy(retain)
        text = "" if schema is None else read_schema(schema).text
    except UsageError as problem:
        raise HTTPException(400, str(problem)) from None
    return StreamSpec(policy, delivery or "", text)


def check_content(media: str, body: bytes) -> None:
    """Answer 415 for a JSON body whose media type is neither NDJSON nor OCTETS.

    Such a body would be published as one event, but its sender most likely meant one event per
    line.
    """
    if media in (NDJSON, OCTETS) or not (media == "application/json" or _is_json(body)):
        return
    header = f"has Content-Type: {media[:100]}" if media else "has no Content-Type"
    raise HTTPException(
        415,
        f"the body is JSON and {header}. To publish one JSON object per line, send the header "
        f"Content-Type: {NDJSON}; to publish the whole body as one event, Content-Type: {OCTETS}",
    )


def _is_json(body: bytes) -> bool:
    """Whether the body, or its first line, is a JSON object or array."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    for part in (body, body.lstrip().partition(b"\n")[0]):
        try:
            msgspec.json.decode(part, type=msgspec.Raw)
            return True
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return False


def _limited(writer: RowWriter) -> Callable[[bytes], TypedRow]:
    """`parse_row`, until the rows of a request take ROWS_BYTES_MAX: a line "{}" is short, and a row
    of many columns is not."""
    nbytes = 0

    def parse(line: bytes) -> TypedRow:
        nonlocal nbytes
        row = parse_row(line, writer)
        nbytes += row.nbytes
        if nbytes > ROWS_BYTES_MAX:
            raise UsageError(
                f"the rows up to here take {nbytes:,} bytes, and those of one request at most "
                f"{ROWS_BYTES_MAX:,}: send them in several requests"
            )
        return row

    return parse


async def _parsed(body: bytes, parse: Callable[[bytes], T]) -> list[T]:
    """The events of a request, parsed in slices so that a long body does not block the loop."""
    events: list[T] = []
    for parsed in parse_slices(body, SLICE_LINES, parse):
        events += parsed
        await asyncio.sleep(0)
    return events


def _key(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
