"""Divides the events of a `publish_many` into batches within the limits of ClientOptions.

All events are checked before the first batch is made, so if one is invalid, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from surecast.columns.batch import Batch
from surecast.columns.schema import extends
from surecast.core.types import LogId
from surecast.endpoint.attributes import RowWriter, TypedRow, writer_of
from surecast.endpoint.error_messages import encode_hint
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.publishers import EVENT_OVERHEAD
from surecast.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowStream", "PreparedBatch", "joined", "prepared_batches"]


class ArrowStream(Protocol):
    """A table or frame of any library with Arrow's C stream interface: pyarrow, pandas from 2.2 on,
    polars."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch that is ready to be published."""

    batch: Batch
    nbytes: int  # the size that is counted against `ClientOptions.outbox_bytes_max`


def prepared_batches(
    stream: LogId,
    values: Any,
    keys: Iterable[bytes | None] | None,
    tags: Iterable[bytes | None] | None,
    options: ClientOptions,
    writer: RowWriter | None = None,
) -> Iterator[PreparedBatch]:
    """The batches for events given as iterables or as an Arrow table. With a table, `keys` and
    `tags` must be None, because the table has columns for them. If the stream has a schema
    (`writer`), `values` are rows of it, or a table with its columns.

    All events are checked by this call. A batch is created when the caller asks for it.
    """
    if hasattr(values, "__arrow_c_stream__"):
        if keys is not None or tags is not None:
            raise UsageError("a table has its keys and tags in columns `key` and `tag`")
        return _batches_of_table(stream, _table_of(values), options, writer)
    if isinstance(values, bytes | bytearray | str | memoryview | Mapping):
        raise UsageError("publish_many takes many events; for one there is publish(...)")
    if not isinstance(values, Iterable):
        what = "bytes" if writer is None else "dicts"
        raise UsageError(
            f"publish_many takes an iterable of {what}, or a table that Arrow can read (pyarrow, "
            f"pandas from 2.2 on, polars), not {values!r:.60}"
        )
    rows: list[Any] = list(values)
    key_rows = _column("keys", keys, len(rows))
    tag_rows = _column("tags", tags, len(rows))
    if writer is not None:
        return _batches_of_rows(stream, rows, key_rows, tag_rows, options, writer)
    if not set(map(type, rows)) <= {bytes}:
        at = next(i for i, value in enumerate(rows) if type(value) is not bytes)
        hint = encode_hint("value", rows[at])
        raise UsageError(f"values are bytes; number {at} is {rows[at]!r:.60}{hint}")
    return _batches_of_lists(stream, rows, key_rows, tag_rows, options)


def _column(
    what: str, column: Iterable[bytes | None] | None, rows: int
) -> list[bytes | None] | None:
    """The checked keys or tags as a list. `what` is "keys" or "tags", for messages; `rows` is the
    number of values."""
    if column is None:
        return None
    items = list(column)
    if len(items) != rows:
        raise UsageError(
            f"{len(items)} {what} for {rows} values: give one for each value, or None for a value "
            f"without a {what[:-1]}"
        )
    if not set(map(type, items)) <= {bytes, type(None)}:
        at = next(i for i, item in enumerate(items) if type(item) not in (bytes, type(None)))
        hint = encode_hint(what[:-1], items[at])
        raise UsageError(f"{what} are bytes or None; number {at} is {items[at]!r:.60}{hint}")
    return items


# ------------------------------------------------------------ lists


def _batches_of_rows(
    stream: LogId,
    rows: list[Any],
    keys: list[bytes | None] | None,
    tags: list[bytes | None] | None,
    options: ClientOptions,
    writer: RowWriter,
) -> Iterator[PreparedBatch]:
    """The batches of rows of a schema."""
    typed = [
        row if type(row) is TypedRow else writer.row(row, number) for number, row in enumerate(rows)
    ]
    if typed and typed[0].schema != writer.schema:
        # The rows were checked before the schema was changed.
        if not extends(writer.schema.text, typed[0].schema.text):
            raise UsageError("the stream was replaced by one with another schema: publish again")
        writer = writer_of(typed[0].schema.text) or writer
    if any(row.schema is not writer.schema and row.schema != writer.schema for row in typed):
        raise UsageError("rows that were checked against several schemas: publish them separately")
    values = [row.value for row in typed]
    if any(row.key is not None for row in typed):
        if keys is not None:
            raise UsageError("keys= are given, and rows have keys, too")
        keys = [row.key for row in typed]
    if any(row.tag is not None for row in typed):
        if tags is not None:
            raise UsageError("tags= are given, and rows have tags, too")
        tags = [row.tag for row in typed]
    return _batches_of_lists(stream, values, keys, tags, options, writer, typed)


def _batches_of_lists(
    stream: LogId,
    values: list[bytes],
    keys: list[bytes | None] | None,
    tags: list[bytes | None] | None,
    options: ClientOptions,
    writer: RowWriter | None = None,
    typed: Sequence[TypedRow] = (),
) -> Iterator[PreparedBatch]:
    sizes = list(map(len, values))
    if writer is not None:
        sizes = [size + row.nbytes for size, row in zip(sizes, typed, strict=True)]
    for column in (keys, tags):
        if column is not None:
            sizes = [size + len(item or b"") for size, item in zip(sizes, column, strict=True)]
    _check_largest(max(sizes, default=0), options, writer)

    # A separate generator, so that the checks above run before its first batch is requested.
    def make() -> Iterator[PreparedBatch]:
        for lo, hi in _cuts(sizes, options):
            batch = Batch.of(
                stream,
                values[lo:hi],
                None if keys is None else keys[lo:hi],
                None if tags is None else tags[lo:hi],
                writer.attributes(row.fields for row in typed[lo:hi]) if writer else None,
            )
            yield PreparedBatch(batch, sum(sizes[lo:hi]) + EVENT_OVERHEAD * (hi - lo))

    return make()


def _check_largest(size: int, options: ClientOptions, writer: RowWriter | None) -> None:
    most = options.event_most(writer.overhead if writer else 0)
    if size > most:
        raise UsageError(
            f"an event of {size:,} bytes: at most {most:,} are allowed "
            "(ClientOptions.event_bytes_max). Nothing was published. Publish it in parts"
        )


def _cuts(sizes: Sequence[int], options: ClientOptions) -> Iterator[tuple[int, int]]:
    """Divide rows of these sizes (in bytes) into batches; yields the half-open range of rows of
    each batch. A row larger than `batch_bytes_max` is a batch by itself."""
    rows_max, bytes_max = options.batch_rows_max, options.batch_bytes_max
    total = len(sizes)
    # Sizes matter only if `rows_max` of the largest rows would exceed `bytes_max`. If not, only
    # the number of rows limits a batch. (`sum` is 0 if there are no rows, for which `max` would
    # raise an exception.)
    if sum(sizes) and max(sizes) * rows_max > bytes_max:
        lo = nbytes = 0
        for at, size in enumerate(sizes):
            if at > lo and (nbytes + size > bytes_max or at - lo >= rows_max):
                yield lo, at
                lo, nbytes = at, 0
            nbytes += size
        yield lo, total
        return
    for lo in range(0, total, rows_max):
        yield lo, min(lo + rows_max, total)


# ------------------------------------------------------------ Arrow


def _table_of(values: ArrowStream) -> pa.Table | pa.RecordBatch:
    """`values` as a table of pyarrow. A Table or RecordBatch is returned unchanged."""
    import pyarrow as pa

    if isinstance(values, pa.Table | pa.RecordBatch):
        return values
    try:
        table = pa.RecordBatchReader.from_stream(values).read_all()
        # polars uses Arrow's view types, for which pyarrow lacks some functions: convert them.
        for at, name in enumerate(table.schema.names):
            kind = table.schema.types[at]
            if pa.types.is_binary_view(kind):
                table = table.set_column(at, name, table.column(at).cast(pa.large_binary()))
            elif pa.types.is_string_view(kind):
                table = table.set_column(at, name, table.column(at).cast(pa.large_string()))
    except (pa.ArrowException, TypeError, ValueError) as problem:
        raise UsageError(f"{type(values).__name__} cannot be read as a table: {problem}") from None
    return table


def _batches_of_table(
    stream: LogId,
    table: pa.Table | pa.RecordBatch,
    options: ClientOptions,
    writer: RowWriter | None,
) -> Iterator[PreparedBatch]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = np.zeros(table.num_rows, np.int64)
    typed: pa.Table | None = None
    if writer is not None:
        rows = table.num_rows
        table, typed = writer.table(table)
        sizes = writer.sizes(typed, rows)
    for name in ("value", "key", "tag"):
        if name in table.schema.names:
            column = table.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            try:
                lengths = pc.fill_null(pc.binary_length(column), 0)
            except pa.ArrowException:
                raise UsageError(f"column {name!r} must hold bytes, not {column.type}") from None
            sizes += lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    _check_largest(int(sizes.max(initial=0)), options, writer)

    def make_batch(lo: int, hi: int) -> Batch:
        attributes = writer.part(typed, lo, hi) if writer and typed is not None else None
        return Batch.from_arrow(stream, table.slice(lo, hi - lo), attributes=attributes)

    if sizes.size:
        # Raises the error for an unknown column now, before anything is sent.
        make_batch(0, 1)
        if "value" in table.schema.names and table.column("value").null_count:
            raise UsageError("column 'value' has nulls; use b'' for an empty value")

    def make() -> Iterator[PreparedBatch]:
        for lo, hi in _cuts(sizes.tolist(), options):
            batch = make_batch(lo, hi)
            yield PreparedBatch(batch, int(sizes[lo:hi].sum()) + EVENT_OVERHEAD * (hi - lo))

    return make()


# ------------------------------------------------------------ positions


def joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Half-open ranges of positions, with adjacent ranges joined. Empty ranges are left out: (0, 0)
    stands for a batch whose positions are not known any more (`Acked`)."""
    merged: list[tuple[int, int]] = []
    for lo, hi in runs:
        if merged and merged[-1][1] == lo:
            merged[-1] = (merged[-1][0], hi)
        elif lo < hi:
            merged.append((lo, hi))
    return merged
