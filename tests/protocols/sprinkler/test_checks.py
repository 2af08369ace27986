"""The judge can fail: it names the guarantee that a falsified record breaks.

The honest record is a small history under latest_per_key, with one reader from the start, a late
one, and a fresh one at the end (the audit). Each test falsifies one thing in it.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from surecast.columns import retention
from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    DATA,
    EXPIRED,
    SUPERSEDED,
    Batch,
)
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import (
    BeforeSeq,
    BeforeTime,
    Collect,
    KeepAll,
    KeepFor,
    KeepLast,
    KeyIs,
    KeyPrefix,
    LatestPerKey,
    Policy,
    TagIs,
)
from surecast.columns.rules import NewSchema, encode_policy
from surecast.core.endpoint import Failed
from surecast.core.types import SECOND
from surecast.endpoint.attributes import writer_of
from surecast.protocols.sprinkler.checks import (
    Event,
    Offered,
    Reading,
    Record,
    Tally,
    check,
    surviving,
)
from tests.helpers import cluster_of, publish, settle

STREAM = bytes(range(16))


def rule(predicate: retention.Predicate, reason: int = COLLECTED) -> bytes:
    return retention.encode_collect(Collect(predicate, reason))


# (publisher, pub_no, kind, key, value) of positions 1, 2, ...: 3 collects 1, and 4 collects 2.
HISTORY: list[tuple[str, int, int, bytes | None, bytes]] = [
    ("ann", 1, DATA, b"a", b"a1"),
    ("bob", 1, DATA, b"b", b"b1"),
    ("ann", 2, DATA, b"a", b"a2"),
    ("bob", 2, COLLECT, None, rule(KeyIs(b"b"))),
    ("ann", 3, DATA, b"c", b"c1"),
]


def honest(policy: Policy | None = None) -> Record:
    record = Record("s", policy or LatestPerKey())
    events = []
    for seq, (publisher, pub_no, kind, key, value) in enumerate(HISTORY, start=1):
        record.offered[value] = Offered(publisher, pub_no, kind, key, value, None)
        record.acked[value] = seq
        events.append(Event(seq, 10 * seq, kind, key, value, None))
    end = len(events) + 1
    record.readings.append(Reading("always", end, 1, list(events)))
    voids = [(1, 2, SUPERSEDED), (2, 3, COLLECTED)]
    record.readings.append(Reading("late", end, 1, events[2:], list(voids)))
    record.audits.append(Reading("fresh", end, end, events[2:], list(voids)))
    return record


def judged(record: Record) -> Tally:
    tally = Tally()
    check(record, tally)
    return tally


def change(reading: Reading, seq: int, **fields: object) -> None:
    reading.events = [replace(e, **fields) if e.seq == seq else e for e in reading.events]


def everywhere(record: Record, seq: int, **fields: object) -> None:
    for reading in (*record.readings, *record.audits):
        change(reading, seq, **fields)


def void(reading: Reading, seq: int, reason: int = COLLECTED) -> None:
    reading.events = [e for e in reading.events if e.seq != seq]
    reading.voids.append((seq, seq + 1, reason))


def test_an_honest_record_has_no_violations() -> None:
    tally = judged(honest())
    assert tally.violations == []
    assert (tally.published, tally.acked) == (5, 5)
    assert (tally.delivered, tally.void) == (5 + 3 + 3, 2 + 2)
    assert (tally.lost, tally.duplicated, tally.misordered) == (0, 0, 0)


# ---------------------------------------------------------------- falsifications


def nobody_published_it(record: Record) -> None:
    del record.offered[b"c1"], record.acked[b"c1"]


def an_expiry_where_nothing_expires(record: Record) -> None:
    value = rule(BeforeTime(1), EXPIRED)
    del record.offered[b"c1"], record.acked[b"c1"]
    everywhere(record, 5, kind=COLLECT, key=None, value=value)


def a_changed_key(record: Record) -> None:
    everywhere(record, 5, key=b"d")


def a_null_key_became_empty(record: Record) -> None:
    record.offered[b"c1"] = replace(record.offered[b"c1"], key=None)
    everywhere(record, 5, key=b"")


def a_changed_tag(record: Record) -> None:
    everywhere(record, 5, tag=b"red")


def a_changed_kind(record: Record) -> None:
    everywhere(record, 4, kind=DATA)


def a_gap(record: Record) -> None:
    reading = Reading("hasty")
    for lo, hi in ((1, 3), (4, 6)):
        reading.take((Batch.void(STREAM, lo, hi, COLLECTED),))
    reading.position = 6
    record.readings.append(reading)


def a_repetition(record: Record) -> None:
    reading = record.readings[0]
    reading.take((Batch.void(STREAM, 5, 6, COLLECTED),))


def a_misordered_publisher(record: Record) -> None:
    for value, pub_no in ((b"a1", 2), (b"a2", 1)):
        record.offered[value] = replace(record.offered[value], pub_no=pub_no)


def a_void_without_a_collector(record: Record) -> None:
    void(record.readings[1], 5)
    record.readings[1].position = 6


def a_void_whose_collector_never_came(record: Record) -> None:
    late = record.readings[1]
    void(late, 4)  # the rule that collects 2


def a_void_whose_collector_came_before(record: Record) -> None:
    # 5 has the key that 4 collects, but 4 must not collect later events.
    record.offered[b"c1"] = replace(record.offered[b"c1"], key=b"b")
    everywhere(record, 5, key=b"b")
    void(record.readings[1], 5)


def a_void_for_the_wrong_reason(record: Record) -> None:
    record.readings[1].voids = [(1, 2, SUPERSEDED), (2, 3, EXPIRED)]


def a_superseded_event_called_collected(record: Record) -> None:
    record.readings[1].voids = [(1, 3, COLLECTED)]


def a_collected_event_called_superseded(record: Record) -> None:
    record.readings[1].voids = [(1, 3, SUPERSEDED)]


def the_newest_is_void(record: Record) -> None:
    void(record.audits[0], 5)


def something_collected_is_still_held(record: Record) -> None:
    audit, first = record.audits[0], record.readings[0].events[0]
    audit.voids, audit.events = [(2, 3, COLLECTED)], [first, *audit.events]


def something_live_is_missing(record: Record) -> None:
    void(record.audits[0], 4)


def a_reader_that_ended_early(record: Record) -> None:
    late = record.readings[1]
    late.events.pop()
    late.position = 5


def an_acked_event_beyond_the_end(record: Record) -> None:
    record.offered[b"d1"] = Offered("ann", 4, DATA, b"d", b"d1", None)
    record.acked[b"d1"] = 6


def an_acked_event_replaced(record: Record) -> None:
    record.offered[b"x"] = Offered("cat", 1, DATA, b"c", b"x", None)
    everywhere(record, 5, value=b"x")


def an_event_delivered_twice(record: Record) -> None:
    record.offered[b"d1"] = Offered("ann", 4, DATA, b"a", b"d1", None)
    first = record.readings[0]
    first.events.append(replace(first.events[2], seq=6, time_ns=60))
    first.position = 7


def an_event_at_two_positions_for_two_readers(record: Record) -> None:
    change(record.readings[0], 5, value=b"a2", key=b"a")


def one_position_given_to_two(record: Record) -> None:
    record.offered[b"d1"] = Offered("ann", 4, DATA, b"d", b"d1", None)
    record.acked[b"d1"] = 5


def two_readers_disagree(record: Record) -> None:
    record.offered[b"x"] = Offered("cat", 1, DATA, b"c", b"x", None)
    del record.acked[b"c1"]
    change(record.readings[1], 5, value=b"x")


def time_runs_backwards(record: Record) -> None:
    everywhere(record, 5, time_ns=35)


FALSIFIED: list[tuple[str, Callable[[Record], None]]] = [
    ("G1", nobody_published_it),
    ("G1", an_expiry_where_nothing_expires),
    ("G1", a_changed_key),
    ("G1", a_null_key_became_empty),
    ("G1", a_changed_tag),
    ("G1", a_changed_kind),
    ("G2", a_gap),
    ("G2", a_repetition),
    ("G3", a_misordered_publisher),
    ("G4", a_void_without_a_collector),
    ("G4", a_void_whose_collector_never_came),
    ("G4", a_void_whose_collector_came_before),  # G5: nothing collects what comes later
    ("G4", a_void_for_the_wrong_reason),
    ("G4", a_superseded_event_called_collected),
    ("G4", a_collected_event_called_superseded),
    ("G6", something_collected_is_still_held),
    ("G6", something_live_is_missing),
    ("G7", the_newest_is_void),
    ("G9", a_reader_that_ended_early),
    ("G10", an_acked_event_beyond_the_end),
    ("G10", an_acked_event_replaced),
    ("G10", an_event_delivered_twice),
    ("G10", an_event_at_two_positions_for_two_readers),
    ("G10", one_position_given_to_two),
    ("G10", two_readers_disagree),
    ("R10", time_runs_backwards),
]


@pytest.mark.parametrize(
    ("guarantee", "falsify"), FALSIFIED, ids=lambda x: getattr(x, "__name__", x)
)
def test_a_falsified_record_violates_its_guarantee(
    guarantee: str, falsify: Callable[[Record], None]
) -> None:
    record = honest()
    falsify(record)
    found = judged(record).violations
    assert any(f" {guarantee} " in violation for violation in found), found


def test_g5_a_void_in_a_stream_without_collectors_is_a_violation() -> None:
    record = honest(KeepAll())
    for reading in (*record.readings, *record.audits):  # without the rule at 4
        reading.events = [e for e in reading.events if e.seq != 4]
        reading.voids = [(1, 3, COLLECTED), (4, 5, COLLECTED)]
        reading.events = [e for e in reading.events if e.seq >= 3]
    found = judged(record).violations
    assert sum(" G4 " in violation for violation in found) == 3, found


@pytest.mark.parametrize(
    ("falsify", "lost", "duplicated", "misordered"),
    [
        (an_acked_event_beyond_the_end, 1, 0, 0),
        (an_acked_event_replaced, 1, 0, 0),
        (a_void_without_a_collector, 1, 0, 0),
        (an_event_delivered_twice, 0, 2, 1),  # twice to one reader, at two positions, out of order
        (a_misordered_publisher, 0, 0, 1),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_tally_counts_lost_duplicated_and_misordered_events(
    falsify: Callable[[Record], None], lost: int, duplicated: int, misordered: int
) -> None:
    record = honest()
    falsify(record)
    tally = judged(record)
    assert (tally.lost, tally.duplicated, tally.misordered) == (lost, duplicated, misordered)


def test_a_void_without_any_record_of_its_event_is_no_violation() -> None:
    """The event was never acknowledged and was collected before any reader received it, so no
    record of it exists."""
    record = honest()
    del record.acked[b"a1"]
    del record.readings[0]
    assert judged(record).violations == []


def test_g7_is_judged_even_if_a_position_is_unknown() -> None:
    record = honest()
    del record.acked[b"a1"]
    del record.readings[0]
    the_newest_is_void(record)
    assert any(" G7 " in violation for violation in judged(record).violations)


def test_an_expiry_event_of_the_head_is_valid_only_if_it_is_due() -> None:
    record = Record("s", KeepFor(2 * SECOND))
    record.offered[b"v"] = Offered("ann", 1, DATA, None, b"v", None)
    record.acked[b"v"] = 1
    early = Event(1, SECOND, DATA, None, b"v", None)
    for due_ns, violations in ((2 * SECOND, 0), (4 * SECOND, 1)):
        expiry = Event(2, 5 * SECOND, COLLECT, None, rule(BeforeTime(due_ns), EXPIRED), None)
        record.readings = [Reading("r", 3, 1, [early, expiry])]
        found = judged(record).violations
        assert sum(" G1 " in violation for violation in found) == violations, found


def test_reading_takes_sparse_batches_apart() -> None:
    dense = Batch.of(STREAM, [b"v1", b"v2", b"v3", b"v4"], [None, b"", b"k", b"k"])
    collected = dense.sequenced(1, 7, 1).without(IntervalSet([(2, 4)]), COLLECTED)
    reading = Reading("r")
    reading.take((collected, Batch.void(STREAM, 5, 9, EXPIRED)))
    assert [(e.seq, e.key, e.value) for e in reading.events] == [(1, None, b"v1"), (4, b"k", b"v4")]
    assert reading.voids == [(2, 4, COLLECTED), (5, 9, EXPIRED)]
    assert (reading.position, reading.faults) == (9, [])


# ---------------------------------------------------------------- the reference for retention


def events(*rows: tuple[int, bytes | None, bytes, bytes | None]) -> list[Event]:
    return [
        Event(seq, 10 * seq, kind, key, value, tag)
        for seq, (kind, key, value, tag) in enumerate(rows, start=1)
    ]


K = [(DATA, key, b"", None) for key in (b"a", b"ab", None, b"", b"a", b"b")]  # positions 1-6


@pytest.mark.parametrize(
    ("policy", "rows", "left"),
    [
        (KeepAll(), K, {1, 2, 3, 4, 5, 6}),
        (KeepLast(2), K, {5, 6}),
        (KeepLast(9), K, {1, 2, 3, 4, 5, 6}),
        (LatestPerKey(), [*K, (DATA, b"", b"", None)], {2, 3, 5, 6, 7}),
        (KeepAll(), [*K, (COLLECT, None, rule(BeforeSeq(3)), None)], {3, 4, 5, 6, 7}),
        (KeepAll(), [*K, (COLLECT, None, rule(BeforeTime(30)), None)], {3, 4, 5, 6, 7}),
        (KeepAll(), [*K, (COLLECT, None, rule(KeyIs(b"a")), None)], {2, 3, 4, 6, 7}),
        (KeepAll(), [*K, (COLLECT, None, rule(KeyIs(b"")), None)], {1, 2, 3, 5, 6, 7}),
        (KeepAll(), [*K, (COLLECT, None, rule(KeyPrefix(b"a")), None)], {3, 4, 6, 7}),
        (KeepAll(), [*K, (COLLECT, None, rule(KeyPrefix(b"")), None)], {3, 7}),
        (KeepAll(), [(COLLECT, None, rule(BeforeSeq(99)), None), *K], {1, 2, 3, 4, 5, 6, 7}),
        (
            KeepAll(),
            [
                (DATA, None, b"", b"t"),
                (DATA, b"t", b"", None),
                (COLLECT, None, rule(TagIs(b"t")), None),
            ],
            {2, 3},
        ),
        (KeepAll(), [*K, (CONFIG, None, retention.encode_policy(KeepLast(2)), None)], {6, 7}),
        (
            KeepLast(1),
            [(CONFIG, None, retention.encode_policy(KeepAll()), None), *K],
            {1, 2, 3, 4, 5, 6, 7},
        ),
    ],
)
def test_what_the_rules_leave(policy: Policy, rows: list, left: set[int]) -> None:  # type: ignore[type-arg]
    assert surviving(policy, events(*rows)) == left


# ---------------------------------------------------------------- through a cluster


def test_a_publish_that_failed_is_a_violation() -> None:
    cluster = cluster_of({"east": 1})
    publish(cluster, 1)
    settle(cluster)
    assert cluster.judge().violations == []
    cluster.failed.append(Failed(cluster.streams["s"], 2, "bad-event"))
    assert cluster.judge().violations == ["s: publish 2 failed: bad-event"]


def test_g4_a_reader_that_left_may_lack_only_collectors_after_its_end() -> None:
    record = honest()
    voids = [(1, 2, SUPERSEDED), (2, 3, COLLECTED)]
    record.readings.append(Reading("gone", 3, 1, [], voids, left=True))
    assert judged(record).violations == []  # the collectors 3 and 4 come after it left
    record.readings[-1] = Reading("gone", 4, 1, [], [*voids, (3, 4, SUPERSEDED)], left=True)
    assert "G4 gone was told 1 is void" in "".join(judged(record).violations)


def test_columns_before_their_change_and_changed_attributes_are_violations() -> None:
    first, more = "n int64", "n int64, b bool"

    def batch(seq: int, schema: str, number: int) -> Batch:
        writer = writer_of(schema)
        assert writer is not None
        fields = [(number, True)[: len(writer.schema.names)]]
        made = Batch.of(STREAM, [b"v%d" % seq], attributes=writer.attributes(fields))
        return made.sequenced(seq, seq, 1)

    change = Batch.of(STREAM, [encode_policy(NewSchema(more))], kind=CONFIG).sequenced(2, 2, 1)
    good = batch(1, first, 1), change, batch(3, more, 3), batch(4, first, 4)
    record = Record("s", KeepAll(), schema=first)
    for item in good:
        (row,) = item.to_rows()
        held = item.attributes()
        offered = Offered(
            "p", row.seq, item.kind, None, row.value, None, held.row_bytes(0) if held else b""
        )
        record.offered[row.value], record.acked[row.value] = offered, row.seq

    def faults(*batches: Batch) -> list[str]:
        reading = Reading("r", schema=first)
        reading.take(batches)
        record.readings = [reading]
        tally = Tally()
        check(record, tally)
        return tally.violations

    assert faults(*good) == []
    early = batch(2, more, 3).relabelled(STREAM, DATA)
    assert any(": S1 r: at 2" in fault for fault in faults(good[0], early))
    plain = Batch.of(STREAM, [b"v4"]).sequenced(4, 4, 1)
    assert any(": S1 r: at 4" in fault for fault in faults(*good[:3], plain))
    assert any("G1 changed on the way" in fault for fault in faults(*good[:3], batch(4, first, 5)))
