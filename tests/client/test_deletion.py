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
