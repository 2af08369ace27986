"""What a replica holds, sends and waits for at most: at each bound, and one step beyond it."""

from surecast.columns.batch import Batch
from surecast.core.replicated import AppendAt, Refused, Submit, Submitted
from surecast.core.types import MS, Append
from surecast.protocols.chain.dedup import DUPLICATE, OUT_OF_ORDER, Dedup, Verdict
from surecast.protocols.chain.messages import Ack, Forward, Member, PublishersKept, Sync
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.protocols.chain.test_chain import LOG, PUBLISHER, Desk, beats, founded, sequenced

EVENT_BYTES = sequenced(1).nbytes  # of a batch of one event, "event 1" to "event 9"
B = Member("b", b"b")


def published(pub_no: int) -> Batch:
    return Batch.of(LOG, [b"event %d" % pub_no], publisher=PUBLISHER, pub_no=pub_no)


def recent_batches() -> None:
    """A retry is recognised while at most 2 × inflight_max batches of its publisher are noted."""
    dedup = Dedup(inflight_max=3, ttl_ns=10**18)
    for number in range(1, 7):
        dedup.note(sequenced(number))
    assert dedup.check(published(1), 1) == Verdict(DUPLICATE, 1)
    dedup.note(sequenced(7))
    assert dedup.check(published(1), 1) == Verdict(OUT_OF_ORDER, 8)
    assert dedup.check(published(2), 1) == Verdict(DUPLICATE, 2)
    assert len(dedup.publishers[PUBLISHER].recent) == 6


def recent_batches_of_a_replica() -> None:
    desk = founded(1, "a", replicas=1, inflight_max=2)
    for _ in range(5):
        desk.submit()
    desk.write()
    desk.answers(Submitted)
    for number in (1, 2):
        desk.give(Submit(LOG, published(number), number))
    assert desk.answers(Submitted) == [Submitted(2, 2)]
    assert desk.answers(Refused) == [Refused(1, "out-of-order", 6)]


def pending_publishes() -> None:
    """A publish is taken if what waits for the disk does not exceed pending_bytes_max."""
    desk = founded(1, "a", replicas=1, pending_bytes_max=EVENT_BYTES)
    desk.submit()
    assert desk.replica.pending_bytes == EVENT_BYTES
    desk.submit()  # at the bound, and not above it
    assert desk.answers(Refused) == []
    token = desk.submit()
    assert desk.answers(Refused) == [Refused(token, "busy")]
    desk.pub_no = 3
    desk.write()
    desk.submit()
    assert desk.answers(Refused) == []


def pending_pulled_events() -> None:
    """Events of other regions are not appended while too much waits for the disk."""
    desk = founded(1, "a", replicas=1, pending_bytes_max=EVENT_BYTES)
    for lo in (1, 2, 3):
        desk.give(AppendAt(LOG, (sequenced(lo),)))
    assert appended(desk) == [1, 2]
    desk.write()
    desk.give(AppendAt(LOG, (sequenced(3),)))
    assert appended(desk) == [3]


def appended(desk: Desk) -> list[int]:
    effects = [effect for effect in desk.asked if isinstance(effect, Append)]
    return [batch.lo for effect in effects for batch in effect.batches]


def catch_up_messages() -> None:
    """A message of a catch-up ends with the batch that passes forward_bytes_max."""
    desk = founded(forward_bytes_max=2 * EVENT_BYTES)
    for _ in range(9):
        desk.submit()
    desk.write()
    desk.hear("b", Sync(1, B, {}, {}))
    sizes = [len(message.batches) for _, message in desk.tell(Forward) if message.batches]
    assert sizes == [3, 3, 3]


def gated(missing: int) -> bool:
    """Whether commits wait for a learner that lacks so many of six positions."""
    desk = founded(1, "a", replicas=2, min_replicas=1, join_lag_max=2)
    for _ in range(6):
        desk.submit()
    desk.write()
    desk.hear("b", Sync(1, B, {}, {}))
    desk.hear("b", PublishersKept(1, LOG))
    desk.hear("b", Ack(1, LOG, 7 - missing))
    beats(desk, 100 * MS, "b")
    desk.answers(Submitted)
    token = desk.submit()
    desk.write()
    return desk.answers(Submitted) != [Submitted(token, 7)]


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
