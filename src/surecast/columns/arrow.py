"""Converts batch bodies to and from pyarrow, and decodes bodies that other Arrow writers made.

codec.py and forms.py decode the bodies that Surecast writes; they pass all other bodies to
`decode_arrow`. pyarrow is loaded by the first call. `read_record_batch` does not check offsets, and
wrong offsets would crash the process, so every batch is checked with `validate(full=True)` before
it is returned. Compressed bodies are refused: a compressed buffer declares its unpacked size, and
pyarrow would allocate that much memory, even if the declared size is absurd.

A *dense* batch has a row for every position, and its body contains no positions. A body with
*explicit* positions has the columns `seq` and `time` in addition (see batch.py).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from surecast.columns.column import (
    NO_BYTES,
    Body,
    Column,
    Columns,
    aligned,
    null_column,
    uniform_offsets,
    unpack_valid,
)
from surecast.errors import PeerError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["array_of", "arrow_of", "columns_from_table", "decode_arrow", "read_arrow"]
__all__ += ["read_record_batch", "schema_of"]


def schema_of(schema_id: int, explicit: bool) -> pa.Schema:
    """The Arrow schema of a body: schema id 1 adds tags, `explicit` adds positions and times."""
    import pyarrow as pa

    fields = [pa.field("key", pa.binary()), pa.field("value", pa.binary(), nullable=False)]
    if schema_id == 1:
        fields.append(pa.field("tag", pa.binary()))
    if explicit:
        fields += [
            pa.field("seq", pa.int64(), nullable=False),
            pa.field("time", pa.int64(), nullable=False),
        ]
    return pa.schema(fields)


def columns_from_table(table: pa.Table | pa.RecordBatch, rows: int | None = None) -> Columns:
    """The columns of a dense batch, from the columns `value`, `key` and `tag` of a user's table.

    `key` and `tag` may be missing. If the number of rows is given, `value` may be missing, too;
    then all values are empty.
    """
    import pyarrow as pa

    names = table.schema.names
    unknown = [name for name in names if name not in ("key", "value", "tag")]
    missing = rows is None and "value" not in names
    if unknown or missing or len(set(names)) != len(names):
        raise UsageError(f"columns must be value, key and tag, each once; got {names}")
    rows = table.num_rows if rows is None else rows
    if not rows:
        raise UsageError("a batch has at least one event")
    empty = Column(uniform_offsets(rows, 0), NO_BYTES, None, 0)
    found = {"key": null_column(rows), "value": empty}
    for name in names:
        column = table.column(name)
        if not _is_bytes(column.type):
            raise UsageError(f"column {name!r} must hold bytes, not {column.type}")
        try:
            column = column.cast(pa.binary())
            if isinstance(column, pa.ChunkedArray):
                column = pa.concat_arrays(column.chunks)
        except (pa.ArrowException, OverflowError) as problem:
            raise UsageError(f"column {name!r} does not fit a batch: {problem}") from None
        if name == "value" and column.null_count:
            raise UsageError("column 'value' has nulls")
        found[name] = _column_of(column)
    return Columns(found["key"], found["value"], found.get("tag"))


def _column_of(array: pa.BinaryArray) -> Column:
    """A column over the memory of `array`, which may begin at any row (`first`) of its buffers."""
    first, rows = array.offset, len(array)
    bitmap, offset_buffer, data = array.buffers()
    valid = None
    if array.null_count:
        valid = unpack_valid(np.frombuffer(bitmap, np.uint8), first + rows)[first:]
    offsets = np.frombuffer(offset_buffer, np.int32, first + rows + 1)[first:]
    return Column(offsets, np.frombuffer(data, np.uint8) if data else NO_BYTES, valid)


def arrow_of(columns: Columns, rows: int) -> pa.RecordBatch:
    """Checked columns as a record batch over the same memory."""
    import pyarrow as pa

    arrays = [array_of(columns.keys, rows), array_of(columns.values, rows)]
    if columns.tags is not None:
        arrays.append(array_of(columns.tags, rows))
    if columns.seqs is not None:
        arrays += [pa.array(columns.seqs), pa.array(columns.times)]
    schema = schema_of(int(columns.tags is not None), columns.seqs is not None)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def array_of(column: Column, rows: int) -> pa.BinaryArray:
    """A checked column as an Arrow array over the same memory."""
    import pyarrow as pa

    valid = column.valid
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _is_bytes(kind: pa.DataType) -> bool:
    """Whether a user's column can be cast to bytes; a column without any value can, too."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _is_bytes(kind.value_type)
    types = pa.types
    tests = (
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
        types.is_string,
        types.is_large_string,
        types.is_null,
    )
    return any(test(kind) for test in tests)


def read_arrow(body: Body, schema_id: int, rows: int, explicit: bool) -> pa.RecordBatch:
    """`body` as a fully validated pyarrow record batch over the same memory."""
    return read_record_batch(body, schema_of(schema_id, explicit), rows, is_checked=False)


def read_record_batch(
    body: Body, schema: pa.Schema, rows: int, *, is_checked: bool
) -> pa.RecordBatch:
    """The message `body` as a record batch over the same memory, validated unless it is known to be
    valid. Its columns are aligned in memory: a body that is not is copied."""
    import pyarrow as pa

    buffer = pa.py_buffer(body)
    if buffer.address % 8:
        buffer = pa.py_buffer(bytes(body))
    try:
        if not is_checked:
            _refuse_compressed(body)
        message = pa.ipc.read_message(buffer)
        if message.type != "record batch":
            raise PeerError(f"the body is a {message.type} message")
        batch = pa.ipc.read_record_batch(message, schema)
        if not is_checked:
            if batch.nbytes > len(body):  # copies of the columns would be larger than the body
                raise PeerError("buffers of the body overlap")
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, OverflowError, struct.error) as problem:
        raise PeerError(f"the body is no valid Arrow batch: {str(problem)[:200]}") from problem
    if batch.num_rows != rows:
        raise PeerError(f"the body has {batch.num_rows} rows, the header says {rows}")
    return batch


def decode_arrow(body: Body, schema_id: int, rows: int, explicit: bool | None) -> Columns:
    """The columns of a body. `explicit` None: the body may have seqs and times, or not."""
    if explicit is None:
        # Without seqs and times a body has the columns key and value, and tag if schema_id is 1.
        explicit = _column_count(body) > 2 + schema_id
    batch = read_arrow(body, schema_id, rows, explicit)
    strings = []
    numbers = []
    for array in batch.columns:
        if array.offset:
            raise PeerError("a column does not start at its first row")
        bitmap, *buffers = array.buffers()
        valid = None
        if array.null_count:
            valid = unpack_valid(np.frombuffer(bitmap, np.uint8), rows)
        if len(buffers) == 1:  # not a binary column, which has offsets and data: seq or time
            if valid is not None:
                raise PeerError("a seq or time is null")
            numbers.append(aligned(np.frombuffer(buffers[0], np.int64, rows)))
            continue
        offsets = aligned(np.frombuffer(buffers[0], np.int32, rows + 1))
        has_data = buffers[1] is not None and buffers[1].size
        data = np.frombuffer(buffers[1], np.uint8) if has_data else NO_BYTES
        strings.append(Column(offsets, data, valid))
    seqs, times = numbers or (None, None)
    return Columns(strings[0], strings[1], strings[2] if schema_id == 1 else None, seqs, times)


# ---------------------------------------------------------------- reading the flatbuffer


def _record_batch_fields(body: Body) -> list[int]:
    """Where the fields of the body's record batch are in its metadata; 0 for absent fields.

    The metadata are a flatbuffer table Message (version, type of the header, header, body length,
    ...), whose header is a table RecordBatch. The returned fields are those of RecordBatch: length,
    nodes (one for each column), buffers, compression, variadic counts. The bytes are untrusted:
    raises struct.error or PeerError if they are not consistent.
    """
    (mark, size) = struct.unpack_from("<iI", body)
    if mark != -1 or 8 + size > len(body):
        raise PeerError("the body is no Arrow message")
    meta = bytes(body[8 : 8 + size])
    message = _table(meta, struct.unpack_from("<I", meta)[0], 5)
    _, _, header_at, body_len_at, _ = message
    if not header_at:
        raise PeerError("the body's message is empty")
    if not body_len_at or 8 + size + struct.unpack_from("<q", meta, body_len_at)[0] != len(body):
        raise PeerError("the body's length is not what its metadata says")
    return _table(meta, header_at + struct.unpack_from("<I", meta, header_at)[0], 5)


def _table(meta: bytes, at: int, count: int) -> list[int]:
    """Where the first `count` fields of the flatbuffer table at `at` are; 0 for absent fields."""
    vtable = at - struct.unpack_from("<i", meta, at)[0]
    if vtable < 0:
        raise PeerError("the body's metadata points outside itself")
    size = struct.unpack_from("<H", meta, vtable)[0]
    fields = []
    for slot in range(count):
        place = 4 + 2 * slot
        relative = struct.unpack_from("<H", meta, vtable + place)[0] if place + 2 <= size else 0
        fields.append(at + relative if relative else 0)
    return fields


def _refuse_compressed(body: Body) -> None:
    """Raise PeerError if the body is compressed: pyarrow would allocate its declared size."""
    _, _, _, compression, variadic_counts = _record_batch_fields(body)
    if compression or variadic_counts:
        raise PeerError("compressed or variadic Arrow bodies are not accepted")


def _column_count(body: Body) -> int:
    """The number of columns of a body: the length of the vector of nodes."""
    try:
        _, nodes, _, _, _ = _record_batch_fields(body)
        meta = bytes(body[8 : 8 + struct.unpack_from("<I", body, 4)[0]])
        vector = nodes + struct.unpack_from("<I", meta, nodes)[0]
        count: int = struct.unpack_from("<I", meta, vector)[0]
    except struct.error as problem:
        raise PeerError("the body's metadata is cut short") from problem
    return count
