"""Numbers and values that cannot be sent: the call is refused and the client still works."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import surecast
from surecast import sync
from surecast.client.connection import Client
from surecast.client.events import Event
from surecast.client.stream import PUB_NO_MAX, Stream
from surecast.columns.batch import Batch
from surecast.columns.rules import BeforeSeq, BeforeTime, KeepFor, KeepLast
from surecast.core.wire import DEFAULT_LIMITS, SEQ_END_MAX
from surecast.errors import UsageError
from tests.client.stage import play

STARTS: dict[str, Any] = {
    "beyond 64 bits": 10**24,
    "beyond what can be printed": 10**5000,
    "beyond all positions": SEQ_END_MAX,
    "zero": 0,
    "negative": -1,
    "bool": True,
    "float": 1.0,
    "nan": float("nan"),
    "infinity": float("inf"),
    "nothing": None,
    "another word": "oldest",
    "text": "17",
    "list": [1],
    "no time zone": datetime(2026, 1, 1),
    "year 1": datetime(1, 1, 1, tzinfo=UTC),
    "year 1, before its first hour in UTC": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    "before 1970": datetime(1969, 12, 31, tzinfo=UTC),
    "year 9999": datetime(9999, 12, 31, tzinfo=UTC),
}


@contextmanager
def refused(what: str) -> Iterator[None]:
    try:
        yield
    except UsageError:
        return
    raise AssertionError(f"not refused: {what}")


async def works(client: Client, stream: Stream) -> None:
    """Check that the client still publishes, reads and gets answers."""
    seq = await stream.publish(b"still here")
    assert (await anext(stream.subscribe(start=seq))).value == b"still here"
    assert [info.name for info in await client.streams("s")] == ["s"]
    assert await client.locate(stream.stream_id, datetime(1970, 1, 1, tzinfo=UTC)) == 1


def test_invalid_starts_are_refused_by_the_call() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            for what, start in STARTS.items():
                for name in (None, "me"):
                    with refused(what):
                        stream.subscribe(start, name=name)
                    with refused(what):
                        client.subscribe("s", start=start, name=name)
                await works(client, stream)

    play(scenario)


def test_invalid_starts_are_refused_by_the_sync_client() -> None:
    with sync.local() as client:
        stream = client.stream("s")
        for what, start in STARTS.items():
            with refused(what):
                stream.subscribe(start)
            with refused(what):
                client.subscribe("*", start=start)
        assert stream.publish(b"still here") == 1
        assert next(iter(stream.subscribe(start=1))).value == b"still here"


def test_the_last_position_can_be_waited_for() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            await stream.subscribe(SEQ_END_MAX - 1).ready()
            await client.subscribe("s", start=SEQ_END_MAX - 1).ready()
            await works(client, stream)

    play(scenario)


YEAR_9999 = datetime(9999, 1, 1, tzinfo=UTC)
REFUSED: dict[str, Callable[[], object]] = {
    "keep_last": lambda: surecast.keep_last(10**24),
    "keep_last beyond what can be printed": lambda: surecast.keep_last(10**5000),
    "keep_last of a bool": lambda: surecast.keep_last(True),
    "keep_for": lambda: surecast.keep_for(timedelta.max),
    "before_seq": lambda: surecast.before_seq(10**24),
    "before_seq of a bool": lambda: surecast.before_seq(False),
    "before_seq below 0": lambda: surecast.before_seq(-1),
    "before_time": lambda: surecast.before_time(YEAR_9999),
}


@pytest.mark.parametrize("rule", REFUSED.values(), ids=REFUSED.keys())
def test_rules_with_numbers_out_of_range_are_refused(rule: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        rule()


def test_rules_with_the_largest_numbers_are_accepted() -> None:
    surecast.keep_last((1 << 62) - 1)
    surecast.keep_for(timedelta(days=53_000))
    surecast.before_seq(0)
    surecast.before_seq(SEQ_END_MAX - 1)
    surecast.before_time(datetime(2116, 1, 1, tzinfo=UTC))


def large_batch(stream: Stream) -> Batch:
    return Batch.of(stream.stream_id, [bytes(DEFAULT_LIMITS.batch_bytes_max)])


CALLS: dict[str, Callable[[Client, Stream], Any]] = {
    "retain, a number": lambda client, _: client.stream("t", retain=KeepLast(10**24)),
    "retain, a duration": lambda client, _: client.stream("t", retain=KeepFor(10**24)),
    "retain, no number": lambda client, _: client.stream("t", retain=KeepLast("7")),  # type: ignore[arg-type]
    "options that are no text": lambda client, _: client.stream(
        "t", delivery="broadcast", options={"rate": "\ud800"}
    ),
    "options that fill a message": lambda client, _: client.stream(
        "t", delivery="broadcast", options={"rate": "5" * DEFAULT_LIMITS.control_bytes_max}
    ),
    "collect, a number": lambda _, stream: stream.collect(BeforeSeq(10**24)),
    "collect, a time": lambda _, stream: stream.collect(BeforeTime(1 << 63)),
    "collect, a key too long": lambda _, stream: stream.collect(
        surecast.key_is(bytes(DEFAULT_LIMITS.batch_bytes_max))
    ),
    "a time": lambda client, stream: client.locate(stream.stream_id, YEAR_9999),
    "a stream's id of another type": lambda client, _: client.locate(
        "s",  # type: ignore[arg-type]
        datetime.now(UTC),
    ),
    "a batch too large": lambda _, stream: stream.publish_batch(large_batch(stream)),
}


def test_a_call_that_cannot_be_sent_fails_without_effect_on_others() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            reading = stream.subscribe(start=1)
            for seq, (what, call) in enumerate(CALLS.items(), 1):
                with refused(what):
                    await call(client, stream)
                await works(client, stream)
                assert (await anext(reading)).seq == seq

    play(scenario)


def test_invalid_numbers_of_a_named_publisher_are_refused() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            for pub_no in (10**24, 10**5000, PUB_NO_MAX + 1, 0, -1, True, 1.0):
                with pytest.raises(UsageError, match="numbers of a publisher"):
                    stream.named("invoices", pub_no)  # type: ignore[arg-type]
            await works(client, stream)

    play(scenario)


def test_an_event_that_was_not_read_cannot_be_acknowledged() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 3)
            sub = stream.subscribe(start=1, name="me", ack="manual")
            event = await anext(sub)
            strange: list[Any] = [10**24, 10**5000, 2, 1.5, True, None, "1", -3, float("nan")]
            for seq in strange:
                with pytest.raises(UsageError):
                    await sub.ack(Event("s", seq, None, b"", 0))
            await sub.ack(event)
            assert (await anext(sub)).seq == 2
            await works(client, stream)

    play(scenario)
