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
    """What a query has written, batch by batch; a batch that comes again replaces itself."""

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
    """Queries on one checkpoint, one after the other, and what they wrote."""

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

    def all_there_is(self) -> list[int]:
        """Read until the end of now; how many rows each batch had."""
        before = set(self.output.batches)
        query = self.start(availableNow=True)
        assert query.awaitTermination(120)
        return [len(some) for n, some in sorted(self.output.batches.items()) if n not in before]

    def until(self, done: Callable[[], Any], why: str) -> None:
        """Run a query until something holds."""
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


def test_available_now_reads_what_there_is_and_the_next_run_goes_on(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("orders", numbers(1, 1_000))
    work = runs(spark, region, tmp_path, subscribe="orders", startingOffsets="earliest")
    assert work.all_there_is() == [1_000]
    assert work.all_there_is() == []
    region.publish("orders", numbers(1_001, 1_500))
    assert work.all_there_is() == [500]
    wanted = [("orders", n, 1, b"%d" % n) for n in range(1, 1_501)]
    assert work.output.rows() == wanted


def test_no_more_than_so_many_at_a_time(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("a", numbers(1, 900))
    region.publish("b", numbers(1, 100))
    work = runs(
        spark, region, tmp_path, subscribe="a,b", startingOffsets="earliest",
        maxOffsetsPerTrigger=300,
    )  # fmt: skip
    assert work.all_there_is() == [300, 300, 300, 100]
    assert work.output.seqs("a") == list(range(1, 901))
    assert work.output.seqs("b") == list(range(1, 101))
    assert {name for name, *_ in work.output.batches[0]} == {"a", "b"}


def test_what_is_void_does_not_count_against_the_limit(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("kept", numbers(1, 5_000), retain=surecast.keep_last(100))
    wait_for(lambda: region.seen_by_retention("kept") > 1 or _look(region, "kept"))
    work = runs(
        spark, region, tmp_path, subscribe="kept", startingOffsets="earliest",
        maxOffsetsPerTrigger=60,
    )  # fmt: skip
    sizes = work.all_there_is()
    assert sum(sizes) >= 100
    assert len(sizes) <= 5  # and not 5,000 / 60
    assert work.output.seqs("kept")[-100:] == list(range(4_901, 5_001))


def _look(region: Served, name: str) -> bool:
    """Somebody reads: then retention has looked, too."""
    with region.client() as client:
        next(iter(client.stream(name).subscribe(start="earliest")))
    return region.seen_by_retention(name) > 1


def test_a_running_query_meets_what_is_published_and_streams_that_appear(
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


def offset(query: StreamingQuery, which: str) -> dict[str, Any]:
    progress = query.lastProgress
    assert progress is not None
    found: dict[str, Any] = json.loads(progress["sources"][0][which])
    return found


def test_voids_come_too_when_they_are_asked_for(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    keys = [b"%d" % (n % 5) for n in range(500)]
    region.publish("keyed", numbers(1, 500), keys, retain=surecast.latest_per_key())
    work = runs(
        spark, region, tmp_path, subscribe="keyed", startingOffsets="earliest", includeVoids=True
    )
    work.all_there_is()
    check_voids(work.output.rows(), 500, 5)


def check_voids(rows: list[tuple[str, int, int, bytes | None]], last: int, kept: int) -> None:
    """Positions 1 to `last` once each, as events or void ranges. The last `kept` events are there,
    and most of what retention has declared obsolete is not."""
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
        [("s", 9, 9, None), *NO_VOIDS[9:]],  # one of the events that are kept is void
        [("s", 8, 8, b"8"), *NO_VOIDS[8:]],
        [("s", 8, 8, None), *NO_VOIDS[8:9]],
    ],
)
def test_rows_without_voids_are_noticed(rows: list[tuple[str, int, int, bytes | None]]) -> None:
    check_voids([("s", 8, 8, None), *NO_VOIDS[8:]], 10, 2)
    with pytest.raises(AssertionError):
        check_voids(rows, 10, 2)


# ---------------------------------------------------------------- void, late and lost


def test_what_retention_removed_never_fails_a_query(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    """Half is read; of the other half most is gone when the query comes back: all accounted for."""
    region.publish("orders", numbers(1, 100), retain=surecast.keep_last(50))
    work = runs(spark, region, tmp_path, subscribe="orders", startingOffsets="earliest")
    work.all_there_is()
    region.publish("orders", numbers(101, 20_000))
    wait_for(lambda: region.segments() > 0, "nothing left the journal")
    region.stop()
    region.start()
    work.all_there_is()
    assert work.output.seqs("orders")[-50:] == list(range(19_951, 20_001))
    assert len(set(work.output.seqs("orders"))) == len(work.output.seqs("orders"))


def test_a_stream_that_a_restarted_query_is_told_of_must_be_there(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("orders", numbers(1, 5))
    region.publish("trades", numbers(1, 3))
    work = runs(spark, region, tmp_path, subscribe="orders", startingOffsets="earliest")
    work.all_there_is()
    work.options["subscribe"] = "orders,tradez"
    said = failure(work)
    assert "option subscribe" in said
    assert "'tradez'" in said
    assert "trades" in said
    work.options["subscribe"] = "orders,trades"
    work.all_there_is()
    assert work.output.seqs("trades") == [1, 2, 3]


def failure(work: Runs) -> str:
    query = work.start(availableNow=True)
    with pytest.raises(Exception) as failed:
        query.awaitTermination(120)
    return str(failed.value)


def test_what_was_destroyed_fails_a_query_unless_it_may_go_on(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    """An old copy of the disk is put back: a stream is shorter, one gone and one made anew."""
    streams = ("shorter", "gone", "anew")
    region.publish("shorter", numbers(1, 50))
    region.keep(tmp_path / "backup")
    region.publish("shorter", numbers(51, 100))
    region.publish("gone", numbers(1, 100))
    region.publish("anew", numbers(1, 100))
    subscribed = ",".join(streams)
    work = runs(spark, region, tmp_path, subscribe=subscribed, startingOffsets="earliest")
    work.all_there_is()
    assert len(work.output.rows()) == 300
    region.restore(tmp_path / "backup")
    region.publish("shorter", [b"new"])  # at 51, which the query has seen as something else
    region.publish("anew", numbers(1, 7))
    said = failure(work)
    assert "data was lost" in said
    for stream in streams:
        assert f"'{stream}'" in said
    assert said.count("position 100") >= len(streams)
    assert "failOnDataLoss=false" in said
    work.options["failOnDataLoss"] = "false"
    work.output.batches.clear()
    work.all_there_is()
    found = {stream: work.output.seqs(stream) for stream in streams}
    assert found == {"shorter": [], "gone": [], "anew": [1, 2, 3, 4, 5, 6, 7]}
    for stream in streams:
        region.publish(stream, [b"go", b"on"])
    work.all_there_is()
    for stream in streams:
        assert work.output.values(stream)[-2:] == [b"go", b"on"], stream


def test_a_query_restarted_in_another_region_goes_on_at_the_same_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And back again; a region that is behind is waited for, not taken for a loss."""
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
        assert sum(work.all_there_is()) == 1_000
        publish(1_001, 1_500)
        work.options["url"] = west.url
        work.until(lambda: len(work.output.rows()) >= 1_500, "west did not catch up")
        cluster.kill(west.name)
        publish(1_501, 1_700)
        work.options["url"] = east.url
        assert sum(work.all_there_is()) == 200
        cluster.start(west.name)  # behind at first: what it will have is not lost
        cluster.wait_ready(60)
        work.options["url"] = west.url
        publish(1_701, 1_800)
        work.until(lambda: len(work.output.rows()) >= 1_800, "west did not catch up")
    assert work.output.rows() == [("orders", n, 1, b"%d" % n) for n in range(1, 1_801)]


def test_a_query_goes_on_when_its_server_is_killed(spark: SparkSession, tmp_path: Path) -> None:
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
            query.processAllAvailable()  # the other one answers
            at = len(work.output.rows())
            cluster.start(nodes[0].name)  # one alone takes no publishes
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


# ---------------------------------------------------------------- what is refused


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
def test_a_reader_that_cannot_be_says_why(
    tmp_path: Path, options: dict[str, str], words: list[str]
) -> None:
    """By what Spark calls first; that a refusal reaches the user is the next test's."""
    with Served(tmp_path / "data", token="right") as region:
        region.publish("orders", numbers(1, 3))
        given = {"url": region.url, "token": "right", **options}
        with pytest.raises(SurecastError) as refused:
            StreamReader(parse(given, streaming=True)).initialOffset()
        for word in words:
            assert word in str(refused.value)


def test_a_query_that_cannot_be_says_why(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    said = failure(runs(spark, region, tmp_path, subscribe="nobody"))
    assert "option subscribe" in said
    assert "'nobody'" in said


def test_a_checkpoint_of_another_source_is_recognised(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("orders", numbers(1, 3))
    work = runs(spark, region, tmp_path, subscribe="orders", startingOffsets="earliest")
    work.all_there_is()
    log = sorted(path for path in (work.checkpoint / "offsets").iterdir() if path.name.isdigit())
    lines = log[-1].read_text().splitlines()
    lines[-1] = '{"orders": {"0": 3}}'
    log[-1].write_text("\n".join(lines))
    (log[-1].parent / f".{log[-1].name}.crc").unlink(missing_ok=True)
    assert "checkpointLocation of its own" in failure(work)
