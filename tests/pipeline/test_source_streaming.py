"""Streams in Spark, as streaming queries: every position once, wherever a query stops."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import surecast
from surecast import sync
from surecast.errors import SurecastError
from surecast.pipeline.options import parse
from surecast.pipeline.source import StreamReader
from surecast.server.cluster import Cluster
from surecast_lab.testing.deployment import free_layout
from tests.pipeline.regions import Served, wait_for


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as served:
        yield served


class Output:
    """The output of a query by batch; a repeated batch replaces its earlier output."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int, int, bytes | None]]] = {}

    def take(self, table: DataFrame, batch: int) -> None:
        self.batches[batch] = [
            (row.stream, row.seq, row.range, None if row.value is None else bytes(row.value))
            for row in table.collect()
        ]

    def rows(self) -> list[tuple[str, int, int, bytes | None]]:
        return [row for _, some in sorted(self.batches.items()) for row in some]

    def seqs(self, stream: str) -> list[int]:
        return [seq for name, seq, _, _ in self.rows() if name == stream]

    def values(self, stream: str) -> list[bytes | None]:
        return [value for name, _, _, value in self.rows() if name == stream]


class Runs:
    """Consecutive queries with one checkpoint, and their output."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path, **options: Any) -> None:
        self.spark = spark
        self.options = {"url": url, **{name: str(value) for name, value in options.items()}}
        self.checkpoint = checkpoint
        self.output = Output()

    def start(self, **trigger: Any) -> StreamingQuery:
        table = self.spark.readStream.format("surecast").options(**self.options).load()
        writer = table.writeStream.foreachBatch(self.output.take)
        return (
            writer.option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"processingTime": "50 milliseconds"}))
            .start()
        )

    def read_available(self) -> list[int]:
        """Read up to the present end; returns the number of rows of each batch."""
        before = set(self.output.batches)
        query = self.start(availableNow=True)
        assert query.awaitTermination(120)
        return [len(some) for n, some in sorted(self.output.batches.items()) if n not in before]

    def until(self, done: Callable[[], Any], why: str) -> None:
        """Run a query until `done()` is true."""
        query = self.start()
        try:
            wait_for(lambda: done() or query.exception() is not None, why)
            assert query.exception() is None, query.exception()
        finally:
            query.stop()


def runs(spark: SparkSession, region: Served, tmp_path: Path, **options: Any) -> Runs:
    return Runs(spark, region.url, tmp_path / "checkpoint", **options)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last + 1)]


def test_available_now_reads_up_to_the_end_and_the_next_run_continues(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("orders", numbers(1, 1_000))
    work = runs(spark, region, tmp_path, subscribe="orders", startingOffsets="earliest")
    assert work.read_available() == [1_000]
    assert work.read_available() == []
    region.publish("orders", numbers(1_001, 1_500))
    assert work.read_available() == [500]
    wanted = [("orders", n, 1, b"%d" % n) for n in range(1, 1_501)]
    assert work.output.rows() == wanted


def test_a_batch_has_at_most_max_offsets_per_trigger(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("a", numbers(1, 900))
    region.publish("b", numbers(1, 100))
    work = runs(
        spark, region, tmp_path, subscribe="a,b", startingOffsets="earliest",
        maxOffsetsPerTrigger=300,
    )  # fmt: skip
    assert work.read_available() == [300, 300, 300, 100]
    assert work.output.seqs("a") == list(range(1, 901))
    assert work.output.seqs("b") == list(range(1, 101))
    assert {name for name, *_ in work.output.batches[0]} == {"a", "b"}


def test_void_positions_do_not_count_against_the_limit(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("kept", numbers(1, 5_000), retain=surecast.keep_last(100))
    wait_for(lambda: region.seen_by_retention("kept") > 1 or _read_once(region, "kept"))
    work = runs(
        spark, region, tmp_path, subscribe="kept", startingOffsets="earliest",
        maxOffsetsPerTrigger=60,
    )  # fmt: skip
    sizes = work.read_available()
    assert sum(sizes) >= 100
    assert len(sizes) <= 5  # and not 5,000 / 60
    assert work.output.seqs("kept")[-100:] == list(range(4_901, 5_001))


def _read_once(region: Served, name: str) -> bool:
    """Read from the stream, which makes retention process it."""
    with region.client() as client:
        next(iter(client.stream(name).subscribe(start="earliest")))
    return region.seen_by_retention(name) > 1


def test_a_running_query_reads_new_events_and_new_streams(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("cache.a", numbers(1, 10))
    work = runs(spark, region, tmp_path, subscribePattern="cache.>")  # latest
    query = work.start()
    try:
        wait_for(lambda: query.lastProgress, "the query did not begin")
        region.publish("cache.a", numbers(11, 20))
        wait_for(lambda: work.output.seqs("cache.a")[-1:] == [20], "what was published")
        region.publish("cache.new.b", numbers(1, 5))
        region.publish("elsewhere", numbers(1, 5))
        wait_for(lambda: len(work.output.seqs("cache.new.b")) == 5, "the new stream")
        wait_for(lambda: set(offset(query, "latestOffset")) == {"cache.a", "cache.new.b"})
        assert offset(query, "latestOffset")["cache.a"]["next"] == 21
        assert offset(query, "endOffset")["cache.a"]["next"] == 21
    finally:
        query.stop()
    assert work.output.seqs("cache.a") == list(range(11, 21))
    assert work.output.seqs("cache.new.b") == [1, 2, 3, 4, 5]
    assert work.output.seqs("elsewhere") == []


def offset(query: StreamingQuery, name: str) -> dict[str, Any]:
    progress = query.lastProgress
    assert progress is not None
    found: dict[str, Any] = json.loads(progress["sources"][0][name])
    return found


def test_voids_are_read_with_include_voids(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    keys = [b"%d" % (n % 5) for n in range(500)]
    region.publish("keyed", numbers(1, 500), keys, retain=surecast.latest_per_key())
    work = runs(
        spark, region, tmp_path, subscribe="keyed", startingOffsets="earliest", includeVoids=True
    )
    work.read_available()
    check_voids(work.output.rows(), 500, 5)


def check_voids(rows: list[tuple[str, int, int, bytes | None]], last: int, kept: int) -> None:
    """Check that positions 1 to `last` occur once each, as events or in void ranges, that the last
    `kept` events are there, and that most obsolete events are not."""
    at = 1
    for _, seq, count, value in rows:
        assert seq - count + 1 == at
        at = seq + 1
        if value is not None:
            assert (count, value) == (1, b"%d" % seq)
    assert at == last + 1
    live = [seq for _, seq, _, value in rows if value is not None]
    assert live[-kept:] == list(range(last - kept + 1, last + 1))
    assert len(live) < last / 2, "hardly anything is void"


NO_VOIDS = [("s", n, 1, b"%d" % n) for n in range(1, 11)]


@pytest.mark.parametrize(
    "rows",
    [
        NO_VOIDS,
        NO_VOIDS[8:],  # void ranges are left out
        [("s", 8, 7, None), *NO_VOIDS[8:]],
        [("s", 9, 9, None), *NO_VOIDS[9:]],  # one of the kept events is void
        [("s", 8, 8, b"8"), *NO_VOIDS[8:]],
        [("s", 8, 8, None), *NO_VOIDS[8:9]],
    ],
)
def test_the_check_of_voids_fails_for_wrong_rows(
    rows: list[tuple[str, int, int, bytes | None]],
) -> None:
    check_voids([("s", 8, 8, None), *NO_VOIDS[8:]], 10, 2)
    with pytest.raises(AssertionError):
        check_voids(rows, 10, 2)


# ---------------------------------------------------------------- void, late and lost


def test_events_removed_by_retention_never_fail_a_query(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    """A part is read; most of the rest is void when the query continues."""
    region.publish("orders", numbers(1, 100), retain=surecast.keep_last(50))
    work = runs(spark, region, tmp_path, subscribe="orders", startingOffsets="earliest")
    work.read_available()
    region.publish("orders", numbers(101, 20_000))
    wait_for(lambda: region.segments() > 0, "nothing left the journal")
    region.stop()
    region.start()
    work.read_available()
    assert work.output.seqs("orders")[-50:] == list(range(19_951, 20_001))
    assert len(set(work.output.seqs("orders"))) == len(work.output.seqs("orders"))


def test_a_stream_added_to_a_restarted_query_must_exist(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("orders", numbers(1, 5))
    region.publish("trades", numbers(1, 3))
    work = runs(spark, region, tmp_path, subscribe="orders", startingOffsets="earliest")
    work.read_available()
    work.options["subscribe"] = "orders,tradez"
    message = failure(work)
    assert "option subscribe" in message
    assert "'tradez'" in message
    assert "trades" in message
    work.options["subscribe"] = "orders,trades"
    work.read_available()
    assert work.output.seqs("trades") == [1, 2, 3]


def failure(work: Runs) -> str:
    query = work.start(availableNow=True)
    with pytest.raises(Exception) as failed:
        query.awaitTermination(120)
    return str(failed.value)


def test_lost_streams_and_positions_fail_a_query_unless_fail_on_data_loss_is_false(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    """An old copy of the disk is restored: a stream is shorter, one missing, one created again."""
    streams = ("shorter", "gone", "anew")
    region.publish("shorter", numbers(1, 50))
    region.back_up(tmp_path / "backup")
    region.publish("shorter", numbers(51, 100))
    region.publish("gone", numbers(1, 100))
    region.publish("anew", numbers(1, 100))
    subscribed = ",".join(streams)
    work = runs(spark, region, tmp_path, subscribe=subscribed, startingOffsets="earliest")
    work.read_available()
    assert len(work.output.rows()) == 300
    region.restore(tmp_path / "backup")
    region.publish("shorter", [b"new"])  # at 51, where the query has read another event
    region.publish("anew", numbers(1, 7))
    message = failure(work)
    assert "data was lost" in message
    for stream in streams:
        assert f"'{stream}'" in message
    assert message.count("position 100") >= len(streams)
    assert "failOnDataLoss=false" in message
    work.options["failOnDataLoss"] = "false"
    work.output.batches.clear()
    work.read_available()
    found = {stream: work.output.seqs(stream) for stream in streams}
    assert found == {"shorter": [], "gone": [], "anew": [1, 2, 3, 4, 5, 6, 7]}
    for stream in streams:
        region.publish(stream, [b"go", b"on"])
    work.read_available()
    for stream in streams:
        assert work.output.values(stream)[-2:] == [b"go", b"on"], stream


def test_a_query_restarted_in_another_region_continues_at_the_same_position(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And back again; a region that is behind is waited for and does not count as a loss."""
    layout = free_layout(tmp_path / "cluster", regions=2, replicas=1)
    with Cluster(layout) as cluster:
        cluster.wait_ready(60)
        east, west = (layout.of(name)[0] for name in ("east", "west"))

        def publish(first: int, last: int) -> None:
            with sync.connect(east.url) as client:
                client.stream("orders").publish_many(numbers(first, last))

        publish(1, 1_000)
        work = Runs(
            spark, east.url, tmp_path / "checkpoint", subscribe="orders",
            startingOffsets="earliest",
        )  # fmt: skip
        assert sum(work.read_available()) == 1_000
        publish(1_001, 1_500)
        work.options["url"] = west.url
        work.until(lambda: len(work.output.rows()) >= 1_500, "west did not catch up")
        cluster.kill(west.name)
        publish(1_501, 1_700)
        work.options["url"] = east.url
        assert sum(work.read_available()) == 200
        cluster.start(west.name)  # it is behind at first; the missing positions are not lost
        cluster.wait_ready(60)
        work.options["url"] = west.url
        publish(1_701, 1_800)
        work.until(lambda: len(work.output.rows()) >= 1_800, "west did not catch up")
    assert work.output.rows() == [("orders", n, 1, b"%d" % n) for n in range(1, 1_801)]


def test_a_query_continues_when_its_server_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    layout = free_layout(tmp_path / "cluster", regions=1, replicas=2)
    with Cluster(layout) as cluster:
        cluster.wait_ready(60)
        nodes = layout.of("east")
        both = "surecast://" + ",".join(node.listen for node in nodes)
        work = Runs(spark, both, tmp_path / "checkpoint", subscribe="orders", segments="never")
        over = threading.Event()
        published = [0]

        def publish() -> None:
            with sync.connect(both) as client:
                stream = client.stream("orders")
                while not over.is_set():
                    at = published[0]
                    stream.publish_many(numbers(at + 1, at + 500))
                    published[0] = at + 500
                    time.sleep(0.02)

        with sync.connect(both) as client:
            client.stream("orders")
        query = work.start()
        publisher = threading.Thread(target=publish)
        try:
            wait_for(lambda: query.lastProgress, "the query did not begin")
            publisher.start()
            wait_for(lambda: len(work.output.rows()) > 2_000, "what was published")
            cluster.kill(nodes[0].name)
            query.processAllAvailable()  # the other replica answers
            at = len(work.output.rows())
            cluster.start(nodes[0].name)  # one replica alone accepts no publishes
            wait_for(lambda: len(work.output.rows()) > at + 5_000, "what came after the kill")
            over.set()
            publisher.join()
            wait_for(lambda: len(work.output.rows()) >= published[0], "the rest")
        finally:
            over.set()
            query.stop()
            if publisher.is_alive():
                publisher.join()
    assert query.exception() is None
    assert work.output.seqs("orders") == list(range(1, published[0] + 1))


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "nobody"}, ["option subscribe", "'nobody'"]),
        ({"subscribePattern": "nobody.>"}, ["option subscribePattern", "'nobody.>'"]),
        ({"subscribe": "orders", "startingOffsets": '{"orders": 99}'}, ["startingOffsets", "99"]),
        ({"subscribe": "orders", "endingOffsets": "latest"}, ["endingOffsets", "availableNow"]),
        ({"subscribe": "orders", "url": "surecast://127.0.0.1:1"}, ["option url"]),
        ({"subscribe": "orders", "token": "wrong"}, ["option token"]),
    ],
    ids=str,
)
def test_an_invalid_reader_is_refused_with_the_reason(
    tmp_path: Path, options: dict[str, str], words: list[str]
) -> None:
    """Calls the method that Spark calls first; the next test checks that users see the error."""
    with Served(tmp_path / "data", token="right") as region:
        region.publish("orders", numbers(1, 3))
        given = {"url": region.url, "token": "right", **options}
        with pytest.raises(SurecastError) as refused:
            StreamReader(parse(given, streaming=True)).initialOffset()
        for word in words:
            assert word in str(refused.value)


def test_an_invalid_query_fails_with_the_reason(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    message = failure(runs(spark, region, tmp_path, subscribe="nobody"))
    assert "option subscribe" in message
    assert "'nobody'" in message


def test_a_checkpoint_of_another_source_is_recognised(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("orders", numbers(1, 3))
    work = runs(spark, region, tmp_path, subscribe="orders", startingOffsets="earliest")
    work.read_available()
    log = sorted(path for path in (work.checkpoint / "offsets").iterdir() if path.name.isdigit())
    lines = log[-1].read_text().splitlines()
    lines[-1] = '{"orders": {"0": 3}}'
    log[-1].write_text("\n".join(lines))
    (log[-1].parent / f".{log[-1].name}.crc").unlink(missing_ok=True)
    assert "Use another checkpointLocation for this query" in failure(work)
