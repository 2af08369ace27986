"""Narrow bodies: batch bodies with smaller Arrow columns, used where the rows allow it.

The body of codec.py stores keys and values as binary columns of variable length, and explicit seqs
and times as numbers of 8 bytes. A row with a key of 8 bytes and a value of 10 then takes 26 bytes,
and 16 more if seq and time are explicit (after compaction). Most batches need less:

    key     fixed-size binary if all keys have the same length; Arrow's null type if there are none
    value   fixed-size binary if all values have the same length
    seq     the distance from the previous row's seq (from lo - 1 for the first row) in 1, 2 or 4
            bytes
    time    run-end encoded if this makes its buffers smaller: rows published in one batch have the
            same time

The `form` of a batch, a header field, says which of these columns its body uses. So the schema of a
body follows from the header alone. Form 0 is the body of codec.py. A body of any other form must
have exactly the layout of this module; a writer with another Arrow layout must use form 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from surecast.columns import codec
from surecast.columns.column import (
    DATA_MAX,
    NO_BYTES,
    TAGGED,
    TYPED,
    Body,
    Column,
    Columns,
    Int64s,
    aligned,
    null_column,
    uniform_offsets,
    unpack_valid,
)
from surecast.errors import PeerError

__all__ = [
    "EXPLICIT",
    "Form",
    "decode",
    "encode",
    "encode_row",
    "fixed_keys",
    "form_of",
    "is_fixed",
    "join_fixed",
    "matches",
    "read_row",
    "take_fixed",
]

# Values in place of a width:
VARIABLE: Final = -1  # Arrow's type binary: rows differ in length
ABSENT: Final = -2  # only for keys, Arrow's type null: no row has a key
_WIDTH_MAX: Final = 0xFFFC  # packed as width + 1, below 0xFFFE (not used) and 0xFFFF (ABSENT)
# `Form.gap` → the numpy type of a distance.
_GAPS: Final[dict[int, Any]] = {1: np.dtype(np.uint8), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
_INT32, _INT64, _UINT8 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint8)
EXPLICIT: Final = 0xFF << 32  # if one of these bits is set in a packed form, seqs are explicit
# Largest number of layouts in each cache. If peers use more forms and numbers of rows than this,
# decoding takes longer, but no more memory.
_PLANS_MAX: Final = 4096


class Form(NamedTuple):
    """How the columns of a body are laid out."""

    key: int = VARIABLE  # bytes of every key, or VARIABLE, or ABSENT
    value: int = VARIABLE  # bytes of every value, or VARIABLE
    gap: int = 0  # bytes of a distance between seqs; 0: rows take the positions from lo on
    runs: bool = False  # times are run-end encoded

    @property
    def packed(self) -> int:
        """The form as a number, as in the header: u16 key, u16 value, u8 gap, u8 runs, u16 zero.

        Widths are stored plus one, so that VARIABLE is 0; ABSENT is 0xFFFF.
        """
        key = 0xFFFF if self.key == ABSENT else self.key + 1
        return key | (self.value + 1) << 16 | self.gap << 32 | self.runs << 40


def form_of(packed: int) -> Form:
    """The inverse of `Form.packed`; PeerError if the number is not valid."""
    key, value = packed & 0xFFFF, packed >> 16 & 0xFFFF
    gap, runs = packed >> 32 & 0xFF, packed >> 40
    if value == 0xFFFF or key == 0xFFFE or gap not in (0, *_GAPS) or runs > (gap > 0):
        raise PeerError(f"unknown form {packed:#x} of a body")
    return Form(ABSENT if key == 0xFFFF else key - 1, value - 1, gap, bool(runs))


# ---------------------------------------------------------------- layouts


class _Shape:
    """The Arrow metadata at the start of every body of one form: a template like codec's, in which
    only a few numbers vary."""

    __slots__ = ("fixed", "form", "pack", "size", "sized", "wanted", "widths")

    def __init__(self, form: Form, schema_id: int) -> None:
        if not schema_id and not form.gap and form.key in (0, ABSENT) and form.value == 0:
            # Otherwise a peer could claim a million rows in a body without data.
            raise PeerError("rows without any bytes")
        self.form = form
        tagged = schema_id & TAGGED
        self.widths = (form.key, form.value, VARIABLE) if tagged else (form.key, form.value)
        buffers = nodes = 0
        # (kind, index) of each number that does not follow from the number of rows. Kind 0: the
        # length of buffer `index`; 1: the nulls of column `index`; 2: the length of that column.
        varying: list[tuple[int, int]] = []
        for width in self.widths:
            if width == VARIABLE:
                varying += ((0, buffers + 2), (1, nodes))
            # Binary: bitmap, offsets, data. Null: no buffer. Fixed size: bitmap, data.
            buffers += {VARIABLE: 3, ABSENT: 0}.get(width, 2)
            nodes += 1
        if form.gap:
            if form.runs:
                varying.append((2, nodes + 2))  # the number of runs
            buffers += 6 if form.runs else 4
            nodes += 4 if form.runs else 2
        self.pack, self.size = codec.metadata(buffers, nodes)
        nodes_at = self.size - 16 * nodes
        # Where the first number of each kind is; the next ones of a kind follow every 16 bytes.
        places = (88 + 8, nodes_at + 8, nodes_at)
        # Where the varying numbers are in a body.
        self.wanted = [places[kind] + 16 * index for kind, index in varying]
        self.sized = not varying  # all numbers follow from the number of rows
        # Exactly two columns, keys and values, both of fixed size and not empty.
        self.fixed = self.sized and len(self.widths) == 2 and min(self.widths) > 0 and not form.gap

    def layout(self, rows: int, numbers: Iterator[int]) -> tuple[bytes, list[int], int]:
        """The metadata, the (offset, length) of every buffer, and the size of the whole body.

        `numbers` are the varying numbers, in the order of `wanted`.
        """
        lengths: list[int] = []
        nodes: list[int] = []
        for width in self.widths:
            if width == VARIABLE:
                size, nulls = next(numbers), next(numbers)
                lengths += ((rows + 7) >> 3 if nulls else 0, 4 * (rows + 1), size)
                nodes += (rows, nulls)
            elif width == ABSENT:
                nodes += (rows, rows)
            else:
                lengths += (0, width * rows)
                nodes += (rows, 0)
        if self.form.gap:
            lengths += (0, self.form.gap * rows)
            nodes += (rows, 0, rows, 0)
            if self.form.runs:
                runs = next(numbers)
                lengths += (0, 4 * runs, 0, 8 * runs)
                nodes += (runs, 0, runs, 0)
            else:
                lengths += (0, 8 * rows)
        places: list[int] = []
        at = 0
        for length in lengths:
            places += (at, length)
            at += (length + 7) & -8
        return self.pack(at, rows, places, nodes), places, self.size + at


class _Plan(NamedTuple):
    """The layout of one body."""

    shape: _Shape
    numbers: list[int]  # the varying numbers, as read from the body (`_Shape.wanted`)
    meta: bytes  # the metadata that the body must have
    places: list[int]  # (offset, length) of every buffer
    size: int  # of the whole body


_SHAPES: dict[tuple[int, int], _Shape] = {}  # (schema id, packed form) → shape
# (schema id, packed form, rows) → plan; only for shapes that are `sized`.
_PLANS: dict[tuple[int, int, int], _Plan] = {}


def _shape(schema_id: int, packed: int) -> _Shape:
    shape = _SHAPES.get((schema_id, packed))
    if shape is None:
        if not 0 <= schema_id <= TAGGED | TYPED:
            raise PeerError(f"unknown schema {schema_id}")
        if len(_SHAPES) >= _PLANS_MAX:
            _SHAPES.clear()
        shape = _SHAPES[schema_id, packed] = _Shape(form_of(packed), schema_id)
    return shape


def _plan(body: Body, schema_id: int, packed: int, rows: int) -> _Plan:
    """The layout that a body of this form must have, given the varying numbers that are in it."""
    plan = _PLANS.get((schema_id, packed, rows))
    if plan is not None:
        return plan
    shape = _shape(schema_id, packed)
    if rows < 1:
        raise PeerError(f"a body cannot have {rows} rows")
    if max(shape.widths) * rows > DATA_MAX:
        raise PeerError(f"{rows:,} rows of {max(shape.widths):,} bytes are too many")
    numbers: list[int] = []
    if not shape.sized:
        if len(body) < shape.size:
            raise PeerError("the body is cut short")
        numbers = [_NUMBER.unpack_from(body, at)[0] for at in shape.wanted]
        if min(numbers) < 0 or max(numbers) > DATA_MAX:
            raise PeerError("the body's metadata are out of range")
    return _Plan(shape, numbers, *shape.layout(rows, iter(numbers)))


def _remember(key: tuple[int, int, int], plan: _Plan) -> None:
    """Add a plan to the cache."""
    if key not in _PLANS:
        if len(_PLANS) >= _PLANS_MAX:
            _PLANS.clear()
        _PLANS[key] = plan


_NUMBER: Final = struct.Struct("<q")


def matches(body: Body, schema_id: int, packed: int, rows: int) -> bool:
    """A fast check: true if this body is known to be valid, false if `decode` must check it.

    If all lengths follow from the form and the number of rows, and seqs are not explicit, the
    columns may contain any bytes. Then comparing the metadata is enough.
    """
    plan = _PLANS.get((schema_id, packed, rows))
    if plan is None or packed & EXPLICIT:
        return False
    return len(body) == plan.size and bytes(body[: plan.shape.size]) == plan.meta


# ---------------------------------------------------------------- writing


def _width(column: Column) -> int:
    """The width of a fixed-size column that can hold these rows, or VARIABLE or ABSENT."""
    valid = column.valid
    if valid is not None and not valid.all():
        return VARIABLE if valid.any() else ABSENT
    width = column.width
    if width < 0:
        lengths = np.diff(column.offsets)
        width = int(lengths[0])
        if (lengths != width).any():
            return VARIABLE
    return width if width <= _WIDTH_MAX else VARIABLE


def _gap_width(gaps: Int64s) -> int:
    """The bytes of a number that can hold all these distances; 0: more than 4."""
    largest = int(gaps.max())
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4 if largest < 1 << 32 else 0


def encode(columns: Columns, lo: int) -> tuple[bytes, int]:
    """A body with the narrowest types for these columns, and its form. `lo` is the batch's first
    position. Attributes are not part of it (typed.py)."""
    value = _width(columns.values)
    key = _width(columns.keys)
    gaps = None
    gap, runs = 0, False
    if columns.seqs is not None:
        assert columns.times is not None
        gaps = np.diff(columns.seqs, prepend=lo - 1)
        gap = _gap_width(gaps)
        if not gap:
            return codec.encode(columns), 0
        # The ends of the runs of rows with equal times. A run takes 12 bytes (its end and its
        # time); without run-end encoding, a row takes 8.
        ends = np.append(np.flatnonzero(np.diff(columns.times)) + 1, gaps.size)
        runs = 12 * ends.size < 8 * gaps.size
    elif value == 0 and key in (0, ABSENT) and not columns.schema_id:
        value = VARIABLE  # `_Shape` refuses bodies without any bytes for a row
    packed = Form(key, value, gap, runs).packed
    if not packed:
        return codec.encode(columns), 0
    shape = _shape(columns.schema_id, packed)
    parts: list[Any] = [b""]
    numbers: list[int] = []
    strings = (columns.keys, columns.values, columns.tags)
    for width, column in zip(shape.widths, strings, strict=False):
        assert column is not None
        _add_column(column, width, parts, numbers)
    if gaps is not None:
        assert columns.times is not None
        _add(parts, gaps.astype(_GAPS[gap]))
        if runs:
            numbers.append(ends.size)
            _add(parts, ends.astype(np.int32))
            _add(parts, columns.times[ends - 1])
        else:
            _add(parts, columns.times)
    parts[0] = shape.layout(columns.values.offsets.size - 1, iter(numbers))[0]
    return b"".join(parts), packed


def encode_row(key: bytes | None, value: bytes) -> tuple[bytes, int] | None:
    """A faster `encode` for one row without a tag, without arrays; None if the row needs `encode`.

    It exists because single events are published often.
    """
    width = len(value)
    key_width = 0 if key is None else len(key)
    if width > _WIDTH_MAX or key_width > _WIDTH_MAX or not width + key_width:
        return None
    packed = (0xFFFF if key is None else key_width + 1) | (width + 1) << 16
    plan = _PLANS.get((0, packed, 1))
    if plan is None:
        shape = _shape(0, packed)
        plan = _Plan(shape, [], *shape.layout(1, iter(())))
        _remember((0, packed, 1), plan)
    parts = (plan.meta, key or b"", _PADDING[-key_width % 8], value, _PADDING[-width % 8])
    return b"".join(parts), packed


def read_row(body: Body, packed: int) -> tuple[bytes | None, bytes] | None:
    """Key and value of a body that is known to be valid and has one row, without a tag and without
    explicit seqs.

    None if the body does not consist of fixed-size columns.
    """
    form = _shape(0, packed).form
    if form.key == VARIABLE or form.value == VARIABLE or form.gap:
        return None
    start = _shape(0, packed).size
    key = None if form.key == ABSENT else bytes(body[start : start + form.key])
    if key is not None:
        start += (form.key + 7) & -8
    return key, bytes(body[start : start + form.value])


_PADDING: Final = tuple(bytes(size) for size in range(8))


def _add_column(column: Column, width: int, parts: list[Any], numbers: list[int]) -> None:
    """Append the buffers of a column to `parts`, and its varying numbers to `numbers`."""
    offsets, data, valid, _ = column
    first, last = int(offsets[0]), int(offsets[-1])
    if width == ABSENT:
        return
    if width == VARIABLE:
        rows = offsets.size - 1
        nulls = 0 if valid is None else rows - int(np.count_nonzero(valid))
        numbers += (last - first, nulls)
        if nulls:
            assert valid is not None
            _add(parts, np.packbits(valid, bitorder="little"))
        _add(parts, offsets - np.int32(first) if first else offsets)
    _add(parts, data[first:last])


def _add(parts: list[Any], buffer: Any) -> None:
    """Append one buffer, padded to a multiple of 8 bytes."""
    made = buffer.tobytes()
    parts += (made, _PADDING[-len(made) % 8])


# ---------------------------------------------------------------- reading


def decode(body: Body, schema_id: int, packed: int, rows: int, lo: int) -> Columns:
    """Views into a body of this form, after checking all of it; PeerError if it is not valid."""
    plan = _plan(body, schema_id, packed, rows)
    shape, numbers, meta, places, size = plan
    start = shape.size
    if len(body) != size or bytes(body[:start]) != meta:
        raise PeerError("the body is not laid out as its form says")
    if shape.sized:
        _remember((schema_id, packed, rows), plan)  # only after a valid body: peers are not trusted
    if shape.fixed:
        return _read_fixed(body, shape, places, rows)
    spots, varying = iter(zip(places[::2], places[1::2], strict=True)), iter(numbers)
    strings = [_read_column(body, start, width, rows, spots, varying) for width in shape.widths]
    if strings[1].valid is not None:
        raise PeerError("a value is null")
    seqs = times = None
    if shape.form.gap:
        seqs = _read_seqs(_buffer(body, start, spots, _GAPS[shape.form.gap]), lo)
        if shape.form.runs:
            ends = _buffer(body, start, spots, _INT32)
            times = _spread(ends, _buffer(body, start, spots, _INT64), rows)
        else:
            times = _buffer(body, start, spots, _INT64)
    tags = strings[2] if schema_id & TAGGED else None
    return Columns(strings[0], strings[1], tags, seqs, times)


def _read_fixed(body: Body, shape: _Shape, places: list[int], rows: int) -> Columns:
    """`decode` for a body of exactly two fixed-size columns."""
    key, value = shape.widths[:2]
    key_data = np.frombuffer(body, _UINT8, key * rows, shape.size + places[2])
    value_data = np.frombuffer(body, _UINT8, value * rows, shape.size + places[6])
    return Columns(
        Column(uniform_offsets(rows, key), key_data, None, key),
        Column(uniform_offsets(rows, value), value_data, None, value),
    )


def fixed_keys(body: Body, schema_id: int, packed: int, rows: int, width: int) -> Body | None:
    """The keys of a body that is known to be valid, joined without separators, if it has a
    fixed-size key column of this width; else None."""
    if packed & 0xFFFF != width + 1:
        return None
    start = _shape(schema_id, packed).size  # keys are the first column, and have no null bitmap
    return body[start : start + width * rows]


def is_fixed(schema_id: int, packed: int) -> bool:
    """Whether bodies of this form have exactly two columns, keys and values of fixed size."""
    return packed > 0 and not schema_id & TYPED and _shape(schema_id, packed).fixed


def take_fixed(
    bodies: Sequence[Body | None], schema_id: int, packed: int, rows: int, taken: Int64s
) -> Columns:
    """The rows `taken` of several bodies with `rows` rows each.

    `taken` are row numbers, counted through all bodies. The bodies must be fixed (`is_fixed`) and
    known to be valid. For many small bodies this is much faster than decoding each.
    """
    key, value = _shape(schema_id, packed).widths[:2]
    start = _shape(schema_id, packed).size
    second = start + ((key * rows + 7) & -8)
    joined = np.frombuffer(b"".join(bodies), _UINT8)  # type: ignore[arg-type]
    grid = joined.reshape(len(bodies), -1)  # a row for each body
    keys = grid[:, start : start + key * rows].reshape(-1, key)[taken]
    values = grid[:, second : second + value * rows].reshape(-1, value)[taken]
    return Columns(
        Column(uniform_offsets(taken.size, key), keys.reshape(-1), None, key),
        Column(uniform_offsets(taken.size, value), values.reshape(-1), None, value),
    )


def join_fixed(bodies: Sequence[Body | None], schema_id: int, packed: int, rows: int) -> Columns:
    """All rows of several bodies, with the conditions of `take_fixed`."""
    key, value = _shape(schema_id, packed).widths[:2]
    start = _shape(schema_id, packed).size
    second = start + ((key * rows + 7) & -8)
    grid = np.frombuffer(b"".join(bodies), _UINT8).reshape(len(bodies), -1)  # type: ignore[arg-type]
    total = rows * len(bodies)
    # Always copied: for a width of 1, `reshape` alone would return a strided view.
    keys = np.ascontiguousarray(grid[:, start : start + key * rows]).reshape(-1)
    values = np.ascontiguousarray(grid[:, second : second + value * rows]).reshape(-1)
    return Columns(
        Column(uniform_offsets(total, key), keys, None, key),
        Column(uniform_offsets(total, value), values, None, value),
    )


_Spots = Iterator[tuple[int, int]]  # (offset, length) of the buffers that are not read yet


def _buffer(body: Body, start: int, spots: _Spots, kind: Any) -> Any:
    """The numbers of the next column, which has no nulls."""
    next(spots)  # the empty bitmap
    at, length = next(spots)
    return aligned(np.frombuffer(body, kind, length // kind.itemsize, start + at))


def _read_column(
    body: Body, start: int, width: int, rows: int, spots: _Spots, varying: Iterator[int]
) -> Column:
    """The next column of keys, values or tags, after checking it."""
    if width == ABSENT:
        return null_column(rows)
    bitmap_at, bitmap_size = next(spots)
    if width != VARIABLE:
        at, size = next(spots)
        data = np.frombuffer(body, np.uint8, size, start + at) if size else NO_BYTES
        return Column(uniform_offsets(rows, width), data, None, width)
    offsets_at, _ = next(spots)
    data_at, size = next(spots)
    _, nulls = next(varying), next(varying)  # the size of the data is known from `spots`
    offsets = aligned(np.frombuffer(body, _INT32, rows + 1, start + offsets_at))
    if not codec.offsets_fit(offsets, size):
        raise PeerError("offsets point outside the data")
    valid = None
    if bitmap_size:
        valid = unpack_valid(np.frombuffer(body, np.uint8, bitmap_size, start + bitmap_at), rows)
        if rows - int(np.count_nonzero(valid)) != nulls:
            raise PeerError("the null count does not match the bitmap")
    data = np.frombuffer(body, np.uint8, size, start + data_at) if size else NO_BYTES
    return Column(offsets, data, valid)


def _read_seqs(gaps: Any, lo: int) -> Int64s:
    """The positions of the rows, from their distances."""
    if not gaps.all():
        raise PeerError("two rows at one position")
    seqs: Int64s = np.cumsum(gaps, dtype=np.int64)
    seqs += lo - 1
    return seqs


def _spread(ends: Any, values: Int64s, rows: int) -> Int64s:
    """One time for each row, from run-end encoded times."""
    lengths = np.diff(ends, prepend=np.int32(0))
    if not ends.size or ends[0] < 1 or ends[-1] != rows or (lengths < 1).any():
        raise PeerError("the runs of times do not cover the rows")
    return np.repeat(values, lengths)
