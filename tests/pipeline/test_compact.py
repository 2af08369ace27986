"""Compaction of archives compared with the live kernel and its twin, on random histories."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from surecast.columns.batch import COLLECT, CONFIG, DATA, EXPIRED, Batch
from surecast.columns.retention import RetentionIndex
from surecast.columns.rules import (
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
    Predicate,
    TagIs,
    encode_collect,
    encode_policy,
)
from surecast.errors import UsageError
from surecast.pipeline.jobs.compact import BadArchive, Collected, compact
from surecast.pipeline.rows import DDL
from tests.columns.twins import Event, RetentionTwin, runs_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAIN = DDL.replace(" not null", "")
ID = bytes(range(16))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STREAMS = 25  # histories in one archive
EVENTS = 60
BUCKET = 7  # small, so that there are many bucket edges
KEYS = (None, b"", b"a", b"ab", b"b", b"a key over eight bytes", b"\0")
TAGS = (None, b"", b"t", b"u")
END = EVENTS + 1

# The positions of collects in each history, and what they collect.
RULES: dict[str, dict[int, Predicate]] = {
    "none": {},
    "few": {20: BeforeSeq(9), 25: BeforeTime(40_000), 30: KeyIs(b"a"), 41: KeyIs(b"")},
    "many": {20: KeyPrefix(b"a key"), 33: KeyPrefix(b"a"), 40: BeforeSeq(90), 50: KeyPrefix(b"")},
}


@dataclass
class History:
    """A stream of random events with collects at given positions, and one CONFIG event."""

    name: str
    events: list[Event]
    policy: Policy

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as the source gives them: entries other than events of users are void rows."""
        rows: list[tuple[Any, ...]] = []
        for event in self.events:
            time = EPOCH + timedelta(microseconds=event.time_ns // 1000)
            if event.kind != DATA:
                rows.append((self.name, event.seq, "void", 1, None, None, None, time))
                continue
            tags = None if event.tag is None else {"tag": event.tag}
            rows.append((self.name, event.seq, "event", 1, event.key, event.value, tags, time))
        return rows

    def batches(self) -> list[Batch]:
        made = []
        for event in self.events:
            batch = Batch.of(ID, [event.value], [event.key], [event.tag], kind=event.kind)
            made.append(batch.sequenced(event.seq, event.time_ns, 1))
        return made

    def live_by_kernel(self) -> set[int]:
        log: list[Batch] = []

        def read(lo: int, hi: int) -> Iterable[Batch]:
            return [batch for batch in log if lo <= batch.lo < hi]

        index = RetentionIndex(self.policy)
        for batch in self.batches():
            index.feed(batch, read)
            log.append(batch)
        return self._data(lambda seq: seq in index.live(1, index.end))

    def live_by_twin(self) -> set[int]:
        twin = RetentionTwin(self.policy)
        for event in self.events:
            twin.feed(event)
        return self._data(lambda seq: seq not in twin.voids)

    def _data(self, live: Any) -> set[int]:
        return {event.seq for event in self.events if event.kind == DATA and live(event.seq)}


def history(name: str, policy: Policy, rules: dict[int, Predicate], rng: Random) -> History:
    events, time_ns = [], 0
    for seq in range(1, END):
        time_ns += rng.randrange(5) * 1000
        if seq in rules:
            rule = Collect(rules[seq])
            events.append(Event(seq, time_ns, COLLECT, rule=rule, value=encode_collect(rule)))
        elif seq == 10:
            events.append(Event(seq, time_ns, CONFIG, rule=policy, value=encode_policy(policy)))
        else:
            tag = rng.choice(TAGS)
            events.append(
                Event(seq, time_ns, DATA, rng.choice(KEYS), tag, f"{name}/{seq}".encode())
            )
    return History(name, events, policy)


def archive(spark: "SparkSession", histories: list[History], rng: Random) -> "DataFrame":
    """The rows of all histories in random order, in several partitions."""
    rows = [row for stream in histories for row in stream.rows()]
    rng.shuffle(rows)
    return spark.createDataFrame(rows, DDL).repartition(5)


def compacted(*words: Any, **more: Any) -> dict[str, tuple[dict[int, Any], list[tuple[int, int]]]]:
    """The result of compaction by stream: live rows by position, and void ranges in order."""
    with compact(*words, **{"bucket": BUCKET, **more}) as result:
        return rows_of(result)


def rows_of(result: "DataFrame") -> dict[str, tuple[dict[int, Any], list[tuple[int, int]]]]:
    assert ", ".join(f"{name} {kind}" for name, kind in result.dtypes) == PLAIN
    by_stream: dict[str, tuple[dict[int, Any], list[tuple[int, int]]]] = {}
    for row in result.orderBy("stream", "seq").collect():
        live, voids = by_stream.setdefault(row["stream"], ({}, []))
        if row["kind"] == "event":
            assert row["range"] == 1
            assert row["seq"] not in live
            live[row["seq"]] = row
        else:
            assert row["kind"] == "void"
            assert (row["key"], row["value"], row["attributes"]) == (None, None, None)
            voids.append((row["seq"] - row["range"] + 1, row["seq"] + 1))
    return by_stream


def check(histories: list[History], *words: Any, **more: Any) -> None:
    check_rows(histories, compacted(*words, **more))


def check_rows(histories: list[History], by_stream: dict[str, Any]) -> None:
    for one in histories:
        live, voids = by_stream[one.name]
        expected = one.live_by_kernel()
        assert expected == one.live_by_twin(), "kernel and twin differ: nothing to compare with"
        assert live.keys() == expected, one
        assert voids == runs_of(set(range(1, END)) - expected), "not the maximal runs"
        for event in one.events:
            if event.seq in live:
                row = live[event.seq]
                assert (row["key"], bytes(row["value"])) == (event.key, event.value)
                assert (row["attributes"] or {}).get("tag") == event.tag


@pytest.mark.parametrize(
    ("policy", "rules"),
    [
        (KeepAll(), "few"),
        (KeepLast(17), "none"),
        (KeepLast(17), "many"),
        (LatestPerKey(), "none"),
        (LatestPerKey(), "many"),
    ],
    ids=repr,
)
def test_compaction_leaves_the_same_events_as_the_live_kernel(
    spark: "SparkSession", policy: Policy, rules: str
) -> None:
    rng = Random(f"{policy}{rules}")
    rules_at = RULES[rules]
    histories = [history(f"s{i}", policy, rules_at, rng) for i in range(STREAMS)]
    collected = [Collected(predicate, seq) for seq, predicate in rules_at.items()]
    check(histories, archive(spark, histories, rng), policy, collected)


def test_tags_are_collected_only_with_keep_all(spark: "SparkSession") -> None:
    rng = Random("tags")
    rules_at: dict[int, Predicate] = {30: TagIs(b"t"), 50: TagIs(b"")}
    histories = [history(f"s{i}", KeepAll(), rules_at, rng) for i in range(STREAMS)]
    collected = [Collected(predicate, seq) for seq, predicate in rules_at.items()]
    check(histories, archive(spark, histories, rng), KeepAll(), collected)
    with pytest.raises(UsageError, match="keep-all"):
        compacted(archive(spark, histories, rng), LatestPerKey(), collected)


def test_keep_for_is_an_expiry_at_the_end_of_the_archive(spark: "SparkSession") -> None:
    """In a live stream the head appends a collect; for an archive the option `now` replaces it."""
    rng = Random("age")
    policy = KeepFor(50_000)
    histories = [history(f"s{i}", policy, {}, rng) for i in range(STREAMS)]
    made = archive(spark, histories, rng)
    now_us = 120
    rule = Collect(BeforeTime(now_us * 1000 - policy.ns), EXPIRED)
    for one in histories:  # at a further position, after the archived ones
        time_ns = max(one.events[-1].time_ns, now_us * 1000)
        one.events.append(Event(END, time_ns, COLLECT, rule=rule, value=encode_collect(rule)))
    now = EPOCH + timedelta(microseconds=now_us)
    check(histories, made, policy, now=now)


def test_compacting_again_changes_nothing(spark: "SparkSession") -> None:
    rng = Random("again")
    histories = [history(f"s{i}", LatestPerKey(), {}, rng) for i in range(STREAMS)]
    with compact(archive(spark, histories, rng), LatestPerKey(), bucket=BUCKET) as once:
        rows = rows_of(once)
        check_rows(histories, rows)
        assert compacted(once, LatestPerKey(), bucket=11) == rows


def test_too_many_keys_for_a_broadcast_give_the_same_result(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surecast.pipeline.jobs.compact.BROADCAST_MAX", 0)
    rng = Random("many")
    histories = [history(f"s{i}", LatestPerKey(), {}, rng) for i in range(STREAMS)]
    check(histories, archive(spark, histories, rng), LatestPerKey())


def rows_at(*seqs: int, stream: str = "s") -> list[tuple[Any, ...]]:
    return [(stream, seq, "event", 1, b"k%d" % seq, b"v", None, EPOCH) for seq in seqs]


def void(last: int, count: int) -> tuple[Any, ...]:
    return ("s", last, "void", count, None, None, None, None)


def test_a_void_range_over_many_buckets_is_one_range(spark: "SparkSession") -> None:
    rows = [*rows_at(101, 102), void(1102, 1000), *rows_at(1103)]
    (live, voids), *_ = compacted(spark.createDataFrame(rows, DDL), LatestPerKey()).values()
    assert (set(live), voids) == ({101, 102, 1103}, [(103, 1103)])
    (live, voids), *_ = compacted(spark.createDataFrame(rows, DDL), KeepLast(1)).values()
    assert (set(live), voids) == ({1103}, [(101, 1103)]), (
        "voids are joined with newly void positions"
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (rows_at(1, 2, 4, 5), "no row for positions 3. "),
        (rows_at(1, 2, 40, 41), "no row for positions 3 to 39. "),
        ([*rows_at(1), void(9, 5)], "no row for positions 2 to 4. "),
        (rows_at(1, 2, 2, 3), "several rows for positions 2"),
        ([*rows_at(1, 2, 3), void(3, 2)], "several rows for positions 2"),
        ([*rows_at(*range(1, 21)), *rows_at(9, 12)], "several rows for positions 9, 12"),
    ],
    ids=["hole", "wide-hole", "hole-before-void", "twice", "void-over-event", "twice-within"],
)
def test_an_archive_with_holes_or_duplicates_is_refused(
    spark: "SparkSession", rows: list[tuple[Any, ...]], words: str
) -> None:
    with pytest.raises(BadArchive) as caught:
        compacted(spark.createDataFrame(rows, DDL), KeepAll())
    assert words in str(caught.value)
    assert "'s'" in str(caught.value)


def test_holes_are_void_with_holes_are_void(spark: "SparkSession") -> None:
    rows = [*rows_at(3, 4, 6, 40), *rows_at(1, 2, stream="t")]
    result = compacted(spark.createDataFrame(rows, DDL), KeepAll(), holes_are_void=True)
    assert (set(result["s"][0]), result["s"][1]) == ({3, 4, 6, 40}, [(5, 6), (7, 40)])
    assert (set(result["t"][0]), result["t"][1]) == ({1, 2}, [])


def test_missing_columns_are_reported(spark: "SparkSession") -> None:
    with pytest.raises(UsageError, match="no column stream, kind"):
        compacted(spark.range(1).withColumnRenamed("id", "seq"), KeepAll())


def test_compaction_leaves_nothing_in_sparks_cache(spark: "SparkSession") -> None:
    def cached() -> bool:
        return not spark._jsparkSession.sharedState().cacheManager().isEmpty()

    spark.catalog.clearCache()
    with compact(spark.createDataFrame(rows_at(1, 2), DDL), LatestPerKey()):
        assert cached()
    assert not cached()
    with pytest.raises(BadArchive):
        compacted(spark.createDataFrame(rows_at(1, 3), DDL), LatestPerKey())
    assert not cached()
