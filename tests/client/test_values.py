"""Values of the public API: events, positions, rules; and the conversion of batches to events."""

import pickle
import random
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import surecast
from surecast.client.arrow import (
    SCHEMA,
    SCHEMA_WITH_VOIDS,
    record_batch_of,
    record_batch_with_voids,
)
from surecast.client.events import Event, Seqs, events_of
from surecast.client.rules import ns_of
from surecast.columns.batch import COLLECT, COLLECTED, CONFIG, EXPIRED, REASONS, Batch
from surecast.columns.intervals import IntervalSet
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.prepared import _cuts, prepared_batches
from surecast.errors import EventsLost, TimedOut, UsageError

SID = b"s" * 16


def test_seqs_joins_runs_and_is_a_sequence() -> None:
    seqs = Seqs([(1, 4), (4, 6), (9, 9), (10, 12)])
    assert seqs.runs == ((1, 6), (10, 12))
    assert list(seqs) == [1, 2, 3, 4, 5, 10, 11]
    assert (len(seqs), seqs.first, seqs.last) == (7, 1, 11)
    assert [seqs[i] for i in range(7)] == list(seqs)
    assert seqs[-1] == 11
    assert seqs[4:6] == [5, 10]
    assert 5 in seqs
    assert 6 not in seqs
    assert "5" not in seqs
    assert repr(seqs) == "Seqs([1, 6), [10, 12))"
    assert seqs == Seqs([(1, 6), (10, 12)])
    assert not Seqs([])
    with pytest.raises(IndexError):
        seqs[7]
    with pytest.raises(IndexError):
        seqs[-8]


def test_an_event_has_a_time_and_a_range() -> None:
    event = Event("s", 7, b"k", b"v", 1_700_000_000_123_456_789)
    assert event.time == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    assert event.range == range(7, 8)
    assert event.attributes == {}
    void = Event("s", 9, None, b"", 0, None, "void", 4, "expired")
    assert void.range == range(6, 10)
    with pytest.raises(AttributeError):
        event.seq = 8  # type: ignore[misc]


def plain_events(batch: Batch, voids: bool) -> list[tuple[Any, ...]]:
    """A reference implementation, position by position."""
    rows = {row.seq: row for row in batch.to_rows()}
    found: list[tuple[Any, ...]] = []
    for seq in range(batch.lo, batch.hi):
        if seq in rows:
            row = rows[seq]
            found.append(("event", seq, 1, row.key, row.value, row.tag, row.time_ns))
        elif voids:
            if found and found[-1][0] == "void":
                found[-1] = ("void", seq, found[-1][2] + 1)
            else:
                found.append(("void", seq, 1))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_batches_are_converted_to_events_and_rows(seed: int) -> None:
    rng = random.Random(seed)
    rows = rng.choice([1, 2, 5, 40]) if seed else 9_000
    width = rng.choice([None, 0, 1, 8])

    def data() -> bytes:
        return rng.randbytes(rng.randrange(12) if width is None else width)

    def some(null: float) -> list[bytes | None]:
        return [None if rng.random() < null else data() for _ in range(rows)]

    values: Any = some(0)
    keys = rng.choice([None, some(0), some(0.3), some(1)])
    tags = rng.choice([None, some(0.5)])
    batch = Batch.of(SID, values, keys, tags, time_ns=5).sequenced(100, 77, 1)
    if rng.random() < 0.6:
        gone = IntervalSet()
        for _ in range(3):
            lo = rng.randrange(100, 100 + rows)
            gone.add(lo, lo + rng.randrange(1, 4))
        batch = batch.without(gone, rng.choice(REASONS))
    for voids in (False, True):
        seen = [
            (e.kind, e.seq, e.count, e.key, e.value, e.tag, e.time_ns)
            if e.kind == "event"
            else (e.kind, e.seq, e.count)
            for e in events_of(batch, "s", voids)
        ]
        assert seen == plain_events(batch, voids)
    check_rows_with_voids(batch)
    table = record_batch_of(batch, "s")
    events = events_of(batch, "s", False)
    if table is None:
        assert not events
        return
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert table.column("stream").to_pylist() == ["s"] * len(events)
    assert table.column("seq").to_pylist() == [e.seq for e in events]
    assert table.column("key").to_pylist() == [e.key for e in events]
    assert table.column("value").to_pylist() == [e.value for e in events]
    assert table.column("tag").to_pylist() == [e.tag for e in events]
    assert table.column("timestamp").to_pylist() == [e.time for e in events]


def check_rows_with_voids(batch: Batch) -> None:
    """Check that a batch gives the same rows with voids as it gives events."""
    table = record_batch_with_voids(batch, "s")
    table.validate(full=True)
    assert table.schema == SCHEMA_WITH_VOIDS
    seen = list(zip(*(table.column(name).to_pylist() for name in table.schema.names), strict=True))
    assert seen == [
        ("s", e.seq, e.key, e.value, e.tag, e.time, "event", 1, None)
        if e.kind == "event"
        else ("s", e.seq, None, None, None, e.time if e.time_ns else None, "void", e.count,
              e.reason)
        for e in events_of(batch, "s", True)
    ]  # fmt: skip


def test_batches_without_events_are_converted_to_void_rows() -> None:
    collect = Batch.of(SID, [b"x"], kind=COLLECT).sequenced(7, 77_000, 1)
    config = Batch.of(SID, [b"x"], kind=CONFIG).sequenced(8, 77_000, 1)
    voids = Batch.void(SID, 9, 20, EXPIRED, time_ns=77_000)
    for batch in (collect, config, voids, Batch.void(SID, 9, 20, COLLECTED)):
        check_rows_with_voids(batch)
        assert record_batch_of(batch, "s") is None
    rows = record_batch_with_voids(voids, "s").to_pylist()
    assert [(row["seq"], row["range"], row["reason"]) for row in rows] == [(19, 11, "expired")]


@pytest.mark.parametrize("seed", range(20))
def test_cuts_cover_everything_within_bounds(seed: int) -> None:
    rng = random.Random(seed)
    options = ClientOptions(batch_rows_max=rng.randrange(1, 20), batch_bytes_max=1000)
    sizes = [rng.choice([0, 10, 300, 5000]) for _ in range(rng.randrange(1, 200))]
    if rng.random() < 0.3:
        sizes = [min(size, 10) for size in sizes]
    cuts = list(_cuts(sizes, options))
    assert [i for lo, hi in cuts for i in range(lo, hi)] == list(range(len(sizes)))
    for lo, hi in cuts:
        assert hi - lo <= options.batch_rows_max
        assert sum(sizes[lo:hi]) <= 1000 or hi - lo == 1


def test_no_values_give_no_batches() -> None:
    assert list(prepared_batches(SID, [], None, None, ClientOptions())) == []


class _Bytes(bytes):
    """Not accepted: its `len` and its content need not agree."""


@pytest.mark.parametrize("bad", ["text", _Bytes(b"k")], ids=["str", "subclass of bytes"])
def test_items_that_are_not_bytes_are_named_in_the_error(bad: Any) -> None:
    def prepare(values: list[Any], keys: list[Any] | None = None) -> None:
        list(prepared_batches(SID, values, keys, None, ClientOptions()))

    with pytest.raises(UsageError, match="values are bytes; number 1 is"):
        prepare([b"v", bad])
    with pytest.raises(UsageError, match="keys are bytes or None; number 2 is"):
        prepare([b"v"] * 3, [b"k", None, bad])


def test_the_errors_for_text_and_for_missing_keys_say_what_to_do() -> None:
    for values, keys, words in (
        (["v"], None, "number 0 is 'v'; encode it, for example value.encode()"),
        ([b"v"], ["k"], "number 0 is 'k'; encode it, for example key.encode()"),
        ([b"v"], [7], "number 0 is 7"),
        (
            [b"v"] * 5,
            [b"k"] * 4,
            "4 keys for 5 values: give one for each value, or None for a value without a key",
        ),
    ):
        arguments: Any = (SID, values, keys, None, ClientOptions())
        with pytest.raises(UsageError, match=f"{re.escape(words)}$"):
            prepared_batches(*arguments)


@pytest.mark.parametrize(("reason", "name"), [(1, "collected"), (2, "expired"), (3, "superseded")])
def test_a_void_has_its_reason(reason: int, name: str) -> None:
    (void,) = events_of(Batch.void(SID, 5, 9, reason), "s", True)
    assert (void.kind, void.range, void.reason) == ("void", range(5, 9), name)
    sparse = Batch.of(SID, [b"a", b"b", b"c"]).sequenced(1, 7, 1)
    sparse = sparse.without(IntervalSet([(2, 3)]), reason)
    assert [event.reason for event in events_of(sparse, "s", True)] == ["", name, ""]


@pytest.mark.parametrize(
    ("rule", "argument"),
    [("keep_last", 0), ("keep_last", 1.5), ("keep_last", True), ("keep_for", "1h"),
     ("keep_for", timedelta(0)), ("keep_for", 0), ("keep_for", True),
     ("keep_for", float("nan")), ("keep_for", float("inf")), ("keep_for", 1e300),
     ("before_seq", -1), ("before_seq", "1"), ("key_is", "text"),
     ("key_prefix", None), ("tag_is", 1), ("before_time", 5),
     ("before_time", datetime(2026, 1, 1))],
)  # fmt: skip
def test_rules_refuse_invalid_arguments(rule: str, argument: Any) -> None:
    with pytest.raises(UsageError):
        getattr(surecast, rule)(argument)


def test_keep_for_takes_seconds_or_a_timedelta() -> None:
    assert surecast.keep_for(60) == surecast.keep_for(timedelta(minutes=1))
    assert surecast.keep_for(0.5) == surecast.keep_for(timedelta(milliseconds=500))


def test_times_are_converted_with_their_time_zones() -> None:
    utc = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert ns_of(utc) == ns_of(utc.astimezone(timezone(timedelta(hours=5))))
    assert ns_of(utc) == 1767268800 * 10**9
    assert ns_of(datetime(1970, 1, 1, tzinfo=UTC)) == 0


def test_every_public_name_exists() -> None:
    for name in surecast.__all__:
        assert getattr(surecast, name) is not None
    assert set(surecast.__all__) <= set(dir(surecast))
    with pytest.raises(AttributeError, match="nothing"):
        _ = surecast.nothing  # type: ignore[attr-defined]
    errors = [v for v in vars(surecast.errors).values() if isinstance(v, type)]
    assert len(errors) > 10
    assert all(issubclass(error, surecast.SurecastError) for error in errors)


def test_events_lost_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(EventsLost("s", 3, 9, "too slow")))
    assert (copy.stream, copy.range, copy.why) == ("s", range(3, 9), "too slow")
    assert "'s' at positions 3 to 8 are lost: too slow. Call batches() again" in str(copy)


def test_timed_out_can_be_pickled() -> None:
    problem = TimedOut("waited 1 s for it", maybe_taken=True, acknowledged=((1, 3),))
    copy = pickle.loads(pickle.dumps(problem))
    assert str(copy) == "waited 1 s for it"
    assert (copy.maybe_taken, copy.acknowledged) == (True, ((1, 3),))
    assert isinstance(copy, TimeoutError)  # as users of asyncio expect
