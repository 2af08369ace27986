"""RetentionIndex against its twin: raw logs, compacted logs, and replicas that joined late."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.columns import retention, rules
from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    DATA,
    EXPIRED,
    HEADER_SIZE,
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
    """What a replica has stored: answers `read` as a disk does."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def read(self, lo: int, hi: int) -> Iterable[Batch]:
        for batch in self.batches:
            if batch.lo < hi and lo < batch.hi:
                yield batch.slice(lo, hi)


class Replica:
    """A log and its index; `compact` rewrites the log as a server does."""

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
    """Raw batches as a head sequences them, each with its events."""
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
def test_the_voids_are_the_twins(policy, history) -> None:
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
def test_feeding_many_at_once_changes_nothing(policy, history, data) -> None:
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
def test_what_comes_before_a_batch_that_does_not_fit_is_fed(policy) -> None:
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
    """`apply` over the log gives the twin's live events and voids, and no more batches than due."""
    parts = replica.current()
    assert voids_of(parts) == twin.voids
    live = [event for event in twin.events if event.seq not in twin.voids]
    found = [(row.seq, row.time_ns, row.key, row.tag, row.value) for row in rows_of(parts)]
    assert found == [(e.seq, e.time_ns, e.key, e.tag, e.value) for e in live]
    for batch in replica.log.batches:
        applied = replica.index.apply(batch)
        reasons = [twin.voids[seq] for seq in range(batch.lo, batch.hi) if seq in twin.voids]
        meetings = sum(a != b for a, b in pairwise(reasons))
        assert len(applied) == meetings + 1
        if not reasons:
            assert applied[0] is batch
    end = replica.index.end
    runs = replica.index.void_at(1, end)
    assert {seq: why for lo, hi, why in runs for seq in range(lo, hi)} == twin.voids
    assert runs == sorted(runs)
    assert list(replica.index.live(1, end)) == list(
        IntervalSet((event.seq, event.seq + 1) for event in live)
    )


@pytest.mark.slow
@settings(max_examples=THOROUGH)
@given(policies, histories(), st.data())
def test_compaction_and_late_joiners_change_nothing(policy, history, data) -> None:
    """A log compacted now and then, and replicas caught up from it, come to the same voids."""
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


@given(histories(), collects)
def test_matching_in_one_batch(history, collect) -> None:
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


def test_null_is_no_key_and_empty_is_one() -> None:
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


def test_config_events_are_never_void_and_take_effect_where_they_stand() -> None:
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


def test_a_collect_event_reaches_neither_itself_nor_what_follows() -> None:
    replica = fed(
        KeepAll(), data(1, [b"a"]), collect(2, BeforeSeq(100)), data(3, [b"a"]), data(4, [b"a"])
    )
    assert voided(replica) == [1]


def test_the_first_reason_stays() -> None:
    replica = fed(
        LatestPerKey(),
        data(1, [b"a", b"b", b"c"]),
        collect(4, KeyIs(b"b"), EXPIRED),
        data(5, [b"b", b"c"]),
        collect(7, BeforeSeq(6), EXPIRED),
    )
    expected = {1: EXPIRED, 2: EXPIRED, 3: COLLECTED, 4: EXPIRED, 5: EXPIRED}
    assert replica.voids() == expected
    parts = replica.index.apply(data(1, [b"a", b"b", b"c"]))
    assert [(part.lo, part.hi, part.kind, part.reason) for part in parts] == [
        (1, 3, VOID, EXPIRED),
        (3, 4, VOID, COLLECTED),
    ]


def test_tags_only_where_everything_is_kept() -> None:
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
    assert replica.index.voids[COLLECTED] == IntervalSet([(1, 51)])
    (part,) = replica.index.apply(counted(1, 1))
    assert (part.rows, part.seqs()[0]) == (50, 51)
    replica = fed(KeepAll(), counted(1, 1), counted(101, 2), collect(201, BeforeTime(2), time_ns=3))
    assert replica.index.voids[COLLECTED] == IntervalSet([(1, 101)])


def test_a_long_keyed_stream_stays_bounded() -> None:
    """Many batches over few keys: what is live is the newest event of each."""
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
            rules.decode_policy(rules.encode_collect(rule))
    else:
        assert rules.decode_policy(memoryview(rules.encode_policy(rule))) == rule
        with pytest.raises(PeerError):
            rules.decode_collect(rules.encode_policy(rule))


@given(st.binary(max_size=40))
def test_any_bytes_make_a_rule_or_a_peer_error(data) -> None:
    for decode in (rules.decode_policy, rules.decode_collect):
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
    decode, encode = rules.decode_policy, rules.encode_policy
    if isinstance(rule, Collect):
        decode, encode = rules.decode_collect, rules.encode_collect
    with pytest.raises(PeerError, match=r"out of range|no retention"):
        decode(encode(rule))
    kind = COLLECT if isinstance(rule, Collect) else CONFIG
    with pytest.raises(PeerError):
        rules.check_event(Batch.of(STREAM, [encode(rule)], kind=kind), KeepAll())
