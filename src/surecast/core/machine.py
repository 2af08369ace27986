"""HandlerMachine, the base class of most machines, and what drivers pass to make a machine.

A subclass of HandlerMachine lists its handlers by type of message or input. It lists the names of
methods, so that a test can override a method. During a step, `self.now_ns` is the time, and
handlers append the effects to `self.out`. `counters` are kept across restarts of the machine: the
number of handled messages by tag ("chain/Forward"), and of other events ("chain.left").
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import msgspec

from surecast.core.types import (
    ClockSet,
    Disk,
    FromBelow,
    Machine,
    Peer,
    Received,
    Send,
    Start,
    tag_of,
)

__all__ = ["Factory", "HandlerMachine", "NodeContext"]


class NodeContext(msgspec.Struct, frozen=True):
    """What a driver passes to a factory to make a machine, at each start of a node."""

    name: str
    rng: Random  # for this start only: seeded by (seed, name, incarnation)
    disk: Disk  # the node's disk, with what its earlier runs have stored
    incarnation: int  # 1, 2, ...


Factory = Callable[[NodeContext], Machine]


class HandlerMachine:
    """A machine whose `step` calls the handler for the type of the input or message."""

    handlers: ClassVar[dict[type, str]] = {}  # message type → method(peer, message)
    inputs: ClassVar[dict[type, str]] = {}  # other inputs → method(input)
    from_below: ClassVar[dict[type, str]] = {}  # events of layers below → method(event)
    provides: ClassVar[tuple[str, ...]] = ()  # interfaces, for `core.compose`
    uses: ClassVar[tuple[str, ...]] = ()  # interfaces that it needs a lower layer to provide
    messages: tuple[type, ...] = ()  # the keys of `handlers`, for `core.compose`
    _tags: ClassVar[dict[type, str]] = {}  # message type → tag, as counted in `counters`

    def __init_subclass__(cls) -> None:
        cls.messages = tuple(cls.handlers)
        cls._tags = {kind: tag_of(kind) for kind in cls.handlers}

    def __init__(self, counters: Counter[str] | None = None) -> None:
        self.counters: Counter[str] = Counter() if counters is None else counters
        self.now_ns = 0
        self.out: list[Any] = []
        self.wall_offset_ns = 0  # wall clock minus `now_ns`
        # The handlers as bound methods, by type: of messages (with the tag), inputs and events.
        self._received = {
            kind: (self._tags[kind], getattr(self, name)) for kind, name in self.handlers.items()
        }
        self._inputs = {kind: getattr(self, name) for kind, name in self.inputs.items()}
        self._events = {kind: getattr(self, name) for kind, name in self.from_below.items()}

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        self.now_ns = now_ns
        out: list[Any] = []
        self.out = out
        kind = type(inp)
        if kind is FromBelow:
            event = inp.event
            if handle := self._events.get(type(event)):
                handle(event)
        elif kind is Received:
            message = inp.message
            if handler := self._received.get(type(message)):
                tag, handle = handler
                self.counters[tag] += 1
                handle(inp.peer, message)
        else:
            if kind is Start or kind is ClockSet:
                self.wall_offset_ns = inp.wall_ns - now_ns
            if handle := self._inputs.get(kind):
                handle(inp)
        return out

    @property
    def wall_ns(self) -> int:
        """The wall-clock time; unlike `now_ns` it may jump."""
        return self.now_ns + self.wall_offset_ns

    def _send(self, peer: Peer, message: Any) -> None:
        self.out.append(Send(peer, message))
