"""Compiled loops over sets of positions, for the costly operations of large IntervalSets.

As long as no kernels are loaded, intervals.py does the same with numpy. Of the positions to be
sorted, most are close to the highest one. These are sorted with a bit map, and all others with a
radix sort of eleven bits at a time.
"""

# Parameters are numpy arrays and numbers as the signatures say, which mypy cannot read.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np
from numba import types

from surecast.columns import intervals
from surecast.columns.compiled import BOOLS_OUT, INT64S, INT64S_OUT, WORDS_OUT, helper, kernel

__all__ = ["DIGITS", "cover_positions", "merge_positions", "sort_positions"]

_ONE = np.uint64(1)
_TOP_SIX = np.uint64(58)
# Any six consecutive bits of this number are different from any other six. So the product of it and
# a word with a single bit has top six bits that identify the bit: `_PLACES` maps them to its index.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_PLACES = np.zeros(64, np.int64)
for _place in range(64):
    _PLACES[(int(_DE_BRUIJN) << _place & 0xFFFF_FFFF_FFFF_FFFF) >> 58] = _place

_BITS = 11  # of a digit of the radix sort
DIGITS = 1 << _BITS  # size of the scratch array `counts`


@helper
def _sort_by_radix(positions, out, size, counts):
    """Sort the first `size` positions into `out`."""
    low = high = positions[0]
    for index in range(1, size):
        low = min(low, positions[index])
        high = max(high, positions[index])
    swapped = False
    shift = 0
    while (high - low) >> shift:
        source, target = (out, positions) if swapped else (positions, out)
        counts[:] = 0
        for index in range(size):
            counts[((source[index] - low) >> shift) & (DIGITS - 1)] += 1
        total = 0
        for digit in range(DIGITS):
            here = counts[digit]
            counts[digit] = total
            total += here
        for index in range(size):
            digit = ((source[index] - low) >> shift) & (DIGITS - 1)
            target[counts[digit]] = source[index]
            counts[digit] += 1
        swapped = not swapped
        shift += _BITS
    if not swapped:
        for index in range(size):
            out[index] = positions[index]


@kernel(types.int64(INT64S_OUT, INT64S_OUT, INT64S_OUT, WORDS_OUT))
def sort_positions(positions, out, counts, bits):
    """Sort `positions`, which are overwritten, into `out` of the same size.

    Returns the number of sorted positions: repeated positions may be left out. `bits` is scratch
    memory for the bit map, at least one word; the map covers the highest positions.
    """
    high = positions[0]
    for index in range(1, positions.size):
        high = max(high, positions[index])
    base = ((high >> 6) - bits.size + 1) << 6  # the position of the map's first bit
    bits[:] = 0
    size = 0
    for index in range(positions.size):
        position = positions[index]
        if position >= base:
            bits[(position - base) >> 6] |= _ONE << np.uint64(position & 63)
        else:
            positions[size] = position
            size += 1
    if size:
        _sort_by_radix(positions, out, size, counts)
    for word in range(bits.size):
        left = bits[word]
        while left:
            lowest = left & (~left + _ONE)
            left ^= lowest
            out[size] = base + 64 * word + _PLACES[(lowest * _DE_BRUIJN) >> _TOP_SIX]
            size += 1
    return size


@kernel(types.int64(INT64S, INT64S, INT64S, INT64S_OUT, INT64S_OUT))
def merge_positions(los, his, positions, out_los, out_his):
    """Write the union of the sorted runs [los[i], his[i]) and the sorted positions to `out_los` and
    `out_his`, as runs. Returns the number of runs."""
    run = at = count = 0
    while at < positions.size:
        lo = positions[at]
        hi = lo + 1
        at += 1
        while run < los.size and his[run] < lo:  # most runs: no position touches them
            out_los[count] = los[run]
            out_his[count] = his[run]
            count += 1
            run += 1
        if run < los.size:
            lo = min(lo, los[run])
        while True:
            if run < los.size and los[run] <= hi:
                hi = max(hi, his[run])
                run += 1
            elif at < positions.size and positions[at] <= hi:
                hi = max(hi, positions[at] + 1)
                at += 1
            else:
                break
        out_los[count] = lo
        out_his[count] = hi
        count += 1
    while run < los.size:
        out_los[count] = los[run]
        out_his[count] = his[run]
        count += 1
        run += 1
    return count


@kernel(types.void(INT64S, INT64S, INT64S, BOOLS_OUT))
def cover_positions(los, his, positions, covered):
    """Write for each position whether it is in one of the runs. Runs and positions are in rising
    order."""
    run = 0
    for index in range(positions.size):
        position = positions[index]
        while run < his.size and his[run] <= position:
            run += 1
        covered[index] = run < los.size and los[run] <= position


intervals.use_kernels(intervals.Kernels(sort_positions, merge_positions, cover_positions, DIGITS))
