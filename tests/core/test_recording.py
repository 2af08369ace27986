"""Recordings as bytes: a round trip, damage is detected, only types of the given table occur."""

import struct
from typing import Any
from zlib import crc32

import pytest

from surecast.columns.retention import KeepAll, KeepLast
from surecast.core import record
from surecast.core.canon import canonical, name_of
from surecast.core.endpoint import Follow, Offer, Open
from surecast.core.record import Closed, Ends, Kept, Saved, Step, Writer
from surecast.core.recording import Recording
from surecast.core.replicated import AppendAt, Refound, Submit
from surecast.core.streams import StreamSpec
from surecast.core.types import (
    Append,
    Batch,
    ClockSet,
    Compact,
    Compacted,
    Congested,
    Emit,
    Enclosed,
    Input,
    Message,
    PeerDown,
    PeerUp,
    Received,
    SaveState,
    Send,
    SetTimer,
    Start,
    Stored,
    StoreFailed,
    TimerFired,
    Writable,
)
from surecast.core.wire import Codec
from surecast.errors import PeerError, UsageError
from surecast.protocols.chain.messages import Ack, Beat, Forward
from surecast.registry import recorded_types

LOG = bytes(range(16))


class Cover(Message):
    inside: Enclosed | None
    rest: tuple[Enclosed, ...] = ()


class Notice(Input):
    inside: Enclosed | None
    rest: tuple[Enclosed, ...]
    anything: Any = None


CODEC = Codec([Ack, Beat, Forward, Cover])
TYPES = {**recorded_types(), name_of(Cover): Cover, name_of(Notice): Notice}


def batch(lo: int, rows: int = 2) -> Batch:
    return Batch.of(LOG, [b"v%d" % i for i in range(rows)], [b"k"] * rows).sequenced(lo, 5, 1)


def writer() -> Writer:
    made = Writer(CODEC)
    made.opening("east/0", "some-machine", {"role": "replica", "n": [1, 2]}, 7, 3)
    return made


INPUTS: list[Any] = [
    Start(1_000, 3),
    ClockSet(2_000),
    PeerUp("a"),
    PeerDown("a"),
    Congested("a"),
    Writable("a"),
    Received("a", Beat(4)),
    Received("b", Forward(1, LOG, (batch(1), batch(3)), 1)),
    TimerFired("beat"),
    TimerFired((1, ("retry", LOG, (None, True, 1.5)))),
    Offer(LOG, [b"x", b"y"], [b"k", None]),
    Open("s", StreamSpec(KeepLast(3))),
    Open("s", StreamSpec(KeepAll())),
    Follow(LOG, 1),
    Submit(LOG, batch(1), ("a", LOG)),
    AppendAt(LOG, (batch(1), batch(3))),
    Refound(),
    Received("b", Cover(Enclosed(Forward(1, LOG, (batch(1),), 1)), (Enclosed(Beat(2)),))),
    Notice(None, ()),
    Notice(
        Enclosed(Forward(1, LOG, (batch(1), batch(3)), 1)),
        (Enclosed(Beat(1)), Enclosed(Forward(1, LOG, (batch(5),), 1))),
        ("x", [Enclosed(Forward(1, LOG, (batch(7),), 1)), Enclosed(Ack(1, LOG, 2))], batch(9)),
    ),
]


def test_every_input_survives_a_round_trip() -> None:
    made = writer()
    for number, inp in enumerate(INPUTS):
        made.step(number, inp, [SetTimer("t", number)] if number % 2 else [])
    recording = Recording(made.take(), TYPES)
    assert recording.header.node == "east/0"
    assert recording.header.args == {"role": "replica", "n": [1, 2]}
    assert (recording.header.seed, recording.header.incarnation) == ("7", 3)
    steps = [item for item in recording.items() if isinstance(item, Step)]
    assert len(steps) == len(INPUTS)
    for number, (step, inp) in enumerate(zip(steps, INPUTS, strict=True)):
        assert (step.number, step.now_ns, type(step.inp)) == (number + 1, number, type(inp))
        assert canonical([Emit(step.inp)]) == canonical([Emit(inp)])
        assert step.labels == (["SetTimer"] if number % 2 else [])
        assert bool(step.digest) == bool(number % 2)


def test_answers_of_the_disk_refer_to_their_effect() -> None:
    made = writer()
    same = ("t", 1)
    effects = [
        Append(LOG, (batch(1),), (0, "append")),
        SaveState("s", b"d", same),
        SaveState("s", b"e", same),
        Compact(LOG, 1, 4, (b"\x00",) * 3, 50, ("c", Refound())),
    ]
    made.step(0, Start(0, 1), effects[:2])
    made.step(1, TimerFired("x"), effects[2:])
    made.step(2, Compacted(effects[3].token), [])
    made.step(3, Stored(effects[1].token), [])
    made.step(4, StoreFailed(effects[2].token, "full"), [])
    made.step(5, Stored(effects[0].token), [])
    with pytest.raises(UsageError):
        made.step(6, Stored(("never", "asked")), [])
    found = [item.inp for item in Recording(made.take(), TYPES).items() if isinstance(item, Step)][
        2:
    ]
    assert found == [Compacted(4), Stored(2), StoreFailed(3, "full"), Stored(1)]


def test_the_recorded_contents_of_the_disk_are_read_back() -> None:
    made = writer()
    made.saved("chain", b"data")
    made.saved("gone", None)
    made.ends(LOG, 1, 0)
    made.kept(LOG, batch(1))
    made.closed()
    found = list(Recording(made.take(), TYPES).items())
    assert found[:3] == [Saved("chain", b"data"), Saved("gone", None), Ends(LOG, 1, 0)]
    assert isinstance(found[3], Kept)
    assert found[3].log == LOG
    assert found[3].batch.rows == 2
    assert found[4:] == [Closed(0)]


def small() -> bytes:
    made = writer()
    made.kept(LOG, batch(1))
    made.step(0, Start(0, 3), [Send("a", Beat(1))])
    made.step(1, Received("a", Forward(1, LOG, (batch(3),), 1)), [])
    made.step(2, TimerFired(("k", LOG)), [SetTimer("k", 3)])
    made.closed()
    return made.take()


def test_an_incomplete_last_record_is_left_out() -> None:
    whole = small()
    items = list(Recording(whole, TYPES).items())
    counts = set()
    for length in range(len(whole)):
        try:
            recording = Recording(whole[:length], TYPES)
        except PeerError:
            continue  # the header is incomplete
        found = list(recording.items())
        assert [type(item) for item in found] == [type(item) for item in items[: len(found)]]
        assert (recording.torn == 0) == (length in boundaries(whole))
        counts.add(len(found))
    assert counts == set(range(len(items)))


def boundaries(data: bytes) -> list[int]:
    """The offsets where records end."""
    at, found = 8, []
    while at < len(data):
        _, meta, tail, *_ = record.HEAD.unpack_from(data, at)
        at += record.HEAD_SIZE + meta + -meta % 8 + tail
        found.append(at)
    return found


def test_any_changed_byte_is_detected() -> None:
    whole = small()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x41
        with pytest.raises(PeerError):
            list(Recording(bytes(damaged), TYPES).items())


def forged(kind: int, meta: bytes, **lengths: int) -> bytes:
    """A recording whose second record is built by hand, with correct CRCs."""
    opening = writer().take()
    meta_len, tail_len = lengths.get("meta_len", len(meta)), lengths.get("tail_len", 0)
    head = record.HEAD.pack(kind, meta_len, tail_len, lengths.get("number", 1), crc32(meta))
    return opening + head + struct.pack("<I", crc32(head)) + meta + bytes(-len(meta) % 8)


def enclosing(data: bytes) -> bytes:
    """A recording of one Notice, whose first field encloses `data` in place of a message."""
    made = writer()
    made.step(0, Notice(None, ()), [])
    introduced = made.take()
    (*_, start, _) = boundaries(introduced)
    ext = b"\xc9" + struct.pack(">IB", len(data), record.ENCLOSED) + data
    meta = b"\x95\x00\x00\x93" + ext + b"\x90\xc0\xc4\x00\x90"
    head = record.HEAD.pack(record.STEP, len(meta), 0, 2, crc32(meta))
    whole = head + struct.pack("<I", crc32(head)) + meta + bytes(-len(meta) % 8)
    return introduced[:start] + whole


def test_the_forged_recording_is_otherwise_valid() -> None:
    (step,) = Recording(enclosing(b"\x81\xa1s\x92\xaachain/Beat\x01"), TYPES).items()
    assert isinstance(step, Step)
    assert step.inp == Notice(Enclosed(Beat(1)), ())


@pytest.mark.parametrize(
    "data",
    [
        forged(99, b"\xc0"),
        forged(record.HEADER, b"\xc0"),
        forged(record.STEP, b"\xc0"),
        forged(record.STEP, b"\x95\x00\x00\x90\xc4\x00\x90"),  # a type that was not introduced
        forged(record.STEP, b"\x95\x00\xff\x90\xc4\x00\x90"),  # ... by a negative number
        forged(record.STEP, b"\xdd\xff\xff\xff\xff"),
        forged(record.TYPE, b"\x92\xa4os:x\x90"),
        forged(record.TYPE, b"\x92\xa5Start\x90"),  # other fields than ours
        enclosing(b""),
        enclosing(b"\xc0"),
        enclosing(b"\x81\xa1s\x92\xa9Committed\x90"),
        enclosing(b"\x81\xa1s\x94\xa5Start\x01\x02"),  # not a message
        enclosing(b"\xc9\xff\xff\xff\xff\x02"),
        enclosing(b"\x91" * 100_000),
        forged(record.CLOSED, b"\x01", meta_len=record.RECORD_BYTES_MAX + 1),
        forged(record.CLOSED, b"\x01", tail_len=0xFFFFFFFF),
        forged(record.CLOSED, b"\x01", number=2),
        b"",
        b"PAR1" + bytes(20),
        record.MAGIC,
        record.MAGIC + bytes([record.VERSION]) + bytes(3),
    ],
)
def test_hostile_recordings_are_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        list(Recording(data, TYPES).items())


def test_an_unknown_version_is_refused_by_number() -> None:
    data = bytearray(small())
    data[4] = 9
    with pytest.raises(PeerError, match=r"version 9 .* this program reads 2"):
        Recording(bytes(data), TYPES)


class Foreign(Input):
    number: int


def test_only_types_of_the_table_are_instantiated() -> None:
    made = writer()
    made.step(0, Foreign(1), [])
    data = made.take()
    with pytest.raises(PeerError, match=f"no type '{Foreign.__module__}:Foreign'"):
        list(Recording(data, TYPES).items())
    (step,) = Recording(data, {**TYPES, name_of(Foreign): Foreign}).items()
    assert isinstance(step, Step)
    assert step.inp == Foreign(1)


class Grown(Input):
    number: int
    since: str = "before"


class Changed(Input):
    number: int
    since: str


class Renamed(Input):
    count: int
    since: str = "before"


def test_fields_may_have_been_added_since_if_they_have_defaults() -> None:
    """Inputs, and structs inside a field that holds anything."""
    made = writer()
    made.step(0, Foreign(1), [])
    made.step(0, Notice(None, (), (Foreign(2),)), [])
    data = made.take()

    def read(kind: type[Input]) -> list[Any]:
        steps = Recording(data, {**TYPES, name_of(Foreign): kind}).items()
        return [step.inp for step in steps if isinstance(step, Step)]

    assert read(Foreign) == [Foreign(1), Notice(None, (), (Foreign(2),))]
    assert read(Grown) == [Grown(1, "before"), Notice(None, (), (Grown(2, "before"),))]
    for kind in (Changed, Renamed):
        with pytest.raises(
            PeerError, match=r"has the fields .*; it was recorded with \['number'\]"
        ):
            read(kind)
    made = writer()
    made.step(0, Grown(1, "now"), [])
    with pytest.raises(PeerError, match="it was recorded with"):  # by a later version
        list(Recording(made.take(), {**TYPES, name_of(Grown): Foreign}).items())


def test_messages_of_the_header_must_be_messages_of_the_table() -> None:
    data = writer().take()
    without = {name: kind for name, kind in TYPES.items() if name != "chain/Forward"}
    with pytest.raises(PeerError, match="no type 'chain/Forward'"):
        Recording(data, without)
    with pytest.raises(PeerError, match="'chain/Forward' is not a type of message"):
        Recording(data, {**TYPES, "chain/Forward": Start})
