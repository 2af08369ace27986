"""Nodes tell each other which protocols they speak, and nobody is sent what it did not list."""

import asyncio
from typing import Any, ClassVar

import pytest

from surecast.core.compose import compose
from surecast.core.machine import HandlerMachine
from surecast.core.types import Command, Input, Message, PeerUp, Send, tagged
from surecast.core.wire import Codec
from surecast.runtime.addresses import AddressBook
from surecast.runtime.node import Node
from surecast.runtime.session import Session
from surecast.sim.world import World


class OldMessage(Message, tag=tagged("old")):
    pass


class NewMessage(Message, tag=tagged("new")):
    pass


class Note(OldMessage):
    text: str


class News(NewMessage):
    text: str


class Say(Input):
    peer: str
    messages: list[Any]
    reliable: bool = True


class Speaker(HandlerMachine):
    """Speaks one protocol; keeps what it hears, and says what it is told to."""

    inputs: ClassVar[dict[type, str]] = {Say: "_on_say", PeerUp: "_on_up"}

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.ups: list[PeerUp] = []

    def _on_say(self, inp: Say) -> None:
        self.out += [Send(inp.peer, message, inp.reliable) for message in inp.messages]

    def _on_up(self, inp: PeerUp) -> None:
        self.ups.append(inp)

    def _on_message(self, _peer: str, message: Any) -> None:
        self.heard.append(message.text)


class Old(Speaker):
    handlers: ClassVar[dict[type, str]] = {Note: "_on_message"}


class New(Speaker):
    handlers: ClassVar[dict[type, str]] = {News: "_on_message"}


def both() -> Any:
    return compose({"old": Old(), "new": New()})


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def pair(book: AddressBook) -> tuple[Node, Node]:
    """`a` speaks both protocols, `b` only the old one, and has never heard of the new one."""
    a = Node("a", lambda _ctx: both(), book=book, codec=Codec([Note, News]))
    b = Node("b", lambda _ctx: Old(), book=book, codec=Codec([Note]))
    for node in (a, b):
        await node.start()
        assert node.address is not None
        book.set(node.name, node.address)
    return a, b


def test_a_peer_is_not_sent_what_it_does_not_speak() -> None:
    async def story() -> None:
        a, b = await pair(AddressBook({}))
        hears: Any = b.machine
        # Before anybody knows what b speaks: these wait for the session.
        a.give(Command("old", Say("b", [Note("1"), News("x"), News("y"), Note("2")])))
        await until(lambda: hears.heard == ["1", "2"])
        assert a.counters["not_spoken"] == 2
        a.give(Command("new", Say("b", [News("z"), Note("3")])))
        await until(lambda: hears.heard == ["1", "2", "3"])
        assert a.counters["not_spoken"] == 3
        assert b.counters["unknown_messages"] == 0
        assert a.machine.layers["new"].ups == [PeerUp("b", ("old",))]  # type: ignore[attr-defined]
        assert hears.ups == [PeerUp("a", ("new", "old"))]
        for node in (a, b):
            await node.stop()

    asyncio.run(story())


def test_datagrams_are_held_back_too() -> None:
    async def story() -> None:
        a, b = await pair(AddressBook({}))
        hears: Any = b.machine
        a.give(Command("old", Say("b", [Note("1")])))
        await until(lambda: hears.heard == ["1"])
        a.give(Command("new", Say("b", [News("x"), Note("2")], reliable=False)))
        await until(lambda: hears.heard == ["1", "2"])
        assert a.counters["not_spoken"] == 1
        for node in (a, b):
            await node.stop()

    asyncio.run(story())


def test_in_the_simulator_peers_list_their_protocols() -> None:
    world = World(1)
    world.add("a", lambda _ctx: both())
    world.add("b", lambda _ctx: Old())
    world.at(0, "a", Command("old", Say("b", [Note("1"), News("x"), Note("2")])))
    world.run(10**9)
    hears: Any = world.machine("b")
    assert hears.heard == ["1", "2"]
    assert hears.ups == [PeerUp("a", ("new", "old"))]


@pytest.mark.parametrize("speaks", [("old",), ("old", "new"), ()], ids=str)
def test_what_waits_is_what_the_peer_speaks(speaks: tuple[str, ...]) -> None:
    session = Session("b")
    for protocol, buffers in (("old", [b"a", b"b"]), ("new", [b"cc"]), ("", [b"d"])):
        session.out += buffers
        nbytes = sum(map(len, buffers))
        session.queued += nbytes
        session.early.append((protocol, len(buffers), nbytes))
    session.out.append(b"bye")
    session.queued += 3
    dropped = session.drop_unspoken(speaks)
    expected = (
        [b"a", b"b", b"d", b"bye"] if speaks == ("old",) else [b"a", b"b", b"cc", b"d", b"bye"]
    )
    assert session.out == expected
    assert session.queued == sum(map(len, expected))
    assert dropped == (speaks == ("old",))
