"""Functions on runs of positions, in numpy. The Spark job `compact` calls them in its executors.

A *run* is a range of positions that are all live, or all void (without an event). Each executor
replaces its rows by a few runs, so that little data moves through the cluster. Positions are
divided into buckets of a fixed size, so that one task can process a bucket; runs are cut at the
edges of buckets.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BUCKET",
    "NOTHING",
    "Flags",
    "Ints",
    "Runs",
    "cut",
    "numpy_of",
    "together",
]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
# The columns of runs: lo and hi (a run is the range [lo, hi); the first position is 1), a flag (in
# `compact`: whether it is live), and a number (in `compact`: the time of the run's last row; the
# pieces of a run that is cut all keep it).
Runs = tuple[Ints, Ints, Flags, Ints]

BUCKET: Final = 1 << 20  # positions that one task processes together
NOTHING: Final = np.iinfo(np.int64).min  # stands for null in arrays of numbers


def numpy_of(column: Any) -> Any:
    """An Arrow column, chunked or not, as an array; null numbers become NOTHING."""
    if column.null_count:
        column = column.fill_null(NOTHING)
    return column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False)


def together(lo: Ints, hi: Ints, flag: Flags, number: Ints) -> Runs:
    """Sort runs and join adjacent runs with the same flag. A joined run has the number of its last
    part."""
    order = np.argsort(lo, kind="stable")
    lo, hi, flag, number = lo[order], hi[order], flag[order], number[order]
    breaks = (lo[1:] != hi[:-1]) | (flag[1:] != flag[:-1])
    first = np.flatnonzero(np.concatenate(([True], breaks)))
    last = np.append(first[1:], lo.size) - 1
    return lo[first], hi[last], flag[first], number[last]


def cut(lo: Ints, hi: Ints, flag: Flags, number: Ints, bucket: int) -> Runs:
    """Cut runs at the edges of buckets."""
    # The buckets of the positions lo and hi - 1. Bucket 0 begins at position 1.
    first, last = (lo - 1) // bucket, (hi - 2) // bucket
    pieces = last - first + 1
    if not (pieces > 1).any():
        return lo, hi, flag, number
    # For each piece: the index of its run, and its index among the pieces of this run.
    of = np.repeat(np.arange(lo.size), pieces)
    nth = np.arange(of.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = (first[of] + nth) * bucket + 1
    return np.maximum(lo[of], begin), np.minimum(hi[of], begin + bucket), flag[of], number[of]
