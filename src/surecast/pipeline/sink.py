"""Writes Spark's rows to streams, exactly once: the classes that Spark calls to write.

    df.write.format("surecast").option("stream", "orders").mode("append").save()
    df.writeStream.format("surecast").option("stream", "orders").option("checkpointLocation", ...)

Tasks write their rows to a hidden staging stream, and when all have succeeded, the driver publishes
the rows to their target streams. staging.py explains the method and makes the decisions,
staging_io.py performs the IO, and sink_rows.py converts rows to batches. Rows of one task keep
their order, and all rows of partition 0 precede those of partition 1.

A streaming query is identified by the id in its checkpoint, and its batches by their numbers. So a
batch that Spark repeats, for any reason, is published once.

A batch job that is killed while its driver publishes has published a part of its rows. A job with a
name (`queryId`) can be run again: it then publishes the rest, or does nothing if all rows were
published before. Other rows under the same name are refused, unless they are declared as another
part of the job (`queryPart`).
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from surecast.client.connection import Client
from surecast.client.stream import Stream
from surecast.client.sync import Loop
from surecast.columns.batch import Batch
from surecast.columns.schema import extends
from surecast.errors import Silent, SurecastError, UsageError
from surecast.pipeline import sink_options
from surecast.pipeline.sink_options import SinkOptions
from surecast.pipeline.sink_rows import Cutter, Layout, check_kind, check_schema, layout_of
from surecast.pipeline.staging import (
    ONCE,
    ChunkRef,
    Intent,
    Outcome,
    abort,
    chunk_key,
    chunk_value,
    commit,
    resume,
)
from surecast.pipeline.staging_io import (
    Stage,
    check_region,
    connected,
    open_staging,
    open_target,
    patient,
    perform,
    schema_text,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["Staged", "batch_writer", "resumed", "stream_writer"]

UNDER_WAY_MAX: Final = 64  # chunks of a task whose acknowledgement has not arrived yet
DIGESTS: Final = 1 << 64  # checksums are added modulo this number

# The main module of the process in which Spark commits a batch of a streaming query.
COMMITTER: Final = "pyspark.sql.worker.python_streaming_sink_runner"

Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """A task's report to the driver: all chunks (batches of rows) that it has staged, in order."""

    query: str  # these three fields are as in the keys of staged records (staging.KeyFields)
    batch: int
    writer: str
    partition: int  # number of the task's partition
    targets: tuple[str, ...]  # names of target streams
    chunks: tuple[ChunkRef, ...]  # their field `target` is an index into `targets`
    schemas: tuple[str, ...]  # of each target, with which its chunks were made; "": none
    digest: int | None = None  # a checksum of the task's rows, if the job may be run again


# ---------------------------------------------------------------- called by Spark


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer for `df.write`. Errors are raised here if they are known before the job runs."""
    if overwrite:
        raise UsageError(
            "mode('overwrite') is not possible: a stream only grows. Use mode('append'), or "
            "another stream"
        )
    chosen = sink_options.parse(options)
    layout = layout_of(schema, chosen.stream)
    return BatchWriter(chosen, layout, _check_region(chosen, layout))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer for `df.writeStream`. Spark creates one writer for the tasks of a batch and
    another one for the commit of the batch."""
    if overwrite:
        raise UsageError(
            "outputMode('complete') is not possible: a stream only grows. Use "
            "outputMode('append') or outputMode('update')"
        )
    chosen = sink_options.parse(options)
    if chosen.query is not None:
        raise UsageError(
            "option queryId is for df.write: a streaming query is identified by its checkpoint"
        )
    layout = layout_of(schema, chosen.stream)
    known = None if _is_commit() else _check_region(chosen, layout)
    return StreamWriter(chosen, layout, known)


def _check_region(options: SinkOptions, layout: Layout) -> str | None:
    """Check within ten seconds that the region can be written to, even if a name server does not
    answer, and that the columns fit the stream. Returns the stream's schema; None if each row names
    its stream. A `Loop` is used because it does not wait for the thread that resolves names."""
    loop = Loop()
    try:
        known = loop.call(check_region(options, layout.schema))
    finally:
        loop.stop()
    if known is not None:
        assert options.stream is not None
        check_schema(layout, options.stream, known)
    return known


def _is_commit() -> bool:
    """Whether Spark creates the writer to commit or abort a batch.

    The region is not checked then: the tasks have finished, so it is better to wait for a region
    that does not answer than to fail.
    """
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    return COMMITTER in sys.modules or (started is not None and started.name == COMMITTER)


class BatchWriter(DataSourceArrowWriter):
    """Writes one batch job. Created in the driver, and sent to the tasks and to the process that
    commits. `schema` is that of the stream; None if each row names its stream."""

    def __init__(self, options: SinkOptions, layout: Layout, schema: str | None) -> None:
        self.options = options
        self.layout = layout
        self.schema = schema
        self.writer = secrets.token_hex(8)
        self.once = options.query is None  # without a name, the job will never be repeated
        self.query = options.query or f"{ONCE}{self.writer}"
        self.after = None if options.part is None else options.part[0]  # None: no parts
        self.batch = 0 if options.part is None else options.part[1]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        stager = Stager(self.options, self.layout, self.schema, self.query, self.batch, self.writer)
        return _stage(stager, iterator)

    def commit(self, messages: Messages) -> None:
        staged = [m for m in messages if isinstance(m, Staged)]
        intent = intent_of(self.writer, staged, self.after)
        outcome = _commit(self.options, self.query, self.batch, intent, once=self.once)
        # A job without parts consists of one batch, so the rows of the job are those of the batch.
        if self.after is None and outcome.rows != intent.rows:
            self._refuse(f"{outcome.rows:,} rows, now there are {intent.rows:,}, and none of them")
        if outcome.others:
            self._refuse(f"other rows, and none of these {intent.rows:,}")

    def _refuse(self, rows: str) -> NoReturn:
        part = "" if self.after is None else f", part {self.after}..{self.batch},"
        raise UsageError(
            f"option queryId: {self.query!r}{part} was done before with {rows} is written. Use "
            "another queryId for new rows"
        )

    def abort(self, messages: Messages) -> None:
        _abort(self.options, self.query, self.batch, self.writer, once=self.once)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch of a streaming query. Spark tells only the tasks which query the batch
    belongs to; they report it in `Staged`. `schema` is as for BatchWriter, for the tasks."""

    def __init__(self, options: SinkOptions, layout: Layout, schema: str | None) -> None:
        self.options = options
        self.layout = layout
        self.schema = schema
        self.writer = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SurecastError(
                "Spark does not say which query and batch this is (sql.streaming.queryId, "
                "streaming.sql.batchId): rows could not be written exactly once"
            )
        stager = Stager(self.options, self.layout, self.schema, query, int(batch), self.writer)
        return _stage(stager, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        staged = [m for m in messages if isinstance(m, Staged)]
        if staged:  # empty if there was no partition
            intent = intent_of(staged[0].writer, staged)
            _commit(self.options, staged[0].query, batchId, intent, once=False)

    def abort(self, messages: Messages, batchId: int) -> None:
        staged = [m for m in messages if isinstance(m, Staged)]
        if staged:  # if empty, the driver that repeats the batch removes the staged chunks
            _abort(self.options, staged[0].query, batchId, staged[0].writer, once=False)


# ---------------------------------------------------------------- in a task


class Stager:
    """Publishes chunks to the staging stream; `put` waits while too many are not acknowledged."""

    def __init__(
        self,
        options: SinkOptions,
        layout: Layout,
        schema: str | None,
        query: str,
        batch: int,
        writer: str,
    ) -> None:
        context = TaskContext.get()
        assert context is not None
        self.partition = context.partitionId()
        self._attempt = context.taskAttemptId()  # unique within a driver
        self._job = (query, batch, writer)  # for the keys of the chunks
        self.options = options
        self.layout = layout
        # The schemas of target streams ("": none), by name.
        self.schemas = {} if layout.stream is None else {layout.stream: schema or ""}
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._stream: Stream | None = None
        self._targets: dict[str, int] = {}  # name of stream → its index in `Staged.targets`
        self._rows: list[tuple[int, int]] = []  # for each chunk: number of rows, index of target
        self._seqs: list[int] = []  # positions of acknowledged chunks in the staging stream
        self._waiting: deque[asyncio.Future[tuple[int, int]]] = deque()  # the later chunks

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await self._stack.enter_async_context(connected(self.options))
        return self._client

    async def schema_of(self, target: str) -> str:
        """The schema of a target stream; "" if it has none. Rows without attributes do not need it:
        the commit checks whether they can be published."""
        found = ""
        if self.layout.schema:
            known = await patient((await self._connected()).streams(target))
            # A stream that does not exist is created by the commit.
            found = known[0].schema if known else self.layout.schema
        self.schemas[target] = found
        return found

    async def put(self, target: str, chunk: Batch) -> None:
        if self._stream is None:
            self._stream = await open_staging(await self._connected(), self.options)
        query, batch, writer = self._job
        number = len(self._rows)
        key = chunk_key(query, batch, writer, self.partition, self._attempt, number)
        self._rows.append((chunk.rows, self._targets.setdefault(target, len(self._targets))))
        staged = Batch.of(self._stream.stream_id, [chunk_value(chunk)], [key])
        self._waiting.append(await patient(self._stream.publish_batch(staged)))
        await self._settle(UNDER_WAY_MAX)

    async def _settle(self, left: int) -> None:
        """Wait until at most `left` chunks are not acknowledged."""
        while len(self._waiting) > left:
            lo, _ = await patient(self._waiting.popleft())
            self._seqs.append(lo)

    async def done(self, digest: int | None) -> Staged:
        """Wait until all chunks are on disk at every replica."""
        await self._settle(0)
        chunks = zip(self._seqs, self._rows, strict=True)
        refs = tuple(ChunkRef(seq, rows, target) for seq, (rows, target) in chunks)
        schemas = tuple(self.schemas[target] for target in self._targets)
        return Staged(*self._job, self.partition, tuple(self._targets), refs, schemas, digest)

    async def close(self, problem: BaseException | None) -> None:
        """Close the connection. `problem` is the error that ended the task, if any: Spark should
        get this error and not an error of closing."""
        for future in self._waiting:
            future.cancel()
        trace = None if problem is None else problem.__traceback__
        await self._stack.__aexit__(None if problem is None else type(problem), problem, trace)


def _stage(stager: Stager, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage the rows of one task."""
    loop = Loop()
    digest = None
    if stager.options.query is not None:
        from surecast.columns.sums import sum_rows

        digest = 0

    def schema_of(target: str) -> str:
        found = stager.schemas.get(target)
        return loop.call(stager.schema_of(target)) if found is None else found

    problem: BaseException | None = None
    try:
        cutter = Cutter(stager.layout, schema_of)
        for target, chunk in _chunks(cutter, batches):
            if digest is not None:
                digest += sum_rows(target, chunk)
            loop.call(stager.put(target, chunk))
        return loop.call(stager.done(digest))
    except BaseException as failed:
        problem = failed
        raise
    finally:
        try:
            loop.call(stager.close(problem))
        finally:
            loop.stop()


def _chunks(cutter: Cutter, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, Batch]]:
    for rows in batches:
        yield from cutter.add(rows)
    yield from cutter.rest()


# ---------------------------------------------------------------- in the driver


def _commit(options: SinkOptions, query: str, batch: int, intent: Intent, *, once: bool) -> Outcome:
    outcome: Outcome | None = None
    stage: Stage | None = None

    async def work() -> None:
        nonlocal outcome, stage
        async with connected(options) as client:
            for target, name in enumerate(intent.targets):  # fails before the intent is written
                wanted = intent.schema(target)
                _check_version(name, wanted, await open_target(client, name, options, wanted))
            stage = Stage(client, await open_staging(client, options), query, options, once=once)
            try:
                outcome = await perform(commit(query, batch, intent, _unique, once=once), stage)
            finally:
                await stage.close()

    try:
        asyncio.run(work())
    except SurecastError as problem:
        if not once or (outcome is None and (stage is None or stage.published is None)):
            raise  # the job can be repeated, or has published nothing
        if outcome is None:
            assert stage is not None
            raise _interrupted(stage.published or 0, intent.rows, problem) from None
        # All rows are published; only closing the connection has failed.
    assert outcome is not None
    return outcome


def _interrupted(published: int, rows: int, problem: SurecastError) -> SurecastError:
    """The error of a job without a `queryId` that has published only a part of its rows."""
    return SurecastError(
        f"at least {published:,} of {rows:,} rows are published; if the job is run again, they are "
        "published a second time. A job with option queryId can be repeated: it then publishes "
        f"only the rest. {problem.what if isinstance(problem, Silent) else problem}"
    )


def intent_of(writer: str, staged: list[Staged], after: int | None = None) -> Intent:
    """The intent of a batch (staging.py): the list of the chunks of all tasks, in the order of
    partitions."""
    schemas: dict[str, str] = {}
    for task in staged:
        for target, schema in zip(task.targets, task.schemas, strict=True):
            known = schemas.setdefault(target, schema)
            if extends(schema, known):  # it may have changed since the first task looked
                schemas[target] = schema
            elif not extends(known, schema):
                raise SurecastError(
                    f"stream {target!r} was replaced while rows were written to it. Nothing is "
                    "published; run the job again"
                )
    targets = sorted(schemas)
    index = {target: place for place, target in enumerate(targets)}
    chunks = tuple(
        ChunkRef(seq, rows, index[task.targets[target]])
        for task in sorted(staged, key=lambda task: task.partition)
        for seq, rows, target in task.chunks
    )
    texts = tuple(schemas[target] for target in targets) if any(schemas.values()) else ()
    return Intent(writer, tuple(targets), chunks, after, digest=_sum_of(staged), schemas=texts)


def _check_version(name: str, staged: str, stream: Stream) -> None:
    """Raise an error if rows that were staged with one schema cannot be published to a stream that
    has another. It may have a later version."""
    schema = schema_text(stream)
    check_kind(bool(staged), name, schema)
    if not extends(schema, staged):
        raise SurecastError(
            f"stream {name!r} has the schema ({schema}), but the rows were made for ({staged}). "
            "Nothing is published; run the job again"
        )


def _sum_of(staged: list[Staged]) -> int | None:
    """The checksum of all rows; None if a task has not reported one."""
    digests = [task.digest for task in staged if task.digest is not None]
    return sum(digests) % DIGESTS if len(digests) == len(staged) else None


def resumed(given: Mapping[str, str]) -> Outcome:
    """Finish the parts that earlier runs of a job in parts have begun. The result says how far the
    job has come."""
    options = sink_options.parse(given)
    assert options.query is not None
    query = options.query

    async def work() -> Outcome:
        await check_region(options, target=False)
        async with connected(options) as client:
            stage = Stage(client, await open_staging(client, options), query, options, once=False)
            try:
                return await perform(resume(query, _unique), stage)
            finally:
                await stage.close()

    loop = Loop()  # in another thread: a notebook already runs an event loop in this one
    try:
        return loop.call(work())
    finally:
        loop.stop()


def _abort(options: SinkOptions, query: str, batch: int, writer: str, *, once: bool) -> None:
    async def work() -> None:
        async with connected(options) as client:
            stage = Stage(client, await open_staging(client, options), query, options, once=once)
            try:
                await perform(abort(query, batch, writer, _unique, once=once), stage)
            finally:
                await stage.close()

    asyncio.run(work())


def _unique() -> str:
    return secrets.token_hex(8)
