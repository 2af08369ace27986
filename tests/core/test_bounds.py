"""Bounds of messages from peers and of readers: at each limit and one step beyond."""

from random import Random

import pytest
from tests.edits import Check, Edit, Row, each_check, must_fail

from surecast.columns.batch import Batch
from surecast.core import fragments, wire
from surecast.core.endpoint import Follow, Place
from surecast.core.fragments import Parts, parts_of
from surecast.core.machine import NodeContext
from surecast.core.types import Start
from surecast.core.wire import SEQ_END_MAX, decode_batch, encode_batch
from surecast.errors import PeerError, UsageError
from surecast.registry import delivery
from surecast.storage.memory import MemoryDisk

LOG = bytes(range(16))


# ---------------------------------------------------------------- states sent in parts


def reassembled(data: bytes, total: int) -> bytes | None:
    parts = Parts()
    return [parts.take(at, part, total) for at, part in parts_of(data)][-1]


def size_of_a_state() -> None:
    """A state of TOTAL_MAX bytes is reassembled; of a larger one nothing is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragments, "PART_BYTES", 8)
        patch.setattr(fragments, "TOTAL_MAX", 24)
        data = Random(1).randbytes(24)
        assert reassembled(data, 24) == data
        parts = Parts()
        for at, part in parts_of(data + b"x"):
            assert parts.take(at, part, 25) is None
            assert not parts._got


def empty_part_of_a_state() -> None:
    """A part without bytes makes no progress: the parts before it are dropped."""
    parts = Parts()
    assert parts.take(0, b"abc", 6) is None
    assert parts.take(3, b"", 6) is None
    assert parts.take(3, b"def", 6) is None
    assert reassembled(b"", 0) == b""  # a state may be empty


# ---------------------------------------------------------------- positions in frames


def frame(lo: int) -> bytes:
    return b"".join(
        encode_batch(Batch.of(LOG, [b"v"], publisher=LOG, pub_no=1).sequenced(lo, 1, 1))
    )


def highest_position_sent() -> None:
    batch, _ = decode_batch(memoryview(frame(SEQ_END_MAX - 1)))
    assert batch.hi == SEQ_END_MAX
    with pytest.raises(UsageError, match="cannot encode"):
        frame(SEQ_END_MAX)


def highest_position_received() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "SEQ_END_MAX", 2 * SEQ_END_MAX)  # a peer with a higher bound
        forged = frame(SEQ_END_MAX)
    with pytest.raises(PeerError):
        decode_batch(memoryview(forged))


# ---------------------------------------------------------------- readers


def streams_of_a_reader() -> None:
    """`Place.streams_max` for a reader in the mesh."""
    ctx = NodeContext("client", Random(1), MemoryDisk(), 1)
    place = Place("east", ("east/0",), mesh=True, streams_max=2)
    reader = delivery("broadcast").reader(ctx, place)
    assert reader is not None
    reader.step(0, Start(0, 1))
    sent = [len(reader.step(1, Follow(bytes([n]) * 16, 1))) for n in range(3)]
    assert sent[0] > 0
    assert sent[1] > 0
    assert sent[2] == 0


CHECKS: list[Row] = [
    (
        size_of_a_state,
        Edit("surecast.core.fragments:Parts.take", " or total > TOTAL_MAX", ""),
    ),
    (
        empty_part_of_a_state,
        Edit("surecast.core.fragments:Parts.take", "(total and not data)", "False"),
    ),
    (
        streams_of_a_reader,
        Edit(
            "surecast.protocols.sprinkler.delivery:Broadcast.reader",
            "streams_max=place.streams_max",
            "streams_max=1000",
        ),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)


@pytest.mark.parametrize("check", [highest_position_sent, highest_position_received])
def test_positions_are_bounded_by_the_bits_of_the_key_kernel(check: Check) -> None:
    check()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "SEQ_END_MAX", 2 * SEQ_END_MAX)
        with pytest.raises(pytest.fail.Exception):
            check()
