"""The client's questions, step by step: asked until answered, wherever that is."""

from typing import Any

import pytest

from surecast.core.types import (
    MS,
    SECOND,
    Emit,
    PeerDown,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.errors import UsageError
from surecast.protocols.sprinkler.config import InquirerConfig
from surecast.protocols.sprinkler.inquirer import PATIENT, Inquirer
from surecast.protocols.sprinkler.messages import (
    Advance,
    Advanced,
    Answered,
    Attach,
    Attached,
    Drop,
    Inquire,
    Locate,
    Located,
    StreamsAre,
    UnwatchStreams,
    WatchStreams,
)

STREAM = bytes(16)
ME = bytes(range(16))
REPLICAS = ("r0", "r1", "r2")
LOCATE = Locate(1, STREAM, 5)
WATCH = WatchStreams(2, ">")
ATTACH = Attach(3, "sub", ME, True)
ADVANCE = Advance(4, "sub", ME, {STREAM: 7})


class Steps:
    def __init__(self, **options: Any) -> None:
        self.machine = Inquirer(InquirerConfig(REPLICAS, **options))
        self.now_ns = 0
        self.give(Start(0, 1))

    def give(self, inp: Any) -> list[Any]:
        return [e for e in self.machine.step(self.now_ns, inp) if not isinstance(e, SetTimer)]

    def answer(self, peer: str, message: Any) -> list[Any]:
        return self.give(Received(peer, message))

    def again(self) -> list[Any]:
        self.now_ns += 50 * MS
        return self.give(TimerFired("again"))

    def silence(self, for_ns: int = 500 * MS) -> list[Any]:
        """So long nothing is heard; what is asked then."""
        self.now_ns += for_ns
        return self.give(TimerFired("retry")) + self.again()


@pytest.fixture
def steps() -> Steps:
    return Steps()


def test_an_answer_ends_a_question(steps: Steps) -> None:
    assert steps.give(Inquire(LOCATE)) == [Send("r0", LOCATE)]
    located = Located(1, 9)
    assert steps.answer("r0", located) == [Emit(Answered(1, located))]
    assert steps.answer("r0", located) == []
    assert steps.silence() == []


def test_only_who_is_asked_may_answer(steps: Steps) -> None:
    steps.give(Inquire(LOCATE))
    assert steps.answer("r1", Located(1, 9)) == []
    assert steps.answer("r0", Located(77, 9)) == []
    assert len(steps.machine.open) == 1


def test_who_is_silent_or_gone_is_replaced_by_the_next(steps: Steps) -> None:
    steps.give(Inquire(LOCATE))
    assert steps.silence(499 * MS) == [Send("r0", LOCATE)]  # too early to move
    assert steps.silence() == [Send("r1", LOCATE)]
    steps.give(PeerDown("r0"))  # not who is asked now
    steps.give(PeerDown("r1"))
    assert steps.again() == [Send("r2", LOCATE)]
    steps.give(PeerDown("r2"))
    assert steps.again() == [Send("r0", LOCATE)]


def test_a_question_for_the_head_follows_it(steps: Steps) -> None:
    assert steps.give(Inquire(ADVANCE, of_head=True)) == [Send("r0", ADVANCE)]
    assert steps.answer("r0", Advanced(4, "not-head", "r2")) == []
    assert steps.again() == [Send("r2", ADVANCE)]
    assert steps.answer("r2", Advanced(4, "not-head")) == []  # it does not know who is
    assert steps.again() == [Send("r0", ADVANCE)]
    done = Advanced(4)
    assert steps.answer("r0", done) == [Emit(Answered(4, done))]


@pytest.mark.parametrize("why", ["recovering", "busy"])
def test_a_refusal_that_will_pass_is_waited_out(steps: Steps, why: str) -> None:
    steps.give(Inquire(ADVANCE, of_head=True))
    for _ in range(3 * PATIENT):
        assert steps.answer("r0", Advanced(4, why)) == []
        assert steps.again() == [Send("r0", ADVANCE)]


def test_an_unknown_stream_is_believed_after_a_while(steps: Steps) -> None:
    steps.give(Inquire(LOCATE))
    unknown = Located(1, 0, "unknown-stream")
    for _ in range(PATIENT):
        assert steps.answer("r0", unknown) == []
        steps.again()
    assert steps.answer("r0", unknown) == [Emit(Answered(1, unknown))]


def test_a_kept_question_goes_on_and_is_asked_again_elsewhere(steps: Steps) -> None:
    steps.give(Inquire(WATCH, keep=True))
    nothing = StreamsAre(2, (), (), True)
    for _ in range(3):
        assert steps.answer("r0", nothing) == [Emit(Answered(2, nothing))]
    assert steps.silence(10 * SECOND) == []  # silence is no news
    steps.give(PeerDown("r0"))
    assert steps.again() == [Send("r1", WATCH)]
    assert steps.answer("r0", nothing) == []
    assert steps.answer("r1", nothing) == [Emit(Answered(2, nothing))]
    assert steps.give(Drop(2)) == [Send("r1", UnwatchStreams(2))]
    assert steps.answer("r1", nothing) == []


def test_who_has_taken_a_name_does_not_take_it_back(steps: Steps) -> None:
    """Asked again of another head, it holds on to what it has; a newcomer goes before it."""
    steps.give(Inquire(ATTACH, of_head=True, keep=True))
    steps.give(PeerDown("r0"))
    assert steps.again() == [Send("r1", ATTACH)]  # not answered yet: it still wants to take it
    attached = Attached(3, {STREAM: 4})
    assert steps.answer("r1", attached) == [Emit(Answered(3, attached))]
    steps.give(PeerDown("r1"))
    (again,) = steps.again()
    assert again == Send("r2", Attach(3, "sub", ME, False))
    fenced = Attached(3, {}, "fenced")
    assert steps.answer("r2", fenced) == [Emit(Answered(3, fenced))]
    assert steps.machine.open == {}


def test_the_head_says_by_itself_that_it_is_none_any_more(steps: Steps) -> None:
    steps.give(Inquire(ATTACH, of_head=True, keep=True))
    steps.answer("r0", Attached(3, {}))
    assert steps.answer("r0", Attached(3, {}, "not-head", "r1")) == []
    assert steps.again() == [Send("r1", Attach(3, "sub", ME, False))]


def test_a_talkative_replica_does_not_hide_that_the_head_is_silent(steps: Steps) -> None:
    steps.give(Inquire(WATCH, keep=True))
    steps.answer("r0", StreamsAre(2, (), (), True))
    steps.give(Inquire(ADVANCE, of_head=True))
    steps.answer("r0", Advanced(4, "not-head", "r2"))
    assert steps.again() == [Send("r2", ADVANCE)]
    for _ in range(5):  # streams appear all the time
        steps.now_ns += 100 * MS
        steps.answer("r0", StreamsAre(2, (), (), True))
    assert steps.silence(0) == [Send("r0", ADVANCE)]  # and the watch stays where it is


def test_there_is_a_bound_to_open_questions() -> None:
    steps = Steps(questions_max=2)
    steps.give(Inquire(LOCATE))
    steps.give(Inquire(WATCH))
    with pytest.raises(UsageError, match="questions_max"):
        steps.give(Inquire(ATTACH))
