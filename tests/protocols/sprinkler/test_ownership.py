"""Ownership: creating streams and publishing through a region that does not own the stream.

PRODUCT §8.3. Scenarios of a rule also run with a mutant that lacks the rule.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from surecast.columns.retention import KeepAll, KeepLast
from surecast.core.endpoint import Open
from surecast.core.streams import StreamSpec
from surecast.core.types import MS, SECOND, Received
from surecast.protocols.sprinkler.checks import Record
from surecast.protocols.streams.messages import PubAck
from surecast.protocols.streams.publisher import Publisher
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import cluster_of, each_scenario, heal_and_judge, publish, run, settle, wait

Scenario = Callable[[type | None], list[str]]
OWNERS = {"": "east", "w": "west", "w.n": "north"}
TABLE = {"owners": {"": "east"}}


def regions(cluster: Cluster, node: str) -> Any:
    return cluster.world.machine(node).layers["sprinkler"]


# ---------------------------------------------------------------- creating


def test_owner_of_a_new_stream_follows_the_table_in_every_region() -> None:
    cluster = Cluster(1, {"east": 2, "west": 2, "north": 1}, server={"owners": OWNERS})
    owners = {"a.b": "east", "w": "west", "w.x": "west", "w.n.x": "north", "wn": "east"}
    for number, (name, owner) in enumerate(owners.items()):
        opener = ("east", "west", "north")[number % 3]
        cluster.open(name, owner, KeepAll(), 0, f"{opener}/pub0")
    wait(cluster, lambda: len(cluster.streams) == len(owners))  # it asserts the owner of each
    for name in owners:
        publish(cluster, 3, "north/pub0", name)
    assert heal_and_judge(cluster) == []
    assert cluster.counters["east/0"]["streams/CreateStream"]


def test_owner_of_an_existing_stream_stays_when_the_table_changes() -> None:
    """A stream stays with the region that created it, also if the table changes."""
    cluster = cluster_of({"east": 1, "west": 1, "north": 1}, {"w": ("east", KeepAll())})
    publish(cluster, 1, stream="w")
    for node in ("east/0", "west/0", "north/0"):
        object.__setattr__(regions(cluster, node).config, "owners", OWNERS)
    cluster.world.at(cluster.world.now_ns, "north/pub0", Open("w", StreamSpec()))
    publish(cluster, 3, "north/pub0", "w")
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["w"].acked) == 4


def differing_tables(mutant: type | None) -> list[str]:
    """East and west both consider themselves the owner of s: two streams of one name."""
    cluster = Cluster(1, {"east": 1, "west": 1}, types=(mutant,) if mutant else ())
    for region in ("east", "west"):
        machine = regions(cluster, f"{region}/0")
        object.__setattr__(machine.config, "owners", {"": region})
        machine.owners = region.encode()
    run(cluster, SECOND)
    cluster.records["s"] = Record("s", KeepAll())
    cluster.owners["s"] = "east"
    for region, late_ns in (("east", 0), ("west", 2 * MS)):  # before they exchange their streams
        at_ns = cluster.world.now_ns + late_ns
        cluster.world.at(at_ns, f"{region}/pub0", Open("s", StreamSpec(KeepAll())))
    made: dict[str, Any] = {}
    for region in ("east", "west"):
        cluster.world.on_emit(f"{region}/pub0", lambda _, name, event: made.update({name: event}))
    wait(cluster, lambda: len(made) == 2)
    if all(event.why == "owners-differ" for event in made.values()):
        return []
    return [f"{name}: {event.info.owner}" for name, event in made.items()]


def test_owner_refuses_to_change_the_retention_of_an_existing_stream() -> None:
    cluster = Cluster(1, {"east": 1, "west": 1}, server=TABLE)
    cluster.open("s", "east", KeepLast(5), 0, "west/pub0")
    wait(cluster, lambda: "s" in cluster.streams)
    world = cluster.world
    world.at(world.now_ns, "west/pub0", Open("s", StreamSpec(KeepAll())))
    wait(cluster, lambda: bool(cluster.unopened))
    world.at(world.now_ns, "west/pub0", Open("s", StreamSpec()))  # with any retention
    run(cluster, SECOND)
    assert [event.why for event in cluster.unopened] == ["config-mismatch"]
    assert cluster.unopened[0].info is not None
    assert cluster.unopened[0].info.retention == KeepLast(5)


def test_owner_creates_a_stream_although_its_head_changes() -> None:
    cluster = Cluster(1, {"east": 3, "west": 2}, server=TABLE)
    run(cluster, SECOND)
    cluster.world.crash("east/0")  # west still treats it as the head
    cluster.open("s", "east", KeepAll(), cluster.world.now_ns, "west/pub0")
    wait(cluster, lambda: "s" in cluster.streams)
    publish(cluster, 5, "west/pub0")
    assert heal_and_judge(cluster) == []


def test_streams_that_are_being_created_count_against_the_bound() -> None:
    """Twenty creates at once, before the first is committed, do not exceed the bound."""
    cluster = Cluster(1, {"east": 1, "west": 1}, server={**TABLE, "streams_max": 5})
    run(cluster, SECOND)
    for n in range(20):
        cluster.records[f"s{n}"] = Record(f"s{n}", KeepAll())
        cluster.owners[f"s{n}"] = "east"
        opener = ("east", "west")[n % 2]
        cluster.world.at(
            cluster.world.now_ns, f"{opener}/pub0", Open(f"s{n}", StreamSpec(KeepAll()))
        )
    wait(cluster, lambda: len(cluster.streams) + len(cluster.unopened) == 20)
    assert 0 < len(cluster.streams) <= 5
    assert {event.why for event in cluster.unopened} == {"too-many-streams"}


# ---------------------------------------------------------------- unreachable owners


def test_owner_unreachable_is_transient_and_then_final() -> None:
    cluster = cluster_of(
        {"east": 1, "west": 1}, server=TABLE, publishers=2, publisher={"owner_ns": 5 * SECOND}
    )
    world = cluster.world
    publish(cluster, 1, "west/pub0")
    settle(cluster)
    world.cut("east", "west")
    run(cluster, SECOND)
    publish(cluster, 1, "west/pub0")
    world.at(world.now_ns, "west/pub1", Open("t", StreamSpec(KeepAll())))
    run(cluster, 2 * SECOND)
    assert not cluster.failed
    world.mend("east", "west")  # in time: nothing has failed
    cluster.records["t"] = Record("t", KeepAll())
    cluster.owners["t"] = "east"
    wait(cluster, lambda: "t" in cluster.streams and not cluster.unacknowledged())
    world.cut("east", "west")
    run(cluster, SECOND)
    publish(cluster, 2, "west/pub0")
    world.at(world.now_ns, "west/pub1", Open("u", StreamSpec(KeepAll())))
    wait(cluster, lambda: len(cluster.failed) == 2 and bool(cluster.unopened))
    assert [failed.why for failed in cluster.failed] == ["owner-unreachable"] * 2
    assert [(e.name, e.why) for e in cluster.unopened] == [("u", "owner-unreachable")]
    world.mend("east", "west")
    run(cluster, SECOND)
    publish(cluster, 2, "west/pub0")  # under a new identity
    wait(cluster, lambda: not cluster.unacknowledged())
    assert len(cluster.records["s"].acked) == 4


# ---------------------------------------------------------------- exactly once


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_owner_stores_each_batch_once_across_failovers_on_either_side(seed: int) -> None:
    """Acknowledgements are lost with the owner's head, and with the replica that forwards them."""
    print(f"seed {seed}")
    rng = Random(seed)
    cluster = cluster_of({"east": 3, "west": 3}, seed=seed, server=TABLE, publishers=2)
    world = cluster.world
    for i in range(300):
        for p in range(2):
            at_ns = world.now_ns + i * 10 * MS
            cluster.offer(at_ns, f"west/pub{p}", "s", [b"%d.%d" % (p, i)])
    for region in ("west", "east", "west"):
        run(cluster, rng.randint(300, 700) * MS)
        node = cluster.members(region)[0].name
        world.crash(node)
        run(cluster, rng.randint(10, 400) * MS)
        world.restart(node)
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 600


def another_way(mutant: type | None) -> list[str]:
    """The owner stores batches but its acks do not arrive; they are retried by another replica."""
    cluster = cluster_of({"east": 1, "west": 3}, mutant=mutant, server=TABLE)
    world, head = cluster.world, cluster.world.machine("east/0").layers["chain"]
    publish(cluster, 3, "west/pub0")
    settle(cluster)
    at = world.machine("west/pub0").target
    world.cut("east/0", f"west/{at}", two_way=False)
    publish(cluster, 3, "west/pub0")
    wait(cluster, lambda: head.logs[cluster.streams["s"]].end == 7)
    assert cluster.unacknowledged() == 3
    run(cluster, 10 * SECOND)
    if cluster.unacknowledged():
        return ["a retry through another replica was not recognised"]
    assert world.machine("west/pub0").target != at
    return heal_and_judge(cluster)


def forged_acknowledgement(mutant: type | None) -> list[str]:
    """A client knows the publisher's identity and sends a server a forged ack of the owner."""
    cluster = cluster_of({"east": 1, "west": 1}, mutant=mutant, server=TABLE)
    world, stream = cluster.world, cluster.streams["s"]
    publish(cluster, 3, "west/pub0")
    settle(cluster)
    world.cut("east", "west")
    publish(cluster, 1, "west/pub0")
    (queue,) = world.machine("west/pub0").queues.values()
    lie = PubAck(stream, queue.publisher, queue.waiting[0].pub_no, 4)
    world.at(world.now_ns, "west/0", Received("west/liar", lie))
    run(cluster, 100 * MS)
    world.crash("west/pub0")  # no retry after this
    if not cluster.records["s"].acked.keys() >= {b"west/pub0-3"}:
        cluster.publishers.remove("west/pub0")
        return []
    cluster.publishers.remove("west/pub0")
    return ["an acknowledgement that the owner never gave"]


def lost_forward(mutant: type | None) -> list[str]:
    """The owner's head crashes with a forwarded publish. The publisher's other stream goes on."""
    streams = {"s": ("east", KeepAll()), "w": ("west", KeepAll())}
    cluster = cluster_of(
        {"east": 1, "west": 1},
        streams,
        server={"owners": {"": "east", "w": "west"}},
        publisher_type=mutant or Publisher,
    )
    world = cluster.world
    for stream in streams:
        publish(cluster, 3, "west/pub0", stream)
    settle(cluster)
    publish(cluster, 1, "west/pub0")
    world.crash("east/0")
    for second in range(20):
        if second == 2:
            world.restart("east/0")
        for _ in range(10):
            publish(cluster, 1, "west/pub0", "w")
            run(cluster, 100 * MS)
    if cluster.unacknowledged():
        return ["a publish waits for ever while others are acknowledged"]
    return heal_and_judge(cluster)


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("owner-tables-differ", differing_tables, mutations.TablesMayDiffer),
    ("owner-exactly-once", another_way, mutations.ForwardsUnderItsOwnName),
    ("owner-forged-ack", forged_acknowledgement, mutations.TakesAnybodysAck),
    ("owner-lost-forward", lost_forward, mutations.RepeatsOnlyInSilence),
]


@pytest.mark.slow
@each_scenario(SCENARIOS)
def test_owner_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@pytest.mark.slow
@each_scenario(SCENARIOS)
def test_owner_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []


def test_owner_is_reached_through_any_replica_and_after_a_change_of_its_head() -> None:
    """Any replica of west forwards publishes, also after the owner's head has changed."""
    cluster = cluster_of({"east": 3, "west": 3}, server=TABLE)
    world = cluster.world
    publish(cluster, 5, "west/pub0")
    settle(cluster)
    world.machine("west/pub0").target = 2
    publish(cluster, 5, "west/pub0")
    wait(cluster, lambda: not cluster.unacknowledged())
    assert cluster.counters["west/2"]["streams/PubAck"] == 5
    world.crash("east/0")
    publish(cluster, 20, "west/pub0")
    wait(cluster, lambda: not cluster.unacknowledged())
    assert heal_and_judge(cluster) == []
