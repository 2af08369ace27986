"""Deleting streams over sockets: effects on publishers, readers and later users of the name."""

import asyncio
import pickle
from typing import Any

import pytest

import surecast
from surecast import StreamDeleted
from tests.client.stage import Regions, play, until


async def read_to_its_end(sub: Any, values: list[bytes]) -> None:
    """Put the values of a subscription's events into `values`, up to the stream's deletion."""

    async def read() -> None:
        async for event in sub:
            values.append(event.value)

    with pytest.raises(StreamDeleted, match=r"'s' was deleted"):
        await read()


@pytest.mark.parametrize("mesh", [False, True], ids=["thin", "mesh"])
def test_publishers_and_readers_get_stream_deleted(mesh: bool) -> None:
    async def scenario() -> None:
        async with (
            Regions({"": "east"}, east=2, west=1) as regions,
            regions.client("east", mesh=mesh) as client,
            regions.client("west", mesh=mesh) as far,
        ):
            streams = [await client.stream("s"), await far.stream("s")]
            got: list[list[bytes]] = [[], []]
            reading = [
                asyncio.create_task(read_to_its_end(stream.subscribe(start="earliest"), values))
                for stream, values in zip(streams, got, strict=True)
            ]
            await streams[0].publish_many([b"a", b"b"])
            await until(lambda: got == [[b"a", b"b"]] * 2)
            assert await streams[1].delete() == 3
            await asyncio.gather(*reading)
            for stream in streams:
                await is_deleted(stream)

    async def is_deleted(stream: surecast.Stream) -> None:
        with pytest.raises(StreamDeleted) as caught:
            await stream.publish(b"late")
        assert not caught.value.maybe_taken
        with pytest.raises(StreamDeleted):
            await stream.delete()
        with pytest.raises(StreamDeleted):
            await anext(stream.subscribe(start="latest"))
        left: list[bytes] = []
        await read_to_its_end(stream.subscribe(start="earliest"), left)
        assert left in ([], [b"a", b"b"])  # recent events are sent although they are deleted

    play(scenario)


def test_the_name_can_be_reused_and_a_pattern_reads_the_new_stream() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            stream = await client.stream("orders.a", retain=surecast.keep_last(5))
            async with client.subscribe("orders.*", start="earliest", name="app") as sub:
                await stream.publish(b"old")
                assert (await anext(sub)).value == b"old"
                await stream.delete()
                assert await client.streams("orders.*") == []
                again = await client.stream("orders.a", retain=surecast.latest_per_key())
                assert await again.publish(b"new") == 1
                event = await anext(sub)
                assert (event.value, event.seq) == (b"new", 1)
                await again.publish(b"newer")
                assert (await anext(sub)).seq == 2
            assert [info.name for info in await client.streams()] == ["orders.a"]
            with pytest.raises(StreamDeleted):
                await stream.publish(b"through the old handle")

    play(scenario)


def test_events_of_a_deleted_stream_can_be_acknowledged() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream, other = await client.stream("s.a"), await client.stream("s.b")
            options: dict[str, Any] = {"name": "app", "ack": "manual", "voids": True}
            async with client.subscribe("s.*", start="earliest", **options) as sub:
                await stream.publish(b"last")
                event = await anext(sub)
                await stream.delete()
                ended = await anext(sub)
                assert (ended.kind, ended.reason, ended.seq) == ("void", "control", 2)
                await sub.ack(event)
                await other.publish(b"x")
                await sub.ack(await anext(sub))

    play(scenario)


def test_a_deletion_survives_a_crash_of_all_servers() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions:
            async with regions.client("east") as client:
                stream = await client.stream("s")
                await stream.publish_many([b"a", b"b"])
                await stream.delete()
            for name in regions.names["east"]:
                await regions.kill(name)
            for name in regions.names["east"]:
                await regions.start(name)
            async with regions.client("east") as client:
                await until_gone(client)
                fresh = await client.stream("s")
                assert await fresh.publish(b"c") == 1

    async def until_gone(client: surecast.Client) -> None:
        while await client.streams("s"):
            await asyncio.sleep(0.01)

    play(scenario)


def test_deletion_with_the_sync_client(tmp_path: Any) -> None:
    with surecast.sync.local(data_dir=tmp_path) as client:
        stream = client.stream("s")
        stream.publish_many([b"a", b"b"])
        assert stream.supports("delete")
        assert stream.delete() == 3
        with pytest.raises(StreamDeleted):
            stream.publish(b"late")
    with surecast.sync.local(data_dir=tmp_path) as client:
        assert client.stream("s").publish(b"new") == 1


def test_stream_deleted_can_be_pickled() -> None:
    problem = pickle.loads(pickle.dumps(StreamDeleted("s")))
    assert isinstance(problem, StreamDeleted)
    assert (problem.stream, str(problem)) == ("s", str(StreamDeleted("s")))


def test_a_nakcast_stream_can_be_deleted() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s", delivery="nakcast")
            sub = stream.subscribe(start="earliest")
            await stream.publish(b"a")
            assert (await anext(sub)).value == b"a"
            await stream.delete()
            with pytest.raises(StreamDeleted):
                await anext(sub)

    play(scenario)


def test_a_bounded_read_of_several_streams_ends_if_one_is_deleted() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            streams = [await client.stream("s.a"), await client.stream("s.b")]
            for stream in streams:
                await stream.publish_many([b"1", b"2"])
            sub = client.subscribe("s.*", start="earliest", stop=5)  # both have less
            got = [await anext(sub) for _ in range(4)]
            assert {event.stream for event in got} == {"s.a", "s.b"}
            await streams[0].delete()
            await streams[1].publish_many([b"3", b"4"])
            rest = [(event.stream, event.seq) async for event in sub]
            assert rest == [("s.b", 3), ("s.b", 4)]

    play(scenario)


@pytest.mark.parametrize("start", [4, 100])
@pytest.mark.parametrize("kind", ["thin", "mesh", "named", "nakcast"])
def test_a_subscription_that_begins_after_the_end_of_a_deleted_stream_ends(
    kind: str, start: int
) -> None:
    """The stream ends at position 4; the deletion happens before or after the subscription."""

    async def scenario() -> None:
        async with (
            Regions({"": "east"}, east=2) as regions,
            regions.client("east", mesh=kind == "mesh") as client,
        ):
            options: dict[str, Any] = {"delivery": "nakcast"} if kind == "nakcast" else {}
            stream = await client.stream("s", **options)
            await stream.publish_many([b"a", b"b"])
            name: dict[str, Any] = {"name": "app"} if kind == "named" else {}
            early = stream.subscribe(start=start, **name)
            pattern = client.subscribe("*", start=start, stop=start + 5)
            await pattern.ready()
            if kind != "named":  # which is ready when the region has that position
                await early.ready()
            assert await stream.delete() == 3
            with pytest.raises(StreamDeleted):
                await early.next(timeout=20)
            with pytest.raises(StopAsyncIteration):
                await pattern.next(timeout=20)
            await early.close()
            name = {"name": "app2"} if kind == "named" else {}
            with pytest.raises(StreamDeleted):
                await stream.subscribe(start=start, **name).next(timeout=20)

    play(scenario)


def test_a_bounded_read_after_the_end_of_a_deleted_stream_ends() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"a", b"b"])
            await stream.delete()
            with pytest.raises(StreamDeleted):
                await stream.read(start=10, stop=20, timeout=20)
            assert (await stream.read(start=1, stop=3)).num_rows in (0, 2)

    play(scenario)


def test_a_subscription_of_other_streams_continues_when_one_ends_before_its_start() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream, other = await client.stream("s.a"), await client.stream("s.b")
            await stream.publish(b"x")
            sub = await client.subscribe("s.*", start=5, voids=True).ready()
            await stream.delete()
            await other.publish_many([b"%d" % n for n in range(1, 7)])
            assert [(await anext(sub)).value for _ in range(2)] == [b"5", b"6"]
            again = await client.stream("s.a")
            await again.publish(b"new")
            event = await sub.next(timeout=20)
            assert (event.stream, event.seq, event.value) == ("s.a", 1, b"new")

    play(scenario)


@pytest.mark.parametrize("name", ["s", "orders"])
@pytest.mark.parametrize("copied", [False, True], ids=["event", "copy"])
def test_an_event_of_a_deleted_stream_is_not_acknowledged_in_its_successor(
    name: str, copied: bool
) -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream(name)
            options: dict[str, Any] = {"name": "app", "ack": "manual"}
            async with client.subscribe(">", start="earliest", **options) as sub:
                await stream.publish_many([b"1", b"2", b"3"])
                old = [await anext(sub) for _ in range(3)]
                await stream.delete()
                again = await client.stream(name)
                await again.publish_many([b"4", b"5", b"6"])
                new = [await anext(sub) for _ in range(3)]
                assert [event.seq for event in new] == [1, 2, 3]
                if copied:
                    old, new = pickle.loads(pickle.dumps((old, new)))
                await sub.ack(old[2])
                assert await position(client) in (None, 1)
                await sub.ack(new[1])
                assert await position(client) == 3
                await sub.ack(old[2])
                assert await position(client) == 3

    async def position(client: surecast.Client) -> int | None:
        (info,) = await client.subscriptions()
        return {at.stream: at.seq for at in info.positions}.get(name)

    play(scenario)


def test_a_batch_of_a_deleted_stream_is_not_acknowledged_in_its_successor() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            options: dict[str, Any] = {"name": "app", "ack": "manual"}
            async with client.subscribe(">", start="earliest", **options) as sub:
                batches = sub.batches()
                await stream.publish_many([b"1", b"2", b"3"])
                old = await anext(batches)
                await stream.delete()
                again = await client.stream("s")
                await again.publish_many([b"4", b"5", b"6"])
                new = await anext(batches)
                await sub.ack(old)
                await sub.ack(new.slice(0, 2))
                (info,) = await client.subscriptions()
                assert [(at.stream, at.seq) for at in info.positions] == [("s", 3)]

    play(scenario)
