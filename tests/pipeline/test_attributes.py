"""Attributes as Spark's columns and back, and the filter `where`, compared with plain Python."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from surecast.columns.batch import COLLECT, COLLECTED, Batch
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import encode_collect
from surecast.columns.rules import BeforeSeq, Collect
from surecast.columns.schema import Schema, read_schema, schema_of
from surecast.columns.typed import Attributes, types_of
from surecast.core.endpoint import Lost
from surecast.errors import SurecastError, UsageError
from surecast.pipeline import sink_rows
from surecast.pipeline.attributes import TYPE, common_schema, fits, schema_in, struct_type
from surecast.pipeline.rows import record_batches
from surecast.pipeline.sink_rows import Cutter, Layout, check_schema, layout_of
from surecast.pipeline.source import columns_type
from surecast.pipeline.where import bound_filter
from surecast.where.text import parse, shown
from surecast.where.tree import Node
from tests.columns.test_typed import tables
from tests.pipeline.test_sink_rows import cut
from tests.where import drawn
from tests.where.twin import accepts

STREAM = bytes(range(16))
EVERY_TYPE = (
    "ok bool, i8 int8 not null, i16 int16, i32 int32, i64 int64, f float32, d float64, s string, "
    "b binary, day date, at timestamp, sec timestamp(s), ms timestamp(ms), ns timestamp(ns), "
    "n decimal(10, 2), l list(list(timestamp(ns))), `odd name` list(string)"
)
NAMES = ("seq", "kind", "range", "key", "attributes", "timestamp", "tag")


# ---------------------------------------------------------------- types


def test_every_type_has_a_type_in_spark_and_comes_back() -> None:
    schema = read_schema(EVERY_TYPE)
    struct = struct_type(schema)
    kinds = {field.name: field.dataType.simpleString() for field in struct.fields}
    assert kinds == {
        "ok": "boolean", "i8": "tinyint", "i16": "smallint", "i32": "int", "i64": "bigint",
        "f": "float", "d": "double", "s": "string", "b": "binary", "day": "date",
        "at": "timestamp", "sec": "timestamp", "ms": "timestamp", "ns": "bigint",
        "n": "decimal(10,2)", "l": "array<array<bigint>>", "odd name": "array<string>",
    }  # fmt: skip
    assert [field.name for field in struct.fields if not field.nullable] == ["i8"]
    assert schema_in(struct) == schema
    # Parquet keeps the metadata, and makes every column nullable.
    loose = StructType([StructField(f.name, f.dataType, True, f.metadata) for f in struct.fields])
    assert schema_in(loose) == schema


def test_a_column_without_metadata_has_the_natural_type() -> None:
    struct = struct_type(read_schema(EVERY_TYPE))
    bare = StructType([StructField(field.name, field.dataType) for field in struct.fields])
    wanted = EVERY_TYPE.replace(" not null", "")
    for unit in ("timestamp(s)", "timestamp(ms)"):
        wanted = wanted.replace(unit, "timestamp")
    assert schema_in(bare) == read_schema(wanted.replace("timestamp(ns)", "int64"))


def test_metadata_of_another_type_are_not_used() -> None:
    """The column was cast, or computed anew, since it was read."""
    for text in ("timestamp(ms)", "nonsense(", "string, x int8", 7):
        field = StructField("a", spark_types.LongType(), True, {TYPE: text})
        assert schema_in(StructType([field])).text == "a int64"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (spark_types.TimestampNTZType(), r"`attributes.a` is timestamp_ntz.*cast it to timestamp"),
        (spark_types.MapType(spark_types.StringType(), spark_types.StringType()), "map<string"),
        (StructType([StructField("x", spark_types.LongType())]), "struct<x:bigint>"),
        (spark_types.ArrayType(spark_types.TimestampNTZType()), "timestamp_ntz"),
    ],
)
def test_a_type_that_streams_do_not_have_is_refused(kind: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        schema_in(StructType([StructField("a", kind)]))


def test_reserved_and_missing_names_are_refused() -> None:
    with pytest.raises(UsageError, match="column `attributes`: the field 'key' needs another name"):
        schema_in(StructType([StructField("key", spark_types.LongType())]))
    with pytest.raises(UsageError, match="has no fields"):
        schema_in(StructType([]))


def test_streams_of_a_query_have_one_schema_or_the_beginning_of_it() -> None:
    short, long, other = "a int64", "a int64, b string", "a int64, b binary"
    assert common_schema([("x", ""), ("y", "")], "") == ""
    assert common_schema([("x", short), ("y", long), ("z", short)], "") == long
    assert common_schema([], "") == ""
    for wrong in (other, "", "b string", "a int64 not null"):
        with pytest.raises(UsageError, match=r"so they cannot have one.*Do this") as refused:
            common_schema([("x", long), ("y", wrong)], "Do this")
        assert "'y'" in str(refused.value)
    assert fits(short, long)
    assert fits(long, short)
    assert not fits(long, "")


# ---------------------------------------------------------------- batches as rows


@given(tables())
@settings(max_examples=30)
def test_arrow_columns_have_the_types_that_spark_expects(table: pa.RecordBatch) -> None:
    schema = schema_of(table.schema)
    (made,) = record_batches([typed_batch(table, schema, 1)], "s", False, schema=schema)
    wanted = columns_type(made.schema.names, schema.text)
    assert isinstance(wanted, StructType)
    assert made.schema.equals(pa.schema(to_arrow_type(wanted, timezone="UTC")))
    made.validate(full=True)
    found = made.column("attributes").to_pylist()
    assert repr(found) == repr([in_spark(row, schema) for row in table.to_pylist()])


def typed_batch(table: pa.RecordBatch, schema: Schema, lo: int, **more: Any) -> Batch:
    """A batch with these attributes, which are the first columns of the schema."""
    nodes = schema.types.nodes[: table.num_columns]
    codes = b"".join(bytes([n.code[0] | (0 if n.nullable else 0x80)]) + n.code[1:] for n in nodes)
    types = types_of(codes)
    arrays = pa.RecordBatch.from_arrays(table.columns, schema=types.arrow_schema())
    rows = table.num_rows
    columns = {"values": [b"v"] * rows, **more}
    made = Batch.of(STREAM, **columns, attributes=Attributes(types, rows, table=arrays))
    return made.sequenced(lo, 1_700_000_000_000_000_000 + lo * 1000, 1)


def in_spark(row: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """A row as Spark has it: whole numbers for timestamps in nanoseconds."""

    def converted(item: Any) -> Any:
        if isinstance(item, list):
            return [converted(one) for one in item]
        return item.value if hasattr(item, "nanosecond") else nanoseconds(item)

    def nanoseconds(item: Any) -> Any:
        if not isinstance(item, datetime):
            return item
        return (item - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000

    names = {
        name for name, type_name in zip(schema.names, schema.type_names, strict=True)
        if "timestamp(ns)" in type_name
    }  # fmt: skip
    return {name: converted(item) if name in names else item for name, item in row.items()}


def test_a_time_that_spark_does_not_have_is_an_error_that_says_what_to_do() -> None:
    schema = read_schema("at timestamp(s)")
    table = pa.record_batch({"at": pa.array([0, 1 << 60], pa.timestamp("s", "UTC"))})
    batch = typed_batch(table, schema, 7)
    with pytest.raises(SurecastError, match=r"'trades', positions 7 to 8: column 'at'.*columns"):
        list(record_batches([batch], "trades", False, schema=schema))
    names = ("seq", "value")
    (made,) = record_batches([batch], "trades", False, names, schema=schema)
    assert made.num_rows == 2


def test_a_batch_of_other_types_is_an_error() -> None:
    table = pa.record_batch({"a": pa.array([1], pa.int64())})
    batch = typed_batch(table, read_schema("a int64"), 1)
    with pytest.raises(SurecastError, match="attributes of other types"):
        list(record_batches([batch], "s", False, schema=read_schema("a string")))


# ---------------------------------------------------------------- filters


class Case:
    """A schema, consecutive batches of several of its versions, and their events as `twin` takes
    them."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        kinds = [rng.choice(drawn.KINDS) for _ in range(rng.randint(1, 4))]
        fields = [pa.field(f"c{n}", kind) for n, kind in enumerate(kinds)]
        self.arrow = pa.schema(fields)
        self.schema = schema_of(self.arrow)
        self.batches: list[Batch | Lost] = []
        self.events: dict[int, dict[str, Any]] = {}  # by position
        self.tags: dict[int, bytes | None] = {}
        self.end = 1
        while self.end < 300:
            self.add()

    def add(self) -> None:
        rng, lo = self.rng, self.end
        rows = rng.choice((1, 2, 30, 80))
        self.end += rows
        shape = rng.choice(("data", "data", "data", "sparse", "void", "rule", "lost"))
        if shape == "void":
            self.batches.append(Batch.void(STREAM, lo, lo + rows, COLLECTED))
        elif shape == "lost":
            self.batches.append(Lost(STREAM, lo, lo + rows, "why"))
        elif shape == "rule":
            self.end = lo + 1
            rule = encode_collect(Collect(BeforeSeq(1)))
            self.batches.append(Batch.of(STREAM, [rule], kind=COLLECT).sequenced(lo, 5000, 1))
        else:
            self.batches.append(self.data(lo, rows, shape == "sparse"))

    def data(self, lo: int, rows: int, is_sparse: bool) -> Batch:
        rng = self.rng
        keys = [rng.choice((None, b"", b"user:1", b"k")) for _ in range(rows)]
        tags = [rng.choice((None, b"red")) for _ in range(rows)]
        there = list(self.arrow)[: rng.randint(1, len(self.arrow))]  # the others came later
        values = {
            field.name: [
                None if rng.random() < 0.2 else drawn.value(rng, field.type) for _ in range(rows)
            ]
            for field in there
        }
        arrays = [pa.array(values[field.name], field.type) for field in there]
        table = pa.RecordBatch.from_arrays(arrays, [field.name for field in there])
        batch = typed_batch(table, self.schema, lo, keys=keys, tags=tags)
        gone = [n for n in range(lo, lo + rows) if is_sparse and rng.random() < 0.5]
        for row in range(rows):
            if lo + row not in gone:
                event = {f.name: drawn.exact(f.type, values[f.name][row]) for f in there}
                time = Fraction(batch.time_ns, 10**9)
                self.events[lo + row] = {**event, "key": keys[row], "time": time}
                self.tags[lo + row] = tags[row]
        return batch.without(IntervalSet([(n, n + 1) for n in gone]), COLLECTED)

    def node(self) -> Node:
        if self.rng.random() < 0.2:
            texts = ("key == 'k'", "exists key", "not key startswith 'user:'", "c0 in ()")
            return parse(self.rng.choice((*texts, "time > '2023-11-14T22:13:20.0001Z'")))
        return drawn.node(self.rng, self.arrow, 2)

    def rows(self, voids: bool, where: str, names: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
        bound = bound_filter(where, self.schema) if where else None
        found = record_batches(
            self.batches, "s", voids, names, rows=50, schema=self.schema, where=bound
        )
        tables = list(found)
        for table in tables:
            table.validate(full=True)
            assert table.num_rows
        return [row for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("seed", range(20))
def test_filtered_rows_are_those_that_pass_and_other_positions_are_void(seed: int) -> None:
    case = Case(seed)
    everything = {row["seq"]: row for row in case.rows(False, "")}
    assert everything.keys() >= case.events.keys()
    assert {seq: everything[seq]["tag"] for seq in case.tags} == case.tags
    for _ in range(8):
        node = case.node()
        passing = [seq for seq, event in case.events.items() if accepts(node, event)]
        text = shown(node)
        found = case.rows(False, text)
        lost = [row for row in found if row["kind"] == "lost"]
        assert lost == [row for row in everything.values() if row["kind"] == "lost"]
        events = [row for row in found if row["kind"] == "event"]
        # Compared as text, because NaN does not equal itself.
        assert repr(events) == repr([everything[seq] for seq in passing]), text
        assert [row["seq"] for row in case.rows(False, text, ("seq", "kind"))
                if row["kind"] == "event"] == passing  # fmt: skip
        at = 1
        covered = case.rows(True, text)
        for row in covered:
            assert row["seq"] - row["range"] + 1 == at, text
            at = row["seq"] + 1
            if row["kind"] == "void":
                assert (row["key"], row["attributes"], row["tag"]) == (None, None, None)
        assert at == case.end
        assert repr([row for row in covered if row["kind"] == "event"]) == repr(events)


def test_adjacent_filtered_positions_are_one_void_row() -> None:
    schema = read_schema("a int64")
    tables = [pa.record_batch({"a": pa.array([n, n], pa.int64())}) for n in range(5)]
    batches = [typed_batch(table, schema, 2 * n + 1) for n, table in enumerate(tables)]
    where = bound_filter("a == 3", schema)
    (made,) = record_batches(batches, "s", True, schema=schema, where=where)
    found = [(row["seq"], row["kind"], row["range"]) for row in made.to_pylist()]
    assert found == [(6, "void", 6), (7, "event", 1), (8, "event", 1), (10, "void", 2)]
    times = [row["timestamp"].microsecond for row in made.to_pylist()]
    assert times == [7, 7, 7, 9]  # a void range has the time of the event after it


def test_an_unknown_column_of_a_filter_names_the_option() -> None:
    with pytest.raises(UsageError, match=r"option where: there is no column 'sim'.*'sym'"):
        bound_filter("sim == 'x'", read_schema("sym string"))
    with pytest.raises(UsageError, match="option where: there is no column 'sym'"):
        bound_filter("sym == 'x'", None)


# ---------------------------------------------------------------- rows of Spark as batches


TARGET = "sym string not null, px float32, n int8, at timestamp(ms), ns timestamp(ns), l list(date)"


def columns(**fields: Any) -> StructType:
    struct = StructType([StructField(name, kind) for name, kind in fields.items()])
    return StructType([StructField("attributes", struct)])


def written(struct: pa.Array, schema: str = TARGET, **more: Any) -> list[Any]:
    batch = pa.record_batch({"attributes": struct, **more})
    layout = Layout(tuple(more), False, "s", "sym string")
    cutter = Cutter(layout, lambda name: schema)
    chunks = [*cutter.add(batch), *cutter.rest()]
    for _, chunk in chunks:
        chunk.validate()
    found: list[Any] = []
    for _, chunk in chunks:
        attributes = chunk.attributes()
        assert attributes is not None
        assert attributes.types.code == read_schema(schema).types.code
        values = attributes.table().rename_columns(list(read_schema(schema).names)).to_pylist()
        found += zip(chunk.to_rows(), values, strict=True)
    return found


def test_fields_are_cast_exactly_and_missing_ones_are_null() -> None:
    struct = pa.array(
        [
            {"n": 7, "sym": "a", "ns": 1_001, "px": 0.1},
            {"n": None, "sym": "b", "ns": None, "px": 1},
        ],
        pa.struct([("n", pa.int64()), ("sym", pa.large_string()), ("ns", pa.int64()),
                   ("px", pa.float64())]),
    )  # fmt: skip
    (first, one), (second, two) = written(struct, key=[b"k", None], tag=["t", None])
    assert (first.key, first.value, first.tag) == (b"k", b"", b"t")
    assert (second.key, second.value, second.tag) == (None, b"", None)
    assert (one["sym"], one["n"], one["l"]) == ("a", 7, None)
    assert one["px"] == pytest.approx(0.1)
    assert one["ns"].value == 1_001
    assert two == {"sym": "b", "px": 1.0, "n": None, "at": None, "ns": None, "l": None}
    sliced = written(struct.slice(1, 1), value=[b"v"])
    assert [(row.value, fields["sym"]) for row, fields in sliced] == [(b"v", "b")]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sym": "a", "n": 128}, "column 'n' is int8, and row 0 has 128"),
        ({"sym": None}, "column 'sym' is string and not null, but row 0 has no value"),
        ({"sym": "a", "at": datetime(2026, 1, 1, 0, 0, 0, 1, UTC)}, "column 'at' is timestamp.ms"),
    ],
)
def test_a_value_that_does_not_fit_names_its_column(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=f"`attributes`, for stream 's': {reason}"):
        written(
            pa.array(
                [fields],
                pa.struct(
                    [
                        (
                            name,
                            pa.scalar(value, pa.string()).type
                            if value is None
                            else pa.scalar(value).type,
                        )
                        for name, value in fields.items()
                    ]
                ),
            )
        )


def test_rows_without_attributes_are_refused() -> None:
    struct = pa.array([{"sym": "a"}, None, None])
    with pytest.raises(UsageError, match=r"2 rows have no attributes.*voids"):
        written(struct)


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        ({"sym": "LongType"}, "column 'sym' is string in the schema, but int64"),
        ({"sym": "StringType", "px": "StringType"}, "column 'px' is float32 in the schema"),
        ({"sym": "StringType", "pxx": "FloatType"}, "no column 'pxx': did you mean 'px'.*change"),
        ({"px": "FloatType"}, "no column 'sym', which is string and not null"),
        ({"sym": "StringType", "at": "LongType"}, "column 'at' is timestamp.ms. in the schema"),
    ],
)
def test_types_are_checked_before_the_query_starts(kinds: dict[str, str], reason: str) -> None:
    given = columns(**{name: getattr(spark_types, kind)() for name, kind in kinds.items()})
    with pytest.raises(UsageError, match=f"for stream 's'.*{reason}"):
        check_schema(layout_of(given, "s"), "s", TARGET)


def test_types_that_fit_are_accepted() -> None:
    given = columns(
        sym=spark_types.StringType(), n=spark_types.LongType(), ns=spark_types.LongType(),
        at=spark_types.TimestampType(), px=spark_types.DoubleType(),
        l=spark_types.ArrayType(spark_types.DateType()),
    )  # fmt: skip
    layout = layout_of(given, "s")
    check_schema(layout, "s", TARGET)
    assert layout == Layout((), False, "s", schema_in(given["attributes"].dataType).text)
    tagged = StructType([*given.fields, StructField("tag", spark_types.BinaryType())])
    assert layout_of(tagged, "s").columns == ("tag",)


def test_a_stream_with_a_schema_and_rows_without_one_do_not_fit() -> None:
    plain = StructType([StructField("value", spark_types.BinaryType())])
    with pytest.raises(UsageError, match=r"has the schema \(a int64\).*struct\('a'\)"):
        check_schema(layout_of(plain, "s"), "s", "a int64")
    with pytest.raises(UsageError, match="has no schema, so its events cannot have attributes"):
        check_schema(Layout((), False, "s", "a int64"), "s", "")


def test_each_stream_gets_the_types_of_its_own_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "CHUNK_ROWS", 3)
    schemas = {"a": "n int8", "b": "n int64, more string"}
    layout = Layout((), False, None, "n int32")
    names = [("a", "b")[n % 2] for n in range(20)]
    struct = pa.array([{"n": n} for n in range(20)], pa.struct([("n", pa.int32())]))
    cutter = Cutter(layout, schemas.__getitem__)
    chunks = [*cutter.add(pa.record_batch({"stream": names, "attributes": struct}))]
    chunks += cutter.rest()
    found: dict[str, list[int]] = {"a": [], "b": []}
    for name, chunk in chunks:
        attributes = chunk.attributes()
        assert attributes is not None
        assert attributes.types.code == read_schema(schemas[name]).types.code
        assert chunk.rows <= 3
        found[name] += attributes.table().column(0).to_pylist()
    assert found == {"a": list(range(0, 20, 2)), "b": list(range(1, 20, 2))}


def test_rows_and_the_streams_that_they_name_both_have_attributes_or_neither() -> None:
    plain = pa.record_batch({"stream": ["s"], "value": [b"x"]})
    assert cut(Layout(("value",), False, None), plain) == [("s", [(None, b"x", None)])]
    with pytest.raises(UsageError, match=r"'s' has the schema \(n int8\)"):
        list(Cutter(Layout(("value",), False, None), lambda name: "n int8").add(plain))
    typed = pa.record_batch({"stream": ["s"], "attributes": pa.array([{"n": 1}])})
    with pytest.raises(UsageError, match="'s' has no schema"):
        list(Cutter(Layout((), False, None, "n int64"), lambda name: "").add(typed))


@given(tables())
@settings(max_examples=30)
def test_attributes_survive_the_way_through_spark(table: pa.RecordBatch) -> None:
    schema = schema_of(table.schema)
    (made,) = record_batches([typed_batch(table, schema, 1)], "s", False, schema=schema)
    layout = Layout((), False, "s", schema.text)
    cutter = Cutter(layout, lambda name: schema.text)
    chunks = [*cutter.add(made.select(["attributes"])), *cutter.rest()]
    attributes = [chunk.attributes() for _, chunk in chunks]
    found = [row for one in attributes if one for row in one.table().to_pylist()]
    wanted = table.rename_columns(schema.types.arrow_schema().names).to_pylist()
    assert repr(found) == repr(wanted)
