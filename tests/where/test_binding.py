"""Bound filters: literals get the types of their columns, exactly, and mistakes are refused."""

import pyarrow as pa
import pytest

from surecast.columns.schema import parse_schema
from surecast.errors import FilterError, UsageError
from surecast.where.binding import _NAMED_MAX, bind
from surecast.where.columns import columns_of
from surecast.where.explain import bound_text
from surecast.where.text import SUGGESTED_MAX, parse
from tests.edits import Edit, must_fail

COLUMNS = columns_of(
    parse_schema(
        "i int8, l int64, f float64, g float32, s string, b binary, t bool, d date, at timestamp, "
        "sec timestamp(s), money decimal(10, 2)"
    )
)

BOUND = {  # filter → bound filter
    # Whole numbers.
    "l > 100.5": "l >= 101",
    "l >= 100.5": "l >= 101",
    "l < 100.5": "l <= 100",
    "l <= 100": "l <= 100",
    "l < 100": "l <= 99",
    "not l < 100": "l >= 100",
    "l == 100.0": "l == 100",
    "l == 100.5": "no event",
    "l != 100.5": "exists l",
    "not l == 100.5": "exists l",
    "l == 9007199254740993": "l == 9007199254740993",
    "l == 9007199254740992.0": "l == 9007199254740992",
    "i > 127": "no event",
    "i >= -128": "exists i",
    "i < 1000": "exists i",
    "not i < 1000": "no event",
    "i > -1000": "exists i",
    "i < -128": "no event",
    "i == 128": "no event",
    "i in (1, 200, 2.5, 3, 1)": "i in (1, 3)",
    "i in (1, 200)": "i == 1",
    "i in (200)": "no event",
    "i not in (200)": "exists i",
    "i not in (1, 2)": "i not in (1, 2)",
    "i between 1.5 and 3.5": "i between 2 and 3",
    "i between 1.5 and 2.5": "i == 2",
    "i between 1.2 and 1.8": "no event",
    "i between -1000 and 1000": "exists i",
    "i between 3 and 1": "no event",
    "i not between 3 and 1": "exists i",
    "l > 9007199254740993.5": "l >= 9007199254740994",
    "l == 9223372036854775807.0": "l == 9223372036854775807",
    "l >= 1e-400": "l >= 1",
    # Floats. 2⁵³ + 1 is not a float64, and 10³⁹⁹ is above all of them.
    "f == 9007199254740993": "no event",
    "f != 9007199254740993": "f not in ()",
    "f > 9007199254740993": "f >= 9007199254740994.0",
    "f >= 9007199254740993": "f >= 9007199254740994.0",
    "f < 9007199254740993": "f <= 9007199254740992.0",
    "f == 9007199254740992": "f == 9007199254740992.0",
    f"f < {10**399}": "f <= 1.7976931348623157e+308",
    f"f > {10**399}": "f >= inf",
    "f == -0.0": "f == 0.0",
    "f == 1e-400": "no event",
    "f > 1e-400": "f >= 5e-324",
    "f < 1e399 and f > -1e399": "f <= 1.7976931348623157e+308 and f >= -1.7976931348623157e+308",
    "f == 0.1": "f == 0.1",
    "g == 0.1": "g == 0.1",
    "f in (1, 0.5, 9007199254740993)": "f in (0.5, 1.0)",
    "f between 9007199254740993 and 9007199254740995":
        "f == 9007199254740994.0",
    # Texts.
    "s == 'x'": "s == 'x'",
    "b == 'ü'": "b == b'\\xc3\\xbc'",
    "b startswith b'\\xff'": "b startswith b'\\xff'",
    "s startswith ''": "exists s",
    "s not contains ''": "no event",
    "not s > 'x'": "s <= 'x'",
    "s between 'a' and 'a'": "s == 'a'",
    "s between 'b' and 'a'": "no event",
    "key startswith 'user:'": "key startswith b'user:'",
    # Times.
    "d > '2026-11-19'": "d >= '2026-11-20'",
    "at >= '2026-11-19T10:00:00.0000005+02:00'": "at >= '2026-11-19T08:00:00.000001Z'",
    "sec == '2026-11-19T10:00:00.5Z'": "no event",
    "sec < '2026-11-19T10:00:00.5Z'": "sec <= '2026-11-19T10:00:00Z'",
    "time < '2026-11-19 10:00Z'": "time <= '2026-11-19T09:59:59.999999999Z'",
    "at > '9999-12-31T23:59:59Z'": "at >= '9999-12-31T23:59:59.000001Z'",
    "at >= '0001-01-01T00:00:00Z'": "at >= '0001-01-01T00:00:00Z'",
    "s == '\\u0085'": "s == '\\u0085'",
    # Structure.
    "not (l == 1 and (s == 'x' or not exists f))": "l != 1 or (s != 'x' and exists f)",
    "(l == 1 or l == 2) or (l == 3 or i > 200)": "l == 1 or l == 2 or l == 3",
    "l == 1 and i > 200": "no event",
    "l == 1 or not (i > 200 and i < 300)": "l == 1 or exists i",
    "t == true": "t == true",
    "t != true": "t != true",
    "t in (true, false)": "t in (false, true)",
}  # fmt: skip


@pytest.mark.parametrize("text", BOUND)
def test_filters_are_bound_exactly(text: str) -> None:
    assert bound_text(bind(parse(text), COLUMNS)) == BOUND[text]


REFUSED = {  # filter → characters before the mistake, a part of the error
    "x == 1": (0, "there is no column 'x'"),
    "keyy == 'a'": (0, "did you mean 'key'?"),
    "l == 1 and money > 3": (11, "no column 'money' that filters can test"),
    "l == '1'": (0, "l is a whole number (int64); it cannot be compared with a string"),
    "l == true": (0, "cannot be compared with a bool"),
    "l startswith '1'": (0, "startswith is for strings and bytes"),
    "f contains 'x'": (0, "contains is for strings and bytes"),
    "f == 'x'": (0, "f is a number (double)"),
    "s > 1": (0, "s is a string (string); it cannot be compared with a number"),
    "s == b'x'": (0, "cannot be compared with bytes"),
    "b == 1": (0, "b is a binary (binary)"),
    "t > true": (0, "> is for numbers"),
    "t == 1": (0, "t is a bool; it cannot be compared with a number"),
    "t between true and false": (0, "between is for numbers"),
    "l == 1 or at > '2026-11-19T10:00:00'": (10, "needs a time zone"),
    "at > '2026-11-19'": (0, "is not one like"),
    "at > 5": (0, "at is a timestamp"),
    "at > '2026-13-19T10:00:00Z'": (0, "is not one like"),
    "at contains '2026'": (0, "contains is for strings"),
    "at > '2026-11-19T10:00.5Z'": (0, "is not one like"),
    "at > '2026-11-19T10:00\\nZ'": (0, "is not one like"),
    "at > '2026-11-19T24:00Z'": (0, "is not one like"),
    "d == '19.11.2026'": (0, "d is a date"),
    "d == '2026-W47'": (0, "d is a date"),
    "d == '20261119'": (0, "d is a date"),
    "KEY == 'a'": (0, "did you mean 'key'?"),
    "d == '2026-11-19T10:00:00Z'": (0, "d is a date"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_mistakes_name_column_and_position(text: str) -> None:
    with pytest.raises(FilterError) as caught:
        bind(parse(text), COLUMNS)
    at, part = REFUSED[text]
    assert part in str(caught.value)
    assert caught.value.at == at


def test_an_error_lists_some_of_many_columns() -> None:
    schema = pa.schema([(f"c{n}", pa.int64()) for n in range(100)])
    last = f"c{_NAMED_MAX - 3}"  # after key, time and c0
    with pytest.raises(FilterError, match=f"the columns are key, time, c0, .*, {last}, …"):
        bind(parse("zzz == 1"), columns_of(schema))


def test_a_similar_name_is_suggested_unless_the_name_is_long() -> None:
    for length, suggested in ((SUGGESTED_MAX, True), (SUGGESTED_MAX + 1, False)):
        name = "x" * length
        with pytest.raises(FilterError) as caught:
            bind(parse(f"{name} == 1"), columns_of(pa.schema([(name[:-1] + "y", pa.int64())])))
        assert ("did you mean" in str(caught.value)) == suggested


@pytest.mark.parametrize("name", ["key", "time", "twice"])
def test_a_schema_cannot_replace_a_column_of_every_event(name: str) -> None:
    fields = [("twice", pa.int64()), (name, pa.int64())]
    with pytest.raises(UsageError, match=f"two fields '{name}'"):
        columns_of(pa.schema(fields))


def all_bound() -> None:
    for text, wanted in BOUND.items():
        assert bound_text(bind(parse(text), COLUMNS)) == wanted


MUTANTS = {
    "whole numbers are rounded to floats": Edit(
        "surecast.where.binding:_float", "if wrong(found):", "if False:"
    ),
    "a fraction of a second is cut off": Edit(
        "surecast.where.columns:_time_ns", 'int((fraction or "").ljust(9, "0"))', "0"
    ),
    "a list keeps numbers that the column cannot have": Edit(
        "surecast.where.binding:_of_whole", "low <= n <= high", "True"
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_left_out_is_noticed(name: str) -> None:
    must_fail(all_bound, MUTANTS[name])
