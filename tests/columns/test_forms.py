"""Narrow bodies: equal to what pyarrow writes, and safe against peers that lie."""

from __future__ import annotations

import random
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.columns import forms
from surecast.columns.batch import COLLECTED, DATA, Batch, coalesce
from surecast.columns.column import Columns, column_of
from surecast.columns.intervals import IntervalSet
from surecast.errors import PeerError, UsageError
from tests.columns.streams import STREAM, THOROUGH, like, plain, rows_of

GAPS = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32()}


def widths(rows: int, nullable: bool = True) -> st.SearchStrategy[list]:
    """Columns of one width, of several, or (if nullable) with some or only nulls."""
    one = st.integers(0, 12).flatmap(
        lambda width: st.lists(
            st.binary(min_size=width, max_size=width), min_size=rows, max_size=rows
        )
    )
    any_width = st.binary(max_size=12)
    several = st.lists(any_width, min_size=rows, max_size=rows)
    if not nullable:
        return one | several
    some = st.lists(st.none() | any_width, min_size=rows, max_size=rows)
    return one | several | some | st.just([None] * rows)


@st.composite
def columns(draw: st.DrawFn, rows_max: int = 30) -> tuple[Columns, int, dict[str, list]]:
    """Columns, the position of the batch, and the columns as lists."""
    rows = draw(st.integers(1, rows_max))
    held = {"key": draw(widths(rows)), "value": draw(widths(rows, nullable=False))}
    if draw(st.booleans()):
        held["tag"] = draw(widths(rows))
    lo = draw(st.integers(1, 1 << 50))
    seqs = times = None
    if draw(st.booleans()):
        most = draw(st.sampled_from([1, 3, 255, 256, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 32]))
        gaps = draw(st.lists(st.integers(1, most), min_size=rows, max_size=rows))
        steps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 1 << 40]), min_size=rows, max_size=rows))
        seqs = np.cumsum(np.array(gaps)) + lo - 1
        times = np.cumsum(np.array(steps))
        held |= {"seq": seqs.tolist(), "time": times.tolist()}
    tags = column_of(held["tag"]) if "tag" in held else None
    return Columns(column_of(held["key"]), column_of(held["value"]), tags, seqs, times), lo, held


def schema_of(form: forms.Form, tagged: bool) -> pa.Schema:
    """The pyarrow schema of a form, as described in docs/wire.md."""

    def binary(width: int) -> pa.DataType:
        return (
            pa.null() if width == -2 else pa.binary(width)
        )  # -1 means variable width in pyarrow, too

    fields = [
        pa.field("key", binary(form.key)),
        pa.field("value", binary(form.value), nullable=False),
    ]
    if tagged:
        fields.append(pa.field("tag", pa.binary()))
    if form.gap:
        time = pa.run_end_encoded(pa.int32(), pa.int64()) if form.runs else pa.int64()
        fields += [pa.field("seq", GAPS[form.gap], nullable=False), pa.field("time", time)]
    return pa.schema(fields)


def held_by(found: Columns) -> dict[str, list]:
    held: dict[str, list] = {"key": found.keys.to_list(), "value": found.values.to_list()}
    if found.tags is not None:
        held["tag"] = found.tags.to_list()
    if found.seqs is not None:
        assert found.times is not None
        held |= {"seq": found.seqs.tolist(), "time": found.times.tolist()}
    return held


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@given(columns())
def test_encode_writes_what_pyarrow_writes(given_columns) -> None:
    made, lo, held = given_columns
    body, packed = forms.encode(made, lo)
    if not packed:
        return
    form = forms.form_of(packed)
    assert form.packed == packed
    schema = schema_of(form, "tag" in held)
    arrays = []
    for field in schema:
        rows = held[field.name]
        if field.name == "seq":
            rows = np.diff([lo - 1, *rows]).tolist()
        array = pa.array(rows, pa.int64() if field.name == "time" else field.type)
        if form.runs and field.name == "time":
            array = pc.run_end_encode(array, run_end_type=pa.int32())
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    assert body == batch.serialize().to_pybytes()
    read = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
    read.validate(full=True)
    assert read.equals(batch)


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@given(columns(), st.integers(0, 9))
def test_decode_restores_the_columns_from_any_offset(given_columns, shift) -> None:
    made, lo, held = given_columns
    body, packed = forms.encode(made, lo)
    if not packed:
        return
    rows, tagged = len(held["value"]), int("tag" in held)
    part = memoryview(bytearray(shift) + body)[shift:].toreadonly()
    for source in (body, part):
        found = forms.decode(source, tagged, packed, rows, lo)
        assert held_by(found) == held
        assert forms.encode(found, lo) == (body, packed)


def test_the_narrowest_possible_form_is_used() -> None:
    def form(keys: list | None, values: list) -> forms.Form:
        return forms.form_of(Batch.of(STREAM, values, keys).form)

    assert form([b"12345678"] * 3, [b"x"] * 3) == (8, 1, 0, False)
    assert form(None, [b"x", b"yy"]) == (-2, -1, 0, False)
    assert form([b"k", None], [b"x", b"y"]) == (-1, 1, 0, False)
    assert form([b"k", b"k"], [b"", b""]) == (1, 0, 0, False)
    assert form([b"", b""], [b"", b""]) == (0, -1, 0, False)
    assert form(None, [b"", b""]) == (-2, -1, 0, False)
    assert Batch.of(STREAM, [b"x", b"yy"], [b"k", None]).form == 0
    for width, used in ((0xFFFC, 0xFFFC), (0xFFFD, -1), (0xFFFE, -1)):
        assert form([b"k"] * 2, [bytes(width)] * 2).value == used
        assert form([bytes(width)] * 2, [b"v"] * 2).key == used


def sparse(spread: int, times: int, tagged: bool = False) -> Batch:
    """Rows of `times` batches, every other row void, with a void range of `spread` after each."""
    parts: list[Batch] = []
    lo = 5
    for number in range(times):
        tags = [b"t", None] * 4 if tagged else None
        dense = Batch.of(STREAM, [b"value %d" % i for i in range(8)], [b"key"] * 8, tags)
        dense = dense.sequenced(lo, number, 1)
        holes = IntervalSet([(at, at + 1) for at in range(lo, lo + 8, 2)])
        parts += [dense.without(holes, COLLECTED), Batch.void(STREAM, lo + 8, lo + 8 + spread, 1)]
        lo += 8 + spread
    (joined,) = coalesce(parts, 1000)
    return joined


@pytest.mark.parametrize(("spread", "gap"), [(9, 1), (300, 2), (70_000, 4), (1 << 33, 0)])
@pytest.mark.parametrize("tagged", [False, True])
def test_a_compacted_batch_holds_the_same_rows_in_fewer_bytes(spread, gap, tagged) -> None:
    batch = sparse(spread, 3, tagged)
    batch.validate()
    assert forms.form_of(batch.form).gap == gap
    old = plain(batch)
    old.validate()
    assert old.to_rows() == batch.to_rows()
    assert batch.record_batch().to_pylist() == old.record_batch().to_pylist()
    assert batch.record_batch().schema == old.record_batch().schema
    assert batch.nbytes < old.nbytes or not gap
    middle = batch.lo + batch.count // 2
    halves = [batch.slice(batch.lo, middle), batch.slice(middle, batch.hi)]
    assert rows_of(halves) == batch.to_rows()


def test_times_that_all_differ_are_not_run_end_encoded() -> None:
    small = [Batch.of(STREAM, [b"v"], [b"k"]).sequenced(lo, lo * lo, 1) for lo in range(1, 20)]
    (joined,) = coalesce(small, 100)
    assert forms.form_of(joined.form) == (1, 1, 1, False)
    joined.validate()
    assert [row.time_ns for row in joined.to_rows()] == [lo * lo for lo in range(1, 20)]


def test_record_batches_of_all_forms_can_be_combined_in_one_table() -> None:
    batches = [
        Batch.of(STREAM, [b"a", b"b"], [b"k", b"l"]),
        Batch.of(STREAM, [b"a", b"bb"], [b"k", None]),
        Batch.of(STREAM, [b"a", b"bb"]),
    ]
    table = pa.Table.from_batches([batch.record_batch() for batch in batches])
    assert table.column("key").to_pylist() == [b"k", b"l", b"k", None, None, None]
    assert table.column("value").to_pylist() == [b"a", b"b", b"a", b"bb", b"a", b"bb"]


# ---------------------------------------------------------------- false claims


def samples() -> list[Batch]:
    keys = [b"key %3d" % i for i in range(25)]
    nullable = [None if i % 3 else key for i, key in enumerate(keys)]
    values = [b"value %3d" % i for i in range(25)]
    uneven = [b"v" * (i % 5) for i in range(25)]
    made = [
        Batch.of(STREAM, values, keys),
        Batch.of(STREAM, uneven),
        Batch.of(STREAM, values, nullable, nullable),
    ]
    made = [batch.sequenced(10, 5, 1) for batch in made]
    made += [sparse(9, 3), sparse(300, 12, tagged=True), sparse(70_000, 2)]
    return made


def is_accepted(batch: Batch, **changes: object) -> bool:
    """Whether a changed batch is accepted; if so, read all of its contents."""
    damaged = like(batch, **changes)
    try:
        damaged.validate()
    except PeerError:
        return False
    rows = damaged.to_rows()
    assert len(rows) == damaged.rows
    assert [row.seq for row in rows] == sorted({row.seq for row in rows})
    assert damaged.lo <= rows[0].seq <= rows[-1].seq < damaged.hi
    assert [row.time_ns for row in rows] == sorted(row.time_ns for row in rows)
    assert len(damaged.record_batch().to_pylist()) == damaged.rows
    damaged.without(IntervalSet([(11, 12)]), COLLECTED or damaged.reason).to_rows()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_damaged_bodies_raise_peer_error_or_are_harmless(seed) -> None:
    rng = random.Random(seed)
    batches = samples()
    assert all(is_accepted(batch) for batch in batches)
    accepted = 0
    for _ in range(3000):
        batch = rng.choice(batches)
        damaged = bytearray(batch.body or b"")
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            at = rng.randrange(len(damaged))
            damaged[at] = rng.choice([0, 1, 8, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        accepted += is_accepted(batch, body=bytes(damaged))
    assert 0 < accepted < 3000


@pytest.mark.parametrize("seed", range(2))
def test_wrong_forms_sizes_and_counts_are_refused(seed) -> None:
    """The header contradicts the body."""
    rng = random.Random(seed)
    batches = samples()
    for batch in batches:
        body = batch.body or b""
        for other in batches:
            if other.form != batch.form:
                assert not is_accepted(batch, form=other.form)
        for _ in range(50):
            assert not is_accepted(batch, form=rng.getrandbits(rng.choice([16, 32, 48, 64])))
            assert not is_accepted(batch, body=body[: rng.randrange(len(body))])
        assert not is_accepted(batch, body=body + bytes(8))
        assert not is_accepted(batch, body=rng.randbytes(len(body)))
        rows = rng.choice([n for n in range(1, 40) if n != batch.rows])
        assert not is_accepted(batch, rows=rows, count=batch.count - batch.rows + rows)


def test_extreme_numbers_in_metadata_are_refused() -> None:
    for batch in samples():
        body = batch.body or b""
        size = 8 + struct.unpack_from("<I", body, 4)[0]
        for at in range(0, size - 7, 4):
            for number in (-1, -8, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 62) + 8):
                damaged = bytearray(body)
                struct.pack_into("<q", damaged, at, number)
                assert not is_accepted(batch, body=bytes(damaged))


def test_inconsistent_runs_of_times_are_refused() -> None:
    batch = sparse(9, 3)
    body = batch.body or b""
    ends = struct.pack("<3i", 4, 8, 12)
    times = struct.pack("<3q", 0, 1, 2)
    for lie in ((4, 8, 11), (4, 8, 13), (4, 4, 12), (8, 4, 12), (0, 8, 12), (-4, 8, 12)):
        assert body.count(ends) == 1
        assert not is_accepted(batch, body=body.replace(ends, struct.pack("<3i", *lie)))
    assert body.count(times) == 1
    assert not is_accepted(batch, body=body.replace(times, struct.pack("<3q", 0, 2, 1)))


def test_the_caches_of_forms_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(forms, "_PLANS_MAX", 16)
    monkeypatch.setattr(forms, "_PLANS", {})
    monkeypatch.setattr(forms, "_SHAPES", {})
    for width in range(1, 60):
        Batch.of(STREAM, [b"x" * width] * 3).validate()
        assert len(forms._PLANS) <= 16
        assert len(forms._SHAPES) <= 16


def test_a_sequenced_batch_has_seqs_from_its_new_position() -> None:
    """Even if the batch had explicit seqs before."""
    small = [Batch.of(STREAM, [b"v"], [b"k"]).sequenced(lo, lo, 1) for lo in (3, 4)]
    (joined,) = coalesce(small, 10)
    assert joined.kind == DATA
    assert joined.seqs().tolist() == [3, 4]
    assert joined.sequenced(100, 7, 1).seqs().tolist() == [100, 101]


def test_a_false_number_of_rows_allocates_no_memory() -> None:
    """Neither for offsets, nor for a cached layout, nor for rows without bytes."""
    batch, many = samples()[0], 1_000_000
    known = dict(forms._PLANS)
    tracemalloc.start()
    try:
        for form in (batch.form, forms.Form(-2, 10).packed, forms.Form(0, 1).packed):
            assert not is_accepted(batch, rows=many, count=many, form=form)
        assert tracemalloc.get_traced_memory()[1] < many
    finally:
        tracemalloc.stop()
    assert known == forms._PLANS
    for form in (forms.Form(0, 0), forms.Form(-2, 0)):
        with pytest.raises(PeerError, match="without any bytes"):
            like(batch, form=form.packed).validate()


def test_a_wrong_null_count_is_refused() -> None:
    """The bitmap is the first buffer after the metadata; it is changed by a row more or less."""
    batch = Batch.of(STREAM, [b"vv"] * 5, [b"k", None, b"kk", None, b"k"])
    body = batch.body or b""
    at = 8 + struct.unpack_from("<I", body, 4)[0]
    assert batch.form
    assert body[at] == 0b10101
    for bits in (0b11101, 0b00101, 0b11111):
        assert not is_accepted(batch, body=body[:at] + bytes([bits]) + body[at + 1 :])


def test_bodies_of_one_form_can_be_joined_and_gathered_from() -> None:
    """Even with single rows and single bytes, where a slice of all bodies has gaps."""
    for width, rows in ((1, 1), (1, 3), (8, 2)):
        batches = [
            Batch.of(b"s" * 16, [b"%d" % i * width] * rows, [b"k" * width] * rows) for i in range(4)
        ]
        bodies, form = [batch.body for batch in batches], batches[0].form
        joined = forms.join_fixed(bodies, 0, form, rows)
        assert joined.values.data.flags.c_contiguous
        assert joined.keys.data.flags.c_contiguous
        expected = [b"%d" % i * width for i in range(4) for _ in range(rows)]
        assert joined.values.to_list() == expected
        assert joined.keys.to_list() == [b"k" * width] * 4 * rows
        taken = forms.take_fixed(bodies, 0, form, rows, np.array([4 * rows - 1, 0]))
        assert taken.values.to_list() == [expected[-1], expected[0]]


@given(st.none() | st.binary(max_size=20), st.binary(max_size=20))
@settings(max_examples=THOROUGH)
def test_a_single_row_has_the_body_of_the_general_encoder(key: bytes | None, value: bytes) -> None:
    expected = forms.encode(Columns(column_of([key]), column_of([value])), 0)
    made = forms.encode_row(key, value)
    if made is None:
        assert (value, key or b"") == (b"", b"")  # such a body is not of fixed widths
    else:
        assert made == expected
        assert forms.read_row(*made) == (key, value)
    batch = Batch.of(STREAM, [value], [key])
    assert (batch.body, batch.form) == expected
    assert batch.single_row() == (None if made is None else (key, value))


@pytest.mark.parametrize(("key", "value"), [(None, 0xFFFD), (0xFFFD, 1), (0xFFFC, 0xFFFC)])
def test_a_single_row_that_is_too_wide_uses_the_general_encoder(
    key: int | None, value: int
) -> None:
    keys = None if key is None else [bytes(key)]
    made = forms.encode_row(None if keys is None else keys[0], bytes(value))
    assert (made is None) == (0xFFFD in (key, value))
    (row,) = Batch.of(STREAM, [bytes(value)], keys).to_rows()
    assert (row.key, row.value) == (None if keys is None else keys[0], bytes(value))


def test_only_a_single_event_without_tag_is_read_as_a_row() -> None:
    assert Batch.of(STREAM, [b"v"], tags=[b"t"]).single_row() is None
    assert Batch.of(STREAM, [b"v", b"w"]).single_row() is None
    assert Batch.void(STREAM, 1, 2, COLLECTED).single_row() is None
    compacted = Batch.of(STREAM, [b"v", b"w"], time_ns=5).sequenced(1, 5, 1)
    compacted = compacted.without(IntervalSet([(1, 2)]), COLLECTED)
    assert compacted.single_row() is None
    assert compacted.slice(2, 3).single_row() == (None, b"w")


def test_a_single_row_of_a_peer_is_checked_before_it_is_read() -> None:
    batch = Batch.of(STREAM, [b"value"], [b"key"])
    lying = Batch(
        DATA, STREAM, 0, bytes(16), 0, 1, 1, 1, 0, 0, 0, bytes(batch.body or b"")[:-8], 0, 0,
        batch.form,
    )  # fmt: skip
    with pytest.raises(PeerError):
        lying.single_row()


def test_wrong_types_in_a_single_event_are_refused() -> None:
    for values, keys in (([None], None), (["text"], None), ([b"v"], ["text"]), ([b"v"], [3])):
        with pytest.raises(UsageError):
            Batch.of(STREAM, values, keys)
    (row,) = Batch.of(STREAM, [bytearray(b"v")], [memoryview(b"k")]).to_rows()
    assert (row.key, row.value) == (b"k", b"v")
