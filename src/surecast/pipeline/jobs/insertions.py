"""The key of each event of a generated workload, if new keys are inserted between existing ones.

Keys are ranked by popularity. A new key enters the ranking at any rank; the keys at this rank and
below move down by one. An event either adds a key, or has the key that is at a randomly drawn rank
at that moment.

`parts.workload.keys_at_ranks` computes the keys for a whole workload at once. A Spark job generates
workloads that are too long for one process. They are divided into blocks of events, which executors
process independently. For this, the driver first computes the *slot* of each key, which is the
key's final rank (from 1) after all insertions (`slots_of`). At any time, the slots of the existing
keys are occupied, and the others are free. So the key at rank r is the key of the r-th occupied
slot. The number of existing keys determines which slots are occupied. Therefore a `Ranking` can
start at any block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ranking", "slots_of"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def slots_of(initial: int, entry: Ints) -> Ints:
    """The slot of every key: `initial` keys in order, then the keys that enter at the ranks
    `entry`."""
    ranks = np.concatenate((np.arange(1, initial + 1, dtype=np.int64), entry))
    slots: Ints = _compiled(_find_slots, "int64[::1](int64[::1])")(ranks)
    return slots


class Ranking:
    """The keys by rank at one moment. It is rebuilt if a call of `keys` does not continue where the
    last call ended."""

    def __init__(self, slots: Ints) -> None:
        # The signatures of the kernels require contiguous, writable arrays.
        self._slots = np.require(slots, np.int64, ["C", "W"])
        self._key_in = np.empty(slots.size + 1, np.int64)
        self._key_in[self._slots] = np.arange(slots.size, dtype=np.int64)
        self._taken = np.zeros(0, np.int64)  # a Fenwick tree that counts the occupied slots
        self._keys_count = -1  # number of keys in `_taken`; -1: not built yet

    def keys(self, before: int, new: Flags, ranks: Ints) -> Ints:
        """The key of each event: the next new key where `new` is set, otherwise the key at the
        event's rank.

        `before` is the number of keys before the first event.
        """
        if before != self._keys_count:
            taken = np.zeros(self._slots.size + 1, np.int64)
            taken[self._slots[:before]] = 1
            self._taken = _compiled(_build_tree, "int64[::1](int64[::1])")(taken)
        follow = _compiled(
            _follow, "int64[::1](int64[::1],int64[::1],int64[::1],int64,boolean[::1],int64[::1])"
        )
        found: Ints = follow(self._taken, self._slots, self._key_in, before, new, ranks)
        self._keys_count = before + int(new.sum())
        return found


@cache
def _compiled(function: Callable[..., Any], signature: str) -> Callable[..., Any]:
    from surecast.numba_cache import compiled

    made: Callable[..., Any] = compiled(function, signature, nogil=True)
    return made


def _find_slots(ranks: Ints) -> Ints:
    """The slot of each key, given the rank at which it entered.

    Handles the keys from the last one to the first one. At first all slots are occupied. The key
    that entered last, at rank r, has the r-th occupied slot. This slot is then marked as free, so
    that the occupied slots are those of the remaining keys.
    """
    total = ranks.size
    top = 1
    while top < total:
        top *= 2
    taken = np.empty(top + 1, np.int64)  # a Fenwick tree, as in `Ranking`
    for i in range(1, top + 1):
        taken[i] = i & -i  # all slots are occupied: a node counts all slots of its span
    slots = np.empty(total, np.int64)
    for key in range(total - 1, -1, -1):
        # Descend to the last slot up to which fewer than `ranks[key]` slots are occupied.
        slot, left, step = 0, ranks[key], top
        while step > 0:
            if slot + step <= top and taken[slot + step] < left:
                slot += step
                left -= taken[slot]
            step >>= 1
        slot += 1
        slots[key] = slot
        while slot <= top:  # mark it as free
            taken[slot] -= 1
            slot += slot & -slot
    return slots


def _build_tree(taken: Ints) -> Ints:
    """Turn `taken`, which has 1 for each occupied slot, into a Fenwick tree in place."""
    size = taken.size - 1
    for i in range(1, size + 1):
        above = i + (i & -i)
        if above <= size:
            taken[above] += taken[i]
    return taken


def _follow(taken: Ints, slots: Ints, key_in: Ints, before: int, new: Flags, ranks: Ints) -> Ints:
    """The loop of `Ranking.keys`; updates `taken`."""
    size = taken.size - 1
    top = 1
    while top * 2 <= size:
        top *= 2
    keys = np.empty(new.size, np.int64)
    key = before  # the next new key
    for i in range(new.size):
        if new[i]:
            keys[i] = key
            slot = slots[key]
            key += 1
            while slot <= size:  # mark it as occupied
                taken[slot] += 1
                slot += slot & -slot
        else:
            # Find the occupied slot number `ranks[i]`, as in `_find_slots`.
            slot, left, step = 0, ranks[i], top
            while step > 0:
                if slot + step <= size and taken[slot + step] < left:
                    slot += step
                    left -= taken[slot]
                step >>= 1
            keys[i] = key_in[slot + 1]
    return keys
