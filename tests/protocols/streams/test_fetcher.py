"""A client that fetches ranges, step by step."""

from random import Random
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.core import endpoint
from surecast.core.endpoint import Go, Hold, Lost, Short
from surecast.core.types import Deliver, Emit, PeerDown, Received, Send, SetTimer, Start, TimerFired
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.fetcher import AGAIN_NS, WHY_MAX, Fetcher
from surecast.protocols.streams.messages import RangeEvents, RangeLost, ReadRange

S = b"s" * 16
IDLE_NS = 1000


def batch(lo: int, hi: int) -> Batch:
    return Batch.of(S, [b"%d" % n for n in range(lo, hi)]).sequenced(lo, 5, 1)


def fetcher(lo: int = 1, hi: int = 100) -> Fetcher:
    made = Fetcher(SubscriberConfig(("a", "b"), idle_ns=IDLE_NS))
    made.step(0, Start(0, 1))
    assert made.step(0, endpoint.ReadRange(S, lo, hi)) == [Send("a", ReadRange(S, lo, hi))]
    return made


def events(lo: int, hi: int, last: bool, *batches: Batch, end: int = 1000) -> RangeEvents:
    return RangeEvents(S, lo, hi, end, last, batches)


def test_parts_are_delivered_in_order_and_the_next_range_is_requested_after_the_last() -> None:
    machine = fetcher()
    one, other = batch(1, 10), batch(10, 30)
    assert machine.step(1, Received("a", events(1, 10, False, one))) == [Deliver(S, (one,))]
    assert machine.step(2, Received("a", events(10, 30, True, other))) == [
        Deliver(S, (other,)),
        Send("a", ReadRange(S, 30, 100)),
    ]


def test_nothing_outside_of_the_range_is_delivered() -> None:
    machine = fetcher(5, 20)
    out = machine.step(1, Received("a", events(1, 30, True, batch(1, 10), batch(10, 30))))
    (delivered,) = out
    assert [(b.lo, b.hi) for b in delivered.batches] == [(5, 10), (10, 20)]
    assert machine.step(2, Received("a", events(20, 30, True, batch(20, 30)))) == []


def test_a_batch_that_does_not_follow_the_last_one_is_dropped() -> None:
    machine = fetcher()
    out = machine.step(1, Received("a", events(1, 30, False, batch(10, 30))))
    assert out == []
    assert machine.position == 1


def test_a_fetcher_on_hold_requests_nothing_until_go() -> None:
    machine = fetcher()
    machine.step(1, Hold())
    one = batch(1, 10)
    assert machine.step(2, Received("a", events(1, 10, True, one))) == [Deliver(S, (one,))]
    assert machine.step(3, Go()) == [Send("a", ReadRange(S, 10, 100))]
    assert machine.step(4, Go()) == []  # the answer is under way


def test_a_server_that_is_gone_or_silent_is_replaced_at_the_same_position() -> None:
    machine = fetcher()
    machine.step(1, Received("a", events(1, 10, False, batch(1, 10))))
    assert machine.step(2, PeerDown("b")) == []
    assert machine.step(3, PeerDown("a")) == [Send("b", ReadRange(S, 10, 100))]
    assert machine.step(4, Received("a", events(10, 30, True, batch(10, 30)))) == []
    assert machine.step(5, TimerFired("idle")) == [SetTimer("idle", 5 + IDLE_NS)]
    out = machine.step(3 + IDLE_NS, TimerFired("idle"))
    assert Send("a", ReadRange(S, 10, 100)) in out


def test_a_server_without_the_range_is_reported_and_the_next_one_asked() -> None:
    machine = fetcher()
    out = machine.step(1, Received("a", events(1, 100, True, end=0)))
    assert out == [Emit(Short(S, 0)), SetTimer("again", 1 + AGAIN_NS)]
    assert machine.step(2, TimerFired("again")) == [Send("b", ReadRange(S, 1, 100))]
    assert machine.step(3, TimerFired("again")) == []


def test_another_range_replaces_the_first() -> None:
    machine = fetcher()
    assert machine.step(1, endpoint.ReadRange(S, 50, 60)) == [Send("a", ReadRange(S, 50, 60))]
    (delivered,) = machine.step(2, Received("a", events(50, 60, True, batch(50, 60))))
    assert [(b.lo, b.hi) for b in delivered.batches] == [(50, 60)]


# ---------------------------------------------------------------- what is lost


def gone(lo: int, hi: int, last: bool = False, why: str = "why", end: int = 1000) -> RangeLost:
    return RangeLost(S, lo, hi, end, last, why)


def test_a_loss_is_reported_in_its_place_and_the_range_continues() -> None:
    machine = fetcher()
    one, other = batch(1, 10), batch(20, 30)
    assert machine.step(1, Received("a", events(1, 10, False, one))) == [Deliver(S, (one,))]
    assert machine.step(2, Received("a", gone(10, 20))) == [Emit(Lost(S, 10, 20, "why"))]
    assert machine.step(3, Received("a", events(20, 30, True, other))) == [
        Deliver(S, (other,)),
        Send("a", ReadRange(S, 30, 100)),
    ]


def test_after_a_loss_that_ends_an_answer_the_next_part_is_requested() -> None:
    machine = fetcher()
    assert machine.step(1, Received("a", gone(1, 20, True))) == [
        Emit(Lost(S, 1, 20, "why")),
        Send("a", ReadRange(S, 20, 100)),
    ]
    assert machine.step(2, Received("a", gone(20, 100, True))) == [Emit(Lost(S, 20, 100, "why"))]


def test_a_loss_is_cut_to_the_rest_of_the_requested_range() -> None:
    machine = fetcher(5, 20)
    machine.step(1, Received("a", events(5, 10, False, batch(5, 10))))
    out = machine.step(2, Received("a", gone(1, 1 << 62, why="x" * 10_000)))
    assert out == [Emit(Lost(S, 10, 20, "x" * WHY_MAX))]
    assert machine.step(3, Received("a", gone(20, 30))) == []


@pytest.mark.parametrize(
    ("lo", "hi"),
    [
        (11, 20),
        (1, 10),
        (1, 5),
        (10, 10),
        (20, 10),
        (10, 1),
        (-5, -1),
        (100, 200),
        (10, -(1 << 63)),
    ],
)
def test_a_loss_with_wrong_positions_is_ignored(lo: int, hi: int) -> None:
    machine = fetcher()
    machine.step(1, Received("a", events(1, 10, False, batch(1, 10))))
    assert machine.step(2, Received("a", gone(lo, hi))) == []
    assert machine.position == 10
    # With the last message the client finds that the server cannot answer, and asks the next one.
    assert machine.step(3, Received("a", gone(lo, hi, True))) == [
        Emit(Short(S, 1000)),
        SetTimer("again", 3 + AGAIN_NS),
    ]


def test_only_the_server_that_was_asked_can_declare_a_loss() -> None:
    machine = fetcher()
    assert machine.step(1, Received("b", gone(1, 20))) == []
    assert machine.step(2, Received("a", RangeLost(b"?" * 16, 1, 20, 1000, False, "why"))) == []
    machine.step(3, Hold())
    machine.step(4, Received("a", events(1, 10, True, batch(1, 10))))
    assert machine.step(5, Received("a", gone(10, 20))) == []  # it was not asked since
    assert machine.position == 10


@pytest.mark.parametrize("seed", range(20))
def test_each_position_is_delivered_once_or_lost_for_any_messages_of_a_server(seed: int) -> None:
    rng = Random(seed)
    machine = fetcher(10, 60)
    declared: set[int] = set()
    at = 10
    for now in range(1, 400):
        lo, hi = rng.randint(-5, 70), rng.randint(-5, 70)
        message: Any = gone(lo, hi, rng.random() < 0.3)
        if rng.random() < 0.5 and 0 < lo < hi:
            message = events(lo, hi, rng.random() < 0.3, batch(lo, hi))
        else:
            declared |= set(range(lo, hi)) if isinstance(message, RangeLost) else set()
        for effect in machine.step(now, Received(machine._server, message)):
            spans = []
            if isinstance(effect, Deliver):
                spans = [(one.lo, one.hi) for one in effect.batches]
            elif isinstance(effect, Emit) and isinstance(effect.event, Lost):
                spans = [(effect.event.lo, effect.event.hi)]
                assert set(range(*spans[0])) <= declared
            for first, end in spans:
                assert first == at < end <= 60
                at = end
        machine.step(now, TimerFired("again"))
    assert at == 60
