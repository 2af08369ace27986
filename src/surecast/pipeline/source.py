"""The classes that Spark calls to read: `spark.read|readStream.format("surecast")`.

Spark uses these objects in separate Python processes: a process that plans a batch, a process that
exists as long as a streaming query, and the workers of the executors. Spark pickles a reader to
send it to a worker. So a reader holds only its options until one of its methods is called, and a
task contains everything that it needs.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from surecast.columns.intervals import IntervalSet
from surecast.columns.schema import read_schema
from surecast.core.names import matches
from surecast.errors import UsageError
from surecast.pipeline.attributes import common_schema, fits, schema_in, struct_type
from surecast.pipeline.fetch import Task, read
from surecast.pipeline.filters import Narrow
from surecast.pipeline.loss import LostEnd, end_error, find_lost_end, is_short, views_of
from surecast.pipeline.offsets import Bound, Place, Time, places_from, places_to, share
from surecast.pipeline.options import COLUMNS, SourceOptions, parse
from surecast.pipeline.plan import EVENTS_MIN, Range, after, cut
from surecast.pipeline.region import Known, Region, Server
from surecast.pipeline.rows import ddl_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SurecastSource"]

log = logging.getLogger("surecast.pipeline")

SERVERS_S: Final = 30.0  # how long the list of servers and their directories is cached
TIME_US_MAX: Final = (1 << 63) // 1000  # no event is later; microseconds since 1970
# A loss is believed only if it is seen for this time, because a region that was just started knows
# only some of its streams at first; and for the longer time if no server says whether it is ready.
GRACE_S: Final = 5.0
GRACE_S_MAX: Final = 30.0
LOOK_S: Final = 0.25  # between two looks at whether a loss persists


class SurecastSource(DataSource):
    """`spark.read.format("surecast").option("subscribe", "orders")`; options.py has all options."""

    @classmethod
    def name(cls) -> str:
        return "surecast"

    def schema(self) -> StructType | str:
        """The columns. Spark calls this in `load()`, so `load()` fails for invalid options, and if
        the region does not answer: the type of `attributes` depends on the schema of the streams.
        """
        options = parse(self.options, streaming=False)
        text = ""
        if options.needs_schema:
            with Region(options.url, options.token) as region:
                text = _schema_of(options, region.find(options.streams, options.pattern))
        if options.where:
            from surecast.pipeline.where import bound_filter  # loads a part of pyarrow

            bound_filter(options.where, read_schema(text) if text else None)
        return columns_type(options.columns, text)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(self.options, streaming=False)
        return BatchReader(options, _schema_at_load(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse(self.options, streaming=True)
        return StreamReader(options, _schema_at_load(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from surecast.pipeline.sink import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from surecast.pipeline.sink import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)


def columns_type(names: Sequence[str], schema: str) -> StructType | str:
    """The columns of these names, for streams with this schema ("": they have none)."""
    if not schema or "attributes" not in names:
        return ddl_of(names)
    kinds = {
        "stream": StructField("stream", StringType(), nullable=False),
        "seq": StructField("seq", LongType(), nullable=False),
        "kind": StructField("kind", StringType(), nullable=False),
        "range": StructField("range", LongType(), nullable=False),
        "attributes": StructField("attributes", struct_type(read_schema(schema))),
        "timestamp": StructField("timestamp", TimestampType()),
    }
    return StructType([kinds.get(name) or StructField(name, BinaryType()) for name in names])


def _schema_at_load(columns: StructType, options: SourceOptions) -> str | None:
    """The schema that the column `attributes` had in `load()` ("" if there was none); None if the
    query does not have this column."""
    found = None
    if "attributes" in options.columns:
        kinds = {field.name: field.dataType for field in columns.fields}
        kind = kinds.get("attributes")
        found = schema_in(kind).text if isinstance(kind, StructType) else ""
    wanted = columns_type(options.columns, found or "")
    wanted = wanted if isinstance(wanted, str) else _shown(wanted)
    if _shown(columns) != wanted:
        raise UsageError(
            f"the columns of a stream are {wanted}: leave out .schema(...), and select or cast "
            "afterwards"
        )
    return found


def _shown(columns: StructType) -> str:
    return ", ".join(
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
        for field in columns.fields
    )


def _schema_of(options: SourceOptions, known: Mapping[str, Known]) -> str:
    """The schema of a query that reads these streams; "" if they have none, or the query does not
    need it."""
    if not options.needs_schema:
        return ""
    remedy = "Read each of them with its own load(), or leave the attributes out: option columns="
    remedy += ",".join(name for name in COLUMNS if name != "attributes")
    schemas = [(name, one.info.schema) for name, one in sorted(known.items())]
    return common_schema(schemas, remedy)


def _checked_schema(options: SourceOptions, known: Mapping[str, Known], loaded: str | None) -> str:
    """The schema for the tasks. Raises UsageError if a stream does not fit the schema `loaded` (see
    `_schema_at_load`)."""
    found = _schema_of(options, known)
    if loaded is None:
        return found
    if known and not (found == loaded == "" or fits(found, loaded)):
        name = next(name for name, one in sorted(known.items()) if one.info.schema == found)
        raise UsageError(
            f"stream {name!r} has {_has(found)}, but when load() was called, the streams of the "
            f"query had {_has(loaded)}. Call load() again"
        )
    return loaded


def _has(schema: str) -> str:
    return f"the schema ({schema})" if schema else "no schema"


class Work(InputPartition):
    """A `Task` in the form in which Spark sends it to an executor."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


def _rows(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Work):  # Spark passes another object if no partitions were planned
        _freeze_garbage()
        yield from read(partition.value)


@cache
def _freeze_garbage() -> None:
    """Exclude all existing objects from garbage collection; called once in each worker.

    PySpark's daemon collects garbage after every task. Loaded modules have half a million objects,
    so this would take 45 ms each time, as long as a task needs to read a million events.
    """
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------- planning


def _position(region: Region, known: Known, bound: Bound) -> int:
    """The position of a bound in a stream. Raises UsageError if it is beyond the stream's end."""
    place = bound.of(known.info.name)
    if isinstance(place, Time):
        return region.locate(known.stream_id, place.ns)
    if place.seq > known.end:
        raise UsageError(
            f"option {bound.option}: {known.info.name!r} has no position {place.seq} yet, its next "
            f"event gets position {known.end}. Use a position up to {known.end}, or latest"
        )
    return {-2: 1, -1: known.end}.get(place.seq, place.seq)  # -2: earliest, -1: latest


def _tasks(
    region: Region,
    options: SourceOptions,
    ranges: list[Range],
    known: Mapping[str, Known],
    servers: tuple[Server, ...],
    schema: str,
) -> list[InputPartition]:
    """Cut the ranges into tasks with about equal numbers of events, as far as the void positions
    are known."""
    with_voids: list[tuple[Range, IntervalSet | None]] = []
    if options.files and any(server.directory for server in servers):
        # Executors may read segment files: their lists of void positions must be up to date.
        existing = {one.stream_id for one in known.values()}
        region.settle([one.stream_id for one in ranges if one.stream_id in existing])
    for one in ranges:
        found = None
        if one.hi - one.lo > EVENTS_MIN or options.partitions_min > 1:
            found = region.voids(one.stream, one.stream_id, one.lo, one.hi)
        with_voids.append((one, None if found is None else found.positions))
    whole = Task(
        tuple(ranges),
        region.addresses,
        options.token,
        servers,
        options.files,
        options.voids,
        options.fail_on_loss,
        options.columns,
        schema=schema,
        where=options.where,
    )
    return [Work(replace(whole, ranges=part)) for part in cut(with_voids, options.partitions_min)]


# ---------------------------------------------------------------- batch


class BatchReader(DataSourceReader):
    """Reads the events between two bounds, for `spark.read`. `schema` is that of `load()`, see
    `_schema_at_load`."""

    def __init__(self, options: SourceOptions, schema: str | None = "") -> None:
        self.options = options
        self.schema = schema
        self.narrow = Narrow(
            options.voids or not options.fail_on_loss
        )  # whether there may be rows for void or lost ranges
        if options.push:
            self.pushFilters = _PushFilters(self.narrow)  # type: ignore[method-assign]

    def partitions(self) -> list[InputPartition]:
        options = self.options
        with Region(options.url, options.token) as region:
            known = region.expect(options.streams, options.pattern)
            schema = _checked_schema(options, known, self.schema)
            each = [
                self._range(region, one)
                for name, one in sorted(known.items())
                if self.narrow.wants(name)
            ]
            ranges = [one for one in each if one.lo < one.hi]
            if not ranges:
                return []
            servers = tuple(region.servers(ranges[0].stream))
            return _tasks(region, options, ranges, known, servers, schema)

    def _range(self, region: Region, known: Known) -> Range:
        start, end, narrow = self.options.start, self.options.end, self.narrow
        # `known.end` was read before the times are looked up here. Events that were published in
        # between are not read.
        lo = min(_position(region, known, start), known.end)
        hi = min(_position(region, known, end), known.end)
        if lo > hi:
            raise UsageError(
                f"option {start.option or end.option}: stream {known.info.name!r} would begin at "
                f"{lo} and end before {hi}. Begin earlier ({start.option or 'startingOffsets'}) or "
                f"end later ({end.option or 'endingOffsets'})"
            )
        lo, hi = max(lo, narrow.lo), min(hi, narrow.hi)
        if narrow.time_lo_us >= TIME_US_MAX:
            lo = hi
        elif narrow.time_lo_us > 0:
            lo = max(lo, region.locate(known.stream_id, narrow.time_lo_us * 1000))
        if narrow.time_hi_us < TIME_US_MAX:
            hi = min(hi, region.locate(known.stream_id, max(0, narrow.time_hi_us * 1000)))
        return Range(known.info.name, known.stream_id, lo, hi)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition)


class _PushFilters:
    """The method `pushFilters` of a reader, for sessions with and without filter push-down.

    Push-down is off by default in Spark. Then Spark refuses every reader that overrides the method
    `pushFilters`, instead of not calling it. So the attribute `__func__` makes this object look
    like the inherited method.

    If push-down is on, Spark (4.3) stores the last plan with the *table*. Another query on the same
    DataFrame, or another branch of the same query, then reads only the positions of that plan. So
    the option `pushFilters` is off by default, and a DataFrame with it must be used only once.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, narrow: Narrow) -> None:
        self.narrow = narrow

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self.narrow.take(filters)


# ---------------------------------------------------------------- streaming


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads continuously, for `spark.readStream`. Spark's offset has a `Place` for every stream
    (offsets.py). `schema` is that of `load()`, see `_schema_at_load`."""

    def __init__(self, options: SourceOptions, schema: str | None = "") -> None:
        self.options = options
        self.schema = schema
        self._region: Region | None = None
        self._servers: tuple[Server, ...] = ()
        self._servers_at = -SERVERS_S  # when `_servers` was read (time.monotonic)
        self._has_begun = False  # whether `latestOffset` was called
        self._target: dict[str, Known] | None = None  # where a query with availableNow ends
        self._latest: dict[str, Place] | None = None  # the ends of streams, for Spark's metrics
        # Places at which a loss was accepted (failOnDataLoss=false), by stream.
        self._accepted: dict[str, Place] = {}
        self._awaited: dict[str, Place] = {}  # places for which waiting was logged, by stream

    # ------------------------------------------------------------ called by Spark

    def initialOffset(self) -> dict[str, Any]:
        known = self.region.expect(self.options.streams, self.options.pattern)
        _checked_schema(self.options, known, self.schema)
        start = self.options.start
        return places_to(
            {
                name: Place(one.stream_id, _position(self.region, one, start))
                for name, one in known.items()
            }
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.trigger_offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.region.streams(self.options.streams, self.options.pattern)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends, if it begins at the offset `start`."""
        places = places_from(start)
        self._check_added(places)
        known, lost = self._known(places)
        _checked_schema(self.options, known, self.schema)
        self._latest = {name: Place(one.stream_id, one.end) for name, one in known.items()}
        begins = {
            name: _begin(places.get(name), one, lost.get(name)) for name, one in known.items()
        }
        ends = {name: self._end(begins[name], one) for name, one in known.items()}
        backlog = {name: max(0, ends[name] - begins[name].next) for name in known}
        if isinstance(limit, ReadMaxRows):
            shares = share(backlog, limit.max_rows)
            reached = {
                name: self._reach(begins[name], ends[name], name, n) for name, n in shares.items()
            }
        else:
            reached = {name: begins[name].next + size for name, size in backlog.items()}
        # Streams that do not exist at the moment keep their places.
        after = {name: begins[name]._replace(next=seq) for name, seq in reached.items()}
        return places_to({**places, **after})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else places_to(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = places_from(start), places_from(end)
        ranges = []
        for name, place in after.items():
            old = before.get(name)
            # A stream that is new, or was created again, is read from position 1.
            lo = old.next if old is not None and old.stream_id == place.stream_id else 1
            if lo < place.next:
                ranges.append(Range(name, place.stream_id, lo, place.next))
        if not ranges:
            return []
        # After a restart, Spark plans the last batch again. Some of its positions may be lost now.
        known, lost = self._known({one.stream: Place(one.stream_id, one.lo) for one in ranges})
        ranges = [one for one in ranges if one.stream not in lost]
        if not ranges:
            return []
        schema = _checked_schema(self.options, known, self.schema)
        servers = self._servers_now(ranges)
        return _tasks(self.region, self.options, ranges, known, servers, schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition)

    def stop(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None

    # ------------------------------------------------------------ inside

    @property
    def region(self) -> Region:
        if self._region is None:
            self._region = Region(self.options.url, self.options.token)
        return self._region

    def _servers_now(self, ranges: list[Range]) -> tuple[Server, ...]:
        """The servers with their data directories, for the tasks; refreshed every SERVERS_S."""
        if time.monotonic() - self._servers_at >= SERVERS_S:
            self._servers = tuple(self.region.servers(ranges[0].stream))
            self._servers_at = time.monotonic()
        return self._servers

    def _check_added(self, places: Mapping[str, Place]) -> None:
        """On the first call, raise UsageError if a stream was added to the options of a restarted
        query and does not exist. `places` is the query's progress before the restart."""
        added = tuple(name for name in self.options.streams if name not in places)
        if added and not self._has_begun:
            self.region.expect(added)
        self._has_begun = True

    def _known(self, places: Mapping[str, Place]) -> tuple[dict[str, Known], dict[str, LostEnd]]:
        """The streams that exist, and the losses in streams that the query has read.

        A loss counts only if it is seen for the grace time. With `failOnDataLoss` it then ends the
        query; otherwise it is logged and the query goes on.
        """
        options, region = self.options, self.region
        wanted = {name: place for name, place in places.items() if self._is_wanted(name)}
        began = time.monotonic()
        while True:
            known = region.streams(options.streams, options.pattern)
            short = {n: place for n, place in wanted.items() if is_short(place, known.get(n))}
            views = views_of(region.http_addresses, region.token) if short else []
            lost = {
                name: loss
                for name, place in short.items()
                if (loss := find_lost_end(name, place, known.get(name), region, views)) is not None
            }
            new = {
                name: loss
                for name, loss in lost.items()
                if self._accepted.get(name) != places[name]
            }
            grace_s = GRACE_S_MAX if views is None else GRACE_S
            if not new or time.monotonic() > began + grace_s:
                break
            time.sleep(LOOK_S)
        if new and options.fail_on_loss:
            raise end_error(list(new.values()))
        for name, loss in new.items():
            log.warning("%s; continuing, as failOnDataLoss=false requests", loss.words)
            self._accepted[name] = places[name]
        for name, place in short.items():
            if name not in lost and self._awaited.get(name) != place:
                log.warning(
                    "region %r does not have all of stream %r up to position %d, which was read "
                    "before: the query waits for it", region.name, name, place.next - 1,
                )  # fmt: skip
                self._awaited[name] = place
        return known, lost

    def _is_wanted(self, name: str) -> bool:
        """Whether the options still name a stream that was read before: they may have changed at a
        restart."""
        options = self.options
        return matches(options.pattern, name) if options.pattern else name in options.streams

    def _end(self, begin: Place, known: Known) -> int:
        """The position before which reading stops; 1 (nothing to read) if the existing stream has
        another id than `begin`, or was created after an availableNow query began."""
        if begin.stream_id != known.stream_id:
            return 1
        if self._target is None:
            return known.end
        target = self._target.get(known.info.name)
        return target.end if target is not None and target.stream_id == known.stream_id else 1

    def _reach(self, begin: Place, end: int, name: str, events: int) -> int:
        """The position after `events` events. Void positions do not count, if they are known."""
        if begin.next + events >= end:
            return max(begin.next, end)
        found = self.region.voids(name, begin.stream_id, begin.next, end)
        return after(begin.next, end, events, None if found is None else found.positions)


def _begin(place: Place | None, known: Known, loss: LostEnd | None) -> Place:
    """Where to continue in a stream. A new stream, or a stream that was created again, is read from
    position 1."""
    if place is None:
        return Place(known.stream_id, 1)
    if loss is None:
        return place
    if place.stream_id != known.stream_id:
        return Place(known.stream_id, 1)
    # This region may be behind others (`loss.end` is the highest end of all). The positions between
    # the two ends were read before, so reading continues after them.
    return place._replace(next=max(known.end, loss.end)) if loss.reassigned else place
