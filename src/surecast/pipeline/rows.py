"""Converts batches to Spark's columns.

Record batches of about 20,000 rows are best for Spark, but the batches of a stream have the sizes
that publishers sent. So batches are joined, column by column. Constant columns (the stream's name,
the kind, the range) are slices of arrays that are created once. Keys and values are copied in bulk,
and so are attributes (attributes.py), if there are several batches. Positions and times are
computed from the batches' headers. No row is handled individually.

If a filter is given, only the events that pass become rows, and the other positions are void.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from surecast.columns import forms
from surecast.columns.arrow import array_of
from surecast.columns.batch import DATA, Batch
from surecast.columns.column import Column, Columns, Int64s, concat
from surecast.columns.schema import Schema
from surecast.core.endpoint import Lost
from surecast.endpoint.ranges import Piece
from surecast.pipeline.attributes import joined_attributes, spark_array, spark_struct
from surecast.pipeline.options import COLUMNS

if TYPE_CHECKING:
    from surecast.where.binding import Bound

__all__ = ["DDL", "SCHEMA", "ddl_of", "record_batches"]

DDL: Final = (
    "stream string not null, seq bigint not null, kind string not null, range bigint not null, "
    "key binary, value binary, attributes map<string,binary>, timestamp timestamp"
)
_ATTRIBUTES: Final = pa.map_(pa.string(), pa.binary())
_TIME: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        # With nullable=False, Spark does not check each value of a column for null.
        pa.field("stream", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("range", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("attributes", _ATTRIBUTES),
        pa.field("timestamp", _TIME),
    ]
)
ROWS: Final = 20_000  # a record batch has about this many rows ...
NBYTES: Final = 16 << 20  # ... or fewer, if it reaches this size
_JOINED_ROWS: Final = 1024  # batches of up to this many rows are joined before they are decoded


def ddl_of(names: Sequence[str]) -> str:
    """The schema of these columns as DDL, for streams without a schema."""
    known = {column.split(" ")[0]: column for column in [*DDL.split(", "), "tag binary"]}
    return ", ".join(known[name] for name in names)


@lru_cache(256)
def _schema_of(names: tuple[str, ...], schema: Schema | None) -> pa.Schema:
    fields = {field.name: field for field in SCHEMA}
    fields["tag"] = pa.field("tag", pa.binary())
    if schema is not None:
        fields["attributes"] = pa.field("attributes", spark_struct(schema))
    return pa.schema([fields[name] for name in names])


class _Form(NamedTuple):
    """What rows are made of batches."""

    stream: str
    voids: bool  # whether there is a row for each void range
    names: tuple[str, ...]  # of the columns
    schema: Schema | None  # of the column `attributes`, and of the filter; None: there is none
    where: Bound | None  # the filter

    @property
    def arrow(self) -> pa.Schema:
        return _schema_of(self.names, self.schema if "attributes" in self.names else None)


def record_batches(
    pieces: Iterable[Piece],
    stream: str,
    voids: bool,
    names: tuple[str, ...] = COLUMNS,
    rows: int = ROWS,
    nbytes: int = NBYTES,
    schema: Schema | None = None,
    where: Bound | None = None,
) -> Iterator[pa.RecordBatch]:
    """Convert consecutive batches to record batches with a row per event that passes the filter
    `where`. With `voids`, there is also a row per void range; events that do not pass are void.

    Lost ranges always have a row. `names` are the wanted columns. With a `schema`, the column
    `attributes` is a struct of its fields. A record batch is made of about `rows` events, or fewer
    if they reach `nbytes`.
    """
    form = _Form(stream, voids, names, schema, where)
    group: list[Batch] = []  # batches for the next record batch
    group_rows = group_bytes = 0
    for piece in pieces:
        if isinstance(piece, Lost):
            if group:
                yield from _cut(_record_batch(group, form), rows)
                group, group_rows, group_bytes = [], 0, 0
            yield _lost_row(piece, form)
            continue
        if piece.kind != DATA and not voids:
            continue
        group.append(piece)
        group_rows += piece.rows
        group_bytes += piece.nbytes
        if group_rows >= rows or group_bytes >= nbytes:
            yield from _cut(_record_batch(group, form), rows)
            group, group_rows, group_bytes = [], 0, 0
    if group:
        yield from _cut(_record_batch(group, form), rows)


def _cut(table: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Cut into pieces of about `rows` rows, all of about the same size."""
    if not table.num_rows:  # the filter accepts none of the events
        return
    pieces = max(1, table.num_rows // rows)
    each = -(-table.num_rows // pieces)
    for at in range(0, table.num_rows, each):
        yield table if pieces == 1 else table.slice(at, each)


def _record_batch(group: list[Batch], form: _Form) -> pa.RecordBatch:
    events = _Events([batch for batch in group if batch.kind == DATA], form)
    kept = events.passing()
    # Fewer rows than positions (`count`): the batch has void positions between its events.
    is_dense = len(events.batches) == len(group) and all(b.rows == b.count for b in group)
    if not form.voids or (is_dense and kept is None):
        return events.table(kept)
    if kept is None:
        seqs = events.seqs
        los, his, times = _void_runs(group)
    else:
        seqs = events.seqs[kept]
        los, his, times = _runs_between(group, seqs, events.times_us[kept])
    ranges = _range_rows("void", los, his, times, form)
    if not seqs.size:
        return ranges
    rows = events.table(kept)
    if not los.size:
        return rows
    # By position; a void range is at its last position.
    order = np.argsort(np.concatenate((seqs, his - 1)), kind="stable")
    mixed = pa.Table.from_batches([rows, ranges]).take(pa.array(order))
    return mixed.combine_chunks().to_batches()[0]


# ---------------------------------------------------------------- events


class _Events:
    """The events of some batches. Columns are made when they are needed."""

    def __init__(self, batches: list[Batch], form: _Form) -> None:
        self.batches = batches
        self.form = form
        self.rows = sum(batch.rows for batch in batches)

    @cached_property
    def columns(self) -> Columns:
        return _joined(self.batches)

    @cached_property
    def seqs(self) -> Int64s:
        return _seqs(self.batches)

    @cached_property
    def times_us(self) -> Int64s:
        return _times(self.batches, 1000)

    @cached_property
    def attributes(self) -> list[pa.Array]:
        """The columns of the schema."""
        assert self.form.schema is not None
        return joined_attributes(self.batches, self.form.schema)

    def passing(self) -> Int64s | None:
        """The numbers of the rows that pass the filter; None if all do."""
        where, schema = self.form.where, self.form.schema
        if where is None or not self.rows:
            return None
        from surecast.where.columns import KEY, TIME
        from surecast.where.evaluate import passes

        names = _names_in(where)
        found: dict[str, pa.Array] = {}
        if KEY.name in names:
            found[KEY.name] = array_of(self.columns.keys, self.rows)
        if TIME.name in names:
            found[TIME.name] = _numbers(TIME.type, _times(self.batches, 1))
        if schema is not None and not names.isdisjoint(schema.names):
            found.update(zip(schema.names, self.attributes, strict=True))
        passed = passes(where, found, self.rows)
        return None if passed.all() else np.flatnonzero(passed)

    def table(self, kept: Int64s | None) -> pa.RecordBatch:
        """These rows; all, if None is given."""
        rows = self.rows if kept is None else kept.size
        constants = _constants(self.form.stream, _room(rows))
        taken = None if kept is None else pa.array(kept)
        arrays = []
        for name in self.form.names:
            column = self._column(name)
            if column is None:
                column = constants[name].slice(0, rows)
            elif taken is not None:
                column = column.take(taken)
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, schema=self.form.arrow)

    def _column(self, name: str) -> pa.Array | None:
        """A column of all events; None if it is constant."""
        match name:
            case "seq":
                return _numbers(pa.int64(), self.seqs)
            case "key":
                return array_of(self.columns.keys, self.rows)
            case "value":
                return array_of(self.columns.values, self.rows)
            case "timestamp":
                return _numbers(_TIME, self.times_us)
            case "attributes" if self.form.schema is not None:
                return self._struct(self.form.schema)
            case "attributes" if self.columns.tags is not None:
                return _attributes(self.columns.tags, self.rows)
            case "tag" if self.columns.tags is not None:
                return array_of(self.columns.tags, self.rows)
        return None

    def _struct(self, schema: Schema) -> pa.Array:
        if not self.rows:
            return pa.nulls(0, spark_struct(schema))
        lo, hi = self.batches[0].lo, self.batches[-1].hi
        return spark_array(
            self.attributes, schema, f"stream {self.form.stream!r}, positions {lo} to {hi - 1}"
        )


def _names_in(where: Bound) -> frozenset[str]:
    """The columns that a filter tests."""
    from surecast.where.binding import BoundTest

    if isinstance(where, BoundTest):
        return frozenset([where.column.name])
    return frozenset().union(*map(_names_in, where.parts))


def _joined(batches: list[Batch]) -> Columns:
    """The keys, values and tags of all rows."""
    parts = [part for some in _alike(batches) for part in _parts(some)]
    if len(parts) == 1:
        return parts[0]
    tags: Column | None = None
    if any(part.tags is not None for part in parts):
        tags = concat([_tags_of(part) for part in parts])
    return Columns(
        concat([part.keys for part in parts]), concat([part.values for part in parts]), tags
    )


def _alike(batches: list[Batch]) -> Iterator[list[Batch]]:
    """Group adjacent batches that are small and have the same layout. Any other batch is a group
    of its own."""
    group: list[Batch] = []
    for batch in batches:
        # `is_fixed` is needed: a batch with tags or gaps may have the same form as its neighbours,
        # but cannot be joined with them.
        fits = batch.rows <= _JOINED_ROWS and batch.is_fixed
        if group and (not fits or (batch.form, batch.rows) != (group[0].form, group[0].rows)):
            yield group
            group = []
        if fits:
            group.append(batch)
        else:
            yield [batch]
    if group:
        yield group


def _parts(some: list[Batch]) -> list[Columns]:
    one = some[0]
    if len(some) == 1:
        return [Columns(one.keys(), one.values(), one.tags())]
    for batch in some:
        batch.check_body()
    bodies = [batch.body for batch in some]
    return [forms.join_fixed(bodies, one.schema_id, one.form, one.rows)]


def _tags_of(part: Columns) -> Column:
    """The tags of a part; a column of nulls if it has none."""
    if part.tags is not None:
        return part.tags
    rows = part.values.offsets.size - 1
    return Column(np.zeros(rows + 1, np.int32), np.empty(0, np.uint8), np.zeros(rows, np.bool_))


def _seqs(batches: Sequence[Batch]) -> Int64s:
    """The position of each row. Consecutive batches without gaps are handled as one range."""
    ranges: list[Int64s] = []
    lo = hi = 0  # the current range without gaps
    for batch in batches:
        if batch.explicit:
            ranges += (np.arange(lo, hi), batch.seqs())
            lo = hi = 0
        elif batch.lo == hi:
            hi = batch.hi
        else:
            ranges.append(np.arange(lo, hi))
            lo, hi = batch.lo, batch.hi
    ranges.append(np.arange(lo, hi))
    # The first range is empty, because positions begin at 1. One other range needs no copy.
    return np.concatenate(ranges) if len(ranges) > 2 or ranges[0].size else ranges[-1]


def _times(batches: Sequence[Batch], unit: int) -> Int64s:
    """The time of each row, in units of `unit` nanoseconds."""
    if any(batch.explicit for batch in batches):
        times = np.concatenate([batch.times() for batch in batches])
        return times if unit == 1 else times // unit
    times = np.array([batch.time_ns // unit for batch in batches])
    return np.repeat(times, [batch.rows for batch in batches])


# ---------------------------------------------------------------- ranges


def _void_runs(group: list[Batch]) -> tuple[Int64s, Int64s, Int64s]:
    """The runs of positions without an event: the begin, end and time (in microseconds) of each.

    A run between the events of a batch has the time of the event after it; a run at the end of a
    batch, and a void batch, have the time of the batch.
    """
    runs: list[tuple[Any, Any, Any]] = []
    for batch in group:
        if batch.kind != DATA:
            runs.append(([batch.lo], [batch.hi], [batch.time_ns]))
        elif batch.rows < batch.count:
            seqs = batch.seqs()
            los, his = np.append(batch.lo, seqs + 1), np.append(seqs, batch.hi)
            gaps = los < his
            runs.append((los[gaps], his[gaps], np.append(batch.times(), batch.time_ns)[gaps]))
    if not runs:
        none = np.empty(0, np.int64)
        return none, none, none
    los, his, times = (np.concatenate(column) for column in zip(*runs, strict=True))
    return los, his, times // 1000


def _runs_between(group: list[Batch], seqs: Int64s, times: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """The runs of positions of consecutive batches without these events: the begin, end and time
    (in microseconds) of each. Adjacent runs are one."""
    los, his = np.append(group[0].lo, seqs + 1), np.append(seqs, group[-1].hi)
    gaps = los < his
    return los[gaps], his[gaps], np.append(times, group[-1].time_ns // 1000)[gaps]


def _lost_row(lost: Lost, form: _Form) -> pa.RecordBatch:
    """The row for a lost range; its time is unknown (0)."""
    los, his, times = (np.array([number]) for number in (lost.lo, lost.hi, 0))
    return _range_rows("lost", los, his, times, form)


def _range_rows(kind: str, los: Int64s, his: Int64s, times: Int64s, form: _Form) -> pa.RecordBatch:
    """A row for each range [lo, hi); times are in microseconds."""
    rows = los.size
    columns = {
        "stream": _constants(form.stream, _room(rows))["stream"].slice(0, rows),
        "seq": pa.array(his - 1, pa.int64()),
        "kind": _repeated(kind, rows),
        "range": pa.array(his - los, pa.int64()),
        "timestamp": pa.array(times, pa.int64(), mask=times == 0).cast(_TIME),  # 0: unknown
    }
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(rows, field.type)
        for field in form.arrow
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=form.arrow)


# ---------------------------------------------------------------- columns of Arrow


def _room(rows: int) -> int:
    """The size of a cached array for this many rows: a power of two, so that few different arrays
    are created."""
    return max(1 << 15, 1 << (rows - 1).bit_length() if rows else 0)


@lru_cache(64)
def _constants(stream: str, rows: int) -> dict[str, pa.Array]:
    """Columns of `rows` equal values."""
    return {
        "stream": _repeated(stream, rows),
        "kind": _repeated("event", rows),
        "range": pa.array(np.ones(rows, np.int64)),
        "attributes": pa.nulls(rows, _ATTRIBUTES),
        "tag": pa.nulls(rows, pa.binary()),
    }


def _repeated(text: str, rows: int) -> pa.Array:
    data = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * rows)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def _numbers(kind: pa.DataType, numbers: Int64s) -> pa.Array:
    """An Arrow array of 64-bit values of this type, without a copy."""
    return pa.Array.from_buffers(kind, numbers.size, [None, pa.py_buffer(numbers)])


def _attributes(tags: Column, rows: int) -> pa.Array:
    """The column `attributes`: {"tag": …} for each row with a tag, null for the others."""
    valid = np.ones(rows, np.bool_) if tags.valid is None else tags.valid
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(valid, out=offsets[1:])
    values = array_of(tags, rows)
    if tags.valid is not None:
        values = values.drop_null()
    entries = pa.StructArray.from_arrays(
        [_repeated("tag", len(values)), values],
        fields=[_ATTRIBUTES.key_field, _ATTRIBUTES.item_field],
    )
    bitmap = None if tags.valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_ATTRIBUTES, rows, buffers, children=[entries])
