"""A subscription's buffer by itself: what it takes, when it pauses, what it calls dealt with."""

import asyncio
from typing import Any

import pytest

from surecast.client.events import Event
from surecast.client.subscription_buffer import LOST_BYTES, SubscriptionBuffer
from surecast.columns.batch import COLLECTED, Batch, coalesce
from surecast.columns.retention import KeepAll
from surecast.core.endpoint import Lost
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

    def follow(self, stream: bytes, start: int) -> None:
        self.asked.append(("follow", stream, start))

    def unfollow(self, stream: bytes) -> None:
        self.asked.append(("unfollow", stream))

    def release(self, stream: bytes) -> None:
        self.asked.append(("release", stream))


class Bench:
    """A buffer with a reader that is made of nothing."""

    def __init__(self, voids: bool = False, manual: bool = False, **options: Any) -> None:
        self.buffer = SubscriptionBuffer(ClientOptions(**options), voids, True, manual)
        self.reader = Reader()

    def add(self, stream: bytes, name: str, start: int, **more: Any) -> None:
        reader: Any = self.reader
        self.buffer.add(info(stream, name), reader, start, **more)


def info(stream: bytes, name: str) -> StreamInfo:
    return StreamInfo(stream, name, "east", KeepAll())


def batch(lo: int, hi: int, stream: bytes = SID) -> Batch:
    return Batch.of(stream, [b"%d" % n for n in range(lo, hi)]).sequenced(lo, 1, 1)


async def values(made: SubscriptionBuffer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        assert await made.next_rows()
        found += [int(event.value) for event in made.rows]
    return found


def test_what_comes_again_or_too_early_is_not_taken_twice_or_out_of_turn() -> None:
    async def story() -> None:
        bench = Bench()
        made = bench.buffer
        bench.add(SID, "s", 5)
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
        bench = Bench(buffer_bytes_max=4 * size)
        made = bench.buffer
        bench.add(SID, "s", 1)
        bench.add(OTHER, "t", 7)
        for lo in (1, 11, 21):
            made.take_in(SID, (batch(lo, lo + 10),))
        assert bench.reader.asked == [("follow", SID, 1), ("follow", OTHER, 7)]
        made.take_in(OTHER, (batch(7, 17, OTHER),))
        made.take_in(SID, (batch(31, 41),))  # was on its way
        assert bench.reader.asked[2:] == [("unfollow", SID), ("unfollow", OTHER)]
        bench.add(b"n" * 16, "new", 1)  # waits until there is room
        assert len(bench.reader.asked) == 4
        await made.next_item()
        await made.next_item()
        assert len(bench.reader.asked) == 4
        await made.next_item()
        assert bench.reader.asked[4:] == [
            ("follow", SID, 41),
            ("follow", OTHER, 17),
            ("follow", b"n" * 16, 1),
        ]

    play(story)


def test_all_before_the_event_in_hand_is_dealt_with() -> None:
    async def story() -> None:
        bench = Bench()
        made = bench.buffer
        bench.add(SID, "s", 1)
        bench.add(OTHER, "t", 3)
        made.take_in(SID, (batch(1, 5), Batch.void(SID, 5, 9, COLLECTED)))
        made.take_in(OTHER, (batch(3, 4, OTHER),))
        assert made.positions() == {SID: 1, OTHER: 3}
        assert await made.next_rows()
        for event in made.rows:
            made.current_event = event
            assert made.positions() == {SID: event.seq, OTHER: 3}
        assert await made.next_rows()
        assert made.positions() == {SID: 9, OTHER: 3}  # the void behind them, too
        made.current_event = next(made.rows)
        assert made.positions() == {SID: 9, OTHER: 3}

    play(story)


def test_others_get_a_turn_however_much_there_is_to_read() -> None:
    async def story() -> None:
        bench = Bench(turn_rows_max=100)
        made = bench.buffer
        bench.add(SID, "s", 1)
        for n in range(100):
            made.take_in(SID, (batch(1 + 10 * n, 11 + 10 * n),))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        while made.streams[SID].read < 991:
            await made.next_item()
        assert 8 <= turns <= 12
        task.cancel()

    play(story)


def test_a_failure_comes_before_what_is_buffered() -> None:
    async def story() -> None:
        bench = Bench()
        made = bench.buffer
        bench.add(SID, "s", 1)
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
        assert bench.reader.asked[-1] == ("release", SID)
        made.take_in(SID, (batch(5, 9),))
        assert made.nbytes == 0
        with pytest.raises(Fenced):
            await made.ready()

    play(story)


# ---------------------------------------------------------------- lost events


async def events(made: SubscriptionBuffer, count: int) -> list[Event]:
    found: list[Event] = []
    while len(found) < count:
        assert await made.next_rows()
        found += made.rows
    return found


def shown(found: list[Event]) -> list[tuple[str, range]]:
    return [(event.kind, event.range) for event in found]


def test_a_lost_range_has_its_turn_and_its_exact_positions() -> None:
    async def story() -> None:
        bench = Bench()
        bench.add(SID, "s", 5)
        bench.buffer.take_in(SID, (batch(5, 7),))
        bench.buffer.take_lost(Lost(SID, 7, 20, "too slow"))
        bench.buffer.take_in(SID, (batch(20, 21),))
        found = await events(bench.buffer, 4)
        assert found[2] == Event("s", 19, None, b"", 0, None, "lost", 13, "too slow")
        assert shown(found)[1:] == [
            ("event", range(6, 7)), ("lost", range(7, 20)), ("event", range(20, 21)),
        ]  # fmt: skip
        assert bench.buffer.nbytes == 0

    play(story)


@pytest.mark.parametrize(
    ("lost", "is_left"),
    [
        ((1, 5), None),  # before the start
        ((1, 11), None),  # all of it has come
        ((5, 14), (11, 14)),
        ((11, 14), (11, 14)),
        ((12, 14), None),  # of a follow that was replaced
        ((11, 11), None),
    ],
)
def test_only_what_is_not_here_is_lost(
    lost: tuple[int, int], is_left: tuple[int, int] | None
) -> None:
    async def story() -> None:
        bench = Bench()
        bench.add(SID, "s", 5)
        bench.buffer.take_in(SID, (batch(5, 11),))
        bench.buffer.take_lost(Lost(SID, *lost, "why"))
        bench.buffer.take_lost(Lost(OTHER, 1, 50, "nobody asked for it"))
        end = is_left[1] if is_left else 11
        bench.buffer.take_in(SID, (batch(end, end + 1),))
        expected = [("event", range(n, n + 1)) for n in range(5, 11)]
        expected += [("lost", range(*is_left))] if is_left else []
        expected.append(("event", range(end, end + 1)))
        assert shown(await events(bench.buffer, len(expected))) == expected

    play(story)


def test_a_lost_range_is_given_before_the_time_asked_for_is_reached() -> None:
    """Nobody knows how old lost events were: they are not proven to be too old."""

    async def story() -> None:
        bench = Bench()
        bench.add(SID, "s", 5, not_before_ns=3)
        bench.buffer.take_in(SID, (batch(5, 7),))  # of time 1
        bench.buffer.take_lost(Lost(SID, 7, 9, "why"))
        bench.buffer.take_in(SID, (batch(9, 10),))  # still too old
        bench.buffer.take_in(SID, (Batch.of(SID, [b"x"]).sequenced(10, 4, 1),))
        assert shown(await events(bench.buffer, 2)) == [
            ("lost", range(7, 9)), ("event", range(10, 11)),
        ]  # fmt: skip

    play(story)


def test_lost_ranges_count_in_the_buffer_and_are_followed_behind() -> None:
    async def story() -> None:
        bench = Bench(buffer_bytes_max=2 * LOST_BYTES)
        bench.add(SID, "s", 1)
        bench.add(OTHER, "t", 1)
        bench.buffer.take_lost(Lost(SID, 1, 5, "why"))
        assert not bench.buffer.paused
        bench.buffer.take_lost(Lost(OTHER, 1, 9, "why"))
        assert bench.buffer.paused
        assert len(await events(bench.buffer, 1)) == 1
        assert not bench.buffer.paused
        assert bench.reader.asked[-2:] == [("follow", SID, 5), ("follow", OTHER, 9)]

    play(story)


@pytest.mark.parametrize("manual", [False, True])
def test_a_lost_range_is_dealt_with_like_an_event(manual: bool) -> None:
    async def story() -> None:
        bench = Bench(manual=manual)
        made = bench.buffer
        bench.add(SID, "s", 1)
        made.take_in(SID, (batch(1, 3),))
        made.take_lost(Lost(SID, 3, 9, "why"))
        made.take_in(SID, (batch(9, 10),))
        assert await made.next_rows()
        expected = [1, 2, 3, 9]  # all below the event that the user has
        for event in made.rows:
            made.current_event = event
            assert made.positions() == {SID: 1 if manual else expected.pop(0)}
            assert made.handed(made.streams[SID]) == event.seq + 1
            if manual and event.kind == "lost":
                break
        if manual:
            made.acknowledge(made.streams[SID], 9)
            assert made.positions() == {SID: 9}
        else:
            assert not expected

    play(story)


# ---------------------------------------------------------------- a stop


async def rest(made: SubscriptionBuffer) -> list[tuple[str, range]]:
    """Everything that is left, until it ends."""
    found: list[Event] = []
    while await made.next_rows():
        found += made.rows
    return shown(found)


def singles(lo: int, hi: int) -> list[tuple[str, range]]:
    return [("event", range(n, n + 1)) for n in range(lo, hi)]


def test_what_reaches_beyond_the_stop_is_cut() -> None:
    async def story() -> None:
        bench = Bench(voids=True)
        made = bench.buffer
        bench.add(SID, "s", 1, stop=8)
        bench.add(OTHER, "t", 4, stop=4)
        made.take_in(SID, (batch(1, 5), batch(5, 10), batch(10, 11)))
        made.take_in(SID, (batch(8, 12),))
        made.set_complete()
        assert await rest(made) == singles(1, 8)
        assert bench.reader.asked == [("follow", SID, 1), ("release", OTHER), ("release", SID)]
        made.close()
        assert len(bench.reader.asked) == 3  # others may have its place by now

        bench = Bench(voids=True)
        bench.add(SID, "s", 1, stop=3)
        bench.add(OTHER, "t", 1, stop=6)
        bench.buffer.take_in(SID, (Batch.void(SID, 1, 9, COLLECTED),))
        bench.buffer.take_lost(Lost(OTHER, 1, 9, "why"))
        bench.buffer.set_complete()
        assert await rest(bench.buffer) == [("void", range(1, 3)), ("lost", range(1, 6))]

    play(story)


def test_events_from_a_time_on_are_cut_and_end_it() -> None:
    def at(lo: int, hi: int, time_ns: int) -> Batch:
        return Batch.of(SID, [b"x"] * (hi - lo)).sequenced(lo, time_ns, 1)

    async def story() -> None:
        bench = Bench(voids=True)
        bench.add(SID, "s", 1, before_ns=50)
        made = bench.buffer
        made.set_complete()
        made.take_in(SID, (at(1, 4, 10), Batch.void(SID, 4, 6, COLLECTED, time_ns=49)))
        joined = coalesce([at(6, 8, 49), at(8, 9, 50), at(9, 10, 51)], 100)
        assert len(joined) == 1  # rows of several times
        made.take_in(SID, tuple(joined))
        assert await rest(made) == [*singles(1, 4), ("void", range(4, 6)), *singles(6, 8)]
        assert bench.reader.asked[-1] == ("release", SID)

    play(story)


def test_a_stop_that_is_found_later_ends_a_wait() -> None:
    async def story() -> None:
        bench = Bench()
        made = bench.buffer
        bench.add(SID, "s", 1)
        made.set_complete()
        made.take_in(SID, (batch(1, 5),))
        reading = asyncio.ensure_future(rest(made))
        await asyncio.sleep(0)
        made.set_stop(SID, 6)
        await asyncio.sleep(0)
        assert not reading.done()
        made.take_in(SID, (batch(5, 9),))
        assert await reading == singles(1, 6)

        bench = Bench()
        bench.add(SID, "s", 1)
        bench.buffer.set_complete()
        bench.buffer.take_in(SID, (batch(1, 5),))
        reading = asyncio.ensure_future(rest(bench.buffer))
        await asyncio.sleep(0)
        bench.buffer.set_stop(SID, 3)  # what was given is given
        assert await reading == singles(1, 5)

    play(story)


def test_a_stream_that_is_whole_is_not_followed_after_a_pause() -> None:
    async def story() -> None:
        bench = Bench(buffer_bytes_max=batch(1, 11).nbytes + batch(11, 21).nbytes)
        made = bench.buffer
        bench.add(SID, "s", 1, stop=31)
        bench.add(OTHER, "t", 1, stop=41)
        made.set_complete()
        made.take_in(SID, (batch(1, 11), batch(11, 21)))
        assert made.paused
        made.take_in(SID, (batch(21, 41),))  # was on its way
        for _ in range(3):
            await made.next_item()
        assert not made.paused
        assert bench.reader.asked[-1] == ("follow", OTHER, 1)
        assert ("follow", SID, 31) not in bench.reader.asked

        bench = Bench(buffer_bytes_max=batch(1, 11).nbytes + batch(11, 21).nbytes)
        bench.add(SID, "s", 1, stop=11)
        bench.add(OTHER, "t", 1, stop=41)
        bench.buffer.take_in(SID, (batch(1, 11),))
        bench.buffer.take_in(OTHER, (batch(1, 31, OTHER),))
        assert bench.buffer.paused
        assert ("unfollow", OTHER) in bench.reader.asked
        assert ("unfollow", SID) not in bench.reader.asked  # others may read it there now

    play(story)


def test_it_does_not_end_before_all_streams_are_known() -> None:
    async def story() -> None:
        bench = Bench()
        reading = asyncio.ensure_future(rest(bench.buffer))
        bench.add(SID, "s", 1, stop=1)
        await asyncio.sleep(0.01)
        assert not reading.done()
        bench.add(OTHER, "t", 1, stop=3)
        bench.buffer.set_complete()
        bench.buffer.take_in(OTHER, (batch(1, 3, OTHER),))
        assert await reading == singles(1, 3)

    play(story)


# ---------------------------------------------------------------- no positions


def test_without_order_everything_is_passed_on_as_it_comes() -> None:
    async def story() -> None:
        bench = Bench()
        bench.add(SID, "s", 0, ordered=False)
        bench.buffer.take_in(SID, (batch(7, 9), batch(7, 9), batch(100, 101)))
        bench.buffer.take_lost(Lost(SID, 0, 0, "a datagram"))
        bench.buffer.take_in(SID, (batch(3, 4),))
        found = await events(bench.buffer, 7)
        assert [event.seq for event in found if event.kind == "event"] == [7, 8, 7, 8, 100, 3]
        assert (found[5].kind, found[5].range, found[5].reason) == ("lost", range(0), "a datagram")

    play(story)


def test_without_order_a_pause_costs_what_is_published_meanwhile_and_says_so() -> None:
    async def story() -> None:
        bench = Bench(buffer_bytes_max=2 * batch(11, 21).nbytes)
        bench.add(SID, "s", 1, ordered=False)
        bench.buffer.take_in(SID, (batch(11, 21), batch(31, 41)))
        assert bench.buffer.paused
        bench.add(OTHER, "t", 1, ordered=False)  # waits, and has missed nothing
        await bench.buffer.next_item()
        assert bench.reader.asked[-2:] == [("follow", SID, 0), ("follow", OTHER, 1)]
        found = await events(bench.buffer, 11)
        assert [event.kind for event in found] == ["event"] * 10 + ["lost"]
        assert "buffer_bytes_max" in found[-1].reason
        assert bench.buffer.nbytes == 0

    play(story)
