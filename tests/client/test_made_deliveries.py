"""Deliveries that a client knows from the registry alone: made by a test, over real sockets."""

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
    """Rows of the registry, one for each delivery."""

    def row_of(delivery: MadeDelivery) -> Callable[[], MadeDelivery]:
        return lambda: delivery

    for delivery in deliveries:
        made.write(f"protocol_of_{delivery.name}", delivery=row_of(delivery))


class Served(Regions):
    """One region whose servers treat streams of these deliveries as those of broadcast."""

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


def one(seq: int) -> tuple[str, range]:
    return "event", range(seq, seq + 1)


# ---------------------------------------------------------------- opening a stream


def test_a_stream_has_the_delivery_and_the_options_it_was_created_with(made: MadeProtocols) -> None:
    have(made, MadeDelivery())

    async def story() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            options = {"rate": "5", "name": "x"}
            stream = await client.stream("s", delivery="made", options=options)
            assert stream.delivery == "made"
            assert stream._info.options == (("name", "x"), ("rate", "5"))
            assert await stream.publish(b"one") == 1
            as_it_is = await client.stream("s")
            assert as_it_is.delivery == "made"
            assert (await client.stream("t")).delivery == "broadcast"
            with pytest.raises(StreamConfigMismatch, match=r"has delivery='made', but 'broadcast'"):
                await client.stream("s", delivery="broadcast")
            with pytest.raises(
                StreamConfigMismatch, match=r"has options=.*Open it without options="
            ):
                await client.stream("s", delivery="made", options={"rate": "6"})
            with pytest.raises(StreamConfigMismatch, match="keep-all, but keep-last:3"):
                await client.stream("s", retain=surecast.keep_last(3))

    play(story)


def test_what_a_delivery_refuses_is_not_asked_of_a_server(made: MadeProtocols) -> None:
    have(made, MadeDelivery(refuses="rate is a number"))

    async def story() -> None:
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
            with pytest.raises(UsageError, match="name of a delivery"):
                await client.stream("s", delivery=None)  # type: ignore[arg-type]
            assert await client.streams() == []

    play(story)


def test_a_server_without_the_delivery_does_not_create_the_stream(made: MadeProtocols) -> None:
    have(made, MadeDelivery())

    async def story() -> None:
        async with Served() as regions, regions.client("east") as client:
            with pytest.raises(NotSupported, match="upgrade them, then create the stream"):
                await client.stream("s", delivery="made")

    play(story)


# ---------------------------------------------------------------- verbs

TIME = datetime(2026, 1, 1, tzinfo=UTC)

CALLS: dict[str, tuple[str, Callable[[Client, Any], Any]]] = {
    "retain": ("retain=", lambda client, _: client.stream("u", delivery="made", retain=LAST)),
    "collect": (r"collect\(\)", lambda _, stream: stream.collect(surecast.before_seq(2))),
    "delete": (r"delete\(\)", lambda _, stream: stream.delete()),
    "publisher": ("a named publisher", lambda _, stream: stream.named("me", 1)),
    "name": ("name=", lambda _, stream: stream.subscribe(name="n")),
    "time": ("start= with a datetime", lambda _, stream: stream.subscribe(start=TIME)),
}
LAST = surecast.keep_last(3)


@pytest.mark.parametrize("verb", sorted(VERBS - {"pattern"}))
def test_what_a_delivery_does_not_list_is_not_supported_by_name(
    made: MadeProtocols, verb: str
) -> None:
    delivery = MadeDelivery(verbs=VERBS - {verb})
    have(made, delivery)
    said, call = CALLS[verb]

    async def story() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await client.stream("s", delivery="made", retain=surecast.keep_all())

            async def called() -> None:
                result = call(client, stream)
                if hasattr(result, "__await__"):
                    await result

            with pytest.raises(NotSupported, match=f"^{said} is not supported by delivery='made'$"):
                await called()
            delivery.verbs = VERBS
            await called()

    play(story)


@pytest.mark.parametrize(
    ("verb", "asked", "said"),
    [
        ("name", {"name": "n"}, "name="),
        ("time", {"start": TIME}, "start= with a datetime"),
        ("time", {"stop": datetime(2100, 1, 1, tzinfo=UTC)}, "stop= with a datetime"),
        ("pattern", {}, r"a pattern such as 'a\.>'"),
    ],
)
def test_a_pattern_leaves_out_streams_that_cannot_be_read_like_that(
    made: MadeProtocols,
    caplog: pytest.LogCaptureFixture,
    verb: str,
    asked: dict[str, Any],
    said: str,
) -> None:
    have(made, MadeDelivery(verbs=VERBS - {verb}))

    async def story() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            left_out = await client.stream("a.made", delivery="made")
            other = await client.stream("a.other")
            for stream in (left_out, other):
                await stream.publish(b"one")
            with caplog.at_level(logging.WARNING):
                sub = client.subscribe("a.>", **{"start": "earliest", **asked})
                assert (await anext(sub)).stream == "a.other"
                await sub.ready()
            assert "'a.made' is left out of 'a.>'" in caplog.text
            assert list(sub._buffer.by_name) == ["a.other"]
            by_name = client.subscribe("a.made", **{"start": "earliest", **asked})
            if verb == "pattern":
                assert (await anext(by_name)).stream == "a.made"
            else:
                with pytest.raises(NotSupported, match=f"{said} is not supported"):
                    await anext(by_name)

    play(story)


# ---------------------------------------------------------------- readers


def test_a_pattern_has_one_reader_for_each_delivery_that_it_meets(made: MadeProtocols) -> None:
    # To listen takes time, in which further streams are met.
    needs = frozenset({"region", "listen"})
    have(made, MadeDelivery("made", needs=needs), MadeDelivery("unmet"))

    async def story() -> None:
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

    play(story)


def test_nothing_is_opened_for_a_pattern_that_matches_nothing() -> None:
    async def story() -> None:
        async with Served() as regions, regions.client("east") as client:
            await client.subscribe("a.>").ready()
            assert client._readers.all == []

    play(story)


def test_subscriptions_share_readers_of_their_delivery(made: MadeProtocols) -> None:
    have(made, MadeDelivery())

    async def story() -> None:
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

    play(story)


def test_a_reader_that_must_be_reached_listens_and_others_do_not(
    made: MadeProtocols, caplog: pytest.LogCaptureFixture
) -> None:
    have(made, MadeDelivery(needs=frozenset({"region", "listen"})))

    async def story() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            reached = await client.stream("a.made", delivery="made")
            plain = await client.stream("a.plain")
            subs = [await stream.subscribe().ready() for stream in (reached, plain)]
            node, other = (reader.node for reader in client._readers.all)
            assert node.address is not None
            assert own_address(node.name) == node.address  # so that servers find it
            assert (other.address, own_address(other.name)) == (None, None)
            for sub in subs:
                await sub.close()

            client._readers._own_host = "10.1.2.3"  # as if the servers were on another machine
            with pytest.raises(NotSupported, match=r"delivery='made' beyond one machine.*insecure"):
                reached.subscribe()
            with caplog.at_level(logging.WARNING):
                sub = await client.subscribe("a.>").ready()
            assert list(sub._buffer.by_name) == ["a.plain"]
            assert "'a.made' is left out" in caplog.text

    play(story)


SAID = """
from surecast.core.types import Message, tagged


class Base(Message, tag=tagged("protocol_of_made")):
    pass


class Said(Base):
    stream: bytes
"""


def test_datagrams_of_a_server_reach_a_reader_that_listens(made: MadeProtocols) -> None:
    delivery = MadeDelivery(needs=frozenset({"region", "listen"}))
    messages = made.write("protocol_of_made", delivery=lambda: delivery, messages=SAID)

    class Listens(ScriptedReader):
        handlers: ClassVar[dict[type, str]] = {messages.Said: "_on_said"}

        def _on_said(self, _peer: str, message: Any) -> None:
            self.out.append(Deliver(message.stream, (batch(message.stream, 1, 2),)))

    delivery.make_reader = lambda: Listens(lambda _: [], [])

    async def story() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await client.stream("s", delivery="made")
            sub = await stream.subscribe(start=1).ready()
            server, reader = regions.nodes["east-1"], client._readers.all[0].node
            buffers = server.codec.encode(messages.Said(stream.stream_id))
            server.datagrams.send(reader.name, buffers, sum(map(len, buffers)))
            server.datagrams.flush()  # nobody has spoken with that server before
            assert await take(sub, 1) == [one(1)]

    play(story)


# ---------------------------------------------------------------- publishers


class OwnPublisher(HandlerMachine):
    """Opens and publishes by itself: every batch has the position 1,000."""

    inputs: ClassVar[dict[type, str]] = {Open: "_on_open", OfferBatch: "_on_offer"}

    def __init__(self, heard: list[Any]) -> None:
        super().__init__()
        self.heard = heard

    def _on_open(self, inp: Open) -> None:
        self.heard.append(("open", inp.name, inp.spec.delivery))
        info = StreamInfo(inp.name.encode() * 16, inp.name, "east", KeepAll(), delivery="made")
        self.out.append(Emit(Opened(inp.name, info)))

    def _on_offer(self, inp: OfferBatch) -> None:
        self.heard.append(("offer", inp.stream, inp.batch.rows))
        self.out.append(Emit(Acked(inp.stream, 1, inp.batch.rows, 1000, inp.token)))


def test_a_delivery_with_a_publisher_of_its_own_opens_and_publishes_its_streams(
    made: MadeProtocols,
) -> None:
    heard: list[Any] = []
    have(made, MadeDelivery(make_publisher=lambda: OwnPublisher(heard)))

    async def story() -> None:
        async with Served() as regions, regions.client("east") as client:
            own = await client.stream("o", delivery="made")
            other = await client.stream("x")
            assert [await own.publish(b"a"), await other.publish(b"b")] == [1000, 1]
            assert (await own.publish_many([b"c", b"d"])).runs == ((1000, 1002),)
            assert heard == [
                ("open", "o", "made"),
                ("offer", b"o" * 16, 1),
                ("offer", b"o" * 16, 2),
            ]

    play(story)


def test_a_stream_taken_as_it_is_is_opened_by_its_delivery_too(made: MadeProtocols) -> None:
    heard: list[Any] = []
    delivery = MadeDelivery()
    have(made, delivery)

    async def story() -> None:
        async with Served("made") as regions:
            async with regions.client("east") as client:
                await client.stream("o", delivery="made")  # the stream service has it now
            delivery.make_publisher = lambda: OwnPublisher(heard)
            async with regions.client("east") as client:
                own = await client.stream("o")
                assert await own.publish(b"a") == 1000
                assert heard == [("open", "o", "made"), ("offer", b"o" * 16, 1)]

    play(story)


# ---------------------------------------------------------------- lost events

WHY = "too far behind"


def loses(inp: Follow) -> list[Any]:
    """Positions 1 and 2, then 3 to 8 are lost, then 9 and 10; from wherever one begins."""
    stream = inp.stream
    parts: list[Any] = [
        Deliver(stream, (batch(stream, 1, 3),)),
        Emit(Lost(stream, 3, 9, WHY)),
        Deliver(stream, (batch(stream, 9, 11),)),
    ]
    ends = (3, 9, 11)
    return [part for part, end in zip(parts, ends, strict=True) if inp.start < end]


EVERYTHING = [one(1), one(2), ("lost", range(3, 9)), one(9), one(10)]


@pytest.fixture
def losing(made: MadeProtocols) -> list[Any]:
    heard: list[Any] = []
    have(made, MadeDelivery(make_reader=lambda: ScriptedReader(loses, heard)))
    return heard


async def with_events(client: Client) -> Any:
    """A stream that ends at 11, so that a named subscription can have a place in it."""
    stream = await client.stream("s", delivery="made")
    await stream.publish_many([b"x"] * 10)
    return stream


@pytest.mark.parametrize("voids", [False, True])
def test_lost_events_come_in_their_turn_with_their_exact_range(
    losing: list[Any], voids: bool
) -> None:
    async def story() -> None:
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
                ("lost", range(5, 9)), one(9), one(10),
            ]  # fmt: skip
            assert losing[0] == Follow(stream.stream_id, 1)

    play(story)


def test_a_loop_over_events_goes_on_behind_lost_ones(losing: list[Any]) -> None:
    async def story() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await with_events(client)
            for name in (None, "n"):
                found = []
                async for event in stream.subscribe(start=1, name=name):
                    found.append((event.kind, event.range))
                    if event.seq == 10:
                        break
                assert found == EVERYTHING

    play(story)


def test_a_stop_cuts_lost_events_and_ends_behind_them(losing: list[Any]) -> None:
    async def story() -> None:
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
            # As many positions are lost as its stop leaves of them.
            assert await stored(client, "n5") == [("lost", range(5, 9))]

    play(story)


@pytest.mark.parametrize("voids", [False, True])
def test_reads_and_batches_with_a_stop_raise_for_lost_events(
    losing: list[Any], voids: bool
) -> None:
    async def story() -> None:
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

    play(story)


def test_batches_raise_for_lost_events_and_can_be_continued(losing: list[Any]) -> None:
    async def story() -> None:
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

    play(story)


async def stored(client: Client, name: str) -> list[tuple[str, range]]:
    """What the successor of a named subscription reads first."""
    async with client.subscribe("s", name=name, ack="manual") as sub:
        return await take(sub, 1)


def test_a_named_subscription_resumes_behind_lost_events(losing: list[Any]) -> None:
    async def story() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await with_events(client)
            async with stream.subscribe(start=1, name="auto") as sub:
                assert await take(sub, 2) == EVERYTHING[:2]
            assert await stored(client, "auto") == [EVERYTHING[2]]
            async with stream.subscribe(name="auto") as sub:
                assert await take(sub, 1) == EVERYTHING[2:3]
            assert await stored(client, "auto") == [one(9)]

            async with stream.subscribe(start=1, name="manual", ack="manual") as sub:
                events = [await anext(sub) for _ in range(4)]
                await sub.ack(events[1])
            assert await stored(client, "manual") == [EVERYTHING[2]]
            async with stream.subscribe(name="manual", ack="manual") as sub:
                await sub.ack(await anext(sub))
            assert await stored(client, "manual") == [one(9)]

            sub = stream.subscribe(start=1, name="batches")
            with pytest.raises(EventsLost):
                async for _ in sub.batches():
                    pass
            await sub.close()  # it was told what is lost
            assert await stored(client, "batches") == [one(9)]
            with suppress(RuntimeError):
                async with stream.subscribe(name="batches") as sub:
                    assert (await anext(sub.batches())).column("seq").to_pylist() == [9, 10]
                    raise RuntimeError
            assert await stored(client, "batches") == [one(9)]

    play(story)


def test_what_follows_a_pause_is_not_lost_twice(made: MadeProtocols) -> None:
    """The reader says once more, after it was told to follow again, what the user was told."""
    heard: list[Any] = []

    def script(inp: Follow) -> list[Any]:
        effects = loses(Follow(inp.stream, 1))
        later = Deliver(inp.stream, (batch(inp.stream, 11, 12),))
        return [*effects, later] if len(heard) > 1 else effects

    have(made, MadeDelivery(make_reader=lambda: ScriptedReader(script, heard)))

    async def story() -> None:
        async with (
            Served("made") as regions,
            regions.client("east", buffer_bytes_max=1) as client,
        ):
            stream = await with_events(client)
            sub = stream.subscribe(start=1)
            assert await take(sub, 6) == [*EVERYTHING, one(11)]
            assert Unfollow(stream.stream_id) in heard
            assert Follow(stream.stream_id, 11) in heard

    play(story)


# ---------------------------------------------------------------- no order


def test_without_order_events_come_as_they_come(made: MadeProtocols) -> None:
    heard: list[Any] = []

    def script(inp: Follow) -> list[Any]:
        stream = inp.stream
        return [
            Deliver(stream, (batch(stream, 7, 8), batch(stream, 2, 3))),
            Emit(Lost(stream, 0, 0, "a datagram")),
            Deliver(stream, (batch(stream, 2, 3),)),
        ]

    have(made, MadeDelivery(ordered=False, make_reader=lambda: ScriptedReader(script, heard)))
    expected = [one(7), one(2), ("lost", range(0)), one(2)]

    async def story() -> None:
        async with Served("made") as regions, regions.client("east") as client:
            stream = await client.stream("s", delivery="made")
            await stream.publish(b"x")  # the stream service has an end; it does not count
            assert await take(stream.subscribe(), 4) == expected
            assert await take(stream.subscribe(start="earliest"), 4) == expected
            assert await take(client.subscribe("*"), 4) == expected
            assert [inp.start for inp in heard if isinstance(inp, Follow)] == [0, 1, 0]
            with pytest.raises(EventsLost, match="events of 's' are lost: a datagram"):
                async for _ in stream.subscribe().batches():
                    pass
            for said, asked in (
                ("name=", {"name": "n"}),
                ("start= with a position", {"start": 3}),
                ("start= with a datetime", {"start": TIME}),
                ("stop=", {"stop": "latest"}),
            ):
                with pytest.raises(NotSupported, match=f"{said} is not supported"):
                    stream.subscribe(**asked)
                with pytest.raises(NotSupported, match=f"{said} is not supported"):
                    await anext(client.subscribe("s", **asked))

    play(story)


def test_without_order_a_pause_is_followed_from_then_on(made: MadeProtocols) -> None:
    heard: list[Any] = []

    def script(inp: Follow) -> list[Any]:
        return [Deliver(inp.stream, (batch(inp.stream, 5, 6),))]

    have(made, MadeDelivery(ordered=False, make_reader=lambda: ScriptedReader(script, heard)))

    async def story() -> None:
        async with (
            Served("made") as regions,
            regions.client("east", buffer_bytes_max=1) as client,
        ):
            stream = await client.stream("s", delivery="made")
            sub = stream.subscribe(start="earliest")
            assert await take(sub, 3) == [one(5), ("lost", range(0)), one(5)]
            await until(lambda: len(heard) >= 3)
            sid = stream.stream_id
            assert heard[:3] == [Follow(sid, 1), Unfollow(sid), Follow(sid, 0)]

    play(story)


# ---------------------------------------------------------------- without an event loop


def test_the_same_without_await(losing: list[Any]) -> None:
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

    async def story() -> None:
        async with Served("made") as regions:
            await asyncio.to_thread(work, regions.url("east"))

    play(story)
