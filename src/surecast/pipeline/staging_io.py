"""Performs the acts that staging.py decides on, in the staging stream and the target streams.

The driver of a Spark job reads the staging stream once, from its beginning. It keeps the chunks
(rows that tasks have appended there) in a temporary file, or in memory if they are few. So all
chunks are available in any order when the driver knows which of them to publish.

Every wait is limited. Before a batch begins, the driver checks whether the region answers; if not,
the driver fails within ten seconds. Later it waits up to a minute for a region that does not
answer, or that has no head at the moment.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any, Final, TypeVar

from surecast.client.connection import Client
from surecast.client.rules import latest_per_key
from surecast.client.stream import Stream
from surecast.client.subscription import Subscription
from surecast.columns.schema import schema_of
from surecast.endpoint.discovery import parse_url, redacted
from surecast.endpoint.options import ClientOptions
from surecast.errors import (
    ConnectError,
    NotSupported,
    Silent,
    SurecastError,
    UsageError,
    WrongToken,
)
from surecast.pipeline.region import refused
from surecast.pipeline.sink_options import SinkOptions
from surecast.pipeline.staging import (
    CHUNK,
    Act,
    Append,
    Collect,
    Copy,
    Ledger,
    Numbers,
    Read,
    chunk_batch,
)

__all__ = [
    "Stage",
    "check_region",
    "connected",
    "open_staging",
    "open_target",
    "patient",
    "perform",
    "schema_text",
]

T = TypeVar("T")

ANSWER_S: Final = 8.0  # timeout for the first answer: a wrong url is reported within ten seconds
CONNECT_S: Final = 4.0  # retry a refused connection for this time: a server may be restarting
PATIENCE_S: Final = 60.0  # after the first answer: maximum wait without progress
AGAIN_S: Final = 0.25  # between attempts to connect
CLOSE_S: Final = 1.0  # timeout for closing; unacknowledged publishes are then given up
SPOOL_BYTES: Final = 64 << 20  # if all chunks together are larger, they are kept in a file
CHUNK_ROOM: Final = 64 << 10  # space for a chunk's key, header and layout, beside its largest event
UNDER_WAY_MAX: Final = 64  # published chunks whose acknowledgement has not arrived yet


@asynccontextmanager
async def connected(options: SinkOptions, within_s: float | None = None) -> AsyncIterator[Client]:
    """A client of the region that the options name; errors name the option to change. Connecting is
    tried again for `within_s` (default: PATIENCE_S)."""
    each_s = min(3.0, CONNECT_S / len(parse_url(options.url)))  # for each address
    room = ClientOptions().event_bytes_max + CHUNK_ROOM
    limits = ClientOptions(
        connect_timeout=each_s,
        event_bytes_max=room,
        owner_timeout=2 * PATIENCE_S,  # longer than `patient` waits
        close_timeout=CLOSE_S,
    )
    ends_s = time.monotonic() + (PATIENCE_S if within_s is None else within_s)
    while True:
        client = Client(options.url, token=options.token, options=limits)
        try:
            await client.open()
            break
        except ConnectError as problem:
            if isinstance(problem, WrongToken) or time.monotonic() >= ends_s:
                raise refused(options.url, problem) from None
        await asyncio.sleep(AGAIN_S)
    async with client:
        yield client


async def patient(work: Awaitable[T]) -> T:
    """Wait for `work` up to PATIENCE_S; raises Silent if the region does not answer by then."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work
    except TimeoutError:
        raise Silent(
            f"the region (option url) has not answered for {PATIENCE_S:g} s, and may be down",
            "The query can be started again when it is back: nothing is lost or written twice",
        ) from None


async def check_region(
    options: SinkOptions, schema: str = "", *, target: bool = True
) -> str | None:
    """Check that the region answers and, with `target`, that the stream can be written to. With a
    wrong option the driver then fails at once, instead of every task later. If the stream does not
    exist, it is created with this schema. Returns its schema ("" if it has none); None if the
    options name no stream."""
    try:
        async with asyncio.timeout(ANSWER_S), connected(options, CONNECT_S) as client:
            await open_staging(client, options)
            if options.stream is None or not target:
                return None
            return schema_text(await open_target(client, options.stream, options, schema))
    except TimeoutError:
        raise SurecastError(
            f"option url: the region at {redacted(options.url)} has not answered for {ANSWER_S:g} "
            "s. Its servers may be down, or cannot reach the region that owns the stream: "
            "`surecast status` shows that"
        ) from None


async def open_staging(client: Client, options: SinkOptions) -> Stream:
    return await patient(client.stream(options.staging, retain=latest_per_key()))


def schema_text(stream: Stream) -> str:
    """The schema of a stream; "" if it has none."""
    return "" if stream.schema is None else schema_of(stream.schema).text


async def open_target(client: Client, name: str, options: SinkOptions, schema: str = "") -> Stream:
    """The stream to write to. If it does not exist and the options allow it, it is created with
    this schema."""
    existing = await patient(client.streams(name))
    if not existing and not options.create:
        raise UsageError(
            f"there is no stream {name!r}, and option createStreams is false. Create it, correct "
            "the name (option stream, or column `stream`), or leave createStreams out"
        )
    # The retention and the schema of an existing stream are not changed.
    retain, schema = (None, "") if existing else (options.retain, schema)
    stream = await patient(client.stream(name, retain=retain, schema=schema or None))
    if not stream.supports("publisher"):
        raise NotSupported(
            f"stream {name!r} has delivery={stream.delivery!r}, which has no named publishers, so "
            "Spark cannot write to it exactly once. Write to a stream with delivery='broadcast'"
        )
    return stream


async def perform(acts: Generator[Act, Any, T], stage: Stage) -> T:
    """Perform the acts of a commit, resume or abort, and return its result."""
    answer: Any = None
    problem: SurecastError | None = None
    while True:
        try:
            act = acts.send(answer) if problem is None else acts.throw(problem)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            answer, problem = await stage.do(act), None
        except SurecastError as error:
            problem = error


class Spool:
    """Stores chunks by position, in memory or in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(SPOOL_BYTES, prefix="surecast-")  # noqa: SIM115
        self._places: dict[int, tuple[int, int]] = {}  # by position: offset and size in the file

    def put(self, seq: int, value: bytes) -> None:
        self._places[seq] = self._file.seek(0, 2), len(value)
        self._file.write(value)

    def __contains__(self, seq: int) -> bool:
        return seq in self._places

    def get(self, seq: int) -> bytes:
        at, size = self._places[seq]
        self._file.seek(at)
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()


class Stage:
    """Performs acts on a query's staging stream, for one commit, resume or abort.

    `once`: the query will never be repeated, so its publisher id may be random.
    """

    def __init__(
        self, client: Client, stream: Stream, query: str, options: SinkOptions, *, once: bool
    ) -> None:
        self._client = client
        self._stream = stream
        self._options = options
        self._once = once
        self._ledger = Ledger(query)
        self._spool = Spool()
        self._reading: Subscription | None = None  # of the staging stream, for all reads
        # Rows known to be published to the targets; None: publishing has not begun.
        self.published: int | None = None

    async def close(self) -> None:
        self._spool.close()
        if self._reading is not None:
            await self._reading.close()

    async def do(self, act: Act) -> Any:
        match act:
            case Append(key, value):
                return await patient(self._stream.publish(value, key=key))
            case Read(to):
                return await self._read(to or await self._last())
            case Copy():
                return await self._copy(act)
            case Collect(which):
                return await patient(self._stream.collect(which))

    # ------------------------------------------------------------ reading

    async def _last(self) -> int:
        """The last position of the staging stream that the region reports."""
        found = await patient(self._client.ends(self._stream.name))
        ends = [end for info, end in found if info.stream_id == self._stream.stream_id]
        return max(ends, default=1) - 1

    async def _read(self, to: int) -> Ledger:
        ledger = self._ledger
        if self._reading is None:
            self._reading = self._stream.subscribe(start="earliest", voids=True)
        while ledger.end <= to:
            event = await patient(anext(self._reading))
            if event.kind != "event" or event.key is None:
                ledger.note_void(event.seq, collected=event.reason != "control")
                continue
            fields = ledger.note(event.seq, event.key, event.value, event.time_ns)
            if fields is not None and fields.kind == CHUNK and fields.batch > ledger.done:
                self._spool.put(event.seq, event.value)
        return ledger

    # ------------------------------------------------------------ publishing

    async def _copy(self, act: Copy) -> Numbers:
        """Publish an intent's chunks to their targets, and wait until all are acknowledged."""
        intent = act.intent
        self._check_complete(act)
        streams = [
            await open_target(self._client, name, self._options, intent.schema(target))
            for target, name in enumerate(intent.targets)
        ]
        numbers = {s.stream_id: act.numbers.get(s.stream_id, 1) for s in streams}
        publishers = [s.published_as(self._publisher(s), numbers[s.stream_id]) for s in streams]
        # Chunks without an acknowledgement: number of rows, and the future acknowledgement.
        waiting: deque[tuple[int, asyncio.Future[tuple[int, int]]]] = deque()

        async def settle() -> None:
            rows, future = waiting.popleft()
            await patient(future)
            self.published = (self.published or 0) + rows

        self.published = self.published or 0
        try:
            for seq, rows, target in intent.chunks:
                stream = streams[target]
                batch = chunk_batch(self._spool.get(seq), stream.stream_id)
                if batch.rows != rows:
                    raise SurecastError(f"chunk {seq} has {batch.rows} rows, not {rows}")
                waiting.append((rows, await patient(publishers[target].publish_batch(batch))))
                numbers[stream.stream_id] += rows
                while len(waiting) > UNDER_WAY_MAX or (waiting and waiting[0][1].done()):
                    await settle()
            while waiting:
                await settle()
        finally:
            for _, future in waiting:
                future.cancel()
        return numbers

    def _check_complete(self, act: Copy) -> None:
        """Raise SurecastError if a chunk of the batch is missing: a batch may only be published
        whole."""
        gone = [chunk.seq for chunk in act.intent.chunks if chunk.seq not in self._spool]
        if gone:
            raise SurecastError(
                f"{len(gone)} of {len(act.intent.chunks)} chunks that batch {act.batch} of query "
                f"{self._ledger.query} needs are gone from {self._stream.name!r}, the first at "
                f"{gone[0]}: somebody declared them obsolete (collect). The batch cannot be "
                "written; write its rows again with a new checkpoint (or another queryId)"
            )

    def _publisher(self, target: Stream) -> bytes:
        """The publisher id, which is the same for all drivers of a query, and different from the
        ids of all other publishers.

        The publisher numbers its events in each target, from 1; the next number is stored in the
        staging stream. If an operator replaces the staging stream, or the target, by a new stream
        of the same name, the numbers begin again at 1. So the publisher id depends on the ids of
        both streams, and is then a new one, too.
        """
        if self._once:
            return time.time_ns().to_bytes(8, "big") + secrets.token_bytes(8)
        digest = blake2b(digest_size=8)
        for part in (self._ledger.query.encode(), self._stream.stream_id, target.stream_id):
            digest.update(len(part).to_bytes(4, "big") + part)
        return bytes(8) + digest.digest()
