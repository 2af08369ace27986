"""A client's inquiries to its region, step by step: the request of each, and its answer."""

from typing import Any

import pytest

from surecast.core.endpoint import (
    Answered,
    DeleteCursor,
    Drop,
    Inquire,
    MoveCursor,
    ResetCursor,
    TakeCursor,
    WhereIs,
    WhichCursors,
    WhichStreams,
)
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
from surecast.parts.requests import PATIENT
from surecast.protocols.streams.config import InquirerConfig
from surecast.protocols.streams.inquirer import Inquirer
from surecast.protocols.streams.messages import (
    Advance,
    Advanced,
    Attach,
    Attached,
    CursorChanged,
    CursorDelete,
    CursorReset,
    CursorsAre,
    Detach,
    ListCursors,
    Locate,
    Located,
    StreamsAre,
    UnwatchStreams,
    WatchStreams,
)

STREAM = bytes(16)
ME = bytes(range(16))
LOCATE = WhereIs(STREAM, 5)
WATCH = WhichStreams(">")
TAKE = TakeCursor("sub", ME)
MOVE = MoveCursor("sub", ME, {STREAM: 7})
LIST = WhichCursors("", ("a", STREAM))
RESET = ResetCursor("sub", ME, {STREAM: 7}, True)
DELETE = DeleteCursor("sub", ME, False)


class Steps:
    def __init__(self, **options: Any) -> None:
        self.machine = Inquirer(InquirerConfig(("r0", "r1", "r2"), **options))
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
        """Receive nothing for this time; returns the messages sent then."""
        self.now_ns += for_ns
        return self.give(TimerFired("retry")) + self.again()


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.mark.parametrize(
    ("question", "message", "answer"),
    [
        (WATCH, WatchStreams(9, ">"), StreamsAre(9, (), (), True)),
        (LOCATE, Locate(9, STREAM, 5), Located(9, 3)),
        (TAKE, Attach(9, "sub", ME, True), Attached(9, {STREAM: 4})),
        (MOVE, Advance(9, "sub", ME, {STREAM: 7}), Advanced(9)),
        (LIST, ListCursors(9, "", ("a", STREAM)), CursorsAre(9, (), ("", b""), True)),
        (RESET, CursorReset(9, "sub", ME, {STREAM: 7}, True), CursorChanged(9)),
        (DELETE, CursorDelete(9, "sub", ME, False), CursorChanged(9, "in-use")),
    ],
    ids=["which-streams", "where-is", "take-cursor", "move-cursor", "list", "reset", "delete"],
)
def test_each_inquiry_has_its_message_and_its_answer(
    steps: Steps, question: Any, message: Any, answer: Any
) -> None:
    assert steps.give(Inquire(question, 9)) == [Send("r0", message)]
    assert steps.answer("r0", answer) == [Emit(Answered(9, answer))]


def test_an_unknown_inquiry_is_a_usage_error(steps: Steps) -> None:
    with pytest.raises(UsageError, match="Located is not a question"):
        steps.give(Inquire(Located(1, 5), 1))


@pytest.mark.parametrize(("question", "answer"), [(LOCATE, Located(1, 9)), (MOVE, Advanced(1))])
def test_an_answer_ends_an_inquiry(steps: Steps, question: Any, answer: Any) -> None:
    steps.give(Inquire(question, 1))
    assert steps.answer("r0", answer) == [Emit(Answered(1, answer))]
    assert steps.answer("r0", answer) == []
    assert steps.silence() == []


@pytest.mark.parametrize(
    ("question", "refusal"),
    [
        (TAKE, Attached(4, {}, "not-head", "r2")),
        (MOVE, Advanced(4, "not-head", "r2")),
        (LIST, CursorsAre(4, (), ("", b""), True, "not-head", "r2")),
        (RESET, CursorChanged(4, "not-head", "r2")),
        (DELETE, CursorChanged(4, "not-head", "r2")),
    ],
)
def test_cursor_requests_go_to_the_head(steps: Steps, question: Any, refusal: Any) -> None:
    (first,) = steps.give(Inquire(question, 4))
    assert steps.answer("r0", refusal) == []
    assert steps.again() == [Send("r2", first.message)]


@pytest.mark.parametrize("question", [WATCH, LOCATE])
def test_watches_and_locates_go_to_any_replica(steps: Steps, question: Any) -> None:
    steps.give(Inquire(MOVE, 4))
    steps.answer("r0", Advanced(4, "not-head", "r2"))
    (first,) = steps.give(Inquire(question, 5))
    assert first.peer == "r0"


def test_an_unknown_stream_is_reported_after_several_answers(steps: Steps) -> None:
    steps.give(Inquire(LOCATE, 1))
    unknown = Located(1, 0, "unknown-stream")
    for _ in range(PATIENT):
        assert steps.answer("r0", unknown) == []
        steps.again()
    assert steps.answer("r0", unknown) == [Emit(Answered(1, unknown))]


def test_a_watch_stays_open_and_moves_to_the_next_replica(steps: Steps) -> None:
    steps.give(Inquire(WATCH, 2))
    nothing = StreamsAre(2, (), (), True)
    for _ in range(3):
        assert steps.answer("r0", nothing) == [Emit(Answered(2, nothing))]
    assert steps.silence(10 * SECOND) == []  # a watch is not repeated because of silence
    steps.give(PeerDown("r0"))
    assert steps.again() == [Send("r1", WatchStreams(2, ">"))]
    assert steps.answer("r0", nothing) == []
    assert steps.answer("r1", nothing) == [Emit(Answered(2, nothing))]
    assert steps.give(Drop(2)) == [Send("r1", UnwatchStreams(2))]
    assert steps.answer("r1", nothing) == []


def test_dropping_a_held_name_sends_a_detach_to_the_head(steps: Steps) -> None:
    steps.give(Inquire(TAKE, 4))
    steps.answer("r0", Attached(4, {}, "not-head", "r2"))
    steps.again()
    steps.answer("r2", Attached(4, {}))
    assert steps.give(Drop(4)) == [Send("r2", Detach(4, "sub"))]
    steps.give(Inquire(TAKE, 5))
    steps.answer("r2", Attached(5, {}, "reset"))
    assert steps.give(Drop(5)) == []  # it no longer holds the name


def test_a_holder_attaches_again_without_taking_the_name(steps: Steps) -> None:
    """A repeated attach at another head does not take the name from a newer holder."""
    steps.give(Inquire(TAKE, 3))
    steps.give(PeerDown("r0"))
    # Before the first answer it repeats the attach with take.
    assert steps.again() == [Send("r1", Attach(3, "sub", ME, True))]
    attached = Attached(3, {STREAM: 4})
    assert steps.answer("r1", attached) == [Emit(Answered(3, attached))]
    steps.give(PeerDown("r1"))
    (again,) = steps.again()
    assert again == Send("r2", Attach(3, "sub", ME, False))
    fenced = Attached(3, {}, "fenced")
    assert steps.answer("r2", fenced) == [Emit(Answered(3, fenced))]
    assert steps.machine.open == {}


def test_an_inquiry_moves_when_its_head_reports_that_it_is_no_longer_head(steps: Steps) -> None:
    steps.give(Inquire(TAKE, 3))
    steps.answer("r0", Attached(3, {}))
    assert steps.answer("r0", Attached(3, {}, "not-head", "r1")) == []
    assert steps.again() == [Send("r1", Attach(3, "sub", ME, False))]


def test_answers_of_another_replica_do_not_hide_that_the_head_is_silent(steps: Steps) -> None:
    steps.give(Inquire(WATCH, 2))
    steps.answer("r0", StreamsAre(2, (), (), True))
    (moved,) = steps.give(Inquire(MOVE, 4))
    steps.answer("r0", Advanced(4, "not-head", "r2"))
    assert steps.again() == [Send("r2", moved.message)]
    for _ in range(5):  # streams appear all the time
        steps.now_ns += 100 * MS
        steps.answer("r0", StreamsAre(2, (), (), True))
    assert steps.silence(0) == [Send("r0", moved.message)]  # the watch stays at its replica


def test_open_inquiries_are_bounded() -> None:
    steps = Steps(questions_max=2)
    steps.give(Inquire(LOCATE, 1))
    steps.give(Inquire(WATCH, 2))
    with pytest.raises(UsageError, match="questions_max"):
        steps.give(Inquire(TAKE, 3))
