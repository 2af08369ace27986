"""Which key has which rank, while new keys are inserted above others; computed block by block.

`parts.workload.keys_at_ranks` processes a whole history at once. Here the history is too long for
that: it is cut into blocks for different executors. The driver first computes what they share: each
key's *slot*, its index in the final list (`slots_of`). At any moment the key at rank r is the one
in the r-th occupied slot, and the occupied slots follow from the number of keys so far. So a
`Follower` can begin at any block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Follower", "slots_of"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def slots_of(initial: int, entry: Ints) -> Ints:
    """The slot of every key, from 1: `initial` keys in order, then the keys that enter at the ranks
    `entry`."""
    ranks = np.concatenate((np.arange(1, initial + 1, dtype=np.int64), entry))
    slots: Ints = _compiled(_find_slots, "int64[::1](int64[::1])")(ranks)
    return slots


class Follower:
    """The list of keys at one moment. It continues from the last call, or rebuilds its state."""

    def __init__(self, slots: Ints) -> None:
        self._slots = np.require(slots, np.int64, ["C", "W"])  # the compiled signature needs it
        self._key_in = np.empty(slots.size + 1, np.int64)
        self._key_in[self._slots] = np.arange(slots.size, dtype=np.int64)
        self._taken = np.zeros(0, np.int64)  # a Fenwick tree over the slots
        self._keys = -1

    def keys(self, before: int, new: Flags, ranks: Ints) -> Ints:
        """The key of each event: the next new key where `new` is set, else the key at its rank.

        `before`: how many keys there are before the first event.
        """
        if before != self._keys:
            taken = np.zeros(self._slots.size + 1, np.int64)
            taken[self._slots[:before]] = 1
            self._taken = _compiled(_grow, "int64[::1](int64[::1])")(taken)
        follow = _compiled(
            _follow, "int64[::1](int64[::1],int64[::1],int64[::1],int64,boolean[::1],int64[::1])"
        )
        found: Ints = follow(self._taken, self._slots, self._key_in, before, new, ranks)
        self._keys = before + int(new.sum())
        return found


@cache
def _compiled(function: Callable[..., Any], signature: str) -> Callable[..., Any]:
    from surecast.numba_cache import compiled

    made: Callable[..., Any] = compiled(function, signature, nogil=True)
    return made


def _find_slots(ranks: Ints) -> Ints:
    """Go backwards: the last key to enter, at rank r, has the r-th slot that is still occupied."""
    total = ranks.size
    top = 1
    while top < total:
        top *= 2
    taken = np.empty(top + 1, np.int64)
    for i in range(1, top + 1):
        taken[i] = i & -i  # every slot taken: each node counts its whole span
    slots = np.empty(total, np.int64)
    for key in range(total - 1, -1, -1):
        slot, left, step = 0, ranks[key], top
        while step > 0:
            if slot + step <= top and taken[slot + step] < left:
                slot += step
                left -= taken[slot]
            step >>= 1
        slot += 1
        slots[key] = slot
        while slot <= top:
            taken[slot] -= 1
            slot += slot & -slot
    return slots


def _grow(taken: Ints) -> Ints:
    """Turn flags into a Fenwick tree, in place."""
    size = taken.size - 1
    for i in range(1, size + 1):
        above = i + (i & -i)
        if above <= size:
            taken[above] += taken[i]
    return taken


def _follow(taken: Ints, slots: Ints, key_in: Ints, before: int, new: Flags, ranks: Ints) -> Ints:
    size = taken.size - 1
    top = 1
    while top * 2 <= size:
        top *= 2
    keys = np.empty(new.size, np.int64)
    key = before
    for i in range(new.size):
        if new[i]:
            keys[i] = key
            slot = slots[key]
            key += 1
            while slot <= size:
                taken[slot] += 1
                slot += slot & -slot
        else:
            slot, left, step = 0, ranks[i], top
            while step > 0:
                if slot + step <= size and taken[slot + step] < left:
                    slot += step
                    left -= taken[slot]
                step >>= 1
            keys[i] = key_in[slot + 1]
    return keys
