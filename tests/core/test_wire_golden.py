"""Frames written by an earlier build are read, and written again with the same bytes.

The bytes are in tests/fixtures/VERSION/frames; tests/golden_files.py says how to regenerate them.
After a release, a changed byte requires a new version of the format with its own files.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden_files import FIXTURES, golden

from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    CONTROL,
    DATA,
    EXPIRED,
    SUPERSEDED,
    VOID,
    Batch,
    Row,
    coalesce,
)
from surecast.columns.intervals import IntervalSet
from surecast.core.types import Enclosed, Message, tagged
from surecast.core.wire import Codec, decode_batch, encode_batch

DOC = Path(__file__).parents[2] / "docs" / "wire.md"
STREAM, PUBLISHER = bytes(range(0x10, 0x20)), bytes(range(0xA0, 0xB0))
TIME_NS = 1_700_000_000_123_456_789


class Base(Message, tag=tagged("golden")):
    pass


class Empty(Base):
    pass


class Sample(Base):
    name: str
    epoch: int
    batches: tuple[Batch, ...]
    ids: tuple[bytes, ...] = ()
    last: Batch | None = None


class Envelope(Base):
    first: Enclosed
    batch: Batch
    rest: tuple[Enclosed, ...]
    none: Enclosed | None = None


def rows(count: int, tagged: bool = False, kind: int = 1, lo: int = 1000) -> Batch:
    """Rows with null and empty keys, an empty value, and lengths that need every padding."""
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


def superseded() -> Batch:
    return Batch.void(STREAM, 7, 11, SUPERSEDED)


def narrow(count: int, lo: int = 1000) -> Batch:
    """Rows with keys of 8 bytes and values of 3."""
    keys = [b"key %4d" % (i * 7 % count) for i in range(count)]
    values = [b"%3d" % i for i in range(count)]
    batch = Batch.of(STREAM, values, keys, publisher=PUBLISHER, pub_no=77)
    return batch.sequenced(lo, TIME_NS + lo, 5)


def apart(*los: int) -> Batch:
    """Batches with different times joined, each with four void rows, and voids between them."""
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
    "void-superseded": superseded,
    # Columns in narrower forms (docs/wire.md):
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
# The same with Arrow's plain columns (form 0), as other writers encode them: read and passed on
# unchanged. Our own writer uses narrower forms, so these files cannot be regenerated.
PLAIN: dict[str, Callable[[], Batch]] = {
    "unsequenced": BATCHES["form-unsequenced"],
    "collect": BATCHES["form-collect"],
    "config": BATCHES["form-config"],
    "sparse": sparse,
}
CODEC = Codec([Empty, Sample, Envelope])


def sample() -> Sample:
    return Sample("golden", 2**64 - 1, (rows(3), void(), sparse()), (STREAM, b""), rows(1))


def envelope() -> Envelope:
    rest = (Enclosed(Sample("inner", 1, ())), Enclosed(Empty()))
    return Envelope(Enclosed(sample()), rows(2, lo=50), rest)


CONTROLS: dict[str, Callable[[], Message]] = {
    "control-empty": Empty,
    "control": sample,
    "control-enclosed": envelope,
}


def stored(name: str) -> bytes:
    return (FIXTURES / "frames" / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", [*BATCHES, *PLAIN])
def test_batches_written_earlier_are_read_and_written_the_same(name: str) -> None:
    data = stored(name) if name in PLAIN else b"".join(encode_batch(BATCHES[name]()))
    assert golden(f"frames/{name}.bin", data) == data
    found, size = decode_batch(stored(name))
    assert size == len(data)
    assert b"".join(encode_batch(found)) == data
    assert found.to_rows() == (BATCHES | PLAIN)[name]().to_rows()
    assert (found.form > 0) == name.startswith("form-")


@pytest.mark.parametrize("name", CONTROLS)
def test_control_frames_written_earlier_are_read_and_written_the_same(name: str) -> None:
    data = b"".join(CODEC.encode(CONTROLS[name]()))
    assert golden(f"frames/{name}.bin", data) == data
    found, size = CODEC.decode(stored(name))
    assert size == len(data)
    assert b"".join(CODEC.encode(found)) == data


def test_every_kind_of_frame_has_a_file() -> None:
    files = {path.stem for path in (FIXTURES / "frames").iterdir()}
    assert files == {*BATCHES, *PLAIN, *CONTROLS}
    kinds = {(FIXTURES / "frames" / f"{name}.bin").read_bytes()[5] for name in files}
    assert kinds == {DATA, COLLECT, CONFIG, VOID, CONTROL}


def test_the_contents_of_the_files_equal_literals() -> None:
    """Compares with literals, to detect a sample and a decoder that change together."""
    data, _ = decode_batch(stored("data"))
    assert (data.lo, data.hi, data.rows, data.epoch, data.pub_no) == (1000, 1010, 10, 5, 77)
    assert (data.stream_id, data.publisher, data.time_ns) == (STREAM, PUBLISHER, TIME_NS)
    assert data.to_rows()[:4] == [
        Row(1000, TIME_NS, b"k0", b"", None),
        Row(1001, TIME_NS, None, b"v", None),
        Row(1002, TIME_NS, b"", b"vv", None),
        Row(1003, TIME_NS, b"k3", b"vvv", None),
    ]
    holes, _ = decode_batch(stored("sparse"))
    assert (holes.lo, holes.hi, holes.reason) == (1000, 1010, EXPIRED)
    assert [row.seq for row in holes.to_rows()] == [1000, 1004, 1005, 1006, 1007, 1008]
    far, _ = decode_batch(stored("form-gaps-u32"))
    assert (far.lo, far.hi, far.rows, far.form) == (1000, 200_010, 18, 0x1_04_0004_0009)
    assert [far.to_rows()[i] for i in (0, 3, 12)] == [
        Row(1000, TIME_NS + 1000, b"key    0", b"  0", None),
        Row(1007, TIME_NS + 1000, b"key    9", b"  7", None),
        Row(200_000, TIME_NS + 200_000, b"key    0", b"  0", None),
    ]
    gone, _ = decode_batch(stored("void"))
    assert (gone.lo, gone.hi, gone.rows, gone.reason) == (2_000, 5_000_000_000, 0, COLLECTED)
    old, _ = decode_batch(stored("void-superseded"))
    assert (old.lo, old.hi, old.rows, old.reason) == (7, 11, 0, SUPERSEDED)
    message, _ = CODEC.decode(stored("control"))
    assert (message.name, message.epoch, message.ids) == ("golden", 2**64 - 1, (STREAM, b""))
    counts = [batch.count for batch in (*message.batches, message.last)]
    assert counts == [3, 4_999_998_000, 10, 1]
    around, _ = CODEC.decode(stored("control-enclosed"))
    assert around.first.message.name == "golden"
    assert [batch.lo for batch in around.first.message.batches] == [1000, 2000, 1000]
    assert (around.batch.lo, around.none) == (50, None)
    assert around.rest == (Enclosed(Sample("inner", 1, ())), Enclosed(Empty()))
    empty = stored("control-empty")
    assert empty[128:] == b"\x91\xacgolden/Empty" + bytes(2)


def test_the_documented_layout_is_correct() -> None:
    text = DOC.read_text()
    table = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    ends = [int(at) + int(size) for at, size, _ in table]
    assert [int(at) for at, _, _ in table] == [0, *ends[:-1]]
    assert ends[-1] == 128
    dump = re.search(r"```hex\n(.*?)```", text, re.DOTALL)
    assert dump is not None
    octets = bytes.fromhex(re.sub(r"^[0-9a-f]{2}:", "", dump[1], flags=re.MULTILINE))
    assert octets == stored("void")
