"""Compaction at a replica: what it saves before, what it reports after, and what interrupts it."""

from typing import Any

import msgspec
import pytest

from surecast.columns.batch import COLLECTED
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import KeepLast
from surecast.core.replicated import CompactLog, Rewritten
from surecast.core.types import (
    MS,
    SECOND,
    Compact,
    Compacted,
    SaveState,
    Stored,
    StoreFailed,
    TimerFired,
)
from surecast.protocols.chain.dedup import Dedup
from surecast.protocols.chain.messages import Configuration, Forward, Member, Publishers
from tests.helpers import cluster_of, heal_and_judge, publish, run, settle, wait
from tests.protocols.chain.test_chain import LOG, Harness, founded, sequenced

VOIDS = encode_voids({COLLECTED: IntervalSet([(1, 3)])})
COMMAND = CompactLog(LOG, 1, 4, VOIDS, 4096)


def lone(count: int = 5) -> Harness:
    """A chain of one with `count` events on disk."""
    harness = founded(1, "a", replicas=1)
    for _ in range(count):
        harness.submit()
    harness.write()
    harness.emitted.clear()
    return harness


def one(harness: Harness, kind: type) -> Any:
    (found,) = [effect for effect in harness.disk_queue if isinstance(effect, kind)]
    harness.disk_queue.remove(found)
    return found


def test_r4_publishers_are_saved_before_a_compaction() -> None:
    harness = lone()
    harness.give(COMMAND)
    save = one(harness, SaveState)
    assert save.name == f"publishers/{LOG.hex()}"
    end, _, committed = msgspec.msgpack.decode(save.data)
    assert (end, committed) == (6, 6)  # the collectors up to here are committed
    assert harness.disk_queue == []
    harness.give(Stored(save.token))
    compact = one(harness, Compact)
    assert (compact.log, compact.lo, compact.hi) == (LOG, 1, 4)
    assert (compact.voids, compact.rows_max) == (VOIDS, 4096)
    assert harness.emitted == []  # not reported before the rewrite is done
    harness.give(Compacted(compact.token))
    assert harness.emitted == [Rewritten(LOG, 1, 4, True)]


def test_r5_what_is_not_committed_is_not_compacted() -> None:
    harness = founded(1, "a", "b")  # b acknowledges nothing
    for _ in range(5):
        harness.submit()
    harness.write()
    with pytest.raises(AssertionError, match="committed"):
        harness.give(COMMAND)


@pytest.mark.parametrize("reason", ["full", "io"])
def test_a_snapshot_that_cannot_be_saved_ends_the_compaction(reason: str) -> None:
    harness = lone()
    harness.give(COMMAND)
    harness.fail_writes(reason)
    assert harness.disk_queue == []
    assert harness.take_emitted(Rewritten) == [Rewritten(LOG, 1, 4, False)]


def test_a_failed_rewrite_is_reported_and_may_be_repeated() -> None:
    harness = lone()
    harness.give(COMMAND)
    harness.give(Stored(one(harness, SaveState).token))
    harness.give(StoreFailed(one(harness, Compact).token, "truncated"))
    assert harness.take_emitted(Rewritten) == [Rewritten(LOG, 1, 4, False)]
    harness.give(COMMAND)  # it may be tried again; the publishers' state is already on disk
    save = one(harness, SaveState)
    assert (save.name, msgspec.msgpack.decode(save.data)) == (f"committed/{LOG.hex()}", 6)
    harness.give(Stored(save.token))
    assert one(harness, Compact).hi == 4


def test_a_large_snapshot_is_not_saved_for_each_compaction() -> None:
    harness = lone()
    harness.give(COMMAND)
    save = one(harness, SaveState)
    harness.give(Stored(save.token))
    harness.give(Compacted(one(harness, Compact).token))
    for _ in range(5):
        harness.submit()
    harness.write()
    later = CompactLog(LOG, 4, 9, encode_voids({}), 4096)
    state = harness.replica.logs[LOG]
    state.publishers_kept_bytes = (
        1 << 20
    )  # as if it were large: the next one is written a second later
    harness.disk_queue.clear()
    harness.give(later)
    assert not [effect for effect in harness.disk_queue if isinstance(effect, SaveState | Compact)]
    harness.give(TimerFired(("compact", LOG)))
    end, *_ = msgspec.msgpack.decode(one(harness, SaveState).data)
    assert end == 11


def test_a_snapshot_replaced_by_an_older_one_covers_less() -> None:
    """The predecessor's state of an earlier position replaces ours. Positions above that are not
    compacted before our state is saved again."""
    known = Dedup(64, 10**18)
    for lo in (1, 2):
        known.note(sequenced(lo))
    harness = founded(1, "b", "a")
    harness.receive("b", Forward(1, LOG, tuple(sequenced(lo) for lo in range(1, 6)), 1))
    harness.write()
    harness.give(COMMAND)
    assert compaction_saves(harness) == [f"publishers/{LOG.hex()}"]  # as of position 6
    harness.give(COMMAND)
    assert compaction_saves(harness) == [
        f"committed/{LOG.hex()}"
    ]  # the saved state still covers it
    harness.receive("b", Publishers(1, LOG, 3, known.snapshot(3)))
    harness.write()
    harness.wait(SECOND)
    harness.give(COMMAND)
    assert compaction_saves(harness) == [f"publishers/{LOG.hex()}"]
    end, *_ = msgspec.msgpack.decode(harness.disk.state(f"publishers/{LOG.hex()}"))
    assert end == 6


def compaction_saves(harness: Harness) -> list[str]:
    """Carry out the pending compaction; returns the names of the states saved before it."""
    saved = [effect.name for effect in harness.disk_queue if isinstance(effect, SaveState)]
    harness.write()
    assert harness.take_emitted(Rewritten) == [Rewritten(LOG, 1, 4, True)]
    return saved


@pytest.mark.parametrize("lineage", [0, 1])
def test_a_log_of_an_abandoned_lineage_is_not_compacted(lineage: int) -> None:
    """The replica is dropped from its chain between the snapshot and the rewrite. If the chain was
    refounded by force (lineage 1), the rewrite is abandoned; otherwise (lineage 0) it is done,
    because the committed positions stay valid."""
    harness = founded(1, "a", replicas=2, min_replicas=1)
    for _ in range(5):
        harness.submit()
    harness.write()
    harness.give(COMMAND)
    save = one(harness, SaveState)
    harness.receive("service", Configuration("chain", 7, (Member("z", b"z"),), lineage))
    harness.disk_queue.clear()
    harness.give(Stored(save.token))
    compacts = [effect for effect in harness.disk_queue if isinstance(effect, Compact)]
    assert bool(compacts) is not bool(lineage)
    assert (Rewritten(LOG, 1, 4, False) in harness.emitted) is bool(lineage)


def test_the_snapshot_covers_only_what_is_on_disk() -> None:
    """An append in progress may still fail, so the snapshot must not include its batch."""
    harness = lone()
    harness.submit()
    harness.give(COMMAND)
    end, data, _ = msgspec.msgpack.decode(one(harness, SaveState).data)
    ((_, next_no, _, _),) = msgspec.msgpack.decode(data)[1]
    assert (end, next_no) == (6, 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_g10_crashes_during_a_compaction_lose_and_repeat_no_event(seed: int) -> None:
    """Small pieces, slow disks, crashes of each replica in turn while it rewrites."""
    print(f"seed {seed}")
    cluster = cluster_of(
        {"east": 3, "west": 1},
        {"s": ("east", KeepLast(20))},
        seed=seed,
        publishers=2,
        server={"compact_ns": 20 * MS, "compact_share": 0.2, "piece_rows_max": 16},
    )
    world = cluster.world
    world.disks.sync_ns = 3 * MS
    for i in range(300):
        for p in range(2):
            cluster.offer(world.now_ns + i * 10 * MS, f"east/pub{p}", "s", [b"%d.%d" % (p, i)])
    for n in range(5):
        node = f"east/{(seed + n) % 3}"
        run(cluster, 300 * MS)
        stream, pieces = cluster.streams["s"], None
        if world.machine(node) is not None:
            pieces = world.machine(node).layers["streams"].streams[stream].pieces
            wait(cluster, lambda pieces=pieces: pieces.under_way is not None)  # type: ignore[misc]
        run(cluster, (seed + n) % 4 * MS)  # before the snapshot is written, between, after
        world.crash(node)
        run(cluster, 100 * MS)
        world.restart(node)
    assert heal_and_judge(cluster) == []
    assert cluster.counters["east/0"]["chain.compacted"]


@pytest.mark.slow
def test_a_learner_joins_while_the_tail_compacts() -> None:
    cluster = cluster_of(
        {"east": 2, "west": 1},
        {"s": ("east", KeepLast(10))},
        publishers=2,
        chain={"min_replicas": 1},
        server={"compact_ns": 20 * MS, "compact_share": 0.2, "piece_rows_max": 16},
    )
    world = cluster.world
    publish(cluster, 100, "east/pub1")
    settle(cluster)
    world.crash("east/1")
    wait(cluster, lambda: len(cluster.members("east")) == 1)
    world.cut("east/0", "east/pub0", two_way=False)  # an acknowledgement that is lost ...
    publish(cluster, 1)
    run(cluster, SECOND)
    publish(cluster, 100, "east/pub1")  # ... of an event that is collected and compacted
    world.wipe("east/1")
    world.restart("east/1")
    publish(cluster, 100, "east/pub1")
    wait(cluster, lambda: len(cluster.members("east")) == 2, 20 * SECOND)
    world.crash("east/0")
    world.wipe("east/0")  # the publishers' state now exists only in the learner's copy
    wait(cluster, lambda: [m.name for m in cluster.members("east")] == ["east/1"])
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 301
