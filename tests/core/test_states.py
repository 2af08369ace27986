"""State tables: checks after each step, counted transitions, and no cost without checks."""

from collections import Counter
from enum import Enum
from typing import Any, ClassVar

import pytest

from surecast.core.compose import compose
from surecast.core.machine import HandlerMachine
from surecast.core.states import Moves, StateTable, input_name, watched
from surecast.core.types import Input, Message, Received, Start
from surecast.sim.world import World


class Light(Enum):
    RED = "Stop."
    GREEN = "Go."
    OFF = "No signal."


class Press(Input):
    to: Light


class Turn(Message):
    to: Light


LIGHTS = StateTable(
    name="light",
    states=Light,
    initial=Light.OFF,
    transitions={
        (Light.OFF, "Press"): frozenset({Light.RED}),
        (Light.RED, "Press"): frozenset({Light.GREEN, Light.OFF}),
        (Light.RED, "Turn"): frozenset({Light.GREEN}),
    },
    inputs={"Press": "Somebody presses the button.", "Turn": "A message says so."},
    unmet={(Light.RED, "Press", Light.OFF): "a light is never switched off at night"},
)


class Lamp(HandlerMachine):
    inputs: ClassVar[dict[type, str]] = {Press: "_on_press"}
    handlers: ClassVar[dict[type, str]] = {Turn: "_on_turn"}
    state_tables: ClassVar[tuple[StateTable, ...]] = (LIGHTS,)

    def __init__(self) -> None:
        super().__init__()
        self.light = Light.OFF
        self.broken = False

    def _on_press(self, inp: Press) -> None:
        self.light = inp.to

    def _on_turn(self, _peer: str, message: Turn) -> None:
        self.light = message.to

    def states(self) -> dict[str, Any]:
        return {"light": self.light}

    def input_name(self, inp: Any) -> str:
        return input_name(inp)

    def validate(self) -> None:
        assert not self.broken, "the lamp is broken"


def test_transitions_are_counted_by_their_labels() -> None:
    met: Counter[str] = Counter()
    step = watched(Lamp(), met)
    for inp in (Press(Light.RED), Press(Light.RED), Received("x", Turn(Light.GREEN))):
        step(0, inp)
    assert met == {"light: OFF, Press → RED": 1, "light: RED, Turn → GREEN": 1}


@pytest.mark.parametrize(
    "inp", [Press(Light.GREEN), Received("x", Turn(Light.RED))], ids=["input", "message"]
)
def test_a_transition_that_the_table_does_not_list_is_an_assertion_error(inp: Any) -> None:
    lamp = Lamp()
    step = watched(lamp, Counter())
    with pytest.raises(AssertionError, match="no such transition in the table: light: OFF, "):
        step(0, inp)
    lamp.step(0, Press(Light.OFF))
    lamp.step(0, inp)  # not watched: no error


def test_invariants_are_checked_after_every_step() -> None:
    lamp = Lamp()
    step = watched(lamp, Counter())
    step(0, Start(0, 1))
    lamp.broken = True
    with pytest.raises(AssertionError, match="the lamp is broken"):
        step(0, Start(0, 1))


def test_the_layers_of_a_composition_are_watched_one_by_one() -> None:
    met: Counter[str] = Counter()
    lamp = Lamp()
    stack = compose({"lamp": lamp, "other": HandlerMachine()})
    step = watched(stack, met)
    step(0, Received("x", Turn(Light.OFF)))
    lamp.light = Light.RED
    with pytest.raises(AssertionError, match="light: OFF, Turn → GREEN"):
        step(0, Received("x", Turn(Light.GREEN)))


def test_a_driver_that_does_not_validate_calls_the_machine_itself() -> None:
    """Checks cost nothing in production: only worlds that validate wrap the steps of a machine,
    and only of machines with tables."""
    for validate, machine in ((False, Lamp()), (True, HandlerMachine())):
        world = World(1, validate=validate)
        world.add("n", lambda ctx, one=machine: one)
        assert world.nodes["n"].step == machine.step
    lamp = Lamp()
    world = World(1)
    world.add("n", lambda ctx: lamp)
    assert world.nodes["n"].step != lamp.step


def test_rows_have_labels_and_reasons() -> None:
    assert LIGHTS.labels() == {
        "light: OFF, Press → RED": "",
        "light: RED, Press → GREEN": "",
        "light: RED, Press → OFF": "a light is never switched off at night",
        "light: RED, Turn → GREEN": "",
    }


def test_moves_return_the_new_state_and_ignore_unchanged_states() -> None:
    moves = Moves(LIGHTS, Counter())
    assert moves.check(Light.GREEN, "Press", Light.GREEN) is Light.GREEN
    assert moves.check(Light.OFF, "Press", Light.RED) is Light.RED
    with pytest.raises(AssertionError, match="light: GREEN, Press → RED"):
        moves.check(Light.GREEN, "Press", Light.RED)
    assert moves.met == {"light: OFF, Press → RED": 1}
