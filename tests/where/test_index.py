"""The filter index finds the filters that each row passes, as if they were tested one by one."""

import math
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from surecast.columns.schema import parse_schema
from surecast.where import index as index_module
from surecast.where import segment as segment_module
from surecast.where.binding import bind
from surecast.where.columns import columns_of
from surecast.where.index import FilterIndex
from surecast.where.normal import CONJUNCTIONS_MAX, conjunctions
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
    assert (rows[1:] >= rows[:-1]).all()
    pairs = sorted(zip(rows.tolist(), ids.tolist(), strict=True))
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


COLUMNS = columns_of(parse_schema("s string, n int64, f float64"))


def index_of(*texts: str) -> FilterIndex:
    found = FilterIndex()
    found.add({key: bind(parse(text), COLUMNS) for key, text in enumerate(texts)})
    found._seal()
    return found


def matches(found: FilterIndex, **columns: pa.Array) -> list[list[int]]:
    size = len(next(iter(columns.values())))
    rows, ids = found.match(columns, size)
    return [sorted(ids[rows == row].tolist()) for row in range(size)]


INDEX = "surecast.where.index:"


def sizes_of_clusters(found: FilterIndex) -> list[int]:
    """Conjunctions without a cluster, and in each cluster."""
    (segment,) = found._segments
    return np.diff(segment.starts).tolist()


def removed() -> None:
    found = index_of(*["n == 1"] * 100)
    found.remove([3, 4, 99, 12345])
    (ids,) = matches(found, n=pa.array([1]))
    assert ids == [n for n in range(100) if n not in (3, 4, 99)]
    found.add({4: bind(parse("n == 2"), COLUMNS)})  # an id may be used again
    assert matches(found, n=pa.array([2])) == [[4]]


def test_removed_filters_are_not_found() -> None:
    removed()
    must_fail(removed, Edit(INDEX + "FilterIndex.remove", "self._ids[number] = -1", "pass"))


def test_zeros_of_both_signs_are_equal() -> None:
    found = index_of("f == 0", "f == -0.0", "f in (-0.0, 1)", "f != 0")
    values = pa.array([0.0, -0.0, 1.0, math.nan, None])
    assert matches(found, f=values) == [[0, 1, 2], [0, 1, 2], [2, 3], [], []]


def test_a_conjunction_is_found_by_its_rarest_equality() -> None:
    filters = [f"s == 'common' and n == {n}" for n in range(100)]
    found = index_of(*filters)
    assert sizes_of_clusters(found) == [0] + [1] * 100  # not one cluster of all
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


def test_segments_of_similar_size_are_joined_and_removed_filters_dropped() -> None:
    found, two = FilterIndex(), bind(parse("n == 2"), COLUMNS)
    for key in range(300):
        found.add({key: two})
        if key % 10 == 0:  # a match makes a segment of the filters that were added
            assert matches(found, n=pa.array([2])) == [list(range(key + 1))]
    found._seal()
    sizes = [segment.size for segment in found._segments]
    assert sum(sizes) == len(found) == 300
    assert len(sizes) <= 5
    found.remove(range(1, 270))
    assert matches(found, n=pa.array([2, 3])) == [[0, *range(270, 300)], []]
    assert sum(segment.size for segment in found._segments) <= 31 + index_module._SPARE
    assert found._ids.size <= 2 * (31 + index_module._SPARE)


def test_pairs_are_tested_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = index_of(*(f"n >= {n}" for n in range(10)), "n == 3", "n == 3")
    whole = matches(found, n=pa.array(range(100)))
    for most in (1, 7, 10, 25):
        monkeypatch.setattr(segment_module, "_PAIRS_MAX", most)
        assert matches(found, n=pa.array(range(100))) == whole


def test_long_lists_are_not_put_into_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    most = segment_module._ACCESS_MAX
    for length, clusters in ((most, most), (most + 1, 0)):
        found = index_of(f"n in ({', '.join(map(str, range(length)))})")
        assert len(sizes_of_clusters(found)) == 1 + clusters
        assert matches(found, n=pa.array([length - 1, length])) == [[0], []]


def test_ranges_are_put_into_clusters_by_intervals() -> None:
    most = segment_module._ACCESS_MAX
    narrow = [f"n > {10 * n} and n <= {10 * n + 15}" for n in range(300)]
    wide = ["n between 0 and 3000", "n > 7", "f between 0.5 and 1.5 and n between 20 and 25"]
    found = index_of(*narrow, *wide)
    first, *others = sizes_of_clusters(found)
    assert first == 2  # the third one of `wide` has a narrow range of n
    assert 300 / 2 <= len(others) <= segment_module._INTERVALS
    assert max(others) <= most
    values = [-(2**63), 0, 1, 10, 11, 15, 21, 2991, 3004, 3005, 3006, 2**63 - 1]
    wanted = [
        [n for n in range(300) if 10 * n < value <= 10 * n + 15]
        + [300] * (0 <= value <= 3000)
        + [301] * (value > 7)
        + [302] * (20 <= value <= 25)
        for value in values
    ]
    columns = {"n": pa.array([*values, None]), "f": pa.array([1.0] * (len(values) + 1))}
    assert matches(found, **columns) == [*wanted, []]
    few = segment_module._RANGES_MIN - 1
    assert sizes_of_clusters(index_of(*narrow[:few])) == [few]
