"""RetentionIndex against its twin: raw logs, compacted logs, and replicas that joined late."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from surecast.columns import retention, rules
from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    DATA,
    EXPIRED,
    HEADER_SIZE,
    REASONS,
    SUPERSEDED,
    VOID,
    Batch,
    coalesce,
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
    RetentionIndex,
    TagIs,
    matching,
)
from surecast.errors import PeerError, UsageError
from tests.columns.streams import STREAM, THOROUGH, rows_of, voids_of
from tests.columns.twins import Event, RetentionTwin

keys = st.sampled_from([None, b"", b"a", b"ab", b"b", b"a key over eight bytes", b"\0"])
tags = st.sampled_from([None, b"", b"t", b"u"])
policies = st.one_of(
    st.builds(KeepAll),
    st.builds(KeepLast, st.integers(1, 30)),
    st.builds(KeepFor, st.integers(1, 100)),
    st.builds(LatestPerKey),
)
collects = st.builds(
    Collect,
    st.one_of(
        st.builds(BeforeSeq, st.integers(0, 80)),
        st.builds(BeforeTime, st.integers(0, 60)),
        st.builds(KeyIs, keys.filter(lambda key: key is not None)),
        st.builds(KeyPrefix, st.sampled_from([b"", b"a", b"a key over eigh", b"x"])),
        st.builds(TagIs, tags.filter(lambda tag: tag is not None)),
    ),
    st.sampled_from([COLLECTED, EXPIRED]),
)


class Log:
    """The stored batches of a replica; `read` answers like a disk."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def read(self, lo: int, hi: int) -> Iterable[Batch]:
        for batch in self.batches:
            if batch.lo < hi and lo < batch.hi:
                yield batch.slice(lo, hi)


class Replica:
    """A log and its retention index; `compact` rewrites the log as a server does."""

    def __init__(self, policy: rules.Policy) -> None:
        self.log = Log()
        self.index = RetentionIndex(policy)

    def feed(self, batch: Batch) -> None:
        self.index.feed(batch, self.log.read)
        self.log.batches.append(batch)

    def current(self) -> list[Batch]:
        return [part for batch in self.log.batches for part in self.index.apply(batch)]

    def compact(self, rows_max: int) -> None:
        self.log.batches = coalesce(self.current(), rows_max)

    def voids(self) -> dict[int, int]:
        found = {}
        for reason, intervals in self.index.voids.items():
            for lo, hi in intervals:
                assert not found.keys() & range(lo, hi), "void for two reasons"
                found |= dict.fromkeys(range(lo, hi), reason)
        return found


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Batch, list[Event]]]:
    """Batches as a head sequences them, each with its events."""
    made = []
    seq, time_ns = 1, draw(st.integers(0, 5))
    tagged = draw(st.booleans())
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from([DATA] * 5 + [COLLECT] * 3 + [CONFIG]))
        events = []
        if kind == DATA:
            for _ in range(draw(st.integers(1, 12))):
                tag = draw(tags) if tagged else None
                events.append(Event(seq, time_ns, key=draw(keys), tag=tag, value=b"%d" % seq))
                seq += 1
            batch = Batch.of(
                STREAM,
                [event.value for event in events],
                [event.key for event in events],
                [event.tag for event in events] if tagged else None,
            )
        else:
            rule = draw(collects if kind == COLLECT else policies)
            encode = rules.encode_collect if kind == COLLECT else rules.encode_policy
            events.append(Event(seq, time_ns, kind=kind, rule=rule, value=encode(rule)))
            seq += 1
            batch = Batch.of(STREAM, [events[0].value], kind=kind)
        made.append((batch.sequenced(events[0].seq, time_ns, 1), events))
        time_ns += draw(st.integers(0, 12))
    return made


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@given(policies, histories())
def test_the_voids_equal_the_twins(policy, history) -> None:
    replica, twin = Replica(policy), RetentionTwin(policy)
    for batch, events in history:
        replica.feed(batch)
        for event in events:
            twin.feed(event)
        assert replica.voids() == twin.voids
        assert replica.index.policy == twin.policy
        assert replica.index.end == batch.hi
    check_current(replica, twin)


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@given(policies, histories(), st.data())
def test_feeding_batches_together_or_one_by_one_gives_the_same_voids(policy, history, data) -> None:
    one, many = Replica(policy), Replica(policy)
    batches = [batch for batch, _ in history]
    for batch in batches:
        one.feed(batch)
    stored = one.log.batches
    if data.draw(st.booleans()):  # some of them with voids
        stored = coalesce(one.current(), data.draw(st.sampled_from([1, 5, 100])))
    many.log.batches = stored
    at = 0
    while at < len(stored):
        upto = data.draw(st.integers(at + 1, len(stored)))
        many.index.feed_many(stored[at:upto], many.log.read)
        assert many.index.end == stored[upto - 1].hi
        at = upto
    assert many.voids() == one.voids()
    assert many.index.policy == one.index.policy


@pytest.mark.parametrize("policy", [KeepLast(3), LatestPerKey(), KeepAll()], ids=str)
def test_batches_before_a_refused_one_are_fed(policy) -> None:
    good = [data(1, [b"12345678"] * 3, 5), data(4, [b"12345678"], 6)]
    for bad in (data(9, [b"12345678"], 7), data(5, [b"12345678"], 1)):
        replica, expected = Replica(policy), fed(policy, *good)
        with pytest.raises(ValueError, match=r"follow|older"):
            replica.index.feed_many([*good, bad, data(6, [b"12345678"], 8)], replica.log.read)
        assert replica.index.end == 5
        assert replica.voids() == expected.voids()
        replica.index.feed_many([data(5, [b"12345678"], 7)], replica.log.read)
        assert replica.index.end == 6


def check_current(replica: Replica, twin: RetentionTwin) -> None:
    """Check that `apply` gives the twin's live events and voids in as few batches as possible."""
    parts = replica.current()
    assert voids_of(parts) == twin.voids
    live = [event for event in twin.events if event.seq not in twin.voids]
    found = [(row.seq, row.time_ns, row.key, row.tag, row.value) for row in rows_of(parts)]
    assert found == [(e.seq, e.time_ns, e.key, e.tag, e.value) for e in live]
    for batch in replica.log.batches:
        applied = replica.index.apply(batch)
        reasons = [twin.voids[seq] for seq in range(batch.lo, batch.hi) if seq in twin.voids]
        changes = sum(a != b for a, b in pairwise(reasons))
        assert len(applied) == changes + 1
        if not reasons:
            assert applied[0] is batch
    end = replica.index.end
    runs = replica.index.void_at(1, end)
    assert {seq: why for lo, hi, why in runs for seq in range(lo, hi)} == twin.voids
    assert runs == sorted(runs)
    assert list(replica.index.live(1, end)) == list(
        IntervalSet((event.seq, event.seq + 1) for event in live)
    )
    counts = replica.index.counts()
    assert counts.live == len(live)
    reasons = list(twin.voids.values())
    assert counts.void == {reason: reasons.count(reason) for reason in REASONS}


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@given(policies, histories(), st.data())
def test_voids_are_the_same_after_compaction_and_in_late_replicas(policy, history, data) -> None:
    """A log compacted at times, and replicas that catch up from it, have the same voids."""
    first, twin = Replica(policy), RetentionTwin(policy)
    joiners: list[Replica] = []
    for batch, events in history:
        for replica in [first, *joiners]:
            replica.feed(batch)
        for event in events:
            twin.feed(event)
        if data.draw(st.integers(0, 3)) == 0:
            first.compact(data.draw(st.sampled_from([1, 5, 100])))
        if data.draw(st.integers(0, 3)) == 0:
            late = Replica(policy)
            cut = data.draw(st.integers(1, first.index.end))
            for part in coalesce(first.current(), data.draw(st.sampled_from([1, 7, 100]))):
                # A source may send any part of what it has, in pieces.
                for lo, hi in ((part.lo, cut), (cut, part.hi)):
                    if max(lo, part.lo) < min(hi, part.hi):
                        late.feed(part.slice(lo, hi))
            joiners.append(late)
    for replica in [first, *joiners]:
        assert replica.voids() == twin.voids
        assert replica.index.end == twin.events[-1].seq + 1
        check_current(replica, twin)


def admitted(policy: rules.Policy, history: list[tuple[Batch, list[Event]]]) -> Iterable[bool]:
    """For each batch, whether a head accepts it: tag rules require that it was always keep-all."""
    always = isinstance(policy, KeepAll)
    for batch, (event, *_) in history:
        always = always and batch.kind != CONFIG
        tagged = isinstance(event.rule, Collect) and isinstance(event.rule.predicate, TagIs)
        yield always or not tagged


def by_key_or_time(event: Event) -> bool:
    """Whether a copy may know fewer of the events this collect covers than its source."""
    return event.kind == COLLECT and not isinstance(event.rule.predicate, BeforeSeq)


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@given(policies, histories(), st.data())
def test_a_copy_that_missed_an_event_has_another_valid_reason(policy, history, data) -> None:
    """A copy receives new events at times, without those that have become void meanwhile.

    The event that made a position void may be void itself by then, so that the copy learns of it
    from a later event. The void positions are the same, and the copy's reason is a valid one.
    """
    assume(all(admitted(policy, history)))
    source, copy, twin = Replica(policy), Replica(policy), RetentionTwin(policy)
    for number, (batch, events) in enumerate(history, 1):
        source.feed(batch)
        for event in events:
            twin.feed(event)
        if number == len(history) or data.draw(st.booleans()):
            for part in coalesce(source.current(), data.draw(st.sampled_from([1, 7, 100]))):
                if part.hi > copy.index.end:
                    copy.feed(part.slice(copy.index.end, part.hi))
    assert copy.voids().keys() == twin.voids.keys()
    for seq, reason in copy.voids().items():
        assert reason in twin.reasons[seq]
    if not any(by_key_or_time(events[0]) for _, events in history):
        assert copy.voids() == twin.voids
    live = [row.seq for row in rows_of(copy.current())]
    assert live == [event.seq for event in twin.events if event.seq not in twin.voids]


@given(histories(), collects)
def test_matching_in_one_batch_equals_the_twin(history, collect) -> None:
    predicate = collect.predicate
    twin = RetentionTwin(KeepAll())
    for batch, events in history:
        expected = [event.seq for event in events if twin._matches(predicate, event)]
        assert matching(batch, predicate).tolist() == expected


# ---------------------------------------------------------------- single rules


def data(lo: int, keys: list[bytes | None], time_ns: int = 1) -> Batch:
    return Batch.of(STREAM, [b"v"] * len(keys), keys).sequenced(lo, time_ns, 1)


def collect(
    lo: int, predicate: rules.Predicate, reason: int = COLLECTED, time_ns: int = 1
) -> Batch:
    value = rules.encode_collect(Collect(predicate, reason))
    return Batch.of(STREAM, [value], kind=COLLECT).sequenced(lo, time_ns, 1)


def config(lo: int, policy: rules.Policy) -> Batch:
    return Batch.of(STREAM, [rules.encode_policy(policy)], kind=CONFIG).sequenced(lo, 1, 1)


def fed(policy: rules.Policy, *batches: Batch) -> Replica:
    replica = Replica(policy)
    for batch in batches:
        replica.feed(batch)
    return replica


def voided(replica: Replica) -> list[int]:
    return sorted(replica.voids())


def test_null_is_not_a_key_and_the_empty_string_is() -> None:
    replica = fed(LatestPerKey(), data(1, [None, None, b"", b"", None]))
    assert voided(replica) == [3]
    assert voided(fed(KeepAll(), data(1, [None, b"", b"a"]), collect(4, KeyIs(b"")))) == [2]
    assert voided(fed(KeepAll(), data(1, [None, b"", b"a"]), collect(4, KeyPrefix(b"")))) == [2, 3]


def test_keep_last_keeps_exactly_n_and_a_collect_event_counts() -> None:
    assert voided(fed(KeepLast(3), data(1, [b"k"] * 5))) == [1, 2]
    replica = fed(KeepLast(3), data(1, [b"k"] * 5), collect(6, KeyIs(b"absent")))
    assert voided(replica) == [1, 2, 3]
    assert voided(fed(KeepLast(3), Batch.void(STREAM, 1, 9, EXPIRED), data(9, [b"k"]))) == [
        *range(1, 9)
    ]


def test_config_events_are_never_void_and_take_effect_at_their_position() -> None:
    replica = fed(
        KeepAll(),
        data(1, [b"a", b"b", b"a"]),
        config(4, KeepLast(2)),
        data(5, [b"a"] * 4),
        collect(9, BeforeSeq(9)),
    )
    assert voided(replica) == [1, 2, 3, 5, 6, 7, 8]
    switched = fed(KeepAll(), data(1, [b"a", b"b", b"a"]), config(4, LatestPerKey()))
    assert voided(switched) == [1]
    switched.feed(data(5, [b"b"]))
    assert voided(switched) == [1, 2]
    switched.feed(config(6, KeepAll()))
    switched.feed(data(7, [b"a", b"b"]))
    assert voided(switched) == [1, 2]


def test_a_collect_event_covers_neither_itself_nor_later_events() -> None:
    replica = fed(
        KeepAll(), data(1, [b"a"]), collect(2, BeforeSeq(100)), data(3, [b"a"]), data(4, [b"a"])
    )
    assert voided(replica) == [1]


def test_rules_by_key_and_time_keep_the_first_reason() -> None:
    replica = fed(
        LatestPerKey(),
        data(1, [b"a", b"b", b"c"]),
        collect(4, KeyIs(b"b"), EXPIRED),
        data(5, [b"b", b"c"]),
        collect(7, KeyPrefix(b"")),
    )
    assert replica.voids() == {1: COLLECTED, 2: EXPIRED, 3: SUPERSEDED, 5: COLLECTED, 6: COLLECTED}
    parts = replica.index.apply(data(1, [b"a", b"b", b"c"]))
    assert [(part.lo, part.hi, part.kind, part.reason) for part in parts] == [
        (1, 2, VOID, COLLECTED),
        (2, 3, VOID, EXPIRED),
        (3, 4, VOID, SUPERSEDED),
    ]
    aged = fed(
        LatestPerKey(),
        data(1, [b"a", b"b", b"a"]),
        collect(4, KeyIs(b"b"), EXPIRED, 2),
        data(5, [b"b", b"b"], 3),
        collect(7, BeforeTime(3), time_ns=3),
    )
    assert aged.voids() == {1: SUPERSEDED, 2: EXPIRED, 3: COLLECTED, 4: COLLECTED, 5: SUPERSEDED}


def test_a_rule_by_position_sets_the_reason_of_all_positions_it_covers() -> None:
    """So void ranges merge, and a stream that is regularly collected by position stays small."""
    batches = [data(1, [b"a", b"b", b"a"]), collect(4, KeyIs(b"b"), EXPIRED)]
    replica = fed(LatestPerKey(), *batches, data(5, [b"b", b"b"]), collect(7, BeforeSeq(6)))
    assert replica.voids() == dict.fromkeys(range(1, 6), COLLECTED)
    changed = fed(LatestPerKey(), *batches, config(5, KeepLast(2)), data(6, [b"x", b"y"]))
    assert changed.voids() == dict.fromkeys(range(1, 5), EXPIRED)  # the CONFIG event is never void
    changed.feed(collect(8, BeforeSeq(3)))
    assert changed.voids() == dict.fromkeys([1, 2, 3, 4, 6], EXPIRED), (
        "keep_last is applied after the collect"
    )


def test_compacted_positions_take_the_reason_of_a_later_rule() -> None:
    for rows_max in (1, 100):
        replica = fed(LatestPerKey(), data(1, [b"a", b"b", b"a", b"c", b"d", b"c"]))
        replica.compact(rows_max)
        assert voids_of(replica.log.batches) == {1: SUPERSEDED, 4: SUPERSEDED}
        replica.feed(collect(7, BeforeSeq(4)))
        assert voids_of(replica.current()) == {**dict.fromkeys((1, 2, 3), COLLECTED), 4: SUPERSEDED}
        assert [row.seq for row in rows_of(replica.current())] == [5, 6, 7]
        again = Replica(LatestPerKey())
        for batch in replica.log.batches:  # as after a restart
            again.feed(batch)
        assert again.voids() == replica.voids()


def test_a_stream_repeatedly_collected_by_position_has_one_void_range() -> None:
    """Like the staging streams of Spark's sink: keyed records, and collects of finished ones."""
    replica = Replica(LatestPerKey())
    for number in range(50):
        replica.feed(data(replica.index.end, [b"state", b"part %d" % number, b"state"], number))
        replica.feed(collect(replica.index.end, BeforeSeq(replica.index.end - 1), time_ns=number))
    end = replica.index.end
    assert replica.index.void_at(1, end) == [(1, end - 2, COLLECTED)]
    parts = [(b.lo, b.hi, b.rows, b.reason) for b in coalesce(replica.current(), 100)]
    assert parts == [(1, end - 1, 1, COLLECTED), (end - 1, end, 1, 0)]


def test_each_rule_has_its_reason() -> None:
    latest = fed(LatestPerKey(), data(1, [b"a", b"b", b"a"]), collect(4, KeyIs(b"b")))
    assert latest.voids() == {1: SUPERSEDED, 2: COLLECTED}
    latest.feed(data(5, [b"b", b"a"]))
    assert latest.voids() == {1: SUPERSEDED, 2: COLLECTED, 3: SUPERSEDED}
    last = fed(KeepLast(3), data(1, [b"a"] * 4), collect(5, BeforeSeq(4)))
    assert last.voids() == {1: EXPIRED, 2: EXPIRED, 3: COLLECTED}
    aged = fed(KeepFor(10), data(1, [b"a", b"b"], 5), collect(3, BeforeTime(6), EXPIRED, 20))
    assert aged.voids() == {1: EXPIRED, 2: EXPIRED}


def test_a_batch_with_three_reasons_is_split() -> None:
    batch = data(1, [b"a", b"b", b"c", b"a", b"d", b"e"])
    replica = fed(
        LatestPerKey(),
        batch,
        collect(7, KeyIs(b"b")),
        collect(8, KeyIs(b"c"), EXPIRED),
        data(9, [b"d"]),
    )
    parts = replica.index.apply(batch)
    assert [(part.lo, part.hi, part.rows, part.reason) for part in parts] == [
        (1, 2, 0, SUPERSEDED),
        (2, 3, 0, COLLECTED),
        (3, 5, 1, EXPIRED),
        (5, 7, 1, SUPERSEDED),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_reason_does_not_depend_on_how_events_are_divided_into_batches(size: int) -> None:
    """A collect between two rows of a key: the first row was superseded only after it."""
    keys = [b"a", b"b", b"a", b"c", b"b"]
    parts = [data(1 + at, keys[at : at + size]) for at in range(0, 5, size)]
    replica = fed(LatestPerKey(), *parts, collect(6, KeyPrefix(b"")))
    assert replica.voids() == {
        1: SUPERSEDED, 2: SUPERSEDED, 3: COLLECTED, 4: COLLECTED, 5: COLLECTED
    }  # fmt: skip
    replica = Replica(LatestPerKey())
    replica.index.feed_many([*parts, collect(6, KeyPrefix(b""))], lambda lo, hi: parts)
    assert replica.voids()[1] == SUPERSEDED
    assert replica.voids()[3] == COLLECTED


def test_a_copy_without_the_superseding_event_has_the_reason_collected() -> None:
    """Both reasons are true; the event at 2 is void before this copy sees it."""
    batches = [data(1, [b"k"]), data(2, [b"k"]), collect(3, KeyIs(b"k"))]
    source = fed(LatestPerKey(), *batches)
    assert source.voids() == {1: SUPERSEDED, 2: COLLECTED}
    copy = fed(LatestPerKey(), batches[0])
    for part in source.current()[1:]:
        copy.feed(part)
    assert copy.voids() == {1: COLLECTED, 2: COLLECTED}


def test_tag_rules_require_keep_all() -> None:
    tagged = Batch.of(STREAM, [b"v"] * 2, [b"k"] * 2, [b"t", None]).sequenced(1, 1, 1)
    assert voided(fed(KeepAll(), tagged, collect(3, TagIs(b"t")))) == [1]
    assert voided(fed(KeepLast(9), tagged, collect(3, TagIs(b"t")))) == []
    with pytest.raises(UsageError, match="tag"):
        rules.check_event(collect(3, TagIs(b"t")), KeepLast(9))
    rules.check_event(collect(3, TagIs(b"t")), KeepAll())
    rules.check_event(collect(3, KeyIs(b"t")), KeepLast(9))


@pytest.mark.parametrize("spans_max", [3, 5, 65_537])
def test_before_time_is_exact_when_spans_were_joined(monkeypatch, spans_max) -> None:
    monkeypatch.setattr(retention, "_SPANS_MAX", spans_max)
    for limit in range(45):
        replica = Replica(KeepAll())
        for number in range(20):
            replica.feed(data(1 + 2 * number, [b"k", b"l"], time_ns=2 * number))
        replica.feed(collect(41, BeforeTime(limit), time_ns=60))
        expected = [1 + 2 * n + i for n in range(20) for i in range(2) if 2 * n < limit]
        assert voided(replica) == expected


def test_batches_out_of_order_are_refused() -> None:
    replica = fed(KeepAll(), data(1, [b"k"], time_ns=5))
    with pytest.raises(ValueError, match="does not follow"):
        replica.feed(data(3, [b"k"], time_ns=5))
    with pytest.raises(ValueError, match="does not follow"):
        replica.feed(data(1, [b"k"], time_ns=5))
    with pytest.raises(ValueError, match="older"):
        replica.feed(data(2, [b"k"], time_ns=4))


def test_synthetic_batches_can_be_retained_by_position_and_time() -> None:
    def counted(lo: int, time_ns: int) -> Batch:
        return Batch.synthetic(STREAM, 100, HEADER_SIZE + 5000).sequenced(lo, time_ns, 1)

    replica = fed(KeepLast(150), counted(1, 1), counted(101, 2))
    assert replica.index.voids[EXPIRED] == IntervalSet([(1, 51)])
    (part,) = replica.index.apply(counted(1, 1))
    assert (part.rows, part.seqs()[0]) == (50, 51)
    replica = fed(KeepAll(), counted(1, 1), counted(101, 2), collect(201, BeforeTime(2), time_ns=3))
    assert replica.index.voids[COLLECTED] == IntervalSet([(1, 101)])


def test_a_long_keyed_stream_stays_bounded() -> None:
    """Many batches with few keys: only the newest event of each key is live."""
    rng = np.random.default_rng(1)
    replica = Replica(LatestPerKey())
    newest: dict[bytes, int] = {}
    for lo in range(1, 100_001, 500):
        names = [b"key %d" % n for n in rng.zipf(1.3, 500).clip(max=5000).tolist()]
        replica.index.feed(data(lo, names, time_ns=lo), replica.log.read)
        newest |= {name: lo + n for n, name in enumerate(names)}
    live = replica.index.live(1, 100_001)
    assert live.total() == len(newest)
    assert all(seq in live for seq in newest.values())


# ---------------------------------------------------------------- rules as bytes


@given(st.one_of(policies, collects))
def test_rules_round_trip(rule) -> None:
    if isinstance(rule, Collect):
        assert rules.decode_collect(rules.encode_collect(rule)) == rule
        with pytest.raises(PeerError):
            rules.decode_config(rules.encode_collect(rule))
    else:
        assert rules.decode_config(memoryview(rules.encode_policy(rule))) == rule
        with pytest.raises(PeerError):
            rules.decode_collect(rules.encode_policy(rule))


@given(st.binary(max_size=40))
def test_any_bytes_decode_to_a_rule_or_raise_peer_error(data) -> None:
    for decode in (rules.decode_config, rules.decode_collect):
        with contextlib.suppress(PeerError):
            decode(data)


@pytest.mark.parametrize(
    "rule",
    [
        KeepLast(0),
        KeepLast(-5),
        KeepLast(1 << 63),
        KeepFor(0),
        Collect(BeforeSeq(-1)),
        Collect(BeforeSeq(1 << 62)),
        Collect(BeforeTime(-3)),
        Collect(BeforeSeq(5), reason=3),
    ],
)
def test_rules_out_of_range_are_refused(rule) -> None:
    decode, encode = rules.decode_config, rules.encode_policy
    if isinstance(rule, Collect):
        decode, encode = rules.decode_collect, rules.encode_collect
    with pytest.raises(PeerError, match=r"out of range|no retention"):
        decode(encode(rule))
    kind = COLLECT if isinstance(rule, Collect) else CONFIG
    with pytest.raises(PeerError):
        rules.check_event(Batch.of(STREAM, [encode(rule)], kind=kind), KeepAll())


def test_an_end_event_voids_everything_before_it_except_config_events() -> None:
    index = RetentionIndex(rules.KeepAll())
    batches = [
        Batch.of(STREAM, [b"a", b"b"], [b"k", b"k"]).sequenced(1, 10, 1),
        Batch.of(STREAM, [rules.encode_policy(rules.LatestPerKey())], kind=CONFIG).sequenced(
            3, 11, 1
        ),
        Batch.of(STREAM, [b"c"], [b"x"]).sequenced(4, 12, 1),
        Batch.of(STREAM, [rules.encode_policy(rules.End())], kind=CONFIG).sequenced(5, 13, 1),
    ]

    def read(lo: int, hi: int) -> list[Batch]:
        return [batch for batch in batches if batch.lo < hi and batch.hi > lo]

    for batch in batches:
        assert index.ended == 0
        index.feed(batch, read)
    assert index.ended == 5
    assert list(index.live(1, 6)) == [(3, 4), (5, 6)]
    assert rules.is_end(batches[-1])
    assert not any(map(rules.is_end, batches[:-1]))
    behind = Batch.of(STREAM, [b"late"]).sequenced(6, 14, 1)
    for feed in (lambda: index.feed(behind, read), lambda: index.feed_many([behind], read)):
        with pytest.raises(ValueError, match="follows the end of a deleted stream"):
            feed()
    assert index.end == 6
