"""Compositions: which layer is given what, in which order, and what comes out."""

from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.compose import Composition, compose
from surecast.core.scopes import scope_tag
from surecast.core.types import (
    OWNER,
    Append,
    CancelTimer,
    ClockSet,
    Close,
    Command,
    Compact,
    Compacted,
    Congested,
    Deliver,
    Emit,
    FromBelow,
    Input,
    Message,
    PassDown,
    PeerDown,
    PeerUp,
    Received,
    Repair,
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
from surecast.errors import ConfigError, UsageError

LOG = bytes(range(16))
BATCHES = (Batch.void(LOG, 1, 4, COLLECTED),)
NEWS_OF_PEERS = (PeerUp, PeerDown, Congested, Writable)


class Ping(Message):
    number: int


class Pong(Message):
    number: int


class Puff(Message):
    number: int


class Order(Input):
    what: str


class OtherOrder(Input):
    what: str


class News(Input):
    what: str


class OtherNews(Input):
    what: str


class Floor:
    """A layer that answers inputs as a table says, and keeps what it was given in a shared log."""

    def __init__(
        self,
        name: str,
        log: list[tuple[str, Any]],
        messages: tuple[type, ...] = (),
        inputs: tuple[type, ...] = (),
        from_below: tuple[type, ...] = (),
        provides: tuple[str, ...] = (),
        uses: tuple[str, ...] = (),
    ) -> None:
        self.name, self.log, self.messages = name, log, messages
        self.inputs = dict.fromkeys((*NEWS_OF_PEERS, *inputs), "")
        self.from_below = dict.fromkeys(from_below, "")
        self.provides, self.uses = provides, uses
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
    """Three floors: low provides a, middle uses it and provides b, top uses b."""

    def __init__(self) -> None:
        log: list[tuple[str, Any]] = []
        self.log = log
        self.low = Floor("low", log, (Ping,), (Order,), provides=("a",))
        self.middle = Floor("middle", log, (Pong,), (Order,), (News, Deliver), ("b",), ("a",))
        self.top = Floor("top", log, (), (Order,), (News, Deliver), uses=("b",))
        self.machine = self.made()

    def made(self) -> Composition:
        return compose({"low": self.low, "middle": self.middle, "top": self.top})

    def give(self, inp: Any) -> list[Any]:
        self.log.clear()
        return self.machine.step(7, inp)


class Nested(House):
    def made(self) -> Composition:
        return compose(
            {"region": compose({"low": self.low, "middle": self.middle}), "top": self.top}
        )


@pytest.fixture(params=[House, Nested], ids=["flat", "nested"])
def house(request: pytest.FixtureRequest) -> House:
    made: House = request.param()
    return made


# ---------------------------------------------------------------- building


def test_two_layers_cannot_claim_one_message() -> None:
    log: list[tuple[str, Any]] = []
    with pytest.raises(ConfigError, match="Ping is a message of both a and b"):
        compose({"a": Floor("a", log, (Ping,)), "b": Floor("b", log, (Pong, Ping))})


def test_what_a_layer_uses_must_be_provided_below_it() -> None:
    log: list[tuple[str, Any]] = []
    upper, lower = Floor("u", log, uses=("a",)), Floor("l", log, provides=("a",))
    compose({"l": lower, "u": upper})
    with pytest.raises(ConfigError, match="u uses a, which no layer below provides"):
        compose({"u": upper, "l": lower})


def test_names_are_unique_also_across_parts() -> None:
    log: list[tuple[str, Any]] = []
    part = compose({"a": Floor("a", log)})
    with pytest.raises(ConfigError, match="'a' cannot name a layer"):
        compose({"a": Floor("a", log), "part": part})
    with pytest.raises(ConfigError, match=f"'{OWNER}' cannot name a layer"):
        compose({OWNER: Floor("a", log)})


def test_layers_are_found_by_name(house: House) -> None:
    assert house.machine.layers == {"low": house.low, "middle": house.middle, "top": house.top}


# ---------------------------------------------------------------- inputs


def test_a_message_goes_to_the_layer_that_lists_its_type(house: House) -> None:
    for message, floor in ((Ping(1), "low"), (Pong(2), "middle")):
        received = Received("peer", message)
        assert house.give(received) == []
        assert house.log == [(floor, received)]


def test_a_message_that_no_layer_lists_is_dropped(house: House) -> None:
    assert house.give(Received("peer", Puff(1))) == []
    assert house.log == []


@pytest.mark.parametrize(
    "inp",
    [Start(5, 1), ClockSet(5), PeerUp("p"), PeerDown("p"), Congested("p"), Writable("p")],
    ids=lambda inp: type(inp).__name__,
)
def test_what_concerns_all_is_told_to_all_lowest_first(house: House, inp: Any) -> None:
    house.give(inp)
    assert house.log == [("low", inp), ("middle", inp), ("top", inp)]


def test_news_of_peers_is_told_only_to_layers_that_handle_it(house: House) -> None:
    del house.middle.inputs[PeerUp]
    house.give(PeerUp("p"))
    assert house.log == [("low", PeerUp("p")), ("top", PeerUp("p"))]
    del house.low.inputs[PeerDown], house.middle.inputs[PeerDown], house.top.inputs[PeerDown]
    assert house.give(PeerDown("p")) == []
    assert house.log == []


@pytest.mark.parametrize("name", ["low", "middle", "top"])
def test_a_command_goes_to_the_layer_it_names(house: House, name: str) -> None:
    house.give(Command(name, Order("this")))
    assert house.log == [(name, Order("this"))]


def test_a_command_must_name_a_layer_that_is_there(house: House) -> None:
    with pytest.raises(UsageError, match="no layer 'attic'; there are: low, middle, top"):
        house.give(Command("attic", Order("this")))
    with pytest.raises(UsageError, match="Order must say for which layer it is"):
        house.give(Order("this"))


# ---------------------------------------------------------------- timers and tokens


def test_timers_come_back_to_the_layer_that_set_them(house: House) -> None:
    start = Start(0, 1)
    for floor in (house.low, house.middle, house.top):
        floor.on(start, SetTimer("tick", 9), CancelTimer("tock"))
    out = house.give(start)
    timers = [effect for effect in out if isinstance(effect, SetTimer)]
    assert [effect.key for effect in timers] == [(n, "tick") for n in ("low", "middle", "top")]
    assert [effect.at_ns for effect in timers] == [9, 9, 9]
    for effect, floor_name in zip(timers, ("low", "middle", "top"), strict=True):
        house.give(TimerFired(effect.key))
        assert house.log == [(floor_name, TimerFired("tick"))]
    cancelled = [effect.key for effect in out if isinstance(effect, CancelTimer)]
    house.top.on(TimerFired("tick"), SetTimer("tock", 1))
    (again,) = house.give(TimerFired(timers[2].key))
    assert again.key == cancelled[2]  # what is cancelled is what would be set


@pytest.mark.parametrize(
    ("effect", "answer"),
    [
        (Append(LOG, BATCHES, ("t", 1)), Stored),
        (SaveState("name", b"data", ("t", 1)), Stored),
        (Repair(LOG, BATCHES, ("t", 1)), Stored),
        (Compact(LOG, 1, 4, (b"\x00",) * 3, 9, ("t", 1)), Compacted),
    ],
    ids=["append", "save", "repair", "compact"],
)
@pytest.mark.parametrize("floor", ["low", "middle", "top"])
def test_answers_of_the_disk_come_back_to_the_layer_that_asked(
    house: House, floor: str, effect: Any, answer: type
) -> None:
    asked = PeerUp("p")
    getattr(house, floor).on(asked, effect)
    (out,) = house.give(asked)
    assert type(out) is type(effect)
    for name in ("log", "batches", "data", "lo", "hi", "voids", "rows_max"):
        assert getattr(out, name, None) == getattr(effect, name, None)
    assert out.token == (floor, ("t", 1))
    assert getattr(out, "name", f"{floor}/name") == f"{floor}/name"
    assert getattr(out, "scope", scope_tag(floor)) == scope_tag(floor)
    house.give(answer(out.token))
    assert house.log == [(floor, answer(("t", 1)))]
    house.give(StoreFailed(out.token, "full"))
    assert house.log == [(floor, StoreFailed(("t", 1), "full"))]


def test_other_effects_leave_as_they_are(house: House) -> None:
    asked = PeerUp("p")
    effects = [Send("p", Ping(1)), Close("p")]
    house.low.on(asked, *effects, Truncate(LOG, 3))
    *out, truncate = house.give(asked)
    assert out == effects
    assert all(a is b for a, b in zip(out, effects, strict=True))
    assert truncate == Truncate(LOG, 3, scope_tag("low"))


# ---------------------------------------------------------------- between the layers


def test_what_a_layer_emits_or_delivers_reaches_the_layer_directly_above(house: House) -> None:
    ping = Received("peer", Ping(1))
    deliver = Deliver(LOG, BATCHES)
    house.low.on(ping, Emit(News("x")), deliver)
    assert house.give(ping) == []
    assert house.log == [
        ("low", ping),
        ("middle", FromBelow(News("x"))),
        ("middle", FromBelow(deliver)),
    ]


def test_an_event_that_the_layers_above_do_not_list_is_ignored(house: House) -> None:
    ping = Received("peer", Ping(1))
    house.low.on(ping, Emit(OtherNews("x")))
    assert house.give(ping) == []
    assert house.log == [("low", ping)]


def test_a_delivery_that_nobody_above_takes_goes_to_the_owner(house: House) -> None:
    del house.middle.from_below[Deliver]
    ping = Received("peer", Ping(1))
    deliver = Deliver(LOG, BATCHES)
    house.low.on(ping, deliver)
    assert house.give(ping) == [deliver]


def test_what_the_top_emits_or_delivers_goes_to_the_owner(house: House) -> None:
    effects = [Emit(News("x")), Deliver(LOG, BATCHES)]
    house.top.on(Order("this"), *effects)
    assert house.give(Command("top", Order("this"))) == effects


def test_a_layer_below_can_speak_to_the_owner(house: House) -> None:
    ping = Received("peer", Ping(1))
    house.low.on(ping, Emit(News("x"), OWNER))
    assert house.give(ping) == [Emit(News("x"))]
    assert house.log == [("low", ping)]


def test_what_is_passed_down_goes_to_the_nearest_layer_that_takes_it(house: House) -> None:
    house.top.on(Order("this"), PassDown(Order("that")))
    house.middle.on(Order("that"), PassDown(Order("it")))
    house.low.on(Order("it"), Send("p", Ping(1)))
    assert house.give(Command("top", Order("this"))) == [Send("p", Ping(1))]
    assert house.log == [("top", Order("this")), ("middle", Order("that")), ("low", Order("it"))]


def test_nothing_below_takes_a_command(house: House) -> None:
    house.top.on(Order("this"), PassDown(OtherOrder("that")))
    with pytest.raises(AssertionError, match="no layer below top takes OtherOrder"):
        house.give(Command("top", Order("this")))
    house.low.on(Order("it"), PassDown(Order("deeper")))
    with pytest.raises(AssertionError, match="no layer below low takes Order"):
        house.give(Command("low", Order("it")))


def test_news_is_told_in_the_order_it_was_made(house: House) -> None:
    """Depth first: what follows from the first event is over before the second is told."""
    ping = Received("peer", Ping(1))
    first, second = News("first"), News("second")
    house.low.on(ping, Emit(first), Emit(second))
    house.middle.on(FromBelow(first), PassDown(Order("answer")), Emit(News("rumour")))
    house.low.on(Order("answer"), Emit(News("echo")), Send("p", Ping(1)))
    house.middle.on(FromBelow(second), Send("p", Pong(2)))
    out = house.give(ping)
    assert house.log == [
        ("low", ping),
        ("middle", FromBelow(first)),
        ("low", Order("answer")),
        ("middle", FromBelow(News("echo"))),
        ("top", FromBelow(News("rumour"))),
        ("middle", FromBelow(second)),
    ]
    assert out == [Send("p", Ping(1)), Send("p", Pong(2))]


def test_a_broadcast_goes_on_after_what_the_lower_layers_made_of_it(house: House) -> None:
    """The upper layer hears of its own start after the lower one's first news."""
    start = Start(0, 1)
    house.low.on(start, Emit(News("I am up")))
    house.give(start)
    assert house.log == [
        ("low", start),
        ("middle", FromBelow(News("I am up"))),
        ("middle", start),
        ("top", start),
    ]


# ---------------------------------------------------------------- side by side


class Fork:
    """One layer below, two beside each other above it, and one that has to do with none."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        log = self.log
        self.streams = Floor("streams", log, (Ping,), (Order,), provides=("streams",))
        self.left = Floor("left", log, (Pong,), (Order,), (News, OtherNews), uses=("streams",))
        self.right = Floor("right", log, (Puff,), (Order,), (News,), uses=("streams",))
        self.other = Floor("other", log, (), (Order,))
        self.machine = compose(
            {
                "streams": self.streams,
                "left": self.left,
                "right": self.right,
                "other": self.other,
            }
        )

    def give(self, inp: Any) -> list[Any]:
        self.log.clear()
        return self.machine.step(7, inp)


@pytest.fixture
def fork() -> Fork:
    return Fork()


def test_an_event_reaches_every_layer_directly_above_that_lists_it(fork: Fork) -> None:
    ping = Received("peer", Ping(1))
    fork.streams.on(ping, Emit(News("x")), Emit(OtherNews("y")))
    assert fork.give(ping) == []
    assert fork.log == [
        ("streams", ping),
        ("left", FromBelow(News("x"))),
        ("right", FromBelow(News("x"))),
        ("left", FromBelow(OtherNews("y"))),
    ]


def test_an_event_can_name_one_of_them(fork: Fork) -> None:
    ping = Received("peer", Ping(1))
    fork.streams.on(ping, Emit(News("x"), "right"), Emit(OtherNews("y"), "right"))
    assert fork.give(ping) == []
    assert fork.log == [("streams", ping), ("right", FromBelow(News("x")))]


def test_an_event_cannot_name_a_layer_that_is_not_above(fork: Fork) -> None:
    ping = Received("peer", Ping(1))
    fork.streams.on(ping, Emit(News("x"), "other"))
    with pytest.raises(AssertionError, match="other is not above streams"):
        fork.give(ping)


def test_layers_beside_each_other_share_nothing(fork: Fork) -> None:
    fork.left.on(Order("this"), Emit(News("x")), PassDown(Order("that")), SetTimer("tick", 3))
    out = fork.give(Command("left", Order("this")))
    assert out == [Emit(News("x")), SetTimer(("left", "tick"), 3)]
    assert fork.log == [("left", Order("this")), ("streams", Order("that"))]
    fork.other.on(Order("this"), Emit(News("z")))
    assert fork.give(Command("other", Order("this"))) == [Emit(News("z"))]
    assert fork.log == [("other", Order("this"))]


def test_the_nearest_provider_below_is_used() -> None:
    """Two layers provide the same interface: the one above gets the news of the upper one only."""
    log: list[tuple[str, Any]] = []
    first = Floor("first", log, (Ping,), (Order,), provides=("a",))
    second = Floor("second", log, (Pong,), (Order,), (News,), ("a",), ("a",))
    user = Floor("user", log, (), (Order,), (News,), uses=("a",))
    machine = compose({"first": first, "second": second, "user": user})
    first.on(Received("p", Ping(1)), Emit(News("of the first")))
    machine.step(0, Received("p", Ping(1)))
    assert log[-1] == ("second", FromBelow(News("of the first")))
    assert len(log) == 2
    user.on(Order("x"), PassDown(Order("y")))
    machine.step(0, Command("user", Order("x")))
    assert log[-1] == ("second", Order("y"))
