"""Nakcast through the public API: `local()`, `connect()`, real sockets, status, command line."""

import asyncio
import json
from typing import Any

import pytest

import surecast
from surecast.cli.publish import Values, _publish
from surecast.cli.subscribe import _subscribe
from surecast.client.connection import Client
from surecast.client.events import Event
from surecast.core.types import MS
from surecast.endpoint.options import ClientOptions
from surecast.errors import EventsLost, NotSupported, StreamConfigMismatch
from surecast.runtime.addresses import show_address
from surecast.server.config import build
from surecast.server.region import RegionServer
from tests.client.stage import Regions, play, until
from tests.server.opened import Open

SMALL = ClientOptions(buffer_bytes_max=2_000)  # fills quickly if the application does not read


async def take(subscription: Any, end: int) -> list[Event]:
    """Read up to position `end`, exclusive; the subscription must have one stream."""
    found = []
    async for event in subscription:
        found.append(event)
        if event.seq + 1 >= end:
            return found
    raise AssertionError("it ended")


def check_whole(events: list[Event], start: int, end: int) -> None:
    """Assert that events, voids and losses cover [start, end), each position once, in order."""
    at = start
    for event in events:
        assert event.range.start == at, event
        at = event.range.stop
    assert at == end


class Bounded(Open):
    """A region that retransmits only the newest 50 positions of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.server = RegionServer(
            build(
                {
                    "node": {
                        "name": "e-1", "region": "e", "data_dir": "",
                        "listen": "127.0.0.1:0", "http": "127.0.0.1:0",
                    },
                    "regions": {"e": {"replicas": {"e-1": "127.0.0.1:0"}}},
                    "nakcast": {"repair_max": 50},
                }
            )
        )  # fmt: skip
        self.port = type(self.port)(self.server)

    @property
    def url(self) -> str:
        assert self.server.replica is not None
        assert self.server.replica.address is not None
        return f"surecast://{show_address(self.server.replica.address)}"


# ---------------------------------------------------------------- reading and publishing


def test_a_pattern_gives_streams_of_both_deliveries_over_local() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            one = await client.stream("x.one", delivery="nakcast")
            two = await client.stream("x.two")
            assert (one.delivery, two.delivery) == ("nakcast", "broadcast")
            subscription = client.subscribe("x.>", start="earliest")
            await subscription.ready()
            values = [b"%d" % number for number in range(30)]
            for stream in (one, two):
                await stream.publish_many(values)
            found: dict[str, list[bytes]] = {"x.one": [], "x.two": []}
            while sum(map(len, found.values())) < 60:
                event = await anext(subscription)
                found[event.stream].append(event.value)
            assert found == {"x.one": values, "x.two": values}
            three = await client.stream("x.three", delivery="nakcast")  # appears later
            await three.publish(b"late")
            assert (await anext(subscription)).value == b"late"

    play(scenario)


def test_readers_go_on_when_their_server_is_killed() -> None:
    async def scenario() -> None:
        async with Regions(east=3) as regions, regions.client("east") as client:
            stream = await client.stream("s", delivery="nakcast")
            subscription = stream.subscribe(start="earliest")
            await stream.publish_many([b"%d" % n for n in range(100)])
            found = await take(subscription, 101)
            serving = [n for n in regions.nodes if "/" not in n and served(regions, n)]
            await regions.kill(serving[0])
            seqs = await stream.publish_many([b"%d" % n for n in range(100, 300)])
            found += await take(subscription, seqs.last + 1)
            check_whole(found, 1, 301)
            assert [event.value for event in found] == [b"%d" % n for n in range(300)]

    play(scenario)


def served(regions: Regions, name: str) -> int:
    followers: int = regions.layer(name, "nakcast").followers
    return followers


def test_events_too_large_for_a_datagram_arrive() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", delivery="nakcast")
            subscription = stream.subscribe(start="earliest")
            await subscription.ready()
            values = [b"a" * 200_000, b"b" * 7_000, b"c" * 7_000, b"d"]
            await stream.publish_many(values)
            found = await take(subscription, 5)
            assert [event.value for event in found] == values

    play(scenario)


def test_retention_makes_voids_and_not_losses() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            kept = surecast.keep_last(10)
            stream = await client.stream("s", delivery="nakcast", retain=kept)
            await stream.publish_many([b"%d" % n for n in range(500)])
            await asyncio.sleep(0.5)  # what is recent is passed on whole
            found = await take(stream.subscribe(start="earliest", voids=True), 501)
            check_whole(found, 1, 501)
            assert "lost" not in {event.kind for event in found}
            assert [e.value for e in found if e.kind == "event"][-1] == b"499"

    play(scenario)


# ---------------------------------------------------------------- losses


async def fall_behind(client: Client, subscription: Any, stream: Any) -> int:
    """Publish more than the subscription's buffer can hold; returns the end of the stream."""
    await subscription.ready()
    end = 1
    for number in range(20):
        seqs = await stream.publish_many([b"%d" % number * 20] * 100)
        end = seqs.last + 1
        await asyncio.sleep(0.01)
    return end


def test_a_reader_that_stopped_for_too_long_gets_its_exact_losses() -> None:
    async def scenario() -> None:
        async with Bounded() as region, Client(region.url, options=SMALL) as client:
            stream = await client.stream("s", delivery="nakcast")
            subscription = stream.subscribe(start="earliest")
            end = await fall_behind(client, subscription, stream)
            found = await take(subscription, end)
            check_whole(found, 1, end)
            lost = [event for event in found if event.kind == "lost"]
            assert lost
            assert all(event.range.stop <= end - 50 for event in lost)
            assert lost[0].reason == "older than what is sent again (nakcast.repair_max)"
            await stream.publish(b"and it goes on")
            assert (await anext(subscription)).value == b"and it goes on"

    play(scenario)


def test_a_named_subscription_resumes_after_a_loss() -> None:
    async def scenario() -> None:
        async with Bounded() as region, Client(region.url, options=SMALL) as client:
            stream = await client.stream("s", delivery="nakcast")
            await stream.publish_many([b"v"] * 500)
            first = stream.subscribe(start="earliest", name="n", ack="manual")
            lost = await anext(first)
            assert (lost.kind, lost.range) == ("lost", range(1, 451))
            await first.ack(lost)
            await first.close()
            again = stream.subscribe(name="n", ack="manual")
            event = await anext(again)
            assert (event.kind, event.seq) == ("event", 451)

    play(scenario)


def test_batches_raise_a_loss_and_continue_after_it() -> None:
    async def scenario() -> None:
        async with Bounded() as region, Client(region.url) as client:
            stream = await client.stream("s", delivery="nakcast")
            await stream.publish_many([b"v"] * 500)
            subscription = stream.subscribe(start="earliest")
            with pytest.raises(EventsLost) as lost:
                await anext(aiter(subscription.batches()))
            assert lost.value.range == range(1, 451)
            batch = await anext(aiter(subscription.batches()))
            assert batch.column("seq")[0].as_py() == 451

    play(scenario)


def test_the_command_line_shows_losses_and_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with Bounded() as region:
            source = Values([(None, b"v", None)] * 60)
            assert await _publish(region.url, "", "s", {"delivery": "nakcast"}, source, False) == 0
            await _subscribe("s", 1, False, None, 3, False, region.url, "", True)

    play(scenario)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()[1:]]
    assert (lines[0]["kind"], lines[0]["seq"]) == ("lost", 10)
    assert lines[0]["range"] == [1, 11]
    assert [line["seq"] for line in lines] == [10, 11, 12]


# ---------------------------------------------------------------- unsupported operations


def test_unsupported_verbs_are_refused_by_name() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", delivery="nakcast")
            with pytest.raises(NotSupported, match=r"collect\(\).*delivery='nakcast'"):
                await stream.collect(surecast.before_seq(2))
            with pytest.raises(NotSupported, match=r"named publisher.*delivery='nakcast'"):
                stream.named("me", 1)
            with pytest.raises(StreamConfigMismatch, match="delivery='nakcast'"):
                await client.stream("s", delivery="broadcast")
            with pytest.raises(surecast.UsageError, match="takes no options"):
                await client.stream("t", delivery="nakcast", options={"fast": "yes"})

    play(scenario)


def test_names_of_other_regions_are_refused_and_streams_are_not_replicated() -> None:
    owners = {"": "east", "w": "west"}

    async def scenario() -> None:
        async with (
            Regions(owners, east=1, west=1) as regions,
            regions.client("east") as east,
            regions.client("west") as west,
        ):
            with pytest.raises(NotSupported, match="connect to that region"):
                await east.stream("w.a", delivery="nakcast")
            at_home = await west.stream("w.a", delivery="nakcast")
            await at_home.publish(b"v")
            for delivery in ("", "broadcast", "nakcast", ""):  # refused without waiting
                with pytest.raises(NotSupported, match="connect to that region"):
                    await east.stream("w.a", delivery=delivery)
            everywhere = await west.stream("w.b")
            await everywhere.publish(b"v")
            layer = regions.layer("east-1")
            await until(lambda: everywhere.stream_id in layer.streams)
            assert at_home.stream_id not in layer.streams

    play(scenario)


# ---------------------------------------------------------------- operators


def test_status_metrics_and_alarms_show_it() -> None:
    async def scenario() -> None:
        async with Bounded() as region, Client(region.url) as client:
            stream = await client.stream("s", delivery="nakcast")
            await client.stream("t")
            await stream.publish_many([b"v"] * 500)
            subscription = stream.subscribe(start="earliest")
            await take(subscription, 501)
            _, status = await region.get("/v1/status")
            role = status["roles"]["nakcast"]
            assert (role["streams"], role["followers"], role["positions_lost"]) == (1, 1, 450)
            first = next(one for one in status["streams"] if one["name"] == "s")
            assert (first["delivery"], first["subscribers"]) == ("nakcast", 1)
            assert "readers-losing" not in {alarm["code"] for alarm in status["alarms"]}
            late = stream.subscribe(start=100)
            assert (await anext(late)).range == range(100, 451)
            _, status = await region.get("/v1/status")
            codes = {alarm["code"]: alarm["what"] for alarm in status["alarms"]}
            assert codes["readers-losing"] == "s, 351 positions"
            _, text = await region.get("/metrics")
            metrics = text.decode() if isinstance(text, bytes) else text
            assert "surecast_nakcast_followers 2.0" in metrics
            assert "surecast_nakcast_positions_lost 801.0" in metrics
            assert 'surecast_messages_total{message="Join",protocol="nakcast"} 2.0' in metrics
            assert region.server.config.roles["nakcast"].beacon_ns == 20 * MS

    play(scenario)
