"""The subscriber, step by step."""

from typing import Any

from surecast.columns.batch import FILTERED
from surecast.core.endpoint import Ended, Follow, Following, Lost, Unfollow
from surecast.core.types import Deliver, Emit, PeerDown, Received, Send, Start, TimerFired
from surecast.protocols.gryphon.config import ReaderConfig
from surecast.protocols.gryphon.messages import Join, Leave, Matched, Refused
from surecast.protocols.gryphon.reader import Reader
from tests.protocols.gryphon.made import STREAM, batch

X = "key == 'x'"


class Subscriber:
    def __init__(self) -> None:
        self.reader = Reader(ReaderConfig(("a", "b")))
        self.now_ns = 0
        self.out: list[Any] = []
        self.give(Start(0, 1))

    def give(self, inp: Any, after_ns: int = 0) -> list[Any]:
        self.now_ns += after_ns
        self.out = self.reader.step(self.now_ns, inp)
        return self.out

    def joins(self) -> list[tuple[str, int, str]]:
        sends = [one for one in self.out if isinstance(one, Send)]
        return [
            (one.peer, one.message.start, one.message.where)
            for one in sends
            if isinstance(one.message, Join)
        ]

    def matched(self, lo: int, hi: int, *batches: Any, number: int = 1, lost: str = "") -> Any:
        return Received("a", Matched(STREAM, number, lo, hi, batches, lost))


def ranges(effects: list[Any]) -> list[tuple[int, int, int, int]]:
    given = [one for one in effects if isinstance(one, Deliver)]
    return [(b.lo, b.hi, b.rows, b.reason) for one in given for b in one.batches]


def test_what_is_not_sent_is_void_as_filtered() -> None:
    made = Subscriber()
    made.give(Follow(STREAM, 3, X))
    assert made.joins() == [("a", 3, X)]
    made.give(made.matched(3, 12, batch(5, [b"x", b"x"])))
    assert ranges(made.out) == [(3, 5, 0, FILTERED), (5, 7, 2, 0), (7, 12, 0, FILTERED)]
    made.give(made.matched(3, 14))
    assert ranges(made.out) == [(12, 14, 0, FILTERED)], "nothing twice"


def test_after_the_loss_of_its_server_it_continues_at_the_next_one() -> None:
    made = Subscriber()
    made.give(Follow(STREAM, 1, X))
    made.give(made.matched(1, 12))
    made.give(PeerDown("a"))
    assert made.joins() == [("b", 12, X)]
    made.give(made.matched(12, 20))
    assert made.out == [], "a message of the former server"


def test_a_silent_server_is_left() -> None:
    made = Subscriber()
    made.give(Follow(STREAM, 1, X))
    made.give(TimerFired("idle"), after_ns=made.reader.config.idle_ns)
    assert made.joins() == [("b", 1, X)]


def test_a_subscription_from_the_latest_position_keeps_its_place_without_an_event() -> None:
    made = Subscriber()
    made.give(Follow(STREAM, 0, X))
    made.give(made.matched(40, 40))
    assert [one.event for one in made.out if isinstance(one, Emit)] == [Following(STREAM, 40)]
    made.give(PeerDown("a"))
    assert made.joins() == [("b", 40, X)]


def test_answers_to_an_earlier_join_are_dropped() -> None:
    made = Subscriber()
    made.give(Follow(STREAM, 1, X))
    made.give(Unfollow(STREAM))
    assert [one.message for one in made.out] == [Leave(STREAM)]
    made.give(Follow(STREAM, 1, "key == 'y'", 7))
    assert Emit(Following(STREAM, 1, 7)) in made.out
    assert made.give(made.matched(1, 5)) == []
    assert ranges(made.give(made.matched(1, 5, number=2))) == [(1, 5, 0, FILTERED)]


def test_a_refused_filter_is_left_to_the_application() -> None:
    made = Subscriber()
    made.give(Follow(STREAM, 1, X))
    made.give(Received("a", Refused(STREAM, 1, "no such column")))
    assert made.joins() == [("a", 1, "")]
    made.give(Received("a", Refused(STREAM, 2, "too many")))
    assert made.out == []
    made.give(TimerFired("idle"), after_ns=made.reader.config.idle_ns)
    assert made.joins() == [("b", 1, "")]


def test_a_gap_in_the_answers_of_a_server_is_not_delivered() -> None:
    made = Subscriber()
    made.give(Follow(STREAM, 1, X))
    made.give(made.matched(5, 9))
    assert ranges(made.out) == []
    assert made.joins() == [("b", 1, X)]


def test_lost_positions_and_the_end_of_a_deleted_stream_are_reported() -> None:
    made = Subscriber()
    made.give(Follow(STREAM, 1, X))
    made.give(made.matched(1, 9, lost="no replica has them"))
    assert [one.event for one in made.out] == [Lost(STREAM, 1, 9, "no replica has them")]
    assert not any(isinstance(one, Emit) and isinstance(one.event, Ended) for one in made.out)
