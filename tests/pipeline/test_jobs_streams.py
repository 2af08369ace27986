"""archive, replay and top-keys: jobs that read or write streams of a real region."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from typer.testing import CliRunner

from surecast import keep_last, latest_per_key
from surecast.cli.main import app
from surecast.errors import UsageError
from surecast.pipeline.jobs.archive import archive, read
from surecast.pipeline.jobs.compact import compact
from surecast.pipeline.jobs.replay import replay
from surecast.pipeline.jobs.top_keys import TopKey, top_keys
from surecast.pipeline.progress import RowsOf
from surecast.pipeline.rows import DDL
from tests.pipeline.regions import Served, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("region")) as served:
        yield served


def options(region: Served, **more: str) -> dict[str, str]:
    return {"url": region.url, "startingOffsets": "earliest", **more}


def values_of(region: Served, name: str, count: int) -> list[tuple[bytes | None, bytes]]:
    """All events of a stream; checks that there are `count`."""
    with region.client() as client:
        last = client.stream(name).publish(b"end")
        found = []
        for event in client.stream(name).subscribe(start="earliest"):
            if event.seq == last:
                break
            found.append((event.key, event.value))
    assert len(found) == count
    return found


def test_an_archive_covers_every_position_once_and_can_be_continued(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    for name in ("arch.a", "arch.b"):
        region.publish(
            name, [b"%d" % i for i in range(500)], [b"k%d" % (i % 7) for i in range(500)]
        )
    region.publish("arch.newest", [b"1", b"2", b"3"], [b"k"] * 3, retain=latest_per_key())
    wanted = options(region, subscribePattern="arch.>")
    first = archive(spark, lake, wanted)
    assert first >= 1001
    assert archive(spark, lake, wanted) == 0, "nothing is new"
    region.publish("arch.a", [b"more"])
    region.publish("arch.later", [b"x"])
    assert archive(spark, lake, wanted) == 2
    rows = read(spark, lake)
    assert rows.columns[:3] == ["stream", "seq", "kind"]
    covered: dict[str, list[int]] = {}
    for row in rows.orderBy("stream", "seq").collect():
        covered.setdefault(row.stream, []).extend(range(row.seq - row.range + 1, row.seq + 1))
    assert {stream: len(seqs) for stream, seqs in covered.items()} == {
        "arch.a": 501, "arch.b": 500, "arch.newest": 3, "arch.later": 1,
    }  # fmt: skip
    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in covered.values())
    assert rows.where("stream = 'arch.a' and seq = 501").first().value == b"more"
    folders = {path.name for path in (tmp_path / "lake").glob("stream=*/day=*")}
    assert folders, "partitioned by stream and day"


def test_rows_are_counted_although_spark_forgets_old_batches() -> None:
    class Query:
        recentProgress: ClassVar[list[dict[str, int]]] = []

    rows, query = RowsOf(), cast(Any, Query())
    for first in range(5):
        query.recentProgress = [
            {"batchId": first, "numInputRows": 10},
            {"batchId": first + 1, "numInputRows": 0},  # an idle trigger
        ]
        assert rows.count(query) == 10 * (first + 1)
        assert rows.count(query) == 10 * (first + 1)


def test_streams_with_numeric_names_are_kept_separate(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    region.publish("7", [b"seven"])
    region.publish("007", [b"bond", b"bond"])
    archive(spark, lake, options(region, subscribe="7,007"))
    rows = read(spark, lake).groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in rows} == {"7": 1, "007": 2}
    words = ["pipeline", "replay", lake, "--stream", "007", "--to", "agents", "--url", region.url]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert values_of(region, "agents", 2) == [(None, b"bond")] * 2


def test_rows_of_other_tables_can_be_replayed(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    table = spark.createDataFrame([(2, "b"), (1, "a")], "seq long, value string")
    table.write.parquet(str(tmp_path / "plain"))
    words = ["replay", str(tmp_path / "plain"), "--to", "plain.to", "--url", region.url]
    done = CliRunner().invoke(app, ["pipeline", *words])
    assert done.exit_code == 0, done.output
    assert values_of(region, "plain.to", 2) == [(None, b"a"), (None, b"b")]


def test_a_replay_keeps_the_order_and_publishes_each_event_once(
    spark: SparkSession, region: Served
) -> None:
    events = [(b"k%d" % (i % 5), b"%05d" % i) for i in range(1000)]
    region.publish("rep.from", [value for _, value in events], [key for key, _ in events])
    rows = spark.read.format("surecast").options(**options(region, subscribe="rep.from")).load()
    target = {"url": region.url}
    progress: list[tuple[int, int]] = []
    done = replay(
        rows.where("seq <= 600"), "rep.to", target, name="again", positions=250,
        say=lambda *now: progress.append(now),
    )  # fmt: skip
    assert done == 600
    assert progress == [(249, 600), (499, 600), (600, 600)], "slices of positions 1-249, 250-499, …"
    assert replay(rows.where("seq < 500"), "rep.to", target, name="again", positions=250) == 499
    progress.clear()
    done = replay(
        rows, "rep.to", target, name="again", positions=250, say=lambda *now: progress.append(now)
    )
    assert done == 1000
    assert progress == [(600, 1000), (749, 1000), (999, 1000), (1000, 1000)]
    more = spark.range(0, 1002).selectExpr("id AS seq", "X'00' AS value")
    with pytest.raises(UsageError, match=r"1,000 events up to position 1000, .* have 1,001"):
        replay(more, "rep.to", target, name="again")
    assert values_of(region, "rep.to", 1000) == events


def test_a_replay_with_a_rate_is_never_early(spark: SparkSession, region: Served) -> None:
    region.publish("rate.from", [b"%d" % i for i in range(30)])
    rows = spark.read.format("surecast").options(**options(region, subscribe="rate.from")).load()
    clock = [0.0]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    replay(
        rows, "rate.to", {"url": region.url}, rate=5.0, sleep=sleep, now=lambda: clock[0],
    )  # fmt: skip
    assert waits == [pytest.approx(1.8), pytest.approx(2.0), pytest.approx(2.0)], "every 10 events"
    assert len(values_of(region, "rate.to", 30)) == 30


def test_ctrl_c_stops_an_archive_cleanly(
    spark: SparkSession, region: Served, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    region.publish("long", [b"%d" % n for n in range(300)])
    lake, wanted = str(tmp_path / "lake"), options(region, subscribe="long")

    def press() -> None:
        wait_for(lambda: (tmp_path / "lake" / "_checkpoint" / "commits" / "1").exists())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        archive(spark, lake, {**wanted, "maxOffsetsPerTrigger": "10"})
    thread.join()
    assert spark.streams.active == []
    output = "".join(capfd.readouterr())  # Spark's own Python may report the end of its task
    assert not any(word in output for word in ("reentrant", "Py4J", "KeyboardInterrupt"))
    some = read(spark, lake).count()
    assert 20 <= some < 300
    assert archive(spark, lake, wanted) == 300 - some
    assert [row.seq for row in read(spark, lake).orderBy("seq").collect()] == list(range(1, 301))


def test_an_archive_refuses_a_folder_where_rows_would_be_skipped(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    region.publish("into", [b"1", b"2"])
    wanted = options(region, subscribe="into")
    whole = tmp_path / "whole"
    assert archive(spark, str(whole), wanted) == 2
    for without in ("_checkpoint", "_spark_metadata"):
        torn = tmp_path / without
        shutil.copytree(whole, torn)
        shutil.rmtree(torn / without)
        with pytest.raises(UsageError, match=without):
            archive(spark, str(torn), wanted)
    other = tmp_path / "other"
    spark.range(3).write.parquet(str(other))
    with pytest.raises(UsageError, match="is not empty"):
        archive(spark, str(other), wanted)
    assert spark.read.parquet(str(other)).count() == 3
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        archive(spark, str(tmp_path / "file"), wanted)
    (tmp_path / "empty").mkdir()
    assert archive(spark, str(tmp_path / "empty"), wanted) == 2


def test_rows_that_cannot_be_replayed_are_refused(spark: SparkSession) -> None:
    plain = spark.createDataFrame([(b"v",)], "value binary")
    with pytest.raises(UsageError, match="no column seq"):
        replay(plain, "t", {})
    two = spark.createDataFrame(
        [("a", 1, b"v"), ("b", 1, b"v")], "stream string, seq long, value binary"
    )
    with pytest.raises(UsageError, match=r"several streams \(a, b\)"):
        replay(two, "t", {})
    for seq, kind, words in (
        (None, "long", "rows with seq NULL"),
        (-1, "int", "rows with seq -1"),
        (1.5, "double", "seq is of type double"),
    ):
        some = spark.createDataFrame([(seq, b"v")], f"seq {kind}, value binary")
        with pytest.raises(UsageError, match=words):
            replay(some, "t", {}, name="named")
    with pytest.raises(UsageError, match="rate=-1"):
        replay(two, "t", {}, rate=-1)


def test_a_window_is_not_reported_before_it_ends(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    keys = [b"a"] * 5 + [b"b"] * 3 + [b"c"]
    region.publish("top.x", [b"v"] * 9, keys)
    reported: list[TopKey] = []
    query = top_keys(
        spark, options(region, subscribe="top.x"), reported.extend, window="1 day",
        late="0 seconds", top=2, once=False, every="1 second", checkpoint=str(tmp_path / "place"),
    )  # fmt: skip
    try:
        query.processAllAvailable()
        assert reported == [], "the day is not over"
    finally:
        query.stop()


def test_ended_windows_are_reported_in_order(spark: SparkSession, region: Served) -> None:
    for key in (b"a", b"b", b"a", b"c"):
        region.publish("top.y", [b"v"], [key])
        time.sleep(0.02)
    reported: list[TopKey] = []
    query = top_keys(
        spark, options(region, subscribe="top.y"), reported.extend, window="10 milliseconds",
        late="0 seconds", every="1 second",
    )  # fmt: skip
    try:
        query.processAllAvailable()
        region.publish("top.y", [b"v"], [b"last"])  # moves the watermark beyond the earlier events
        query.processAllAvailable()
        query.processAllAvailable()
    finally:
        query.stop()
    assert [(row.rank, row.key, row.events) for row in reported][:3] == [
        (1, b"a", 1), (1, b"b", 1), (1, b"a", 1),
    ]  # fmt: skip


def test_the_most_frequent_keys_come_first(spark: SparkSession) -> None:
    from datetime import UTC, datetime

    from surecast.pipeline.jobs.top_keys import _ranked, counts

    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        ("event", "s", key, at + timedelta(seconds=second))
        for key, seconds in ((b"a", (0, 1, 2, 11)), (b"b", (3, 12, 13)), (b"c", (4,)))
        for second in seconds
    ]
    rows.append(("void", "s", None, at))
    schema = "kind string, stream string, key binary, timestamp timestamp"
    counted = counts(spark.createDataFrame(rows, schema), "10 seconds", "0 seconds")
    ranked = [TopKey(*row) for row in _ranked(counted, 2).collect()]
    assert [(row.rank, row.key, row.events) for row in ranked] == [
        (1, b"a", 3), (2, b"b", 1), (1, b"b", 2), (2, b"a", 1),
    ]  # fmt: skip
    assert ranked[2].begin - ranked[0].begin == timedelta(seconds=10)


# ---------------------------------------------------------------- lost positions


def test_lost_positions_are_an_error_or_a_row_in_every_job(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In batch reads, archives, compaction and replay."""
    with Served(tmp_path / "data") as region:
        region.publish("orders", [b"%06d" % n for n in range(1, 20_001)])
        ((lo, hi),) = region.damage("orders")
        region.forfeit("orders", lo, hi, "its only disk was damaged")
        strict = options(region, subscribe="orders")
        lenient = {**strict, "failOnDataLoss": "false"}
        words = f"positions {lo} to {hi - 1} of stream 'orders': its only disk was damaged"
        lost = ("orders", hi - 1, hi - lo, None, None, None, None)
        columns = ["stream", "seq", "range", "key", "value", "attributes", "timestamp"]

        def losses(rows: DataFrame) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in rows.where("kind = 'lost'").select(columns).collect()]

        table = spark.read.format("surecast").options(**strict).load()
        with pytest.raises(Exception, match=words):
            table.count()
        table = spark.read.format("surecast").options(**lenient).load()
        assert losses(table) == [lost]
        assert table.where("kind = 'event'").count() == 20_000 - (hi - lo)

        with pytest.raises(Exception, match=words):
            archive(spark, str(tmp_path / "strict"), strict)
        lake = str(tmp_path / "lake")
        assert archive(spark, lake, lenient) == 20_000 - (hi - lo) + 1
        kept = read(spark, lake)
        assert losses(kept) == [lost]
        with compact(kept, keep_last(10)) as compacted:
            left = compacted.orderBy("seq").collect()
        assert sum(row["range"] for row in left) == 20_000
        kinds = [row["kind"] for row in left if row["kind"] != "void"]
        assert kinds == ["lost", *["event"] * 10]

        rows = spark.createDataFrame(left, DDL)
        assert losses(rows) == [lost]
        assert replay(rows, "again", {"url": region.url}) == 10
        assert f"{hi - lo} positions of these rows were lost" in caplog.text
