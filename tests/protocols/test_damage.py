"""Damaged and rolled-back disks: no wrong event is served, and no event is lost that has a copy.

Each test has one fault. The swarm combines the same faults with all others.
"""

from random import Random

import pytest

from surecast.columns.retention import KeepAll, KeepLast, LatestPerKey, Policy
from surecast.core.streams import CURSORS, DIRECTORY
from surecast.core.types import MS, SECOND, LogId
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import cluster_of, heal_and_judge, publish, run, settle, wait

CHAIN = {"min_replicas": 1}


def members(cluster: Cluster, region: str = "east") -> list[str]:
    return [m.name for m in cluster.members(region)]


def stop(cluster: Cluster, name: str) -> None:
    cluster.world.crash(name)


def start(cluster: Cluster, name: str) -> None:
    cluster.world.restart(name)


def restart_each(cluster: Cluster, region: str = "east") -> None:
    """Restart the replicas one by one, so that each has left the chain once."""
    nodes = cluster.regions[region]
    for name in nodes:
        stop(cluster, name)
        if len(nodes) > 1:
            wait(cluster, lambda: name not in members(cluster, region))  # noqa: B023
        start(cluster, name)
        wait(cluster, lambda: len(members(cluster, region)) == len(nodes))


def roles(cluster: Cluster, name: str) -> tuple[bool, bool]:
    regions = cluster.world.machine(name).layers["sprinkler"]
    return regions.is_head, regions.is_tail


def damage(cluster: Cluster, name: str, lo: int, hi: int, log: LogId | None = None) -> None:
    disk = cluster.world.disk(name)
    disk.damage(cluster.streams["s"] if log is None else log, lo, hi, "a flipped bit")
    disk.sync()


def holes(cluster: Cluster, name: str) -> list[tuple[int, int]]:
    disk = cluster.world.disk(name)
    return [hole for log in disk.logs() for hole in disk.holes(log)]


# ---------------------------------------------------------------- publishers' state


def restored_when_the_other_region_has_just_caught_up(
    regions: dict[str, int], mutant: type | None = None
) -> Cluster:
    """West pulls events that east compacted while the link was cut. Before west can request their
    publishers' state, east restarts from an older copy of its disk. (Found by round 4002.)

    North is further away: west, which does not know the publishers, is the first to answer."""
    server = {"compact_ns": 100 * MS, "piece_rows_max": 16, "coalesce_rows_max": 8}
    streams: dict[str, tuple[str, Policy]] = {"s": ("east", KeepLast(5))}
    cluster = cluster_of(
        regions,
        streams,
        mutant=mutant,
        server=server,
        delay_ns=lambda a, b: (60 if "north" in (a, b) else 20) * MS,
    )
    publish(cluster, 20)
    settle(cluster)
    cluster.world.copy_disk("east/0")
    cluster.world.cut("east", "west")
    if "north" in regions:
        cluster.world.cut("north", "west")
    for _ in range(10):
        publish(cluster, 4)
        run(cluster, SECOND // 4)
    wait(cluster, lambda: not cluster.unacknowledged())
    run(cluster, SECOND)
    cluster.world.mend("east", "west")
    west = cluster.world.machine("west/0").layers["sprinkler"].streams[cluster.streams["s"]]
    wait(cluster, lambda: west.committed == 61)
    assert west.unnamed == 61  # it does not know the publishers of its events
    stop(cluster, "east/0")
    assert cluster.world.roll_back("east/0")
    start(cluster, "east/0")
    cluster.world.heal_all()
    return cluster


def test_publishers_that_no_region_knows_are_refused_as_expired_at_once() -> None:
    cluster = restored_when_the_other_region_has_just_caught_up({"east": 1, "west": 1})
    publish(cluster, 3)
    problems = heal_and_judge(cluster)
    assert problems == [f"s: publish {number} failed: expired" for number in (61, 62, 63)]
    publish(cluster, 3)  # by a new identity
    assert heal_and_judge(cluster) == problems


def test_the_publishers_of_a_region_that_knows_all_are_preferred() -> None:
    regions = {"east": 1, "west": 1, "north": 1}
    cluster = restored_when_the_other_region_has_just_caught_up(regions)
    publish(cluster, 3)
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 63


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("changed", [False, True], ids=["first-chain", "chain-has-changed"])
@pytest.mark.parametrize("place", [0, -1], ids=["head", "tail"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_a_damaged_replica_is_repaired_before_it_is_head_or_tail(
    replicas: int, place: int, changed: bool
) -> None:
    cluster = cluster_of({"east": replicas, "west": 2}, chain=CHAIN)
    publish(cluster, 50)
    settle(cluster)
    if changed:
        restart_each(cluster)
    name = members(cluster)[place]
    stop(cluster, name)
    damage(cluster, name, 20, 25)
    start(cluster, name)
    for _ in range(40):
        publish(cluster, 2)
        run(cluster, SECOND // 10)
        if holes(cluster, name):
            assert roles(cluster, name) == (False, False)
    wait(cluster, lambda: len(members(cluster)) == replicas)
    assert holes(cluster, name) == []
    assert heal_and_judge(cluster) == []
    for other in members(cluster):  # the repaired one can stand alone
        if other != name:
            stop(cluster, other)
    wait(cluster, lambda: members(cluster) == [name])
    publish(cluster, 5)
    assert heal_and_judge(cluster) == []


@pytest.mark.parametrize("policy", [KeepAll(), KeepLast(20), LatestPerKey()])
@pytest.mark.parametrize("region", ["east", "west"], ids=["owner", "copy"])
def test_a_lone_replica_is_repaired_from_another_region(region: str, policy: Policy) -> None:
    cluster = cluster_of({"east": 1, "west": 1, "north": 1}, {"s": ("east", policy)})
    publish(cluster, 50)
    settle(cluster)
    stop(cluster, f"{region}/0")
    damage(cluster, f"{region}/0", 10, 31)
    start(cluster, f"{region}/0")
    publish(cluster, 10)
    assert heal_and_judge(cluster) == []
    assert holes(cluster, f"{region}/0") == []


def test_events_after_a_hole_are_kept() -> None:
    """The only copy of the newest events is after a damaged one that another region has."""
    cluster = cluster_of({"east": 1, "west": 1})
    publish(cluster, 30)
    settle(cluster)
    cluster.world.cut("east", "west")
    publish(cluster, 10)  # acknowledged, and only in east
    wait(cluster, lambda: not cluster.unacknowledged())
    stop(cluster, "east/0")
    damage(cluster, "east/0", 10, 12)
    start(cluster, "east/0")
    run(cluster, 5 * SECOND)
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 40


def test_events_without_any_copy_are_waited_for_and_never_replaced() -> None:
    cluster = cluster_of({"east": 1, "west": 1})
    cluster.world.cut("east", "west")
    publish(cluster, 30)
    wait(cluster, lambda: not cluster.unacknowledged())
    stop(cluster, "east/0")
    damage(cluster, "east/0", 10, 12)
    start(cluster, "east/0")
    cluster.world.mend("east", "west")
    publish(cluster, 5)
    run(cluster, 20 * SECOND)
    assert cluster.position("west/sub0", "s") == 10  # events before the hole are served
    assert cluster.unacknowledged() > 0
    service = cluster.world.machine("east/0").layers["streams"]
    assert service.streams[cluster.streams["s"]].hole == 10  # raises an alarm


@pytest.mark.parametrize("log", [DIRECTORY, CURSORS], ids=["directory", "cursors"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_directory_and_cursor_logs_of_a_region_are_repaired(replicas: int, log: LogId) -> None:
    streams = {f"s{n}" if n else "s": ("east", KeepAll()) for n in range(4)}
    cluster = cluster_of({"east": replicas, "west": 1}, streams, chain=CHAIN)
    publish(cluster, 20)
    settle(cluster)
    name = members(cluster)[-1]
    stop(cluster, name)
    end = cluster.world.disk(name).end(log)
    damage(cluster, name, 1, min(3, end), log)
    start(cluster, name)
    publish(cluster, 10)
    assert heal_and_judge(cluster) == []


@pytest.mark.parametrize("log", [None, DIRECTORY], ids=["stream", "directory"])
def test_the_last_member_is_repaired_by_a_replica_that_was_dropped(log: LogId | None) -> None:
    """No other copy exists: the other region was cut off from the beginning."""
    cluster = cluster_of({"east": 2, "west": 1}, chain=CHAIN)
    cluster.world.cut("east", "west")
    publish(cluster, 30)
    run(cluster, SECOND)
    last, dropped = members(cluster)
    stop(cluster, dropped)
    wait(cluster, lambda: members(cluster) == [last])
    publish(cluster, 10)
    run(cluster, SECOND)
    assert not cluster.unacknowledged()
    stop(cluster, last)
    damage(cluster, last, 1 if log else 10, 2 if log else 25, log)
    start(cluster, last)
    run(cluster, 2 * SECOND)
    assert holes(cluster, last) != []
    start(cluster, dropped)
    wait(cluster, lambda: len(members(cluster)) == 2, 20 * SECOND)
    assert holes(cluster, last) == []
    assert heal_and_judge(cluster) == []


@pytest.mark.parametrize("kind", ["journal", "manifest"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_disk_that_lost_its_newest_changes_recovers(replicas: int, kind: str) -> None:
    cluster = cluster_of({"east": replicas, "west": 1}, chain=CHAIN)
    publish(cluster, 20)
    settle(cluster)
    name = members(cluster)[0]
    cluster.world.copy_disk(name)
    publish(cluster, 20)
    settle(cluster)
    stop(cluster, name)
    assert cluster.world.damage(name, kind, Random(1))
    start(cluster, name)
    publish(cluster, 20)
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 60


# ---------------------------------------------------------------- roll back


@pytest.mark.parametrize("place", [0, -1], ids=["head", "tail"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_a_witness_notices_a_rolled_back_replica(replicas: int, place: int) -> None:
    """A replica is rolled back and then the only one left; no acknowledged event may be missing."""
    cluster = cluster_of({"east": replicas, "west": 1}, chain=CHAIN)
    cluster.world.cut("east", "west")  # so that west cannot help
    publish(cluster, 20)
    name = members(cluster)[place]
    cluster.world.copy_disk(name)
    publish(cluster, 20)
    run(cluster, SECOND)
    assert not cluster.unacknowledged()
    stop(cluster, name)
    assert cluster.world.roll_back(name)
    start(cluster, name)
    run(cluster, SECOND // 20)
    for other in cluster.regions["east"]:
        if other != name:
            stop(cluster, other)
    run(cluster, 5 * SECOND)
    assert heal_and_judge(cluster) == []
    assert cluster.counters[name]["chain.rolled-back"] == 1


@pytest.mark.parametrize("within_a_life", [True, False])
def test_a_rolled_back_owner_compares_with_other_regions_before_it_accepts_publishes(
    within_a_life: bool,
) -> None:
    """Its witness is rolled back too; only other regions have the newer events."""
    cluster = cluster_of({"east": 1, "west": 1, "north": 1})
    publish(cluster, 20)
    settle(cluster)
    for name in ("east/0", "east/config"):
        cluster.world.copy_disk(name)
    if not within_a_life:
        stop(cluster, "east/0")
        start(cluster, "east/0")
    publish(cluster, 20)
    settle(cluster)
    cluster.world.cut("west", "*")  # only north is reachable at first
    for name in ("east/0", "east/config"):
        stop(cluster, name)
        assert cluster.world.roll_back(name)
        start(cluster, name)
    publish(cluster, 20)
    run(cluster, 20 * SECOND)
    assert cluster.unacknowledged() > 0  # west may know more
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 60


# ---------------------------------------------------------------- two histories


def forked(
    regions: dict[str, int],
    policy: Policy,
    *,
    before: int = 20,
    lost: int = 20,
    new: int = 10,
    keys: int = 0,
    mode: str = "ask",
    seed: object = 1,
    mutant: type | None = None,
) -> tuple[Cluster, list[bytes]]:
    """The owner is rolled back while all links are cut, and accepts `new` events.

    Returns the cluster, with links still cut, and the values acknowledged in that time.
    """
    streams: dict[str, tuple[str, Policy]] = {"s": ("east", policy)}
    cluster = cluster_of(
        regions, streams, seed, mutant=mutant, server={"start": mode}, publishers=3
    )

    def offer(count: int, publisher: str = "east/pub0") -> list[bytes]:
        if not keys:
            return publish(cluster, count, publisher)
        first, values = len(cluster.records["s"].offered), []
        for i in range(first, first + count):
            values.append(b"value %d" % i)
            at_ns = cluster.world.now_ns + (i - first) * SECOND // 1000
            cluster.offer(at_ns, publisher, "s", values[-1:], [b"%d" % (i % keys)])
        run(cluster, count * SECOND // 1000)
        return values

    offer(before)
    settle(cluster)
    nodes = (*cluster.regions["east"], "east/config")
    for name in nodes:
        cluster.world.copy_disk(name)
    offer(lost)
    settle(cluster)
    for other in regions:
        if other != "east":
            cluster.world.cut("east", other)
    for name in nodes:
        stop(cluster, name)
        assert cluster.world.roll_back(name)
    run(cluster, SECOND)
    for name in nodes:
        start(cluster, name)
    values = offer(new, "east/pub1")  # pub0's publishes would fail with history-lost
    wait(cluster, lambda: not cluster.unacknowledged())
    return cluster, values


def quarantined(cluster: Cluster, node: str) -> list[tuple[str, int, int]]:
    found = cluster.world.machine(node).layers["sprinkler"].forks.done
    return [(one.stream, one.start, one.end) for one in found]


def rows_of(cluster: Cluster, node: str, name: str) -> dict[int, bytes]:
    service = cluster.world.machine(node).layers["streams"]
    info = service.directory.by_name[name]
    disk = cluster.world.disk(node)
    batches = disk.read(info.stream_id, 1, disk.end(info.stream_id), 1 << 30)
    return {row.seq: row.value for batch in batches for row in batch.to_rows()}


@pytest.mark.parametrize("mode", ["ask", "trust"])
@pytest.mark.parametrize("new", [5, 20, 60], ids=["fewer", "as-many", "more"])
@pytest.mark.parametrize("policy", [KeepAll(), KeepLast(15)])
def test_two_histories_are_noticed_and_the_later_one_is_kept_in_another_stream(
    policy: Policy, new: int, mode: str
) -> None:
    cluster, values = forked({"east": 1, "west": 1, "north": 2}, policy, new=new, mode=mode)
    acked = cluster.records["s"].acked
    positions = [acked[value] for value in values]
    assert positions == list(range(21, 21 + new))  # these positions were assigned twice
    cluster.world.network.wiring.mend_all()
    cluster.world.network.rewire(cluster.world.now_ns)
    wait(cluster, lambda: quarantined(cluster, "east/0") != [], 10 * SECOND)
    assert quarantined(cluster, "east/0") == [("s", 21, 21 + new)]
    run(cluster, 5 * SECOND)
    for node in ("east/0", "north/0"):  # the copy is a normal stream, in every region
        assert list(rows_of(cluster, node, "_quarantine.s.21").values()) == values
    everywhere = [rows_of(cluster, node, "s") for node in ("east/0", "west/0", "north/0")]
    assert not set(values) & {value for rows in everywhere for value in rows.values()}
    after = publish(cluster, 5, "east/pub2")
    run(cluster, 5 * SECOND)
    assert [acked[value] for value in after] == [41, 42, 43, 44, 45]
    for node in ("east/0", "west/0", "north/1"):
        rows = rows_of(cluster, node, "s")
        assert [rows[seq] for seq in range(41, 46)] == after
        assert all(acked[value] == seq for seq, value in rows.items())


@pytest.mark.parametrize("seed", range(8))
def test_no_position_has_two_events_although_most_are_void(seed: int) -> None:
    """Most positions are void in one of the two histories when they are compared."""
    rng = Random(seed)
    cluster, _ = forked(
        {"east": 1, "west": 2},
        LatestPerKey(),
        before=rng.randint(5, 200),
        lost=rng.randint(1, 100),
        new=rng.randint(1, 150),
        keys=rng.randint(1, 40),
        seed=seed,
    )
    cluster.world.network.wiring.mend_all()
    cluster.world.network.rewire(cluster.world.now_ns)
    run(cluster, 20 * SECOND)
    ends = {
        node: cluster.world.disk(node).end(cluster.streams["s"]) for node in ("east/0", "west/0")
    }
    assert len(set(ends.values())) == 1, ends
    ours, theirs = (rows_of(cluster, node, "s") for node in ("east/0", "west/0"))
    assert [seq for seq in ours if theirs.get(seq, ours[seq]) != ours[seq]] == []


def test_all_replicas_of_a_region_discard_the_later_history() -> None:
    """A whole region, including its witness, is restored from an older copy."""
    cluster, values = forked({"east": 2, "west": 1}, KeepAll(), mode="trust")
    cluster.world.network.wiring.mend_all()
    cluster.world.network.rewire(cluster.world.now_ns)
    head = members(cluster)[0]
    wait(cluster, lambda: quarantined(cluster, head) != [], 10 * SECOND)
    wait(cluster, lambda: len(members(cluster)) == 2)
    run(cluster, 5 * SECOND)
    for node in cluster.regions["east"]:
        assert list(rows_of(cluster, node, "_quarantine.s.21").values()) == values
        assert rows_of(cluster, node, "s") == rows_of(cluster, "west/0", "s")
