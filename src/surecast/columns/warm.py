"""`python -m surecast.columns.warm`: compile every kernel into numba's cache on disk."""

from __future__ import annotations

import numpy as np

from surecast.columns import retention
from surecast.columns.batch import Batch
from surecast.columns.intervals import IntervalSet
from surecast.columns.keytable import KeyTable

__all__ = ["call_each"]

_STREAM = bytes(16)


def call_each() -> None:
    """Call every kernel with a few rows, through the code that uses it."""
    table = KeyTable()
    seqs = np.arange(1, 2001)
    for width in (8, 24):  # more keys than a new table has slots, so that it grows
        keys = [b"%0*d" % (width, number) for number in range(2000)]
        batch = Batch.of(_STREAM, [b"v"] * 2000, keys).sequenced(1, 1, 1)
        table.put(batch.keys(), seqs)
        table.put(Batch.of(_STREAM, [b"v"] * 2, [keys[0], None]).keys(), seqs[:2])
        table.put_many([batch.keys()], 1)
        table.get(keys[0])
    for predicate in (
        retention.BeforeSeq(9),
        retention.BeforeTime(9),
        retention.KeyIs(b"k"),
        retention.KeyPrefix(b"k"),
    ):
        retention.matching(batch, predicate)
    voids = IntervalSet()
    voids.add_many(seqs[::2])
    voids.contains_sorted(seqs)


if __name__ == "__main__":
    from surecast.columns import kernels, sums

    kernels.warm()
    sums.sum_rows("s", Batch.of(_STREAM, [b"v"]))
