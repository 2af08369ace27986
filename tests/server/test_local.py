"""A region that runs in the test's own event loop."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from surecast import UsageError, connect
from surecast.server.config import build
from surecast.server.local import LocalRegion
from surecast.server.region import RegionServer
from tests.ports import free_ports


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


def test_a_local_region_delivers_published_events() -> None:
    async def main() -> None:
        region = LocalRegion()
        with pytest.raises(UsageError, match="not running"):
            _ = region.url
        await region.start()
        with pytest.raises(UsageError, match="running already"):
            await region.start()
        async with connect(region.url) as client:
            stream = await client.stream("a.b")
            assert await stream.publish(b"one", key=b"k") == 1
            async for event in stream.subscribe(start="earliest"):
                assert (event.seq, event.key, event.value) == (1, b"k", b"one")
                break
        await region.stop()
        await region.stop()  # stopped already: no effect

    run(main)


def test_a_region_that_has_started_knows_the_streams_of_its_folder(tmp_path: Path) -> None:
    async def main() -> None:
        region = LocalRegion(tmp_path / "data")
        await region.start()
        async with connect(region.url) as client:
            for number in range(20):
                await client.stream(f"s{number}")
        await region.stop()
        for _ in range(3):
            await region.start()
            assert region.server is not None
            assert len(region.server.streams.streams) == 20  # before anything else has run
            await region.stop()

    run(main)


def test_acknowledged_events_are_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        for life in (1, 2, 3):
            region = LocalRegion(tmp_path / "data")
            await region.start()
            async with connect(region.url) as client:
                stream = await client.stream("s")
                assert await stream.publish(b"%d" % life) == life
            await region.stop()

    run(main)


@pytest.mark.parametrize("group_read", [False, True])
def test_files_of_a_server_are_readable_for_their_owner_or_group(
    tmp_path: Path, group_read: bool
) -> None:
    """The data folder, and the recording."""
    port = free_ports(1)[0]
    node = {
        "name": "east-1",
        "region": "east",
        "data_dir": str(tmp_path / "data"),
        "listen": f"127.0.0.1:{port}",
        "http": "",
        "record": str(tmp_path / "record"),
    }
    regions = {"east": {"replicas": {"east-1": f"127.0.0.1:{port}"}}}
    storage = {"group_read": group_read}

    async def main() -> None:
        server = RegionServer(build({"node": node, "regions": regions, "storage": storage}))
        await server.start()
        await server.drain()

    before = os.umask(0)
    try:
        run(main)
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    for path, mode in found.items():
        open_to_group = group_read and path.is_relative_to(tmp_path / "data")
        if path.is_dir():
            assert mode == (0o750 if open_to_group else 0o700), path
        else:
            assert mode == (0o640 if open_to_group else 0o600), path
    assert {path.suffix for path in found} >= {".rec", ""}
