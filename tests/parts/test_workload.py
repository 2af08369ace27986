"""Workload generators against exact probabilities and reference implementations."""

import math
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.errors import UsageError
from surecast.parts.workload import (
    Zeta,
    Zipf,
    key_column,
    keys_at_ranks,
    poisson_arrivals,
    population,
    zeta,
)

DRAWS = 200_000


def chi_square_excess(observed, expected):
    """The number of standard deviations by which the statistic exceeds its mean.

    Neighbouring cells are pooled until at least five are expected in each.
    """
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    fives = np.floor(np.cumsum(expected) / 5)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(fives)) + 1))
    means = np.add.reduceat(expected, starts)
    cells = np.add.reduceat(observed, starts)
    freedom = means.size - 1
    assert freedom > 0
    statistic = float(((cells - means) ** 2 / means).sum())
    return (statistic - freedom) / math.sqrt(2 * freedom)


def counts_of(ranks, highest):
    """How often each rank 1..highest was drawn, and last the number of higher ranks."""
    counted = np.bincount(np.minimum(ranks, highest + 1), minlength=highest + 2)
    return counted[1:]


def expected_of(law, highest, draws):
    below = law.probabilities(highest)
    return draws * np.append(below, 1 - below.sum())


# ---------------------------------------------------------------- Zipf


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.1, 2.0])
@pytest.mark.parametrize("n", [1, 2, 1000, 100_000])
def test_zipf_fits_its_exact_probabilities(n, skew):
    law = Zipf(n, skew)
    ranks = law.sample(np.random.default_rng(1), DRAWS)
    assert ranks.min() >= 1
    assert ranks.max() <= n
    if n > 1:
        counted = np.bincount(ranks, minlength=n + 1)[1:]
        assert chi_square_excess(counted, DRAWS * law.probabilities()) < 4
    assert law.probabilities().sum() == pytest.approx(1)


def test_the_goodness_of_fit_test_can_fail():
    ranks = Zipf(1000, 1.1).sample(np.random.default_rng(1), DRAWS)
    counted = np.bincount(ranks, minlength=1001)[1:]
    assert chi_square_excess(counted, DRAWS * Zipf(1000, 1.13).probabilities()) > 4
    one_off = np.roll(counted, 1)
    assert chi_square_excess(one_off, DRAWS * Zipf(1000, 1.1).probabilities()) > 4


def test_zipf_over_a_growing_set_is_exact_for_each_size():
    law = Zipf(500, 1.3)
    sizes = np.tile(np.array([1, 7, 500], np.int64), DRAWS)
    ranks = law.sample_among(np.random.default_rng(2), sizes)
    for size in (1, 7, 500):
        mine = ranks[sizes == size]
        counted = np.bincount(mine, minlength=size + 1)[1:]
        assert counted.size == size, "a rank beyond the set was drawn"
        if size > 1:
            assert chi_square_excess(counted, DRAWS * Zipf(size, 1.3).probabilities()) < 4


class AlmostOne:
    """A generator whose every draw is the greatest double below 1."""

    def random(self, size):
        return np.full(size, np.nextafter(1.0, 0.0))


@pytest.mark.parametrize("skew", [0.0, 1.1, 3.0])
def test_the_greatest_draw_still_gives_a_rank_of_the_set(skew):
    law = Zipf(10_000, skew)
    assert law.sample(AlmostOne(), 3).max() <= 10_000
    sizes = np.arange(1, 10_001)
    assert (law.sample_among(AlmostOne(), sizes) <= sizes).all()


def test_zipf_refuses_invalid_parameters():
    with pytest.raises(UsageError, match="n >= 1"):
        Zipf(0, 1.1)
    with pytest.raises(UsageError, match="sizes"):
        Zipf(5, 1.1).sample_among(np.random.default_rng(0), np.array([6]))


# ---------------------------------------------------------------- Zeta


def test_zeta_function_against_known_values():
    assert zeta(2.0) == pytest.approx(math.pi**2 / 6, rel=1e-14)
    assert zeta(4.0) == pytest.approx(math.pi**4 / 90, rel=1e-14)
    assert zeta(1.1) == pytest.approx(10.584448464950809, rel=1e-13)
    assert zeta(2.0, 5) == pytest.approx(math.pi**2 / 6 - sum(k**-2.0 for k in range(1, 5)))
    assert zeta(1.5, 1000) + sum(k**-1.5 for k in range(1, 1000)) == pytest.approx(zeta(1.5))


@pytest.mark.parametrize("skew", [1.1, 1.5, 2.5])
def test_zeta_fits_the_law_restricted_to_63_bits(skew):
    law = Zeta(skew)
    ranks = law.sample(np.random.default_rng(3), DRAWS)
    assert ranks.min() >= 1
    inside = 1 - law.tail(2**63)
    below = law.probabilities(10_000) / inside
    expected = DRAWS * np.append(below, 1 - below.sum())
    assert chi_square_excess(counts_of(ranks, 10_000), expected) < 4


@pytest.mark.parametrize("skew", [1.1, 1.2])
def test_zeta_fits_for_ranks_that_doubles_cannot_distinguish(skew):
    """There, 1 + 1/rank rounds to 1, and numpy's own `zipf` draws half as many again."""
    law = Zeta(skew)
    ranks = law.sample(np.random.default_rng(8), DRAWS)
    edges = [1, 2**20, 2**40, 2**50, 2**53, 2**56, 2**60, 2**63]
    counted = [int(((ranks >= lo) & (ranks < hi)).sum()) for lo, hi in pairwise(edges)]
    from_on = np.array([law.tail(edge) for edge in edges])
    expected = -np.diff(from_on) / (1 - from_on[-1]) * DRAWS
    assert chi_square_excess(counted, expected) < 4


def test_the_tail_of_zeta_is_as_large_as_documented():
    assert Zeta(1.1).tail(2**63) == pytest.approx(0.012, abs=0.0005)
    assert Zeta(1.3).tail(2**63) < 1e-5


@pytest.mark.parametrize("skew", [1.1, 1.5])
def test_clipped_zeta_gives_the_whole_tail_to_the_limit(skew):
    law = Zeta(skew)
    for limit in (1, 2, 50):
        ranks = law.sample_clipped(np.random.default_rng(4), np.full(DRAWS, limit))
        below = law.probabilities(limit - 1) if limit > 1 else np.empty(0)
        counted = np.bincount(ranks, minlength=limit + 1)[1:]
        assert counted.size == limit
        if limit > 1:
            expected = DRAWS * np.append(below, law.tail(limit))
            assert chi_square_excess(counted, expected) < 4


def test_zeta_refuses_a_skew_of_one():
    with pytest.raises(UsageError, match="above 1"):
        Zeta(1.0)
    with pytest.raises(UsageError):
        zeta(1.0)


# ---------------------------------------------------------------- Poisson


def test_poisson_arrivals_have_poisson_counts():
    times = poisson_arrivals(np.random.default_rng(5), 4.0, 400_000)
    assert (np.diff(times) > 0).all()
    ticks = 90_000
    counts = np.bincount(times[times < ticks].astype(int), minlength=ticks)
    highest = 15
    counted = np.bincount(np.minimum(counts, highest), minlength=highest + 1)
    law = [math.exp(-4) * 4**k / math.factorial(k) for k in range(highest)]
    expected = ticks * np.append(law, 1 - sum(law))
    assert chi_square_excess(counted, expected) < 4


# ---------------------------------------------------------------- rank insertion


def keys_at_ranks_twin(new, ranks, initial):
    """A reference implementation with a Python list and its insert."""
    keys = list(range(initial))
    drawn, next_key = [], initial
    for is_new, rank in zip(new, ranks, strict=True):
        if is_new:
            keys.insert(rank - 1, next_key)
            next_key += 1
        drawn.append(keys[rank - 1])
    return drawn


@st.composite
def insertions(draw):
    initial = draw(st.integers(0, 9))
    size, new, ranks = initial, [], []
    for _ in range(draw(st.integers(0, 60))):
        is_new = size == 0 or draw(st.booleans())
        size += is_new
        new.append(is_new)
        ranks.append(draw(st.integers(1, size)))
    return new, ranks, initial


@pytest.mark.slow
@given(insertions())
@settings(max_examples=300, deadline=None)
def test_keys_at_ranks_agrees_with_a_plain_list(case):
    new, ranks, initial = case
    got = keys_at_ranks(np.array(new, bool), np.array(ranks, np.int64), initial)
    assert got.tolist() == keys_at_ranks_twin(new, ranks, initial)


def test_keys_at_ranks_agrees_with_a_plain_list_for_many_ranks():
    rng = np.random.default_rng(6)
    new = rng.random(20_000) < 0.3
    size_after = 100 + np.cumsum(new)
    ranks = 1 + (rng.random(20_000) ** 3 * size_after).astype(np.int64)
    got = keys_at_ranks(new, ranks, 100)
    assert got.tolist() == keys_at_ranks_twin(new.tolist(), ranks.tolist(), 100)


@pytest.mark.parametrize(("new", "ranks"), [([True], [2]), ([True], [0]), ([False], [1])])
def test_keys_at_ranks_refuses_a_rank_outside_the_list(new, ranks):
    with pytest.raises(UsageError, match="rank"):
        keys_at_ranks(np.array(new), np.array(ranks))


def test_population_inserts_and_updates_at_their_rates():
    made = population(
        np.random.default_rng(7), skew=1.1, updates=20, inserts=10, events=150_000, initial=50
    )
    ticks = made.time[-1]
    assert made.new.sum() / ticks == pytest.approx(10, rel=0.02)
    assert (~made.new).sum() / ticks == pytest.approx(20, rel=0.02)
    assert made.key[made.new].tolist() == list(range(50, 50 + int(made.new.sum())))
    inserted_at = np.flatnonzero(made.new)
    updated = np.flatnonzero(~made.new & (made.key >= 50))
    assert (inserted_at[made.key[updated] - 50] < updated).all(), (
        "a key was updated before its insertion"
    )


def test_a_population_without_initial_keys_begins_with_an_insertion():
    for seed in range(20):
        made = population(np.random.default_rng(seed), skew=1.5, updates=1000, inserts=1, events=10)
        assert made.new[0]
        assert made.key[0] == 0


def test_population_without_insertions_is_zipf():
    law = Zipf(300, 1.2)
    made = population(
        np.random.default_rng(8), skew=1.2, updates=5, inserts=0, events=DRAWS, initial=300
    )
    assert not made.new.any()
    counted = np.bincount(made.key, minlength=300)
    assert chi_square_excess(counted, DRAWS * law.probabilities()) < 4


def test_new_keys_at_the_end_keep_the_ranks_of_old_keys():
    made = population(
        np.random.default_rng(9), skew=1.1, updates=1, inserts=1, events=20_000, newcomers="last"
    )
    counts = np.bincount(made.key[~made.new])
    assert counts[0] == counts.max(), "the first key must stay the most popular"
    faded = population(np.random.default_rng(9), skew=1.1, updates=1, inserts=1, events=20_000)
    assert np.bincount(faded.key[~faded.new])[0] < counts[0] / 10


def test_a_population_depends_only_on_its_random_generator():
    def made(seed):
        rng = np.random.default_rng(seed)
        return population(rng, skew=1.1, updates=20, inserts=10, events=5_000)

    assert (made(1).key == made(1).key).all()
    assert (made(1).key != made(2).key).any()


# ---------------------------------------------------------------- bytes


def test_key_column_has_eight_bytes_per_key_and_keeps_the_order_of_ids():
    ids = np.array([0, 1, 255, 256, 2**62, 7], np.int64)
    offsets, data = key_column(ids)
    assert offsets.dtype == np.int32
    assert offsets.tolist() == [0, 8, 16, 24, 32, 40, 48]
    keys = [data[a:b].tobytes() for a, b in pairwise(offsets)]
    assert keys == [int(i).to_bytes(8, "big") for i in ids]
    assert sorted(keys) == [keys[i] for i in np.argsort(ids)]


def test_key_column_of_an_empty_and_of_a_strided_array():
    offsets, data = key_column(np.empty(0, np.int64))
    assert (offsets.tolist(), data.size) == ([0], 0)
    _, data = key_column(np.arange(10, dtype=np.int64)[::3])
    assert data.reshape(-1, 8)[:, -1].tolist() == [0, 3, 6, 9]


def test_importing_the_generators_imports_neither_numba_nor_pyarrow():
    code = (
        "import sys, surecast.parts.workload, surecast_lab.lab; surecast_lab.lab.experiments();"
        "print([m for m in ('numba', 'pyarrow', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
