"""Frames and control messages: round trips without copies, within the limits."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    DATA,
    REASONS,
    SUPERSEDED,
    Batch,
)
from surecast.columns.intervals import IntervalSet
from surecast.core.types import Enclosed, Message
from surecast.core.wire import (
    DEFAULT_LIMITS,
    HEADER_SIZE,
    MAGIC,
    SEQ_END_MAX,
    Buffer,
    Codec,
    Limits,
    check_batch,
    decode_batch,
    encode_batch,
    frame_size,
)
from surecast.errors import ConfigError, PeerError, UsageError

STREAM, PUBLISHER = bytes(range(16)), bytes(range(16, 32))


class Place(msgspec.Struct, gc=False, array_like=True, frozen=True):
    region: str
    disk: bytes


class Beat(Message):
    epoch: int


class Bundle(Message):
    name: str
    first: Batch | None
    batches: tuple[Batch, ...]
    places: tuple[Place, ...] = ()
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    extra: int | bytes | None = None


class Envelope(Message):
    first: Enclosed | None
    rest: tuple[Enclosed, ...] = ()
    last: Batch | None = None


CODEC = Codec([Beat, Bundle, Envelope])


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(buffers)


def plain(value: Any) -> Any:
    """A message as comparable values: batches are compared by content, not by identity."""
    if isinstance(value, Batch):
        body = None if value.body is None else bytes(value.body)
        names = "kind stream_id schema_id publisher pub_no lo hi rows time_ns epoch reason nbytes"
        return (*(getattr(value, name) for name in names.split()), value.body_crc, body)
    if isinstance(value, Enclosed):
        return Enclosed, plain(value.message)
    if isinstance(value, msgspec.Struct):
        return type(value), [plain(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def data(rows: int = 3, lo: int = 0) -> Batch:
    batch = Batch.of(
        STREAM,
        [b"value-%d" % i for i in range(rows)],
        [None if i % 3 == 2 else b"key-%d" % i for i in range(rows)],
        publisher=PUBLISHER,
        pub_no=41,
    )
    return batch.sequenced(lo, 1_700_000_000_000_000_000, 7) if lo else batch


def sparse() -> Batch:
    batch = data(9, 100).without(IntervalSet([(101, 104), (106, 107)]), COLLECTED)
    assert 0 < batch.rows < batch.count
    return batch


# ---------------------------------------------------------------- strategies

small = st.binary(max_size=12)
maybe = st.none() | small


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    kind = draw(st.sampled_from([DATA, DATA, DATA, COLLECT, CONFIG, 0]))
    lo = draw(st.integers(1, 2**58 - 1))
    stream = draw(st.binary(min_size=16, max_size=16))
    if kind == 0:
        hi = lo + draw(st.integers(1, 2**58))
        return Batch.void(stream, lo, hi, draw(st.sampled_from(REASONS)))
    rows = draw(st.integers(1, 12)) if kind == DATA else 1
    column = st.lists(maybe, min_size=rows, max_size=rows)
    batch = Batch.of(
        stream,
        draw(st.lists(small, min_size=rows, max_size=rows)),
        draw(st.none() | column) if kind == DATA else None,
        draw(st.none() | column) if kind == DATA else None,
        kind=kind,
        publisher=draw(st.binary(min_size=16, max_size=16)),
        pub_no=draw(st.integers(0, 2**64 - 1)),
        time_ns=draw(st.integers(-(2**63), 2**63 - 1)),
    )
    if draw(st.booleans()):
        return batch
    batch = batch.sequenced(lo, draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 2**64 - 1)))
    holes = draw(st.sets(st.integers(0, rows - 1))) if kind == DATA else set()
    return batch.without(IntervalSet((lo + i, lo + i + 1) for i in sorted(holes)), SUPERSEDED)


plain_messages = st.builds(Beat, st.integers(0, 2**64 - 1)) | st.builds(
    Bundle,
    st.text(max_size=9),
    st.none() | batches(),
    st.lists(batches(), max_size=4).map(tuple),
    st.lists(st.builds(Place, st.text(max_size=4), small), max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), st.integers(-(2**63), 2**64 - 1), max_size=3),
    st.none() | st.integers(-5, 5) | small,
)
enclosed = st.builds(Enclosed, plain_messages)
messages = plain_messages | st.builds(
    Envelope,
    st.none() | enclosed,
    st.lists(enclosed, max_size=3).map(tuple),
    st.none() | batches(),
)


# ---------------------------------------------------------------- batches


@given(batches(), st.binary(max_size=20))
def test_a_batch_survives_a_round_trip(batch: Batch, rest: bytes) -> None:
    frame = joined(encode_batch(batch))
    found, size = decode_batch(frame + rest)
    assert (size, size % 8) == (len(frame), 0)
    assert size == batch.nbytes == found.nbytes
    assert plain(found) == plain(batch)
    assert found.to_rows() == batch.to_rows()
    assert joined(encode_batch(found)) == frame


def test_bodies_are_not_copied() -> None:
    batch = data(100, 5)
    header, body = encode_batch(batch)
    assert len(header) == HEADER_SIZE
    assert body is batch.body

    received = bytearray(b"junk1234" + joined(encode_batch(batch)))
    found, _ = decode_batch(memoryview(received)[8:])
    assert isinstance(found.body, memoryview)
    assert found.body.obj is received
    assert found.body.readonly  # although `received` is writable: batches are immutable


def test_void_ranges_have_no_body_and_may_be_huge() -> None:
    batch = Batch.void(STREAM, 1, 2**59, COLLECTED)
    buffers = encode_batch(batch)
    assert [len(buffer) for buffer in buffers] == [HEADER_SIZE]
    assert plain(decode_batch(buffers[0])[0]) == plain(batch)


def test_every_position_allowed_on_the_wire_fits_the_kernels() -> None:
    kernels = pytest.importorskip("surecast.columns.kernels")
    end = 2**kernels.POSITION_BITS
    encode_batch(data(2).sequenced(end - 2, 0, 0))
    with pytest.raises(UsageError, match="count is 2: allowed is 1 to 1"):
        encode_batch(data(2).sequenced(end - 1, 0, 0))


def test_sequencing_changes_only_position_time_and_epoch() -> None:
    batch = data(10)
    before, after = (joined(encode_batch(b)) for b in (batch, batch.sequenced(9, 123, 4)))
    differing = {i for i, (x, y) in enumerate(zip(before, after, strict=True)) if x != y}
    assert differing <= {*range(72, 96), *range(124, 128)}


def test_a_synthetic_batch_cannot_be_encoded() -> None:
    with pytest.raises(UsageError, match="synthetic"):
        encode_batch(Batch.synthetic(STREAM, 10, 1000))


def test_the_encoder_refuses_batches_that_a_peer_would_refuse() -> None:
    small_limits = Limits(frame_bytes_max=5000, control_bytes_max=400, batch_rows_max=50)
    encode_batch(data(50), small_limits)
    with pytest.raises(UsageError, match=r"51 rows, the limit is 50 \(limits.batch_rows_max\)"):
        encode_batch(data(51), small_limits)
    with pytest.raises(UsageError, match=r"the limit is 4,472 \(limits.frame_bytes_max less"):
        encode_batch(Batch.of(STREAM, [bytes(4400)]), small_limits)
    with pytest.raises(UsageError, match="out of range"):
        encode_batch(Batch.of(STREAM, [b""], pub_no=-1))
    with pytest.raises(UsageError, match="type 9 is not a type of batch"):
        encode_batch(Batch.of(STREAM, [b""], kind=9))


def test_validate_false_still_checks_the_crc() -> None:
    frame = bytearray(joined(encode_batch(data(3, 1))))
    frame[-1] ^= 1
    for validate in (True, False):
        with pytest.raises(PeerError, match="body CRC"):
            decode_batch(frame, validate=validate)


# ---------------------------------------------------------------- control messages


@given(messages, st.binary(max_size=20))
def test_a_message_survives_a_round_trip(message: Message, rest: bytes) -> None:
    frame = joined(CODEC.encode(message))
    assert frame_size(frame + rest) == len(frame)
    found, size = CODEC.decode(frame + rest)
    assert (size, size % 8) == (len(frame), 0)
    assert plain(found) == plain(message)


@pytest.mark.slow
@given(st.lists(messages, max_size=4), st.integers(1, 300))
def test_a_stream_of_frames_is_cut_at_frame_size(sent: list[Message], step: int) -> None:
    stream = b"".join(joined(CODEC.encode(message)) for message in sent)
    held, found = b"", []
    for at in range(0, len(stream), step):
        held += stream[at : at + step]
        while (size := frame_size(held)) is not None and size <= len(held):
            message, consumed = CODEC.decode(held)
            assert consumed == size
            found.append(message)
            held = held[size:]
    assert held == b""
    assert [plain(m) for m in found] == [plain(m) for m in sent]


def test_attached_bodies_are_not_copied_and_stay_aligned() -> None:
    one, two = data(4, 1), data(5, 5)
    message = Bundle("x", None, (one, Batch.void(STREAM, 9, 12, COLLECTED), two))
    buffers = CODEC.encode(message)
    assert [id(b) for b in buffers if b is one.body or b is two.body] == [
        id(one.body),
        id(two.body),
    ]
    frame = joined(buffers)
    found, _ = CODEC.decode(frame)
    for batch in found.batches:
        assert bytes(batch.body) in frame
        assert frame.index(bytes(batch.body)) % 8 == 0
    assert found.batches[0].body.obj is frame


def test_a_batch_mentioned_twice_is_sent_twice() -> None:
    batch = data(2, 1)
    found, _ = CODEC.decode(joined(CODEC.encode(Bundle("x", batch, (batch, batch)))))
    assert [plain(b) for b in (found.first, *found.batches)] == [plain(batch)] * 3


def test_a_codec_can_be_used_after_a_failure() -> None:
    good, bad = Bundle("x", data(), ()), Bundle("x", data(), (data(),), extra=object())  # type: ignore[arg-type]
    frame = joined(CODEC.encode(good))
    with pytest.raises(UsageError, match="object cannot be sent in a message"):
        CODEC.encode(bad)
    assert joined(CODEC.encode(good)) == frame
    broken = bytearray(frame)
    broken[-1] ^= 1
    with pytest.raises(PeerError):
        CODEC.decode(broken)
    assert plain(CODEC.decode(frame)[0]) == plain(good)
    assert CODEC._attached == []  # an idle codec keeps no buffer alive


def test_the_encoder_refuses_messages_beyond_the_limits() -> None:
    limits = Limits(frame_bytes_max=5000, control_bytes_max=400, attachments_max=2)
    codec = Codec([Bundle], limits)
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    for message, part in [
        (Beat(1), "Beat is not a message type of this connection"),
        (Bundle("x" * 400, None, ()), r"the limit is 400 \(limits.control_bytes_max\)"),
        (Bundle("x", None, (data(),) * 3), r"3 attachments, the limit is 2 \(limits.attachments"),
        (Bundle("x", None, (data(110),) * 2), r"5,000 \(limits.frame_bytes_max\); send fewer"),
        (Bundle("x", None, (), extra=2**64), "cannot encode Bundle"),
        (Bundle("x", Batch.synthetic(STREAM, 1, 200), ()), "synthetic"),
        (Bundle("x", None, (), extra=nested), "cannot encode Bundle"),
    ]:
        with pytest.raises(UsageError, match=part):
            codec.encode(message)


def test_the_largest_accepted_batch_fits_the_fullest_message() -> None:
    limits = Limits(frame_bytes_max=5007, control_bytes_max=401)  # both need rounding
    codec = Codec([Bundle], limits)
    largest = max(
        (Batch.of(STREAM, [bytes(size)]) for size in range(4000, 4300)),
        key=lambda batch: (batch.nbytes <= limits.batch_bytes_max, batch.nbytes),
    )
    assert limits.batch_bytes_max - 8 < largest.nbytes <= limits.batch_bytes_max
    overhead = (
        len(msgspec.msgpack.encode(Bundle("x" * 350, None, ()))) - 350 + 5
    )  # nil becomes a reference
    fullest = Bundle("x" * (401 - overhead), largest, ())
    assert plain(codec.decode(joined(codec.encode(fullest)))[0]) == plain(fullest)


# ---------------------------------------------------------------- enclosed messages


def test_attachments_of_enclosed_messages_are_sent_in_order_of_mention() -> None:
    one, two, three, four = (data(2, lo) for lo in (1, 10, 20, 30))
    inner = Enclosed(Bundle("a", one, (two,)))
    message = Envelope(inner, (Enclosed(Beat(1)), Enclosed(Bundle("b", None, (three,)))), four)
    buffers = CODEC.encode(message)
    bodies = [b for b in buffers if any(b is batch.body for batch in (one, two, three, four))]
    assert [id(b) for b in bodies] == [id(batch.body) for batch in (one, two, three, four)]
    frame = joined(buffers)
    found, _ = CODEC.decode(frame)
    assert plain(found) == plain(message)
    assert found.first.message.first.body.obj is frame  # not copied


def test_enclosed_messages_are_equal_if_their_messages_are() -> None:
    assert Enclosed(Beat(1)) == Enclosed(Beat(1))
    assert Enclosed(Beat(1)) != Enclosed(Beat(2))
    assert Enclosed(Beat(1)) != Beat(1)
    assert repr(Enclosed(Beat(1))) == "Enclosed(Beat(epoch=1))"
    with pytest.raises(TypeError):
        hash(Enclosed(Beat(1)))


def test_an_enclosed_message_cannot_enclose_another() -> None:
    deep = Envelope(Enclosed(Envelope(Enclosed(Beat(1)))))
    with pytest.raises(
        UsageError, match=r"cannot encode Envelope: an enclosed .* encloses another"
    ):
        CODEC.encode(deep)
    CODEC.encode(Envelope(Enclosed(Envelope(None))))
    assert CODEC._attached == []


def test_only_messages_of_the_codec_can_be_enclosed() -> None:
    codec = Codec([Beat, Envelope])
    wrong: Any = ["Bundle", 1]
    for inside, part in [
        (Bundle("x", None, ()), "Bundle is not a message type"),
        (Place("east", b""), "Place is not a message type"),
        (wrong, "list is not a message type"),
    ]:
        with pytest.raises(UsageError, match=part):
            codec.encode(Envelope(Enclosed(inside)))  # type: ignore[arg-type]


def test_limits_include_enclosed_messages() -> None:
    limits = Limits(frame_bytes_max=5000, control_bytes_max=400, attachments_max=2)
    codec = Codec([Bundle, Envelope], limits)
    long, full = Enclosed(Bundle("x" * 300, None, ())), Enclosed(Bundle("x", data(), (data(),)))
    codec.encode(Envelope(long))
    codec.encode(Envelope(full))
    with pytest.raises(UsageError, match=r"\(limits.control_bytes_max\)"):
        codec.encode(Envelope(long, (long,)))
    with pytest.raises(UsageError, match="4 attachments, the limit is 2"):
        codec.encode(Envelope(full, (full,)))


@pytest.mark.parametrize(
    "declared",
    [Any, object, list, dict[str, Any], tuple[Any, ...], Any | None, Message, msgspec.Raw],
    ids=str,
)
def test_a_message_field_of_an_open_type_is_refused(declared: Any) -> None:
    """A message in a field of type Any would arrive as a list."""
    vague = msgspec.defstruct("Vague", [("ok", int), ("inside", declared)], bases=(Message,))
    with pytest.raises(ConfigError, match=r"Vague.inside may hold anything.*declare .* Enclosed"):
        Codec([vague])  # type: ignore[list-item]


def test_a_nested_field_of_an_open_type_is_refused() -> None:
    part = msgspec.defstruct("Part", [("inside", Any)])
    vague = msgspec.defstruct("Vague", [("parts", tuple[part, ...])], bases=(Message,))  # type: ignore[valid-type]
    with pytest.raises(ConfigError, match=r"Vague.parts may hold anything"):
        Codec([vague])  # type: ignore[list-item]


def test_invalid_lists_of_message_types_are_refused() -> None:
    class Vague(Message):
        one: Batch | bytes  # both look like bytes to msgspec

    namesake = msgspec.defstruct("Beat", [("other", str)], bases=(Message,))
    with pytest.raises(ConfigError, match=r"two message types have the tag 'Beat'.*and.*Beat"):
        Codec([Beat, namesake])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="is not a Message type"):
        Codec([Place])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="at least one"):
        Codec([])
    with pytest.raises(ConfigError, match="Batch"):
        Codec([Vague])
    Codec([Beat, Beat])  # the same type twice is one type


# ---------------------------------------------------------------- frame_size


def test_frame_size_waits_for_the_header_and_refuses_early() -> None:
    frame = joined(encode_batch(data(3, 1)))
    for length in range(HEADER_SIZE):
        assert frame_size(frame[:length]) is None
    for length in (HEADER_SIZE, len(frame), len(frame)):
        assert frame_size(frame[:length]) == len(frame)
    with pytest.raises(PeerError, match="not a frame: starts with b'G'"):
        frame_size(b"G")
    with pytest.raises(PeerError, match="frame version 2 is unknown; this node reads 1"):
        frame_size(MAGIC + b"\x02")


def test_frame_size_checks_the_limits() -> None:
    batch = Batch.of(STREAM, [bytes(10_000)])
    tight = Limits(frame_bytes_max=10_100, control_bytes_max=64)
    with pytest.raises(PeerError, match=r"10,\d\d\d bytes, the limit is 10,100 \(limits.frame_by"):
        frame_size(joined(encode_batch(batch)), tight)
    assert frame_size(joined(encode_batch(batch)), DEFAULT_LIMITS) == batch.nbytes
    alone = Limits(frame_bytes_max=10_400, control_bytes_max=512)  # fits, but not into a message
    assert alone.batch_bytes_max < batch.nbytes < alone.frame_bytes_max
    with pytest.raises(PeerError, match=r"less limits.control_bytes_max"):
        frame_size(joined(encode_batch(batch)), alone)


def test_importing_the_wire_loads_neither_numba_nor_pyarrow() -> None:
    script = (
        "import sys, surecast.core.wire as w; from surecast.columns.batch import Batch;"
        "b, n = w.decode_batch(w.encode_batch(Batch.void(bytes(16), 1, 9, 1))[0]);"
        "sys.exit(any(m in sys.modules for m in ('numba', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_positions_end_at_seq_end_max() -> None:
    last = Batch.of(STREAM, [b"x", b"y"]).sequenced(SEQ_END_MAX - 2, 1, 1)
    assert decode_batch(joined(encode_batch(last)))[0].hi == SEQ_END_MAX
    beyond = Batch.of(STREAM, [b"x", b"y"]).sequenced(SEQ_END_MAX - 1, 1, 1)
    with pytest.raises(UsageError, match="count is 2"):
        encode_batch(beyond)


class Question(msgspec.Struct, frozen=True):
    number: int = 0
    text: str = ""
    counts: dict[bytes, int] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize(
    "part",
    [
        Question(10**24),
        Question(-(1 << 63) - 1),
        Question(1.5),  # type: ignore[arg-type]
        Question("7"),  # type: ignore[arg-type]
        Question(text="\ud800"),
        Question(text=b"bytes"),  # type: ignore[arg-type]
        Question(text="x" * DEFAULT_LIMITS.control_bytes_max),
        Question(counts={b"a": 10**24}),
        Question(counts={b"a": object()}),  # type: ignore[dict-item]
    ],
    ids=lambda part: f"{part!r:.40}",
)
def test_a_value_that_no_message_can_carry_is_refused(part: Question) -> None:
    with pytest.raises(UsageError, match="Question cannot be sent"):
        CODEC.check(part)
    CODEC.check(Question(1 << 62, "text", {b"a": 1}))  # and the codec still works


def test_a_batch_that_cannot_be_encoded_is_refused_in_advance() -> None:
    fits = Batch.of(STREAM, [b"x"])
    check_batch(fits)
    large = Batch.of(STREAM, [bytes(DEFAULT_LIMITS.batch_bytes_max)])
    with pytest.raises(UsageError, match="cannot be published"):
        check_batch(large)
    with pytest.raises(UsageError, match="batch_rows_max"):
        check_batch(Batch.of(STREAM, [b"x", b"y"]), Limits(batch_rows_max=1))
