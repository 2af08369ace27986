"""Reading over sockets: start positions, patterns, voids, batches, back-pressure, closing."""

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import surecast
from surecast.client.subscription import Subscription
from surecast.errors import Closed, UsageError
from tests.client.stage import Regions, play, until


async def take(sub: Subscription, count: int) -> list[surecast.Event]:
    return [await anext(sub) for _ in range(count)]


# A server's clock may be off the wall clock by less than `clock_jump_ns`.
CLOCKS_DIFFER_S = 0.15


def test_a_subscription_begins_at_its_start() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"%d" % n for n in range(1, 6)])
            await asyncio.sleep(CLOCKS_DIFFER_S)
            between = datetime.now(UTC)
            await asyncio.sleep(CLOCKS_DIFFER_S)
            await stream.publish_many([b"%d" % n for n in range(6, 11)])

            async def first(start: Any) -> int:
                async with stream.subscribe(start=start) as sub:
                    return (await anext(sub)).seq

            assert await first("earliest") == 1
            assert await first(4) == 4
            assert await first(between) == 6
            assert await first(between - timedelta(days=1)) == 1
            async with (
                stream.subscribe(start="latest") as latest,
                stream.subscribe(start=13) as ahead,
                stream.subscribe(start=datetime.now(UTC) + timedelta(days=1)) as tomorrow,
            ):
                await stream.publish_many([b"11", b"12", b"13"])
                assert (await anext(latest)).value == b"11"
                assert (await anext(ahead)).value == b"13"
                assert (await anext(tomorrow)).value == b"11"  # the end of the stream at that time

    play(scenario)


def test_a_second_loop_continues_where_the_first_ended() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"%d" % n for n in range(1, 101)])
            sub = stream.subscribe(start="earliest")
            seen = []
            for stop in (3, 50, 51, 100):
                async for event in sub:
                    seen.append(event.seq)
                    if event.seq == stop:
                        break
                if stop == 50:
                    seen.append((await anext(sub)).seq)
                    break
            async for event in sub:
                seen.append(event.seq)
                if event.seq == 100:
                    break
            assert seen == list(range(1, 101))

    play(scenario)


def test_a_pattern_reads_streams_created_later() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            old = await client.stream("cache.old")
            await client.stream("other.x")
            await old.publish_many([b"1", b"2"])
            async with (
                client.subscribe("cache.>", start="latest") as late,
                client.subscribe("cache.*", start="earliest") as early,
                client.subscribe("cache.young") as waiting,
            ):
                await old.publish(b"3")
                young = await client.stream("cache.young")
                deep = await client.stream("cache.deep.er")
                await young.publish_many([b"y1", b"y2"])
                await deep.publish(b"d1")
                await (await client.stream("other.y")).publish(b"no")
                seen = {(e.stream, e.seq, e.value) for e in await take(late, 4)}
                assert seen == {
                    ("cache.old", 3, b"3"),
                    ("cache.young", 1, b"y1"),
                    ("cache.young", 2, b"y2"),
                    ("cache.deep.er", 1, b"d1"),
                }
                assert [e.value for e in await take(waiting, 2)] == [b"y1", b"y2"]
                both = await take(early, 5)
                assert [e.seq for e in both if e.stream == "cache.old"] == [1, 2, 3]
                assert [e.seq for e in both if e.stream == "cache.young"] == [1, 2]
            names = [info.name for info in await client.streams("cache.>")]
            assert names == ["cache.deep.er", "cache.old", "cache.young"]

    play(scenario)


def test_a_pattern_with_a_time_begins_at_that_time_in_each_stream() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            a, b = await client.stream("t.a"), await client.stream("t.b")
            await a.publish_many([b"a1", b"a2"])
            await asyncio.sleep(CLOCKS_DIFFER_S)
            then = datetime.now(UTC)
            await asyncio.sleep(CLOCKS_DIFFER_S)
            await a.publish(b"a3")
            await b.publish(b"b1")
            async with client.subscribe("t.*", start=then) as sub:
                assert {e.value for e in await take(sub, 2)} == {b"a3", b"b1"}

    play(scenario)


@pytest.mark.parametrize("pattern", ["", "a..b", "a b", ">.a", "*x", "a.>.b", 7])
def test_an_invalid_pattern_is_refused_at_once(pattern: Any) -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            with pytest.raises(UsageError, match="pattern"):
                client.subscribe(pattern)

    play(scenario)


def test_voids_cover_every_position_without_an_event() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s", retain=surecast.latest_per_key())
            await stream.publish_many([b"%d" % n for n in range(50)], keys=[b"a", b"b"] * 25)

            async def read_all() -> list[surecast.Event]:
                seen: list[surecast.Event] = []
                async for event in stream.subscribe(start=1, voids=True):
                    seen.append(event)
                    if event.seq >= 50:
                        break
                assert [seq for e in seen for seq in e.range] == list(range(1, 51))
                return seen

            while len(seen := await read_all()) == 50:
                await asyncio.sleep(0.01)  # recent events are sent although they are void
            assert [(e.kind, e.reason, e.range) for e in seen] == [
                ("void", "superseded", range(1, 49)),
                ("event", "", range(49, 50)),
                ("event", "", range(50, 51)),
            ]
            assert [e.seq for e in await take(stream.subscribe(start=1), 2)] == [49, 50]

    play(scenario)


def test_each_void_has_the_reason_of_its_rule() -> None:
    async def scenario() -> None:
        async with Regions(east=1, west=1) as regions, regions.client("east") as client:
            keyed = await client.stream("keyed", retain="latest-per-key")
            await keyed.publish_many([b"%d" % n for n in range(6)], keys=[b"a", b"b", b"c"] * 2)
            await keyed.collect(surecast.key_is(b"b"))
            last = await client.stream("last", retain="keep-last:2")
            await last.publish_many([b"%d" % n for n in range(6)])
            expected = {
                "keyed": [
                    ("superseded", range(1, 4)), ("", range(4, 5)), ("collected", range(5, 6)),
                    ("", range(6, 7)), ("control", range(7, 8)),
                ],
                "last": [("expired", range(1, 5)), ("", range(5, 6)), ("", range(6, 7))],
            }  # fmt: skip

            async def reasons(name: str, reader: surecast.Client) -> list[tuple[str, range]]:
                seen: list[tuple[str, range]] = []
                async for event in reader.subscribe(name, start="earliest", voids=True):
                    seen.append((event.reason, event.range))
                    if event.range.stop > expected[name][-1][1].start:
                        break
                return seen

            async with regions.client("west") as far:
                for name in expected:
                    for reader in (client, far):
                        while await reasons(name, reader) != expected[name]:
                            await asyncio.sleep(
                                0.01
                            )  # recent events are sent although they are void

    play(scenario)


def test_batches_are_arrow_with_one_schema() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"%d" % n for n in range(1000)])
            await stream.publish(b"one", key=b"k", tag=b"t")
            await stream.collect(surecast.before_seq(2))
            await stream.publish_many([b"x"] * 10)
            found: list[pa.RecordBatch] = []
            async for batch in stream.subscribe(start=1).batches():
                found.append(batch)
                if batch.column("seq")[-1].as_py() == 1012:
                    break
            table = pa.Table.from_batches(found)
            assert table.schema.names == ["stream", "seq", "key", "value", "tag", "timestamp"]
            seqs = table.column("seq").to_pylist()
            assert seqs == [*range(seqs[0], 1002), *range(1003, 1013)]
            assert set(table.column("stream").to_pylist()) == {"s"}
            row = table.slice(seqs.index(1001), 1).to_pylist()[0]
            assert (row["key"], row["value"], row["tag"]) == (b"k", b"one", b"t")
            assert abs(row["timestamp"] - datetime.now(UTC)) < timedelta(hours=1)
            half = stream.subscribe(start=1)
            await anext(half)
            with pytest.raises(UsageError, match="only some events of the current batch"):
                half.batches()

    play(scenario)


def test_a_subscription_that_pauses_buffers_little_and_resumes_without_loss() -> None:
    """Back-pressure: its buffer stays bounded, and other subscriptions are not affected."""

    async def scenario() -> None:
        bound = 100_000
        async with (
            Regions(east=1) as regions,
            regions.client("east") as publisher,
            regions.client("east", buffer_bytes_max=bound) as client,
        ):
            stream = await publisher.stream("s")
            sub = client.subscribe("s", start="earliest")
            other = client.subscribe("s", start="earliest")
            most = read = 0
            for n in range(200):
                await stream.publish_many([b"%d" % (n * 50 + i) + bytes(100) for i in range(50)])
                most = max(most, sub._buffer.nbytes)
                for event in await take(other, 50):
                    read += 1
                    assert event.seq == read
            await until(lambda: sub._buffer.paused, "the other subscription never pauses")
            most = max(most, sub._buffer.nbytes)
            assert bound <= most < 10 * bound, most  # batches in flight may be added to the bound
            held = sub._buffer.nbytes
            pauses = 0
            seq = 0
            async for event in sub:
                seq += 1
                assert event.seq == seq
                pauses += sub._buffer.paused
                if seq == 10_000:
                    break
            assert held < 10 * bound
            assert pauses, "it never had to pause again"

    play(scenario)


@pytest.mark.slow
def test_a_reader_keeps_its_position_through_failovers() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            stop = False
            published = 0

            async def load() -> None:
                nonlocal published
                while not stop:
                    published = (await stream.publish_many([b"x"] * 20)).last
                    await asyncio.sleep(0.001)

            loading = asyncio.ensure_future(load())
            seen: dict[str, list[int]] = {"thin": [], "pattern": []}

            async def follow(name: str, sub: Subscription) -> None:
                async for event in sub:
                    seen[name].append(event.seq)

            readers = [
                asyncio.ensure_future(follow("thin", stream.subscribe(start="earliest"))),
                asyncio.ensure_future(follow("pattern", client.subscribe(">", start="earliest"))),
            ]
            for victim in ("east-1", "east-2", "east-1"):
                before = published
                await regions.restart(victim)
                await until(lambda before=before: published > before + 200)  # type: ignore[misc]
            stop = True
            await loading
            for name in seen:
                await until(lambda name=name: len(seen[name]) >= published)  # type: ignore[misc]
                assert seen[name] == list(range(1, published + 1))
            for reader in readers:
                reader.cancel()

    play(scenario, 120)


@pytest.mark.slow
def test_mesh_clients_read_every_event_in_order() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("m.s")
            members = [await regions.client("east", mesh=True) for _ in range(4)]
            subs = [member.subscribe("m.>", start="earliest") for member in members]
            for n in range(50):
                await stream.publish_many([b"%d" % (n * 20 + i) for i in range(20)])
            for sub in subs:
                events = await take(sub, 1000)
                assert [int(e.value) for e in events] == list(range(1000))
                assert [e.seq for e in events] == list(range(1, 1001))
            for member in members:
                await member.close()

    play(scenario)


def test_closing_a_subscription_ends_its_loop_and_closing_the_client_raises() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            client = await regions.client("east")
            stream = await client.stream("s")

            async def read(sub: Subscription, seqs: list[int]) -> None:
                async for event in sub:
                    seqs.append(event.seq)

            mine, theirs = stream.subscribe(start=1), client.subscribe("s", start=1)
            seen: list[list[int]] = [[], []]
            loops = [
                asyncio.ensure_future(read(sub, seqs))
                for sub, seqs in zip((mine, theirs), seen, strict=True)
            ]
            await stream.publish(b"x")
            await until(lambda: seen == [[1], [1]])
            await mine.close()
            await mine.close()
            await loops[0]
            assert seen[0] == [1]
            assert [event async for event in mine] == []
            await client.close()
            with pytest.raises(Closed):
                await loops[1]
            with pytest.raises(Closed):
                client.subscribe("s")

    play(scenario)


@pytest.mark.slow
def test_a_garbage_collected_subscription_is_closed() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish(b"x")
            for _ in range(5):
                async for _event in stream.subscribe(start=1):
                    break
                async for _event in client.subscribe(">", start=1):
                    break
                gc.collect()
                await asyncio.sleep(0.02)
            gc.collect()
            await until(lambda: len(client._readers.all) == 1)
            assert client._readers.all[0].takers == {}
            await until(lambda: not client._endpoint.control.busy)

    play(scenario)


def test_two_tasks_cannot_share_one_subscription() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            sub = (await client.stream("s")).subscribe()
            waiting = asyncio.ensure_future(anext(sub))
            await asyncio.sleep(0.01)
            with pytest.raises(UsageError, match="two tasks"):
                await anext(sub)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert sub._buffer._waiter is None

    play(scenario)


def test_a_cancelled_wait_loses_nothing() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            sub = await stream.subscribe().ready()
            seen: list[int] = []
            for n in range(300):
                if n % 3 == 0:
                    stream.publish_soon(b"x")
                try:
                    async with asyncio.timeout(0.0005):
                        seen.append((await anext(sub)).seq)
                except TimeoutError:
                    pass
            while len(seen) < 100:
                seen.append((await anext(sub)).seq)
            assert seen == list(range(1, 101))

    play(scenario)


def test_the_number_of_readers_is_bounded() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east", readers_max=2) as client:
            stream = await client.stream("s")
            await stream.publish(b"x")
            subs = [stream.subscribe(start=1) for _ in range(3)]
            assert (await anext(subs[0])).seq == (await anext(subs[1])).seq == 1
            with pytest.raises(UsageError, match="readers_max"):
                await anext(subs[2])
            await subs[0].close()
            assert (await anext(stream.subscribe(start=1))).seq == 1

    play(scenario)
