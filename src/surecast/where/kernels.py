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
    BOOLS,
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
    "TILE",
    "codes_of",
    "gathered",
    "linking",
    "matching",
    "put_texts",
    "put_values",
    "selected",
    "tiled",
]

expect(8)

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


@helper
def last_until(keys, first, last, value):
    """The place of the last key in keys[first:last] that is at most `value`; first - 1 if there is
    none."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if keys[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low - 1


@kernel(
    types.int64(
        types.int64, types.int64, INT64S, BYTES,
        INT32S, BOOLS, INT64S, INT64S, INT32S, INT64S, types.int64, types.int64,
        _INT32S_OUT, INT64S_OUT, _INT32S_OUT, _INT32S_OUT,
    )
)  # fmt: skip
def selected(
    rows, width, cells, states,
    slots, sorted_keys, tables, keys, groups, starts, large_first, large,
    out_groups, totals, large_rows, large_groups,
):  # fmt: skip
    """The groups with which each row must be compared: for row r and column k of the clusters
    `out_groups[r * (slots.size + 1) + k + 1]`, or -1. The first is group 0. The keys of column k
    are `keys[tables[k]:tables[k + 1]]`: a hash table, or, if `sorted_keys[k]`, the first values of
    intervals, each of which ends where the next one begins. `groups` has their groups. `totals`
    gets the number of conjunctions in these groups.

    A group of `large` or more conjunctions (group 0: `large_first`) is not among them: it is
    written with the row to `large_groups` and `large_rows`. Returns the number of these pairs.
    """
    each = slots.size + 1
    found = 0
    for row in range(rows):
        total = np.int64(0)
        for k in range(-1, slots.size):
            group = np.int32(-1)
            if k < 0:
                group = np.int32(0)
            elif states[row * width + slots[k]] & 2:
                first, size = tables[k], tables[k + 1] - tables[k]
                value = cells[row * width + slots[k]]
                if sorted_keys[k]:
                    place = last_until(keys, first, first + size, value)
                    if place >= first:
                        group = groups[place]
                else:
                    place = place_of(value, size)
                    group = groups[first + place]
                    while group >= 0 and keys[first + place] != value:
                        place = (place + 1) & (size - 1)
                        group = groups[first + place]
            if group >= 0:
                members = starts[group + 1] - starts[group]
                total += members
                if members >= (large_first if k < 0 else large):
                    large_rows[found] = row
                    large_groups[found] = group
                    found += 1
                    group = np.int32(-1)
            out_groups[row * each + k + 1] = group
        totals[row] = total
    return found


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
        types.int64, types.int64, *_BATCH, *_GROUPS, *_TESTS, INT64S_OUT, _INT32S_OUT,
    )
)  # fmt: skip
def matching(
    row_first, row_last, width, cells, states, spans, texts,
    groups, starts, members,
    firsts, tests, listed, literals, bounds, ends, out,
):  # fmt: skip
    """Test each row from `row_first` to `row_last` against the conjunctions of its groups.

    Group g has the conjunctions `members[starts[g]:starts[g + 1]]`. Those that a row passes are
    written to `out` from `ends[row - row_first]` on, which is moved behind them.
    """
    each = groups.size // (row_last - row_first)
    for row in range(row_first, row_last):
        end = ends[row - row_first]
        for k in range(each):
            group = groups[(row - row_first) * each + k]
            if group < 0:
                continue
            for place in range(starts[group], starts[group + 1]):
                member = members[place]
                if passes(
                    member, row * width, cells, states, spans, texts,
                    firsts, tests, listed, literals, bounds,
                ):  # fmt: skip
                    out[end] = member
                    end += 1
        ends[row - row_first] = end
    return 0


# The rows of a tile: so many at once are tested against a conjunction.
TILE = 64


@kernel(
    types.int64(
        types.int64, INT32S, INT32S, *_BATCH, INT64S, INT32S, *_TESTS,
        INT64S_OUT, INT64S_OUT, INT64S_OUT, _INT32S_OUT,
    )
)  # fmt: skip
def tiled(
    row_first, rows, groups, width, cells, states, spans, texts,
    starts, members,
    firsts, tests, listed, literals, bounds,
    tile, left, ends, out,
):  # fmt: skip
    """Like `matching`, for pairs of rows and groups that are sorted by group. Up to TILE rows of a
    group are tested at once, by instructions for several numbers.

    `tile` is for the columns of these rows, three arrays of TILE numbers for each column: the
    values, and 1 or 0 for HAS and COMPARABLE. `left` is for the rows that pass, as 1 or 0, and for
    their places in `out`.
    """
    at = 0
    while at < rows.size:
        group = groups[at]
        count = 1
        while at + count < rows.size and count < 64 and groups[at + count] == group:
            count += 1
        if count < 4:  # not worth it
            for index in range(at, at + count):
                row = rows[index]
                end = ends[row - row_first]
                for place in range(starts[group], starts[group + 1]):
                    member = members[place]
                    if passes(
                        member, row * width, cells, states, spans, texts,
                        firsts, tests, listed, literals, bounds,
                    ):  # fmt: skip
                        out[end] = member
                        end += 1
                ends[row - row_first] = end
            at += count
            continue
        for slot in range(width):
            place = 192 * slot
            for index in range(count):
                cell = rows[at + index] * width + slot
                tile[place + index] = cells[cell]
                tile[place + 64 + index] = states[cell] & 1
                tile[place + 128 + index] = states[cell] >> 1
        passing, places = left[:count], left[64 : 64 + count]
        for index in range(count):
            places[index] = ends[rows[at + index] - row_first]
        for place in range(starts[group], starts[group + 1]):
            member = members[place]
            for index in range(count):
                passing[index] = 1
            for test in range(firsts[member], firsts[member + 1]):
                what, low, high = tests[3 * test], tests[3 * test + 1], tests[3 * test + 2]
                slot = what >> 8
                negated = np.int64((what >> 3) & 1)
                kind = what & 7
                if kind < 2:
                    values = tile[192 * slot : 192 * slot + count]
                    if kind == 0:
                        has = tile[192 * slot + 64 : 192 * slot + 64 + count]
                        for index in range(count):
                            passing[index] &= has[index] ^ negated
                    else:
                        fits = tile[192 * slot + 128 : 192 * slot + 128 + count]
                        for index in range(count):
                            value = values[index]
                            inside = np.int64(low <= value) & np.int64(value <= high)
                            passing[index] &= fits[index] & (inside ^ negated)
                else:
                    for index in range(count):
                        cell = rows[at + index] * width + slot
                        if not passing[index]:
                            continue
                        if not states[cell] & 2:
                            passing[index] = 0
                        elif kind == 2:
                            inside = np.int64(listed_in(cells[cell], listed, low, high))
                            passing[index] = inside ^ negated
                        else:
                            inside = np.int64(
                                text_test(what, low, high, cell, literals, bounds, spans, texts)
                            )
                            passing[index] = inside ^ negated
                total = np.int64(0)
                for index in range(count):
                    total += passing[index]
                if total == 0:
                    break
            else:
                # Without a branch, which would be mispredicted often. There is room for each
                # conjunction that is tested, so the place at the end is not yet of another row.
                for index in range(count):
                    out[places[index]] = member
                    places[index] += passing[index]
        for index in range(count):
            ends[rows[at + index] - row_first] = places[index]
        at += count
    return 0


@kernel(
    types.int64(
        types.int64, INT64S, INT64S, INT32S, INT32S, INT64S, INT32S, INT64S_OUT,
        _INT32S_OUT, INT64S_OUT,
    )
)  # fmt: skip
def gathered(
    row_first, begins, ends, found, numbers, ids, repeated, seen, out_rows, out_ids,
):  # fmt: skip
    """Write rows and the ids of filters for the conjunctions `found[begins[r]:ends[r]]` that row
    `row_first + r` passes; returns how many.

    Conjunction c belongs to the filter with the number `numbers[c]`, whose id is `ids[number]`; it
    is negative if the filter was removed. If the filter has several conjunctions, `repeated[c]` is
    its place in `seen`, which has the last row (plus 1) that passed it; otherwise -1.
    """
    count = 0
    for index in range(begins.size):
        row = row_first + index
        for place in range(begins[index], ends[index]):
            member = found[place]
            key = ids[numbers[member]]
            if key < 0:
                continue
            if repeated[member] >= 0:
                if seen[repeated[member]] == row + 1:
                    continue
                seen[repeated[member]] = row + 1
            out_rows[count] = row
            out_ids[count] = key
            count += 1
    return count


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
    """Find the links of the filters that each row passes.

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
