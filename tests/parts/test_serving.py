"""Sending streams to followers and ranges on request: what is sent, to which peer, how much."""

from typing import Any

import msgspec
import pytest

from surecast.columns.batch import Batch
from surecast.core.types import AtEndOfPass, LogId, Send
from surecast.parts import serving
from surecast.parts.serving import SERVE, Ranges, Serving

S, T = b"s" * 16, b"t" * 16
SIZE = 10  # positions that are read at a time


def batch(lo: int, hi: int, stream: LogId = S) -> Batch:
    return Batch.synthetic(stream, hi - lo, hi - lo).sequenced(lo, 5, 1)


class Events(msgspec.Struct):
    stream: LogId
    batches: tuple[Batch, ...]
    end: int


class Range(msgspec.Struct):
    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    batches: tuple[Batch, ...]


class Gone(msgspec.Struct):
    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    why: str


class Service:
    """A fake stream service. A failed read sets the end of the stream to the unreadable position.

    `lost`: a range of S that is declared lost; `shown_end` is its start.
    """

    def __init__(self, **ends: int) -> None:
        self.ends = {name.encode() * 16: end for name, end in ends.items()}
        self.bad = 1 << 60  # the first position that cannot be read
        self.lost = (1 << 60, 1 << 60)
        self.reads = 0
        self.cold = 0  # positions below this must be loaded first
        self.loaded: set[tuple[LogId, int]] = set()

    def shown_end(self, stream: LogId) -> int:
        return min(self.ends.get(stream, 0), self.lost[0])

    def readable_end(self, stream: LogId) -> int:
        return self.ends.get(stream, 0)

    def lost_at(self, stream: LogId, seq: int) -> tuple[int, str] | None:
        return (self.lost[1], "why") if self.lost[0] <= seq < self.lost[1] else None

    def at_hand(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch] | None:
        self.reads += 1
        if lo < self.cold and (stream, lo) not in self.loaded:
            return None
        end = min(hi or self.ends[stream], self.ends[stream], self.bad, lo + SIZE)
        end = min(end, self.lost[0]) if lo < self.lost[0] else end
        if lo >= self.bad:
            self.ends[stream] = self.bad
            return []
        return [batch(lo, end, stream)]


class FakeServing:
    def __init__(self, messages_max: int = 8, **ends: int) -> None:
        self.service = Service(**ends)
        self.ended: list[Batch] = []
        self.serving = Serving(self.service, Events, messages_max, lambda _: self.ended)

    def follow(self, peer: str, start: int = 1, stream: LogId = S) -> list[tuple[str, int, int]]:
        out: list[Any] = []
        self.serving.follow(stream, peer, start, out)
        return shown(out)

    def grows(self, end: int, stream: LogId = S) -> bool:
        """Let the stream grow to `end`; returns whether it is served at the end of the pass."""
        self.service.ends[stream] = end
        out: list[Any] = []
        self.serving.moved(stream)
        if self.serving.news:
            self.serving.soon(out)
        assert out in ([], [AtEndOfPass(SERVE)])
        return self.serving.is_due

    def serve(self) -> list[tuple[str, int, int]]:
        out: list[Any] = []
        self.serving.serve(out)
        return shown(out)

    def writable(self, peer: str) -> list[tuple[str, int, int]]:
        out: list[Any] = []
        self.serving.writable(peer, out)
        return shown(out)


def shown(effects: list[Any]) -> list[tuple[str, int, int]]:
    """(peer, lo, hi) of each message; an empty one is (peer, 0, end)."""
    found = []
    for effect in effects:
        if effect == AtEndOfPass(SERVE):
            continue
        assert type(effect) is Send
        batches = effect.message.batches
        span = (batches[0].lo, batches[-1].hi) if batches else (0, effect.message.end)
        found.append((effect.peer, *span))
    return found


# ---------------------------------------------------------------- followers


def test_a_follower_gets_existing_and_then_new_batches() -> None:
    bench = FakeServing(s=15)
    assert bench.follow("a", 3) == [("a", 3, 13), ("a", 13, 15)]
    assert bench.serve() == []
    assert bench.grows(18)
    assert bench.serve() == [("a", 15, 18)]
    assert bench.serving.followers == {S: {"a": 18}}
    assert bench.serving.news == {}


def test_a_follower_that_has_everything_gets_the_end_of_the_stream() -> None:
    bench = FakeServing(s=15)
    assert bench.follow("a", 15) == [("a", 0, 15)]
    assert bench.follow("b", 99) == [("b", 0, 15)]  # it gets nothing before its start
    bench.grows(20)
    assert bench.serve() == [("a", 15, 20)]
    bench.grows(101)
    assert ("b", 99, 101) in bench.serve()


def test_a_follower_that_starts_after_the_end_of_a_deleted_stream_gets_its_end_event() -> None:
    bench = FakeServing(s=15)
    bench.follow("a", 14)
    bench.follow("b", 99)
    bench.ended = [batch(15, 16)]
    bench.grows(16)
    assert bench.serve() == [("a", 15, 16), ("b", 15, 16)]
    assert bench.writable("a") == []
    assert bench.follow("c", 16) == [("c", 15, 16)]
    assert bench.follow("d", 15) == [("d", 15, 16)]  # once


def test_an_empty_answer_is_sent_only_on_request() -> None:
    bench = FakeServing(s=15)
    bench.follow("a", 15)
    assert bench.grows(15)  # nothing new
    assert bench.serve() == []


def test_a_stream_without_followers_is_not_served() -> None:
    bench = FakeServing(s=15)
    assert not bench.grows(18)
    assert bench.serving.news == {}


def test_several_commits_request_one_end_of_pass() -> None:
    bench = FakeServing(s=15)
    bench.follow("a", 15)
    out: list[Any] = []
    for _ in range(3):
        bench.serving.moved(S)
        bench.serving.soon(out)
    assert out == [AtEndOfPass(SERVE)]
    bench.serve()
    bench.serving.soon(out)
    assert out == [AtEndOfPass(SERVE)] * 2


def test_batches_beyond_the_limit_are_sent_at_the_end_of_the_next_pass() -> None:
    bench = FakeServing(messages_max=1, s=35)
    bench.follow("a", 1)
    out: list[Any] = []
    assert bench.serving.is_due
    bench.serving.serve(out)
    assert shown(out) == [("a", 11, 21)]
    assert out[-1] == AtEndOfPass(SERVE)


def test_a_follower_of_an_unknown_stream_waits_for_it() -> None:
    bench = FakeServing()
    assert bench.follow("a", 2) == []
    assert bench.serving.followers == {S: {"a": 2}}
    assert bench.grows(5)
    assert bench.serve() == [("a", 2, 5)]


def test_batches_for_several_followers_are_read_and_encoded_once() -> None:
    bench = FakeServing(s=5)
    for peer in ("a", "b", "c"):
        bench.follow(peer, 5)
    bench.follow("late", 1)
    bench.grows(9)
    bench.service.reads = 0
    out: list[Any] = []
    bench.serving.serve(out)
    assert shown(out) == [(peer, 5, 9) for peer in ("a", "b", "c", "late")]
    assert bench.service.reads == 1
    assert all(effect.message is out[0].message for effect in out)  # so a driver encodes it once


def test_each_stream_is_served_to_its_own_followers() -> None:
    bench = FakeServing(s=5, t=5)
    bench.follow("a", 5, S)
    bench.follow("b", 5, T)
    bench.follow("c", 5, S)
    bench.follow("c", 5, T)
    bench.grows(7, S)
    assert bench.serve() == [("a", 5, 7), ("c", 5, 7)]
    bench.grows(8, T)
    assert bench.serve() == [("b", 5, 8), ("c", 5, 8)]


# ---------------------------------------------------------------- limits per pass


def test_a_follower_far_behind_gets_a_limited_number_of_messages_at_a_time() -> None:
    bench = FakeServing(messages_max=2, s=56)
    assert bench.follow("a") == [("a", 1, 11), ("a", 11, 21)]
    assert list(bench.serving.news) == [S]  # the rest is sent later
    assert bench.serve() == [("a", 21, 31), ("a", 31, 41)]
    assert bench.serve() == [("a", 41, 51), ("a", 51, 56)]
    assert bench.serving.news == {}
    assert bench.serve() == []


def test_a_follower_far_behind_does_not_delay_others() -> None:
    bench = FakeServing(messages_max=1, s=31)
    bench.follow("late")
    bench.follow("a", 31)
    bench.grows(32)
    assert bench.serve() == [("late", 11, 21), ("a", 31, 32)]
    assert bench.serve() == [("late", 21, 31)]


def test_a_congested_peer_gets_nothing_until_it_is_writable() -> None:
    bench = FakeServing(s=5)
    bench.follow("a", 5)
    bench.follow("b", 5)
    bench.serving.congested["a"] = None
    bench.grows(8)
    assert bench.serve() == [("b", 5, 8)]
    assert bench.serving.news == {}  # otherwise each end of a pass would check it
    assert bench.writable("a") == [("a", 5, 8)]
    assert bench.serving.congested == {}
    assert bench.writable("b") == []


def test_a_peer_that_is_writable_again_gets_limited_messages_of_each_stream() -> None:
    bench = FakeServing(messages_max=1, s=5, t=5)
    bench.follow("a", 5, S)
    bench.follow("a", 5, T)
    bench.serving.congested["a"] = None
    bench.grows(20, S)
    bench.grows(9, T)
    assert bench.serve() == []
    assert bench.writable("a") == [("a", 5, 15), ("a", 5, 9)]
    assert list(bench.serving.news) == [S]
    assert bench.serve() == [("a", 15, 20)]


def test_a_congested_peer_that_subscribes_gets_the_end_of_the_stream() -> None:
    bench = FakeServing(s=9)
    bench.serving.congested["a"] = None
    assert bench.follow("a", 3) == [("a", 0, 9)]
    assert bench.writable("a") == [("a", 3, 9)]


def test_an_unreadable_position_ends_the_stream_and_is_not_retried() -> None:
    bench = FakeServing(s=20)
    bench.service.bad = 7
    assert bench.follow("a") == [("a", 1, 7)]
    assert bench.serving.followers[S] == {"a": 7}
    assert bench.serving.news == {}
    assert bench.follow("b", 7) == [("b", 0, 7)]  # readable only up to there


def test_a_follower_that_starts_at_an_unreadable_position_gets_the_end() -> None:
    bench = FakeServing(s=20)
    bench.service.bad = 7
    assert bench.follow("a", 7) == [("a", 0, 7)]


# ---------------------------------------------------------------- the set of followers


def test_followers_are_counted_once_for_each_stream() -> None:
    bench = FakeServing(s=5, t=5)
    bench.follow("a", 1, S)
    bench.follow("a", 3, S)  # asks again, with another start
    bench.follow("a", 1, T)
    bench.follow("b", 1, S)
    assert bench.serving.count == 3
    bench.serving.remove(S, "a")
    bench.serving.remove(S, "a")
    bench.serving.remove(S, "stranger")
    bench.serving.remove(b"?" * 16, "a")
    assert bench.serving.count == 2
    assert bench.serving.followers == {S: {"b": 5}, T: {"a": 5}}


def test_a_follower_that_asks_again_is_served_from_its_new_start() -> None:
    bench = FakeServing(s=8)
    assert bench.follow("a", 5) == [("a", 5, 8)]
    assert bench.follow("a", 3) == [("a", 3, 8)]


def test_removing_a_peer_removes_all_its_state() -> None:
    bench = FakeServing(s=5, t=5)
    for stream in (S, T, b"?" * 16):
        bench.follow("a", 1, stream)
    bench.follow("b", 1, T)
    bench.serving.congested["a"] = None
    bench.serving.remove_peer("a")
    assert bench.serving.followers == {T: {"b": 5}}
    assert (bench.serving.count, bench.serving.congested) == (1, {})
    bench.serving.remove_peer("a")
    assert bench.serving.count == 1


def test_removing_a_stream_removes_all_its_state() -> None:
    bench = FakeServing(messages_max=1, s=50, t=5)
    bench.follow("a")
    bench.follow("b", 1, T)
    assert list(bench.serving.news) == [S]
    bench.serving.remove_stream(S)
    bench.serving.remove_stream(S)
    assert bench.serving.followers == {T: {"b": 5}}
    assert (bench.serving.count, bench.serving.news) == (1, {})
    assert bench.serve() == []


# ---------------------------------------------------------------- ranges


def send_range(
    service: Service, make: Any, stream: LogId, lo: int, hi: int, **arguments: Any
) -> list[Any]:
    """The messages of the answer to one request."""
    messages_max, stops = arguments.pop("messages_max"), arguments.pop("stops")
    ranges = Ranges(service, make, messages_max, lambda _: stops(), **arguments)
    out: list[Any] = []
    ranges.answer("peer", stream, lo, hi, out)
    return [effect.message for effect in out]


def ask(
    lo: int,
    hi: int,
    stream: LogId = S,
    *,
    end: int = 36,
    messages_max: int = 8,
    stops: bool = False,
) -> list[Range]:
    return send_range(
        Service(s=end),
        Range,
        stream,
        lo,
        hi,
        messages_max=messages_max,
        stops=lambda: stops,
    )


def spans(parts: list[Range]) -> list[tuple[int, int]]:
    return [(part.lo, part.hi) for part in parts]


def covered(parts: list[Range]) -> list[int]:
    return [seq for part in parts for batch in part.batches for seq in range(batch.lo, batch.hi)]


def test_a_range_is_sent_in_parts_with_the_last_marked() -> None:
    parts = ask(4, 27)
    assert spans(parts) == [(4, 14), (14, 24), (24, 27)]
    assert covered(parts) == list(range(4, 27))
    assert [part.last for part in parts] == [False, False, True]
    assert {part.end for part in parts} == {36}
    assert {part.stream for part in parts} == {S}


def test_hi_0_means_up_to_the_end() -> None:
    parts = ask(4, 0)
    assert spans(parts) == [(4, 14), (14, 24), (24, 34), (34, 36)]
    assert covered(parts) == list(range(4, 36))
    assert [part.last for part in parts] == [False, False, False, True]


def test_hi_0_with_a_start_beyond_the_end_is_empty() -> None:
    for lo in (36, 40):
        (only,) = ask(lo, 0)
        assert only == Range(S, lo, lo, 36, True, ())


def test_an_answer_covers_the_requested_range_beyond_the_end() -> None:
    parts = ask(31, 50)
    assert covered(parts) == list(range(31, 36))
    assert (parts[-1].hi, parts[-1].end, parts[-1].last) == (50, 36, True)
    (only,) = ask(40, 50)
    assert only == Range(S, 40, 50, 36, True, ())


@pytest.mark.parametrize("lo", [0, -5])
@pytest.mark.parametrize("hi", [0, 9])
def test_lo_0_requests_only_the_end_of_the_stream(lo: int, hi: int) -> None:
    (only,) = ask(lo, hi)
    assert only == Range(S, lo, lo, 36, True, ())


@pytest.mark.parametrize(("lo", "hi"), [(0, 0), (1, 0), (7, 9)])
def test_the_end_of_an_unknown_stream_is_0(lo: int, hi: int) -> None:
    (only,) = ask(lo, hi, T)
    assert only == Range(T, lo, lo, 0, True, ())


@pytest.mark.parametrize(("lo", "hi"), [(9, 3), (5, 5), (5, -2), (1 << 60, 1 << 61)])
def test_an_invalid_range_gets_one_empty_answer(lo: int, hi: int) -> None:
    (only,) = ask(lo, hi)
    assert only == Range(S, lo, max(lo, hi), 36, True, ())


def test_an_answer_has_at_most_messages_max_messages() -> None:
    parts = ask(1, 36, messages_max=2)
    assert spans(parts) == [(1, 11), (11, 21)]
    assert [part.last for part in parts] == [False, True]
    assert spans(ask(21, 36, messages_max=2)) == [(21, 31), (31, 36)]


def test_a_congested_requester_gets_one_message() -> None:
    (only,) = ask(1, 36, stops=True)
    assert (spans([only]), only.last) == ([(1, 11)], True)


def test_a_range_ends_at_an_unreadable_position() -> None:
    service = Service(s=36)
    service.bad = 15
    parts: Any = send_range(
        service,
        Range,
        S,
        1,
        30,
        messages_max=8,
        stops=lambda: False,
    )
    assert covered(parts) == list(range(1, 15))
    assert parts[-1] == Range(S, 15, 30, 15, True, ())
    assert [part.last for part in parts] == [False, False, True]


def ask_with_losses(lo: int, hi: int, messages_max: int = 8, stops: bool = False) -> list[Any]:
    service = Service(s=36)
    service.lost = (13, 17)
    return send_range(
        service,
        Range,
        S,
        lo,
        hi,
        messages_max=messages_max,
        stops=lambda: stops,
        make_lost=Gone,
    )


def test_a_lost_range_is_a_separate_part_between_the_others() -> None:
    parts = ask_with_losses(1, 24)
    assert [type(part) for part in parts] == [Range, Range, Gone, Range]
    assert spans(parts) == [(1, 11), (11, 13), (13, 17), (17, 24)]
    assert parts[2] == Gone(S, 13, 17, 36, False, "why")
    assert [part.last for part in parts] == [False, False, False, True]


@pytest.mark.parametrize(
    ("lo", "hi", "lost"), [(15, 16, (15, 16)), (14, 17, (14, 17)), (12, 15, (13, 15))]
)
def test_a_lost_range_is_never_wider_than_requested(
    lo: int, hi: int, lost: tuple[int, int]
) -> None:
    last = ask_with_losses(lo, hi)[-1]
    assert last == Gone(S, *lost, 36, True, "why")


def test_a_lost_range_counts_as_a_message() -> None:
    for parts in (ask_with_losses(13, 30, messages_max=1), ask_with_losses(13, 30, stops=True)):
        assert parts == [Gone(S, 13, 17, 36, True, "why")]


def test_without_a_message_for_losses_a_range_ends_before_the_loss() -> None:
    service = Service(s=36)
    service.lost = (13, 17)
    parts: Any = send_range(service, Range, S, 1, 24, messages_max=8, stops=lambda: False)
    assert covered(parts) == list(range(1, 13))
    assert (parts[-1].end, parts[-1].last) == (13, True)


# ---------------------------------------------------------------- pieces that must be loaded first


class ColdServing(FakeServing):
    """The positions of S below `cold` are at hand only once they were loaded."""

    def __init__(self, cold: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.service.cold = cold
        self.asked: list[tuple[LogId, int]] = []
        self.serving.load = lambda stream, lo, _hi, _out: self.asked.append((stream, lo))

    def loaded(self, lo: int, stream: LogId = S) -> list[tuple[str, int, int]]:
        self.service.loaded.add((stream, lo))
        out: list[Any] = []
        self.serving.loaded(stream, lo, out)
        return shown(out)


def test_a_follower_far_behind_waits_for_each_piece_and_gets_all_in_order() -> None:
    bench = ColdServing(21, s=36)
    assert bench.follow("a") == []
    assert bench.asked == [(S, 1)]
    assert bench.serve() == []
    assert bench.loaded(1) == [("a", 1, 11)]
    assert bench.asked == [(S, 1), (S, 11)]
    assert bench.loaded(11) == [("a", 11, 21), ("a", 21, 31), ("a", 31, 36)]
    assert bench.serving.waiting == {}
    bench.grows(38)
    assert bench.serve() == [("a", 36, 38)]


def test_while_a_follower_waits_the_others_get_news() -> None:
    bench = ColdServing(21, s=36)
    bench.follow("late")
    bench.follow("live", 36)
    bench.grows(38)
    assert bench.serve() == [("live", 36, 38)]
    assert bench.writable("late") == []
    assert bench.asked == [(S, 1)]  # and the piece is requested only once


def test_followers_at_one_position_get_the_same_message() -> None:
    bench = ColdServing(11, s=11)
    bench.follow("a")
    bench.follow("b")
    out: list[Any] = []
    bench.service.loaded.add((S, 1))
    bench.serving.loaded(S, 1, out)
    assert shown(out) == [("a", 1, 11), ("b", 1, 11)]
    assert out[0].message is out[1].message


def test_a_loaded_piece_is_not_sent_to_those_that_left_or_started_elsewhere() -> None:
    bench = ColdServing(21, s=36)
    for peer in ("left", "gone", "elsewhere", "full"):
        bench.follow(peer)
    bench.serving.remove(S, "left")
    bench.serving.remove_peer("gone")
    assert bench.follow("elsewhere", 30) == [("elsewhere", 30, 36)]
    bench.serving.congested["full"] = None
    assert bench.loaded(1) == []
    assert bench.writable("full") == [("full", 1, 11)]
    bench.serving.remove_stream(S)
    assert bench.serving.waiting == {}


class ColdRanges:
    def __init__(self, cold: int, messages_max: int = 8) -> None:
        self.service = Service(s=36, t=36)
        self.service.cold = cold
        self.asked: list[tuple[LogId, int, int]] = []
        self.congested = False
        self.ranges = Ranges(
            self.service,
            Range,
            messages_max,
            lambda _: self.congested,
            load=lambda stream, lo, hi, _out: self.asked.append((stream, lo, hi)),
        )
        self.out: list[Any] = []

    def ask(self, peer: str, lo: int, hi: int) -> list[tuple[str, int, int, bool]]:
        self.ranges.answer(peer, S, lo, hi, self.out)
        return self.take()

    def loaded(self, lo: int) -> list[tuple[str, int, int, bool]]:
        self.service.loaded.add((S, lo))
        self.ranges.loaded(S, lo, self.out)
        return self.take()

    def take(self) -> list[tuple[str, int, int, bool]]:
        out, self.out = self.out, []
        return [(e.peer, e.message.lo, e.message.hi, e.message.last) for e in out]


def test_an_answer_waits_for_its_pieces_and_others_do_not_wait_for_it() -> None:
    bench = ColdRanges(21)
    assert bench.ask("a", 4, 30) == []
    assert bench.asked == [(S, 4, 30)]
    assert bench.ask("b", 25, 30) == [("b", 25, 30, True)]
    assert bench.loaded(4) == [("a", 4, 14, False)]
    assert bench.loaded(14) == [("a", 14, 24, False), ("a", 24, 30, True)]
    assert (bench.ranges.waiting, bench.ranges.count) == ({}, 0)


def test_messages_of_an_answer_are_limited_also_across_pieces() -> None:
    bench = ColdRanges(100, messages_max=2)
    bench.ask("a", 1, 36)
    assert bench.loaded(1) == [("a", 1, 11, False)]
    assert bench.loaded(11) == [("a", 11, 21, True)]
    assert bench.ranges.count == 0


def test_an_answer_that_waited_ends_when_the_peer_is_congested() -> None:
    bench = ColdRanges(100)
    bench.ask("a", 1, 36)
    bench.congested = True
    assert bench.loaded(1) == [("a", 1, 11, True)]


def test_a_repeated_request_gets_one_answer_and_a_peer_that_left_none() -> None:
    bench = ColdRanges(100)
    bench.ask("a", 1, 5)
    bench.ask("a", 1, 5)
    bench.ask("gone", 1, 5)
    bench.ranges.remove_peer("gone")
    assert bench.loaded(1) == [("a", 1, 5, True)]
    assert bench.ranges.count == 0


def test_answers_that_wait_end_when_the_stream_is_taken_back() -> None:
    bench = ColdRanges(100)
    bench.ask("a", 20, 30)
    bench.service.ends[S] = 7
    bench.ranges.taken_back(S, bench.out)
    assert bench.take() == [("a", 20, 30, True)]
    assert bench.ranges.count == 0


def test_requests_that_would_wait_beyond_the_limit_are_answered_with_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "WAITING_MAX", 2)
    bench = ColdRanges(100)
    assert [bench.ask(peer, 1, 5) for peer in "abc"] == [[], [], [("c", 1, 1, True)]]
    assert len(bench.loaded(1)) == 2
