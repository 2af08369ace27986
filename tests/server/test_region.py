"""The nodes of a server process: draining, recording, locking of the data folder."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from surecast import ClientOptions, Closed, StorageError, connect
from surecast.core.endpoint import Drain
from surecast.core.types import Command
from surecast.server.config import ServerConfig, build
from surecast.server.local import LocalRegion
from surecast.server.region import RegionServer
from surecast.server.status import not_ready
from tests.ports import free_ports


def config(folder: Path, **node: str) -> ServerConfig:
    mine = {
        "name": "e-1", "region": "e", "data_dir": str(folder / "data"),
        "listen": "127.0.0.1:0", "http": "", **node,
    }  # fmt: skip
    return build({"node": mine, "regions": {"e": {"replicas": {"e-1": mine["listen"]}}}})


def url_of(server: RegionServer) -> str:
    assert server.replica is not None
    assert server.replica.address is not None
    return f"surecast://127.0.0.1:{server.replica.address[1]}"


def test_a_draining_replica_accepts_no_publishes() -> None:
    async def main() -> None:
        region = LocalRegion()
        await region.start()
        server = region.server
        assert server is not None
        assert server.replica is not None
        brief = ClientOptions(close_timeout=0.001)  # do not wait for the cancelled publish
        async with asyncio.timeout(60), connect(region.url, options=brief) as client:
            stream = await client.stream("s")
            assert await stream.publish(b"before") == 1
            server.replica.give(Command("streams", Drain()))
            counters = server.streams.counters
            tried = counters["streams/Publish"]
            late = asyncio.create_task(stream.publish(b"after"))
            while counters["streams/Publish"] < tried + 3:  # the client retries
                await asyncio.sleep(0.01)
            assert not late.done()
            assert [s.end for s in server.streams.streams.values()] == [2]
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
            await region.stop()

    with suppress(Closed):
        asyncio.run(main())


def test_a_folder_has_one_user_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = RegionServer(config(tmp_path)), RegionServer(config(tmp_path))
        await first.start()
        with pytest.raises(StorageError):
            await second.start()
        await first.stop()
        third = RegionServer(config(tmp_path))
        await third.start()
        await third.stop()

    asyncio.run(main())


def test_two_starts_never_draw_the_same_stream_id(tmp_path: Path) -> None:
    async def one() -> bytes:
        region = LocalRegion()
        await region.start()
        async with connect(region.url) as client:
            await client.stream("s")
            assert region.server is not None
            found = region.server.streams.directory.by_name["s"].stream_id
        await region.stop()
        return found

    assert asyncio.run(one()) != asyncio.run(one())


def test_a_recording_of_a_server_replays_equally(tmp_path: Path) -> None:
    from surecast.registry import recorded_types
    from surecast.server.nodes import BUILDS
    from surecast.sim.playback import play

    async def main() -> None:
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        server = RegionServer(config(tmp_path, listen=listen, record=str(tmp_path / "rec")))
        await server.start()
        while not_ready(server):
            await asyncio.sleep(0.01)
        async with connect(url_of(server)) as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 100)
        await server.drain()

    asyncio.run(main())
    found = sorted((tmp_path / "rec").glob("*.rec"))
    assert [path.name for path in found] == ["e-1.1.rec", "e.witness.1.rec"]
    played = play(found, recorded_types(), BUILDS)
    assert played.difference is None
    assert played.unclosed == []
    assert played.steps > 10


def test_regions_that_disagree_on_owners_are_not_ready() -> None:
    ports = free_ports(2)

    def region(name: str, owners: dict[str, str]) -> RegionServer:
        places = {"e": f"127.0.0.1:{ports[0]}", "w": f"127.0.0.1:{ports[1]}"}
        mine = {"name": f"{name}-1", "region": name, "data_dir": "", "http": ""}
        regions = {one: {"replicas": {f"{one}-1": place}} for one, place in places.items()}
        node = {**mine, "listen": places[name]}
        return RegionServer(build({"node": node, "regions": regions, "owners": owners}))

    async def main() -> None:
        east, west = region("e", {"": "e"}), region("w", {"": "e", "x": "w"})
        await east.start()
        async with asyncio.timeout(60):
            while not_ready(east):  # a region is ready without the others
                await asyncio.sleep(0.01)
            await west.start()
            while not any("owners-differ: w" in why for why in not_ready(east)):
                await asyncio.sleep(0.01)
            await west.stop()
            west = region("w", {"": "e"})
            await west.start()
            while not_ready(east) or not_ready(west):  # the owners are equal again
                await asyncio.sleep(0.01)
        await west.stop()
        await east.stop()

    asyncio.run(main())
