"""Simulated storage: `MemoryDisk` compared with a model; syncs, answers and losses in a world."""

from random import Random
from typing import Any

import pytest
from actors import LOG, Actor, Do, batch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from surecast.columns.batch import COLLECTED
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.core.types import (
    MS,
    SECOND,
    US,
    Append,
    Batch,
    ColdBelow,
    Compact,
    Compacted,
    Loaded,
    Read,
    SaveState,
    Stored,
    StoreFailed,
    Truncate,
)
from surecast.errors import StorageError
from surecast.sim import World
from surecast.storage.memory import DiskFull, MemoryDisk

OTHER = bytes(16)


def cells(batches: list[Batch]) -> list[tuple[int, bytes | None]]:
    """(position, value) of all positions; the value is None where the position is void."""
    found: list[tuple[int, bytes | None]] = []
    for one in batches:
        rows = {row.seq: row.value for row in one.to_rows()}
        found += [(seq, rows.get(seq)) for seq in range(one.lo, one.hi)]
    return found


def compaction(lo: int, hi: int, token: Any, log: bytes = LOG) -> Compact:
    """A compaction with all of [lo, hi) void."""
    return Compact(log, lo, hi, encode_voids({COLLECTED: IntervalSet([(lo, hi)])}), 50, token)


# ---------------------------------------------------------------- against a model


class Model(RuleBasedStateMachine):
    """A log is a list of values; `history` has each state that a crash may leave."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.stamp = 0
        self.logs: dict[bytes, list[bytes | None]] = {LOG: [], OTHER: []}
        self.states: dict[str, bytes] = {}
        self.history = [self.snapshot()]  # since the last sync, one per unsynced change

    def snapshot(self) -> Any:
        return ({log: list(held) for log, held in self.logs.items()}, dict(self.states))

    def made(self, lo: int, counts: list[int]) -> list[Batch]:
        out = []
        for count in counts:
            self.stamp += 1
            out.append(Batch.of(LOG, [b"%d" % self.stamp] * count).sequenced(lo, 0, 0))
            lo += count
        return out

    @rule(
        log=st.sampled_from((LOG, OTHER)),
        counts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    )
    def append(self, log: bytes, counts: list[int]) -> None:
        batches = self.made(len(self.logs[log]) + 1, counts)
        self.disk.append(log, batches)
        for one in batches:  # a crash may tear an append between its batches
            self.logs[log] += [cell[1] for cell in cells([one])]
            self.history.append(self.snapshot())

    @rule(log=st.sampled_from((LOG, OTHER)), gap=st.sampled_from((-1, 1, 7)))
    def append_elsewhere(self, log: bytes, gap: int) -> None:
        with pytest.raises(StorageError):
            self.disk.append(log, self.made(len(self.logs[log]) + 1 + gap, [2]))

    @rule(log=st.sampled_from((LOG, OTHER)), back=st.integers(-2, 12))
    def truncate(self, log: bytes, back: int) -> None:
        end = len(self.logs[log]) + 1 - back
        self.disk.truncate(log, end)
        if back > 0 and self.logs[log]:
            del self.logs[log][max(end, 1) - 1 :]
            self.history.append(self.snapshot())

    @rule(log=st.sampled_from((LOG, OTHER)), data=st.data())
    def compact(self, log: bytes, data: st.DataObject) -> None:
        held = self.logs[log]
        lo = data.draw(st.integers(0, 12))
        hi = lo + data.draw(st.integers(0, 12))
        gone = data.draw(st.lists(st.integers(lo, max(lo, hi - 1))))
        voids = IntervalSet([(seq, seq + 1) for seq in gone if seq < hi])
        rows_max = data.draw(st.sampled_from((1, 3, 100)))
        effect = Compact(log, lo, hi, encode_voids({COLLECTED: voids}), rows_max, object())
        if not 1 <= lo < hi <= len(held) + 1:
            with pytest.raises(StorageError):
                self.disk.ask(effect)
            return
        self.disk.ask(effect)
        self.the_same_as_the_model()
        assert self.disk.show(effect.token)
        for seq in gone:
            held[seq - 1] = None
        self.history.append(self.snapshot())

    @rule(log=st.sampled_from((LOG, OTHER)), data=st.data())
    def compact_and_cut(self, log: bytes, data: st.DataObject) -> None:
        """A truncate between ask and show cancels the compaction only if it cuts into it."""
        if not self.logs[log]:
            return
        end = len(self.logs[log]) + 1
        hi, cut = data.draw(st.integers(2, end)), data.draw(st.integers(1, end))
        effect = compaction(1, hi, object(), log)
        self.disk.ask(effect)
        self.truncate(log, end - cut)
        assert self.disk.show(effect.token) == (hi <= cut)
        if hi <= cut:
            self.logs[log][: hi - 1] = [None] * (hi - 1)
            self.history.append(self.snapshot())

    @rule(name=st.sampled_from("xy"), data=st.binary(max_size=3))
    def save(self, name: str, data: bytes) -> None:
        self.disk.save(name, data)
        self.states[name] = data
        self.history.append(self.snapshot())

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.disk.unsynced))
        self.disk.sync(self.disk.written - self.disk.unsynced + count)
        del self.history[:count]

    @rule(seed=st.integers(0, 1000))
    def crash(self, seed: int) -> None:
        lost = self.disk.crash(Random(seed))
        self.logs, self.states = self.history[len(self.history) - 1 - lost]
        self.history = [self.snapshot()]

    @precondition(lambda self: self.disk.unsynced)
    @rule()
    def gentle_crash(self) -> None:
        assert self.disk.crash(Random(1), lose_unsynced=False) == 0
        self.history = [self.snapshot()]

    @rule(log=st.sampled_from((LOG, OTHER)), lo=st.integers(-2, 30), count=st.integers(-1, 20))
    def read(self, log: bytes, lo: int, count: int) -> None:
        want = list(enumerate(self.logs[log], 1))
        want = [cell for cell in want if lo <= cell[0] < lo + count]
        assert cells(self.disk.read(log, lo, lo + count, 1 << 30)) == want
        part = self.disk.read(log, lo, lo + count, 250)
        assert cells(part) == want[: sum(one.count for one in part)]
        assert bool(part) == bool(want)
        assert sum(one.nbytes for one in part[:-1]) <= 250

    @invariant()
    def the_same_as_the_model(self) -> None:
        assert len(self.history) == self.disk.unsynced + 1
        for log, held in self.logs.items():
            assert self.disk.end(log) == len(held) + 1
            assert cells(self.disk.read(log, 1, 1 << 40, 1 << 40)) == list(enumerate(held, 1))
        assert {name: self.disk.state(name) for name in self.disk.states()} == self.states
        assert sorted(self.disk.logs()) == sorted(log for log, held in self.logs.items() if held)


TestModel = pytest.mark.slow(Model.TestCase)
TestModel.settings = settings(max_examples=150, stateful_step_count=30)


@given(seed=st.integers(0, 100), synced=st.integers(0, 10))
def test_synced_batches_survive_any_crash(seed: int, synced: int) -> None:
    disk = MemoryDisk()
    for number in range(10):
        disk.append(LOG, [batch(number + 1)])
        if number + 1 == synced:
            disk.sync()
    disk.crash(Random(seed))
    assert synced + 1 <= disk.end(LOG) <= 11


def test_crashes_lose_any_number_of_unsynced_batches() -> None:
    ends = set()
    for seed in range(50):
        disk = MemoryDisk()
        disk.append(LOG, [batch(1), batch(2), batch(3)])
        disk.crash(Random(seed))
        ends.add(disk.end(LOG))
    assert ends == {1, 2, 3, 4}


def test_capacity_counts_bytes_and_compaction_frees_some() -> None:
    disk = MemoryDisk(capacity_bytes=1000)
    disk.append(LOG, [batch(1, 9, nbytes=900)])
    with pytest.raises(DiskFull):
        disk.append(LOG, [batch(10, nbytes=101)])
    with pytest.raises(DiskFull):
        disk.save("s", bytes(101))
    disk.save("s", bytes(100))
    disk.save("s", bytes(50))
    assert disk.nbytes == 950
    disk.ask(compaction(1, 10, "c"))
    disk.show("c")
    assert disk.nbytes == 50 + 128
    disk.append(LOG, [batch(10, nbytes=601)])
    disk.truncate(LOG, 1)
    assert disk.nbytes == 50
    disk.wipe()
    assert (disk.nbytes, disk.logs(), disk.states()) == (0, [], [])


# ---------------------------------------------------------------- in a world


def node(seed: object = 1) -> World:
    world = World(seed)
    world.add("a", Actor)
    return world


def test_answers_come_after_a_sync_in_order_and_one_sync_serves_many() -> None:
    world = node()
    world.disks.sync_jitter_ns = 0
    world.at(0, "a", Do([Append(LOG, (batch(1),), 1)]))
    world.at(50 * US, "a", Do([Append(LOG, (batch(2), batch(3)), 2), SaveState("s", b"x", 3)]))
    world.at(100 * US, "a", Do([Append(OTHER, (batch(1),), 4), compaction(1, 3, 5)]))
    world.run(until_ns=SECOND)
    assert world.machine("a").seen[1:] == [
        (150 * US, Stored(1)),
        (300 * US, Stored(2)),
        (300 * US, Stored(3)),
        (300 * US, Stored(4)),
        (300 * US, Compacted(5)),
    ]
    assert world.disk("a").unsynced == 0


def test_reads_include_unsynced_changes() -> None:
    world = node()
    world.at(0, "a", Do([Append(LOG, (batch(1, 5),), 1), Truncate(LOG, 3)]))
    world.run(until_ns=US)
    assert world.disk("a").end(LOG) == 3
    assert world.machine("a").kinds() == ["Start"]
    world.run(until_ns=SECOND)
    assert world.disk("a").unsynced == 0


@pytest.mark.parametrize("reason", ["full", "io"])
def test_a_failing_disk_answers_in_order_and_writes_nothing(reason: str) -> None:
    world = node()
    world.at(0, "a", Do([Append(LOG, (batch(1),), 1)]))
    world.call(10 * US, lambda w: w.fail_disk("a", reason))
    world.at(20 * US, "a", Do([Append(LOG, (batch(2),), 2), SaveState("s", b"x", 3)]))
    world.call(30 * US, lambda w: w.heal_disk("a"))
    # The second append failed, so the third would leave a gap; a new second one does not.
    world.at(40 * US, "a", Do([Append(LOG, (batch(3),), 4), Append(LOG, (batch(2),), 5)]))
    world.run(until_ns=SECOND)
    assert [inp for _, inp in world.machine("a").seen[1:]] == [
        Stored(1),
        StoreFailed(2, reason),
        StoreFailed(3, reason),
        StoreFailed(4, "io"),
        Stored(5),
    ]
    assert world.disk("a").end(LOG) == 3
    assert world.disk("a").state("s") is None


def test_compaction_works_on_a_full_disk_and_fails_on_a_broken_one() -> None:
    world = node()
    world.at(0, "a", Do([Append(LOG, (batch(1), batch(2)), 1)]))
    world.call(MS, lambda w: w.fail_disk("a", "full"))
    world.at(2 * MS, "a", Do([compaction(1, 3, 2)]))
    world.call(3 * MS, lambda w: w.fail_disk("a", "io"))
    world.at(4 * MS, "a", Do([compaction(1, 3, 3), Truncate(LOG, 2)]))
    world.run(until_ns=SECOND)
    assert [inp for _, inp in world.machine("a").seen[1:]] == [
        Stored(1),
        Compacted(2),
        StoreFailed(3, "io"),
    ]
    assert world.disk("a").end(LOG) == 2


def test_a_compaction_is_visible_from_its_answer_on() -> None:
    """It is not visible while the sync runs, nor while the answer waits for a paused node."""
    world = node()
    rows: list[list[int]] = []

    def look(w: World) -> None:
        rows.append([one.rows for one in w.disk("a").read(LOG, 1, 9, 1 << 30)])

    world.at(0, "a", Do([Append(LOG, (batch(1, 4),), 1)]))
    world.at(MS, "a", Do([compaction(2, 4, 2)]))
    world.call(MS + 10 * US, look)
    world.call(MS + 20 * US, lambda w: w.pause("a"))
    world.call(2 * MS, look)
    world.call(2 * MS, lambda w: w.resume("a"))
    world.call(3 * MS, look)
    world.run(until_ns=SECOND)
    assert rows == [[4], [4], [1, 0, 1]]
    assert world.disk("a").unsynced == 0


def test_a_compaction_fails_if_a_truncate_cuts_into_it() -> None:
    world = node()
    world.at(0, "a", Do([Append(LOG, (batch(1, 4),), 1)]))
    world.at(MS, "a", Do([compaction(1, 3, 2), compaction(2, 5, 3), Truncate(LOG, 4)]))
    world.run(until_ns=SECOND)
    assert [inp for _, inp in world.machine("a").seen[2:]] == [
        Compacted(2),
        StoreFailed(3, "truncated"),
    ]
    assert [one.rows for one in world.disk("a").read(LOG, 1, 9, 1 << 30)] == [0, 1]


def test_reads_are_answered_in_any_order_with_the_log_as_it_was() -> None:
    world = node()
    world.at(0, "a", Do([Append(LOG, (batch(1), batch(2), batch(3)), 1)]))
    reads = [Read(LOG, 1 + n % 3, 4, 1 << 30, n) for n in range(20)]
    world.at(MS, "a", Do([*reads, Read(LOG, 1, 4, 0, "small"), Read(OTHER, 1, 2, 9, "empty")]))
    world.at(MS, "a", Do([Truncate(LOG, 2)]))
    world.call(MS, lambda w: w.disk("a").damage(LOG, 1, 2, "a flipped bit"))
    world.at(2 * MS, "a", Do([Read(LOG, 1, 2, 9, "damaged")]))
    world.run(until_ns=SECOND)
    found = {inp.token: inp for _, inp in world.machine("a").of(Loaded)}
    order = [token for token in found if isinstance(token, int)]
    assert sorted(order) == list(range(20)) != order
    for number in range(20):
        assert [one.lo for one in found[number].batches] == list(range(1 + number % 3, 4))
    assert [one.lo for one in found["small"].batches] == [1]
    assert found["empty"] == Loaded("empty", ())
    assert "a flipped bit" in found["damaged"].problem
    again = node()
    again.at(MS, "a", Do(reads))
    again.run(until_ns=SECOND)
    same = [inp.token for _, inp in again.machine("a").of(Loaded)]
    assert same == order  # the seed decides


def test_a_crash_drops_the_reads_under_way() -> None:
    world = World(1)
    world.add("a", Actor)
    world.disks.read_jitter_ns = 0
    world.at(0, "a", Do([Append(LOG, (batch(1),), 1), Read(LOG, 1, 2, 9, "lost")]))
    world.call(world.disks.read_ns // 2, lambda w: w.crash("a"))
    world.call(world.disks.read_ns * 2 // 3, lambda w: w.restart("a"))
    world.at(world.disks.read_ns * 3 // 4, "a", Do([Read(LOG, 1, 2, 9, "after")]))
    world.run(until_ns=SECOND)
    assert [inp.token for _, inp in world.machine("a").of(Loaded)] == ["after"]


def test_only_a_world_that_is_told_so_has_cold_logs() -> None:
    world = node()
    world.at(0, "a", Do([Append(LOG, tuple(batch(n) for n in range(1, 9)), 1)]))
    world.run(until_ns=SECOND)
    assert world.machine("a").of(ColdBelow) == []
    world.disks.cool(10 * MS)
    world.run(until_ns=2 * SECOND)
    ends = [dict(inp.ends)[LOG] for _, inp in world.machine("a").of(ColdBelow)]
    assert ends[0] == 9
    assert set(ends) == set(range(1, 10))
    world.crash("a")
    world.restart("a")
    world.run(world.now_ns + MS)
    assert dict(world.machine("a").of(ColdBelow)[0][1].ends) == {LOG: 9}


def test_positions_are_found_by_time() -> None:
    disk = MemoryDisk()
    made = [Batch.of(LOG, [b"x"] * 3).sequenced(1 + 3 * n, 10 * n, 1) for n in range(5)]
    disk.append(LOG, made)
    assert [disk.first_at(LOG, t, 1, 16) for t in (-5, 0, 1, 10, 11, 40, 41)] == [
        1, 1, 4, 4, 7, 13, 16,
    ]  # fmt: skip
    assert disk.first_at(LOG, 10, 5, 16) == 5
    assert disk.first_at(LOG, 40, 1, 9) == 9
    assert disk.first_at(OTHER, 0, 1, 9) == 9


def test_a_crash_loses_some_of_the_unsynced_and_never_what_was_answered() -> None:
    ends = set()
    for seed in range(40):
        world = node(seed)
        for number in range(20):
            world.at(number * 20 * US, "a", Do([Append(LOG, (batch(number + 1),), number)]))
        world.run(until_ns=350 * US)
        stored = [inp.token for _, inp in world.machine("a").of(Stored)]
        world.crash("a")
        end = world.disk("a").end(LOG)
        assert len(stored) + 1 <= end <= 19
        ends.add(end)
        world.restart("a")
        world.run(until_ns=SECOND)
        # The restarted node gets answers only to its own appends.
        assert all(inp.token >= 18 for _, inp in world.machine("a").of(Stored))
    assert len(ends) > 3


def test_a_sync_from_before_a_crash_answers_nothing_after_it() -> None:
    world = node()
    world.disks.sync_jitter_ns = 0
    world.at(0, "a", Do([Append(LOG, (batch(1),), "old")]))
    world.call(50 * US, lambda w: (w.crash("a", lose_unsynced=False), w.restart("a")))
    world.at(70 * US, "a", Do([Append(LOG, (batch(2),), "new")]))
    world.run(until_ns=SECOND)
    assert world.machine("a").seen[1:] == [(220 * US, Stored("new"))]


def test_a_gentle_crash_loses_nothing() -> None:
    world = node()
    world.at(0, "a", Do([Append(LOG, (batch(1), batch(2)), 1)]))
    world.run(until_ns=US)
    world.crash("a", lose_unsynced=False)
    assert world.disk("a").end(LOG) == 3
