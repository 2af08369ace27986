"""Cold reads of a server process: old positions are read from segments beside live events."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from surecast import Client, connect
from surecast.core.types import Loaded, Read
from surecast.registry import recorded_types
from surecast.runtime.node import Node
from surecast.server.config import ServerConfig, build
from surecast.server.nodes import BUILDS
from surecast.server.region import RegionServer
from surecast.sim.playback import play
from tests.client.stage import until
from tests.ports import free_ports

EVENTS, VALUE = 300, b"x" * 100


def config(folder: Path, record: bool = False) -> ServerConfig:
    """A server whose logs leave the memory after a few kilobytes, and are sent in small pieces."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    node = {"name": "e-1", "region": "e", "data_dir": str(folder / "data"), "listen": address}
    if record:
        node["record"] = str(folder / "record")
    return build(
        {
            "node": {**node, "http": ""},
            "regions": {"e": {"replicas": {"e-1": address}}},
            "storage": {"journal_bytes_max": 8192, "inline_bytes_max": 1000, "sync": "none"},
            "streams": {"serve_bytes_max": 2000, "settle_ns": 1_000_000},
        }
    )


def url(server: RegionServer) -> str:
    return f"surecast://{server.config.node.listen}"


async def filled(server: RegionServer, client: Client) -> None:
    """A stream "old", most of which is in segments."""
    stream = await client.stream("old")
    for first in range(0, EVENTS, 5):  # each is a batch
        await stream.publish_many(b"%d" % number + VALUE for number in range(first, first + 5))
    service = server.streams
    (found,) = [one for one in service.streams.values() if one.info.name == "old"]
    await until(lambda: service.cold.below.get(found.stream_id, 1) > EVENTS // 2)
    await until(lambda: found.recent == EVENTS + 1)


def run(folder: Path, scenario: Any, **options: Any) -> None:
    async def main() -> None:
        server = RegionServer(config(folder, **options))
        await server.start()
        try:
            async with asyncio.timeout(60), connect(url(server)) as client:
                await scenario(server, client)
        finally:
            await server.drain()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["subscribe", "read"])
def test_a_slow_disk_does_not_delay_the_events_of_another_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The disk gives nothing until 50 events of another stream were published and delivered."""
    go = threading.Event()
    pread = os.pread

    def slow(file: int, count: int, at: int) -> bytes:
        assert go.wait(30)
        return pread(file, count, at)

    async def old(client: Client) -> list[bytes]:
        if how == "read":
            return [
                bytes(v) for v in (await (await client.stream("old")).read())["value"].to_pylist()
            ]
        found: list[bytes] = []
        async for event in client.subscribe("old", start="earliest"):
            found.append(event.value)
            if len(found) == EVENTS:
                break
        return found

    async def scenario(server: RegionServer, client: Client) -> None:
        await filled(server, client)
        monkeypatch.setattr(os, "pread", slow)
        try:
            reading = asyncio.create_task(old(client))
            await until(lambda: server.streams.cold.reading)
            live = await client.stream("live")
            subscription = client.subscribe("live", start="earliest")
            for number in range(50):
                await live.publish(b"%d" % number)
                event = await anext(subscription)
                assert event.value == b"%d" % number
            assert not reading.done()
            assert server.streams.counters["streams.cold-reads"] == 0
        finally:
            go.set()
        assert await reading == [b"%d" % number + VALUE for number in range(EVENTS)]
        assert server.streams.counters["streams.cold-reads"] > 5
        await subscription.close()

    run(tmp_path, scenario)


def test_a_recording_with_cold_reads_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which positions are cold, and the order of the answers, are inputs of the recording."""
    met: list[type] = []
    step = Node.step

    def watched(self: Node, inp: Any) -> None:
        met.append(type(inp))
        step(self, inp)

    async def scenario(server: RegionServer, client: Client) -> None:
        await filled(server, client)
        stream = await client.stream("old")
        tables = await asyncio.gather(*(stream.read(start=1 + 20 * n) for n in range(5)))
        assert [table.num_rows for table in tables] == [EVENTS - 20 * n for n in range(5)]

    with monkeypatch.context() as patch:
        patch.setattr(Node, "step", watched)
        run(tmp_path, scenario, record=True)
        run(tmp_path, scenario_again, record=True)  # all of the log is cold from the start on
    assert met.count(Loaded) > 20
    paths = sorted((tmp_path / "record").glob("*.rec"))
    played = play(paths, recorded_types(), BUILDS)
    assert played.difference is None, str(played.difference)
    assert played.unclosed == []
    assert len(paths) >= 2
    assert sum(path.stat().st_size for path in paths) > 0
    assert Read in recorded_types().values()


async def scenario_again(server: RegionServer, client: Client) -> None:
    stream = await client.stream("old")
    assert (await stream.read()).num_rows == EVENTS
    assert server.streams.counters["streams.cold-reads"] > 0
