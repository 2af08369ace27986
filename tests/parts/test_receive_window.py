"""A receive window against a plain model: every position is delivered once and in order."""

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
    return {row.seq: row.value for part in batches for row in part.to_rows()}


class UnboundedWindow:
    """A model of the window: a set of positions without bounds."""

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
    win, model = window(start), UnboundedWindow(start)
    delivered: list[Batch] = []
    at = start
    for message in messages:
        ready = win.take(tuple(batch(*span, void) for span, void in message), 1 << 30)
        for span, _ in message:
            model.take(*span)
        for part in ready:
            assert part.lo == at
            at = part.hi
        delivered += ready
        assert win.position == at <= model.position
        # Every position that is not held is reported missing, so that it can be requested.
        gaps = {s for lo, hi in win.missing(win.position, END) for s in range(lo, hi)}
        held = {s for early in win.early for s in range(early.lo, early.hi)}
        assert gaps.isdisjoint(held)
        assert gaps | held == set(range(win.position, END))
        assert held <= model.got
        assert win.early_bytes == sum(early.nbytes for early in win.early)
        assert all(a.hi <= b.lo for a, b in zip(win.early, win.early[1:], strict=False))
    assert all(value == b"event %d" % seq for seq, value in rows(delivered).items())


@pytest.mark.slow
@given(arrivals, st.integers(100, 1500), st.integers(100, 1500))
@settings(max_examples=200)
def test_g11_buffers_stay_below_their_caps(
    messages: list[list[tuple[tuple[int, int], bool]]], early_max: int, keep_max: int
) -> None:
    win = window()
    win.next = END
    for message in messages:
        for part in win.take(tuple(batch(*span, void) for span, void in message), early_max):
            win.keep(part, keep_max)
        assert sum(early.nbytes for early in win.early) == win.early_bytes <= early_max
        kept = win.kept[win.kept_from :]
        assert sum(old.nbytes for old in kept) == win.kept_bytes <= keep_max
        assert all(a.hi == b.lo for a, b in itertools.pairwise(kept))
        assert not kept or kept[-1].hi == win.position
        assert win.position <= win.next
        # Dropped batches, which may be large, are no longer referenced.
        assert {old.stream_id for old in win.kept[: win.kept_from]} <= {bytes(16)}


def test_old_batches_are_dropped_at_once_even_if_few() -> None:
    """A list that is trimmed only at times would hold the last 64 batches of any size."""
    win = window()
    batches = [batch(n, n + 1) for n in range(1, 30)]
    for new in batches:
        win.keep(new, 2 * new.nbytes)
    assert [old for old in win.kept if old.stream_id == STREAM] == batches[-2:]


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=40),
    st.integers(0, 39),
    st.tuples(st.integers(0, 130), st.integers(0, 130)),
)
@settings(max_examples=200)
def test_held_returns_whole_batches_that_overlap_the_range(
    sizes: list[int], forgotten: int, requested: tuple[int, int]
) -> None:
    win, at = window(), 1
    for size in sizes:
        win.keep(batch(at, at + size), 1 << 30)
        at += size
    win.kept_from = min(forgotten, len(sizes))
    lo, hi = requested
    if lo < hi:  # checked by the caller
        expected = [b for b in win.kept[win.kept_from :] if b.lo < hi and b.hi > lo]
        assert win.held(lo, hi) == expected


@given(st.lists(spans, max_size=8), st.lists(spans, max_size=8), spans)
@settings(max_examples=200)
def test_missing_positions_are_neither_held_nor_requested(
    early: list[tuple[int, int]], requested: list[tuple[int, int]], within: tuple[int, int]
) -> None:
    win = window()
    win.position = 1
    for lo, hi in early:
        win._hold(batch(lo, hi))
    win.asks = [Ask("p", lo, hi, 0, 0) for lo, hi in requested]
    win.asks.append(Ask("s0", 3, 0, 0, 0))  # an open request: its end is unknown
    covered = {s for b in win.early for s in range(b.lo, b.hi)}
    covered |= {s for lo, hi in requested for s in range(lo, hi)}
    found = win.missing(*within)
    assert {s for lo, hi in found for s in range(lo, hi)} == set(range(*within)) - covered
    assert found == sorted(found)
    assert all(lo < hi for lo, hi in found)


def test_a_request_ends_with_the_last_part_of_its_answer() -> None:
    win = window()
    ask = Ask("p", 10, 20, 0, 0)
    other = Ask("q", 10, 20, 0, 0)
    win.asks = [other, ask]
    assert win.answered("p", 10, 14, False) is ask
    assert (ask.lo, ask.hi) == (14, 20)
    assert win.missing(10, 20) == []  # it is requested from q, too
    win.asks.remove(other)
    assert win.missing(10, 20) == [(10, 14)]
    assert win.answered("p", 10, 20, True) is None  # an answer to an earlier request
    assert win.answered("p", 14, 20, True) is ask
    assert win.asks == []


def test_requests_with_the_same_start_are_answered_in_order() -> None:
    win = window()
    first, second = Ask("s0", 5, 0, 0, 0), Ask("s0", 5, 9, 0, 0)
    win.asks = [first, second]
    assert win.answered("s0", 5, 7, False) is first
    assert win.answered("s0", 7, 7, True) is first
    assert win.answered("s0", 5, 9, True) is second


def test_a_long_shuffled_stream_with_repeats_is_delivered_within_the_bound() -> None:
    """If missing parts are requested again, the whole stream is delivered in any case."""
    for seed in range(5):
        rng, win, at = Random(seed), window(), 1
        cut, cuts = 1, []
        while cut < 2000:
            cuts.append(batch(cut, cut + (size := rng.randrange(1, 40)), rng.random() < 0.2))
            cut += size
        while win.position < cut:
            missing = [b for b in cuts if b.hi > win.position][:30]
            received = rng.choices(missing, k=6)
            for part in win.take(tuple(received), 4000):
                assert part.lo == at, seed
                at = part.hi
            assert win.early_bytes <= 4000, seed
        assert win.early == []
