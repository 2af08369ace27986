"""Checksums of rows that do not depend on their order, or on how they are divided into batches.

If Spark runs a batch of a query again, the sink compares this checksum of its rows with that of the
first run. Every row is hashed (name of the stream, key, value, tag, and attributes that are not
null), and the hashes are added. An attribute that is null counts like one that a batch of an
earlier version of the schema does not have.
The sum of different rows, or of the same rows with one row twice, is equal only with probability
2^-64. This detects mistakes; it is no protection against forgery.

Importing this module loads numba and the kernel below, but not those of kernels.py.
"""

# Parameters are numpy arrays and numbers as the signatures say, which mypy cannot read.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numba import types

from surecast.columns.batch import Batch
from surecast.columns.column import null_column
from surecast.columns.compiled import BOOLS, BYTES, INT32S, WORDS_OUT, kernel
from surecast.columns.words import PHI, mix, stir

__all__ = ["hash_column", "sum_rows"]

_U = np.uint64
_MASK = (1 << 64) - 1
_ALL_VALID = np.empty(0, np.bool_)


def sum_rows(stream: str, batch: Batch) -> int:
    """The sum of a batch's rows, below 2^64, for the stream of this name."""
    seed = int.from_bytes(blake2b(stream.encode(), digest_size=8).digest(), "little")
    hashes = np.full(batch.rows, seed, np.uint64)
    for column in (batch.keys(), batch.values(), batch.tags() or null_column(batch.rows)):
        valid = _ALL_VALID if column.valid is None else column.valid
        hash_column(column.offsets, column.data, valid, hashes)
    if attributes := batch.attributes():
        for number, column in enumerate(attributes.columns()):
            before = hashes.copy()
            hashes ^= _U((number + 1) * int(PHI) & _MASK)
            hash_column(column.offsets, column.data, _ALL_VALID, hashes)
            if column.valid is not None:
                hashes[~column.valid] = before[~column.valid]
    return int(hashes.sum())


@kernel(types.void(INT32S, BYTES, BOOLS, WORDS_OUT))
def hash_column(offsets, data, valid, hashes):
    """Mix the column's value of each row into the row's hash.

    `valid` of size 0 means no nulls. A null is not an empty string.
    """
    nullable = valid.size > 0
    for row in range(offsets.size - 1):
        start = np.int64(offsets[row])
        length = np.int64(offsets[row + 1]) - start
        mark = _U(length + 1)  # different for each length, and for a null
        if nullable and not valid[row]:
            length, mark = np.int64(0), _U(0)
        hashes[row] = mix(stir(mix(hashes[row] ^ mark), data, start, length))
