"""Bounded reads over sockets: a subscription ends at its stop, with or without voids."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import surecast
from surecast.client.subscription import Subscription
from surecast.errors import UsageError
from tests.client.stage import Regions, play, until
from tests.client.test_named import stored
from tests.client.test_subscribe import CLOCKS_DIFFER_S


async def seqs(sub: Subscription) -> list[int]:
    """The positions of all events, until it ends."""
    return [event.seq async for event in sub]


async def batch_seqs(sub: Subscription) -> list[int]:
    return [seq async for batch in sub.batches() for seq in batch.column("seq").to_pylist()]


async def stream_seqs(sub: Subscription) -> list[tuple[str, int]]:
    return [(event.stream, event.seq) async for event in sub]


async def ranges(sub: Subscription) -> list[int]:
    """All positions, of events and voids, until it ends."""
    return [seq async for event in sub for seq in event.range]


@pytest.mark.parametrize("mesh", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_subscription_ends_when_every_position_below_the_stop_is_read(mesh: bool) -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east", mesh=mesh) as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 5)
            await asyncio.sleep(CLOCKS_DIFFER_S)
            between = datetime.now(UTC)
            await asyncio.sleep(CLOCKS_DIFFER_S)
            await stream.publish_many([b"y"] * 5)
            everything = list(range(1, 11))
            stops: list[tuple[Any, list[int]]] = [
                ("latest", everything),
                (11, everything),
                (10, everything[:-1]),
                (1, []),
                (between, everything[:5]),
                (between - timedelta(days=1), []),
                (datetime.now(UTC) - timedelta(microseconds=1), everything),
            ]
            for stop, expected in stops:
                for subscribe in (stream.subscribe, lambda **how: client.subscribe("s", **how)):
                    assert await seqs(subscribe(start=1, stop=stop)) == expected, stop
                    assert await batch_seqs(subscribe(start=1, stop=stop)) == expected, stop
                    assert await seqs(subscribe(start=1, stop=stop, voids=True)) == expected
            assert await seqs(stream.subscribe(start=4, stop=8)) == [4, 5, 6, 7]
            for start, stop in (
                (8, 4),
                (8, 8),
                ("latest", "latest"),
                ("latest", 5),
                (11, "latest"),
            ):
                assert await seqs(stream.subscribe(start=start, stop=stop)) == []
                assert await seqs(client.subscribe("s", start=start, stop=stop)) == []

    play(scenario)


def test_an_ended_subscription_stays_ended() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 3)
            sub = stream.subscribe(start=1, stop="latest")
            assert await seqs(sub) == [1, 2, 3]
            await stream.publish(b"later")
            assert await seqs(sub) == []
            with pytest.raises(StopAsyncIteration):
                await anext(sub)
            assert await batch_seqs(sub) == []

    play(scenario)


def test_latest_is_the_end_when_the_subscription_begins() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 3)
            async with stream.subscribe(start=1, stop="latest") as sub:
                await stream.publish_many([b"y"] * 3)
                assert await seqs(sub) == [1, 2, 3]

    play(scenario)


def test_an_empty_stream_ends_at_once() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            for start in ("earliest", "latest", 1, 7):
                assert await seqs(stream.subscribe(start=start, stop="latest")) == []
                assert await batch_seqs(stream.subscribe(start=start, stop="latest")) == []
            assert await seqs(client.subscribe("nobody", start=1, stop="latest")) == []
            assert await seqs(client.subscribe("no.>", start=1, stop=10)) == []

    play(scenario)


def test_a_subscription_ends_when_the_last_positions_are_void() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 20)
            end = await stream.collect(surecast.before_seq(21)) + 1
            async with asyncio.timeout(20):  # recent events are sent although they are void
                while await seqs(stream.subscribe(start=1, stop="latest")):
                    await asyncio.sleep(0.01)
            assert await batch_seqs(stream.subscribe(start=1, stop="latest")) == []
            found = [e async for e in stream.subscribe(start=1, stop="latest", voids=True)]
            assert [(e.kind, e.range) for e in found] == [
                ("void", range(1, 21)),
                ("void", range(21, end)),
            ]
            assert await ranges(stream.subscribe(start=3, stop=9, voids=True)) == list(range(3, 9))
            assert await seqs(stream.subscribe(start=3, stop=9)) == []
            # The first event at or after a time comes after all voids.
            old = datetime.now(UTC) - timedelta(days=1)
            assert await seqs(stream.subscribe(start=1, stop=old)) == []

    play(scenario)


@pytest.mark.slow
def test_a_subscription_ends_when_the_last_positions_have_expired() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            policy = surecast.keep_for(timedelta(milliseconds=1))
            stream = await client.stream("s", retain=policy)
            await stream.publish_many([b"x"] * 20)
            async with asyncio.timeout(30):
                while await seqs(stream.subscribe(start=1, stop="latest")):
                    await asyncio.sleep(0.05)
            found = await ranges(stream.subscribe(start=1, stop="latest", voids=True))
            assert found == list(range(1, len(found) + 1))
            assert len(found) >= 20  # expiry adds an entry of its own

    play(scenario)


def test_a_stop_at_a_future_position_is_waited_for() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            await stream.publish(b"x")
            reading = asyncio.ensure_future(seqs(stream.subscribe(start=1, stop=4)))
            for count in (1, 5):
                await asyncio.sleep(0.05)
                assert not reading.done()
                await stream.publish_many([b"x"] * count)
            assert await reading == [1, 2, 3]

    play(scenario)


def test_a_stop_at_a_future_time_is_waited_for() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            quiet, busy = await client.stream("t.quiet"), await client.stream("t.busy")
            await quiet.publish_many([b"x"] * 2)
            stop = datetime.now(UTC) + timedelta(seconds=1)
            alone = asyncio.ensure_future(seqs(quiet.subscribe(start=1, stop=stop)))
            both = await client.subscribe("t.>", start=1, stop=stop).ready()

            async def publish() -> None:
                while True:
                    await busy.publish(b"x")
                    await asyncio.sleep(0.005)

            publishing = asyncio.ensure_future(publish())
            found = [event async for event in both]
            assert await alone == [1, 2]
            assert datetime.now(UTC) >= stop
            publishing.cancel()
            assert [event.seq for event in found if event.stream == "t.quiet"] == [1, 2]
            own = [event for event in found if event.stream == "t.busy"]
            assert [event.seq for event in own] == list(range(1, len(own) + 1))
            assert own
            assert all(event.time < stop for event in own)

    play(scenario)


def test_a_pattern_reads_the_streams_that_match_at_the_start() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            a, b = await client.stream("p.a"), await client.stream("p.b")
            await client.stream("p.empty")
            await a.publish_many([b"x"] * 4)
            await b.publish_many([b"x"] * 2)
            async with client.subscribe("p.>", start=1, stop="latest") as sub:
                later = await client.stream("p.later")
                for stream in (a, b, later):
                    await stream.publish(b"later")
                found = await stream_seqs(sub)
            expected = [("p.a", seq) for seq in range(1, 5)] + [("p.b", 1), ("p.b", 2)]
            assert sorted(found) == expected
            empty = await client.stream("p.empty")
            sub = await client.subscribe("p.*", start=1, stop=2).ready()
            reading = asyncio.ensure_future(stream_seqs(sub))
            await client.stream("p.never")  # created too late to count
            await asyncio.sleep(0.05)
            assert not reading.done()  # one of the streams is still empty
            await empty.publish(b"x")
            assert sorted(await reading) == [("p.a", 1), ("p.b", 1), ("p.empty", 1), ("p.later", 1)]

    play(scenario)


def test_the_position_of_a_named_subscription_is_stored_when_it_ends() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 10)
            sid = stream.stream_id
            sub = stream.subscribe(start=1, stop=6, name="n")
            assert await seqs(sub) == [1, 2, 3, 4, 5]
            assert await stored(regions, "n", sid) == 6  # without closing it
            assert await batch_seqs(client.subscribe("s", stop="latest", name="n")) == [
                6, 7, 8, 9, 10,
            ]  # fmt: skip
            assert await stored(regions, "n", sid) == 11
            assert await seqs(stream.subscribe(start=1, stop="latest", name="n")) == []
            assert (
                await seqs(stream.subscribe(start=1, stop=3, name="n")) == []
            )  # its position is beyond the stop
            end = await stream.collect(surecast.before_seq(2)) + 1
            assert await seqs(stream.subscribe(stop="latest", name="n")) == []
            assert await stored(regions, "n", sid) == end  # the last position was void

    play(scenario)


def test_manual_acknowledgement_works_after_the_end() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 10)
            sub = stream.subscribe(start=1, stop="latest", name="n", ack="manual")
            events = [event async for event in sub]
            assert await stored(regions, "n", stream.stream_id) == 1
            await sub.ack(events[-1])
            assert await stored(regions, "n", stream.stream_id) == 11

    play(scenario)


def test_a_small_buffer_reads_everything() -> None:
    async def scenario() -> None:
        async with (
            Regions(east=1) as regions,
            regions.client("east", buffer_bytes_max=2_000, batch_rows_max=10) as client,
        ):
            for name in ("b.a", "b.b"):
                await (await client.stream(name)).publish_many([bytes(50)] * 200)
            sub = client.subscribe("b.*", start=1, stop="latest")
            found = await stream_seqs(sub)
            for name in ("b.a", "b.b"):
                assert [seq for of, seq in found if of == name] == list(range(1, 201))

    play(scenario)


def test_an_ended_subscription_does_not_stop_others_on_its_reader() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 3)
            ended = stream.subscribe(start=1, stop="latest")
            assert await seqs(ended) == [1, 2, 3]
            live = await stream.subscribe(start=1).ready()
            assert len(client._readers.all) == 1
            await ended.close()  # must not stop other subscriptions of the reader
            await stream.publish(b"y")
            assert [(await anext(live)).seq for _ in range(4)] == [1, 2, 3, 4]

    play(scenario)


def test_stop_latest_includes_events_acknowledged_to_this_client_in_every_region() -> None:
    async def scenario() -> None:
        async with (
            Regions(owners={"": "east"}, east=1, west=1) as regions,
            regions.client("west") as client,
        ):
            stream = await client.stream("s")
            for n in range(1, 21):
                assert await stream.publish(b"x") == n
                # Region west may not have it yet.
                assert await seqs(stream.subscribe(start=n, stop="latest")) == [n]
                assert await seqs(client.subscribe("s", start=n, stop="latest")) == [n]

    play(scenario)


def test_a_bounded_subscription_survives_a_failover() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 100)
            sub = await stream.subscribe(start=1, stop=201).ready()
            assert (await anext(sub)).seq == 1
            await regions.restart("east-1")
            await until(lambda: regions.head("east") is not None)
            await stream.publish_many([b"x"] * 150)
            assert await seqs(sub) == list(range(2, 201))

    play(scenario)


@pytest.mark.parametrize("stop", [0, -1, 1 << 63, True, "earliest", 1.5, datetime(2026, 1, 1)])
def test_an_invalid_stop_is_refused_at_once(stop: Any) -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            with pytest.raises(UsageError):
                client.subscribe("s", stop=stop)
            with pytest.raises(UsageError):
                stream.subscribe(stop=stop)
            with pytest.raises(UsageError):
                await stream.read(stop=stop)

    play(scenario)


def test_a_nakcast_subscription_ends_at_its_stop() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", delivery="nakcast", retain=surecast.keep_last(30))
            await stream.publish_many([b"x"] * 50)
            assert (await ranges(stream.subscribe(start=1, stop="latest", voids=True))) == list(
                range(1, 51)
            )
            assert (await seqs(client.subscribe("*", start=41, stop=45))) == [41, 42, 43, 44]
            assert (await stream.read(start=41)).column("seq").to_pylist() == list(range(41, 51))

    play(scenario)
