"""Stack: who is given what, in which order, and what comes out."""

from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.stack import Stack
from surecast.core.types import (
    Append,
    CancelTimer,
    Close,
    Compact,
    Compacted,
    Congested,
    Deliver,
    Emit,
    FromBelow,
    Message,
    PassDown,
    PeerDown,
    PeerUp,
    Received,
    SaveState,
    Send,
    SetTimer,
    Start,
    Stored,
    StoreFailed,
    TimerFired,
    Truncate,
    Writable,
)

LOG = bytes(range(16))
BATCHES = (Batch.void(LOG, 1, 4, COLLECTED),)


class Ping(Message):
    number: int


class Pong(Message):
    number: int


class Puff(Message):
    number: int


class Floor:
    """A layer that answers inputs as a table says, and keeps what it was given in a shared log."""

    def __init__(self, name: str, log: list[tuple[str, Any]], *messages: type) -> None:
        self.name = name
        self.log = log
        self.messages = messages
        self.answers: list[tuple[Any, list[Any]]] = []

    def on(self, inp: Any, *effects: Any) -> None:
        self.answers.append((inp, list(effects)))

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        self.log.append((self.name, inp))
        for wanted, effects in self.answers:
            if wanted == inp:
                return effects
        return []


class House:
    """Three floors: low, middle, top."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.low = Floor("low", self.log, Ping)
        self.middle = Floor("middle", self.log, Pong)
        self.top = Floor("top", self.log)
        self.stack = Stack([self.low, self.middle, self.top])

    def give(self, inp: Any) -> list[Any]:
        self.log.clear()
        return self.stack.step(7, inp)


@pytest.fixture
def house() -> House:
    return House()


# ---------------------------------------------------------------- inputs


def test_a_message_goes_to_the_layer_that_lists_its_type(house: House) -> None:
    for message, floor in ((Ping(1), "low"), (Pong(2), "middle")):
        received = Received("peer", message)
        assert house.give(received) == []
        assert house.log == [(floor, received)]


def test_a_message_that_no_layer_lists_is_dropped(house: House) -> None:
    assert house.give(Received("peer", Puff(1))) == []
    assert house.log == []


def test_two_layers_cannot_claim_one_message() -> None:
    log: list[tuple[str, Any]] = []
    with pytest.raises(AssertionError, match="Ping"):
        Stack([Floor("a", log, Ping), Floor("b", log, Pong, Ping)])


@pytest.mark.parametrize(
    "inp",
    [
        Start(5, 1),
        PeerUp("p"),
        PeerDown("p"),
        Congested("p"),
        Writable("p"),
    ],
    ids=lambda inp: type(inp).__name__,
)
def test_what_concerns_all_is_told_to_all_lowest_first(house: House, inp: Any) -> None:
    house.give(inp)
    assert house.log == [("low", inp), ("middle", inp), ("top", inp)]


def test_a_command_of_the_owner_goes_to_the_top(house: House) -> None:
    house.give(PassDown("do this"))
    assert house.log == [("top", "do this")]


# ---------------------------------------------------------------- timers and tokens


def test_timers_come_back_to_the_layer_that_set_them(house: House) -> None:
    start = Start(0, 1)
    for floor in (house.low, house.middle, house.top):
        floor.on(start, SetTimer("tick", 9), CancelTimer("tock"))
    out = house.give(start)
    timers = [effect for effect in out if isinstance(effect, SetTimer)]
    assert len({effect.key for effect in timers}) == 3  # the same key, and no mix-up
    assert [effect.at_ns for effect in timers] == [9, 9, 9]
    for effect, floor in zip(timers, ("low", "middle", "top"), strict=True):
        house.give(TimerFired(effect.key))
        assert house.log == [(floor, TimerFired("tick"))]
    cancelled = [effect.key for effect in out if isinstance(effect, CancelTimer)]
    house.top.on(TimerFired("tick"), SetTimer("tock", 1))
    (again,) = house.give(TimerFired(timers[2].key))
    assert again.key == cancelled[2]  # what is cancelled is what would be set


@pytest.mark.parametrize(
    ("effect", "answer"),
    [
        (Append(LOG, BATCHES, ("t", 1)), Stored),
        (SaveState("name", b"data", ("t", 1)), Stored),
        (Compact(LOG, 1, 4, b"\x00", b"\x00", 9, ("t", 1)), Compacted),
    ],
    ids=["append", "save", "compact"],
)
@pytest.mark.parametrize("floor", ["low", "middle", "top"])
def test_answers_of_the_disk_come_back_to_the_layer_that_asked(
    house: House, floor: str, effect: Any, answer: type
) -> None:
    asked = PeerUp("p")
    getattr(house, floor).on(asked, effect)
    (out,) = house.give(asked)
    assert type(out) is type(effect)
    for name in ("log", "batches", "name", "data", "lo", "hi", "collected", "rows_max"):
        assert getattr(out, name, None) == getattr(effect, name, None)
    house.give(answer(out.token))
    assert house.log == [(floor, answer(("t", 1)))]
    house.give(StoreFailed(out.token, "full"))
    assert house.log == [(floor, StoreFailed(("t", 1), "full"))]


def test_other_effects_leave_as_they_are(house: House) -> None:
    asked = PeerUp("p")
    effects = [Send("p", Ping(1)), Close("p"), Truncate(LOG, 3)]
    house.low.on(asked, *effects)
    out = house.give(asked)
    assert out == effects
    assert all(a is b for a, b in zip(out, effects, strict=True))


# ---------------------------------------------------------------- between the layers


def test_what_a_layer_emits_or_delivers_rises_one_floor(house: House) -> None:
    ping = Received("peer", Ping(1))
    deliver = Deliver(LOG, BATCHES)
    house.low.on(ping, Emit("news"), deliver)
    assert house.give(ping) == []
    assert house.log == [
        ("low", ping),
        ("middle", FromBelow("news")),
        ("middle", FromBelow(deliver)),
    ]


def test_what_the_top_emits_or_delivers_leaves_the_stack(house: House) -> None:
    effects = [Emit("news"), Deliver(LOG, BATCHES)]
    house.top.on("do this", *effects)
    assert house.give(PassDown("do this")) == effects


def test_what_is_passed_down_sinks_one_floor(house: House) -> None:
    house.top.on("do this", PassDown("do that"))
    house.middle.on("do that", PassDown("do it"))
    house.low.on("do it", Send("p", Ping(1)))
    assert house.give(PassDown("do this")) == [Send("p", Ping(1))]
    assert house.log == [("top", "do this"), ("middle", "do that"), ("low", "do it")]


def test_below_the_lowest_layer_there_is_nothing(house: House) -> None:
    ping = Received("peer", Ping(1))
    house.low.on(ping, PassDown("deeper"))
    with pytest.raises(AssertionError, match="lowest"):
        house.give(ping)


def test_news_is_told_in_the_order_it_was_made(house: House) -> None:
    """Depth first: what follows from the first event is over before the second is told."""
    ping = Received("peer", Ping(1))
    house.low.on(ping, Emit("first"), Emit("second"))
    house.middle.on(FromBelow("first"), PassDown("answer"), Emit("rumour"))
    house.low.on("answer", Emit("echo"), Send("p", Ping(1)))
    house.middle.on(FromBelow("second"), Send("p", Pong(2)))
    out = house.give(ping)
    assert house.log == [
        ("low", ping),
        ("middle", FromBelow("first")),
        ("low", "answer"),
        ("middle", FromBelow("echo")),
        ("top", FromBelow("rumour")),
        ("middle", FromBelow("second")),
    ]
    assert out == [Send("p", Ping(1)), Send("p", Pong(2))]


def test_a_broadcast_goes_on_after_what_the_lower_layers_made_of_it(house: House) -> None:
    """The upper layer hears of its own start after the lower one's first news."""
    start = Start(0, 1)
    house.low.on(start, Emit("I am up"))
    house.give(start)
    assert house.log == [
        ("low", start),
        ("middle", FromBelow("I am up")),
        ("middle", start),
        ("top", start),
    ]
