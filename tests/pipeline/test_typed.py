"""Streams with a schema in Spark: filters, streaming queries, archive and replay; and what the
source does without a session when schemas differ, or positions are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import surecast
from surecast.columns.batch import Batch
from surecast.columns.rules import KeepAll, TagIs
from surecast.columns.schema import read_schema, schema_of
from surecast.endpoint.attributes import writer_of
from surecast.endpoint.ranges import RangeReader
from surecast.errors import SurecastError, UsageError
from surecast.pipeline.attributes import schema_in
from surecast.pipeline.fetch import read
from surecast.pipeline.jobs import archive
from surecast.pipeline.jobs.compact import Collected, compact
from surecast.pipeline.jobs.replay import replay
from surecast.pipeline.loss import DataLoss
from surecast.pipeline.options import parse as parse_options
from surecast.pipeline.region import Region
from surecast.pipeline.sink import Staged, _commit, intent_of
from surecast.pipeline.sink_options import SinkOptions
from surecast.pipeline.source import BatchReader, StreamReader, SurecastSource
from surecast.pipeline.staging import ChunkRef, Intent, chunk_key, chunk_value, staging_name
from surecast.pipeline.where import bound_filter, condition
from surecast.where.text import parse
from tests.pipeline.regions import Served, wait_for
from tests.pipeline.test_source import load
from tests.pipeline.test_source_streaming import Runs
from tests.where.twin import accepts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SCHEMA = (
    "sym string not null, px float64, n int64, at timestamp(ms), d decimal(10, 2), l list(date)"
)
START = datetime(2026, 11, 19, tzinfo=UTC)
LATER = SCHEMA + ", venue string"
WHERE = "sym == 'IBM' and not px > 50 and at < '2026-11-19T00:20:00Z' or key startswith 'k9'"


@pytest.fixture(scope="module")
def region(tmp_path_factory: Any) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("region") / "data") as served:
        yield served


def events(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "sym": ("IBM", "ü", "")[n % 3],
            "px": (None, float("nan"), -0.0, 49.5, 50.5)[n % 5],
            "n": n,
            "at": START + timedelta(seconds=n),
            "l": None if n % 4 else [START.date(), None],
            "key": b"k%d" % (n % 10),
            "tag": b"red" if n % 2 else None,
        }
        for n in range(first, first + count)
    ]


def publish(region: Served, name: str, first: int, count: int, each: int = 250) -> None:
    with region.client() as client:
        stream = client.stream(name, schema=SCHEMA)
        for at in range(first, first + count, each):
            stream.publish_many(events(at, min(each, first + count - at)))


def shown(rows: DataFrame) -> list[str]:
    """The rows as text, because NaN does not equal itself."""
    return [repr(row) for row in rows.orderBy("stream", "seq").collect()]


def oracle(rows: DataFrame) -> DataFrame:
    """The rows that pass WHERE, by a condition of Spark."""
    fields = {name: F.col(f"attributes.{name}") for name in read_schema(SCHEMA).names}
    bound = bound_filter(WHERE, read_schema(SCHEMA))
    return rows.where(condition(bound, {**fields, "key": F.col("key")}))


def contents(region: Served, name: str) -> tuple[str, list[str]]:
    """The schema of a stream, and its events without positions and times."""
    with region.client() as client:
        stream = client.stream(name)
        table = stream.read().select(["key", "value", "tag", "attributes"])
        assert stream.schema is not None
        return schema_of(stream.schema).text, [repr(row) for row in table.to_pylist()]


# ---------------------------------------------------------------- with a session


def test_the_option_where_gives_the_rows_of_df_where(spark: SparkSession, region: Served) -> None:
    publish(region, "trades", 0, 3_000)
    wait_for(lambda: region.positions_in_files("trades") > 1_000, "nothing left the journal")
    everything = load(spark, region, subscribe="trades", segments="never")
    assert everything.schema["attributes"].dataType.simpleString() == (
        "struct<sym:string,px:double,n:bigint,at:timestamp,d:decimal(10,2),l:array<date>>"
    )
    wanted = shown(oracle(everything))
    assert 300 < len(wanted) < 1_000
    assert shown(load(spark, region, subscribe="trades", where=WHERE)) == wanted


def test_a_streaming_query_with_where_reads_each_passing_event_once(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    publish(region, "live", 0, 700)
    work = Runs(
        spark, region.url, tmp_path / "checkpoint", subscribe="live", where=WHERE,
        startingOffsets="earliest", maxOffsetsPerTrigger=400,
    )  # fmt: skip
    work.read_available()
    passing = [
        n + 1 for n, event in enumerate(events(0, 700)) if accepts(parse(WHERE), twin(event))
    ]
    assert work.output.seqs("live") == passing
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    assert len(offsets) == 2
    assert '"next":701' in offsets[-1].read_text().replace(" ", "")  # all others are read, too


def twin(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "at": Fraction(int(event["at"].timestamp()))}


def test_an_archive_and_its_replay_keep_schema_and_positions(
    spark: SparkSession, region: Served, tmp_path: Path
) -> None:
    publish(region, "007", 0, 300)
    folder, options = str(tmp_path / "lake"), {"url": region.url, "subscribe": "007"}
    with pytest.raises(UsageError, match="archive takes no option where"):
        archive.follow(spark, folder, {**options, "where": "n > 1"})
    archive.archive(spark, folder, {**options, "startingOffsets": "earliest"})
    with region.client() as client:
        client.stream("007").change(schema=LATER)
    publish(region, "007", 300, 299)
    archive.archive(spark, folder, options)
    rows = archive.read(spark, folder)
    wanted = [*range(300), None, *range(300, 599)]  # by position; the change has no event
    found = [(row.seq, row.kind, row.range, n_of(row)) for row in rows.orderBy("seq").collect()]
    assert found == [
        (seq, "void" if n is None else "event", 1, n) for seq, n in enumerate(wanted, 1)
    ]
    assert replay(rows, "again", {"url": region.url}) == 599
    assert contents(region, "again") == contents(region, "007")
    with compact(rows, KeepAll(), [Collected(TagIs(b"red"))]) as left:
        kept = left.collect()  # the tags of odd numbers are red
        assert schema_in(left.schema["attributes"].dataType) == read_schema(LATER)
    assert sorted(n_of(row) for row in kept if row.kind == "event") == list(range(0, 599, 2))
    assert sum(row.range for row in kept if row.kind == "void" and row.attributes is None) == 300


def n_of(row: Row) -> int | None:
    return None if row.attributes is None else row.attributes.n


# ---------------------------------------------------------------- without a session


def source(region: Served, **options: str) -> SurecastSource:
    return SurecastSource({"url": region.url, **options})


def rows_of(partitions: list[InputPartition]) -> list[dict[str, Any]]:
    tasks = [replace(partition.value, patience_s=0.2) for partition in partitions]
    return [row for task in tasks for part in read(task) for row in part.to_pylist()]


def test_lost_positions_are_reported_whatever_the_filter(tmp_path: Path) -> None:
    schema = "n int64"
    with Served(tmp_path / "data") as region:
        with region.client() as client:
            stream = client.stream("holed", schema=schema)
            stream.publish_many(pa.table({"n": pa.array(range(1, 20_001), pa.int64())}))
        ((lo, hi),) = region.damage("holed")
        region.forfeit("holed", lo, hi, "a bad block")
        options = {"url": region.url, "subscribe": "holed", "where": "n < 0"}
        options |= {"includeVoids": "true"}
        with Region(region.url, "") as connection:
            wait_for(lambda: connection.expect(("holed",))["holed"].end == 20_001, "no loss known")
        with pytest.raises(DataLoss, match=f"positions {lo} to {hi - 1}"):
            rows_of(BatchReader(parse_options(options, streaming=False), schema).partitions())
        options |= {"failOnDataLoss": "false", "where": "n in (1, 20000)"}
        found = rows_of(BatchReader(parse_options(options, streaming=False), schema).partitions())
        at = 1
        for row in found:
            assert row["seq"] - row["range"] + 1 == at
            at = row["seq"] + 1
        assert at == 20_001
        assert [row["range"] for row in found if row["kind"] == "lost"] == [hi - lo]
        events = [row["attributes"]["n"] for row in found if row["kind"] == "event"]
        assert events == [n for n in (1, 20_000) if not lo <= n < hi]
        options |= {"includeVoids": "false", "where": "n < 0"}
        found = rows_of(BatchReader(parse_options(options, streaming=False), schema).partitions())
        assert [(row["kind"], row["seq"]) for row in found] == [("lost", hi - 1)]


def test_servers_send_hardly_more_than_the_events_that_pass(
    region: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(region, "selective", 0, 5_000, each=100)
    received: list[int] = []
    take_in = RangeReader._take_in

    def counted(reader: RangeReader, stream: bytes, batches: tuple[Batch, ...]) -> None:
        received.append(sum(batch.nbytes for batch in batches))
        take_in(reader, stream, batches)

    monkeypatch.setattr(RangeReader, "_take_in", counted)

    def read_all(**more: str) -> tuple[list[int], int]:
        options = {"url": region.url, "subscribe": "selective", "segments": "never", **more}
        reader = BatchReader(parse_options(options, streaming=False), SCHEMA)
        seqs = [row["seq"] for row in rows_of(reader.partitions())]
        nbytes, received[:] = sum(received), []
        return seqs, nbytes

    every, whole = read_all()
    assert every == list(range(1, 5_001))
    scattered = ", ".join(str(n) for n in range(0, 5_000, 50))
    for where, passing in {
        "n < 50 or n >= 4950": [*range(1, 51), *range(4_951, 5_001)],
        f"n in ({scattered})": list(range(1, 5_001, 50)),
    }.items():
        seqs, some = read_all(where=where)
        assert seqs == passing
        assert some <= (1.5 * len(passing) / 5_000 + 0.05) * whole, (some, whole)


def test_streams_of_different_schemas_have_no_common_column(region: Served) -> None:
    publish(region, "mixed.a", 0, 1)
    region.publish("mixed.b", [b"1"])
    with pytest.raises(UsageError, match=r"'mixed.b' has no schema.*own load.*option columns=str"):
        source(region, subscribePattern="mixed.*").schema()
    with pytest.raises(UsageError, match=r"'mixed.b' has no schema"):
        source(region, subscribePattern="mixed.*", columns="seq", where="n > 1").schema()
    found = source(region, subscribePattern="mixed.*", columns="seq,tag", where="exists key")
    assert found.schema() == "seq bigint not null, tag binary"
    assert isinstance(source(region, subscribe="mixed.a").schema(), StructType)


def test_columns_added_to_a_schema_are_null_in_streams_that_lack_them(region: Served) -> None:
    publish(region, "grown.new", 0, 10)
    with region.client() as client:
        old = client.stream("grown.old", schema="sym string not null, px float64")
        old.publish_many([{"sym": "IBM", "px": 1.0}] * 3)
    given = {"subscribePattern": "grown.*", "where": "sym == 'IBM' and not exists n"}
    columns = source(region, **given).schema()
    assert isinstance(columns, StructType)
    reader = source(region, **given).reader(columns)
    found = rows_of(reader.partitions())
    assert [(row["stream"], row["attributes"]["n"]) for row in found] == [("grown.old", None)] * 3


def test_a_stream_whose_schema_does_not_fit_the_query_ends_it(region: Served) -> None:
    """It appeared after `load()`, or has replaced another one."""
    publish(region, "late.a", 0, 5)
    options = parse_options({"url": region.url, "subscribePattern": "late.*"}, streaming=True)
    for loaded in ("", "sym int64"):
        with pytest.raises(UsageError, match=r"'late.a' has the schema.*Call load\(\) again"):
            StreamReader(options, loaded).initialOffset()
    query = StreamReader(options, SCHEMA)
    start = query.initialOffset()
    with region.client() as client:
        client.stream("late.b", schema="other int64").publish({"other": 1})
    with pytest.raises(UsageError, match="so they cannot have one column"):
        query.latestOffset(start, ReadAllAvailable())
    query.stop()


# ---------------------------------------------------------------- changes of the schema


def test_a_query_keeps_its_columns_when_the_schema_changes(region: Served) -> None:
    publish(region, "growing", 0, 10)
    given = {"subscribe": "growing", "where": "n >= 8"}
    before = source(region, **given).schema()
    assert isinstance(before, StructType)
    query = source(region, **given, startingOffsets="earliest").streamReader(before)
    start = query.initialOffset()
    with region.client() as client:
        stream = client.stream("growing")
        stream.change(schema=LATER)
        stream.publish({"sym": "later", "n": 100, "venue": "X"})
    end = query.latestOffset(start, ReadAllAvailable())
    for reader in (
        source(region, **given).reader(before).partitions,
        lambda: query.partitions(start, end),
    ):
        found = rows_of(reader())
        assert [row["seq"] for row in found] == [9, 10, 12]  # 11 is the change
        assert [*found[-1]["attributes"]] == list(read_schema(SCHEMA).names)
    query.stop()
    after = source(region, **given).schema()
    assert isinstance(after, StructType)
    found = rows_of(source(region, **given).reader(after).partitions())
    assert [row["attributes"]["venue"] for row in found] == [None, None, "X"]


def staged(region: Served, schema: str, target: str) -> Intent:
    """An intent for one staged row with this schema."""
    writer = writer_of(schema)
    assert writer is not None
    row = [None] * len(writer.schema.names)
    chunk = Batch.of(bytes(16), [b""], attributes=writer.attributes([("IBM", *row[1:])]))
    with region.client() as client:
        hidden = client.stream(staging_name(target), retain=surecast.latest_per_key())
        seq = hidden.publish(chunk_value(chunk), key=chunk_key("q", 0, "w", 0, 0, 0))
    return Intent("w", (target,), (ChunkRef(seq, 1, 0),), schemas=(schema,))


def test_rows_that_were_staged_before_a_change_of_the_schema_are_published(region: Served) -> None:
    publish(region, "sunk", 0, 1)
    intent = staged(region, SCHEMA, "sunk")
    with region.client() as client:
        client.stream("sunk").change(schema=LATER)
    _commit(SinkOptions(region.url, stream="sunk", query="q"), "q", 0, intent, once=False)
    schema, rows = contents(region, "sunk")
    assert schema == LATER
    assert len(rows) == 2
    assert "'venue': None" in rows[1]


def test_a_stream_that_does_not_exist_is_created_with_the_schema_of_its_rows(
    region: Served,
) -> None:
    intent = staged(region, SCHEMA, "created")
    _commit(SinkOptions(region.url, stream="created", query="q"), "q", 0, intent, once=False)
    assert contents(region, "created")[0] == SCHEMA


def test_rows_of_another_schema_are_not_published(region: Served) -> None:
    """The stream was created again meanwhile."""
    with region.client() as client:
        client.stream("other", schema="sym string not null, px int64")
    intent = staged(region, SCHEMA, "other")
    with pytest.raises(SurecastError, match=r"the rows were made for .*Nothing is published"):
        _commit(SinkOptions(region.url, stream="other", query="q"), "q", 0, intent, once=False)
    assert contents(region, "other")[1] == []


def test_tasks_that_saw_different_versions_agree_on_the_later_one() -> None:
    def task(schema: str) -> Staged:
        return Staged("q", 0, "w", 0, ("t",), (ChunkRef(1, 1, 0),), (schema,))

    for order in ((SCHEMA, LATER), (LATER, SCHEMA)):
        assert intent_of("w", list(map(task, order))).schemas == (LATER,)
    assert intent_of("w", [task(""), task("")]).schemas == ()
    with pytest.raises(SurecastError, match="'t' was replaced while"):
        intent_of("w", [task(SCHEMA), task("other int64")])
