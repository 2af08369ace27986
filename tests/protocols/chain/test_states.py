"""The chain's state tables: a test drives every row, and transitions outside a table are caught."""

from collections.abc import Callable
from typing import Any

import pytest

from surecast.core.replicated import Recovered, Refound, RolledBack
from surecast.core.types import DAMAGE, MS, SECOND, PeerDown, Received
from surecast.protocols.chain.messages import (
    Ack,
    Configuration,
    Forward,
    Member,
    Propose,
    PublishersKept,
    Stale,
    Sync,
    SyncAck,
    TailToken,
    Watch,
)
from surecast.protocols.chain.states import (
    LEARNER,
    REPLICA,
    SERVICE,
    LearnerState,
    ReplicaState,
    ServiceState,
)
from surecast.storage.memory import MemoryDisk
from tests import mutations
from tests.helpers import cluster_of, wait
from tests.protocols.chain.test_chain import LOG, Harness, beats, sequenced, stored_log
from tests.protocols.chain.test_service import ServiceHarness

S, L, V = ReplicaState, LearnerState, ServiceState
A, B, C = (Member(name, name.encode()) for name in "abc")

# State → members of the next epoch that puts `a` into this state.
PLACES: dict[ReplicaState, tuple[str, ...]] = {
    S.OUTSIDE: ("b", "c"),
    S.HEAD: ("a", "b"),
    S.MIDDLE: ("b", "a", "c"),
    S.TAIL: ("b", "a"),
    S.NEW_TAIL: ("b", "a"),
    S.SOLE: ("a",),
    S.RECOVERING: ("a",),
}


def configure(harness: Harness, *names: str) -> None:
    """The next epoch has these members."""
    harness.set_members(harness.replica.epoch + 1, *names)


def rolled_back(harness: Harness) -> RolledBack:
    return RolledBack(harness.replica.saved.disk, harness.replica.serial + 10)


def reach(state: ReplicaState, replicas: int = 3, disk: MemoryDisk | None = None) -> Harness:
    """A replica in this state."""
    harness = Harness(disk=disk, replicas=replicas, min_replicas=1)
    if state is S.STARTING:
        return harness
    harness.write()
    if state is S.WAITING:
        return harness
    if state in (S.LEARNER, S.NEW_TAIL):
        configure(harness, *PLACES[S.OUTSIDE])
        harness.receive("c", SyncAck(harness.replica.epoch))
        if state is S.NEW_TAIL:
            configure(harness, *PLACES[state])
    else:
        configure(harness, *PLACES[state])
        if state is S.RECOVERING:
            harness.give(rolled_back(harness))
    harness.write()
    assert harness.replica.state is state
    return harness


def unclean_head() -> Harness:
    """A head that does not have all logs: its disk was rolled back while it was the only member."""
    harness = reach(S.RECOVERING)
    configure(harness, *PLACES[S.HEAD])
    return harness


def renounced(write: bool) -> Harness:
    """A replica that knows the members of its chain and has just chosen a new identity."""
    harness = reach(S.OUTSIDE)
    harness.give(rolled_back(harness))
    if write:
        harness.write()
    return harness


def damaged_learner() -> Harness:
    """A learner whose log has a hole at 2; the repair of the hole is pending at the disk."""
    disk = stored_log(committed=6)
    disk.damage(LOG, 2, 3, "damaged")
    harness = reach(S.LEARNER, disk=disk)
    harness.receive("c", Forward(harness.replica.epoch, LOG, (sequenced(2),), 6))
    return harness


def by_configuration(before: ReplicaState, after: ReplicaState) -> Harness:
    if after is S.STARTING:
        harness = reach(before)
        service = Configuration("chain", 1, (A, B), behind=harness.replica.serial + 10)
        harness.receive("service", service)
        return harness
    if after is S.RECOVERING and before is S.WAITING:  # a chain of one whose disk is gone
        harness = reach(before, replicas=1)
        harness.receive("service", Configuration("chain", 1, (Member("a", b"lost"),)))
        harness.write()
        configure(harness, "a")
        return harness
    harness = unclean_head() if (before, after) == (S.HEAD, S.RECOVERING) else reach(before)
    if after is S.RECOVERING and before is not S.HEAD:
        harness.give(Refound())
        harness.write()
    configure(harness, *PLACES[after])
    return harness


def by_stale(before: ReplicaState, after: ReplicaState) -> Harness:
    if before in (S.STARTING, S.WAITING):
        harness = renounced(write=before is S.WAITING)
    else:
        harness = reach(before)
    if after is S.RECOVERING:
        harness.give(Refound())
        harness.write()
    epoch = harness.replica.epoch + 1
    harness.receive("b", Stale(epoch, harness.members(*PLACES[after])))
    return harness


def by_other(before: ReplicaState, inp: str, after: ReplicaState) -> Harness:
    if inp == "RolledBack":
        if before is S.RECOVERING:
            harness = by_configuration(S.WAITING, S.RECOVERING)
        else:  # a chain of one has no other replica that could go on
            harness = reach(before, replicas=1 if (before, after) == (S.SOLE, S.STARTING) else 3)
        harness.give(rolled_back(harness))
        return harness
    if inp.endswith("repair"):
        harness = damaged_learner()
        if inp == "StoreFailed repair":
            harness.fail_writes("io")
        else:
            harness.write()
        return harness
    harness = reach(before)
    epoch = harness.replica.epoch
    inputs: dict[str, Callable[[], None]] = {
        "Stored committed": harness.write,
        "SyncAck": lambda: harness.receive("c", SyncAck(epoch)),
        "PeerDown": lambda: harness.give(PeerDown("c")),
        "TimerFired beat": lambda: harness.wait(SECOND, writing=False),
        "Forward": lambda: harness.receive("c", Forward(epoch, LOG, (sequenced(5),), 1)),
        "TailToken": lambda: harness.receive("b", TailToken(epoch)),
        "Recovered": lambda: harness.give(Recovered()),
    }
    inputs[inp]()
    return harness


@pytest.mark.parametrize("row", list(REPLICA.rows()), ids=REPLICA.label)
def test_each_transition_of_a_replica(row: tuple[Any, str, Any]) -> None:
    before, inp, after = row
    if inp == "Configuration":
        harness = by_configuration(before, after)
    elif inp == "Stale":
        harness = by_stale(before, after)
    else:
        harness = by_other(before, inp, after)
    assert harness.replica.state is after
    assert harness.transitions[REPLICA.label(row)]


# ---------------------------------------------------------------- the last member and a learner


def with_learner(state: LearnerState) -> Harness:
    """`a`, the tail of (b, a), with c as a learner."""
    harness = Harness(replicas=3, min_replicas=1)
    harness.write()
    harness.set_members(1, "b", "a")
    harness.write()
    harness.receive("b", Forward(1, LOG, (sequenced(1),), 1))
    harness.write()
    if state is not L.NONE:
        harness.receive("c", Sync(1, C, {}, {}))
    if state in (L.GATED, L.PROPOSED):
        harness.receive("c", Ack(1, LOG, 2))
        harness.receive("c", PublishersKept(1, LOG))
        beats(harness, 100 * MS, "b", "c", writing=False)
    if state is L.PROPOSED:
        harness.write()
    assert harness.replica.learner_state is state
    return harness


def drive_learner(before: LearnerState, inp: str, after: LearnerState) -> Harness:
    harness = with_learner(before)
    if inp == "Sync":
        other = Member("c", b"another disk") if before is L.GATED else C
        harness.receive("c", Sync(1, other, {}, {}))
    elif inp == "Stored chain":
        harness.write()
    elif inp == "Configuration":
        harness.set_members(2, "b", "a")
    elif inp == "Stale":
        harness.receive("b", Stale(2, harness.members("b", "a")))
    elif inp == "RolledBack":
        harness.give(rolled_back(harness))
    elif after is L.GATED:
        harness.receive("c", Ack(1, LOG, 2))
        harness.receive("c", PublishersKept(1, LOG))
        beats(harness, 100 * MS, "b", "c", writing=False)
    else:
        beats(harness, SECOND, "b", writing=False)  # the learner is silent
    return harness


@pytest.mark.parametrize("row", list(LEARNER.rows()), ids=LEARNER.label)
def test_each_transition_of_a_tail_with_a_learner(row: tuple[Any, str, Any]) -> None:
    harness = drive_learner(*row)
    assert harness.replica.learner_state is row[2]
    assert harness.transitions[LEARNER.label(row)]


# ---------------------------------------------------------------- the service


def service(state: ServiceState, *, founded: bool = True) -> ServiceHarness:
    harness = ServiceHarness()
    if founded and state is not V.UNFOUNDED:
        harness.watch(A, B, C)
        if state is not V.SAVING:
            harness.write()
    if state is V.RELEARNING:
        harness.disk.save(DAMAGE, b"the journal was cut short")
        harness = ServiceHarness(harness.disk)
    assert harness.service.state("chain") is state
    return harness


def watch(harness: ServiceHarness, member: Member, epoch: int = 0) -> None:
    members = (A, B, C) if epoch else ()
    harness.give(Received(member.name, Watch("chain", member, epoch=epoch, members=members)))


def drive_service(before: ServiceState, inp: str, after: ServiceState) -> ServiceHarness:
    if inp == "Start":
        harness = service(V.DECIDED)
        if after is V.RELEARNING:
            harness.disk.save(DAMAGE, b"the journal was cut short")
        return ServiceHarness(harness.disk)
    harness = service(before, founded=after is not V.UNFOUNDED)
    if inp == "Stored":
        harness.write()
    elif inp == "Propose" and before is V.UNFOUNDED:  # by an operator
        harness.give(Received("a", Propose("chain", 0, (A,), force=True)))
    elif inp == "Propose":
        harness.propose("a", 1, A, B)
    elif before is V.DECIDED:
        watch(harness, A, epoch=5)
    elif before is V.UNFOUNDED:
        harness.watch(A, B, C)
    else:
        for member in (A, B, C):
            watch(harness, member, epoch=5 if after is V.SAVING else 0)
    return harness


@pytest.mark.parametrize("row", list(SERVICE.rows()), ids=SERVICE.label)
def test_each_transition_of_the_service(row: tuple[Any, str, Any]) -> None:
    harness = drive_service(*row)
    assert harness.service.state("chain") is row[2]
    assert harness.transitions[SERVICE.label(row)]


# ---------------------------------------------------------------- violations are caught


def test_a_new_tail_that_serves_before_the_old_one_has_stopped_is_caught() -> None:
    """The mutant's transition to TAIL is not in the table. No guarantee is broken otherwise."""

    def scenario(mutant: type | None) -> None:
        cluster = cluster_of({"east": 3, "west": 1}, mutant=mutant, validate=True)
        cluster.world.crash("east/2")
        wait(cluster, lambda: len(cluster.members("east")) == 2, 20 * SECOND)
        cluster.world.restart("east/2")
        wait(cluster, lambda: len(cluster.members("east")) == 3, 20 * SECOND)

    scenario(None)
    with pytest.raises(
        AssertionError, match=r"not? such transition.*Configuration → TAIL"
    ) as caught:
        scenario(mutations.ServesAtOnce)
    assert "east/2" in str(caught.value.__notes__)


BROKEN: dict[str, Callable[[Harness], None]] = {
    "committed 9": lambda harness: setattr(harness.replica.logs[LOG], "committed", 9),
    "neither on disk": lambda harness: setattr(harness.replica.logs[LOG], "end", 9),
    "miscounted": lambda harness: setattr(harness.replica, "pending_bytes", 9),
    "the epoch fell": lambda harness: setattr(harness.replica.saved, "epoch", 1),
    "waits for the token": lambda harness: setattr(harness.replica, "has_token", False),
    "but is not alone": lambda harness: harness.replica.holes.update({LOG: [(1, 2)]}),
    "no epoch of the loss": lambda harness: setattr(harness.replica.saved, "clean", False),
    "only the last member may": lambda harness: setattr(
        harness.replica, "learner", harness.replica.follower
    ),
    "gated without a learner": lambda harness: setattr(harness.replica, "join", "gating"),
    "nothing is gated": lambda harness: setattr(harness.replica.saved, "joining", True),
    "before it is on disk": lambda harness: harness.replica.follower.sent.update({LOG: 9}),  # type: ignore[union-attr]
    "given up without": lambda harness: setattr(harness.replica.logs[LOG], "committed", 1),
    "serial number fell": lambda harness: setattr(harness.replica, "serial_kept", 0),
}


@pytest.mark.parametrize("words", BROKEN)
def test_each_invariant_of_a_replica_can_fail(words: str) -> None:
    harness = reach(S.HEAD)
    configure(harness, "a", "b")
    epoch = harness.replica.epoch
    harness.receive("b", Sync(epoch, B, {}, {}))
    harness.submit()
    harness.write()
    harness.receive("b", Ack(epoch, LOG, 2))
    harness.replica.validate()
    BROKEN[words](harness)
    with pytest.raises(AssertionError, match=words):
        harness.replica.validate()


def test_a_learner_that_commits_by_itself_is_caught() -> None:
    harness = reach(S.LEARNER)
    harness.receive("c", Forward(harness.replica.epoch, LOG, (sequenced(1),), 1))
    harness.write()
    assert harness.replica.logs[LOG].committed == 1
    harness.replica.logs[LOG].committed = 2
    with pytest.raises(AssertionError, match="a learner has committed by itself"):
        harness.replica.validate()


def test_a_tail_that_commits_what_its_learner_lacks_is_caught() -> None:
    harness = with_learner(L.PROPOSED)
    harness.receive("b", Forward(1, LOG, (sequenced(2),), 1))
    harness.write()
    assert harness.replica.logs[LOG].committed == 2  # gated
    harness.replica.logs[LOG].committed = 3
    with pytest.raises(AssertionError, match="committed beyond what the learner has"):
        harness.replica.validate()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epoch": 0}, "epoch 0 with members"),
        ({"members": (A, A)}, "a member twice"),
        ({"members": (Member("z", b"z"),)}, "not replicas"),
        ({"candidates": [A]}, "candidates of a chain that is founded"),
    ],
)
def test_each_invariant_of_the_service_can_fail(change: dict[str, Any], words: str) -> None:
    harness = service(V.DECIDED)
    harness.service.validate()
    for name, value in change.items():
        setattr(harness.service.tables["chain"], name, value)
    with pytest.raises(AssertionError, match=words):
        harness.service.validate()


def test_a_service_that_sends_an_epoch_too_early_is_caught() -> None:
    harness = service(V.SAVING)
    harness.service._send("a", Configuration("chain", 1, (A, B, C)))
    with pytest.raises(AssertionError, match="sent before it is on disk"):
        harness.service.validate()
