"""R1-R6: a scenario for each rule, run with the rule and without it (`tests/mutations.py`).

A scenario returns the violations that the judge finds: none with the rule, some without it.
"""

from collections.abc import Callable

from surecast.columns.retention import KeepLast, LatestPerKey
from surecast.core.replicated import Refound
from surecast.core.types import MS, SECOND, Command, Received
from surecast.protocols.streams.messages import Publish
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import cluster_of, each_scenario, heal_and_judge, publish, run, settle, wait

Scenario = Callable[[type | None], list[str]]


def forked_suffix(mutant: type | None) -> list[str]:
    """A and B store x, which never reaches C. C continues alone with y; then A and B return."""
    cluster = cluster_of(
        {"east": 3, "west": 1}, mutant=mutant, publishers=2, chain={"min_replicas": 1}
    )
    publish(cluster, 5)
    settle(cluster)
    world = cluster.world
    world.cut("east/1", "east/2")
    publish(cluster, 1)  # x
    run(cluster, 20 * MS)
    for node in ("east/0", "east/1", "east/pub0"):
        world.crash(node, lose_unsynced=False)
    del cluster.publishers[cluster.publishers.index("east/pub0")]  # x is never retried
    wait(cluster, lambda: [m.name for m in cluster.members("east")] == ["east/2"])
    publish(cluster, 1, "east/pub1")  # y gets the position that x had
    wait(cluster, lambda: not cluster.unacknowledged(["east/pub1"]))
    world.restart("east/0")
    world.restart("east/1")
    world.mend("east/1", "east/2")
    wait(cluster, lambda: len(cluster.members("east")) == 3, 20 * SECOND)
    world.crash("east/2")  # so that A or B serves
    world.cut("east/2", "*")
    return _judge_without_healing(cluster, ["east/sub0"])


def _judge_without_healing(cluster: Cluster, readers: list[str]) -> list[str]:
    cluster.add_subscriber("east/late")
    run(cluster, 10 * SECOND)
    return [v for v in cluster.judge().violations if "G9" not in v]


def duplicate_ack(mutant: type | None) -> list[str]:
    """Only the head stores a batch; its retry must not be acknowledged. Then the head is lost."""
    cluster = cluster_of({"east": 2, "west": 1}, mutant=mutant, chain={"min_replicas": 1})
    publish(cluster, 3)
    settle(cluster)
    world = cluster.world
    world.cut("east/0", "east/1", two_way=False)  # the head cannot forward
    publish(cluster, 1)
    run(cluster, 100 * MS)
    publisher = world.machine("east/pub0")
    (queue,) = publisher.queues.values()
    if queue.waiting:
        retry = Publish(cluster.streams["s"], queue.waiting[0])
        world.at(world.now_ns, "east/0", Received("east/pub0", retry))
    run(cluster, 50 * MS)
    acked = not cluster.unacknowledged()
    world.crash("east/0")
    world.wipe("east/0")
    if acked:  # acknowledged to the publisher, but no replica has it
        world.crash("east/pub0")
        cluster.publishers.clear()
    wait(cluster, lambda: len(cluster.members("east")) == 1, 20 * SECOND)
    return heal_and_judge(cluster)


def overtaken_batch(mutant: type | None) -> list[str]:
    """Batch 5 is lost in transit, 6 arrives first, then 5 is retried."""
    cluster = cluster_of({"east": 1, "west": 1}, mutant=mutant)
    publish(cluster, 4)
    settle(cluster)
    world, stream = cluster.world, cluster.streams["s"]
    publisher = world.machine("east/pub0")
    world.cut("east/pub0", "east/0")
    publish(cluster, 2)
    run(cluster, 10 * MS)
    (queue,) = publisher.queues.values()
    sixth = Publish(stream, queue.waiting[1])
    world.at(world.now_ns, "east/0", Received("east/pub0", sixth))  # by another path
    run(cluster, 50 * MS)
    return heal_and_judge(cluster)


def retry_after_collection(mutant: type | None) -> list[str]:
    """The ack of an event is lost; the event is collected, compacted and retried."""
    cluster = cluster_of(
        {"east": 1, "west": 1},
        {"s": ("east", KeepLast(3))},
        mutant=mutant,
        publishers=2,
        server={"compact_ns": 100 * MS, "compact_share": 0.1},
    )
    publish(cluster, 5, "east/pub1")
    settle(cluster)
    world = cluster.world
    world.cut("east/0", "east/pub0", two_way=False)  # acks do not come back
    publish(cluster, 1)
    run(cluster, 5 * SECOND)  # the session ends, and the acknowledgement is lost with it
    publish(cluster, 30, "east/pub1")  # collects the event of pub0
    run(cluster, 1 * SECOND)
    assert cluster.counters["east/0"]["chain.compacted"]
    world.crash("east/0")  # after this it has only what is on its disk
    world.restart("east/0")
    run(cluster, 500 * MS)
    return heal_and_judge(cluster)


def uncommitted_collector(mutant: type | None) -> list[str]:
    """A newer value collects an older one but never commits: no reader may receive it."""
    cluster = cluster_of(
        {"east": 3, "west": 1},
        {"s": ("east", LatestPerKey())},
        mutant=mutant,
        publishers=2,
        chain={"min_replicas": 1},
    )
    world = cluster.world
    cluster.offer(world.now_ns, "east/pub0", "s", [b"old"], [b"k"])
    settle(cluster)
    world.cut("east/1", "east/2")
    cluster.offer(world.now_ns, "east/pub0", "s", [b"new"], [b"k"])
    run(cluster, 50 * MS)
    cluster.add_subscriber("east/late")  # asks a replica that has `new` on disk
    run(cluster, 100 * MS)
    for node in ("east/0", "east/1", "east/pub0"):
        world.crash(node)
    cluster.publishers.remove("east/pub0")
    wait(cluster, lambda: [m.name for m in cluster.members("east")] == ["east/2"])
    cluster.offer(world.now_ns, "east/pub1", "s", [b"other"], [b"z"])  # gets the position of `new`
    wait(cluster, lambda: not cluster.unacknowledged(["east/pub1"]))
    world.restart("east/0")
    world.restart("east/1")
    world.mend("east/1", "east/2")
    run(cluster, 10 * SECOND)
    return [v for v in cluster.judge().violations if "was acknowledged" not in v]


def forwarded_before_stored(mutant: type | None) -> list[str]:
    """The power fails at the moment of an acknowledgement, for every replica at once."""
    problems: list[str] = []
    for seed in range(6):
        cluster = cluster_of({"east": 2, "west": 1}, seed=seed, mutant=mutant)
        cluster.world.disks.sync_ns = 20 * MS  # a slow disk
        for i in range(50):
            cluster.offer(cluster.world.now_ns + i * MS, "east/pub0", "s", [f"{i}".encode()])
        acked = cluster.records["s"].acked
        wait(cluster, lambda acked=acked: len(acked) > 3)  # type: ignore[misc]
        for node in ("east/0", "east/1"):
            cluster.world.crash(node)
        cluster.world.crash("east/pub0")  # what was acknowledged to it must not be lost
        cluster.publishers.clear()
        run(cluster, 100 * MS)
        problems += heal_and_judge(cluster)
    return problems


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("r1", forked_suffix, mutations.KeepsForks),
    ("r2", duplicate_ack, mutations.AcksDuplicatesEarly),
    ("r3", overtaken_batch, mutations.TakesAnyNumber),
    ("r4", retry_after_collection, mutations.ForgetsPublishers),
    ("r5", uncommitted_collector, mutations.ShowsUncommitted),
    ("r6", forwarded_before_stored, mutations.ForwardsBeforeStoring),
]


@each_scenario(SCENARIOS)
def test_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []


def test_r6_an_acknowledgement_means_two_disks_also_if_the_chain_shrinks() -> None:
    cluster = cluster_of({"east": 2, "west": 1})
    publish(cluster, 3)
    settle(cluster)
    cluster.world.crash("east/1")
    publish(cluster, 1)  # accepted while the chain still has two members
    run(cluster, 10 * SECOND)
    assert [m.name for m in cluster.members("east")] == ["east/0"]
    assert cluster.unacknowledged() == 1
    assert heal_and_judge(cluster) == []
    assert cluster.unacknowledged() == 0


def test_r1_a_wiped_member_does_not_continue_without_the_operator() -> None:
    """The only member loses its disk while the other replica, which has all acknowledged events, is
    down. Neither continues by itself; when the operator chooses a replica, nothing is lost."""
    cluster = cluster_of({"east": 2, "west": 1}, publishers=2, chain={"min_replicas": 1})
    publish(cluster, 10)
    settle(cluster)
    world = cluster.world
    world.cut("east", "west")
    publish(cluster, 10)
    wait(cluster, lambda: not cluster.unacknowledged())
    run(cluster, SECOND)
    world.crash("east/1")
    wait(cluster, lambda: [m.name for m in cluster.members("east")] == ["east/0"])
    world.crash("east/0")
    world.wipe("east/0")
    for node in ("east/0", "east/1"):
        world.restart(node)
    world.mend("east", "west")
    publish(cluster, 5, "east/pub1")
    run(cluster, 20 * SECOND)
    assert cluster.unacknowledged() == 5  # no replica may act as head
    world.at(world.now_ns, "east/1", Command("chain", Refound()))
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 25
