"""Bound filters give the answers of the plain-Python twin, row by row."""

import pyarrow as pa
import pytest

from surecast.columns.schema import parse_schema
from surecast.errors import UsageError
from surecast.where.binding import bind
from surecast.where.columns import columns_of
from surecast.where.evaluate import passes
from surecast.where.index import FilterIndex
from surecast.where.text import parse, shown
from tests.edits import Edit, must_fail
from tests.where.drawn import draw
from tests.where.twin import accepts


@pytest.mark.parametrize("first", range(0, 3000, 300))
def test_batches_are_filtered_as_event_by_event(first: int) -> None:
    accepted = total = 0
    for seed in range(first, first + 300):
        case = draw(seed)
        bound = bind(case.node, columns_of(case.schema))
        found = passes(bound, case.batch, case.rows).tolist()
        wanted = [accepts(case.node, event) for event in case.events]
        assert found == wanted, (seed, shown(case.node))
        accepted, total = accepted + sum(wanted), total + len(wanted)
    assert 0.2 < accepted / total < 0.8, "nearly all filters give one answer"


def test_the_text_of_a_filter_is_read_back() -> None:
    for seed in range(1000):
        case = draw(seed)
        text = shown(case.node)
        again = parse(text)
        assert shown(again) == text
        columns = columns_of(case.schema)
        assert bind(again, columns) == bind(case.node, columns), text


def test_batches_without_rows_and_without_columns() -> None:
    columns = columns_of(parse_schema("a int64, s string"))
    empty = {"a": pa.array([], pa.int64()), "s": pa.array([], pa.string())}
    for text, missing in (("a == 1", False), ("not a == 1", False), ("not exists s", True)):
        bound = bind(parse(text), columns)
        assert passes(bound, empty, 0).tolist() == []
        assert passes(bound, {}, 2).tolist() == [missing, missing]


def test_columns_that_would_be_misread_are_refused() -> None:
    columns = columns_of(parse_schema("f float64, i int8, at timestamp, s string"))
    wrong = {
        "f > 1": {"f": pa.array([1, 2])},
        "i == 1": {"i": pa.array([1, 1])},
        "at > '2000-01-01T00:00:00Z'": {"at": pa.array([1, 2], pa.timestamp("s", "UTC"))},
        "s == 'x'": {"s": pa.array([b"x", b"y"])},
        "not s == 'x'": {"s": pa.chunked_array([["x", "y"]])},
        "exists s": {"s": pa.nulls(2)},
    }
    for text, batch in wrong.items():
        bound = bind(parse(text), columns)
        (name,) = batch
        with pytest.raises(UsageError, match=f"{name} is .*, but the batch has"):
            passes(bound, batch, 2)
        index = FilterIndex()
        index.add(dict.fromkeys(range(100), bound))
        with pytest.raises(UsageError, match=f"{name} is .*, but the batch has"):
            index.match(batch, 2)
    with pytest.raises(UsageError, match="s has 1 values in a batch of 2 rows"):
        passes(bind(parse("s == 'x'"), columns), {"s": pa.array(["x"])}, 2)
    local = pa.array([10**15], pa.timestamp("us", "Europe/Berlin"))  # the same instants
    assert passes(bind(parse("at > '2000-01-01T00:00:00Z'"), columns), {"at": local}, 1).all()


def all_cases() -> None:
    for seed in range(600):
        case = draw(seed)
        found = passes(bind(case.node, columns_of(case.schema)), case.batch, case.rows).tolist()
        assert found == [accepts(case.node, event) for event in case.events]


EVALUATE = "surecast.where.evaluate:"
BINDING = "surecast.where.binding:"
# A rule of the semantics that is left out.
MUTANTS: dict[str, Edit] = {
    "float32 is compared as float32": Edit(
        EVALUATE + "numbers_of", "values.astype(np.float64, copy=False)", "values"
    ),
    "NaN differs from every number": Edit(
        EVALUATE + "Evaluation._number", "~np.isnan(values)", "np.ones(self.rows, np.bool_)"
    ),
    "a negated test accepts null": Edit(
        EVALUATE + "Evaluation._test",
        "return found if comparable is None else found & comparable",
        "return found if comparable is None or test.negated else found & comparable",
    ),
    "a missing column passes negated tests": Edit(
        EVALUATE + "Evaluation._test", "test.op is Op.EXISTS and test.negated", "test.negated"
    ),
    "null is a value": Edit(
        EVALUATE + "Evaluation._has",
        "has = array.is_valid().to_numpy(zero_copy_only=False)",
        "has = np.ones(self.rows, np.bool_)",
    ),
    "fractions are cut off": Edit(
        BINDING + "_of_whole", "math.ceil(numbers[0]) - 1", "int(numbers[0]) - 1"
    ),
    "not is not applied to the parts": Edit(
        BINDING + "_bind", "isinstance(node, And) is not negated", "isinstance(node, And)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_left_out_is_noticed(name: str) -> None:
    must_fail(all_cases, MUTANTS[name])
