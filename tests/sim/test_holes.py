"""Holes of a simulated disk: caused by damage, unreadable, repaired, back after a crash."""

from random import Random

import pytest

from surecast.columns.batch import Batch
from surecast.core.types import Repair, Stored, StoreFailed
from surecast.errors import StorageError
from surecast.storage.memory import MemoryDisk, Unreadable
from surecast.storage.store import apply

LOG = bytes(range(16))


def batch(lo: int, count: int = 10) -> Batch:
    return Batch.of(LOG, [b"%d" % (lo + i) for i in range(count)]).sequenced(lo, lo, 1)


def disk_with_hole() -> MemoryDisk:
    disk = MemoryDisk()
    disk.append(LOG, [batch(1), batch(11), batch(21)])
    disk.damage(LOG, 8, 15, "a test")
    disk.sync()
    return disk


def test_reads_stop_before_a_hole_and_fail_inside_it() -> None:
    disk = disk_with_hole()
    assert disk.holes(LOG) == [(8, 15)]
    assert disk.end(LOG) == 31
    assert [(b.lo, b.hi) for b in disk.read(LOG, 1, 31, 1 << 20)] == [(1, 8)]
    assert [(b.lo, b.hi) for b in disk.read(LOG, 15, 31, 1 << 20)] == [(15, 21), (21, 31)]
    with pytest.raises(Unreadable, match=r"\[8, 15\) cannot be read: a test"):
        disk.read(LOG, 9, 31, 1 << 20)


def test_a_hole_is_repaired_in_parts() -> None:
    disk = disk_with_hole()
    assert apply(disk, Repair(LOG, (batch(11).slice(11, 15),), 1)) == Stored(1)
    assert disk.holes(LOG) == [(8, 11)]
    assert apply(disk, Repair(LOG, (batch(1).slice(8, 11),), 2)) == Stored(2)
    assert disk.holes(LOG) == []
    rows = [row.value for b in disk.read(LOG, 1, 31, 1 << 20) for row in b.to_rows()]
    assert rows == [b"%d" % seq for seq in range(1, 31)]


@pytest.mark.parametrize("wrong", [batch(1), batch(7, 3), batch(14, 3), batch(31)])
def test_only_holes_are_repaired(wrong: Batch) -> None:
    disk = disk_with_hole()
    assert apply(disk, Repair(LOG, (wrong,), 1)) == StoreFailed(1, "io")
    assert disk.holes(LOG) == [(8, 15)]


def test_a_repair_that_was_not_synced_may_be_lost_in_a_crash() -> None:
    rng, kept = Random(1), []
    for _ in range(20):
        disk = disk_with_hole()
        disk.repair(LOG, [batch(1).slice(8, 11), batch(11).slice(11, 15)])
        disk.crash(rng)
        kept.append(disk.holes(LOG))
    assert [] in kept
    assert [(8, 15)] in kept


def test_a_log_continues_after_a_hole() -> None:
    disk = MemoryDisk()
    disk.append(LOG, [batch(1)])
    disk.skip(LOG, 21, "a lost record")
    disk.append(LOG, [batch(21)])
    assert disk.holes(LOG) == [(11, 21)]
    disk.truncate(LOG, 15)
    assert disk.holes(LOG) == [(11, 15)]
    disk.truncate(LOG, 11)
    assert (disk.holes(LOG), disk.end(LOG)) == ([], 11)


def test_a_restored_copy_equals_the_disk_at_the_time_of_the_copy() -> None:
    disk = disk_with_hole()
    disk.save("state", b"old")
    copy = disk.copy()
    disk.append(LOG, [batch(31)])
    disk.save("state", b"new")
    disk.repair(LOG, [batch(1).slice(8, 11)])
    disk.restore(copy)
    assert (disk.end(LOG), disk.holes(LOG), disk.state("state")) == (31, [(8, 15)], b"old")
    disk.append(LOG, [batch(31)])
    assert copy.end(LOG) == 31  # the copy does not change


def test_a_full_disk_refuses_a_repair() -> None:
    disk = disk_with_hole()
    disk.fail("full")
    assert apply(disk, Repair(LOG, (batch(1).slice(8, 11),), 1)) == StoreFailed(1, "full")
    disk.heal()
    with pytest.raises(StorageError):
        disk.read(LOG, 8, 9, 1)
