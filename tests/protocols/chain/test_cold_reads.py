"""A replica sends a follower what left the memory with cold reads, and new batches meanwhile."""

from typing import Any

import pytest

from surecast.core.types import (
    AtEndOfPass,
    Batch,
    ColdBelow,
    Congested,
    EndOfPass,
    Loaded,
    Read,
    Send,
    Truncate,
    Writable,
)
from surecast.errors import StorageError
from surecast.protocols.chain.messages import Forward, Member, Sync
from surecast.storage.store import load
from tests.protocols.chain.test_chain import LOG, Harness, founded, sequenced

END, COLD = 13, 9
OTHER = bytes(16)


class Cold(Harness):
    """A head with 12 positions, 8 of them cold. Reads are answered when the test says so."""

    def __init__(self, **options: Any) -> None:
        self.reads: list[tuple[Read, Loaded]] = []
        self.endings = 0
        size = sequenced(1).nbytes
        super().__init__(forward_bytes_max=3 * size - 1, **options)  # three batches a piece
        self.write()
        self.set_members(1, "a", "b")
        self.write()
        for _ in range(1, END):
            self.submit()
            self.write()
        self.give(ColdBelow(((LOG, COLD),)))
        self.sent.clear()

    def give(self, inp: Any) -> None:
        kept = []
        for effect in self.step(self.now_ns, inp):
            if type(effect) is Read:
                self.reads.append((effect, load(self.disk, effect)))
            elif type(effect) is AtEndOfPass:
                self.endings += 1
            else:
                kept.append(effect)
        step, self.step = self.step, lambda _now_ns, _inp: kept
        super().give(inp)
        self.step = step

    def sync(self, end: int = 1) -> None:
        self.receive("b", Sync(1, Member("b", b"b"), {LOG: end}, {}))

    def answer(self) -> None:
        self.give(self.reads.pop(0)[1])

    def end_of_pass(self) -> None:
        while self.endings:
            self.endings = 0
            self.give(EndOfPass("pump"))

    def forwarded(self) -> list[tuple[int, int]]:
        return [(m.batches[0].lo, m.batches[-1].hi) for _, m in self.take_sent(Forward)]


def test_a_follower_is_sent_cold_positions_piece_by_piece_then_the_others() -> None:
    harness = Cold()
    harness.sync()
    assert harness.forwarded() == []
    found = []
    while harness.reads:
        assert len(harness.reads) == 1
        harness.answer()
        harness.end_of_pass()
        found += harness.forwarded()
    assert found == [(1, 4), (4, 7), (7, 10), (10, 13)]
    assert harness.replica.counters["chain.cold-reads"] == 3


def test_new_batches_are_stored_and_committed_during_a_cold_read() -> None:
    harness = Cold()
    harness.sync()
    harness.submit()
    harness.write()
    assert harness.forwarded() == []  # they follow in order
    while harness.reads:
        harness.answer()
        harness.end_of_pass()
    assert harness.forwarded()[-1] == (13, 14)


def test_a_follower_that_is_served_from_memory_causes_no_reads() -> None:
    harness = Cold()
    harness.sync(COLD)
    assert harness.reads == []
    assert harness.forwarded() == [(9, 12), (12, 13)]


def test_what_was_read_for_an_earlier_session_is_not_sent() -> None:
    harness = Cold()
    harness.sync()
    harness.sync(4)
    assert [read.lo for read, _ in harness.reads] == [1, 4]
    harness.answer()
    assert harness.forwarded() == []
    harness.answer()
    assert harness.forwarded() == [(4, 7)]


def test_a_congested_follower_causes_no_further_reads() -> None:
    harness = Cold()
    harness.sync()
    harness.give(Congested("b"))
    harness.answer()
    assert harness.reads == []
    harness.give(Writable("b"))
    assert [read.lo for read, _ in harness.reads] == [4]


def test_what_was_read_before_a_truncate_is_dropped_and_read_again() -> None:
    harness = Cold()
    harness.sync()
    replica = harness.replica
    state = replica.logs[LOG]
    state.committed = 3
    replica.out = []
    replica._truncate(LOG, state)
    assert Truncate(LOG, 3) in replica.out
    harness.endings += AtEndOfPass("pump") in replica.out
    harness.disk.truncate(LOG, 3)
    harness.disk.append(LOG, [Batch.of(LOG, [b"new"] * 5).sequenced(3, 1, 1)])
    state.end = state.stored = 8
    harness.answer()
    assert [m for _, m in harness.take_sent(Forward)] == []
    harness.end_of_pass()
    harness.answer()
    harness.end_of_pass()
    assert harness.reads == []  # from 3 on, everything is in memory again
    values = [
        row.value for _, m in harness.take_sent(Forward) for b in m.batches for row in b.to_rows()
    ]
    assert values == [b"event 1", b"event 2", *[b"new"] * 5]


def test_damage_found_by_a_cold_read_stops_the_replica() -> None:
    harness = Cold()
    harness.sync()
    read, _ = harness.reads.pop()
    with pytest.raises(StorageError, match="a flipped bit"):
        harness.give(Loaded(read.token, (), "a flipped bit"))


def test_a_read_for_a_follower_that_is_gone_is_ignored() -> None:
    harness = Cold()
    harness.sync()
    harness.replica.follower = None
    read, _ = harness.reads.pop()
    harness.give(Loaded(read.token, (), "a flipped bit"))
    assert harness.forwarded() == []
    assert Send not in map(type, harness.sent)
    assert OTHER not in harness.replica.cold
    assert founded().replica.cold == {}


def test_a_lower_end_of_the_cold_positions_does_not_make_them_hot() -> None:
    """After a compaction a store reports the end of what it has moved, which may be lower."""
    harness = Cold()
    harness.sync()
    harness.give(ColdBelow(((LOG, 2),)))
    harness.replica._pump()
    assert harness.forwarded() == []
    harness.answer()
    assert harness.forwarded() == [(1, 4)]
