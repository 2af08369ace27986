"""A thin subscriber, step by step: each position once, in order, whoever serves it."""

from typing import Any

from surecast.columns.batch import Batch
from surecast.core.endpoint import Follow, Unfollow
from surecast.core.types import (
    SECOND,
    Deliver,
    PeerDown,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.messages import Events, Subscribe, Unsubscribe
from surecast.protocols.streams.subscriber import Subscriber

S, T = b"s" * 16, b"t" * 16


def batch(lo: int, hi: int, stream: bytes = S) -> Batch:
    return Batch.of(stream, [b"%d" % n for n in range(lo, hi)]).sequenced(lo, 5, 1)


class Steps:
    """A subscriber that follows `starts`, and what it does at each step."""

    def __init__(self, **starts: int) -> None:
        positions = {name.encode() * 16: start for name, start in starts.items()}
        self.machine = Subscriber(SubscriberConfig(("a", "b"), idle_ns=SECOND), positions)
        self.now_ns = 0
        self.started = self.give(Start(0, 1))
        self.now_ns += 10 * SECOND  # what was under way when it began is long past

    def give(self, inp: Any) -> list[Any]:
        return [e for e in self.machine.step(self.now_ns, inp) if not isinstance(e, SetTimer)]

    def gets(self, peer: str, *batches: Batch, stream: bytes = S) -> list[Any]:
        return self.give(Received(peer, Events(stream, batches, 99)))


def spans(effects: list[Any]) -> list[tuple[int, int]]:
    return [(b.lo, b.hi) for e in effects if isinstance(e, Deliver) for b in e.batches]


def test_it_asks_for_what_it_follows_and_delivers_what_comes() -> None:
    steps = Steps(s=3, t=1)
    assert steps.started == [Send("a", Subscribe(S, 3)), Send("a", Subscribe(T, 1))]
    one, other = batch(3, 5), batch(5, 9)
    assert steps.gets("a", one, other) == [Deliver(S, (one, other))]
    assert steps.machine.positions == {S: 9, T: 1}


def test_what_was_delivered_before_is_left_out() -> None:
    steps = Steps(s=5)
    assert spans(steps.gets("a", batch(1, 4), batch(4, 8))) == [(5, 8)]
    assert steps.gets("a", batch(1, 8)) == []


def test_only_the_server_that_was_asked_is_listened_to() -> None:
    steps = Steps(s=1)
    assert steps.gets("b", batch(1, 5)) == []
    assert steps.gets("a", batch(1, 5, T), stream=T) == []


def test_a_gap_is_damage_and_another_server_is_asked() -> None:
    steps = Steps(s=1)
    fits = batch(1, 3)
    assert steps.gets("a", fits, batch(5, 8)) == [
        Deliver(S, (fits,)),
        Send("a", Unsubscribe(S)),
        Send("b", Subscribe(S, 3)),
    ]
    assert steps.gets("a", batch(3, 8)) == []
    assert spans(steps.gets("b", batch(3, 8))) == [(3, 8)]


def test_a_gap_before_what_was_just_asked_for_is_none() -> None:
    """What was under way for an earlier Follow does not fit, and what was asked for comes next."""
    steps = Steps(s=50)
    assert steps.give(Follow(S, 10)) == [Send("a", Subscribe(S, 10))]
    assert steps.gets("a", batch(50, 60)) == []
    assert spans(steps.gets("a", batch(10, 60))) == [(10, 60)]


def test_a_server_that_goes_or_falls_silent_is_replaced_at_the_same_position() -> None:
    steps = Steps(s=1)
    steps.gets("a", batch(1, 5))
    assert steps.give(PeerDown("b")) == []
    gone = [Send("a", Unsubscribe(S)), Send("b", Subscribe(S, 5))]
    assert steps.give(PeerDown("a")) == gone
    steps.now_ns += SECOND - 1
    assert steps.give(TimerFired("idle")) == []
    steps.now_ns += 1
    assert steps.give(TimerFired("idle")) == [Send("b", Unsubscribe(S)), Send("a", Subscribe(S, 5))]


def test_a_server_that_has_nothing_new_is_not_silent() -> None:
    steps = Steps(s=5)
    for _ in range(5):
        steps.gets("a")
        steps.now_ns += SECOND - 1
        assert steps.give(TimerFired("idle")) == []


def test_who_follows_nothing_asks_nobody() -> None:
    steps = Steps(s=5)
    assert steps.give(Unfollow(S)) == [Send("a", Unsubscribe(S))]
    assert steps.give(Unfollow(S)) == []
    assert steps.give(TimerFired("idle")) == []
    assert steps.gets("a", batch(5, 9)) == []
