"""Typed bodies: equal to what pyarrow writes, cut and joined row by row, safe against peers."""

from __future__ import annotations

import datetime
import decimal
import random
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from surecast.columns import typed
from surecast.columns.batch import COLLECTED, DATA, HEADER_SIZE, NONE, Batch, coalesce
from surecast.columns.column import TAGGED, TYPED
from surecast.columns.compaction import survivors
from surecast.columns.intervals import IntervalSet
from surecast.columns.schema import read_schema, schema_of, schema_text
from surecast.columns.typed import (
    FIELDS_MAX,
    LISTS_MAX,
    Attributes,
    Types,
    types_of,
)
from surecast.core.wire import decode_batch, encode_batch
from surecast.errors import PeerError, UsageError
from tests.columns.streams import STREAM, THOROUGH

UTC = datetime.UTC
PLAIN = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=6),
    pa.binary(): st.binary(max_size=6),
    pa.date32(): st.dates(),
    pa.timestamp("s", "UTC"): st.integers(0, 1 << 32),
    pa.timestamp("ms", "UTC"): st.integers(0, 1 << 40),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.timestamp("ns", "UTC"): st.integers(0, 1 << 60),
    pa.decimal128(7, 2): st.decimals("-99999.99", "99999.99", places=2),
}
KINDS = st.sampled_from(list(PLAIN))


@st.composite
def fields(draw: st.DrawFn) -> tuple[pa.DataType, bool, st.SearchStrategy]:
    """A type, whether it may be null, and its values."""
    kind = draw(KINDS)
    values = PLAIN[kind]
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        kind, values = pa.list_(kind), st.lists(st.none() | values, max_size=3)
    nullable = draw(st.booleans())
    return kind, nullable, st.none() | values if nullable else values


@st.composite
def tables(draw: st.DrawFn, rows_min: int = 1, rows_max: int = 20) -> pa.RecordBatch:
    chosen = draw(st.lists(fields(), min_size=1, max_size=6))
    rows = draw(st.integers(rows_min, rows_max))
    lists = [draw(st.lists(values, min_size=rows, max_size=rows)) for _, _, values in chosen]
    schema = pa.schema(
        pa.field(f"c{number}", kind, nullable) for number, (kind, nullable, _) in enumerate(chosen)
    )
    arrays = [pa.array(values, kind) for values, kind in zip(lists, schema.types, strict=True)]
    table = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if draw(st.booleans()):  # columns that do not begin at the start of their buffers
        whole = pa.Table.from_batches([table, table]).combine_chunks().to_batches()[0]
        table = whole.slice(draw(st.integers(0, rows)), rows)
    return table


def attributes_of(table: pa.RecordBatch) -> Attributes:
    types = schema_of(table.schema).types
    plain = pa.RecordBatch.from_arrays(table.columns, schema=types.arrow_schema())
    return Attributes(types, table.num_rows, table=plain)


def batch_of(table: pa.RecordBatch, lo: int = 0, tagged: bool = False, keyed: bool = True) -> Batch:
    rows = table.num_rows
    keys = [b"k%d" % (row % 3) for row in range(rows)] if keyed else None
    tags = [b"t"] * rows if tagged else None
    batch = Batch.of(STREAM, [b""] * rows, keys, tags, attributes_of(table))
    return batch.sequenced(lo, 5, 1) if lo else batch


def read_back(batch: Batch) -> Batch:
    """The batch from its frame, at an address that is not aligned."""
    frame = b"".join(encode_batch(batch))
    found, size = decode_batch(memoryview(b"xxx" + frame)[3:])
    assert size == len(frame)
    return found


def plain(table: pa.RecordBatch | pa.Table) -> str:
    """The values as text, in which NaN equals NaN. Times as numbers: some are no datetimes."""
    columns = [_without_times(column) for column in table.columns]
    return repr([column.to_pylist() for column in columns])


def _without_times(column: pa.Array) -> pa.Array:
    kind, depth = column.type, 0
    while pa.types.is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if not pa.types.is_timestamp(kind):
        return column
    number = pa.int64()
    for _ in range(depth):
        number = pa.list_(number)
    return column.cast(number)


def same(found: Batch, wanted: pa.RecordBatch) -> bool:
    attributes = found.attributes()
    assert attributes is not None
    table = attributes.table()
    table.validate(full=True)
    return plain(table) == plain(wanted)


@settings(max_examples=THOROUGH)
@given(tables(), st.booleans(), st.booleans())
def test_typed_batches_are_read_back(table: pa.RecordBatch, tagged: bool, keyed: bool) -> None:
    batch = batch_of(table, tagged=tagged, keyed=keyed)
    assert batch.schema_id == TYPED | tagged * TAGGED
    found = read_back(batch)
    assert (
        found.columns_id
        == batch.columns_id
        == (batch.schema_id, schema_of(table.schema).types.code)
    )
    assert same(found, table)
    assert found.keys().to_list() == batch.keys().to_list()
    assert found.values().to_list() == [b""] * table.num_rows
    assert found.tags() is None or found.tags().to_list() == [b"t"] * table.num_rows
    assert same(found.sequenced(7, 1, 1), table)


@settings(max_examples=THOROUGH)
@given(tables())
def test_messages_are_those_of_pyarrow(table: pa.RecordBatch) -> None:
    """So pyarrow is not needed to check them. (pyarrow stores empty columns of lists and columns
    that do not fill their buffers differently.)"""
    attributes = attributes_of(table)
    section = attributes.section()
    assert attributes.types._check(section, table.num_rows)
    whole = attributes.types.read(section, table.num_rows)
    assert plain(whole) == plain(table)
    if not any(map(pa.types.is_list, table.schema.types)):
        assert whole.serialize().to_pybytes() == section


@settings(max_examples=THOROUGH)
@given(tables(2), st.data())
def test_cuts_and_joins_keep_the_rows(table: pa.RecordBatch, data: st.DataObject) -> None:
    rows = table.num_rows
    at = data.draw(st.integers(1, rows - 1))
    voids = sorted(data.draw(st.sets(st.integers(0, rows - 1), max_size=rows - 1)))
    batch = batch_of(table, lo=10)
    first, second = batch.slice(10, 10 + at), batch.slice(10 + at, 10 + rows)
    assert same(read_back(first), table.slice(0, at))
    (joined,) = coalesce([first, second], 1000, small_rows=1000)
    assert same(read_back(joined), table)
    holes = IntervalSet([(10 + row, 11 + row) for row in voids])
    kept = [row for row in range(rows) if row not in voids]
    left = batch.without(holes, COLLECTED)
    assert same(read_back(left), table.take(pa.array(kept)))
    again = survivors([first, second], {COLLECTED: holes}, 1000)
    parts = [part.attributes().table() for part in again if part.rows]
    assert plain(pa.Table.from_batches(parts)) == plain(
        pa.Table.from_batches([left.attributes().table()])
    )
    assert np.concatenate([part.seqs() for part in again]).tolist() == [10 + row for row in kept]


def test_batches_with_other_types_are_not_joined() -> None:
    one = batch_of(pa.record_batch({"a": [1]}), lo=1)
    two = batch_of(pa.record_batch({"a": [1], "b": ["x"]}), lo=2)
    three = Batch.of(STREAM, [b"x"]).sequenced(3, 0, 1)
    assert coalesce([one, two, three], 1000) == [one, two, three]
    holes = {COLLECTED: IntervalSet()}
    assert survivors([one, two, three], holes, 1000) == [one, two, three]


@settings(max_examples=THOROUGH)
@given(tables(), st.randoms(use_true_random=False))
def test_damaged_attributes_are_refused_or_valid(table: pa.RecordBatch, rng: random.Random) -> None:
    """A peer that computes correct CRCs for wrong bodies."""
    batch = batch_of(table)
    body = bytearray(batch.body)
    for _ in range(rng.choice([1, 1, 2, 5])):
        body[rng.randrange(len(body))] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
    if rng.random() < 0.2:
        del body[rng.randrange(len(body)) & ~7 :]
    assume(len(body) and bytes(body) != batch.body)
    made = Batch(
        DATA, STREAM, batch.schema_id, bytes(16), 0, 0, batch.rows, batch.rows, 0, 0, NONE,
        bytes(body), zlib.crc32(body), HEADER_SIZE + len(body), batch.form,
    )  # fmt: skip
    try:
        made.validate()
    except PeerError:
        return
    found = made.attributes().table()
    found.validate(full=True)
    for number, node in enumerate(made.attributes().types.nodes):
        assert node.nullable or not found.column(number).null_count
    assert found.num_rows == batch.rows


@given(st.binary(max_size=8))
@settings(max_examples=300)
def test_any_code_is_refused_or_a_schema(code: bytes) -> None:
    try:
        types = Types(code)
    except PeerError:
        return
    assert schema_of(types.arrow_schema()).types.code == code
    schema_text(types.arrow_schema())


@given(tables())
def test_codes_and_texts_have_the_same_types(table: pa.RecordBatch) -> None:
    types = schema_of(table.schema).types
    assert types.arrow_schema().types == table.schema.types
    assert [node.nullable for node in types.nodes] == [field.nullable for field in table.schema]
    assert read_schema(schema_text(table.schema)).types.code == types.code
    assert types_of(types.code) is types


@pytest.mark.parametrize("code", [b"", b"\x00", b"\x63", b"\x0f", b"\x0f\x27\x00", b"\x0f\x05\x06",
    b"\x10", b"\x10\x81", b"\x10" * (LISTS_MAX + 1) + b"\x01",
    b"\x01" * (FIELDS_MAX + 1)])  # fmt: skip
def test_wrong_codes_are_refused(code: bytes) -> None:
    with pytest.raises(PeerError):
        Types(code)


def test_the_longest_codes_are_accepted() -> None:
    assert len(Types(b"\x01" * FIELDS_MAX)) == FIELDS_MAX
    assert pa.types.is_list(Types(b"\x10" * LISTS_MAX + b"\x01").arrow_schema().field(0).type)


def test_other_layouts_of_arrow_are_accepted_and_checked() -> None:
    """A writer that stores a bitmap although no value is null."""
    array = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x03"), pa.py_buffer(bytes(16))], null_count=-1
    )
    types = schema_of(pa.schema([pa.field("a", pa.int64(), False)])).types
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    section = array_section(array, types, options)
    assert not types._check(section, 2)
    types.check(section, 2)
    with pytest.raises(PeerError, match="rows"):
        types.check(section, 3)
    nulls = schema_of(pa.schema([pa.field("a", pa.int64())])).types
    with_null = array_section(pa.array([1, None]), nulls, None)
    nulls.check(with_null, 2)
    with pytest.raises(PeerError, match="is null"):
        types.check(with_null, 2)


def array_section(array: pa.Array, types: Types, options: pa.ipc.IpcWriteOptions | None) -> bytes:
    table = pa.RecordBatch.from_arrays([array], schema=types.arrow_schema())
    if options is None:
        return table.serialize().to_pybytes()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_batch(table)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return reader.read_next_message().serialize().to_pybytes()


def test_attributes_and_values_have_the_same_number_of_rows() -> None:
    attributes = attributes_of(pa.record_batch({"a": [1, 2]}))
    with pytest.raises(UsageError, match="2 events for 1 values"):
        Batch.of(STREAM, [b""], attributes=attributes)


def test_decimals_beyond_their_precision_are_refused() -> None:
    types = schema_of(pa.schema([pa.field("a", pa.decimal128(3, 1), False)])).types
    wider = pa.array([decimal.Decimal("12345.6")], pa.decimal128(10, 1))
    narrow = pa.Array.from_buffers(pa.decimal128(3, 1), 1, wider.buffers())
    section = pa.RecordBatch.from_arrays([narrow], schema=types.arrow_schema()).serialize()
    with pytest.raises(PeerError, match="precision"):
        types.check(memoryview(section), 1)


def test_a_plain_body_is_no_typed_body() -> None:
    """Not even if a batch with this base was received before, so that its layout is known."""
    known = read_back(batch_of(pa.record_batch({"a": [1, 2]})))
    plain_one = Batch.of(STREAM, [b"", b""], [b"k0", b"k1"])
    assert plain_one.form == known.form
    plain_one.schema_id = TYPED
    with pytest.raises(PeerError, match="typed batch"):
        read_back(plain_one)


@given(st.integers(1, 38), st.data())
def test_the_precision_of_decimals_is_checked(precision: int, data: st.DataObject) -> None:
    """Without pyarrow, but as pyarrow does."""
    most = 10**precision
    near = st.sampled_from([0, 1, -1, most - 1, 1 - most, most, -most, most + 1, -most - 1])
    numbers = data.draw(st.lists(near | st.integers(-(1 << 127), (1 << 127) - 1), min_size=1))
    held = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    fits = all(abs(number) < most for number in numbers)
    assert typed._fit_digits(held, precision) == fits
    array = pa.Array.from_buffers(
        pa.decimal128(precision, 0), len(numbers), [None, pa.py_buffer(held)]
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        assert not fits
    else:
        assert fits


def test_strings_are_checked_row_by_row() -> None:
    """Two rows that are valid UTF-8 together, but not alone."""
    types = schema_of(pa.schema([pa.field("a", pa.string(), False)])).types
    halves = pa.array([b"\xc3", b"\xa4"]).view(pa.string())
    section = pa.RecordBatch.from_arrays([halves], schema=types.arrow_schema()).serialize()
    with pytest.raises(PeerError, match="UTF8"):
        types.check(memoryview(section), 2)
    assert typed.code_of(b"", TYPED) == b""


def test_null_rows_may_hold_anything() -> None:
    """As pyarrow sees it: only rows with a value must be UTF-8."""
    types = schema_of(pa.schema([pa.field("a", pa.string())])).types
    _, offsets, data = pa.array([b"\xff", b"b"]).buffers()
    array = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    table = pa.RecordBatch.from_arrays([array], schema=types.arrow_schema())
    section = types.encode(table)
    types.check(section, 2)
    assert types.read(section, 2).column(0).to_pylist() == [None, "b"]


def test_buffers_that_overlap_are_refused() -> None:
    """Copies of these columns would take a hundred times the memory of the body."""
    schema = read_schema(", ".join(f"c{number} int64" for number in range(100)))
    rows = 1000
    places = (0, 0, 0, 8 * rows) * 100
    section = schema.types._pack(8 * rows, rows, places, (rows, 0) * 100) + bytes(8 * rows)
    pa.ipc.read_record_batch(pa.py_buffer(section), schema.types.arrow_schema()).validate(full=True)
    with pytest.raises(PeerError, match="overlap"):
        schema.types.check(section, rows)


def test_few_layouts_are_remembered() -> None:
    narrow = schema_of(pa.schema([pa.field("a", pa.int8(), False)])).types
    wide = read_schema(
        ", ".join(f"c{n} int8 not null" for n in range(typed._PLAN_COLUMNS_MAX + 1))
    ).types
    for types in (narrow, wide):
        for rows in range(1, typed._PLANS_MAX + 3):
            arrays = [pa.array([0] * rows, pa.int8())] * len(types)
            table = pa.RecordBatch.from_arrays(arrays, schema=types.arrow_schema())
            section = types.encode(table)
            types.check(section, rows)
            types.check(section, rows)
            assert len(types._plans) <= typed._PLANS_MAX
    assert narrow._plans
    assert not wide._plans


@settings(max_examples=THOROUGH)
@given(tables(2), st.data())
def test_regions_can_compare_rows(table: pa.RecordBatch, data: st.DataObject) -> None:
    """A row has the same bytes in every batch, and another row has other bytes."""
    attributes = attributes_of(table)
    row = data.draw(st.integers(0, table.num_rows - 1))
    found = attributes.row_bytes(row)
    alone = read_back(batch_of(table, lo=1).slice(row + 1, row + 2)).attributes()
    assert alone.row_bytes(0) == found
    kept = attributes.take(np.array([row, 0]))
    assert kept.row_bytes(0) == found
    other = data.draw(st.integers(0, table.num_rows - 1))
    same_values = plain(table.slice(row, 1)) == plain(table.slice(other, 1))
    if not same_values:
        assert attributes.row_bytes(other) != found
