"""A publisher, step by step: order, tokens, and an owner that cannot be reached."""

from random import Random
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.core.endpoint import Acked, Failed, OfferBatch, Open, Opened
from surecast.core.streams import StreamSpec
from surecast.core.types import MS, SECOND, Emit, Received, Send, SetTimer, Start, TimerFired
from surecast.protocols.streams.config import PublisherConfig
from surecast.protocols.streams.messages import CreateStream, PubAck, Publish, PubNack, StreamOpened
from surecast.protocols.streams.publisher import DOUBLINGS_MAX, Publisher

STREAM = bytes(range(16))


class Steps:
    """A publisher, driven step by step."""

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
    early = PubAck(STREAM, batch.publisher, 4, 20)  # of the second batch, before the first
    assert steps.give(Received("w/0", early)) == []
    ack = PubAck(STREAM, batch.publisher, 1, 10)
    assert steps.give(Received("w/0", ack)) == [Emit(Acked(STREAM, 1, 3, 10, 7))]
    assert steps.give(Received("w/0", ack)) == []  # once
    assert steps.give(Received("w/0", early)) == [Emit(Acked(STREAM, 4, 1, 20, 8))]


def test_owner_unreachable_for_long_fails_waiting_batches_and_changes_the_identity() -> None:
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


def test_owner_that_answers_in_between_restarts_the_time_limit() -> None:
    steps = Steps(owner_ns=10 * SECOND)
    (effect,) = steps.offer(7)
    batch = effect.message.batch
    steps.nack(batch, "owner-unreachable")
    steps.now_ns += 9 * SECOND
    steps.nack(batch, "busy")  # an answer of the owner
    steps.now_ns += 2 * SECOND
    assert steps.nack(batch, "owner-unreachable") == []
    assert steps.machine.unacknowledged == 1


def test_owner_unreachable_makes_opening_a_stream_wait_and_then_fail() -> None:
    steps = Steps(owner_ns=10 * SECOND)
    assert steps.give(Open("s", StreamSpec())) == [Send("w/0", CreateStream("s", StreamSpec()))]
    unreachable = Received("w/0", StreamOpened("s", None, "owner-unreachable"))
    assert steps.give(unreachable) == []
    steps.now_ns += 10 * SECOND
    assert steps.give(unreachable) == [Emit(Opened("s", None, "owner-unreachable"))]
    assert steps.machine.unacknowledged == 0


@pytest.mark.parametrize("why", ["owners-differ", "bad-name", "too-many-streams"])
def test_owner_refusals_that_are_final_are_reported_at_once(why: str) -> None:
    steps = Steps()
    steps.give(Open("s", StreamSpec()))
    opened = StreamOpened("s", None, why)
    assert steps.give(Received("w/0", opened)) == [Emit(Opened("s", None, why))]


# ---------------------------------------------------------------- repetitions

OTHER = bytes(range(1, 17))


def offers(steps: Steps, stream: bytes) -> list[tuple[str, bytes, int]]:
    """Offer an event, which is acknowledged at once if it is sent; returns what was sent."""
    effects = steps.give(OfferBatch(stream, Batch.of(stream, [b"v"]), 0))
    for effect in effects:
        batch = effect.message.batch
        steps.give(Received("w/0", PubAck(stream, batch.publisher, batch.pub_no, 1)))
    return published(effects)


def published(effects: list[Any]) -> list[tuple[str, bytes, int]]:
    return [
        (e.peer, e.message.stream, e.message.batch.pub_no)
        for e in effects
        if isinstance(e, Send) and isinstance(e.message, Publish)
    ]


def repetitions(steps: Steps, seconds: int) -> list[int]:
    """The times, in ms, at which something is repeated while OTHER makes progress."""
    found = []
    for _ in range(2 * seconds):
        steps.now_ns += SECOND // 2
        offers(steps, OTHER)
        if steps.give(TimerFired("retry")):
            found.append(steps.now_ns // MS)
    return found


def test_publish_without_an_answer_is_repeated_while_other_streams_make_progress() -> None:
    steps = Steps(retry_ns=SECOND // 2)
    steps.offer(7)
    steps.offer(8)
    steps.now_ns += SECOND // 2
    assert offers(steps, OTHER) == [("w/0", OTHER, 1)]
    effects = steps.give(TimerFired("retry"))
    assert published(effects) == [("w/0", STREAM, 1), ("w/0", STREAM, 2)]  # the same replica
    assert steps.machine.target == 0


def test_waits_between_repetitions_double_up_to_a_bound() -> None:
    """At most 2**DOUBLINGS_MAX times the first wait; an acknowledgement starts over."""
    assert DOUBLINGS_MAX == 4
    steps = Steps(retry_ns=SECOND // 2)
    (effect,) = steps.offer(7)
    times = repetitions(steps, 40)
    waits = [b - a for a, b in zip([0, *times], times, strict=False)]
    assert waits == [500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000, 8_000]
    first = effect.message.batch
    steps.offer(8)
    steps.give(Received("w/0", PubAck(STREAM, first.publisher, first.pub_no, 1)))
    at_ms = steps.now_ns // MS
    assert [time - at_ms for time in repetitions(steps, 3)] == [500, 1_500]


def test_idle_streams_repeat_nothing_and_new_batches_wait_for_their_answer() -> None:
    steps = Steps(retry_ns=SECOND // 2)
    offers(steps, STREAM)
    assert repetitions(steps, 3) == []
    steps.offer(8)
    at_ms = steps.now_ns // MS
    assert [time - at_ms for time in repetitions(steps, 1)] == [500]


def test_request_for_a_stream_is_repeated_while_publishes_make_progress() -> None:
    steps = Steps(retry_ns=SECOND // 2)
    steps.give(Open("s", StreamSpec()))
    steps.now_ns += SECOND // 2
    offers(steps, OTHER)
    assert steps.give(TimerFired("retry")) == [Send("w/0", CreateStream("s", StreamSpec()))]
    steps.give(Received("w/0", StreamOpened("s", None, "bad-name")))
    assert repetitions(steps, 3) == []
