"""The chain: one replica step by step on a hand-driven disk, and small clusters under failures.

The rules R1-R6 and their mutants are tested in `test_rules.py`.
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


class Harness:
    """One replica, driven by hand, on a disk that writes when the test calls `write`.

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
        self.transitions: Counter[str] = Counter()  # transitions, by label
        self.step = self.replica.step if replica_type else watched(self.replica, self.transitions)
        self.now_ns = 0
        self.sent: list[tuple[str, Any]] = []
        self.emitted: list[Any] = []  # events for the layer above
        self.disk_queue: list[Any] = []  # disk operations that are not done
        self.timers: dict[Any, int] = {}
        self.pub_no = 1
        self.give(Start(0, 1))

    def give(self, inp: Any) -> None:
        for effect in self.step(self.now_ns, inp):
            if isinstance(effect, Send):
                self.sent.append((effect.peer, effect.message))
            elif isinstance(effect, Emit):
                self.emitted.append(effect.event)
            elif isinstance(effect, SetTimer):
                self.timers[effect.key] = effect.at_ns
            else:
                assert isinstance(effect, STORAGE), effect
                self.disk_queue.append(effect)

    def write(self) -> None:
        """Carry out the pending disk operations, and those that follow from them."""
        while self.disk_queue:
            effect = self.disk_queue.pop(0)
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

    def fail_writes(self, reason: str = "full") -> list[Any]:
        """Let all pending disk operations fail; returns them."""
        asked, self.disk_queue = self.disk_queue, []
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

    def receive(self, peer: str, message: Any) -> None:
        self.give(Received(peer, message))

    def set_members(self, epoch: int, *names: str) -> None:
        """The service sends a configuration with these members."""
        self.receive("service", Configuration("chain", epoch, self.members(*names)))

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

    def take_sent(self, kind: type) -> list[Any]:
        """Return the messages of a type sent since the last call, as (peer, message)."""
        found = [(p, m) for p, m in self.sent if type(m) is kind]
        self.sent = [(p, m) for p, m in self.sent if type(m) is not kind]
        return found

    def take_emitted(self, kind: type) -> list[Any]:
        """Return the events of a type emitted since the last call."""
        found = [event for event in self.emitted if type(event) is kind]
        self.emitted = [event for event in self.emitted if type(event) is not kind]
        return found


def founded(epoch: int = 1, *names: str, **options: Any) -> Harness:
    """A member of a chain whose configuration and identity are on disk."""
    harness = Harness(**options)
    harness.write()
    harness.set_members(epoch, *(names or ("a", "b")))
    harness.write()
    harness.sent.clear()
    return harness


def sequenced(lo: int, count: int = 1, pub_no: int = 0, publisher: bytes = PUBLISHER) -> Batch:
    values = [f"event {lo + i}".encode() for i in range(count)]
    batch = Batch.of(LOG, values, publisher=publisher, pub_no=pub_no or lo)
    return batch.sequenced(lo, 1, 1)


# ---------------------------------------------------------------- the path of a batch


def test_the_head_stores_then_forwards_then_acknowledges() -> None:
    harness = founded()
    harness.receive("b", Sync(1, Member("b", b"b"), {}, {}))
    harness.sent.clear()
    token = harness.submit(3)
    assert harness.take_sent(Forward) == []  # nothing leaves before it is on disk
    harness.write()
    ((peer, forward),) = harness.take_sent(Forward)
    assert (peer, forward.batches[0].lo, forward.batches[-1].hi) == ("b", 1, 4)
    assert harness.take_emitted(Submitted) == []
    harness.receive("b", Ack(1, LOG, 4))
    assert harness.take_emitted(Submitted) == [Submitted(token, 1)]
    assert harness.take_emitted(Committed)[-1] == Committed(LOG, 4)


def test_a_successors_ack_commits_only_what_is_on_the_own_disk() -> None:
    harness = founded()
    harness.submit()
    harness.receive("b", Ack(1, LOG, 99))
    assert harness.take_emitted(Submitted) == []
    harness.write()
    harness.receive("b", Ack(1, LOG, 99))
    assert len(harness.take_emitted(Submitted)) == 1


def test_the_tail_commits_stored_batches_and_acknowledges_them() -> None:
    harness = founded(1, "b", "a")
    harness.receive("b", Forward(1, LOG, (sequenced(1, 2),), 1))
    assert harness.take_sent(Ack) == []
    harness.write()
    assert harness.take_sent(Ack) == [("b", Ack(1, LOG, 3))]
    assert harness.take_emitted(Committed)[-1] == Committed(LOG, 3)


def test_a_middle_replica_forwards_stored_batches_and_waits_for_the_tail() -> None:
    harness = founded(1, "b", "a", "c")
    harness.receive("c", Sync(1, Member("c", b"c"), {}, {}))
    harness.sent.clear()
    harness.receive("b", Forward(1, LOG, (sequenced(1),), 1))
    harness.write()
    assert [peer for peer, _ in harness.take_sent(Forward)] == ["c"]
    assert harness.take_sent(Ack) == []
    harness.receive("c", Ack(1, LOG, 2))
    assert harness.take_sent(Ack) == [("b", Ack(1, LOG, 2))]


def test_a_gap_in_forwarded_batches_is_requested_again() -> None:
    harness = founded(1, "b", "a")
    harness.receive("b", Forward(1, LOG, (sequenced(1),), 1))
    harness.write()
    harness.sent.clear()
    harness.receive("b", Forward(1, LOG, (sequenced(5),), 1))
    assert harness.disk_queue == []
    ((peer, sync),) = harness.take_sent(Sync)
    assert (peer, sync.ends) == ("b", {LOG: 2})


def test_stored_batches_are_not_appended_again() -> None:
    harness = founded(1, "b", "a")
    harness.receive("b", Forward(1, LOG, (sequenced(1, 3),), 1))
    harness.write()
    harness.receive("b", Forward(1, LOG, (sequenced(1, 3), sequenced(4)), 1))
    (append,) = harness.disk_queue
    assert [batch.lo for batch in append.batches] == [4]
    harness.write()
    assert harness.disk.end(LOG) == 5


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
def test_messages_of_an_old_epoch_are_ignored_and_answered_stale(message: Any) -> None:
    harness = founded(2, "b", "a")
    harness.receive("b", message)
    assert harness.disk_queue == []
    assert harness.take_sent(Stale) == [("b", Stale(2, harness.members("b", "a")))]


def test_only_the_head_accepts_publishes() -> None:
    harness = founded(1, "b", "a")
    token = harness.submit()
    assert harness.take_emitted(Refused) == [Refused(token, "not-head")]


def test_open_publishes_are_refused_when_the_head_changes() -> None:
    harness = founded()
    token = harness.submit()
    harness.write()
    harness.set_members(2, "b")
    assert harness.take_emitted(Refused) == [Refused(token, "not-head")]


# ---------------------------------------------------------------- number of replicas


def test_too_few_replicas_refuse_publishes() -> None:
    harness = founded(1, "a", replicas=3)
    token = harness.submit()
    assert harness.take_emitted(Refused) == [Refused(token, "too-few-replicas")]
    assert harness.disk_queue == []
    harness.pub_no = 1
    harness.set_members(2, "a", "b")
    harness.submit()
    assert harness.take_emitted(Refused) == []


@pytest.mark.parametrize(
    ("replicas", "min_replicas", "taken"),
    [(1, 0, True), (2, 0, False), (3, 1, True), (3, 3, False)],
)
def test_publishes_need_min_replicas_or_two_live_replicas(
    replicas: int, min_replicas: int, taken: bool
) -> None:
    harness = founded(1, "a", replicas=replicas, min_replicas=min_replicas)
    harness.submit()
    assert (harness.take_emitted(Refused) == []) is taken


def test_the_last_member_does_not_leave_its_chain() -> None:
    harness = founded(1, "a", replicas=1, store_retries_max=2)
    harness.submit()
    for _ in range(20):
        harness.fail_writes("io")
        harness.wait(200 * MS, writing=False)
    assert harness.take_sent(Propose) == []
    harness.write()
    assert len(harness.take_emitted(Submitted)) == 1


# ---------------------------------------------------------------- restarting


def stored_log(committed: int) -> MemoryDisk:
    """The disk of `a`, head of (a, b) in epoch 3: five events, saved committed end `committed`."""
    harness = founded(3)
    for _ in range(5):
        harness.submit()
    harness.write()
    harness.receive("b", Ack(3, LOG, committed))
    harness.wait(SECOND)
    return harness.disk


def test_a_restart_in_the_same_epoch_keeps_the_whole_log() -> None:
    """The saved `committed` may lag: positions above it may have been acknowledged."""
    harness = Harness(disk=stored_log(committed=3))
    harness.write()
    harness.set_members(3, "a", "b")
    harness.write()
    assert harness.take_emitted(Truncated) == []
    assert harness.disk.end(LOG) == 6
    harness.receive("b", Sync(3, Member("b", b"b"), {LOG: 2}, {LOG: 2}))
    (_, forward), *_ = harness.take_sent(Forward)
    assert (forward.batches[0].lo, forward.batches[-1].hi) == (2, 6)


def test_a_replica_that_was_dropped_truncates_uncommitted_batches_at_its_start() -> None:
    harness = Harness(disk=stored_log(committed=3))
    harness.write()
    harness.set_members(4, "b")
    harness.write()
    assert harness.take_emitted(Truncated) == [Truncated(LOG, 3)]
    assert harness.disk.end(LOG) == 3
    ((peer, sync),) = harness.take_sent(Sync)
    assert (peer, sync.ends) == ("b", {LOG: 3})


def test_a_wiped_replica_is_another_member() -> None:
    old = Harness("a", stored_log(3)).replica.me
    harness = Harness("a")
    harness.replica.rng.seed(7)  # a later incarnation draws other bytes
    harness.give(Start(0, 2))
    harness.write()
    assert harness.replica.me != old
    harness.sent.clear()
    harness.receive("service", Configuration("chain", 3, (old, Member("b", b"b"))))
    assert not harness.replica.is_member
    assert harness.take_sent(Propose) == [("service", Propose("chain", 3, (Member("b", b"b"),)))]


def test_a_replica_registers_only_after_its_identity_is_on_disk() -> None:
    harness = Harness()
    assert harness.take_sent(Watch) == []
    harness.write()
    assert [peer for peer, _ in harness.take_sent(Watch)] == ["service"]


# ---------------------------------------------------------------- learners


def with_learner(kept: bool = True) -> Harness:
    """`a`, the only member, with the learner `b` caught up."""
    harness = founded(1, "a", replicas=2, min_replicas=1)
    harness.submit()
    harness.write()
    harness.receive("b", Sync(1, Member("b", b"b"), {}, {}))
    harness.receive("b", Ack(1, LOG, 2))
    if kept:
        harness.receive("b", PublishersKept(1, LOG))
    return harness


def beats(harness: Harness, for_ns: int, *peers: str, writing: bool = True) -> None:
    """Let time pass while these peers send heartbeats."""
    for _ in range(for_ns // (50 * MS)):
        for peer in peers:
            harness.receive(peer, Beat(harness.replica.epoch))
        harness.wait(50 * MS, writing)


def test_a_learner_is_proposed_when_the_gate_is_on_disk() -> None:
    harness = with_learner()
    beats(harness, 100 * MS, "b", writing=False)
    assert harness.take_sent(Propose) == []
    harness.write()
    assert harness.take_sent(Propose) == [
        ("service", Propose("chain", 1, harness.members("a", "b")))
    ]


def test_a_learner_that_cannot_recognise_retries_is_not_proposed() -> None:
    harness = with_learner(kept=False)
    beats(harness, SECOND, "b")
    assert harness.take_sent(Propose) == []


def test_commits_need_a_gated_learner() -> None:
    harness = with_learner()
    beats(harness, 100 * MS, "b")
    token = harness.submit()
    harness.write()
    assert harness.take_emitted(Submitted)[-1].token != token
    harness.receive("b", Ack(1, LOG, 3))
    assert harness.take_emitted(Submitted) == [Submitted(token, 2)]


def test_a_tail_that_crashes_with_an_open_proposal_never_commits_alone() -> None:
    before = with_learner()
    beats(before, 100 * MS, "b")
    assert before.take_sent(Propose)
    harness = Harness(disk=before.disk, replicas=2, min_replicas=1)
    harness.write()
    harness.set_members(1, "a")  # the proposal has not been accepted yet
    harness.write()
    assert harness.take_emitted(RoleChanged) == []
    assert harness.take_sent(Propose) == [("service", Propose("chain", 1, harness.members("a")))]
    harness.pub_no = 2
    token = harness.submit()
    assert harness.take_emitted(Refused) == [Refused(token, "not-head")]
    # Either the service accepts the learner first, and commits need its copy ...
    harness.set_members(2, "a", "b")
    token = harness.submit()
    harness.pub_no -= 2
    token = harness.submit()
    harness.write()
    assert harness.take_emitted(Submitted) == []
    harness.receive("b", Ack(2, LOG, 3))
    assert harness.take_emitted(Submitted) == [Submitted(token, 2)]


def test_a_fresh_epoch_without_the_learner_lets_a_restarted_tail_go_on() -> None:
    before = with_learner()
    beats(before, 100 * MS, "b")
    harness = Harness(disk=before.disk, replicas=2, min_replicas=1)
    harness.write()
    harness.set_members(1, "a")
    harness.set_members(
        2, "a"
    )  # ... or this epoch, after which no proposal of epoch 1 can be accepted
    harness.pub_no = 2
    token = harness.submit()
    harness.write()
    assert harness.take_emitted(Submitted) == [Submitted(token, 2)]


def test_a_learner_that_is_silent_before_it_is_proposed_is_given_up() -> None:
    harness = with_learner()
    harness.wait(50 * MS, writing=False)
    token = harness.submit()
    harness.disk_queue = [
        e for e in harness.disk_queue if not isinstance(e, SaveState)
    ]  # a slow disk
    harness.write()
    assert harness.take_emitted(Submitted)[-1].token != token
    harness.wait(2 * SECOND, writing=False)
    assert harness.take_emitted(Submitted) == [Submitted(token, 2)]


def test_a_learner_with_another_disk_is_not_proposed_in_place_of_the_gated_one() -> None:
    """The save of the gate is delayed; meanwhile the learner is wiped and returns empty."""
    harness = with_learner()
    beats(harness, 100 * MS, "b", writing=False)
    harness.receive("b", Sync(1, Member("b", b"new"), {}, {}))
    harness.write()
    for _, propose in harness.take_sent(Propose):
        assert Member("b", b"new") not in propose.members, "it has nothing of what is committed"


def test_publishers_that_a_learner_reported_as_kept_survive_a_restart() -> None:
    """Compacted batches name no publishers: only the snapshot has the publishers' numbers."""
    known = Dedup(64, 10**18)
    for seq in range(1, 11):
        known.note(sequenced(seq))
    gone = IntervalSet([(1, 8)])
    compacted = coalesce([sequenced(n).without(gone, COLLECTED) for n in range(1, 11)], 64)
    harness = Harness()
    harness.write()
    harness.set_members(1, "b")
    harness.write()
    harness.receive("b", Forward(1, LOG, tuple(compacted), 11))
    harness.receive("b", Publishers(1, LOG, 11, known.snapshot(11)))  # before the disk has answered
    harness.write()
    assert harness.take_sent(PublishersKept) == [("b", PublishersKept(1, LOG))]
    again = Harness(disk=harness.disk)
    assert again.replica.logs[LOG].dedup.publishers[PUBLISHER].next_no == 11


def test_a_learner_acknowledges_only_after_its_epoch_is_on_disk() -> None:
    """Otherwise a restart could undo an acknowledgement that the tail's gate relies on."""
    harness = Harness()
    harness.write()
    harness.set_members(1, "b")
    harness.fail_writes()  # the epoch is not saved
    harness.receive("b", Forward(1, LOG, (sequenced(1),), 1))
    harness.write()
    assert harness.disk.end(LOG) == 2
    assert harness.take_sent(Ack) == []
    harness.wait(300 * MS)  # it is saved again
    assert ("b", Ack(1, LOG, 2)) in harness.take_sent(Ack)


def test_the_old_tail_hands_over_when_the_new_one_has_all() -> None:
    harness = with_learner()
    harness.set_members(2, "a", "b")
    assert harness.take_emitted(RoleChanged)[-1].tail is False
    harness.submit()
    harness.write()
    assert harness.take_sent(TailToken) == []
    harness.sent.clear()
    harness.receive("b", Sync(2, Member("b", b"b"), {LOG: 2}, {}))
    harness.wait(MS)
    kinds = [type(m) for _, m in harness.sent]
    assert kinds.index(Forward) < kinds.index(TailToken)


def test_a_new_tail_serves_when_it_has_the_token() -> None:
    harness = Harness()
    harness.write()
    harness.set_members(1, "b")
    harness.set_members(2, "b", "a")
    assert [(r.head, r.tail) for r in harness.take_emitted(RoleChanged)] == [(False, False)] * 2
    harness.receive("c", TailToken(2))  # not from the predecessor
    assert harness.take_emitted(RoleChanged) == []
    harness.receive("b", TailToken(2))
    (role,) = harness.take_emitted(RoleChanged)
    assert (role.epoch, role.tail) == (2, True)


def test_a_token_that_was_lost_with_its_session_is_sent_again() -> None:
    harness = with_learner()
    harness.set_members(2, "a", "b")
    for _ in range(2):  # the second time because the session broke in between
        harness.receive("b", Sync(2, Member("b", b"b"), {LOG: 2}, {}))
        harness.wait(MS)
        assert harness.take_sent(TailToken) == [("b", TailToken(2))]


# ---------------------------------------------------------------- failing disk operations


def test_a_failed_append_is_retried_before_later_ones() -> None:
    harness = founded()
    harness.receive("b", Sync(1, Member("b", b"b"), {}, {}))
    harness.sent.clear()
    first = harness.submit()
    harness.fail_writes()
    second = harness.submit()  # must wait behind it
    assert harness.disk_queue == []
    harness.wait(150 * MS, writing=False)
    assert [b.lo for e in harness.disk_queue if isinstance(e, Append) for b in e.batches] == [1, 2]
    assert harness.take_sent(Forward) == []
    harness.write()
    harness.receive("b", Ack(1, LOG, 3))
    assert harness.take_emitted(Submitted) == [Submitted(first, 1), Submitted(second, 2)]


def test_only_the_first_of_several_failed_appends_counts() -> None:
    harness = founded()
    for _ in range(3):
        harness.submit()
    harness.fail_writes()
    harness.wait(150 * MS, writing=False)
    harness.fail_writes()
    harness.wait(150 * MS)
    assert harness.disk.end(LOG) == 4
    assert [b.lo for b in harness.disk.read(LOG, 1, 4, 1 << 20)] == [1, 2, 3]


def test_a_late_answer_to_a_retried_append_is_not_confused_with_the_retry() -> None:
    """The first of two appends fails; both are retried before the second one's answer arrives."""
    harness = founded()
    harness.submit()
    harness.submit()
    one, two = harness.disk_queue
    harness.disk_queue = []
    harness.give(StoreFailed(one.token, "io"))
    harness.wait(150 * MS, writing=False)
    asked = [e for e in harness.disk_queue if isinstance(e, Append)]
    assert len(asked) == 2
    harness.give(StoreFailed(two.token, "io"))
    harness.write()
    assert harness.disk.end(LOG) == 3
    harness.receive("b", Ack(1, LOG, 3))
    assert [s.seq for s in harness.take_emitted(Submitted)] == [1, 2]


def test_appends_that_wait_for_a_retry_are_dropped_with_a_fork() -> None:
    """A replica is dropped while an append waits for its retry. As a learner it stores other
    batches at these positions."""
    harness = founded()
    harness.submit()
    harness.fail_writes()
    harness.set_members(2, "b")
    harness.write()
    other = sequenced(1, 2)
    harness.receive("b", Forward(2, LOG, (other,), 1))
    harness.wait(300 * MS, writing=False)  # the old timer fires before the disk has answered
    appends = [e for e in harness.disk_queue if isinstance(e, Append)]
    assert [b for e in appends for b in e.batches] == [other]
    harness.write()
    assert harness.disk.end(LOG) == 3


def test_a_replica_whose_disk_does_not_recover_asks_to_be_removed() -> None:
    harness = founded(1, "a", "b", store_retries_max=3)
    harness.submit()
    for _ in range(6):
        harness.fail_writes("io")
        beats(harness, 150 * MS, "b", writing=False)
    assert ("service", Propose("chain", 1, harness.members("b"))) in harness.take_sent(Propose)


def test_an_identity_that_could_not_be_saved_is_saved_again() -> None:
    harness = Harness()
    harness.fail_writes()
    assert harness.take_sent(Watch) == []
    harness.wait(300 * MS)
    assert harness.disk.state("chain") is not None
    assert harness.take_sent(Watch)


def test_an_epoch_that_could_not_be_saved_is_saved_again() -> None:
    harness = founded()
    harness.set_members(2, "a", "b")
    harness.fail_writes()
    harness.wait(300 * MS)
    again = Harness(disk=harness.disk)
    assert again.replica.epoch == 2


def test_a_gate_that_could_not_be_saved_is_saved_before_the_proposal() -> None:
    harness = with_learner()
    beats(harness, 100 * MS, "b", writing=False)
    harness.fail_writes()
    assert harness.take_sent(Propose) == []
    beats(harness, 300 * MS, "b", writing=False)
    assert harness.take_sent(Propose) == []
    harness.write()
    assert harness.take_sent(Propose) == [
        ("service", Propose("chain", 1, harness.members("a", "b")))
    ]


def test_a_committed_position_that_could_not_be_saved_is_saved_again() -> None:
    harness = founded()
    harness.submit()
    harness.write()
    harness.receive("b", Ack(1, LOG, 2))
    harness.wait(100 * MS, writing=False)
    assert [e.name for e in harness.disk_queue] == ["committed"]
    harness.fail_writes()
    harness.wait(100 * MS)
    assert Harness(disk=harness.disk).replica.logs[LOG].committed == 2


def test_publishers_are_reported_as_kept_only_after_they_are_saved() -> None:
    harness = founded(1, "b", "a")
    harness.receive("b", Forward(1, LOG, (sequenced(1),), 1))
    harness.write()
    harness.receive("b", Publishers(1, LOG, 2, b"\x92\x00\x90"))
    assert [e.name for e in harness.disk_queue] == [f"publishers/{LOG.hex()}"]
    harness.fail_writes()
    assert harness.take_sent(PublishersKept) == []
    harness.wait(300 * MS)
    assert harness.take_sent(PublishersKept) == [("b", PublishersKept(1, LOG))]


# ---------------------------------------------------------------- small clusters


def members(cluster: Cluster, region: str = "east") -> list[str]:
    return [member.name for member in cluster.members(region)]


def offer(cluster: Cluster, count: int, gap_ns: int = 5 * MS, label: str = "") -> None:
    for i in range(count):
        at_ns = cluster.world.now_ns + i * gap_ns
        cluster.offer(at_ns, "east/pub0", "s", [f"{label}{i}".encode()])


@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
def test_a_replica_crashes_during_publishes_and_rejoins_behind_the_tail(place: int) -> None:
    cluster = cluster_of({"east": 3, "west": 1})
    node = f"east/{place}"
    offer(cluster, 200)
    wait(cluster, lambda: len(cluster.records["s"].acked) > 50)
    wait(cluster, lambda: cluster.unacknowledged() > 0)
    cluster.world.crash(node)
    wait(cluster, lambda: len(members(cluster)) == 2, 2 * SECOND)
    assert node not in members(cluster)
    run(cluster, 300 * MS)
    assert len(cluster.records["s"].acked) > 50  # the two others go on
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
    """It gets all events and the publishers' state, although most events are compacted."""
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
    assert b"early 0" not in {  # no longer in the log: only the publishers' state has its number
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


def test_a_token_lost_in_transit_does_not_leave_a_region_without_a_tail() -> None:
    """The session between the old and the new tail breaks with the token in it; the epoch stays."""
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
    world.crash("east/config")  # so that no replica is removed meanwhile
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
    cluster.world.restart("east/0")  # at once, before it is suspected
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
    """Mutant: treats a pause of its own as silence of its neighbours."""

    def _on_beat_timer(self) -> None:
        self.beat_ns = self.now_ns
        super()._on_beat_timer()


def epochs_after_a_nap(replica_type: type[Replica]) -> int:
    """The chain's epoch after all its replicas were paused, as on a suspended machine."""
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


def test_a_paused_replica_does_not_suspect_its_neighbours_when_it_resumes() -> None:
    assert epochs_after_a_nap(Replica) == 1


def test_a_replica_that_ignores_its_own_pause_suspects_its_neighbours() -> None:
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
