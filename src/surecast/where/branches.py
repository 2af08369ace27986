"""MatchingTree: many filters as a tree of their tests, with the methods of FilterIndex (index.py).

The columns have an order. Each node is about one column: a conjunction continues on a branch for a
value, for a range of numbers, or for other tests of this column; or on the *star* branch if it does
not test it. Leaves have the ids of
filters. A row follows all branches whose tests it passes, and the star branch. Nodes that would
have only a star branch are left out.

For links, each node is annotated with one of three answers for each link: yes (`certain`: every
row that comes here passes a filter of the link), no, or maybe (`possible`). A branch of tests,
which a row may fail, makes a yes a maybe; the star branch keeps it. A row goes on only while there
is a maybe for a link that is not yet set.

The counting index is faster (docs/filters.md). The tree has another structure and no compiled loop,
so tests compare the two, and so does the benchmark.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surecast.where.binding import Bound, BoundAnd, BoundTest, Op
from surecast.where.columns import Column, Kind, array_of
from surecast.where.evaluate import Columns, Evaluation, Rows, numbers_of, passes
from surecast.where.index import Masks, check_link
from surecast.where.normal import Conjunction, conjunctions
from surecast.where.rows import Int32s, Int64s, number_range, order_number, order_numbers

__all__ = ["MatchingTree"]

_VALUES_MAX = 16  # values of an `in` that get a branch each
_CELLS_MAX = 1 << 20  # pairs of rows and ranges that are compared at once
_INT64_MIN: Final = int(np.iinfo(np.int64).min)
_RANGES: Final = (Op.LESS, Op.AT_MOST, Op.MORE, Op.AT_LEAST, Op.BETWEEN)
_TEXTS: Final = (Kind.STRING, Kind.BINARY)
_LEAF: Final = 1 << 30  # the level of leaves

# What a branch is for: a value, a range of numbers (rows.py) from low to high, or other tests.
_Value = tuple[Any]
_Range = tuple[int, int]
_Label = _Value | _Range | BoundAnd
_Step = tuple[int, _Label]  # with its level


class _Node:
    __slots__ = (
        "branches", "certain", "ids", "is_stale", "level", "possible", "star", "table",
    )  # fmt: skip

    def __init__(self, level: int) -> None:
        self.level = level
        self.star: _Node | None = None
        self.branches: dict[_Label, _Node] = {}
        self.table: _Table | None = None  # the branches, as they are searched
        self.ids: dict[int, int] = {}  # of a leaf, with their links
        self.certain = 0  # links, as bits
        self.possible = 0
        self.is_stale = True  # the annotation is of an earlier state

    def annotate(self) -> None:
        if not self.is_stale:
            return
        self.certain, self.possible = 0, 0
        for link in set(self.ids.values()):
            self.certain |= 1 << link
        for branch in self.branches.values():
            branch.annotate()
            self.possible |= branch.certain | branch.possible
        if self.star is not None:
            self.star.annotate()
            self.certain |= self.star.certain
            self.possible |= self.star.possible
        self.possible &= ~self.certain
        self.is_stale = False


class _Table:
    """The branches of a node: values by a dict, ranges as arrays."""

    def __init__(self, branches: dict[_Label, _Node]) -> None:
        self.values: dict[Any, _Node] = {}
        self.ranges: list[_Node] = []
        self.others: list[tuple[BoundAnd, _Node]] = []
        bounds: list[_Range] = []
        for label, node in branches.items():
            if isinstance(label, BoundAnd):
                self.others.append((label, node))
            elif len(label) == 1:
                self.values[label[0]] = node
            else:
                bounds.append(label)
                self.ranges.append(node)
        self.lows = np.array([low for low, _ in bounds], np.int64)
        self.highs = np.array([high for _, high in bounds], np.int64)


class MatchingTree:
    """See the module. Ids are whole numbers, not negative, that the caller chooses."""

    def __init__(self) -> None:
        self._filters: dict[int, tuple[Bound, int]] = {}  # id → filter and link
        self._whole: dict[int, Bound] = {}  # filters that are too large to be divided
        self._levels: dict[str, int] = {}  # column → its level
        self._columns: list[Column] = []  # of each level
        self._root: _Node | None = None
        self._links: Counter[int] = Counter()  # filters of each link

    def __len__(self) -> int:
        return len(self._filters)

    def add(self, filters: Mapping[int, Bound], link: int = 0) -> None:
        """Add filters of a link; one replaces an earlier one with its id."""
        check_link(link)
        self.remove([key for key in filters if key in self._filters])
        divided = {key: conjunctions(bound) for key, bound in filters.items()}
        if not self._filters:
            self._order(part for parts in divided.values() for part in parts or ())
        for key, parts in divided.items():
            self._filters[key] = filters[key], link
            self._links[link] += 1
            if parts is None:
                self._whole[key] = filters[key]
            for part in parts or ():
                for steps in self._paths(part):
                    self._root = _added(self._root, steps, 0, key, link)

    def remove(self, ids: Iterable[int]) -> None:
        """Remove filters; unknown ids are ignored."""
        for key in ids:
            bound, link = self._filters.pop(key, (None, 0))
            if bound is None:
                continue
            self._links[link] -= 1
            if not self._links[link]:
                del self._links[link]
            if self._whole.pop(key, None) is None:
                for part in conjunctions(bound) or ():
                    for steps in self._paths(part):
                        self._root = _removed(self._root, steps, 0, key)

    def _order(self, parts: Iterable[Conjunction]) -> None:
        """Put the columns with the most different values in equality tests first."""
        values: dict[Column, set[Any]] = {}
        for part in parts:
            for test in part:
                values.setdefault(test.column, set()).update(_branch_values(test))
        columns = sorted(values, key=lambda column: (-len(values[column]), column.name))
        self._columns = columns
        self._levels = {column.name: level for level, column in enumerate(columns)}

    def _level(self, column: Column) -> int:
        if column.name not in self._levels:
            self._levels[column.name] = len(self._columns)
            self._columns.append(column)
        return self._levels[column.name]

    def _paths(self, part: Conjunction) -> Iterator[list[_Step]]:
        """The paths of a conjunction from the root. There are several if it has tests with several
        values."""
        by_level: dict[int, list[BoundTest]] = {}
        for test in part:
            by_level.setdefault(self._level(test.column), []).append(test)
        paths: list[list[_Step]] = [[]]
        for level, tests in sorted(by_level.items()):
            values = _branch_values(tests[0]) if len(tests) == 1 else ()
            if values and len(paths) * len(values) <= _VALUES_MAX:
                paths = [[*path, (level, (value,))] for path in paths for value in values]
            else:
                label = _range(tests) or BoundAnd(tuple(sorted(set(tests), key=repr)))
                paths = [[*path, (level, label)] for path in paths]
        yield from paths

    # ------------------------------------------------------------ matching

    def match(self, columns: Columns, rows: int) -> tuple[Int32s, Int64s]:
        """The pairs (row, id) that pass, each once, sorted by row."""
        batch = _Batch(columns, rows)
        found_rows, found_ids = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for key, bound in self._whole.items() if rows else ():
            these = np.flatnonzero(passes(bound, columns, rows))
            found_rows.append(these)
            found_ids.append(np.full(these.size, key, np.int64))
        left = [(self._root, np.arange(rows))] if self._root is not None and rows else []
        while left:
            node, these = left.pop()
            if node.level == _LEAF:
                found_rows.append(np.repeat(these, len(node.ids)))
                found_ids.append(np.tile(np.array(list(node.ids), np.int64), these.size))
            else:
                left += self._followed(node, these, batch)
        pairs = np.stack((np.concatenate(found_rows), np.concatenate(found_ids)))
        pairs = pairs[:, np.lexsort((pairs[1], pairs[0]))]
        new = np.ones(pairs.shape[1], np.bool_)  # several conjunctions may find a pair
        new[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)
        return pairs[0, new].astype(np.int32), pairs[1, new]

    def links(self, columns: Columns, rows: int) -> Masks:
        """As FilterIndex.links."""
        batch = _Batch(columns, rows)
        masks = np.zeros((max(self._links, default=0) // 64 + 1, rows), np.uint64)
        for key, bound in self._whole.items() if rows else ():
            _set(masks, np.flatnonzero(passes(bound, columns, rows)), 1 << self._filters[key][1])
        left = [(self._root, np.arange(rows))] if self._root is not None and rows else []
        if self._root is not None:
            self._root.annotate()
        while left:
            node, these = left.pop()
            _set(masks, these, node.certain)
            these = these[_lacking(masks, these, node.possible)]
            if these.size:
                left += self._followed(node, these, batch)
        return masks

    def _followed(
        self, node: _Node, these: Int64s, batch: "_Batch"
    ) -> Iterator[tuple[_Node, Int64s]]:
        """The next nodes, each with those of the rows `these` that go there."""
        if node.star is not None:
            yield node.star, these
        if not node.branches:
            return
        if node.table is None:
            node.table = _Table(node.branches)
        table, column = node.table, self._columns[node.level]
        if table.values:
            codes, values = batch.coded(column)
            mine = codes[these]
            for code in np.unique(mine).tolist():
                child = table.values.get(values[code]) if code >= 0 else None
                if child is not None:
                    yield child, these[mine == code]
        if table.ranges:
            numbers, fits = batch.numbered(column)
            inside = these[fits[these]]
            for lo in range(0, inside.size, each := 1 + _CELLS_MAX // len(table.ranges)):
                part = inside[lo : lo + each]
                cells = numbers[part]
                passing = (table.lows[:, None] <= cells) & (cells <= table.highs[:, None])
                branches, found = np.nonzero(passing)
                edges = np.flatnonzero(np.diff(branches, prepend=-1))
                for rows in np.split(np.arange(found.size), edges[1:]) if found.size else ():
                    yield table.ranges[branches[rows[0]]], part[found[rows]]
        for label, child in table.others:
            rows = these[batch.passing(label)[these]]
            if rows.size:
                yield child, rows


def _branch_values(test: BoundTest) -> tuple[Any, ...]:
    """The values of a test that get a branch each; empty if it has none."""
    if test.negated or test.op not in (Op.EQUAL, Op.IN) or len(test.values) > _VALUES_MAX:
        return ()
    return test.values


def _range(tests: list[BoundTest]) -> _Range | None:
    """The numbers that pass tests of a column; None if the tests are of another kind."""
    low, high = number_range(Op.AT_LEAST, [_INT64_MIN])
    for test in tests:
        if test.negated or test.op not in _RANGES or test.column.kind in _TEXTS:
            return None
        is_float = test.column.kind is Kind.FLOAT
        values = [order_number(value) if is_float else value for value in test.values]
        low_of, high_of = number_range(test.op, values)
        low, high = max(low, low_of), min(high, high_of)
    return low, high


def _added(node: _Node | None, steps: list[_Step], at: int, key: int, link: int) -> _Node:
    """The node, or the one that takes its place, with a path from step `at` on."""
    level = steps[at][0] if at < len(steps) else _LEAF
    if node is None:
        node = _Node(level)
    elif node.level > level:
        above = _Node(level)
        above.star = node
        node = above
    node.is_stale = True
    if node.level < level:
        node.star = _added(node.star, steps, at, key, link)
    elif level == _LEAF:
        node.ids[key] = link
    else:
        label = steps[at][1]
        node.branches[label] = _added(node.branches.get(label), steps, at + 1, key, link)
        node.table = None
    return node


def _removed(node: _Node | None, steps: list[_Step], at: int, key: int) -> _Node | None:
    """The node without a path, or what is left of it."""
    if node is None:  # an equal conjunction of the filter was removed before
        return None
    level = steps[at][0] if at < len(steps) else _LEAF
    node.is_stale = True
    if node.level < level:
        node.star = _removed(node.star, steps, at, key)
    elif node.level == level == _LEAF:
        node.ids.pop(key, None)
    elif node.level == level:
        label = steps[at][1]
        left = _removed(node.branches.get(label), steps, at + 1, key)
        if left is None:
            node.branches.pop(label, None)
        else:
            node.branches[label] = left
        node.table = None
    if node.level < _LEAF and not node.branches:
        return node.star
    return None if node.level == _LEAF and not node.ids else node


class _Batch:
    """A batch; what several nodes need of it is computed once."""

    def __init__(self, columns: Columns, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.evaluation = Evaluation(columns, rows)
        self.tested: dict[BoundAnd, Rows] = {}
        self.codes: dict[str, tuple[Int64s, list[Any]]] = {}
        self.numbers: dict[str, tuple[Int64s, Rows]] = {}

    def passing(self, label: BoundAnd) -> Rows:
        found = self.tested.get(label)
        if found is None:
            found = self.tested[label] = self.evaluation.passes(label)
        return found

    def coded(self, column: Column) -> tuple[Int64s, list[Any]]:
        """For each row, which of the column's different values it has; -1: none."""
        found = self.codes.get(column.name)
        if found is None:
            found = self.codes[column.name] = self._coded(column)
        return found

    def numbered(self, column: Column) -> tuple[Int64s, Rows]:
        """The numbers of the column's values, and the rows that have one (not NaN)."""
        found = self.numbers.get(column.name)
        if found is None:
            found = self.numbers[column.name] = self._numbered(column)
        return found

    def _numbered(self, column: Column) -> tuple[Int64s, Rows]:
        array = array_of(column, self.columns, self.rows)
        if array is None:
            return np.zeros(self.rows, np.int64), np.zeros(self.rows, np.bool_)
        numbers, is_nan = order_numbers(column, array)
        fits = array.is_valid().to_numpy(zero_copy_only=False)
        return numbers, fits & ~is_nan if column.kind is Kind.FLOAT else fits

    def _coded(self, column: Column) -> tuple[Int64s, list[Any]]:
        array = array_of(column, self.columns, self.rows)
        if array is None:
            return np.full(self.rows, -1), []
        if column.kind in (Kind.STRING, Kind.BINARY):
            encoded = pc.dictionary_encode(array.cast(pa.binary()))
            codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            return codes.astype(np.int64), encoded.dictionary.to_pylist()
        values, codes = np.unique(numbers_of(column, array), return_inverse=True)
        has = array.is_valid().to_numpy(zero_copy_only=False)
        return np.where(has, codes, -1), values.tolist()  # NaN is not the value of a branch


def _words(links: int) -> Iterator[tuple[int, np.uint64]]:
    """The bits of a number in words of 64, without those that are 0."""
    word = 0
    while links:
        if part := links & (1 << 64) - 1:
            yield word, np.uint64(part)
        links >>= 64
        word += 1


def _set(masks: Masks, rows: Int64s, links: int) -> None:
    for word, bits in _words(links):
        masks[word, rows] |= bits


def _lacking(masks: Masks, rows: Int64s, links: int) -> Rows:
    """Whether each row lacks one of the links."""
    found = np.zeros(rows.size, np.bool_)
    for word, bits in _words(links):
        found |= (bits & ~masks[word, rows]) != 0
    return found
