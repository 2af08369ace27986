"""Requests to the replicas of a region, step by step: repeated at others until one answers."""

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
    """Requests whose questions are dicts of a `Request`'s options."""

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
        """Let `for_ns` pass without an answer; the requests sent then."""
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


def test_a_permanent_refusal_is_an_answer(steps: Steps) -> None:
    steps.ask(1, keep=True)
    assert steps.answer("r0", Reply(1, "too-many")) == [Emit(Answered(1, Reply(1, "too-many")))]
    assert steps.machine.open == {}


def test_only_the_target_of_a_request_may_answer(steps: Steps) -> None:
    steps.ask(1)
    assert steps.answer("r1", Reply(1)) == []
    assert steps.answer("r0", Reply(77)) == []
    assert len(steps.machine.open) == 1


def test_a_silent_or_disconnected_replica_is_replaced_by_the_next(steps: Steps) -> None:
    steps.ask(1)
    assert steps.silence(499 * MS) == [Send("r0", Ask(1))]  # too early to try another
    assert steps.silence() == [Send("r1", Ask(1))]
    steps.give(PeerDown("r0"))  # not the current target
    steps.give(PeerDown("r1"))
    assert steps.again() == [Send("r2", Ask(1))]
    steps.give(PeerDown("r2"))
    assert steps.again() == [Send("r0", Ask(1))]


def test_the_timeout_begins_with_the_question(steps: Steps) -> None:
    steps.now_ns += 10 * SECOND
    steps.ask(1)
    assert steps.silence(499 * MS) == [Send("r0", Ask(1))]


def test_all_open_questions_move_to_the_next_replica(steps: Steps) -> None:
    for token in (1, 2, 3):
        steps.ask(token)
    steps.answer("r0", Reply(2))
    steps.give(PeerDown("r0"))
    assert steps.again() == [Send("r1", Ask(1)), Send("r1", Ask(3))]


def test_a_question_for_the_head_follows_it(steps: Steps) -> None:
    assert steps.ask(4, of_head=True) == [Send("r0", Ask(4))]
    assert steps.answer("r0", Reply(4, "not-head", "r2")) == []
    assert steps.again() == [Send("r2", Ask(4))]
    assert steps.answer("r2", Reply(4, "not-head")) == []  # it does not know the head
    assert steps.again() == [Send("r0", Ask(4))]
    assert steps.answer("r0", Reply(4)) == [Emit(Answered(4, Reply(4)))]


def test_a_reported_head_outside_the_region_is_ignored(steps: Steps) -> None:
    steps.ask(4, of_head=True)
    assert steps.answer("r0", Reply(4, "not-head", "stranger")) == []
    assert steps.again() == [Send("r1", Ask(4))]


@pytest.mark.parametrize("why", ["recovering", "busy"])
def test_a_temporary_refusal_is_retried(steps: Steps, why: str) -> None:
    steps.ask(4, of_head=True)
    for _ in range(3 * PATIENT):
        assert steps.answer("r0", Reply(4, why)) == []
        assert steps.again() == [Send("r0", Ask(4))]


def test_unknown_stream_is_accepted_as_answer_after_several_tries(steps: Steps) -> None:
    steps.ask(1)
    unknown = Reply(1, "unknown-stream")
    for _ in range(PATIENT):
        assert steps.answer("r0", unknown) == []
        steps.again()
    assert steps.answer("r0", unknown) == [Emit(Answered(1, unknown))]


def test_a_kept_question_stays_open_and_moves_to_another_replica(steps: Steps) -> None:
    steps.ask(2, keep=True, cancel=Stop(2))
    for _ in range(3):
        assert steps.answer("r0", Reply(2)) == [Emit(Answered(2, Reply(2)))]
    assert steps.silence(10 * SECOND) == []  # no answer means no change
    steps.give(PeerDown("r0"))
    assert steps.again() == [Send("r1", Ask(2))]
    assert steps.answer("r0", Reply(2)) == []
    assert steps.answer("r1", Reply(2)) == [Emit(Answered(2, Reply(2)))]
    assert steps.give(Drop(2)) == [Send("r1", Stop(2))]
    assert steps.answer("r1", Reply(2)) == []


def test_dropping_a_question_without_cancel_message_sends_nothing(steps: Steps) -> None:
    steps.ask(2)
    assert steps.give(Drop(2)) == []
    assert steps.give(Drop(77)) == []
    assert steps.silence() == []


def test_a_kept_question_may_use_another_message_after_its_first_answer(steps: Steps) -> None:
    other = Ask(3, "still")
    steps.ask(3, of_head=True, keep=True, then=other)
    steps.give(PeerDown("r0"))
    assert steps.again() == [Send("r1", Ask(3))]  # not answered yet
    assert steps.answer("r1", Reply(3)) == [Emit(Answered(3, Reply(3)))]
    steps.give(PeerDown("r1"))
    assert steps.again() == [Send("r2", other)]


def test_a_head_may_announce_that_it_is_no_longer_head(steps: Steps) -> None:
    steps.ask(3, of_head=True, keep=True)
    steps.answer("r0", Reply(3))
    assert steps.answer("r0", Reply(3, "not-head", "r1")) == []
    assert steps.again() == [Send("r1", Ask(3))]


def test_answers_of_one_replica_do_not_hide_the_silence_of_the_head(steps: Steps) -> None:
    steps.ask(2, keep=True)
    steps.answer("r0", Reply(2))
    steps.ask(4, of_head=True)
    steps.answer("r0", Reply(4, "not-head", "r2"))
    assert steps.again() == [Send("r2", Ask(4))]
    for _ in range(5):  # the other request is answered all the time
        steps.now_ns += 100 * MS
        steps.answer("r0", Reply(2))
    assert steps.silence(0) == [Send("r0", Ask(4))]  # the other question stays at its replica


def test_the_number_of_open_questions_is_bounded() -> None:
    steps = Steps(questions_max=2)
    steps.ask(1)
    steps.ask(2)
    with pytest.raises(UsageError, match="questions_max"):
        steps.ask(3)
