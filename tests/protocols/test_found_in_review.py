"""Cases that reviewers found by reading the code; each broke a guarantee before it was fixed."""

import msgspec
import pytest

from surecast.columns import retention
from surecast.columns.batch import COLLECT, CONFIG
from surecast.columns.retention import Collect, KeepAll, KeepFor, KeepLast, LatestPerKey, TagIs
from surecast.core.replicated import AppendAt, Refound
from surecast.core.streams import ForceNewStream
from surecast.core.types import MS, SECOND, US, Command, PeerDown, Received, TimerFired
from surecast.protocols.chain.replica import Replica
from surecast.protocols.streams.messages import Subscribe
from surecast.sim.links import Link
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import cluster_of, heal_and_judge, publish, run, settle, wait


def chain(cluster: Cluster, node: str):
    return cluster.world.machine(node).layers["chain"]


def streams(cluster: Cluster, node: str):
    return cluster.world.machine(node).layers["streams"]


def regions(cluster: Cluster, node: str):
    return cluster.world.machine(node).layers["sprinkler"]


def members(cluster: Cluster, region: str) -> list[str]:
    return [m.name for m in cluster.members(region)]


def test_g9_a_new_head_knows_streams_that_its_predecessor_did_not() -> None:
    """Only west's later head could be reached when the stream was advertised, which was once."""
    cluster = cluster_of({"east": 1, "west": 3})
    world = cluster.world
    world.cut("east", "west/0")
    cluster.open("t", "east", KeepAll(), world.now_ns)
    wait(cluster, lambda: "t" in cluster.streams)
    run(cluster, SECOND)
    world.crash("west/0")
    wait(cluster, lambda: members(cluster, "west") == ["west/1", "west/2"])
    publish(cluster, 5, stream="t")
    assert heal_and_judge(cluster) == []


def test_g9_a_tail_token_lost_with_its_session_is_sent_again() -> None:
    cluster = cluster_of({"east": 2, "west": 1})
    publish(cluster, 20)
    settle(cluster)
    world = cluster.world
    world.crash("east/1")
    wait(cluster, lambda: members(cluster, "east") == ["east/0"])
    world.restart("east/1")
    old_tail = chain(cluster, "east/0")
    wait(cluster, lambda: len(members(cluster, "east")) == 2)
    while not old_tail.owes_token:
        world.run(world.now_ns + 20 * US)
    while old_tail.owes_token:
        world.run(world.now_ns + 20 * US)
    world.call(world.now_ns, lambda w: w.reset_sessions("east/1"))
    publish(cluster, 5)
    assert heal_and_judge(cluster) == []
    assert regions(cluster, "east/1").is_tail


def test_g10_a_refused_number_is_never_used_for_another_batch() -> None:
    """A retried batch is refused twice; the second refusal must not fail the next batch."""
    cluster = cluster_of({"east": 1, "west": 1}, {"s": ("east", LatestPerKey())})
    world = cluster.world
    world.degrade("east/pub0", "east/0", Link(600 * MS))  # a round trip is longer than retry_ns
    rule = retention.encode_collect(Collect(TagIs(b"red")))  # not allowed on this stream
    cluster.offer(world.now_ns, "east/pub0", "s", [rule], kind=COLLECT)
    wait(cluster, lambda: bool(cluster.failed))
    cluster.offer(world.now_ns, "east/pub0", "s", [b"x"], [b"kx"])
    run(cluster, 10 * SECOND)
    assert [f.why for f in cluster.failed] == ["bad-event"]
    assert set(cluster.records["s"].acked) == {b"x"}
    assert [v for v in heal_and_judge(cluster) if "bad-event" not in v] == []


def test_g10_a_full_disk_that_heals_right_after_its_replica_was_dropped() -> None:
    """A retry timer from before the truncation must not append truncated batches."""
    cluster = cluster_of({"east": 2, "west": 1}, chain={"min_replicas": 1})
    world = cluster.world
    world.disks.sync_ns = 10 * MS
    for i in range(1200):
        cluster.offer(world.now_ns + i * 5 * MS, "east/pub0", "s", [b"%d" % i])
    run(cluster, 200 * MS)
    world.fail_disk("east/1", "full")
    wait(cluster, lambda: cluster.counters["east/1"]["chain.truncated"] > 0)
    world.heal_disk("east/1")
    failures = cluster.counters["east/1"]["chain.store-failed.io"]
    run(cluster, 10 * SECOND)
    assert cluster.counters["east/1"]["chain.store-failed.io"] - failures < 10
    assert members(cluster, "east") == ["east/0", "east/1"]
    assert heal_and_judge(cluster) == []


def test_g10_a_snapshot_does_not_remember_an_append_that_failed() -> None:
    """Compaction saves the publishers while an append waits for the disk; then the node crashes."""
    cluster = cluster_of(
        {"east": 1, "west": 1},
        {"s": ("east", KeepLast(3))},
        publishers=3,
        server={"compact_ns": 3600 * SECOND, "compact_share": 0.1},
    )
    world, stream = cluster.world, cluster.streams["s"]
    publish(cluster, 30, "east/pub2")
    settle(cluster)
    run(cluster, 300 * MS)
    world.fail_disk("east/0", "io")
    cluster.offer(world.now_ns, "east/pub0", "s", [b"x"])
    wait(cluster, lambda: chain(cluster, "east/0").logs[stream].failed)
    world.cut("east/pub0", "east/0")
    world.heal_disk("east/0")
    world.at(world.now_ns, "east/0", TimerFired(("streams", "compact")))
    run(cluster, 2 * MS)
    assert cluster.counters["east/0"]["chain.compacted"]
    world.crash("east/0")
    world.restart("east/0")
    run(cluster, 500 * MS)
    cluster.offer(world.now_ns, "east/pub1", "s", [b"y"])  # gets the position x would have had
    wait(cluster, lambda: world.disk("east/0").end(stream) > 31)
    world.crash("east/0")
    world.restart("east/0")
    run(cluster, 3 * SECOND)
    assert heal_and_judge(cluster) == []


def test_g10_a_gate_for_one_learner_never_proposes_another() -> None:
    """The save of the tail's gate is delayed; meanwhile another learner appears."""
    cluster = cluster_of({"east": 3, "west": 1}, chain={"min_replicas": 1}, publishers=2)
    publish(cluster, 50)
    settle(cluster)
    world = cluster.world
    world.cut("east", "west")
    for node in ("east/1", "east/2"):
        world.crash(node)
    wait(cluster, lambda: members(cluster, "east") == ["east/0"])
    publish(cluster, 50)
    wait(cluster, lambda: not cluster.unacknowledged())
    world.wipe("east/2")
    world.restart("east/1")
    tail = chain(cluster, "east/0")
    while tail.join != "gating":
        world.run(world.now_ns + 20 * US)
        if tail.learner is not None and not tail.join and not world.disk("east/0").failing:
            world.fail_disk("east/0", "full")
    world.crash("east/1")
    world.degrade("east/0", "east/2", Link(1 * MS, bandwidth_bps=50_000))
    world.restart("east/2")
    run(cluster, SECOND)
    world.heal_disk("east/0")
    wait(cluster, lambda: len(members(cluster, "east")) == 2)
    committed = tail.logs[cluster.streams["s"]].committed
    assert world.disk(members(cluster, "east")[1]).end(cluster.streams["s"]) >= committed
    assert heal_and_judge(cluster) == []


def test_an_idle_keep_for_stream_stays_idle() -> None:
    """Neither the last rule nor a CONFIG event, which is never void, causes further expiry."""
    cluster = cluster_of({"east": 1, "west": 1}, {"s": ("east", KeepFor(3 * SECOND))})
    world, stream = cluster.world, cluster.streams["s"]
    publish(cluster, 5)
    policy = retention.encode_policy(KeepFor(2 * SECOND))
    cluster.offer(world.now_ns, "east/pub0", "s", [policy], kind=CONFIG)
    run(cluster, 10 * SECOND)
    end = world.disk("east/0").end(stream)
    run(cluster, 60 * SECOND)
    assert world.disk("east/0").end(stream) == end


def test_a_clock_far_ahead_for_a_while_does_not_lock_publishers_out() -> None:
    cluster = cluster_of({"east": 1, "west": 1}, publishers=2)
    publish(cluster, 1)
    settle(cluster)
    day_ns = 24 * 3600 * SECOND
    cluster.world.jump_clock("east/0", 4 * day_ns)
    publish(cluster, 3)
    cluster.world.jump_clock("east/0", -4 * day_ns)
    run(cluster, SECOND)
    publish(cluster, 1, "east/pub1")  # created long before the stream's newest time
    assert heal_and_judge(cluster) == []
    assert cluster.failed == []


def test_r8_the_operator_can_give_up_a_history_and_continue_under_a_new_id() -> None:
    cluster = cluster_of({"east": 1, "west": 1, "north": 1})
    publish(cluster, 20)
    settle(cluster)
    world = cluster.world
    world.cut("north", "*")  # gone for good
    world.crash("east/0")
    world.wipe("east/0")
    world.restart("east/0")
    run(cluster, 5 * SECOND)
    world.at(world.now_ns, "east/0", Command("streams", ForceNewStream("s")))
    run(cluster, 2 * SECOND)
    info = streams(cluster, "east/0").directory.by_name["s"]
    assert info.stream_id != cluster.streams["s"]
    assert info.replaces == cluster.streams["s"]
    assert regions(cluster, "east/0").streams[info.stream_id].recovering_since_ns is None
    assert not streams(cluster, "east/0").streams[info.stream_id].suspended


def test_subscriptions_to_unknown_streams_leave_nothing_behind() -> None:
    cluster = cluster_of({"east": 1, "west": 1}, server={"subscriptions_max": 50})
    world = cluster.world
    run(cluster, SECOND)
    serving = streams(cluster, "east/0").serving
    before, followed = serving.count, set(serving.followers)
    for i in range(60):
        message = Subscribe(b"?" * 16, 1)
        world.at(world.now_ns, "east/0", Received(f"client{i}", message))
        world.at(world.now_ns, "east/0", PeerDown(f"client{i}"))
        run(cluster, MS)
    assert serving.count == before
    assert set(serving.followers) == followed


def test_retries_while_the_chain_is_short_do_not_accumulate_at_the_head() -> None:
    cluster = cluster_of({"east": 2, "west": 1})
    cluster.world.crash("east/config")
    cluster.world.crash("east/1")
    publish(cluster, 16)
    run(cluster, 60 * SECOND)
    assert len(chain(cluster, "east/0").logs[cluster.streams["s"]].waiting) <= 16


# ---------------------------------------------------------------- second review


def lost_ack_then_collected(cluster: Cluster) -> None:
    """pub0's only event is committed, its acknowledgement lost; then it is collected."""
    cluster.world.cut("east/0", "east/pub0", two_way=False)
    publish(cluster, 1)
    run(cluster, 5 * SECOND)
    publish(cluster, 30, "east/pub1")
    run(cluster, 2 * SECOND)


COMPACTING = {"compact_ns": 1 * SECOND, "compact_share": 0.1}


def test_g10_the_publishers_state_of_a_learner_matches_the_log_it_received() -> None:
    """It joins with a compacted log, all replicas crash, and it is the first to restart."""
    cluster = cluster_of(
        {"east": 2, "west": 1},
        {"s": ("east", KeepLast(3))},
        publishers=2,
        chain={"min_replicas": 1},
        server=COMPACTING,
    )
    world = cluster.world
    world.crash("east/1")
    wait(cluster, lambda: members(cluster, "east") == ["east/0"])
    lost_ack_then_collected(cluster)
    assert cluster.counters["east/0"]["chain.compacted"]
    world.restart("east/1")
    wait(cluster, lambda: len(members(cluster, "east")) == 2)
    world.crash("east/1")
    world.crash("east/0")
    world.restart("east/1")
    wait(cluster, lambda: members(cluster, "east") == ["east/1"])
    run(cluster, 3 * SECOND)
    assert heal_and_judge(cluster) == []


def test_r8_a_chain_refounded_by_force_waits_for_its_peers() -> None:
    cluster = cluster_of({"east": 2, "west": 1}, publishers=2, chain={"min_replicas": 1})
    world = cluster.world
    publish(cluster, 10)
    settle(cluster)
    world.crash("east/1")
    wait(cluster, lambda: members(cluster, "east") == ["east/0"])
    publish(cluster, 10)
    settle(cluster)  # west has them, east/1 has not
    world.crash("east/0")
    world.wipe("east/0")
    world.cut("east", "west")
    world.restart("east/1")
    run(cluster, 2 * SECOND)
    world.at(world.now_ns, "east/1", Command("chain", Refound()))
    publish(cluster, 3, "east/pub1")
    run(cluster, 5 * SECOND)
    assert cluster.unacknowledged() == 3
    assert heal_and_judge(cluster) == []


def test_r1_a_disk_from_before_the_chain_was_refounded_does_not_fork_it() -> None:
    cluster = cluster_of({"east": 2, "west": 1}, publishers=2, chain={"min_replicas": 1})
    world, stream = cluster.world, cluster.streams["s"]
    publish(cluster, 10)
    settle(cluster)
    world.cut("east", "west")
    publish(cluster, 10)
    wait(cluster, lambda: not cluster.unacknowledged())
    run(cluster, 500 * MS)
    world.crash("east/1")
    wait(cluster, lambda: members(cluster, "east") == ["east/0"])
    world.crash("east/0")
    world.wipe("east/0")
    world.restart("east/0")
    world.mend("east", "west")
    run(cluster, SECOND)
    world.at(world.now_ns, "east/0", Command("chain", Refound()))  # the operator gives up east/1
    run(cluster, 3 * SECOND)
    publish(cluster, 3, "east/pub1")
    world.restart("east/1")  # it comes back all the same
    run(cluster, 10 * SECOND)
    publish(cluster, 12, "east/pub1")
    run(cluster, 10 * SECOND)
    assert members(cluster, "east") == ["east/0", "east/1"]
    rows = [
        [r for b in world.disk(n).read(stream, 1, 99, 1 << 20) for r in b.to_rows()]
        for n in ("east/0", "east/1")
    ]
    assert rows[0] == rows[1]


def test_r4_a_publisher_forgotten_because_of_a_wrong_clock_is_refused_as_expired() -> None:
    cluster = cluster_of(
        {"east": 1, "west": 1}, {"s": ("east", KeepLast(3))}, publishers=2, server=COMPACTING
    )
    world = cluster.world
    world.cut("east/0", "east/pub0", two_way=False)
    publish(cluster, 1)
    run(cluster, 5 * SECOND)
    world.cut("east/pub0", "east/0")
    for node in world.names("east"):
        world.jump_clock(node, 8 * 24 * 3600 * SECOND)
    run(cluster, 10 * MS)
    publish(cluster, 30, "east/pub1")
    run(cluster, 3 * SECOND)
    for node in world.names("east"):
        world.jump_clock(node, -8 * 24 * 3600 * SECOND)
    run(cluster, SECOND)
    world.crash("east/0")
    world.restart("east/0")
    problems = heal_and_judge(cluster)
    assert [p for p in problems if "expired" not in p] == []
    assert [f.why for f in cluster.failed] == ["expired"]  # reported, and not published twice


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_r4_a_region_that_does_not_know_all_publishers_causes_no_duplicates(replicas: int) -> None:
    """The owner loses its disk just after west has pulled the compacted stream."""
    cluster = cluster_of(
        {"east": 1, "west": replicas},
        {"s": ("east", KeepLast(3))},
        publishers=2,
        server={"compact_ns": 100 * MS, "compact_share": 0.1},
    )
    world, stream = cluster.world, cluster.streams["s"]
    run(cluster, SECOND)
    world.cut("east", "west")
    lost_ack_then_collected(cluster)
    world.mend("east", "west")
    last = f"west/{replicas - 1}"
    wait(cluster, lambda: streams(cluster, last).streams[stream].committed == 32)
    world.crash("east/0")
    world.wipe("east/0")
    world.restart("east/0")
    problems = heal_and_judge(cluster)
    assert [p for p in problems if "expired" not in p] == []


def test_g10_a_late_retry_of_a_snapshot_does_not_undo_a_newer_one() -> None:
    """Saving a predecessor's state fails; compaction saves a newer one; the first is retried."""
    cluster = cluster_of(
        {"east": 2, "west": 1},
        {"s": ("east", KeepLast(3))},
        publishers=2,
        chain={"min_replicas": 1},
        server={"compact_ns": 3600 * SECOND, "compact_share": 0.1},
    )
    world, stream = cluster.world, cluster.streams["s"]
    publish(cluster, 30, "east/pub1")
    settle(cluster)
    run(cluster, SECOND)
    world.fail_disk("east/1", "full")
    world.reset_sessions("east/1")
    wait(cluster, lambda: cluster.counters["east/1"]["chain.store-failed.full"] > 0)
    run(cluster, 2 * MS)
    world.heal_disk("east/1")
    for node in ("east/0", "east/1"):
        world.cut(node, "east/pub0", two_way=False)
    publish(cluster, 1)
    publish(cluster, 10, "east/pub1")
    run(cluster, 10 * MS)
    world.at(world.now_ns, "east/1", TimerFired(("streams", "compact")))
    run(cluster, 500 * MS)
    state = world.disk("east/1").state(f"chain/publishers/{stream.hex()}")
    assert msgspec.msgpack.decode(state, type=tuple[int, bytes, int])[0] == 42
    for node in ("east/0", "east/1"):
        world.crash(node)
    world.restart("east/1")
    wait(cluster, lambda: members(cluster, "east") == ["east/1"])
    run(cluster, 3 * SECOND)
    assert heal_and_judge(cluster) == []


def test_r8_a_refounded_region_without_peers_continues() -> None:
    cluster = cluster_of({"east": 2}, chain={"min_replicas": 1}, publishers=2)
    world = cluster.world
    publish(cluster, 10)
    settle(cluster)
    run(cluster, SECOND)
    world.crash("east/0")
    wait(cluster, lambda: members(cluster, "east") == ["east/1"])
    world.crash("east/1")
    world.wipe("east/1")
    world.restart("east/0")
    run(cluster, 2 * SECOND)
    world.at(world.now_ns, "east/0", Command("chain", Refound()))
    publish(cluster, 3, "east/pub1")
    wait(cluster, lambda: not cluster.unacknowledged())
    world.restart("east/1")
    wait(cluster, lambda: len(members(cluster, "east")) == 2)


def test_a_publisher_fails_with_history_lost_when_acknowledged_events_are_lost() -> None:
    """An operator refounds the chain from a replica that lacks the last acknowledged events."""
    cluster = cluster_of({"east": 2}, chain={"min_replicas": 1})
    world = cluster.world
    publish(cluster, 10)
    settle(cluster)
    run(cluster, SECOND)
    world.crash("east/1")
    wait(cluster, lambda: members(cluster, "east") == ["east/0"])
    publish(cluster, 5)
    wait(cluster, lambda: not cluster.unacknowledged())
    world.crash("east/0")
    world.wipe("east/0")
    world.restart("east/1")
    run(cluster, 2 * SECOND)
    world.at(world.now_ns, "east/1", Command("chain", Refound()))
    publish(cluster, 3)
    wait(cluster, lambda: bool(cluster.failed), 60 * SECOND)
    assert {f.why for f in cluster.failed} == {"history-lost"}
    publish(cluster, 1)  # under a new identity
    wait(cluster, lambda: not cluster.unacknowledged())


def full_disk_and_queue(mutant: type | None) -> None:
    """West's disk and queue are full: events that it refuses must not be requested repeatedly."""
    pending_bytes_max, event_bytes = 100_000, 2_000
    cluster = cluster_of(
        {"east": 1, "west": 1},
        chain={"pending_bytes_max": pending_bytes_max},
        server={"serve_bytes_max": 4096},
        subscribers=0,
        mutant=mutant,
    )
    world, stream = cluster.world, cluster.streams["s"]
    run(cluster, SECOND)
    world.fail_disk("west/0", "full")
    for i in range(300):
        value = b"%d" % i + b"x" * event_bytes
        cluster.offer(world.now_ns + i * 5 * MS, "east/pub0", "s", [value])
    run(cluster, 5 * SECOND)
    assert streams(cluster, "east/0").streams[stream].committed == 301
    # The queue exceeds its bound by at most the last message; the rest was refused.
    pending_bytes = chain(cluster, "west/0").pending_bytes
    assert pending_bytes_max < pending_bytes < pending_bytes_max + 2 * 4096
    assert streams(cluster, "west/0").streams[stream].end < 300 / 2
    assert cluster.counters["east/0"]["sprinkler/RegionSubscribe"] < 100
    world.heal_disk("west/0")
    wait(cluster, lambda: streams(cluster, "west/0").streams[stream].committed == 301)


def test_a_full_queue_does_not_cause_repeated_subscriptions() -> None:
    full_disk_and_queue(None)


class QueuesWithoutLimit(Replica):
    """Mutant: appends events of other regions without limit while the disk is full."""

    def _on_append_at(self, inp: AppendAt) -> None:
        if self.is_head:
            self._append_missing(inp.log, inp.batches)


def test_a_queue_without_limit_is_noticed() -> None:
    with pytest.raises(AssertionError):
        full_disk_and_queue(QueuesWithoutLimit)


def test_a_stream_that_cannot_be_indexed_is_set_aside_and_the_server_goes_on() -> None:
    cluster = cluster_of(
        {"east": 1, "west": 1}, {"s": ("east", KeepAll()), "t": ("east", KeepAll())}
    )
    world, stream = cluster.world, cluster.streams["s"]
    publish(cluster, 3)
    settle(cluster)
    old = world.disk("east/0").read(stream, 1, 2, 1)[0]
    late = old.sequenced(4, 1, 1)  # older than all before it
    world.disk("west/0").append(stream, (late,))
    world.crash("west/0", lose_unsynced=False)
    world.restart("west/0")
    run(cluster, 2 * SECOND)
    assert world.machine("west/0") is not None
    publish(cluster, 3, stream="t")
    wait(cluster, lambda: cluster.position("west/sub0", "t") == 4)
    assert "older" in streams(cluster, "west/0").streams[stream].quarantined
    assert cluster.counters["west/0"]["streams.quarantined"] == 1


def test_r8_an_owner_resumes_after_the_positions_its_peers_have_appended() -> None:
    """West has appended events that its full disk does not store; the owner loses its own disk."""
    cluster = cluster_of({"east": 1, "west": 1}, publishers=2)
    world, stream = cluster.world, cluster.streams["s"]
    publish(cluster, 10)
    settle(cluster)
    world.fail_disk("west/0", "full")
    publish(cluster, 5)
    wait(cluster, lambda: not cluster.unacknowledged())
    run(cluster, 300 * MS)
    assert streams(cluster, "west/0").streams[stream].end == 16
    world.crash("east/0")
    world.wipe("east/0")
    world.restart("east/0")
    publish(cluster, 8, "east/pub1")
    run(cluster, 5 * SECOND)
    assert cluster.unacknowledged() == 8  # five positions are already assigned
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 23
