"""A client in a cluster with a delivery that the client does not know."""

import logging

import pytest

from surecast.columns.retention import KeepAll
from surecast.core.streams import Adopt, StreamInfo
from surecast.core.types import Command
from surecast.errors import NotSupported
from tests.client.stage import Regions, play, until

PIGEONS = StreamInfo(b"p" * 16, "a.pigeons", "east", KeepAll(), delivery="pigeon")


async def with_pigeons(regions: Regions) -> None:
    """Add a stream with an unknown delivery, as a server of a later version would."""
    await until(lambda: regions.head("east") is not None)
    head = regions.head("east")
    assert head is not None
    regions.nodes[head].give(Command("streams", Adopt(PIGEONS, made=True)))
    await until(lambda: PIGEONS.stream_id in regions.layer(head).streams)


def test_a_pattern_leaves_out_streams_that_this_client_cannot_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            await with_pigeons(regions)
            stream = await client.stream("a.words")
            await stream.publish(b"one")
            with caplog.at_level(logging.WARNING):
                subscription = client.subscribe("a.>", start="earliest")
                assert (await anext(subscription)).value == b"one"
            assert [info.name for info in await client.streams("a.>")] == ["a.pigeons", "a.words"]
            assert "'a.pigeons' has delivery='pigeon'" in caplog.text

    play(scenario)


def test_a_stream_that_this_client_cannot_read_is_refused_by_name() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            await with_pigeons(regions)
            with pytest.raises(NotSupported, match="upgrade the client"):
                await client.stream("a.pigeons")
            with pytest.raises(NotSupported, match="upgrade the client"):
                await anext(client.subscribe("a.pigeons"))

    play(scenario)
