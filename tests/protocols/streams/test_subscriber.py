"""A thin subscriber, step by step: each position once, in order, from any server."""

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
    """A subscriber that follows `starts`, driven step by step."""

    def __init__(self, **starts: int) -> None:
        positions = {name.encode() * 16: start for name, start in starts.items()}
        self.machine = Subscriber(SubscriberConfig(("a", "b"), idle_ns=SECOND), positions)
        self.now_ns = 0
        self.started = self.give(Start(0, 1))
        self.now_ns += 10 * SECOND  # long enough for earlier messages to have arrived

    def give(self, inp: Any) -> list[Any]:
        return [e for e in self.machine.step(self.now_ns, inp) if not isinstance(e, SetTimer)]

    def gets(self, peer: str, *batches: Batch, stream: bytes = S) -> list[Any]:
        return self.give(Received(peer, Events(stream, batches, 99)))


def spans(effects: list[Any]) -> list[tuple[int, int]]:
    return [(b.lo, b.hi) for e in effects if isinstance(e, Deliver) for b in e.batches]


def test_a_subscriber_requests_the_streams_it_follows_and_delivers_their_events() -> None:
    steps = Steps(s=3, t=1)
    assert steps.started == [Send("a", Subscribe(S, 3)), Send("a", Subscribe(T, 1))]
    one, other = batch(3, 5), batch(5, 9)
    assert steps.gets("a", one, other) == [Deliver(S, (one, other))]
    assert steps.machine.positions == {S: 9, T: 1}


def test_delivered_positions_are_not_delivered_again() -> None:
    steps = Steps(s=5)
    assert spans(steps.gets("a", batch(1, 4), batch(4, 8))) == [(5, 8)]
    assert steps.gets("a", batch(1, 8)) == []


def test_events_are_accepted_only_from_the_subscribed_server() -> None:
    steps = Steps(s=1)
    assert steps.gets("b", batch(1, 5)) == []
    assert steps.gets("a", batch(1, 5, T), stream=T) == []


def test_after_a_gap_the_next_server_is_subscribed() -> None:
    steps = Steps(s=1)
    fits = batch(1, 3)
    assert steps.gets("a", fits, batch(5, 8)) == [
        Deliver(S, (fits,)),
        Send("a", Unsubscribe(S)),
        Send("b", Subscribe(S, 3)),
    ]
    assert steps.gets("a", batch(3, 8)) == []
    assert spans(steps.gets("b", batch(3, 8))) == [(3, 8)]


def test_events_of_an_earlier_follow_are_not_treated_as_a_gap() -> None:
    """Events sent for an earlier Follow do not fit; the requested ones come next."""
    steps = Steps(s=50)
    assert steps.give(Follow(S, 10)) == [Send("a", Subscribe(S, 10))]
    assert steps.gets("a", batch(50, 60)) == []
    assert spans(steps.gets("a", batch(10, 60))) == [(10, 60)]


def test_a_server_that_is_down_or_silent_is_replaced_at_the_same_position() -> None:
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


def test_a_subscriber_without_streams_sends_nothing() -> None:
    steps = Steps(s=5)
    assert steps.give(Unfollow(S)) == [Send("a", Unsubscribe(S))]
    assert steps.give(Unfollow(S)) == []
    assert steps.give(TimerFired("idle")) == []
    assert steps.gets("a", batch(5, 9)) == []
