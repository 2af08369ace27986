"""Compiled loops over columns (*kernels*): the only code that processes every event.

compiled.py has the compiler options. Importing this module loads all kernels here and in runs.py.
Each kernel has an equivalent in plain Python in tests/columns/twins.py.

`put_keys` and the functions around it implement the hash table of keytable.py: open addressing with
linear probing. A slot has two words of 64 bits. Keys of more than 8 bytes have a record in a second
array of words, the *arena*:

    keys of up to 8 bytes   slot: the key, padded with zeros; position << 4 | length
    longer keys             slot: the key's hash;             place << 4 | LONG
                            arena[place:]: position, length, the key in words padded with zeros

In the code, `word` is the first word of a slot, `mark` the second one, and `code` its lowest four
bits: the key's length or LONG. A slot whose second word is 0 is empty. Keys are compared byte by
byte, never by hash alone, because a collision would make a live event void. The slot of a row is
prefetched `_AHEAD` rows before it is needed, and its record in the arena half as many rows before.
This hides most of the time of both cache misses.
"""

# Parameters are numpy arrays and numbers as the signatures say, which mypy cannot read.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from surecast.columns import codec
from surecast.columns.compiled import (
    BOOLS,
    BYTES,
    INT32S,
    INT64S,
    INT64S_OUT,
    WORDS,
    WORDS_OUT,
    helper,
    kernel,
)
from surecast.columns.runs import cover_positions, merge_positions, sort_positions
from surecast.columns.words import MUL, mix, prefetch, stir, tail, word_at

__all__ = [
    "LONG",
    "POSITION_BITS",
    "RING",
    "all_words",
    "before_seq",
    "before_time",
    "cover_positions",
    "get_key",
    "keep_last",
    "match_equal",
    "match_prefix",
    "merge_positions",
    "move_keys",
    "offsets_ok",
    "put_keys",
    "put_words",
    "sort_positions",
    "warm",
]

LONG = 9  # replaces the length in the slot of a key of more than 8 bytes
POSITION_BITS = 59  # the most bits that a position may have in the second word of a slot
_AHEAD = 24  # rows between prefetching a slot and using it
RING = 64  # size of the scratch arrays: a power of two above _AHEAD

_U = np.uint64
_FOUR = np.uint64(4)
_CODE = np.uint64(15)


# ---------------------------------------------------------------- the key table


@helper
def _word_of(data, start, length, seed, hash_mask):
    """The first word of a key's slot: the key itself if it fits, else its hash."""
    if length <= 8:
        return tail(data, start, length)
    return stir(seed ^ (_U(length) * MUL), data, start, length) & hash_mask


@helper
def _home(word, code, seed, hash_mask, slot_mask):
    """The slot where the search for a key starts. `slot_mask` is the number of slots less 1."""
    return np.int64(mix(word ^ seed ^ (_U(code) << _U(56))) & hash_mask & _U(slot_mask))


@helper
def _same_key(arena, place, data, start, length):
    """Whether the record at arena[place] is of the key of `length` bytes at data[start]."""
    if arena[place + 1] != _U(length):
        return False
    place += 2
    stop = start + length
    while start + 8 <= stop:
        if arena[place] != word_at(data, start):
            return False
        place += 1
        start += 8
    return start == stop or arena[place] == tail(data, start, stop - start)


@helper
def _find(slots, arena, slot, word, code, data, start, length):
    """The key's slot, or, as a negative number (~slot), the empty slot where it belongs."""
    slot_mask = slots.size // 2 - 1
    while True:
        mark = slots[2 * slot + 1]
        if mark == _U(0):
            return ~slot
        if (
            slots[2 * slot] == word
            and mark & _CODE == _U(code)
            and (code != LONG or _same_key(arena, np.int64(mark >> _FOUR), data, start, length))
        ):
            return slot
        slot = (slot + 1) & slot_mask


@helper
def _position(slots, arena, slot):
    """The position that a slot in use, or its record in the arena, holds."""
    found = np.int64(slots[2 * slot + 1] >> _FOUR)
    if slots[2 * slot + 1] & _CODE == _U(LONG):
        found = np.int64(arena[found])
    return found


# ---------------------------------------------------------------- latest per key


@kernel(
    types.int64(
        WORDS_OUT, WORDS_OUT,  # slots, arena
        WORDS, WORDS,  # old_slots, old_arena: of the table being replaced; else empty
        INT64S_OUT, types.uint64, types.uint64,  # counters, seed, hash_mask
        INT32S, BYTES, BOOLS, INT64S,  # keys, seqs
        INT64S_OUT, WORDS_OUT, INT64S_OUT,  # replaced; words and homes
    )
)  # fmt: skip
def put_keys(
    slots, arena, old_slots, old_arena, counters, seed, hash_mask,
    offsets, data, valid, seqs, replaced, words, homes,
):  # fmt: skip
    """Enter the position of each row (`seqs`) as the newest one of the row's key. Writes the
    positions that were the newest before to `replaced`, and returns their number.

    `valid` of size 0 means no nulls; null keys are skipped. `counters` are the numbers of used
    slots and of used words of the arena. The caller has made both arrays large enough. While
    entries are moved from an old table, a key that is not in the new table may be in the old one.
    `words` and `homes` are scratch memory.
    """
    rows = offsets.size - 1
    slot_mask = slots.size // 2 - 1
    nullable = valid.size > 0
    leaving = old_slots.size > 0
    used, arena_used = counters[0], counters[1]
    count = 0
    # Three rows are processed in each round: for row `ahead` the slot is prefetched, for the row
    # _AHEAD / 2 before it the record in the arena, and the row _AHEAD before it is entered.
    for ahead in range(rows + _AHEAD):
        if ahead < rows and not (nullable and not valid[ahead]):
            start = np.int64(offsets[ahead])
            length = np.int64(offsets[ahead + 1]) - start
            word = _word_of(data, start, length, seed, hash_mask)
            home = _home(word, min(length, LONG), seed, hash_mask, slot_mask)
            words[ahead & (RING - 1)] = word
            homes[ahead & (RING - 1)] = home
            prefetch(slots, 2 * home)
        row = ahead - _AHEAD // 2
        if arena_used > 0 and 0 <= row < rows:
            # For a null key this is the value of an earlier row, which does no harm.
            home = homes[row & (RING - 1)] & slot_mask
            mark = slots[2 * home + 1]
            if mark & _CODE == _U(LONG):
                prefetch(arena, np.int64(mark >> _FOUR))
        row = ahead - _AHEAD
        if row < 0 or (nullable and not valid[row]):
            continue
        start = np.int64(offsets[row])
        length = np.int64(offsets[row + 1]) - start
        code: Any = min(length, LONG)
        word = words[row & (RING - 1)]
        home = homes[row & (RING - 1)]
        slot = _find(slots, arena, home, word, code, data, start, length)
        if slot >= 0:
            replaced[count] = _position(slots, arena, slot)
            count += 1
            if code == LONG:
                arena[np.int64(slots[2 * slot + 1] >> _FOUR)] = _U(seqs[row])
            else:
                slots[2 * slot + 1] = _U(seqs[row]) << _FOUR | _U(code)
            continue
        slot = ~slot
        if leaving:
            home = _home(word, code, seed, hash_mask, old_slots.size // 2 - 1)
            old = _find(old_slots, old_arena, home, word, code, data, start, length)
            if old >= 0:
                replaced[count] = _position(old_slots, old_arena, old)
                count += 1
        used += 1
        slots[2 * slot] = word
        if code != LONG:
            slots[2 * slot + 1] = _U(seqs[row]) << _FOUR | _U(code)
            continue
        slots[2 * slot + 1] = _U(arena_used) << _FOUR | _U(code)
        arena[arena_used] = _U(seqs[row])
        arena[arena_used + 1] = _U(length)
        arena_used += 2
        stop = start + length
        while start < stop:
            arena[arena_used] = tail(data, start, min(8, stop - start))
            arena_used += 1
            start += 8
    counters[0], counters[1] = used, arena_used
    return count


@kernel(types.boolean(INT32S))
def all_words(offsets):
    """Whether every row has exactly 8 bytes."""
    differ = np.int32(0)  # no early exit: the loop vectorises
    for row in range(offsets.size - 1):
        differ |= (offsets[row + 1] - offsets[row]) ^ np.int32(8)
    return differ == 0


@kernel(
    types.int64(
        WORDS_OUT, WORDS, WORDS, INT64S_OUT, types.uint64, types.uint64,
        types.int64, BYTES, types.int64, types.int64, INT64S, INT64S_OUT, INT64S_OUT,
    )
)  # fmt: skip
def put_words(
    slots, old_slots, no_arena, counters, seed, hash_mask, start, data, rows, lo, seqs, replaced,
    homes,
):  # fmt: skip
    """A faster `put_keys` (by a third) for keys of 8 bytes each, the first at `start`, no nulls.

    If `seqs` is empty, the rows have the positions from `lo` on.
    """
    explicit = seqs.size > 0
    slot_mask = slots.size // 2 - 1
    leaving = old_slots.size > 0
    used = counters[0]
    count = 0
    for row in range(min(rows, _AHEAD)):
        home = _home(word_at(data, start + 8 * row), 8, seed, hash_mask, slot_mask)
        homes[row & (RING - 1)] = home
        prefetch(slots, 2 * home)
    for row in range(rows):
        ahead = row + _AHEAD
        if ahead < rows:
            home = _home(word_at(data, start + 8 * ahead), 8, seed, hash_mask, slot_mask)
            homes[ahead & (RING - 1)] = home
            prefetch(slots, 2 * home)
        word = word_at(data, start + 8 * row)
        slot = _find(slots, no_arena, homes[row & (RING - 1)], word, 8, data, 0, 8)
        if slot >= 0:
            replaced[count] = np.int64(slots[2 * slot + 1] >> _FOUR)
            count += 1
        else:
            slot = ~slot
            slots[2 * slot] = word
            used += 1
            if leaving:
                home = _home(word, 8, seed, hash_mask, old_slots.size // 2 - 1)
                old = _find(old_slots, no_arena, home, word, 8, data, 0, 8)
                if old >= 0:
                    replaced[count] = np.int64(old_slots[2 * old + 1] >> _FOUR)
                    count += 1
        position = seqs[row] if explicit else lo + row
        slots[2 * slot + 1] = _U(position) << _FOUR | _U(8)
    counters[0] = used
    return count


@kernel(
    types.void(
        WORDS_OUT, WORDS_OUT, WORDS, WORDS, INT64S_OUT, types.uint64, types.uint64,
        types.int64, types.int64, types.int64,
    )
)  # fmt: skip
def move_keys(slots, arena, old_slots, old_arena, counters, seed, hash_mask, first, last, floor):
    """Copy the old table's slots [first, last) to the new table, except those with positions below
    `floor`, and those whose key is in the new table already."""
    slot_mask = slots.size // 2 - 1
    used, arena_used = counters[0], counters[1]
    for old in range(first, last):
        mark = old_slots[2 * old + 1]
        if mark == _U(0) or _position(old_slots, old_arena, old) < floor:
            continue
        word = old_slots[2 * old]
        code = np.int64(mark & _CODE)
        place = np.int64(mark >> _FOUR) if code == LONG else 0
        size = (np.int64(old_arena[place + 1]) + 7) // 8 if code == LONG else 0
        slot = _home(word, code, seed, hash_mask, slot_mask)
        while True:
            there = slots[2 * slot + 1]
            if there == _U(0):
                slots[2 * slot] = word
                slots[2 * slot + 1] = mark
                used += 1
                if code == LONG:
                    slots[2 * slot + 1] = _U(arena_used) << _FOUR | _U(code)
                    for index in range(size + 2):
                        arena[arena_used + index] = old_arena[place + index]
                    arena_used += size + 2
                break
            if slots[2 * slot] == word and there & _CODE == _U(code):
                same = True
                if code == LONG:
                    for index in range(1, size + 2):
                        if arena[np.int64(there >> _FOUR) + index] != old_arena[place + index]:
                            same = False
                            break
                if same:  # entered since the switch: the new table has a later position of the key
                    break
            slot = (slot + 1) & slot_mask
    counters[0], counters[1] = used, arena_used


@kernel(types.int64(WORDS, WORDS, types.uint64, types.uint64, BYTES))
def get_key(slots, arena, seed, hash_mask, key):
    """The newest position of `key`, or 0."""
    code = min(key.size, LONG)
    word = _word_of(key, 0, key.size, seed, hash_mask)
    home = _home(word, code, seed, hash_mask, slots.size // 2 - 1)
    slot = _find(slots, arena, home, word, code, key, 0, key.size)
    return _position(slots, arena, slot) if slot >= 0 else 0


# ---------------------------------------------------------------- predicates


@helper
def _below(rising, limit):
    """The number of leading entries of a non-decreasing array that are below `limit`."""
    low, high = 0, rising.size
    while low < high:
        middle = (low + high) >> 1
        if rising[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(types.int64(INT64S, types.int64))
def before_seq(seqs, seq):
    """The number of leading rows that have positions below `seq`."""
    return _below(seqs, seq)


@kernel(types.int64(INT64S, types.int64))
def before_time(times, time_ns):
    """The number of leading rows older than `time_ns`; times never decrease along a stream."""
    return _below(times, time_ns)


@kernel(types.int64(INT64S, types.int64, types.int64))
def keep_last(seqs, end, n):
    """The number of leading rows that are not among the `n` newest positions below `end`."""
    return _below(seqs, end - n)


@kernel(types.int64(INT32S, BYTES, BOOLS, INT64S, BYTES, INT64S_OUT))
def match_prefix(offsets, data, valid, seqs, prefix, matched):
    """Write the positions of rows that start with `prefix` to `matched`, return their number."""
    nullable = valid.size > 0
    size = prefix.size
    head = tail(prefix, 0, min(8, size))
    count = 0
    for row in range(offsets.size - 1):
        start = np.int64(offsets[row])
        if np.int64(offsets[row + 1]) - start < size or (nullable and not valid[row]):
            continue
        if tail(data, start, min(8, size)) != head:
            continue
        index = 8
        while index < size and data[start + index] == prefix[index]:
            index += 1
        if index >= size:
            matched[count] = seqs[row]
            count += 1
    return count


@kernel(types.int64(INT32S, BYTES, BOOLS, INT64S, BYTES, INT64S_OUT))
def match_equal(offsets, data, valid, seqs, wanted, matched):
    """Write the positions of rows that equal `wanted` to `matched`, return their number."""
    nullable = valid.size > 0
    size = wanted.size
    head = tail(wanted, 0, min(8, size))
    count = 0
    for row in range(offsets.size - 1):
        start = np.int64(offsets[row])
        if np.int64(offsets[row + 1]) - start != size or (nullable and not valid[row]):
            continue
        if tail(data, start, min(8, size)) != head:
            continue
        index = 8
        while index < size and data[start + index] == wanted[index]:
            index += 1
        if index >= size:
            matched[count] = seqs[row]
            count += 1
    return count


@kernel(types.boolean(INT32S, types.int64))
def offsets_ok(offsets, data_size):
    """Whether every row of a column lies inside its data."""
    falls = np.int32(0)  # no early exit: the loop vectorises
    for row in range(offsets.size - 1):
        falls |= np.int32(offsets[row + 1] < offsets[row])
    return falls == 0 and offsets[0] >= 0 and offsets[-1] <= data_size


codec.use_kernel(offsets_ok)


@cache
def warm() -> None:
    """Call each kernel once; importing this module has loaded them.

    At the first call of a kernel, numba examines the types of the arguments. For all kernels this
    takes some 10 ms, which should not be spent in an event loop.
    """
    from surecast.columns.warm import call_each

    call_each()
