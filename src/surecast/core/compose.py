"""Compositions: one machine made of layers, which know only the interfaces they use and provide.

    compose({"chain": replica, "streams": service})

Layers have names and are listed lowest first. A layer that `uses` an interface stands above the
nearest earlier one that `provides` it; layers that share no interface stand side by side. A
composition may be a part of another one; the result is one flat table, so nesting costs nothing.

Which layer an input or effect goes to:

* A received message: the layer that lists its type in `messages`. If none does, it is dropped.
* A fired timer, the end of a pass (`core.types`), a completion from the disk: the layer that
  requested it. Keys and tokens contain the layer's name.
* A `Command` of the owner (the program that runs the node): the layer it names.
* Start and ClockSet: every layer. ColdBelow, PeerUp, PeerDown, Congested, Writable: every layer
  that handles it. The lowest layer comes first.
* A `PassDown` (a layer's command): the nearest layer below that takes the command's type.
* An `Emit` (a layer's event) or a `Deliver`: every layer directly above that lists its type in
  `from_below`. With `to`, an event goes only to the layer of that name, or to the owner (`OWNER`);
  "sprinkler.*" means "sprinkler" and all names that begin with "sprinkler.". If no layer is above,
  it goes to the owner. An event that the layers above do not list is ignored; a `Deliver` that they
  do not list goes to the owner.

The effects of a step are routed in order, depth first: all steps that one effect causes in other
layers are run before the next effect is routed.

**The disk.** Each layer has its own states and logs. For writing, a composition prefixes the names
of a layer's states with the layer's name, and adds the layer's *tag* (`scope_tag`, a number) to the
effects that write to logs. For reading, a layer gets a `Scope`, with which it can read its own
states and logs, and the logs of the layers below. A log belongs to the layer that appended to it
first; an append by another layer fails. If only the batches of a log could be salvaged from a
damaged folder, it is not known to which layer it belonged. All layers can read such a log, and it
belongs to the next layer that appends to it. The state `DAMAGE` concerns the whole disk and is the
same for every layer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol
from zlib import crc32

import msgspec

from surecast.core.types import (
    DAMAGE,
    OWNER,
    Append,
    AtEndOfPass,
    Batch,
    CancelTimer,
    ClockSet,
    ColdBelow,
    Command,
    Compact,
    Compacted,
    Congested,
    Deliver,
    Disk,
    Emit,
    EndOfPass,
    FromBelow,
    Loaded,
    LogId,
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

__all__ = ["NO_SCOPE", "Composition", "Layer", "Scope", "compose", "scope_tag"]

NO_SCOPE = 0  # the tag of a machine without layers, and of logs whose layer is not known

_BROADCAST = frozenset((Start, ClockSet))  # inputs for all layers, also those that do not list them
# Inputs without a key, token or message that names one layer.
_FROM_THE_DRIVER = frozenset((Start, ClockSet, ColdBelow, PeerUp, PeerDown, Congested, Writable))


class Layer(Protocol):
    """A machine that can be composed: it lists the inputs it takes, and its interfaces."""

    @property
    def messages(self) -> tuple[type, ...]: ...

    @property
    def inputs(self) -> Mapping[type, Any]: ...

    @property
    def from_below(self) -> Mapping[type, Any]: ...

    @property
    def provides(self) -> tuple[str, ...]: ...

    @property
    def uses(self) -> tuple[str, ...]: ...

    def step(self, now_ns: int, inp: Any) -> list[Any]: ...


def compose(parts: "Mapping[str, Layer | Composition]") -> "Composition":
    """One machine of these layers, lowest first. Layers of nested compositions keep their names."""
    layers: dict[str, Layer] = {}
    for name, part in parts.items():
        named = part.layers if isinstance(part, Composition) else {name: part}
        for inner, layer in named.items():
            if inner in layers or inner == OWNER or not inner:
                raise ConfigError(f"{inner!r} cannot name a layer: each needs a name of its own")
            layers[inner] = layer
    return Composition(layers)


class Composition:
    """A machine made of layers; made by `compose`. The module's docstring has the routing rules."""

    __slots__ = (
        "_above",
        "_below",
        "_by_message",
        "_names",
        "_numbers",
        "_receivers",
        "_scopes",
        "_steps",
        "_takers",
        "layers",
    )

    def __init__(self, layers: dict[str, Layer]) -> None:
        self.layers = layers
        self._names = tuple(layers)
        self._scopes = [scope_tag(name) for name in layers]
        assert len(set(self._scopes)) == len(layers), f"two of {self._names} have the same tag"
        # A layer's number is its index, lowest first. The other fields refer to layers by number.
        self._numbers = {name: number for number, name in enumerate(layers)}
        self._steps: list[Callable[[int, Any], list[Any]]] = [
            layer.step for layer in layers.values()
        ]
        self._by_message: dict[type, int] = {}
        # Input type → the layers it goes to, for inputs that may go to several layers.
        self._receivers: dict[type, tuple[int, ...]] = {}
        # For each layer: the layers directly above it (`_above`); the layers that take its events,
        # by `Emit.to` and type of event (`_takers`); the layer that takes its commands, by type of
        # command (`_below`). The last two are filled when first needed.
        self._above = [self._users(number) for number in range(len(layers))]
        self._takers: list[dict[str, dict[type, tuple[int, ...]]]] = [{} for _ in layers]
        self._below: list[dict[type, int]] = [{} for _ in layers]
        for number, layer in enumerate(layers.values()):
            for message_type in layer.messages:
                taken = self._by_message.setdefault(message_type, number)
                if taken != number:
                    both = f"{self._names[taken]} and {self._names[number]}"
                    raise ConfigError(f"{message_type.__name__} is a message of both {both}")
            for interface in layer.uses:
                if not any(interface in below.provides for below in self._list[:number]):
                    name = self._names[number]
                    raise ConfigError(f"{name} uses {interface}, which no layer below provides")

    def wrap_steps(self, wrap: Callable[[Layer], Callable[[int, Any], list[Any]]]) -> None:
        """Replace each layer's step by what `wrap(layer)` returns (`core.states.watched`)."""
        self._steps = [wrap(layer) for layer in self.layers.values()]

    @property
    def messages(self) -> tuple[type, ...]:
        """The types of messages that some layer takes."""
        return tuple(self._by_message)

    @property
    def _list(self) -> list[Layer]:
        return list(self.layers.values())

    def _users(self, number: int) -> tuple[int, ...]:
        """The layers directly above this one: those for which it is the nearest provider of an
        interface that they use."""
        layers = self._list
        users = []
        for above in range(number + 1, len(layers)):
            for interface in layers[above].uses:
                providers = [n for n in range(above) if interface in layers[n].provides]
                if providers and providers[-1] == number and above not in users:
                    users.append(above)
        return tuple(users)

    # ------------------------------------------------------------ inputs

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        kind = type(inp)
        if kind is Received:
            number = self._by_message.get(type(inp.message))
            if number is None:  # a message of a protocol that this node does not run: no answer
                return []
            return self._run(now_ns, [(number, inp)])
        if kind is TimerFired or kind is EndOfPass:
            name, key = inp.key
            return self._run(now_ns, [(self._numbers[name], kind(key))])
        if kind is Stored or kind is Compacted:
            name, token = inp.token
            return self._run(now_ns, [(self._numbers[name], kind(token))])
        if kind is Command:
            number = self._numbers.get(inp.to)
            if number is None:
                raise UsageError(f"no layer {inp.to!r}; there are: {', '.join(self._names)}")
            return self._run(now_ns, [(number, inp.input)])
        if kind is StoreFailed:
            name, token = inp.token
            return self._run(now_ns, [(self._numbers[name], StoreFailed(token, inp.reason))])
        if kind is Loaded:
            name, token = inp.token
            loaded = Loaded(token, inp.batches, inp.problem)
            return self._run(now_ns, [(self._numbers[name], loaded)])
        receivers = self._receivers.get(kind)
        if receivers is None:
            receivers = self._receivers[kind] = self._receivers_of(kind)
        return self._run(now_ns, [(number, inp) for number in receivers])

    def _receivers_of(self, kind: type) -> tuple[int, ...]:
        """The layers that an input of the driver goes to, highest first."""
        if kind not in _FROM_THE_DRIVER:
            raise UsageError(f"{kind.__name__} must say for which layer it is: use Command")
        lowest_first = [
            number
            for number, layer in enumerate(self._list)
            if kind in _BROADCAST or kind in layer.inputs
        ]
        return tuple(reversed(lowest_first))

    # ------------------------------------------------------------ effects

    def _run(self, now_ns: int, todo: list[tuple[int, Any]]) -> list[Any]:
        """Step layers until no input for a layer is left. `todo` is a stack of (layer, input)."""
        out: list[Any] = []
        steps, takers, lower = self._steps, self._takers, self._below
        while todo:
            number, inp = todo.pop()
            moving: list[tuple[int, Any]] = []  # the inputs that this step causes in other layers
            for effect in steps[number](now_ns, inp):
                kind = type(effect)
                if kind is Send:
                    out.append(effect)
                elif kind is Emit:
                    known = takers[number].get(effect.to)
                    above = None if known is None else known.get(type(effect.event))
                    if above is None:
                        self._emit(number, effect, moving, out)
                    else:
                        for taker in above:
                            moving.append((taker, FromBelow(effect.event)))
                elif kind is PassDown:
                    command = effect.command
                    below = lower[number].get(type(command))
                    if below is None:
                        below = self._provider(number, type(command))
                        lower[number][type(command)] = below
                    moving.append((below, command))
                else:
                    self._route(number, effect, moving, out)
            if moving:  # put the first one on top of the stack
                moving.reverse()
                todo += moving
        return out

    def _route(
        self, number: int, effect: Any, moving: list[tuple[int, Any]], out: list[Any]
    ) -> None:
        """Route an effect of layer `number`: to the driver (`out`), with the layer's name and tag,
        or to the layers above (`moving`)."""
        kind = type(effect)
        if kind is Append:
            token = (self._names[number], effect.token)
            out.append(Append(effect.log, effect.batches, token, self._scopes[number]))
        elif kind is SetTimer:
            out.append(SetTimer((self._names[number], effect.key), effect.at_ns))
        elif kind is AtEndOfPass or kind is CancelTimer:
            out.append(kind((self._names[number], effect.key)))
        elif kind is SaveState:
            name = self._names[number]
            state = _state_name(name, effect.name)
            out.append(SaveState(state, effect.data, (name, effect.token)))
        elif kind is Compact or kind is Repair:
            token = (self._names[number], effect.token)
            scope = self._scopes[number]
            out.append(msgspec.structs.replace(effect, token=token, scope=scope))
        elif kind is Read:
            out.append(msgspec.structs.replace(effect, token=(self._names[number], effect.token)))
        elif kind is Truncate:
            out.append(Truncate(effect.log, effect.end, self._scopes[number]))
        elif kind is Deliver and (takers := self._takers_of(number, Deliver)):
            moving += [(above, FromBelow(effect)) for above in takers]
        else:
            out.append(effect)

    def _emit(
        self, number: int, effect: Emit, moving: list[tuple[int, Any]], out: list[Any]
    ) -> None:
        """Route an event of layer `number` to the owner (`out`) or to layers above (`moving`)."""
        to = effect.to
        if to == OWNER or (not to and not self._above[number]):
            out.append(Emit(effect.event) if to else effect)
            return
        for above in self._takers_of(number, type(effect.event), to):
            moving.append((above, FromBelow(effect.event)))

    def _takers_of(self, number: int, kind: type, to: str = "") -> tuple[int, ...]:
        """The layers above that take an event of this type, if it is addressed to `to`."""
        known = self._takers[number].setdefault(to, {})
        takers = known.get(kind)
        if takers is None:
            layers, names = self._list, self._names
            # "sprinkler.*" → "sprinkler."; without ".*" a text with which no name begins.
            family = to.removesuffix("*") if to.endswith(".*") else "\0"
            named = [
                above
                for above in self._above[number]
                if not to or names[above] == to or f"{names[above]}.".startswith(family)
            ]
            assert named or not to, f"{to} is not above {names[number]}"
            takers = tuple(above for above in named if kind in layers[above].from_below)
            known[kind] = takers
        return takers

    def _provider(self, number: int, kind: type) -> int:
        """The nearest layer below that takes commands of this type."""
        layers = self._list
        uses = layers[number].uses
        for below in range(number - 1, -1, -1):
            if kind in layers[below].inputs and set(uses) & set(layers[below].provides):
                return below
        raise AssertionError(f"no layer below {self._names[number]} takes {kind.__name__}")


# ---------------------------------------------------------------- the disk


@cache
def scope_tag(layer: str) -> int:
    """A layer's tag: the number that identifies the layer in files (24 bits, never 0)."""
    return crc32(layer.encode()) % 0xFFFFFF + 1


def _state_name(layer: str, name: str) -> str:
    """The name of a layer's state on disk."""
    return name if name == DAMAGE else f"{layer}/{name}"


class Scope:
    """The disk as one layer sees it, a `core.types.Disk`. `below` are the other layers whose logs
    this layer can read; all other logs appear to be empty."""

    def __init__(self, disk: Disk, layer: str, below: Sequence[str] = ()) -> None:
        self._disk = disk
        self._layer = layer
        self._visible = frozenset((NO_SCOPE, scope_tag(layer), *map(scope_tag, below)))

    def scope_of(self, log: LogId) -> int:
        return self._disk.scope_of(log)

    def logs(self) -> list[LogId]:
        return [log for log in self._disk.logs() if self._disk.scope_of(log) in self._visible]

    def end(self, log: LogId) -> int:
        return self._disk.end(log) if self._disk.scope_of(log) in self._visible else 1

    def read(self, log: LogId, lo: int, hi: int, nbytes_max: int) -> list[Batch]:
        if self._disk.scope_of(log) not in self._visible:
            return []
        return self._disk.read(log, lo, hi, nbytes_max)

    def holes(self, log: LogId) -> list[tuple[int, int]]:
        return self._disk.holes(log) if self._disk.scope_of(log) in self._visible else []

    def first_at(self, log: LogId, time_ns: int, lo: int, hi: int) -> int:
        if self._disk.scope_of(log) not in self._visible:
            return hi
        return self._disk.first_at(log, time_ns, lo, hi)

    def state(self, name: str) -> bytes | None:
        return self._disk.state(_state_name(self._layer, name))
