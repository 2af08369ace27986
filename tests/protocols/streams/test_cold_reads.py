"""Serving what is no longer in memory: it is read with Read, and nothing else waits for it."""

from random import Random
from typing import Any

import msgspec
import pytest

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll, LatestPerKey
from surecast.core.replicated import Appended, Committed, Truncated
from surecast.core.streams import DIRECTORY, Forfeit
from surecast.core.types import ColdBelow, Command, Loaded, PeerDown, Read, Received
from surecast.errors import StorageError
from surecast.protocols.sprinkler.messages import (
    MeshEvents,
    MeshRequest,
    PeerEvents,
    RegionSubscribe,
)
from surecast.protocols.streams import cold_reads
from surecast.protocols.streams.cold_reads import ColdReads
from surecast.protocols.streams.messages import (
    Events,
    RangeEvents,
    RangeLost,
    ReadRange,
    Subscribe,
)
from surecast.storage.store import load
from tests.protocols.bench import INFO, STREAM, Bench, sent

END, COLD = 31, 21
OTHER = bytes(16)


def batch(seq: int, stream: bytes = STREAM, key: bytes | None = None) -> Batch:
    keys = None if key is None else [key]
    return Batch.of(stream, [b"v%d" % seq], keys).sequenced(seq, seq, 1)


PIECE = 5 * batch(1).nbytes - 1  # `Disk.read` returns five batches: the fifth exceeds it


class Cold(Bench):
    """Streams of 30 events, of which 20 are cold. Reads are answered when the test says so."""

    def __init__(self, *, retention: Any = None, keys: int = 0, **streams: Any) -> None:
        super().__init__("y/0", streams={"serve_bytes_max": PIECE, **streams})
        self.reads: list[tuple[Read, Loaded]] = []
        self.role(1)
        info = msgspec.structs.replace(INFO, retention=retention or KeepAll())
        for stream, name in ((STREAM, "s"), (OTHER, "t")):
            self.list_stream(msgspec.structs.replace(info, stream_id=stream, name=name))
            named = [b"k%d" % (n % keys) if keys else None for n in range(END)]
            self.extend(stream, [batch(seq, stream, named[seq]) for seq in range(1, END)])
        self.timer("streams", "settle")  # now nothing is recent
        self.give(ColdBelow(((STREAM, COLD), (OTHER, COLD))))

    def extend(self, stream: bytes, batches: list[Batch]) -> list[Any]:
        self.disk.append(stream, batches)
        end = self.disk.end(stream)
        self.chain_emits(Appended(stream, end))
        return self.chain_emits(Committed(stream, end))

    def give(self, inp: Any, after_ns: int = 1_000_000) -> list[Any]:
        """Reads see the log as it is when they are returned."""
        effects = super().give(inp, after_ns)
        if hasattr(self, "reads"):
            self.reads += [(e, load(self.disk, e)) for e in effects if type(e) is Read]
        return effects

    def answer(self, index: int = 0) -> list[Any]:
        """The disk answers one of the reads."""
        return self.give(self.reads.pop(index)[1])

    def follow(self, peer: str, start: int = 1, stream: bytes = STREAM) -> list[Any]:
        return self.give(Received(peer, Subscribe(stream, start)))

    def wanted(self) -> list[tuple[bytes, int]]:
        return [(read.log, read.lo) for read, _ in self.reads]


def spans(effects: list[Any], kind: type = Events) -> list[tuple[str, int, int]]:
    return [(peer, m.batches[0].lo, m.batches[-1].hi) for peer, m in sent(effects, kind)]


def values(effects: list[Any], kind: type = Events) -> list[bytes]:
    return [row.value for _, m in sent(effects, kind) for b in m.batches for row in b.to_rows()]


def test_a_late_reader_gets_every_position_once_in_order() -> None:
    bench = Cold()
    found = spans(bench.follow("a"))
    assert found == []
    while bench.reads:
        found += spans(bench.answer())
    assert found == [("a", lo, lo + 5) for lo in range(1, END, 5)]


def test_a_live_reader_does_not_wait_for_a_late_one() -> None:
    bench = Cold()
    bench.follow("late")
    assert spans(bench.follow("live", COLD)) == [("live", 21, 26), ("live", 26, 31)]
    bench.extend(STREAM, [batch(END)])
    assert spans(bench.end_of_pass("streams")) == [("live", END, END + 1)]
    assert bench.wanted() == [(STREAM, 1)]


def test_what_was_just_published_is_not_read_with_read() -> None:
    bench = Cold()
    bench.extend(STREAM, [batch(END)])
    bench.give(ColdBelow(((STREAM, END + 1),)))
    assert spans(bench.follow("a", END)) == [("a", END, END + 1)]
    assert bench.reads == []
    bench.timer("streams", "settle")
    bench.follow("b", END)
    assert bench.wanted() == [(STREAM, END)]


def test_reads_that_are_completed_in_any_order_reach_their_readers_in_order() -> None:
    rng = Random(3)
    bench = Cold()
    found: dict[str, list[tuple[str, int, int]]] = {"a": [], "b": [], "c": []}
    effects = [*bench.follow("a"), *bench.follow("b", 3), *bench.follow("c", 7)]
    while bench.reads:
        effects += bench.answer(rng.randrange(len(bench.reads)))
    for peer, lo, hi in spans(effects):
        found[peer].append((peer, lo, hi))
    for peer, start in (("a", 1), ("b", 3), ("c", 7)):
        covered = [seq for _, lo, hi in found[peer] for seq in range(lo, hi)]
        assert covered == list(range(start, END))


def test_a_range_and_a_region_and_a_mesh_client_are_served_from_one_read() -> None:
    bench = Cold()
    effects = bench.give(Received("r", ReadRange(STREAM, 1, 6)))
    effects += bench.give(Received("m", MeshRequest(STREAM, 1, 6)))
    effects += bench.give(Received("x/0", RegionSubscribe("x", 1, STREAM, 1)))
    effects += bench.follow("f")
    assert sum(len(sent(effects, kind)) for kind in (Events, RangeEvents, MeshEvents)) == 0
    assert bench.wanted() == [(STREAM, 1)]
    effects = bench.answer()
    assert spans(effects) == [("f", 1, 6)]
    assert spans(effects, RangeEvents) == [("r", 1, 6)]
    assert spans(effects, MeshEvents) == [("m", 1, 6)]
    assert spans(effects, PeerEvents) == [("x/0", 1, 6)]
    assert bench.wanted() == [(STREAM, 6)]


def test_what_became_void_during_the_read_is_not_sent() -> None:
    bench = Cold(retention=LatestPerKey(), keys=30)
    bench.follow("a")
    bench.extend(STREAM, [batch(END, key=b"k2"), batch(END + 1, key=b"k4")])
    assert values(bench.answer()) == [b"v1", b"v3", b"v5"]


def test_a_compaction_during_the_read_changes_nothing_for_the_reader() -> None:
    bench = Cold()
    bench.follow("a")
    bench.disk.splice(STREAM, 1, 6, [Batch.void(STREAM, 1, 5, 1), batch(5)])
    assert spans(bench.answer()) == [("a", 1, 6)]


def test_what_was_read_before_positions_were_given_up_is_dropped() -> None:
    bench = Cold()
    bench.follow("a", 6)
    bench.give(Received("r", ReadRange(STREAM, 1, 20)))
    bench.answer(1)  # a piece that is kept
    bench.disk.truncate(STREAM, 4)
    effects = bench.chain_emits(Truncated(STREAM, 4))
    assert [(p, m.last, m.batches) for p, m in sent(effects, RangeEvents)] == [("r", True, ())]
    bench.extend(STREAM, [Batch.of(STREAM, [b"new"] * 20).sequenced(4, 4, 1)])
    while bench.reads:
        assert sent(bench.answer(), Events) == []
    assert bench.service.cold.pieces == {}
    assert bench.service.counters["streams.cold-reads-dropped"] >= 1
    # What is left of the cold positions is read again; the new ones are in memory.
    bench.follow("b", 1)
    effects = bench.answer()
    assert values(effects)[:4] == [b"v1", b"v2", b"v3", b"new"]
    assert not bench.reads


def test_answers_that_wait_end_when_the_directory_is_given_up() -> None:
    bench = Cold()
    bench.give(Received("r", ReadRange(STREAM, 1, 20)))
    bench.give(Received("m", MeshRequest(STREAM, 1, 20)))
    bench.disk.truncate(DIRECTORY, 1)
    effects = bench.chain_emits(Truncated(DIRECTORY, 1))
    assert [m.last for _, m in sent(effects, RangeEvents)] == [True]
    assert [m.last for _, m in sent(effects, MeshEvents)] == [True]
    bench.answer()
    assert bench.reads == []


def test_a_reader_that_left_during_the_read_gets_nothing() -> None:
    bench = Cold()
    bench.follow("a")
    bench.give(Received("r", ReadRange(STREAM, 1, 6)))
    bench.give(PeerDown("a"))
    bench.give(PeerDown("r"))
    assert sent(bench.answer(), Events) == []
    assert bench.reads == []


def failed(bench: Cold) -> Loaded:
    read, _ = bench.reads.pop(0)
    return Loaded(read.token, (), "a flipped bit")


def test_damage_found_by_a_cold_read_stops_a_replica_that_is_not_alone() -> None:
    bench = Cold()
    bench.follow("a")
    with pytest.raises(StorageError, match="a flipped bit"):
        bench.give(failed(bench))


def test_damage_found_by_a_cold_read_quarantines_the_stream_of_a_lone_replica() -> None:
    bench = Cold()
    bench.service.members = ("y/0",)
    bench.follow("a")
    bench.answer()
    effects = bench.give(Received("r", ReadRange(STREAM, 6, 20)))
    effects += bench.give(failed(bench))
    assert bench.service.streams[STREAM].quarantined == "a flipped bit"
    assert bench.service.counters["streams.quarantined"] == 1
    assert bench.service.shown_end(STREAM) == 6
    (answer,) = [m for _, m in sent(effects, RangeEvents)]
    assert (answer.last, answer.end, answer.batches) == (True, 6, ())
    # The readable part is served to others, and other streams too.
    assert spans(bench.follow("b")) == [("b", 1, 6)]
    bench.follow("c", 1, OTHER)
    assert spans(bench.answer()) == [("c", 1, 6)]


def test_a_read_that_returns_nothing_counts_as_damage_and_is_not_repeated() -> None:
    bench = Cold()
    bench.service.members = ("y/0",)
    bench.follow("a")
    read, _ = bench.reads.pop(0)
    bench.give(Loaded(read.token, ()))
    assert "does not hold position 1" in bench.service.streams[STREAM].quarantined
    assert bench.reads == []


def test_positions_behind_a_lost_range_are_read_cold_too() -> None:
    bench = Cold()
    bench.disk.damage(STREAM, 8, 12, "a flipped bit")
    bench.service._look_for_holes(STREAM)
    bench.service._advance(bench.service.streams[STREAM])
    bench.timer("streams", "settle")
    bench.give(Command("streams", Forfeit(STREAM, 8, 12, "why")))
    effects = bench.give(Received("r", ReadRange(STREAM, 6, 17)))
    wanted = []
    while bench.reads:
        wanted += bench.wanted()
        effects += bench.answer()
    assert wanted == [(STREAM, 6), (STREAM, 12)]
    assert [(m.lo, m.hi) for _, m in sent(effects, RangeLost)] == [(8, 12)]
    assert spans(effects, RangeEvents) == [("r", 6, 8), ("r", 12, 17)]


# ---------------------------------------------------------------- limits


def test_reads_under_way_are_limited_and_streams_take_turns() -> None:
    bench = Cold(cold_reads_max=2)
    for n in range(1, 7):
        bench.follow(f"s{n}", n)
    bench.follow("t", 1, OTHER)
    assert bench.wanted() == [(STREAM, 1), (STREAM, 2)]
    bench.answer()
    assert bench.wanted()[1] == (STREAM, 3)
    bench.answer()
    assert bench.wanted()[1] == (OTHER, 1)  # though other readers of STREAM waited before it


def test_kept_pieces_are_limited_by_bytes_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "PIECES_KEPT_MAX", 3)
    cold = ColdReads(reads_max=4, nbytes_max=2 * PIECE, piece_bytes=PIECE)

    def read(lo: int, batches: tuple[Batch, ...]) -> int:
        cold.want(STREAM, lo, 100)
        (begun,) = cold.begin()
        cold.loaded(Loaded(begun.token, batches))
        return len(cold.pieces)

    assert [read(lo, (batch(lo),)) for lo in (1, 2, 3, 4, 5)] == [1, 2, 3, 3, 3]
    assert list(cold.pieces) == [(STREAM, 3), (STREAM, 4), (STREAM, 5)]
    pieces = tuple(batch(seq) for seq in range(10, 15))
    assert read(10, pieces) == 3
    # Room is made for the next piece, before it is read.
    assert read(15, tuple(batch(seq) for seq in range(15, 20))) == 1
    assert cold.nbytes == sum(one.nbytes for one in pieces)


def test_a_piece_larger_than_the_limit_is_read_alone() -> None:
    cold = ColdReads(reads_max=4, nbytes_max=1, piece_bytes=PIECE)
    for lo in (1, 2):
        cold.want(STREAM, lo, 100)
    (first,) = cold.begin()
    assert cold.begin() == []
    cold.loaded(Loaded(first.token, (batch(1),)))
    (second,) = cold.begin()
    assert second.lo == 2
    assert list(cold.pieces) == [(STREAM, 1)]  # its readers may still have to be served
    cold.loaded(Loaded(second.token, (batch(2),)))
    assert list(cold.pieces) == [(STREAM, 2)]


def test_all_layers_are_served_from_a_piece_before_it_is_dropped() -> None:
    """The readers of other layers are served after the service has requested its next piece."""
    bench = Cold(cold_bytes_max=1, cold_reads_max=1)
    effects = bench.follow("f")
    effects += bench.give(Received("m", MeshRequest(STREAM, 3, END)))
    effects += bench.give(Received("x/0", RegionSubscribe("x", 1, STREAM, 2)))
    for _ in range(15):  # each of them needs five pieces, or the rest of one
        effects += bench.answer() if bench.reads else []
    assert bench.reads == []
    for peer, kind, start in (("f", Events, 1), ("m", MeshEvents, 3), ("x/0", PeerEvents, 2)):
        found = [(lo, hi) for to, lo, hi in spans(effects, kind) if to == peer]
        assert [seq for lo, hi in found for seq in range(lo, hi)] == list(range(start, END))


def test_pieces_that_nobody_uses_are_dropped() -> None:
    bench = Cold()
    bench.follow("a")
    bench.answer()
    bench.timer("streams", "settle")
    assert list(bench.service.cold.pieces) == [(STREAM, 1)]
    bench.follow("b", 3)  # served from the same piece
    assert bench.wanted() == [(STREAM, 6)]
    bench.timer("streams", "settle")
    bench.timer("streams", "settle")
    assert bench.service.cold.pieces == {}
    assert bench.service.cold.nbytes == 0


def test_a_dropped_read_still_counts_as_under_way() -> None:
    cold = ColdReads(reads_max=1, nbytes_max=1 << 20, piece_bytes=PIECE)
    cold.cooled([(STREAM, 50)])
    cold.want(STREAM, 1, 100)
    (first,) = cold.begin()
    cold.truncated(STREAM, 1)
    assert not cold.is_cold(STREAM, 1)
    cold.want(STREAM, 1, 100)
    assert cold.begin() == []
    assert cold.loaded(Loaded(first.token, (batch(1),))) is None
    (second,) = cold.begin()
    assert cold.loaded(Loaded(second.token, (batch(1),))) == (STREAM, 1)
    assert list(cold.pieces) == [(STREAM, 1)]
