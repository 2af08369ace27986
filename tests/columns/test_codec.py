"""The template codec against pyarrow: it writes the same bytes and accepts the same input."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.columns import arrow, codec, kernels
from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.column import Columns, column_of
from surecast.columns.intervals import IntervalSet
from surecast.errors import PeerError
from tests.columns.streams import STREAM, THOROUGH, items, plain, values


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def offsets_check(request, monkeypatch):
    """Run each test with both implementations of the offsets check."""
    check = kernels.offsets_ok if request.param == "compiled" else codec._offsets_ok
    monkeypatch.setattr(codec, "_check_offsets", check)


@st.composite
def columns(draw: st.DrawFn, rows_max: int = 40) -> tuple[Columns, dict[str, list]]:
    rows = draw(st.integers(1, rows_max))
    column = st.lists(items, min_size=rows, max_size=rows)
    plain: dict[str, list] = {
        "key": draw(column),
        "value": draw(st.lists(values, min_size=rows, max_size=rows)),
    }
    if draw(st.booleans()):
        plain["tag"] = draw(column)
    seqs = times = None
    if draw(st.booleans()):
        numbers = st.lists(st.integers(0, 2**62), min_size=rows, max_size=rows)
        plain["seq"], plain["time"] = draw(numbers), draw(numbers)
        seqs, times = np.array(plain["seq"], np.int64), np.array(plain["time"], np.int64)
    tags = column_of(plain["tag"]) if "tag" in plain else None
    made = Columns(column_of(plain["key"]), column_of(plain["value"]), tags, seqs, times)
    return made, plain


def plain_of(found: Columns) -> dict[str, list]:
    plain: dict[str, list] = {"key": found.keys.to_list(), "value": found.values.to_list()}
    if found.tags is not None:
        plain["tag"] = found.tags.to_list()
    if found.seqs is not None:
        assert found.times is not None
        plain["seq"], plain["time"] = found.seqs.tolist(), found.times.tolist()
    return plain


def shape_of(plain: dict[str, list]) -> tuple[int, int, bool]:
    return int("tag" in plain), len(plain["value"]), "seq" in plain


@pytest.mark.slow
@given(columns())
def test_encode_writes_what_pyarrow_writes(given_columns) -> None:
    made, plain = given_columns
    schema_id, _, explicit = shape_of(plain)
    schema = arrow.schema_of(schema_id, explicit)
    expected = pa.RecordBatch.from_pydict(plain, schema=schema).serialize().to_pybytes()
    assert codec.encode(made) == expected


@pytest.mark.slow
@given(columns(), st.data())
def test_encoding_a_slice_of_columns_equals_encoding_its_rows(given_columns, data) -> None:
    made, plain = given_columns
    rows = len(plain["value"])
    first = data.draw(st.integers(0, rows - 1))
    last = data.draw(st.integers(first + 1, rows))
    body = codec.encode(made.part(first, last))
    assert body == codec.encode(made.take(np.arange(first, last)))
    schema_id, _, explicit = shape_of(plain)
    found = codec.decode(body, schema_id, last - first, explicit=explicit)
    assert plain_of(found) == {name: column[first:last] for name, column in plain.items()}


@pytest.mark.slow
@given(columns(), st.integers(0, 9), st.booleans())
def test_decode_restores_the_columns_without_pyarrow(given_columns, shift, explicit_known) -> None:
    """From bytes, and from any offset in a larger buffer, aligned or not."""
    made, plain = given_columns
    schema_id, rows, explicit = shape_of(plain)
    body = codec.encode(made)
    part = memoryview(bytearray(shift) + body)[shift:]
    for source in (body, part, part.toreadonly()):
        template = codec._TEMPLATES[schema_id, explicit]
        assert codec._decode_template(template, source, rows) is not None
        found = codec.decode(source, schema_id, rows, explicit=explicit if explicit_known else None)
        assert plain_of(found) == plain
        assert found.values.offsets.flags.aligned


@pytest.mark.slow
@given(columns(), st.sampled_from([16, 64]), st.booleans())
def test_other_layouts_are_read_with_pyarrow(given_columns, alignment, bitmaps) -> None:
    """Wider padding, and bitmaps without nulls: valid Arrow, but not our template."""
    made, plain = given_columns
    schema_id, rows, explicit = shape_of(plain)
    body = relaid(codec.encode(made), schema_id, explicit, rows, alignment, bitmaps)
    template = codec._TEMPLATES[schema_id, explicit]
    if body != codec.encode(made):
        assert codec._decode_template(template, body, rows) is None
    for hint in (explicit, None):
        assert plain_of(codec.decode(body, schema_id, rows, explicit=hint)) == plain
    larger = memoryview(b"x" + body)[1:]
    assert plain_of(codec.decode(larger, schema_id, rows)) == plain


def relaid(
    body: bytes, schema_id: int, explicit: bool, rows: int, alignment: int, bitmaps: bool
) -> bytes:
    """The same message with its buffers at other offsets."""
    template = codec._TEMPLATES[schema_id, explicit]
    count = 3 * template.strings + 2 * (template.columns - template.strings)
    places = struct.unpack_from(f"<{2 * count}q", body, 88)
    nodes = struct.unpack_from(f"<{2 * template.columns}q", body, 88 + 16 * count + 8)
    content = bytearray()
    moved: list[int] = []
    for index, (at, length) in enumerate(zip(places[::2], places[1::2], strict=True)):
        data = body[template.size + at : template.size + at + length]
        if bitmaps and not data and index % 3 == 0 and index < 3 * template.strings:
            data = b"\xff" * ((rows + 7) // 8)
        moved += (len(content), len(data))
        content += data + bytes(-len(data) % alignment)
    return template.pack(len(content), rows, moved, nodes) + bytes(content)


# ---------------------------------------------------------------- verdicts


def arrow_accepts(body: bytes, schema_id: int, explicit: bool) -> bool:
    """pyarrow's own full validation, and our rule that values, seqs and times are never null."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), arrow.schema_of(schema_id, explicit))
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError):
        return False
    required = ["value", "seq", "time"] if explicit else ["value"]
    return all(batch.column(name).null_count == 0 for name in required)


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@given(columns(rows_max=6), st.data())
def test_damaged_buffers_are_accepted_exactly_if_pyarrow_accepts_them(given_columns, data) -> None:
    """The metadata are unchanged, so the template codec decides; pyarrow must agree with it."""
    made, plain = given_columns
    schema_id, rows, explicit = shape_of(plain)
    body = bytearray(codec.encode(made))
    start = codec._TEMPLATES[schema_id, explicit].size
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(start, len(body) - 1))
        body[at] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]))
    try:
        plain_of(codec.decode(bytes(body), schema_id, rows, explicit=explicit))
        accepted = True
    except PeerError:
        accepted = False
    assert accepted == arrow_accepts(bytes(body), schema_id, explicit)


def samples() -> list[tuple[Batch, bytes]]:
    """Batches of every shape, each in our layout and in another."""
    keys = [b"k", None, b"", b"a key over eight bytes", b"\0"] * 5
    made = []
    for tags in (None, [b"tag", None, b"", b"t", b"t"] * 5):
        dense = Batch.of(STREAM, [b"value %d" % n for n in range(25)], keys, tags)
        dense = dense.sequenced(10, 5, 1)
        sparse = dense.without(IntervalSet([(12, 15), (20, 21)]), COLLECTED)
        no_nulls = Batch.of(STREAM, [b"v"] * 3, [b"k"] * 3, [b"t"] * 3 if tags else None)
        for batch in map(plain, (dense, sparse, no_nulls)):
            assert isinstance(batch.body, bytes)
            shape = batch.schema_id, batch.explicit, batch.rows
            made += [(batch, batch.body), (batch, relaid(batch.body, *shape, 64, True))]
    return made


def is_accepted(batch: Batch, body: bytes) -> bool:
    """Whether `body` is accepted; if so, read all of its contents."""
    fields = {name: getattr(batch, name) for name in Batch.__slots__ if not name.startswith("_")}
    damaged = Batch(**(fields | {"body": body}))
    try:
        damaged.validate()
    except PeerError:
        return False
    rows = damaged.to_rows()
    assert len(rows) == batch.rows
    assert damaged.record_batch().to_pylist()
    assert len(damaged.without(IntervalSet([(11, 12)]), COLLECTED).to_rows()) <= batch.rows
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_damaged_bodies_raise_peer_error_or_are_harmless(seed) -> None:
    rng = random.Random(seed)
    bodies = samples()
    assert all(is_accepted(batch, body) for batch, body in bodies)
    accepted = 0
    for _ in range(3000):
        batch, body = rng.choice(bodies)
        damaged = bytearray(body)
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            # Most damage goes to metadata, bitmaps and offsets.
            at = rng.randrange(len(damaged) if rng.random() < 0.3 else min(420, len(damaged)))
            damaged[at] = rng.choice([0, 1, 8, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        accepted += is_accepted(batch, bytes(damaged))
    assert 0 < accepted < 3000


@pytest.mark.parametrize("seed", range(2))
def test_truncated_or_extended_bodies_are_refused(seed) -> None:
    rng = random.Random(seed)
    for batch, body in samples():
        for _ in range(60):
            cut = rng.randrange(len(body))
            assert not is_accepted(batch, body[:cut])
        assert not is_accepted(batch, body + bytes(8))
        assert not is_accepted(batch, body + b"\0")
        assert not is_accepted(batch, rng.randbytes(len(body)))


@pytest.mark.slow
def test_extreme_numbers_in_metadata_are_refused() -> None:
    """Every 8-byte field of the metadata set to sizes that overflow when added or multiplied."""
    for batch, body in samples():
        start = codec._TEMPLATES[batch.schema_id, batch.explicit].size
        for at in range(0, start, 4):
            for number in (-1, -8, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 62) + 8):
                damaged = bytearray(body)
                struct.pack_into("<q", damaged, at, number)
                is_accepted(batch, bytes(damaged))


def test_compressed_bodies_are_refused() -> None:
    schema = arrow.schema_of(0, False)
    batch = pa.RecordBatch.from_pydict({"key": [b"k"] * 9, "value": [b"v" * 999] * 9}, schema)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(batch)
    stream = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(stream)  # the schema
    body = pa.ipc.read_message(stream).serialize().to_pybytes()
    assert len(body) < 999  # it is indeed compressed
    with pytest.raises(PeerError, match="compressed"):
        codec.decode(body, 0, 9)


def test_other_messages_are_refused() -> None:
    body = arrow.schema_of(0, False).serialize().to_pybytes()
    with pytest.raises(PeerError):
        codec.decode(body, 0, 1)
    plain = {"key": [b"k"], "value": pa.array([1], pa.int64())}
    with pytest.raises(PeerError):
        codec.decode(pa.record_batch(plain).serialize().to_pybytes(), 0, 1)


def test_take_gathers_rows_in_any_order() -> None:
    column = column_of([b"a", None, b"", b"dddd", b"ee"])
    assert column.take(np.array([4, 1, 3, 3])).to_list() == [b"ee", None, b"dddd", b"dddd"]
    assert column.take(np.array([], np.int64)).to_list() == []


def test_a_batch_decodes_once() -> None:
    batch = Batch.of(STREAM, [b"v"], [b"k"])
    batch.validate()
    first, second = batch.keys(), batch.sequenced(1, 1, 1).keys()
    assert first is second
    assert [a <= b for a, b in pairwise(first.offsets.tolist())] == [True]
