"""Bounds on what a replica stores about other regions and sends to them.

Each is tested at the bound and just above it.

x/0 is head and tail of region x; the stream s belongs to region y.
"""

from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll
from surecast.columns.schema import read_schema
from surecast.core.replicated import Appended, Committed
from surecast.core.streams import StreamInfo, StreamSpec, spec_bytes
from surecast.core.types import TYPED_BODIES, PeerUp, Received
from surecast.parts import forwarding
from surecast.protocols.sprinkler import forks, region_sync
from surecast.protocols.sprinkler.messages import (
    Advertise,
    Compare,
    Compared,
    PeerEvents,
    RegionBehind,
    RegionSubscribe,
)
from surecast.protocols.sprinkler.observe import NAMED_MAX, SprinklerObserver
from surecast.protocols.sprinkler.region_sync import DISKS_MAX
from surecast.protocols.streams.messages import PubAck, Publish
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.protocols.bench import INFO, STREAM, Bench, sent


def head(events: int = 0) -> Bench:
    bench = Bench()
    bench.role(1)
    bench.add_stream()
    for seq in range(1, events + 1):
        one = Batch.of(STREAM, [b"v"], publisher=bytes(16), pub_no=seq)
        bench.disk.append(STREAM, (one.sequenced(seq, seq, 1),))
    bench.chain_emits(Appended(STREAM, events + 1))
    bench.chain_emits(Committed(STREAM, events + 1))
    return bench


# ---------------------------------------------------------------- advertisements


def advertise(bench: Bench, streams: int, parts: int) -> None:
    """Region y advertises `streams` streams, one per message. The first `parts` messages have
    `more` set: another message of the same advertisement follows."""
    infos = [StreamInfo(bytes([n]) * 16, f"t{n}", "y", KeepAll()) for n in range(streams)]
    for number, info in enumerate(infos):
        ad = Advertise("y", 1, {info.stream_id: 9}, (info,), True, more=number < parts)
        bench.give(Received("y/0", ad))


def parts_of_an_advertisement() -> None:
    """An advertisement with too many parts is dropped. Its last parts are not accepted as a
    complete advertisement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_sync, "PARTS_MAX", 3)
        bench = head()
        advertise(bench, 4, parts=3)
        assert len(bench.sync.peers["y"].ends) == 4
        bench = head()
        advertise(bench, 7, parts=6)
        assert bench.sync.peers["y"].ends == {}
        assert bench.sync.peers["y"].heard_ns < 0
        assert bench.sync.counters["sprinkler.advertisement-too-long"] == 1
        advertise(bench, 4, parts=3)  # the next advertisement is accepted again
        assert len(bench.sync.peers["y"].ends) == 4


def bytes_of_a_part() -> None:
    """Long schemas do not make a part longer than a message may be."""
    with pytest.MonkeyPatch.context() as patch:
        bench = Bench()
        bench.role(1)
        schema = read_schema("a int64, b string").text
        size = spec_bytes(StreamSpec(schema=schema))
        patch.setattr(region_sync, "INFOS_BYTES_MAX", 2 * size)
        for number in range(7):
            info = StreamInfo(bytes([number]) * 16, f"t{number}", "x", KeepAll(), schema=schema)
            bench.list_stream(info)
        ads = [
            ad for _, ad in sent(bench.give(PeerUp("y/0", ("sprinkler", TYPED_BODIES))), Advertise)
        ]
        assert [len(ad.infos) for ad in ads] == [3, 3, 1]
        assert [ad.more for ad in ads] == [True, True, False]


def is_told_behind(bench: Bench, disk: int, life: bytes, start: int) -> bool:
    """Send an advertisement of server y/0 with this disk; returns whether the answer is
    RegionBehind. `life` identifies the start of the server, `start` is its first serial number."""
    ad = Advertise("y", 1, {}, (), True, disk=b"disk %d" % disk, life=life, start=start, serial=5)
    return bool(sent(bench.give(Received("y/0", ad)), RegionBehind))


def disks_of_a_server() -> None:
    """The serial numbers of the last DISKS_MAX disks of a server are stored. An older copy of one
    of these disks is detected."""
    bench = head()
    for disk in range(DISKS_MAX):
        assert not is_told_behind(bench, disk, b"first", 1)
    assert is_told_behind(bench, 0, b"second", 3)
    assert not is_told_behind(bench, DISKS_MAX, b"first", 1)  # disk 0, the oldest, is forgotten
    assert not is_told_behind(bench, 0, b"third", 3)
    assert is_told_behind(bench, 2, b"second", 3)


# ---------------------------------------------------------------- serving other regions


def subscribe(bench: Bench, node: str, start: int = 1) -> list[str]:
    out = bench.give(Received(node, RegionSubscribe(node.split("/")[0], 1, STREAM, start)))
    return [peer for peer, _ in sent(out, PeerEvents)]


def followers() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_sync, "FOLLOWERS_MAX", 1)
        bench = head(3)
        assert subscribe(bench, "y/0") == ["y/0"]
        assert subscribe(bench, "z/0") == []
        assert bench.sync.counters["sprinkler.subscription-refused"] == 1
        assert subscribe(bench, "y/0", 2) == ["y/0"]  # a follower may subscribe again


def first_position() -> None:
    bench = head(3)
    assert subscribe(bench, "y/0", 0) == []
    assert bench.sync.counters["sprinkler.subscription-refused"] == 1
    assert bench.sync.serving.followers == {}
    assert subscribe(bench, "y/0", 1) == ["y/0"]


def compared_positions() -> None:
    """The answer covers SEQS_MAX of the requested positions, and the newest event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks, "SEQS_MAX", 3)
        bench = head(9)
        for asked, answered in (((1, 2, 3), [1, 2, 3, 9]), ((1, 2, 3, 4), [1, 2, 3, 9])):
            out = bench.give(Received("y/0", Compare(1, {STREAM: asked})))
            ((_, answer),) = sent(out, Compared)
            assert [mark.seq for mark in answer.marks[STREAM]] == answered


# ---------------------------------------------------------------- publishing to other regions


def publishers() -> None:
    """The owner's acks for a forgotten publisher are dropped until that publisher sends again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forwarding, "PUBLISHERS_MAX", 2)
        bench = head()
        bench.give(Received("y/0", Advertise("y", 1, {STREAM: 1}, (INFO,), True, "y/0")))
        names = [bytes(8) + b"name %03d" % number for number in range(3)]

        def publish(number: int) -> list[str]:
            batch = Batch.of(STREAM, [b"v"], publisher=names[number], pub_no=1)
            out = bench.give(Received(f"client {number}", Publish(STREAM, batch)))
            return [peer for peer, _ in sent(out, Publish)]

        def acked(number: int) -> list[str]:
            out = bench.give(Received("y/0", PubAck(STREAM, names[number], 1, 1)))
            return [peer for peer, _ in sent(out, PubAck)]

        assert [publish(number) for number in (0, 1)] == [["y/0"], ["y/0"]]
        assert acked(0) == ["client 0"]
        assert publish(2) == ["y/0"]
        assert [acked(number) for number in (0, 1, 2)] == [[], ["client 1"], ["client 2"]]
        assert publish(0) == ["y/0"]
        assert acked(0) == ["client 0"]


# ---------------------------------------------------------------- alarms


def streams_in_alarms() -> None:
    def alarm(count: int) -> str:
        bench = head()
        for number in range(count):
            info = StreamInfo(bytes([number]) * 16, f"t{number}", "x", KeepAll())
            bench.list_stream(info)
            bench.sync.streams[info.stream_id].recovering_since_ns = 0
        found: dict[str, Any] = dict(SprinklerObserver().alarms({"sprinkler": bench.sync}))
        return str(found["stream-recovering"])

    names = ", ".join(f"t{number}" for number in range(NAMED_MAX))
    assert alarm(NAMED_MAX) == names
    assert alarm(NAMED_MAX + 1) == f"{names} and 1 more"


SYNC = "surecast.protocols.sprinkler.region_sync:RegionSync."
CHECKS: list[Row] = [
    (
        parts_of_an_advertisement,
        Edit(SYNC + "_on_advertise", "len(parts) > PARTS_MAX", "len(parts) > 1 << 60"),
    ),
    (bytes_of_a_part, Edit(SYNC + "_advertise", "or nbytes > INFOS_BYTES_MAX", "")),
    (disks_of_a_server, Edit(SYNC + "_count", "del known[:-DISKS_MAX]", "pass")),
    (followers, Edit(SYNC + "_on_region_subscribe", "FOLLOWERS_MAX", "1 << 60")),
    (first_position, Edit(SYNC + "_on_region_subscribe", "message.start < 1 or", "")),
    (
        compared_positions,
        Edit("surecast.protocols.sprinkler.forks:Forks.on_compare", "seqs[:SEQS_MAX]", "seqs"),
    ),
    (
        publishers,
        Edit(
            "surecast.parts.forwarding:Forwarding.on_publish",
            "> PUBLISHERS_MAX",
            "> 1 << 60",
        ),
    ),
    (
        streams_in_alarms,
        Edit(
            "surecast.protocols.sprinkler.observe:SprinklerObserver.alarms",
            "back[:NAMED_MAX]",
            "back",
        ),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)
