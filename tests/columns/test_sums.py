"""Checksums of rows: the kernel against its twin; changes of rows change the sum."""

from hashlib import blake2b
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.columns.batch import Batch
from surecast.columns.column import column_of
from surecast.columns.schema import schema_of
from surecast.columns.sums import hash_column, sum_rows
from surecast.columns.typed import Attributes
from surecast.endpoint.attributes import writer_of
from tests.columns import twins
from tests.columns.test_kernels import KEYS, variants
from tests.columns.test_typed import tables

STREAM = bytes(16)
VALUES = KEYS.map(lambda item: item or b"")
Row = tuple[bytes | None, bytes, bytes | None]
ROWS = st.lists(st.tuples(KEYS, VALUES, KEYS), min_size=1, max_size=40)


def batch_of(rows: list[Row]) -> Batch:
    keys, values, tags = zip(*rows, strict=True)
    tagged = any(tag is not None for tag in tags)
    return Batch.of(STREAM, list(values), list(keys), list(tags) if tagged else None)


def total(rows: list[Row], stream: str = "s") -> int:
    return sum_rows(stream, batch_of(rows))


@given(ROWS)
def test_the_sum_equals_the_twins(rows: list[Row]) -> None:
    seed = int.from_bytes(blake2b(b"orders", digest_size=8).digest(), "little")
    assert total(rows, "orders") == twins.sum_rows(seed, rows)


@given(ROWS, st.data())
def test_order_and_batches_make_no_difference(rows: list[Row], data: st.DataObject) -> None:
    mixed = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [part for part in (mixed[:cut], mixed[cut:]) if part]
    assert sum(map(total, parts)) % (1 << 64) == total(rows)


@given(ROWS, ROWS)
def test_different_rows_have_different_sums(rows: list[Row], others: list[Row]) -> None:
    def order(row: Row) -> tuple[bytes, ...]:
        return tuple(b"" if item is None else b"+" + item for item in row)

    assert (total(rows) == total(others)) == (sorted(rows, key=order) == sorted(others, key=order))
    assert total(rows) != total(rows, "another stream")


@pytest.mark.slow
def test_slightly_different_rows_have_different_sums() -> None:
    base: list[Row] = [(b"k%d" % (n % 5), b"value %06d" % n, b"t%d" % (n % 3)) for n in range(3000)]
    wanted, rng = total(base), Random(5)
    for n in range(500):
        changed, (a, b) = list(base), rng.sample(range(3000), 2)
        (key, value, tag), (other_key, other_value, _) = base[a], base[b]
        match n % 5:
            case 0:
                changed[a], changed[b] = (key, other_value, tag), (other_key, value, base[b][2])
            case 1:
                changed[a] = changed[b]  # one is there twice, and the other not at all
            case 2:
                changed[a] = (value, key or b"", tag)
            case 3:
                changed[a] = ((key or b"") + value[:1], value[1:], tag)
            case 4:
                at = rng.randrange(len(value))
                changed[a] = (key, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :], tag)
        same = sorted(map(str, changed)) == sorted(map(str, base))
        assert (total(changed) == wanted) == same


def test_numbers_with_equal_totals_have_different_sums() -> None:
    def of(*numbers: int) -> int:
        return total([(b"k", number.to_bytes(8, "little"), None) for number in numbers])

    sums = [of(a, 1000 - a) for a in range(500)] + [of(a << 56, 1000 - a) for a in range(1, 250)]
    assert len(set(sums)) == len(sums)


def test_a_missing_column_counts_as_nulls() -> None:
    values = [b"a", b"bc", b""]
    plain = sum_rows("s", Batch.of(STREAM, values))
    assert sum_rows("s", Batch.of(STREAM, values, [None] * 3, [None] * 3)) == plain
    assert sum_rows("s", Batch.of(STREAM, values, [b""] * 3)) != plain
    assert sum_rows("s", Batch.of(STREAM, values, None, [b""] * 3)) != plain


@pytest.mark.parametrize("number", range(3))
def test_no_kind_of_array_triggers_compilation(number: int) -> None:
    column = column_of([b"a", None, b"longer than eight"])
    assert column.valid is not None
    arrays = [variants(array)[number] for array in (column.offsets, column.data, column.valid)]
    hash_column(*arrays, np.zeros(3, np.uint64))
    assert len(hash_column.nopython_signatures) == 1  # type: ignore[attr-defined]


# ---------------------------------------------------------------- attributes


FIRST = "n int64, s string, b bool, l list(int8)"
Fields = tuple[Any, ...]
FIELDS = st.tuples(
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.text(max_size=12),
    st.none() | st.booleans(),
    st.none() | st.lists(st.none() | st.integers(-128, 127), max_size=3),
)


def typed_total(rows: list[Fields], schema: str = FIRST, cut: int = 0) -> int:
    """The sum for events that differ only in their attributes; of rows [cut, end)."""
    writer = writer_of(schema)
    assert writer is not None
    count = len(rows)
    attributes = writer.attributes(rows).part(cut, count)
    return sum_rows("s", Batch.of(STREAM, [b""] * (count - cut), attributes=attributes))


def item_bytes(item: Any) -> bytes | None:
    match item:
        case None:
            return None
        case bool():
            return bytes([item])
        case int():
            return item.to_bytes(8, "little", signed=True)
        case str():
            return item.encode()
    parts = (b"-" if one is None else b"=" + one.to_bytes(1, "little", signed=True) for one in item)
    return b"%d[" % len(item) + b"".join(parts)


@settings(max_examples=40)
@given(st.lists(FIELDS, min_size=1, max_size=20), st.data())
def test_the_sum_of_attributes_equals_the_twins(rows: list[Fields], data: st.DataObject) -> None:
    seed = int.from_bytes(blake2b(b"s", digest_size=8).digest(), "little")
    cut = data.draw(st.integers(0, len(rows) - 1))
    plain: list[tuple[bytes | None, ...]] = [(None, b"", None)] * (len(rows) - cut)
    held = [tuple(map(item_bytes, row)) for row in rows[cut:]]
    assert typed_total(rows, cut=cut) == twins.sum_rows(seed, plain, held)


@settings(max_examples=40)
@given(st.lists(FIELDS, min_size=1, max_size=10), st.lists(FIELDS, min_size=1, max_size=10))
def test_different_attributes_have_different_sums(rows: list[Fields], others: list[Fields]) -> None:
    equal = sorted(map(repr, rows)) == sorted(map(repr, others))
    assert (typed_total(rows) == typed_total(others)) == equal


def test_rows_of_two_versions_of_a_schema_have_equal_sums() -> None:
    rows: list[Fields] = [(1, "a", None, [1]), (None, None, True, None)]
    more = [(*row, None, None) for row in rows]
    wide = FIRST + ", f float64, m string"
    assert typed_total(rows) == typed_total(more, wide)
    assert typed_total(rows) != typed_total([(*rows[0], None, "x"), more[1]], wide)
    swapped: list[Fields] = [(1, None, True, None), (None, "a", None, [1])]
    assert typed_total(rows) != typed_total(swapped), "values belong to their rows"


def typed_sum(table: pa.RecordBatch) -> int:
    types = schema_of(table.schema).types
    plain = pa.RecordBatch.from_arrays(table.columns, schema=types.arrow_schema())
    attributes = Attributes(types, table.num_rows, table=plain)
    return sum_rows("s", Batch.of(STREAM, [b""] * table.num_rows, attributes=attributes))


@given(tables(rows_min=2), st.data())
@settings(max_examples=40)
def test_the_sum_includes_attributes_however_they_are_divided(
    table: pa.RecordBatch, data: st.DataObject
) -> None:
    rows, wanted = table.num_rows, typed_sum(table)
    order = data.draw(st.permutations(range(rows)))
    cut = data.draw(st.integers(1, rows - 1))
    mixed = table.take(pa.array(order))
    parts = mixed.slice(0, cut), mixed.slice(cut)
    assert sum(map(typed_sum, parts)) % (1 << 64) == wanted
    # A row twice in place of another one: the sum is the same only if the rows are.
    again = table.take(pa.array([0, *range(rows - 1)]))
    texts = [repr(row) for row in (*table.to_pylist(), *again.to_pylist())]
    if sorted(texts[:rows]) != sorted(texts[rows:]):
        assert typed_sum(again) != wanted


def test_each_change_of_an_attribute_changes_the_sum() -> None:
    def of(value: object, kind: pa.DataType) -> int:
        return typed_sum(pa.record_batch({"a": pa.array([value], kind)}))

    nested = pa.list_(pa.list_(pa.int8()))
    values: dict[pa.DataType, list[object]] = {
        pa.int8(): [None, 0, 1],
        pa.bool_(): [None, False, True],
        pa.string(): [None, "", "a"],
        nested: [None, [], [[]], [None], [[], []], [[0]], [[None]], [[0], []], [[], [0]]],
        pa.list_(pa.string()): [None, [], [""], [None], ["a", "b"], ["ab", ""], ["", "ab"]],
    }
    for kind, each in values.items():
        assert len({of(value, kind) for value in each}) == len(each), kind
    two = pa.record_batch({"a": pa.array([1], pa.int8()), "b": pa.array([2], pa.int8())})
    swapped = pa.record_batch({"a": pa.array([2], pa.int8()), "b": pa.array([1], pa.int8())})
    assert typed_sum(two) != typed_sum(swapped)


def test_a_column_that_was_added_later_does_not_change_the_sum() -> None:
    """So a job that is run again, after a change of the schema, has the same rows."""
    one = pa.record_batch({"a": pa.array([1, None], pa.int8())})
    for kind in (pa.string(), pa.list_(pa.int8()), pa.float64(), pa.bool_()):
        assert typed_sum(one.append_column("b", pa.nulls(2, kind))) == typed_sum(one)


def test_what_lies_behind_a_null_does_not_change_the_sum() -> None:
    bitmap = pa.py_buffer(bytes([0b01]))
    hidden = pa.Array.from_buffers(pa.int8(), 2, [bitmap, pa.py_buffer(bytes([7, 9]))])
    plain = pa.array([7, None], pa.int8())
    assert typed_sum(pa.record_batch({"a": hidden})) == typed_sum(pa.record_batch({"a": plain}))
    lists = [pa.ListArray.from_arrays([0, 2], values) for values in (hidden, plain)]
    one, other = (typed_sum(pa.record_batch({"a": values})) for values in lists)
    assert one == other
