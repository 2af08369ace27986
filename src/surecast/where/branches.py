"""MatchingTree: many filters as a tree of their tests, with the methods of FilterIndex (index.py).

The columns have an order. Each node is about one column: a conjunction continues on a branch for
its tests of this column, or on the *star* branch if it does not test it. Leaves have the ids of
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
from surecast.where.rows import Int32s, Int64s

__all__ = ["MatchingTree"]

_VALUES_MAX = 16  # values of an `in` that get a branch each
_LEAF: Final = 1 << 30  # the level of leaves

# The tests of a branch that is not for one value.
_Label = BoundAnd


class _Node:
    __slots__ = ("certain", "ids", "is_stale", "level", "others", "possible", "star", "values")

    def __init__(self, level: int) -> None:
        self.level = level
        self.star: _Node | None = None
        self.values: dict[Any, _Node] = {}
        self.others: dict[_Label, _Node] = {}
        self.ids: dict[int, int] = {}  # of a leaf, with their links
        self.certain = 0  # links, as bits
        self.possible = 0
        self.is_stale = True  # the annotation is of an earlier state

    def branches(self) -> Iterator["_Node"]:
        yield from self.values.values()
        yield from self.others.values()

    def is_empty(self) -> bool:
        return not (self.star or self.values or self.others or self.ids)

    def annotate(self) -> None:
        if not self.is_stale:
            return
        self.certain, self.possible = 0, 0
        for link in set(self.ids.values()):
            self.certain |= 1 << link
        for branch in self.branches():
            branch.annotate()
            self.possible |= branch.certain | branch.possible
        if self.star is not None:
            self.star.annotate()
            self.certain |= self.star.certain
            self.possible |= self.star.possible
        self.possible &= ~self.certain
        self.is_stale = False


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

    def _paths(self, part: Conjunction) -> Iterator[list[tuple[int, Any]]]:
        """The paths of a conjunction from the root: the level and the branch of each step. There
        are several if it has tests with several values."""
        by_level: dict[int, list[BoundTest]] = {}
        for test in part:
            by_level.setdefault(self._level(test.column), []).append(test)
        paths: list[list[tuple[int, Any]]] = [[]]
        for level, tests in sorted(by_level.items()):
            values = _branch_values(tests[0]) if len(tests) == 1 else ()
            if values and len(paths) * len(values) <= _VALUES_MAX:
                paths = [[*path, (level, (value,))] for path in paths for value in values]
            else:
                label = BoundAnd(tuple(sorted(set(tests), key=repr)))
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
        if not (node.values or node.others):
            return
        column = self._columns[node.level]
        if node.values:
            codes, values = batch.coded(column)
            mine = codes[these]
            for code in np.unique(mine).tolist():
                child = node.values.get(values[code]) if code >= 0 else None
                if child is not None:
                    yield child, these[mine == code]
        for label, child in node.others.items():
            passing = these[batch.passing(label)[these]]
            if passing.size:
                yield child, passing


def _branch_values(test: BoundTest) -> tuple[Any, ...]:
    """The values of a test that get a branch each; empty if it has none."""
    if test.negated or test.op not in (Op.EQUAL, Op.IN) or len(test.values) > _VALUES_MAX:
        return ()
    return test.values


def _added(node: _Node | None, steps: list[tuple[int, Any]], at: int, key: int, link: int) -> _Node:
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
        step = steps[at][1]
        if isinstance(step, BoundAnd):
            node.others[step] = _added(node.others.get(step), steps, at + 1, key, link)
        else:
            node.values[step[0]] = _added(node.values.get(step[0]), steps, at + 1, key, link)
    return node


def _removed(node: _Node | None, steps: list[tuple[int, Any]], at: int, key: int) -> _Node | None:
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
        step = steps[at][1]
        branches: dict[Any, _Node] = node.others if isinstance(step, BoundAnd) else node.values
        name = step if isinstance(step, BoundAnd) else step[0]
        left = _removed(branches.get(name), steps, at + 1, key)
        if left is None:
            branches.pop(name, None)
        else:
            branches[name] = left
    if node.level < _LEAF and not (node.values or node.others):
        return node.star
    return None if node.is_empty() else node


class _Batch:
    """A batch; what several nodes need of it is computed once."""

    def __init__(self, columns: Columns, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.evaluation = Evaluation(columns, rows)
        self.tested: dict[_Label, Rows] = {}
        self.codes: dict[str, tuple[Int64s, list[Any]]] = {}

    def passing(self, label: _Label) -> Rows:
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
