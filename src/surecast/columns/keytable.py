"""KeyTable: a hash table from each key of a stream to the newest position with this key.

Retention uses the table to find the event that a new event with the same key makes void (obsolete).
The table is exact: keys are compared, not only hashes. kernels.py has the loops and the layout.

Doubling a table of ten million keys at once would block the process for a sixth of a second. So a
full table is replaced step by step. A larger table takes all new entries, and every later call
moves some slots from the old table. Until all are moved, a key that is not in the new table is
looked up in the old one, too. Entries for positions known to be void are not moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from surecast.columns.column import Body, Bools, Bytes, Column, Int64s

__all__ = ["KeyTable"]

_SLOTS_MIN: Final = 1 << 10
_ROWS_STEP: Final = 1 << 13  # most rows of one kernel call: bounds how long a call takes
# Slots of the old table that are moved for each row that is entered. With more than 2, all are
# moved before the new table is full.
_MOVES_PER_ROW: Final = 8
# Words of the next table that are cleared for each row that is entered. With more than 32, all are
# cleared before the current table is full.
_ZEROS_PER_ROW: Final = 64
_AT_ONCE: Final = 1 << 16  # tables of up to this many slots are replaced in one step
_ALL_VALID: Final[Bools] = np.empty(0, np.bool_)

_Words = npt.NDArray[np.uint64]
_Table = tuple[_Words, _Words]  # slots and arena, see kernels.py
_NO_WORDS: Final[_Words] = np.zeros(0, np.uint64)
_NO_SEQS: Final[Int64s] = np.zeros(0, np.int64)
_NO_TABLE: Final[_Table] = _NO_WORDS, _NO_WORDS


class KeyTable:
    """key → newest position. `seed` and `hash_mask` change the hash, for tests of collisions."""

    def __init__(self, *, seed: int = 0x5EED, hash_mask: int = (1 << 64) - 1) -> None:
        from surecast.columns import kernels

        self._kernels = kernels
        self._seed = np.uint64(seed)
        self._hash_mask = np.uint64(hash_mask)
        self._now: _Table = np.zeros(2 * _SLOTS_MIN, np.uint64), np.empty(0, np.uint64)
        self._next: _Words | None = None  # the next table's slots, while they are prepared
        self._cleared = 0  # words of `_next` that are cleared already
        self._old = _NO_TABLE  # the table being replaced
        self._moved = 0  # old slots already moved
        self._counters = np.zeros(2, np.int64)  # used slots, used arena words
        # Memory that the kernels use during a call (`_replaced` has their results).
        self._words = np.empty(kernels.RING, np.uint64)
        self._homes = np.zeros(kernels.RING, np.int64)
        self._replaced = np.empty(_ROWS_STEP, np.int64)
        self._end = 1  # all positions entered are below it
        self.floor = 1  # every position below is known to be void

    def put(self, keys: Column, seqs: Int64s) -> Int64s:
        """Enter rows with these keys, at these rising positions. Returns the positions that are now
        obsolete, because a later one has the same key, in any order."""
        rows = seqs.size
        offsets = np.ascontiguousarray(keys.offsets, np.int32)
        data = np.ascontiguousarray(keys.data, np.uint8)
        valid = _ALL_VALID if keys.valid is None else np.ascontiguousarray(keys.valid)
        seqs = np.ascontiguousarray(seqs, np.int64)
        if not rows:
            return seqs
        self._end = int(seqs[-1]) + 1
        assert self._end <= 1 << self._kernels.POSITION_BITS
        if rows <= _ROWS_STEP:
            return self._put(offsets, data, valid, seqs)
        found = []
        for first in range(0, rows, _ROWS_STEP):
            last = min(rows, first + _ROWS_STEP)
            part = offsets[first : last + 1], data, valid[first:last], seqs[first:last]
            found.append(self._put(*part).copy())
        return np.concatenate(found)

    def put_many(self, columns: Sequence[Column | Body], lo: int) -> Int64s:
        """Enter the rows of several columns, one after the other, at the positions from `lo` on.

        Keys of 8 bytes, which may be passed as plain bytes, are joined, so that one kernel call
        takes many of them: a call itself takes as long as entering 200 keys. Returns the positions
        made obsolete, in any order.
        """
        found: list[Int64s] = []
        waiting: list[Body] = []
        rows = 0
        for column in columns:
            words = self._words_of(column) if isinstance(column, Column) else column
            count = -1 if words is None else len(words) // 8
            if waiting and (words is None or rows + count > _ROWS_STEP):
                found.append(self._put_joined(waiting, rows, lo))
                lo, rows, waiting = lo + rows, 0, []
            if words is None:
                assert isinstance(column, Column)
                size = column.offsets.size - 1
                found.append(self.put(column, np.arange(lo, lo + size)).copy())
                lo += size
            else:
                waiting.append(words)
                rows += count
        if waiting:
            found.append(self._put_joined(waiting, rows, lo))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _words_of(self, column: Column) -> Body | None:
        """The column's bytes if every key has 8 bytes, else None."""
        offsets = column.offsets
        rows = offsets.size - 1
        start = int(offsets[0])
        if column.valid is not None or int(offsets[rows]) - start != 8 * rows:
            return None
        if column.width != 8 and not self._kernels.all_words(np.ascontiguousarray(offsets)):
            return None
        return column.data[start : start + 8 * rows].data

    def _put_joined(self, words: list[Body], rows: int, lo: int) -> Int64s:
        """`put` for keys of 8 bytes each, at the positions from `lo` on."""
        joined = words[0] if len(words) == 1 else b"".join(words)
        data = np.frombuffer(joined, np.uint8)
        self._end = lo + rows
        assert self._end <= 1 << self._kernels.POSITION_BITS
        found = []
        for first in range(0, rows, _ROWS_STEP):
            count = min(rows - first, _ROWS_STEP)
            found.append(self._put_words(8 * first, data, count, lo + first, _NO_SEQS).copy())
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _put(self, offsets: Any, data: Bytes, valid: Bools, seqs: Int64s) -> Int64s:
        """`put` for at most _ROWS_STEP rows. The result is valid until the next call."""
        rows = seqs.size
        start = int(offsets[0])
        size = int(offsets[-1]) - start
        if size == 8 * rows and not valid.size and self._kernels.all_words(offsets):
            return self._put_words(start, data, rows, 0, seqs)
        # A long key's record has two words before the key and at most one word of padding.
        self._make_room(rows, size // 8 + 3 * rows)
        count = self._kernels.put_keys(
            *self._now, *self._old, self._counters, self._seed, self._hash_mask,
            offsets, data, valid, seqs, self._replaced, self._words, self._homes,
        )  # fmt: skip
        return self._replaced[:count]

    def _put_words(self, start: int, data: Bytes, rows: int, lo: int, seqs: Int64s) -> Int64s:
        """`_put` for keys of 8 bytes each, the first one at data[start]. If `seqs` is empty, the
        rows have the positions from `lo` on."""
        self._make_room(rows, 0)
        count = self._kernels.put_words(
            self._now[0], self._old[0], _NO_WORDS, self._counters, self._seed,
            self._hash_mask, start, data, rows, lo, seqs, self._replaced, self._homes,
        )  # fmt: skip
        return self._replaced[:count]

    def get(self, key: bytes) -> int:
        """The newest position of `key`; 0 if there is none. If that position is void, the result
        may be 0, too."""
        wanted = np.frombuffer(key, np.uint8)
        for table in (self._now, self._old):
            if table[0].size:
                found = self._kernels.get_key(*table, self._seed, self._hash_mask, wanted)
                if found:
                    return int(found)
        return 0

    def __len__(self) -> int:
        """How many keys the table has (while it grows: those in the new table)."""
        return int(self._counters[0])

    def _make_room(self, rows: int, arena_need: int) -> None:
        """Make sure that there are slots for `rows` more keys, and room for their bytes."""
        old_count = self._old[0].size // 2  # a slot has two words
        if old_count:
            self._move(_MOVES_PER_ROW * rows + _SLOTS_MIN)
        used, arena_used = self._counters.tolist()
        slots, arena = self._now
        count = slots.size // 2
        if used + rows > count // 2 and count > _AT_ONCE:
            self._prepare(_ZEROS_PER_ROW * rows)
        if used + rows > count * 5 // 8:  # fuller tables are slow to search
            self._move(old_count)  # all that are left
            self._replace(rows, arena_need)
        elif arena_used + arena_need > arena.size:
            grown = np.empty(2 * (arena_used + arena_need), np.uint64)
            grown[:arena_used] = arena[:arena_used]
            self._now = slots, grown

    def _prepare(self, count: int) -> None:
        """Clear `count` more words of the next table's memory. Called once the table is half full.

        Keys are spread over all of a new table. So without this step the first few thousand rows
        would touch every page of the new table, and wait until the system allocates and clears it.
        """
        if self._next is None:
            self._next = np.empty(2 * self._slots_next(0), np.uint64)
            self._cleared = 0
        until = min(self._next.size, self._cleared + count)
        self._next[self._cleared : until] = 0
        self._cleared = until

    def _slots_next(self, rows: int) -> int:
        """The number of slots of the next table.

        It has room for the keys that will be moved, at most one for each position at or above the
        floor, and for new keys: up to an eighth of the slots until the switch to the new table, and
        as many again until the last slot is moved.
        """
        slots = self._now[0].size // 2
        room = slots // 8
        carried = min(slots * 5 // 8, max(0, self._end - self.floor) + room)
        return max(_SLOTS_MIN, 1 << ((carried + room + rows) * 8 // 5).bit_length())

    def _replace(self, rows: int, arena_need: int) -> None:
        """Begin to replace the table by a larger one, or by one of the same size if many positions
        are void."""
        arena_used = int(self._counters[1])
        before = self._now[0].size // 2
        slots = self._slots_next(rows)
        if self._next is not None and self._next.size >= 2 * slots:
            self._prepare(self._next.size)
            fresh = self._next
        else:
            fresh = np.zeros(2 * slots, np.uint64)
        self._next = None
        self._old = self._now
        self._now = fresh, np.empty(3 * arena_used + 2 * arena_need + _SLOTS_MIN, np.uint64)
        self._counters[:] = 0
        self._moved = 0
        if before <= _AT_ONCE:
            self._move(before)

    def _move(self, count: int) -> None:
        """Move `count` more slots from the table being replaced."""
        old_count = self._old[0].size // 2
        first, last = self._moved, min(old_count, self._moved + count)
        if first < last:
            self._kernels.move_keys(
                *self._now, *self._old, self._counters, self._seed, self._hash_mask,
                first, last, self.floor,
            )  # fmt: skip
            self._moved = last
        if old_count and last == old_count:
            self._old = _NO_TABLE
