"""A region inside the test's own event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from surecast import UsageError, connect
from surecast.server.local import LocalRegion


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


def test_events_go_in_and_come_out() -> None:
    async def main() -> None:
        region = LocalRegion()
        with pytest.raises(UsageError, match="not running"):
            _ = region.url
        await region.start()
        with pytest.raises(UsageError, match="runs already"):
            await region.start()
        async with connect(region.url) as client:
            stream = await client.stream("a.b")
            assert await stream.publish(b"one", key=b"k") == 1
            async for event in stream.subscribe(start="earliest"):
                assert (event.seq, event.key, event.value) == (1, b"k", b"one")
                break
        await region.stop()
        await region.stop()  # is stopped already

    run(main)


def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        for life in (1, 2, 3):
            region = LocalRegion(tmp_path / "data")
            await region.start()
            async with connect(region.url) as client:
                stream = await client.stream("s")
                assert await stream.publish(b"%d" % life) == life
            await region.stop()

    run(main)
