"""Compositions: which layer receives which inputs, in which order, and which effects leave."""

from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.compose import Composition, compose, scope_tag
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
    Loaded,
    Message,
    PassDown,
    PeerDown,
    PeerUp,
    Read,
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
PEER_EVENTS = (PeerUp, PeerDown, Congested, Writable)


class Ping(Message):
    number: int


class Pong(Message):
    number: int


class Puff(Message):
    number: int


class Request(Input):
    what: str


class OtherRequest(Input):
    what: str


class Event(Input):
    what: str


class OtherEvent(Input):
    what: str


class FakeLayer:
    """A layer that answers inputs from a table and records them in a shared log."""

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
        self.inputs = dict.fromkeys((*PEER_EVENTS, *inputs), "")
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


class ThreeLayers:
    """Three layers: low provides a, middle uses a and provides b, top uses b."""

    def __init__(self) -> None:
        log: list[tuple[str, Any]] = []
        self.log = log
        self.low = FakeLayer("low", log, (Ping,), (Request,), provides=("a",))
        self.middle = FakeLayer(
            "middle", log, (Pong,), (Request,), (Event, Deliver), ("b",), ("a",)
        )
        self.top = FakeLayer("top", log, (), (Request,), (Event, Deliver), uses=("b",))
        self.machine = self.made()

    def made(self) -> Composition:
        return compose({"low": self.low, "middle": self.middle, "top": self.top})

    def give(self, inp: Any) -> list[Any]:
        self.log.clear()
        return self.machine.step(7, inp)


class NestedLayers(ThreeLayers):
    def made(self) -> Composition:
        return compose(
            {"region": compose({"low": self.low, "middle": self.middle}), "top": self.top}
        )


@pytest.fixture(params=[ThreeLayers, NestedLayers], ids=["flat", "nested"])
def stack(request: pytest.FixtureRequest) -> ThreeLayers:
    made: ThreeLayers = request.param()
    return made


# ---------------------------------------------------------------- building


def test_two_layers_cannot_claim_one_message() -> None:
    log: list[tuple[str, Any]] = []
    with pytest.raises(ConfigError, match="Ping is a message of both a and b"):
        compose({"a": FakeLayer("a", log, (Ping,)), "b": FakeLayer("b", log, (Pong, Ping))})


def test_a_layer_below_must_provide_what_a_layer_uses() -> None:
    log: list[tuple[str, Any]] = []
    upper, lower = FakeLayer("u", log, uses=("a",)), FakeLayer("l", log, provides=("a",))
    compose({"l": lower, "u": upper})
    with pytest.raises(ConfigError, match="u uses a, which no layer below provides"):
        compose({"u": upper, "l": lower})


def test_layer_names_are_unique_even_in_nested_compositions() -> None:
    log: list[tuple[str, Any]] = []
    part = compose({"a": FakeLayer("a", log)})
    with pytest.raises(ConfigError, match="'a' cannot name a layer"):
        compose({"a": FakeLayer("a", log), "part": part})
    with pytest.raises(ConfigError, match=f"'{OWNER}' cannot name a layer"):
        compose({OWNER: FakeLayer("a", log)})


def test_layers_are_found_by_name(stack: ThreeLayers) -> None:
    assert stack.machine.layers == {"low": stack.low, "middle": stack.middle, "top": stack.top}


# ---------------------------------------------------------------- inputs


def test_a_message_goes_to_the_layer_that_lists_its_type(stack: ThreeLayers) -> None:
    for message, layer in ((Ping(1), "low"), (Pong(2), "middle")):
        received = Received("peer", message)
        assert stack.give(received) == []
        assert stack.log == [(layer, received)]


def test_a_message_that_no_layer_lists_is_dropped(stack: ThreeLayers) -> None:
    assert stack.give(Received("peer", Puff(1))) == []
    assert stack.log == []


@pytest.mark.parametrize(
    "inp",
    [Start(5, 1), ClockSet(5), PeerUp("p"), PeerDown("p"), Congested("p"), Writable("p")],
    ids=lambda inp: type(inp).__name__,
)
def test_inputs_for_all_layers_reach_them_lowest_first(stack: ThreeLayers, inp: Any) -> None:
    stack.give(inp)
    assert stack.log == [("low", inp), ("middle", inp), ("top", inp)]


def test_peer_events_reach_only_layers_that_handle_them(stack: ThreeLayers) -> None:
    del stack.middle.inputs[PeerUp]
    stack.give(PeerUp("p"))
    assert stack.log == [("low", PeerUp("p")), ("top", PeerUp("p"))]
    del stack.low.inputs[PeerDown], stack.middle.inputs[PeerDown], stack.top.inputs[PeerDown]
    assert stack.give(PeerDown("p")) == []
    assert stack.log == []


@pytest.mark.parametrize("name", ["low", "middle", "top"])
def test_a_command_goes_to_the_layer_it_names(stack: ThreeLayers, name: str) -> None:
    stack.give(Command(name, Request("this")))
    assert stack.log == [(name, Request("this"))]


def test_a_command_must_name_an_existing_layer(stack: ThreeLayers) -> None:
    with pytest.raises(UsageError, match="no layer 'absent'; there are: low, middle, top"):
        stack.give(Command("absent", Request("this")))
    with pytest.raises(UsageError, match="Request must say for which layer it is"):
        stack.give(Request("this"))


# ---------------------------------------------------------------- timers and tokens


def test_timers_come_back_to_the_layer_that_set_them(stack: ThreeLayers) -> None:
    start = Start(0, 1)
    for layer in (stack.low, stack.middle, stack.top):
        layer.on(start, SetTimer("tick", 9), CancelTimer("tock"))
    out = stack.give(start)
    timers = [effect for effect in out if isinstance(effect, SetTimer)]
    assert [effect.key for effect in timers] == [(n, "tick") for n in ("low", "middle", "top")]
    assert [effect.at_ns for effect in timers] == [9, 9, 9]
    for effect, layer_name in zip(timers, ("low", "middle", "top"), strict=True):
        stack.give(TimerFired(effect.key))
        assert stack.log == [(layer_name, TimerFired("tick"))]
    cancelled = [effect.key for effect in out if isinstance(effect, CancelTimer)]
    stack.top.on(TimerFired("tick"), SetTimer("tock", 1))
    (again,) = stack.give(TimerFired(timers[2].key))
    assert again.key == cancelled[2]  # the key is the same for setting and cancelling


@pytest.mark.parametrize("layer", ["low", "middle", "top"])
def test_what_was_read_returns_to_the_layer_that_wanted_it(stack: ThreeLayers, layer: str) -> None:
    trigger, effect = PeerUp("p"), Read(LOG, 2, 4, 9, ("t", 1))
    getattr(stack, layer).on(trigger, effect)
    assert stack.give(trigger) == [Read(LOG, 2, 4, 9, (layer, ("t", 1)))]
    stack.give(Loaded((layer, ("t", 1)), BATCHES, "why"))
    assert stack.log == [(layer, Loaded(("t", 1), BATCHES, "why"))]


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
@pytest.mark.parametrize("layer", ["low", "middle", "top"])
def test_answers_of_the_disk_return_to_the_layer_of_the_effect(
    stack: ThreeLayers, layer: str, effect: Any, answer: type
) -> None:
    trigger = PeerUp("p")
    getattr(stack, layer).on(trigger, effect)
    (out,) = stack.give(trigger)
    assert type(out) is type(effect)
    for name in ("log", "batches", "data", "lo", "hi", "voids", "rows_max"):
        assert getattr(out, name, None) == getattr(effect, name, None)
    assert out.token == (layer, ("t", 1))
    assert getattr(out, "name", f"{layer}/name") == f"{layer}/name"
    assert getattr(out, "scope", scope_tag(layer)) == scope_tag(layer)
    stack.give(answer(out.token))
    assert stack.log == [(layer, answer(("t", 1)))]
    stack.give(StoreFailed(out.token, "full"))
    assert stack.log == [(layer, StoreFailed(("t", 1), "full"))]


def test_other_effects_leave_the_composition_unchanged(stack: ThreeLayers) -> None:
    trigger = PeerUp("p")
    effects = [Send("p", Ping(1)), Close("p")]
    stack.low.on(trigger, *effects, Truncate(LOG, 3))
    *out, truncate = stack.give(trigger)
    assert out == effects
    assert all(a is b for a, b in zip(out, effects, strict=True))
    assert truncate == Truncate(LOG, 3, scope_tag("low"))


# ---------------------------------------------------------------- between the layers


def test_emitted_events_and_deliveries_reach_the_layer_directly_above(stack: ThreeLayers) -> None:
    ping = Received("peer", Ping(1))
    deliver = Deliver(LOG, BATCHES)
    stack.low.on(ping, Emit(Event("x")), deliver)
    assert stack.give(ping) == []
    assert stack.log == [
        ("low", ping),
        ("middle", FromBelow(Event("x"))),
        ("middle", FromBelow(deliver)),
    ]


def test_an_event_that_the_layers_above_do_not_list_is_ignored(stack: ThreeLayers) -> None:
    ping = Received("peer", Ping(1))
    stack.low.on(ping, Emit(OtherEvent("x")))
    assert stack.give(ping) == []
    assert stack.log == [("low", ping)]


def test_a_delivery_that_no_layer_above_handles_goes_to_the_owner(stack: ThreeLayers) -> None:
    del stack.middle.from_below[Deliver]
    ping = Received("peer", Ping(1))
    deliver = Deliver(LOG, BATCHES)
    stack.low.on(ping, deliver)
    assert stack.give(ping) == [deliver]


def test_events_and_deliveries_of_the_top_layer_go_to_the_owner(stack: ThreeLayers) -> None:
    effects = [Emit(Event("x")), Deliver(LOG, BATCHES)]
    stack.top.on(Request("this"), *effects)
    assert stack.give(Command("top", Request("this"))) == effects


def test_a_lower_layer_can_emit_to_the_owner(stack: ThreeLayers) -> None:
    ping = Received("peer", Ping(1))
    stack.low.on(ping, Emit(Event("x"), OWNER))
    assert stack.give(ping) == [Emit(Event("x"))]
    assert stack.log == [("low", ping)]


def test_a_command_passed_down_reaches_the_nearest_layer_that_handles_it(
    stack: ThreeLayers,
) -> None:
    stack.top.on(Request("this"), PassDown(Request("that")))
    stack.middle.on(Request("that"), PassDown(Request("it")))
    stack.low.on(Request("it"), Send("p", Ping(1)))
    assert stack.give(Command("top", Request("this"))) == [Send("p", Ping(1))]
    assert stack.log == [
        ("top", Request("this")),
        ("middle", Request("that")),
        ("low", Request("it")),
    ]


def test_a_command_that_no_layer_below_handles_is_an_error(stack: ThreeLayers) -> None:
    stack.top.on(Request("this"), PassDown(OtherRequest("that")))
    with pytest.raises(AssertionError, match="no layer below top takes OtherRequest"):
        stack.give(Command("top", Request("this")))
    stack.low.on(Request("it"), PassDown(Request("deeper")))
    with pytest.raises(AssertionError, match="no layer below low takes Request"):
        stack.give(Command("low", Request("it")))


def test_events_are_handled_in_order_depth_first(stack: ThreeLayers) -> None:
    """Depth first: all consequences of the first event come before the second event."""
    ping = Received("peer", Ping(1))
    first, second = Event("first"), Event("second")
    stack.low.on(ping, Emit(first), Emit(second))
    stack.middle.on(FromBelow(first), PassDown(Request("answer")), Emit(Event("derived")))
    stack.low.on(Request("answer"), Emit(Event("reply")), Send("p", Ping(1)))
    stack.middle.on(FromBelow(second), Send("p", Pong(2)))
    out = stack.give(ping)
    assert stack.log == [
        ("low", ping),
        ("middle", FromBelow(first)),
        ("low", Request("answer")),
        ("middle", FromBelow(Event("reply"))),
        ("top", FromBelow(Event("derived"))),
        ("middle", FromBelow(second)),
    ]
    assert out == [Send("p", Ping(1)), Send("p", Pong(2))]


def test_a_broadcast_continues_after_the_events_of_lower_layers(stack: ThreeLayers) -> None:
    """The upper layer receives its own start after the first event of the lower layer."""
    start = Start(0, 1)
    stack.low.on(start, Emit(Event("started")))
    stack.give(start)
    assert stack.log == [
        ("low", start),
        ("middle", FromBelow(Event("started"))),
        ("middle", start),
        ("top", start),
    ]


# ---------------------------------------------------------------- side by side


class SideBySide:
    """One layer below, two beside each other above it, and an unrelated one."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        log = self.log
        self.streams = FakeLayer("streams", log, (Ping,), (Request,), provides=("streams",))
        self.left = FakeLayer(
            "left", log, (Pong,), (Request,), (Event, OtherEvent), uses=("streams",)
        )
        self.right = FakeLayer("right", log, (Puff,), (Request,), (Event,), uses=("streams",))
        self.other = FakeLayer("other", log, (), (Request,))
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
def layers() -> SideBySide:
    return SideBySide()


def test_an_event_reaches_every_layer_directly_above_that_lists_it(layers: SideBySide) -> None:
    ping = Received("peer", Ping(1))
    layers.streams.on(ping, Emit(Event("x")), Emit(OtherEvent("y")))
    assert layers.give(ping) == []
    assert layers.log == [
        ("streams", ping),
        ("left", FromBelow(Event("x"))),
        ("right", FromBelow(Event("x"))),
        ("left", FromBelow(OtherEvent("y"))),
    ]


def test_an_event_can_name_one_of_the_layers_above(layers: SideBySide) -> None:
    ping = Received("peer", Ping(1))
    layers.streams.on(ping, Emit(Event("x"), "right"), Emit(OtherEvent("y"), "right"))
    assert layers.give(ping) == []
    assert layers.log == [("streams", ping), ("right", FromBelow(Event("x")))]


def test_an_event_cannot_name_a_layer_that_is_not_above(layers: SideBySide) -> None:
    ping = Received("peer", Ping(1))
    layers.streams.on(ping, Emit(Event("x"), "other"))
    with pytest.raises(AssertionError, match="other is not above streams"):
        layers.give(ping)


def test_layers_side_by_side_are_independent(layers: SideBySide) -> None:
    layers.left.on(
        Request("this"), Emit(Event("x")), PassDown(Request("that")), SetTimer("tick", 3)
    )
    out = layers.give(Command("left", Request("this")))
    assert out == [Emit(Event("x")), SetTimer(("left", "tick"), 3)]
    assert layers.log == [("left", Request("this")), ("streams", Request("that"))]
    layers.other.on(Request("this"), Emit(Event("z")))
    assert layers.give(Command("other", Request("this"))) == [Emit(Event("z"))]
    assert layers.log == [("other", Request("this"))]


def test_the_nearest_provider_below_is_used() -> None:
    """Two layers provide the same interface: the layer above gets events of the upper one only."""
    log: list[tuple[str, Any]] = []
    first = FakeLayer("first", log, (Ping,), (Request,), provides=("a",))
    second = FakeLayer("second", log, (Pong,), (Request,), (Event,), ("a",), ("a",))
    user = FakeLayer("user", log, (), (Request,), (Event,), uses=("a",))
    machine = compose({"first": first, "second": second, "user": user})
    first.on(Received("p", Ping(1)), Emit(Event("of the first")))
    machine.step(0, Received("p", Ping(1)))
    assert log[-1] == ("second", FromBelow(Event("of the first")))
    assert len(log) == 2
    user.on(Request("x"), PassDown(Request("y")))
    machine.step(0, Command("user", Request("x")))
    assert log[-1] == ("second", Request("y"))
