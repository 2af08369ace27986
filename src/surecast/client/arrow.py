"""Batches as Arrow record batches. Imported late: it loads pyarrow.

Whatever is the same in every batch (types, the schema, columns of one value) is made once: building
those anew takes longer than looking at a few hundred events.
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from surecast.columns.batch import DATA, Batch

__all__ = ["SCHEMA", "record_batch_of"]

_SEQ: Final = pa.int64()
_TIME: Final = pa.timestamp("us", tz="UTC")
_ROWS: Final = 1 << 13  # of the columns that are kept
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


def record_batch_of(batch: Batch, stream: str) -> pa.RecordBatch | None:
    """The events of a batch with the columns stream, seq, key, value, tag, timestamp.

    Keys, values and tags lie where they were received. Times are in microseconds, as Spark's are
    (and Python's, which cannot show nanoseconds). None if it has no events.
    """
    if batch.kind != DATA:
        return None
    body, rows = batch.record_batch(), batch.rows
    if batch.schema_id == 1:
        tags = body.column(2)
    else:
        tags = _NO_TAGS.slice(0, rows) if rows <= _ROWS else pa.nulls(rows, pa.binary())
    names = _names(stream, _ROWS).slice(0, rows) if rows <= _ROWS else _names(stream, rows)
    seqs, times = _numbers(_SEQ, batch.seqs()), _numbers(_TIME, batch.times() // 1000)
    columns = [names, seqs, body.column(0), body.column(1), tags, times]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _numbers(kind: pa.DataType, numbers: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, numbers.size, [None, pa.py_buffer(numbers)])


@lru_cache(256)
def _names(stream: str, rows: int) -> pa.DictionaryArray:
    places = pa.array(np.zeros(rows, np.int32))
    return pa.DictionaryArray.from_arrays(places, pa.array([stream], pa.string()))
