"""A segment of the filter index (index.py): filters that do not change, as arrays."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from surecast.where.binding import Bound, BoundTest, Op
from surecast.where.columns import Kind
from surecast.where.evaluate import passes
from surecast.where.kernels import (
    CONTAINS,
    EXISTS,
    LISTED,
    NEGATED,
    OPEN,
    RANGE,
    STARTS_WITH,
    TEXT_RANGE,
    TILE,
    gathered,
    linking,
    matching,
    put_values,
    selected,
    tiled,
)
from surecast.where.normal import Conjunction, conjunctions
from surecast.where.rows import Codes, Int32s, Int64s, Rows, number_range, pool

__all__ = ["Segment"]

_ACCESS_MAX = 16  # clusters into which a conjunction is put: values of an `in`, or intervals
_PAIRS_MAX = 1 << 22  # pairs of rows and conjunctions that are tested in one part
_INTERVALS: Final = 256  # of a column in a segment,
_RANGES_MIN: Final = 16  # if it has so many ranges
_LARGE: Final = 64  # a group of so many conjunctions is tested with several rows at once,
_TILED_MIN: Final = 8  # if the batch has so many rows; all rows need the first group

_INT64: Final = np.iinfo(np.int64)
_NEVER: Final = int(_INT64.max)
_RANGES: Final = (Op.LESS, Op.AT_MOST, Op.MORE, Op.AT_LEAST, Op.BETWEEN)
_READING: Final = (*_RANGES, Op.STARTS_WITH, Op.CONTAINS)  # tests of texts that need the text
_TEXTS: Final = (Kind.STRING, Kind.BINARY)


def _access_values(test: BoundTest) -> tuple[Any, ...]:
    """The values by which a test can put its conjunction into clusters; empty if it cannot."""
    if test.negated or test.op not in (Op.EQUAL, Op.IN) or len(test.values) > _ACCESS_MAX:
        return ()
    return test.values


class Segment:
    """Filters by their numbers in the index. `ids`, where it is a parameter, has the id of each
    number; -1 if the filter was removed."""

    def __init__(self, codes: Codes, filters: Mapping[int, Bound], links: Int32s) -> None:
        self.numbers = list(filters)
        self.whole_filters: list[tuple[int, Bound]] = []  # too large to be divided
        parts: list[tuple[int, Conjunction]] = []  # a conjunction, and the number of its filter
        counts: Counter[tuple[int, int]] = Counter()  # conjunctions by the value of an equality
        self.repeated_count = 0
        repeated: list[int] = []
        for number, bound in filters.items():
            divided = conjunctions(bound)
            if divided is None:
                self.whole_filters.append((number, bound))
                continue
            for part in divided:
                parts.append((number, part))
                repeated.append(self.repeated_count if len(divided) > 1 else -1)
                for test in part:
                    if values := _access_values(test):
                        slot = codes.slot(test.column)
                        counts.update((slot, codes.number(slot, value)) for value in values)
            self.repeated_count += len(divided) > 1
        remaining: list[list[BoundTest]] = []  # the tests that the clusters do not decide
        clusters: dict[int, dict[int, list[int]]] = {}  # slot → value → conjunctions
        rest: dict[int, Conjunction] = {}
        for number, (_, part) in enumerate(parts):
            access = _access(codes, part, counts)
            if access is None:
                rest[number] = part
            else:
                slot = codes.slot(access.column)
                by_value = clusters.setdefault(slot, {})
                for value in access.values:
                    by_value.setdefault(codes.number(slot, value), []).append(number)
            remaining.append([test for test in part if test is not access])
        intervals = _intervals(codes, rest)
        groups = self._grouped(clusters, intervals, list(rest))
        owners = np.array([number for number, _ in parts], np.int32)
        order = self._lay_out(groups, links[owners], np.array(list(map(len, remaining)), np.int32))
        self.filter_numbers = owners[order]
        self.repeated = np.array(repeated, np.int32)[order]
        tests = _Tests(codes)
        for number in order.tolist():
            tests.add(remaining[number])
        self.tests = tests.arrays()

    @property
    def size(self) -> int:
        return len(self.numbers)

    def _grouped(
        self,
        clusters: dict[int, dict[int, list[int]]],
        intervals: dict[int, dict[int, list[int]]],
        rest: list[int],
    ) -> list[list[int]]:
        """Number the clusters: group 0 has the conjunctions without a cluster. Each column with
        clusters has a hash table from values, or a sorted list of intervals, to the groups."""
        groups = [rest]
        tables = [0]
        keys, group_of = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for by_value in clusters.values():
            size = 1 << (2 * len(by_value)).bit_length()
            keys.append(np.zeros(size, np.int64))
            group_of.append(np.full(size, -1, np.int32))
            put_values(np.array(list(by_value), np.int64), len(groups), keys[-1], group_of[-1])
            groups += by_value.values()
            tables.append(tables[-1] + size)
        for by_first in intervals.values():
            keys.append(np.array(list(by_first), np.int64))
            group_of.append(np.arange(len(groups), len(groups) + len(by_first), dtype=np.int32))
            groups += by_first.values()
            tables.append(tables[-1] + len(by_first))
        slots = [*clusters, *intervals]
        are_sorted = np.arange(len(slots)) >= len(clusters)
        self.access = (
            np.array(slots, np.int32), are_sorted, np.array(tables, np.int64),
            np.concatenate(keys), np.concatenate(group_of),
        )  # fmt: skip
        return groups

    def _lay_out(self, groups: list[list[int]], links: Int32s, tests: Int32s) -> Int64s:
        """Sort the conjunctions of each group by link, and those of a link by their number of
        tests, because those with few tests pass more rows. The conjunctions get new numbers, in the
        order in which groups have them, so that a group is read from one place in memory. Returns
        the earlier numbers in this order."""
        sizes = np.array([len(group) for group in groups], np.int64)
        self.starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        members = np.array([number for group in groups for number in group], np.int64)
        in_group = np.repeat(np.arange(sizes.size), sizes)
        members = members[np.lexsort((tests[members], links[members], in_group))]
        self.links = links[members]
        first = np.diff(self.links, prepend=-1) != 0
        first[self.starts[:-1][sizes > 0]] = True
        edges = np.flatnonzero(first)
        ends = np.append(edges, members.size)[1:]
        self.run_ends = np.repeat(ends, ends - edges).astype(np.int32)
        earlier, places = np.unique(members, return_index=True)
        order = earlier[np.argsort(places)]
        number_of = np.empty(tests.size, np.int32)
        number_of[order] = np.arange(order.size)
        self.members = number_of[members]
        return order

    # ------------------------------------------------------------ matching

    def match(self, rows: Rows, ids: Int64s) -> Iterator[tuple[Int32s, Int64s]]:
        """Yields rows and the ids of filters that they pass."""
        for number, bound in self.whole_filters:
            if ids[number] >= 0:
                found = np.flatnonzero(passes(bound, rows.columns, rows.size))
                yield found.astype(np.int32), np.full(found.size, ids[number], np.int64)
        few = rows.size < _TILED_MIN
        chosen = self._selected(rows, *((_NEVER, _NEVER) if few else (1, _LARGE)))
        totals = np.cumsum(chosen.totals)
        seen = np.zeros(self.repeated_count, np.int64)
        lo = 0
        while lo < rows.size:
            before = int(totals[lo - 1]) if lo else 0
            hi = max(lo + 1, int(np.searchsorted(totals, before + _PAIRS_MAX, "right")))
            if totals[hi - 1] > before:
                yield self._tested(rows, chosen, lo, hi, ids, seen)
            lo = hi

    def _tested(
        self, rows: Rows, chosen: "_Chosen", lo: int, hi: int, ids: Int64s, seen: Int64s
    ) -> tuple[Int32s, Int64s]:
        """Rows from lo to hi, and the ids of filters that they pass."""
        totals = chosen.totals[lo:hi]
        found = np.empty(int(totals.sum()), np.int32)
        begins = np.cumsum(totals) - totals  # there is room for all conjunctions of a row's groups
        ends = begins.copy()
        each = chosen.groups.size // rows.size
        matching(
            lo, hi, *rows.arrays, chosen.groups[lo * each : hi * each], self.starts, self.members,
            *self.tests, ends, found,
        )  # fmt: skip
        first, last = np.searchsorted(chosen.large_rows, (lo, hi))
        if first < last:
            large_rows, large_groups = (
                chosen.large_rows[first:last],
                chosen.large_groups[first:last],
            )
            order = np.argsort(large_groups, kind="stable")
            tiled(
                lo, large_rows[order], large_groups[order], *rows.arrays, self.starts, self.members,
                *self.tests, np.empty(3 * TILE * rows.width, np.int64),
                np.empty(2 * TILE, np.int64), ends, found,
            )  # fmt: skip
        count = int((ends - begins).sum())
        out_rows, out_ids = np.empty(count, np.int32), np.empty(count, np.int64)
        count = gathered(
            lo, begins, ends, found, self.filter_numbers, ids, self.repeated, seen, out_rows,
            out_ids,
        )  # fmt: skip
        return out_rows[:count], out_ids[:count]

    def link(
        self, rows: Rows, ids: Int64s, link_of: Int32s, used: int, masks: Any, counts: Int32s
    ) -> None:
        """Set the bits of the links of which each row passes a filter, as `linking` says."""
        chosen = self._selected(rows, _NEVER, _NEVER)
        if chosen.totals.any():
            linking(
                rows.size, *rows.arrays, chosen.groups, self.starts, self.members, *self.tests,
                self.filter_numbers, ids, self.links, self.run_ends, used, masks, counts,
            )  # fmt: skip
        for number, bound in self.whole_filters:
            word, bit = divmod(int(link_of[number]), 64)
            mask = masks[word * rows.size : (word + 1) * rows.size]
            new = mask & np.uint64(1 << bit) == 0
            if ids[number] >= 0 and new.any():
                new &= passes(bound, rows.columns, rows.size)
                mask[new] |= np.uint64(1 << bit)
                counts[new] += 1

    def _selected(self, rows: Rows, large_first: int, large: int) -> "_Chosen":
        room = rows.size * (self.access[0].size + 1)
        groups, totals = np.empty(room, np.int32), np.empty(rows.size, np.int64)
        large_rows, large_groups = np.empty(room, np.int32), np.empty(room, np.int32)
        count = selected(
            rows.size, rows.width, rows.cells, rows.states, *self.access, self.starts,
            large_first, large, groups, totals, large_rows, large_groups,
        )  # fmt: skip
        return _Chosen(groups, totals, large_rows[:count], large_groups[:count])


class _Chosen(NamedTuple):
    """The groups with which rows are compared, as `selected` writes them."""

    groups: Int32s
    totals: Int64s
    large_rows: Int32s
    large_groups: Int32s


def _access(codes: Codes, part: Conjunction, counts: Counter[tuple[int, int]]) -> BoundTest | None:
    """The equality test of a conjunction whose values the fewest conjunctions test."""
    best, least = None, math.inf
    for test in part:
        if values := _access_values(test):
            slot = codes.slot(test.column)
            total = sum(counts[slot, codes.number(slot, value)] for value in values)
            if total < least:
                best, least = test, total
    return best


def _intervals(codes: Codes, rest: dict[int, Conjunction]) -> dict[int, dict[int, list[int]]]:
    """Clusters for conjunctions without an equality test that have a range of numbers: slot → the
    first number of each interval → conjunctions whose range overlaps it. Takes these conjunctions
    out of `rest`."""
    ranges: dict[int, list[tuple[int, int, int]]] = {}  # slot → low, high, conjunction
    for number, part in rest.items():
        for slot, (low, high) in _bounds(codes, part).items():
            ranges.setdefault(slot, []).append((low, high, number))
    firsts: dict[int, Int64s] = {}
    choices: dict[int, tuple[int, int, int, int]] = {}  # conjunction → the fewest intervals
    for slot, mine in ranges.items():
        if len(mine) < _RANGES_MIN:
            continue
        table = np.array(mine, np.int64)
        # Equally many ranges begin in each interval.
        edges = np.unique(np.sort(table[:, 0])[:: -(-len(mine) // _INTERVALS)])
        firsts[slot] = edges
        begin = np.searchsorted(edges, table[:, 0], "right") - 1
        end = np.searchsorted(edges, table[:, 1], "right")
        for at in np.flatnonzero(end - begin <= _ACCESS_MAX).tolist():
            number, count = mine[at][2], int(end[at] - begin[at])
            if number not in choices or count < choices[number][0]:
                choices[number] = count, slot, int(begin[at]), int(end[at])
    found: dict[int, dict[int, list[int]]] = {}
    for number, (_, slot, begin_at, end_at) in choices.items():
        del rest[number]
        edges = firsts[slot]
        by_first = found.setdefault(slot, {first: [] for first in edges.tolist()})
        for first in edges[begin_at:end_at].tolist():
            by_first[first].append(number)
    return found


def _bounds(codes: Codes, part: Conjunction) -> dict[int, tuple[int, int]]:
    """The ranges of numbers with two bounds, by slot."""
    found: dict[int, tuple[int, int]] = {}
    for test in part:
        if test.op in _RANGES and not test.negated and test.column.kind not in _TEXTS:
            slot = codes.slot(test.column)
            low, high = number_range(test.op, [codes.number(slot, value) for value in test.values])
            before = found.get(slot, (_INT64.min, _INT64.max))
            found[slot] = max(low, before[0]), min(high, before[1])
    return {
        slot: (low, high)
        for slot, (low, high) in found.items()
        if _INT64.min < low <= high < _INT64.max
    }


class _Tests:
    """The tests of conjunctions as the kernels read them."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.firsts = [0]
        self.tests: list[int] = []
        self.listed: list[int] = []
        self.literals: list[bytes] = []

    def add(self, conjunction: list[BoundTest]) -> None:
        for test in conjunction:
            slot = self.codes.slot(test.column)
            if test.column.kind in _TEXTS and test.op in _READING:
                self.codes.read.add(slot)
                what, low, high = self._of_text(test)
            else:
                what, low, high = self._of_number(test, slot)
            self.tests += (what | test.negated * NEGATED | slot << 8, low, high)
        self.firsts.append(len(self.tests) // 3)

    def _of_number(self, test: BoundTest, slot: int) -> tuple[int, int, int]:
        if test.op is Op.EXISTS:
            return EXISTS, 0, 0
        values = [self.codes.number(slot, value) for value in test.values]
        if test.op is Op.IN:
            low = len(self.listed)
            self.listed += sorted(values)
            return LISTED, low, len(self.listed)
        return RANGE, *number_range(test.op, values)

    def _of_text(self, test: BoundTest) -> tuple[int, int, int]:
        first = len(self.literals)
        self.literals += test.values
        match test.op:
            case Op.STARTS_WITH:
                return STARTS_WITH, first, 0
            case Op.CONTAINS:
                return CONTAINS, first, 0
            case Op.BETWEEN:
                return TEXT_RANGE, first, first + 1
        what = TEXT_RANGE | OPEN if test.op in (Op.LESS, Op.MORE) else TEXT_RANGE
        return (what, -1, first) if test.op in (Op.LESS, Op.AT_MOST) else (what, first, -1)

    def arrays(self) -> tuple[Any, ...]:
        return (
            np.array(self.firsts, np.int64), np.array(self.tests, np.int64),
            np.array(self.listed, np.int64), *pool(self.literals),
        )  # fmt: skip
