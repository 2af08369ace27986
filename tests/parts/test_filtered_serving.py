"""Followers with filters: every position reaches them once, and every event that passes."""

from collections import Counter
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.edits import Edit, Row, each_check, must_fail

from surecast.columns.batch import COLLECTED, FILTERED, VOID, Batch
from surecast.columns.intervals import IntervalSet
from surecast.core.types import AtEndOfPass, LogId, Send
from surecast.errors import UsageError
from surecast.parts.filtered_serving import HELD_MAX, FilteredServing, without_neighbours
from surecast.parts.serving import SERVE, Serving

S, T = b"s" * 16, b"t" * 16
CHARS_MAX = 100


class Events(msgspec.Struct):
    stream: LogId
    batches: tuple[Batch, ...]
    end: int
    filter: int


class Refusal(msgspec.Struct):
    stream: LogId
    filter: int
    why: str


class Multiples:
    """A filter: the events at multiples of a number pass. Its text is the number."""

    def __init__(self, text: str) -> None:
        if not text.isdigit():
            raise UsageError(f"{text!r} is not a number")
        self.number = int(text)
        self.applied = 0

    def apply(self, batch: Batch) -> Batch:
        self.applied += 1
        return batch.passing(batch.seqs() % self.number == 0) if batch.rows else batch

    def cost(self, batch: Batch) -> int:
        return batch.nbytes


class Service:
    """Streams whose batches have random sizes and void positions."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.batches: dict[LogId, list[Batch]] = {}
        self.bound = 0
        self.cold = 0  # positions below this must be loaded first

    def grow(self, stream: LogId, count: int, *, voids: float = 0.0) -> None:
        lo = self.shown_end(stream) or 1
        batch = Batch.of(stream, [b"12345678"] * count).sequenced(lo, 5, 1)
        gone = [(seq, seq + 1) for seq in range(lo, lo + count) if self.rng.random() < voids]
        self.batches.setdefault(stream, []).append(batch.without(IntervalSet(gone), COLLECTED))

    def shown_end(self, stream: LogId) -> int:
        return self.batches[stream][-1].hi if stream in self.batches else 0

    def at_hand(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch] | None:
        if lo < self.cold:
            return None
        found = [batch for batch in self.batches[stream] if batch.hi > lo][:3]
        return [found[0].slice(lo, found[0].hi), *found[1:]]


class Bench:
    """A `FilteredServing`, and what each peer has received."""

    def __init__(self, seed: int = 0, cost_max: int = 1 << 30, messages_max: int = 4) -> None:
        self.service = Service(seed)
        self.counters: Counter[str] = Counter()
        self.ended: list[Batch] = []
        self.plain = Serving(
            self.service, lambda *_: pytest.fail("unfiltered"), messages_max, lambda _: self.ended
        )
        self.bound: list[tuple[LogId, str]] = []
        self.made = 0
        self.serving = FilteredServing(
            self.plain, self.make, Refusal, self.bind, lambda text: len(text) + 7, self.counters,
            cost_max=cost_max, chars_max=CHARS_MAX,
        )  # fmt: skip
        self.at: dict[tuple[str, LogId], int] = {}
        self.got: dict[tuple[str, LogId], list[int]] = {}
        self.messages: list[tuple[str, Any]] = []
        self.is_due = False

    def make(self, stream: LogId, batches: tuple[Batch, ...], end: int, number: int) -> Any:
        self.made += 1
        return Events(stream, batches, end, number)

    def bind(self, stream: LogId, where: str) -> Multiples:
        self.bound.append((stream, where))
        return Multiples(where)

    def follow(self, peer: str, where: str, start: int = 1, stream: LogId = S) -> list[Any]:
        self.at[peer, stream], self.got[peer, stream] = start, []
        out: list[Any] = []
        self.serving.follow(stream, peer, start, where, out)
        return self.take(out)

    def serve(self) -> list[Any]:
        """The passes until nothing more is due."""
        found = []
        for _ in range(1000):
            if not (self.serving.news and self.is_due):
                return found
            self.is_due = self.plain.is_due = False
            out: list[Any] = []
            self.serving.serve(out)
            found += self.take(out)
        raise AssertionError("served without an end")

    def grow(self, count: int, stream: LogId = S, voids: float = 0.0) -> None:
        self.service.grow(stream, count, voids=voids)
        self.serving.moved(stream)
        self.is_due = True

    def tell(self) -> list[Any]:
        out: list[Any] = []
        self.serving.tell(out)
        return self.take(out)

    def take(self, out: list[Any]) -> list[Any]:
        """Note what the peers receive; returns the messages."""
        for effect in out:
            if isinstance(effect, AtEndOfPass):
                assert effect.key == SERVE
                self.is_due = True
                continue
            assert isinstance(effect, Send)
            self.messages.append((effect.peer, effect.message))
            if isinstance(effect.message, Events):
                self._receive(effect.peer, effect.message)
        return [effect.message for effect in out if isinstance(effect, Send)]

    def _receive(self, peer: str, message: Events) -> None:
        key = (peer, message.stream)
        for batch in message.batches:
            if batch in self.ended:
                continue
            assert batch.lo == self.at[key], "a position is missing, or was sent twice"
            self.at[key] = batch.hi
            self.got[key] += batch.seqs().tolist()


def passing(number: int, service: Service, start: int, stream: LogId = S) -> list[int]:
    live = [seq for batch in service.batches[stream] for seq in batch.seqs().tolist()]
    return [seq for seq in live if seq >= start and seq % number == 0]


def random_followers() -> None:
    for seed in range(40):
        rng = Random(seed)
        bench = Bench(seed, cost_max=rng.choice([200, 2000, 1 << 30]))
        followers: dict[str, tuple[int, int]] = {}
        for _ in range(60):
            match rng.randrange(6):
                case 0:
                    peer, number = f"p{rng.randrange(4)}", rng.choice([1, 2, 7, 1000])
                    start = rng.randint(1, (bench.service.shown_end(S) or 1) + 1)
                    followers[peer] = number, start
                    bench.follow(peer, str(number), start)
                case 1:
                    bench.plain.congested[f"p{rng.randrange(4)}"] = None
                case 2:
                    for peer in list(bench.plain.congested):
                        del bench.plain.congested[peer]
                        out: list[Any] = []
                        bench.serving.writable(peer, out)
                        bench.take(out)
                case 3:
                    bench.tell()
                case 4:
                    bench.serve()
                case _:
                    bench.grow(rng.choice([1, 5, 40]), voids=rng.choice([0, 0, 0.5]))
        bench.grow(3)
        bench.plain.congested.clear()
        for peer in followers:
            out = []
            bench.serving.writable(peer, out)
            bench.take(out)
        bench.serve()
        bench.tell()
        assert not bench.serving.untold
        for peer, (number, start) in followers.items():
            assert bench.at[peer, S] == bench.service.shown_end(S)
            got = bench.got[peer, S]
            wanted = passing(number, bench.service, start)
            assert set(wanted) <= set(got)  # a batch may be sent with all of its events
            if bench.serving.cost_max > 10_000:
                small = [seq for seq in got if seq % number]
                assert len(small) <= len(got) / 2 + 60


def test_every_position_is_sent_once_and_every_event_that_passes() -> None:
    random_followers()


def test_a_follower_gets_the_events_that_pass_and_void_ranges() -> None:
    bench = Bench()
    bench.service.grow(S, 40)
    (message,) = bench.follow("a", "10")
    assert bench.got["a", S] == [10, 20, 30, 40]
    assert (message.end, message.filter) == (41, 9)
    assert all(batch.reason == FILTERED for batch in message.batches)


def test_followers_with_the_same_filter_share_messages_and_the_work() -> None:
    bench = Bench()
    bench.service.grow(S, 40)
    for peer in "abc":
        bench.follow(peer, "10")
    assert bench.bound == [(S, "10")]
    made = bench.made
    bench.grow(40)
    messages = bench.serve()
    assert len(messages) == 3
    assert messages[0] is messages[1] is messages[2]
    assert bench.made == made + 1
    shared, users = bench.serving.filters[S, "10"]
    assert users == 3
    assert isinstance(shared, Multiples)
    assert shared.applied == 4  # once for each follower at its start, then once for all


def test_runs_in_which_nothing_passes_are_held_and_told_together() -> None:
    bench = Bench()
    bench.service.grow(S, 5)
    bench.follow("a", "1000")
    count = len(bench.messages)
    for _ in range(20):
        bench.grow(5)
        assert bench.serve() == []
    (message,) = bench.tell()
    assert [(b.kind, b.lo, b.hi, b.reason) for b in message.batches] == [(VOID, 6, 106, FILTERED)]
    assert bench.tell() == []
    bench.grow(5)
    bench.serve()
    bench.service.grow(S, 1000 - bench.service.shown_end(S) + 1)
    bench.grow(1)
    bench.serve()
    assert bench.got["a", S] == [1000]
    assert len(bench.messages) == count + 2  # what was held came with the event


def test_the_first_answer_says_where_the_reader_is_even_if_nothing_passes() -> None:
    bench = Bench()
    bench.service.grow(S, 5)
    (message,) = bench.follow("a", "1000")
    assert (bench.at["a", S], message.end) == (6, 6)
    (message,) = bench.follow("b", "1000", start=6)
    assert (message.batches, message.end) == ((), 6)
    bench.ended = [Batch.of(S, [b"end"]).sequenced(5, 5, 1)]
    (message,) = bench.follow("c", "1000", start=6)
    assert message.batches == (bench.ended[0],)


def held_batches_are_bounded() -> None:
    bench = Bench(seed=1)
    bench.service.grow(S, 1)
    bench.follow("a", "100000")
    for _ in range(HELD_MAX + 10):  # ranges with different reasons are not joined
        bench.grow(9, voids=0.4)
        bench.serve()
        assert len(bench.serving.followers[S]["a"].held) <= HELD_MAX
    assert len(bench.messages) == 2


def filters_are_bounded() -> None:
    bench = Bench()
    bench.service.grow(S, 5)
    for number in range(3):
        bench.follow(f"p{number}", f"{number + 1:030}")
    (message,) = bench.follow("late", f"{9:030}")
    assert isinstance(message, Refusal)
    assert "too many filters" in message.why
    assert bench.counters["streams.filter-refused"] == 1
    assert "late" not in bench.serving.followers[S]
    bench.follow("same", f"{1:030}")  # this filter is there
    bench.serving.remove_peer("p1")
    (message,) = bench.follow("late", f"{9:030}")
    assert isinstance(message, Events)


def work_is_bounded() -> None:
    bench = Bench(cost_max=1000)
    bench.service.grow(S, 1)
    for number in range(20):
        bench.follow(f"p{number}", str(number + 2))
    bench.grow(30)
    out: list[Any] = []
    bench.serving.serve(out)
    served = {effect.peer for effect in out if isinstance(effect, Send)}
    assert 0 < len(served) < 10
    bench.take(out)
    bench.serve()
    bench.tell()
    assert {bench.at[f"p{number}", S] for number in range(20)} == {32}


def costly_batches_are_sent_as_they_are() -> None:
    bench = Bench(cost_max=1000)
    bench.service.grow(S, 500)
    bench.follow("a", "10")
    assert bench.got["a", S] == list(range(1, 501))
    assert bench.counters["streams.filter-too-costly"] == 1


PART = "surecast.parts.filtered_serving:"
BOUNDS: list[Row] = [
    (held_batches_are_bounded, Edit(PART + "FilteredServing._serve_one", "> HELD_MAX", "> 10**9")),
    (filters_are_bounded, Edit(
        PART + "FilteredServing._has_filter", "> self.chars_max", "> 10**9"
    )),
    (work_is_bounded, Edit(PART + "Examiner._one", "self.left -= cost", "pass")),
    (costly_batches_are_sent_as_they_are, Edit(
        PART + "Examiner._one", "cost > self.cost_max", "False"
    )),
    (random_followers, Edit(
        PART + "FilteredServing._send", "follower.told, follower.held = follower.at, []",
        "follower.told = follower.at",
    )),
    (random_followers, Edit(
        PART + "FilteredServing._serve_one", "self.untold[stream, peer] = None", "pass"
    )),
]  # fmt: skip


@each_check(BOUNDS)
def test_the_bound_holds_and_the_check_notices_if_it_is_removed(check: Any, edit: Edit) -> None:
    check()
    must_fail(check, edit)


def test_a_filter_that_is_not_valid_is_refused() -> None:
    bench = Bench()
    bench.service.grow(S, 5)
    (message,) = bench.follow("a", "x")
    assert message == Refusal(S, 8, "'x' is not a number")
    assert S not in bench.serving.followers
    assert bench.serving.count == 0


def test_a_filter_is_bound_when_the_stream_is_known() -> None:
    bench = Bench()
    assert bench.follow("a", "5") == []
    assert bench.bound == []
    bench.grow(60)
    bench.serve()
    assert bench.got["a", S] == list(range(5, 61, 5))
    bench.follow("b", "x", stream=T)
    bench.grow(10, T)
    assert any(isinstance(message, Refusal) for message in bench.serve())


def test_a_batch_that_would_become_larger_is_sent_as_it_is() -> None:
    bench = Bench()
    bench.service.grow(S, 400)
    bench.serving.bind = lambda *_: AllButFirst("2")  # type: ignore[assignment,misc]
    bench.follow("a", "2")
    assert bench.got["a", S] == list(range(1, 401))


class AllButFirst(Multiples):
    def apply(self, batch: Batch) -> Batch:
        passes = np.ones(batch.rows, np.bool_)
        passes[0] = False
        return batch.passing(passes)


def test_a_batch_to_which_the_filter_cannot_be_applied_is_sent_as_it_is() -> None:
    class Failing(Multiples):
        def apply(self, batch: Batch) -> Batch:
            raise UsageError("other types")

    bench = Bench()
    bench.service.grow(S, 9)
    bench.serving.bind = lambda *_: Failing("2")  # type: ignore[assignment,misc]
    bench.follow("a", "2")
    assert bench.got["a", S] == list(range(1, 10))
    assert bench.counters["streams.filter-failed"] == 1


def test_a_follower_that_leaves_or_changes_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.service.grow(S, 9)
    bench.service.grow(T, 9)
    bench.follow("a", "1000")
    bench.follow("a", "2")
    bench.follow("a", "3", stream=T)
    bench.follow("b", "2")
    bench.grow(3)
    bench.serve()
    assert set(bench.serving.filters) == {(S, "2"), (T, "3")}
    bench.serving.remove_peer("a")
    bench.serving.remove_stream(S)
    bench.serving.remove(S, "b")
    serving = bench.serving
    assert (serving.filters, serving.followers, serving.count, serving.chars) == ({}, {}, 0, 0)
    assert serving.untold == {}
    assert serving.has_room(S, "a", 1)
    assert not serving.has_room(S, "a", 0)


def test_neighbouring_void_ranges_are_joined_by_reason() -> None:
    ranges = [(1, 3, FILTERED), (3, 9, FILTERED), (9, 10, COLLECTED), (10, 12, FILTERED)]
    made = without_neighbours([Batch.void(S, *one, time_ns=one[0]) for one in ranges])
    assert [(b.lo, b.hi, b.reason, b.time_ns) for b in made] == [
        (1, 9, FILTERED, 3), (9, 10, COLLECTED, 9), (10, 12, FILTERED, 10),
    ]  # fmt: skip


def test_a_follower_far_behind_waits_for_its_piece_and_others_do_not() -> None:
    bench = Bench()
    for _ in range(8):
        bench.grow(5)
    asked: list[tuple[LogId, int]] = []
    bench.plain.load = lambda stream, lo, _hi, _out: asked.append((stream, lo))
    bench.service.cold = 11
    assert bench.follow("late", "2") == []
    bench.follow("live", "2", 41)
    bench.grow(4)
    bench.serve()
    assert (bench.at["live", S], bench.at["late", S]) == (45, 1)
    assert asked == [(S, 1)]  # requested once
    bench.service.cold = 0
    out: list[Any] = []
    bench.serving.loaded(S, 2, out)  # another piece
    assert out == []
    bench.serving.loaded(S, 1, out)
    bench.take(out)
    bench.serve()
    bench.tell()
    assert bench.at["late", S] == 45
    assert set(bench.got["late", S]) >= set(passing(2, bench.service, 1))


def test_a_follower_that_left_gets_nothing_of_a_loaded_piece() -> None:
    bench = Bench()
    bench.grow(5)
    bench.plain.load = lambda *_: None
    bench.service.cold = 11
    bench.follow("late", "2")
    bench.serving.remove(S, "late")
    out: list[Any] = []
    bench.serving.loaded(S, 1, out)
    assert out == []
