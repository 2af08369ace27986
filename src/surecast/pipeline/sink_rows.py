"""Converts Spark's rows to batches of events: checks the columns and cuts rows into chunks.

All code here works on whole Arrow columns. A chunk is a batch of up to 20,000 events or one
megabyte. It is encoded once, in the task that has the rows, and already has the form in which its
target stream will store it.

The column `attributes` is a struct if the target stream has a schema: its fields are converted to
the types of the schema, if nothing is lost (endpoint/attributes.py). For a stream without a schema
it is a map, which can only have the key "tag".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from surecast.columns.batch import Batch
from surecast.columns.schema import read_schema
from surecast.columns.typed import Attributes
from surecast.endpoint.attributes import RowWriter, writer_of
from surecast.endpoint.options import ClientOptions
from surecast.errors import UsageError
from surecast.pipeline.sink_options import check_target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

__all__ = ["Cutter", "Layout", "SchemaOf", "check_kind", "check_schema", "layout_of"]

CHUNK_ROWS: Final = 20_000  # maximum rows of a chunk
CHUNK_BYTES: Final = 1 << 20  # maximum size of a chunk, unless it consists of one larger row
HELD_BYTES: Final = 32 << 20  # maximum size of rows that are not yet in a chunk, for all targets
PART_BYTES: Final = 1 << 10  # memory for each Arrow batch of such rows, in addition to their bytes
EVENT_BYTES: Final = ClientOptions().event_bytes_max  # maximum size of a row
_NOWHERE: Final = bytes(16)  # stands for the stream's id, which is set when a chunk is published

_BYTES: Final = ("key", "value", "tag")  # columns with bytes (or strings)
_OURS: Final = ("seq", "kind", "range", "timestamp")  # added by Surecast's reader; ignored here

# The schema of the stream of this name, as text; "" if it has none.
SchemaOf = Callable[[str], str]


# ---------------------------------------------------------------- which columns


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that the rows have. `stream` is the target of all rows; None if each row names
    its target."""

    columns: tuple[str, ...]  # those of key, value and tag that exist
    attributes: bool  # whether there is a column `attributes` that is a map, with the tag
    stream: str | None
    # The schema that the column `attributes` has, if it is a struct; "" if not. Streams that do not
    # exist yet are created with it.
    schema: str = ""


def layout_of(schema: StructType, stream: str | None) -> Layout:
    """The layout of rows with this schema. Raises UsageError for the first wrong column."""
    from pyspark.sql.types import StringType, StructType

    types = {field.name: field.dataType for field in schema.fields}
    if len(types) < len(schema.fields):
        raise UsageError("two columns have the same name. Select each of them once")
    for name, kind in types.items():
        _check_column(name, kind)
    struct = types.get("attributes")
    text = _schema_text(struct) if isinstance(struct, StructType) else ""
    if "value" not in types and not text:
        raise UsageError(
            f"there is no column `value` (columns: {', '.join(types) or 'none'}): it holds an "
            "event's bytes. For a whole row: df.selectExpr('to_json(struct(*)) AS value'); for a "
            "stream with a schema: df.selectExpr('struct(*) AS attributes')"
        )
    if "tag" in types and "attributes" in types and not text:
        raise UsageError("columns `tag` and `attributes` both contain the tag: drop one")
    if stream is None and "stream" not in types:
        raise UsageError(
            "option stream is missing: name the stream to write to, such as "
            ".option('stream', 'orders'), or give every row its own in a column `stream`"
        )
    if stream is None and not isinstance(types["stream"], StringType):
        raise UsageError(
            f"column `stream` is {types['stream'].simpleString()}, but must be a string: the name "
            "of the stream"
        )
    columns = tuple(name for name in _BYTES if name in types)
    return Layout(columns, "attributes" in types and not text, stream, text)


def _schema_text(struct: StructType) -> str:
    from surecast.pipeline.attributes import schema_in

    return schema_in(struct).text


def check_schema(layout: Layout, stream: str, schema: str) -> None:
    """Raise UsageError if rows with this layout cannot be written to a stream with this schema,
    whatever their values are."""
    import pyarrow as pa

    from surecast.pipeline.attributes import spark_struct

    check_kind(bool(layout.schema), stream, schema)
    if schema:
        _fields(pa.array([], spark_struct(read_schema(layout.schema))), stream, schema)


def _check_column(name: str, kind: DataType) -> None:
    from pyspark.sql.types import BinaryType, MapType, StringType, StructType

    shown = kind.simpleString()
    if name in _BYTES:
        if not isinstance(kind, BinaryType | StringType):
            raise UsageError(
                f"column `{name}` is {shown}: an event's {name} is bytes. Cast it, such as "
                f"df.withColumn('{name}', col('{name}').cast('string')), or use to_json"
            )
    elif name == "attributes":
        if not (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, BinaryType | StringType)
        ) and not isinstance(kind, StructType):
            raise UsageError(
                f"column `attributes` is {shown}: it must be map<string,binary>, such as "
                "map('tag', col('color')), or for a stream with a schema a struct of its fields"
            )
    elif name != "stream" and name not in _OURS:
        raise UsageError(
            f"column `{name}` ({shown}) has no place in an event, which has value, key, attributes "
            f"(or tag) and stream. Drop it, df.drop('{name}'), or put it into value with to_json, "
            f"or for a stream with a schema into a struct: struct('{name}', ...) AS attributes"
        )


# ---------------------------------------------------------------- rows


def _events(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """The columns key, value and tag, as far as they exist, and `attributes` if it is a struct; the
    tag may be taken from the column `attributes` if that is a map."""
    import pyarrow as pa

    columns = {name: batch.column(name) for name in layout.columns}
    if layout.schema:
        struct = columns["attributes"] = batch.column("attributes")
        if struct.null_count:
            raise UsageError(
                f"{struct.null_count:,} rows have no attributes (the column is null). Remove them "
                "with df.where('attributes IS NOT NULL'): voids (includeVoids) and lost ranges "
                "(failOnDataLoss=false) are such rows, too"
            )
    if "value" in columns and columns["value"].null_count:
        raise UsageError(
            f"{columns['value'].null_count:,} rows have no value (column `value` is null). Remove "
            "them with df.where('value IS NOT NULL'): voids (includeVoids) and lost ranges "
            "(failOnDataLoss=false) are such rows, too. Or give them an empty value with "
            "coalesce(value, X'')"
        )
    if layout.attributes:
        columns["tag"] = _tags(batch.column("attributes"))
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def check_kind(has_attributes: bool, stream: str, schema: str) -> None:
    """Raise UsageError if rows have attributes and the stream has no schema, or the other way
    round."""
    if has_attributes and not schema:
        raise UsageError(
            f"stream {stream!r} has no schema, so its events cannot have attributes. Put the "
            "column `attributes` into value, with to_json(attributes), or write to another stream"
        )
    if schema and not has_attributes:
        names = ", ".join(f"'{name}'" for name in read_schema(schema).names)
        raise UsageError(
            f"stream {stream!r} has the schema ({schema}), and the rows have no attributes. Put "
            f"its fields into a column: df.withColumn('attributes', struct({names}))"
        )


def _fields(struct: pa.StructArray, stream: str, schema: str) -> pa.Table:
    """The fields of the column `attributes`, with exactly the types of the schema; the names of the
    columns are their numbers. Raises UsageError for the first that does not fit."""
    from surecast.pipeline.attributes import from_spark

    writer = writer_of(schema)
    assert writer is not None
    try:
        for field in struct.type:
            if field.name not in writer.schema.names:
                raise UsageError(
                    f"{writer.unknown(field.name)}. Leave it out, or add it to the stream: "
                    "stream.change(schema=...)"
                )
        return writer.table(from_spark(struct, writer.schema))[1]
    except UsageError as problem:
        raise UsageError(f"column `attributes`, for stream {stream!r}: {problem}") from None


def _tags(attributes: Any) -> Any:
    """The attribute `tag` of each row. Raises UsageError if there are other attributes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    entries = pc.list_flatten(attributes.cast(_list_of(attributes.type)))
    strange = set(pc.unique(pc.struct_field(entries, 0)).to_pylist()) - {"tag"}
    if strange:
        raise UsageError(
            f"column `attributes` has {min(map(str, strange))!r}: the only attribute that events "
            "can have is 'tag'. Put the others into value"
        )
    return pc.map_lookup(attributes, pa.scalar("tag", attributes.type.key_type), "first")


def _list_of(kind: Any) -> Any:
    """The type of a list of pairs that has the layout of a map type."""
    import pyarrow as pa

    pair = pa.struct([pa.field("key", kind.key_type, False), pa.field("value", kind.item_type)])
    return pa.list_(pair)


def _by_stream(batch: pa.RecordBatch, names: Any) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split rows by stream, keeping their order; `names` has the stream of each row. Each part is a
    copy, so that it does not keep the memory of the whole batch."""
    import pyarrow.compute as pc

    if names.null_count:
        raise UsageError(f"{names.null_count:,} rows name no stream (column `stream` is null)")
    coded = pc.dictionary_encode(names)
    dictionary = coded.dictionary.to_pylist()
    for name in dictionary:
        check_target(name, "column `stream`")
    if len(dictionary) == 1:
        yield dictionary[0], batch
        return
    indices = coded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(indices, kind="stable")
    ends = np.cumsum(np.bincount(indices, minlength=len(dictionary)))
    at = 0
    for name, end in zip(dictionary, ends.tolist(), strict=True):
        yield name, batch.take(order[at:end])
        at = end


def _with_fields(part: pa.RecordBatch, fields: pa.Table) -> pa.RecordBatch:
    """The rows with these columns in place of `attributes`."""
    import pyarrow as pa

    kept = [name for name in part.schema.names if name != "attributes"]
    arrays = [part.column(name) for name in kept]
    arrays += [column.combine_chunks() for column in fields.columns]
    return pa.RecordBatch.from_arrays(arrays, [*kept, *fields.schema.names])


def _chunk(rows: pa.Table | pa.RecordBatch, writer: RowWriter | None) -> Batch:
    """A batch of these rows; the columns that are not bytes are the fields of the schema."""
    import pyarrow as pa

    if writer is None:
        return Batch.from_arrow(_NOWHERE, rows)
    names = [name for name in rows.schema.names if name in _BYTES]
    fields = pa.table(rows.select(writer.schema.types.arrow_schema().names))
    attributes: Attributes = writer.part(fields, 0, rows.num_rows)
    return Batch.from_arrow(_NOWHERE, rows.select(names), attributes=attributes)


def _sizes(batch: pa.RecordBatch, writer: RowWriter | None) -> Any:
    """The bytes of each row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = np.zeros(batch.num_rows, np.int64)
    if writer is not None:
        fields = pa.table(batch.select(writer.schema.types.arrow_schema().names))
        sizes += writer.sizes(fields, batch.num_rows)
    for name in _BYTES:
        if name not in batch.schema.names:
            continue
        column = batch.column(name)
        sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return sizes


# ---------------------------------------------------------------- chunks


class _Held:
    """Rows of one target that do not fill a chunk yet."""

    __slots__ = ("batches", "nbytes", "rows")

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0  # in all batches
        self.nbytes = 0


class Cutter:
    """Converts rows to chunks, as pairs (stream, batch). Rows of the same stream keep their order.
    Rows that do not fill a chunk are held until later rows fill it."""

    def __init__(self, layout: Layout, schema_of: SchemaOf = lambda name: "") -> None:
        self._layout = layout
        self._schema_of = schema_of
        self._held: dict[str, _Held] = {}  # by stream
        self._nbytes = 0  # memory of all held rows

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Batch]]:
        """Add rows, and yield the chunks that are full."""
        if not batch.num_rows:
            return
        events, stream = _events(batch, self._layout), self._layout.stream
        if stream is not None:
            parts = iter([(stream, events)])
        else:
            parts = _by_stream(events, batch.column("stream"))
        for name, part in parts:
            yield from self._add(name, part)
        if self._nbytes > HELD_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[str, Batch]]:
        """Yield the remaining rows as chunks."""
        for name in list(self._held):
            yield from self._flush(name)

    def _add(self, name: str, part: pa.RecordBatch) -> Iterator[tuple[str, Batch]]:
        schema = self._schema_of(name)
        check_kind(bool(self._layout.schema), name, schema)
        writer = writer_of(schema)
        if writer is not None:
            part = _with_fields(part, _fields(part.column("attributes"), name, schema))
        sizes = _sizes(part, writer)
        largest, total = int(sizes.max()), int(sizes.sum())
        if largest > EVENT_BYTES:
            raise UsageError(
                f"a row for stream {name!r} has {largest:,} bytes (key, value, tag, attributes), "
                f"and an event at most {EVENT_BYTES:,}. Write it in parts"
            )
        held = self._held.get(name)
        if held is not None and (
            held.rows + part.num_rows > CHUNK_ROWS or held.nbytes + total > CHUNK_BYTES
        ):
            yield from self._flush(name)
        if part.num_rows <= CHUNK_ROWS and total <= CHUNK_BYTES:
            held = self._held.setdefault(name, _Held())
            held.batches.append(part)
            held.rows += part.num_rows
            held.nbytes += total
            self._nbytes += total + PART_BYTES
            return
        for lo, hi in _cuts(sizes):
            yield name, _chunk(part.slice(lo, hi - lo), writer)

    def _flush(self, name: str) -> Iterator[tuple[str, Batch]]:
        import pyarrow as pa

        held = self._held.pop(name, None)
        if held is not None:
            self._nbytes -= held.nbytes + PART_BYTES * len(held.batches)
            writer = writer_of(self._schema_of(name))
            yield name, _chunk(pa.Table.from_batches(held.batches), writer)


def _cuts(sizes: Any) -> Iterator[tuple[int, int]]:
    """Ranges of rows that fit into a chunk. A row larger than a chunk is a range of its own."""
    ends = np.cumsum(sizes)
    lo = done = 0  # the first row of the range, and the bytes of all rows before it
    while lo < ends.size:
        hi = int(np.searchsorted(ends, done + CHUNK_BYTES, "right"))
        hi = min(max(hi, lo + 1), lo + CHUNK_ROWS, ends.size)
        yield lo, hi
        lo, done = hi, int(ends[hi - 1])
