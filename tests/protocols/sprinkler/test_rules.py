"""R7-R11: a scenario for each rule, run with the rule and without it (`tests/mutations.py`)."""

from collections.abc import Callable

from surecast.columns import retention
from surecast.columns.batch import COLLECT, EXPIRED
from surecast.columns.retention import Collect, KeepFor, KeepLast, LatestPerKey, TagIs
from surecast.core.types import MS, SECOND, Received
from surecast.protocols.sprinkler.messages import PeerEvents
from tests import mutations
from tests.helpers import cluster_of, each_scenario, heal_and_judge, publish, run, settle, wait

Scenario = Callable[[type | None], list[str]]


def moved_tail(mutant: type | None) -> list[str]:
    """The source's tail is dropped by its chain, yet still reachable from the other region."""
    cluster = cluster_of({"east": 2, "west": 1}, mutant=mutant, chain={"min_replicas": 1})
    publish(cluster, 5)
    settle(cluster)
    world = cluster.world
    for other in ("east/0", "east/config", "east/pub0", "east/sub0"):
        world.cut("east/1", other)
    wait(cluster, lambda: [m.name for m in cluster.members("east")] == ["east/0"])
    publish(cluster, 5)
    run(cluster, 20 * SECOND)
    if cluster.position("west/sub0", "s") != 11:
        return [f"west is at {cluster.position('west/sub0', 's')}, the stream ends at 11"]
    return heal_and_judge(cluster)


def lost_disk(mutant: type | None) -> list[str]:
    """The only replica of the owner loses its disk; its peer has the history."""
    cluster = cluster_of({"east": 1, "west": 1}, mutant=mutant)
    publish(cluster, 20)
    settle(cluster)
    cluster.world.crash("east/0")
    cluster.world.wipe("east/0")
    cluster.world.restart("east/0")
    publish(cluster, 10)
    return heal_and_judge(cluster)


def gap_on_the_way(mutant: type | None) -> list[str]:
    """Events arrive from a source that has skipped some."""
    cluster = cluster_of({"east": 1, "west": 1}, mutant=mutant)
    publish(cluster, 5)
    settle(cluster)
    world, stream = cluster.world, cluster.streams["s"]
    world.cut("east", "west")
    publish(cluster, 6)
    batches = tuple(world.disk("east/0").read(stream, 8, 12, 1 << 20))
    world.at(world.now_ns, "west/0", Received("east/0", PeerEvents(stream, batches, 12)))
    run(cluster, 100 * MS)
    return heal_and_judge(cluster)


def clock_of_the_next_head(mutant: type | None) -> list[str]:
    """The head crashes; the clock of the next one is an hour behind."""
    cluster = cluster_of({"east": 3, "west": 1}, mutant=mutant)
    publish(cluster, 5)
    settle(cluster)
    world = cluster.world
    for node in ("east/1", "east/2"):
        world.jump_clock(node, -3600 * SECOND)
    world.crash("east/0")
    wait(cluster, lambda: len(cluster.members("east")) == 2)
    publish(cluster, 5)
    run(cluster, 5 * SECOND)
    return heal_and_judge(cluster)


def rule_that_reopens(mutant: type | None) -> list[str]:
    """On a latest-per-key stream a tag rule would void a collector but not what it collected."""
    cluster = cluster_of(
        {"east": 1, "west": 1}, {"s": ("east", LatestPerKey())}, mutant=mutant, publishers=2
    )
    world = cluster.world
    cluster.offer(world.now_ns, "east/pub0", "s", [b"one"], [b"k"], [b"red"])
    run(cluster, 100 * MS)
    cluster.offer(world.now_ns, "east/pub0", "s", [b"two"], [b"k"], [b"red"])
    run(cluster, 100 * MS)
    rule = retention.encode_collect(Collect(TagIs(b"red")))
    cluster.offer(world.now_ns, "east/pub1", "s", [rule], kind=COLLECT)
    run(cluster, 100 * MS)
    problems = heal_and_judge(cluster)
    if mutant is None:
        assert [f.why for f in cluster.failed] == ["bad-event"]
        problems = [p for p in problems if "bad-event" not in p]
    return problems


def room_without_a_rule(mutant: type | None) -> list[str]:
    """A stream that keeps all events grows; no server may drop any of them."""
    cluster = cluster_of({"east": 1, "west": 1}, mutant=mutant)
    publish(cluster, 120)
    settle(cluster)
    return heal_and_judge(cluster)


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("r7", moved_tail, mutations.IgnoresMovedTails),
    ("r8", lost_disk, mutations.NeverRecovers),
    ("r9", gap_on_the_way, mutations.TakesGapsForVoids),
    ("r10-time", clock_of_the_next_head, mutations.StampsRawTime),
    ("r10-closure", rule_that_reopens, mutations.TakesAnyRule),
    ("r11", room_without_a_rule, mutations.DropsWhenFull),
]


@each_scenario(SCENARIOS)
def test_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []


def test_r8_a_recovering_owner_waits_for_a_peer_that_is_cut_off() -> None:
    cluster = cluster_of({"east": 1, "west": 1, "north": 1})
    publish(cluster, 20)
    settle(cluster)
    world = cluster.world
    world.cut("east", "north")
    world.cut("west", "north")
    world.crash("east/0")
    world.wipe("east/0")
    world.restart("east/0")
    publish(cluster, 5)
    run(cluster, 20 * SECOND)
    assert cluster.unacknowledged() > 0  # north might know more than west
    world.mend("east", "north")
    assert heal_and_judge(cluster) == []


def test_r10_expiry_is_an_event_of_the_owner() -> None:
    """No replica expires by its own clock: a clock far ahead in another region changes nothing."""
    cluster = cluster_of({"east": 1, "west": 1}, {"s": ("east", KeepFor(3 * SECOND))})
    cluster.world.jump_clock("west/0", 3600 * SECOND)
    publish(cluster, 20)
    settle(cluster)
    run(cluster, SECOND)
    reading = cluster.records["s"].readings[1]
    assert [e.kind for e in reading.events] == [1] * 20
    run(cluster, 10 * SECOND)
    assert heal_and_judge(cluster) == []
    (audit, *_) = cluster.records["s"].audits
    assert audit.voids, "the events have expired by now"
    assert {reason for *_, reason in audit.voids} == {EXPIRED}


def test_r10_null_keys_are_never_collected_and_empty_is_a_key() -> None:
    cluster = cluster_of({"east": 1, "west": 1}, {"s": ("east", LatestPerKey())})
    keys = [None, b"", b"k", None, b"", b"k"]
    for i, key in enumerate(keys):
        cluster.offer(cluster.world.now_ns + i * MS, "east/pub0", "s", [b"%d" % i], [key])
    run(cluster, SECOND)
    assert heal_and_judge(cluster) == []
    live = [e.value for e in cluster.records["s"].audits[0].events]
    assert live == [b"0", b"3", b"4", b"5"]


def test_r4_r8_a_recovered_owner_still_recognises_retries() -> None:
    """The ack is lost, the event is collected and compacted in both regions, and the owner loses
    its disk."""
    cluster = cluster_of(
        {"east": 1, "west": 1},
        {"s": ("east", KeepLast(3))},
        publishers=2,
        server={"compact_ns": 100 * MS, "compact_share": 0.1},
    )
    world = cluster.world
    world.cut("east/0", "east/pub0", two_way=False)  # acks do not come back
    publish(cluster, 1)
    run(cluster, 5 * SECOND)
    publish(cluster, 30, "east/pub1")
    run(cluster, SECOND)
    assert cluster.counters["west/0"]["chain.compacted"]
    world.crash("east/0")
    world.wipe("east/0")
    world.restart("east/0")
    run(cluster, 2 * SECOND)
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 31
