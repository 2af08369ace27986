"""The workloads of Sprinkler E6: which key each event has.

The paper describes a model of the keys, and a variant in which new keys appear. It does not say
which events it counted, nor at which popularity rank new keys enter. So there are several
interpretations (*readings*) of its description. A `Workload` is one reading with one skew of the
popularity; gc.py runs all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from surecast.parts.workload import Newcomers, Zeta, Zipf, population

__all__ = [
    "BOUNDED_KEYS",
    "BOUNDED_SKEWS",
    "FIXED",
    "GROWING",
    "GROWING_ALL",
    "GROWING_LAST",
    "PAPER_SAVED_BOUNDED",
    "PAPER_SAVED_UNBOUNDED",
    "RANKED_20",
    "RANKED_20_ALL",
    "RANKED_200",
    "UNBOUNDED_SKEWS",
    "ZETA",
    "Workload",
    "workloads",
]

Ints = NDArray[np.int64]

# The share of events that need not be stored at skew 1.1, as the paper reports it.
PAPER_SAVED_UNBOUNDED = 0.75
PAPER_SAVED_BOUNDED = 0.85
BOUNDED_KEYS = 100_000
BOUNDED_SKEWS = (1.1, 1.3, 1.5)
UNBOUNDED_SKEWS = (1.1, 1.2, 1.5)

# Names of the readings. "Rank insertion": new keys enter at some popularity rank, ten per tick on
# average; λ is the mean number of updates per tick. "1:10": one new key for ten updates.
# Part (a) of the figure, unbounded keys:
ZETA = "Zeta draws"
RANKED_200 = "rank insertion, λ=200"
RANKED_20 = "rank insertion, λ=20"
RANKED_20_ALL = "rank insertion, λ=20, insertions stored too"
# Part (b), 100,000 keys:
FIXED = "fixed set"
GROWING = "1:10 new keys, rank by Zeta"
GROWING_ALL = "1:10 new keys, rank by Zeta, insertions stored too"
GROWING_LAST = "1:10 new keys, least popular"

Draw = Callable[[Generator, int], Ints]  # (rng, how many) -> the key of each event


@dataclass(frozen=True, slots=True)
class Workload:
    """One curve of the figure."""

    part: str  # "a" unbounded keys, "b" a bounded set
    reading: str
    skew: float
    draw: Draw

    @property
    def name(self) -> str:
        return f"{self.reading}, skew {self.skew}"


def _zeta(skew: float, rng: Generator, events: int) -> Ints:
    return Zeta(skew).sample(rng, events)


def _zipf(skew: float, rng: Generator, events: int) -> Ints:
    return Zipf(BOUNDED_KEYS, skew).sample(rng, events)


def _growing(
    skew: float,
    updates: float,
    inserts: float,
    initial: int,
    newcomers: Newcomers,
    count_inserts: bool,
    rng: Generator,
    events: int,
) -> Ints:
    """The keys of `events` events that update a growing set of keys.

    `updates` and `inserts` are mean numbers per tick, `initial` is the number of keys at the start,
    and `newcomers` says at which rank new keys enter. An insertion counts as an event only if
    `count_inserts` is true.
    """
    # If insertions do not count, more are generated: 2 % and 1000 in reserve, as they are random.
    wanted = events if count_inserts else ceil(events * (1 + inserts / updates) * 1.02) + 1000
    made = population(
        rng,
        skew=skew,
        updates=updates,
        inserts=inserts,
        events=wanted,
        initial=initial,
        newcomers=newcomers,
    )
    keys = made.key if count_inserts else made.key[~made.new]
    assert keys.size >= events
    return keys[:events]


# The readings of (b) with new keys: name, rank at which keys enter, whether insertions count.
GROWN: tuple[tuple[str, Newcomers, bool], ...] = (
    (GROWING, "zeta", False),
    (GROWING_ALL, "zeta", True),
    (GROWING_LAST, "last", False),
)


def workloads() -> list[Workload]:
    """Every curve: the readings of (a), then those of (b)."""
    made = [Workload("a", ZETA, skew, partial(_zeta, skew)) for skew in UNBOUNDED_SKEWS]
    for reading, updates, count_inserts in (
        (RANKED_200, 200, False),
        (RANKED_20, 20, False),
        (RANKED_20_ALL, 20, True),
    ):
        for skew in (1.1, 1.5):
            draw = partial(_growing, skew, updates, 10, 0, "zeta", count_inserts)
            made.append(Workload("a", reading, skew, draw))
    for skew in BOUNDED_SKEWS:
        made.append(Workload("b", FIXED, skew, partial(_zipf, skew)))
        for reading, newcomers, count_inserts in GROWN:
            draw = partial(_growing, skew, 10, 1, BOUNDED_KEYS, newcomers, count_inserts)
            made.append(Workload("b", reading, skew, draw))
    return made
