"""Schemas as text: what is read, what is refused, and the canonical text."""

import pyarrow as pa
import pytest

from surecast.columns.schema import (
    TEXT_MAX,
    difference,
    extends,
    parse_schema,
    read_schema,
    schema_text,
)
from surecast.columns.typed import FIELDS_MAX, LISTS_MAX
from surecast.errors import UsageError

TEXT = (
    "sym string not null, px float64, qty int64, a int8, b int16, c int32, d float32, e bool, "
    "f binary, g date, h timestamp, i timestamp(ns), `odd name` decimal(10, 2), "
    "`a``b` list(string), `größe` list(list(decimal(38, 0)))"
)


def test_a_schema_of_all_types_is_read_and_written() -> None:
    schema = parse_schema(TEXT)
    assert schema_text(schema) == TEXT
    assert schema.field("sym") == pa.field("sym", pa.string(), nullable=False)
    assert schema.field("h").type == pa.timestamp("us", "UTC")
    assert schema.field("a`b").type == pa.list_(pa.string())


def test_spaces_and_cases_do_not_matter() -> None:
    assert schema_text(parse_schema(" a\tINT64  NOT NULL,b Timestamp( MS )\n")) == (
        "a int64 not null, b timestamp(ms)"
    )


REFUSED = {
    "": "the end where a field name should be (at character 1)",
    "a": "the end where a type",
    "a int": "'int' where a type",
    "a int64 b": "'b' where a comma or the end should be (at character 9)",
    "a int64,": "the end where a field name",
    "a int64 not": "the end where `null` after `not`",
    "a timestamp(d)": "'timestamp(d)' where a type",
    "a timestamp(": "the end where a word",
    "a decimal": "'decimal' where a type",
    "a decimal(10)": "')' where a comma should be (at character 13)",
    "a decimal(50, 2)": "a precision of 1 to 38 and a scale, such as decimal(10, 2)",
    "a double": "(at character 3): did you mean float64?",
    "a decimal(39, 2)": "where a type",
    "a decimal(5, 6)": "where a type",
    "a decimal(x, 6)": "where a type",
    "a list(int64": "'list(int64' where a type",
    "a int64, a string": "two fields have the name 'a'",
    "a decimal(" + "9" * 5000 + ", 2)": "where a type",
    "`a\nb` int64": "the name 'a\\nb' has characters that cannot be read",
    "`\ud800` int64": "the name '\\ud800' has characters",
    "key binary": "the field 'key' needs another name: every event has a key",
    "`a int64": "'`a int64' where a field name",
}


@pytest.mark.parametrize("text", REFUSED)
def test_mistakes_are_told(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_schema(text)
    assert REFUSED[text] in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (pa.timestamp("us"), "timestamps are in UTC"),
        (pa.timestamp("us", "Europe/Berlin"), "timestamps are in UTC"),
        (pa.uint8(), "whole numbers have a sign"),
        (pa.large_string(), r"use pa\.string\(\)"),
        (pa.struct([("x", pa.int64())]), "streams do not support"),
        (pa.list_(pa.uint8()), "whole numbers have a sign"),
        (pa.list_(pa.field("item", pa.int8(), nullable=False)), "values that may be null"),
        (pa.list_(pa.list_(pa.list_(pa.list_(pa.list_(pa.int8()))))), "at most 4 levels"),
        (pa.decimal128(10, -2), "streams do not support"),
        (pa.decimal128(3, 5), "streams do not support"),
    ],
)
def test_types_that_streams_do_not_have_are_refused(kind: pa.DataType, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        schema_text(pa.schema([("a", kind)]))


def test_the_depth_of_lists_is_limited() -> None:
    def nested(levels: int) -> str:
        return "a " + "list(" * levels + "int64" + ")" * levels

    assert schema_text(parse_schema(nested(LISTS_MAX))) == nested(LISTS_MAX)
    with pytest.raises(UsageError, match="where a type"):
        parse_schema(nested(LISTS_MAX + 1))


def test_the_number_of_fields_is_limited() -> None:
    fields = [(f"c{n}", pa.int64()) for n in range(FIELDS_MAX + 1)]
    text = schema_text(pa.schema(fields[:-1]))
    assert len(parse_schema(text)) == FIELDS_MAX
    with pytest.raises(UsageError, match="at most 200 fields, not 201"):
        schema_text(pa.schema(fields))
    with pytest.raises(UsageError, match="at least one field"):
        schema_text(pa.schema([]))
    with pytest.raises(UsageError, match="no name"):
        schema_text(pa.schema([("", pa.int64())]))


def test_a_change_has_fields_at_the_end_that_may_be_null() -> None:
    first = read_schema("a int64, b string not null")
    for text, why in (
        ("a int64, b string not null", ""),
        ("a int64, b string not null, c int8, d list(bool)", ""),
        ("a int64", "the field 'b' is missing"),
        ("a int64, c string not null", "the field 'b' is missing"),
        ("b string not null, a int64", "'a' has another place"),
        ("a int64, c int8, b string not null", "'b' has another place"),
        ("a int32, b string not null", "'a' is int64, and cannot become int32"),
        ("a int64 not null, b string not null", "'a' may be null, and cannot become not null"),
        ("a int64, b string", "'b' is not null, and cannot become nullable"),
        ("a int64, b string not null, c int8 not null", "the new field 'c' is not null"),
    ):
        problem = difference(first, read_schema(text))
        assert (why in problem, bool(problem)) == (True, bool(why)), text
        assert extends(text, first.text) == (not why)


def test_texts_of_peers_do_not_extend_a_schema_if_they_cannot_be_read() -> None:
    wide = "a int64, `" + "b" * TEXT_MAX + "` int8"
    assert not extends(wide, "a int64")
    for text in ("", "a int65", "a int64,", "a decimal(99, 1)", "\ud800 int8"):
        assert not extends(text, "a int64")
        assert not extends("a int64", text)
    assert extends("", "")
    assert extends("a int65", "a int65"), "a schema of a later version is equal to itself"
