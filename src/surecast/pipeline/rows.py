"""Converts batches to Spark's columns.

Record batches of about 20,000 rows are best for Spark, but the batches of a stream have the sizes
that publishers sent. So batches are joined, column by column. Constant columns (the stream's name,
the kind, the range) are slices of arrays that are created once. Keys and values are copied in bulk.
Positions and times are computed from the batches' headers. No row is handled individually.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from surecast.columns import forms
from surecast.columns.batch import DATA, Batch
from surecast.columns.column import Column, Columns, Int64s, concat
from surecast.core.endpoint import Lost
from surecast.endpoint.ranges import Piece
from surecast.pipeline.options import COLUMNS

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
    """The schema of these columns as DDL."""
    return ", ".join(column for column in DDL.split(", ") if column.split(" ")[0] in names)


@cache
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([SCHEMA.field(name) for name in names])


def record_batches(
    pieces: Iterable[Piece],
    stream: str,
    voids: bool,
    names: tuple[str, ...] = COLUMNS,
    rows: int = ROWS,
    nbytes: int = NBYTES,
) -> Iterator[pa.RecordBatch]:
    """Convert consecutive batches to record batches with a row per event. With `voids`, there is
    also a row per void range.

    Lost ranges always have a row. `names` are the wanted columns, in the order of COLUMNS. A record
    batch has about `rows` rows, or fewer if it reaches `nbytes`.
    """
    group: list[Batch] = []  # batches for the next record batch
    group_rows = group_bytes = 0
    for piece in pieces:
        if isinstance(piece, Lost):
            if group:
                yield from _cut(_record_batch(group, stream, voids, names), rows)
                group, group_rows, group_bytes = [], 0, 0
            yield _lost_row(piece, stream, names)
            continue
        if piece.kind != DATA and not voids:
            continue
        group.append(piece)
        group_rows += piece.rows
        group_bytes += piece.nbytes
        if group_rows >= rows or group_bytes >= nbytes:
            yield from _cut(_record_batch(group, stream, voids, names), rows)
            group, group_rows, group_bytes = [], 0, 0
    if group:
        yield from _cut(_record_batch(group, stream, voids, names), rows)


def _cut(table: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Cut into pieces of about `rows` rows, all of about the same size."""
    pieces = max(1, table.num_rows // rows)
    each = -(-table.num_rows // pieces)
    for at in range(0, table.num_rows, each):
        yield table if pieces == 1 else table.slice(at, each)


def _record_batch(
    group: list[Batch], stream: str, voids: bool, names: tuple[str, ...]
) -> pa.RecordBatch:
    events = [batch for batch in group if batch.kind == DATA]
    # Fewer rows than positions (`count`): the batch has void positions between its events.
    if not voids or (len(events) == len(group) and all(b.rows == b.count for b in events)):
        return _events(events, stream, names)
    los, his, times = _void_runs(group)
    ranges = _range_rows(stream, "void", los, his, times).select(names)
    if not events:
        return ranges
    rows = _events(events, stream, names)
    if not los.size:
        return rows
    # By position; a void range is at its last position.
    order = np.argsort(np.concatenate((_seqs(events), his - 1)), kind="stable")
    mixed = pa.Table.from_batches([rows, ranges]).take(pa.array(order))
    return mixed.combine_chunks().to_batches()[0]


# ---------------------------------------------------------------- events


def _events(batches: list[Batch], stream: str, names: tuple[str, ...]) -> pa.RecordBatch:
    rows = sum(batch.rows for batch in batches)
    constants = _constants(stream, _room(rows))
    columns = _joined(batches)
    arrays = []
    for name in names:
        match name:
            case "seq":
                column = _numbers(pa.int64(), _seqs(batches))
            case "key":
                column = _binary(columns.keys, rows)
            case "value":
                column = _binary(columns.values, rows)
            case "timestamp":
                column = _numbers(_TIME, _times(batches))
            case "attributes" if columns.tags is not None:
                column = _attributes(columns.tags, rows)
            case _:
                column = constants[name].slice(0, rows)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=_schema_of(names))


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


def _times(batches: Sequence[Batch]) -> Int64s:
    """The time of each row in microseconds, the unit of Spark's timestamps."""
    if any(batch.explicit for batch in batches):
        return np.concatenate([batch.times() for batch in batches]) // 1000
    times = np.array([batch.time_ns // 1000 for batch in batches])
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


def _lost_row(lost: Lost, stream: str, names: tuple[str, ...]) -> pa.RecordBatch:
    """The row for a lost range; its time is unknown (0)."""
    los, his, times = (np.array([number]) for number in (lost.lo, lost.hi, 0))
    return _range_rows(stream, "lost", los, his, times).select(names)


def _range_rows(stream: str, kind: str, los: Int64s, his: Int64s, times: Int64s) -> pa.RecordBatch:
    """A row of all columns for each range [lo, hi); times are in microseconds."""
    rows = los.size
    constants = _constants(stream, _room(rows))
    return pa.RecordBatch.from_arrays(
        [
            constants["stream"].slice(0, rows),
            pa.array(his - 1, pa.int64()),
            _repeated(kind, rows),
            pa.array(his - los, pa.int64()),
            pa.nulls(rows, pa.binary()),
            pa.nulls(rows, pa.binary()),
            constants["attributes"].slice(0, rows),
            pa.array(times, pa.int64(), mask=times == 0).cast(_TIME),  # 0: unknown
        ],
        schema=SCHEMA,
    )


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
    }


def _repeated(text: str, rows: int) -> pa.Array:
    data = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * rows)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def _numbers(kind: pa.DataType, numbers: Int64s) -> pa.Array:
    """An Arrow array of 64-bit values of this type, without a copy."""
    return pa.Array.from_buffers(kind, numbers.size, [None, pa.py_buffer(numbers)])


def _binary(column: Column, rows: int) -> pa.Array:
    valid = column.valid
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _attributes(tags: Column, rows: int) -> pa.Array:
    """The column `attributes`: {"tag": …} for each row with a tag, null for the others."""
    valid = np.ones(rows, np.bool_) if tags.valid is None else tags.valid
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(valid, out=offsets[1:])
    values = _binary(tags, rows)
    if tags.valid is not None:
        values = values.drop_null()
    entries = pa.StructArray.from_arrays(
        [_repeated("tag", len(values)), values],
        fields=[_ATTRIBUTES.key_field, _ATTRIBUTES.item_field],
    )
    bitmap = None if tags.valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_ATTRIBUTES, rows, buffers, children=[entries])
