"""The compiled loop of the filter index (index.py): which of many conjunctions a row passes."""

# Parameters are numpy arrays and numbers as the signatures say, which mypy cannot read.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from numba import types

from surecast.columns.compiled import BOOLS, BYTES, INT32S, INT64S, kernel
from surecast.numba_cache import expect

__all__ = ["EXISTS", "FLOATS", "LISTED_FLOATS", "LISTED_WHOLE", "NEGATED", "WHOLE", "passing"]

expect(1)

# What a test does, as one byte; NEGATED is a further bit.
EXISTS, WHOLE, FLOATS, LISTED_WHOLE, LISTED_FLOATS = range(5)
NEGATED = 8

_FLOAT64S = types.Array(types.float64, 1, "C", readonly=True)
_INT32S_OUT = types.Array(types.int32, 1, "C")


@kernel(
    types.int64(
        INT32S, INT32S, INT32S, INT32S,
        INT64S, BYTES, INT32S, INT64S, INT64S, _FLOAT64S, _FLOAT64S, INT64S, _FLOAT64S,
        types.int64, INT64S, _FLOAT64S, BOOLS, BOOLS,
        _INT32S_OUT, _INT32S_OUT,
    )
)  # fmt: skip
def passing(
    rows, groups, starts, members,
    firsts, ops, slots, lows, highs, float_lows, float_highs, listed, listed_floats,
    row_count, whole, floats, has, comparable,
    out_rows, out_members,
):  # fmt: skip
    """For each i, test row `rows[i]` against the conjunctions of group `groups[i]`.

    Group g has the conjunctions `members[starts[g]:starts[g + 1]]`. Conjunction c has the tests
    `firsts[c]` to `firsts[c + 1]`. Test t compares the column `slots[t]`: EXISTS looks for a value;
    WHOLE and FLOATS for a value from low to high; the LISTED ones for a value among
    `listed[lows[t]:highs[t]]`, sorted. The columns are one after the other, with `row_count` values
    each: `whole` and `floats` have the values, `has` whether there is one, and `comparable` whether
    there is one that is not NaN. Writes the pairs that pass, and returns their number.
    """
    found = 0
    for index in range(rows.size):
        row, group = rows[index], groups[index]
        for place in range(starts[group], starts[group + 1]):
            member = members[place]
            passes = True
            for test in range(firsts[member], firsts[member + 1]):
                cell = slots[test] * row_count + row
                kind = ops[test] & 7
                if kind == 0:
                    inside = has[cell]
                else:
                    if not comparable[cell]:
                        passes = False
                        break
                    if kind == 1:
                        inside = lows[test] <= whole[cell] <= highs[test]
                    elif kind == 2:
                        inside = float_lows[test] <= floats[cell] <= float_highs[test]
                    else:
                        low, high = lows[test], highs[test]
                        end = high
                        if kind == 3:
                            wanted = whole[cell]
                            while low < high:
                                middle = (low + high) // 2
                                if listed[middle] < wanted:
                                    low = middle + 1
                                else:
                                    high = middle
                            inside = low < end and listed[low] == wanted
                        else:
                            number = floats[cell]
                            while low < high:
                                middle = (low + high) // 2
                                if listed_floats[middle] < number:
                                    low = middle + 1
                                else:
                                    high = middle
                            inside = low < end and listed_floats[low] == number
                if inside == (ops[test] >= 8):
                    passes = False
                    break
            if passes:
                out_rows[found] = row
                out_members[found] = member
                found += 1
    return found
