"""Rows of Spark as chunks: accepted columns, errors for others, and the division into chunks."""

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from surecast.errors import UsageError
from surecast.pipeline import sink_rows
from surecast.pipeline.sink_rows import Cutter, Layout, layout_of

ATTRIBUTES = MapType(StringType(), BinaryType())


def schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


# ---------------------------------------------------------------- columns


def test_valid_columns_are_accepted() -> None:
    assert layout_of(schema(value=BinaryType()), "s") == Layout(("value",), False, "s")
    found = layout_of(
        schema(stream=StringType(), value=StringType(), key=BinaryType(), tag=StringType()), None
    )
    assert found == Layout(("key", "value", "tag"), False, None)
    assert layout_of(schema(value=StringType(), attributes=ATTRIBUTES), "s").attributes


def test_rows_read_from_a_stream_are_accepted() -> None:
    read = schema(
        stream=StringType(), seq=LongType(), kind=StringType(), range=LongType(), key=BinaryType(),
        value=BinaryType(), attributes=ATTRIBUTES, timestamp=TimestampType(),
    )  # fmt: skip
    assert layout_of(read, "copy") == Layout(("key", "value"), True, "copy")
    assert layout_of(read, None).stream is None


@pytest.mark.parametrize(
    ("columns", "stream", "reason"),
    [
        ({"key": BinaryType()}, "s", r"no column `value` \(columns: key\)"),
        ({}, "s", r"no column `value` \(columns: none\)"),
        ({"value": IntegerType()}, "s", r"`value` is int.*cast\('string'\)"),
        ({"value": StringType(), "key": LongType()}, "s", r"`key` is bigint.*'key'"),
        ({"value": StringType(), "tag": ArrayType(StringType())}, "s", "`tag` is array<string>"),
        ({"value": StringType(), "price": DoubleType()}, "s", r"`price` \(double\).*to_json"),
        ({"value": StringType(), "Key": StringType()}, "s", r"`Key` \(string\) has no place"),
        ({"value": StringType(), "attributes": StringType()}, "s", "map<string,binary>"),
        (
            {"value": StringType(), "attributes": MapType(StringType(), LongType())},
            "s",
            "map<string,bigint>",
        ),
        (
            {"value": StringType(), "attributes": ATTRIBUTES, "tag": StringType()},
            "s",
            "drop one",
        ),
        ({"value": StringType()}, None, "option stream is missing"),
        ({"value": StringType(), "stream": LongType()}, None, "`stream` is bigint"),
    ],
)
def test_invalid_columns_are_refused_with_the_reason(
    columns: dict[str, Any], stream: str | None, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        layout_of(schema(**columns), stream)


def test_a_duplicate_column_is_refused() -> None:
    twice = StructType([StructField("value", StringType())] * 2)
    with pytest.raises(UsageError, match="same name"):
        layout_of(twice, "s")


# ---------------------------------------------------------------- rows


def cut(layout: Layout, *batches: pa.RecordBatch) -> list[tuple[str, list[tuple[Any, ...]]]]:
    cutter = Cutter(layout)
    chunks = [chunk for batch in batches for chunk in cutter.add(batch)]
    chunks += cutter.rest()
    return [(name, [(r.key, r.value, r.tag) for r in batch.to_rows()]) for name, batch in chunks]


def test_strings_are_encoded_as_utf_8() -> None:
    batch = pa.record_batch({"value": ["a", "é"], "key": [None, "k"], "tag": ["t", None]})
    assert cut(Layout(("key", "value", "tag"), False, "s"), batch) == [
        ("s", [(None, b"a", b"t"), (b"k", "é".encode(), None)])
    ]


@pytest.mark.parametrize("words", [pa.string(), pa.large_string()], ids=str)
def test_a_tag_is_read_from_the_attributes(words: pa.DataType) -> None:
    kind = pa.map_(words, pa.binary())
    maps = pa.array([[("tag", b"red")], None, [], [("tag", None)]], kind)
    batch = pa.record_batch([pa.array([b"1", b"2", b"3", b"4"]), maps], ["value", "attributes"])
    ((_, rows),) = cut(Layout(("value",), True, "s"), batch)
    assert [tag for _, _, tag in rows] == [b"red", None, None, None]
    ((_, rows),) = cut(Layout(("value",), True, "s"), batch.slice(1, 2))
    assert rows == [(None, b"2", None), (None, b"3", None)]
    strange = pa.array([[("tag", b"red"), ("color", b"x")]], kind)
    with pytest.raises(UsageError, match=r"'color'.*only attribute"):
        cut(Layout(("value",), True, "s"), pa.record_batch([pa.array([b"1"]), strange],
            ["value", "attributes"]))  # fmt: skip


def test_rows_without_value_or_stream_are_refused() -> None:
    with pytest.raises(UsageError, match="2 rows have no value"):
        cut(Layout(("value",), False, "s"), pa.record_batch({"value": [b"a", None, None]}))
    nowhere = pa.record_batch({"value": [b"a"], "stream": pa.nulls(1, pa.string())})
    with pytest.raises(UsageError, match="1 rows name no stream"):
        cut(Layout(("value",), False, None), nowhere)


@pytest.mark.parametrize("name", ["", "a b", "_spark.x", "x" * 250])
def test_a_row_with_an_invalid_stream_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="column `stream`"):
        cut(Layout(("value",), False, None), pa.record_batch({"value": [b"a"], "stream": [name]}))


def test_rows_of_each_stream_keep_their_order() -> None:
    rng = Random(7)
    layout = Layout(("value",), False, None)
    wanted: dict[str, list[bytes]] = {}
    batches = []
    for start in range(0, 5000, 500):
        names = [rng.choice("abc") for _ in range(500)]
        values = [b"%d" % (start + n) for n in range(500)]
        for name, value in zip(names, values, strict=True):
            wanted.setdefault(name, []).append(value)
        batches.append(pa.record_batch({"stream": names, "value": values}))
    found: dict[str, list[bytes]] = {}
    for name, rows in cut(layout, *batches):
        found.setdefault(name, []).extend(value for _, value, _ in rows)
    assert found == wanted


def test_chunks_are_bounded_and_small_batches_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "CHUNK_ROWS", 100)
    monkeypatch.setattr(sink_rows, "CHUNK_BYTES", 1000)
    layout = Layout(("value",), False, "s")

    def sizes(*lengths: list[int]) -> list[list[int]]:
        batches = [pa.record_batch({"value": [b"x" * n for n in some]}) for some in lengths]
        return [[len(value) for _, value, _ in rows] for _, rows in cut(layout, *batches)]

    assert sizes([1] * 40, [1] * 40, [1] * 40) == [[1] * 80, [1] * 40]
    assert sizes([1] * 250) == [[1] * 100, [1] * 100, [1] * 50]
    assert sizes([400, 400, 400, 5000, 1, 1]) == [[400, 400], [400], [5000], [1, 1]]
    assert sizes([600], [600], [1]) == [[600], [600, 1]]
    assert sizes([], [0], []) == [[0]]


def test_held_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "HELD_BYTES", 100 + 10 * sink_rows.PART_BYTES)
    cutter = Cutter(Layout(("value",), False, None))
    rows = {"stream": [f"s{n}" for n in range(10)], "value": [b"x" * 9] * 10}
    assert list(cutter.add(pa.record_batch(rows))) == []
    assert len(list(cutter.add(pa.record_batch(rows)))) == 10
    assert list(cutter.rest()) == []


def test_held_rows_keep_no_other_rows_in_memory() -> None:
    """Every batch has one row of a separate stream, and many rows that fill a chunk at once."""
    cutter = Cutter(Layout(("key", "value"), False, None))
    before = pa.total_allocated_bytes()
    for n in range(50):
        names = ["full"] * 2000 + [f"few.{n}"]
        columns = {"stream": names, "key": [b"k"] * 2001, "value": [b"x" * 1000] * 2001}
        for chunk in cutter.add(pa.record_batch(columns)):
            del chunk
        columns.clear()
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert len(list(cutter.rest())) == 50


def test_an_event_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "EVENT_BYTES", 1000)
    layout = Layout(("key", "value"), False, "s")
    fits = pa.record_batch({"key": [b"k" * 100], "value": [b"v" * 900]})
    assert len(cut(layout, fits)) == 1
    with pytest.raises(UsageError, match=r"1,001 bytes .* at most 1,000"):
        cut(layout, pa.record_batch({"key": [b"k" * 101], "value": [b"v" * 900]}))
