"""The format is kept: files written by an earlier build are read and written alike by this one.

The files were written once, by `python tests/core/test_wire_golden.py`, which adds missing files
and never replaces one: a changed byte is a new version of the format, with fixtures of its own.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from surecast.columns.batch import COLLECT, COLLECTED, CONFIG, EXPIRED, Batch, Row, coalesce
from surecast.columns.intervals import IntervalSet
from surecast.core.types import Message
from surecast.core.wire import Codec, decode_batch, encode_batch

FIXTURES = Path(__file__).with_name("fixtures")
DOC = Path(__file__).parents[2] / "docs" / "wire.md"
STREAM, PUBLISHER = bytes(range(0x10, 0x20)), bytes(range(0xA0, 0xB0))
TIME_NS = 1_700_000_000_123_456_789


class Golden(Message):
    name: str
    epoch: int
    batches: tuple[Batch, ...]
    ids: tuple[bytes, ...] = ()
    last: Batch | None = None


def rows(count: int, tagged: bool = False, kind: int = 1, lo: int = 1000) -> Batch:
    """Null and empty keys, an empty value, and lengths that need every padding."""
    keys = [None if i % 4 == 1 else b"" if i % 4 == 2 else b"k%d" % i for i in range(count)]
    tags = [None if i % 2 else b"tag%d" % i for i in range(count)] if tagged else None
    values = [b"v" * (i % 9) for i in range(count)]
    plain = None if kind != 1 else keys
    batch = Batch.of(STREAM, values, plain, tags, kind=kind, publisher=PUBLISHER, pub_no=77)
    return batch.sequenced(lo, TIME_NS, 5)


def sparse() -> Batch:
    return rows(10).without(IntervalSet([(1001, 1004), (1009, 1010)]), EXPIRED)


def void() -> Batch:
    return Batch.void(STREAM, 2_000, 5_000_000_000, COLLECTED)


def narrow(count: int, lo: int = 1000) -> Batch:
    """Keys of 8 bytes, values of 3."""
    keys = [b"key %4d" % (i * 7 % count) for i in range(count)]
    values = [b"%3d" % i for i in range(count)]
    batch = Batch.of(STREAM, values, keys, publisher=PUBLISHER, pub_no=77)
    return batch.sequenced(lo, TIME_NS + lo, 5)


def apart(*los: int) -> Batch:
    """Batches of different times in one, each with a hole of four, and voids between them."""
    parts: list[Batch] = []
    for lo in los:
        if parts and parts[-1].hi < lo:
            parts.append(Batch.void(STREAM, parts[-1].hi, lo, COLLECTED))
        parts.append(narrow(10, lo).without(IntervalSet([(lo + 3, lo + 7)]), COLLECTED))
    (joined,) = coalesce(parts, 1000)
    return joined


BATCHES: dict[str, Callable[[], Batch]] = {
    "data": lambda: rows(10),
    "tagged": lambda: rows(9, tagged=True),
    "void": void,
    # Since there are forms (docs/wire.md):
    "form-unsequenced": lambda: Batch.of(STREAM, [b"x"], publisher=PUBLISHER, pub_no=2**64 - 1),
    "form-collect": lambda: rows(1, kind=COLLECT),
    "form-config": lambda: rows(1, kind=CONFIG),
    "form-fixed": lambda: narrow(10),
    "form-empty-values": lambda: Batch.of(STREAM, [b""] * 3, [b"a", b"b", b"c"]),
    "form-no-keys": lambda: Batch.of(STREAM, [b"x", b"yy", b""]).sequenced(7, TIME_NS, 5),
    "form-sparse": sparse,
    "form-gaps-u8": lambda: apart(1000, 1010, 1020),
    "form-gaps-u16": lambda: apart(1000, 1010, 2000),
    "form-gaps-u32": lambda: apart(1000, 1010, 200_000),
}
# Written before there were forms. They are read and passed on as they are, for ever.
PLAIN: dict[str, Callable[[], Batch]] = {
    "unsequenced": BATCHES["form-unsequenced"],
    "collect": BATCHES["form-collect"],
    "config": BATCHES["form-config"],
    "sparse": sparse,
}
CODEC = Codec([Golden])


def control() -> Golden:
    return Golden("golden", 2**64 - 1, (rows(3), void(), sparse()), (STREAM, b""), rows(1))


def frame(name: str) -> bytes:
    if name == "form-control":
        return b"".join(CODEC.encode(control()))
    return b"".join(encode_batch(BATCHES[name]()))


@pytest.mark.parametrize("name", [*BATCHES, *PLAIN])
def test_batches_written_earlier(name: str) -> None:
    stored = (FIXTURES / f"{name}.bin").read_bytes()
    if name in BATCHES:
        assert frame(name) == stored
    found, size = decode_batch(stored)
    assert size == len(stored)
    assert b"".join(encode_batch(found)) == stored
    assert found.to_rows() == (BATCHES | PLAIN)[name]().to_rows()
    assert (found.form > 0) == name.startswith("form-")


@pytest.mark.parametrize("name", ["control", "form-control"])
def test_control_frames_written_earlier(name: str) -> None:
    stored = (FIXTURES / f"{name}.bin").read_bytes()
    if name == "form-control":
        assert frame(name) == stored
    found, size = CODEC.decode(stored)
    assert size == len(stored)
    assert b"".join(CODEC.encode(found)) == stored
    assert (found.name, found.epoch, found.ids) == ("golden", 2**64 - 1, (STREAM, b""))
    assert [batch.count for batch in (*found.batches, found.last)] == [3, 4_999_998_000, 10, 1]


def test_what_the_files_hold_is_known_apart_from_the_code_that_builds_it() -> None:
    """Against literals, so that a sample and a decoder that drift together are noticed."""
    data, _ = decode_batch((FIXTURES / "data.bin").read_bytes())
    assert (data.lo, data.hi, data.rows, data.epoch, data.pub_no) == (1000, 1010, 10, 5, 77)
    assert (data.stream_id, data.publisher, data.time_ns) == (STREAM, PUBLISHER, TIME_NS)
    assert data.to_rows()[:4] == [
        Row(1000, TIME_NS, b"k0", b"", None),
        Row(1001, TIME_NS, None, b"v", None),
        Row(1002, TIME_NS, b"", b"vv", None),
        Row(1003, TIME_NS, b"k3", b"vvv", None),
    ]
    holes, _ = decode_batch((FIXTURES / "sparse.bin").read_bytes())
    assert (holes.lo, holes.hi, holes.reason) == (1000, 1010, EXPIRED)
    assert [row.seq for row in holes.to_rows()] == [1000, 1004, 1005, 1006, 1007, 1008]
    far, _ = decode_batch((FIXTURES / "form-gaps-u32.bin").read_bytes())
    assert (far.lo, far.hi, far.rows, far.form) == (1000, 200_010, 18, 0x1_04_0004_0009)
    assert [far.to_rows()[i] for i in (0, 3, 12)] == [
        Row(1000, TIME_NS + 1000, b"key    0", b"  0", None),
        Row(1007, TIME_NS + 1000, b"key    9", b"  7", None),
        Row(200_000, TIME_NS + 200_000, b"key    0", b"  0", None),
    ]
    gone, _ = decode_batch((FIXTURES / "void.bin").read_bytes())
    assert (gone.lo, gone.hi, gone.rows, gone.reason) == (2_000, 5_000_000_000, 0, COLLECTED)


def test_the_documented_layout_is_the_layout() -> None:
    text = DOC.read_text()
    table = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    ends = [int(at) + int(size) for at, size, _ in table]
    assert [int(at) for at, _, _ in table] == [0, *ends[:-1]]
    assert ends[-1] == 128
    dump = re.search(r"```hex\n(.*?)```", text, re.DOTALL)
    assert dump is not None
    octets = bytes.fromhex(re.sub(r"^[0-9a-f]{2}:", "", dump[1], flags=re.MULTILINE))
    assert octets == (FIXTURES / "void.bin").read_bytes()


if __name__ == "__main__":
    FIXTURES.mkdir(exist_ok=True)
    for name in [*BATCHES, "form-control"]:
        path = FIXTURES / f"{name}.bin"
        if not path.exists():
            path.write_bytes(frame(name))
