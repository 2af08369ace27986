"""The sink through Spark: rows are written to streams exactly once; invalid writes are refused."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

import surecast.sync
from surecast.client.events import Event
from surecast.columns.batch import Batch
from surecast.errors import SurecastError
from surecast.pipeline.sink import _commit, batch_writer, stream_writer
from surecast.pipeline.sink_options import SinkOptions
from surecast.pipeline.staging import ChunkRef, Intent, chunk_value
from surecast_lab.swarm.sink_rounds import delete_newest_commit, run_round

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


class Region:
    """A region in this process, and the contents of its streams."""

    def __init__(self) -> None:
        self.client = surecast.sync.local()
        local = self.client._inner._local
        assert local is not None
        self.url = local.url

    def writer(self, frame: "DataFrame", stream: str = "", **options: str) -> "DataFrameWriter":
        made = frame.write.format("surecast").option("url", self.url).mode("append")
        if stream:
            made = made.option("stream", stream)
        for name, value in options.items():
            made = made.option(name, value)
        return made

    def end(self, name: str) -> int:
        ends = self.client._loop.call(self.client._inner.ends(name))
        return ends[0][1] if ends else 0

    def read(self, name: str) -> list[Event]:
        found: list[Event] = []
        end = self.end(name)
        if end > 1:
            for event in self.client.subscribe(name, start="earliest", voids=True):
                if event.kind == "event":
                    found.append(event)
                if event.seq >= end - 1:
                    break
        return found

    def values(self, name: str) -> list[str]:
        return [event.value.decode() for event in self.read(name)]


@pytest.fixture(scope="module")
def region() -> Iterator[Region]:
    made = Region()
    yield made
    made.client.close()


def numbers(spark: "SparkSession", count: int, partitions: int = 3) -> "DataFrame":
    return spark.range(0, count, 1, partitions).selectExpr("cast(id AS string) AS value")


# ---------------------------------------------------------------- batch


def test_rows_are_published_in_the_order_of_their_partitions(
    spark: "SparkSession", region: Region
) -> None:
    region.writer(numbers(spark, 50_000), "ordered").save()
    assert region.values("ordered") == [str(n) for n in range(50_000)]
    region.writer(numbers(spark, 10), "ordered").save()
    assert region.end("ordered") == 50_011


def test_keys_tags_and_attributes_are_written(spark: "SparkSession", region: Region) -> None:
    frame = spark.sql(
        "SELECT X'00ff' AS value, 'k' AS key, map('tag', X'AB') AS attributes "
        "UNION ALL SELECT X'' AS value, null AS key, null AS attributes"
    ).coalesce(1)
    region.writer(frame, "tagged").save()
    found = [(e.value, e.key, e.attributes) for e in region.read("tagged")]
    assert sorted(found) == [(b"", None, {}), (b"\x00\xff", b"k", {"tag": b"\xab"})]
    region.writer(spark.sql("SELECT 'v' AS value, 'red' AS tag"), "tagged").save()
    assert region.read("tagged")[-1].attributes == {"tag": b"red"}


def test_rows_are_written_to_the_streams_they_name(spark: "SparkSession", region: Region) -> None:
    frame = spark.range(0, 999, 1, 2).selectExpr(
        "concat('many.', cast(id % 3 AS string)) AS stream", "cast(id AS string) AS value"
    )
    region.writer(frame).save()
    for n in range(3):
        assert region.values(f"many.{n}") == [str(i) for i in range(n, 999, 3)]


def test_the_option_stream_overrides_the_column(spark: "SparkSession", region: Region) -> None:
    frame = spark.sql("SELECT 'elsewhere' AS stream, 'v' AS value")
    region.writer(frame, "chosen").save()
    assert region.values("chosen") == ["v"]
    assert region.end("elsewhere") == 0


def test_a_stream_can_be_copied(spark: "SparkSession", region: Region) -> None:
    source = region.client.stream("original")
    source.publish_many(
        [b"%d" % n for n in range(100)],
        keys=[b"k%d" % (n % 7) if n % 3 else None for n in range(100)],
        tags=[b"t" if n % 5 else None for n in range(100)],
    )
    read = spark.read.format("surecast").option("url", region.url).option("subscribe", "original")
    region.writer(read.load(), "copied").save()
    wanted, found = (
        [(e.value, e.key, e.attributes) for e in region.read(name)]
        for name in ("original", "copied")
    )
    assert found == wanted


def test_large_events_are_written_up_to_the_limit(spark: "SparkSession", region: Region) -> None:
    frame = spark.sql("SELECT repeat('x', 8000000) AS value UNION ALL SELECT 'y'")
    region.writer(frame, "large").save()
    assert sorted(len(e.value) for e in region.read("large")) == [1, 8_000_000]
    too_large = spark.sql("SELECT repeat('x', 8388609) AS value")
    with pytest.raises(Exception, match="8,388,609 bytes"):
        region.writer(too_large, "large").save()


def test_a_job_without_rows_writes_nothing(spark: "SparkSession", region: Region) -> None:
    region.writer(numbers(spark, 10).where("value = 'none'"), "nothing").save()
    assert region.end("nothing") == 1


def test_a_job_with_a_query_id_is_done_once(spark: "SparkSession", region: Region) -> None:
    for _ in range(2):
        region.writer(numbers(spark, 100), "named", queryId="load-2026-11").save()
    assert region.end("named") == 101
    with pytest.raises(Exception, match="done before with 100 rows, now there are 101"):
        region.writer(numbers(spark, 101), "named", queryId="load-2026-11").save()
    assert region.end("named") == 101
    region.writer(numbers(spark, 100), "named", queryId="load-2026-12").save()
    assert region.end("named") == 201


def test_a_query_id_belongs_to_its_rows_in_any_order(spark: "SparkSession", region: Region) -> None:
    def load(day: str, numbered: "DataFrame") -> None:
        frame = numbered.selectExpr(
            f"concat('{day}', id) AS value", "if(id % 7 = 0, null, concat('k', id % 5)) AS key"
        )
        region.writer(frame, "days", queryId="load").save()

    load("monday", spark.range(0, 3000, 1, 1))
    wanted = region.values("days")
    load("monday", spark.range(2999, -1, -1, 3))
    with pytest.raises(Exception, match="'load' was done before with other rows, and none of"):
        load("tuesday", spark.range(0, 3000, 1, 1))
    assert region.values("days") == wanted


def test_a_query_part_belongs_to_its_rows(spark: "SparkSession", region: Region) -> None:
    def load(low: int, high: int, part: str) -> None:
        frame = numbers(spark, 100).where(f"value BETWEEN {low} AND {high}")
        region.writer(frame, "parts", queryId="load", queryPart=part).save()

    load(0, 9, "-1..9")
    load(10, 19, "9..19")
    load(10, 19, "9..19")
    with pytest.raises(Exception, match=r"'load', part 9\.\.19, was done before with other rows"):
        load(20, 29, "9..19")
    load(20, 29, "19..29")
    assert region.values("parts") == [str(n) for n in range(30)]


@pytest.mark.parametrize("query", [None, "named-half"])
def test_the_error_of_a_half_written_job_says_how_many_rows_are_published(
    region: Region, query: str | None
) -> None:
    options = SinkOptions(region.url, stream=f"half.{query}", query=query)
    staging, refs = region.client.stream(options.staging, retain=surecast.latest_per_key()), []
    for n in range(2):
        value = chunk_value(Batch.of(bytes(16), [b"%d" % n] * 3))
        refs.append(ChunkRef(staging.publish(value, key=b"q/%016x/chunk/w/%d" % (0, n)), 3, 0))
    refs[1] = refs[1]._replace(rows=4)  # makes the commit fail halfway
    intent = Intent("w", (f"half.{query}",), tuple(refs))
    with pytest.raises(SurecastError) as caught:
        _commit(options, "q", 0, intent, once=query is None)
    assert ("of 7 rows are published" in str(caught.value)) == (query is None)
    assert ("queryId" in str(caught.value)) == (query is None)
    assert "chunk" in str(caught.value)


def test_new_streams_get_the_retention_of_the_option(spark: "SparkSession", region: Region) -> None:
    region.writer(numbers(spark, 10, 1), "kept", retain="keep_last:3").save()
    assert region.client.stream("kept").retain == surecast.keep_last(3)
    region.writer(numbers(spark, 10, 1), "kept", retain="latest_per_key").save()


def test_a_failed_job_publishes_nothing(spark: "SparkSession", region: Region) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr(
        "if(id < 900, cast(id AS string), raise_error('no more')) AS value"
    )
    with pytest.raises(Exception, match="no more"):
        region.writer(frame, "failed").save()
    assert region.end("failed") == 1
    region.writer(numbers(spark, 5, 1), "failed").save()
    assert region.values("failed") == ["0", "1", "2", "3", "4"]


# ---------------------------------------------------------------- errors


# Columns and options (without `url`) that are refused. That a refusal reaches the driver is tested
# once for a writer and once for a task; the other tests call the functions that Spark calls.
REFUSED = [
    ({"id": LongType()}, {"stream": "bad"}, "column `id` .* has no place in an event"),
    ({"value": LongType()}, {"stream": "bad"}, "column `value` is bigint"),
    ({"value": StringType()}, {"stream": "b a d"}, "option stream"),
    ({"value": StringType()}, {"stream": "bad", "rateain": "x"}, "unknown option rateain"),
    ({"value": StringType()}, {"stream": "bad", "retain": "some"}, "option retain"),
    ({"value": StringType()}, {"stream": "bad", "createStreams": "false"}, "option createStreams"),
    ({"value": StringType()}, {"stream": "bad", "url": "surecast://127.0.0.1:1"}, "option url"),
]


def schema_of(columns: Mapping[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(("columns", "options", "reason"), REFUSED)
def test_an_invalid_writer_is_refused(
    region: Region, columns: dict[str, DataType], options: dict[str, str], reason: str
) -> None:
    with pytest.raises(SurecastError, match=f"(?s){reason}"):
        batch_writer({"url": region.url, **options}, schema_of(columns), overwrite=False)
    assert region.end("bad") == 0


@pytest.mark.parametrize(
    ("select", "options", "reason"),
    [
        ("'v' AS value", {}, "option stream is missing"),
        ("cast(null AS string) AS value", {"stream": "null"}, "rows have no value"),
    ],
    ids=["the writer", "a task"],
)
def test_a_refusal_reaches_the_driver(
    spark: "SparkSession", region: Region, select: str, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=f"(?s){reason}"):
        region.writer(spark.range(3).selectExpr(select), **options).save()


def test_a_stream_cannot_be_overwritten(spark: "SparkSession", region: Region) -> None:
    with pytest.raises(Exception, match="a stream only grows"):
        region.writer(numbers(spark, 3), "bad").mode("overwrite").save()


# ---------------------------------------------------------------- streaming


class Query:
    """A streaming query over a folder of files, with one file per batch."""

    def __init__(self, spark: "SparkSession", region: Region, folder: Path, stream: str) -> None:
        self.spark, self.region, self.folder, self.stream = spark, region, folder, stream
        (folder / "input").mkdir(parents=True)
        self.files = 0

    def add(self, count: int) -> None:
        for _ in range(count):
            rows = [str(n) for n in range(self.files * 50, (self.files + 1) * 50)]
            file = self.folder / "input" / f"{self.files:03d}.txt"
            file.write_text("\n".join(rows))
            os.utime(file, (1_600_000_000 + self.files,) * 2)  # the order in which they are read
            self.files += 1

    def start(self, **options: str) -> Any:
        rows = self.spark.readStream.option("maxFilesPerTrigger", 1).text(
            str(self.folder / "input")
        )
        writer = rows.repartition(3).writeStream.format("surecast").option("url", self.region.url)
        for name, value in {"stream": self.stream, **options}.items():
            writer = writer.option(name, value)
        checkpoint = str(self.folder / "checkpoint")
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def run(self) -> None:
        self.start().awaitTermination()

    def judge(self) -> None:
        assert Counter(self.region.values(self.stream)) == Counter(
            str(n) for n in range(self.files * 50)
        )


def test_a_query_writes_every_row_once_over_restarts(
    spark: "SparkSession", region: Region, tmp_path: Path
) -> None:
    query = Query(spark, region, tmp_path, "live")
    query.add(3)
    query.run()
    query.judge()
    query.add(2)
    query.run()
    query.judge()
    # Like after a crash between the sink's commit and Spark's own: the batch is repeated, with
    # another distribution of rows, and ignored.
    assert delete_newest_commit(tmp_path / "checkpoint") == "4"
    query.run()
    query.judge()
    query.add(1)
    query.run()
    query.judge()
    values = region.values("live")  # batches are in order, rows within a batch need not be
    assert [int(v) // 50 for v in values] == [n // 50 for n in range(300)]


def test_two_queries_can_write_to_one_stream(
    spark: "SparkSession", region: Region, tmp_path: Path
) -> None:
    queries = [Query(spark, region, tmp_path / name, "shared") for name in ("a", "b")]
    for query in queries:
        query.add(3)
    for running in [query.start() for query in queries]:
        running.awaitTermination()
    assert Counter(region.values("shared")) == Counter([str(n) for n in range(150)] * 2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"queryId": "x"}, "option queryId is for df.write"),
        ({"url": "surecast://127.0.0.1:1"}, "option url"),
        ({"retain": "x"}, "option retain"),
    ],
)
def test_an_invalid_writer_of_a_query_is_refused(
    region: Region, options: dict[str, str], reason: str
) -> None:
    columns = schema_of({"value": StringType()})
    given = {"url": region.url, "stream": "refused", **options}
    with pytest.raises(SurecastError, match=reason):
        stream_writer(given, columns, overwrite=False)


def test_a_query_that_cannot_write_ends_with_the_reason(
    spark: "SparkSession", region: Region, tmp_path: Path
) -> None:
    query = Query(spark, region, tmp_path, "refused")
    query.add(1)
    with pytest.raises(Exception, match="option queryId is for"):
        query.start(queryId="x").awaitTermination()


def test_output_mode_complete_is_refused(
    spark: "SparkSession", region: Region, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    counts = rows.groupBy("value").count().selectExpr("cast(value AS string) AS value")
    writer = counts.writeStream.format("surecast").option("url", region.url)
    query = writer.option("stream", "c").outputMode("complete")
    with pytest.raises(Exception, match="a stream only grows"):
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()


# ---------------------------------------------------------------- killed drivers


@pytest.mark.nightly
@pytest.mark.slow
def test_rows_are_written_once_when_a_driver_is_killed(tmp_path: Path) -> None:
    """`make torture` runs many; here the driver is killed during the rows of a batch."""
    result = run_round(5, tmp_path, strikes=1, kinds=("rows",), batches=3)
    print(result)
    assert result.violations == []
    assert result.kills == 1
