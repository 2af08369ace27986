"""Batch: events survive a round trip; derived batches keep rows and cover all positions."""

from __future__ import annotations

import subprocess
import sys
import zlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    DATA,
    EXPIRED,
    HEADER_SIZE,
    NO_PUBLISHER,
    NONE,
    REASONS,
    SUPERSEDED,
    VOID,
    Batch,
    Row,
    coalesce,
    filtered_bytes,
)
from surecast.columns.intervals import IntervalSet
from surecast.errors import PeerError, UsageError
from tests.columns.streams import (
    PUBLISHER,
    STREAM,
    contiguous,
    items,
    like,
    plain,
    rows_of,
    values,
    voids_of,
)


def check_header(batch: Batch) -> None:
    """Check what holds for every batch that may be sent to a peer."""
    batch.validate()
    fields = [getattr(batch, name) for name in Batch.__slots__ if not name.startswith("_")]
    again = Batch(**{
        name: getattr(batch, name) for name in Batch.__slots__ if not name.startswith("_")
    })  # fmt: skip
    again.validate()  # from the bytes alone, as the peer does
    assert len(fields) == 16
    assert again.to_rows() == batch.to_rows()
    assert batch.body is not None
    assert batch.body_crc == zlib.crc32(batch.body)
    runs = b"" if batch.filtered is None else filtered_bytes(batch.filtered)
    assert batch.nbytes == HEADER_SIZE + len(runs) + len(batch.body)
    assert (batch.kind == VOID) == (batch.rows == 0)
    assert (batch.reason == NONE) == (batch.rows == batch.count)


# ---------------------------------------------------------------- builders


@pytest.mark.slow
@given(st.data(), st.integers(1, 40), st.booleans())
def test_of_keeps_every_event(data, rows, tagged) -> None:
    column = st.lists(items, min_size=rows, max_size=rows)
    given_values = data.draw(st.lists(values, min_size=rows, max_size=rows))
    keys, tags = data.draw(column), data.draw(column) if tagged else None
    batch = Batch.of(STREAM, given_values, keys, tags, publisher=PUBLISHER, pub_no=5)
    check_header(batch)
    assert (batch.lo, batch.count, batch.rows, batch.schema_id) == (0, rows, rows, int(tagged))
    sequenced = batch.sequenced(77, 1234, 9)
    check_header(sequenced)
    assert sequenced.body is batch.body
    expected = zip(keys, given_values, tags or [None] * rows, strict=True)
    assert sequenced.to_rows() == [Row(77 + n, 1234, *event) for n, event in enumerate(expected)]
    assert sequenced.seqs().tolist() == list(range(77, 77 + rows))
    assert sequenced.times().tolist() == [1234] * rows
    assert sequenced.keys().to_list() == keys
    assert (sequenced.tags() is None) == (not tagged)


@given(st.data(), st.integers(1, 20), st.booleans(), st.booleans())
def test_from_arrow_equals_of(data, rows, tagged, keyed) -> None:
    column = st.lists(items, min_size=rows, max_size=rows)
    columns = {"value": data.draw(st.lists(values, min_size=rows, max_size=rows))}
    columns |= {"key": data.draw(column)} if keyed else {}
    columns |= {"tag": data.draw(column)} if tagged else {}
    kind = data.draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    arrays = {name: pa.array(column, kind) for name, column in columns.items()}
    table = pa.table(arrays)
    twice = pa.concat_tables([table.slice(0, 1), table.slice(1)])  # two chunks, one with an offset
    expected = Batch.of(STREAM, columns["value"], columns.get("key"), columns.get("tag"))
    for made in (
        Batch.from_arrow(STREAM, table),
        Batch.from_arrow(STREAM, twice),
        Batch.from_arrow(STREAM, pa.record_batch(arrays)),
    ):
        check_header(made)
        assert made.body == expected.body
        assert made.to_rows() == expected.to_rows()


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"key": [b"k"]}, "columns must be"),
        ({"value": [b"v"], "weight": [1]}, "columns must be"),
        ({"value": [1]}, "must hold bytes, not int64"),
        ({"value": [None]}, "has nulls"),
        ({"value": pa.array([], pa.binary())}, "at least one"),
    ],
)
def test_from_arrow_refuses_invalid_tables_with_the_reason(columns, complaint) -> None:
    with pytest.raises(UsageError, match=complaint):
        Batch.from_arrow(STREAM, pa.table(columns))


def test_from_arrow_takes_text_as_its_bytes() -> None:
    table = pa.table({"value": ["é", "x"], "key": pa.array(["a", "b"]).dictionary_encode()})
    rows = Batch.from_arrow(STREAM, table).to_rows()
    assert [(row.key, row.value) for row in rows] == [(b"a", "é".encode()), (b"b", b"x")]


def test_of_refuses_invalid_arguments_with_the_reason() -> None:
    for arguments, complaint in (
        (([],), "at least one"),
        (([b"a"], [b"k", b"k"]), "2 keys for 1 values"),
        (([b"a"], None, []), "0 tags for 1 values"),
        (([None],), "None"),
        ((["text"],), "bytes"),
        (([b"a"], [7]), "bytes"),
    ):
        with pytest.raises(UsageError, match=complaint):
            Batch.of(STREAM, *arguments)


def test_a_batch_needs_neither_numba_nor_pyarrow() -> None:
    script = (
        "import sys\n"
        "from surecast.columns.batch import Batch, coalesce\n"
        "from surecast.columns.intervals import IntervalSet\n"
        "batch = Batch.of(bytes(16), [b'a', b'b', b'c'], [b'k', None, b'']).sequenced(1, 2, 3)\n"
        "batch.validate()\n"
        "part = batch.without(IntervalSet([(2, 3)]), 1)\n"
        "part.validate()\n"
        "assert [row.seq for row in coalesce([part.slice(1, 3), part.slice(3, 4)], 9)[0].to_rows()]"
        " == [1, 3]\n"
        "Batch.synthetic(bytes(16), 1000, 9000).sequenced(1, 2, 3).slice(10, 20)\n"
        "assert not {'numba', 'pyarrow'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# ---------------------------------------------------------------- derived batches

holes = st.sets(st.integers(1, 260), max_size=60)


def runs(positions: set[int]) -> IntervalSet:
    return IntervalSet((position, position + 1) for position in positions)


@pytest.mark.slow
@given(contiguous(), holes, st.sampled_from(REASONS))
def test_without_drops_exactly_those_rows(batches, positions, reason) -> None:
    for batch in batches:
        left = batch.without(runs(positions), reason)
        check_header(left)
        assert (left.lo, left.hi, left.epoch) == (batch.lo, batch.hi, batch.epoch)
        assert left.to_rows() == [row for row in batch.to_rows() if row.seq not in positions]
        hit = positions & set(range(batch.lo, batch.hi))
        assert voids_of([left]) == dict.fromkeys(hit, reason)
        assert (left is batch) == (not hit)


@pytest.mark.slow
@given(contiguous(), holes, holes)
def test_without_applied_twice_equals_without_the_union(batches, first, second) -> None:
    for batch in batches:
        left = batch.without(runs(first), COLLECTED).without(runs(second), COLLECTED)
        both = batch.without(runs(first | second), COLLECTED)
        assert left.to_rows() == both.to_rows()
        assert voids_of([left]) == voids_of([both])
        check_header(left)


@pytest.mark.slow
@given(contiguous(batches_max=3), holes, st.data())
def test_slice_keeps_rows_and_positions(batches, positions, data) -> None:
    for whole in batches:
        batch = whole.without(runs(positions), COLLECTED)
        cut = data.draw(st.integers(batch.lo, batch.hi))
        parts = []
        if cut > batch.lo:
            parts.append(batch.slice(0, cut))
        if cut < batch.hi:
            parts.append(batch.slice(cut, batch.hi + 50))
        assert rows_of(parts) == batch.to_rows()
        assert voids_of(parts) == voids_of([batch])
        assert [part.lo for part in parts] + [parts[-1].hi] == sorted({batch.lo, cut, batch.hi})
        for part in parts:
            check_header(part)
            if part.publisher != NO_PUBLISHER:
                assert part.pub_no - part.lo == batch.pub_no - batch.lo
        assert batch.slice(batch.lo, batch.hi) is batch


@pytest.mark.slow
@given(contiguous(), holes, st.integers(1, 80), st.integers(0, 20), st.data())
def test_coalesce_keeps_rows_and_positions(batches, positions, rows_max, small, data) -> None:
    reasons = [data.draw(st.sampled_from(REASONS)) for _ in batches]
    given_batches = [
        batch.without(runs(positions), reason)
        for batch, reason in zip(batches, reasons, strict=True)
    ]
    joined = coalesce(given_batches, rows_max, small_rows=small)
    assert rows_of(joined) == rows_of(given_batches)
    assert voids_of(joined) == voids_of(given_batches)
    assert all(left.hi == right.lo for left, right in pairwise(joined))
    kept = {id(batch) for batch in given_batches}
    for batch in joined:
        check_header(batch)
        assert id(batch) in kept or batch.rows <= rows_max
    for batch in given_batches:
        if batch.rows == batch.count > small:
            assert any(batch is part for part in joined)
    again = coalesce(joined, rows_max, small_rows=small)
    assert rows_of(again) == rows_of(joined)
    for batch in joined:  # slices of a joined batch are exact, too
        middle = (batch.lo + batch.hi) // 2
        if batch.count > 1:
            halves = [batch.slice(batch.lo, middle), batch.slice(middle, batch.hi)]
            assert rows_of(halves) == batch.to_rows()
            assert voids_of(halves) == voids_of([batch])
            for half in halves:
                check_header(half)


def test_coalesce_joins_compatible_batches_only() -> None:
    def data(lo: int, rows: int, time_ns: int = 1) -> Batch:
        return Batch.of(STREAM, [b"v"] * rows, [b"k"] * rows).sequenced(lo, time_ns, 1)

    def void(lo: int, hi: int, reason: int = COLLECTED) -> Batch:
        return Batch.void(STREAM, lo, hi, reason)

    def shape(batches: list[Batch]) -> list[tuple[int, int, int]]:
        return [(batch.lo, batch.hi, batch.rows) for batch in coalesce(batches, 100)]

    assert shape([void(1, 5), void(5, 9)]) == [(1, 9, 0)]
    for other in (EXPIRED, SUPERSEDED):
        assert shape([void(1, 5), void(5, 9, other)]) == [(1, 5, 0), (5, 9, 0)]
    assert shape([data(1, 3), void(4, 9), data(9, 2, 7)]) == [(1, 11, 5)]
    assert shape([data(1, 3, 1), data(4, 3, 2)]) == [(1, 7, 6)]
    assert shape([void(1, 5), data(5, 60), void(65, 70)]) == [(1, 5, 0), (5, 65, 60), (65, 70, 0)]
    rule = Batch.of(STREAM, [b"rule"], kind=COLLECT).sequenced(4, 1, 1)
    assert shape([data(1, 3), rule, data(5, 2)]) == [(1, 4, 3), (4, 5, 1), (5, 7, 2)]
    tagged = Batch.of(STREAM, [b"v"], tags=[b"t"]).sequenced(4, 1, 1)
    assert shape([data(1, 3), tagged]) == [(1, 4, 3), (4, 5, 1)]
    with pytest.raises(ValueError, match="does not follow"):
        coalesce([void(1, 5), void(6, 9)], 100)


def test_a_full_batch_may_have_its_own_times() -> None:
    """Joined small batches without holes keep each row's time, through slices too."""
    first = Batch.of(STREAM, [b"a", b"b"]).sequenced(1, 10, 1)
    second = Batch.of(STREAM, [b"c", b"d"]).sequenced(3, 20, 1)
    (joined,) = coalesce([first, second], 100)
    assert joined.rows == joined.count == 4
    assert joined.explicit
    assert joined.times().tolist() == [10, 10, 20, 20]
    assert joined.slice(2, 4).times().tolist() == [10, 20]
    tail = joined.slice(3, 5)
    assert (tail.explicit, tail.time_ns) == (False, 20)
    assert joined.without(runs({2}), EXPIRED).times().tolist() == [10, 20, 20]


def test_two_reasons_do_not_share_a_batch() -> None:
    batch = Batch.of(STREAM, [b"v"] * 4).sequenced(1, 1, 1).without(runs({2}), COLLECTED)
    with pytest.raises(ValueError, match="cannot also be void"):
        batch.without(runs({3}), EXPIRED)
    assert batch.without(runs({2}), EXPIRED) is batch


def test_a_config_event_is_never_void() -> None:
    config = Batch.of(STREAM, [b"rule"], kind=CONFIG).sequenced(1, 1, 1)
    with pytest.raises(ValueError, match="never void"):
        config.without(runs({1}), COLLECTED)


def test_a_slice_that_misses_the_batch_is_an_error() -> None:
    batch = Batch.void(STREAM, 10, 20, COLLECTED)
    for lo, hi in ((1, 10), (20, 30), (15, 15)):
        with pytest.raises(ValueError):
            batch.slice(lo, hi)


# ---------------------------------------------------------------- synthetic batches


@given(st.integers(1, 300), st.integers(0, 100_000), holes, st.data())
def test_synthetic_batches_count_like_real_ones(count, body_size, positions, data) -> None:
    real = Batch.of(STREAM, [b"v"] * count).sequenced(1, 5, 1)
    counted = Batch.synthetic(STREAM, count, HEADER_SIZE + body_size).sequenced(1, 5, 1)
    lo = data.draw(st.integers(1, count))
    hi = data.draw(st.integers(lo + 1, count + 1))
    for change in (
        lambda batch: batch.without(runs(positions), COLLECTED),
        lambda batch: batch.slice(lo, hi),
        lambda batch: batch.without(runs(positions), COLLECTED).slice(lo, hi),
        lambda batch: coalesce(
            [batch.slice(1, hi).without(runs(positions), COLLECTED)]
            + ([batch.slice(hi, count + 1)] if hi <= count else []),
            1000,
        )[0],
    ):
        left, expected = change(counted), change(real)
        for name in ("kind", "lo", "count", "rows", "reason", "time_ns", "epoch"):
            assert getattr(left, name) == getattr(expected, name), name
        assert left.seqs().tolist() == expected.seqs().tolist()
        assert left.times().tolist() == expected.times().tolist()
        assert HEADER_SIZE <= left.nbytes <= counted.nbytes
        left.validate()


def test_synthetic_batches_have_no_events_to_read() -> None:
    batch = Batch.synthetic(STREAM, 10, 1000)
    assert batch.is_synthetic
    for read in (batch.keys, batch.values, batch.tags, batch.to_rows, batch.record_batch):
        with pytest.raises(UsageError):
            read()


# ---------------------------------------------------------------- inconsistent headers


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("dense", {"rows": 4}),
        ("dense", {"rows": 6}),
        ("dense", {"count": 4}),
        ("dense", {"count": 6, "reason": COLLECTED}),
        ("dense", {"rows": 0}),
        ("dense", {"reason": COLLECTED}),
        ("dense", {"kind": 9}),
        ("dense", {"kind": COLLECT}),
        ("dense", {"schema_id": 1}),
        ("dense", {"schema_id": 7}),
        ("dense", {"lo": -1}),
        ("dense", {"body": b""}),
        ("dense", {"body": memoryview(b"")}),
        ("dense", {"form": 0}),
        ("dense", {"form": 1 << 48}),
        ("plain sparse", {"lo": 2}),
        ("sparse", {"lo": 0}),
        ("sparse", {"form": 0}),
        ("sparse", {"count": 3}),
        ("sparse", {"reason": NONE}),
        ("sparse", {"reason": 5}),
        ("joined", {"lo": 0}),
        ("plain joined", {"lo": 3}),
        ("void", {"rows": 1}),
        ("void", {"count": 0}),
        ("void", {"lo": 0}),
        ("void", {"reason": NONE}),
        ("void", {"kind": DATA}),
        ("void", {"body": b"x"}),
        ("collect", {"count": 2, "reason": COLLECTED}),
    ],
)
def test_a_header_that_does_not_fit_its_body_is_refused(kind, changes) -> None:
    dense = Batch.of(STREAM, [b"v"] * 5, [b"k"] * 5).sequenced(1, 1, 1)
    small = [Batch.of(STREAM, [b"v"]).sequenced(lo, lo, 1) for lo in (1, 2)]
    batch = {
        "dense": dense,
        "sparse": dense.without(runs({2, 5}), COLLECTED),
        "joined": coalesce(small, 10)[0],
        "void": Batch.void(STREAM, 1, 4, EXPIRED),
        "collect": Batch.of(STREAM, [b"rule"], kind=COLLECT).sequenced(1, 1, 1),
    }[kind.removeprefix("plain ")]
    batch = plain(batch) if kind.startswith("plain ") else batch
    batch.validate()
    with pytest.raises(PeerError):
        like(batch, **changes).validate()


def test_a_rule_with_a_key_is_refused() -> None:
    with pytest.raises(PeerError, match="only DATA"):
        Batch.of(STREAM, [b"rule"], [b"key"], kind=COLLECT).validate()


@pytest.mark.parametrize("column", ["seq", "time"])
def test_explicit_columns_in_the_wrong_order_are_refused(column) -> None:
    dense = Batch.of(STREAM, [b"v"] * 5, [b"k"] * 5).sequenced(1, 1, 1)
    batch = plain(dense.without(runs({2, 4}), COLLECTED))
    columns = batch.record_batch().to_pydict()
    columns[column] = [3, 1, 5] if column == "seq" else [2, 1, 1]
    body = pa.RecordBatch.from_pydict(columns, schema=batch.record_batch().schema).serialize()
    with pytest.raises(PeerError, match=r"order|decrease"):
        like(batch, body=body.to_pybytes()).validate()


def test_a_void_batch_has_no_rows() -> None:
    void = Batch.void(STREAM, 3, 9, COLLECTED)
    assert void.to_rows() == []
    assert void.seqs().size == void.times().size == 0
    assert np.issubdtype(void.seqs().dtype, np.int64)
    with pytest.raises(UsageError):
        void.record_batch()
    for lo, hi, reason in ((0, 4, COLLECTED), (4, 4, COLLECTED), (1, 4, NONE), (1, 4, 5)):
        with pytest.raises(ValueError):
            Batch.void(STREAM, lo, hi, reason)
