"""Who owns what: creates and publishes through a region that does not own the stream.

PRODUCT §8.3. Each story is told with the machines as they are and, where a rule is at stake, with a
mutant that lacks it.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll, KeepLast
from surecast.core.types import MS, SECOND, Emit, Received, Send, SetTimer, Start, TimerFired
from surecast.protocols.sprinkler.checks import Record
from surecast.protocols.sprinkler.config import PublisherConfig
from surecast.protocols.sprinkler.messages import (
    Acked,
    CreateStream,
    Failed,
    OfferBatch,
    Open,
    Opened,
    PubAck,
    Publish,
    PubNack,
    StreamOpened,
)
from surecast.protocols.sprinkler.publisher import Publisher
from surecast.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import cluster_of, heal_and_judge, publish, run, settle, tell_each, wait

Story = Callable[[type | None], list[str]]
OWNERS = {"": "east", "w": "west", "w.n": "north"}
TABLE = {"owners": {"": "east"}}


def proxy(cluster: Cluster, node: str) -> Any:
    return cluster.world.machine(node).layers["sprinkler"]


# ---------------------------------------------------------------- creating


def test_owner_of_a_new_stream_is_by_the_table_wherever_it_is_asked_for() -> None:
    cluster = Cluster(1, {"east": 2, "west": 2, "north": 1}, proxy={"owners": OWNERS})
    owners = {"a.b": "east", "w": "west", "w.x": "west", "w.n.x": "north", "wn": "east"}
    for number, (name, owner) in enumerate(owners.items()):
        opener = ("east", "west", "north")[number % 3]
        cluster.open(name, owner, KeepAll(), 0, f"{opener}/pub0")
    wait(cluster, lambda: len(cluster.streams) == len(owners))  # it asserts the owner of each
    for name in owners:
        publish(cluster, 3, "north/pub0", name)
    assert heal_and_judge(cluster) == []
    assert cluster.counters["east/0"]["sprinkler/CreateStream"]


def test_owner_knows_a_stream_from_before_the_table() -> None:
    """Another region has the name: it stays there, whatever the table says now."""
    cluster = cluster_of({"east": 1, "west": 1, "north": 1}, {"w": ("east", KeepAll())})
    publish(cluster, 1, stream="w")
    for node in ("east/0", "west/0", "north/0"):
        object.__setattr__(proxy(cluster, node).config, "owners", OWNERS)
    cluster.world.at(cluster.world.now_ns, "north/pub0", Open("w", None))
    publish(cluster, 3, "north/pub0", "w")
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["w"].acked) == 4


def differing_tables(mutant: type | None) -> list[str]:
    """West believes that it owns what east believes to own: two streams of one name."""
    cluster = Cluster(
        1, {"east": 1, "west": 1}, **({"proxy_type": mutant} if mutant else {}), proxy={}
    )
    for region in ("east", "west"):
        machine = proxy(cluster, f"{region}/0")
        object.__setattr__(machine.config, "owners", {"": region})
        machine.owners = region.encode()
    run(cluster, SECOND)
    cluster.records["s"] = Record("s", KeepAll())
    cluster.owners["s"] = "east"
    for region, late_ns in (("east", 0), ("west", 2 * MS)):  # before they hear of each other's
        at_ns = cluster.world.now_ns + late_ns
        cluster.world.at(at_ns, f"{region}/pub0", Open("s", KeepAll()))
    made: dict[str, Any] = {}
    for region in ("east", "west"):
        cluster.world.on_emit(f"{region}/pub0", lambda _, name, event: made.update({name: event}))
    wait(cluster, lambda: len(made) == 2)
    if all(event.why == "owners-differ" for event in made.values()):
        return []
    return [f"{name}: {event.info.owner}" for name, event in made.items()]


def test_owner_retention_is_fixed_at_creation_wherever_it_is_asked_for() -> None:
    cluster = Cluster(1, {"east": 1, "west": 1}, proxy=TABLE)
    cluster.open("s", "east", KeepLast(5), 0, "west/pub0")
    wait(cluster, lambda: "s" in cluster.streams)
    world = cluster.world
    world.at(world.now_ns, "west/pub0", Open("s", KeepAll()))
    wait(cluster, lambda: bool(cluster.unopened))
    world.at(world.now_ns, "west/pub0", Open("s", None))  # whatever it has
    run(cluster, SECOND)
    assert [event.why for event in cluster.unopened] == ["config-mismatch"]
    assert cluster.unopened[0].info is not None
    assert cluster.unopened[0].info.retention == KeepLast(5)


def test_owner_moves_its_head_while_a_create_is_under_way() -> None:
    cluster = Cluster(1, {"east": 3, "west": 2}, proxy=TABLE)
    run(cluster, SECOND)
    cluster.world.crash("east/0")  # west still believes it to be the head
    cluster.open("s", "east", KeepAll(), cluster.world.now_ns, "west/pub0")
    wait(cluster, lambda: "s" in cluster.streams)
    publish(cluster, 5, "west/pub0")
    assert heal_and_judge(cluster) == []


def test_streams_that_are_being_created_count_against_the_bound() -> None:
    """A hundred at once, before the first is committed: no more than there is room for."""
    cluster = Cluster(1, {"east": 1, "west": 1}, proxy={**TABLE, "streams_max": 5})
    run(cluster, SECOND)
    for n in range(20):
        cluster.records[f"s{n}"] = Record(f"s{n}", KeepAll())
        cluster.owners[f"s{n}"] = "east"
        opener = ("east", "west")[n % 2]
        cluster.world.at(cluster.world.now_ns, f"{opener}/pub0", Open(f"s{n}", KeepAll()))
    wait(cluster, lambda: len(cluster.streams) + len(cluster.unopened) == 20)
    assert 0 < len(cluster.streams) <= 5
    assert {event.why for event in cluster.unopened} == {"too-many-streams"}


# ---------------------------------------------------------------- out of reach


def test_owner_unreachable_is_transient_and_then_final() -> None:
    cluster = cluster_of(
        {"east": 1, "west": 1}, proxy=TABLE, publishers=2, publisher={"owner_ns": 5 * SECOND}
    )
    world = cluster.world
    publish(cluster, 1, "west/pub0")
    settle(cluster)
    world.cut("east", "west")
    run(cluster, SECOND)
    publish(cluster, 1, "west/pub0")
    world.at(world.now_ns, "west/pub1", Open("t", KeepAll()))
    run(cluster, 2 * SECOND)
    assert not cluster.failed
    world.mend("east", "west")  # a cut that is over in time costs nothing but time
    cluster.records["t"] = Record("t", KeepAll())
    cluster.owners["t"] = "east"
    wait(cluster, lambda: "t" in cluster.streams and not cluster.unacknowledged())
    world.cut("east", "west")
    run(cluster, SECOND)
    publish(cluster, 2, "west/pub0")
    world.at(world.now_ns, "west/pub1", Open("u", KeepAll()))
    wait(cluster, lambda: len(cluster.failed) == 2 and bool(cluster.unopened))
    assert [failed.why for failed in cluster.failed] == ["owner-unreachable"] * 2
    assert [(e.name, e.why) for e in cluster.unopened] == [("u", "owner-unreachable")]
    world.mend("east", "west")
    run(cluster, SECOND)
    publish(cluster, 2, "west/pub0")  # under a new identity, as if nothing had been
    wait(cluster, lambda: not cluster.unacknowledged())
    assert len(cluster.records["s"].acked) == 4


# ---------------------------------------------------------------- exactly once


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_owner_takes_each_batch_once_across_failovers_on_either_side(seed: int) -> None:
    """Acknowledgements get lost with the owner's head, and with the replica that passed them on."""
    print(f"seed {seed}")
    rng = Random(seed)
    cluster = cluster_of({"east": 3, "west": 3}, seed=seed, proxy=TABLE, publishers=2)
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
    """The owner takes batches and its answers do not come back; they are retried another way."""
    cluster = cluster_of({"east": 1, "west": 3}, mutant=mutant, proxy=TABLE)
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
        return ["a retry that came another way was not known to be one"]
    assert world.machine("west/pub0").target != at
    return heal_and_judge(cluster)


def forged_acknowledgement(mutant: type | None) -> list[str]:
    """A client, having read who publishes, tells a server that the owner has taken a batch."""
    cluster = cluster_of({"east": 1, "west": 1}, mutant=mutant, proxy=TABLE)
    world, stream = cluster.world, cluster.streams["s"]
    publish(cluster, 3, "west/pub0")
    settle(cluster)
    world.cut("east", "west")
    publish(cluster, 1, "west/pub0")
    (line,) = world.machine("west/pub0").lines.values()
    lie = PubAck(stream, line.publisher, line.waiting[0].pub_no, 4)
    world.at(world.now_ns, "west/0", Received("west/liar", lie))
    run(cluster, 100 * MS)
    world.crash("west/pub0")  # it believes what it was told
    if not cluster.records["s"].acked.keys() >= {b"west/pub0-3"}:
        cluster.publishers.remove("west/pub0")
        return []
    cluster.publishers.remove("west/pub0")
    return ["an acknowledgement that the owner never gave"]


STORIES: list[tuple[str, Story, type]] = [
    ("owner-tables-differ", differing_tables, mutations.TablesMayDiffer),
    ("owner-exactly-once", another_way, mutations.ForwardsUnderItsOwnName),
    ("owner-forged-ack", forged_acknowledgement, mutations.TakesAnybodysAck),
]


@pytest.mark.slow
@tell_each(STORIES)
def test_owner_story_holds(story: Story, mutant: type) -> None:
    assert story(None) == []


@pytest.mark.slow
@tell_each(STORIES)
def test_owner_story_fails_without_the_rule(story: Story, mutant: type) -> None:
    assert story(mutant) != []


def test_owner_is_reached_through_any_replica_and_by_way_of_its_new_head() -> None:
    """West's replicas need not be head to pass publishes on, and follow the owner's head."""
    cluster = cluster_of({"east": 3, "west": 3}, proxy=TABLE)
    world = cluster.world
    publish(cluster, 5, "west/pub0")
    settle(cluster)
    world.machine("west/pub0").target = 2
    publish(cluster, 5, "west/pub0")
    wait(cluster, lambda: not cluster.unacknowledged())
    assert cluster.counters["west/2"]["sprinkler/PubAck"] == 5
    world.crash("east/0")
    publish(cluster, 20, "west/pub0")
    wait(cluster, lambda: not cluster.unacknowledged())
    assert heal_and_judge(cluster) == []


# ---------------------------------------------------------------- the publisher, step by step

STREAM = bytes(range(16))


class Steps:
    """A publisher, and what it does at each step."""

    def __init__(self, **options: Any) -> None:
        self.machine = Publisher(PublisherConfig(("w/0", "w/1"), **options), Random(1))
        self.now_ns = 0
        self.give(Start(1000 * SECOND, 1))

    def give(self, inp: Any) -> list[Any]:
        return [e for e in self.machine.step(self.now_ns, inp) if not isinstance(e, SetTimer)]

    def offer(self, token: int, count: int = 1) -> list[Any]:
        batch = Batch.of(STREAM, [b"v%d" % i for i in range(count)])
        return self.give(OfferBatch(STREAM, batch, token))

    def nack(self, batch: Batch, why: str, peer: str = "w/0", **more: Any) -> list[Any]:
        nack = PubNack(STREAM, batch.publisher, batch.pub_no, why, **more)
        return self.give(Received(peer, nack))


def sent(effects: list[Any]) -> list[tuple[str, int]]:
    return [(e.peer, e.message.batch.pub_no) for e in effects if isinstance(e.message, Publish)]


def test_an_offered_batch_is_answered_with_its_token() -> None:
    steps = Steps()
    (first,), (second,) = steps.offer(7, 3), steps.offer(8)
    batch = first.message.batch
    assert (batch.pub_no, second.message.batch.pub_no) == (1, 4)
    early = PubAck(STREAM, batch.publisher, 4, 20)  # overtakes: not yet
    assert steps.give(Received("w/0", early)) == []
    ack = PubAck(STREAM, batch.publisher, 1, 10)
    assert steps.give(Received("w/0", ack)) == [Emit(Acked(STREAM, 1, 3, 10, 7))]
    assert steps.give(Received("w/0", ack)) == []  # once
    assert steps.give(Received("w/0", early)) == [Emit(Acked(STREAM, 4, 1, 20, 8))]


def test_owner_out_of_reach_fails_what_waits_in_order_and_begins_anew() -> None:
    steps = Steps(owner_ns=10 * SECOND)
    (effect,) = steps.offer(7)
    steps.offer(8)
    batch = effect.message.batch
    assert steps.nack(batch, "owner-unreachable") == []
    steps.now_ns += 9 * SECOND
    assert steps.nack(batch, "owner-unreachable") == []
    assert sent(steps.give(TimerFired("again"))) == [("w/0", 1), ("w/0", 2)]  # the same, in order
    steps.now_ns += SECOND
    assert steps.nack(batch, "owner-unreachable") == [
        Emit(Failed(STREAM, 1, "owner-unreachable", 7)),
        Emit(Failed(STREAM, 2, "owner-unreachable", 8)),
    ]
    (fresh,) = steps.offer(9)
    assert fresh.message.batch.publisher != batch.publisher
    assert fresh.message.batch.pub_no == 1
    late = PubAck(STREAM, batch.publisher, 1, 10)  # of the batch that was given up
    assert steps.give(Received("w/0", late)) == []


def test_owner_that_is_back_in_between_starts_the_patience_anew() -> None:
    steps = Steps(owner_ns=10 * SECOND)
    (effect,) = steps.offer(7)
    batch = effect.message.batch
    steps.nack(batch, "owner-unreachable")
    steps.now_ns += 9 * SECOND
    steps.nack(batch, "busy")  # somebody answered
    steps.now_ns += 2 * SECOND
    assert steps.nack(batch, "owner-unreachable") == []
    assert steps.machine.unacknowledged == 1


def test_owner_out_of_reach_opening_a_stream_waits_and_then_fails() -> None:
    steps = Steps(owner_ns=10 * SECOND)
    assert steps.give(Open("s", None)) == [Send("w/0", CreateStream("s", None))]
    unreachable = Received("w/0", StreamOpened("s", None, "owner-unreachable"))
    assert steps.give(unreachable) == []
    steps.now_ns += 10 * SECOND
    assert steps.give(unreachable) == [Emit(Opened("s", None, "owner-unreachable"))]
    assert steps.machine.unacknowledged == 0


@pytest.mark.parametrize("why", ["owners-differ", "bad-name", "too-many-streams"])
def test_owner_refusals_that_will_not_pass_are_said_at_once(why: str) -> None:
    steps = Steps()
    steps.give(Open("s", None))
    opened = StreamOpened("s", None, why)
    assert steps.give(Received("w/0", opened)) == [Emit(Opened("s", None, why))]
