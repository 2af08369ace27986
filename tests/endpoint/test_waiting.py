"""Log lines of a client that waits for a missing stream, or whose token is no longer valid."""

import asyncio
import logging

import pytest

from tests.client.stage import Regions, play, until

LOGGER = "surecast.client"


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    found = [record for record in caplog.records if record.name == LOGGER]
    return [record.levelname for record in found if words in record.getMessage()]


@pytest.mark.parametrize(
    ("pattern", "name", "level"),
    [("orders.eu", "orders.eu", "WARNING"), ("orders.*", "orders.eu", "INFO")],
)
def test_a_subscription_that_waits_for_its_stream_logs_it_once(
    pattern: str, name: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            subscription = client.subscribe(pattern, start="earliest")
            await until(lambda: lines(caplog, repr(pattern)))
            stream = await client.stream(name)
            await stream.publish(b"x")
            assert (await anext(subscription)).value == b"x"
            assert lines(caplog, repr(pattern)) == [level]
            assert "waiting" in caplog.text
            caplog.clear()
            again = client.subscribe(pattern, start="earliest")
            assert (await anext(again)).value == b"x"
            assert lines(caplog, "waiting") == []

    with caplog.at_level(logging.INFO, LOGGER):
        play(scenario)


def test_a_token_that_is_no_longer_valid_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with (
            Regions(token="old", east=1) as regions,
            regions.client("east", rediscover_every=0.05) as client,
        ):
            stream = await client.stream("s")
            await stream.publish(b"x")
            (name,) = regions.names["east"]
            await regions.kill(name)
            regions.token = "new"
            await regions.start(name)
            stream.publish_soon(b"y")
            await until(lambda: lines(caplog, "wrong token"))
            await asyncio.sleep(0.5)  # many times rediscover_every
            assert lines(caplog, "wrong token") == ["WARNING"]
            await regions.kill(name)
            regions.token = "old"
            await regions.start(name)
            await client.flush()

    with caplog.at_level(logging.INFO, LOGGER):
        play(scenario)
