"""FilterIndex: finds which of many filters each row of a batch passes.

A filter is divided into *conjunctions* (disjunctive normal form). Each conjunction is put into a
*cluster* by one of its equality tests: the one whose value the fewest conjunctions test. A row is
then compared only with the conjunctions of the clusters that its own values select, and with those
that have no equality test. Their other tests are evaluated by a compiled loop (kernels.py).

    index = FilterIndex()
    index.add({7: bind(parse("sym == 'IBM' and qty > 100"), columns)})
    rows, ids = index.match(batch, len(batch))  # row rows[i] passes the filter ids[i]

Strings are compared as *codes*: the index numbers the strings that its equality tests contain, and
maps the strings of a batch to these numbers. Order tests, `startswith` and `contains` of strings
are evaluated by evaluate.py, for the rows that pass the other tests of their conjunction; so is a
filter whose normal form would be too large.

Filters are added to a small part that is searched one by one. When this part is full it becomes a
*segment*, which is never changed; segments of similar size are joined. A removed filter stays in
its segment until half of the index is removed filters.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surecast.where.binding import Bound, BoundAnd, BoundOr, BoundTest, Op
from surecast.where.columns import Column, Kind, array_of
from surecast.where.evaluate import Columns, passes
from surecast.where.kernels import (
    EXISTS,
    FLOATS,
    LISTED_FLOATS,
    LISTED_WHOLE,
    NEGATED,
    WHOLE,
    passing,
)

__all__ = ["CONJUNCTIONS_MAX", "FilterIndex", "conjunctions"]

CONJUNCTIONS_MAX = 64  # of one filter; a larger one is evaluated as a whole
RECENT_MAX = 64  # filters that are searched one by one
_GROWTH: Final = 4  # a segment is joined with the next larger one below this ratio of sizes
_ACCESS_MAX = 16  # values of an `in` by which a conjunction is put into clusters
_PAIRS_MAX = 1 << 22  # pairs of rows and conjunctions in one call of the kernel

_TEXTS: Final = (Kind.STRING, Kind.BINARY)
_SLOW: Final = (
    Op.LESS, Op.AT_MOST, Op.MORE, Op.AT_LEAST, Op.BETWEEN, Op.STARTS_WITH, Op.CONTAINS,
)  # fmt: skip
_INT64: Final = np.iinfo(np.int64)

Int32s = np.ndarray[Any, np.dtype[np.int32]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]
Conjunction = tuple[BoundTest, ...]


def conjunctions(bound: Bound) -> list[Conjunction] | None:
    """The disjunctive normal form of a filter; None if it has more than CONJUNCTIONS_MAX parts."""
    match bound:
        case BoundTest():
            return [(bound,)]
        case BoundOr(parts):
            found: list[Conjunction] = []
            for part in parts:
                inner = conjunctions(part)
                if inner is None or len(found) + len(inner) > CONJUNCTIONS_MAX:
                    return None
                found += inner
            return found
        case BoundAnd(parts):
            factors = [conjunctions(part) for part in parts]
            total = 1
            for factor in factors:
                if factor is None or (total := total * len(factor)) > CONJUNCTIONS_MAX:
                    return None
            return [sum(choice, ()) for choice in product(*(f for f in factors if f is not None))]


def _is_slow(test: BoundTest) -> bool:
    return test.column.kind in _TEXTS and test.op in _SLOW


def _access_values(test: BoundTest) -> tuple[Any, ...]:
    """The values by which a test can put its conjunction into clusters; empty if it cannot."""
    if test.negated or test.op not in (Op.EQUAL, Op.IN) or len(test.values) > _ACCESS_MAX:
        return ()
    return test.values


class _Codes:
    """The columns of an index, and the numbers of the strings that its tests contain."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}  # column → its place in the arrays of a batch
        self.columns: list[Column] = []
        self.texts: list[dict[bytes, int]] = []  # of each slot

    def slot(self, column: Column) -> int:
        found = self.slots.get(column.name)
        if found is None:
            found = self.slots[column.name] = len(self.columns)
            self.columns.append(column)
            self.texts.append({})
        return found

    def code(self, slot: int, value: Any) -> Any:
        """The value as numbers are compared: of a text its code."""
        if self.columns[slot].kind in _TEXTS:
            texts = self.texts[slot]
            return texts.setdefault(value, len(texts))
        return value


class _Rows(NamedTuple):
    """A batch as the kernel reads it: all columns of the index, one after the other."""

    columns: Columns
    size: int  # rows
    whole: Int64s
    floats: Any
    has: Any
    comparable: Any


def _rows_of(codes: _Codes, columns: Columns, count: int) -> _Rows:
    cells = len(codes.columns) * count
    whole, floats = np.zeros(cells, np.int64), np.zeros(cells, np.float64)
    has, comparable = np.zeros(cells, np.bool_), np.zeros(cells, np.bool_)
    for slot, column in enumerate(codes.columns):
        array = array_of(column, columns, count)
        if array is None:
            continue
        part = slice(slot * count, (slot + 1) * count)
        has[part] = comparable[part] = (
            True if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
        )
        match column.kind:
            case Kind.STRING | Kind.BINARY:
                whole[part] = _codes_of(codes.texts[slot], array)
            case Kind.FLOAT:
                values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
                floats[part] = values
                comparable[part] &= ~np.isnan(values)
            case Kind.BOOL:
                whole[part] = array.fill_null(False).to_numpy(zero_copy_only=False)
            case _:
                kind = pa.int64() if array.type.bit_width == 64 else pa.int32()
                numbers = array if column.kind is Kind.INTEGER else array.view(kind)
                whole[part] = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    return _Rows(columns, count, whole, floats, has, comparable)


def _codes_of(texts: dict[bytes, int], array: pa.Array) -> Any:
    """The code of each row's text; -1 if no test contains it."""
    encoded = pc.dictionary_encode(array.cast(pa.binary()))
    found = np.array([texts.get(text, -1) for text in encoded.dictionary.to_pylist()], np.int64)
    if not found.size:
        return -1
    return found[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]


class _Cluster(NamedTuple):
    """The clusters of one column: `values`, sorted, and the group of each."""

    slot: int
    values: Any
    first: int  # the group of values[0]


class _Segment:
    """Filters that do not change, as arrays. Conjunctions have the numbers of their filters."""

    def __init__(self, codes: _Codes, filters: Mapping[int, Bound]) -> None:
        self.size = len(filters)
        self.numbers = list(filters)
        self.whole_filters: list[tuple[int, Bound]] = []  # too large to be divided
        self.owners: list[int] = []  # the filter of each conjunction
        self.slow: dict[int, Conjunction] = {}  # conjunction → its slow tests
        kept: list[Conjunction] = []
        counts: Counter[tuple[int, Any]] = Counter()
        for number, bound in filters.items():
            parts = conjunctions(bound)
            if parts is None:
                self.whole_filters.append((number, bound))
                continue
            for part in parts:
                self.owners.append(number)
                kept.append(part)
                for test in part:
                    slot = codes.slot(test.column)
                    for value in _access_values(test):
                        counts[slot, codes.code(slot, value)] += 1
        self._put(codes, kept, counts)
        self.filter_of = np.array(self.owners, np.int64)
        self.is_slow = np.zeros(len(kept), np.bool_)
        self.is_slow[list(self.slow)] = True

    def _put(
        self, codes: _Codes, kept: list[Conjunction], counts: Counter[tuple[int, Any]]
    ) -> None:
        clusters: dict[tuple[int, Any], list[int]] = {}
        rest: list[int] = []
        tests: list[tuple[int, int, int, int, float, float]] = []
        firsts = [0]
        self.listed: list[int] = []
        self.listed_floats: list[float] = []
        for number, part in enumerate(kept):
            access = self._access(codes, part, counts)
            if access is None:
                rest.append(number)
            else:
                slot = codes.slot(access.column)
                for value in access.values:
                    clusters.setdefault((slot, codes.code(slot, value)), []).append(number)
            slow = tuple(test for test in part if _is_slow(test))
            if slow:
                self.slow[number] = slow
            tests += (
                self._encoded(codes, test)
                for test in part
                if test is not access and test not in slow
            )
            firsts.append(len(tests))
        self._lay_out(clusters, rest)
        self.firsts = np.array(firsts, np.int64)
        self.ops = np.array([t[0] for t in tests], np.uint8)
        self.slots = np.array([t[1] for t in tests], np.int32)
        self.lows = np.array([t[2] for t in tests], np.int64)
        self.highs = np.array([t[3] for t in tests], np.int64)
        self.float_lows = np.array([t[4] for t in tests], np.float64)
        self.float_highs = np.array([t[5] for t in tests], np.float64)
        self.listed_array = np.array(self.listed, np.int64)
        self.listed_floats_array = np.array(self.listed_floats, np.float64)

    @staticmethod
    def _access(
        codes: _Codes, part: Conjunction, counts: Counter[tuple[int, Any]]
    ) -> BoundTest | None:
        """The equality test of a conjunction whose values the fewest conjunctions test."""
        best, least = None, math.inf
        for test in part:
            if values := _access_values(test):
                slot = codes.slot(test.column)
                total = sum(counts[slot, codes.code(slot, value)] for value in values)
                if total < least:
                    best, least = test, total
        return best

    def _lay_out(self, clusters: dict[tuple[int, Any], list[int]], rest: list[int]) -> None:
        """Put clusters into groups: group 0 has the conjunctions without a cluster."""
        groups = [rest]
        by_slot: dict[int, list[Any]] = {}
        for slot, value in clusters:
            by_slot.setdefault(slot, []).append(value)
        self.clusters: list[_Cluster] = []
        for slot, values in by_slot.items():
            values.sort()
            self.clusters.append(_Cluster(slot, np.array(values), len(groups)))
            groups += (clusters[slot, value] for value in values)
        sizes = np.array([len(group) for group in groups], np.int64)
        self.starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        flat = [number for group in groups for number in group]
        self.members = np.array(flat, np.int32)

    def _encoded(self, codes: _Codes, test: BoundTest) -> tuple[int, int, int, int, float, float]:
        """A test as the kernel reads it: what it does, column, low, high, and these as floats."""
        slot = codes.slot(test.column)
        negated = NEGATED if test.negated else 0
        values = [codes.code(slot, value) for value in test.values]
        is_float = test.column.kind is Kind.FLOAT
        if test.op is Op.EXISTS:
            return EXISTS | negated, slot, 0, 0, 0.0, 0.0
        if test.op is Op.IN:
            listed: list[Any] = self.listed_floats if is_float else self.listed
            low = len(listed)
            listed += sorted(values)
            kind = LISTED_FLOATS if is_float else LISTED_WHOLE
            return kind | negated, slot, low, len(listed), 0.0, 0.0
        if is_float:
            return FLOATS | negated, slot, 0, 0, *_float_range(test.op, values)
        return WHOLE | negated, slot, *_whole_range(test.op, values), 0.0, 0.0

    # ------------------------------------------------------------ matching

    def match(self, rows: _Rows) -> Iterator[tuple[Int32s, Int64s]]:
        """Yields rows and the numbers of filters that they pass; a pair may come twice."""
        for number, bound in self.whole_filters:
            found = np.flatnonzero(passes(bound, rows.columns, rows.size))
            yield found.astype(np.int32), np.full(found.size, number, np.int64)
        for these, groups in self._selected(rows):
            yield from self._tested(rows, these, groups)

    def _selected(self, rows: _Rows) -> Iterator[tuple[Int32s, Int32s]]:
        """Rows, and for each the group whose conjunctions it has to be compared with."""
        if self.starts[1]:
            yield np.arange(rows.size, dtype=np.int32), np.zeros(rows.size, np.int32)
        for slot, values, first in self.clusters:
            part = slice(slot * rows.size, (slot + 1) * rows.size)
            cells = (rows.floats if values.dtype == np.float64 else rows.whole)[part]
            places = np.searchsorted(values, cells)
            places[places == values.size] = 0
            these = np.flatnonzero(rows.comparable[part] & (values[places] == cells))
            yield these.astype(np.int32), (places[these] + first).astype(np.int32)

    def _tested(
        self, rows: _Rows, these: Int32s, groups: Int32s
    ) -> Iterator[tuple[Int32s, Int64s]]:
        sizes = np.cumsum(self.starts[groups + 1] - self.starts[groups], dtype=np.int64)
        lo = 0
        while lo < these.size:
            before = sizes[lo - 1] if lo else 0
            hi = max(lo + 1, int(np.searchsorted(sizes, before + _PAIRS_MAX, "right")))
            room = int(sizes[hi - 1] - before)
            out_rows, out_members = np.empty(room, np.int32), np.empty(room, np.int32)
            count = passing(
                these[lo:hi], groups[lo:hi], self.starts, self.members,
                self.firsts, self.ops, self.slots, self.lows, self.highs,
                self.float_lows, self.float_highs, self.listed_array, self.listed_floats_array,
                rows.size, rows.whole, rows.floats, rows.has, rows.comparable,
                out_rows, out_members,
            )  # fmt: skip
            yield from self._finished(rows, out_rows[:count], out_members[:count])
            lo = hi

    def _finished(
        self, rows: _Rows, found: Int32s, members: Int32s
    ) -> Iterator[tuple[Int32s, Int64s]]:
        """Apply the slow tests to the pairs of conjunctions that have some."""
        slow = self.is_slow[members]
        if not slow.any():
            yield found, self.filter_of[members]
            return
        yield found[~slow], self.filter_of[members[~slow]]
        found, members = found[slow], members[slow]
        order = np.argsort(members, kind="stable")
        found, members = found[order], members[order]
        edges = np.flatnonzero(np.diff(members, prepend=-1))
        for lo, hi in zip(edges, [*edges[1:], members.size], strict=True):
            member = int(members[lo])
            these = found[lo:hi]
            part = pa.array(these)
            columns = {
                test.column.name: rows.columns[test.column.name].take(part)
                for test in self.slow[member]
                if test.column.name in rows.columns
            }
            left = these[passes(BoundAnd(self.slow[member]), columns, these.size)]
            yield left, np.full(left.size, self.owners[member], np.int64)


def _whole_range(op: Op, values: list[int]) -> tuple[int, int]:
    match op:
        case Op.AT_MOST:
            return _INT64.min, values[0]
        case Op.AT_LEAST:
            return values[0], _INT64.max
        case Op.BETWEEN:
            return values[0], values[1]
    assert op is Op.EQUAL
    return values[0], values[0]


def _float_range(op: Op, values: list[float]) -> tuple[float, float]:
    match op:
        case Op.LESS:
            return -math.inf, math.nextafter(values[0], -math.inf)
        case Op.AT_MOST:
            return -math.inf, values[0]
        case Op.MORE:
            return math.nextafter(values[0], math.inf), math.inf
        case Op.AT_LEAST:
            return values[0], math.inf
        case Op.BETWEEN:
            return values[0], values[1]
    assert op is Op.EQUAL
    return values[0], values[0]


class FilterIndex:
    """See the module. Ids are whole numbers that the caller chooses."""

    def __init__(self) -> None:
        self._filters: dict[int, Bound] = {}  # by id
        self._codes = _Codes()
        self._recent: dict[int, Bound] = {}  # by number
        self._segments: list[_Segment] = []  # the largest first
        # Each filter gets a number when it is added. An id that is added again gets another one.
        self._numbers: dict[int, int] = {}  # id → number
        self._ids = np.empty(0, np.int64)  # of each number; -1: removed
        self._used = 0  # numbers given so far

    def __len__(self) -> int:
        return len(self._filters)

    def add(self, filters: Mapping[int, Bound]) -> None:
        """Add filters; one replaces an earlier one with its id."""
        self.remove(number for number in filters if number in self._filters)
        if self._used + len(filters) > self._ids.size:
            self._ids = np.resize(self._ids, 2 * (self._used + len(filters)))
        for key, bound in filters.items():
            self._filters[key] = bound
            self._numbers[key] = self._used
            self._ids[self._used] = key
            self._recent[self._used] = bound
            self._used += 1
        if len(self._recent) > RECENT_MAX:
            self._seal()

    def remove(self, ids: Iterable[int]) -> None:
        """Remove filters; unknown ids are ignored."""
        for key in list(ids):
            if self._filters.pop(key, None) is not None:
                number = self._numbers.pop(key)
                self._ids[number] = -1
                self._recent.pop(number, None)
        if self._used > 2 * len(self._filters) + RECENT_MAX:
            self._build_again()

    def _seal(self) -> None:
        """Make a segment of the recent filters, joined with segments that are not much larger."""
        numbers, self._recent = self._recent, {}
        while self._segments and self._segments[-1].size < _GROWTH * len(numbers):
            joined = self._segments.pop()
            numbers = {**self._alive(joined), **numbers}
        self._segments.append(_Segment(self._codes, numbers))

    def _alive(self, segment: _Segment) -> dict[int, Bound]:
        ids = self._ids[segment.numbers].tolist()
        pairs = zip(segment.numbers, ids, strict=True)
        return {number: self._filters[key] for number, key in pairs if key >= 0}

    def _build_again(self) -> None:
        filters = self._filters
        self.__init__()  # type: ignore[misc]
        self.add(filters)

    def match(self, columns: Columns, rows: int) -> tuple[Int32s, Int64s]:
        """The pairs (row, id) that pass, sorted by row, then by id."""
        found: list[tuple[Int32s, Int64s]] = []
        if rows and self._segments:
            batch = _rows_of(self._codes, columns, rows)
            for segment in self._segments:
                found += segment.match(batch)
        for number, bound in self._recent.items() if rows else ():
            these = np.flatnonzero(passes(bound, columns, rows)).astype(np.int32)
            found.append((these, np.full(these.size, number, np.int64)))
        if not found:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        all_rows = np.concatenate([these for these, _ in found])
        ids = self._ids[np.concatenate([numbers for _, numbers in found])]
        kept = ids >= 0
        all_rows, ids = all_rows[kept], ids[kept]
        order = np.lexsort((ids, all_rows))
        all_rows, ids = all_rows[order], ids[order]
        if all_rows.size:  # a filter may be passed by several of its conjunctions
            new = (np.diff(all_rows, prepend=-1) != 0) | (np.diff(ids, prepend=-1) != 0)
            all_rows, ids = all_rows[new], ids[new]
        return all_rows, ids
