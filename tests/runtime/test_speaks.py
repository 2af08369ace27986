"""Nodes list the protocols they speak, and are sent no messages of other protocols."""

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


class SendMessages(Input):
    peer: str
    messages: list[Any]
    reliable: bool = True


class Speaker(HandlerMachine):
    """Speaks one protocol; records received messages and sends messages on command."""

    inputs: ClassVar[dict[type, str]] = {SendMessages: "_on_say", PeerUp: "_on_up"}

    def __init__(self) -> None:
        super().__init__()
        self.received: list[str] = []
        self.ups: list[PeerUp] = []

    def _on_say(self, inp: SendMessages) -> None:
        self.out += [Send(inp.peer, message, inp.reliable) for message in inp.messages]

    def _on_up(self, inp: PeerUp) -> None:
        self.ups.append(inp)

    def _on_message(self, _peer: str, message: Any) -> None:
        self.received.append(message.text)


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
    """`a` speaks both protocols; `b` speaks only the old one and does not know the new one."""
    a = Node("a", lambda _ctx: both(), book=book, codec=Codec([Note, News]))
    b = Node("b", lambda _ctx: Old(), book=book, codec=Codec([Note]))
    for node in (a, b):
        await node.start()
        assert node.address is not None
        book.set(node.name, node.address)
    return a, b


def test_messages_of_a_protocol_the_peer_does_not_speak_are_not_sent() -> None:
    async def scenario() -> None:
        a, b = await pair(AddressBook({}))
        receiver: Any = b.machine
        # The protocols of b are not known yet: these messages wait for the session.
        a.give(Command("old", SendMessages("b", [Note("1"), News("x"), News("y"), Note("2")])))
        await until(lambda: receiver.received == ["1", "2"])
        assert a.counters["not_spoken"] == 2
        a.give(Command("new", SendMessages("b", [News("z"), Note("3")])))
        await until(lambda: receiver.received == ["1", "2", "3"])
        assert a.counters["not_spoken"] == 3
        assert b.counters["unknown_messages"] == 0
        assert a.machine.layers["new"].ups == [PeerUp("b", ("old", "typed"))]  # type: ignore[attr-defined]
        assert receiver.ups == [PeerUp("a", ("new", "old", "typed"))]
        for node in (a, b):
            await node.stop()

    asyncio.run(scenario())


def test_datagrams_of_a_protocol_the_peer_does_not_speak_are_not_sent() -> None:
    async def scenario() -> None:
        a, b = await pair(AddressBook({}))
        receiver: Any = b.machine
        a.give(Command("old", SendMessages("b", [Note("1")])))
        await until(lambda: receiver.received == ["1"])
        a.give(Command("new", SendMessages("b", [News("x"), Note("2")], reliable=False)))
        await until(lambda: receiver.received == ["1", "2"])
        assert a.counters["not_spoken"] == 1
        for node in (a, b):
            await node.stop()

    asyncio.run(scenario())


def test_in_the_simulator_peers_list_their_protocols() -> None:
    world = World(1)
    world.add("a", lambda _ctx: both())
    world.add("b", lambda _ctx: Old())
    world.at(0, "a", Command("old", SendMessages("b", [Note("1"), News("x"), Note("2")])))
    world.run(10**9)
    receiver: Any = world.machine("b")
    assert receiver.received == ["1", "2"]
    assert receiver.ups == [PeerUp("a", ("new", "old", "typed"))]


@pytest.mark.parametrize("speaks", [("old",), ("old", "new"), ()], ids=str)
def test_waiting_messages_of_other_protocols_are_dropped(speaks: tuple[str, ...]) -> None:
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
