"""Nodes on loopback for the tests of the runtime, and the same interface for the simulator."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from tests.sim.actors import LOG, Actor, Do, Ping

from surecast.core.types import MS, SECOND, Batch, Message, Received
from surecast.core.wire import Codec
from surecast.runtime import AddressBook, Node, RuntimeLimits
from surecast.sim import Link, World

__all__ = [
    "LOG",
    "Actor",
    "Blob",
    "Carry",
    "Do",
    "Ping",
    "SimStage",
    "Stage",
    "blob",
    "numbers",
    "on_loops",
    "play",
    "until",
]


class Blob(Message):
    number: int
    data: bytes


class Carry(Message):
    batch: Batch


CODEC_TYPES = (Ping, Blob, Carry)

on_loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def play(loop: str, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario on one kind of event loop; fail if it does not end within 60 seconds."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario()

    if loop == "uvloop":
        uvloop.run(main())
    else:
        asyncio.run(main())


async def until(condition: Callable[[], Any], what: str = "") -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit, what or "waited in vain"
        await asyncio.sleep(0.002)


def numbers(machine: Any) -> list[int]:
    return [inp.message.number for _, inp in machine.of(Received)]


def blob(number: int, nbytes: int) -> Blob:
    return Blob(number, bytes(nbytes))


class Stage:
    """Real nodes that share an address book; `async with` stops them all."""

    name = "sockets"

    def __init__(self, **limits: int) -> None:
        self.limits = RuntimeLimits(**limits)
        self.book = AddressBook()
        self.nodes: dict[str, Node] = {}
        self.all: list[Node] = []  # including crashed ones
        self.addresses: dict[str, tuple[str, int]] = {}

    async def __aenter__(self) -> "Stage":
        return self

    async def __aexit__(self, *exc: object) -> None:
        for node in self.nodes.values():
            node.kill()
            await node.stop()
        for node in self.all:
            problem = node.failed.exception() if node.failed.done() else None
            if problem is not None and getattr(problem, "__notes__", None) and exc[0] is None:
                raise problem  # of a session's state table or invariants (`Sessions.moved`)

    async def add(self, name: str, factory: Any = Actor, **options: Any) -> Node:
        options.setdefault("listen", self.addresses.get(name, ("127.0.0.1", 0)))
        options = {"codec": Codec(CODEC_TYPES), "limits": self.limits, "validate": True, **options}
        node = Node(name, factory, book=self.book, **options)
        self.all.append(node)
        await node.start()
        self.nodes[node.name] = node
        if node.address is not None:
            self.addresses[node.name] = node.address
            self.book.set(node.name, node.address)
        return node

    def machine(self, name: str) -> Any:
        return self.nodes[name].machine

    def do(self, name: str, *effects: Any) -> None:
        self.nodes[name].give(Do(list(effects)))

    def kinds(self, name: str) -> list[str]:
        kinds: list[str] = self.machine(name).kinds()
        return kinds

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        await until(condition, what)

    async def crash(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.kill()
        await node.stop()

    async def restart(self, name: str) -> None:
        await self.add(name)


class SimStage:
    """The interface of `Stage` for simulated nodes."""

    name = "simulator"

    def __init__(self) -> None:
        self.world = World(1, Link(delay_ns=2 * MS))

    async def __aenter__(self) -> "SimStage":
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def add(self, name: str) -> None:
        self.world.add(name, Actor)

    def machine(self, name: str) -> Any:
        return self.world.machine(name)

    def do(self, name: str, *effects: Any) -> None:
        self.world.at(self.world.now_ns, name, Do(list(effects)))

    def kinds(self, name: str) -> list[str]:
        kinds: list[str] = self.machine(name).kinds()
        return kinds

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        limit_ns = self.world.now_ns + 30 * SECOND
        assert self.world.run(limit_ns, until=lambda _: condition(), check_every_ns=MS), what

    async def crash(self, name: str) -> None:
        self.world.crash(name)

    async def restart(self, name: str) -> None:
        self.world.restart(name)
