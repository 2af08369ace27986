"""A chi-square test: do the keys of a generated workload follow their probability distribution?

The distribution (here: law) is over the ranks of keys. Ranks are grouped into bins whose sizes grow
geometrically, because a single rare rank hardly ever occurs. Spark counts the keys of each bin; the
rest is arithmetic on a few dozen numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from surecast.errors import UsageError
from surecast.parts.workload import Zeta, Zipf
from surecast.pipeline.jobs.workload import ids_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["Fit", "Unjudged", "chi_square", "goodness_of_fit"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BINS: Final = 64  # at most
EXPECTED_MIN: Final = 10.0  # bins with fewer expected keys are merged with their neighbours
ZETA_BINS_UPTO: Final = 1e9  # all higher ranks share one open-ended bin
P_MIN: Final = 1e-3  # a correct sample fails the test for one seed in a thousand


class Unjudged(UsageError):
    """The sample is too small for a test, or the law has only one key."""


class Fit(msgspec.Struct, frozen=True):
    """The result of the test: how far the counts are from the expected ones."""

    sample: int  # number of keys
    bins: int
    chi_square: float
    p: float  # probability of a chi-square at least as large if the sample follows the law

    @property
    def plausible(self) -> bool:
        return self.p >= P_MIN


def goodness_of_fit(sample: DataFrame, law: Zipf | Zeta) -> Fit:
    """Test whether the column `key` of a workload's rows follows the law."""
    highest = law.n if isinstance(law, Zipf) else ZETA_BINS_UPTO
    edges = np.unique(np.geomspace(1, highest, BINS).round().astype(np.int64))
    counts = np.zeros(edges.size, np.int64)
    for row in _counted(sample, edges).collect():
        if row["bin"] < 0:
            raise UsageError(
                f"{row['count']} keys of the sample have ranks that the distribution cannot have"
            )
        counts[row["bin"]] = row["count"]
    return chi_square(counts, _expected_shares(law, edges))


def _counted(sample: DataFrame, edges: Ints) -> DataFrame:
    """Count the keys of each bin: (bin, count). Bin -1 counts ranks that the law cannot produce."""
    limit = int(edges[-1]) if edges[-1] < ZETA_BINS_UPTO else np.iinfo(np.int64).max

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        seen = np.zeros(edges.size + 1, np.int64)  # the last one counts ranks outside the law
        for batch in batches:
            ranks = ids_of(batch.column(0)) + 1
            bins = np.searchsorted(edges, ranks, side="right") - 1
            bins[(ranks < 1) | (ranks > limit)] = edges.size
            seen += np.bincount(bins, minlength=seen.size)
        bins = np.append(np.arange(edges.size), -1)
        yield pa.RecordBatch.from_pydict({"bin": bins[seen > 0], "count": seen[seen > 0]})

    found = sample.select("key").mapInArrow(count, "bin bigint, count bigint")
    return found.groupBy("bin").sum("count").withColumnRenamed("sum(count)", "count")


def _expected_shares(law: Zipf | Zeta, edges: Ints) -> Floats:
    """The probability of each bin; bin i holds the ranks from edge i up to edge i + 1."""
    if isinstance(law, Zipf):
        below = np.concatenate(([0.0], np.cumsum(law.probabilities())))
        shares: Floats = np.diff(np.append(below[edges - 1], below[-1]))
        return shares
    # Ranks drawn from Zeta are limited to 63 bits, so the probabilities are conditional on this.
    from_on = np.array([law.tail(int(edge)) for edge in edges] + [law.tail(1 << 63)])
    shares = -np.diff(from_on) / (1.0 - from_on[-1])
    return shares


def chi_square(counts: Ints, shares: Floats) -> Fit:
    """Pearson's test of counts against shares that sum to 1."""
    sample = int(counts.sum())
    observed, expected = [0.0], [0.0]
    for count, share in zip(counts.tolist(), shares.tolist(), strict=True):
        if expected[-1] >= EXPECTED_MIN:
            observed.append(0.0)
            expected.append(0.0)
        observed[-1] += count
        expected[-1] += share * sample
    if len(expected) > 1 and expected[-1] < EXPECTED_MIN:  # the last bin is too small: merge it
        observed[-2:] = [sum(observed[-2:])]
        expected[-2:] = [sum(expected[-2:])]
    if len(expected) < 2:
        if len(shares) < 2:
            raise Unjudged("a distribution with one key needs no test: every sample fits it")
        raise Unjudged(f"{sample:,} keys are too few to test a distribution: take a larger sample")
    pairs = zip(observed, expected, strict=True)
    distance = sum((one - other) ** 2 / other for one, other in pairs)
    return Fit(sample, len(expected), distance, _beyond(distance, len(expected) - 1))


def _beyond(x: float, degrees: int) -> float:
    """The probability of a chi-square above x with this number of degrees of freedom.

    This is the incomplete gamma function Q(degrees/2, x/2). It is computed by the two textbook
    expansions: a series for small x, a continued fraction (Lentz) for large x.
    """
    a, z = degrees / 2, x / 2
    if z <= 0:
        return 1.0
    front = math.exp(-z + a * math.log(z) - math.lgamma(a))
    if z < a + 1:
        term = total = 1.0 / a
        n = a
        while term > total * 1e-15:
            n += 1
            term *= z / n
            total += term
        return 1.0 - front * total
    tiny = 1e-300
    b = z + 1 - a
    c, d = 1 / tiny, 1 / b
    fraction = d
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2
        d = 1 / (step * d + b or tiny)
        c = b + step / c or tiny
        fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * fraction
