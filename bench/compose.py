"""Measures the overhead of composing a machine of layers (`core/compose.py`).

A composition of three layers is measured in two forms: flat, and with one composition inside
another. One message arrives at the lowest layer. It is passed up as an event twice and down as a
command twice; the lowest layer then sends one message and appends one batch. These are five steps
of layers.
"""

import time
from collections.abc import Iterator
from typing import Any, ClassVar

from surecast.core.compose import Composition, compose
from surecast.core.machine import HandlerMachine
from surecast.core.types import Append, Emit, Input, Message, PassDown, Received

INPUTS = 100_000
ROUNDS = 7


class Arrive(Message):
    number: int


class Risen(Input):
    number: int


class RisenTwice(Input):
    number: int


class Sink(Input):
    number: int


class SinkTwice(Input):
    number: int


class Low(HandlerMachine):
    handlers: ClassVar[dict[type, str]] = {Arrive: "_on_arrive"}
    inputs: ClassVar[dict[type, str]] = {SinkTwice: "_on_sink"}
    provides = ("low",)

    def _on_arrive(self, peer: str, message: Arrive) -> None:
        self.out.append(Emit(Risen(message.number)))
        self._send(peer, message)

    def _on_sink(self, inp: SinkTwice) -> None:
        self.out.append(Append(b"", (), inp.number))


class Middle(HandlerMachine):
    inputs: ClassVar[dict[type, str]] = {Sink: "_on_sink"}
    from_below: ClassVar[dict[type, str]] = {Risen: "_on_risen"}
    provides, uses = ("middle",), ("low",)

    def _on_risen(self, event: Risen) -> None:
        self.out.append(Emit(RisenTwice(event.number)))

    def _on_sink(self, inp: Sink) -> None:
        self.out.append(PassDown(SinkTwice(inp.number)))


class Top(HandlerMachine):
    from_below: ClassVar[dict[type, str]] = {RisenTwice: "_on_risen"}
    uses = ("middle",)

    def _on_risen(self, event: RisenTwice) -> None:
        self.out.append(PassDown(Sink(event.number)))


def composed() -> dict[str, Composition]:
    return {
        "flat": compose({"low": Low(), "middle": Middle(), "top": Top()}),
        "two and one": compose({"part": compose({"low": Low(), "middle": Middle()}), "top": Top()}),
        "three deep": compose(
            {"all": compose({"part": compose({"low": Low(), "middle": Middle()}), "top": Top()})}
        ),
    }


def bench_compose() -> Iterator[dict[str, Any]]:
    """The best of several rounds of each composition, run alternately."""
    machines = composed()
    best = dict.fromkeys(machines, float("inf"))
    received = Received("peer", Arrive(1))
    for number in range(ROUNDS):
        names = list(machines)
        for name in names if number % 2 else reversed(names):
            step = machines[name].step
            began = time.perf_counter()
            for _ in range(INPUTS):
                step(0, received)
            best[name] = min(best[name], time.perf_counter() - began)
    for name, seconds in best.items():
        ratio = round(seconds / best["flat"], 3)
        params = {"way": name, "layer_steps": 5, "over_flat": ratio}
        yield {"name": "compose.input", "value": round(seconds / INPUTS * 1e6, 3), "unit": "us",
               "params": params}  # fmt: skip
