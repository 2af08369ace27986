"""Encodes and decodes the body of a batch, an Arrow IPC record-batch message, without pyarrow.

Arrow's metadata is a flatbuffer. For a fixed list of columns every byte of it is known, except a
few integers at fixed offsets: the row count, the null count of each column, and offset and length
of each buffer. The encoder packs these integers into a *template* of the other bytes; the result is
byte for byte what pyarrow writes. The decoder reads the data sizes and null counts from a body, and
computes the metadata that the encoder would write for them. If the body begins with exactly these
bytes, the decoder makes numpy views of the buffers. Any other body (for example with another
writer's padding) is checked and decoded by pyarrow (arrow.py).

A body has the binary columns key and value; with schema id 1 also tag. The body of a *dense* batch
(every position has a row) has no other columns. A body with *explicit* positions also has the
columns seq and time (see batch.py).

`decode` always validates a body, because offsets that point outside the data would crash the
process when they are used. It raises nothing but PeerError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from surecast.columns.column import (
    DATA_MAX,
    NO_BYTES,
    Body,
    Column,
    Columns,
    Int32s,
    aligned,
    unpack_valid,
)
from surecast.errors import PeerError

__all__ = ["decode", "encode", "metadata", "offsets_fit", "use_kernel"]


# ---------------------------------------------------------------- the template


Pack = Callable[[int, int, Sequence[int], Sequence[int]], bytes]


def _metadata(buffers: int, nodes: int) -> tuple[struct.Struct, tuple[bytes, bytes, bytes, bytes]]:
    """The layout of the metadata for this number of buffers and columns (nodes), and its constants.

    The layout is the one that Arrow's flatbuffer builder produces: tables first, then (at byte 88)
    the vector of (offset, length) per buffer, then the vector of (length, nulls) per column. The
    constants are the bytes between the fields that vary (body size, row count, buffers, columns).
    """
    nodes_at = 88 + 16 * buffers + 8
    size = nodes_at + 16 * nodes
    head = bytes.fromhex("14000000000000000c0016000600050008000c000c0000000003040018000000")
    middle = bytes.fromhex("00000a0018000c00040008000a000000")
    start = struct.pack("<iI", -1, size - 8) + head
    vectors = middle + struct.pack("<II", nodes_at - 4 - 64, 16)
    layout = struct.Struct(f"<{len(start)}sq{len(vectors)}sq8s{2 * buffers}q8s{2 * nodes}q")
    assert layout.size == size
    return layout, (start, vectors, struct.pack("<II", 0, buffers), struct.pack("<II", 0, nodes))


def metadata(buffers: int, nodes: int) -> tuple[Pack, int]:
    """Returns a function that packs metadata, and the size of the metadata in bytes.

    The function takes the size of all buffers, the number of rows, `places` ((offset, length) of
    each buffer) and `counts` ((length, nulls) of each column).
    """
    layout, (start, vectors, buffer_count, node_count) = _metadata(buffers, nodes)

    def pack(body_size: int, rows: int, places: Sequence[int], counts: Sequence[int]) -> bytes:
        return layout.pack(
            start, body_size, vectors, rows, buffer_count, *places, node_count, *counts
        )

    return pack, layout.size


class _Template:
    """The template for `strings` binary columns, followed by seq and time if `explicit`."""

    __slots__ = ("columns", "constants", "layout", "pack", "peek", "size", "strings")

    def __init__(self, strings: int, explicit: bool) -> None:
        self.strings = strings
        self.columns = strings + 2 * explicit
        buffers = 3 * strings + 4 * explicit
        self.pack, self.size = metadata(buffers, self.columns)
        self.layout, self.constants = _metadata(buffers, self.columns)
        nodes_at = self.size - 16 * self.columns
        # `peek` reads the data length of each string column, then the null counts. All other
        # numbers of the metadata follow from these and the number of rows.
        spots = [88 + 48 * i + 40 for i in range(strings)]
        spots += [nodes_at + 16 * i + 8 for i in range(strings)]
        peek, at = "<", 0
        for spot in spots:
            peek += f"{spot - at}xq"
            at = spot + 8
        self.peek = struct.Struct(peek).unpack_from


_TEMPLATES = {
    (schema_id, explicit): _Template(2 + schema_id, explicit)
    for schema_id in (0, 1)
    for explicit in (False, True)
}


def _layout(
    template: _Template, rows: int, sizes: Sequence[int], nulls: Sequence[int]
) -> tuple[bytes, list[int]]:
    """The metadata, and the (offset, length) of every buffer that follows it."""
    places: list[int] = []
    nodes: list[int] = []
    at = 0
    bitmap = (rows + 7) >> 3
    for size, null_count in zip(sizes, nulls, strict=True):
        length = bitmap if null_count else 0
        places += (at, length)
        at += (length + 7) & -8
        length = 4 * (rows + 1)
        places += (at, length, at + ((length + 7) & -8), size)
        at = places[-2] + ((size + 7) & -8)
        nodes += (rows, null_count)
    for _ in range(template.columns - template.strings):
        places += (at, 0, at, 8 * rows)
        at += 8 * rows
        nodes += (rows, 0)
    return template.pack(at, rows, places, nodes), places


# Dense batches without tags are the most common. Code for them alone takes half the time of the
# general code.
_DENSE = _TEMPLATES[0, False]
_DENSE_PACK, _DENSE_UNPACK = _DENSE.layout.pack, _DENSE.layout.unpack_from
_DENSE_1, _DENSE_2, _DENSE_3, _DENSE_4 = _DENSE.constants
_INT32, _UINT8 = np.dtype(np.int32), np.dtype(np.uint8)


def _dense_fields(rows: int, nulls: int, key_size: int, value_size: int) -> tuple[bytes | int, ...]:
    """All fields of the metadata of a dense batch without tags, in order.

    Constants; the size of all buffers; constants; rows; constants; offset and length of the six
    buffers (bitmap, offsets and data of the keys, then of the values); constants; number of rows
    and of nulls, for the keys and for the values.
    """
    bitmap = (rows + 7) >> 3 if nulls else 0
    size = 4 * rows + 4
    key_offsets = (bitmap + 7) & -8
    key_data = key_offsets + ((size + 7) & -8)
    value_offsets = key_data + ((key_size + 7) & -8)
    value_data = value_offsets + ((size + 7) & -8)
    end = value_data + ((value_size + 7) & -8)
    return (
        _DENSE_1, end, _DENSE_2, rows, _DENSE_3,
        0, bitmap, key_offsets, size, key_data, key_size,
        value_offsets, 0, value_offsets, size, value_data, value_size,
        _DENSE_4, rows, nulls, rows, 0,
    )  # fmt: skip


def _encode_dense(keys: Column, values: Column) -> bytes | None:
    """The message of a dense batch without tags. None if the general code must make it: the values
    have a validity bitmap, or a column's data do not start at offset 0 and fill its buffer."""
    offsets, data, valid, _ = keys
    value_offsets, value_data, value_valid, _ = values
    rows = value_offsets.size - 1
    key_size, value_size = data.size, value_data.size
    if (
        value_valid is not None
        or offsets.item(0)
        or value_offsets.item(0)
        or offsets.item(rows) != key_size
        or value_offsets.item(rows) != value_size
    ):
        return None
    nulls = 0
    bitmap = b""
    if valid is not None:
        nulls = rows - int(np.count_nonzero(valid))
        if nulls:
            bitmap = np.packbits(valid, bitorder="little").tobytes()
    gap = _PADDING[4 * (rows + 1) & 7]
    return b"".join((
        _DENSE_PACK(*_dense_fields(rows, nulls, key_size, value_size)),
        bitmap, _PADDING[len(bitmap) & 7],
        offsets.tobytes(), gap, data.tobytes(), _PADDING[key_size & 7],
        value_offsets.tobytes(), gap, value_data.tobytes(), _PADDING[value_size & 7],
    ))  # fmt: skip


def encode(columns: Columns) -> bytes:
    """The message for these columns."""
    if columns.tags is None and columns.seqs is None:
        dense = _encode_dense(columns.keys, columns.values)
        if dense is not None:
            return dense
    strings = [columns.keys, columns.values]
    if columns.tags is not None:
        strings.append(columns.tags)
    explicit = columns.seqs is not None
    template = _TEMPLATES[len(strings) - 2, explicit]
    rows = columns.values.offsets.size - 1
    sizes = []
    nulls = []
    parts: list[bytes] = [b""]
    for offsets, data, valid, _ in strings:
        first, last = int(offsets[0]), int(offsets[-1])
        null_count = 0 if valid is None else rows - int(np.count_nonzero(valid))
        sizes.append(last - first)
        nulls.append(null_count)
        if null_count:
            assert valid is not None
            bitmap = np.packbits(valid, bitorder="little").tobytes()
            parts += (bitmap, _PADDING[len(bitmap) & 7])
        if first:
            offsets = offsets - np.int32(first)
        parts += (offsets.tobytes(), _PADDING[4 * (rows + 1) & 7])
        if last - first != data.size:
            data = data[first:last]
        parts += (data.tobytes(), _PADDING[(last - first) & 7])
    if explicit:
        assert columns.seqs is not None
        assert columns.times is not None
        parts += (columns.seqs.tobytes(), columns.times.tobytes())
    parts[0] = _layout(template, rows, sizes, nulls)[0]
    return b"".join(parts)


_PADDING = [bytes(-n % 8) for n in range(8)]


# ---------------------------------------------------------------- reading


def _offsets_ok(offsets: Int32s, data_size: int) -> bool:
    """`offsets_fit` in numpy, until `use_kernel` replaces it by a compiled loop."""
    if offsets[0] < 0 or offsets[-1] > data_size:
        return False
    return bool((offsets[1:] >= offsets[:-1]).all())


_check_offsets: Callable[[Int32s, int], bool] = _offsets_ok


def offsets_fit(offsets: Int32s, data_size: int) -> bool:
    """Whether every row of a column lies inside its data."""
    return _check_offsets(offsets, data_size)


def use_kernel(check: Callable[[Int32s, int], bool]) -> None:
    """Replace the check of offsets by a compiled one: 0.5 µs a column instead of 3.

    kernels.py calls this when it is loaded."""
    global _check_offsets
    _check_offsets = check


def decode(body: Body, schema_id: int, rows: int, *, explicit: bool | None = None) -> Columns:
    """Views into `body`, after checking all of it.

    `explicit` says whether the body must have seq and time columns; None allows both.
    """
    if schema_id not in (0, 1):
        raise PeerError(f"unknown schema {schema_id}")
    if rows < 1:
        raise PeerError(f"a body cannot have {rows} rows")
    if schema_id == 0 and not explicit:
        dense = _decode_dense(body, rows)
        if dense is not None:
            return dense
    for has_seqs in (False, True) if explicit is None else (explicit,):
        columns = _decode_template(_TEMPLATES[schema_id, has_seqs], body, rows)
        if columns is not None:
            break
    else:
        from surecast.columns.arrow import decode_arrow  # loads pyarrow

        columns = decode_arrow(body, schema_id, rows, explicit)
    if (columns.values.valid is not None) and not columns.values.valid.all():
        raise PeerError("a value is null")
    return columns


def _decode_dense(body: Body, rows: int) -> Columns | None:
    """A faster `_decode_template` for dense batches without tags."""
    start = _DENSE.size
    if len(body) < start:
        return None
    fields = _DENSE_UNPACK(body)  # in the order of `_dense_fields`
    bitmap_size, key_offsets, key_data, key_size = fields[6], fields[7], fields[9], fields[10]
    value_offsets, value_data, value_size = fields[13], fields[15], fields[16]
    nulls = fields[19]
    if nulls < 0 or not 0 <= key_size <= DATA_MAX or not 0 <= value_size <= DATA_MAX:
        return None
    if fields != _dense_fields(rows, nulls, key_size, value_size):
        return None
    if start + fields[1] != len(body):  # the size of all buffers
        return None
    keys = np.frombuffer(body, _INT32, rows + 1, start + key_offsets)
    values = np.frombuffer(body, _INT32, rows + 1, start + value_offsets)
    if not keys.flags.aligned:
        keys, values = keys.copy(), values.copy()
    if not (_check_offsets(keys, key_size) and _check_offsets(values, value_size)):
        raise PeerError("offsets point outside the data")
    valid = None
    if nulls:
        valid = unpack_valid(np.frombuffer(body, _UINT8, bitmap_size, start), rows)
        if rows - int(np.count_nonzero(valid)) != nulls:
            raise PeerError("the null count does not match the bitmap")
    data = np.frombuffer(body, _UINT8, key_size, start + key_data) if key_size else NO_BYTES
    value_bytes = (
        np.frombuffer(body, _UINT8, value_size, start + value_data) if value_size else NO_BYTES
    )
    return Columns(Column(keys, data, valid), Column(values, value_bytes))


def _decode_template(template: _Template, body: Body, rows: int) -> Columns | None:
    """The columns, if `body` has the metadata that `encode` writes; None if pyarrow must check
    it."""
    start = template.size
    if len(body) < start:
        return None
    numbers = template.peek(body)
    strings = template.strings
    sizes, nulls = numbers[:strings], numbers[strings:]
    if min(numbers) < 0 or max(sizes) > DATA_MAX or max(nulls) > rows:
        return None
    meta, places = _layout(template, rows, sizes, nulls)
    # `places` has offset and length of each buffer: three for each string column (bitmap, offsets,
    # data), then two (bitmap, numbers) for the seqs and two for the times, if there are any.
    end = places[-2] + ((places[-1] + 7) & -8)
    if body[:start] != meta or start + end != len(body):
        return None
    found = []
    for index in range(strings):
        bitmap_at, _, offsets_at, _, data_at, size = places[6 * index : 6 * index + 6]
        offsets = aligned(np.frombuffer(body, np.int32, rows + 1, start + offsets_at))
        if not _check_offsets(offsets, size):
            raise PeerError(f"column {index}: offsets point outside the data")
        valid = None
        if nulls[index]:
            bitmap = np.frombuffer(body, np.uint8, (rows + 7) >> 3, start + bitmap_at)
            valid = unpack_valid(bitmap, rows)
            if rows - int(np.count_nonzero(valid)) != nulls[index]:
                raise PeerError(f"column {index}: null count does not match the bitmap")
        data = np.frombuffer(body, np.uint8, size, start + data_at) if size else NO_BYTES
        found.append(Column(offsets, data, valid))
    seqs = times = None
    if template.columns > strings:
        seqs = aligned(np.frombuffer(body, np.int64, rows, start + places[-6]))
        times = aligned(np.frombuffer(body, np.int64, rows, start + places[-2]))
    return Columns(found[0], found[1], found[2] if strings == 3 else None, seqs, times)
