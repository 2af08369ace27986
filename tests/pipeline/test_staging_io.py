"""The sink with a real region: drivers stopped after every act, zombies, lost chunks."""

import asyncio
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from hashlib import blake2b
from itertools import takewhile
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import surecast
from surecast.client.connection import Client
from surecast.client.events import Event
from surecast.client.stream import Stream
from surecast.columns.batch import Batch
from surecast.core.streams import ForceNewStream
from surecast.core.types import Command
from surecast.errors import ConnectError, NotSupported, Silent, SurecastError, UsageError
from surecast.pipeline import sink, staging, staging_io
from surecast.pipeline.sink_options import SinkOptions
from surecast.pipeline.sink_rows import Layout
from surecast.pipeline.staging import (
    Act,
    Append,
    ChunkRef,
    Intent,
    Outcome,
    abort,
    chunk_key,
    chunk_value,
    commit,
)
from surecast.pipeline.staging_io import (
    Stage,
    check_region,
    connected,
    open_staging,
    open_target,
    perform,
)
from tests.client.stage import Regions, play
from tests.client.stage import until as eventually
from tests.client.test_publish import read
from tests.pipeline.regions import Served
from tests.pipeline.staging_model import pieces_of, rows_of

pytestmark = pytest.mark.slow

QUERY = "q-1"
THIS = sys.modules[__name__]


class Sink:
    """The drivers and tasks of a query in one region."""

    def __init__(self, regions: Regions, rng: Random, targets: int = 1, region: str = "east"):
        self.rng = rng
        self.targets = targets
        self.words = iter(range(1 << 30))
        self.options = SinkOptions(regions.url(region), stream=None if targets > 1 else "t0")

    def unique(self) -> str:
        return f"u{next(self.words)}"

    async def stage(self, client: Client, batch: int, writer: str) -> Intent:
        """Stage the chunks of one run of a batch, like its tasks; returns the intent."""
        stream = await open_staging(client, self.options)
        pieces = pieces_of(batch, self.rng, self.targets)
        chunks = []
        for target, name in enumerate(pieces):
            for rows in pieces[name]:
                values = [f"{b}-{n}".encode() for b, n in rows]
                value = chunk_value(Batch.of(bytes(16), values))
                for attempt in range(1 + (self.rng.random() < 0.2)):
                    number = next(self.words)
                    key = chunk_key(QUERY, batch, writer, target, attempt, number)
                    seq = await stream.publish(value, key=key)
                chunks.append(ChunkRef(seq, len(rows), target))  # only the last attempt counts
        return Intent(writer, tuple(pieces), tuple(chunks))

    async def run(self, batch: int, writer: str, acts_max: int = 1 << 30) -> Outcome | None:
        """Run one driver: stage a batch and commit it; crash after `acts_max` acts."""
        async with connected(self.options) as client:
            intent = await self.stage(client, batch, writer)
            stage = Stage(
                client, await open_staging(client, self.options), QUERY, self.options, once=False
            )
            acts = commit(QUERY, batch, intent, self.unique)
            try:
                return await perform(until(acts, acts_max), stage)
            finally:
                await stage.close()

    async def judge(self, client: Client, batches: int) -> None:
        found: list[str] = []
        for info in await client.streams():
            ((_, end),) = await client.ends(info.name)
            events = await read(await client.stream(info.name), end - 1) if end > 1 else []
            values = [event.value.decode() for event in events]
            numbers = [int(value.split("-")[0]) for value in values]
            assert numbers == sorted(numbers)
            found += values
        wanted = [f"{b}-{n}" for batch in range(batches) for b, n in rows_of(batch)]
        assert sorted(found) == sorted(wanted)

    async def left(self, client: Client, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
        """The keys in the staging stream, once `enough(keys)` holds: collecting takes a while."""
        stream = await open_staging(client, self.options)
        last = await stream.publish(b"", key=b"marker")
        for _ in range(1000):
            keys = []
            async for event in stream.subscribe(start="earliest"):
                if event.seq == last:
                    break
                keys.append(event.key or b"")
            if enough(keys):
                return keys
            await asyncio.sleep(0.02)
        raise AssertionError(keys)


def until(acts: Generator[Act, Any, Any], count: int) -> Generator[Act, Any, Any]:
    """The first `count` acts, as if the driver crashed then."""
    answer = None
    for _ in range(count):
        try:
            answer = yield acts.send(answer)
        except StopIteration as end:
            return end.value
    return None


@pytest.mark.slow
@pytest.mark.parametrize("targets", [1, 3])
def test_a_batch_is_published_once_after_a_crash_at_any_act(targets: int) -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            sink = Sink(regions, Random(targets), targets)
            replayed = []
            for batch in range(12):
                first = await sink.run(batch, f"a{batch}", batch)
                second = await sink.run(batch, f"b{batch}")
                assert second is not None
                assert second.replayed or first is None
                replayed.append(second.replayed)
            assert replayed[:3] == [False, False, False]  # the intent was not written yet
            assert replayed[-1]
            await sink.judge(client, 12)
            await sink.run(12, "last")
            wanted = [f"{QUERY}/done/{12:016x}".encode()]
            await sink.left(client, lambda keys: keys == wanted)

    play(scenario, 120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_concurrent_drivers_publish_every_row_once(seed: int) -> None:
    """Several drivers run the same batches at once, each at its own pace; some are stopped."""
    rng = Random(seed)

    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            sink = Sink(regions, rng, rng.choice((1, 3)))

            async def driver(name: str, batch: int, acts: int) -> None:
                await asyncio.sleep(rng.random() * 0.1)
                await sink.run(batch, f"{name}-{batch}", acts)

            for batch in range(8):
                work = [
                    asyncio.create_task(driver(f"d{n}", batch, rng.choice((2, 4, 6, 99))))
                    for n in range(3)
                ]
                if rng.random() < 0.5:
                    victim = rng.choice(work)
                    asyncio.get_running_loop().call_later(rng.random() * 0.3, victim.cancel)
                await asyncio.wait(work)
                for task in work:
                    assert task.cancelled() or task.exception() is None, task
                await sink.run(batch, f"last-{batch}")
            await sink.judge(client, 8)

    play(scenario, 200)


def test_an_intent_in_pages_survives_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PAGE_BYTES", 20)

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            sink = Sink(regions, Random(1), targets=3)
            for batch in range(4):
                await sink.run(batch, f"a{batch}", 3 * batch)
                await sink.run(batch, f"b{batch}")
            await sink.judge(client, 4)

    play(scenario)


def test_the_staging_stream_does_not_grow_with_the_batches() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            sink = Sink(regions, Random(1))
            for batch in range(20):
                await sink.run(batch, f"w{batch}")
            stream = await open_staging(client, sink.options)
            last = await stream.publish(b"", key=b"marker")
            for _ in range(1000):
                live = 0  # records, and collects that are not void
                async for event in stream.subscribe(start="earliest", voids=True):
                    live += event.kind == "event" or event.reason == "control"
                    if event.seq == last:
                        break
                if live <= 4:  # the stream's first entry, `done`, its collect, our own record
                    return
                await asyncio.sleep(0.02)
            raise AssertionError(live)

    play(scenario)


def test_numbers_that_a_head_has_forgotten_are_still_recognised() -> None:
    """A second driver repeats the copy of a batch of 200 chunks without knowing of the first."""

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            options = SinkOptions(regions.url("east"), stream="t0")
            stream = await open_staging(client, options)
            refs = []
            for n in range(200):
                value = chunk_value(Batch.of(bytes(16), [b"%d" % n]))
                key = chunk_key(QUERY, 0, "w", 0, 0, n)
                refs.append(ChunkRef(await stream.publish(value, key=key), 1, 0))
            intent = Intent("w", ("t0",), tuple(refs))
            for acts in (4, 99):  # the first crashes after the copy, before `done`
                stage = Stage(client, stream, QUERY, options, once=False)
                await perform(until(commit(QUERY, 0, intent, iter("abcdef").__next__), acts), stage)
                await stage.close()
            target = await client.stream("t0")
            assert await target.publish(b"end") == 201
            values = [event.value for event in await read(target, 200)]
            assert values == [b"%d" % n for n in range(200)]

    play(scenario)


def staging_stream_is_given_up() -> None:
    """An operator replaces the staging stream by a new one of the same name; the query continues.

    The new stream has no numbers, so they begin at 1 again. With the old publisher identity the
    head of the target would treat the rows as retries and publish none of them.
    """

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            options = SinkOptions(regions.url("east"), stream="t0")
            for batch in range(2):
                await write_three_rows(options, batch)
            before = await force_new_stream(regions, "east-1", options.staging)
            for batch in range(2, 4):
                await write_three_rows(options, batch)
            assert (await open_staging(client, options)).stream_id != before
            target = await client.stream("t0")
            last = await target.publish(b"end")
            found = [event.value for event in await read(target, last - 1)]
            assert found == [b"%d-%d" % (batch, n) for batch in range(4) for n in range(3)]

    play(scenario)


async def write_three_rows(options: SinkOptions, batch: int) -> None:
    """Write one micro-batch with a new driver. All batches have the same shape, so that a number
    used twice looks like a retry."""
    async with connected(options) as client:
        stream = await open_staging(client, options)
        value = chunk_value(Batch.of(bytes(16), [b"%d-%d" % (batch, n) for n in range(3)]))
        seq = await stream.publish(value, key=chunk_key(QUERY, batch, "w", 0, 0, 0))
        intent = Intent("w", ("t0",), (ChunkRef(seq, 3, 0),))
        stage = Stage(client, stream, QUERY, options, once=False)
        try:
            await perform(commit(QUERY, batch, intent, lambda: f"u{batch}"), stage)
        finally:
            await stage.close()


async def force_new_stream(regions: Regions, head: str, name: str) -> bytes:
    """Give up the history of a stream; returns its old id."""
    by_name = regions.layer(head).directory.by_name
    before: bytes = by_name[name].stream_id
    regions.nodes[head].give(Command("streams", ForceNewStream(name)))
    await eventually(lambda: by_name[name].stream_id != before)
    return before


def test_a_query_continues_when_its_staging_stream_was_replaced() -> None:
    staging_stream_is_given_up()


class SamePublisherForAnyStagingStream(Stage):
    """A mutant: the publisher identity does not depend on the id of the staging stream."""

    def _publisher(self, target: Stream) -> bytes:
        parts = (self._ledger.query.encode(), target.stream_id)
        return bytes(8) + blake2b(b"/".join(parts), digest_size=8).digest()


def test_the_check_fails_if_the_publisher_identity_stays_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(THIS, "Stage", SamePublisherForAnyStagingStream)
    with pytest.raises(AssertionError):
        staging_stream_is_given_up()


def test_a_missing_chunk_fails_the_batch_before_anything_is_published() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            sink = Sink(regions, Random(1))
            async with connected(sink.options) as driver:
                stream = await open_staging(driver, sink.options)
                intent = await sink.stage(driver, 0, "w")
                lost = intent.chunks[1].seq
                async for event in stream.subscribe(start="earliest"):
                    if event.seq == lost:
                        break
                assert event.key is not None
                await stream.collect(surecast.key_is(event.key))
                await sink.left(driver, lambda keys: event.key not in keys)
                stage = Stage(driver, stream, QUERY, sink.options, once=False)
                with pytest.raises(SurecastError, match=rf"1 of \d+ chunks .* first at {lost}"):
                    await perform(commit(QUERY, 0, intent, sink.unique), stage)
                await stage.close()
            assert await (await client.stream("t0")).publish(b"") == 1

    play(scenario)


def test_abort_collects_only_the_chunks_of_its_writer() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            sink = Sink(regions, Random(1))
            stream = await open_staging(client, sink.options)
            intent = await sink.stage(client, 0, "mine")
            await sink.stage(client, 0, "theirs")
            stage = Stage(client, stream, QUERY, sink.options, once=False)
            await perform(abort(QUERY, 0, "mine", sink.unique), stage)
            await stage.close()
            keys = await sink.left(client, lambda keys: not any(b"chunk/mine" in k for k in keys))
            assert any(b"chunk/theirs" in key for key in keys)
            assert intent.chunks
            await sink.run(0, "later")
            await sink.judge(client, 1)

    play(scenario)


def test_a_one_time_job_leaves_no_records() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            sink = Sink(regions, Random(1))
            stream = await open_staging(client, sink.options)
            for number, how in enumerate((commit, abort)):
                query = f"once-{number}"
                key = chunk_key(query, 0, "w", 0, 0, 0)
                value = chunk_value(Batch.of(bytes(16), [b"v"]))
                ref = ChunkRef(await stream.publish(value, key=key), 1, 0)
                stage = Stage(client, stream, query, sink.options, once=True)
                if how is commit:
                    intent = Intent("w", ("t0",), (ref,))
                    await perform(commit(query, 0, intent, sink.unique, once=True), stage)
                else:
                    await perform(abort(query, 0, "w", sink.unique, once=True), stage)
                await stage.close()
            await sink.left(client, lambda keys: not keys)
            assert await (await client.stream("t0")).publish(b"") == 2

    play(scenario)


def test_a_staging_stream_has_the_owner_of_its_target() -> None:
    async def scenario() -> None:
        owners = {"": "west", "orders": "east"}
        async with Regions(owners, east=1, west=1) as regions:
            options = SinkOptions(regions.url("west"), stream="orders")
            async with connected(options) as client:
                assert (await open_staging(client, options)).owner == "east"
                assert (await open_target(client, "orders", options)).owner == "east"
                assert [info.name for info in await client.streams()] == ["orders"]

    play(scenario)


@pytest.mark.slow
def test_a_query_continues_in_another_region() -> None:
    """Drivers in two regions alternate; the second finds the staging stream by its name."""

    async def scenario() -> None:
        owners = {"": "east"}
        async with Regions(owners, east=1, west=1) as regions, regions.client("west") as client:
            east, west = (Sink(regions, Random(3), region=name) for name in ("east", "west"))
            west.words = east.words
            for batch in range(6):
                await east.run(batch, f"e{batch}", 4 if batch % 2 else 99)
                await west.run(batch, f"w{batch}")
            ((_, end),) = await client.ends("t0")
            await west.judge(client, 6)
            assert end > 6

    play(scenario, 120)


@pytest.mark.slow
def test_every_row_is_published_once_through_failovers() -> None:
    rng = Random(11)
    wanted = 28  # batches

    async def scenario() -> None:
        async with Regions(east=3) as regions, regions.client("east") as client:
            sink = Sink(regions, rng, 3)
            batches = 0

            async def work() -> None:
                nonlocal batches
                for batches in range(1, wanted + 1):
                    if rng.random() < 0.3:
                        await sink.run(batches - 1, f"first-{batches}", rng.randint(0, 8))
                    await sink.run(batches - 1, f"second-{batches}")

            task = asyncio.create_task(work())
            crashes = 0
            await until_done(task, lambda: batches > 1)  # all replicas are needed to start a chain
            while not task.done():
                victim = rng.choice(regions.names["east"])
                await regions.kill(victim)
                crashes += 1
                before = batches
                await until_done(task, lambda before=before: batches > before + 1)
                await regions.start(victim)
                before = batches
                await until_done(task, lambda before=before: batches > before + 1)
            await task
            assert crashes >= 3
            await sink.judge(client, wanted)

    play(scenario, 300)


async def until_done(task: "asyncio.Task[None]", condition: Callable[[], bool]) -> None:
    while not task.done() and not condition():
        await asyncio.sleep(0.01)


# ---------------------------------------------------------------- errors


def test_invalid_options_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_io, "CONNECT_S", 0.3)

    async def scenario() -> None:
        async with Regions(token="secret", east=1) as regions:
            url = regions.url("east")
            with pytest.raises(UsageError, match="option token"):
                await check_region(SinkOptions(url, token="wrong"))
            with pytest.raises(UsageError, match="createStreams"):
                await check_region(SinkOptions(url, "secret", "orders", create=False))
            async with connected(SinkOptions(url, token="secret")) as client:
                strict = SinkOptions(url, stream="orders", create=False)
                with pytest.raises(UsageError, match=r"'orders'.*createStreams"):
                    await open_target(client, "orders", strict)
                keeps = SinkOptions(url, retain=surecast.keep_last(5))
                assert (await open_target(client, "new", keeps)).retain == surecast.keep_last(5)
                other = SinkOptions(url, retain=surecast.keep_last(6))
                assert (await open_target(client, "new", other)).retain == surecast.keep_last(5)
        with pytest.raises(ConnectError, match="option url"):
            await check_region(SinkOptions(url))

    play(scenario)


def rows_that_name_a_missing_stream(region: Served, *, once: bool) -> None:
    """The commit fails before an intent is written. An intent would bind all later drivers of the
    query, and each of them would fail like this one."""
    query = "once-1" if once else QUERY
    options = SinkOptions(region.url, create=False)
    with region.client() as client:
        client.stream("there")
        stage = client.stream(options.staging, retain=surecast.latest_per_key())

        def staged(targets: tuple[str, ...], writer: str) -> Intent:
            refs = []
            for at, name in enumerate(targets):
                value = chunk_value(Batch.of(bytes(16), [f"{writer} {name}".encode()]))
                seq = stage.publish(value, key=chunk_key(query, 0, writer, 0, 0, at))
                refs.append(ChunkRef(seq, 1, at))
            return Intent(writer, targets, tuple(refs))

        wrong = staged(("there", "missing"), "wrong")
        problem = refusal(lambda: sink._commit(options, query, 0, wrong, once=once))
        assert "'missing'" in problem
        assert "createStreams" in problem
        last = stage.publish(b"", key=b"marker")
        kinds = [event.key for event in up_to(stage.subscribe(start="earliest"), last)]
        assert [b"/chunk/" in (key or b"") for key in kinds] == [True, True], kinds

        sink._abort(options, query, 0, "wrong", once=once)
        right = staged(("there",), "right")  # the job is corrected and run again
        assert refusal(lambda: sink._commit(options, query, 0, right, once=once)) == ""
        there = client.stream("there")
        last = there.publish(b"end")
        found = [event.value for event in up_to(there.subscribe(start="earliest"), last)]
        assert found == [b"right there"]


def refusal(work: Callable[[], object]) -> str:
    """The error message for the user; empty if there is none."""
    try:
        work()
    except UsageError as problem:
        return str(problem)
    return ""


def up_to(events: Iterable[Event], last: int) -> Iterator[Event]:
    """The events before position `last`."""
    return takewhile(lambda event: event.seq < last, events)


@pytest.mark.parametrize("once", [False, True])
def test_rows_that_name_a_missing_stream_leave_no_intent(once: bool) -> None:
    with Served(None, http=False) as region:
        rows_that_name_a_missing_stream(region, once=once)


async def opens_nothing(client: Client, name: str, options: SinkOptions, schema: str) -> Any:
    """A mutant of `open_target`, in which a commit checks its targets."""
    return SimpleNamespace(schema=None)


@pytest.mark.parametrize("once", [False, True])
def test_the_check_fails_if_an_intent_is_written_before_its_targets_are_opened(
    once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "open_target", opens_nothing)
    with Served(None, http=False) as region, pytest.raises(AssertionError):
        rows_that_name_a_missing_stream(region, once=once)


def test_a_task_raises_its_first_error_and_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark gets the first error, not those of closing the client afterwards."""
    monkeypatch.setattr(staging_io, "PATIENCE_S", 0.5)
    monkeypatch.setattr(staging_io, "CLOSE_S", 0.1)

    class Context:
        @staticmethod
        def get() -> "Context":
            return Context()

        def partitionId(self) -> int:
            return 0

        def taskAttemptId(self) -> int:
            return 7

    monkeypatch.setattr(sink, "TaskContext", Context)
    with Served(None, http=False) as region:
        before = set(threading.enumerate())

        def rows() -> Iterator[pa.RecordBatch]:
            for n in range(400):
                if n == 20:
                    region.stop()
                yield pa.record_batch({"value": [b"x" * 100_000] * 10})

        options, layout = SinkOptions(region.url, stream="o"), Layout(("value",), False, "o")
        with pytest.raises(Silent, match="nothing is lost or written twice"):
            sink._stage(sink.Stager(options, layout, "", "q", 0, "w"), rows())
    assert set(threading.enumerate()) <= before


def test_an_unreachable_owner_is_waited_for_as_long_as_any_region() -> None:
    """And not only for the ten seconds of an ordinary client."""

    async def scenario() -> None:
        async with (
            Regions(east=1) as regions,
            connected(SinkOptions(regions.url("east"))) as client,
        ):
            assert client._endpoint.options.owner_timeout_ns > staging_io.PATIENCE_S * 10**9

    play(scenario)


def test_a_silent_region_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_io, "ANSWER_S", 1.0)
    monkeypatch.setattr(staging_io, "PATIENCE_S", 0.3)

    async def scenario() -> None:
        async with Regions({"": "west"}, east=1, west=1) as regions:
            options = SinkOptions(regions.url("east"), stream="orders")
            async with connected(options) as client:
                stage = Stage(
                    client, await open_staging(client, options), QUERY, options, once=False
                )
                await regions.kill("west-1")
                with pytest.raises(Silent, match="option url"):
                    await stage.do(Append(b"k", b"v"))
                monkeypatch.setattr(staging_io, "PATIENCE_S", 30.0)
                with pytest.raises(SurecastError, match="cannot reach the region that owns"):
                    await check_region(SinkOptions(regions.url("east"), stream="another"))
                await stage.close()
                client._endpoint.options = surecast.ClientOptions(close_timeout=1e-9)
                with pytest.raises(surecast.SurecastError):
                    await client.close()
            silent = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
            port = silent.sockets[0].getsockname()[1]
            with pytest.raises(SurecastError, match="option url"):
                await check_region(SinkOptions(f"surecast://127.0.0.1:{port}"))
            silent.close()

    play(scenario)


def test_a_target_without_named_publishers_is_refused_before_anything_is_staged() -> None:
    """Its rows could not be published exactly once."""

    async def scenario() -> None:
        async with surecast.local() as client:
            await client.stream("ticks", delivery="nakcast")
            options = SinkOptions("surecast://127.0.0.1:1", stream="ticks")
            with pytest.raises(NotSupported, match="Write to a stream with delivery='broadcast'"):
                await open_target(client, "ticks", options)
            assert (await open_target(client, "made", options)).delivery == "broadcast"

    asyncio.run(scenario())
