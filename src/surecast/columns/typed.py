"""Attributes: the typed columns of events in streams that have a schema.

The body of a batch whose schema id has the bit TYPED consists of three parts:

    u32 size of the base, u16 size of the code, u16 zero; the code; zeros to a multiple of 8
    the base: a body of keys, values and tags, as codec.py and forms.py describe it
    the attributes: an Arrow IPC record-batch message with a column for each attribute

The *code* has the types of the columns, one byte for most of them. So every server and client can
check, cut and join typed batches without knowing the stream's schema. The names of the columns are
only in the schema. A later version of a schema has additional columns at its end, so the columns of
a batch are the first columns of each later version, too.

Servers and relays check bodies without pyarrow, which takes long to load: a body that Surecast has
written, and nearly every body of pyarrow, has exactly the metadata that `Types.layout` computes;
then its contents are checked here. Any other body is checked by pyarrow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from surecast.columns import codec
from surecast.columns.column import (
    DATA_MAX,
    TYPED,
    Body,
    Column,
    Int64s,
    aligned,
    column_of,
    unpack_valid,
)
from surecast.errors import PeerError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FIELDS_MAX",
    "LISTS_MAX",
    "NOT_NULL",
    "Attributes",
    "Node",
    "Type",
    "Types",
    "arrow_types",
    "code_of",
    "join_attributes",
    "split",
    "types_of",
    "wrap",
]

FIELDS_MAX: Final = 200
LISTS_MAX: Final = 4  # levels of lists
NOT_NULL: Final = 0x80  # bit of a column's first byte
# How the values of a column are stored: bits, numbers of a fixed width, or offsets and data.
_BITS, _FIXED, _BINARY, _LIST = range(4)


class Type(IntEnum):
    """The byte that stands for a type. Precision and scale follow DECIMAL, the type of the values
    follows LIST."""

    BOOL = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT32 = 6
    FLOAT64 = 7
    STRING = 8
    BINARY = 9
    DATE = 10  # days since 1970
    TIMESTAMP_S = 11  # since 1970, in seconds, ...
    TIMESTAMP_MS = 12
    TIMESTAMP_US = 13
    TIMESTAMP_NS = 14
    DECIMAL = 15
    LIST = 16


# How the values of a type are stored, and the bytes of each.
_STORAGE: Final = {
    Type.BOOL: (_BITS, 0),
    Type.INT8: (_FIXED, 1),
    Type.INT16: (_FIXED, 2),
    Type.INT32: (_FIXED, 4),
    Type.INT64: (_FIXED, 8),
    Type.FLOAT32: (_FIXED, 4),
    Type.FLOAT64: (_FIXED, 8),
    Type.STRING: (_BINARY, 0),
    Type.BINARY: (_BINARY, 0),
    Type.DATE: (_FIXED, 4),
    Type.TIMESTAMP_S: (_FIXED, 8),
    Type.TIMESTAMP_MS: (_FIXED, 8),
    Type.TIMESTAMP_US: (_FIXED, 8),
    Type.TIMESTAMP_NS: (_FIXED, 8),
    Type.DECIMAL: (_FIXED, 16),
    Type.LIST: (_LIST, 0),
}
_PREFIX: Final = struct.Struct("<IHH")
_PLANS_MAX: Final = 16  # layouts that a `Types` with few columns remembers
_PLAN_COLUMNS_MAX: Final = 16


class Node(NamedTuple):
    """A column, or the values of a column of lists."""

    type: Type
    nullable: bool
    storage: int
    width: int  # bytes of a value of the storage _FIXED
    digits: tuple[int, int] | None = None  # precision and scale of a decimal
    child: Node | None = None  # of a list

    @property
    def fixed_bytes(self) -> int:
        """The bytes that are counted for each row: the value or its offset, and one for the bit
        that says whether it is null. Text, binary data and values of lists are counted beside
        them."""
        width = self.width if self.storage == _FIXED else 1 if self.storage == _BITS else 4
        return width + self.nullable

    @property
    def code(self) -> bytes:
        """The code of its type, without NOT_NULL."""
        rest = self.child.code if self.child else bytes(self.digits or ())
        return bytes([self.type]) + rest


class _Step(NamedTuple):
    """Where a node of a message is.

    The *varying* numbers of a message are the sizes of data, the numbers of nulls, and the numbers
    of values in lists. All other numbers of its metadata follow from these and the number of rows.
    The node of a list is followed by that of its values.
    """

    node: Node
    column: int
    buffer: int  # index of its first buffer: the validity bitmap
    rows: int  # index of the varying number that is its number of rows; -1: the batch's
    nulls: int  # index of the varying number of its nulls; -1: it has none
    # The index of the bytes of its data, or of the number of values of its lists; -1: it has none.
    size: int


class Types:
    """The types of a batch's attributes. `types_of` makes them from a code, and columns/schema.py
    from a schema."""

    __slots__ = (
        "_pack",
        "_peek",
        "_plans",
        "_schema",
        "_size",
        "_steps",
        "code",
        "nodes",
        "overhead",
    )

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.nodes = _parse(code)
        self._schema: pa.Schema | None = None
        self._plans: dict[int, tuple[bytes, list[int], int]] = {}
        steps: list[_Step] = []
        # (kind, index) of each varying number. Kind 0: the length of a buffer; 1: the nulls of a
        # node; 2: the rows of a node.
        varying: list[tuple[int, int]] = []
        buffers = 0
        for column, top in enumerate(self.nodes):
            node: Node | None = top
            rows = -1
            while node is not None:
                nulls = size = -1
                if node.nullable:
                    nulls = len(varying)
                    varying.append((1, len(steps)))
                if node.storage in (_BINARY, _LIST):
                    size = len(varying)
                    is_list = node.storage == _LIST
                    varying.append((2, len(steps) + 1) if is_list else (0, buffers + 2))
                steps.append(_Step(node, column, buffers, rows, nulls, size))
                buffers += 3 if node.storage == _BINARY else 2
                rows, node = size, node.child
        self._steps = tuple(steps)
        self._pack, self._size = codec.metadata(buffers, len(steps))
        # The most bytes of a body that do not belong to rows: metadata, padding, the code.
        self.overhead = self._size + 8 * buffers + len(code) + 16
        nodes_at = self._size - 16 * len(steps)
        places = (88 + 8, nodes_at + 8, nodes_at)
        self._peek = _peek([places[kind] + 16 * index for kind, index in varying])

    def __len__(self) -> int:
        """The number of columns."""
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"Types({self.code.hex()})"

    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema; the names of its columns are their numbers."""
        if self._schema is None:
            import pyarrow as pa

            self._schema = pa.schema(
                pa.field(str(number), _arrow_type(node), node.nullable)
                for number, node in enumerate(self.nodes)
            )
        return self._schema

    # ------------------------------------------------------------ checking and reading

    def check(self, section: Body, rows: int) -> None:
        """Raise PeerError if this is not a valid message of these types with this number of
        rows."""
        if not self._check(section, rows):
            self.read(section, rows, is_checked=False)

    def _check(self, section: Body, rows: int) -> bool:
        """False if the message is laid out differently, so that pyarrow must check it."""
        if len(section) < self._size:
            return False
        numbers = self._peek(section)
        if numbers and not 0 <= min(numbers) <= max(numbers) <= DATA_MAX:
            return False
        plan = None if numbers else self._plans.get(rows)
        meta, places, size = plan or self.layout(rows, numbers)
        if len(section) != size or bytes(section[: self._size]) != meta:
            return False
        if not numbers and plan is None and len(self) <= _PLAN_COLUMNS_MAX:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            self._plans[rows] = meta, places, size
        return self._check_contents(section, rows, places, numbers)

    def _check_contents(
        self, section: Body, rows: int, places: list[int], numbers: Sequence[int]
    ) -> bool:
        """Check the contents of the buffers of a message whose metadata are as computed."""
        for node, column, buffer, counted, nulled, sized in self._steps:
            count = rows if counted < 0 else numbers[counted]
            nulls = 0 if nulled < 0 else numbers[nulled]
            if nulls:
                at, length = places[2 * buffer], places[2 * buffer + 1]
                bitmap = np.frombuffer(section, np.uint8, length, self._size + at)
                if count - int(np.count_nonzero(unpack_valid(bitmap, count))) != nulls:
                    raise PeerError(f"attribute {column + 1}: wrong number of nulls")
            if sized >= 0:
                at = self._size + places[2 * buffer + 2]
                offsets = np.frombuffer(section, np.int32, count + 1, at)
                if not codec.offsets_fit(aligned(offsets), numbers[sized]):
                    raise PeerError(f"attribute {column + 1}: offsets point outside the data")
                if node.type is Type.STRING:
                    at = self._size + places[2 * buffer + 4]
                    if not _is_utf8(bytes(section[at : at + numbers[sized]]), offsets):
                        return False  # pyarrow looks whether this is so in rows that are not null
            elif node.digits is not None:
                at = self._size + places[2 * buffer + 2]
                if not _fit_digits(section[at : at + 16 * count], node.digits[0]):
                    return False  # pyarrow looks whether this is so in rows that are not null
        return True

    def layout(self, rows: int, numbers: Sequence[int]) -> tuple[bytes, list[int], int]:
        """The metadata, the (offset, length) of every buffer, and the size of the message."""
        places: list[int] = []
        counts: list[int] = []
        at = 0
        for node, _, _, counted, nulled, sized in self._steps:
            count = rows if counted < 0 else numbers[counted]
            nulls = 0 if nulled < 0 else numbers[nulled]
            counts += (count, nulls)
            length = (count + 7) >> 3 if nulls else 0
            places += (at, length)
            at += (length + 7) & -8
            if node.storage == _FIXED:
                length = node.width * count
            else:
                length = (count + 7) >> 3 if node.storage == _BITS else 4 * (count + 1)
            places += (at, length)
            at += (length + 7) & -8
            if node.storage == _BINARY:
                places += (at, numbers[sized])
                at += (numbers[sized] + 7) & -8
        return self._pack(at, rows, places, counts), places, self._size + at

    def encode(self, table: pa.RecordBatch) -> bytes:
        """The message for these columns, which have exactly these types."""
        parts: list[Any] = [b""]
        numbers: list[int] = []
        for node, array in zip(self.nodes, table.columns, strict=True):
            _add_column(node, array, parts, numbers)
        parts[0] = self.layout(table.num_rows, numbers)[0]
        return b"".join(parts)

    def read(self, section: Body, rows: int, *, is_checked: bool = True) -> pa.RecordBatch:
        """The attributes as a record batch over the same memory."""
        from surecast.columns.arrow import read_record_batch

        found = read_record_batch(section, self.arrow_schema(), rows, is_checked=is_checked)
        if not is_checked:
            for index, node in enumerate(self.nodes):
                if not node.nullable and found.column(index).null_count:
                    raise PeerError(f"attribute {index + 1} is null, and must not be")
        return found


def _add_column(top: Node, array: pa.Array, parts: list[Any], numbers: list[int]) -> None:
    """Append the buffers of a column to `parts`, each padded to a multiple of 8 bytes, and its
    varying numbers to `numbers`."""
    node: Node | None = top
    while node is not None:
        first, rows = array.offset, len(array)  # the array may begin at any row of its buffers
        bitmap, held, *more = array.buffers()[:3]
        nulls = array.null_count
        if node.nullable:
            numbers.append(nulls)
        if nulls:
            _add(parts, _bits(bitmap, first, rows))
        if node.storage == _FIXED:
            _add(parts, held[first * node.width : (first + rows) * node.width] if held else b"")
        elif node.storage == _BITS:
            _add(parts, _bits(held, first, rows) if held else b"")
        else:
            offsets = np.zeros(1, np.int32)
            if held:
                offsets = np.frombuffer(held, np.int32, rows + 1, 4 * first)
            begin, end = int(offsets[0]), int(offsets[-1])
            _add(parts, (offsets - np.int32(begin) if begin else offsets).tobytes())
            numbers.append(end - begin)
            if node.storage == _BINARY:
                _add(parts, more[0][begin:end] if more[0] else b"")
            else:
                array = array.values.slice(begin, end - begin)
        node = node.child


def _add(parts: list[Any], buffer: Any) -> None:
    parts += (buffer, _PADDING[-len(buffer) % 8])


def _bits(buffer: Any, first: int, rows: int) -> bytes:
    """Bits [first, first + rows) of a buffer, from the first bit of a byte on."""
    if not rows:
        return b""
    begin = first // 8
    bits = np.frombuffer(buffer, np.uint8, (first + rows + 7) // 8 - begin, begin)
    first %= 8
    if first:
        bits = np.packbits(unpack_valid(bits, first + rows)[first:], bitorder="little")
    made = bits.tobytes()
    return made[:-1] + bytes([made[-1] & 0xFF >> -rows % 8])


_PADDING: Final = tuple(bytes(size) for size in range(8))


def _peek(spots: Sequence[int]) -> Callable[[Body], tuple[int, ...]]:
    """A function that reads the numbers at these places of a message."""
    order = sorted(range(len(spots)), key=spots.__getitem__)
    shape, at = "<", 0
    for index in order:
        shape += f"{spots[index] - at}xq"
        at = spots[index] + 8
    unpack = struct.Struct(shape).unpack_from
    if order == list(range(len(spots))):
        return unpack
    places = [order.index(index) for index in range(len(spots))]
    return lambda body: tuple(map(unpack(body).__getitem__, places))


def _fit_digits(numbers: Body, precision: int) -> bool:
    """Whether these numbers of 128 bits, also those of null rows, have at most `precision`
    digits."""
    halves = np.frombuffer(numbers, "<u8").reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1].view(np.int64)
    most = 10**precision - 1
    above = (high > most >> 64) | ((high == most >> 64) & (low > most & _LOW))
    below = (high < -most >> 64) | ((high == -most >> 64) & (low < -most & _LOW))
    return not (above | below).any()


_LOW: Final = (1 << 64) - 1


def _is_utf8(held: bytes, offsets: Any) -> bool:
    """Whether every row of a column of strings is valid UTF-8, also those that are null."""
    if held.isascii():
        return True
    try:
        held.decode()
    except UnicodeDecodeError:
        return False
    # The whole is valid. So each row is, if none begins within a character.
    inner = offsets[(offsets > 0) & (offsets < len(held))]
    return not (np.frombuffer(held, np.uint8)[inner] & 0xC0 == 0x80).any()


# ---------------------------------------------------------------- codes


def _parse(code: bytes) -> tuple[Node, ...]:
    nodes: list[Node] = []
    at = 0
    try:
        while at < len(code):
            node, at = _parse_node(code, at, 0)
            nodes.append(node)
    except (IndexError, ValueError):
        raise PeerError(f"unknown type of an attribute: {code.hex()}") from None
    if not 1 <= len(nodes) <= FIELDS_MAX:
        raise PeerError(f"{len(nodes)} attributes; allowed are 1 to {FIELDS_MAX}")
    return tuple(nodes)


def _parse_node(code: bytes, at: int, lists: int) -> tuple[Node, int]:
    kind, nullable = Type(code[at] & ~NOT_NULL), not code[at] & NOT_NULL
    storage, width = _STORAGE[kind]
    if kind is Type.DECIMAL:
        precision, scale = code[at + 1], code[at + 2]
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError
        return Node(kind, nullable, storage, width, (precision, scale)), at + 3
    if kind is not Type.LIST:
        return Node(kind, nullable, storage, width), at + 1
    child, end = _parse_node(code, at + 1, lists + 1)
    if lists == LISTS_MAX or not child.nullable:
        raise ValueError
    return Node(kind, nullable, storage, width, None, child), end


@lru_cache(256)
def types_of(code: bytes) -> Types:
    """The types of a code. Raises PeerError if it is not valid."""
    return Types(code)


def _arrow_type(node: Node) -> pa.DataType:
    import pyarrow as pa

    if node.child is not None:
        return pa.list_(_arrow_type(node.child))
    if node.digits is not None:
        return pa.decimal128(*node.digits)
    return arrow_types()[node.type]


@lru_cache(1)
def arrow_types() -> dict[Type, pa.DataType]:
    """The Arrow types of those that have no parameters."""
    import pyarrow as pa

    return {
        Type.BOOL: pa.bool_(),
        Type.INT8: pa.int8(),
        Type.INT16: pa.int16(),
        Type.INT32: pa.int32(),
        Type.INT64: pa.int64(),
        Type.FLOAT32: pa.float32(),
        Type.FLOAT64: pa.float64(),
        Type.STRING: pa.string(),
        Type.BINARY: pa.binary(),
        Type.DATE: pa.date32(),
        Type.TIMESTAMP_S: pa.timestamp("s", "UTC"),
        Type.TIMESTAMP_MS: pa.timestamp("ms", "UTC"),
        Type.TIMESTAMP_US: pa.timestamp("us", "UTC"),
        Type.TIMESTAMP_NS: pa.timestamp("ns", "UTC"),
    }


# ---------------------------------------------------------------- bodies


class Attributes:
    """The attributes of some rows. Like batches, they are never changed."""

    __slots__ = ("_section", "_table", "rows", "types")

    def __init__(
        self,
        types: Types,
        rows: int,
        section: Body | None = None,  # a checked message ...
        table: pa.RecordBatch | None = None,  # ... or the columns, of exactly these types
    ) -> None:
        self.types = types
        self.rows = rows
        self._section = section
        self._table = table

    def table(self) -> pa.RecordBatch:
        """The columns; their names are their numbers."""
        if self._table is None:
            assert self._section is not None
            self._table = self.types.read(self._section, self.rows)
        return self._table

    def section(self) -> Body:
        """The message."""
        if self._section is None:
            assert self._table is not None
            self._section = self.types.encode(self._table)
        return self._section

    def row_bytes(self, row: int) -> bytes:
        """The values of a row as bytes, which are the same for equal values in every batch."""
        columns = zip(self.types.nodes, self.table().columns, strict=True)
        return b"".join(_value_bytes(node, column.slice(row, 1)) for node, column in columns)

    def columns(self) -> Iterator[Column]:
        """The values of each column as bytes, which are the same for equal values in every batch:
        numbers as they are stored, a byte for each bool, lists as in `row_bytes`."""
        for node, array in zip(self.types.nodes, self.table().columns, strict=True):
            yield _bytes_column(node, array)

    def part(self, first: int, last: int) -> Attributes:
        """Rows [first, last), sharing memory."""
        return Attributes(self.types, last - first, table=self.table().slice(first, last - first))

    def take(self, rows: Int64s) -> Attributes:
        """The rows at these indices, as a copy."""
        import pyarrow as pa

        return Attributes(self.types, rows.size, table=self.table().take(pa.array(rows)))


def _value_bytes(node: Node, array: pa.Array) -> bytes:
    """The only value of an array, as bytes from which it could be read again."""
    if array.null_count:
        return b"-"
    if node.child is not None:
        items = array.flatten()
        parts = [_value_bytes(node.child, items.slice(at, 1)) for at in range(len(items))]
        return b"%d[" % len(parts) + b"".join(parts)
    if node.storage == _FIXED:
        data = array.buffers()[1][array.offset * node.width : (array.offset + 1) * node.width]
        return b"=" + bytes(data)
    value = array[0].as_py()
    if node.storage == _BITS:
        return b"1" if value else b"0"
    held: bytes = value.encode() if node.type is Type.STRING else value
    return b"%d:" % len(held) + held


def _bytes_column(node: Node, array: pa.Array) -> Column:
    rows, first = len(array), array.offset
    bitmap, held, *more = array.buffers()[:3]
    valid = None
    if array.null_count:
        valid = unpack_valid(np.frombuffer(bitmap, np.uint8), first + rows)[first:] != 0
    if node.child is not None:
        made = column_of([_value_bytes(node, array.slice(row, 1)) for row in range(rows)])
        return Column(made.offsets, made.data, valid)
    if node.storage == _BINARY:
        offsets = aligned(np.frombuffer(held, np.int32, rows + 1, 4 * first))
        data = np.frombuffer(more[0], np.uint8) if more[0] else np.empty(0, np.uint8)
        return Column(offsets, data, valid)
    if node.storage == _BITS:
        data = unpack_valid(np.frombuffer(held, np.uint8), first + rows)[first:].astype(np.uint8)
        return Column(np.arange(rows + 1, dtype=np.int32), data, valid)
    data = np.frombuffer(held, np.uint8, rows * node.width, first * node.width)
    return Column(np.arange(rows + 1, dtype=np.int32) * np.int32(node.width), data, valid)


def join_attributes(parts: Sequence[Attributes]) -> Attributes:
    """The attributes, which have the same types, concatenated."""
    import pyarrow as pa

    tables = [part.table() for part in parts]
    types = parts[0].types
    arrays = [
        pa.concat_arrays([table.column(number) for table in tables]) for number in range(len(types))
    ]
    made = pa.RecordBatch.from_arrays(arrays, schema=types.arrow_schema())
    return Attributes(types, made.num_rows, table=made)


def wrap(base: bytes, attributes: Attributes) -> bytes:
    """The body of a typed batch."""
    code = attributes.types.code
    prefix = _PREFIX.pack(len(base), len(code), 0)
    return b"".join((prefix, code, bytes(-len(code) % 8), base, attributes.section()))


def split(body: Body) -> tuple[Types, memoryview, memoryview]:
    """Types, base and attributes of a typed body, which may come from a peer."""
    view = memoryview(body)
    if len(view) < _PREFIX.size:
        raise PeerError("the body is cut short")
    size, code_size, zero = _PREFIX.unpack_from(view)
    begin = _PREFIX.size + ((code_size + 7) & -8)
    if zero or size % 8 or begin + size > len(view) or any(view[_PREFIX.size + code_size : begin]):
        raise PeerError("the body is not laid out as that of a typed batch")
    types = types_of(bytes(view[_PREFIX.size : _PREFIX.size + code_size]))
    return types, view[begin : begin + size], view[begin + size :]


def code_of(body: Body, schema_id: int) -> bytes:
    """The code of the types of a body; b"" if it has no attributes."""
    if not schema_id & TYPED or len(body) < _PREFIX.size:
        return b""
    size = _PREFIX.unpack_from(body)[1]
    return bytes(body[_PREFIX.size : _PREFIX.size + size])
