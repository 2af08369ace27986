"""Covering and widening never lose an event."""

import math
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from surecast.columns.schema import parse_schema
from surecast.where import covering as covering_module
from surecast.where import tree
from surecast.where.binding import ALL, Bound, BoundTest, bind
from surecast.where.columns import columns_of
from surecast.where.covering import COMPARED_MAX, LISTED_MAX, covers, holds, widen
from surecast.where.evaluate import passes
from surecast.where.explain import bound_text
from surecast.where.normal import conjunctions
from surecast.where.text import parse
from tests.edits import Edit, must_fail
from tests.where import drawn
from tests.where.drawn import Case, draw

COLUMNS = columns_of(parse_schema("s string, n int64, f float64, b bool"))


def bound(text: str) -> Bound:
    return bind(parse(text), COLUMNS)


def texts(bounds: list[Bound]) -> list[str]:
    return sorted(map(bound_text, bounds))


def cases(count: int) -> list[Case]:
    drawn_cases = (draw(seed) for seed in range(10 * count))
    return [case for case in drawn_cases if case.rows == 100][:count]


CASES = cases(60)
ONE_COLUMN = [case for case in cases(200) if len(case.schema) == 1]


def accepted(one: Bound, case: Case) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return passes(one, case.batch, case.rows)


def random_filters(case: Case, rng: Random, count: int, depth: int) -> list[Bound]:
    columns = columns_of(case.schema)
    return [bind(drawn.node(rng, case.schema, depth), columns) for _ in range(count)]


WORDS = Case(
    tree.Or(()), pa.schema({"s": pa.string()}), {"s": pa.array(drawn.WORDS)}, len(drawn.WORDS), []
)
TEXTS = [
    bound(f"{negated} s {operator} '{word}'")
    for operator in ("==", "<", ">=", "startswith", "contains")
    for word in ("a", "ab", "user:1", "ü")
    for negated in ("", "not")
]


def covered_filters_accept_no_further_event() -> int:
    found = 0
    for number, case in enumerate(CASES):
        rng = Random(number)
        filters = random_filters(case, rng, 14, 0) + random_filters(case, rng, 10, 2)
        rows = [accepted(one, case) for one in filters]
        for one, mine in zip(filters, rows, strict=True):
            for other, others in zip(filters, rows, strict=True):
                if one is not other and covers(one, other):
                    found += 1
                    assert not (others & ~mine).any(), f"{bound_text(one)} / {bound_text(other)}"
    for one in TEXTS:
        for other in TEXTS:
            if covers(one, other):
                rows = accepted(other, WORDS) & ~accepted(one, WORDS)
                assert not rows.any(), f"{bound_text(one)} / {bound_text(other)}"
    return found


def test_a_filter_accepts_what_those_accept_that_it_covers() -> None:
    assert covered_filters_accept_no_further_event() > 1500


def widened_filters_accept_what_the_filters_accept() -> None:
    for number, case in enumerate(CASES + ONE_COLUMN):
        rng = Random(number)
        filters = random_filters(case, rng, rng.choice([3, 30]), rng.choice([0, 1, 2]))
        wanted = np.logical_or.reduce([accepted(one, case) for one in filters])
        for most in (1, 2, 5, 20, 1000):
            made = widen(filters, most)
            assert len(made) <= most
            found = np.zeros(case.rows, np.bool_)
            for one in made:
                found |= accepted(one, case)
            assert not (wanted & ~found).any(), (number, most, texts(filters), texts(made))
            if most == 1000 and ALL not in made:  # nothing had to be widened
                assert (wanted == found).all(), (number, texts(filters), texts(made))


def test_widened_filters_accept_what_the_filters_accept() -> None:
    widened_filters_accept_what_the_filters_accept()


COVERING = "surecast.where.covering:"
MUTANTS = {
    "a test of another column covers": Edit(
        COVERING + "_part_covers", "given is None or", "given and"
    ),
    "an open bound covers a closed one": Edit(
        COVERING + "_low_key", "span.low, span.low_open", "span.low, False"
    ),
    "any range covers": Edit(
        COVERING + "_within", "inner.high is not None and", "inner.high is None or"
    ),
    "a missing value passes negated tests": Edit(
        COVERING + "_implied", "if not compared:\n        return False", "pass"
    ),
    "not exists implies exists": Edit(
        COVERING + "_implied", "one.op is not Op.EXISTS or not one.negated", "True"
    ),
    "only one of the values must pass": Edit(
        COVERING + "_implied", "return all(holds(test, value) for value in left)",
        "return any(holds(test, value) for value in left)",
    ),
    "some excluded values are enough": Edit(
        COVERING + "_implied", "return all(any(not", "return any(any(not"
    ),
    "longer texts are found in shorter ones": Edit(
        COVERING + "_has_text", "return test.values[0] in given.values[0]",
        "return given.values[0] in test.values[0]",
    ),
}  # fmt: skip
WIDENED = {
    "the smallest upper bound": Edit(COVERING + "_hull", "max(spans, key", "min(spans, key"),
    "a part is left out": Edit(COVERING + "_fewer", "n in range(count)", "n in range(1, count)"),
    "tests of some are taken for all": Edit(
        COVERING + "_widened_tests", ".intersection(*several[1:])", ".union(*several[1:])"
    ),
    "ranges are joined over gaps": Edit(
        COVERING + "_met", "not _before(made[-1][0], span)", "True"
    ),
    "other columns are not compared": Edit(COVERING + "_joined", "if c != column", "if False"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_in_covering_is_noticed(name: str) -> None:
    must_fail(lambda: (covered_filters_accept_no_further_event(), None)[1], MUTANTS[name])


def widened() -> None:
    widened_filters_accept_what_the_filters_accept()
    test_widening_joins_what_it_can_without_further_events()


@pytest.mark.parametrize("name", WIDENED)
def test_a_mistake_in_widening_is_noticed(name: str) -> None:
    must_fail(widened, WIDENED[name])


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("exists n", "n > 5"),
        ("n > 4", "n > 5"),
        ("n > 4", "n between 5 and 7"),
        ("n > 4", "n > 2 and n > 5 and s == 'x'"),
        ("n between 1 and 9", "n > 2 and n < 8"),
        ("n in (1, 2, 3)", "n in (1, 3)"),
        ("n != 4", "n in (1, 3)"),
        ("n not in (1, 2)", "n > 2"),
        ("n not between 1 and 2", "n > 2"),
        ("n > 1", "n in (1, 2) and n != 1"),
        ("f not in ()", "f > 1"),
        ("f < inf", "f <= 1e300"),
        ("s startswith 'ab'", "s startswith 'abc'"),
        ("s startswith 'ab'", "s == 'abc'"),
        ("s >= 'ab'", "s startswith 'abc'"),
        ("s < 'b'", "s startswith 'a'"),
        ("not s startswith 'b'", "s startswith 'a'"),
        ("s contains 'b'", "s startswith 'abc'"),
        ("s contains 'b'", "s contains 'abc'"),
        ("n == 1 or n == 2", "n == 2"),
        ("n > 1 or s == 'x'", "n > 3 and s == 'y' or n == 0 and s == 'x'"),
        ("not b == true", "b == false"),
    ],
)  # fmt: skip
def test_what_covers(wide: str, narrow: str) -> None:
    if "inf" in wide:
        wide = "f < 1e301"
    assert covers(bound(wide), bound(narrow))
    assert not covers(bound(narrow), bound(wide))


def test_every_filter_covers_itself_and_all_events_cover_every_filter() -> None:
    for text in ("n == 1", "f != 0", "not exists s", "s contains 'x'", "n > 1 or not s > 'x'"):
        assert covers(bound(text), bound(text))
        assert covers(ALL, bound(text))
        assert not covers(bound(text), ALL)


def test_widening_joins_what_it_can_without_further_events() -> None:
    def joined(*filters: str) -> list[str]:
        return texts(widen(map(bound, filters), 100))

    assert joined("n == 1", "n == 2", "n in (2, 3)") == ["n in (1, 2, 3)"]
    assert joined("n > 1 and s == 'x'", "n > 1 and s == 'y'") == ["n >= 2 and s in ('x', 'y')"]
    assert joined("n > 1 and s == 'x'", "n > 2 and s == 'y'") == [
        "n >= 2 and s == 'x'", "n >= 3 and s == 'y'"]  # fmt: skip
    assert joined("n between 1 and 5", "n between 4 and 7") == ["n between 1 and 7"]
    assert joined("f between 3 and 4", "f < 2", "f < 1") == ["f < 2.0", "f between 3.0 and 4.0"]
    assert joined("f < 2", "f > 1") == ["f not in ()"]
    assert joined("n > 5", "n > 7 and s == 'x'", "s == 'x' and n == 9") == ["n >= 6"]
    assert joined("n == 1 and n == 1") == ["n == 1"]
    assert joined("n in ()") == []


def test_widening_goes_on_until_there_are_few_enough() -> None:
    filters = [bound(f"s == 'S{n}' and n > {n}") for n in range(9)]
    assert texts(widen(filters, 3)) == [
        "n >= 1 and s in ('S0', 'S1', 'S2')",
        "n >= 4 and s in ('S3', 'S4', 'S5')",
        "n >= 7 and s in ('S6', 'S7', 'S8')",
    ]
    assert widen([*filters, bound("f > 1")], 1) == [ALL]
    text = " and ".join(f"(n == {2 * n} or n == {2 * n + 1} or s == 'x')" for n in range(4))
    assert conjunctions(bound(text)) is None
    assert widen([*filters, bound(text)], 100) == [ALL]
    with pytest.raises(ValueError, match="at least 1"):
        widen(filters, 0)


def test_lists_longer_than_listed_max_become_ranges() -> None:
    filters = [bound(f"n == {3 * n} and f > {n}") for n in range(LISTED_MAX + 1)]
    (one,) = widen(filters[1:], 1)
    assert len(next(test for test in one.parts if test.column.name == "n").values) == LISTED_MAX
    assert texts(widen(filters, 1)) == [f"f > 0.0 and n between 0 and {3 * LISTED_MAX}"]
    made = widen([bound(f"n == {n}") for n in range(2 * LISTED_MAX + 1)], 100)
    assert [len(one.values) for one in made] == [LISTED_MAX, LISTED_MAX, 1]


def test_no_more_than_compared_max_pairs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    original = covering_module._part_covers

    def counted(*parts: object) -> bool:
        nonlocal compared
        compared += 1
        return original(*parts)

    monkeypatch.setattr(covering_module, "_part_covers", counted)
    monkeypatch.setattr(covering_module, "COMPARED_MAX", 100)
    filters = [bound(f"f > {n} and n > {200 - n}") for n in range(200)]
    assert len(widen(filters, 1000)) == 200
    assert 100 <= compared <= 300
    compared = 0
    filters = [bound(f"s == 'S{n}' and n > {n}") for n in range(200)]
    assert len(widen(filters, 1000)) == 200
    assert compared == 0  # no list contains the value of another one
    assert COMPARED_MAX > 100


def test_holds_gives_the_answer_of_the_evaluator() -> None:
    for seed in range(200):
        case = draw(seed)
        one = bind(drawn.node(Random(seed), case.schema, 0), columns_of(case.schema))
        if not isinstance(one, BoundTest) or one.column.name not in case.batch:
            continue
        for row, event in enumerate(case.events[:20]):
            raw = case.batch[one.column.name].slice(row, 1)
            value = event[one.column.name]
            if value is None or (isinstance(value, float) and math.isnan(value)):
                continue
            match one.column.type:
                case kind if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
                    value = raw.view(pa.int64() if kind.bit_width == 64 else pa.int32())[0].as_py()
                case kind if pa.types.is_string(kind):
                    value = value.encode()
            assert holds(one, value) == accepted(one, case)[row]
