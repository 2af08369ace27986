"""Named subscriptions: positions survive clients and servers; acknowledgements; fencing."""

import asyncio
from typing import Any

import msgspec
import pytest

from surecast.client.subscription import Subscription
from surecast.client.subscription_buffer import SubscriptionBuffer
from surecast.errors import Closed, Fenced, UsageError
from tests.client.stage import Regions, play, until
from tests.client.test_subscribe import take


async def stored(regions: Regions, name: str, client_stream: bytes) -> int:
    """The position of a named subscription at the head of region east; 1 if there is none."""
    head = regions.head("east")
    assert head is not None
    cursor = regions.layer(head, "cursors").table.get(name)
    return 1 if cursor is None else cursor.positions.get(client_stream, 1)


def test_a_named_subscription_resumes_after_the_client_restarts() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions:
            async with regions.client("east") as client:
                stream = await client.stream("s")
                await stream.publish_many([b"%d" % n for n in range(1, 21)])
                async for event in stream.subscribe(start=1, name="billing"):
                    if event.seq == 6:
                        break
                # The end of the client's block stores the position.
            async with regions.client("east") as client:
                sub = client.subscribe("s", start="latest", name="billing")
                assert [e.seq for e in await take(sub, 3)] == [7, 8, 9]
                await sub.close()
                other = client.subscribe("s", start=15, name="audit")
                assert (await anext(other)).seq == 15

    play(scenario)


@pytest.mark.slow
def test_a_named_subscription_resumes_after_all_servers_restart() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"%d" % n for n in range(1, 101)])
            sub = stream.subscribe(start=1, name="billing", ack="manual")
            events = await take(sub, 60)
            await sub.ack(events[49])
            for name in ("east-1", "east-2", "east/witness"):
                await regions.kill(name)
            for name in ("east-1", "east-2", "east/witness"):
                await regions.start(name)
            assert [e.seq for e in await take(sub, 40)] == list(range(61, 101))  # continues
            await sub.ack(events[54])  # and still holds the name
            await sub.close()
            async with regions.client("east") as later:
                again = later.subscribe("s", name="billing", ack="manual")
                assert (await anext(again)).seq == 56

    play(scenario, 120)


def test_automatic_and_manual_acknowledgements() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east", ack_every=1e-6) as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 10)
            sid = stream._info.stream_id
            auto = stream.subscribe(start=1, name="auto")
            for n in range(1, 11):
                assert (await anext(auto)).seq == n
                async with asyncio.timeout(10):
                    while await stored(regions, "auto", sid) != n:  # all before the current event
                        await asyncio.sleep(0.001)
            manual = stream.subscribe(start=1, name="hand", ack="manual")
            events = await take(manual, 10)
            await manual.ack(events[4])
            assert await stored(regions, "hand", sid) == 6
            await manual.ack(events[2])  # cumulative: never goes back
            assert await stored(regions, "hand", sid) == 6
            await asyncio.gather(*(manual.ack(event) for event in events))
            assert await stored(regions, "hand", sid) == 11
            batches = stream.subscribe(start=1, name="arrow", ack="manual")
            batch = await anext(batches.batches())
            await batches.ack(batch)
            assert await stored(regions, "arrow", sid) == batch.column("seq")[-1].as_py() + 1

    play(scenario)


def test_a_second_subscription_fences_the_first() -> None:
    async def scenario() -> None:
        async with (
            Regions(east=2) as regions,
            regions.client("east") as one,
            regions.client("east") as two,
        ):
            stream = await one.stream("s")
            await stream.publish_many([b"x"] * 10)
            old = one.subscribe("s", start=1, name="billing", ack="manual")
            events = await take(old, 5)
            await old.ack(events[2])
            waiting = asyncio.ensure_future(_drain(old))
            new = two.subscribe("s", start=1, name="billing")
            assert (await anext(new)).seq == 4
            with pytest.raises(Fenced, match="billing"):
                await waiting
            with pytest.raises(Fenced):
                await old.ack(events[4])
            with pytest.raises(Fenced):
                await anext(old)
            assert (await anext(new)).seq == 5

    play(scenario)


async def _drain(sub: Subscription) -> None:
    async for _ in sub:
        pass


def test_closing_inside_a_loop_acknowledges_the_events_handed_out() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east", ack_every=0) as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 1000)
            sub = stream.subscribe(start=1, name="n")
            seen = []
            async for event in sub:
                seen.append(event.seq)
                if event.seq == 10:
                    await sub.close()
            assert seen == list(range(1, 11))
            async with asyncio.timeout(10):
                while await stored(regions, "n", stream._info.stream_id) < 11:
                    await asyncio.sleep(0.005)
            assert await stored(regions, "n", stream._info.stream_id) == 11
            with pytest.raises(Closed):
                await sub.ack(event)

    play(scenario)


def test_start_latest_is_stored_even_if_nothing_was_read() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            async with regions.client("east") as client:
                stream = await client.stream("s")
                await stream.publish_many([b"old"] * 5)
                async with stream.subscribe(start="latest", name="n"):
                    pass
                await stream.publish(b"while away")
            async with regions.client("east") as client:
                sub = client.subscribe("s", start="latest", name="n")
                assert (await anext(sub)).value == b"while away"

    play(scenario)


def test_start_latest_is_stored_even_if_the_client_crashes_at_once() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            client = await regions.client("east", ack_every=60)
            stream = await client.stream("s")
            await stream.publish_many([b"old"] * 5)
            held = [
                await stream.subscribe(start="latest", name="n").ready(),
                await client.subscribe(">", start="latest", name="all").ready(),
            ]
            await stream.publish(b"while away")
            client._endpoint.control.node.kill()  # without a Bye
            async with regions.client("east") as successor:
                for name in ("n", "all"):
                    sub = successor.subscribe("s", start="latest", name=name)
                    assert (await anext(sub)).value == b"while away"
            for reader in client._readers.all:
                reader.node.kill()
            del held

    play(scenario)


def test_a_pattern_has_a_position_in_each_stream() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            async with regions.client("east") as client:
                a, b = await client.stream("p.a"), await client.stream("p.b")
                await a.publish_many([b"x"] * 3)
                await b.publish_many([b"x"] * 3)
                sub = client.subscribe("p.*", start="earliest", name="n")
                await take(sub, 6)
                await sub.close()
                c = await client.stream("p.c")  # appears while nobody subscribes
                await c.publish(b"new")
                await a.publish(b"more")
            async with regions.client("east") as client:
                sub = client.subscribe("p.*", start="latest", name="n")
                assert {(e.stream, e.seq) for e in await take(sub, 2)} == {("p.a", 4), ("p.c", 1)}

    play(scenario)


def test_a_pattern_that_matched_nothing_at_first_misses_nothing_later() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            async with client.subscribe("q.*", start="latest", name="n"):
                pass
            stream = await client.stream("q.a")
            await stream.publish(b"while away")
            async with client.subscribe("q.*", start="latest", name="n") as sub:
                assert (await anext(sub)).value == b"while away"
            async with client.subscribe("q.*", start="latest", name="other") as sub:
                await stream.publish(b"now")
                assert (await anext(sub)).value == b"now"

    play(scenario)


def test_misuse_is_refused_at_once() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            with pytest.raises(UsageError, match="name="):
                stream.subscribe(ack="manual")
            with pytest.raises(UsageError, match="auto"):
                stream.subscribe(name="n", ack="never")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="name"):
                stream.subscribe(name="no spaces")
            await stream.publish(b"x")
            sub = stream.subscribe(start=1)
            event = await anext(sub)
            with pytest.raises(UsageError, match="named"):
                await sub.ack(event)
            named = stream.subscribe(start=1, name="n")
            await anext(named)
            for wrong in ("x", 5, None):
                with pytest.raises(UsageError):
                    await named.ack(wrong)

    play(scenario)


async def _acknowledges_unread(batchwise: bool) -> None:
    """All ten events were received, two were handed out, and the user acknowledges more of them."""
    async with Regions(east=1) as regions, regions.client("east") as client:
        stream = await client.stream("s")
        for _ in range(5):
            await stream.publish_many([b"x"] * 2)
        events = await take(stream.subscribe(start=1), 10)
        sub = stream.subscribe(start=1, name="n", ack="manual")
        handed_out: Any = await anext(sub.batches()) if batchwise else (await take(sub, 2))[-1]
        await until(lambda: sub._buffer.by_name["s"][0].next == 11, "not all events were received")
        for unread in (*events[2:], msgspec.structs.replace(events[9], seq=11)):
            try:
                await sub.ack(unread)
                refusal = ""
            except UsageError as problem:
                refusal = str(problem)
            assert f"s up to {unread.seq} was not read" in refusal
        await sub.ack(handed_out)
        assert await stored(regions, "n", stream.stream_id) == 3


@pytest.mark.parametrize("batchwise", [False, True])
@pytest.mark.parametrize("mutant", ["what was received", "anything"])
def test_events_that_were_not_handed_out_cannot_be_acknowledged(
    monkeypatch: pytest.MonkeyPatch, batchwise: bool, mutant: str
) -> None:
    play(lambda: _acknowledges_unread(batchwise))
    handed = {
        "what was received": lambda _, progress: progress.next,
        "anything": lambda _, progress: 100,
    }
    monkeypatch.setattr(SubscriptionBuffer, "handed", handed[mutant])
    with pytest.raises(AssertionError, match="was not read"):
        play(lambda: _acknowledges_unread(batchwise))


def test_the_position_survives_a_failover_under_load() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east", ack_every=0) as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 300)
            sub = stream.subscribe(start=1, name="n")
            seen = 0
            async for event in sub:
                seen += 1
                assert event.seq == seen
                if seen in (100, 200):
                    await regions.restart(regions.head("east") or "east-1")
                if seen == 300:
                    break
            await sub.ack(event)
            sid = stream._info.stream_id
            await until(lambda: regions.head("east") is not None)
            assert await stored(regions, "n", sid) == 301

    play(scenario)
