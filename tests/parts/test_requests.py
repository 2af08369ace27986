"""Requests to the replicas of a region, step by step: asked until answered, wherever that is."""

from typing import Any, ClassVar

import msgspec
import pytest

from surecast.core.endpoint import Answered, Drop, Inquire
from surecast.core.types import (
    MS,
    SECOND,
    Emit,
    Message,
    PeerDown,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
    tagged,
)
from surecast.errors import UsageError
from surecast.parts.requests import PATIENT, Request, Requests

REPLICAS = ("r0", "r1", "r2")


class ToyMessage(Message, tag=tagged("toy")):
    pass


class Ask(ToyMessage):
    token: int
    what: str = "ask"


class Stop(ToyMessage):
    token: int


class Reply(ToyMessage):
    token: int
    why: str = ""
    head: str = ""


class Config(msgspec.Struct, frozen=True):
    replicas: tuple[str, ...] = REPLICAS
    retry_ns: int = 500 * MS
    backoff_ns: int = 50 * MS
    questions_max: int = 10_000


class Toy(Requests):
    """A question is the dict of a `Request`'s options."""

    handlers: ClassVar[dict[type, str]] = {Reply: "_on_answer"}

    def _request(self, question: Any, token: int) -> Request:
        return Request(Ask(token), **question)


class Steps:
    def __init__(self, **options: Any) -> None:
        self.machine = Toy(Config(**options))
        self.now_ns = 0
        self.give(Start(0, 1))

    def give(self, inp: Any) -> list[Any]:
        return [e for e in self.machine.step(self.now_ns, inp) if not isinstance(e, SetTimer)]

    def ask(self, token: int, **question: Any) -> list[Any]:
        return self.give(Inquire(question, token))

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
    assert steps.ask(1) == [Send("r0", Ask(1))]
    assert steps.answer("r0", Reply(1)) == [Emit(Answered(1, Reply(1)))]
    assert steps.answer("r0", Reply(1)) == []
    assert steps.silence() == []
    assert steps.machine.open == {}


def test_a_refusal_that_is_final_is_an_answer(steps: Steps) -> None:
    steps.ask(1, keep=True)
    assert steps.answer("r0", Reply(1, "too-many")) == [Emit(Answered(1, Reply(1, "too-many")))]
    assert steps.machine.open == {}


def test_only_who_is_asked_may_answer(steps: Steps) -> None:
    steps.ask(1)
    assert steps.answer("r1", Reply(1)) == []
    assert steps.answer("r0", Reply(77)) == []
    assert len(steps.machine.open) == 1


def test_who_is_silent_or_gone_is_replaced_by_the_next(steps: Steps) -> None:
    steps.ask(1)
    assert steps.silence(499 * MS) == [Send("r0", Ask(1))]  # too early to move
    assert steps.silence() == [Send("r1", Ask(1))]
    steps.give(PeerDown("r0"))  # not who is asked now
    steps.give(PeerDown("r1"))
    assert steps.again() == [Send("r2", Ask(1))]
    steps.give(PeerDown("r2"))
    assert steps.again() == [Send("r0", Ask(1))]


def test_silence_counts_from_the_question_on(steps: Steps) -> None:
    steps.now_ns += 10 * SECOND
    steps.ask(1)
    assert steps.silence(499 * MS) == [Send("r0", Ask(1))]


def test_all_that_a_replica_was_asked_is_asked_of_the_next(steps: Steps) -> None:
    for token in (1, 2, 3):
        steps.ask(token)
    steps.answer("r0", Reply(2))
    steps.give(PeerDown("r0"))
    assert steps.again() == [Send("r1", Ask(1)), Send("r1", Ask(3))]


def test_a_question_for_the_head_follows_it(steps: Steps) -> None:
    assert steps.ask(4, of_head=True) == [Send("r0", Ask(4))]
    assert steps.answer("r0", Reply(4, "not-head", "r2")) == []
    assert steps.again() == [Send("r2", Ask(4))]
    assert steps.answer("r2", Reply(4, "not-head")) == []  # it does not know who is
    assert steps.again() == [Send("r0", Ask(4))]
    assert steps.answer("r0", Reply(4)) == [Emit(Answered(4, Reply(4)))]


def test_a_head_that_is_no_replica_of_the_region_is_not_followed(steps: Steps) -> None:
    steps.ask(4, of_head=True)
    assert steps.answer("r0", Reply(4, "not-head", "stranger")) == []
    assert steps.again() == [Send("r1", Ask(4))]


@pytest.mark.parametrize("why", ["recovering", "busy"])
def test_a_refusal_that_will_pass_is_waited_out(steps: Steps, why: str) -> None:
    steps.ask(4, of_head=True)
    for _ in range(3 * PATIENT):
        assert steps.answer("r0", Reply(4, why)) == []
        assert steps.again() == [Send("r0", Ask(4))]


def test_an_unknown_stream_is_believed_after_a_while(steps: Steps) -> None:
    steps.ask(1)
    unknown = Reply(1, "unknown-stream")
    for _ in range(PATIENT):
        assert steps.answer("r0", unknown) == []
        steps.again()
    assert steps.answer("r0", unknown) == [Emit(Answered(1, unknown))]


def test_a_kept_question_goes_on_and_is_asked_again_elsewhere(steps: Steps) -> None:
    steps.ask(2, keep=True, cancel=Stop(2))
    for _ in range(3):
        assert steps.answer("r0", Reply(2)) == [Emit(Answered(2, Reply(2)))]
    assert steps.silence(10 * SECOND) == []  # silence is no news
    steps.give(PeerDown("r0"))
    assert steps.again() == [Send("r1", Ask(2))]
    assert steps.answer("r0", Reply(2)) == []
    assert steps.answer("r1", Reply(2)) == [Emit(Answered(2, Reply(2)))]
    assert steps.give(Drop(2)) == [Send("r1", Stop(2))]
    assert steps.answer("r1", Reply(2)) == []


def test_dropping_what_cannot_be_cancelled_says_nothing(steps: Steps) -> None:
    steps.ask(2)
    assert steps.give(Drop(2)) == []
    assert steps.give(Drop(77)) == []
    assert steps.silence() == []


def test_once_answered_a_question_may_be_asked_in_other_words(steps: Steps) -> None:
    other = Ask(3, "still")
    steps.ask(3, of_head=True, keep=True, then=other)
    steps.give(PeerDown("r0"))
    assert steps.again() == [Send("r1", Ask(3))]  # not answered yet
    assert steps.answer("r1", Reply(3)) == [Emit(Answered(3, Reply(3)))]
    steps.give(PeerDown("r1"))
    assert steps.again() == [Send("r2", other)]


def test_a_head_may_say_by_itself_that_it_is_none_any_more(steps: Steps) -> None:
    steps.ask(3, of_head=True, keep=True)
    steps.answer("r0", Reply(3))
    assert steps.answer("r0", Reply(3, "not-head", "r1")) == []
    assert steps.again() == [Send("r1", Ask(3))]


def test_a_talkative_replica_does_not_hide_that_the_head_is_silent(steps: Steps) -> None:
    steps.ask(2, keep=True)
    steps.answer("r0", Reply(2))
    steps.ask(4, of_head=True)
    steps.answer("r0", Reply(4, "not-head", "r2"))
    assert steps.again() == [Send("r2", Ask(4))]
    for _ in range(5):  # there is news all the time
        steps.now_ns += 100 * MS
        steps.answer("r0", Reply(2))
    assert steps.silence(0) == [Send("r0", Ask(4))]  # and the other question stays where it is


def test_there_is_a_bound_to_open_questions() -> None:
    steps = Steps(questions_max=2)
    steps.ask(1)
    steps.ask(2)
    with pytest.raises(UsageError, match="questions_max"):
        steps.ask(3)
