"""Synthetic workloads for benchmarks, experiments and Spark jobs: which key is updated when.

The popularity of keys is given by *rank*: rank 1 is the most popular key. `Zipf` draws ranks of a
finite set, `Zeta` of an unbounded set. A `population` inserts new keys over time: a new key takes a
rank, and every key from that rank on moves down by one, so old keys slowly become less popular.

Everything is vectorised and takes its numpy `Generator` as an argument, so ten million events take
a few seconds. One loop cannot be vectorised: following keys through millions of rank insertions. It
is a numba kernel, compiled (and cached on disk) on first use; importing this module does not import
numba.
"""

from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from surecast.errors import UsageError

__all__ = [
    "KEY_SIZE",
    "KeyEvents",
    "Newcomers",
    "Zeta",
    "Zipf",
    "key_column",
    "keys_at_ranks",
    "poisson_arrivals",
    "population",
    "zeta",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Newcomers = Literal["zeta", "last"]

KEY_SIZE = 8  # bytes of a key made by `key_column`


# ---------------------------------------------------------------- popularity


class Zipf:
    """Ranks 1..n. The probability of rank k is proportional to k**-skew; any skew >= 0.

    Sampling inverts the exact cumulative distribution, so there is no rejection and no
    approximation beyond the 53 bits of a uniform double.
    """

    __slots__ = ("_weight_below", "n", "skew")

    def __init__(self, n: int, skew: float) -> None:
        if n < 1 or skew < 0:
            raise UsageError(f"Zipf needs n >= 1 and skew >= 0, not n={n}, skew={skew}")
        self.n = n
        self.skew = skew
        self._weight_below = _cumulative_weights(n, skew)  # [k - 1]: of the ranks up to k

    def probabilities(self) -> Floats:
        """The probability of each rank, in order of rank."""
        weights: Floats = np.arange(1, self.n + 1, dtype=np.float64) ** -self.skew
        return weights / float(self._weight_below[-1])

    def sample(self, rng: Generator, size: int) -> Ints:
        """`size` independent ranks."""
        return self._ranks(rng.random(size) * self._weight_below[-1], self.n)

    def sample_among(self, rng: Generator, sizes: Ints) -> Ints:
        """One rank for each element of `sizes`, drawn by Zipf from the first `sizes[i]` ranks only.

        A growing set needs no new table for each size. The weights of its first m ranks are the
        first m weights here, so it is exact to scale the uniform draw by their sum.
        """
        if sizes.size and not 1 <= int(sizes.min()) <= int(sizes.max()) <= self.n:
            raise UsageError(f"sizes must lie in 1..{self.n}")
        return self._ranks(rng.random(sizes.size) * self._weight_below[sizes - 1], sizes)

    def _ranks(self, weights: Floats, highest: int | Ints) -> Ints:
        ranks = np.searchsorted(self._weight_below, weights, side="right").astype(np.int64) + 1
        # A draw just below 1 may be rounded up to the total weight, which gives the last rank + 1.
        return np.minimum(ranks, highest)


class Zeta:
    """Ranks 1, 2, 3, ... without end. The probability of rank k is k**-skew / zeta(skew), with
    skew > 1."""

    __slots__ = ("skew",)

    def __init__(self, skew: float) -> None:
        if skew <= 1:
            raise UsageError(f"a Zeta distribution needs a skew above 1, not {skew}")
        self.skew = skew

    def probabilities(self, highest: int) -> Floats:
        """The probability of each rank up to `highest`; they sum to less than 1."""
        weights: Floats = np.arange(1, highest + 1, dtype=np.float64) ** -self.skew
        return weights / zeta(self.skew)

    def sample(self, rng: Generator, size: int) -> Ints:
        """`size` independent ranks, drawn only from the ranks that fit into 63 bits.

        The probability of the ranks left out is `tail(2**63)`: 1.2 % at skew 1.1, negligible from
        1.3 on. Ranks above 2**53 are rounded to multiples of 2, 4, ...

        This is Devroye's rejection method, as in numpy's `zipf`. But numpy's function does not
        consider that 1 + 1/rank is rounded to 1 for ranks above 2**53. It accepts too many of these
        ranks, and at skew 1.1 too few of all others by 0.8 %.
        """
        above = self.skew - 1
        lowest = float(2.0 ** (-63 * above))  # a lower uniform draw would give more than 63 bits
        found = np.empty(size, np.int64)
        taken = 0
        while taken < size:
            count = size - taken
            draws = lowest + (1.0 - lowest) * (1.0 - rng.random(count))
            ranks = np.floor(draws ** (-1.0 / above))
            steps = np.expm1(above * np.log1p(1.0 / ranks))  # (1 + 1/rank) ** above - 1
            chance = rng.random(count) * ranks * steps / (2.0**above - 1)
            ranks = ranks[(chance <= (1.0 + steps) / 2.0**above) & (ranks < 2.0**63)]
            found[taken : taken + ranks.size] = ranks.astype(np.int64)
            taken += ranks.size
        return found

    def sample_clipped(self, rng: Generator, limits: Ints) -> Ints:
        """One value for each limit: min(rank, limits[i]), with ranks of the whole distribution.

        This is exact: all ranks at or above a limit give the same value, so only the total weight
        of the unbounded tail is needed.
        """
        highest = int(limits.max()) if limits.size else 1
        below = _cumulative_weights(highest, self.skew)
        weights = rng.random(limits.size) * zeta(self.skew)
        found = np.searchsorted(below, weights, side="right").astype(np.int64) + 1
        return np.minimum(found, limits)

    def tail(self, rank: int) -> float:
        """The probability of a rank at or above `rank`."""
        return zeta(self.skew, rank) / zeta(self.skew)


def zeta(skew: float, first: int = 1) -> float:
    """The sum of k**-skew over k = first, first+1, ... (Riemann's zeta for first = 1).

    From a cut-off on, the sum is approximated by the Euler-Maclaurin formula. The first term that
    is left out is below 1e-14 of the sum.
    """
    if skew <= 1 or first < 1:
        raise UsageError(f"zeta needs skew > 1 and first >= 1, not {skew} and {first}")
    cut = max(first, 100)
    head = float(np.sum(np.arange(first, cut, dtype=np.float64) ** -skew))
    edge: float = float(cut) ** -skew
    first_term = edge * cut / (skew - 1) + edge / 2
    second_term = skew * edge / cut / 12
    third_term = skew * (skew + 1) * (skew + 2) * edge / cut**3 / 720
    return head + first_term + second_term - third_term


def _cumulative_weights(n: int, skew: float) -> Floats:
    return np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -skew)


# ---------------------------------------------------------------- time


def poisson_arrivals(rng: Generator, rate: float, count: int) -> Floats:
    """The times of the first `count` arrivals of a Poisson process, with on average `rate` arrivals
    per unit of time."""
    if rate <= 0:
        raise UsageError(f"the rate of arrivals must be positive, not {rate}")
    return np.cumsum(rng.exponential(1.0 / rate, count))


# ---------------------------------------------------------------- growing key sets


class KeyEvents(NamedTuple):
    """A workload in columns: one row for each event, in order of time."""

    key: Ints  # the id of each event's key; ids are numbered from 0 in the order of insertion
    new: Flags  # whether the event inserts its key
    time: Floats  # in ticks, the unit of time of the rates in `population`


def population(
    rng: Generator,
    *,
    skew: float,
    updates: float,
    inserts: float,
    events: int,
    initial: int = 0,
    newcomers: Newcomers = "zeta",
) -> KeyEvents:
    """A workload of `events` events: updates of existing keys, and insertions of new keys.

    Both arrive as Poisson processes; `updates` and `inserts` are their mean rates per tick. An
    update concerns the key at a rank that is drawn by Zipf from the keys that exist at that moment.
    A new key is inserted at a rank drawn by Zeta with the same skew (as the last key, if there are
    fewer), or, with newcomers="last", always as the least popular key. The `initial` keys have ids
    0..initial-1 in order of popularity. Without initial keys the first event is always an
    insertion, because there is nothing to update.
    """
    if events < 1 or initial < 0 or updates < 0 or inserts < 0:
        raise UsageError("a population needs events >= 1 and no negative rate or size")
    # Two Poisson processes together are one process with the sum of their rates. Each arrival
    # belongs to one of the two at random.
    rate = updates + inserts
    time = poisson_arrivals(rng, rate, events)
    new: Flags = rng.random(events) < inserts / rate
    if initial == 0:
        new[0] = True
    size_after: Ints = initial + np.cumsum(new, dtype=np.int64)
    ranks = np.empty(events, np.int64)
    zipf = Zipf(int(size_after[-1]), skew)
    ranks[~new] = zipf.sample_among(rng, size_after[~new])
    if newcomers == "last":
        ranks[new] = size_after[new]
    else:
        ranks[new] = Zeta(skew).sample_clipped(rng, size_after[new])
    return KeyEvents(keys_at_ranks(new, ranks, initial), new, time)


def keys_at_ranks(new: Flags, ranks: Ints, initial: int = 0) -> Ints:
    """The key id that each event concerns, in a list of keys that grows by insertions.

    If `new[i]`, event i inserts the next unused id at rank `ranks[i]`, and the keys from that rank
    on move down by one. Otherwise it selects the key that is at that rank then. Ranks count from 1.
    The list starts with `initial` ids in order. Each event takes O(log n) time.
    """
    new = np.ascontiguousarray(new, dtype=np.bool_)
    ranks = np.ascontiguousarray(ranks, dtype=np.int64)
    size_after = initial + np.cumsum(new, dtype=np.int64)
    if new.shape != ranks.shape or (ranks.size and not _all_within(ranks, size_after)):
        raise UsageError("every rank must lie between 1 and the number of keys at that moment")
    # The initial keys are treated as insertions, each at the end of the list.
    before = np.arange(1, initial + 1, dtype=np.int64)
    every_new = np.concatenate((np.ones(initial, np.bool_), new))
    keys: Ints = _kernel()(every_new, np.concatenate((before, ranks)))
    return keys[initial:]


def _all_within(ranks: Ints, size_after: Ints) -> bool:
    return bool(np.all((ranks >= 1) & (ranks <= size_after)))


@cache
def _kernel() -> Callable[[Flags, Ints], Ints]:
    from surecast.numba_cache import compiled

    signature = "int64[::1](boolean[::1], int64[::1])"
    kernel: Callable[[Flags, Ints], Ints] = compiled(_follow_insertions, signature, nogil=True)
    return kernel


def _follow_insertions(new: Flags, ranks: Ints) -> Ints:
    """The key of each event (see `keys_at_ranks`), by two passes over a Fenwick tree of slots.

    A *slot* is a key's place in the final list, after all insertions. The first pass goes backwards
    in time: a key that was inserted at rank r has the r-th slot that is still taken, and this slot
    is freed then. The second pass goes forwards in time: each new key takes its slot, and the key
    at rank r is the one in the r-th taken slot.
    """
    total = 0
    for i in range(new.size):
        total += new[i]
    top = 1
    while top < total:
        top *= 2
    taken = np.empty(top + 1, np.int64)
    for i in range(1, top + 1):
        taken[i] = i & -i  # every slot taken: each tree node counts its whole span
    slot_of = np.empty(total, np.int64)
    key_in = np.empty(top + 1, np.int64)
    key = total
    for i in range(new.size - 1, -1, -1):
        if new[i]:
            key -= 1
            slot, left, step = 0, ranks[i], top
            while step > 0:
                if slot + step <= top and taken[slot + step] < left:
                    slot += step
                    left -= taken[slot]
                step >>= 1
            slot += 1
            slot_of[key] = slot
            key_in[slot] = key
            while slot <= top:
                taken[slot] -= 1
                slot += slot & -slot
    taken[:] = 0
    keys = np.empty(new.size, np.int64)
    for i in range(new.size):
        if new[i]:
            keys[i] = key
            slot = slot_of[key]
            key += 1
            while slot <= top:
                taken[slot] += 1
                slot += slot & -slot
        else:
            slot, left, step = 0, ranks[i], top
            while step > 0:
                if slot + step <= top and taken[slot + step] < left:
                    slot += step
                    left -= taken[slot]
                step >>= 1
            keys[i] = key_in[slot + 1]
    return keys


# ---------------------------------------------------------------- bytes


def key_column(ids: Ints) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Keys of 8 bytes for these ids, as the two buffers of an Arrow binary column (offsets, data).

    The ids are big-endian, so that the order of the keys is the order of the (non-negative) ids. No
    Python object is made for an event.
    """
    offsets = np.arange(0, (ids.size + 1) * KEY_SIZE, KEY_SIZE, dtype=np.int64)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UsageError(f"{ids.size} keys are too many for one column; build smaller batches")
    data = np.ascontiguousarray(ids, dtype=np.int64).astype(">i8").view(np.uint8)
    return offsets.astype(np.int32), data
