"""IntervalSet against a Python set of ints, and its wire form against hostile bytes."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from surecast.columns import intervals as intervals_module
from surecast.columns import runs
from surecast.columns.intervals import POSITION_MAX, IntervalSet
from surecast.errors import PeerError
from tests.columns.streams import THOROUGH

POSITIONS = st.integers(0, 80)
RANGES = st.tuples(POSITIONS, st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair)))
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["add", "discard", "clip", "gaps"]), RANGES),
    st.tuples(st.just("add_many"), st.lists(POSITIONS, max_size=30)),
    st.tuples(st.sampled_from(["update", "difference_update"]), st.lists(RANGES, max_size=12)),
)


@pytest.fixture(params=[2, 16], ids=["bulk", "one by one"], autouse=True)
def few_runs(request, monkeypatch):
    """Run the small sets of these tests through both code paths, for few and for many runs."""
    monkeypatch.setattr(intervals_module, "_FEW_RUNS", request.param)


def ints(intervals: IntervalSet) -> set[int]:
    return {position for lo, hi in intervals for position in range(lo, hi)}


def check_shape(intervals: IntervalSet) -> None:
    runs = list(intervals)
    assert all(lo < hi for lo, hi in runs)
    assert all(left[1] < right[0] for left, right in pairwise(runs))


def build(runs: list[tuple[int, int]], scattered: list[int]) -> tuple[IntervalSet, set[int]]:
    made = IntervalSet(runs)
    made.add_many(np.array(scattered, np.int64))  # may stay in the buffer
    return made, {p for lo, hi in runs for p in range(lo, hi)} | set(scattered)


MANY_RUNS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@example([("add_many", [0] * 5), ("difference_update", MANY_RUNS)])
@example([("add", (0, 1)), ("add_many", [0, 0, 0, 0, 1]), ("difference_update", MANY_RUNS)])
@given(st.lists(CHANGES, max_size=40))
def test_changes_follow_a_set_of_ints(changes) -> None:
    intervals, model = IntervalSet(), set()
    for change, argument in changes:
        if change == "add_many":
            intervals.add_many(np.array(argument, np.int64))
            model |= set(argument)
        elif change in ("update", "difference_update"):
            getattr(intervals, change)(IntervalSet(argument))
            getattr(model, change)(p for lo, hi in argument for p in range(lo, hi))
        else:
            wanted = set(range(*argument))
            answer = getattr(intervals, change)(*argument)
            if change == "add":
                model |= wanted
            elif change == "discard":
                model -= wanted
            else:
                assert ints(answer) == (wanted & model if change == "clip" else wanted - model)
                check_shape(answer)
    assert ints(intervals) == model
    check_shape(intervals)


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@given(
    st.lists(RANGES, max_size=12),
    st.lists(POSITIONS, max_size=40),
    st.lists(RANGES, max_size=12),
    st.lists(POSITIONS, max_size=40),
)
def test_set_algebra(runs, scattered, other_runs, other_scattered) -> None:
    left, left_model = build(runs, scattered)
    right, right_model = build(other_runs, other_scattered)
    for name in ("union", "intersection", "difference"):
        answer = getattr(left, name)(right)
        assert ints(answer) == getattr(left_model, name)(right_model), name
        check_shape(answer)
    assert ints(left) == left_model  # nothing above changed its operands
    assert ints(right) == right_model
    assert (left == right) == (left_model == right_model)
    assert left == left.copy()
    assert left.copy() is not left


@given(st.lists(RANGES, max_size=12), st.lists(POSITIONS, max_size=40), RANGES)
def test_queries_follow_a_set_of_ints(runs, scattered, bounds) -> None:
    lo, hi = bounds
    for query, answer in {
        "bool": lambda model: bool(model),
        "total": lambda model: len(model),
        "lowest": lambda model: min(model, default=None),
        "highest": lambda model: max(model, default=None),
        "contains": lambda model: lo in model,
        "contains_range": lambda model: set(range(lo, hi)) <= model,
        "lowest_missing": lambda model: next(p for p in range(lo, 1000) if p not in model),
        "contains_many": lambda model: [p in model for p in range(90)],
    }.items():
        intervals, model = build(runs, scattered)  # new for each query, which may merge the buffer
        method = {
            "bool": lambda s: bool(s),
            "total": lambda s: s.total(),
            "lowest": lambda s: s.lowest(),
            "highest": lambda s: s.highest(),
            "contains": lambda s: lo in s,
            "contains_range": lambda s: s.contains_range(lo, hi),
            "lowest_missing": lambda s: s.lowest_missing(lo),
            "contains_many": lambda s: s.contains_many(np.arange(90)).tolist(),
        }[query]
        assert method(intervals) == answer(model), query


@given(st.lists(RANGES, max_size=30))
def test_from_arrays_takes_any_order_and_overlap(runs) -> None:
    made = IntervalSet.from_arrays([lo for lo, _ in runs], [hi for _, hi in runs])
    assert made == IntervalSet(runs)
    check_shape(made)


def test_touching_runs_are_merged() -> None:
    assert list(IntervalSet([(1, 3), (5, 7), (3, 5)])) == [(1, 7)]
    scattered = IntervalSet()
    scattered.add_many(np.array([9, 7, 8, 6, 5, 7], np.int64))
    assert list(scattered) == [(5, 10)]


def test_an_empty_range_adds_nothing() -> None:
    assert not IntervalSet([(5, 5), (7, 3)])


def test_add_many_keeps_no_reference_to_its_argument() -> None:
    positions = np.arange(10, 30, 2)
    intervals = IntervalSet()
    intervals.add_many(positions)
    positions[:] = 0
    assert intervals.lowest() == 10


def test_many_scattered_positions_with_queries_in_between() -> None:
    rng = np.random.default_rng(5)
    intervals, model = IntervalSet(), np.zeros(200_000, np.bool_)
    for step in range(60):
        positions = rng.integers(0, model.size, 3000)
        intervals.add_many(positions)
        model[positions] = True
        lo = int(rng.integers(0, model.size - 500))
        found = np.zeros(500, np.bool_)
        for first, last in intervals.clip(lo, lo + 500):
            found[first - lo : last - lo] = True
        assert (found == model[lo : lo + 500]).all()
        if step % 20 == 0:
            assert intervals.total() == int(model.sum())
    assert intervals.total() == int(model.sum())
    check_shape(intervals)


# ---------------------------------------------------------------- wire form


@given(st.lists(st.tuples(st.integers(0, 2**60), st.integers(1, 2**60)), max_size=40))
def test_wire_form_round_trip(pairs) -> None:
    intervals = IntervalSet((lo, lo + size) for lo, size in pairs)
    assert IntervalSet.from_bytes(intervals.to_bytes(), runs_max=40) == intervals


def test_wire_form_is_compact() -> None:
    every_other = IntervalSet.from_arrays(np.arange(0, 20_000, 2), np.arange(1, 20_001, 2))
    assert len(every_other.to_bytes()) < 2 * 10_000 + 4


@settings(max_examples=THOROUGH)
@given(st.binary(max_size=60))
def test_any_bytes_decode_to_a_set_or_raise_peer_error(data) -> None:
    try:
        intervals = IntervalSet.from_bytes(data, runs_max=16)
    except PeerError:
        return
    check_shape(intervals)
    assert intervals.to_bytes() == data  # each set has exactly one encoding


@given(st.lists(RANGES, min_size=1, max_size=12), st.data())
def test_cut_or_extended_bytes_are_refused(runs, data) -> None:
    intervals = IntervalSet(runs)
    whole = intervals.to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(PeerError):
        IntervalSet.from_bytes(whole[:cut], runs_max=100)
    with pytest.raises(PeerError):
        IntervalSet.from_bytes(whole + b"\x01", runs_max=100)


def test_more_runs_than_allowed_are_refused() -> None:
    intervals = IntervalSet((lo, lo + 1) for lo in range(0, 40, 2))
    assert IntervalSet.from_bytes(intervals.to_bytes(), runs_max=20) == intervals
    with pytest.raises(PeerError, match="too high"):
        IntervalSet.from_bytes(intervals.to_bytes(), runs_max=19)
    with pytest.raises(PeerError, match="exceeds"):
        IntervalSet.from_bytes(b"\x01" * 1000, runs_max=19)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x01\x05\x00", id="empty run"),
        pytest.param(b"\x02\x05\x01\x00\x01", id="touching runs"),
        pytest.param(b"\x01\x85\x00\x01", id="padded number"),
        pytest.param(b"\x01" + b"\xff" * 9 + b"\x01\x01", id="number too long"),
        pytest.param(b"\x01" + b"\xff" * 8 + b"\x7f\x01", id="number too large"),
        pytest.param(b"\x03" + (b"\xff" * 8 + b"\x1f") * 6, id="sum of steps beyond 64 bits"),
    ],
)
def test_encodings_that_to_bytes_never_writes_are_refused(data) -> None:
    with pytest.raises(PeerError):
        IntervalSet.from_bytes(data, runs_max=16)


def test_the_highest_position_can_be_encoded() -> None:
    intervals = IntervalSet([(0, 1), (POSITION_MAX - 1, POSITION_MAX)])
    assert IntervalSet.from_bytes(intervals.to_bytes(), runs_max=2) == intervals
    for lo, hi in ((POSITION_MAX - 1, POSITION_MAX + 1), (POSITION_MAX, POSITION_MAX + 1)):
        with pytest.raises(ValueError, match="no wire form"):
            IntervalSet([(lo, hi)]).to_bytes()


def test_negative_positions_have_no_wire_form() -> None:
    with pytest.raises(ValueError, match="no wire form"):
        IntervalSet([(-2, 5)]).to_bytes()


@pytest.fixture(params=["compiled", "numpy"])
def kernels(request, monkeypatch):
    """Run each test with both implementations of merging and lookup."""
    compiled = intervals_module.Kernels(
        runs.sort_positions, runs.merge_positions, runs.cover_positions, runs.DIGITS
    )
    monkeypatch.setattr(
        intervals_module, "_kernels", compiled if request.param == "compiled" else None
    )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("seed", range(8))
def test_bulk_operations_follow_a_set_of_ints(seed) -> None:
    """Enough positions for several merges, near each other and far apart."""
    rng = Random(seed)
    made, model = IntervalSet(), set()
    top = rng.choice([100, 30_000, 1 << 40])
    for _ in range(12):
        if rng.random() < 0.3:
            lo = rng.randrange(top)
            made.add(lo, lo + 5)
            model.update(range(lo, lo + 5))
        positions = [rng.randrange(top) for _ in range(rng.choice([3, 50, 5000]))]
        made.add_many(positions)
        model.update(positions)
    assert made == IntervalSet.from_arrays(
        sorted(model), [position + 1 for position in sorted(model)]
    )
    positions_sought = [*sorted(rng.randrange(top) for _ in range(2000)), top]
    found = made.contains_sorted(np.array(positions_sought))
    assert found.tolist() == [position in model for position in positions_sought]
    assert made.contains_sorted(np.array(positions_sought[1900:])).tolist() == found.tolist()[1900:]
