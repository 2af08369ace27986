"""`stream.read()`: a bounded read as one Arrow table; and batches with voids."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest

import surecast
from surecast.client import table as table_module
from surecast.client.arrow import SCHEMA, SCHEMA_WITH_VOIDS
from surecast.errors import TimedOut, UsageError
from tests.client.stage import Regions, play
from tests.client.test_named import stored


def covered(table: pa.Table | pa.RecordBatch) -> list[int]:
    """The positions that the rows of a table with voids stand for."""
    ends, counts = table.column("seq").to_pylist(), table.column("range").to_pylist()
    pairs = zip(ends, counts, strict=True)
    return [seq for end, count in pairs for seq in range(end + 1 - count, end + 1)]


async def all_void(stream: surecast.Stream, below: int) -> int:
    """Collect everything below a position, and wait until readers see it. Returns the end."""
    end = await stream.collect(surecast.before_seq(below)) + 1
    async with asyncio.timeout(20):  # recent events are sent although they are void
        while (await stream.read(stop=below)).num_rows:
            await asyncio.sleep(0.01)
    return end


def test_a_table_has_all_events_between_two_positions() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"%d" % n for n in range(1, 1001)], keys=[b"k"] * 1000)
            await stream.publish(b"tagged", tag=b"t")
            table = await stream.read()
            table.validate(full=True)
            assert table.schema == SCHEMA
            assert table.column("seq").to_pylist() == list(range(1, 1002))
            assert table.column("value").to_pylist()[:2] == [b"1", b"2"]
            assert table.slice(1000).to_pylist()[0]["tag"] == b"t"
            assert set(table.column("stream").to_pylist()) == {"s"}
            part = await stream.read(start=10, stop=20)
            assert part.column("seq").to_pylist() == list(range(10, 20))
            assert part.to_pylist() == table.slice(9, 10).to_pylist()
            assert (await stream.read("latest")).num_rows == 0
            assert client._readers.all[0].takers == {}  # the reader follows no stream any more

    play(scenario)


def test_an_empty_table_has_all_columns() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            assert (await stream.read()).schema == SCHEMA
            assert (await stream.read(voids=True)).schema == SCHEMA_WITH_VOIDS
            await stream.publish_many([b"x"] * 5)
            end = await all_void(stream, 6)
            empty = await stream.read()
            assert (empty.schema, empty.num_rows) == (SCHEMA, 0)
            voids = await stream.read(voids=True)
            voids.validate(full=True)
            assert voids.select(["seq", "kind", "range", "reason"]).to_pylist() == [
                {"seq": 5, "kind": "void", "range": 5, "reason": "collected"},
                {"seq": 6, "kind": "void", "range": 1, "reason": "control"},
            ]
            assert covered(voids) == list(range(1, end))

    play(scenario)


def test_rows_of_events_and_voids_cover_every_position() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s", retain=surecast.latest_per_key())
            keys = [b"once:%d" % n if n % 7 == 0 else b"often" for n in range(500)]
            await stream.publish_many([b"%d" % n for n in range(500)], keys=keys)
            for n in range(20):
                await stream.publish(b"%d" % n, key=b"often")
            async with asyncio.timeout(20):
                while (table := await stream.read(voids=True)).num_rows >= 500:
                    await asyncio.sleep(0.01)
            table.validate(full=True)
            assert table.schema == SCHEMA_WITH_VOIDS
            assert covered(table) == list(range(1, 521))
            voids = table.column("kind").to_pylist().count("void")
            assert voids > 0
            events = [e async for e in stream.subscribe(1, stop="latest", voids=True)]
            assert {e.kind for e in events} == {"event", "void"}
            assert [row(e) for e in events] == table.select(COLUMNS).to_pylist()
            found: list[pa.RecordBatch] = []
            async for batch in stream.subscribe(1, stop="latest", voids=True).batches():
                found.append(batch)
            assert pa.Table.from_batches(found).to_pylist() == table.to_pylist()
            for subscribed, called in ((False, True), (True, False)):  # the call decides
                sub = stream.subscribe(1, stop="latest", voids=subscribed)
                found = [batch async for batch in sub.batches(voids=called)]
                assert sum(b.num_rows for b in found) == table.num_rows - (0 if called else voids)
                assert ("kind" in found[0].schema.names) == called
            manual = stream.subscribe(1, stop="latest", voids=True, name="m", ack="manual")
            first = await anext(manual.batches())
            await manual.ack(first)
            assert await stored(regions, "m", stream.stream_id) == covered(first)[-1] + 1

    play(scenario)


COLUMNS = ["seq", "key", "value", "tag", "kind", "range", "reason"]


def row(event: surecast.Event) -> dict[str, Any]:
    is_event = event.kind == "event"
    value, reason = (event.value, None) if is_event else (None, event.reason)
    cells = (event.seq, event.key, value, event.tag, event.kind, event.count, reason)
    return dict(zip(COLUMNS, cells, strict=True))


def test_the_size_of_a_table_is_bounded() -> None:
    async def scenario() -> None:
        async with (
            Regions(east=1) as regions,
            regions.client("east", read_bytes_max=50_000) as client,
        ):
            stream = await client.stream("s")
            await stream.publish_many([bytes(100)] * 300)
            table = await stream.read()
            assert table.num_rows == 300
            assert table.nbytes <= 50_000
            await stream.publish_many([bytes(100)] * 300)
            with pytest.raises(UsageError, match=r"50,000 bytes \(ClientOptions.read_bytes_max\)"):
                await stream.read()
            assert (await stream.read(start=301)).num_rows == 300  # in parts
            assert client._readers.all[0].takers == {}

    play(scenario)


def test_many_small_batches_become_few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "SMALL_MAX", 10)

    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            reading = asyncio.ensure_future(stream.read(stop=201))
            for n in range(200):
                await stream.publish(b"%d" % n)  # each is read as a batch of its own
            table = await reading
            assert [int(value) for value in table.column("value").to_pylist()] == list(range(200))
            assert 10 <= table.column("value").num_chunks <= 21  # joined as they arrived

    play(scenario)


def test_a_read_can_time_out() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            await stream.publish(b"x")
            with pytest.raises(TimedOut, match=r"waited 0.1 s for all events of 's' up to 3"):
                await stream.read(stop=3, timeout=0.1)
            with pytest.raises(UsageError, match="has an end"):
                await stream.read(stop=None)  # type: ignore[arg-type]
            assert client._readers.all[0].takers == {}

    play(scenario)
