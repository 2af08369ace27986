"""Named subscriptions are listed, reset and deleted through the public API, async and sync."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import surecast
from surecast import Fenced, SubscriptionInUse, UnknownSubscription, UsageError
from tests.client.stage import Regions, play, until
from tests.client.test_subscribe import CLOCKS_DIFFER_S, take


async def named(client: surecast.Client, name: str, count: int, pattern: str = "s") -> None:
    """Read `count` events with a named subscription and acknowledge them."""
    sub = client.subscribe(pattern, start="earliest", name=name, ack="manual")
    events = await take(sub, count)
    for event in {event.stream: event for event in events}.values():
        await sub.ack(event)
    await sub.close()


async def drain(sub: surecast.Subscription) -> None:
    async for _ in sub:
        pass


async def only(client: surecast.Client) -> surecast.SubscriptionInfo:
    [info] = await client.subscriptions()
    return info


def test_a_subscription_is_listed_with_position_lag_and_reader() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            assert await client.subscriptions() == []
            stream = await client.stream("s")
            before = datetime.now(UTC) - timedelta(seconds=1)
            await stream.publish_many([b"x"] * 10)
            await named(client, "billing", 4)
            info = await only(client)
            assert (info.name, info.connected, info.pattern) == ("billing", False, True)
            assert (info.lag, len(info.positions)) == (6, 1)
            [position] = info.positions
            assert (position.stream, position.seq, position.end, position.lag) == ("s", 5, 11, 6)
            assert position.moved is not None
            assert before < position.moved == info.moved < datetime.now(UTC)
            async with stream.subscribe(name="billing"):
                assert (await only(client)).connected is True
            assert (await only(client)).connected is False, "the client itself is still connected"

    play(scenario)


@pytest.mark.parametrize("start", ["earliest", "latest", 3, "time"])
def test_the_next_reader_begins_at_the_position_of_the_reset(start: str | int) -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 5)
            await asyncio.sleep(CLOCKS_DIFFER_S)
            since = datetime.now(UTC)
            await asyncio.sleep(CLOCKS_DIFFER_S)
            await stream.publish_many([b"y"] * 5)
            await named(client, "billing", 4)
            begin = since if start == "time" else start
            expected = {"earliest": 1, "latest": 11, 3: 3, "time": 6}[start]
            assert await client.reset_subscription("billing", begin) == {"s": expected}
            assert (await only(client)).positions[0].seq == expected
            await stream.publish(b"last")
            sub = stream.subscribe(name="billing")
            assert (await anext(sub)).seq == expected

    play(scenario)


def test_changing_a_subscription_in_use_requires_force_and_fences_its_reader() -> None:
    async def scenario() -> None:
        async with (
            Regions(east=2) as regions,
            regions.client("east") as one,
            regions.client("east") as two,
        ):
            stream = await one.stream("s")
            await stream.publish_many([b"x"] * 10)
            sub = stream.subscribe(start=1, name="billing", ack="manual")
            events = await take(sub, 10)
            await sub.ack(events[4])
            with pytest.raises(SubscriptionInUse, match="billing"):
                await two.reset_subscription("billing", "earliest")
            with pytest.raises(SubscriptionInUse):
                await two.delete_subscription("billing")
            await sub.ack(events[5])  # nothing has changed
            assert await two.reset_subscription("billing", 2, force=True) == {"s": 2}
            with pytest.raises(Fenced, match="was reset"):
                await anext(sub)
            with pytest.raises(Fenced, match="was reset"):
                await sub.ack(events[9])
            await sub.close()
            again = stream.subscribe(name="billing")
            assert (await anext(again)).seq == 2
            await two.delete_subscription("billing", force=True)
            with pytest.raises(Fenced, match="was deleted"):
                await drain(again)
            await again.close()
            assert await two.subscriptions() == []

    play(scenario)


def test_a_deleted_name_can_be_used_again() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 10)
            await named(client, "billing", 4)
            await client.delete_subscription("billing")
            assert await client.subscriptions() == []
            with pytest.raises(UnknownSubscription):
                await client.delete_subscription("billing")
            sub = stream.subscribe(start=8, name="billing")
            assert (await anext(sub)).seq == 8

    play(scenario)


def test_a_subscription_can_be_reset_in_streams_it_has_not_read() -> None:
    """Without a position the subscription would read them from their first event on."""

    async def scenario() -> None:
        async with surecast.local() as client:
            for name in ("a.x", "a.y", "b.x"):
                stream = await client.stream(name)
                await stream.publish_many([b"x"] * 3)
            await named(client, "billing", 3, "a.x")
            reset = client.reset_subscription
            assert await reset("billing", "latest", streams="a.>") == {"a.x": 4, "a.y": 4}
            assert await reset("billing", 2, streams=["a.y", "b.*"]) == {"a.y": 2, "b.x": 2}
            info = await only(client)
            assert {p.stream: p.seq for p in info.positions} == {"a.x": 4, "a.y": 2, "b.x": 2}
            for wrong in ("c", "c.>", "a b", []):
                with pytest.raises(UsageError):
                    await reset("billing", "latest", streams=wrong)
            with pytest.raises(UsageError, match="from 1 to 4"):
                await reset("billing", 5)
            with pytest.raises(UsageError):
                await reset("billing", 0)
            assert await only(client) == info

    play(scenario)


def test_unknown_subscriptions_and_positions_cannot_be_changed() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            with pytest.raises(UnknownSubscription, match="nobody"):
                await client.reset_subscription("nobody", "earliest")
            with pytest.raises(UnknownSubscription, match="nobody"):
                await client.delete_subscription("nobody")
            with pytest.raises(UsageError):
                await client.delete_subscription("a b")
            async with client.subscribe("none.>", name="new"):
                pass
            assert (await only(client)).positions == ()
            with pytest.raises(UsageError, match="no position"):
                await client.reset_subscription("new", "earliest")

    play(scenario)


def test_a_position_at_the_beginning_is_kept_and_shown() -> None:
    """Events published while nobody reads are read later, even the first ones of the stream."""

    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            async with stream.subscribe("latest", name="billing"):
                pass
            await stream.publish_many([b"x"] * 3)
            info = await only(client)
            assert (info.lag, [p.seq for p in info.positions]) == (3, [1])
            sub = stream.subscribe("latest", name="billing")
            assert (await anext(sub)).seq == 1

    play(scenario)


def test_resets_and_deletions_survive_the_loss_of_the_head() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 10)
            await named(client, "billing", 7)
            await named(client, "audit", 7)
            assert await client.reset_subscription("billing", 3) == {"s": 3}
            await client.delete_subscription("audit")
            head = regions.head("east")
            assert head is not None
            await regions.kill(head)
            await until(lambda: regions.head("east") not in (None, head))
            info = await only(client)
            assert (info.name, info.positions[0].seq) == ("billing", 3)

    play(scenario)


def test_named_subscriptions_with_the_sync_client() -> None:
    with surecast.sync.local() as client:
        stream = client.stream("s")
        stream.publish_many([b"x"] * 10)
        with stream.subscribe("earliest", name="billing", ack="manual") as sub:
            event = next(iter(sub))
            sub.ack(event)
            with pytest.raises(SubscriptionInUse):
                client.delete_subscription("billing")
        [info] = client.subscriptions()
        assert (info.name, info.lag, info.connected) == ("billing", 9, False)
        assert client.reset_subscription("billing", "latest") == {"s": 11}
        assert client.subscriptions()[0].lag == 0
        client.delete_subscription("billing")
        assert client.subscriptions() == []
