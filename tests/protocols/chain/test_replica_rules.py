"""Rules that one replica keeps in rare cases: each scenario runs with the rule and without it.

A scenario drives a replica step by step and returns the problems that a publisher, a reader or an
operator would see. The mutants that lack a rule are in `tests/mutations.py`.
"""

from collections.abc import Callable
from typing import Any

from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.core.replicated import (
    CompactLog,
    Recovered,
    Refound,
    RoleChanged,
    Submit,
    Submitted,
    Truncated,
)
from surecast.core.types import MS, SECOND, Append, Command
from surecast.protocols.chain.dedup import Dedup
from surecast.protocols.chain.messages import (
    Ack,
    Configuration,
    Forward,
    Member,
    Propose,
    Publishers,
    PublishersKept,
    Sync,
    SyncAck,
)
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import cluster_of, each_scenario, heal_and_judge, publish, run, settle, wait
from tests.protocols.chain.test_chain import LOG, Harness, beats, founded, sequenced

Scenario = Callable[[type | None], list[str]]
OTHER = bytes(8) + b"bob's id"
B = Member("b", b"b")


def resubmit(harness: Harness, batch: Batch, token: str) -> list[Submitted]:
    """Publish a batch again; returns the acknowledgements that follow."""
    again = Batch.of(
        LOG,
        [row.value for row in batch.to_rows()],
        publisher=batch.publisher,
        pub_no=batch.pub_no,
    )
    harness.take_emitted(Submitted)
    harness.give(Submit(LOG, again, token))
    harness.write()
    return harness.take_emitted(Submitted)


# ---------------------------------------------------------------- learners


def gate_stays_shut(mutant: type | None) -> list[str]:
    """The tail waits for a learner that keeps its session alive and stores nothing more."""
    harness = founded(1, "a", replicas=2, min_replicas=1, replica_type=mutant)
    for _ in range(2):
        harness.submit()
    harness.write()
    harness.receive("b", Sync(1, B, {}, {}))
    harness.receive("b", PublishersKept(1, LOG))
    harness.receive("b", Ack(1, LOG, 2))  # one position is missing, and stays so
    beats(harness, 100 * MS, "b")
    harness.take_emitted(Submitted)
    token = harness.submit()
    harness.write()
    beats(harness, SECOND, "b")
    assert harness.take_emitted(Submitted) == []  # the gate is shut
    beats(harness, 4 * harness.replica.config.suspect_ns, "b")
    if harness.take_emitted(Submitted) != [Submitted(token, 3)]:
        return ["a publish still waits for a learner that makes no progress"]
    return []


def learner_of_an_unclean_chain(mutant: type | None) -> list[str]:
    """R8: the only member lost its disk and rebuilds its logs; another replica asks to join."""
    harness = Harness(replicas=2, min_replicas=1, replica_type=mutant)
    harness.write()
    harness.receive("service", Configuration("chain", 3, (Member("a", b"lost"),)))
    harness.give(Refound())  # the operator says that no other copy is left in this region
    harness.write()
    harness.receive("service", Configuration("chain", 4, harness.members("a"), 1))
    harness.write()
    assert harness.take_emitted(RoleChanged)[-1].clean is False
    harness.take_sent(Propose)
    harness.receive("b", Sync(4, B, {}, {}))
    beats(harness, SECOND, "b")
    if any(B in proposal.members for _, proposal in harness.take_sent(Propose)):
        return ["a learner was proposed before the lost logs were rebuilt"]
    harness.give(Recovered())
    beats(harness, SECOND, "b")
    assert ("service", Propose("chain", 4, harness.members("a", "b"))) in harness.take_sent(Propose)
    return []


def members(cluster: Cluster) -> list[str]:
    return [member.name for member in cluster.members("east")]


def joins_before_recovery(mutant: type | None) -> list[str]:
    """R8: east lost both disks. Its head has fetched all events of west and cannot reach north,
    which has more. The second replica starts, and then the head fails."""
    cluster = cluster_of(
        {"east": 2, "west": 1, "north": 1},
        mutant=mutant,
        publishers=2,
        chain={"min_replicas": 1},
    )
    world = cluster.world
    publish(cluster, 5)
    settle(cluster)
    world.cut("west", "east")
    world.cut("west", "north")
    publish(cluster, 5)
    wait(cluster, lambda: cluster.position("north/sub0", "s") == 11)
    world.crash("east/pub0")  # its events are acknowledged; a retry would not change anything
    world.cut("north", "east")
    for node in ("east/0", "east/1"):
        world.crash(node)
        world.wipe(node)
        world.restart(node)
    world.mend("west", "east")
    run(cluster, SECOND)
    world.at(world.now_ns, "east/0", Command("chain", Refound()))
    wait(cluster, lambda: world.disk("east/0").end(cluster.streams["s"]) == 6)
    run(cluster, 2 * SECOND)
    assert members(cluster) == ["east/0"] or mutant
    world.crash("east/0")
    run(cluster, 2 * SECOND)
    publish(cluster, 3, "east/pub1")
    run(cluster, SECOND)
    return heal_and_judge(cluster)


# ---------------------------------------------------------------- the publishers' state


def compaction_after_a_fork(mutant: type | None) -> list[str]:
    """R4: the saved publishers' state covers a truncated suffix. Other events are stored at those
    positions and compacted; after a restart their publisher retries one of them."""
    harness = founded(replica_type=mutant)
    for _ in range(7):
        harness.submit()
    harness.write()
    harness.receive("b", Ack(1, LOG, 5))
    harness.give(CompactLog(LOG, 1, 4, encode_voids({COLLECTED: IntervalSet([(1, 3)])}), 4096))
    harness.write()  # saves the publishers' state as of position 8
    harness.set_members(2, "b")
    harness.write()
    assert harness.take_emitted(Truncated) == [Truncated(LOG, 5)]
    others = tuple(sequenced(lo, pub_no=lo - 4, publisher=OTHER) for lo in (5, 6, 7))
    harness.receive("b", Forward(2, LOG, others, 8))
    harness.write()
    harness.give(CompactLog(LOG, 4, 8, encode_voids({COLLECTED: IntervalSet([(5, 7)])}), 4096))
    harness.write()
    harness.wait(SECOND)  # the publishers' state is not saved for each compaction at once
    left = [row.seq for b in harness.disk.read(LOG, 4, 8, 1 << 20) for row in b.to_rows()]
    assert left == [4, 7]
    again = Harness(disk=harness.disk, min_replicas=1, replica_type=mutant)
    again.write()
    again.set_members(3, "a")  # an operator goes on from this replica
    again.write()
    if resubmit(again, others[0], "retry") != [Submitted("retry", 5)]:
        return ["a retry of a compacted event was not recognised"]
    return []


def state_ahead_of_its_log(mutant: type | None) -> list[str]:
    """The publishers' state is saved, but the append of the batches it names is lost in a crash.
    The replica becomes head, and the publisher retries the lost batches."""
    known = Dedup(64, 10**18)
    for lo in range(1, 4):
        known.note(sequenced(lo))
    harness = founded(1, "b", "a", min_replicas=1, replica_type=mutant)
    harness.receive("b", Forward(1, LOG, (sequenced(1),), 1))
    harness.write()
    harness.receive("b", Forward(1, LOG, (sequenced(2), sequenced(3)), 1))
    harness.receive("b", Publishers(1, LOG, 4, known.snapshot(4)))
    harness.disk_queue = [effect for effect in harness.disk_queue if not isinstance(effect, Append)]
    harness.write()
    again = Harness(disk=harness.disk, min_replicas=1, replica_type=mutant)
    again.write()
    again.set_members(2, "a")
    again.write()
    assert again.disk.end(LOG) == 2
    if resubmit(again, sequenced(2), "retry") != [Submitted("retry", 2)]:
        return ["a batch that was lost in the crash was taken for a duplicate"]
    ((value,),) = [[row.value for row in b.to_rows()] for b in again.disk.read(LOG, 2, 3, 1)]
    return [] if value == b"event 2" else [f"position 2 holds {value!r}"]


# ---------------------------------------------------------------- a head that lost part of its log


def successor_ahead(mutant: type | None) -> list[str]:
    """The head's disk lost positions 3 and 4, which were acknowledged. Its successor has them."""
    harness = founded(replica_type=mutant)
    for _ in range(2):
        harness.submit()
    harness.write()
    harness.receive("b", Sync(1, B, {LOG: 5}, {LOG: 5}))
    problems = []
    if harness.take_sent(Propose) != [("service", Propose("chain", 1, (B,)))]:
        problems.append("a head that lost part of its log did not ask to be removed")
    if harness.take_sent(SyncAck):
        problems.append("the successor was acknowledged as synchronised")
    harness.take_emitted(Submitted)
    token = harness.submit()
    harness.write()
    if harness.take_sent(Forward):
        harness.receive("b", Ack(1, LOG, 5))  # it has those positions already
    if Submitted(token, 3) in harness.take_emitted(Submitted):
        problems.append("a new event was acknowledged at a position that holds another")
    return problems


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("gate-is-given-up", gate_stays_shut, mutations.WaitsForLearnersForever),
    ("r8-learner-waits", learner_of_an_unclean_chain, mutations.TakesLearnersUnclean),
    ("r8-join", joins_before_recovery, mutations.TakesLearnersUnclean),
    ("r4-fork", compaction_after_a_fork, mutations.TrustsForkedSnapshots),
    ("restart-forgets-lost", state_ahead_of_its_log, mutations.RemembersLostBatches),
    ("successor-ahead", successor_ahead, mutations.OverlooksSuccessorAhead),
]


@each_scenario(SCENARIOS)
def test_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []


def test_a_learner_with_a_longer_log_is_not_proposed() -> None:
    harness = founded(1, "a", replicas=2, min_replicas=1)
    harness.submit()
    harness.write()
    harness.receive("b", Sync(1, B, {LOG: 5}, {}))
    harness.receive("b", PublishersKept(1, LOG))
    beats(harness, SECOND, "b")
    sent: list[Any] = [type(message) for _, message in harness.sent]
    assert SyncAck not in sent
    assert Propose not in sent
