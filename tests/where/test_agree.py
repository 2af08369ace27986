"""All evaluators accept the same rows: the kernels, both indexes, their links, and the twin.

The condition for Spark is compared with the same twin in tests/pipeline/test_where.py.
"""

from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from surecast.columns.schema import parse_schema
from surecast.errors import UsageError
from surecast.where import branches as branches_module
from surecast.where import segment as segment_module
from surecast.where.binding import bind
from surecast.where.branches import MatchingTree
from surecast.where.columns import columns_of
from surecast.where.evaluate import passes
from surecast.where.index import LINKS_MAX, FilterIndex
from surecast.where.normal import conjunctions
from surecast.where.text import parse
from surecast.where.tree import ColumnTest, Node, Not, Or
from tests.edits import Edit, must_fail
from tests.where import drawn
from tests.where.drawn import Case, draw
from tests.where.twin import accepts

Index = FilterIndex | MatchingTree
Pair = tuple[int, int]
LINKS = (0, 3, 63, 64, 130)


def matched(index: Index, case: Case) -> list[Pair]:
    rows, ids = index.match(case.batch, case.rows)
    assert (rows[1:] >= rows[:-1]).all()
    return sorted(zip(rows.tolist(), ids.tolist(), strict=True))


def linked(index: Index, case: Case) -> list[Pair]:
    masks = index.links(case.batch, case.rows)
    assert masks.shape[1] == case.rows
    return [
        (row, 64 * word + bit)
        for row in range(case.rows)
        for word in range(masks.shape[0])
        for bit in range(64)
        if int(masks[word, row]) >> bit & 1
    ]


def check_indexes(
    indexes: list[Index], wanted: set[Pair], links: dict[int, int], case: Case
) -> None:
    wanted_links = sorted({(row, links[key]) for row, key in wanted})
    for index in indexes:
        assert len(index) == len(links)
        # Compared outside of `assert`: pytest would compute the differences of long lists.
        is_same = matched(index, case) == sorted(wanted)
        assert is_same, f"{type(index).__name__} finds other filters"
        is_same = linked(index, case) == wanted_links
        assert is_same, f"{type(index).__name__} finds other links"


def all_agree(seed: int) -> int:
    """Random filters that come and go, with links; returns how many rows and filters match."""
    case, rng = draw(seed), Random(seed)
    columns = columns_of(case.schema)
    nodes = {key: drawn.node(rng, case.schema, rng.randint(0, 2)) for key in range(8)}
    nodes[8] = case.node
    wanted = set[Pair]()
    for key, node in nodes.items():
        rows = [row for row, event in enumerate(case.events) if accepts(node, event)]
        found = passes(bind(node, columns), case.batch, case.rows)
        assert np.flatnonzero(found).tolist() == rows
        wanted |= {(row, key) for row in rows}
    indexes: list[Index] = [FilterIndex(), MatchingTree()]
    links = dict[int, int]()
    for step in (range(5), range(3, 9)):
        for key in step:  # some replace themselves, with another link
            links[key] = rng.choice(LINKS)
            for index in indexes:
                index.add({key: bind(nodes[key], columns)}, links[key])
        for key in rng.sample(step, 2):
            links.pop(key, None)
            for index in indexes:
                index.remove([key, 100])
        check_indexes(indexes, {pair for pair in wanted if pair[1] in links}, links, case)
    return sum(1 for _, key in wanted if key in links)


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_all_evaluators_agree(first: int) -> None:
    assert sum(map(all_agree, range(first, first + 100))) > 3000


def edges_agree() -> None:
    """Every test of every value that is an edge case, on all of these values."""
    operators = ("==", "!=", "<", "<=", ">", ">=")
    for kind, values, more in (
        (pa.string(), drawn.WORDS, ("startswith", "contains")),
        (pa.float64(), drawn.FLOATS, ()),
        (pa.float32(), [drawn.narrow(drawn.narrow(value)) for value in drawn.FLOATS], ()),
        (pa.int64(), drawn.INTS, ()),
    ):
        schema = pa.schema([pa.field("c", kind)])
        events = [{"c": value} for value in (*values, None)]
        batch = {"c": pa.array([event["c"] for event in events], kind)}
        nodes = list[Node]()
        for value in values:
            literal = Decimal(repr(value)) if isinstance(value, float) else value
            if not isinstance(literal, Decimal) or literal.is_finite():
                for name in (*operators, *more):
                    test = ColumnTest("c", name, (literal,))
                    nodes += (test, Not(test))
        columns = columns_of(schema)
        case = Case(nodes[0], schema, batch, len(events), events)
        indexes: list[Index] = [FilterIndex(), MatchingTree()]
        wanted, links = set[Pair](), dict[int, int]()
        for first in (0, len(nodes) // 2):
            for key in range(first, first + len(nodes) // 2):
                rows = [row for row, event in enumerate(events) if accepts(nodes[key], event)]
                wanted |= {(row, key) for row in rows}
                links[key] = LINKS[key % len(LINKS)]
                for index in indexes:
                    index.add({key: bind(nodes[key], columns)}, links[key])
            check_indexes(indexes, wanted, links, case)


def test_all_evaluators_agree_on_edge_cases() -> None:
    edges_agree()


def some_agree() -> None:
    edges_agree()
    for seed in range(60):
        all_agree(seed)


ROWS = "surecast.where.rows:"
SEGMENT = "surecast.where.segment:"
INDEX = "surecast.where.index:"
TREE = "surecast.where.branches:"
MUTANTS = {
    "a row without a value has one": Edit(
        INDEX + "rows_of", "array.is_valid().to_numpy(zero_copy_only=False)", "1"
    ),
    "filters without an equality test are left out": Edit(
        SEGMENT + "Segment._grouped", "groups = [rest]", "groups = [list[int]()]"
    ),
    "the bounds of a text are included": Edit(SEGMENT + "_Tests._of_text", "| OPEN", ""),
    "a text may be found where it should begin": Edit(
        SEGMENT + "_Tests._of_text", "return STARTS_WITH", "return CONTAINS"
    ),
    "texts that are added later have no code": Edit(
        ROWS + "_Texts.write", "if known < len(self.codes):", "if not known:"
    ),
    "a pair is found for each conjunction": Edit(
        SEGMENT + "Segment.__init__", "self.repeated_count if len(divided) > 1 else -1", "-1"
    ),
    "less than includes the bound": Edit(
        SEGMENT + "number_range", "_INT64_MIN, values[0] - 1", "_INT64_MIN, values[0]"
    ),
    "NaN is compared": Edit(INDEX + "rows_of", "states[is_nan, slot] &= HAS", "pass"),
    "-0.0 is less than 0.0": Edit(
        ROWS + "order_numbers", "numbers_of(column, array) + 0.0", "numbers_of(column, array)"
    ),
    "negative floats are in the wrong order": Edit(
        ROWS + "order_numbers", "np.where(bits >= 0, bits, bits ^ _INT64_MAX)", "bits"
    ),
    "a removed filter is found": Edit(INDEX + "FilterIndex.remove", "self._ids[number] = -1", ""),
    "links of removed filters count": Edit(
        INDEX + "FilterIndex.remove", "self._links[link] -= 1", "self._links[link] -= 2"
    ),
    "the tree: NaN is within ranges": Edit(TREE + "_Batch._numbered", "fits & ~is_nan", "fits"),
    "the tree: ranges are not renewed": Edit(TREE + "_added", "node.table = None", "pass"),
    "the tree: the star branch is not followed": Edit(
        TREE + "MatchingTree._followed", "if node.star is not None:", "if False:"
    ),
    "the tree: a branch for values makes a link certain": Edit(
        TREE + "_Node.annotate", "self.possible |= branch.certain | branch.possible",
        "self.certain |= branch.certain; self.possible |= branch.possible",
    ),
    "the tree: what a branch may set is forgotten": Edit(
        TREE + "_Node.annotate", "self.possible |= branch.certain | branch.possible",
        "self.possible |= branch.certain",
    ),
    "the tree: annotations are not renewed": Edit(TREE + "_added", "node.is_stale = True", "pass"),
    "the tree: a node above has nothing below": Edit(TREE + "_added", "above.star = node", "pass"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_in_an_index_is_noticed(name: str) -> None:
    must_fail(some_agree, MUTANTS[name])


COLUMNS = columns_of(parse_schema("s string, n int64, f float64"))


@pytest.mark.parametrize("kind", [FilterIndex, MatchingTree])
def test_links_have_numbers_up_to_links_max(kind: type[Index]) -> None:
    index = kind()
    for link in (-1, LINKS_MAX):
        with pytest.raises(UsageError, match="links have the numbers 0 to 1023, not"):
            index.add({1: bind(parse("n == 1"), COLUMNS)}, link)
    assert len(index) == 0
    index.add({1: bind(parse("n == 1"), COLUMNS)}, LINKS_MAX - 1)
    case = Case(Or(()), parse_schema("n int64"), {"n": pa.array([1, 2])}, 2, [])
    assert linked(index, case) == [(0, LINKS_MAX - 1)]
    index.remove([1])
    assert index.links(case.batch, 2).tolist() == [[0, 0]]
    assert index.links({}, 0).shape == (1, 0)


@pytest.mark.parametrize("kind", [FilterIndex, MatchingTree])
def test_a_filter_that_is_too_large_to_be_divided_has_a_link(kind: type[Index]) -> None:
    text = " and ".join(f"(n == {2 * n} or n == {2 * n + 1} or s == 'x')" for n in range(4))
    large = bind(parse(text), COLUMNS)
    assert conjunctions(large) is None
    index = kind()
    index.add({1: large}, 64)
    index.add({2: bind(parse("n == 1"), COLUMNS)}, 1)
    case = Case(Or(()), parse_schema("s string, n int64"), {
        "s": pa.array(["x", "y", "x"]), "n": pa.array([7, 1, 1])}, 3, [])  # fmt: skip
    assert linked(index, case) == [(0, 64), (1, 1), (2, 1), (2, 64)]
    index.remove([1])
    assert linked(index, case) == [(1, 1), (2, 1)]


def test_a_link_that_is_set_is_not_tested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a thousand filters of a link passes: the time does not show in a test, so the
    annotation of the tree and the order of the index are looked at."""
    tree, index = MatchingTree(), FilterIndex()
    filters = {key: bind(parse(f"n > {key}"), COLUMNS) for key in range(1000)}
    filters[1000] = bind(parse("exists n"), COLUMNS)
    tree.add(filters, 5)
    index.add(filters, 5)
    case = Case(Or(()), parse_schema("n int64"), {"n": pa.array([-1, None])}, 2, [])
    assert linked(tree, case) == linked(index, case) == [(0, 5)]
    (segment,) = index._segments
    assert segment.run_ends.tolist() == [1001] * 1001
    tree.add({2000: bind(parse("n > 0 or not n > 0 or not exists n"), COLUMNS)}, 6)
    tree.add({2001: parse_all()}, 5)
    assert linked(tree, case) == [(0, 5), (0, 6), (1, 5), (1, 6)]
    assert tree._root is not None
    assert tree._root.certain == 1 << 5
    assert tree._root.possible == 1 << 6
    tested = set[object]()
    monkeypatch.setattr(
        branches_module._Batch, "passing",
        lambda self, label: tested.add(label) or self.evaluation.passes(label),
    )  # fmt: skip
    tree.remove([2000])
    assert linked(tree, case) == [(0, 5), (1, 5)]
    assert not tested  # the star branch alone decides


def parse_all() -> branches_module.Bound:
    return branches_module.BoundAnd(())


def test_ranges_of_the_tree_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = MatchingTree()
    tree.add({n: bind(parse(f"n between {n} and {2 * n}"), COLUMNS) for n in range(20)})
    values = {"n": pa.array([*range(50), None], pa.int64())}
    case = Case(Or(()), parse_schema("n int64"), values, 51, [])
    wanted = sorted((v, n) for v in range(50) for n in range(20) if n <= v <= 2 * n)
    for most in (branches_module._CELLS_MAX, 1, 60):
        monkeypatch.setattr(branches_module, "_CELLS_MAX", most)
        assert matched(tree, case) == wanted


@pytest.mark.parametrize("kind", [FilterIndex, MatchingTree])
def test_long_lists_are_other_branches(kind: type[Index]) -> None:
    assert branches_module._VALUES_MAX == segment_module._ACCESS_MAX
    for length in (branches_module._VALUES_MAX, branches_module._VALUES_MAX + 1):
        index = kind()
        index.add({1: bind(parse(f"n in ({', '.join(map(str, range(length)))})"), COLUMNS)})
        case = Case(Or(()), parse_schema("n int64"), {"n": pa.array([length - 1, length])}, 2, [])
        assert matched(index, case) == [(0, 1)]
        index.remove([1])
        assert matched(index, case) == []
