"""Types are distinguished by protocol and name, whichever module of the protocol defines them."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
import pytest

from surecast import registry
from surecast.core.canon import digest, labels, name_of
from surecast.core.machine import NodeContext
from surecast.core.record import Step, Writer
from surecast.core.recording import Recording
from surecast.core.types import MS, SECOND, Emit, Input, Message, Received, Send, Start, tag_of
from surecast.core.wire import Codec
from surecast.errors import ConfigError
from surecast.sim import Link, Trace, World
from surecast.sim.playback import play
from tests.made_protocols import MadeProtocols, made_protocols

SRC = Path(registry.__file__).parent


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MadeProtocols]:
    folder = tmp_path / "protocols"
    folder.mkdir()
    with made_protocols(monkeypatch, folder) as found:
        yield found


# ---------------------------------------------------------------- two classes of one name

NAMESAKES = """
import msgspec
from surecast.core.types import Input, Message, tagged


class Base(Message, tag=tagged("{protocol}")):
    pass


class Ack(Base):
    number: int


class Do(Input):
    number: int


class Done(msgspec.Struct, gc=False):
    number: int
"""


@pytest.fixture
def pair(made: MadeProtocols) -> tuple[ModuleType, ModuleType]:
    """Two protocols, each with types Ack, Do and Done that have the same fields."""
    left, right = (
        made.write(name, messages=NAMESAKES.format(protocol=name)) for name in ("left", "right")
    )
    return left, right


def test_a_codec_distinguishes_types_of_the_same_name(pair: tuple[ModuleType, ModuleType]) -> None:
    left, _ = pair
    codec = Codec(registry.message_types())
    for module in pair:
        frame = b"".join(codec.encode(module.Ack(3)))
        found, _ = codec.decode(frame)
        assert type(found) is module.Ack
        assert tag_of(module.Ack).encode() in frame
    tags = [tag_of(kind) for kind in codec.types]
    assert tags == sorted(tags)
    assert {"left/Ack", "right/Ack", "chain/Ack"} <= set(tags)
    with pytest.raises(ConfigError, match="two message types have the tag 'left/Ack'"):
        Codec([left.Ack, msgspec.defstruct("Ack", [], bases=(left.Base,))])  # type: ignore[list-item]


class Replier:
    """Sends an Ack for each Do and emits a Done for each Ack, each of the same protocol."""

    def __init__(self, *modules: ModuleType) -> None:
        self.modules = modules

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        for module in self.modules:
            if type(inp) is module.Do:
                return [Send("b", module.Ack(inp.number))]
            if type(inp) is Received and type(inp.message) is module.Ack:
                return [Emit(module.Done(inp.message.number))]
        return []


def test_a_trace_distinguishes_types_of_the_same_name(pair: tuple[ModuleType, ModuleType]) -> None:
    def run(*modules: ModuleType) -> Trace:
        trace = Trace()
        world = World(1, Link(delay_ns=MS), trace=trace)
        world.add("a", lambda _: Replier(*pair))
        world.add("b", lambda _: Replier(*pair))
        for number, module in enumerate(modules):
            world.at(number * MS, "a", module.Do(5))
        world.run(until_ns=SECOND)
        return trace

    left, right = pair
    rows = [row[3] for row in run(left, right).rows()]
    for name in ("left", "right"):
        assert f"{name}/Do" in rows
        assert f"Send.{name}/Ack" in rows
        assert f"Received.{name}/Ack" in rows
        assert f"Emit.{name}/Done" in rows
    assert run(left).digest() != run(right).digest()


def test_a_recording_distinguishes_types_of_the_same_name(
    pair: tuple[ModuleType, ModuleType],
) -> None:
    writer = Writer(Codec(registry.message_types()))
    writer.opening("a", "some-machine", {}, 1, 1)
    for module in pair:
        effects = [Send("b", module.Ack(1)), Emit(module.Done(1))]
        writer.step(0, Received("b", module.Ack(1)), effects)
        writer.step(0, module.Do(1), [Emit(module.Do(2))])
    data = writer.take()
    steps = [s for s in Recording(data, registry.recorded_types()).items() if isinstance(s, Step)]
    assert [type(s.inp.message) for s in steps[::2]] == [module.Ack for module in pair]
    assert [type(s.inp) for s in steps[1::2]] == [module.Do for module in pair]
    assert [s.labels for s in steps] == [
        ["Send.left/Ack", "Emit.left/Done"],
        ["Emit.left/Do"],
        ["Send.right/Ack", "Emit.right/Done"],
        ["Emit.right/Do"],
    ]
    assert len({s.digest for s in steps}) == 4
    left, right = pair
    assert digest([Send("b", left.Ack(1))]) != digest([Send("b", right.Ack(1))])
    assert labels([Send("b", left.Ack(1))]) == ["Send.left/Ack"]


# ---------------------------------------------------------------- the table of names


def test_every_struct_of_the_vocabulary_and_of_protocols_is_in_the_table() -> None:
    """The classes are read from the source text, so that new modules are covered as well."""
    found = registry.recorded_types()
    assert all(name_of(kind) == name for name, kind in found.items())
    missing = []
    for folder in ("core", "columns", *(f"protocols/{name}" for name in registry.PROTOCOLS)):
        for path in (SRC / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                bases = [ast.unparse(b) for b in getattr(node, "bases", ())]
                known = {"msgspec.Struct", "Struct", "Input", "Effect", "Message", "_Policy"}
                if isinstance(node, ast.ClassDef) and known & set(bases):
                    prefix = folder.partition("/")[2]
                    name = f"{prefix}/{node.name}" if prefix else node.name
                    missing += [f"{path}: {name}"] if name not in found else []
    assert missing == []
    for kind in (*registry.message_types(), Start, Input, Message):
        assert found[name_of(kind)] is kind


def test_two_types_of_one_folder_must_not_share_a_name(made: MadeProtocols) -> None:
    messages = NAMESAKES.format(protocol="left")
    made.write("left", messages=messages, other="import msgspec\nclass Do(msgspec.Struct): pass\n")
    with pytest.raises(AssertionError, match="are both called 'left/Do'"):
        registry.recorded_types()


# ---------------------------------------------------------------- files that move

MESSAGES = """
from surecast.core.types import Message, tagged


class Base(Message, tag=tagged("mover")):
    pass


class Ping(Base):
    number: int
"""
EVENTS = """
import msgspec
from surecast.core.types import Input


class Poke(Input):
    number: int


class Poked(msgspec.Struct, gc=False):
    number: int
"""
MACHINE = """
from surecast.core.types import Emit, Received, Send, SetTimer
from surecast.protocols.mover.{messages} import Ping
from surecast.protocols.mover.{events} import Poke, Poked


class Poker:
    def __init__(self, ctx):
        self.rng = ctx.rng

    def step(self, now_ns, inp):
        if type(inp) is Poke:
            return [Emit(Poked(inp.number)), Send("b", Ping(inp.number))]
        if type(inp) is Received:
            return [SetTimer(("again", Poke(inp.message.number)), self.rng.randrange(1000))]
        return []
"""


def test_a_recording_is_played_after_its_types_have_moved(
    made: MadeProtocols, tmp_path: Path
) -> None:
    def types_and_machine(events: str) -> tuple[ModuleType, ModuleType, ModuleType]:
        names = ("messages", events, "machine")
        found = [import_module(f"surecast.protocols.mover.{name}") for name in names]
        return found[0], found[1], found[2]

    machine = MACHINE.format(messages="messages", events="messages")
    made.write("mover", messages=MESSAGES + EVENTS, machine=machine)
    messages, events, roles = types_and_machine("messages")
    writer = Writer(Codec([messages.Ping]))
    writer.opening("a", "poker", {}, 1, 1)
    recorded = roles.Poker(NodeContext("a", Random("1/a/1"), None, 1))  # type: ignore[arg-type]
    inputs = [Start(0, 1), events.Poke(1), Received("b", messages.Ping(2)), events.Poke(3)]
    for now_ns, inp in enumerate(inputs):
        writer.step(now_ns, inp, recorded.step(now_ns, inp))
    writer.closed()
    path = tmp_path / "a.rec"
    path.write_bytes(writer.take())
    before = events.Poke

    machine = MACHINE.format(messages="messages", events="events")
    made.write("mover", messages=MESSAGES, events=EVENTS, machine=machine)
    _, events, roles = types_and_machine("events")
    assert events.Poke is not before
    assert events.Poke.__module__ != before.__module__
    played = play([path], registry.recorded_types(), {"poker": lambda ctx, _: roles.Poker(ctx)})
    assert played.difference is None, played.difference
    assert (played.steps, played.effects) == (4, 5)
