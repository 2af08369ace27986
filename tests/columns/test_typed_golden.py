"""Golden typed bodies: frames in hex with the events that are in them, for other readers.

`typed_bodies.json` has an object a line: `name`, the `schema` at the frame's positions, the `frame`
(docs/wire.md) and the `events`. An event has its position, key, value and tag (base64, or null) and
its `attributes`, as `surecast subscribe --json` writes them. This version must read the frames, and
write the same bytes. After an intended change of the format:

    SURECAST_REWRITE=1 python -m pytest tests/columns/test_typed_golden.py
"""

import json
import os
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from surecast.columns.batch import COLLECTED, CONFIG, Batch, coalesce
from surecast.columns.intervals import IntervalSet
from surecast.columns.rules import NewSchema, encode_policy, schema_after
from surecast.columns.schema import read_schema
from surecast.columns.typed import Type
from surecast.core.wire import decode_batch, encode_batch
from surecast.endpoint.attributes import fields_of, writer_of
from surecast.endpoint.attributes_json import from_json, to_json
from tests.columns.streams import STREAM
from tests.golden_files import write_json

PATH = Path(__file__).with_name("typed_bodies.json")
EVERY = (
    "b bool, i8 int8, i16 int16, i32 int32, i64 int64, f32 float32, f64 float64, s string, "
    "bin binary, d date, ts timestamp(s), tms timestamp(ms), tus timestamp, tns timestamp(ns), "
    "dec decimal(10, 2), deep list(list(decimal(4, 1)))"
)
ROWS: list[dict[str, Any]] = [
    {
        "b": True, "i8": -128, "i16": 32767, "i32": -5, "i64": 9007199254740993, "f32": 0.1,
        "f64": -0.0, "s": "größer", "bin": "AP8=", "d": "2026-11-19", "ts": "2026-11-19T08:30:00Z",
        "tms": "1969-12-31T23:59:59.999Z", "tus": "2026-11-19T08:30:00.000001Z",
        "tns": "2026-11-19T08:30:00.123456789Z", "dec": "-81.20", "deep": [["1.5", None], [], None],
    },
    {"f32": "NaN", "f64": "-Infinity", "s": "", "bin": "", "deep": []},
    {},
]  # fmt: skip
FIRST = "sym string not null, px float64"
MORE = FIRST + ", venue string, tags list(string)"


def made() -> list[tuple[str, str, Batch]]:
    """Name, schema at the positions, batch."""
    found = [
        ("every type, and null", EVERY, batch(EVERY, ROWS).sequenced(1, 5_000_000_000, 1)),
        ("one row", EVERY, batch(EVERY, ROWS[:1], [b"key"], [b"tag"]).sequenced(4, 6_000, 1)),
        ("all null", EVERY, batch(EVERY, [{}] * 9).sequenced(5, 7_000, 1)),
        (
            "not null",
            "n int64 not null, on bool not null",
            batch(
                "n int64 not null, on bool not null", [{"n": n, "on": n > 7} for n in range(10)]
            ).sequenced(1, 8_000, 1),
        ),
    ]
    keys: list[bytes | None] = [b"IBM", None, b"", b"A"]
    old = batch(FIRST, [{"sym": f"{n}", "px": n / 4} for n in range(4)], keys, values=b"v")
    new = batch(MORE, [{"sym": "x", "venue": "NY", "tags": ["a", None]}, {"sym": "y", "px": 1.0}])
    change = Batch.of(STREAM, [encode_policy(NewSchema(MORE))], kind=CONFIG)
    sparse = old.sequenced(1, 9_000, 1).without(IntervalSet([(2, 3)]), COLLECTED)
    found += [
        ("before a change of the schema", FIRST, old.sequenced(1, 9_000, 1)),
        ("the change", MORE, change.sequenced(5, 9_000, 1)),
        ("after the change", MORE, new.sequenced(6, 10_000, 1)),
        ("of an earlier version, after the change", MORE, old.sequenced(8, 11_000, 2)),
        ("compacted", MORE, sparse),
        (
            "joined",
            MORE,
            coalesce([sparse, old.sequenced(5, 12_000, 2)], 100)[0],
        ),
    ]
    return found


def batch(
    schema: str,
    rows: list[dict[str, Any]],
    keys: list[bytes | None] | None = None,
    tags: list[bytes | None] | None = None,
    values: bytes = b"",
) -> Batch:
    writer = writer_of(schema)
    assert writer is not None
    fields = [writer.row(from_json(writer.schema, row)).fields for row in rows]
    attributes = writer.attributes(fields)
    return Batch.of(STREAM, [values] * len(rows), keys, tags, attributes).numbered(b"p" * 16, 1)


def entry(name: str, schema: str, item: Batch) -> dict[str, Any]:
    return {
        "name": name,
        "schema": schema,
        "frame": b"".join(map(bytes, encode_batch(item))).hex(),
        "events": events(item, schema),
    }


def events(item: Batch, schema: str) -> list[dict[str, Any]]:
    attributes = item.attributes()
    held = [None] * item.rows if attributes is None else fields_of(attributes)
    names = read_schema(schema)
    found = []
    for row, fields in zip(item.to_rows(), held, strict=True):
        shown = {"seq": row.seq, "time_ns": row.time_ns}
        for what in ("key", "value", "tag"):
            data = getattr(row, what)
            shown[what] = None if data is None else b64encode(data).decode()
        if fields is not None:  # the columns that the batch lacks are null
            filled = fields + (None,) * (len(names.names) - len(fields))
            shown["attributes"] = to_json(names, filled)
        found.append(shown)
    return found


def stored() -> list[dict[str, Any]]:
    if os.environ.get("SURECAST_REWRITE"):
        write_json(PATH, [entry(*one) for one in made()])
    found: list[dict[str, Any]] = json.loads(PATH.read_text())
    return found


def test_this_version_writes_the_golden_frames() -> None:
    assert [entry(*one) for one in made()] == stored()


@pytest.mark.parametrize("known", stored(), ids=lambda known: known["name"])
def test_this_version_reads_the_golden_frames(known: dict[str, Any]) -> None:
    item, size = decode_batch(memoryview(bytes.fromhex(known["frame"])))
    assert 2 * size == len(known["frame"])
    item.validate()
    assert events(item, known["schema"]) == known["events"]
    assert schema_after(known["schema"], item) == known["schema"]


def test_the_golden_frames_have_every_type() -> None:
    codes = b"".join(read_schema(known["schema"]).types.code for known in stored())
    assert {Type(byte & 0x7F) for byte in codes} >= set(Type)


def test_another_reader_needs_only_the_page_and_pyarrow() -> None:
    """Reads the attributes with struct and pyarrow, by docs/wire.md, and compares the strings."""
    for known in stored():
        frame = bytes.fromhex(known["frame"])
        schema_id = struct.unpack_from("<I", frame, 96)[0]
        if not schema_id & 2:
            continue
        body = frame[128:]
        base, code, zero = struct.unpack_from("<IHH", body)
        assert zero == 0
        section = body[8 + (code + 7) // 8 * 8 + base :]
        arrow = read_schema(known["schema"]).arrow()
        columns = count_columns(body[8 : 8 + code])
        schema = pa.schema(list(arrow)[:columns])
        table = pa.ipc.read_record_batch(pa.py_buffer(section), schema)
        table.validate(full=True)
        for name in ("s", "sym", "venue"):
            if name in schema.names:
                expected = [event["attributes"][name] for event in known["events"]]
                assert table.column(name).to_pylist() == expected, known["name"]


def count_columns(code: bytes) -> int:
    columns = at = 0
    while at < len(code):
        while code[at] & 0x7F == 16:  # a list: the type of its values follows
            at += 1
        at += 3 if code[at] & 0x7F == 15 else 1  # a decimal: precision and scale follow
        columns += 1
    return columns
