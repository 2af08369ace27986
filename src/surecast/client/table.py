"""Collects the events of `Stream.read` in one Arrow table.

This module is imported only when `read` is called, because it loads pyarrow. Events that were
published one by one arrive in many small batches, and each batch costs some memory in addition to
its events. So small batches are joined as they arrive. The events of large batches are not copied.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from surecast.client.arrow import record_batch_of, record_batch_schema, record_batch_with_voids
from surecast.client.subscription_buffer import SubscriptionBuffer
from surecast.columns.schema import Schema
from surecast.core.endpoint import Lost
from surecast.errors import EventsLost, UsageError

__all__ = ["read_table"]

LARGE_ROWS: Final = 256  # batches with at least this number of rows are not joined with others
SMALL_MAX: Final = 256  # this number of small batches is joined into one


async def read_table(buffer: SubscriptionBuffer, schema: Schema | None = None) -> pa.Table:
    """All events of a subscription with a stop to one stream, in one table. `schema` is the
    stream's. If it is changed while the stream is read, the table has the last one.

    Raises UsageError if the table gets larger than `ClientOptions.read_bytes_max`, and EventsLost
    if events were lost.
    """
    nbytes_max = buffer.options.read_bytes_max
    convert = record_batch_with_voids if buffer.voids else record_batch_of
    batches = _Batches(record_batch_schema(buffer.voids, schema))
    while (taken := await buffer.next_item()) is not None:
        progress, item = taken
        if isinstance(item, Lost):
            raise EventsLost(progress.name, item.lo, item.hi, item.why)
        batch = convert(item, progress.name, progress.schema)
        if batch is None:  # it has no events
            continue
        batches.add(batch)
        if batches.nbytes > nbytes_max:
            raise UsageError(
                f"the table of {progress.name!r} is larger than {nbytes_max:,} bytes "
                f"(ClientOptions.read_bytes_max) at position {item.hi - 1}: read fewer positions "
                "at a time (start=, stop=), iterate over subscribe(stop=...).batches(), which "
                "holds one batch at a time, or raise the limit"
            )
    return batches.table()


class _Batches:
    """Record batches in order, of which small ones are joined. The schema of each extends that of
    the batches before it."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.nbytes = 0  # the sum of Arrow's `nbytes`
        self._done: list[pa.RecordBatch] = []  # large and joined ones
        self._small: list[pa.RecordBatch] = []  # the small ones after these

    def add(self, batch: pa.RecordBatch) -> None:
        self.nbytes += batch.nbytes
        if batch.schema is not self.schema and batch.schema != self.schema:
            self._join()
            self.schema = batch.schema
        if batch.num_rows < LARGE_ROWS:
            self._small.append(batch)
            if len(self._small) >= SMALL_MAX:
                self._join()
        else:
            self._join()
            self._done.append(batch)

    def _join(self) -> None:
        """Join the small batches into one."""
        small, self._small = self._small, []
        if len(small) > 1:
            self._done += pa.Table.from_batches(small).combine_chunks().to_batches()
        else:
            self._done += small

    def table(self) -> pa.Table:
        self._join()
        return pa.Table.from_batches([_extended(b, self.schema) for b in self._done], self.schema)


def _extended(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with this schema: the attributes that it lacks are null."""
    if batch.schema == schema:
        return batch
    at = schema.get_field_index("attributes")
    struct, fields = batch.column(at), list(schema.field(at).type)
    arrays = [struct.field(index) for index in range(struct.type.num_fields)]
    arrays += [pa.nulls(batch.num_rows, field.type) for field in fields[len(arrays) :]]
    columns = batch.columns
    columns[at] = pa.StructArray.from_arrays(arrays, fields=fields, mask=struct.is_null())
    return pa.RecordBatch.from_arrays(columns, schema=schema)
