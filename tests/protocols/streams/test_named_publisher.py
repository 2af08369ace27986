"""A named publisher, step by step: the application chooses its numbers, also across clients."""

from random import Random
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.core.endpoint import Acked, Failed, OfferBatch
from surecast.core.types import SECOND, Received, SetTimer, Start, TimerFired
from surecast.protocols.streams.config import PublisherConfig
from surecast.protocols.streams.messages import PubAck, Publish, PubNack
from surecast.protocols.streams.publisher import Publisher

STREAM = bytes(range(16))
NAME = bytes(8) + b"billing!"


class Steps:
    """A publisher, driven step by step."""

    def __init__(self, publisher_type: type[Publisher] | None = None, **options: Any) -> None:
        config = PublisherConfig(("w/0", "w/1"), **options)
        self.machine = (publisher_type or Publisher)(config, Random(1))
        self.now_ns = 0
        self.give(Start(1000 * SECOND, 1))

    def give(self, inp: Any) -> list[Any]:
        return [e for e in self.machine.step(self.now_ns, inp) if not isinstance(e, SetTimer)]

    def offer(self, token: int, pub_no: int, count: int = 1, name: bytes = NAME) -> list[Any]:
        batch = Batch.of(STREAM, [b"v%d" % i for i in range(count)])
        if pub_no:
            batch = batch.numbered(name, pub_no)
        return self.give(OfferBatch(STREAM, batch, token))

    def nack(self, pub_no: int, why: str, expected: int = 0, name: bytes = NAME) -> list[Any]:
        return self.give(Received("w/0", PubNack(STREAM, name, pub_no, why, expected)))

    def ack(self, pub_no: int, seq: int, name: bytes = NAME) -> list[Any]:
        return self.give(Received("w/0", PubAck(STREAM, name, pub_no, seq)))


def sent(effects: list[Any]) -> list[tuple[bytes, int]]:
    messages = [e.message for e in effects if hasattr(e, "message")]
    return [(m.batch.publisher, m.batch.pub_no) for m in messages if isinstance(m, Publish)]


def told(effects: list[Any]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for effect in effects:
        event = getattr(effect, "event", None)
        if isinstance(event, Acked):
            found.append(("acked", event.token, event.pub_no, event.seq))
        elif isinstance(event, Failed):
            found.append(("failed", event.token, event.pub_no, event.why))
    return found


def test_batches_keep_the_numbers_they_come_with() -> None:
    steps = Steps()
    assert sent(steps.offer(1, 501, 3)) == [(NAME, 501)]
    assert sent(steps.offer(2, 504)) == [(NAME, 504)]
    assert told(steps.ack(501, 90)) == [("acked", 1, 501, 90)]
    assert told(steps.ack(504, 93)) == [("acked", 2, 504, 93)]
    assert steps.machine.queues == {}
    assert sent(steps.offer(3, 7)) == [(NAME, 7)]  # the application chooses where to go on


def test_a_gap_in_offered_numbers_is_an_assertion() -> None:
    steps = Steps()
    steps.offer(1, 1, 3)
    with pytest.raises(AssertionError, match="left out"):
        steps.offer(2, 5)


def test_a_named_publisher_shares_a_stream_with_others() -> None:
    steps = Steps()
    (first,) = steps.offer(1, 0)
    other = bytes(8) + b"shipping"
    assert sent(steps.offer(2, 10)) == [(NAME, 10)]
    assert sent(steps.offer(3, 10, name=other)) == [(other, 10)]
    mine = first.message.batch.publisher
    assert told(steps.ack(10, 5, other)) == [("acked", 3, 10, 5)]
    assert told(steps.ack(1, 6, mine)) == [("acked", 1, 1, 6)]
    assert told(steps.ack(10, 7)) == [("acked", 2, 10, 7)]


def test_numbers_below_the_expected_one_count_as_acknowledged() -> None:
    steps = Steps()
    for token, pub_no in enumerate((1, 11, 21, 31), 1):
        steps.offer(token, pub_no, 10)
    # The head has this publisher's numbers up to 5000 and has forgotten 11 and all before it.
    assert told(steps.nack(11, "out-of-order", 5001)) == [("acked", 1, 1, 0), ("acked", 2, 11, 0)]
    assert told(steps.ack(21, 77)) == [("acked", 3, 21, 77)]
    assert told(steps.nack(31, "out-of-order", 41)) == [("acked", 4, 31, 0)]
    assert steps.machine.unacknowledged == 0


def test_a_batch_split_differently_from_the_stored_one_fails() -> None:
    steps = Steps()
    steps.offer(1, 1, 10)
    steps.offer(2, 11, 10)
    assert told(steps.nack(11, "out-of-order", 15)) == [("failed", 2, 11, "mismatch")]
    assert told(steps.ack(1, 4)) == [("acked", 1, 1, 4)]


def test_an_anonymous_publisher_is_not_acknowledged_by_a_higher_expected_number() -> None:
    steps = Steps()
    (first,) = steps.offer(1, 0)
    mine = first.message.batch.publisher
    assert told(steps.nack(1, "out-of-order", 50, mine)) == []
    assert steps.machine.unacknowledged == 1


def test_a_failed_batch_fails_the_batches_after_it_and_renumbers_none() -> None:
    steps = Steps()
    for token, pub_no in enumerate((1, 2, 3), 1):
        steps.offer(token, pub_no)
    failed = steps.nack(2, "quarantined")
    assert told(failed) == [("failed", 2, 2, "quarantined"), ("failed", 3, 3, "quarantined")]
    assert sent(steps.offer(4, 4)) == [(NAME, 4)]  # sent as it is; the head will refuse it
    assert told(steps.ack(1, 9)) == [("acked", 1, 1, 9)]


def test_a_publisher_with_lost_history_fails_after_lost_ns() -> None:
    """If the head expects a number below the first one, it has lost acknowledged batches."""
    steps = Steps(lost_ns=10 * SECOND)
    steps.offer(1, 100)
    for _ in range(11):
        assert told(steps.nack(100, "out-of-order", 40)) == []
        steps.now_ns += SECOND
    assert told(steps.nack(100, "out-of-order", 40)) == [("failed", 1, 100, "history-lost")]
    assert steps.machine.queues == {}


def test_two_late_answers_do_not_mean_that_history_is_lost() -> None:
    """A stopped server sends answers late: one before it was stopped, one long after."""
    steps = Steps(lost_ns=10 * SECOND)
    steps.offer(1, 100)
    assert told(steps.nack(100, "out-of-order", 40)) == []
    steps.now_ns += 60 * SECOND
    assert told(steps.nack(100, "out-of-order", 40)) == []
    assert told(steps.ack(100, 7)) == [("acked", 1, 100, 7)]


def test_transient_refusals_are_retried_with_the_same_numbers() -> None:
    steps = Steps()
    steps.offer(1, 5, 2)
    steps.offer(2, 7)
    effects = steps.machine.step(0, Received("w/0", PubNack(STREAM, NAME, 5, "busy")))
    (timer,) = [e for e in effects if isinstance(e, SetTimer)]
    assert sent(steps.give(TimerFired(timer.key))) == [(NAME, 5), (NAME, 7)]
