"""Machines side by side: one node that plays several roles which know nothing of each other.

A received message goes to the machine that lists its type, a command to the one that takes it,
timers and storage answers to whoever set them; everything else is told to all.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from surecast.core.machine import HandlerMachine
from surecast.core.types import (
    Append,
    CancelTimer,
    Compact,
    Compacted,
    Received,
    Repair,
    SaveState,
    SetTimer,
    Stored,
    StoreFailed,
    TimerFired,
)

__all__ = ["Side"]

_ANSWERS = frozenset((Stored, StoreFailed, Compacted))
_ASKS = frozenset((Append, Compact, Repair, SaveState))


class Side:
    """Several machines behind the interface of one."""

    __slots__ = ("_by_message", "machines")

    def __init__(self, machines: Sequence[HandlerMachine]) -> None:
        self.machines = tuple(machines)
        self._by_message: dict[type, int] = {}
        for number, machine in enumerate(self.machines):
            for message_type in machine.messages:
                taken = self._by_message.setdefault(message_type, number)
                assert taken == number, f"{message_type} is claimed by two machines"

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        kind = type(inp)
        if kind is Received:
            number = self._by_message.get(type(inp.message))
            return [] if number is None else self._step(number, now_ns, inp)
        if kind is TimerFired:
            number, key = inp.key
            return self._step(number, now_ns, TimerFired(key))
        if kind in _ANSWERS:
            number, token = inp.token
            return self._step(number, now_ns, msgspec.structs.replace(inp, token=token))
        out: list[Any] = []
        for number in range(len(self.machines)):  # who has no use for it does nothing
            out += self._step(number, now_ns, inp)
        return out

    def _step(self, number: int, now_ns: int, inp: Any) -> list[Any]:
        out = self.machines[number].step(now_ns, inp)
        for place, effect in enumerate(out):
            kind = type(effect)
            if kind is SetTimer:
                out[place] = SetTimer((number, effect.key), effect.at_ns)
            elif kind is CancelTimer:
                out[place] = CancelTimer((number, effect.key))
            elif kind in _ASKS:
                out[place] = msgspec.structs.replace(effect, token=(number, effect.token))
        return out
