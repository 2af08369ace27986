"""Layers: one machine made of several, each knowing only its neighbours.

What a lower layer delivers or emits rises to the layer above as `FromBelow`; what an upper layer
passes down becomes an input of the layer below. A received message goes to the layer that lists
its type in `messages`; timers and storage tokens carry the number of the layer that set them.
Everything else (start, peers coming and going, back-pressure) is told to every layer, lowest
first.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from surecast.core.types import (
    Append,
    CancelTimer,
    Compact,
    Compacted,
    Deliver,
    Emit,
    FromBelow,
    PassDown,
    Received,
    Repair,
    SaveState,
    Send,
    SetTimer,
    Stored,
    StoreFailed,
    TimerFired,
)

__all__ = ["Layer", "Stack"]


class Layer(Protocol):
    """A machine that can sit in a stack: it says which message types are its own."""

    messages: tuple[type, ...]

    def step(self, now_ns: int, inp: Any) -> list[Any]: ...


class Stack:
    """Several layers, lowest first, behind the interface of one machine."""

    __slots__ = ("_layer_of", "layers")

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self._layer_of: dict[type, int] = {}
        for number, layer in enumerate(self.layers):
            for message_type in layer.messages:
                assert message_type not in self._layer_of, f"{message_type} claimed by two layers"
                self._layer_of[message_type] = number

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        kind = type(inp)
        if kind is Received:
            number = self._layer_of.get(type(inp.message))
            if number is None:  # a peer of another protocol; the sender learns nothing from us
                return []
            todo = deque([(number, inp)])
        elif kind is TimerFired:
            todo = deque([(inp.key[0], TimerFired(inp.key[1]))])
        elif kind is Stored or kind is Compacted:
            todo = deque([(inp.token[0], kind(inp.token[1]))])
        elif kind is StoreFailed:
            todo = deque([(inp.token[0], StoreFailed(inp.token[1], inp.reason))])
        elif isinstance(inp, PassDown):  # the owner's command for the top layer
            todo = deque([(len(self.layers) - 1, inp.command)])
        else:
            todo = deque((number, inp) for number in range(len(self.layers)))
        out: list[Any] = []
        while todo:
            number, given = todo.popleft()
            rising: list[tuple[int, Any]] = []
            for effect in self.layers[number].step(now_ns, given):
                if type(effect) is Send:
                    out.append(effect)
                else:
                    self._route(number, effect, rising, out)
            # Depth first, so that a layer sees the news from below in the order it was made.
            if rising:
                todo.extendleft(reversed(rising))
        return out

    def _route(
        self, number: int, effect: Any, moving: list[tuple[int, Any]], out: list[Any]
    ) -> None:
        kind = type(effect)
        if kind is Append:
            out.append(Append(effect.log, effect.batches, (number, effect.token)))
        elif kind is Emit and number + 1 < len(self.layers):
            moving.append((number + 1, FromBelow(effect.event)))
        elif kind is SetTimer:
            out.append(SetTimer((number, effect.key), effect.at_ns))
        elif kind is CancelTimer:
            out.append(CancelTimer((number, effect.key)))
        elif kind is Compact or kind is Repair:
            out.append(msgspec.structs.replace(effect, token=(number, effect.token)))
        elif kind is SaveState:
            out.append(SaveState(effect.name, effect.data, (number, effect.token)))
        elif kind is PassDown:
            assert number > 0, "the lowest layer has nothing below it"
            moving.append((number - 1, effect.command))
        elif kind is Deliver and number + 1 < len(self.layers):
            moving.append((number + 1, FromBelow(effect)))
        else:
            out.append(effect)
