"""Filtered batches: the rows of the plain-Python twin, and a reason for every void position."""

from fractions import Fraction
from itertools import takewhile
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    FILTERED,
    NONE,
    REASONS,
    SUPERSEDED,
    VOID,
    Batch,
    coalesce,
)
from surecast.columns.intervals import IntervalSet
from surecast.columns.schema import schema_of, schema_text
from surecast.columns.typed import Attributes
from surecast.core.wire import Codec, decode_batch, encode_batch
from surecast.errors import FilterError, PeerError
from surecast.protocols.streams.messages import Events, Publish
from surecast.where.batches import BatchFilter
from surecast.where.text import shown
from surecast.where.tree import And, ColumnTest, Node, Or
from tests.edits import Edit, must_fail
from tests.where.drawn import Case, draw
from tests.where.twin import accepts

STREAM = bytes(range(16))
SECOND = 10**9
CODEC = Codec([Events, Publish])


def typed(case: Case, rng: Random) -> tuple[Batch, list[dict[str, Any]]] | None:
    """A batch of the case's rows, and its events as `twin` takes them. The batch has the columns up
    to the first one that the case's batch lacks."""
    names = list(takewhile(case.batch.__contains__, case.schema.names))
    if not case.rows:
        return None
    keys = [rng.choice([None, b"", b"user:1", b"\xff"]) for _ in range(case.rows)]
    attributes = None
    if names:
        types = schema_of(pa.schema([case.schema.field(name) for name in names])).types
        columns = [case.batch[name] for name in names]
        table = pa.RecordBatch.from_arrays(columns, schema=types.arrow_schema())
        attributes = Attributes(types, case.rows, table=table)
    batch = Batch.of(STREAM, [b"v"] * case.rows, keys, attributes=attributes)
    events = [
        {name: event[name] for name in names} | {"key": key, "time": Fraction(7)}
        for event, key in zip(case.events, keys, strict=True)
    ]
    return batch.sequenced(rng.choice([1, 1000]), 7 * SECOND, 3), events


def with_own_columns(node: Node, rng: Random) -> Node:
    """The filter with a test of key or time in addition."""
    extra = rng.choice([
        ColumnTest("key", "startswith", ("user",)),
        ColumnTest("key", "exists", ()),
        ColumnTest("time", "==", ("1970-01-01T00:00:07Z",)),
    ])  # fmt: skip
    return rng.choice([And, Or])((node, extra)) if rng.random() < 0.5 else node


def reasons_of(batch: Batch) -> dict[int, int]:
    """Position → the reason why it is void."""
    runs = zip(*(column.tolist() for column in batch.void_runs()), strict=True)
    return {seq: reason for lo, hi, reason in runs for seq in range(lo, hi)}


def check(seed: int) -> tuple[int, int]:
    """Filter a random batch. Returns how many events pass, and how many there are."""
    rng, case = Random(seed), draw(seed)
    made = typed(case, rng)
    if made is None:
        return 0, 0
    batch, events = made
    node = with_own_columns(case.node, rng)
    wanted = {batch.lo + row for row, event in enumerate(events) if accepts(node, event)}
    reasons = {}
    if rng.random() < 0.5:
        gone = [seq for seq in range(batch.lo, batch.hi) if rng.random() < rng.choice([0.1, 0.9])]
        why = rng.choice(REASONS)
        batch = batch.without(IntervalSet([(seq, seq + 1) for seq in gone]), why)
        reasons = dict.fromkeys(gone, why)
    rows = {row.seq: row for row in batch.to_rows()}
    schema = schema_text(case.schema)
    found = BatchFilter(shown(node), schema).apply(batch)
    kept = wanted & rows.keys()
    reasons |= dict.fromkeys(rows.keys() - kept, FILTERED)
    for one in (found, over_the_wire(found)):
        assert (one.lo, one.hi) == (batch.lo, batch.hi)
        assert one.to_rows() == [rows[seq] for seq in sorted(kept)], (seed, shown(node))
        assert reasons_of(one) == reasons
        assert one.nbytes == sum(map(len, encode_batch(one)))
        assert one.is_filtered == (FILTERED in reasons.values())
        lo, hi = sorted(rng.sample(range(batch.lo, batch.hi + 1), 2))
        part = one.slice(lo, hi)
        assert part.to_rows() == [rows[seq] for seq in sorted(kept) if lo <= seq < hi]
        assert reasons_of(part) == {seq: why for seq, why in reasons.items() if lo <= seq < hi}
        over_the_wire(part)
    attributes, whole = found.attributes(), batch.attributes()
    if attributes is not None and whole is not None and seed % 10 == 0:
        rows_of = [row for row, seq in enumerate(rows) if seq in kept]
        for row, source in enumerate(rows_of):
            assert attributes.row_bytes(row) == whole.row_bytes(source)
    several = [np.array([rng.random() < share for _ in range(found.rows)], np.bool_)
        for share in (0.5, 1.1, 0.0, 0.5)]  # fmt: skip
    for passes, one in zip(several, found.passing_each(several), strict=True):
        assert one.to_rows() == [row for row, ok in zip(found.to_rows(), passes, strict=True) if ok]
        assert reasons_of(one) == reasons_of(found.passing(passes))
        over_the_wire(one)
    second = found.passing(np.array([rng.random() < 0.5 for _ in range(found.rows)], np.bool_))
    left = {row.seq for row in second.to_rows()}
    assert left <= kept
    assert reasons_of(second) == reasons | dict.fromkeys(kept - left, FILTERED)
    return len(kept), len(rows)


def over_the_wire(batch: Batch) -> Batch:
    buffers = CODEC.encode(Events(STREAM, (batch,), batch.hi))
    message, _ = CODEC.decode(b"".join(buffers))
    (found,) = message.batches
    found.validate()
    again = b"".join(CODEC.encode(message))
    assert again == b"".join(buffers)
    return found


@pytest.mark.parametrize("first", range(0, 320, 160))
def test_filtered_batches_have_the_events_of_the_twin_and_a_reason_for_every_position(
    first: int,
) -> None:
    results = [check(seed) for seed in range(first, first + 160)]
    passed, total = (sum(column) for column in zip(*results, strict=True))
    assert 0.2 < passed / total < 0.8


def many() -> None:
    for seed in range(70):
        check(seed)


BATCH = "surecast.columns.batch:Batch."
MUTANTS: dict[str, Edit] = {
    "a slice forgets what was filtered": Edit(
        BATCH + "slice", "self.filtered is not None", "self.filtered is None and False"
    ),
    "a filter forgets what an earlier one has dropped": Edit(
        BATCH + "_with_rows", "IntervalSet() if self.filtered is None else self.filtered.copy()",
        "IntervalSet()",
    ),
    "two readers get the rows of the first one": Edit(
        BATCH + "passing_each", "at += rows.size", "pass"
    ),
    "all void positions are taken for filtered ones": Edit(
        BATCH + "_with_rows", "self.reason not in (NONE, FILTERED)", "False"
    ),
    "the last column of a batch is taken for one that was added later": Edit(
        "surecast.where.batches:BatchFilter.rows", "index < width", "index < width - 1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_an_error_in_filtered_batches_is_noticed(name: str) -> None:
    must_fail(many, MUTANTS[name])


def numbers(count: int, lo: int = 1) -> Batch:
    keys = [b"%d" % n for n in range(count)]
    return Batch.of(STREAM, [b""] * count, keys).sequenced(lo, 5, 1)


def test_a_batch_in_which_all_events_pass_is_the_same_object() -> None:
    batch = numbers(9)
    assert BatchFilter("exists key", "").apply(batch) is batch


def test_a_batch_in_which_no_event_passes_is_one_void_range() -> None:
    found = BatchFilter("not exists key", "").apply(numbers(9, 20))
    assert (found.kind, found.lo, found.hi, found.reason) == (VOID, 20, 29, FILTERED)
    assert found.time_ns == 5


def test_control_events_and_void_ranges_pass_every_filter() -> None:
    rule = Batch.of(STREAM, [b"rule"], kind=COLLECT).sequenced(4, 5, 1)
    void = Batch.void(STREAM, 5, 9, SUPERSEDED)
    nothing = BatchFilter("not exists key", "")
    assert [nothing.apply(batch) for batch in (rule, void)] == [rule, void]


def test_a_filter_is_refused_with_column_and_position_before_any_event_is_read() -> None:
    for where, schema, complaint in (
        ("sym == 'x'", "", "no column 'sym'"),
        ("qty > 1 and sim == 'x'", "sym string, qty int64", "no column 'sim'.*mean 'sym'"),
        ("qty == 'x'", "qty int64", "qty is a whole number"),
        ("qty >", "qty int64", "end of the filter"),
    ):
        with pytest.raises(FilterError, match=complaint) as caught:
            BatchFilter(where, schema)
        assert caught.value.at >= 0


def test_only_messages_for_readers_may_contain_filtered_batches() -> None:
    filtered = BatchFilter("key == '3'", "").apply(numbers(9))
    partly = numbers(9).without(IntervalSet([(2, 3)]), COLLECTED)
    partly = BatchFilter("key == '3'", "").apply(partly)
    assert (filtered.reason, partly.reason) == (FILTERED, COLLECTED)
    for batch in (filtered, partly, BatchFilter("key == 'x'", "").apply(numbers(9))):
        over_the_wire(batch)
        with pytest.raises(PeerError, match="filtered for a reader"):
            CODEC.decode(b"".join(CODEC.encode(Publish(STREAM, batch))))
        with pytest.raises(PeerError, match="filtered for a reader"):
            decode_batch(b"".join(encode_batch(batch)))


def test_positions_that_were_filtered_are_checked() -> None:
    batch = numbers(9).without(IntervalSet([(2, 4)]), COLLECTED)
    batch = BatchFilter("key == '5'", "").apply(batch)
    assert batch.filtered is not None
    for wrong in ([(2, 4)], [(0, 1)], [(9, 11)], [(6, 7)], [(1, 6), (7, 10)], []):
        made = batch.with_reason(SUPERSEDED)  # a copy
        made.filtered = IntervalSet(wrong)
        valid = (
            made.holes().difference(made.filtered).total()
            == made.count - made.rows - (made.filtered.total())
            and 0 < made.filtered.total() < made.count - made.rows
        )
        frame = b"".join(CODEC.encode(Events(STREAM, (made,), 10)))
        if valid:
            CODEC.decode(frame)
            continue
        with pytest.raises(PeerError):
            CODEC.decode(frame)
    # Every changed byte of the positions is refused, or gives a batch that is valid.
    header, runs, body = (bytes(part) for part in encode_batch(batch))
    assert header[6] & 2
    assert runs[0] == len(batch.filtered.to_bytes())
    assert body


def test_ranges_with_different_reasons_are_not_joined() -> None:
    filtered = BatchFilter("key == 'x'", "")
    first, second = filtered.apply(numbers(9, 1)), filtered.apply(numbers(9, 10))
    mixed = filtered.apply(numbers(9, 19).without(IntervalSet([(20, 21)]), COLLECTED))
    whole = numbers(3, 28)
    made = coalesce([first, second, mixed, whole], 4096)
    assert [(batch.lo, batch.hi, batch.reason) for batch in made] == [
        (1, 19, FILTERED), (19, 28, COLLECTED), (28, 31, NONE),
    ]  # fmt: skip
    assert made[1].filtered == IntervalSet([(19, 20), (21, 28)])
