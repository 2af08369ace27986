"""Bytes from a malicious peer: any bytes raise only PeerError, with the reason.

Most random bytes fail at the first check, so the CRCs of mutated frames are corrected: this tests
the layers behind them, down to msgpack and Arrow.
"""

import struct
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from surecast.columns.batch import COLLECTED, CONTROL, DATA, VOID, Batch
from surecast.columns.intervals import IntervalSet
from surecast.core.types import Enclosed, Message
from surecast.core.wire import (
    HEADER_SIZE,
    MAGIC,
    Codec,
    Limits,
    decode_batch,
    encode_batch,
    frame_size,
)
from surecast.errors import PeerError, UnknownMessage

STREAM = bytes(range(16))
# The offsets of docs/wire.md, deliberately not taken from the code under test.
TYPE, FLAGS, REASON, BODY_LEN, BODY_CRC, COUNT, CONTROL_LEN, ROWS = 5, 6, 7, 8, 12, 16, 24, 28
SEQ_FIRST, SCHEMA_ID, FORM, RESERVED, HEADER_CRC = 72, 96, 100, 108, 124
FORMATS = {
    TYPE: "<B",
    FLAGS: "<B",
    REASON: "<B",
    BODY_LEN: "<I",
    BODY_CRC: "<I",
    COUNT: "<Q",
    CONTROL_LEN: "<I",
    ROWS: "<I",
    SEQ_FIRST: "<Q",
    SCHEMA_ID: "<I",
    FORM: "<Q",
    RESERVED: "<Q",
}


class Tree(msgspec.Struct, array_like=True):
    children: tuple["Tree", ...] = ()
    counts: dict[str, int] = {}
    data: bytes = b""


class Note(Message):
    text: str
    batches: tuple[Batch, ...] = ()
    tree: Tree | None = None


class Cover(Message):
    first: Enclosed | None = None
    rest: tuple[Enclosed, ...] = ()
    batch: Batch | None = None


CODEC = Codec([Note, Cover])


def dense(rows: int = 6) -> Batch:
    keys = [None if i % 3 == 2 else b"key-%d" % i for i in range(rows)]
    batch = Batch.of(STREAM, [b"value" * (1 + i % 2) for i in range(rows)], keys, keys)
    return batch.sequenced(100, 5, 6)


def narrow(rows: int = 6) -> Batch:
    """A batch with keys of one width and values of one width."""
    values, keys = [b"value-%d" % i for i in range(rows)], [b"key-%d" % i for i in range(rows)]
    return Batch.of(STREAM, values, keys).sequenced(100, 5, 6)


HOLES = IntervalSet([(101, 103)])
BATCHES = [
    dense(),
    dense(1),
    dense().without(HOLES, COLLECTED),
    Batch.void(STREAM, 1, 9, COLLECTED),
    narrow(),
    narrow().without(HOLES, COLLECTED),
]
FRAMES = [b"".join(encode_batch(batch)) for batch in BATCHES]
NOTES = [
    Note("hello"),
    Note("hello", tuple(BATCHES[:4]), Tree((Tree(),), {"a": 1}, b"b")),
    Note("", (dense(1),)),
    Note("", tuple(BATCHES[4:])),
]
COVERS = [
    Cover(Enclosed(NOTES[1])),
    Cover(None, tuple(map(Enclosed, NOTES)), dense(2)),
    Cover(Enclosed(Cover()), (Enclosed(Cover(None, (), dense(1))),)),
]
CONTROLS = [b"".join(CODEC.encode(message)) for message in [*NOTES, *COVERS]]


def get(frame: bytes | bytearray, field: int, at: int = 0) -> int:
    value: int = struct.unpack_from(FORMATS[field], frame, at + field)[0]
    return value


def put(frame: bytearray, field: int, value: int, at: int = 0) -> None:
    struct.pack_into(FORMATS[field], frame, at + field, value)


def seal(frame: bytearray, at: int = 0) -> bytearray:
    """Correct the CRCs of the frame and of its attachments."""
    if len(frame) - at < HEADER_SIZE:
        return frame
    start, control = at + HEADER_SIZE, frame[at + TYPE] == CONTROL and at == 0
    length = get(frame, CONTROL_LEN if control else BODY_LEN, at)
    put(frame, BODY_CRC, zlib.crc32(frame[start : start + length]), at)
    header_crc = zlib.crc32(frame[at : at + HEADER_CRC])
    struct.pack_into("<I", frame, at + HEADER_CRC, header_crc)
    inner = start + ((length + 7) & ~7)
    while control and len(frame) - inner >= HEADER_SIZE:
        seal(frame, inner)
        inner += HEADER_SIZE + get(frame, BODY_LEN, inner)
    return frame


def altered(frame: bytes, **fields: int) -> bytearray:
    out = bytearray(frame)
    for name, value in fields.items():
        put(out, globals()[name.upper()], value)
    return seal(out)


def use(batch: Batch) -> None:
    """Read every row: an unchecked offset would crash the process here."""
    assert len(batch.to_rows()) == batch.rows
    if batch.rows:
        batch.record_batch().to_pydict()


def check_batch(data: bytes | bytearray) -> bool:
    """Decode as a batch; if that works it must be usable and encode to the same bytes."""
    try:
        batch, size = decode_batch(data)
    except PeerError:
        return False
    use(batch)
    assert b"".join(encode_batch(batch)) == bytes(data[:size])
    return True


def check_control(data: bytes | bytearray) -> bool:
    try:
        message, size = CODEC.decode(data)
    except PeerError:
        return False
    assert frame_size(data) == size <= len(data)
    look_into(message)
    CODEC.encode(message)
    return True


def look_into(message: Any, depth: int = 0) -> None:
    if isinstance(message, Cover):
        inside = [part for part in (message.first, *message.rest) if part is not None]
        assert not inside or not depth
        for enclosed in inside:
            look_into(enclosed.message, depth + 1)
    else:
        assert isinstance(message, Note)
    batches = message.batches if isinstance(message, Note) else [message.batch]
    for batch in batches:
        if batch is not None:
            use(batch)


def check_all(data: bytes | bytearray) -> bool:
    try:
        size = frame_size(data)
        assert size is None or size >= HEADER_SIZE
    except PeerError:
        size = -1
    batch, control = check_batch(data), check_control(data)
    assert not (batch and control)
    assert not ((batch or control) and size == -1)
    return batch or control


# ---------------------------------------------------------------- any bytes


def test_the_unmodified_samples_are_accepted() -> None:
    assert all(check_batch(frame) for frame in FRAMES)
    assert all(check_control(frame) for frame in CONTROLS)
    assert all(seal(bytearray(frame)) == frame for frame in FRAMES + CONTROLS)


@given(st.binary(max_size=400), st.sampled_from([b"", MAGIC, MAGIC + b"\x01"]))
@example(b"GET / HTTP/1.1\r\n\r\n", b"")
def test_random_bytes_are_refused(noise: bytes, opening: bytes) -> None:
    assert not check_all(opening + noise)
    check_all(seal(bytearray(opening + noise)))


@given(
    st.dictionaries(
        st.sampled_from(sorted(FORMATS)),
        st.sampled_from([0, 1, 2, 3, 4, 5, 6, 8, 16, 127, 128, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
        | st.integers(0, 2**64 - 1),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(FRAMES + CONTROLS),
)
def test_any_header_fields_are_handled(fields: dict[int, int], frame: bytes) -> None:
    out = bytearray(frame)
    for field, value in fields.items():
        bits = 8 * struct.calcsize(FORMATS[field])
        put(out, field, value % 2**bits)
    check_all(seal(out))


edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),  # where, as a fraction of the frame
        st.sampled_from(["flip", "set", "cut", "insert", "copy"]),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=6,
)


def mutate(frame: bytearray, changes: list[tuple[float, str, int]], start: int) -> bytearray:
    for fraction, change, value in changes:
        at = start + int(fraction * (len(frame) - start))
        if change == "flip":
            frame[at : at + 1] = bytes(b ^ (1 << value % 8) for b in frame[at : at + 1])
        elif change == "set":
            frame[at : at + 1] = bytes([value] * len(frame[at : at + 1]))
        elif change == "cut":
            del frame[at : at + value]
        elif change == "insert":
            frame[at:at] = bytes([value]) * (value % 9)
        else:
            frame[at:at] = frame[at : at + value]
    return frame


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(FRAMES[:3]), edits)
def test_mutated_bodies_are_accepted_or_refused_by_arrow(
    frame: bytes, changes: list[tuple[float, str, int]]
) -> None:
    """The length in the header is corrected, so that only Arrow's own checks remain."""
    out = mutate(bytearray(frame), changes, HEADER_SIZE)
    out += bytes(-len(out) % 8)
    put(out, BODY_LEN, len(out) - HEADER_SIZE)
    check_batch(seal(out))


@settings(max_examples=300)
@given(st.sampled_from(CONTROLS), edits, st.booleans())
def test_mutated_control_frames_are_handled(
    frame: bytes, changes: list[tuple[float, str, int]], keep_length: bool
) -> None:
    out = mutate(bytearray(frame), changes, HEADER_SIZE)
    if keep_length:
        put(out, BODY_LEN, len(out) - HEADER_SIZE)
    check_all(seal(out))


@settings(max_examples=300)
@given(st.binary(max_size=60), st.booleans())
def test_any_msgpack_in_an_enclosed_message_is_handled(inside: bytes, encloses: bool) -> None:
    check_control(control_frame(cover(cover(inside) if encloses else inside)))


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.integers(0, 255).map(lambda b: b"\x94\xa4Note" + bytes([b]) * 9))
def test_any_msgpack_is_handled(part: bytes) -> None:
    check_control(control_frame(part))


def control_frame(part: bytes, *frames: bytes, count: int | None = None) -> bytearray:
    body = part + bytes(-len(part) % 8) + b"".join(frames)
    out = bytearray(CONTROLS[0][:HEADER_SIZE] + body)
    put(out, BODY_LEN, len(body))
    put(out, CONTROL_LEN, len(part))
    put(out, COUNT, len(frames) if count is None else count)
    return seal(out)


@pytest.mark.parametrize("frame", FRAMES + CONTROLS)
def test_every_truncation_is_refused(frame: bytes) -> None:
    decode = CODEC.decode if frame in CONTROLS else decode_batch
    for length in range(len(frame)):
        with pytest.raises(PeerError, match="truncated"):
            decode(frame[:length])


@pytest.mark.parametrize("frame", FRAMES + CONTROLS)
def test_every_flipped_bit_outside_the_body_is_refused(frame: bytes) -> None:
    for bit in range(8 * HEADER_SIZE):
        out = bytearray(frame)
        out[bit // 8] ^= 1 << bit % 8
        assert not check_all(out), f"bit {bit}"


# ---------------------------------------------------------------- one false field at a time


def refusal_of(data: bytes | bytearray, limits: Limits | None = None) -> str:
    """The error message of the decoder for the frame's type."""
    limits = limits or Limits()
    control = len(data) > TYPE and data[TYPE] == CONTROL
    with pytest.raises(PeerError) as caught:
        Codec([Note, Cover], limits).decode(data) if control else decode_batch(data, limits)
    return str(caught.value)


HUGE = 0xFFFFFFF8


@pytest.mark.parametrize(
    ("frame", "part"),
    [
        (b"", "truncated: 0 bytes, a header has 128"),
        (b"HTTP/1.1 400 Bad Request", "not a frame: starts with b'HTTP'"),
        (MAGIC + b"\x02" + bytes(200), "frame version 2 is unknown; this node reads 1"),
        (altered(FRAMES[0], type=9), "unknown frame type 9"),
        (
            altered(FRAMES[0], body_len=HUGE),
            "frame claims 4,294,967,416 bytes, the limit is 16,777",
        ),
        (altered(FRAMES[0], body_len=HUGE), "(limits.frame_bytes_max)"),
        (altered(FRAMES[0], body_len=15 << 20), "limits.frame_bytes_max less limits.control_byt"),
        (altered(FRAMES[0], body_len=4000), "truncated: the frame claims 4,128 bytes, "),
        (altered(FRAMES[0], body_len=13), "not a multiple of 8"),
        (altered(FRAMES[0], reserved=1), "reserved header bytes are not zero: 01000000"),
        (altered(FRAMES[0], flags=1), "flags are 0x01, which 6 rows of 6 positions contradict"),
        (altered(FRAMES[2], flags=0), "flags are 0x00, which 4 rows of 6 positions contradict"),
        (altered(FRAMES[0], flags=128), "flags are 0x80"),
        (altered(FRAMES[0], control_len=8), "control_len is 8 in a batch frame"),
        (altered(FRAMES[0], reason=1), "reason 1 with 6 rows in 6 positions"),
        (altered(FRAMES[2], reason=0), "reason 0 with 4 rows in 6 positions"),
        (altered(FRAMES[2], reason=5), "reason 5 with 4 rows"),
        (altered(FRAMES[2], reason=4), "was filtered for a reader"),
        (altered(FRAMES[2], seq_first=0), "no position in a stream yet"),
        (altered(FRAMES[0], rows=0, count=0), "count is 0"),
        (altered(FRAMES[0], rows=0), "0 rows in 6 positions"),
        (altered(FRAMES[0], rows=7), "7 rows in 6 positions"),
        (altered(FRAMES[0], rows=5, count=5), "DATA batch [100, 105): the body has 6 rows"),
        (altered(FRAMES[0], rows=2_000_000, count=2_000_000), "2,000,000 rows, the limit is 1,000"),
        (altered(FRAMES[0], seq_first=2**59 - 2), "allowed is 1 to 2"),
        (altered(FRAMES[0], count=2**64 - 1), "count is 18,446,744,073,709,551,615: allowed"),
        (altered(FRAMES[0], schema_id=77), "schema 77"),
        (altered(FRAMES[4], schema_id=77), "schema 77"),
        (altered(FRAMES[4], schema_id=1), "the body"),
        (altered(FRAMES[4], rows=5, count=5), "[100, 105): the body is not laid out as its form"),
        (altered(FRAMES[4], form=0), "no valid Arrow batch"),
        (altered(FRAMES[4], form=0x0007_0006), "not laid out as its form says"),
        (altered(FRAMES[4], form=0xFFFF), "not laid out as its form says"),
        (altered(FRAMES[4], form=0xFFFE), "unknown form 0xfffe"),
        (altered(FRAMES[4], form=0xFFFF << 16), "unknown form 0xffff0000"),
        (altered(FRAMES[4], form=3 << 32), "unknown form 0x300000000"),
        (altered(FRAMES[4], form=1 << 40), "unknown form 0x10000000000"),
        (altered(FRAMES[4], form=1 << 63), "unknown form 0x8000000000000000"),
        (altered(FRAMES[5], form=0x0008_0006), "a body without seqs"),
        (altered(FRAMES[5], count=5), "outside"),
        (altered(FRAMES[3], form=7), "form 0x7 without a body"),
        (altered(FRAMES[0], type=2), "6 positions, where exactly one is allowed"),
        (altered(FRAMES[0][:HEADER_SIZE], body_len=0), "no body"),
        (altered(FRAMES[3], rows=1), "1 rows and 0 body bytes in a void range"),
        (altered(FRAMES[3], reason=0), "reason 0"),
        (altered(FRAMES[3], seq_first=0), "no position in a stream yet"),
        (altered(FRAMES[0], type=VOID), "in a void range"),
    ],
)
def test_batch_frames_with_a_false_field_are_refused_with_the_reason(
    frame: bytes, part: str
) -> None:
    assert part in refusal_of(frame)


def test_wrong_crcs_are_refused() -> None:
    frame = bytearray(FRAMES[0])
    frame[-1] ^= 1
    assert "DATA batch [100, 106): body CRC is 0x" in refusal_of(frame)
    frame = bytearray(FRAMES[0])
    frame[SEQ_FIRST] ^= 1
    assert "header CRC is 0x" in refusal_of(frame)
    frame = bytearray(CONTROLS[0])
    frame[HEADER_SIZE] ^= 1
    assert "message CRC is 0x" in refusal_of(frame)
    frame = bytearray(CONTROLS[1])  # the message's CRC does not cover its attachments
    frame[-HEADER_SIZE - 1] ^= 1
    assert "attachment 2 of 4: DATA batch [100, 106): body CRC" in refusal_of(frame)


def test_a_body_whose_offsets_point_outside_is_refused() -> None:
    frame = bytearray(FRAMES[0])
    offsets = struct.pack("<7i", 0, 5, 15, 20, 30, 35, 45)
    at = frame.index(offsets)
    struct.pack_into("<i", frame, at + 8, 1_000_000_000)
    assert not check_batch(seal(frame))


def test_inconsistent_gaps_are_refused() -> None:
    """A gap of zero, and a gap that leads out of the batch."""
    frame = bytearray(FRAMES[5])
    at = frame.index(bytes([1, 3, 1, 1, 0, 0, 0, 0]))
    for place, gap, why in ((1, 0, "two rows at one position"), (3, 200, "outside")):
        damaged = bytearray(frame)
        damaged[at + place] = gap
        assert why in refusal_of(seal(damaged))


def ref(index: int, code: int = 1, form: str = "<I") -> bytes:
    data = struct.pack(form, index)
    return bytes([0xC7, len(data), code]) + data


def note(*refs: bytes, tree: bytes = b"\xc0") -> bytes:
    return b"\x94\xa4Note\xa0" + bytes([0x90 + len(refs)]) + b"".join(refs) + tree


def ext(data: bytes, code: int = 2) -> bytes:
    return b"\xc9" + struct.pack(">IB", len(data), code) + data


def cover(*inside: bytes, batch: bytes = b"\xc0") -> bytes:
    rest = bytes([0x90 + len(inside)]) + b"".join(map(ext, inside))
    return b"\x94\xa5Cover\xc0" + rest + batch


ONE, TWO = FRAMES[1], FRAMES[3]
DEEP = b"\x91" * 500_000


@pytest.mark.parametrize(
    ("frame", "part"),
    [
        (control_frame(note(ref(1)), ONE), "mentions attachment 1 of 1 where 0 is next"),
        (
            control_frame(note(ref(2**32 - 1)), ONE),
            "mentions attachment 4,294,967,295 of 1",
        ),
        (control_frame(note(ref(0))), "mentions attachment 0 of 0"),
        (control_frame(note(ref(0), ref(0)), ONE), "mentions attachment 0 of 1 where 1 is next"),
        (
            control_frame(note(ref(1), ref(0)), ONE, TWO),
            "mentions attachment 1 of 2 where 0 is next",
        ),
        (control_frame(note(ref(0)), ONE, TWO), "mentions 1 of its 2 attachments"),
        (control_frame(note() + ref(0), ONE), "control message: DecodeError"),
        (control_frame(b"\x95" + note()[1:] + ref(0), ONE), "mentions 0 of its 1 attachments"),
        (control_frame(note(ref(0, code=3)), ONE), "unknown extension 3 of 4 bytes"),
        (control_frame(note(ref(0, code=2)), ONE), "enclosed message: "),
        (control_frame(note(ext(note()))), "Expected `Batch`, got `Enclosed`"),
        (control_frame(cover(note(ref(1))), ONE), "mentions attachment 1 of 1 where 0 is next"),
        (control_frame(cover(note(), note(ref(0)), note(ref(0))), ONE), "0 of 1 where 1 is next"),
        (control_frame(cover(note(), batch=ref(0)), ONE, TWO), "mentions 1 of its 2 attachments"),
        (control_frame(cover(cover(note()))), "an enclosed message encloses another one"),
        (control_frame(cover(cover(b""))), "an enclosed message encloses another one"),
        (control_frame(cover(b"")), "enclosed message: DecodeError"),
        (control_frame(cover(note() + b"\xc0")), "enclosed message: DecodeError"),
        (control_frame(cover(b"\x92\xa4Nope\xa0")), "enclosed message: ValidationError"),
        (control_frame(cover(b"\x93\xa4Note\xa0\x05")), "enclosed message: ValidationError"),
        (control_frame(cover(note(tree=DEEP))), "enclosed message: RecursionError"),
        (control_frame(cover(note(tree=b"\xdd\xff\xff\xff\xff"))), "truncated"),
        (control_frame(b"\x93\xa5Cover\xc0\x91" + ext(note())[:-1]), "truncated"),
        (control_frame(b"\x93\xa5Cover\xc0\x91\xc9\xff\xff\xff\xff\x02"), "truncated"),
        (control_frame(note(ref(0, form="<H")), ONE), "unknown extension 1 of 2 bytes"),
        (control_frame(note(ref(0)), ONE, count=0), "bytes behind its 0 attachments"),
        (control_frame(note(ref(0)), ONE, count=2), "attachment 1 of 2: truncated: 0 bytes"),
        (control_frame(note(ref(0)), ONE + bytes(8)), "8 bytes behind its 1 attachments"),
        (
            control_frame(note(ref(0)), ONE, count=5000),
            "5,000 attachments, the limit is 4,096 (lim",
        ),
        (control_frame(note(ref(0)), CONTROLS[0]), "a control frame where a batch frame"),
        (control_frame(note(b"\x05"), ONE), "Expected `Batch`, got `int`"),
        (control_frame(b"\x92\xa4Nope\xa0"), "Invalid value 'Nope'"),
        (control_frame(b""), "control message: DecodeError"),
        (control_frame(b"\x92\xa4Note\xa2\xff\xff"), "control message: "),
        (control_frame(b"\x92\xa4Note\xdb\xff\xff\xff\xff"), "truncated"),
        (control_frame(note(tree=b"\xdd\xff\xff\xff\xff")), "truncated"),
        (control_frame(note(tree=b"\x91\xdd\xff\xff\xff\xff")), "truncated"),
        (control_frame(note(tree=b"\x92\x90\xdf\xff\xff\xff\xff")), "truncated"),
        (control_frame(note(tree=DEEP)), "RecursionError"),
        (control_frame(b"\x95" + note()[1:] + DEEP), "RecursionError"),
        (
            control_frame(note(tree=b"\x93\x90\x80\xc6\x00\x10\x00\x00" + bytes(1 << 20))),
            "limits.control_b",
        ),
        (altered(CONTROLS[0], control_len=80), "a message of 80 bytes in 16"),
        (altered(CONTROLS[0], rows=1), "a header field that only batches use is not zero"),
        (altered(CONTROLS[0], body_len=13), "a body of 13 bytes: not a multiple of 8"),
        (altered(CONTROLS[0], flags=1), "a header field that only batches use is not zero"),
        (altered(CONTROLS[0], reason=1), "a header field that only batches use is not zero"),
        (altered(CONTROLS[0], schema_id=1), "a header field that only batches use is not zero"),
        (seal(bytearray(CONTROLS[0][:-1] + b"\x01")), "padding behind the message is not zero"),
    ],
)
def test_malformed_control_frames_are_refused_with_the_reason(frame: bytes, part: str) -> None:
    assert part in refusal_of(frame)


# ---------------------------------------------------------------- unknown message types


def text(value: bytes) -> bytes:
    return bytes([0xA0 + len(value)]) + value if len(value) < 32 else b"\xd9%c" % len(value) + value


LATER = b"\x92" + text(b"later/News") + b"\x05"
LONG = b"x" * 32 + b"/" + b"Y" * 64


@pytest.mark.parametrize(
    ("frame", "tag"),
    [
        (control_frame(LATER), "later/News"),
        (control_frame(LATER + b"\x05"), "later/News"),  # the rest is not checked
        (control_frame(b"\xdc\x00\x02" + LATER[1:]), "later/News"),
        (control_frame(b"\xdd\x00\x00\x00\x02" + LATER[1:]), "later/News"),
        (control_frame(b"\x92" + text(LONG) + b"\x05"), LONG.decode()),
        (control_frame(b"\x91" + text(b"a_1/B2c")), "a_1/B2c"),
        (control_frame(b"\x92" + text(b"later/News") + ref(0), ONE), "later/News"),
        (control_frame(LATER, altered(ONE, schema_id=77)), "later/News"),  # nor is the attachment
        (control_frame(cover(note(), LATER)), "later/News"),
        (control_frame(cover(note(ref(0)), LATER, note(ref(1))), ONE, TWO), "later/News"),
        (control_frame(cover(LATER, cover(note()))), "later/News"),
    ],
)
def test_an_intact_frame_of_an_unknown_type_is_distinguished_from_garbage(
    frame: bytearray, tag: str
) -> None:
    with pytest.raises(UnknownMessage, match=f"unknown type {tag} in a frame of") as caught:
        CODEC.decode(bytes(frame) + b"the next frame")
    assert (caught.value.tag, caught.value.size) == (tag, len(frame))
    assert CODEC._attached == []
    note, _ = CODEC.decode(CONTROLS[0])
    assert note == NOTES[0]


@pytest.mark.parametrize(
    "frame",
    [
        control_frame(b"\x92" + text(tag) + b"\x05")
        for tag in (
            b"", b"News", b"/hello", b"later/", b"later/news", b"Later/News", b"later/News\n",
            b"l\xc3\xa4ter/News", b"la ter/News", b"later/New/s", b"y" + LONG, LONG + b"y",
        )
    ]
    + [
        control_frame(b""),
        control_frame(LATER[:8]),  # breaks off inside the tag
        control_frame(b"\x92\xd9"),
        control_frame(b"\xdc\x00"),
        control_frame(b"\x92\xda\x00\x0alater/News\x05"),
        control_frame(b"\x81" + LATER[1:]),
        control_frame(b"\x92\xc4\x0alater/News\x05"),  # bytes, not text
        control_frame(b"\x92\x05" + text(b"later/News")),
        control_frame(cover(cover(LATER))),
        control_frame(cover(note(), b"\x92" + text(b"/hello"))),
        control_frame(cover(note(tree=b"\x05"), LATER)),  # the first problem is reported
        control_frame(b"\x92" + text(b"Note") + b"\x05"),
    ],
)  # fmt: skip
def test_malformed_tags_are_garbage(frame: bytearray) -> None:
    with pytest.raises(PeerError) as caught:
        CODEC.decode(frame)
    assert not isinstance(caught.value, UnknownMessage)


@pytest.mark.parametrize("at", [HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 3, HEADER_SIZE + 14])
def test_a_damaged_frame_of_an_unknown_type_is_garbage(at: int) -> None:
    frame = control_frame(LATER)
    frame[at] ^= 1
    with pytest.raises(PeerError) as caught:
        CODEC.decode(frame)
    assert not isinstance(caught.value, UnknownMessage)


def test_each_decoder_refuses_frames_of_the_other_kind() -> None:
    with pytest.raises(PeerError, match="a control frame where a batch frame is expected"):
        decode_batch(CONTROLS[0])
    with pytest.raises(PeerError, match="a DATA frame where a control frame is expected"):
        CODEC.decode(FRAMES[0])


def test_the_limits_of_the_reader_apply() -> None:
    limits = Limits(frame_bytes_max=5000, control_bytes_max=64, attachments_max=1, batch_rows_max=5)
    assert "6 rows, the limit is 5" in refusal_of(FRAMES[0], limits)
    assert "4 attachments, the limit is 1" in refusal_of(CONTROLS[1], limits)
    long = b"".join(CODEC.encode(Note("x" * 100)))
    assert "the limit is 64 (limits.control_bytes_max)" in refusal_of(long, limits)
    large = b"".join(encode_batch(Batch.of(STREAM, [bytes(5000)])))
    assert "the limit is 5,000 (limits.frame_bytes_max)" in refusal_of(large, limits)


def test_claimed_sizes_cost_no_memory() -> None:
    """Frames with every length field at its maximum use far less memory than they claim."""
    import tracemalloc

    lies = [altered(frame, body_len=HUGE) for frame in FRAMES + CONTROLS]
    lies += [altered(FRAMES[0], rows=1_000_000, count=1_000_000)]
    lies += [control_frame(note(tree=b"\xdc\xff\xff" * 300))]
    lies += [control_frame(note(tree=b"\xdd\x00\xff\xff\xff" * 300))]
    lies += [control_frame(b"\x93\xa5Cover\xc0" + b"\xdd\x0f\xff\xff\xff")]
    lies += [control_frame(b"\x93\xa5Cover\xc0\x91\xc9\x00\xff\xff\xff\x02" + note())]
    lies += [control_frame(cover(note(tree=b"\xdc\xff\xff" * 300)))]
    tracemalloc.start()
    try:
        for lie in lies:
            assert not check_all(lie)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_the_offsets_of_this_file_fit_the_samples() -> None:
    assert (get(FRAMES[0], TYPE), get(FRAMES[3], TYPE), get(CONTROLS[0], TYPE)) == (
        DATA,
        VOID,
        CONTROL,
    )
