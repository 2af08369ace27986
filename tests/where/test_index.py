"""The filter index finds the filters that each row passes, as if they were tested one by one."""

import math
from random import Random

import pyarrow as pa
import pytest

from surecast.columns.schema import parse_schema
from surecast.where import index as index_module
from surecast.where.binding import bind
from surecast.where.columns import columns_of
from surecast.where.index import CONJUNCTIONS_MAX, RECENT_MAX, FilterIndex, conjunctions
from surecast.where.text import parse
from surecast.where.tree import Node
from tests.edits import Edit, must_fail
from tests.where import drawn
from tests.where.drawn import Case, draw
from tests.where.twin import accepts

CASES = [case for seed in range(150) if (case := draw(seed)).rows >= 17 and len(case.batch) > 1]


def check(found: FilterIndex, nodes: dict[int, Node], case: Case) -> int:
    rows, ids = found.match(case.batch, case.rows)
    wanted = [
        (row, key)
        for row, event in enumerate(case.events)
        for key in sorted(nodes)
        if accepts(nodes[key], event)
    ]
    pairs = list(zip(rows.tolist(), ids.tolist(), strict=True))
    # Not compared in the `assert`: where the variable CI is set, pytest computes the whole
    # difference, which takes half a minute for thousands of pairs.
    is_same = pairs == wanted
    assert is_same, f"wrong rows and filters: {sorted(set(pairs) ^ set(wanted))[:5]}"
    return len(wanted)


def come_and_go(cases: list[Case]) -> int:
    total = 0
    for number, case in enumerate(cases):
        rng = Random(number)
        columns = columns_of(case.schema)
        found, nodes = FilterIndex(), dict[int, Node]()
        for _ in range(12):
            count = rng.choice([1, 20, 90])
            added = {rng.randrange(400): drawn.node(rng, case.schema, 2) for _ in range(count)}
            found.add({key: bind(node, columns) for key, node in added.items()})
            nodes |= added
            share = rng.choice([0.0, 0.1, 0.7])
            gone = [key for key in nodes if rng.random() < share]
            found.remove([*gone, 100_000])
            for key in gone:
                del nodes[key]
            assert len(found) == len(nodes)
        total += check(found, nodes, case)
    return total


def test_random_filters_that_come_and_go() -> None:
    assert come_and_go(CASES[:8]) > 3_000


def many_at_once() -> None:
    """All in one segment, with the clusters of a large one."""
    for number, case in enumerate(CASES[:10]):
        columns = columns_of(case.schema)
        nodes = {n: drawn.node(Random(n), case.schema, 2) for n in range(number, number + 80)}
        found = FilterIndex()
        found.add({key: bind(node, columns) for key, node in nodes.items()})
        check(found, nodes, case)


INDEX = "surecast.where.index:"
MUTANTS = {
    "the rows without a value are compared": Edit(
        INDEX + "_Segment._selected", "rows.comparable[part] & (values[places] == cells)",
        "values[places] == cells",
    ),
    "filters without an equality test are left out": Edit(
        INDEX + "_Segment._selected", "if self.starts[1]:", "if False:"
    ),
    "slow tests are left out": Edit(INDEX + "_Segment._finished", "if not slow.any():", "if True:"),
    "a text that no filter contains has the first code": Edit(
        INDEX + "_codes_of", "texts.get(text, -1)", "texts.get(text, 0)"
    ),
    "a pair is found for each conjunction": Edit(
        INDEX + "FilterIndex.match", "if all_rows.size:", "if False:"
    ),
    "less than includes the bound": Edit(
        INDEX + "_float_range",
        "-math.inf, math.nextafter(values[0], -math.inf)",
        "-math.inf, values[0]",
    ),
    "NaN is compared": Edit(INDEX + "_rows_of", "comparable[part] &= ~np.isnan(values)", "pass"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_in_the_index_is_noticed(name: str) -> None:
    many_at_once()
    must_fail(many_at_once, MUTANTS[name])


COLUMNS = columns_of(parse_schema("s string, n int64, f float64"))


def index_of(*texts: str) -> FilterIndex:
    found = FilterIndex()
    found.add({key: bind(parse(text), COLUMNS) for key, text in enumerate(texts)})
    found._seal()
    return found


def matches(found: FilterIndex, **columns: pa.Array) -> list[list[int]]:
    size = len(next(iter(columns.values())))
    rows, ids = found.match(columns, size)
    return [ids[rows == row].tolist() for row in range(size)]


def removed() -> None:
    found = index_of(*["n == 1"] * 100)
    found.remove([3, 4, 99, 12345])
    (ids,) = matches(found, n=pa.array([1]))
    assert ids == [n for n in range(100) if n not in (3, 4, 99)]
    found.add({4: bind(parse("n == 2"), COLUMNS)})  # an id may be used again
    assert matches(found, n=pa.array([2])) == [[4]]


def test_removed_filters_are_not_found() -> None:
    removed()
    must_fail(removed, Edit(INDEX + "FilterIndex.match", "kept = ids >= 0", "kept = ids >= -1"))


def test_zeros_of_both_signs_are_equal() -> None:
    found = index_of("f == 0", "f == -0.0", "f in (-0.0, 1)", "f != 0")
    values = pa.array([0.0, -0.0, 1.0, math.nan, None])
    assert matches(found, f=values) == [[0, 1, 2], [0, 1, 2], [2, 3], [], []]


def test_a_conjunction_is_found_by_its_rarest_equality() -> None:
    filters = [f"s == 'common' and n == {n}" for n in range(100)]
    found = index_of(*filters)
    (cluster,) = found._segments[0].clusters
    assert cluster.values.tolist() == list(range(100))  # not one cluster of all
    assert matches(found, s=pa.array(["common", "x"]), n=pa.array([7, 7])) == [[7], []]


def test_batches_without_rows_columns_or_filters() -> None:
    found = index_of("s == 'x'", "not exists n", "n > 1 or s startswith 'y'")
    assert matches(found, s=pa.array([], pa.string())) == []
    assert matches(found, s=pa.array(["x", "yy", None])) == [[0, 1], [1, 2], [1]]
    rows, ids = FilterIndex().match({"s": pa.array(["x"])}, 1)
    assert (rows.tolist(), ids.tolist()) == ([], [])


# ---------------------------------------------------------------- bounds


def test_a_filter_of_too_many_conjunctions_is_evaluated_as_a_whole() -> None:
    def product(parts: int) -> str:
        return " and ".join(f"(n == {2 * n} or n == {2 * n + 1} or s == 'x')" for n in range(parts))

    small = bind(parse(" or ".join(f"n == {n}" for n in range(CONJUNCTIONS_MAX))), COLUMNS)
    assert len(conjunctions(small) or ()) == CONJUNCTIONS_MAX
    assert conjunctions(bind(parse(product(3)), COLUMNS)) is not None
    assert conjunctions(bind(parse(product(4)), COLUMNS)) is None
    wide = " or ".join(f"n == {n}" for n in range(CONJUNCTIONS_MAX + 1))
    assert conjunctions(bind(parse(wide), COLUMNS)) is None
    found = index_of(product(4), product(1), wide)
    assert [number for number, _ in found._segments[0].whole_filters] == [0, 2]
    columns = {"n": pa.array([1, 64, 65]), "s": pa.array(["x", "y", "x"])}
    assert matches(found, **columns) == [[0, 1, 2], [2], [0, 1]]


def test_filters_are_added_one_by_one_until_there_are_enough_for_a_segment() -> None:
    found = FilterIndex()
    for key in range(RECENT_MAX):
        found.add({key: bind(parse(f"n == {key}"), COLUMNS)})
    assert not found._segments
    found.add({RECENT_MAX: bind(parse("n == 5"), COLUMNS)})
    assert [segment.size for segment in found._segments] == [RECENT_MAX + 1]
    assert matches(found, n=pa.array([5])) == [[5, RECENT_MAX]]
    for key in range(1000, 3000):
        found.add({key: bind(parse("n == 6"), COLUMNS)})
    sizes = [segment.size for segment in found._segments]
    assert sum(sizes) + len(found._recent) == len(found) == RECENT_MAX + 2001
    assert len(sizes) <= 4
    found.remove(range(1000, 3000))
    assert sum(segment.size for segment in found._segments) <= RECENT_MAX + 1  # built again
    assert matches(found, n=pa.array([6])) == [[6]]


def test_pairs_are_tested_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = index_of(*(f"n >= {n}" for n in range(10)), "n == 3", "n == 3")
    whole = matches(found, n=pa.array(range(100)))
    for most in (1, 7, 10, 25):
        monkeypatch.setattr(index_module, "_PAIRS_MAX", most)
        assert matches(found, n=pa.array(range(100))) == whole


def test_long_lists_are_not_put_into_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    most = index_module._ACCESS_MAX
    for length, clusters in ((most, most), (most + 1, 0)):
        found = index_of(f"n in ({', '.join(map(str, range(length)))})")
        assert sum(cluster.values.size for cluster in found._segments[0].clusters) == clusters
        assert matches(found, n=pa.array([length - 1, length])) == [[0], []]
