"""Random schemas, batches and filters. A case is drawn from a seed."""

import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from surecast.where.tree import And, ColumnTest, Literal, Node, Not, Or

__all__ = ["Case", "draw"]

WORDS = [
    "",
    "a",
    "ab",
    "b",
    "IBM",
    "ib",
    "ü",
    "日本",
    "user:1",
    "user:12",
    "\U0001f600",
    "a\x00b",
    "'\\",
]
INTS = [
    0,
    1,
    -1,
    7,
    100,
    101,
    127,
    -128,
    2**31 - 1,
    -(2**31),
    2**53,
    2**53 + 1,
    -(2**53) - 1,
    2**63 - 1,
    -(2**63),
]
FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    0.5,
    100.5,
    1e-300,
    1e300,
    2.0**53,
    2.0**24 + 2,
    math.inf,
    -math.inf,
    math.nan,
]
KINDS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.string(), pa.binary(), pa.date32(),
    pa.timestamp("us", "UTC"), pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC"),
]  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
TIMES_NS = [
    0,
    1,
    999,
    1000,
    10**9,
    10**9 + 1,
    1_763_500_000 * 10**9,
    1_763_500_000_123_456_789,
    -(10**9) - 1,
]
DAYS = [
    date(1970, 1, 1),
    date(1969, 12, 31),
    date(2026, 11, 19),
    date(2026, 11, 20),
    date(1, 1, 1),
    date(9999, 12, 31),
]


class Case(NamedTuple):
    node: Node
    schema: pa.Schema  # with columns that the batch does not have
    batch: dict[str, pa.Array]
    rows: int
    events: list[dict[str, Any]]  # the same rows, as `twin` takes them


def draw(seed: int) -> Case:
    rng = Random(seed)
    kinds = [rng.choice(KINDS) for _ in range(rng.randint(1, 5))]
    schema = pa.schema([pa.field(f"c{n}", kind) for n, kind in enumerate(kinds)])
    rows = rng.choice([0, 1, 2, 17, 100])
    offset = rng.choice([0, 0, 1, 9])
    there = [field for field in schema if rng.random() < 0.9]  # the others came later
    batch: dict[str, pa.Array] = {}
    values: dict[str, list[Any]] = {}
    for field in there:
        nulls = rng.choice([0.0, 0.2, 1.0]) if rng.random() < 0.6 else 0.0
        raw = [
            None if rng.random() < nulls else value(rng, field.type) for _ in range(offset + rows)
        ]
        batch[field.name] = pa.array(raw, field.type)[offset:]
        values[field.name] = raw[offset:]
    kind_of = {field.name: field.type for field in schema}
    events = [
        {name: exact(kind_of[name], column[row]) for name, column in values.items()}
        for row in range(rows)
    ]
    return Case(node(rng, schema, 3), schema, batch, rows, events)


def value(rng: Random, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return rng.choice([n for n in INTS if -limit <= n < limit])
    if pa.types.is_float32(kind):
        return narrow(rng.choice(FLOATS))
    if pa.types.is_floating(kind):
        return rng.choice(FLOATS)
    if pa.types.is_string(kind):
        return rng.choice(WORDS)
    if pa.types.is_binary(kind):
        return rng.choice([*(word.encode() for word in WORDS), b"\xff", b"\xff\xfe"])
    if pa.types.is_date(kind):
        return rng.choice(DAYS)
    return rng.choice(TIMES_NS) // NS[kind.unit]


def narrow(number: float) -> float:
    if math.isfinite(number) and abs(number) > 3e38:
        return 3e38
    return float(struct.unpack("f", struct.pack("f", number))[0])


def exact(kind: pa.DataType, raw: Any) -> Any:
    """A value as `twin` takes it."""
    if raw is not None and pa.types.is_timestamp(kind):
        return Fraction(raw * NS[kind.unit], 10**9)
    if raw is not None and pa.types.is_float32(kind):
        return narrow(raw)
    return raw


def node(rng: Random, schema: pa.Schema, depth: int) -> Node:
    way = rng.random() if depth else 1.0
    if way < 0.15:
        return Not(node(rng, schema, depth - 1))
    if way < 0.55:
        parts = tuple(node(rng, schema, depth - 1) for _ in range(rng.randint(2, 3)))
        return And(parts) if rng.random() < 0.5 else Or(parts)
    field = rng.choice(list(schema))
    operators = ["==", "!=", "in", "exists"]
    if not pa.types.is_boolean(field.type):
        operators += ["<", "<=", ">", ">=", "between"]
    if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
        operators += ["startswith", "contains"]
    operator = rng.choice(operators)
    count = {"exists": 0, "in": rng.choice([0, 1, 2, 5]), "between": 2}.get(operator, 1)
    return ColumnTest(field.name, operator, tuple(literal(rng, field.type) for _ in range(count)))


def literal(rng: Random, kind: pa.DataType) -> Literal:
    if pa.types.is_timestamp(kind):
        return stamp(rng.choice(TIMES_NS))
    if pa.types.is_date(kind):
        return rng.choice(DAYS).isoformat()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        number: int | float = rng.choice(INTS) if rng.random() < 0.5 else rng.choice(FLOATS)
        if not math.isfinite(number):
            return 10**399 if number > 0 else -(10**399)
        more = rng.choice([0, 0, 1, -1, Decimal("0.5"), Decimal("1e-300")])
        with localcontext(prec=800):
            return (number if isinstance(number, int) else Decimal(repr(number))) + more
    if pa.types.is_binary(kind) and rng.random() < 0.5:
        return rng.choice([b"", b"\xff", b"a", "ü".encode()])
    return bool(value(rng, kind)) if pa.types.is_boolean(kind) else rng.choice(WORDS)


def stamp(ns: int) -> str:
    """A timestamp in ISO format, with the digits that it needs."""
    at = EPOCH + timedelta(seconds=ns // 10**9)
    fraction = f".{ns % 10**9:09}".rstrip("0").rstrip(".")
    return f"{at.replace(tzinfo=None).isoformat()}{fraction}+00:00"
