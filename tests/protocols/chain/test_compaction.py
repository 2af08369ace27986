"""Compaction at a replica: what is on disk before, what is said after, and what interrupts it."""

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
from tests.protocols.chain.test_chain import LOG, Desk, founded, sequenced

VOIDS = encode_voids({COLLECTED: IntervalSet([(1, 3)])})
COMMAND = CompactLog(LOG, 1, 4, VOIDS, 4096)


def lone(count: int = 5) -> Desk:
    """A chain of one with `count` events on disk."""
    desk = founded(1, "a", replicas=1)
    for _ in range(count):
        desk.submit()
    desk.write()
    desk.said.clear()
    return desk


def one(desk: Desk, kind: type) -> Any:
    (found,) = [effect for effect in desk.asked if isinstance(effect, kind)]
    desk.asked.remove(found)
    return found


def test_r4_who_published_is_on_disk_before_anything_is_left_out() -> None:
    desk = lone()
    desk.give(COMMAND)
    save = one(desk, SaveState)
    assert save.name == f"publishers/{LOG.hex()}"
    end, _, committed = msgspec.msgpack.decode(save.data)
    assert (end, committed) == (6, 6)  # with it: how far its collectors are committed
    assert desk.asked == []
    desk.give(Stored(save.token))
    compact = one(desk, Compact)
    assert (compact.log, compact.lo, compact.hi) == (LOG, 1, 4)
    assert (compact.voids, compact.rows_max) == (VOIDS, 4096)
    assert desk.said == []  # not yet
    desk.give(Compacted(compact.token))
    assert desk.said == [Rewritten(LOG, 1, 4, True)]


def test_r5_what_is_not_committed_is_not_compacted() -> None:
    desk = founded(1, "a", "b")  # nobody acknowledges
    for _ in range(5):
        desk.submit()
    desk.write()
    with pytest.raises(AssertionError, match="committed"):
        desk.give(COMMAND)


@pytest.mark.parametrize("reason", ["full", "io"])
def test_a_snapshot_that_cannot_be_written_ends_it(reason: str) -> None:
    desk = lone()
    desk.give(COMMAND)
    desk.refuse(reason)
    assert desk.asked == []
    assert desk.answers(Rewritten) == [Rewritten(LOG, 1, 4, False)]


def test_a_rewrite_that_fails_or_was_cut_into_leaves_all_as_it_was() -> None:
    desk = lone()
    desk.give(COMMAND)
    desk.give(Stored(one(desk, SaveState).token))
    desk.give(StoreFailed(one(desk, Compact).token, "truncated"))
    assert desk.answers(Rewritten) == [Rewritten(LOG, 1, 4, False)]
    desk.give(COMMAND)  # and may be tried again; who published is on disk already
    save = one(desk, SaveState)
    assert (save.name, msgspec.msgpack.decode(save.data)) == (f"committed/{LOG.hex()}", 6)
    desk.give(Stored(save.token))
    assert one(desk, Compact).hi == 4


def test_a_large_snapshot_is_not_written_for_each_piece() -> None:
    desk = lone()
    desk.give(COMMAND)
    save = one(desk, SaveState)
    desk.give(Stored(save.token))
    desk.give(Compacted(one(desk, Compact).token))
    for _ in range(5):
        desk.submit()
    desk.write()
    later = CompactLog(LOG, 4, 9, encode_voids({}), 4096)
    state = desk.replica.logs[LOG]
    state.kept_bytes = 1 << 20  # as if it had been: then the next comes a second later
    desk.asked.clear()
    desk.give(later)
    assert not [effect for effect in desk.asked if isinstance(effect, SaveState | Compact)]
    desk.give(TimerFired(("compact", LOG)))
    end, *_ = msgspec.msgpack.decode(one(desk, SaveState).data)
    assert end == 11


def test_a_snapshot_replaced_by_an_older_one_covers_less() -> None:
    """The predecessor's state of an earlier position is saved over ours: what lies above it is not
    compacted before ours is saved again."""
    known = Dedup(64, 10**18)
    for lo in (1, 2):
        known.note(sequenced(lo))
    desk = founded(1, "b", "a")
    desk.hear("b", Forward(1, LOG, tuple(sequenced(lo) for lo in range(1, 6)), 1))
    desk.write()
    desk.give(COMMAND)
    assert compaction_saves(desk) == [f"publishers/{LOG.hex()}"]  # as of position 6
    desk.give(COMMAND)
    assert compaction_saves(desk) == [f"committed/{LOG.hex()}"]  # it covers this one, too
    desk.hear("b", Publishers(1, LOG, 3, known.snapshot(3)))
    desk.write()
    desk.wait(SECOND)
    desk.give(COMMAND)
    assert compaction_saves(desk) == [f"publishers/{LOG.hex()}"]
    end, *_ = msgspec.msgpack.decode(desk.disk.state(f"publishers/{LOG.hex()}"))
    assert end == 6


def compaction_saves(desk: Desk) -> list[str]:
    """Let the disk do the compaction that was asked for; what it had to save before."""
    saved = [effect.name for effect in desk.asked if isinstance(effect, SaveState)]
    desk.write()
    assert desk.answers(Rewritten) == [Rewritten(LOG, 1, 4, True)]
    return saved


@pytest.mark.parametrize("lineage", [0, 1])
def test_a_past_that_was_given_up_meanwhile_is_not_compacted(lineage: int) -> None:
    """The chain goes on without us between the snapshot and the rewrite: founded anew by force
    (lineage 1), or as ever (lineage 0), in which case what is committed still counts."""
    desk = founded(1, "a", replicas=2, min_replicas=1)
    for _ in range(5):
        desk.submit()
    desk.write()
    desk.give(COMMAND)
    save = one(desk, SaveState)
    desk.hear("service", Configuration("chain", 7, (Member("z", b"z"),), lineage))
    desk.asked.clear()
    desk.give(Stored(save.token))
    compacts = [effect for effect in desk.asked if isinstance(effect, Compact)]
    assert bool(compacts) is not bool(lineage)
    assert (Rewritten(LOG, 1, 4, False) in desk.said) is bool(lineage)


def test_the_snapshot_is_as_of_what_is_on_disk() -> None:
    """An append under way may still fail: its publisher must not be remembered for it."""
    desk = lone()
    desk.submit()
    desk.give(COMMAND)
    end, data, _ = msgspec.msgpack.decode(one(desk, SaveState).data)
    ((_, next_no, _, _),) = msgspec.msgpack.decode(data)[1]
    assert (end, next_no) == (6, 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_g10_crashes_at_any_moment_of_a_compaction_lose_and_double_nothing(seed: int) -> None:
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
def test_a_learner_comes_while_the_tail_compacts() -> None:
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
    world.wipe("east/0")  # what is known of publishers now came with the learner's copy
    wait(cluster, lambda: [m.name for m in cluster.members("east")] == ["east/1"])
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 301
