"""Publishing over sockets: positions, order, bounds, cancellation, exactly once through faults."""

import asyncio
import random
from collections import deque
from typing import Any

import pyarrow as pa
import pytest

import surecast
from surecast.client.connection import Client
from surecast.client.stream import Stream
from surecast.endpoint.publishers import Outbox
from surecast.errors import Closed, PublishError, QueueFull, UsageError
from tests.client.stage import Regions, play, until


async def read(stream: Stream, count: int, **how: Any) -> list[surecast.Event]:
    """The first `count` events of a stream."""
    found: list[surecast.Event] = []
    async for event in stream.subscribe(start="earliest", **how):
        found.append(event)
        if len(found) == count:
            break
    return found


def test_publish_returns_positions_in_order() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("a.b")
            assert [await stream.publish(b"%d" % n, key=b"k") for n in range(5)] == [1, 2, 3, 4, 5]
            together = await asyncio.gather(*(stream.publish(b"g%d" % n) for n in range(100)))
            assert together == list(range(6, 106))
            events = await read(stream, 105)
            assert [e.value for e in events[:6]] == [b"0", b"1", b"2", b"3", b"4", b"g0"]
            assert [e.seq for e in events] == list(range(1, 106))
            assert events[0].key == b"k"
            assert events[5].key is None
            assert events[0].stream == "a.b"
            assert events[0].kind == "event"
            assert events[0].range == range(1, 2)
            assert events[0].time.tzinfo is not None
            assert events[0].attributes == {}

    play(scenario)


def test_publish_many_takes_lists_iterables_and_tables() -> None:
    async def scenario() -> None:
        options = {"batch_rows_max": 10, "batch_bytes_max": 1000}
        async with Regions(east=1) as regions, regions.client("east", **options) as client:
            stream = await client.stream("many")
            seqs = await stream.publish_many([b"v%d" % n for n in range(25)])
            assert (seqs.first, seqs.last, len(seqs), seqs.runs) == (1, 25, 25, ((1, 26),))
            assert (await stream.publish_many(b"x" for _ in range(3))).runs == ((26, 29),)
            table = pa.table({"value": [b"t1", b"t2"] * 10, "key": [b"a", None] * 10})
            assert (await stream.publish_many(table)).runs == ((29, 49),)
            tagged: Any = pa.record_batch({"value": [b"w"], "tag": [b"red"]})
            assert list(await stream.publish_many(tagged)) == [49]
            assert len(await stream.publish_many([])) == 0
            large = await stream.publish_many(
                [b"x" * 900, b"y" * 3000, b"z"], keys=[b"k", None, b""]
            )
            assert large.runs == ((50, 53),)
            events = await read(stream, 52)
            assert [e.value for e in events[:25]] == [b"v%d" % n for n in range(25)]
            assert events[28:30] == [
                surecast.Event("many", 29, b"a", b"t1", events[28].time_ns),
                surecast.Event("many", 30, None, b"t2", events[29].time_ns),
            ]
            assert events[48].attributes == {"tag": b"red"}
            assert [(e.key, len(e.value)) for e in events[49:]] == [
                (b"k", 900), (None, 3000), (b"", 1)
            ]  # fmt: skip

    play(scenario)


class Frame:
    """A table of another library that offers only Arrow's stream interface."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_publish_many_takes_any_arrow_stream() -> None:
    async def scenario() -> None:
        options = {"batch_rows_max": 3}
        async with Regions(east=1) as regions, regions.client("east", **options) as client:
            stream = await client.stream("many")
            keys, values = [b"a", None, b"", b"d"], [b"1", b"", b"three" * 10, b"4"]
            table = pa.table({"key": keys, "value": values})
            views = pa.table(
                {
                    "key": pa.array(keys, pa.binary_view()),
                    "value": pa.array(values, pa.binary_view()),
                }
            )
            text = pa.table(
                {"key": pa.array(["a", None, "", "d"], pa.string_view()), "value": values}
            )
            chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
            frames = [
                Frame(table), Frame(views), Frame(text), Frame(chunked), table.to_pandas(),
                pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
            ]  # fmt: skip
            for frame in frames:
                assert len(await stream.publish_many(frame)) == 4
            assert len(await stream.publish_many(Frame(table.slice(0, 0)))) == 0
            events = await read(stream, 4 * len(frames))
            assert [(e.key, e.value) for e in events] == [*zip(keys, values, strict=True)] * len(
                frames
            )
            for wrong in (Frame(pa.table({"value": [1]})), Frame(pa.chunked_array([[b"x"]])), 3):
                with pytest.raises(UsageError):
                    await stream.publish_many(wrong)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="columns `key` and `tag`"):
                await stream.publish_many(Frame(table), keys=keys)

    play(scenario)


def test_calls_with_invalid_events_publish_nothing() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            too_large = b"x" * (client._endpoint.options.event_bytes_max + 1)
            wrong: list[Any] = [
                stream.publish(too_large),
                stream.publish("text"),  # type: ignore[arg-type]
                stream.publish(b"", key="text"),  # type: ignore[arg-type]
                stream.publish_many([b"fine", too_large]),
                stream.publish_many([b"fine", None]),  # type: ignore[list-item]
                stream.publish_many([b"fine"], keys=[b"a", b"b"]),
                stream.publish_many([b"fine"], keys=["a"]),  # type: ignore[list-item]
                stream.publish_many(b"bytes"),
                stream.publish_many(pa.table({"value": [1, 2]})),
                stream.publish_many(pa.table({"value": [b"", None]})),
                stream.publish_many(pa.table({"value": [b""], "price": [1]})),
                stream.collect(17),  # type: ignore[arg-type]
            ]
            for attempt in wrong:
                with pytest.raises(UsageError):
                    await attempt
            with pytest.raises(UsageError):
                stream.publish_soon(too_large)
            with pytest.raises(UsageError, match=r"not str: 'text'; encode it.*value\.encode\(\)$"):
                await stream.publish("text")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match=r"a key is bytes, not int: 7$"):
                await stream.publish(b"", key=7)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="no stream named 'absent': correct the name"):
                await client.stream("absent", create=False)
            assert await stream.publish(b"first") == 1

    play(scenario)


def test_publish_soon_keeps_the_order_of_calls_and_flush_waits() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("soon")
            again = await client.stream("soon")  # another handle of the same stream
            waiting = []
            for n in range(500):
                (stream if n % 2 else again).publish_soon(b"%d" % n, key=b"k%d" % n)
                if n % 100 == 50:
                    waiting.append(asyncio.ensure_future(stream.publish(b"now")))
                    await asyncio.sleep(0)
            await client.flush()
            assert all(future.done() for future in waiting)
            events = await read(stream, 505)
            assert [int(e.value) for e in events if e.value != b"now"] == list(range(500))

    play(scenario)


def test_leaving_the_block_publishes_buffered_events() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            async with regions.client("east") as client:
                stream = await client.stream("s")
                for n in range(10_000):
                    stream.publish_soon(b"%d" % n)
            with pytest.raises(Closed):
                stream.publish_soon(b"late")
            with pytest.raises(Closed):
                await stream.publish(b"late")
            with pytest.raises(Closed):
                await client.stream("s")
            async with regions.client("east") as client:
                events = await read(await client.stream("s"), 10_000)
                assert [int(e.value) for e in events] == list(range(10_000))

    play(scenario)


def test_with_a_full_outbox_publish_waits_and_publish_soon_raises() -> None:
    async def scenario() -> None:
        bounds = {
            "outbox_bytes_max": 40_000, "batch_bytes_max": 4_000, "event_bytes_max": 8_000,
            "outbox_batches_max": 2,
        }  # fmt: skip
        async with Regions(east=1) as regions, regions.client("east", **bounds) as client:
            stream = await client.stream("s")
            await regions.kill("east-1")  # nothing is acknowledged now
            for _ in range(40):
                stream.publish_soon(bytes(984))
            with pytest.raises(QueueFull, match="flush"):
                stream.publish_soon(bytes(984))
            assert stream._outbox.nbytes == 40_000
            blocked = [asyncio.ensure_future(stream.publish(b"b%d" % n)) for n in range(3)]
            await asyncio.sleep(0.05)
            assert not any(future.done() for future in blocked)
            blocked[1].cancel()  # is never published
            await regions.start("east-1")
            assert await blocked[0] == 41
            assert await blocked[2] == 42
            await client.flush()
            assert stream._outbox.nbytes == 0
            assert stream._outbox.unacknowledged == 0
            assert [e.value for e in (await read(stream, 42))[40:]] == [b"b0", b"b2"]

    play(scenario)


async def _unequal_sizes() -> None:
    """Small events after a large one that waits for room would fit, but must wait behind it."""
    bounds = {"outbox_bytes_max": 10_000, "batch_bytes_max": 2_000, "event_bytes_max": 8_000}
    async with Regions(east=1) as regions, regions.client("east", **bounds) as client:
        stream = await client.stream("s")
        await regions.kill("east-1")  # nothing is acknowledged now
        calls = [
            stream.publish(bytes(6_000)),
            stream.publish(bytes(7_000)),  # waits
            stream.publish(b"small"),
            stream.publish_many([b"many"]),
            stream.collect(surecast.before_seq(1)),
            stream.publish(b"last"),
        ]
        waiting = [asyncio.ensure_future(call) for call in calls]
        await until(lambda: stream._outbox.is_blocked)
        with pytest.raises(QueueFull):
            stream.publish_soon(b"soon")
        await regions.start("east-1")
        positions = [await call for call in waiting]
        positions[3] = positions[3].first
        assert positions == [1, 2, 3, 4, 5, 6]
        assert (await read(stream, 2, voids=True))[1].value == bytes(7_000)


class Overtakes(Outbox):
    """A mutant: a publish that fits is accepted although earlier ones wait for room."""

    def publish(self, value: bytes, key: bytes | None, tag: bytes | None) -> asyncio.Future[int]:
        waiting, self._blocked = self._blocked, deque()
        try:
            return super().publish(value, key, tag)
        finally:
            self._blocked = waiting + self._blocked


def test_a_small_event_does_not_overtake_a_large_one_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(_unequal_sizes)
    monkeypatch.setattr("surecast.endpoint.endpoint.Outbox", Overtakes)
    with pytest.raises(AssertionError, match=r"assert \[1, 4, 2,"):
        play(_unequal_sizes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_cancellations_break_neither_client_nor_order(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        bounds = {
            "outbox_bytes_max": 6_000, "batch_bytes_max": 500, "event_bytes_max": 1_000,
            "outbox_batches_max": 3, "batch_rows_max": 7,
        }  # fmt: skip
        async with Regions(east=2) as regions, regions.client("east", **bounds) as client:
            stream = await client.stream("s")
            sent: dict[bytes, asyncio.Future[Any]] = {}
            for n in range(1500):
                value = b"%d" % n
                if rng.random() < 0.1:
                    task = asyncio.ensure_future(stream.publish_many([value, value + b"!"]))
                else:
                    task = asyncio.ensure_future(stream.publish(value))
                sent[value] = task
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.choice([0, 0, 0.001]))
                if rng.random() < 0.5:
                    rng.choice(list(sent.values())[-20:]).cancel()
                if n in (500, 1000):
                    await regions.restart(rng.choice(regions.names["east"]))
            await asyncio.wait(sent.values())
            await client.flush()
            end = await stream.publish(b"end")
            values = [event.value for event in await read(stream, end)]
            assert len(set(values)) == len(values), "published twice"
            order = [int(value.rstrip(b"!")) for value in values[:-1]]
            assert order == sorted(order), "calls of one client keep their order"
            for value, future in sent.items():
                if future.cancelled():
                    continue
                seq = future.result() if isinstance(future.result(), int) else future.result().first
                assert values[seq - 1] == value
            assert client._endpoint.control.busy is False

    play(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12, 13, 14])
def test_publishing_is_exactly_once_through_failovers(seed: int) -> None:
    """Replicas crash under load: every acknowledged event is in the stream once, in order."""
    rng = random.Random(seed)
    print(f"seed {seed}")

    async def scenario() -> None:
        async with Regions(east=3) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            acked: dict[int, bytes] = {}
            stop = False

            async def load(name: str) -> None:
                n = 0
                while not stop:
                    values = [f"{name}.{n + i}".encode() for i in range(rng.randrange(1, 30))]
                    n += len(values)
                    seqs = await stream.publish_many(values)
                    acked.update(zip(seqs, values, strict=True))
                    await asyncio.sleep(0.001)

            loads = [asyncio.ensure_future(load(name)) for name in ("x", "y")]
            for _ in range(6):
                before = len(acked)
                victims = [regions.head("east") or "east-1", rng.choice(regions.names["east"])]
                for victim in dict.fromkeys(victims[: rng.choice([1, 1, 2])]):
                    await regions.kill(victim)
                    await asyncio.sleep(rng.random() * 0.1)
                    await regions.start(victim)
                await until(lambda before=before: len(acked) > before + 100)  # type: ignore[misc]
            stop = True
            await asyncio.gather(*loads)
            end = await stream.publish(b"end")
            events = await read(stream, end)
            assert [event.seq for event in events] == list(range(1, end + 1))
            values = [event.value for event in events]
            assert len(set(values)) == len(values)
            assert all(values[seq - 1] == value for seq, value in acked.items())
            for name in (b"x", b"y"):
                own = [int(v.partition(b".")[2]) for v in values if v.startswith(name + b".")]
                assert own == list(range(len(own)))

    play(scenario, 120)


def test_collect_makes_events_void_and_returns_its_own_position() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"%d" % n for n in range(10)], keys=[b"a", b"b"] * 5)
            assert await stream.collect(surecast.before_seq(5)) == 11
            assert await stream.collect(surecast.key_is(b"b")) == 12
            await stream.publish(b"last")
            async with stream.subscribe(start="earliest", voids=True) as sub:
                seen = [await anext(sub)]
                while seen[-1].value != b"last":
                    seen.append(await anext(sub))
            covered = [seq for event in seen for seq in event.range]
            assert covered == list(range(1, 14))
            assert {event.kind for event in seen} <= {"event", "void"}
            assert seen[-2].kind == "void"
            assert seen[-2].reason == "control"
            while [e.seq for e in await read(stream, 4)] != [5, 7, 9, 13]:
                await asyncio.sleep(0.01)  # recent events are sent although they are void

    play(scenario)


def test_flush_raises_errors_of_publish_soon() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s", retain=surecast.latest_per_key())
            batch = surecast.client.stream.Batch.of(stream._info.stream_id, [b"\xff"], kind=2)
            sent, _ = stream._outbox.publish_batch(batch, 100)  # a collect that cannot be read
            stream.publish_soon(b"behind it")
            with pytest.raises(PublishError, match="1 events of publish_soon"):
                await client.flush()
            assert sent.positions is not None
            with pytest.raises(PublishError):
                await sent.positions
            await client.flush()  # the error is reported once
            assert await stream.publish(b"fine again") == 1

    play(scenario)


def test_closing_gives_up_on_unacknowledged_events_after_its_timeout() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            client: Client = await regions.client("east", close_timeout=0.05)
            stream = await client.stream("s")
            await regions.kill("east-1")
            stream.publish_soon(b"x")
            waiting = asyncio.ensure_future(stream.publish(b"y"))
            await asyncio.sleep(0)
            with pytest.raises(Closed, match="may or may not"):
                await client.close()
            with pytest.raises(PublishError) as caught:
                await waiting
            assert caught.value.maybe_taken

    play(scenario)
