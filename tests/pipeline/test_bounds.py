"""Bounds of the pipeline on plans, memory and messages: at each limit and one step beyond.

These tests need no Spark session.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from surecast.columns.batch import REASON_NAMES, Batch
from surecast.columns.intervals import IntervalSet
from surecast.columns.rules import KeepAll
from surecast.core.streams import StreamInfo
from surecast.core.types import Append
from surecast.errors import UsageError
from surecast.pipeline import files, offsets, plan, sink, staging_io
from surecast.pipeline.jobs import compact, judge, workload
from surecast.pipeline.jobs.compact import Run
from surecast.pipeline.jobs.workload import Workload
from surecast.pipeline.options import SourceOptions, parse
from surecast.pipeline.plan import Range
from surecast.pipeline.region import Known, Server
from surecast.pipeline.sink_options import SinkOptions
from surecast.pipeline.sink_rows import Layout
from surecast.pipeline.source import TIME_US_MAX, BatchReader, StreamReader
from surecast.pipeline.staging import (
    ChunkRef,
    Copy,
    Done,
    Intent,
    _done_key,
    chunk_key,
    chunk_value,
)
from surecast.pipeline.staging_io import Stage
from surecast.server.files import _extents
from surecast.storage.extents import Shelf
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.storage.stores import LOG, Driver, batch, small

ID = bytes(range(16))
CHUNK = chunk_value(Batch.of(bytes(16), [b"v"]))


# ---------------------------------------------------------------- options


def positions_of_a_bound() -> None:
    most = offsets.SEQ_END_MAX - 1
    bound = offsets.bound_of("startingOffsets", json.dumps({"s": most}))
    assert bound.of("s").seq == most  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="a position from 1 on"):
        offsets.bound_of("startingOffsets", json.dumps({"s": most + 1}))


def times_of_a_bound() -> None:
    most = offsets._MS_MAX
    bound = offsets.timestamp_of("startingTimestamp", str(most)).of("s")
    assert bound.ns == most * 1_000_000  # type: ignore[union-attr]
    assert bound.ns < 1 << 63  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="milliseconds since 1970"):
        offsets.timestamp_of("startingTimestamp", str(most + 1))


def positions_of_a_trigger() -> None:
    def limit(**more: str) -> Any:
        return StreamReader(parse({"subscribe": "s", **more}, streaming=True)).getDefaultReadLimit()

    assert SourceOptions().trigger_offsets_max is None
    assert limit() == ReadAllAvailable()
    assert limit(maxOffsetsPerTrigger="1") == ReadMaxRows(1)
    with pytest.raises(UsageError, match="maxOffsetsPerTrigger"):
        limit(maxOffsetsPerTrigger="0")


def events_of_a_workload() -> None:
    assert Workload(events=workload.EVENTS_MAX).events == 10**12
    with pytest.raises(UsageError, match="between 1 and 1,000,000,000,000"):
        Workload(events=workload.EVENTS_MAX + 1)


# ---------------------------------------------------------------- plans


def events_of_a_task() -> None:
    def largest(total: int) -> tuple[int, int]:
        tasks = plan.cut([(Range("s", ID, 1, 1 + total), None)])
        return len(tasks), max(part.hi - part.lo for task in tasks for part in task)

    most = plan.EVENTS_MAX
    assert largest(plan.TASKS * most) == (plan.TASKS, most)
    count, size = largest(plan.TASKS * most + 1)
    assert count == plan.TASKS + 1
    assert size <= most


def times_of_a_filter() -> None:
    """No event is later than TIME_US_MAX, so servers are not asked for such times."""
    located: list[int] = []
    region: Any = SimpleNamespace(locate=lambda _stream, ns: located.append(ns) or 5)
    known = Known(StreamInfo(ID, "s", "east", KeepAll()), 10)

    def read(lo_us: int, hi_us: int) -> tuple[int, int]:
        located.clear()
        reader = BatchReader(parse({"subscribe": "s"}, streaming=False))
        reader.narrow.time_lo_us, reader.narrow.time_hi_us = lo_us, hi_us
        found = reader._range(region, known)
        return found.lo, found.hi

    assert read(TIME_US_MAX - 1, TIME_US_MAX) == (5, 10)
    assert located == [(TIME_US_MAX - 1) * 1000]
    assert read(TIME_US_MAX, TIME_US_MAX) == (10, 10)
    assert located == []
    assert read(0, TIME_US_MAX - 1) == (1, 5)
    assert located == [(TIME_US_MAX - 1) * 1000]


def size_of_a_broadcast() -> None:
    assert judge.join_hint(judge.HELD_MAX, 1, 1) == "broadcast"
    assert judge.join_hint(judge.HELD_MAX + 1, 1, 1) == "shuffle_hash"


def examples_in_an_error() -> None:
    runs = [Run(10 * n, 10 * n + 1, None) for n in range(1, compact.SHOWN_MAX + 2)]
    shown = "positions 10, 20, 30, 40, 50"
    assert compact._examples(runs[:-1]) == shown
    assert compact._examples(runs) == shown + " and more"


# ---------------------------------------------------------------- files


def number_of_mapped_segments() -> None:
    most = 0

    class Watched(Shelf):
        def mapped(self, number: int) -> Any:
            nonlocal most
            found = super().mapped(number)
            most = max(most, len(self._maps))
            return found

    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        driver = Driver(Path(name) / "disk", small(run_bytes_min=0))
        for number in range(40):
            driver.do(Append(LOG, (batch(driver.disk.end(LOG), 5, 100),), number))
            driver.wait(1)
            driver.settle()
        store: Any = driver.store
        stream: Any = SimpleNamespace(info=SimpleNamespace(stream_id=LOG), quarantined="")
        extents, _ = _extents(store, stream, 1, driver.disk.end(LOG))
        assert len({extent.segment for extent in extents}) > 2
        none = b64encode(IntervalSet().to_bytes())
        answer = {
            "stream_id": LOG.hex(), "directory": store.path, "lo": 1, "hi": extents[-1].hi,
            "extents": [list(msgspec.structs.astuple(extent)) for extent in extents],
            "voids": dict.fromkeys(REASON_NAMES.values(), none),
        }  # fmt: skip
        patch.setattr(files, "ask_server", lambda http, path, token: answer)
        patch.setattr(files, "Shelf", Watched)
        patch.setattr(files, "_MAPS_MAX", 2)
        whole = Range("s", LOG, 1, extents[-1].hi)
        rows = sum(piece.rows for piece in files.read(whole, Server("", store.path), "", never))
        assert rows == extents[-1].hi - 1
        driver.close()
    assert most == 2


def never(lo: int, hi: int) -> Any:
    raise AssertionError(f"[{lo}, {hi}) is not in the files")


# ---------------------------------------------------------------- the sink


class FakeStream:
    """A fake stream and its publisher, whose batches are acknowledged by the test."""

    stream_id = ID
    name = "t"

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[tuple[int, int]]] = []

    def published_as(self, _publisher: bytes, _number: int) -> "FakeStream":
        return self

    async def publish_batch(self, _batch: Batch) -> asyncio.Future[tuple[int, int]]:
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]

    async def acknowledge(self, work: asyncio.Task[Any], most: int, count: int) -> None:
        """Check that at most `most` batches are sent before the first is acknowledged."""
        try:
            for number in range(count):
                for _ in range(50):
                    await asyncio.sleep(0)
                assert len(self.sent) == min(most + number, count)
                self.sent[number].set_result((number + 1, number + 2))
            await work
        finally:
            work.cancel()


def chunks_in_flight_to_a_target() -> None:
    async def scenario(patch: pytest.MonkeyPatch) -> None:
        fake = FakeStream()

        async def open_target(*_: Any) -> FakeStream:
            return fake

        patch.setattr(staging_io, "open_target", open_target)
        no_client: Any = None
        stream: Any = SimpleNamespace(stream_id=bytes(16), name="_spark.t")
        stage = Stage(no_client, stream, "q", SinkOptions(stream="t"), once=False)
        for seq in range(1, 7):
            stage._spool.put(seq, CHUNK)
        chunks = tuple(ChunkRef(seq, 1, 0) for seq in range(1, 7))
        copy = asyncio.create_task(stage._copy(Copy(0, Intent("w", ("t",), chunks), {})))
        await fake.acknowledge(copy, 3, 6)  # the third waits for the first
        assert copy.result() == {ID: 7}
        assert stage.published == 6
        await stage.close()

    with_patch(scenario, (staging_io, "UNDER_WAY_MAX", 2))


def chunks_in_flight_to_staging() -> None:
    async def scenario(patch: pytest.MonkeyPatch) -> None:
        context = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 0)
        patch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        layout = Layout(("value",), False, "t")
        stager = sink.Stager(SinkOptions(stream="t"), layout, "", "q", 0, "w")
        fake = FakeStream()
        stager._stream = fake  # type: ignore[assignment]

        async def put() -> Any:
            for _ in range(6):
                await stager.put("t", Batch.of(bytes(16), [b"v"]))
            return await stager.done(None)

        work = asyncio.create_task(put())
        await fake.acknowledge(work, 3, 6)
        assert [ref.seq for ref in work.result().chunks] == [1, 2, 3, 4, 5, 6]

    with_patch(scenario, (sink, "UNDER_WAY_MAX", 2))


def with_patch(
    scenario: Callable[[pytest.MonkeyPatch], Awaitable[None]], bound: tuple[Any, str, int]
) -> None:
    async def main(patch: pytest.MonkeyPatch) -> None:
        async with asyncio.timeout(30):
            await scenario(patch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*bound)
        asyncio.run(main(patch))


def spooled_chunks_of_done_batches() -> None:
    """Chunks that a driver staged for a batch already published by another are not kept."""
    records = [
        (_done_key("q", 0), msgspec.msgpack.encode(Done({}))),
        (chunk_key("q", 0, "late", 0, 0, 0), CHUNK),
        (chunk_key("q", 1, "w", 0, 0, 0), CHUNK),
    ]

    class Reading:
        async def close(self) -> None:
            pass

        def __init__(self) -> None:
            self.events = self._events()

        async def _events(self) -> AsyncIterator[Any]:
            for seq, (key, value) in enumerate(records, 1):
                yield SimpleNamespace(kind="event", seq=seq, key=key, value=value, time_ns=seq)

        def __anext__(self) -> Any:
            return self.events.__anext__()

    async def scenario() -> None:
        no_client: Any = None
        stream: Any = SimpleNamespace(name="_spark.t", subscribe=lambda **_: Reading())
        stage = Stage(no_client, stream, "q", SinkOptions(stream="t"), once=False)
        ledger = await stage._read(3)
        assert ledger.done == 0
        assert [seq for seq in (1, 2, 3) if seq in stage._spool] == [3]
        await stage.close()

    asyncio.run(scenario())


PIPELINE = "surecast.pipeline."
CHECKS: list[Row] = [
    (positions_of_a_bound, Edit(PIPELINE + "offsets:_position", "< SEQ_END_MAX", "< 1 << 63")),
    (times_of_a_bound, Edit(PIPELINE + "offsets:_time", "<= _MS_MAX", "< 1 << 63")),
    (
        positions_of_a_trigger,
        Edit(
            PIPELINE + "source:StreamReader.getDefaultReadLimit",
            "self.options.trigger_offsets_max",
            "None",
        ),
    ),
    (events_of_a_task, Edit(PIPELINE + "plan:cut", "min(EVENTS_MAX,", "min(1 << 60,")),
    (
        times_of_a_filter,
        Edit(PIPELINE + "source:BatchReader._range", "time_lo_us >= TIME_US_MAX", "lo < 0"),
    ),
    (
        size_of_a_broadcast,
        Edit(PIPELINE + "jobs.judge:join_hint", "events <= HELD_MAX and", ""),
    ),
    (
        examples_in_an_error,
        Edit(PIPELINE + "jobs.compact:_examples", "runs[:SHOWN_MAX]", "runs"),
    ),
    (number_of_mapped_segments, Edit(PIPELINE + "files:read", "_MAPS_MAX", "256")),
    (
        chunks_in_flight_to_a_target,
        Edit(PIPELINE + "staging_io:Stage._copy", "len(waiting) > UNDER_WAY_MAX or ", ""),
    ),
    (
        chunks_in_flight_to_staging,
        Edit(PIPELINE + "sink:Stager.put", "await self._settle(UNDER_WAY_MAX)", "pass"),
    ),
    (
        spooled_chunks_of_done_batches,
        Edit(PIPELINE + "staging_io:Stage._read", " and fields.batch > ledger.done", ""),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)


def test_the_size_of_a_workload_is_bounded() -> None:
    events_of_a_workload()
