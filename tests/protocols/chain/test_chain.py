"""The chain: one replica step by step on a hand-driven disk, and small clusters under failures.

`test_rules.py` has the rules R1-R6 and their mutants; here is how the parts behave.
"""

from collections import Counter
from random import Random
from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, Batch, coalesce
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import KeepAll, KeepLast
from surecast.core.replicated import Committed, Refused, RoleChanged, Submit, Submitted, Truncated
from surecast.core.states import watched
from surecast.core.types import (
    MS,
    SECOND,
    Append,
    Compact,
    Compacted,
    Emit,
    Received,
    Repair,
    SaveState,
    Send,
    SetTimer,
    Start,
    Stored,
    StoreFailed,
    TimerFired,
    Truncate,
)
from surecast.protocols.chain.config import ChainConfig
from surecast.protocols.chain.dedup import Dedup
from surecast.protocols.chain.messages import (
    Ack,
    Beat,
    Configuration,
    Forward,
    Member,
    Propose,
    Publishers,
    PublishersKept,
    Stale,
    Sync,
    SyncAck,
    TailToken,
    Watch,
)
from surecast.protocols.chain.replica import Replica
from surecast.protocols.streams.messages import Publish
from surecast.storage.memory import MemoryDisk
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import cluster_of, heal_and_judge, publish, run, settle, wait

LOG = bytes(range(16))
PUBLISHER = bytes(8) + b"ann's id"  # named: it never expires
STORAGE = (Append, SaveState, Truncate, Compact, Repair)


class Desk:
    """One replica on a disk that writes when it is told to.

    Its state table and invariants are checked after every step, unless it is a mutant.
    """

    def __init__(
        self,
        name: str = "a",
        disk: MemoryDisk | None = None,
        replica_type: type[Replica] | None = None,
        **options: Any,
    ) -> None:
        self.disk = disk or MemoryDisk()
        config = ChainConfig("chain", name, "service", **options)
        self.replica = (replica_type or Replica)(config, self.disk, Random(name))
        self.met: Counter[str] = Counter()  # transitions, by label
        self.step = self.replica.step if replica_type else watched(self.replica, self.met)
        self.now_ns = 0
        self.sent: list[tuple[str, Any]] = []
        self.said: list[Any] = []  # to the layer above
        self.asked: list[Any] = []  # of the disk, and not done
        self.timers: dict[Any, int] = {}
        self.pub_no = 1
        self.give(Start(0, 1))

    def give(self, inp: Any) -> None:
        for effect in self.step(self.now_ns, inp):
            if isinstance(effect, Send):
                self.sent.append((effect.peer, effect.message))
            elif isinstance(effect, Emit):
                self.said.append(effect.event)
            elif isinstance(effect, SetTimer):
                self.timers[effect.key] = effect.at_ns
            else:
                assert isinstance(effect, STORAGE), effect
                self.asked.append(effect)

    def write(self) -> None:
        """Let the disk do what it was asked to, and what follows from that."""
        while self.asked:
            effect = self.asked.pop(0)
            if isinstance(effect, Append):
                self.disk.append(effect.log, effect.batches)
            elif isinstance(effect, SaveState):
                self.disk.save(effect.name, effect.data)
            elif isinstance(effect, Repair):
                self.disk.repair(effect.log, effect.batches)
            elif isinstance(effect, Truncate):
                self.disk.truncate(effect.log, effect.end)
                continue
            elif isinstance(effect, Compact):
                self.disk.ask(effect)
                self.disk.show(effect.token)
                self.give(Compacted(effect.token))
                continue
            self.give(Stored(effect.token))

    def refuse(self, reason: str = "full") -> list[Any]:
        """Let everything asked of the disk fail."""
        asked, self.asked = self.asked, []
        for effect in asked:
            self.give(StoreFailed(effect.token, reason))
        return asked

    def wait(self, for_ns: int, writing: bool = True) -> None:
        """Let time pass; timers fire in their order."""
        end_ns = self.now_ns + for_ns
        while self.timers and min(self.timers.values()) <= end_ns:
            key = min(self.timers, key=lambda k: self.timers[k])
            self.now_ns = max(self.now_ns, self.timers.pop(key))
            self.give(TimerFired(key))
            if writing:
                self.write()
        self.now_ns = end_ns

    def hear(self, peer: str, message: Any) -> None:
        self.give(Received(peer, message))

    def found(self, epoch: int, *names: str) -> None:
        """The service says who is in the chain."""
        self.hear("service", Configuration("chain", epoch, self.members(*names)))

    def members(self, *names: str) -> tuple[Member, ...]:
        me = self.replica.me
        return tuple(me if n == me.name else Member(n, n.encode()) for n in names)

    def submit(self, count: int = 1, publisher: bytes = PUBLISHER) -> str:
        """Publish `count` events in one batch; the token is their first number."""
        values = [f"event {self.pub_no + i}".encode() for i in range(count)]
        batch = Batch.of(LOG, values, publisher=publisher, pub_no=self.pub_no)
        token = f"publish {self.pub_no}"
        self.pub_no += count
        self.give(Submit(LOG, batch, token))
        return token

    def tell(self, kind: type) -> list[Any]:
        """Take what was sent of a kind so far, as (peer, message)."""
        found = [(p, m) for p, m in self.sent if type(m) is kind]
        self.sent = [(p, m) for p, m in self.sent if type(m) is not kind]
        return found

    def answers(self, kind: type) -> list[Any]:
        found = [event for event in self.said if type(event) is kind]
        self.said = [event for event in self.said if type(event) is not kind]
        return found


def founded(epoch: int = 1, *names: str, **options: Any) -> Desk:
    """A member of a chain, its identity on disk."""
    desk = Desk(**options)
    desk.write()
    desk.found(epoch, *(names or ("a", "b")))
    desk.write()
    desk.sent.clear()
    return desk


def sequenced(lo: int, count: int = 1, pub_no: int = 0, publisher: bytes = PUBLISHER) -> Batch:
    values = [f"event {lo + i}".encode() for i in range(count)]
    batch = Batch.of(LOG, values, publisher=publisher, pub_no=pub_no or lo)
    return batch.sequenced(lo, 1, 1)


# ---------------------------------------------------------------- the path of a batch


def test_the_head_stores_then_forwards_then_acknowledges() -> None:
    desk = founded()
    desk.hear("b", Sync(1, Member("b", b"b"), {}, {}))
    desk.sent.clear()
    token = desk.submit(3)
    assert desk.tell(Forward) == []  # nothing leaves before it is on disk
    desk.write()
    ((peer, forward),) = desk.tell(Forward)
    assert (peer, forward.batches[0].lo, forward.batches[-1].hi) == ("b", 1, 4)
    assert desk.answers(Submitted) == []
    desk.hear("b", Ack(1, LOG, 4))
    assert desk.answers(Submitted) == [Submitted(token, 1)]
    assert desk.answers(Committed)[-1] == Committed(LOG, 4)


def test_a_successors_ack_never_commits_more_than_we_have_on_disk() -> None:
    desk = founded()
    desk.submit()
    desk.hear("b", Ack(1, LOG, 99))
    assert desk.answers(Submitted) == []
    desk.write()
    desk.hear("b", Ack(1, LOG, 99))
    assert len(desk.answers(Submitted)) == 1


def test_the_tail_commits_what_it_stored_and_tells_its_predecessor() -> None:
    desk = founded(1, "b", "a")
    desk.hear("b", Forward(1, LOG, (sequenced(1, 2),), 1))
    assert desk.tell(Ack) == []
    desk.write()
    assert desk.tell(Ack) == [("b", Ack(1, LOG, 3))]
    assert desk.answers(Committed)[-1] == Committed(LOG, 3)


def test_a_middle_passes_on_what_it_stored_and_waits_for_the_tail() -> None:
    desk = founded(1, "b", "a", "c")
    desk.hear("c", Sync(1, Member("c", b"c"), {}, {}))
    desk.sent.clear()
    desk.hear("b", Forward(1, LOG, (sequenced(1),), 1))
    desk.write()
    assert [peer for peer, _ in desk.tell(Forward)] == ["c"]
    assert desk.tell(Ack) == []
    desk.hear("c", Ack(1, LOG, 2))
    assert desk.tell(Ack) == [("b", Ack(1, LOG, 2))]


def test_a_gap_in_what_is_forwarded_is_asked_for_again() -> None:
    desk = founded(1, "b", "a")
    desk.hear("b", Forward(1, LOG, (sequenced(1),), 1))
    desk.write()
    desk.sent.clear()
    desk.hear("b", Forward(1, LOG, (sequenced(5),), 1))
    assert desk.asked == []
    ((peer, sync),) = desk.tell(Sync)
    assert (peer, sync.ends) == ("b", {LOG: 2})


def test_what_is_here_already_is_not_appended_again() -> None:
    desk = founded(1, "b", "a")
    desk.hear("b", Forward(1, LOG, (sequenced(1, 3),), 1))
    desk.write()
    desk.hear("b", Forward(1, LOG, (sequenced(1, 3), sequenced(4)), 1))
    (append,) = desk.asked
    assert [batch.lo for batch in append.batches] == [4]
    desk.write()
    assert desk.disk.end(LOG) == 5


@pytest.mark.parametrize(
    "message",
    [
        Forward(1, LOG, (sequenced(1),), 1),
        Ack(1, LOG, 9),
        Beat(1),
        Sync(1, Member("b", b"b"), {}, {}),
        SyncAck(1),
        Publishers(1, LOG, 1, b"\x90"),
        PublishersKept(1, LOG),
        TailToken(1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_an_old_epoch_says_is_answered_stale_and_ignored(message: Any) -> None:
    desk = founded(2, "b", "a")
    desk.hear("b", message)
    assert desk.asked == []
    assert desk.tell(Stale) == [("b", Stale(2, desk.members("b", "a")))]


def test_only_the_head_takes_publishes() -> None:
    desk = founded(1, "b", "a")
    token = desk.submit()
    assert desk.answers(Refused) == [Refused(token, "not-head")]


def test_publishes_under_way_are_refused_when_another_is_head() -> None:
    desk = founded()
    token = desk.submit()
    desk.write()
    desk.found(2, "b")
    assert desk.answers(Refused) == [Refused(token, "not-head")]


# ---------------------------------------------------------------- how many make a chain


def test_too_few_replicas_refuse_publishes() -> None:
    desk = founded(1, "a", replicas=3)
    token = desk.submit()
    assert desk.answers(Refused) == [Refused(token, "too-few-replicas")]
    assert desk.asked == []
    desk.pub_no = 1
    desk.found(2, "a", "b")
    desk.submit()
    assert desk.answers(Refused) == []


@pytest.mark.parametrize(
    ("replicas", "min_replicas", "taken"),
    [(1, 0, True), (2, 0, False), (3, 1, True), (3, 3, False)],
)
def test_how_many_are_too_few(replicas: int, min_replicas: int, taken: bool) -> None:
    desk = founded(1, "a", replicas=replicas, min_replicas=min_replicas)
    desk.submit()
    assert (desk.answers(Refused) == []) is taken


def test_the_last_member_neither_leaves_nor_is_dropped() -> None:
    desk = founded(1, "a", replicas=1, store_retries_max=2)
    desk.submit()
    for _ in range(20):
        desk.refuse("io")
        desk.wait(200 * MS, writing=False)
    assert desk.tell(Propose) == []
    desk.write()
    assert len(desk.answers(Submitted)) == 1


# ---------------------------------------------------------------- restarting


def stored_log(committed: int) -> MemoryDisk:
    """The disk of `a`, head of (a, b) in epoch 3: five events, `committed` known to be so."""
    desk = founded(3)
    for _ in range(5):
        desk.submit()
    desk.write()
    desk.hear("b", Ack(3, LOG, committed))
    desk.wait(SECOND)
    return desk.disk


def test_a_restart_in_the_same_epoch_keeps_the_log_whole() -> None:
    """The persisted `committed` may lag: what lies above may have been acknowledged."""
    desk = Desk(disk=stored_log(committed=3))
    desk.write()
    desk.found(3, "a", "b")
    desk.write()
    assert desk.answers(Truncated) == []
    assert desk.disk.end(LOG) == 6
    desk.hear("b", Sync(3, Member("b", b"b"), {LOG: 2}, {LOG: 2}))
    (_, forward), *_ = desk.tell(Forward)
    assert (forward.batches[0].lo, forward.batches[-1].hi) == (2, 6)


def test_a_replica_that_was_dropped_meanwhile_truncates_what_was_not_committed() -> None:
    desk = Desk(disk=stored_log(committed=3))
    desk.write()
    desk.found(4, "b")
    desk.write()
    assert desk.answers(Truncated) == [Truncated(LOG, 3)]
    assert desk.disk.end(LOG) == 3
    ((peer, sync),) = desk.tell(Sync)
    assert (peer, sync.ends) == ("b", {LOG: 3})


def test_a_wiped_replica_is_another_member() -> None:
    old = Desk("a", stored_log(3)).replica.me
    desk = Desk("a")
    desk.replica.rng.seed(7)  # a later life draws other bytes
    desk.give(Start(0, 2))
    desk.write()
    assert desk.replica.me != old
    desk.sent.clear()
    desk.hear("service", Configuration("chain", 3, (old, Member("b", b"b"))))
    assert not desk.replica.is_member
    assert desk.tell(Propose) == [("service", Propose("chain", 3, (Member("b", b"b"),)))]


def test_nothing_is_registered_before_the_disks_identity_is_on_it() -> None:
    desk = Desk()
    assert desk.tell(Watch) == []
    desk.write()
    assert [peer for peer, _ in desk.tell(Watch)] == ["service"]


# ---------------------------------------------------------------- taking in a learner


def with_learner(kept: bool = True) -> Desk:
    """`a`, alone, with b caught up as a learner."""
    desk = founded(1, "a", replicas=2, min_replicas=1)
    desk.submit()
    desk.write()
    desk.hear("b", Sync(1, Member("b", b"b"), {}, {}))
    desk.hear("b", Ack(1, LOG, 2))
    if kept:
        desk.hear("b", PublishersKept(1, LOG))
    return desk


def beats(desk: Desk, for_ns: int, *peers: str, writing: bool = True) -> None:
    """Let time pass while peers are heard."""
    for _ in range(for_ns // (50 * MS)):
        for peer in peers:
            desk.hear(peer, Beat(desk.replica.epoch))
        desk.wait(50 * MS, writing)


def test_a_learner_is_proposed_when_the_gate_is_on_disk() -> None:
    desk = with_learner()
    beats(desk, 100 * MS, "b", writing=False)
    assert desk.tell(Propose) == []
    desk.write()
    assert desk.tell(Propose) == [("service", Propose("chain", 1, desk.members("a", "b")))]


def test_a_learner_that_cannot_recognise_retries_is_not_proposed() -> None:
    desk = with_learner(kept=False)
    beats(desk, SECOND, "b")
    assert desk.tell(Propose) == []


def test_while_a_learner_is_taken_in_nothing_commits_without_it() -> None:
    desk = with_learner()
    beats(desk, 100 * MS, "b")
    token = desk.submit()
    desk.write()
    assert desk.answers(Submitted)[-1].token != token
    desk.hear("b", Ack(1, LOG, 3))
    assert desk.answers(Submitted) == [Submitted(token, 2)]


def test_a_tail_that_crashes_with_a_proposal_under_way_never_commits_alone() -> None:
    before = with_learner()
    beats(before, 100 * MS, "b")
    assert before.tell(Propose)
    desk = Desk(disk=before.disk, replicas=2, min_replicas=1)
    desk.write()
    desk.found(1, "a")  # the proposal has not won, yet
    desk.write()
    assert desk.answers(RoleChanged) == []
    assert desk.tell(Propose) == [("service", Propose("chain", 1, desk.members("a")))]
    desk.pub_no = 2
    token = desk.submit()
    assert desk.answers(Refused) == [Refused(token, "not-head")]
    # Either the learner's epoch has come first, and then its copy counts ...
    desk.found(2, "a", "b")
    token = desk.submit()
    desk.pub_no -= 2
    token = desk.submit()
    desk.write()
    assert desk.answers(Submitted) == []
    desk.hear("b", Ack(2, LOG, 3))
    assert desk.answers(Submitted) == [Submitted(token, 2)]


def test_a_fresh_epoch_without_the_learner_lets_a_restarted_tail_go_on() -> None:
    before = with_learner()
    beats(before, 100 * MS, "b")
    desk = Desk(disk=before.disk, replicas=2, min_replicas=1)
    desk.write()
    desk.found(1, "a")
    desk.found(2, "a")  # ... or ours has, and no proposal of epoch 1 can win any more
    desk.pub_no = 2
    token = desk.submit()
    desk.write()
    assert desk.answers(Submitted) == [Submitted(token, 2)]


def test_a_learner_that_falls_silent_before_it_is_proposed_is_given_up() -> None:
    desk = with_learner()
    desk.wait(50 * MS, writing=False)
    token = desk.submit()
    desk.asked = [e for e in desk.asked if not isinstance(e, SaveState)]  # a slow disk
    desk.write()
    assert desk.answers(Submitted)[-1].token != token
    desk.wait(2 * SECOND, writing=False)
    assert desk.answers(Submitted) == [Submitted(token, 2)]


def test_another_disk_behind_a_learners_name_is_not_proposed_in_its_place() -> None:
    """The gate's save is held up; the learner is wiped and returns empty before it is done."""
    desk = with_learner()
    beats(desk, 100 * MS, "b", writing=False)
    desk.hear("b", Sync(1, Member("b", b"new"), {}, {}))
    desk.write()
    for _, propose in desk.tell(Propose):
        assert Member("b", b"new") not in propose.members, "it has nothing of what is committed"


def test_what_a_learner_said_it_keeps_of_publishers_outlives_a_restart() -> None:
    """Compacted batches name no publishers: what is known of them came with the snapshot only."""
    known = Dedup(64, 10**18)
    for seq in range(1, 11):
        known.note(sequenced(seq))
    gone = IntervalSet([(1, 8)])
    compacted = coalesce([sequenced(n).without(gone, COLLECTED) for n in range(1, 11)], 64)
    desk = Desk()
    desk.write()
    desk.found(1, "b")
    desk.write()
    desk.hear("b", Forward(1, LOG, tuple(compacted), 11))
    desk.hear("b", Publishers(1, LOG, 11, known.snapshot(11)))  # before the disk has answered
    desk.write()
    assert desk.tell(PublishersKept) == [("b", PublishersKept(1, LOG))]
    again = Desk(disk=desk.disk)
    assert again.replica.logs[LOG].dedup.publishers[PUBLISHER].next_no == 11


def test_a_learner_says_what_it_has_only_when_its_epoch_is_on_disk() -> None:
    """Otherwise a restart would take back what the tail's gate counts on."""
    desk = Desk()
    desk.write()
    desk.found(1, "b")
    desk.refuse()  # the epoch is not saved
    desk.hear("b", Forward(1, LOG, (sequenced(1),), 1))
    desk.write()
    assert desk.disk.end(LOG) == 2
    assert desk.tell(Ack) == []
    desk.wait(300 * MS)  # it is saved again
    assert ("b", Ack(1, LOG, 2)) in desk.tell(Ack)


def test_the_old_tail_hands_over_when_the_new_one_has_all() -> None:
    desk = with_learner()
    desk.found(2, "a", "b")
    assert desk.answers(RoleChanged)[-1].tail is False
    desk.submit()
    desk.write()
    assert desk.tell(TailToken) == []
    desk.sent.clear()
    desk.hear("b", Sync(2, Member("b", b"b"), {LOG: 2}, {}))
    desk.wait(MS)
    kinds = [type(m) for _, m in desk.sent]
    assert kinds.index(Forward) < kinds.index(TailToken)


def test_a_new_tail_serves_when_it_has_the_token() -> None:
    desk = Desk()
    desk.write()
    desk.found(1, "b")
    desk.found(2, "b", "a")
    assert [(r.head, r.tail) for r in desk.answers(RoleChanged)] == [(False, False)] * 2
    desk.hear("c", TailToken(2))  # from nobody's predecessor
    assert desk.answers(RoleChanged) == []
    desk.hear("b", TailToken(2))
    (role,) = desk.answers(RoleChanged)
    assert (role.epoch, role.tail) == (2, True)


def test_a_token_that_was_lost_with_its_session_comes_again() -> None:
    desk = with_learner()
    desk.found(2, "a", "b")
    for _ in range(2):  # the second time because the session broke in between
        desk.hear("b", Sync(2, Member("b", b"b"), {LOG: 2}, {}))
        desk.wait(MS)
        assert desk.tell(TailToken) == [("b", TailToken(2))]


# ---------------------------------------------------------------- what the disk refuses


def test_an_append_that_fails_is_tried_again_and_nothing_overtakes_it() -> None:
    desk = founded()
    desk.hear("b", Sync(1, Member("b", b"b"), {}, {}))
    desk.sent.clear()
    first = desk.submit()
    desk.refuse()
    second = desk.submit()  # must wait behind it
    assert desk.asked == []
    desk.wait(150 * MS, writing=False)
    assert [b.lo for e in desk.asked if isinstance(e, Append) for b in e.batches] == [1, 2]
    assert desk.tell(Forward) == []
    desk.write()
    desk.hear("b", Ack(1, LOG, 3))
    assert desk.answers(Submitted) == [Submitted(first, 1), Submitted(second, 2)]


def test_only_the_first_of_several_failed_appends_counts() -> None:
    desk = founded()
    for _ in range(3):
        desk.submit()
    desk.refuse()
    desk.wait(150 * MS, writing=False)
    desk.refuse()
    desk.wait(150 * MS)
    assert desk.disk.end(LOG) == 4
    assert [b.lo for b in desk.disk.read(LOG, 1, 4, 1 << 20)] == [1, 2, 3]


def test_a_late_answer_to_an_append_tried_again_is_not_mistaken() -> None:
    """Of two appends the first fails; the answer to the second comes after the next attempt."""
    desk = founded()
    desk.submit()
    desk.submit()
    one, two = desk.asked
    desk.asked = []
    desk.give(StoreFailed(one.token, "io"))
    desk.wait(150 * MS, writing=False)
    asked = [e for e in desk.asked if isinstance(e, Append)]
    assert len(asked) == 2
    desk.give(StoreFailed(two.token, "io"))
    desk.write()
    assert desk.disk.end(LOG) == 3
    desk.hear("b", Ack(1, LOG, 3))
    assert [s.seq for s in desk.answers(Submitted)] == [1, 2]


def test_appends_waiting_for_another_attempt_are_forgotten_with_a_fork() -> None:
    """Dropped while an append was to be tried again: as a learner it takes other batches there."""
    desk = founded()
    desk.submit()
    desk.refuse()
    desk.found(2, "b")
    desk.write()
    other = sequenced(1, 2)
    desk.hear("b", Forward(2, LOG, (other,), 1))
    desk.wait(300 * MS, writing=False)  # the old timer fires before the disk has answered
    appends = [e for e in desk.asked if isinstance(e, Append)]
    assert [b for e in appends for b in e.batches] == [other]
    desk.write()
    assert desk.disk.end(LOG) == 3


def test_a_replica_whose_disk_does_not_recover_asks_to_be_removed() -> None:
    desk = founded(1, "a", "b", store_retries_max=3)
    desk.submit()
    for _ in range(6):
        desk.refuse("io")
        beats(desk, 150 * MS, "b", writing=False)
    assert ("service", Propose("chain", 1, desk.members("b"))) in desk.tell(Propose)


def test_an_identity_that_could_not_be_saved_is_saved_again() -> None:
    desk = Desk()
    desk.refuse()
    assert desk.tell(Watch) == []
    desk.wait(300 * MS)
    assert desk.disk.state("chain") is not None
    assert desk.tell(Watch)


def test_an_epoch_that_could_not_be_saved_is_saved_again() -> None:
    desk = founded()
    desk.found(2, "a", "b")
    desk.refuse()
    desk.wait(300 * MS)
    again = Desk(disk=desk.disk)
    assert again.replica.epoch == 2


def test_a_gate_that_could_not_be_saved_is_saved_before_the_proposal() -> None:
    desk = with_learner()
    beats(desk, 100 * MS, "b", writing=False)
    desk.refuse()
    assert desk.tell(Propose) == []
    beats(desk, 300 * MS, "b", writing=False)
    assert desk.tell(Propose) == []
    desk.write()
    assert desk.tell(Propose) == [("service", Propose("chain", 1, desk.members("a", "b")))]


def test_a_committed_position_that_could_not_be_saved_is_saved_again() -> None:
    desk = founded()
    desk.submit()
    desk.write()
    desk.hear("b", Ack(1, LOG, 2))
    desk.wait(100 * MS, writing=False)
    assert [e.name for e in desk.asked] == ["committed"]
    desk.refuse()
    desk.wait(100 * MS)
    assert Desk(disk=desk.disk).replica.logs[LOG].committed == 2


def test_publishers_that_could_not_be_saved_are_not_said_to_be_kept() -> None:
    desk = founded(1, "b", "a")
    desk.hear("b", Forward(1, LOG, (sequenced(1),), 1))
    desk.write()
    desk.hear("b", Publishers(1, LOG, 2, b"\x92\x00\x90"))
    assert [e.name for e in desk.asked] == [f"publishers/{LOG.hex()}"]
    desk.refuse()
    assert desk.tell(PublishersKept) == []
    desk.wait(300 * MS)
    assert desk.tell(PublishersKept) == [("b", PublishersKept(1, LOG))]


# ---------------------------------------------------------------- small clusters


def members(cluster: Cluster, region: str = "east") -> list[str]:
    return [member.name for member in cluster.members(region)]


def offer(cluster: Cluster, count: int, gap_ns: int = 5 * MS, label: str = "") -> None:
    for i in range(count):
        at_ns = cluster.world.now_ns + i * gap_ns
        cluster.offer(at_ns, "east/pub0", "s", [f"{label}{i}".encode()])


@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
def test_a_replica_fails_with_publishes_under_way_and_comes_back(place: int) -> None:
    cluster = cluster_of({"east": 3, "west": 1})
    node = f"east/{place}"
    offer(cluster, 200)
    wait(cluster, lambda: len(cluster.records["s"].acked) > 50)
    wait(cluster, lambda: cluster.unacknowledged() > 0)
    cluster.world.crash(node)
    wait(cluster, lambda: len(members(cluster)) == 2, 2 * SECOND)
    assert node not in members(cluster)
    run(cluster, 300 * MS)
    assert len(cluster.records["s"].acked) > 50  # it goes on with two
    cluster.world.restart(node)
    wait(cluster, lambda: len(members(cluster)) == 3, 5 * SECOND)
    assert members(cluster)[-1] == node  # behind the tail
    settle(cluster)
    assert len(cluster.records["s"].acked) == 200
    assert heal_and_judge(cluster) == []


def test_a_short_crash_changes_no_epoch() -> None:
    cluster = cluster_of({"east": 3, "west": 1})
    offer(cluster, 100)
    for node in cluster.regions["east"]:
        run(cluster, 50 * MS)
        cluster.world.crash(node)
        run(cluster, 100 * MS)
        cluster.world.restart(node)
    settle(cluster)
    assert cluster.world.machine("east/config").tables["east"].epoch == 1
    assert heal_and_judge(cluster) == []


@pytest.mark.slow
def test_a_learner_joins_under_load_and_can_stand_alone() -> None:
    """It gets all events, and what publishers had accepted, though most of that is compacted."""
    cluster = cluster_of(
        {"east": 2, "west": 1},
        {"s": ("east", KeepLast(30))},
        chain={"min_replicas": 1},
        server={"compact_ns": 100 * MS, "compact_share": 0.1},
    )
    world, stream = cluster.world, cluster.streams["s"]
    world.crash("east/1")
    wait(cluster, lambda: len(members(cluster)) == 1)
    world.wipe("east/1")
    offer(cluster, 300, label="early ")
    wait(cluster, lambda: len(cluster.records["s"].acked) == 1)
    (first,) = world.disk("east/0").read(stream, 1, 2, 1)
    old = Batch.of(stream, [b"early 0"], publisher=first.publisher, pub_no=first.pub_no)
    wait(cluster, lambda: len(cluster.records["s"].acked) == 150)
    world.restart("east/1")
    wait(cluster, lambda: len(members(cluster)) == 2, 10 * SECOND)
    settle(cluster)
    world.crash("east/0")
    wait(cluster, lambda: members(cluster) == ["east/1"])
    end = world.disk("east/1").end(stream)
    assert end == 301
    assert b"early 0" not in {  # it is not in the log any more: only the snapshot knows it
        row.value for b in world.disk("east/1").read(stream, 1, 301, 1 << 20) for row in b.to_rows()
    }
    world.at(world.now_ns, "east/1", Received("east/pub0", Publish(stream, old)))  # a late retry
    run(cluster, SECOND)
    assert world.disk("east/1").end(stream) == end
    assert heal_and_judge(cluster) == []


def test_the_token_moves_and_there_is_never_a_second_tail() -> None:
    cluster = cluster_of({"east": 2, "west": 1}, chain={"min_replicas": 1})
    world = cluster.world
    world.crash("east/1")
    wait(cluster, lambda: len(members(cluster)) == 1)
    publish(cluster, 20)
    world.restart("east/1")
    tails: set[tuple[str, ...]] = set()
    for _ in range(3000):
        world.run(world.now_ns + MS)
        layers = [world.machine(n).layers["sprinkler"] for n in cluster.regions["east"]]
        epoch = max(layer.epoch for layer in layers)
        tails.add(tuple(x.config.name for x in layers if x.is_tail and x.epoch == epoch))
    assert tails == {("east/0",), (), ("east/1",)}
    publish(cluster, 5)
    settle(cluster)
    source = world.machine("west/0").layers["sprinkler"].streams[cluster.streams["s"]].source
    assert source.node == "east/1"


def test_a_token_lost_on_the_way_does_not_leave_a_region_without_a_tail() -> None:
    """The session of old and new tail breaks with the token in it, and the epoch stays."""
    tokens: list[TailToken] = []

    class Overheard(Replica):
        def step(self, now_ns: int, inp: Any) -> list[Any]:
            out = super().step(now_ns, inp)
            sent = [e.message for e in out if isinstance(e, Send)]
            tokens.extend(m for m in sent if isinstance(m, TailToken))
            return out

    cluster = cluster_of({"east": 2, "west": 1}, chain={"min_replicas": 1}, mutant=Overheard)
    world = cluster.world
    publish(cluster, 3)
    settle(cluster)
    world.crash("east/1")
    wait(cluster, lambda: len(members(cluster)) == 1)
    tokens.clear()
    world.restart("east/1")
    within_ns = world.now_ns + 5 * SECOND
    assert world.run(within_ns, until=lambda _: bool(tokens), check_every_ns=20_000)
    world.crash("east/config")  # so that nobody is removed meanwhile
    world.cut("east/0", "east/1")
    run(cluster, 3 * SECOND)
    assert not world.machine("east/1").layers["sprinkler"].is_tail
    world.heal_all()
    publish(cluster, 3)
    wait(cluster, cluster.settled, 20 * SECOND)


@pytest.mark.parametrize("reason", ["full", "io"])
@pytest.mark.parametrize("place", [0, 1], ids=["head", "tail"])
def test_publishes_wait_for_a_disk_that_fails_for_a_while(place: int, reason: str) -> None:
    cluster = cluster_of({"east": 2, "west": 1})
    publish(cluster, 10)
    settle(cluster)
    cluster.world.fail_disk(f"east/{place}", reason)
    offer(cluster, 20)
    run(cluster, SECOND)
    assert cluster.unacknowledged() == 20
    assert len(cluster.records["s"].acked) == 10
    cluster.world.heal_disk(f"east/{place}")
    settle(cluster)
    assert len(members(cluster)) == 2
    assert heal_and_judge(cluster) == []


@pytest.mark.parametrize("reason", ["full", "io"])
def test_the_only_replica_waits_for_its_disk(reason: str) -> None:
    cluster = cluster_of({"east": 1, "west": 1})
    cluster.world.fail_disk("east/0", reason)
    offer(cluster, 20)
    run(cluster, 20 * SECOND)
    assert cluster.unacknowledged() == 20
    assert members(cluster) == ["east/0"]
    cluster.world.heal_disk("east/0")
    settle(cluster)
    assert len(cluster.records["s"].acked) == 20
    assert heal_and_judge(cluster) == []


def test_a_replica_whose_disk_stays_broken_leaves_and_the_others_go_on() -> None:
    cluster = cluster_of({"east": 3, "west": 1})
    publish(cluster, 10)
    cluster.world.fail_disk("east/1", "io")
    offer(cluster, 20)
    wait(cluster, lambda: len(cluster.records["s"].acked) == 30, 20 * SECOND)
    assert members(cluster) == ["east/0", "east/2"]
    cluster.world.heal_disk("east/1")
    wait(cluster, lambda: len(members(cluster)) == 3, 20 * SECOND)
    assert heal_and_judge(cluster) == []


def test_a_wiped_replica_joins_as_a_new_member() -> None:
    cluster = cluster_of({"east": 2, "west": 1})
    publish(cluster, 10)
    settle(cluster)
    before = {m.name: m.disk for m in cluster.members("east")}
    cluster.world.crash("east/0")
    cluster.world.wipe("east/0")
    cluster.world.restart("east/0")  # at once: nobody has missed it
    wait(cluster, lambda: members(cluster) == ["east/1", "east/0"], 10 * SECOND)
    after = {m.name: m.disk for m in cluster.members("east")}
    assert after["east/1"] == before["east/1"]
    assert after["east/0"] != before["east/0"]
    publish(cluster, 5)
    settle(cluster)
    assert cluster.world.disk("east/0").end(cluster.streams["s"]) == 16
    assert heal_and_judge(cluster) == []


def test_too_few_replicas_keep_publishers_waiting() -> None:
    cluster = cluster_of({"east": 2, "west": 1})
    publish(cluster, 5)
    settle(cluster)
    cluster.world.crash("east/1")
    wait(cluster, lambda: len(members(cluster)) == 1)
    offer(cluster, 5)
    run(cluster, 5 * SECOND)
    assert cluster.unacknowledged() == 5
    cluster.world.restart("east/1")
    settle(cluster)
    assert heal_and_judge(cluster) == []


class Accuses(Replica):
    """Takes its own sleep for its neighbours' silence."""

    def _on_beat_timer(self) -> None:
        self.beat_ns = self.now_ns
        super()._on_beat_timer()


def epochs_after_a_nap(replica_type: type[Replica]) -> int:
    """All replicas of a chain stand still for a while, as on a suspended machine."""
    cluster = cluster_of({"east": 3, "west": 1}, mutant=replica_type)
    publish(cluster, 5)
    settle(cluster)
    for node in cluster.regions["east"]:
        cluster.world.pause(node)
    run(cluster, 5 * SECOND)
    for node in cluster.regions["east"]:
        cluster.world.resume(node)
    run(cluster, 3 * SECOND)
    offer(cluster, 5)
    settle(cluster)
    assert heal_and_judge(cluster) == []
    return int(cluster.world.machine("east/config").tables["east"].epoch)


def test_a_paused_replica_does_not_accuse_its_neighbours_when_it_wakes() -> None:
    assert epochs_after_a_nap(Replica) == 1


def test_without_that_habit_it_would() -> None:
    assert epochs_after_a_nap(Accuses) > 1


def test_a_replica_paused_for_long_is_dropped_and_comes_back() -> None:
    cluster = cluster_of({"east": 3, "west": 1}, {"s": ("east", KeepAll())})
    publish(cluster, 5)
    cluster.world.pause("east/1")
    offer(cluster, 50)
    wait(cluster, lambda: members(cluster) == ["east/0", "east/2"])
    cluster.world.resume("east/1")
    wait(cluster, lambda: members(cluster) == ["east/0", "east/2", "east/1"], 10 * SECOND)
    assert cluster.counters["east/1"]["chain.suspected"] == 0
    settle(cluster)
    assert heal_and_judge(cluster) == []
