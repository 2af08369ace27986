"""A subscription's buffer in isolation: accepted batches, pauses, processed positions, stops."""

import asyncio
from typing import Any

import pytest

from surecast.client.events import Event
from surecast.client.subscription_buffer import LOST_BYTES, SubscriptionBuffer
from surecast.columns.batch import COLLECTED, Batch, coalesce
from surecast.columns.retention import KeepAll
from surecast.core.endpoint import Ended, Lost
from surecast.core.streams import StreamInfo
from surecast.endpoint.options import ClientOptions
from surecast.errors import Fenced
from tests.client.stage import play

SID, OTHER = b"s" * 16, b"t" * 16


class Reader:
    """A fake reader that records the calls of the buffer."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def claim(self, stream: bytes, taker: Any) -> None: ...

    def follow(self, stream: bytes, start: int, where: str = "") -> int:
        self.calls.append(("follow", stream, start))
        return 0

    def unfollow(self, stream: bytes) -> None:
        self.calls.append(("unfollow", stream))

    def release(self, stream: bytes) -> None:
        self.calls.append(("release", stream))


class BufferWithFakeReader:
    """A subscription buffer and its fake reader."""

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


async def values(buffer: SubscriptionBuffer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        assert await buffer.next_rows()
        found += [int(event.value) for event in buffer.rows]
    return found


def test_duplicate_and_early_batches_are_dropped() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader()
        buffer = bench.buffer
        bench.add(SID, "s", 5)
        buffer.take_in(SID, (batch(100, 110),))  # of an earlier follow
        buffer.take_in(SID, (batch(1, 5),))
        buffer.take_in(SID, (batch(1, 8), batch(8, 10)))
        buffer.take_in(SID, (batch(5, 10), batch(9, 12)))
        buffer.take_in(SID, (batch(13, 15),))
        buffer.take_in(OTHER, (batch(1, 3, OTHER),))  # not followed
        buffer.take_in(SID, (batch(12, 16),))
        assert await values(buffer, 11) == list(range(5, 16))
        assert buffer.nbytes == 0

    play(scenario)


def test_it_pauses_when_full_and_resumes_at_the_next_position_when_half_empty() -> None:
    async def scenario() -> None:
        size = batch(1, 11).nbytes
        bench = BufferWithFakeReader(buffer_bytes_max=4 * size)
        buffer = bench.buffer
        bench.add(SID, "s", 1)
        bench.add(OTHER, "t", 7)
        for lo in (1, 11, 21):
            buffer.take_in(SID, (batch(lo, lo + 10),))
        assert bench.reader.calls == [("follow", SID, 1), ("follow", OTHER, 7)]
        buffer.take_in(OTHER, (batch(7, 17, OTHER),))
        buffer.take_in(SID, (batch(31, 41),))  # was already in flight
        assert bench.reader.calls[2:] == [("unfollow", SID), ("unfollow", OTHER)]
        bench.add(b"n" * 16, "new", 1)  # is followed when there is room
        assert len(bench.reader.calls) == 4
        await buffer.next_item()
        await buffer.next_item()
        assert len(bench.reader.calls) == 4
        await buffer.next_item()
        assert bench.reader.calls[4:] == [
            ("follow", SID, 41),
            ("follow", OTHER, 17),
            ("follow", b"n" * 16, 1),
        ]

    play(scenario)


def test_everything_before_the_current_event_counts_as_processed() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader()
        buffer = bench.buffer
        bench.add(SID, "s", 1)
        bench.add(OTHER, "t", 3)
        buffer.take_in(SID, (batch(1, 5), Batch.void(SID, 5, 9, COLLECTED)))
        buffer.take_in(OTHER, (batch(3, 4, OTHER),))
        assert buffer.positions() == {SID: 1, OTHER: 3}
        assert await buffer.next_rows()
        for event in buffer.rows:
            buffer.current_event = event
            assert buffer.positions() == {SID: event.seq, OTHER: 3}
        assert await buffer.next_rows()
        assert buffer.positions() == {SID: 9, OTHER: 3}  # including the void after them
        buffer.current_event = next(buffer.rows)
        assert buffer.positions() == {SID: 9, OTHER: 3}

    play(scenario)


def test_other_tasks_run_even_if_the_buffer_never_runs_empty() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader(turn_rows_max=100)
        buffer = bench.buffer
        bench.add(SID, "s", 1)
        for n in range(100):
            buffer.take_in(SID, (batch(1 + 10 * n, 11 + 10 * n),))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        while buffer.streams[SID].read < 991:
            await buffer.next_item()
        assert 8 <= turns <= 12
        task.cancel()

    play(scenario)


def test_a_failure_takes_precedence_over_buffered_events() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader()
        buffer = bench.buffer
        bench.add(SID, "s", 1)
        buffer.take_in(SID, (batch(1, 5),))
        assert await buffer.next_rows()
        loop = iter(buffer.rows)
        assert next(loop).seq == 1
        buffer.take_in(SID, (batch(5, 7),))
        buffer.fail(Fenced("another client uses this name"))
        assert list(loop) == []  # a running loop ends, too
        assert buffer.positions() == {SID: 1}  # buffered events do not count as read
        for _ in range(2):
            with pytest.raises(Fenced):
                await buffer.next_rows()
        assert bench.reader.calls[-1] == ("release", SID)
        buffer.take_in(SID, (batch(5, 9),))
        assert buffer.nbytes == 0
        with pytest.raises(Fenced):
            await buffer.ready()

    play(scenario)


# ---------------------------------------------------------------- lost events


async def events(buffer: SubscriptionBuffer, count: int) -> list[Event]:
    found: list[Event] = []
    while len(found) < count:
        assert await buffer.next_rows()
        found += buffer.rows
    return found


def shown(found: list[Event]) -> list[tuple[str, range]]:
    return [(event.kind, event.range) for event in found]


def test_a_lost_range_arrives_in_order_with_its_exact_positions() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader()
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

    play(scenario)


@pytest.mark.parametrize(
    ("lost", "is_left"),
    [
        ((1, 5), None),  # before the start
        ((1, 11), None),  # all of it has come
        ((5, 14), (11, 14)),
        ((11, 14), (11, 14)),
        ((12, 14), None),  # of an earlier follow
        ((11, 11), None),
    ],
)
def test_only_missing_positions_are_reported_lost(
    lost: tuple[int, int], is_left: tuple[int, int] | None
) -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader()
        bench.add(SID, "s", 5)
        bench.buffer.take_in(SID, (batch(5, 11),))
        bench.buffer.take_lost(Lost(SID, *lost, "why"))
        bench.buffer.take_lost(Lost(OTHER, 1, 50, "not followed"))
        end = is_left[1] if is_left else 11
        bench.buffer.take_in(SID, (batch(end, end + 1),))
        expected = [("event", range(n, n + 1)) for n in range(5, 11)]
        expected += [("lost", range(*is_left))] if is_left else []
        expected.append(("event", range(end, end + 1)))
        assert shown(await events(bench.buffer, len(expected))) == expected

    play(scenario)


def test_the_end_of_a_stream_before_its_start_comes_after_what_was_received() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader()
        bench.add(SID, "s", 5)
        bench.add(OTHER, "t", 1, stop=3)
        bench.buffer.set_complete()
        bench.buffer.take_in(SID, (batch(5, 7),))  # of a history that was given up later
        bench.buffer.take_ended(Ended(SID, 5))
        bench.buffer.take_ended(Ended(SID, 5))
        assert bench.reader.calls[-1] == ("release", SID)
        bench.buffer.take_in(OTHER, (batch(1, 3, OTHER),))
        assert await values(bench.buffer, 4) == [5, 6, 1, 2]
        assert await bench.buffer.next_rows() is False
        bench.buffer.take_ended(Ended(OTHER, 3))
        assert "s" in bench.buffer.deleted

    play(scenario)


def test_a_lost_range_is_reported_before_the_start_time_is_reached() -> None:
    """The times of lost events are unknown, so they are not skipped as too old."""

    async def scenario() -> None:
        bench = BufferWithFakeReader()
        bench.add(SID, "s", 5, not_before_ns=3)
        bench.buffer.take_in(SID, (batch(5, 7),))  # of time 1
        bench.buffer.take_lost(Lost(SID, 7, 9, "why"))
        bench.buffer.take_in(SID, (batch(9, 10),))  # still too old
        bench.buffer.take_in(SID, (Batch.of(SID, [b"x"]).sequenced(10, 4, 1),))
        assert shown(await events(bench.buffer, 2)) == [
            ("lost", range(7, 9)), ("event", range(10, 11)),
        ]  # fmt: skip

    play(scenario)


def test_lost_ranges_take_space_in_the_buffer_and_reading_resumes_after_them() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader(buffer_bytes_max=2 * LOST_BYTES)
        bench.add(SID, "s", 1)
        bench.add(OTHER, "t", 1)
        bench.buffer.take_lost(Lost(SID, 1, 5, "why"))
        assert not bench.buffer.paused
        bench.buffer.take_lost(Lost(OTHER, 1, 9, "why"))
        assert bench.buffer.paused
        assert len(await events(bench.buffer, 1)) == 1
        assert not bench.buffer.paused
        assert bench.reader.calls[-2:] == [("follow", SID, 5), ("follow", OTHER, 9)]

    play(scenario)


@pytest.mark.parametrize("manual", [False, True])
def test_a_lost_range_is_acknowledged_like_an_event(manual: bool) -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader(manual=manual)
        buffer = bench.buffer
        bench.add(SID, "s", 1)
        buffer.take_in(SID, (batch(1, 3),))
        buffer.take_lost(Lost(SID, 3, 9, "why"))
        buffer.take_in(SID, (batch(9, 10),))
        assert await buffer.next_rows()
        expected = [1, 2, 3, 9]  # all below the current event of the user
        for event in buffer.rows:
            buffer.current_event = event
            assert buffer.positions() == {SID: 1 if manual else expected.pop(0)}
            assert buffer.handed(buffer.streams[SID]) == event.seq + 1
            if manual and event.kind == "lost":
                break
        if manual:
            buffer.acknowledge(buffer.streams[SID], 9)
            assert buffer.positions() == {SID: 9}
        else:
            assert not expected

    play(scenario)


# ---------------------------------------------------------------- a stop


async def rest(buffer: SubscriptionBuffer) -> list[tuple[str, range]]:
    """The kinds and ranges of all remaining events, until the buffer ends."""
    found: list[Event] = []
    while await buffer.next_rows():
        found += buffer.rows
    return shown(found)


def singles(lo: int, hi: int) -> list[tuple[str, range]]:
    return [("event", range(n, n + 1)) for n in range(lo, hi)]


def test_batches_voids_and_losses_are_cut_at_the_stop() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader(voids=True)
        buffer = bench.buffer
        bench.add(SID, "s", 1, stop=8)
        bench.add(OTHER, "t", 4, stop=4)
        buffer.take_in(SID, (batch(1, 5), batch(5, 10), batch(10, 11)))
        buffer.take_in(SID, (batch(8, 12),))
        buffer.set_complete()
        assert await rest(buffer) == singles(1, 8)
        assert bench.reader.calls == [("follow", SID, 1), ("release", OTHER), ("release", SID)]
        buffer.close()
        assert len(bench.reader.calls) == 3  # its place in the reader may be taken by another

        bench = BufferWithFakeReader(voids=True)
        bench.add(SID, "s", 1, stop=3)
        bench.add(OTHER, "t", 1, stop=6)
        bench.buffer.take_in(SID, (Batch.void(SID, 1, 9, COLLECTED),))
        bench.buffer.take_lost(Lost(OTHER, 1, 9, "why"))
        bench.buffer.set_complete()
        assert await rest(bench.buffer) == [("void", range(1, 3)), ("lost", range(1, 6))]

    play(scenario)


def test_a_subscription_with_an_end_time_is_cut_there() -> None:
    def at(lo: int, hi: int, time_ns: int) -> Batch:
        return Batch.of(SID, [b"x"] * (hi - lo)).sequenced(lo, time_ns, 1)

    async def scenario() -> None:
        bench = BufferWithFakeReader(voids=True)
        bench.add(SID, "s", 1, before_ns=50)
        buffer = bench.buffer
        buffer.set_complete()
        buffer.take_in(SID, (at(1, 4, 10), Batch.void(SID, 4, 6, COLLECTED, time_ns=49)))
        joined = coalesce([at(6, 8, 49), at(8, 9, 50), at(9, 10, 51)], 100)
        assert len(joined) == 1  # its rows have different times
        buffer.take_in(SID, tuple(joined))
        assert await rest(buffer) == [*singles(1, 4), ("void", range(4, 6)), *singles(6, 8)]
        assert bench.reader.calls[-1] == ("release", SID)

    play(scenario)


def test_a_stop_set_later_ends_a_waiting_read() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader()
        buffer = bench.buffer
        bench.add(SID, "s", 1)
        buffer.set_complete()
        buffer.take_in(SID, (batch(1, 5),))
        reading = asyncio.ensure_future(rest(buffer))
        await asyncio.sleep(0)
        buffer.set_stop(SID, 6)
        await asyncio.sleep(0)
        assert not reading.done()
        buffer.take_in(SID, (batch(5, 9),))
        assert await reading == singles(1, 6)

        bench = BufferWithFakeReader()
        bench.add(SID, "s", 1)
        bench.buffer.set_complete()
        bench.buffer.take_in(SID, (batch(1, 5),))
        reading = asyncio.ensure_future(rest(bench.buffer))
        await asyncio.sleep(0)
        bench.buffer.set_stop(SID, 3)  # events handed out already stay valid
        assert await reading == singles(1, 5)

    play(scenario)


def test_a_completely_read_stream_is_not_followed_after_a_pause() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader(buffer_bytes_max=batch(1, 11).nbytes + batch(11, 21).nbytes)
        buffer = bench.buffer
        bench.add(SID, "s", 1, stop=31)
        bench.add(OTHER, "t", 1, stop=41)
        buffer.set_complete()
        buffer.take_in(SID, (batch(1, 11), batch(11, 21)))
        assert buffer.paused
        buffer.take_in(SID, (batch(21, 41),))  # was already in flight
        for _ in range(3):
            await buffer.next_item()
        assert not buffer.paused
        assert bench.reader.calls[-1] == ("follow", OTHER, 1)
        assert ("follow", SID, 31) not in bench.reader.calls

        bench = BufferWithFakeReader(buffer_bytes_max=batch(1, 11).nbytes + batch(11, 21).nbytes)
        bench.add(SID, "s", 1, stop=11)
        bench.add(OTHER, "t", 1, stop=41)
        bench.buffer.take_in(SID, (batch(1, 11),))
        bench.buffer.take_in(OTHER, (batch(1, 31, OTHER),))
        assert bench.buffer.paused
        assert ("unfollow", OTHER) in bench.reader.calls
        assert (
            "unfollow",
            SID,
        ) not in bench.reader.calls  # another subscription may use the reader for it

    play(scenario)


def test_a_subscription_does_not_end_before_all_streams_are_known() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader()
        reading = asyncio.ensure_future(rest(bench.buffer))
        bench.add(SID, "s", 1, stop=1)
        await asyncio.sleep(0.01)
        assert not reading.done()
        bench.add(OTHER, "t", 1, stop=3)
        bench.buffer.set_complete()
        bench.buffer.take_in(OTHER, (batch(1, 3, OTHER),))
        assert await reading == singles(1, 3)

    play(scenario)


# ---------------------------------------------------------------- no positions


def test_without_order_everything_is_passed_on_as_received() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader()
        bench.add(SID, "s", 0, ordered=False)
        bench.buffer.take_in(SID, (batch(7, 9), batch(7, 9), batch(100, 101)))
        bench.buffer.take_lost(Lost(SID, 0, 0, "a datagram"))
        bench.buffer.take_in(SID, (batch(3, 4),))
        found = await events(bench.buffer, 7)
        assert [event.seq for event in found if event.kind == "event"] == [7, 8, 7, 8, 100, 3]
        assert (found[5].kind, found[5].range, found[5].reason) == ("lost", range(0), "a datagram")

    play(scenario)


def test_without_order_events_published_during_a_pause_are_reported_lost() -> None:
    async def scenario() -> None:
        bench = BufferWithFakeReader(buffer_bytes_max=2 * batch(11, 21).nbytes)
        bench.add(SID, "s", 1, ordered=False)
        bench.buffer.take_in(SID, (batch(11, 21), batch(31, 41)))
        assert bench.buffer.paused
        bench.add(OTHER, "t", 1, ordered=False)  # not followed yet, so nothing is missed
        await bench.buffer.next_item()
        assert bench.reader.calls[-2:] == [("follow", SID, 0), ("follow", OTHER, 1)]
        found = await events(bench.buffer, 11)
        assert [event.kind for event in found] == ["event"] * 10 + ["lost"]
        assert "buffer_bytes_max" in found[-1].reason
        assert bench.buffer.nbytes == 0

    play(scenario)
