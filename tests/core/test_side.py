"""Side: several machines as one; each is given what is its own, and nobody else's."""

from typing import Any, ClassVar

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.machine import HandlerMachine
from surecast.core.side import Side
from surecast.core.types import (
    Append,
    CancelTimer,
    Compact,
    Compacted,
    Emit,
    Input,
    Message,
    PeerDown,
    Received,
    SaveState,
    Send,
    SetTimer,
    Start,
    Stored,
    StoreFailed,
    TimerFired,
)

LOG = bytes(16)
BATCH = Batch.void(LOG, 1, 2, COLLECTED)


class Ping(Message):
    number: int


class Pong(Message):
    number: int


class Puff(Message):
    pass


class Do(Input):
    effects: list[Any]


class Left(HandlerMachine):
    """Keeps what it is given; answers `Do` with the effects it names."""

    handlers: ClassVar[dict[type, str]] = {Ping: "_on_message"}
    inputs: ClassVar[dict[type, str]] = {
        **dict.fromkeys((Start, PeerDown, TimerFired, Stored, StoreFailed, Compacted), "_on_input"),
        Do: "_on_do",
    }

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    def _on_message(self, _peer: str, message: Any) -> None:
        self.given.append(message)

    def _on_input(self, inp: Any) -> None:
        self.given.append(inp)

    def _on_do(self, inp: Do) -> None:
        self.out.extend(inp.effects)


class Right(Left):
    handlers: ClassVar[dict[type, str]] = {Pong: "_on_message"}
    inputs: ClassVar[dict[type, str]] = {k: v for k, v in Left.inputs.items() if k is not Do}


class Both:
    def __init__(self) -> None:
        self.left, self.right = Left(), Right()
        self.side = Side([self.left, self.right])

    def give(self, inp: Any) -> list[Any]:
        self.left.given.clear()
        self.right.given.clear()
        return self.side.step(3, inp)


@pytest.fixture
def both() -> Both:
    return Both()


def test_a_message_goes_to_the_machine_that_lists_it(both: Both) -> None:
    both.give(Received("p", Ping(1)))
    assert (both.left.given, both.right.given) == ([Ping(1)], [])
    both.give(Received("p", Pong(2)))
    assert (both.left.given, both.right.given) == ([], [Pong(2)])
    assert both.give(Received("p", Puff())) == []
    assert (both.left.given, both.right.given) == ([], [])


def test_two_machines_cannot_claim_one_message() -> None:
    with pytest.raises(AssertionError, match="Ping"):
        Side([Left(), Left()])


def test_what_concerns_all_is_told_to_all(both: Both) -> None:
    for inp in (Start(5, 1), PeerDown("p")):
        both.give(inp)
        assert (both.left.given, both.right.given) == ([inp], [inp])
    assert both.right.wall_ns == both.left.wall_ns == 5  # the start told both the time


def test_a_command_reaches_whoever_takes_it(both: Both) -> None:
    assert both.give(Do([Emit("x"), Send("p", Ping(1))])) == [Emit("x"), Send("p", Ping(1))]


def test_timers_come_back_to_who_set_them() -> None:
    """Both use the same key; neither may see the other's timer."""
    first, second = Left(), Right()
    side = Side([first, second])
    (one,) = side.step(0, Do([SetTimer("tick", 9)]))
    (gone,) = side.step(0, Do([CancelTimer("tick")]))
    assert (one.at_ns, gone.key) == (9, one.key)
    second.inputs = Left.inputs  # type: ignore[misc]
    _, other = side.step(0, Do([SetTimer("tick", 9)]))
    assert other.key != one.key
    first.given.clear()
    side.step(1, TimerFired(one.key))
    assert (first.given, second.given) == ([TimerFired("tick")], [])
    side.step(1, TimerFired(other.key))
    assert second.given == [TimerFired("tick")]


@pytest.mark.parametrize(
    ("effect", "answer"),
    [
        (Append(LOG, (BATCH,), "t"), Stored),
        (SaveState("name", b"data", "t"), Stored),
        (Compact(LOG, 1, 2, b"\x00", b"\x00", 9, "t"), Compacted),
    ],
    ids=["append", "save", "compact"],
)
def test_answers_of_the_disk_come_back_to_who_asked(both: Both, effect: Any, answer: type) -> None:
    (out,) = both.give(Do([effect]))
    assert type(out) is type(effect)
    both.give(answer(out.token))
    assert (both.left.given, both.right.given) == ([answer("t")], [])
    both.give(StoreFailed(out.token, "full"))
    assert (both.left.given, both.right.given) == ([StoreFailed("t", "full")], [])
