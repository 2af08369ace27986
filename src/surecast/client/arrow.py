"""Converts batches to Arrow record batches, for `Subscription.batches` and `Stream.read`.

This module is imported only when one of them is called, because it loads pyarrow. Parts that are
the same in every record batch (types, the schema, constant columns) are created once, because
creating them takes longer than converting a few hundred events.

A batch has a key, value and tag for each event. Its columns, in this order, are key, value and, if
`schema_id` has the bit TAGGED, tag.
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from surecast.columns.batch import DATA, REASON_NAMES, VOID, Batch
from surecast.columns.column import TAGGED, Int64s
from surecast.columns.schema import Schema

__all__ = [
    "SCHEMA",
    "SCHEMA_WITH_VOIDS",
    "record_batch_of",
    "record_batch_schema",
    "record_batch_with_voids",
]

_SEQ: Final = pa.int64()
_TIME: Final = pa.timestamp("us", tz="UTC")
# The length of the constant columns. Record batches with fewer rows use a slice of them; for longer
# ones, the columns are created.
_ROWS: Final = 1 << 13
_NO_TAGS: Final = pa.nulls(_ROWS, pa.binary())

SCHEMA: Final = pa.schema(
    [
        pa.field("stream", pa.dictionary(pa.int32(), pa.string())),
        pa.field("seq", _SEQ),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("tag", pa.binary()),
        pa.field("timestamp", _TIME),
    ]
)


_KINDS: Final = pa.array(["event", "void"], pa.string())  # the values of column "kind"
_EVENT_KINDS: Final = pa.DictionaryArray.from_arrays(pa.array(np.zeros(_ROWS, np.int32)), _KINDS)
_ONES: Final = pa.array(np.ones(_ROWS, np.int64))
_NO_REASONS: Final = pa.nulls(_ROWS, pa.string())
_CONTROL: Final = max(REASON_NAMES) + 1
# The values of column "reason", by the number of the reason; 0 for events.
_REASONS: Final = pa.array(
    [None, *(REASON_NAMES[number] for number in range(1, _CONTROL)), "control"], pa.string()
)

SCHEMA_WITH_VOIDS: Final = pa.schema(
    [
        *SCHEMA,
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("range", pa.int64()),  # the number of positions of the row
        pa.field("reason", pa.string()),
    ]
)


@lru_cache(256)
def record_batch_schema(voids: bool, schema: Schema | None) -> pa.Schema:
    """The Arrow schema of record batches, with or without void ranges, of a stream with this schema
    (None: it has none)."""
    found = SCHEMA
    if schema is not None:
        found = found.append(pa.field("attributes", pa.struct(schema.arrow())))
    if voids:
        for field in list(SCHEMA_WITH_VOIDS)[len(SCHEMA) :]:
            found = found.append(field)
    return found


def record_batch_of(
    batch: Batch, stream: str, schema: Schema | None = None
) -> pa.RecordBatch | None:
    """The events of a batch with the columns stream, seq, key, value, tag, timestamp and, if the
    stream has a schema, attributes.

    Keys, values, tags and attributes are not copied. Times are in microseconds, as in Spark and in
    Python's datetime. Returns None if the batch has no events.
    """
    if batch.kind != DATA:
        return None
    body, rows = batch.record_batch(), batch.rows
    if batch.schema_id & TAGGED:
        tags = body.column(2)
    else:
        tags = _NO_TAGS.slice(0, rows) if rows <= _ROWS else pa.nulls(rows, pa.binary())
    names = _stream_column(stream, rows)
    seqs, times = _numbers(_SEQ, batch.seqs()), _numbers(_TIME, batch.times() // 1000)
    columns = [names, seqs, body.column(0), body.column(1), tags, times]
    if schema is None:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    columns.append(_attributes(batch, schema))
    return pa.RecordBatch.from_arrays(columns, schema=record_batch_schema(False, schema))


def _attributes(batch: Batch, schema: Schema) -> pa.StructArray:
    """The attributes of a batch's rows. Columns that its version of the schema lacks are null."""
    attributes = batch.attributes()
    arrays = [] if attributes is None else attributes.table().columns[: len(schema.names)]
    fields = list(schema.arrow())
    arrays += [pa.nulls(batch.rows, field.type) for field in fields[len(arrays) :]]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def record_batch_with_voids(
    batch: Batch, stream: str, schema: Schema | None = None
) -> pa.RecordBatch:
    """All positions of a batch: a row for each event, and one for each run of void positions.

    The row of a void run has the run's last position as its `seq`, and the time of the next event
    as its time, or null if there is none.
    """
    if batch.kind == DATA and batch.rows == batch.count:
        events = record_batch_of(batch, stream, schema)
        assert events is not None
        return _with_kinds(events, schema)
    seqs, times = _no_numbers(), _no_numbers()
    if batch.kind == DATA:
        seqs, times = batch.seqs(), batch.times()
    los, his, reasons = _void_runs(batch)
    # These arrays have first all events, then all void runs. `order` sorts their rows by position.
    all_seqs = np.concatenate((seqs, his - 1))
    next_times = np.append(times, batch.time_ns)[np.searchsorted(seqs, los)]
    all_times = np.concatenate((times, next_times))
    ranges = np.concatenate((np.ones(seqs.size, np.int64), his - los))
    whys = np.concatenate((np.zeros(seqs.size, np.int64), reasons))
    order = np.argsort(all_seqs)
    is_void = order >= seqs.size
    rows, time_rows = order.size, all_times[order]
    taken = pa.array(order, pa.int64(), mask=is_void)
    columns = [
        _stream_column(stream, rows),
        pa.array(all_seqs[order], _SEQ),
        *_bodies(batch, taken),
        pa.array(time_rows // 1000, pa.int64(), mask=is_void & (time_rows == 0)).cast(_TIME),
    ]
    if schema is not None and batch.kind == DATA:
        columns.append(_attributes(batch, schema).take(taken))
    elif schema is not None:
        columns.append(pa.nulls(rows, pa.struct(schema.arrow())))
    columns += [
        pa.DictionaryArray.from_arrays(pa.array(is_void.astype(np.int32)), _KINDS),
        pa.array(ranges[order], pa.int64()),
        _REASONS.take(pa.array(whys[order])),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=record_batch_schema(True, schema))


def _void_runs(batch: Batch) -> tuple[Int64s, Int64s, Int64s]:
    """The runs of positions without events [lo, hi), and the index of the reason of each in
    `_REASONS`."""
    if batch.kind in (DATA, VOID):
        return batch.void_runs()
    return np.array([batch.lo]), np.array([batch.hi]), np.array([_CONTROL])


def _with_kinds(events: pa.RecordBatch, schema: Schema | None) -> pa.RecordBatch:
    """The record batch with the three columns of SCHEMA_WITH_VOIDS; all its rows are events."""
    rows = events.num_rows
    constants = [_EVENT_KINDS, _ONES, _NO_REASONS]
    if rows > _ROWS:
        constants = [
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), _KINDS),
            pa.array(np.ones(rows, np.int64)),
            pa.nulls(rows, pa.string()),
        ]
    columns = [*events.columns, *(column.slice(0, rows) for column in constants)]
    return pa.RecordBatch.from_arrays(columns, schema=record_batch_schema(True, schema))


def _bodies(batch: Batch, rows: pa.Array) -> list[pa.Array]:
    """The keys, values and tags of these rows of a batch; null where the row number is null."""
    if batch.kind != DATA:
        return [pa.nulls(len(rows), pa.binary())] * 3
    body = batch.record_batch()
    keys, values = body.column(0).take(rows), body.column(1).take(rows)
    tags = pa.nulls(len(rows), pa.binary())
    if batch.schema_id & TAGGED:
        tags = body.column(2).take(rows)
    return [keys, values, tags]


def _no_numbers() -> Int64s:
    """An empty column of positions or times."""
    return np.empty(0, np.int64)


def _numbers(kind: pa.DataType, numbers: Any) -> pa.Array:
    """A numpy array of 64-bit integers as an Arrow array of this type, without a copy."""
    return pa.Array.from_buffers(kind, numbers.size, [None, pa.py_buffer(numbers)])


def _stream_column(stream: str, rows: int) -> pa.DictionaryArray:
    """The column "stream": the same name in all rows."""
    return _names(stream, _ROWS).slice(0, rows) if rows <= _ROWS else _names(stream, rows)


@lru_cache(256)
def _names(stream: str, rows: int) -> pa.DictionaryArray:
    indices = pa.array(np.zeros(rows, np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([stream], pa.string()))
