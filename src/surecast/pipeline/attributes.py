"""The column `attributes` of streams that have a schema: its types in Spark and in Arrow.

Spark's types are fewer than those of schemas. So the metadata of each field of the struct have the
type as in the stream's schema, for example "timestamp(ms) not null". Spark keeps the metadata of
fields in queries and in Parquet files. So an archive, or a copy of a stream, has the same schema as
the original.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from surecast.columns.batch import Batch
from surecast.columns.schema import Schema, extends, read_schema
from surecast.columns.typed import Node, Type, arrow_types
from surecast.errors import SurecastError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.types import DataType, StructType

__all__ = [
    "common_schema",
    "fits",
    "from_spark",
    "joined_attributes",
    "schema_in",
    "spark_array",
    "spark_struct",
    "struct_type",
]

TYPE: Final = "surecast.type"  # the key in the metadata of a field
_TIMES: Final = (Type.TIMESTAMP_S, Type.TIMESTAMP_MS, Type.TIMESTAMP_US)
_CLASSES: Final = {
    Type.BOOL: "BooleanType",
    Type.INT8: "ByteType",
    Type.INT16: "ShortType",
    Type.INT32: "IntegerType",
    Type.INT64: "LongType",
    Type.FLOAT32: "FloatType",
    Type.FLOAT64: "DoubleType",
    Type.STRING: "StringType",
    Type.BINARY: "BinaryType",
    Type.DATE: "DateType",
    Type.TIMESTAMP_S: "TimestampType",
    Type.TIMESTAMP_MS: "TimestampType",
    Type.TIMESTAMP_US: "TimestampType",
    Type.TIMESTAMP_NS: "LongType",  # Spark's timestamps have microseconds
}
_TEXTS: Final = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
}


# ---------------------------------------------------------------- types of Spark


def struct_type(schema: Schema) -> StructType:
    """The type of the column `attributes`."""
    from pyspark.sql.types import StructField, StructType

    fields = zip(schema.names, schema.types.nodes, schema.type_names, strict=True)
    return StructType(
        [
            StructField(
                name,
                _spark_type(node),
                node.nullable,
                {TYPE: type_name + ("" if node.nullable else " not null")},
            )
            for name, node, type_name in fields
        ]
    )


def _spark_type(node: Node) -> DataType:
    from pyspark.sql import types

    if node.child is not None:
        return types.ArrayType(_spark_type(node.child))
    if node.digits is not None:
        return types.DecimalType(*node.digits)
    made: DataType = getattr(types, _CLASSES[node.type])()
    return made


def schema_in(struct: StructType) -> Schema:
    """The schema of streams whose column `attributes` has this type. Fields without metadata may be
    null. Raises UsageError for a field that a schema cannot have."""
    if not struct.fields:
        raise UsageError("column `attributes` has no fields")
    fields = []
    for field in struct.fields:
        name = "`" + field.name.replace("`", "``") + "`"
        text = field.metadata.get(TYPE)
        if not isinstance(text, str) or not _is_of(text, field.dataType):
            text = _text_of(field.name, field.dataType)
        fields.append(f"{name} {text}")
    try:
        return read_schema(", ".join(fields))
    except UsageError as problem:
        raise UsageError(f"column `attributes`: {problem}") from None


def _is_of(text: str, kind: DataType) -> bool:
    """Whether a type from the metadata of a field is still that of its column."""
    try:
        (node,) = read_schema(f"field {text}").types.nodes
    except (UsageError, ValueError):
        return False
    return _spark_type(node).simpleString() == kind.simpleString()


def _text_of(name: str, kind: DataType) -> str:
    from pyspark.sql.types import ArrayType, DecimalType, StringType, TimestampNTZType

    if isinstance(kind, ArrayType):
        return f"list({_text_of(name, kind.elementType)})"
    if isinstance(kind, DecimalType) and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision}, {kind.scale})"
    if isinstance(kind, StringType):
        return "string"
    shown = kind.simpleString()
    if shown in _TEXTS:
        return _TEXTS[shown]
    hint = "cast it, or put it into value"
    if isinstance(kind, TimestampNTZType):
        hint = "its times have no time zone: cast it to timestamp"
    raise UsageError(f"column `attributes.{name}` is {shown}, which streams do not support: {hint}")


# ---------------------------------------------------------------- several streams


def common_schema(schemas: Iterable[tuple[str, str]], remedy: str) -> str:
    """The schema of a query that reads these streams (name, text of the schema): the longest one,
    if each of the others is its beginning, as after columns were added. "" if no stream has one.
    Raises UsageError, with what the user can do, if they do not fit."""
    found = list(schemas)
    if not any(text for _, text in found):
        return ""
    name, longest = max(found, key=lambda one: len(read_schema(one[1]).names) if one[1] else 0)
    for other, text in found:
        if not text or not extends(longest, text):
            has = f"has the schema ({text})" if text else "has no schema"
            raise UsageError(
                f"stream {name!r} has the schema ({longest}), but stream {other!r} {has}, so they "
                f"cannot have one column `attributes`. {remedy}"
            )
    return longest


def fits(one: str, other: str) -> bool:
    """Whether one of two schemas is an earlier version of the other one, or the same; "" is
    none."""
    return bool(one and other) and (extends(one, other) or extends(other, one))


# ---------------------------------------------------------------- from batches to Spark


def joined_attributes(batches: Sequence[Batch], schema: Schema) -> list[pa.Array]:
    """The columns of all rows, with the types of the schema. Columns that were added after a batch
    was published are null in its rows. Nothing is copied if there is one batch."""
    groups: list[tuple[bytes, list[pa.RecordBatch]]] = []  # adjacent tables of the same types
    for batch in batches:
        attributes = batch.attributes()
        code = b"" if attributes is None else attributes.types.code
        if not groups or groups[-1][0] != code or not code:
            _check_code(code, batch, schema)
            groups.append((code, []))
        table = pa.nulls(batch.rows) if attributes is None else attributes.table()
        groups[-1][1].append(table)
    parts = [_columns(tables, schema) for _, tables in groups]
    return [
        pa.concat_arrays([array for part in parts for array in part[number]])
        for number in range(len(schema.names))
    ]


def _check_code(code: bytes, batch: Batch, schema: Schema) -> None:
    known = schema.types.code
    if not known.startswith(code) and not code.startswith(known):
        raise SurecastError(
            f"{batch!r} has attributes of other types than the schema of the query: {schema.text}"
        )


def _columns(tables: list[Any], schema: Schema) -> list[list[pa.Array]]:
    """For each column of the schema, its arrays."""
    rows = sum(len(table) for table in tables)
    width = tables[0].num_columns if isinstance(tables[0], pa.RecordBatch) else 0
    return [
        [table.column(number) for table in tables]
        if number < width
        else [pa.nulls(rows, field.type)]
        for number, field in enumerate(schema.arrow())
    ]


@lru_cache(64)
def spark_struct(schema: Schema) -> pa.StructType:
    """The type of the column `attributes` in Arrow, as Spark expects it."""
    fields = zip(schema.names, schema.types.nodes, strict=True)
    return pa.struct([pa.field(name, _arrow_type(node), node.nullable) for name, node in fields])


def _arrow_type(node: Node) -> pa.DataType:
    if node.child is not None:
        return pa.list_(pa.field("element", _arrow_type(node.child)))
    if node.digits is not None:
        return pa.decimal128(*node.digits)
    if node.type in _TIMES:
        return pa.timestamp("us", "UTC")
    return pa.int64() if node.type is Type.TIMESTAMP_NS else arrow_types()[node.type]


def spark_array(columns: Sequence[pa.Array], schema: Schema, where: str) -> pa.StructArray:
    """The column `attributes` from the columns of the schema. Most columns are taken as they are.
    `where` says which events these are, for errors."""
    kind = spark_struct(schema)
    arrays = []
    for field, column in zip(kind, columns, strict=True):
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid:
            raise SurecastError(
                f"{where}: column {field.name!r} has a time that Spark's timestamps, in "
                "microseconds, do not have. Leave the attributes out (option columns), or these "
                "events (startingOffsets, endingOffsets)"
            ) from None
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


# ---------------------------------------------------------------- from Spark to batches


def from_spark(array: pa.StructArray, schema: Schema) -> pa.Table:
    """The fields of a column `attributes` that is not null, as a table. A column of bigint for a
    field in nanoseconds has the number of nanoseconds since 1970."""
    nodes = dict(zip(schema.names, schema.types.nodes, strict=True))
    made = {}
    for field, column in zip(array.type, array.flatten(), strict=True):
        node = nodes.get(field.name)
        made[field.name] = column if node is None else _with_nanoseconds(column, node)
    return pa.table(list(made.values()), list(made))


def _with_nanoseconds(column: pa.Array, node: Node) -> pa.Array:
    levels, leaf, kind = 0, node, column.type
    while leaf.child is not None and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        leaf, kind, levels = leaf.child, kind.value_type, levels + 1
    if leaf.type is not Type.TIMESTAMP_NS or not pa.types.is_int64(kind):
        return column
    wanted = pa.timestamp("ns", "UTC")
    for _ in range(levels):
        wanted = pa.list_(wanted)
    return column.cast(wanted)
