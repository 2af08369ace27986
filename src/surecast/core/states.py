"""State tables: the states of a machine, and which inputs lead from one state to another.

A machine with state tables has four additional members:

    state_tables      the tables, one for each kind of state that it has
    states()          its current states, derived from its fields in one place
    input_name(inp)   the name of an input in its tables
    validate()        asserts the invariants of its fields

A table lists only changes of state: every input may also leave a state as it is.

In production nothing calls these methods, so the checks cost nothing there. The simulator wraps the
steps of machines (`watched`). After each step it looks up the change of state in the table and
calls `validate`. A change that the table does not list is an assertion error.

The simulator also counts which rows of a table have occurred. `StateTable.unmet` lists the rows
that are not expected to occur in any simulation, with the reason.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Protocol, cast

import msgspec

from surecast.core.types import Machine, Received

__all__ = ["Moves", "Row", "StateTable", "Stateful", "input_name", "watched"]

Row = tuple[Any, str, Any]  # state, input, next state
Transitions = Mapping[tuple[Any, str], frozenset[Any]]  # (state, input) → possible next states


class StateTable(msgspec.Struct, frozen=True):
    """One kind of state: its states, and the transitions between them. The values of the enum
    `states` are descriptions."""

    name: str
    states: type[Enum]
    initial: Any
    transitions: Transitions
    inputs: Mapping[str, str]  # the inputs that change states → a description
    unmet: Mapping[Row, str] = {}  # rows that are not expected to occur → the reason

    def rows(self) -> Iterator[Row]:
        """All transitions, in the order of the table and of the states."""
        for (before, inp), targets in self.transitions.items():
            for after in self.states:
                if after in targets:
                    yield before, inp, after

    def label(self, row: Row) -> str:
        before, inp, after = row
        return f"{self.name}: {before.name}, {inp} → {after.name}"

    def labels(self) -> dict[str, str]:
        """The label of every row → the reason why it is not expected to occur, or ""."""
        return {self.label(row): self.unmet.get(row, "") for row in self.rows()}


class Moves:
    """Checks changes of state against a table. Counts in `met` how often each row has occurred, by
    the row's label."""

    __slots__ = ("met", "table")

    def __init__(self, table: StateTable, met: Counter[str]) -> None:
        self.table = table
        self.met = met

    def check(self, before: Any, inp: str, after: Any) -> Any:
        """Assert that the table allows this change. Returns the new state."""
        if before is not after:
            label = self.table.label((before, inp, after))
            allowed = self.table.transitions.get((before, inp), frozenset())
            assert after in allowed, f"no such transition in the table: {label}"
            self.met[label] += 1
        return after


class Stateful(Protocol):
    """A machine with state tables."""

    @property
    def state_tables(self) -> tuple[StateTable, ...]: ...

    def states(self) -> dict[str, Any]:
        """All current states of the machine, each by a unique name."""

    def input_name(self, inp: Any) -> str:
        """The name of an input in the machine's tables."""

    def validate(self) -> None:
        """Assert the invariants of the machine's fields."""

    def step(self, now_ns: int, inp: Any) -> list[Any]: ...


def input_name(inp: Any) -> str:
    """The class of an input, or of the message that was received."""
    return type(inp.message if type(inp) is Received else inp).__name__


Step = Callable[[int, Any], list[Any]]


def watched(machine: Machine, met: Counter[str]) -> Step:
    """The `step` of a machine, with the checks of its state tables. `met` counts rows by label.

    The layers of a composition are watched one by one. Machines without tables are left alone.
    """
    wrap = getattr(machine, "wrap_steps", None)
    if wrap is not None:
        wrap(lambda layer: watched(layer, met))  # from now on `machine.step` has the checks
    elif hasattr(machine, "state_tables"):
        return _Watched(cast(Stateful, machine), met).step
    return machine.step


class _Watched:
    __slots__ = ("_machine", "_moves", "_states", "_step")

    def __init__(self, machine: Stateful, met: Counter[str]) -> None:
        self._machine = machine
        self._step = machine.step
        # The class of the states identifies the table.
        self._moves = {table.states: Moves(table, met) for table in machine.state_tables}
        self._states = machine.states()

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        effects = self._step(now_ns, inp)
        machine = self._machine
        states = machine.states()
        if states != self._states:
            name = machine.input_name(inp)
            for key, after in states.items():
                moves = self._moves[type(after)]
                moves.check(self._states.get(key, moves.table.initial), name, after)
            self._states = states
        machine.validate()
        return effects
