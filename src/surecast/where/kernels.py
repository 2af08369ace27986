"""The compiled loops of the filter index (index.py).

A batch has `width` columns. Its cells are stored row by row: the value of a row in column `slot` is
`cells[row * width + slot]`, a whole number (rows.py says which). `states` has for each cell HAS, if
there is a value, and COMPARABLE, if it is not NaN. `spans` has for each cell where its text begins
and ends in `texts`, if a test reads the text itself.
"""

# Parameters are numpy arrays and numbers as the signatures say, which mypy cannot read.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np
from numba import types

from surecast.columns.compiled import (
    BYTES,
    INT32S,
    INT64S,
    INT64S_OUT,
    WORDS_OUT,
    helper,
    kernel,
)
from surecast.columns.words import PHI, mix, stir, tail
from surecast.numba_cache import expect

__all__ = [
    "COMPARABLE",
    "CONTAINS",
    "EXISTS",
    "HAS",
    "LISTED",
    "NEGATED",
    "OPEN",
    "RANGE",
    "STARTS_WITH",
    "TEXT_RANGE",
    "codes_of",
    "linking",
    "matching",
    "put_texts",
    "put_values",
    "selected",
]

expect(6)

HAS, COMPARABLE = 1, 2

# What a test does. NEGATED is a further bit; so is OPEN: a TEXT_RANGE without its bounds.
EXISTS, RANGE, LISTED, TEXT_RANGE, STARTS_WITH, CONTAINS = range(6)
NEGATED, OPEN = 8, 16

_INT32S_OUT = types.Array(types.int32, 1, "C")
_U = np.uint64

# ---------------------------------------------------------------- hash tables


@helper
def place_of(number, size):
    """Where a number is looked for first in a table of `size` (a power of two) places."""
    word = _U(number) * PHI
    return np.int64((word ^ (word >> _U(32))) & _U(size - 1))


@helper
def equal(data, start, stop, other, begin, end):
    if stop - start != end - begin:
        return False
    while start < stop:
        size = min(8, stop - start)
        if tail(data, start, size) != tail(other, begin, size):
            return False
        start += 8
        begin += 8
    return True


@helper
def text_place(data, start, stop, size):
    digest = mix(stir(_U(stop - start), data, start, stop - start))
    return np.int64(digest & _U(size - 1))


@kernel(types.int64(BYTES, INT64S, types.int64, _INT32S_OUT))
def put_texts(data, offsets, first, table):
    """Put the texts from number `first` on into a table; they must not be in it. Empty places are
    -1."""
    count = offsets.size - 1
    for code in range(first, count):
        place = text_place(data, offsets[code], offsets[code + 1], table.size)
        while table[place] >= 0:
            place = (place + 1) & (table.size - 1)
        table[place] = code
    return count


@kernel(
    types.int64(
        INT32S, BYTES, BYTES, INT64S, INT32S, types.int64, types.int64, INT64S_OUT,
    )
)  # fmt: skip
def codes_of(offsets, data, literals, bounds, table, width, slot, cells):
    """Write the code of each row's text into column `slot` of `cells`; -1 if it is not in the table
    of literals."""
    for row in range(offsets.size - 1):
        start, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
        place = text_place(data, start, stop, table.size)
        code = table[place]
        while code >= 0:
            if equal(data, start, stop, literals, bounds[code], bounds[code + 1]):
                break
            place = (place + 1) & (table.size - 1)
            code = table[place]
        cells[row * width + slot] = code
    return 0


@kernel(types.int64(INT64S, types.int32, INT64S_OUT, _INT32S_OUT))
def put_values(values, first, keys, groups):
    """Put values into a table: value i has the group first + i. Empty places have the group -1."""
    for index in range(values.size):
        place = place_of(values[index], keys.size)
        while groups[place] >= 0:
            place = (place + 1) & (keys.size - 1)
        keys[place] = values[index]
        groups[place] = first + index
    return 0


# ---------------------------------------------------------------- matching


@kernel(
    types.int64(
        types.int64, types.int64, INT64S, BYTES,
        INT32S, INT64S, INT64S, INT32S, INT64S,
        _INT32S_OUT, INT64S_OUT,
    )
)  # fmt: skip
def selected(
    rows, width, cells, states,
    slots, tables, keys, groups, starts,
    out_groups, totals,
):  # fmt: skip
    """The groups with which each row must be compared: for row r and column k of the clusters
    `out_groups[r * (slots.size + 1) + k + 1]`, or -1. The first is group 0. The table of column k
    is `keys[tables[k]:tables[k + 1]]`. `totals` gets the number of conjunctions in these groups.
    """
    each = slots.size + 1
    for row in range(rows):
        out_groups[row * each] = 0
        total = starts[1]
        for k in range(slots.size):
            cell = row * width + slots[k]
            group = np.int32(-1)
            if states[cell] & 2:
                first, size = tables[k], tables[k + 1] - tables[k]
                value = cells[cell]
                place = place_of(value, size)
                group = groups[first + place]
                while group >= 0 and keys[first + place] != value:
                    place = (place + 1) & (size - 1)
                    group = groups[first + place]
            out_groups[row * each + k + 1] = group
            if group >= 0:
                total += starts[group + 1] - starts[group]
        totals[row] = total
    return 0


@helper
def compared(data, start, stop, other, begin, end):
    """Less than 0, 0 or more, as the first text is before, equal to or after the second one."""
    size = min(stop - start, end - begin)
    for index in range(size):
        difference = np.int64(data[start + index]) - np.int64(other[begin + index])
        if difference != 0:
            return difference
    return (stop - start) - (end - begin)


@helper
def found_in(data, start, stop, other, begin, end):
    """Whether the first text contains the second one, which is not empty."""
    size = end - begin
    for at in range(start, stop - size + 1):
        if data[at] == other[begin] and equal(data, at, at + size, other, begin, end):
            return True
    return False


@helper
def listed_in(value, listed, low, high):
    end = high
    while low < high:
        middle = (low + high) // 2
        if listed[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < end and listed[low] == value


@helper
def text_test(what, low, high, cell, literals, bounds, spans, texts):
    """The tests that read texts. `low` and `high` are numbers of literals, or -1."""
    start, stop = spans[2 * cell], spans[2 * cell + 1]
    if what & 7 == 4:
        end = start + bounds[low + 1] - bounds[low]
        return end <= stop and equal(texts, start, end, literals, bounds[low], bounds[low + 1])
    if what & 7 == 5:
        return found_in(texts, start, stop, literals, bounds[low], bounds[low + 1])
    least = 1 if what & 16 else 0
    if low >= 0:
        if compared(texts, start, stop, literals, bounds[low], bounds[low + 1]) < least:
            return False
    if high >= 0:
        if compared(texts, start, stop, literals, bounds[high], bounds[high + 1]) > -least:
            return False
    return True


@helper
def passes(conjunction, base, cells, states, spans, texts, firsts, tests, listed, literals, bounds):
    """Whether the row whose cells begin at `base` passes a conjunction, which has the tests
    `firsts[conjunction]` to `firsts[conjunction + 1]`. Test t has three numbers from
    `tests[3 * t]`: what it does and from bit 8 on its slot; and two bounds. The bounds are values,
    included, or for LISTED the part of `listed` that has the values, sorted."""
    for test in range(firsts[conjunction], firsts[conjunction + 1]):
        what, low, high = tests[3 * test], tests[3 * test + 1], tests[3 * test + 2]
        cell = base + (what >> 8)
        kind = what & 7
        if kind == 0:
            inside = (states[cell] & 1) != 0
        else:
            if not states[cell] & 2:
                return False
            if kind == 1:
                value = cells[cell]
                inside = (low <= value) & (value <= high)
            elif kind == 2:
                inside = listed_in(cells[cell], listed, low, high)
            else:
                inside = text_test(what, low, high, cell, literals, bounds, spans, texts)
        if inside == ((what & 8) != 0):
            return False
    return True


_BATCH = (types.int64, INT64S, BYTES, INT64S, BYTES)
_GROUPS = (INT32S, INT64S, INT32S)  # of rows and groups
_TESTS = (INT64S, INT64S, INT64S, BYTES, INT64S)


@kernel(
    types.int64(
        types.int64, types.int64, *_BATCH, *_GROUPS, *_TESTS,
        INT32S, INT64S, INT32S, INT64S_OUT, _INT32S_OUT, INT64S_OUT,
    )
)  # fmt: skip
def matching(
    row_first, row_last, width, cells, states, spans, texts,
    groups, starts, members,
    firsts, tests, listed, literals, bounds,
    numbers, ids, repeated, seen, out_rows, out_ids,
):  # fmt: skip
    """Test each row from `row_first` to `row_last` against the conjunctions of its groups.

    Group g has the conjunctions `members[starts[g]:starts[g + 1]]`. Conjunction c belongs to the
    filter with the number `numbers[c]`, whose id is `ids[number]`; it is negative if the filter was
    removed. If the filter has several conjunctions, `repeated[c]` is its place in `seen`, which has
    the last row (plus 1) that passed it; otherwise -1. Writes rows and ids, and returns how many.
    """
    found = 0
    each = groups.size // (row_last - row_first)
    for row in range(row_first, row_last):
        for k in range(each):
            group = groups[(row - row_first) * each + k]
            if group < 0:
                continue
            for place in range(starts[group], starts[group + 1]):
                member = members[place]
                if not passes(
                    member, row * width, cells, states, spans, texts,
                    firsts, tests, listed, literals, bounds,
                ):  # fmt: skip
                    continue
                key = ids[numbers[member]]
                if key < 0:
                    continue
                if repeated[member] >= 0:
                    if seen[repeated[member]] == row + 1:
                        continue
                    seen[repeated[member]] = row + 1
                out_rows[found] = row
                out_ids[found] = key
                found += 1
    return found


@kernel(
    types.int64(
        types.int64, *_BATCH, *_GROUPS, *_TESTS,
        INT32S, INT64S, INT32S, INT32S, types.int64, WORDS_OUT, _INT32S_OUT,
    )
)  # fmt: skip
def linking(
    rows, width, cells, states, spans, texts,
    groups, starts, members,
    firsts, tests, listed, literals, bounds,
    numbers, ids, links, run_ends, links_used, masks, counts,
):  # fmt: skip
    """Like `matching`, but find the links of the filters that each row passes.

    The conjunctions of a group are sorted by link. The one at `place` has the link `links[place]`,
    and the next link begins at `run_ends[place]`. Bit `link % 64` of
    `masks[link // 64 * rows + row]` is set if the row passes a filter of the link; then no further
    filter of the link is tested. `counts` has the number of bits that are set for each row;
    `links_used` is the number of links that have filters.
    """
    each = groups.size // rows
    for row in range(rows):
        for k in range(each):
            group = groups[row * each + k]
            if group < 0:
                continue
            place, end = starts[group], starts[group + 1]
            while place < end and counts[row] < links_used:
                link = links[place]
                word = np.int64(link >> 6) * rows + row
                bit = _U(1) << _U(link & 63)
                if masks[word] & bit:
                    place = run_ends[place]
                    continue
                member = members[place]
                place += 1
                if passes(
                    member, row * width, cells, states, spans, texts,
                    firsts, tests, listed, literals, bounds,
                ) and ids[numbers[member]] >= 0:  # fmt: skip
                    masks[word] |= bit
                    counts[row] += 1
    return 0
