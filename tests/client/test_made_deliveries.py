"""Deliveries that a test adds to the registry, used by a client over real sockets."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

import surecast
from surecast.client.connection import Client
from surecast.client.subscription import Subscription
from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll
from surecast.core.endpoint import (
    VERBS,
    Acked,
    Follow,
    Lost,
    OfferBatch,
    Open,
    Opened,
    Unfollow,
)
from surecast.core.machine import HandlerMachine
from surecast.core.streams import StreamInfo
from surecast.core.types import Deliver, Emit
from surecast.errors import EventsLost, NotSupported, StreamConfigMismatch, UsageError
from surecast.runtime.addresses import own_address
from tests.client.stage import Regions, play, until
from tests.made_protocols import MadeDelivery, MadeProtocols, ScriptedReader, made_protocols


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MadeProtocols]:
    folder = tmp_path / "protocols"
    folder.mkdir()
    with made_protocols(monkeypatch, folder) as found:
        yield found


def have(made: MadeProtocols, *deliveries: MadeDelivery) -> None:
    """Add a row to the registry for each delivery."""

    def row_of(delivery: MadeDelivery) -> Callable[[], MadeDelivery]:
        return lambda: delivery

    for delivery in deliveries:
        made.write(f"protocol_of_{delivery.name}", delivery=row_of(delivery))


class Served(Regions):
    """A region whose servers handle streams of these deliveries like those of broadcast."""

    def __init__(self, *deliveries: str) -> None:
        super().__init__(east=1)
        self.deliveries = deliveries

    async def start(self, name: str) -> None:
        await super().start(name)
        if not name.endswith("/witness"):
            service = self.layer(name)
            server_side = service.deliveries["broadcast"]
            service.deliveries = {
                **service.deliveries,
                **dict.fromkeys(self.deliveries, server_side),
            }


def batch(stream: bytes, lo: int, hi: int) -> Batch:
    return Batch.of(stream, [b"%d" % n for n in range(lo, hi)]).sequenced(lo, 1, 1)


async def take(sub: Subscription, count: int) -> list[tuple[str, range]]:
    found = []
    while len(found) < count:
        event = await anext(sub)
        found.append((event.kind, event.range))
    return found


def event_at(seq: int) -> tuple[str, range]:
    return "event", range(seq, seq + 1)


# ---------------------------------------------------------------- opening a stream


def test_a_stream_has_the_delivery_and_the_options_it_was_created_with(made: MadeProtocols) -> None:
    have(made, MadeDelivery())

    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            options = {"rate": "5", "name": "x"}
            stream = await client.stream("s", delivery="made", options=options)
            assert stream.delivery == "made"
            assert stream._info.options == (("name", "x"), ("rate", "5"))
            assert await stream.publish(b"one") == 1
            existing = await client.stream("s")
            assert existing.delivery == "made"
            assert (await client.stream("t")).delivery == "broadcast"
            with pytest.raises(StreamConfigMismatch, match=r"has delivery='made', but 'broadcast'"):
                await client.stream("s", delivery="broadcast")
            with pytest.raises(
                StreamConfigMismatch, match=r"has options=.*Open it without options="
            ):
                await client.stream("s", delivery="made", options={"rate": "6"})
            with pytest.raises(StreamConfigMismatch, match="keep-all, but keep-last:3"):
                await client.stream("s", retain=surecast.keep_last(3))

    play(scenario)


def test_a_stream_that_its_delivery_refuses_is_not_requested_from_a_server(
    made: MadeProtocols,
) -> None:
    have(made, MadeDelivery(refuses="rate is a number"))

    async def scenario() -> None:
        async with Served() as regions, regions.client("east") as client:
            with pytest.raises(UsageError, match="rate is a number"):
                await client.stream("s", delivery="made", options={"rate": "x"})
            with pytest.raises(NotSupported, match=r"no delivery='pigeon'.*'broadcast'.*'made'"):
                await client.stream("s", delivery="pigeon")
            with pytest.raises(UsageError, match="takes no options"):
                await client.stream("s", delivery="broadcast", options={"rate": "5"})
            with pytest.raises(UsageError, match="name it with delivery="):
                await client.stream("s", options={"rate": "5"})
            for wrong in ({"rate": 5}, {5: "rate"}):
                with pytest.raises(UsageError, match="of type str"):
                    await client.stream("s", delivery="made", options=wrong)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="delivery is a name"):
                await client.stream("s", delivery=None)  # type: ignore[arg-type]
            assert await client.streams() == []

    play(scenario)


def test_a_server_without_the_delivery_does_not_create_the_stream(made: MadeProtocols) -> None:
    have(made, MadeDelivery())

    async def scenario() -> None:
        async with Served() as regions, regions.client("east") as client:
            with pytest.raises(NotSupported, match="upgrade them, then create the stream"):
                await client.stream("s", delivery="made")

    play(scenario)


# ---------------------------------------------------------------- verbs

TIME = datetime(2026, 1, 1, tzinfo=UTC)

CALLS: dict[str, tuple[str, Callable[[Client, Any], Any]]] = {
    "retain": ("retain=", lambda client, _: client.stream("u", delivery="made", retain=LAST)),
    "collect": (r"collect\(\)", lambda _, stream: stream.collect(surecast.before_seq(2))),
    "delete": (r"delete\(\)", lambda _, stream: stream.delete()),
    "publisher": ("a named publisher", lambda _, stream: stream.named("me", 1)),
    "name": ("name=", lambda _, stream: stream.subscribe(name="n")),
    "where": ("where=", lambda _, stream: stream.subscribe(where="exists key")),
    "time": ("start= with a datetime", lambda _, stream: stream.subscribe(start=TIME)),
}
LAST = surecast.keep_last(3)


@pytest.mark.parametrize("verb", sorted(VERBS - {"pattern"}))
def test_a_verb_that_a_delivery_does_not_list_is_not_supported(
    made: MadeProtocols, verb: str
) -> None:
    delivery = MadeDelivery(verbs=VERBS - {verb})
    have(made, delivery)
    feature, call = CALLS[verb]

    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await client.stream("s", delivery="made", retain=surecast.keep_all())

            async def called() -> None:
                result = call(client, stream)
                if hasattr(result, "__await__"):
                    await result

            with pytest.raises(
                NotSupported, match=f"^{feature} is not supported by delivery='made'$"
            ):
                await called()
            delivery.verbs = VERBS
            await called()

    play(scenario)


@pytest.mark.parametrize(
    ("verb", "options", "feature"),
    [
        ("name", {"name": "n"}, "name="),
        ("time", {"start": TIME}, "start= with a datetime"),
        ("time", {"stop": datetime(2100, 1, 1, tzinfo=UTC)}, "stop= with a datetime"),
        ("pattern", {}, r"a pattern such as 'a\.>'"),
    ],
)
def test_a_pattern_leaves_out_streams_that_do_not_support_the_options(
    made: MadeProtocols,
    caplog: pytest.LogCaptureFixture,
    verb: str,
    options: dict[str, Any],
    feature: str,
) -> None:
    have(made, MadeDelivery(verbs=VERBS - {verb}))

    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            left_out = await client.stream("a.made", delivery="made")
            other = await client.stream("a.other")
            for stream in (left_out, other):
                await stream.publish(b"one")
            with caplog.at_level(logging.WARNING):
                sub = client.subscribe("a.>", **{"start": "earliest", **options})
                assert (await anext(sub)).stream == "a.other"
                await sub.ready()
            assert "'a.made' is left out of 'a.>'" in caplog.text
            assert list(sub._buffer.by_name) == ["a.other"]
            by_name = client.subscribe("a.made", **{"start": "earliest", **options})
            if verb == "pattern":
                assert (await anext(by_name)).stream == "a.made"
            else:
                with pytest.raises(NotSupported, match=f"{feature} is not supported"):
                    await anext(by_name)

    play(scenario)


# ---------------------------------------------------------------- readers


def test_a_pattern_has_one_reader_for_each_delivery_it_matches(made: MadeProtocols) -> None:
    # Opening a listening reader takes time, during which further streams are found.
    needs = frozenset({"region", "listen"})
    have(made, MadeDelivery("made", needs=needs), MadeDelivery("unmet"))

    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            names = [f"a.{n}" for n in range(6)]
            for n, name in enumerate(names):
                stream = await client.stream(name, delivery="made" if n % 2 else "broadcast")
                await stream.publish(b"x")
            sub = client.subscribe("a.>", start="earliest")
            assert sorted([(await anext(sub)).stream for _ in names]) == names
            readers = client._readers.all
            assert sorted(reader.delivery for reader in readers) == ["broadcast", "made"]
            later = await client.stream("a.later", delivery="made")
            await later.publish(b"y")
            assert (await anext(sub)).stream == "a.later"
            assert len(client._readers.all) == 2
            await sub.close()
            assert client._readers.all == []

    play(scenario)


def test_a_pattern_that_matches_nothing_opens_no_reader() -> None:
    async def scenario() -> None:
        async with Served() as regions, regions.client("east") as client:
            await client.subscribe("a.>").ready()
            assert client._readers.all == []

    play(scenario)


def test_subscriptions_share_readers_of_their_delivery(made: MadeProtocols) -> None:
    have(made, MadeDelivery())

    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            subs = []
            for name, delivery in (("a", "made"), ("b", "made"), ("c", ""), ("d", "")):
                stream = await client.stream(name, delivery=delivery)
                await stream.publish(b"x")
                subs.append(await stream.subscribe(start=1).ready())
            assert [(await anext(sub)).stream for sub in subs] == ["a", "b", "c", "d"]
            assert [reader.delivery for reader in client._readers.all] == ["made", "broadcast"]
            again = await (await client.stream("a")).subscribe(start=1).ready()
            assert (await anext(again)).value == b"x"
            assert len(client._readers.all) == 3  # a reader follows a stream once

    play(scenario)


def test_only_readers_whose_delivery_needs_it_listen(
    made: MadeProtocols, caplog: pytest.LogCaptureFixture
) -> None:
    have(made, MadeDelivery(needs=frozenset({"region", "listen"})))

    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            reached = await client.stream("a.made", delivery="made")
            plain = await client.stream("a.plain")
            subs = [await stream.subscribe().ready() for stream in (reached, plain)]
            node, other = (reader.node for reader in client._readers.all)
            assert node.address is not None
            assert (
                own_address(node.name) == node.address
            )  # the name contains the address for servers
            assert (other.address, own_address(other.name)) == (None, None)
            for sub in subs:
                await sub.close()

            client._readers._own_host = "10.1.2.3"  # as if the servers were on another machine
            with pytest.raises(NotSupported, match=r"delivery='made' works only on one .*insecure"):
                reached.subscribe()
            with caplog.at_level(logging.WARNING):
                sub = await client.subscribe("a.>").ready()
            assert list(sub._buffer.by_name) == ["a.plain"]
            assert "'a.made' is left out" in caplog.text

    play(scenario)


MESSAGES = """
from surecast.core.types import Message, tagged


class Base(Message, tag=tagged("protocol_of_made")):
    pass


class Datagram(Base):
    stream: bytes
"""


def test_datagrams_of_a_server_reach_a_reader_that_listens(made: MadeProtocols) -> None:
    delivery = MadeDelivery(needs=frozenset({"region", "listen"}))
    messages = made.write("protocol_of_made", delivery=lambda: delivery, messages=MESSAGES)

    class Listens(ScriptedReader):
        handlers: ClassVar[dict[type, str]] = {messages.Datagram: "_on_datagram"}

        def _on_datagram(self, _peer: str, message: Any) -> None:
            self.out.append(Deliver(message.stream, (batch(message.stream, 1, 2),)))

    delivery.make_reader = lambda: Listens(lambda _: [], [])

    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await client.stream("s", delivery="made")
            sub = await stream.subscribe(start=1).ready()
            server, reader = regions.nodes["east-1"], client._readers.all[0].node
            buffers = server.codec.encode(messages.Datagram(stream.stream_id))
            server.datagrams.send(reader.name, buffers, sum(map(len, buffers)))
            server.datagrams.flush()  # they have exchanged no message before
            assert await take(sub, 1) == [event_at(1)]

    play(scenario)


# ---------------------------------------------------------------- publishers


class OwnPublisher(HandlerMachine):
    """Answers Open and OfferBatch itself: every batch gets the position 1,000."""

    inputs: ClassVar[dict[type, str]] = {Open: "_on_open", OfferBatch: "_on_offer"}

    def __init__(self, received: list[Any]) -> None:
        super().__init__()
        self.received = received

    def _on_open(self, inp: Open) -> None:
        self.received.append(("open", inp.name, inp.spec.delivery))
        info = StreamInfo(inp.name.encode() * 16, inp.name, "east", KeepAll(), delivery="made")
        self.out.append(Emit(Opened(inp.name, info)))

    def _on_offer(self, inp: OfferBatch) -> None:
        self.received.append(("offer", inp.stream, inp.batch.rows))
        self.out.append(Emit(Acked(inp.stream, 1, inp.batch.rows, 1000, inp.token)))


def test_a_delivery_with_a_publisher_of_its_own_opens_and_publishes_its_streams(
    made: MadeProtocols,
) -> None:
    received: list[Any] = []
    have(made, MadeDelivery(make_publisher=lambda: OwnPublisher(received)))

    async def scenario() -> None:
        async with Served() as regions, regions.client("east") as client:
            own = await client.stream("o", delivery="made")
            other = await client.stream("x")
            assert [await own.publish(b"a"), await other.publish(b"b")] == [1000, 1]
            assert (await own.publish_many([b"c", b"d"])).runs == ((1000, 1002),)
            assert received == [
                ("open", "o", "made"),
                ("offer", b"o" * 16, 1),
                ("offer", b"o" * 16, 2),
            ]

    play(scenario)


def test_an_existing_stream_is_opened_by_its_delivery_too(made: MadeProtocols) -> None:
    received: list[Any] = []
    delivery = MadeDelivery()
    have(made, delivery)

    async def scenario() -> None:
        async with Served("made") as regions:
            async with regions.client("east") as client:
                await client.stream("o", delivery="made")  # the stream service knows it now
            delivery.make_publisher = lambda: OwnPublisher(received)
            async with regions.client("east") as client:
                own = await client.stream("o")
                assert await own.publish(b"a") == 1000
                assert received == [("open", "o", "made"), ("offer", b"o" * 16, 1)]

    play(scenario)


# ---------------------------------------------------------------- lost events

WHY = "too far behind"


def loses(inp: Follow) -> list[Any]:
    """A reader's script: events 1 and 2, a loss of 3 to 8, events 9 and 10; from `inp.start` on."""
    stream = inp.stream
    parts: list[Any] = [
        Deliver(stream, (batch(stream, 1, 3),)),
        Emit(Lost(stream, 3, 9, WHY)),
        Deliver(stream, (batch(stream, 9, 11),)),
    ]
    ends = (3, 9, 11)
    return [part for part, end in zip(parts, ends, strict=True) if inp.start < end]


EVERYTHING = [event_at(1), event_at(2), ("lost", range(3, 9)), event_at(9), event_at(10)]


@pytest.fixture
def losing(made: MadeProtocols) -> list[Any]:
    received: list[Any] = []
    have(made, MadeDelivery(make_reader=lambda: ScriptedReader(loses, received)))
    return received


async def with_events(client: Client) -> Any:
    """A stream that ends at 11, so that a named subscription can have a position in it."""
    stream = await client.stream("s", delivery="made")
    await stream.publish_many([b"x"] * 10)
    return stream


@pytest.mark.parametrize("voids", [False, True])
def test_lost_events_arrive_in_order_with_their_exact_range(losing: list[Any], voids: bool) -> None:
    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await with_events(client)
            sub = stream.subscribe(start=1, voids=voids)
            found = [await anext(sub) for _ in EVERYTHING]
            assert [(event.kind, event.range) for event in found] == EVERYTHING
            lost = found[2]
            assert (lost.stream, lost.seq, lost.count, lost.value, lost.key, lost.reason) == (
                "s", 8, 6, b"", None, WHY,
            )  # fmt: skip
            assert await take(client.subscribe("*", start=5), 3) == [
                ("lost", range(5, 9)), event_at(9), event_at(10),
            ]  # fmt: skip
            assert losing[0] == Follow(stream.stream_id, 1)

    play(scenario)


def test_a_loop_over_events_continues_after_lost_events(losing: list[Any]) -> None:
    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await with_events(client)
            for name in (None, "n"):
                found = []
                async for event in stream.subscribe(start=1, name=name):
                    found.append((event.kind, event.range))
                    if event.seq == 10:
                        break
                assert found == EVERYTHING

    play(scenario)


def test_a_stop_cuts_a_range_of_lost_events(losing: list[Any]) -> None:
    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await with_events(client)
            stops: list[tuple[Any, list[tuple[str, range]]]] = [
                (2, EVERYTHING[:1]),
                (5, [*EVERYTHING[:2], ("lost", range(3, 5))]),
                (9, EVERYTHING[:3]),
                (10, EVERYTHING[:4]),
                ("latest", EVERYTHING),
            ]
            for stop, expected in stops:
                for sub in (
                    stream.subscribe(start=1, stop=stop),
                    client.subscribe("*", start=1, stop=stop, voids=True),
                    stream.subscribe(start=1, stop=stop, name=f"n{stop}"),
                ):
                    assert [(e.kind, e.range) async for e in sub] == expected
            # The stop has cut the lost range; the next subscription gets the rest of it.
            assert await stored(client, "n5") == [("lost", range(5, 9))]

    play(scenario)


@pytest.mark.parametrize("voids", [False, True])
def test_reads_and_batches_with_a_stop_raise_for_lost_events(
    losing: list[Any], voids: bool
) -> None:
    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await with_events(client)
            with pytest.raises(EventsLost, match="'s' at positions 3 to 8") as hit:
                await stream.read(voids=voids)
            for part, expected in (
                ({"stop": hit.value.range.start}, [1, 2]),
                ({"start": hit.value.range.stop}, [9, 10]),
            ):
                table = await stream.read(**part, voids=voids)
                assert table.column("seq").to_pylist() == expected
            sub = stream.subscribe(start=1, stop=5, voids=voids)
            found: list[int] = []

            async def read_on() -> None:
                async for batch in sub.batches():
                    found.extend(batch.column("seq").to_pylist())

            with pytest.raises(EventsLost) as cut:
                await read_on()
            assert (found, cut.value.range) == ([1, 2], range(3, 5))
            assert [batch async for batch in sub.batches()] == []

    play(scenario)


def test_batches_raise_for_lost_events_and_can_be_continued(losing: list[Any]) -> None:
    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            sub = (await with_events(client)).subscribe(start=1)
            found: list[int] = []

            async def read_batches() -> None:
                async for table in sub.batches():
                    found.extend(table.column("seq").to_pylist())
                    if found[-1] == 10:
                        return

            with pytest.raises(EventsLost, match=f"'s' at positions 3 to 8 are lost: {WHY}") as hit:
                await read_batches()
            assert (hit.value.stream, hit.value.range, hit.value.why) == ("s", range(3, 9), WHY)
            assert found == [1, 2]
            await read_batches()
            assert found == [1, 2, 9, 10]

    play(scenario)


async def stored(client: Client, name: str) -> list[tuple[str, range]]:
    """What the next subscription with this name reads first."""
    async with client.subscribe("s", name=name, ack="manual") as sub:
        return await take(sub, 1)


def test_a_named_subscription_resumes_after_lost_events(losing: list[Any]) -> None:
    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await with_events(client)
            async with stream.subscribe(start=1, name="auto") as sub:
                assert await take(sub, 2) == EVERYTHING[:2]
            assert await stored(client, "auto") == [EVERYTHING[2]]
            async with stream.subscribe(name="auto") as sub:
                assert await take(sub, 1) == EVERYTHING[2:3]
            assert await stored(client, "auto") == [event_at(9)]

            async with stream.subscribe(start=1, name="manual", ack="manual") as sub:
                events = [await anext(sub) for _ in range(4)]
                await sub.ack(events[1])
            assert await stored(client, "manual") == [EVERYTHING[2]]
            async with stream.subscribe(name="manual", ack="manual") as sub:
                await sub.ack(await anext(sub))
            assert await stored(client, "manual") == [event_at(9)]

            sub = stream.subscribe(start=1, name="batches")
            with pytest.raises(EventsLost):
                async for _ in sub.batches():
                    pass
            await sub.close()  # it was notified of the lost range
            assert await stored(client, "batches") == [event_at(9)]
            with suppress(RuntimeError):
                async with stream.subscribe(name="batches") as sub:
                    assert (await anext(sub.batches())).column("seq").to_pylist() == [9, 10]
                    raise RuntimeError
            assert await stored(client, "batches") == [event_at(9)]

    play(scenario)


def test_lost_events_are_not_reported_again_after_a_pause(made: MadeProtocols) -> None:
    """After a second Follow the reader repeats the loss, which the user already knows."""
    received: list[Any] = []

    def script(inp: Follow) -> list[Any]:
        effects = loses(Follow(inp.stream, 1))
        later = Deliver(inp.stream, (batch(inp.stream, 11, 12),))
        return [*effects, later] if len(received) > 1 else effects

    have(made, MadeDelivery(make_reader=lambda: ScriptedReader(script, received)))

    async def scenario() -> None:
        async with (
            Served("made") as regions,
            regions.client("east", buffer_bytes_max=1) as client,
        ):
            stream = await with_events(client)
            sub = stream.subscribe(start=1)
            assert await take(sub, 6) == [*EVERYTHING, event_at(11)]
            assert Unfollow(stream.stream_id) in received
            assert Follow(stream.stream_id, 11) in received

    play(scenario)


# ---------------------------------------------------------------- no order


def test_without_order_events_are_passed_on_as_received(made: MadeProtocols) -> None:
    received: list[Any] = []

    def script(inp: Follow) -> list[Any]:
        stream = inp.stream
        return [
            Deliver(stream, (batch(stream, 7, 8), batch(stream, 2, 3))),
            Emit(Lost(stream, 0, 0, "a datagram")),
            Deliver(stream, (batch(stream, 2, 3),)),
        ]

    have(made, MadeDelivery(ordered=False, make_reader=lambda: ScriptedReader(script, received)))
    expected = [event_at(7), event_at(2), ("lost", range(0)), event_at(2)]

    async def scenario() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await client.stream("s", delivery="made")
            await stream.publish(
                b"x"
            )  # the stream has an end in the stream service, which is not used
            assert await take(stream.subscribe(), 4) == expected
            assert await take(stream.subscribe(start="earliest"), 4) == expected
            assert await take(client.subscribe("*"), 4) == expected
            assert [inp.start for inp in received if isinstance(inp, Follow)] == [0, 1, 0]
            with pytest.raises(EventsLost, match="events of 's' are lost: a datagram"):
                async for _ in stream.subscribe().batches():
                    pass
            for feature, options in (
                ("name=", {"name": "n"}),
                ("start= with a position", {"start": 3}),
                ("start= with a datetime", {"start": TIME}),
                ("stop=", {"stop": "latest"}),
            ):
                with pytest.raises(NotSupported, match=f"{feature} is not supported"):
                    stream.subscribe(**options)
                with pytest.raises(NotSupported, match=f"{feature} is not supported"):
                    await anext(client.subscribe("s", **options))

    play(scenario)


def test_without_order_reading_resumes_with_new_events_after_a_pause(made: MadeProtocols) -> None:
    received: list[Any] = []

    def script(inp: Follow) -> list[Any]:
        return [Deliver(inp.stream, (batch(inp.stream, 5, 6),))]

    have(made, MadeDelivery(ordered=False, make_reader=lambda: ScriptedReader(script, received)))

    async def scenario() -> None:
        async with (
            Served("made") as regions,
            regions.client("east", buffer_bytes_max=1) as client,
        ):
            stream = await client.stream("s", delivery="made")
            sub = stream.subscribe(start="earliest")
            assert await take(sub, 3) == [event_at(5), ("lost", range(0)), event_at(5)]
            await until(lambda: len(received) >= 3)
            sid = stream.stream_id
            assert received[:3] == [Follow(sid, 1), Unfollow(sid), Follow(sid, 0)]

    play(scenario)


# ---------------------------------------------------------------- without an event loop


def test_lost_events_with_the_sync_client(losing: list[Any]) -> None:
    def work(url: str) -> None:
        with surecast.sync.connect(url) as client:
            stream = client.stream("s", delivery="made", options={"rate": "5"})
            assert stream.delivery == "made"
            stream.publish_many([b"x"] * 10)
            found = []
            for event in stream.subscribe(start=1, name="n"):
                found.append((event.kind, event.range))
                if event.seq == 10:
                    break
            assert found == EVERYTHING
            sub = stream.subscribe(start=5)
            with pytest.raises(EventsLost) as hit:
                next(sub.batches())
            assert (hit.value.stream, hit.value.range) == ("s", range(5, 9))
            assert next(sub.batches()).column("seq").to_pylist() == [9, 10]
            with pytest.raises(NotSupported, match=r"'broadcast'.*'made'"):
                client.stream("s", delivery="pigeon")

    async def scenario() -> None:
        async with Served("made") as regions:
            await asyncio.to_thread(work, regions.url("east"))

    play(scenario)
