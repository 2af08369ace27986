"""`timeout=`: calls that wait for a region end in time and report what they waited for."""

import asyncio
import inspect
import math
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import surecast
from surecast import sync
from surecast.client.connection import Client
from surecast.client.stream import Stream
from surecast.client.subscription import Subscription
from surecast.client.timeouts import seconds_of
from surecast.columns.batch import Batch
from surecast.core.endpoint import Acked
from surecast.errors import TimedOut, UsageError
from tests.client.stage import Regions, play
from tests.client.test_named import stored

SOON = 0.05
NOW = datetime.now(UTC)


class Cut:
    """A client whose region no longer answers, with a stream and a named subscription."""

    def __init__(self, client: Client, stream: Stream, sub: Subscription) -> None:
        self.client = client
        self.stream = stream
        self.sub = sub
        self.last: surecast.Event

    async def flush(self) -> None:
        self.stream.publish_soon(b"x")
        await self.client.flush(timeout=SOON)

    async def publish_batch(self) -> None:
        batch = Batch.of(self.stream.stream_id, [bytes(8 << 20)])
        for _ in range(10):  # outbox_bytes_max has room for three
            await self.stream.publish_batch(batch, timeout=SOON)


CALLS: list[tuple[str, Callable[[Cut], Awaitable[Any]], str]] = [
    (
        "Client.stream",
        lambda cut: cut.client.stream("t", timeout=SOON),
        "to open 't'; the stream may still be created",
    ),
    ("Client.streams", lambda cut: cut.client.streams("a.>", timeout=SOON), "that match 'a.>'"),
    ("Client.ends", lambda cut: cut.client.ends("a.>", timeout=SOON), "that match 'a.>'"),
    (
        "Client.locate",
        lambda cut: cut.client.locate(cut.stream.stream_id, NOW, timeout=SOON),
        "to find a time in the stream",
    ),
    (
        "Stream.publish",
        lambda cut: cut.stream.publish(b"x", timeout=SOON),
        "acknowledgement of an event of 's'; the event may still be published",
    ),
    (
        "Stream.publish_many",
        lambda cut: cut.stream.publish_many([b"x"], timeout=timedelta(seconds=SOON)),
        "acknowledgement of events of 's'",
    ),
    (
        "Stream.collect",
        lambda cut: cut.stream.collect(surecast.before_seq(2), timeout=SOON),
        "acknowledgement of collect() on 's'; the events may still be declared obsolete",
    ),
    (
        "Stream.change",
        lambda cut: cut.stream.change(schema="n int64", timeout=SOON),
        "the schema of 's' to be changed; it may still be changed",
    ),
    ("Client.flush", Cut.flush, "published events to be acknowledged; publishing continues"),
    ("Stream.publish_batch", Cut.publish_batch, "room to publish a batch of 's'"),
    (
        "Stream.read",
        lambda cut: cut.stream.read(timeout=SOON),
        "all events of 's' up to 'latest'",
    ),
    ("Subscription.next", lambda cut: cut.sub.next(timeout=SOON), "the next event of 's'"),
    ("anext", lambda cut: anext(cut.sub), "the next event of 's'"),
    ("aiter", lambda cut: anext(aiter(cut.sub)), "the next event of 's'"),
    ("batches", lambda cut: anext(aiter(cut.sub.batches())), "the next event of 's'"),
    (
        "Subscription.ready",
        lambda cut: cut.client.subscribe("s").ready(timeout=SOON),
        "to report where the subscription to 's' starts",
    ),
    (
        "async with",
        lambda cut: cut.client.subscribe("s", timeout=SOON).__aenter__(),
        "to report where the subscription to 's' starts",
    ),
    (
        "Subscription.change",
        lambda cut: cut.client.subscribe("s").change(where="exists key", timeout=SOON),
        "the filter of the subscription to 's' to be changed",
    ),
    (
        "Stream.delete",
        lambda cut: cut.stream.delete(timeout=SOON),
        "the acknowledgement of delete() on 's'; the stream may still be deleted",
    ),
    (
        "Client.subscriptions",
        lambda cut: cut.client.subscriptions(timeout=SOON),
        "the region to list its named subscriptions",
    ),
    (
        "Client.reset_subscription",
        lambda cut: cut.client.reset_subscription("n", "earliest", timeout=SOON),
        "the region to reset 'n'; the subscription may still be reset",
    ),
    (
        "Client.delete_subscription",
        lambda cut: cut.client.delete_subscription("n", timeout=SOON),
        "the region to delete 'n'; the subscription may still be deleted",
    ),
    (
        "Subscription.ack",
        lambda cut: cut.sub.ack(cut.last, timeout=SOON),
        "position 4 of 's' to be stored for the subscription named 'n'",
    ),
    (
        "Subscription.close",
        lambda cut: cut.sub.close(timeout=SOON),
        "to store its position; the subscription is closed in the background",
    ),
    (
        "Client.close",
        lambda cut: cut.client.close(timeout=SOON),
        "acknowledged, and for the positions of subscriptions to be stored",
    ),
]


def test_every_call_to_a_region_that_is_down_times_out() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            client = await regions.client("east")
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 3)
            sub = stream.subscribe(start=1, name="n", ack="manual", timeout=SOON)
            cut = Cut(client, stream, sub)
            cut.last = [await sub.next(timeout=30) for _ in range(3)][-1]
            for name in list(regions.nodes):
                await regions.kill(name)
            for name, call, expected in CALLS:
                began = time.monotonic()
                with pytest.raises(TimedOut) as hit:
                    await call(cut)
                assert time.monotonic() - began < 20, name
                message = str(hit.value)
                assert message.startswith(f"waited {SOON:g} s for "), name
                assert expected in message, name
                # publish_batch waits for room, but its timeout may also end the call just after the
                # batch was accepted.
                publishes = "ublish" in name or name in (
                    "Stream.collect",
                    "Stream.delete",
                    "Stream.change",
                    "Client.flush",
                )
                assert hit.value.maybe_taken == (publishes or name == "Client.close"), name

    play(scenario, 120)


def test_every_call_that_waits_takes_a_timeout() -> None:
    tried = {name for name, _, _ in CALLS}
    for kind in (Client, Stream, Subscription):
        for name, method in vars(kind).items():
            if name.startswith("_") or not inspect.iscoroutinefunction(method):
                continue
            assert "timeout" in inspect.signature(method).parameters, f"{kind.__name__}.{name}"
            assert f"{kind.__name__}.{name}" in tried or name == "open"
    for call in (surecast.connect, surecast.local, Client.subscribe, Stream.subscribe):
        assert "timeout" in inspect.signature(call).parameters


@pytest.mark.parametrize("use_sync", [False, True])
def test_connecting_to_a_port_that_does_not_answer_times_out(use_sync: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"surecast://127.0.0.1:{silent.getsockname()[1]}"
        expected = f"waited {SOON:g} s for an answer from {url}"
        began = time.monotonic()
        if use_sync:
            with pytest.raises(TimedOut, match=expected):
                sync.connect(url, timeout=SOON)
        else:

            async def scenario() -> None:
                with pytest.raises(TimedOut, match=expected):
                    await surecast.connect(url, timeout=SOON)
                with pytest.raises(TimedOut, match=expected):
                    await surecast.connect(url, timeout=60).open(timeout=SOON)

            play(scenario)
        assert time.monotonic() - began < 2.5  # ClientOptions.connect_timeout_ns is 3 s


@pytest.mark.parametrize("wrong", [-1, -0.5, math.nan, True, "1", timedelta(seconds=-1)])
def test_an_invalid_timeout_is_refused_before_anything_is_sent(wrong: Any) -> None:
    with pytest.raises(UsageError, match="timeout is a number of seconds"):
        surecast.connect(timeout=wrong)

    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            for call in (
                lambda: stream.publish(b"x", timeout=wrong),
                lambda: stream.publish_many([b"x"], timeout=wrong),
                lambda: stream.collect(surecast.before_seq(1), timeout=wrong),
                lambda: client.stream("t", timeout=wrong),
                lambda: client.close(timeout=wrong),
            ):
                with pytest.raises(UsageError, match="timeout is a number of seconds"):
                    await call()
            with pytest.raises(UsageError, match="timeout is a number of seconds"):
                stream.subscribe(timeout=wrong)
            assert await stream.publish(b"the first") == 1
            assert [info.name for info in await client.streams()] == ["s"]

    play(scenario)


def test_timeouts_are_converted_to_seconds() -> None:
    assert seconds_of(None) is None
    assert seconds_of(math.inf) is None
    assert seconds_of(10**400) is None
    assert seconds_of(0) == 0
    assert seconds_of(2) == 2.0
    assert seconds_of(timedelta(milliseconds=1500)) == 1.5


def test_a_publish_that_timed_out_may_still_happen_but_only_once() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await regions.kill("east-1")
            with pytest.raises(TimedOut) as hit:
                await stream.publish(b"one", timeout=SOON)
            assert hit.value.maybe_taken
            with pytest.raises(TimedOut):
                await stream.publish_many([b"two", b"three"], timeout=SOON)
            with pytest.raises(TimedOut):
                await client.flush(timeout=SOON)
            await regions.start("east-1")
            await client.flush(timeout=30)
            table = await stream.read(timeout=30)
            assert table.column("value").to_pylist() == [b"one", b"two", b"three"]

    play(scenario)


def test_a_publish_that_timed_out_while_waiting_for_room_does_not_happen() -> None:
    async def scenario() -> None:
        sizes = {"outbox_bytes_max": 1500, "event_bytes_max": 1000, "batch_bytes_max": 500}
        async with Regions(east=1) as regions, regions.client("east", **sizes) as client:
            stream = await client.stream("s")
            control = client._endpoint.control
            offer, held = control.offer, []
            control.offer = lambda *offered: held.append(offered)  # type: ignore[assignment]
            first = asyncio.ensure_future(stream.publish(bytes(800)))
            await asyncio.sleep(0)
            with pytest.raises(
                TimedOut, match="room to publish an event of 's'; the event is not"
            ) as hit:
                await stream.publish(bytes(900), timeout=SOON)
            assert not hit.value.maybe_taken
            control.offer = offer  # type: ignore[method-assign]
            for offered in held:
                offer(*offered)
            assert await first == 1
            assert await stream.publish(b"x", timeout=30) == 2

    play(scenario)


def test_a_timeout_of_publish_many_reports_the_acknowledged_positions() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east", batch_rows_max=10) as client:
            stream = await client.stream("s")
            control = client._endpoint.control
            offer, held = control.offer, []

            def first_two(*offered: Any) -> None:
                if len(held) < 2:
                    offer(*offered)
                held.append(offered)

            control.offer = first_two  # type: ignore[method-assign,assignment]
            with pytest.raises(TimedOut) as hit:
                await stream.publish_many([b"x"] * 50, timeout=0.5)
            assert hit.value.acknowledged == ((1, 21),)
            assert hit.value.maybe_taken
            control.offer = offer  # type: ignore[method-assign]
            for stream_id, _, done in held[2:]:
                done(Acked(stream_id, 0, 10, 100))  # so that closing does not wait for them

    play(scenario)


def test_a_loop_that_timed_out_can_be_continued() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            sub = await stream.subscribe(timeout=SOON).ready(timeout=30)
            found: list[int] = []

            async def read_on() -> None:
                async for event in sub:
                    found.append(event.seq)

            for n in range(1, 4):
                with pytest.raises(TimedOut):
                    await read_on()
                assert len(found) == n - 1
                await stream.publish(b"x")
                found.append((await sub.next(timeout=30)).seq)
            assert found == [1, 2, 3]
            with pytest.raises(TimedOut):
                await sub.next(timeout=0)
            await stream.publish(b"x")
            assert (await sub.next(timeout=timedelta(seconds=30))).seq == 4

    play(scenario)


def test_polling_lets_other_tasks_run() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            sub = await stream.subscribe().ready()
            publishing = asyncio.ensure_future(stream.publish(b"x"))
            while True:
                try:
                    event = await sub.next(timeout=0)
                    break
                except TimedOut:
                    pass
            assert event.seq == await publishing

    play(scenario)


def test_void_positions_do_not_prolong_a_wait() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            sub = await stream.subscribe(timeout=0.3).ready(timeout=30)

            # Readers get no event for a call of collect(): its position is not delivered. A wait
            # for an event must end in time although such positions arrive again and again.
            async def collect() -> None:
                while True:
                    await stream.collect(surecast.before_seq(1))
                    await asyncio.sleep(0.02)

            collecting = asyncio.ensure_future(collect())
            with pytest.raises(TimedOut):
                await anext(sub)
            collecting.cancel()

    play(scenario)


def test_an_acknowledgement_that_timed_out_is_stored_later() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 3)
            sub = stream.subscribe(start=1, name="n", ack="manual")
            events = [await anext(sub) for _ in range(3)]
            await regions.kill("east-1")
            with pytest.raises(TimedOut, match="the position may be stored later"):
                await sub.ack(events[1], timeout=SOON)
            await regions.start("east-1")
            await sub.close(timeout=30)
            assert await stored(regions, "n", stream.stream_id) == 3

    play(scenario)


def test_a_client_is_closed_even_if_closing_timed_out() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            client = await regions.client("east")
            stream = await client.stream("s")
            await regions.kill("east-1")
            stream.publish_soon(b"x")
            with pytest.raises(TimedOut, match="1 batch to be acknowledged") as hit:
                await client.close(timeout=SOON)
            assert hit.value.maybe_taken
            with pytest.raises(surecast.Closed):
                await client.stream("t")

    play(scenario)
