"""Streams in Spark, in batch: rows equal the published events; every option; every error."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import surecast
from tests.client.test_subscribe import CLOCKS_DIFFER_S
from tests.pipeline.regions import Served, wait_for

COLUMNS = ["stream", "seq", "kind", "range", "key", "value", "attributes", "timestamp"]


@pytest.fixture(scope="module")
def region(tmp_path_factory: Any) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("region") / "data") as served:
        yield served


def load(spark: SparkSession, region: Served, **options: Any) -> DataFrame:
    given = {"url": region.url, **{name: str(value) for name, value in options.items()}}
    return spark.read.format("surecast").options(**given).load()


def pairs(table: DataFrame) -> list[tuple[int, bytes]]:
    return [(row.seq, bytes(row.value)) for row in table.select("seq", "value").collect()]


def refusal(table: Any) -> str:
    """The error message in the driver."""
    with pytest.raises(Exception) as refused:
        table().count()
    return str(refused.value)


@pytest.mark.parametrize("segments", ["auto", "never"])
def test_rows_equal_the_published_events(
    spark: SparkSession, region: Served, segments: str
) -> None:
    rng = random.Random(1)
    name = f"equal.{segments}"
    values = [rng.randbytes(10) for _ in range(60_000)]
    keys = [rng.randbytes(8) for _ in range(60_000)]
    region.publish(name, values, keys)
    wait_for(lambda: region.segments() > 0, "nothing left the journal")
    table = load(spark, region, subscribe=name, segments=segments, minPartitions=3)
    assert table.columns == COLUMNS
    assert table.rdd.getNumPartitions() >= 3
    whole = table.agg(
        F.count("*"), F.sum(F.crc32("value")), F.sum(F.crc32("key")), F.min("seq"), F.max("seq")
    ).first()
    assert whole is not None
    assert tuple(whole) == (
        60_000,
        sum(map(zlib.crc32, values)),
        sum(map(zlib.crc32, keys)),
        1,
        60_000,
    )
    assert pairs(table) == list(enumerate(values, 1))  # partitions are also in order
    row = table.where("seq = 7").first()
    assert row is not None
    assert (row.stream, row.kind, row.range, bytes(row.key)) == (name, "event", 1, keys[6])
    assert row.attributes is None
    assert abs(row.timestamp.replace(tzinfo=UTC).timestamp() - time.time()) < 600


def test_tags_are_attributes(spark: SparkSession, region: Served) -> None:
    region.publish("tagged", [b"a", b"b", b"c"], None, [b"red", None, b"blue"])
    found = [row.attributes for row in load(spark, region, subscribe="tagged").collect()]
    assert found == [{"tag": bytearray(b"red")}, None, {"tag": bytearray(b"blue")}]
    tag = F.col("attributes")["tag"]
    assert load(spark, region, subscribe="tagged").where(tag == b"blue").count() == 1


def test_voids_are_read_with_include_voids(spark: SparkSession, region: Served) -> None:
    keys = [b"%d" % (n % 10) for n in range(1_000)]
    values = [b"%d" % n for n in range(1_000)]
    region.publish("voids", values, keys, retain=surecast.latest_per_key())
    region.publish("voids", [], retain=surecast.latest_per_key())
    events = load(spark, region, subscribe="voids")
    assert {bytes(row.value) for row in events.collect()} >= set(values[-10:])
    everything = load(spark, region, subscribe="voids", includeVoids=True).orderBy("seq").collect()
    at = 1
    for row in everything:
        assert row.seq - row.range + 1 == at
        at = row.seq + 1
        if row.kind == "void":
            assert row.key is None
            assert row.value is None
            assert row.attributes is None
        else:
            assert row.range == 1
    assert at == 1_001
    live = [bytes(row.value) for row in everything if row.kind == "event"]
    assert live[-10:] == values[-10:]
    assert len(live) < 1_000


def test_several_streams_and_patterns_can_be_read(spark: SparkSession, region: Served) -> None:
    for name, count in (("multi.a", 3), ("multi.b", 5), ("multi.b.x", 7), ("other", 1)):
        region.publish(name, [name.encode()] * count)

    def counts(**options: str) -> dict[str, int]:
        table = load(spark, region, **options)
        return {row.stream: row["count"] for row in table.groupBy("stream").count().collect()}

    assert counts(subscribe="multi.a, other") == {"multi.a": 3, "other": 1}
    assert counts(subscribePattern="multi.*") == {"multi.a": 3, "multi.b": 5}
    assert counts(subscribePattern="multi.>") == {"multi.a": 3, "multi.b": 5, "multi.b.x": 7}
    assert load(spark, region, subscribePattern="multi.>").rdd.getNumPartitions() == 1
    assert load(spark, region, subscribePattern="multi.>", minPartitions=9).count() == 15


def test_starting_and_ending_options(spark: SparkSession, region: Served) -> None:
    region.publish("bounds", [b"%d" % n for n in range(1, 101)])
    time.sleep(CLOCKS_DIFFER_S)
    between = datetime.now(UTC)
    between_ms = int(between.timestamp() * 1000) + 1
    time.sleep(CLOCKS_DIFFER_S)
    region.publish("bounds", [b"%d" % n for n in range(101, 201)])

    def span(**options: Any) -> tuple[int, int] | None:
        seqs = [row.seq for row in load(spark, region, subscribe="bounds", **options).collect()]
        assert seqs == list(range(seqs[0], seqs[-1] + 1)) if seqs else True
        return (seqs[0], seqs[-1]) if seqs else None

    assert span() == span(startingOffsets="earliest", endingOffsets="latest") == (1, 200)
    assert span(startingOffsets='{"bounds": 50}') == (50, 200)
    assert span(startingOffsets='{"bounds": 50}', endingOffsets='{"bounds": 60}') == (50, 59)
    assert span(endingOffsets='{"bounds": -1}', startingOffsets='{"bounds": -2}') == (1, 200)
    assert span(startingOffsets="latest") is None
    assert span(startingOffsets='{"bounds": 201}') is None
    assert span(startingTimestamp=between_ms) == (101, 200)
    assert span(endingTimestamp=between_ms) == (1, 100)
    by_stream = f'{{"bounds": {between_ms}}}'
    assert span(startingOffsetsByTimestamp=by_stream) == (101, 200)
    assert span(endingOffsetsByTimestamp=by_stream, startingOffsets='{"bounds": 99}') == (99, 100)


def test_filters_make_ranges_narrower(spark: SparkSession, region: Served) -> None:
    region.publish("push.a", [b"%d" % n for n in range(1, 1_001)])
    time.sleep(CLOCKS_DIFFER_S)
    between = datetime.now(UTC)
    time.sleep(CLOCKS_DIFFER_S)
    region.publish("push.a", [b"%d" % n for n in range(1_001, 2_001)])
    region.publish("push.b", [b"x"] * 500)
    switch = "spark.sql.python.filterPushdown.enabled"
    assert spark.conf.get(switch) == "true"  # as set by `spark_session`
    table = load(spark, region, subscribePattern="push.>", pushFilters=True)
    try:
        some = table.where("stream = 'push.a' and seq > 10 and seq <= 20")
        assert [row.seq for row in some.collect()] == list(range(11, 21))
        plan = some._jdf.queryExecution().executedPlan().toString()
        assert "Filter (" not in plan  # all filters were pushed down
        assert table.where("stream in ('push.b', 'nobody')").count() == 500
        assert table.where("stream like 'push.%'").count() == 2_500
        assert table.where("stream = 'nobody'").count() == 0
        assert table.where("seq >= 100 and seq < 50").count() == 0
        late = table.where((F.col("timestamp") >= between) & (F.col("stream") == "push.a"))
        assert [row.seq for row in late.collect()] == list(range(1_001, 2_001))
        early = table.where((F.col("timestamp") < between) & (F.col("stream") == "push.a"))
        assert [row.seq for row in early.collect()] == list(range(1, 1_001))
        rest = table.where("stream = 'push.a' and value = '77' and kind = 'event'")
        assert [row.seq for row in rest.collect()] == [77]
        voids = load(spark, region, subscribe="push.a", includeVoids=True, pushFilters=True)
        assert voids.where(F.col("timestamp") >= between).count() == 1_000
        spark.conf.set(switch, "false")  # Spark's default: the same rows, but slower
        some = load(spark, region, subscribe="push.a", pushFilters=True).where("seq > 1990")
        assert some.count() == 10
        assert "Filter (" in some._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.set(switch, "true")


def test_a_filter_does_not_change_its_table(spark: SparkSession, region: Served) -> None:
    """Spark stores the effect of a pushed-down filter with the table."""
    region.publish("whole", [b"%d" % n for n in range(1, 101)])
    table = load(spark, region, subscribe="whole")
    one = table.where("seq = 7")
    assert table.union(one).count() == 101
    assert one.count() == 1
    assert table.count() == 100
    assert sorted(row.seq for row in one.union(table.where("seq = 9")).collect()) == [7, 9]
    region.publish("whole", [b"more"])
    assert table.count() == 100, "the events that existed at its first use"
    assert load(spark, region, subscribe="whole").count() == 101


def test_only_selected_columns_are_read(spark: SparkSession, region: Served) -> None:
    region.publish("narrow", [b"a", b"b"], [b"k", None])
    table = load(spark, region, subscribe="narrow", columns="value,key")
    assert table.columns == ["key", "value"]
    assert [tuple(row) for row in table.collect()] == [(b"k", b"a"), (None, b"b")]
    voids = load(spark, region, subscribe="narrow", columns="range", includeVoids=True)
    assert [tuple(row) for row in voids.collect()] == [(1,), (1,)]


def test_an_empty_stream_is_an_empty_table(spark: SparkSession, region: Served) -> None:
    region.publish("empty", [])
    assert load(spark, region, subscribe="empty").count() == 0
    assert load(spark, region, subscribe="empty", includeVoids=True).collect() == []


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "bad", "startingOfsets": "latest"}, ["startingOffsets"]),
        ({"subscribe": "bad", "subscribePattern": "x"}, ["subscribe and subscribePattern"]),
        ({"subscribe": "bad", "startingOffsets": "{oops"}, ["startingOffsets", "JSON"]),
        ({"subscribe": "bad", "failOnDataLoss": "perhaps"}, ["failOnDataLoss"]),
        ({"subscribe": "bad", "includeVoids": "perhaps"}, ["includeVoids"]),
        ({"subscribe": "bad", "url": "http://x"}, ["option url", "surecast://"]),
    ],
    ids=str,
)
def test_invalid_options_are_refused_by_load(
    spark: SparkSession, region: Served, options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(Exception) as refused:
        load(spark, region, **options)
    for word in words:
        assert word in str(refused.value)


def test_missing_streams_are_an_error(spark: SparkSession, region: Served) -> None:
    region.publish("there", [b"1"])
    message = refusal(lambda: load(spark, region, subscribe="there,thare"))
    assert "option subscribe" in message
    assert "'thare'" in message
    assert "Its streams include there" in message
    message = refusal(lambda: load(spark, region, subscribePattern="nowhere.>"))
    assert "option subscribePattern" in message
    assert "'nowhere.>'" in message


def test_missing_positions_are_an_error(spark: SparkSession, region: Served) -> None:
    region.publish("short", [b"1", b"2", b"3"])
    message = refusal(
        lambda: load(spark, region, subscribe="short", startingOffsets='{"short": 9}')
    )
    assert "option startingOffsets" in message
    assert "no position 9" in message
    message = refusal(lambda: load(spark, region, subscribe="short", endingOffsets='{"short": 9}'))
    assert "option endingOffsets" in message
    message = refusal(
        lambda: load(
            spark,
            region,
            subscribe="short",
            startingOffsets='{"short": 3}',
            endingOffsets='{"short": 2}',
        )
    )
    assert "option startingOffsets" in message
    assert "endingOffsets" in message


def test_a_region_that_does_not_answer_is_an_error(spark: SparkSession, region: Served) -> None:
    message = refusal(lambda: load(spark, region, url="surecast://127.0.0.1:1", subscribe="x"))
    assert "option url" in message
    assert "no server listens there" in message


def test_a_wrong_token_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with Served(tmp_path / "data", token="sesame") as guarded:
        guarded.publish("orders", [b"1", b"2"])
        assert load(spark, guarded, subscribe="orders", token="sesame").count() == 2
        for wrong in ({}, {"token": "simsim"}):
            message = refusal(lambda w=wrong: load(spark, guarded, subscribe="orders", **w))
            assert "option token" in message
            assert "node.token" in message


def test_a_schema_given_by_the_user_is_refused(spark: SparkSession, region: Served) -> None:
    region.publish("fixed", [b"1"])
    reader = spark.read.format("surecast").schema("value string")
    message = refusal(lambda: reader.options(url=region.url, subscribe="fixed").load())
    assert ".schema(" in message
