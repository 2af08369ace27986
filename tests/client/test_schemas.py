"""Streams with a schema: publish, read, replicate, restart, and what is refused."""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import surecast
import surecast.sync
from surecast.client.arrow import SCHEMA, record_batch_schema
from surecast.columns.batch import Batch
from surecast.columns.schema import read_schema
from surecast.columns.typed import Attributes
from surecast.errors import NotSupported, PublishError, StreamConfigMismatch, UsageError
from tests.client.stage import Regions, play

TRADES = "sym string not null, px float64, qty int64"


async def attributes(stream: surecast.Stream, **more: Any) -> list[dict[str, Any]]:
    return [
        event.attributes
        async for event in stream.subscribe(start="earliest", stop="latest", **more)
    ]


def test_events_have_attributes_in_every_region() -> None:
    async def scenario() -> None:
        async with (
            Regions(east=2, west=1) as regions,
            regions.client("east") as east,
            regions.client("west") as west,
        ):
            stream = await east.stream("trades", schema=TRADES)
            assert stream.schema == pa.schema(
                [
                    pa.field("sym", pa.string(), False),
                    pa.field("px", pa.float64()),
                    pa.field("qty", pa.int64()),
                ]
            )
            async with asyncio.timeout(20):
                while not await west.streams("trades"):
                    await asyncio.sleep(0.01)
            there = await west.stream("trades")
            assert there.schema == stream.schema
            assert await stream.publish({"sym": "IBM", "px": 81.2}, key=b"IBM") == 1
            assert await there.publish({"sym": "A", "value": b"v", "key": b"k", "tag": b"t"}) == 2
            table = pa.table({"sym": ["x", "y"], "px": [1.0, None], "value": [b"1", b"2"]})
            assert (await there.publish_many(table)).runs == ((3, 5),)
            stream.publish_soon({"sym": "soon", "qty": 1})
            stream.publish_soon({"sym": "soon", "qty": 2}, key=b"s")
            await east.flush()
            for client in (east, west):
                opened = await client.stream("trades")
                async with asyncio.timeout(20):
                    while len(found := await attributes(opened)) < 6:
                        await asyncio.sleep(0.01)
                assert found == [
                    {"sym": "IBM", "px": 81.2, "qty": None},
                    {"sym": "A", "px": None, "qty": None, "tag": b"t"},
                    {"sym": "x", "px": 1.0, "qty": None},
                    {"sym": "y", "px": None, "qty": None},
                    {"sym": "soon", "px": None, "qty": 1},
                    {"sym": "soon", "px": None, "qty": 2},
                ]
                read = await opened.read()
                read.validate(full=True)
                assert read.schema == record_batch_schema(False, read_schema(TRADES))
                columns = read.column("attributes").combine_chunks()
                assert columns.field("sym").to_pylist()[2:4] == ["x", "y"]
                assert read.column("value").to_pylist() == [b"", b"v", b"1", b"2", b"", b""]
                assert read.column("key").to_pylist() == [b"IBM", b"k", None, None, None, b"s"]

    play(scenario)


def test_attributes_stay_with_their_events_under_retention_and_after_a_restart(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        latest = surecast.latest_per_key()
        count = 3000
        async with surecast.local(tmp_path) as client:
            stream = await client.stream("t", schema="n int64, s string", retain=latest)
            for at in range(0, count, 500):
                await stream.publish_many(
                    [
                        {"n": n, "s": None if n % 3 else "s" * (n % 7), "key": b"%d" % (n % 50)}
                        for n in range(at, at + 500)
                    ]
                )
        async with surecast.local(tmp_path) as client:
            stream = await client.stream("t")
            async with asyncio.timeout(20):  # recent events are sent although they are void
                while (await stream.read()).num_rows > 50:
                    await asyncio.sleep(0.01)
            kept: dict[int, dict[str, Any]] = {}
            covered = 0
            subscription = stream.subscribe(start="earliest", stop="latest", voids=True)
            async for event in subscription:
                covered += event.count
                if event.kind == "event":
                    kept[event.seq] = event.attributes
                else:
                    assert event.attributes == {}
            assert covered == count
            assert list(kept) == list(range(count - 49, count + 1))
            assert all(
                found == {"n": seq - 1, "s": None if (seq - 1) % 3 else "s" * ((seq - 1) % 7)}
                for seq, found in kept.items()
            )
            table = await stream.read(voids=True)
            table.validate(full=True)
            assert table.schema == record_batch_schema(True, read_schema("n int64, s string"))
            rows = table.to_pylist()
            assert [row["seq"] for row in rows if row["attributes"] is not None] == list(kept)

    play(scenario)


def test_a_schema_can_be_given_as_text_or_as_arrow_and_is_fixed() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            schema = pa.schema([pa.field("n", pa.int64(), False)])
            assert (await client.stream("a", schema=schema)).schema == schema
            assert (await client.stream("a", schema="n INT64  not null")).schema == schema
            assert (await client.stream("a")).schema == schema
            with pytest.raises(StreamConfigMismatch, match="schema='n int64 not null', but 'n int"):
                await client.stream("a", schema="n int64")
            (info,) = await client.streams("a")
            assert (await client.stream("copy", schema=info.schema)).schema == schema
            assert (await client.stream("b")).schema is None
            assert (await client.stream("b", schema="")).schema is None  # as in its info
            with pytest.raises(StreamConfigMismatch, match="has schema=None"):
                await client.stream("b", schema=schema)
            with pytest.raises(UsageError, match="create=False opens a stream as it is"):
                await client.stream("a", schema=schema, create=False)
            for wrong, words in (
                ("n int65", "'int65' where a type"),
                (pa.schema([("key", pa.int8())]), "needs another name"),
                (pa.schema([("n", pa.uint8())]), "whole numbers have a sign"),
                ({"n": int}, "schema= is a pyarrow.Schema, or text"),
            ):
                with pytest.raises(UsageError, match=words):
                    await client.stream("c", schema=wrong)  # type: ignore[arg-type]
            wide = ", ".join(f"a_rather_long_name_{n} int64" for n in range(200))
            with pytest.raises(UsageError, match="about 4,000 characters"):
                await client.stream("c", schema=wide)
            assert [info.name for info in await client.streams()] == ["a", "b", "copy"]

    play(scenario)


def test_wrong_events_are_refused_and_nothing_of_their_batch_is_published() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("t", schema="n int64")
            opaque = await client.stream("o")
            for call in (
                stream.publish({"n": "1"}),
                stream.publish(b"x"),
                stream.publish_many([{"n": 1}, {"n": 1.5}]),
                stream.publish_many([b"x"]),  # type: ignore[list-item]
                stream.publish_many(pa.table({"n": ["1"]})),
                stream.publish({"n": 1, "key": b"a"}, key=b"b"),
                opaque.publish({"n": 1}),
            ):
                with pytest.raises(UsageError):
                    await call
            with pytest.raises(UsageError):
                stream.publish_soon(b"x")
            with pytest.raises(UsageError):
                stream.publish_soon({"m": 1})
            await client.flush()
            assert (await stream.read()).num_rows == (await opaque.read()).num_rows == 0
            assert (await opaque.read()).schema == SCHEMA

    play(scenario)


def test_large_rows_fail_alone() -> None:
    """What is null takes room, too."""

    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("t", schema="n int64, l list(int64)")
            with pytest.raises(UsageError, match="an event of 27,000,014 bytes"):
                await stream.publish({"l": [None] * 3_000_000})
            with pytest.raises(UsageError, match="an event of"):
                stream.publish_soon({"l": [None] * 3_000_000})
            with pytest.raises(UsageError, match="an event of"):
                await stream.publish_many([{"n": 1}] * 5000 + [{"l": [None] * 3_000_000}])
            table = pa.table({"l": [[1]] * 9000 + [[1] * 1_500_000]})
            with pytest.raises(UsageError, match="an event of"):
                await stream.publish_many(table)
            assert (await stream.read()).num_rows == 0
            wide = ", ".join(f"c{number} int64" for number in range(100))
            stream = await client.stream("wide", schema=wide)
            assert (await stream.publish_many([{}] * 60_000, timeout=60)).runs == ((1, 60_001),)

    play(scenario)


def test_servers_refuse_batches_that_do_not_have_the_columns_of_the_schema() -> None:
    """Of connectors, which build their own batches."""

    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("t", schema="n int64")
            types = read_schema("n int32").types
            table = pa.RecordBatch.from_arrays(
                [pa.array([1], pa.int32())], schema=types.arrow_schema()
            )
            narrow = Attributes(types, 1, table=table)
            for made in (None, narrow):
                batch = Batch.of(stream.stream_id, [b""], attributes=made)
                with pytest.raises(PublishError, match="have the columns"):
                    await (await stream.publish_batch(batch))
            with pytest.raises(UsageError, match="for rows and tables there is publish_many"):
                await stream.publish_batch([{"n": 1}])  # type: ignore[arg-type]
            opaque = await client.stream("o")
            batch = Batch.of(opaque.stream_id, [b""], attributes=narrow)
            with pytest.raises(PublishError, match="have the columns"):
                await (await opaque.publish_batch(batch))
            assert await stream.publish({"n": 1}) == 1

    play(scenario)


def test_a_schema_of_a_later_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            await client.stream("t", schema="n int64")
            endpoint = client._endpoint
            open_stream = endpoint.control.open

            async def newer(name: str, spec: Any) -> Any:
                opened = await open_stream(name, spec)
                opened.info = surecast.client.connection.StreamInfo(
                    opened.info.stream_id, name, "x", opened.info.retention, schema="n int128"
                )
                return opened

            monkeypatch.setattr(endpoint.control, "open", newer)
            with pytest.raises(NotSupported, match="cannot read: upgrade the client"):
                await client.stream("t")

    play(scenario)


def test_named_publishers_repeat_rows_without_duplicates() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("t", schema="n int64")
            for _ in range(2):
                line = stream.named("loader", 1)
                assert (await line.publish_many([{"n": 1}, {"n": 2}])).runs == ((1, 3),)
            assert await attributes(stream) == [{"n": 1}, {"n": 2}]

    play(scenario)


def test_events_with_attributes_can_be_pickled_and_compared() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("t", schema="n int64, l list(int8)")
            await stream.publish({"n": 1, "l": [1]})
            (event,) = [event async for event in stream.subscribe(start=1, stop=2)]
            assert event in {event}
            again = pickle.loads(pickle.dumps(event))
            assert again == event
            assert hash(again) == hash(event)
            assert again.attributes == {"n": 1, "l": [1]}

    play(scenario)


def test_the_synchronous_client_publishes_rows() -> None:
    with surecast.sync.local() as client:
        stream = client.stream("t", schema="n int64")
        assert stream.schema == pa.schema([("n", pa.int64())])
        assert stream.publish({"n": 1}) == 1
        stream.publish_soon({"n": 2}, key=b"k")
        client.flush()
        assert stream.publish_many([{"n": 3}]).last == 3
        with pytest.raises(UsageError):
            stream.publish_soon(b"x")
        with stream.subscribe(start=1, stop="latest") as events:
            assert [event.attributes for event in events] == [{"n": 1}, {"n": 2}, {"n": 3}]
