"""The end of a pass: requested by an effect, given once by both drivers, to one layer."""

import asyncio
from typing import Any, ClassVar

from tests.core.test_compose import Request, ThreeLayers

from surecast.core.machine import HandlerMachine, NodeContext
from surecast.core.types import AtEndOfPass, Command, EndOfPass, Input, Message
from surecast.core.wire import Codec
from surecast.runtime.addresses import AddressBook
from surecast.runtime.node import Node
from surecast.sim.world import World


class Work(Input):
    number: int


class Done(Message):
    pass


class Gatherer(HandlerMachine):
    """Collects work items and processes them together at the end of the pass."""

    inputs: ClassVar[dict[type, str]] = {Work: "_on_work", EndOfPass: "_on_end"}

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[int] = []
        self.done: list[list[int]] = []

    def _on_work(self, inp: Work) -> None:
        self.out.append(AtEndOfPass("work"))
        self.waiting.append(inp.number)

    def _on_end(self, inp: EndOfPass) -> None:
        assert inp.key == "work"
        self.done.append(self.waiting)
        self.waiting = []


def test_in_the_simulator_all_inputs_of_an_instant_come_first() -> None:
    world = World(1)
    world.add("a", lambda _ctx: Gatherer())
    for number in range(3):
        world.at(5, "a", Work(number))
    world.at(6, "a", Work(9))
    world.run(10)
    machine: Any = world.machine("a")
    assert machine.done == [[0, 1, 2], [9]]


def test_a_crash_cancels_the_end_of_the_pass() -> None:
    world = World(1)
    made: list[Gatherer] = []

    def factory(_ctx: NodeContext) -> Gatherer:
        made.append(Gatherer())
        return made[-1]

    world.add("a", factory)
    world.at(5, "a", Work(1))
    world.call(5, lambda w: (w.crash("a"), w.restart("a")))
    world.run(10)
    assert [gatherer.done for gatherer in made][-1] == []


def test_in_the_runtime_commands_given_together_come_first() -> None:
    machine = Gatherer()

    async def live() -> None:
        codec = Codec([Done])
        node = Node("a", lambda _ctx: machine, book=AddressBook({}), codec=codec, listen=None)
        await node.start()
        for number in range(3):
            node.give(Work(number))
        while len(machine.done) < 1:
            await asyncio.sleep(0)
        node.give(Work(9))
        while len(machine.done) < 2:
            await asyncio.sleep(0)
        await node.stop()

    asyncio.run(asyncio.wait_for(live(), 30))
    assert machine.done == [[0, 1, 2], [9]]


def test_in_a_composition_it_reaches_the_layer_that_requested_it() -> None:
    stack = ThreeLayers()
    stack.middle.on(Request("this"), AtEndOfPass("serve"))
    assert stack.give(Command("middle", Request("this"))) == [AtEndOfPass(("middle", "serve"))]
    stack.give(EndOfPass(("middle", "serve")))
    assert stack.log == [("middle", EndOfPass("serve"))]
