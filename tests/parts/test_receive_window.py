"""A receive window against a plain twin: whatever comes in whatever order, each position once."""

import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.columns.batch import COLLECTED, Batch
from surecast.parts.receive_window import Ask, ReceiveWindow

STREAM = bytes(range(16))
END = 60  # positions of the stream that is cut into batches below


def batch(lo: int, hi: int, void: bool = False) -> Batch:
    if void:
        return Batch.void(STREAM, lo, hi, COLLECTED)
    values = [b"event %d" % seq for seq in range(lo, hi)]
    return Batch.of(STREAM, values).sequenced(lo, 5, 1)


def window(start: int = 1) -> ReceiveWindow:
    return ReceiveWindow(STREAM, start, start)


spans = st.tuples(st.integers(1, END - 1), st.integers(1, 12)).map(
    lambda s: (s[0], min(s[0] + s[1], END))
)
arrivals = st.lists(st.lists(st.tuples(spans, st.booleans()), max_size=4), max_size=30)


def rows(batches: list[Batch]) -> dict[int, bytes]:
    return {row.seq: row.value for one in batches for row in one.to_rows()}


class Twin:
    """Sets of positions; nothing is ever too much for it."""

    def __init__(self, start: int) -> None:
        self.position = start
        self.got: set[int] = set()

    def take(self, lo: int, hi: int) -> None:
        self.got.update(range(lo, hi))
        while self.position in self.got:
            self.position += 1


@pytest.mark.slow
@given(arrivals, st.integers(1, 30))
@settings(max_examples=200)
def test_each_position_is_delivered_once_and_in_order(
    messages: list[list[tuple[tuple[int, int], bool]]], start: int
) -> None:
    one, twin = window(start), Twin(start)
    delivered: list[Batch] = []
    at = start
    for message in messages:
        ready = one.take(tuple(batch(*span, void) for span, void in message), 1 << 30)
        for span, _ in message:
            twin.take(*span)
        for part in ready:
            assert part.lo == at
            at = part.hi
        delivered += ready
        assert one.position == at <= twin.position
        # Whatever is not here is seen to be missing, so that it can be asked for.
        gaps = {s for lo, hi in one.missing(one.position, END) for s in range(lo, hi)}
        held = {s for early in one.early for s in range(early.lo, early.hi)}
        assert gaps.isdisjoint(held)
        assert gaps | held == set(range(one.position, END))
        assert held <= twin.got
        assert one.early_bytes == sum(early.nbytes for early in one.early)
        assert all(a.hi <= b.lo for a, b in zip(one.early, one.early[1:], strict=False))
    assert all(value == b"event %d" % seq for seq, value in rows(delivered).items())


@pytest.mark.slow
@given(arrivals, st.integers(100, 1500), st.integers(100, 1500))
@settings(max_examples=200)
def test_g11_buffers_stay_below_their_caps(
    messages: list[list[tuple[tuple[int, int], bool]]], early_max: int, keep_max: int
) -> None:
    one = window()
    one.next = END
    for message in messages:
        for part in one.take(tuple(batch(*span, void) for span, void in message), early_max):
            one.keep(part, keep_max)
        assert sum(early.nbytes for early in one.early) == one.early_bytes <= early_max
        kept = one.kept[one.kept_from :]
        assert sum(old.nbytes for old in kept) == one.kept_bytes <= keep_max
        assert all(a.hi == b.lo for a, b in itertools.pairwise(kept))
        assert not kept or kept[-1].hi == one.position
        assert one.position <= one.next
        # Nothing that was let go is still referred to (it may be large).
        assert {old.stream_id for old in one.kept[: one.kept_from]} <= {bytes(16)}


def test_old_batches_are_let_go_at_once_however_few_they_are() -> None:
    """A list that is tidied only now and then would hold the last 64 of any size."""
    one = window()
    batches = [batch(n, n + 1) for n in range(1, 30)]
    for new in batches:
        one.keep(new, 2 * new.nbytes)
    assert [old for old in one.kept if old.stream_id == STREAM] == batches[-2:]


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=40),
    st.integers(0, 39),
    st.tuples(st.integers(0, 130), st.integers(0, 130)),
)
@settings(max_examples=200)
def test_held_gives_whole_batches_that_cover_some_of_it(
    sizes: list[int], forgotten: int, asked: tuple[int, int]
) -> None:
    one, at = window(), 1
    for size in sizes:
        one.keep(batch(at, at + size), 1 << 30)
        at += size
    one.kept_from = min(forgotten, len(sizes))
    lo, hi = asked
    if lo < hi:  # who answers a request sees to that
        expected = [b for b in one.kept[one.kept_from :] if b.lo < hi and b.hi > lo]
        assert one.held(lo, hi) == expected


@given(st.lists(spans, max_size=8), st.lists(spans, max_size=8), spans)
@settings(max_examples=200)
def test_missing_is_what_is_neither_here_nor_asked_for(
    early: list[tuple[int, int]], asked: list[tuple[int, int]], within: tuple[int, int]
) -> None:
    one = window()
    one.position = 1
    for lo, hi in early:
        one._hold(batch(lo, hi))
    one.asks = [Ask("p", lo, hi, 0, 0) for lo, hi in asked]
    one.asks.append(Ask("s0", 3, 0, 0, 0))  # nobody knows how far that reaches
    covered = {s for b in one.early for s in range(b.lo, b.hi)}
    covered |= {s for lo, hi in asked for s in range(lo, hi)}
    found = one.missing(*within)
    assert {s for lo, hi in found for s in range(lo, hi)} == set(range(*within)) - covered
    assert found == sorted(found)
    assert all(lo < hi for lo, hi in found)


def test_an_answer_in_parts_is_done_with_the_last() -> None:
    one = window()
    ask = Ask("p", 10, 20, 0, 0)
    other = Ask("q", 10, 20, 0, 0)
    one.asks = [other, ask]
    assert one.answered("p", 10, 14, False) is ask
    assert (ask.lo, ask.hi) == (14, 20)
    assert one.missing(10, 20) == []  # q was asked for it, too
    one.asks.remove(other)
    assert one.missing(10, 20) == [(10, 14)]
    assert one.answered("p", 10, 20, True) is None  # of something else, long ago
    assert one.answered("p", 14, 20, True) is ask
    assert one.asks == []


def test_requests_of_the_same_start_are_answered_in_their_order() -> None:
    one = window()
    first, second = Ask("s0", 5, 0, 0, 0), Ask("s0", 5, 9, 0, 0)
    one.asks = [first, second]
    assert one.answered("s0", 5, 7, False) is first
    assert one.answered("s0", 7, 7, True) is first
    assert one.answered("s0", 5, 9, True) is second


def test_a_long_shuffled_stream_with_repeats_and_little_room() -> None:
    """Asked again for what is missing, it comes out whole, however it is dealt."""
    for seed in range(5):
        rng, one, at = Random(seed), window(), 1
        cut, cuts = 1, []
        while cut < 2000:
            cuts.append(batch(cut, cut + (size := rng.randrange(1, 40)), rng.random() < 0.2))
            cut += size
        while one.position < cut:
            wanted = [b for b in cuts if b.hi > one.position][:30]
            dealt = rng.choices(wanted, k=6)
            for part in one.take(tuple(dealt), 4000):
                assert part.lo == at, seed
                at = part.hi
            assert one.early_bytes <= 4000, seed
        assert one.early == []
