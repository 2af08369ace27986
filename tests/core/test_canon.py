"""Effects as bytes: equal effects have equal bytes in every process, different ones do not."""

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from surecast.core import endpoint
from surecast.core.canon import canonical, digest, labels, name_of, plain, unplain
from surecast.core.replicated import Committed, CompactLog, Submit, Truncated
from surecast.core.types import (
    Append,
    Batch,
    CancelTimer,
    Close,
    Compact,
    Deliver,
    Emit,
    Enclosed,
    Input,
    Message,
    PassDown,
    SaveState,
    Send,
    SetTimer,
    Truncate,
)
from surecast.errors import PeerError, UsageError
from surecast.protocols.chain.messages import Ack, Beat, Forward, Member, TailToken, Watch
from surecast.protocols.sprinkler.messages import Advertise
from surecast.protocols.streams.directory import DirectoryEntry
from surecast.protocols.streams.messages import ReadRange

A, B = bytes(range(16)), bytes(16)


def batch(value: bytes = b"v", lo: int = 1, **header: Any) -> Batch:
    made = Batch.of(A, [value, b"w"], [b"k", None], **header)
    return made.sequenced(lo, header.get("time_ns", 5), 1)


class Holder(msgspec.Struct):
    inside: Any


class Twin(msgspec.Struct):
    inside: Any


class Cover(Message):
    inside: Enclosed | None = None
    rest: tuple[Enclosed, ...] = ()


# Each line differs from the others.
DIFFERENT: list[list[Any]] = [
    [],
    [Close("a")],
    [Close("b")],
    [Close("a"), Close("b")],
    [Close("b"), Close("a")],
    [SetTimer("k", 1)],
    [SetTimer("k", 2)],
    [SetTimer("k", 1 << 70)],
    [SetTimer("l", 1)],
    [SetTimer(b"k", 1)],
    [SetTimer(("k",), 1)],
    [SetTimer((0, ("k", b"")), 1)],
    [SetTimer((0, ("k", "")), 1)],
    [SetTimer((False, ("k", "")), 1)],
    [SetTimer((0.0, ("k", "")), 1)],
    [SetTimer((0, (("k",), "")), 1)],
    [SetTimer(None, 1)],
    [SetTimer(Member("a", b"d"), 1)],
    [SetTimer(("a", b"d"), 1)],
    [CancelTimer("k")],
    [Send("a", Beat(1))],
    [Send("b", Beat(1))],
    [Send("a", Beat(1), reliable=False)],
    [Send("a", Beat(2))],
    [Send("a", TailToken(1))],
    [Send("a", Ack(1, A, 2))],
    [Send("a", Ack(1, B, 2))],
    [Send("a", Watch("c", Member("m", b"d")))],
    [Send("a", Watch("c", Member("m", b"e")))],
    [Send("a", Advertise("r", 1, {A: 1, B: 2}, (), True))],
    [Send("a", Advertise("r", 1, {B: 2, A: 1}, (), True))],
    [Send("a", Advertise("r", 1, {A: 1, B: 3}, (), True))],
    [Send("a", Forward(1, A, (batch(),), 1))],
    [Send("a", Forward(1, A, (batch(b"u"),), 1))],
    [Send("a", Forward(1, A, (batch(lo=2),), 1))],
    [Send("a", Forward(1, A, (batch(time_ns=6),), 1))],
    [Send("a", Forward(1, A, (batch(pub_no=7),), 1))],
    [Send("a", Forward(1, A, (batch(publisher=A),), 1))],
    [Send("a", Forward(1, A, (batch(), batch(lo=3)), 1))],
    [Append(A, (batch(),), "t")],
    [Append(B, (batch(),), "t")],
    [Append(A, (batch(),), "u")],
    [Append(A, (Batch.void(A, 1, 3, 1),), "t")],
    [Append(A, (Batch.void(A, 1, 3, 2),), "t")],
    [Append(A, (Batch.void(A, 1, 3, 3),), "t")],
    [Compact(A, 1, 4, (b"\x00", b"\x00", b"\x00"), 50, "t")],
    [Compact(A, 1, 4, (b"\x01", b"\x00", b"\x00"), 50, "t")],
    [Compact(A, 1, 4, (b"\x00", b"\x00", b"\x01"), 50, "t")],
    [Compact(A, 1, 4, (b"\x00", b"\x00", b"\x00"), 51, "t")],
    [Deliver(A, (batch(),))],
    [Truncate(A, 3)],
    [Truncate(A, 4)],
    [SaveState("n", b"d", "t")],
    [SaveState("n", b"d", ("t", CompactLog(A, 1, 4, (b"",), 9), 1))],
    [SaveState("n", b"d", ("t", CompactLog(A, 1, 5, (b"",), 9), 1))],
    [SaveState("n", b"e", "t")],
    [SaveState("m", b"d", "t")],
    [Emit("n")],
    [Emit(Committed(A, 3))],
    [Emit(Truncated(A, 3))],
    [Emit((A, 3))],
    [Emit([A, 3])],
    [Emit({A: 3})],
    [Emit(Holder((1, 2)))],
    [Emit(Holder([1, 2]))],
    [Emit(Twin((1, 2)))],
    [Emit(Holder(Holder(1)))],
    [Emit(Holder(Twin(1)))],
    [Send("a", Cover(Enclosed(Beat(1))))],
    [Send("a", Cover(Enclosed(Beat(2))))],
    [Send("a", Cover(Enclosed(TailToken(1))))],
    [Send("a", Cover(None, (Enclosed(Beat(1)),)))],
    [Send("a", Cover(Enclosed(Forward(1, A, (batch(),), 1))))],
    [Send("a", Cover(Enclosed(Forward(1, A, (batch(lo=2),), 1))))],
    [Emit(Beat(1))],
    [Emit(Enclosed(Beat(1)))],
    [Emit(Holder(Enclosed(Beat(1))))],
    [Emit(Holder(Enclosed(TailToken(1))))],
    [Emit(Holder((Enclosed(Beat(1)), 2)))],
    [PassDown("n")],
    [PassDown(Submit(A, batch(), (1, 2)))],
    [PassDown(Submit(A, batch(), (1, 3)))],
]


def test_different_effects_have_different_encodings() -> None:
    seen: dict[bytes, list[Any]] = {}
    for effects in DIFFERENT:
        code = canonical(effects)
        assert code not in seen, (effects, seen[code])
        seen[code] = effects
    assert len({digest(effects) for effects in DIFFERENT}) == len(DIFFERENT)


def test_equal_effects_created_twice_have_equal_encodings() -> None:
    def make() -> list[Any]:
        return [Send("a", Forward(1, bytes(range(16)), (batch(b"x"),), 1)), SetTimer(("k", 1), 7)]

    assert canonical(make()) == canonical(make())


PROGRAM = """
from surecast.core.canon import digest
from surecast.core.types import Emit, Send, SetTimer
from surecast.core.replicated import Committed
from surecast.protocols.sprinkler.messages import Advertise
ends = {name.encode(): 1 for name in ("north", "south", "east", "west")}
print(digest([Send("a", Advertise("r", 1, ends, (), True)), Emit(Committed(b"x", 1)),
              Emit({"north": 1, "south": 2}), SetTimer(("tick", b"log"), 99)]).hex())
"""


def test_a_digest_does_not_depend_on_the_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 16


class HasSet(Message):
    names: set[str]


@pytest.mark.parametrize(
    "effect",
    [
        Emit({1, 2}),
        Emit(("x", frozenset([1]))),
        SetTimer(frozenset([1]), 1),
        Send("a", HasSet({"x"})),
        Emit(Holder({1})),
        Emit(object()),
        Deliver(A, (Batch.synthetic(A, 3, 400),)),
    ],
)
def test_values_without_a_unique_encoding_are_refused(effect: Any) -> None:
    with pytest.raises(UsageError):
        canonical([effect])


def test_labels_name_the_effect_and_its_content() -> None:
    effects = [Send("a", Beat(1)), Emit(Committed(A, 1)), SetTimer("k", 1), Emit("x")]
    assert labels(effects) == ["Send.chain/Beat", "Emit.Committed", "SetTimer", "Emit.str"]


class Notice(Input):
    what: Any


def test_names_of_types_do_not_contain_their_file() -> None:
    from surecast.columns.rules import KeepLast

    names = {Forward: "chain/Forward", Member: "chain/Member", ReadRange: "streams/ReadRange"}
    names |= {endpoint.ReadRange: "ReadRange", DirectoryEntry: "streams/DirectoryEntry"}
    names |= {Committed: "Committed", Send: "Send", KeepLast: "KeepLast"}
    names |= {Notice: f"{__name__}:Notice", str: "builtins:str"}
    assert {kind: name_of(kind) for kind in names} == names


VALUES = [
    None, True, 0, -1, 1 << 63, -(1 << 90), 1.5, "s", b"b", (), [], {}, ((1,), [2, (3,)]),
    {("a", 1): [b"x"], "i": {"l": 1}}, Committed(A, 3), [Notice((1, Committed(A, 2)))],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_value_survives_a_round_trip(value: Any) -> None:
    known = {name_of(cls): cls for cls in (Notice, Committed)}
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(plain(value)))
    again = unplain(packed, known.__getitem__)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "value",
    [{}, {"x": 1}, {"i": "12x"}, {"i": "9" * 5000}, {"l": 3}, {"d": [[1]]}, {"s": []}, {"s": [3]},
     {"s": ["t"]}, {"s": ["t", 1, 2, 3]}],
)  # fmt: skip
def test_malformed_values_raise_peer_error(value: Any) -> None:
    with pytest.raises(PeerError):
        unplain(value, lambda name: Notice)
