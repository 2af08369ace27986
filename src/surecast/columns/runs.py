"""Compiled loops over sets of positions: what a large IntervalSet spends its time on.

Without them (numba not loaded) `intervals.py` does the same with numpy. Sorting is a radix sort:
positions lie close together, so two or three passes over eleven bits each do, at a fifth of the
time of numpy's sort.
"""

# Parameters are numpy arrays and numbers as the signatures say, which mypy cannot read.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from numba import types

from surecast.columns import intervals
from surecast.columns.compiled import BOOLS_OUT, INT64S, INT64S_OUT, kernel

__all__ = ["DIGITS", "cover_positions", "merge_positions", "sort_positions"]

_BITS = 11
DIGITS = 1 << _BITS  # size of the scratch array of counts


@kernel(types.boolean(INT64S_OUT, INT64S_OUT, INT64S_OUT))
def sort_positions(positions, spare, counts):
    """Sort `positions`; whether the result is in `spare`, which has the same size."""
    size = positions.size
    low = high = positions[0]
    for index in range(1, size):
        low = min(low, positions[index])
        high = max(high, positions[index])
    swapped = False
    shift = 0
    while (high - low) >> shift:
        source, target = (spare, positions) if swapped else (positions, spare)
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
    return swapped


@kernel(types.int64(INT64S, INT64S, INT64S, INT64S_OUT, INT64S_OUT))
def merge_positions(los, his, positions, out_los, out_his):
    """The union of runs in order and of positions in order, as runs; returns how many."""
    run = at = count = 0
    while at < positions.size:
        lo = positions[at]
        hi = lo + 1
        at += 1
        while run < los.size and his[run] < lo:  # most runs, and nothing touches them
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
    """For each of the positions, which never fall, whether a run of those in order has it."""
    run = 0
    for index in range(positions.size):
        position = positions[index]
        while run < his.size and his[run] <= position:
            run += 1
        covered[index] = run < los.size and los[run] <= position


intervals.use_kernels(intervals.Kernels(sort_positions, merge_positions, cover_positions, DIGITS))
