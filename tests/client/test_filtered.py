"""Streams with delivery="filtered", through the client: in their own region and from another."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from surecast.client.stream import Stream
from surecast.errors import NotSupported
from tests.client.stage import Regions, play, until

SCHEMA = pa.schema([("sym", pa.string()), ("qty", pa.int64())])
OWNERS = {"": "east"}


async def opened(client: Any, name: str = "trades") -> Stream:
    stream: Stream = await client.stream(name, delivery="filtered", schema=SCHEMA)
    return stream


async def take(subscription: Any, count: int) -> list[Any]:
    found = []
    async with asyncio.timeout(20):
        async for event in subscription:
            found.append(event)
            if len(found) == count:
                break
    return found


def test_another_region_creates_publishes_and_reads_through_the_owner() -> None:
    async def scenario() -> None:
        async with (
            Regions(OWNERS, east=2, west=1) as regions,
            regions.client("east") as east,
            regions.client("west") as west,
        ):
            there = await opened(west)
            here = await opened(east)
            assert here.owner == "east"
            assert await there.publish({"sym": "IBM", "qty": 1}) == 1
            assert await here.publish({"sym": "SAP", "qty": 2}) == 2
            for stream in (here, there):
                got = await take(stream.subscribe(start="earliest"), 2)
                assert [(e.seq, e.attributes) for e in got] == [
                    (1, {"sym": "IBM", "qty": 1}), (2, {"sym": "SAP", "qty": 2}),
                ]  # fmt: skip
            log = regions.layer("west-1").streams[here.stream_id]
            assert log.end == 1, "regions that do not own the stream have no copy"

    play(scenario)


def test_a_subscriber_survives_the_death_of_the_servers_on_its_path() -> None:
    async def scenario() -> None:
        async with (
            Regions(OWNERS, east=2, west=2) as regions,
            regions.client("east") as east,
            regions.client("west") as west,
        ):
            here, there = await opened(east), await opened(west)
            subscription = there.subscribe(start="earliest")
            await here.publish({"sym": "A", "qty": 0})
            assert [e.seq for e in await take(subscription, 1)] == [1]
            for turn, victim in enumerate(("west-1", "west-2", "east-1", "east-2")):
                await regions.kill(victim)
                if victim.startswith("east"):  # two replicas must have an event
                    await regions.start(victim)
                await asyncio.gather(*(here.publish({"sym": "B", "qty": turn}) for _ in range(2)))
                got = await take(subscription, 2)
                assert [e.seq for e in got] == [2 + 2 * turn, 3 + 2 * turn]
                if victim.startswith("west"):
                    await regions.start(victim)
                await until(lambda: len(regions.layer("east-1").members) == 2)

    play(scenario)


def test_filters_are_exact_can_be_changed_and_see_fields_that_were_added() -> None:
    async def scenario() -> None:
        async with (
            Regions(OWNERS, east=1, west=1) as regions,
            regions.client("east") as east,
            regions.client("west") as west,
        ):
            here, there = await opened(east), await opened(west)
            rows = [{"sym": "IBM" if n % 3 else "SAP", "qty": n} for n in range(30)]
            await here.publish_many(rows)
            for stream in (here, there):
                subscription = stream.subscribe(start=1, where="sym == 'SAP' and qty > 10")
                got = await take(subscription, 4)
                assert [e.attributes["qty"] for e in got] == [12, 15, 18, 21]
                await subscription.change(where="qty >= 25")
                got = await take(subscription, 5)
                assert [e.attributes["qty"] for e in got] == [25, 26, 27, 28, 29]
            await here.change(schema="sym string, qty int64, venue string")
            schema = pa.schema([*SCHEMA, ("venue", pa.string())])
            while (there := await west.stream("trades")).schema != schema:
                await asyncio.sleep(0.02)
            newer = there.subscribe(start=1, where="venue == 'X'")
            await here.publish_many([{"sym": "A", "venue": v} for v in ("Y", "X", None, "X")])
            assert [e.seq for e in await take(newer, 2)] == [33, 35]

    play(scenario)


def test_latest_and_times_are_those_of_the_owner() -> None:
    async def scenario() -> None:
        async with (
            Regions(OWNERS, east=1, west=1) as regions,
            regions.client("east") as east,
            regions.client("west") as west,
        ):
            here, there = await opened(east), await opened(west)
            await here.publish_many([{"qty": n} for n in range(5)])
            await asyncio.sleep(0.1)
            middle = datetime.now(UTC)
            await asyncio.sleep(0.1)
            await here.publish_many([{"qty": n} for n in range(5, 9)])
            latest = await there.subscribe().ready()
            pattern = await west.subscribe("trades").ready()
            timed = await there.subscribe(start=middle, stop="latest").ready()
            assert [e.seq async for e in timed] == [6, 7, 8, 9]
            await here.publish({"qty": 10})
            for subscription in (latest, pattern):
                assert [e.seq for e in await take(subscription, 1)] == [10]
            table = await there.read()
            assert table.num_rows == 10
            with pytest.raises(NotSupported, match="'east'"):
                await anext(there.subscribe(name="billing"))

    play(scenario)


def test_the_name_of_a_deleted_stream_is_free_in_every_region() -> None:
    async def scenario() -> None:
        async with (
            Regions(OWNERS, east=1, west=1) as regions,
            regions.client("east") as east,
            regions.client("west") as west,
        ):
            here, there = await opened(east), await opened(west)
            await here.publish({"qty": 1})
            await here.delete()
            while await west.streams("trades"):
                await asyncio.sleep(0.02)
            again = await opened(west)
            assert again.stream_id != there.stream_id
            assert await again.publish({"qty": 2}) == 1
            got = await take(again.subscribe(start=1), 1)
            assert got[0].attributes["qty"] == 2
            await regions.restart("west-1")
            assert (await opened(west)).stream_id == again.stream_id

    play(scenario)
