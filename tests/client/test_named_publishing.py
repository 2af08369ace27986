"""Named publishers over sockets: repeated batches are recognised and published once."""

import asyncio
import time
from random import Random
from typing import Any
from uuid import UUID

import pytest

from surecast.client.publisher_id import publisher_id
from surecast.client.stream import Stream
from surecast.columns.batch import Batch
from surecast.endpoint.error_messages import publish_error
from surecast.errors import PublishError, UsageError
from tests.client.stage import Regions, play, until
from tests.client.test_publish import read

NAME = bytes(8) + b"the-sink"


def batches(stream: Stream, count: int, rows: int = 3) -> list[Batch]:
    return [
        Batch.of(stream.stream_id, [b"%d" % (n * rows + i) for i in range(rows)])
        for n in range(count)
    ]


async def publish(stream: Stream, first: int, sent: list[Batch]) -> list[tuple[int, int]]:
    named = stream.named(NAME, first)
    futures = [await named.publish_batch(batch) for batch in sent]
    return [await future for future in futures]


def test_batches_published_by_an_earlier_client_are_not_published_again() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            async with regions.client("east") as client:
                stream = await client.stream("s")
                sent = batches(stream, 10)
                assert await publish(stream, 1, sent[:4]) == [(1, 4), (4, 7), (7, 10), (10, 13)]
            async with regions.client("east") as client:  # publishes everything again
                stream = await client.stream("s")
                places = await publish(stream, 1, sent)
                assert places == [(1 + 3 * n, 4 + 3 * n) for n in range(10)]
                assert await publish(stream, 31, batches(stream, 1)) == [(31, 34)]
                assert await stream.publish(b"not named") == 34
                values = [event.value for event in await read(stream, 34)]
                assert values[:30] == [b"%d" % n for n in range(30)]

    play(scenario)


def test_repeated_batches_too_old_for_the_heads_memory_get_no_positions() -> None:
    """A head remembers 128 batches of a publisher."""

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            sent = batches(stream, 300)
            places = await publish(stream, 1, sent)
            again = await publish(stream, 1, sent)
            assert again[:100] == [(0, 0)] * 100
            assert again[-100:] == places[-100:]
            assert await stream.publish(b"end") == 901

    play(scenario)


def test_repeated_events_too_old_for_the_heads_memory_get_position_0() -> None:
    """Also those that are not the first of their batch: `publish` returned the row of the batch."""

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")

            async def publish_threes() -> list[list[int]]:
                named = stream.named(NAME, 1)
                # The first of three is sent at once; the other two share a batch.
                return [
                    await asyncio.gather(*(named.publish(b"%d" % n) for _ in range(3)))
                    for n in range(150)
                ]

            places = await publish_threes()
            assert places == [[1 + 3 * n, 2 + 3 * n, 3 + 3 * n] for n in range(150)]
            again = await publish_threes()
            assert again[:50] == [[0, 0, 0]] * 50
            assert again[-50:] == places[-50:]
            assert await stream.publish(b"end") == 451

    play(scenario)


@pytest.mark.slow
def test_two_publishers_with_one_name_publish_everything_once() -> None:
    """A publisher that was believed dead and its successor, while servers of the region fail."""
    rng = Random(5)

    async def scenario() -> None:
        async with Regions(east=2) as regions:
            clients = [regions.client("east") for _ in range(2)]
            for client in clients:
                await client.open()
            streams = [await client.stream("s") for client in clients]
            sent = batches(streams[0], 400)

            acked = 0

            async def slowly(stream: Stream) -> None:
                nonlocal acked
                named = stream.named(NAME, 1)
                for batch in sent:
                    await (await named.publish_batch(batch))
                    acked += 1
                    if rng.random() < 0.1:
                        await asyncio.sleep(rng.random() * 0.02)

            work = [asyncio.create_task(slowly(stream)) for stream in streams]
            for _ in range(3):
                await until(lambda before=acked: acked > before + 50)  # type: ignore[misc]
                assert not any(task.done() for task in work), "publishing ended too early"
                victim = rng.choice(regions.names["east"])
                await regions.kill(victim)
                await asyncio.sleep(0.2)
                await regions.start(victim)
                await until(lambda: regions.head("east"))
            await asyncio.gather(*work)
            assert await streams[0].publish(b"end") == 1201
            values = [event.value for event in await read(streams[0], 1200)]
            assert values == [b"%d" % n for n in range(1200)]
            for client in clients:
                await client.close()

    play(scenario)


def test_repeats_through_a_region_that_does_not_own_the_stream() -> None:
    async def scenario() -> None:
        async with Regions({"": "east"}, east=1, west=1) as regions:
            async with regions.client("west") as client:
                stream = await client.stream("s")
                sent = batches(stream, 200)
                await publish(stream, 1, sent[:150])
            async with regions.client("west") as client:
                stream = await client.stream("s")
                places = await publish(stream, 1, sent)
                assert places[0] == (0, 0)
                assert places[-1] == (598, 601)
                assert await stream.publish(b"end") == 601

    play(scenario)


def test_a_named_publisher_refuses_batches_after_a_failure() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            sent = batches(stream, 5)
            await publish(stream, 1, sent[:2])
            named = stream.named(NAME, 4)
            other = Batch.of(stream.stream_id, [b"four", b"rows", b"here", b"!"])
            futures = [await named.publish_batch(batch) for batch in (other, *sent[2:])]
            await asyncio.wait(futures)
            assert all(isinstance(future.exception(), PublishError) for future in futures)
            assert "other events with these numbers" in str(futures[0].exception())
            with pytest.raises(PublishError):
                await named.publish_batch(sent[3])
            assert await publish(stream, 7, sent[2:]) == [(7, 10), (10, 13), (13, 16)]

    play(scenario)


def test_a_named_publisher_that_leaves_out_a_number_is_told_so() -> None:
    """It is refused like a publisher whose acknowledged events were lost."""
    problem = str(publish_error("s", "history-lost", named=True))
    assert "begin at 1 under a new name, and none may be left out" in problem
    assert "left out" not in str(publish_error("s", "history-lost"))


def test_numbering_restarts_only_when_all_earlier_batches_are_acknowledged() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            sent = batches(stream, 3)
            named = stream.named(NAME, 1)
            futures = [await named.publish_batch(batch) for batch in sent]
            with pytest.raises(UsageError, match=r"\d batches in 's' that are not acknowledged"):
                stream.named(NAME, 1)
            stream.named(bytes(8) + b"somebody", 1)
            await asyncio.wait(futures)
            assert await publish(stream, 1, sent) == [future.result() for future in futures]
            assert await stream.publish(b"the client still works") == 10

    play(scenario)


SOME = UUID("8d8f89c5-f4aa-4910-b76c-d994c04b5ab4")
NAMES: dict[str, str | bytes | UUID] = {
    "uuid": SOME,
    "its-text": str(SOME),
    "bytes": b"\xff" * 8 + b"any-name",
    "nil": UUID(int=0),  # in a batch, 16 zeros mean that it has no publisher
    "with-a-time": UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"),
    "zeros-first": NAME,
    "string": "invoices",
    "empty": "",
    "not-utf-8": "a name of more than sixteen bytes, ü \ud800",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_any_name_is_recognised_by_a_later_client(name: str | bytes | UUID) -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            for _ in range(2):
                async with regions.client("east") as client:
                    stream = await client.stream("s")
                    named = stream.named(name, 1)
                    futures = [await named.publish_batch(batch) for batch in batches(stream, 3)]
                    assert [await future for future in futures] == [(1, 4), (4, 7), (7, 10)]
            async with regions.client("east") as client:
                stream = await client.stream("s")
                assert await stream.named(bytes(8) + b"somebody", 1).publish(b"first") == 10

    play(scenario)


def test_names_are_mapped_to_distinct_constant_ids() -> None:
    assert publisher_id(NAME) == NAME  # already an id
    assert publisher_id("invoices").hex() == "00000000000000004d72710f9c871690"  # must never change
    assert publisher_id(SOME) == publisher_id(SOME.bytes)
    names = [*NAMES.values(), b"sixteen bytes, b", "sixteen bytes, b", *map(str, range(100_000))]
    ids = {publisher_id(name) for name in names}
    assert len(ids) == len(names)
    assert all(len(id_) == 16 and id_[:8] == bytes(8) != id_[8:] for id_ in ids)


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        (b"short", 1, "16 bytes, not 5 bytes"),
        (bytearray(16), 1, "16 bytes, not bytearray"),
        (None, 1, "16 bytes, not None"),
        (NAME, 0, "from 1 to"),
    ],
)
def test_invalid_names_and_numbers_are_refused(name: Any, number: int, message: str) -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            with pytest.raises(UsageError, match=message):
                stream.named(name, number)

    play(scenario)


def test_an_id_with_a_creation_time_is_used_unchanged() -> None:
    """Its first 8 bytes are a creation time, so that the owner may expire it."""
    identity = time.time_ns().to_bytes(8, "big") + b"one time"

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.published_as(identity, 1).publish(b"1")
            machine: Any = regions.nodes["east-1"].machine
            assert list(machine.layers["chain"].logs[stream.stream_id].dedup.publishers) == [
                identity
            ]
            for wrong in (bytes(16), b"short"):
                with pytest.raises(UsageError, match="16 bytes, not all zero"):
                    stream.published_as(wrong, 1)

    play(scenario)
