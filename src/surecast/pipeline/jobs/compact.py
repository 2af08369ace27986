"""Applies retention rules to an archive: keeps live events, writes void ranges for the rest.

    with compact(archive.read(spark, "/archive"), latest_per_key()) as kept:
        kept.write.parquet("/archive-compacted")

The input has the columns of `surecast.pipeline.rows`. The result covers exactly the positions of
the input: it has the live events, and one void row for each maximal run of positions without a live
event. Rows of kind `lost` stay as they are, whatever the rules, because it is not known which
events were there. The rules have the same meaning as in a live stream (columns/retention.py),
applied to the whole archive:

    latest_per_key   removes an event with a key if a later event has the same key
    keep_last(n)     removes all but the newest n positions of a stream
    keep_for(age)    removes events published longer than `age` before `now`
    a collect rule   removes the events it matches, below its own position if it has one

Times are compared in whole microseconds, the precision of Spark. A rule's time is rounded down, so
that no event is removed that the live stream would keep.

An archive is refused if it has no row, or several rows, for some position: a missing position may
be lost, and reporting it as void would hide the loss. An archive that was written without its void
ranges looks the same; it is accepted with `holes_are_void=True`.

Only two kinds of data move through the cluster: the newest position of each key, and runs of
positions that are all live or all void (runs.py). With more than BROADCAST_MAX keys, rows may be
shuffled, too. Positions are divided into buckets of a fixed size, so that one task can process a
bucket. The driver joins void runs at the ends of adjacent buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from surecast.columns.rules import (
    BeforeSeq,
    BeforeTime,
    KeepAll,
    KeepFor,
    KeepLast,
    KeyIs,
    KeyPrefix,
    LatestPerKey,
    Policy,
    Predicate,
    TagIs,
)
from surecast.core.policies import as_policy
from surecast.errors import JobFailed, UsageError
from surecast.pipeline.jobs.runs import BUCKET, NOTHING, Flags, Ints, cut, numpy_of, together
from surecast.pipeline.rows import DDL

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["BadArchive", "Collected", "compact"]

BROADCAST_MAX: Final = 1_000_000  # keys that are sent to every task; with more, rows are shuffled
SHOWN_MAX: Final = 5  # examples of positions in an error
_COLUMNS: Final = tuple(field.split()[0] for field in DDL.split(", "))
# Runs of positions that are all live or all void, cut at the edges of buckets.
_PIECES: Final = "stream string, bucket bigint, lo bigint, hi bigint, live boolean, time_us bigint"
# What buckets report; `what` is one of the kinds below.
_RUNS: Final = "stream string, what string, lo bigint, hi bigint, time_us bigint"
# The kinds of rows that a bucket reports: the range from the first to the last position that has a
# row in the bucket (COVER); runs without a live event, which lie inside this range (VOID) or touch
# one of its ends (EDGE); and positions of this range without a row (HOLE) or with several (TWICE).
VOID, EDGE, COVER, HOLE, TWICE = "void", "edge", "cover", "hole", "twice"


class BadArchive(JobFailed):
    """The archive lacks positions, or has some twice; the message names them."""


class Collected(msgspec.Struct, frozen=True):
    """A publisher's `collect` rule, and the position of its event in the stream (None: after the
    archive's end)."""

    predicate: Predicate
    seq: int | None = None


class Run(NamedTuple):
    """A range [lo, hi) that a bucket reports, or a gap between buckets."""

    lo: int
    hi: int
    time_us: int | None  # the time of the last position, for EDGE; None: unknown


@contextmanager
def compact(
    archive: DataFrame,
    retain: Policy | str,
    rules: Sequence[Collected] = (),
    *,
    now: datetime | None = None,
    holes_are_void: bool = False,
    bucket: int = BUCKET,
) -> Iterator[DataFrame]:
    """Apply `retain` and `rules` to each stream of the archive. The result has the same columns.

    Void runs are computed immediately and cached until the end of the `with` block. Live events are
    computed when the result is used.
    """
    policy = as_policy(retain)
    _check(archive, policy, rules)
    with ExitStack() as until:
        columns = archive.select(*_columns_of(archive))
        rows = _flagged(columns, policy, rules, now or datetime.now(UTC), until)
        voids = _with_nulls(_voids(rows, holes_are_void, bucket, until), columns)
        yield rows.where("live").select(*columns.columns).unionByName(voids)


def _columns_of(archive: DataFrame) -> list[str]:
    """The columns of the result. An archive of streams with a schema has tags in a column."""
    return [*_COLUMNS, "tag"] if "tag" in archive.columns else [*_COLUMNS]


def _cached(rows: DataFrame, until: ExitStack) -> DataFrame:
    """Cache rows that are used more than once; `until` releases them."""
    from pyspark import StorageLevel

    until.callback(rows.unpersist)
    return rows.persist(StorageLevel.MEMORY_AND_DISK)


def _voids(rows: DataFrame, holes_are_void: bool, bucket: int, until: ExitStack) -> DataFrame:
    """A row for each maximal run of positions without a live event."""
    from pyspark.sql import functions as F

    places = rows.select(
        "stream", "seq", "range", "live", F.unix_micros("timestamp").alias("time_us")
    )
    found = places.mapInArrow(_run_maker(bucket), _PIECES).groupBy("stream", "bucket")
    runs = _cached(found.applyInArrow(_bucket_reporter(holes_are_void), _RUNS), until)
    reported: dict[str, dict[str, list[Run]]] = {}
    for row in runs.where(F.col("what") != VOID).collect():
        of_stream = reported.setdefault(row["stream"], {})
        of_stream.setdefault(row["what"], []).append(Run(row["lo"], row["hi"], row["time_us"]))
    joined = [
        (stream, VOID, *run)
        for stream, of_stream in sorted(reported.items())
        for run in _joined(stream, of_stream, holes_are_void)
    ]
    edges = rows.sparkSession.createDataFrame(joined, _RUNS)
    return _void_rows(runs.where(F.col("what") == VOID).unionByName(edges))


def _check(archive: DataFrame, retain: Policy, rules: Sequence[Collected]) -> None:
    """Raise UsageError if columns are missing, or a rule does not fit the retention."""
    missing = [name for name in _COLUMNS if name not in archive.columns]
    if missing:
        raise UsageError(
            f"the archive has no column {', '.join(missing)}; it has {', '.join(archive.columns)}. "
            "Its columns must be those of format('surecast')"
        )
    if not isinstance(retain, KeepAll) and any(isinstance(r.predicate, TagIs) for r in rules):
        raise UsageError(
            "a collect rule on tags needs keep-all: a live stream with another retention refuses it"
        )


# ---------------------------------------------------------------- which events are live


def _flagged(
    rows: DataFrame,
    retain: Policy,
    rules: Sequence[Collected],
    now: datetime,
    until: ExitStack,
) -> DataFrame:
    """Add a column `live`. It is true for lost positions, too, so that they do not become void."""
    from pyspark.sql import functions as F

    live = F.col("kind") == "event"
    match retain:
        case LatestPerKey():
            rows = _with_newest(rows, until)
            live &= F.col("newest") | F.col("key").isNull()
        case KeepLast(n):
            ends = rows.groupBy("stream").agg((F.max("seq") + 1).alias("end"))
            rows = rows.join(F.broadcast(ends), "stream")
            live &= F.col("seq") >= F.col("end") - n
        case KeepFor(ns):
            now_ns = (now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
            live &= ~_matches(BeforeTime(now_ns - ns), _tag(rows))
    for rule in rules:
        gone = _matches(rule.predicate, _tag(rows))
        live &= ~(gone if rule.seq is None else gone & (F.col("seq") < rule.seq))
    stays = live | (F.col("kind") == "lost")
    return rows.select(*_columns_of(rows), stays.alias("live"))


def _with_newest(rows: DataFrame, until: ExitStack) -> DataFrame:
    """Add a column `newest`: whether no later event has the same key. (Meaningless for rows
    without a key.)"""
    from pyspark.sql import functions as F

    by_key = rows.where("kind = 'event' AND key IS NOT NULL").groupBy("stream", "key")
    newest = _cached(by_key.agg(F.max("seq").alias("seq")).select("stream", "seq"), until)
    marked = newest.withColumn("is_newest", F.lit(True))
    if newest.count() <= BROADCAST_MAX:
        marked = F.broadcast(marked)
    joined = rows.join(marked, ["stream", "seq"], "left")
    return joined.withColumn("newest", F.coalesce("is_newest", F.lit(False)))


def _tag(rows: DataFrame) -> Column:
    return rows["tag"] if "tag" in rows.columns else rows["attributes"]["tag"]


def _matches(predicate: Predicate, tag_of: Column) -> Column:
    """Whether the predicate matches a row; never null."""
    from pyspark.sql import functions as F

    match predicate:
        case BeforeSeq(seq):
            found = F.col("seq") < seq
        case BeforeTime(time_ns):
            found = F.unix_micros("timestamp") < time_ns // 1000
        case KeyIs(key):
            found = F.col("key") == _literal(key)
        case KeyPrefix(prefix):
            found = F.substring("key", 1, len(prefix)) == _literal(prefix)
        case TagIs(tag):
            found = tag_of == _literal(tag)
    return F.coalesce(found, F.lit(False))


def _literal(data: bytes) -> Column:
    from pyspark.sql import functions as F

    return F.lit(bytearray(data))


# ---------------------------------------------------------------- runs, in the executors


def _run_maker(bucket: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that converts rows to runs that are all live or all void, cut at the edges
    of buckets."""

    def put_together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            streams = batch.column("stream").dictionary_encode()
            codes = streams.indices.to_numpy()
            for code, name in enumerate(streams.dictionary.to_pylist()):
                here = np.flatnonzero(codes == code)
                # A row covers `range` positions; `seq` is the last of them.
                last, count, live, time_us = (
                    numpy_of(batch.column(field))[here]
                    for field in ("seq", "range", "live", "time_us")
                )
                runs = together(last - count + 1, last + 1, live, time_us)
                lo, hi, live, time_us = cut(*runs, bucket)
                columns = {
                    "stream": pa.array([name] * lo.size, pa.string()),
                    "bucket": (lo - 1) // bucket,
                    "lo": lo,
                    "hi": hi,
                    "live": live,
                    "time_us": pa.array(time_us, mask=time_us == NOTHING),
                }
                yield pa.RecordBatch.from_pydict(columns)

    return put_together


# ---------------------------------------------------------------- runs of a bucket


def _bucket_reporter(holes_are_void: bool) -> Callable[[pa.Table], pa.Table]:
    """Returns a function that converts the runs of a bucket to the rows that the bucket reports."""

    def find(table: pa.Table) -> pa.Table:
        import pyarrow as pa

        lo, hi, live, time_us = (
            numpy_of(table.column(name)) for name in ("lo", "hi", "live", "time_us")
        )
        runs = _runs(lo, hi, live, time_us, holes_are_void)
        what, lo, hi, time_us = (np.concatenate(column) for column in zip(*runs, strict=True))
        columns = {
            "stream": pa.array([table.column("stream")[0].as_py()] * lo.size, pa.string()),
            "what": pa.array(what.tolist(), pa.string()),
            "lo": lo,
            "hi": hi,
            "time_us": pa.array(time_us, mask=time_us == NOTHING),
        }
        return pa.table(columns)

    return find


def _runs(
    lo: Ints, hi: Ints, live: Flags, time_us: Ints, holes_are_void: bool
) -> Iterator[tuple[Any, Ints, Ints, Ints]]:
    """The rows that a bucket reports, as columns (what, lo, hi, time_us)."""
    lo, hi, live, time_us = together(lo, hi, live, time_us)
    begin, end = lo[:1], hi.max(keepdims=True)
    yield np.array([COVER]), begin, end, np.array([NOTHING])
    upto = np.maximum.accumulate(hi)  # needed because a run may lie within an earlier one
    twice = np.flatnonzero(lo[1:] < upto[:-1])[:SHOWN_MAX]
    overlap_end = np.minimum(hi[twice + 1], upto[twice])
    yield np.full(twice.size, TWICE), lo[twice + 1], overlap_end, np.full(twice.size, NOTHING)
    holes = np.flatnonzero(lo[1:] > upto[:-1])  # indices of the runs before holes
    if holes_are_void:
        lo = np.concatenate((lo, upto[holes]))
        hi = np.concatenate((hi, lo[holes + 1]))
        live = np.concatenate((live, np.zeros(holes.size, np.bool_)))
        time_us = np.concatenate((time_us, time_us[holes + 1]))
        lo, hi, live, time_us = together(lo, hi, live, time_us)
    else:
        some = holes[:SHOWN_MAX]
        yield np.full(some.size, HOLE), upto[some], lo[some + 1], np.full(some.size, NOTHING)
    lo, hi, time_us = lo[~live], hi[~live], time_us[~live]
    at_edge = (lo == begin) | (hi == end)
    yield np.where(at_edge, EDGE, VOID), lo, hi, time_us


# ---------------------------------------------------------------- runs of a stream


def _joined(stream: str, reported: dict[str, list[Run]], holes_are_void: bool) -> Iterator[Run]:
    """Join the void runs at edges of buckets. Raises BadArchive if positions are missing or
    duplicated."""
    covers = sorted(reported[COVER])
    gaps = [
        Run(before.hi, after.lo, None) for before, after in pairwise(covers) if before.hi < after.lo
    ]
    holes = [] if holes_are_void else sorted([*reported.get(HOLE, ()), *gaps])
    if holes:
        raise BadArchive(
            f"the archive of {stream!r} has no row for {_examples(holes)}. If it was written "
            "without voids, and nothing was lost, set holes_are_void=True (--holes-are-void). "
            "Otherwise archive the stream again, with includeVoids"
        )
    if twice := sorted(reported.get(TWICE, ())):
        raise BadArchive(f"the archive of {stream!r} has several rows for {_examples(twice)}")
    run: Run | None = None
    for piece in sorted([*reported.get(EDGE, ()), *gaps], key=lambda one: one.lo):
        if run is not None and run.hi == piece.lo:
            time_us = run.time_us if piece.time_us is None else piece.time_us
            run = Run(run.lo, piece.hi, time_us)
            continue
        if run is not None:
            yield run
        run = piece
    if run is not None:
        yield run


def _examples(runs: Sequence[Run]) -> str:
    some = ", ".join(
        f"{run.lo:,}" if run.hi == run.lo + 1 else f"{run.lo:,} to {run.hi - 1:,}"
        for run in runs[:SHOWN_MAX]
    )
    return f"positions {some}" + (" and more" if len(runs) > SHOWN_MAX else "")


def _with_nulls(voids: DataFrame, like: DataFrame) -> DataFrame:
    """Void rows with all columns of another table."""
    from pyspark.sql import functions as F

    nulls = {
        field.name: F.lit(None).cast(field.dataType)
        for field in like.schema.fields
        if field.name not in voids.columns
    }
    return voids.withColumns(nulls)


def _void_rows(runs: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return runs.select(
        "stream",
        (F.col("hi") - 1).alias("seq"),
        F.lit("void").alias("kind"),
        (F.col("hi") - F.col("lo")).alias("range"),
        F.timestamp_micros("time_us").alias("timestamp"),
    )
