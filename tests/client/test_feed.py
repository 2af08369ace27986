"""A subscription's buffer by itself: what it takes, when it pauses, what it calls dealt with."""

import asyncio
from typing import Any

import pytest

from surecast.client.feed import Feed
from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.retention import KeepAll
from surecast.core.streams import StreamInfo
from surecast.endpoint.options import ClientOptions
from surecast.errors import Fenced
from tests.client.stage import play

SID, OTHER = b"s" * 16, b"t" * 16


class Reader:
    """Writes down what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def claim(self, stream: bytes, taker: Any) -> None: ...

    def follow(self, stream: bytes, delivery: str, start: int) -> None:
        assert delivery == "broadcast"
        self.asked.append(("follow", stream, start))

    def unfollow(self, stream: bytes, _delivery: str) -> None:
        self.asked.append(("unfollow", stream))

    def release(self, stream: bytes, _delivery: str) -> None:
        self.asked.append(("release", stream))


def feed(**options: Any) -> tuple[Feed, Reader]:
    made, reader = Feed(ClientOptions(**options), False, True, False), Reader()
    made.reader = reader  # type: ignore[assignment]
    return made, reader


def info(stream: bytes, name: str) -> StreamInfo:
    return StreamInfo(stream, name, "east", KeepAll())


def batch(lo: int, hi: int, stream: bytes = SID) -> Batch:
    return Batch.of(stream, [b"%d" % n for n in range(lo, hi)]).sequenced(lo, 1, 1)


async def values(made: Feed, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        assert await made.next_rows()
        found += [int(event.value) for event in made.rows]
    return found


def test_what_comes_again_or_too_early_is_not_taken_twice_or_out_of_turn() -> None:
    async def story() -> None:
        made, _ = feed()
        made.add(info(SID, "s"), 5)
        made.take_in(SID, (batch(100, 110),))  # of a follow that was replaced
        made.take_in(SID, (batch(1, 5),))
        made.take_in(SID, (batch(1, 8), batch(8, 10)))
        made.take_in(SID, (batch(5, 10), batch(9, 12)))
        made.take_in(SID, (batch(13, 15),))
        made.take_in(OTHER, (batch(1, 3, OTHER),))  # nobody asked for it
        made.take_in(SID, (batch(12, 16),))
        assert await values(made, 11) == list(range(5, 16))
        assert made.nbytes == 0

    play(story)


def test_it_pauses_when_full_and_resumes_from_what_is_missing_when_half_empty() -> None:
    async def story() -> None:
        size = batch(1, 11).nbytes
        made, reader = feed(buffer_bytes_max=4 * size)
        made.add(info(SID, "s"), 1)
        made.add(info(OTHER, "t"), 7)
        for lo in (1, 11, 21):
            made.take_in(SID, (batch(lo, lo + 10),))
        assert reader.asked == [("follow", SID, 1), ("follow", OTHER, 7)]
        made.take_in(OTHER, (batch(7, 17, OTHER),))
        made.take_in(SID, (batch(31, 41),))  # was on its way
        assert reader.asked[2:] == [("unfollow", SID), ("unfollow", OTHER)]
        made.add(info(b"n" * 16, "new"), 1)  # waits until there is room
        assert len(reader.asked) == 4
        await made.next_batch()
        await made.next_batch()
        assert len(reader.asked) == 4
        await made.next_batch()
        assert reader.asked[4:] == [
            ("follow", SID, 41),
            ("follow", OTHER, 17),
            ("follow", b"n" * 16, 1),
        ]

    play(story)


def test_all_before_the_event_in_hand_is_dealt_with() -> None:
    async def story() -> None:
        made, _ = feed()
        made.add(info(SID, "s"), 1)
        made.add(info(OTHER, "t"), 3)
        made.take_in(SID, (batch(1, 5), Batch.void(SID, 5, 9, COLLECTED)))
        made.take_in(OTHER, (batch(3, 4, OTHER),))
        assert made.positions() == {SID: 1, OTHER: 3}
        assert await made.next_rows()
        for event in made.rows:
            made.hand = event
            assert made.positions() == {SID: event.seq, OTHER: 3}
        assert await made.next_rows()
        assert made.positions() == {SID: 9, OTHER: 3}  # the void behind them, too
        made.hand = next(made.rows)
        assert made.positions() == {SID: 9, OTHER: 3}

    play(story)


def test_others_get_a_turn_however_much_there_is_to_read() -> None:
    async def story() -> None:
        made, _ = feed(turn_rows_max=100)
        made.add(info(SID, "s"), 1)
        for n in range(100):
            made.take_in(SID, (batch(1 + 10 * n, 11 + 10 * n),))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        while made.lines[SID].read < 991:
            await made.next_batch()
        assert 8 <= turns <= 12
        task.cancel()

    play(story)


def test_a_failure_comes_before_what_is_buffered() -> None:
    async def story() -> None:
        made, reader = feed()
        made.add(info(SID, "s"), 1)
        made.take_in(SID, (batch(1, 5),))
        assert await made.next_rows()
        loop = iter(made.rows)
        assert next(loop).seq == 1
        made.take_in(SID, (batch(5, 7),))
        made.fail(Fenced("somebody else reads on from here"))
        assert list(loop) == []  # a loop under way ends, too
        assert made.positions() == {SID: 1}  # and nothing counts that was not read
        for _ in range(2):
            with pytest.raises(Fenced):
                await made.next_rows()
        assert reader.asked[-1] == ("release", SID)
        made.take_in(SID, (batch(5, 9),))
        assert made.nbytes == 0
        with pytest.raises(Fenced):
            await made.ready()

    play(story)
