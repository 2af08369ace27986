"""The chain's state tables: every row is driven by hand, and a machine that leaves them is caught.

What the swarm's seeds meet of the tables is in tests/surecast_lab/swarm/test_transitions.py.
"""

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
from tests.protocols.chain.test_chain import LOG, Desk, beats, sequenced, stored_log
from tests.protocols.chain.test_service import Desk as ServiceDesk

S, L, V = ReplicaState, LearnerState, ServiceState
A, B, C = (Member(name, name.encode()) for name in "abc")

# Who is in the chain when `a` stands there; the epoch is the next one.
PLACES: dict[ReplicaState, tuple[str, ...]] = {
    S.OUTSIDE: ("b", "c"),
    S.HEAD: ("a", "b"),
    S.MIDDLE: ("b", "a", "c"),
    S.TAIL: ("b", "a"),
    S.NEW_TAIL: ("b", "a"),
    S.SOLE: ("a",),
    S.RECOVERING: ("a",),
}


def configure(desk: Desk, *names: str) -> None:
    """The next epoch has these members."""
    desk.found(desk.replica.epoch + 1, *names)


def rolled_back(desk: Desk) -> RolledBack:
    return RolledBack(desk.replica.saved.disk, desk.replica.serial + 10)


def reach(state: ReplicaState, replicas: int = 3, disk: MemoryDisk | None = None) -> Desk:
    """A replica in this state."""
    desk = Desk(disk=disk, replicas=replicas, min_replicas=1)
    if state is S.STARTING:
        return desk
    desk.write()
    if state is S.WAITING:
        return desk
    if state in (S.LEARNER, S.NEW_TAIL):
        configure(desk, *PLACES[S.OUTSIDE])
        desk.hear("c", SyncAck(desk.replica.epoch))
        if state is S.NEW_TAIL:
            configure(desk, *PLACES[state])
    else:
        configure(desk, *PLACES[state])
        if state is S.RECOVERING:
            desk.give(rolled_back(desk))
    desk.write()
    assert desk.replica.state is state
    return desk


def unclean_head() -> Desk:
    """It was alone, proposed a learner, and was then found to have an older copy of its disk."""
    desk = reach(S.RECOVERING)
    configure(desk, *PLACES[S.HEAD])
    return desk


def renounced(write: bool) -> Desk:
    """It knows the members of its chain, and has just taken a new identity."""
    desk = reach(S.OUTSIDE)
    desk.give(rolled_back(desk))
    if write:
        desk.write()
    return desk


def damaged_learner() -> Desk:
    """A learner whose log has a hole at 2, with what fills it on its way to the disk."""
    disk = stored_log(committed=6)
    disk.damage(LOG, 2, 3, "damaged")
    desk = reach(S.LEARNER, disk=disk)
    desk.hear("c", Forward(desk.replica.epoch, LOG, (sequenced(2),), 6))
    return desk


def by_configuration(before: ReplicaState, after: ReplicaState) -> Desk:
    if after is S.STARTING:
        desk = reach(before)
        service = Configuration("chain", 1, (A, B), behind=desk.replica.serial + 10)
        desk.hear("service", service)
        return desk
    if after is S.RECOVERING and before is S.WAITING:  # a chain of one whose disk is gone
        desk = reach(before, replicas=1)
        desk.hear("service", Configuration("chain", 1, (Member("a", b"lost"),)))
        desk.write()
        configure(desk, "a")
        return desk
    desk = unclean_head() if (before, after) == (S.HEAD, S.RECOVERING) else reach(before)
    if after is S.RECOVERING and before is not S.HEAD:
        desk.give(Refound())
        desk.write()
    configure(desk, *PLACES[after])
    return desk


def by_stale(before: ReplicaState, after: ReplicaState) -> Desk:
    if before in (S.STARTING, S.WAITING):
        desk = renounced(write=before is S.WAITING)
    else:
        desk = reach(before)
    if after is S.RECOVERING:
        desk.give(Refound())
        desk.write()
    epoch = desk.replica.epoch + 1
    desk.hear("b", Stale(epoch, desk.members(*PLACES[after])))
    return desk


def by_other(before: ReplicaState, inp: str, after: ReplicaState) -> Desk:
    if inp == "RolledBack":
        if before is S.RECOVERING:
            desk = by_configuration(S.WAITING, S.RECOVERING)
        else:  # a chain of one has no other replica that could go on
            desk = reach(before, replicas=1 if (before, after) == (S.SOLE, S.STARTING) else 3)
        desk.give(rolled_back(desk))
        return desk
    if inp.endswith("repair"):
        desk = damaged_learner()
        if inp == "StoreFailed repair":
            desk.refuse("io")
        else:
            desk.write()
        return desk
    desk = reach(before)
    epoch = desk.replica.epoch
    inputs: dict[str, Callable[[], None]] = {
        "Stored committed": desk.write,
        "SyncAck": lambda: desk.hear("c", SyncAck(epoch)),
        "PeerDown": lambda: desk.give(PeerDown("c")),
        "TimerFired beat": lambda: desk.wait(SECOND, writing=False),
        "Forward": lambda: desk.hear("c", Forward(epoch, LOG, (sequenced(5),), 1)),
        "TailToken": lambda: desk.hear("b", TailToken(epoch)),
        "Recovered": lambda: desk.give(Recovered()),
    }
    inputs[inp]()
    return desk


@pytest.mark.parametrize("row", list(REPLICA.rows()), ids=REPLICA.label)
def test_each_transition_of_a_replica(row: tuple[Any, str, Any]) -> None:
    before, inp, after = row
    if inp == "Configuration":
        desk = by_configuration(before, after)
    elif inp == "Stale":
        desk = by_stale(before, after)
    else:
        desk = by_other(before, inp, after)
    assert desk.replica.state is after
    assert desk.met[REPLICA.label(row)]


# ---------------------------------------------------------------- the last member and a learner


def with_learner(state: LearnerState) -> Desk:
    """`a`, the tail of (b, a), which c would join."""
    desk = Desk(replicas=3, min_replicas=1)
    desk.write()
    desk.found(1, "b", "a")
    desk.write()
    desk.hear("b", Forward(1, LOG, (sequenced(1),), 1))
    desk.write()
    if state is not L.NONE:
        desk.hear("c", Sync(1, C, {}, {}))
    if state in (L.GATED, L.PROPOSED):
        desk.hear("c", Ack(1, LOG, 2))
        desk.hear("c", PublishersKept(1, LOG))
        beats(desk, 100 * MS, "b", "c", writing=False)
    if state is L.PROPOSED:
        desk.write()
    assert desk.replica.learner_state is state
    return desk


def drive_learner(before: LearnerState, inp: str, after: LearnerState) -> Desk:
    desk = with_learner(before)
    if inp == "Sync":
        other = Member("c", b"another disk") if before is L.GATED else C
        desk.hear("c", Sync(1, other, {}, {}))
    elif inp == "Stored chain":
        desk.write()
    elif inp == "Configuration":
        desk.found(2, "b", "a")
    elif inp == "Stale":
        desk.hear("b", Stale(2, desk.members("b", "a")))
    elif inp == "RolledBack":
        desk.give(rolled_back(desk))
    elif after is L.GATED:
        desk.hear("c", Ack(1, LOG, 2))
        desk.hear("c", PublishersKept(1, LOG))
        beats(desk, 100 * MS, "b", "c", writing=False)
    else:
        beats(desk, SECOND, "b", writing=False)  # the learner is silent
    return desk


@pytest.mark.parametrize("row", list(LEARNER.rows()), ids=LEARNER.label)
def test_each_transition_of_a_tail_that_takes_in_a_learner(row: tuple[Any, str, Any]) -> None:
    desk = drive_learner(*row)
    assert desk.replica.learner_state is row[2]
    assert desk.met[LEARNER.label(row)]


# ---------------------------------------------------------------- the service


def service(state: ServiceState, *, founded: bool = True) -> ServiceDesk:
    desk = ServiceDesk()
    if founded and state is not V.UNFOUNDED:
        desk.watch(A, B, C)
        if state is not V.SAVING:
            desk.write()
    if state is V.RELEARNING:
        desk.disk.save(DAMAGE, b"the journal was cut short")
        desk = ServiceDesk(desk.disk)
    assert desk.service.state("chain") is state
    return desk


def hear(desk: ServiceDesk, member: Member, epoch: int = 0) -> None:
    members = (A, B, C) if epoch else ()
    desk.give(Received(member.name, Watch("chain", member, epoch=epoch, members=members)))


def drive_service(before: ServiceState, inp: str, after: ServiceState) -> ServiceDesk:
    if inp == "Start":
        desk = service(V.DECIDED)
        if after is V.RELEARNING:
            desk.disk.save(DAMAGE, b"the journal was cut short")
        return ServiceDesk(desk.disk)
    desk = service(before, founded=after is not V.UNFOUNDED)
    if inp == "Stored":
        desk.write()
    elif inp == "Propose" and before is V.UNFOUNDED:  # by an operator
        desk.give(Received("a", Propose("chain", 0, (A,), force=True)))
    elif inp == "Propose":
        desk.propose("a", 1, A, B)
    elif before is V.DECIDED:
        hear(desk, A, epoch=5)
    elif before is V.UNFOUNDED:
        desk.watch(A, B, C)
    else:
        for member in (A, B, C):
            hear(desk, member, epoch=5 if after is V.SAVING else 0)
    return desk


@pytest.mark.parametrize("row", list(SERVICE.rows()), ids=SERVICE.label)
def test_each_transition_of_the_service(row: tuple[Any, str, Any]) -> None:
    desk = drive_service(*row)
    assert desk.service.state("chain") is row[2]
    assert desk.met[SERVICE.label(row)]


# ---------------------------------------------------------------- what leaves the tables is caught


def test_a_new_tail_that_serves_before_the_old_one_has_stopped_is_caught() -> None:
    """The mutant's transition, OUTSIDE → TAIL, is not in the table. Its run is right otherwise."""

    def story(mutant: type | None) -> None:
        cluster = cluster_of({"east": 3, "west": 1}, mutant=mutant, validate=True)
        cluster.world.crash("east/2")
        wait(cluster, lambda: len(cluster.members("east")) == 2, 20 * SECOND)
        cluster.world.restart("east/2")
        wait(cluster, lambda: len(cluster.members("east")) == 3, 20 * SECOND)

    story(None)
    with pytest.raises(
        AssertionError, match=r"not? such transition.*Configuration → TAIL"
    ) as caught:
        story(mutations.ServesAtOnce)
    assert "east/2" in str(caught.value.__notes__)


BROKEN: dict[str, Callable[[Desk], None]] = {
    "committed 9": lambda desk: setattr(desk.replica.logs[LOG], "committed", 9),
    "on its way": lambda desk: setattr(desk.replica.logs[LOG], "end", 9),
    "miscounted": lambda desk: setattr(desk.replica, "pending_bytes", 9),
    "the epoch fell": lambda desk: setattr(desk.replica.saved, "epoch", 1),
    "waits for the token": lambda desk: setattr(desk.replica, "has_token", False),
    "beside others": lambda desk: desk.replica.holes.update({LOG: [(1, 2)]}),
    "unclean since": lambda desk: setattr(desk.replica.saved, "clean", False),
    "not the last member": lambda desk: setattr(desk.replica, "learner", desk.replica.follower),
    "gated without a learner": lambda desk: setattr(desk.replica, "join", "gating"),
    "nothing is gated": lambda desk: setattr(desk.replica.saved, "joining", True),
    "before it is on disk": lambda desk: desk.replica.follower.sent.update({LOG: 9}),  # type: ignore[union-attr]
    "given up without": lambda desk: setattr(desk.replica.logs[LOG], "committed", 1),
    "serial number fell": lambda desk: setattr(desk.replica, "serial_kept", 0),
}


@pytest.mark.parametrize("words", BROKEN)
def test_each_invariant_of_a_replica_can_fail(words: str) -> None:
    desk = reach(S.HEAD)
    configure(desk, "a", "b")
    epoch = desk.replica.epoch
    desk.hear("b", Sync(epoch, B, {}, {}))
    desk.submit()
    desk.write()
    desk.hear("b", Ack(epoch, LOG, 2))
    desk.replica.validate()
    BROKEN[words](desk)
    with pytest.raises(AssertionError, match=words):
        desk.replica.validate()


def test_a_learner_that_commits_by_itself_is_caught() -> None:
    desk = reach(S.LEARNER)
    desk.hear("c", Forward(desk.replica.epoch, LOG, (sequenced(1),), 1))
    desk.write()
    assert desk.replica.logs[LOG].committed == 1
    desk.replica.logs[LOG].committed = 2
    with pytest.raises(AssertionError, match="a learner has committed by itself"):
        desk.replica.validate()


def test_a_tail_that_commits_what_its_learner_lacks_is_caught() -> None:
    desk = with_learner(L.PROPOSED)
    desk.hear("b", Forward(1, LOG, (sequenced(2),), 1))
    desk.write()
    assert desk.replica.logs[LOG].committed == 2  # gated
    desk.replica.logs[LOG].committed = 3
    with pytest.raises(AssertionError, match="committed beyond what the learner has"):
        desk.replica.validate()


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
    desk = service(V.DECIDED)
    desk.service.validate()
    for name, value in change.items():
        setattr(desk.service.tables["chain"], name, value)
    with pytest.raises(AssertionError, match=words):
        desk.service.validate()


def test_a_service_that_tells_of_an_epoch_too_early_is_caught() -> None:
    desk = service(V.SAVING)
    desk.service._send("a", Configuration("chain", 1, (A, B, C)))
    with pytest.raises(AssertionError, match="sent before it is on disk"):
        desk.service.validate()
