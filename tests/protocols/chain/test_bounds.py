"""Bounds on what a replica holds, sends and waits for: at each bound, and one step beyond it."""

from surecast.columns.batch import Batch
from surecast.core.replicated import AppendAt, Refused, Submit, Submitted
from surecast.core.types import MS, Append
from surecast.protocols.chain.dedup import DUPLICATE, OUT_OF_ORDER, Dedup, Verdict
from surecast.protocols.chain.messages import Ack, Forward, Member, PublishersKept, Sync
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.protocols.chain.test_chain import LOG, PUBLISHER, Harness, beats, founded, sequenced

EVENT_BYTES = sequenced(1).nbytes  # of a batch of one event, "event 1" to "event 9"
B = Member("b", b"b")


def published(pub_no: int) -> Batch:
    return Batch.of(LOG, [b"event %d" % pub_no], publisher=PUBLISHER, pub_no=pub_no)


def recent_batches() -> None:
    """Only the last 2 × inflight_max batches of a publisher are recognised as retries."""
    dedup = Dedup(inflight_max=3, ttl_ns=10**18)
    for number in range(1, 7):
        dedup.note(sequenced(number))
    assert dedup.check(published(1), 1) == Verdict(DUPLICATE, 1)
    dedup.note(sequenced(7))
    assert dedup.check(published(1), 1) == Verdict(OUT_OF_ORDER, 8)
    assert dedup.check(published(2), 1) == Verdict(DUPLICATE, 2)
    assert len(dedup.publishers[PUBLISHER].recent) == 6


def recent_batches_of_a_replica() -> None:
    harness = founded(1, "a", replicas=1, inflight_max=2)
    for _ in range(5):
        harness.submit()
    harness.write()
    harness.take_emitted(Submitted)
    for number in (1, 2):
        harness.give(Submit(LOG, published(number), number))
    assert harness.take_emitted(Submitted) == [Submitted(2, 2)]
    assert harness.take_emitted(Refused) == [Refused(1, "out-of-order", 6)]


def pending_publishes() -> None:
    """Publishes are accepted while at most pending_bytes_max bytes wait for the disk."""
    harness = founded(1, "a", replicas=1, pending_bytes_max=EVENT_BYTES)
    harness.submit()
    assert harness.replica.pending_bytes == EVENT_BYTES
    harness.submit()  # at the bound, and not above it
    assert harness.take_emitted(Refused) == []
    token = harness.submit()
    assert harness.take_emitted(Refused) == [Refused(token, "busy")]
    harness.pub_no = 3
    harness.write()
    harness.submit()
    assert harness.take_emitted(Refused) == []


def pending_pulled_events() -> None:
    """Events of other regions are not appended while too many bytes wait for the disk."""
    harness = founded(1, "a", replicas=1, pending_bytes_max=EVENT_BYTES)
    for lo in (1, 2, 3):
        harness.give(AppendAt(LOG, (sequenced(lo),)))
    assert appended(harness) == [1, 2]
    harness.write()
    harness.give(AppendAt(LOG, (sequenced(3),)))
    assert appended(harness) == [3]


def appended(harness: Harness) -> list[int]:
    effects = [effect for effect in harness.disk_queue if isinstance(effect, Append)]
    return [batch.lo for effect in effects for batch in effect.batches]


def catch_up_messages() -> None:
    """A catch-up message ends with the batch that exceeds forward_bytes_max."""
    harness = founded(forward_bytes_max=2 * EVENT_BYTES)
    for _ in range(9):
        harness.submit()
    harness.write()
    harness.receive("b", Sync(1, B, {}, {}))
    sizes = [len(message.batches) for _, message in harness.take_sent(Forward) if message.batches]
    assert sizes == [3, 3, 3]


def gated(missing: int) -> bool:
    """Whether commits wait for a learner that lacks `missing` of six positions."""
    harness = founded(1, "a", replicas=2, min_replicas=1, join_lag_max=2)
    for _ in range(6):
        harness.submit()
    harness.write()
    harness.receive("b", Sync(1, B, {}, {}))
    harness.receive("b", PublishersKept(1, LOG))
    harness.receive("b", Ack(1, LOG, 7 - missing))
    beats(harness, 100 * MS, "b")
    harness.take_emitted(Submitted)
    token = harness.submit()
    harness.write()
    return harness.take_emitted(Submitted) != [Submitted(token, 7)]


def lag_of_a_learner() -> None:
    assert gated(missing=2)
    assert not gated(missing=3)


CHAIN = "surecast.protocols.chain."
CHECKS: list[Row] = [
    (recent_batches, Edit(CHAIN + "dedup:Dedup.note", "> 2 * self.inflight_max", "> 1 << 60")),
    (recent_batches_of_a_replica, Edit(CHAIN + "roles:Roles._dedup", "config.inflight_max", "64")),
    (
        pending_publishes,
        Edit(
            CHAIN + "replica:Replica._on_submit",
            "self.pending_bytes > self.config.pending_bytes_max",
            "False",
        ),
    ),
    (
        pending_pulled_events,
        Edit(
            CHAIN + "replica:Replica._on_append_at",
            " and self.pending_bytes <= self.config.pending_bytes_max",
            "",
        ),
    ),
    (
        catch_up_messages,
        Edit(CHAIN + "replica:Replica._pump_follower", "self.config.forward_bytes_max", "1 << 40"),
    ),
    (
        lag_of_a_learner,
        Edit(CHAIN + "roles:Roles._tend_learner", "lag <= config.join_lag_max", "True"),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)
