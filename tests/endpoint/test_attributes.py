"""Rows and tables of a schema: what is accepted, what is refused, and what comes back."""

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surecast.columns.batch import Batch
from surecast.columns.schema import read_schema
from surecast.columns.typed import Attributes
from surecast.endpoint.attributes import RowWriter, fields_of, writer_of
from surecast.endpoint.attributes_json import _DECIMAL_MAX, from_json, to_json
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.prepared import prepared_batches
from surecast.errors import UsageError

EVERY = (
    "b bool, i int8, n int64, f float32, d float64, s string, x binary, day date, t timestamp, "
    "ms timestamp(ms), ns timestamp(ns), c decimal(6, 2), l list(int8), ll list(list(string))"
)
AT = datetime(2026, 11, 19, 8, 30, 0, 123456, tzinfo=UTC)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "b": st.booleans(), "i": st.integers(-128, 127), "n": st.integers(-(1 << 63), (1 << 63) - 1),
    "f": st.floats(width=32), "d": st.floats(), "s": st.text(max_size=5),
    "x": st.binary(max_size=5), "day": st.dates(), "t": st.datetimes(timezones=st.just(UTC)),
    "ms": st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(microsecond=7000)),
    "ns": st.integers(-(1 << 63), (1 << 63) - 1),
    "c": st.decimals(-9999, 9999, places=2), "l": st.lists(st.none() | st.integers(0, 9)),
    "ll": st.lists(st.none() | st.lists(st.text(max_size=2), max_size=2), max_size=2),
}  # fmt: skip


def writer(text: str = EVERY) -> RowWriter:
    made = writer_of(text)
    assert made is not None
    return made


def back(text: str, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows after publishing and reading."""
    made = writer(text)
    attributes = made.attributes(made.row(row).fields for row in rows)
    section = attributes.section()
    attributes.types.check(section, len(rows))
    read = Attributes(attributes.types, len(rows), section)
    return [dict(zip(made.schema.names, fields, strict=True)) for fields in fields_of(read)]


def test_a_stream_without_a_schema_has_no_writer() -> None:
    assert writer_of("") is None


def test_values_of_all_types_come_back() -> None:
    row = {
        "b": True, "i": -128, "n": (1 << 63) - 1, "f": 0.5, "d": -0.0, "s": "größe", "x": b"\0\xff",
        "day": date(1, 1, 1), "t": AT, "ms": AT.replace(microsecond=123000), "ns": 1 << 60,
        "c": Decimal("-9999.99"), "l": [1, None, -1], "ll": [["a"], None, []],
    }  # fmt: skip
    nothing = dict.fromkeys(row)
    assert back(EVERY, row, nothing, {}) == [row, nothing, nothing]


def test_values_that_mean_the_same_are_accepted() -> None:
    zone = timezone(timedelta(hours=2))
    (found,) = back(
        "f float64, n int64, t timestamp, ns timestamp(ns), c decimal(6, 2), l list(int8), b bool",
        {
            "f": 3, "n": np.int32(7), "t": datetime(2026, 1, 1, 2, tzinfo=zone),
            "ns": datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC), "c": Decimal("1.5000"), "l": (1,),
            "b": np.bool_(True),
        },
    )  # fmt: skip
    assert found == {
        "f": 3.0, "n": 7, "t": datetime(2026, 1, 1, tzinfo=UTC), "ns": 5000, "c": Decimal("1.50"),
        "l": [1], "b": True,
    }  # fmt: skip
    assert math.isnan(back("f float32", {"f": math.nan})[0]["f"])
    assert back("c decimal(6, 2)", {"c": 7}, {"c": Decimal("0E+9")}) == [
        {"c": Decimal("7.00")},
        {"c": Decimal("0.00")},
    ]


WRONG = [
    ("b bool", 1, "column 'b' is bool, and the event has 1 (int)"),
    ("n int64", True, "column 'n' is int64, and the event has True (bool)"),
    ("n int64", 1.0, "has 1.0 (float)"),
    ("n int64", "1", "has '1' (str)"),
    ("n int8", 128, "has 128 (int): out of range"),
    ("n int64", -(1 << 63) - 1, "out of range"),
    pytest.param("n int64", 10**5000, "a number of 16,610 bits (int): out of range", id="huge"),
    ("n int64", np.array([1, 2]), "(ndarray)"),
    ("n int64", np.datetime64("2026-01-01", "ns"), "(datetime64)"),
    ("n int64", np.timedelta64(5, "ns"), "(timedelta64)"),
    ("f float64", "1.5", "has '1.5' (str)"),
    ("f float64", True, "has True (bool)"),
    ("f float64", (1 << 53) + 1, "it has too many digits"),
    ("f float64", 10**400, "out of range"),
    ("f float32", 1e300, "out of range"),
    ("f float32", 3.4028235677973366e38, "out of range"),
    ("f float32", (1 << 24) + 1, "it has too many digits"),
    ("f float32", 1 << 128, "out of range"),
    ("f float32", (1 << 127) + (1 << 80), "it has too many digits"),
    ("f float64", (1 << 1024) - 1, "out of range"),
    ("s string", b"a", "has b'a' (bytes)"),
    ("s string", "\ud800", "not valid Unicode"),
    ("x binary", "a", "has 'a' (str)"),
    ("day date", AT, "(datetime)"),
    ("day date", "2026-11-19", "(str)"),
    ("t timestamp", datetime(2026, 1, 1), "it has no time zone"),
    ("t timestamp(ms)", AT, "it is more precise than the column"),
    ("t timestamp(ns)", datetime(1600, 1, 1, tzinfo=UTC), "out of range"),
    ("t timestamp(ns)", 1 << 63, "out of range"),
    ("t timestamp", 5, "has 5 (int)"),
    ("c decimal(4, 2)", Decimal("1.234"), "more than 2 digits after the point"),
    ("c decimal(4, 2)", Decimal("100"), "out of range"),
    ("c decimal(4, 2)", Decimal("NaN"), "not a finite number"),
    ("c decimal(4, 2)", 1.5, "(float)"),
    ("l list(int8)", [1, 300], "out of range"),
    ("l list(int8)", 1, "has 1 (int)"),
    ("l list(list(int8))", [1], "has [1] (list)"),
    ("s string", "x" * 100 + "y", None),
]


@pytest.mark.parametrize(("schema", "value", "words"), WRONG)
def test_values_that_do_not_fit_are_refused(schema: str, value: Any, words: str | None) -> None:
    made, name = writer(schema), schema.split()[0]
    if words is None:
        assert made.row({name: value}).nbytes == 101 + 4 + 1
        return
    with pytest.raises(UsageError) as caught:
        made.row({name: value})
    assert words in str(caught.value)
    assert f"column '{name}' is {made.schema.type_names[0]}" in str(caught.value)
    with pytest.raises(UsageError, match="row 3 has"):
        made.row({name: value}, 3)


@given(st.lists(st.fixed_dictionaries({}, optional={n: st.none() | v for n, v in VALUES.items()}),
                min_size=1, max_size=20))  # fmt: skip
def test_rows_count_at_least_what_they_take(many: list[dict[str, Any]]) -> None:
    """Or batches would be larger than frames may be, and outboxes larger than their limit."""
    made = writer()
    checked = [made.row(row) for row in many]
    attributes = made.attributes(row.fields for row in checked)
    batch = Batch.of(bytes(16), [b""] * len(many), attributes=attributes)
    counted = sum(row.nbytes for row in checked)
    assert batch.nbytes - 500 <= counted + made.overhead
    table = pa.Table.from_batches([attributes.table()]).rename_columns(made.schema.names)
    _, columns = made.table(pa.concat_tables([table, table.slice(1)]))
    sizes = made.sizes(columns, 2 * len(many) - 1).tolist()
    wanted = [row.nbytes for row in checked]
    assert sizes == wanted + wanted[1:]


def test_messages_name_missing_and_unknown_columns() -> None:
    made = writer("sym string not null, px float64")
    with pytest.raises(UsageError, match="'sym' is string and not null, but row 2 has no value"):
        made.row({"px": 1.0}, 2)
    with pytest.raises(UsageError, match="row 0: the schema has no column 'symm': did you mean"):
        made.row({"symm": "a"}, 0)
    with pytest.raises(UsageError, match=r"no column 'q' \(it has sym, px\)"):
        made.row({"q": "a"})
    for many in (pa.table({"sym": ["a"]}), [{"sym": "a"}]):
        with pytest.raises(UsageError, match="for a table or a list use publish_many"):
            made.row(many)
    with pytest.raises(UsageError, match=r"an event is a dict of its fields.*the event is b'x'"):
        made.row(b"x")


# ---------------------------------------------------------------- publish_many


def published(schema: str, values: Any, **more: Any) -> list[Batch]:
    options = ClientOptions(batch_rows_max=2, event_bytes_max=1 << 20)
    keys, tags = more.get("keys"), more.get("tags")
    made = prepared_batches(bytes(16), values, keys, tags, options, writer(schema))
    return [batch.batch for batch in made]


def rows(batches: list[Batch]) -> list[tuple[Any, ...]]:
    found = []
    for batch in batches:
        batch.validate()
        attributes = batch.attributes()
        assert attributes is not None
        found += [
            (row.key, row.value, row.tag, *fields)
            for row, fields in zip(batch.to_rows(), fields_of(attributes), strict=True)
        ]
    return found


def test_rows_are_divided_into_batches() -> None:
    batches = published("n int64", [{"n": n, "value": b"%d" % n} for n in range(5)])
    assert [batch.rows for batch in batches] == [2, 2, 1]
    assert rows(batches) == [(None, b"%d" % n, None, n) for n in range(5)]
    assert rows(published("n int64", [{"n": 1}], keys=[b"k"], tags=[b"t"])) == [
        (b"k", b"", b"t", 1)
    ]
    assert rows(published("n int64", [{"n": 1, "key": b"k"}, {"tag": b"t"}])) == [
        (b"k", b"", None, 1),
        (None, b"", b"t", None),
    ]
    assert published("n int64", []) == []


@pytest.mark.parametrize(
    ("values", "more", "words"),
    [
        ([{"n": 1}, {"n": "1"}], {}, "column 'n' is int64, and row 1 has '1' (str)"),
        ([{"n": 1}, b"x"], {}, "row 1 is b'x'"),
        ([{"key": "k"}], {}, "a key is bytes, and row 0 has 'k'; encode it"),
        ([{"value": None}], {}, "a value is bytes, and row 0 has None"),
        ([{"key": b"k"}], {"keys": [b"k"]}, "keys= are given, and rows have keys, too"),
        ([{"tag": b"k"}], {"tags": [b"k"]}, "tags= are given, and rows have tags, too"),
        ({"n": 1}, {}, "for one there is publish"),
        (7, {}, "an iterable of dicts"),
        ([{"value": b"x" * (2 << 20)}], {}, "an event of 2,097,161 bytes"),
    ],
)
def test_wrong_rows_are_refused_before_any_is_sent(
    values: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        published("n int64", values, **more)
    assert words in str(caught.value)


def test_tables_are_cast_to_the_schema() -> None:
    table = pa.table({
        "s": pa.chunked_array([["a"], ["b", None]]).dictionary_encode(),
        "n": pa.array([1, 2, 3], pa.int8()),
        "f": pa.array([1, None, 3], pa.int16()),
        "t": pa.array([AT.replace(microsecond=0)] * 3, pa.timestamp("s", "Europe/Berlin")),
        "day": pa.array([date(2026, 1, 1)] * 3, pa.date64()),
        "x": pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
        "l": pa.array([[1], [], None], pa.large_list(pa.int16())),
        "c": pa.array([1, 2, 99], pa.uint64()),
        "key": [b"1", b"2", None],
    })  # fmt: skip
    schema = (
        "n int64 not null, s string, f float64, t timestamp, day date, x binary, l list(int8), "
        "absent int8, c decimal(4, 2)"
    )
    at = AT.replace(microsecond=0)
    day = date(2026, 1, 1)
    assert rows(published(schema, table)) == [
        (b"1", b"", None, 1, "a", 1.0, at, day, b"ab", [1], None, Decimal(1)),
        (b"2", b"", None, 2, "b", None, at, day, b"cd", [], None, Decimal(2)),
        (None, b"", None, 3, None, 3.0, at, day, b"ef", None, None, Decimal(99)),
    ]
    (batch,) = published("n int64", table.select(["n"]).to_batches()[0].slice(1, 2))
    assert rows([batch]) == [(None, b"", None, 2), (None, b"", None, 3)]
    assert published("n int64", pa.table({"n": pa.array([], pa.int64())})) == []


VIEWS = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["a"], pa.string_view()))
TABLES = [
    ("n int64", {"n": ["1"]}, "column 'n' is int64 in the schema, but string in the table"),
    ("n int64", {"n": [1.0]}, "in pandas, a column of whole numbers with missing values is float"),
    ("f float32", {"f": [math.inf, 1e300]}, "column 'f' is float32, and has a number out of range"),
    ("l list(float32)", {"l": [[1.0], None, [1e300]]}, "has a number out of range"),
    ("c decimal(4, 2)", {"c": [1, 100]}, "row 1 has "),
    ("c list(decimal(4, 2))", {"c": [[1]]}, "but list<item: int64> in the table"),
    ("s string", {"s": VIEWS}, "which cannot be decoded"),
    ("t timestamp(ns)", {"t": pa.array([1 << 60]).cast(pa.timestamp("s", "UTC"))}, "and row 0 has"),
    ("l list(int64)", {"l": [[1] * 400_000]}, "an event of 3,600,005 bytes"),
    ("l list(list(int8))", {"l": [[None] * 400_000]}, "an event of 2,000,005 bytes"),
    (
        "n int64",
        {"n": [1], "__index_level_0__": [7]},
        "publish_many(df.reset_index(drop=True))",
    ),
    ("n int64", {"n": [True]}, "but bool in the table"),
    ("n int8", {"n": [1, 2, 300, 400]}, "column 'n' is int8, and row 2 has 300 (int64): "),
    ("f float64", {"f": [0, (1 << 53) + 1]}, "row 1 has 9007199254740993"),
    ("s string", {"s": [b"a"]}, "but binary in the table"),
    ("x binary", {"x": ["a"]}, "but string in the table"),
    ("n int64 not null", {"n": [1, None]}, "'n' is int64 and not null, but row 1 has no value"),
    ("n int64 not null", {"key": [b"k"]}, "the table has no column 'n', which is int64 and not"),
    ("n int64", {"m": [1]}, "the schema has no column 'm'"),
    ("t timestamp", {"t": [datetime(2026, 1, 1)]}, "its times have no time zone"),
    ("n int64", {"n": [1, 2], "value": ["a", None]}, "column 'value' has nulls"),
]


@pytest.mark.parametrize(("schema", "columns", "words"), TABLES)
def test_wrong_tables_are_refused_before_any_row_is_sent(
    schema: str, columns: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        published(schema, pa.table(columns))
    assert words in str(caught.value)


def test_what_null_rows_hold_is_not_sent() -> None:
    """For example text that a user has masked."""
    text = pa.array(["secret" * 1000, "b"])
    _, offsets, data = text.buffers()
    masked = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    lists = pa.ListArray.from_arrays(pa.array([0, 1000, 1001], pa.int32()), pa.array([7] * 1001),
                                     mask=pa.array([True, False]))  # fmt: skip
    (batch,) = published("s string, l list(int64)", pa.table({"s": masked, "l": lists}))
    assert rows([batch]) == [(None, b"", None, None, None), (None, b"", None, "b", [7])]
    assert batch.nbytes < 1000
    assert b"secret" not in bytes(batch.body or b"")


def test_rows_that_were_checked_for_another_schema_are_refused() -> None:
    row = writer("a int64, b int64").row({"a": 1})
    assert rows(published("a int64, b int64", [row])) == [(None, b"", None, 1, None)]
    with pytest.raises(UsageError, match="replaced by one with another schema"):
        published("b int64, a int64", [row])


def test_a_table_with_invalid_text_is_refused() -> None:
    text = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(UsageError, match=r"the table is not valid: .*UTF8"):
        published("s string", pa.table({"s": text}))


def test_a_table_with_a_column_twice_is_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["n", "n"])
    with pytest.raises(UsageError, match="two columns 'n'"):
        published("n int64", twice)


# ---------------------------------------------------------------- back to Python and to JSON


def test_times_that_python_does_not_have_are_numbers() -> None:
    types = read_schema("t timestamp, d date, l list(timestamp(s))").types
    far = pa.array([1 << 62, 0]).cast(pa.timestamp("us", "UTC"))
    days = pa.array([10_000_000, 0], pa.int32()).cast(pa.date32())
    lists = pa.array([[0, 1 << 50], None], pa.list_(pa.int64()))
    table = pa.RecordBatch.from_arrays(
        [far, days, lists.cast(pa.list_(pa.timestamp("s", "UTC")))], schema=types.arrow_schema()
    )
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert fields_of(Attributes(types, 2, table=table)) == [
        (1 << 62, 10_000_000, [epoch, 1 << 50]),
        (epoch, date(1970, 1, 1), None),
    ]


@given(st.fixed_dictionaries({}, optional={name: st.none() | v for name, v in VALUES.items()}))
def test_attributes_survive_json(row: dict[str, Any]) -> None:
    made = writer()
    (before,) = back(EVERY, row)
    text = json.dumps(to_json(made.schema, tuple(before.values())), allow_nan=False)
    (after,) = back(EVERY, from_json(made.schema, json.loads(text)))
    assert repr(after) == repr(before)


def test_the_length_of_decimals_in_json_is_bounded() -> None:
    """Digits are checked one by one."""
    schema = writer("c decimal(4, 2)").schema
    at_bound = "1." + "0" * (_DECIMAL_MAX - 2)
    assert from_json(schema, {"c": at_bound}) == {"c": Decimal(1)}
    with pytest.raises(UsageError, match=f"decimals have at most {_DECIMAL_MAX} characters"):
        from_json(schema, {"c": at_bound + "0"})
