"""Batches as Spark's columns, compared with events converted in plain Python."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from surecast.client.events import events_of
from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    REASONS,
    Batch,
    coalesce,
)
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import encode_collect, encode_policy
from surecast.columns.rules import BeforeSeq, Collect, KeepAll
from surecast.core.endpoint import Lost
from surecast.pipeline.rows import SCHEMA, record_batches

STREAM = bytes(range(16))
SHAPES = ("fixed", "fixed", "fixed and tagged", "mixed", "tagged", "sparse", "void", "rule")


def draw(rng: random.Random, positions: int) -> list[Batch]:
    """Consecutive batches of all shapes."""
    batches: list[Batch] = []
    lo, time_ns = 1, 1_700_000_000_000_000_000
    while lo <= positions:
        time_ns += rng.randrange(1, 10**9)
        shape = rng.choice(SHAPES)
        rows = rng.choice((1, 3, 7, 7, 7, 50, 1500))
        if shape == "void":
            reason = rng.choice(REASONS)
            stamp = rng.choice((0, time_ns))
            batches.append(Batch.void(STREAM, lo, lo + rows, reason, time_ns=stamp))
            lo += rows
            continue
        if shape == "rule":
            kind = rng.choice((COLLECT, CONFIG))
            rule = encode_policy(KeepAll()) if kind == CONFIG else _collect()
            batches.append(Batch.of(STREAM, [rule], kind=kind).sequenced(lo, time_ns, 1))
            lo += 1
            continue
        batch = _data(rng, shape, rows).sequenced(lo, time_ns, 1)
        if shape == "sparse" and rows > 1:
            gone = [n for n in range(lo, lo + rows) if rng.random() < 0.5] or [lo]
            batch = batch.without(IntervalSet([(n, n + 1) for n in gone]), COLLECTED)
        batches.append(batch)
        lo += rows
    return batches


def _collect() -> bytes:
    return encode_collect(Collect(BeforeSeq(1)))


def _data(rng: random.Random, shape: str, rows: int) -> Batch:
    if shape.startswith("fixed"):
        return Batch.of(
            STREAM,
            [rng.randbytes(10) for _ in range(rows)],
            [rng.randbytes(8) for _ in range(rows)],
            [rng.choice((b"red", b"")) for _ in range(rows)] if "tagged" in shape else None,
        )
    values = [rng.randbytes(rng.randrange(12)) for _ in range(rows)]
    keys = [rng.choice((None, b"", rng.randbytes(5))) for _ in range(rows)]
    tags = None
    if shape == "tagged":
        tags = [rng.choice((None, b"red", b"")) for _ in range(rows)]
    return Batch.of(STREAM, values, keys, tags)


def expected(batches: list[Batch], voids: bool) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        for event in events_of(batch, "orders", voids):
            void = event.kind == "void"
            rows.append(
                {
                    "stream": "orders",
                    "seq": event.seq,
                    "kind": event.kind,
                    "range": event.count,
                    "key": event.key,
                    "value": None if void else event.value,
                    "attributes": [("tag", event.tag)] if event.tag is not None else None,
                    "timestamp": event.time if event.time_ns else None,
                }
            )
    return rows


@pytest.mark.parametrize("voids", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_every_event_and_every_range_becomes_a_row(seed: int, voids: bool) -> None:
    batches = draw(random.Random(seed), 10_000)
    made = list(record_batches(batches, "orders", voids, rows=1_000))
    for part in made:
        part.validate(full=True)
        assert part.schema == SCHEMA
    rows = [row for part in made for row in part.to_pylist()]
    wanted = expected(batches, voids)
    assert [row["seq"] for row in rows] == [row["seq"] for row in wanted], f"seed {seed}"
    assert rows == wanted, f"seed {seed}"


def test_tagged_batches_keep_their_order() -> None:
    """A tagged batch has the same form as its neighbours, but must not be joined with them."""
    batches = [
        Batch.of(STREAM, [b"1"], [b"a"]).sequenced(1, 5, 1),
        Batch.of(STREAM, [b"2"], [b"b"], [b"red"]).sequenced(2, 5, 1),
        Batch.of(STREAM, [b"3"], [b"c"]).sequenced(3, 5, 1),
    ]
    assert batches[0].form == batches[1].form
    (made,) = record_batches(batches, "orders", False)
    assert made.to_pylist() == expected(batches, False)


@pytest.mark.parametrize("names", [("seq",), ("key", "value"), ("kind", "attributes", "timestamp")])
def test_selected_columns_equal_those_of_the_whole_table(names: tuple[str, ...]) -> None:
    batches = draw(random.Random(5), 2_000)
    for voids in (False, True):
        whole = pa.Table.from_batches(record_batches(batches, "s", voids))
        some = pa.Table.from_batches(record_batches(batches, "s", voids, names))
        assert some == whole.select(names)


def test_a_void_range_has_the_time_of_its_batch() -> None:
    """In joined batches each event has its own time."""
    joined = coalesce(
        [
            Batch.of(STREAM, [b"a", b"b", b"c"]).sequenced(1, 1_000, 1),
            Batch.of(STREAM, [b"d", b"e", b"f"]).sequenced(4, 5_000, 1),
            Batch.of(STREAM, [b"g", b"h"]).sequenced(7, 9_000, 1),
        ],
        100,
    )
    (sparse,) = [b.without(IntervalSet([(1, 2), (3, 5), (7, 9)]), COLLECTED) for b in joined]
    (made,) = record_batches([sparse], "s", True)
    rows = [
        (row["seq"], row["range"], row["kind"], row["timestamp"].microsecond)
        for row in made.to_pylist()
    ]
    assert rows == [
        (1, 1, "void", 1),
        (2, 1, "event", 1),
        (4, 2, "void", 5),
        (5, 1, "event", 5),
        (6, 1, "event", 5),
        (8, 2, "void", 9),
    ]


def test_positions_are_covered_exactly_once_with_voids() -> None:
    batches = draw(random.Random(99), 5_000)
    rows = [r for part in record_batches(batches, "s", True, rows=500) for r in part.to_pylist()]
    at = 1
    for row in rows:
        assert row["seq"] - row["range"] + 1 == at
        at = row["seq"] + 1
    assert at == batches[-1].hi


@pytest.mark.parametrize("each", [1, 100, 4096, 50_000])
def test_record_batches_have_a_suitable_size_for_spark(each: int) -> None:
    batches = [
        Batch.of(STREAM, [b"0123456789"] * each, [b"12345678"] * each).sequenced(lo, 5, 1)
        for lo in range(1, 100_001 if each > 1 else 25_001, each)
    ]
    sizes = [part.num_rows for part in record_batches(batches, "s", False)]
    assert sum(sizes) == batches[-1].hi - 1
    assert all(10_000 <= size <= 40_000 for size in sizes[:-1])


def test_large_values_end_a_record_batch_early() -> None:
    batches = [Batch.of(STREAM, [bytes(1 << 20)]).sequenced(n, 5, 1) for n in range(1, 41)]
    sizes = [part.nbytes for part in record_batches(batches, "s", False)]
    assert len(sizes) == 3
    assert max(sizes) < 18 << 20


def test_no_events_give_no_record_batches() -> None:
    void = Batch.void(STREAM, 1, 1000, COLLECTED)
    assert list(record_batches([], "s", True)) == []
    assert list(record_batches([void], "s", False)) == []
    (one,) = record_batches([void], "s", True)
    assert one.column("seq").to_pylist() == [999]
    assert one.column("range").to_pylist() == [999]
    assert isinstance(one, pa.RecordBatch)


@pytest.mark.parametrize("voids", [False, True])
def test_a_lost_range_is_a_separate_row(voids: bool) -> None:
    """Whether voids are included or not."""
    pieces: list[Any] = [
        Lost(STREAM, 1, 3, "why"),
        Batch.of(STREAM, [b"a", b"b"]).sequenced(3, 5_000, 1),
        Batch.void(STREAM, 5, 7, COLLECTED),
        Lost(STREAM, 7, 8, "why"),
        Batch.of(STREAM, [b"c"]).sequenced(8, 6_000, 1),
    ]
    made = list(record_batches(pieces, "s", voids))
    assert all(part.schema == SCHEMA for part in made)
    found = [row for part in made for row in part.to_pylist()]
    void = [(6, "void", 2)] if voids else []
    assert [(row["seq"], row["kind"], row["range"]) for row in found] == [
        (2, "lost", 2),
        (3, "event", 1),
        (4, "event", 1),
        *void,
        (7, "lost", 1),
        (8, "event", 1),
    ]
    for row in found:
        if row["kind"] == "lost":
            assert row["stream"] == "s"
            rest = (row["key"], row["value"], row["attributes"], row["timestamp"])
            assert rest == (None, None, None, None)
    some = list(record_batches(pieces, "s", voids, ("seq", "kind")))
    assert some[0].to_pylist() == [{"seq": 2, "kind": "lost"}]
