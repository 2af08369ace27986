"""The session contract of `core.types` in scenarios drawn from a seed, on both drivers.

The same scenarios (which nodes send, close or crash, which links are cut) are played by the
simulator and by nodes connected through the relay; `talkers.judge` checks the notes. The seed is in
the test's name.
"""

import asyncio
import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.runtime.stage import on_loops, play, until
from tests.runtime.talker_process import read_notes
from tests.runtime.talkers import Hang, Life, Numbered, SendMany, Talker, judge, nothing_was_lost

from surecast.core.types import MS, SECOND
from surecast.core.wire import Codec
from surecast.runtime import AddressBook, Node, RuntimeLimits
from surecast.sim import Link, World
from surecast_lab.testing.relay import Relay, Shape

Action = tuple[Any, ...]
FAULTS = ("cut", "cut", "reset", "reset", "reset", "delay", "slow", "slow", "kill", "kill")


def draw_scenario(
    rng: Random, names: list[str], steps: int, faults: bool
) -> list[tuple[int, Action]]:
    """Actions with their times in milliseconds."""
    scenario: list[tuple[int, Action]] = []
    at_ms = 0
    for _ in range(steps):
        at_ms += rng.choice((0, 0, 0, 1, 2, 5, 10))
        a, b = rng.sample(names, 2)
        lot = rng.random()
        if lot < 0.10:
            scenario += [(at_ms, ("hang", a, b)), (at_ms, ("tell", a, b, 1, 20, False))]
        elif lot < 0.20:  # both open at once, or both close
            close = rng.random() < 0.5
            scenario += [(at_ms, ("tell", x, y, 1, 20, close)) for x, y in ((a, b), (b, a))]
        elif lot < 0.28 and faults:
            for_ms = rng.choice((1, 10, 50, 300))
            fault = rng.choice(FAULTS)
            if fault == "cut":
                scenario.append((at_ms, ("cut", a, b, rng.random() < 0.5)))
            elif fault == "delay":
                scenario.append((at_ms, ("delay", a, b, rng.choice((1, 5, 30)))))
            else:
                scenario.append((at_ms, (fault, a, b)))
            undo = {"cut": "mend", "delay": "mend", "slow": "fast", "kill": "start"}.get(fault)
            if undo is not None:
                scenario.append((at_ms + for_ms, (undo, a, b)))
        else:
            count, nbytes = rng.choice(((1, 20), (20, 20), (300, 100), (5, 20_000), (2, 300_000)))
            scenario.append((at_ms, ("tell", a, b, count, nbytes, rng.random() < 0.05)))
    return sorted(scenario, key=lambda item: item[0])


class Talkers:
    """The lives of all talkers of a scenario, independent of the driver."""

    def __init__(self, seed: object) -> None:
        self.seed = seed
        self.lives: list[Life] = []
        self.now: dict[str, Life] = {}

    def make(self, ctx: Any) -> Talker:
        number = 1 + sum(life.name == ctx.name for life in self.lives)
        life = self.now[ctx.name] = Life(ctx.name, number)
        self.lives.append(life)
        return Talker(life, Random(f"{self.seed}/{ctx.name}/{number}"))

    def all_answered(self) -> bool:
        try:
            judge(self.lives)
        except AssertionError as problem:
            if "neither" in str(problem):
                return False
            raise
        return True

    def marks(self) -> dict[str, int]:
        return {name: len(life.notes) for name, life in self.now.items()}

    def all_received_from_all(self, marks: dict[str, int]) -> bool:
        """Whether every talker received a message from every other since `marks`."""
        return all(
            {note[1] for note in life.notes[marks[name] :] if note[0] == "got"}
            == self.now.keys() - {name}
            for name, life in self.now.items()
        )


# ---------------------------------------------------------------- the simulator


class Simulated:
    def __init__(self, talkers: Talkers, names: list[str]) -> None:
        self.talkers = talkers
        self.names = names
        self.world = World(talkers.seed, Link(delay_ns=1 * MS, jitter_ns=2 * MS))
        network = self.world.network
        network.high_water_bytes = 200_000
        network.connect_timeout_ns, network.session_timeout_ns = 100 * MS, 150 * MS
        network.reconnect_ns = 5 * MS
        for name in names:
            self.world.add(name, talkers.make)

    def do(self, action: Action) -> None:
        world = self.world
        match action:
            case ("tell", a, b, count, nbytes, close):
                world.at(world.now_ns, a, SendMany(b, count, nbytes, close))
            case ("hang", a, b):
                world.at(world.now_ns, a, Hang(b))
            case ("cut", a, b, two_way):
                world.cut(a, b, two_way=two_way)
            case ("delay", a, b, ms):
                world.degrade(a, b, Link(delay_ns=ms * MS, jitter_ns=ms * MS))
            case ("mend", a, b):
                world.mend(a, b)
            case ("reset", a, _):
                world.reset_sessions(a)
            case ("kill", a, _):
                self.talkers.now[a].over = True
                world.crash(a)
            case ("start", a, _):
                world.restart(a)

    def play(self, scenario: list[tuple[int, Action]]) -> None:
        for at_ms, action in scenario:
            self.world.run(at_ms * MS)
            self.do(action)
        self.world.heal_all()

    def settle(self) -> None:
        world, talkers = self.world, self.talkers
        world.run(world.now_ns + 5 * SECOND)
        marks = talkers.marks()
        for a in self.names:
            for b in self.names:
                if a != b:
                    self.do(("tell", a, b, 1, 20, False))
        limit_ns = world.now_ns + 60 * SECOND
        assert world.run(limit_ns, until=lambda _: talkers.all_received_from_all(marks))
        world.run(world.now_ns + 5 * SECOND)


@pytest.mark.parametrize("seed", range(40))
def test_the_simulator_keeps_the_contract(seed: int) -> None:
    rng = Random(f"contract {seed}")
    talkers = Talkers(seed)
    names = [f"n{i}" for i in range(rng.randint(3, 5))]
    stage = Simulated(talkers, names)
    stage.play(draw_scenario(rng, names, 300, faults=True))
    stage.settle()
    assert judge(talkers.lives) > 200


@pytest.mark.parametrize("seed", range(20))
def test_in_the_simulator_closing_loses_no_message(seed: int) -> None:
    rng = Random(f"closing {seed}")
    talkers = Talkers(seed)
    names = [f"n{i}" for i in range(3)]
    stage = Simulated(talkers, names)
    stage.world.network.connect_timeout_ns = 60 * SECOND
    stage.world.network.session_timeout_ns = 60 * SECOND
    stage.play(draw_scenario(rng, names, 200, faults=False))
    stage.settle()
    judge(talkers.lives)
    assert nothing_was_lost(talkers.lives)


# ---------------------------------------------------------------- sockets


class NodesOverRelay:
    """Nodes on loopback that are connected with each other through the relay."""

    def __init__(
        self, talkers: Talkers, names: list[str], relay: Relay, limits: RuntimeLimits
    ) -> None:
        self.talkers = talkers
        self.names = names
        self.relay = relay
        self.limits = limits
        self.nodes: dict[str, Node] = {}
        self.books = {name: AddressBook() for name in names}

    async def __aenter__(self) -> "NodesOverRelay":
        for name in self.names:
            await self.start(name, ("127.0.0.1", 0))
        for a in self.names:
            for b in self.names:
                if a != b:
                    target = self.nodes[b].address
                    assert target is not None
                    shape = Shape(jitter_ns=2 * MS)
                    self.books[a].set(
                        b,
                        self.relay.add(
                            f"{a}>{b}", target, wire=wire(a, b), forward=shape, back=shape,
                            against=a > b,
                        ),
                    )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        for life in self.talkers.lives:
            life.over = True
        for node in self.nodes.values():
            node.kill()
            await node.stop()

    async def start(self, name: str, listen: tuple[str, int]) -> None:
        node = Node(
            name, self.talkers.make, book=self.books[name], codec=Codec([Numbered]), listen=listen,
            limits=self.limits, validate=True,
        )  # fmt: skip
        before = self.nodes.get(name)
        if before is not None and before.failed.done():
            before.failed.result()  # it was not killed, but failed
        self.nodes[name] = node
        await node.start()

    async def do(self, action: Action) -> None:
        node = self.nodes[action[1]]
        match action:
            case ("tell", _, b, count, nbytes, close):
                node.give(SendMany(b, count, nbytes, close))
            case ("hang", _, b):
                node.give(Hang(b))
            case ("cut", a, b, two_way):
                way = "both" if two_way else "forward" if a < b else "back"
                self.relay.cut(wire(a, b), way)
            case ("delay", a, b, ms):
                shape = Shape(delay_ns=ms * MS, jitter_ns=ms * MS)
                self.relay.degrade(wire(a, b), shape)
            case ("mend", a, b):
                self.relay.mend(wire(a, b))
            case ("reset", a, b):
                self.relay.reset(wire(a, b))
            case ("kill", a, _):
                self.talkers.now[a].over = True
                node.kill()
            case ("start", a, _) if not node.running:
                assert node.address is not None
                await node.stop()
                await self.start(a, node.address)
            case ("slow" | "fast", _, _):
                self.read(node, action[0] == "fast")

    def read(self, node: Node, on: bool) -> None:
        for connection in list(node.sessions.connections):
            if not connection.transport.is_closing():
                if on:
                    connection.transport.resume_reading()
                else:
                    connection.transport.pause_reading()

    async def play(self, scenario: list[tuple[int, Action]]) -> None:
        began = asyncio.get_running_loop().time()
        for at_ms, action in scenario:
            await asyncio.sleep(max(0, began + at_ms / 1000 - asyncio.get_running_loop().time()))
            await self.do(action)
        for a in self.names:
            await self.do(("start", a, a))
            await self.do(("fast", a, a))
            for b in self.names:
                if a < b:
                    await self.do(("mend", a, b))

    async def settle(self) -> None:
        talkers = self.talkers
        marks = talkers.marks()
        async with asyncio.timeout(30):
            while not talkers.all_received_from_all(marks):
                for a in self.names:
                    for b in self.names:
                        if a != b:
                            self.nodes[a].give(SendMany(b, 1, 20))
                await asyncio.sleep(0.05)
        await until(
            talkers.all_answered, "a sent message was neither received nor followed by PeerDown"
        )
        for node in self.nodes.values():
            if node.failed.done():
                node.failed.result()


def wire(a: str, b: str) -> str:
    return f"{min(a, b)}-{max(a, b)}"


def play_over_relay(
    loop: str, rng: Random, talkers: Talkers, names: list[str], limits: RuntimeLimits, faults: bool
) -> None:
    wrong: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        with Relay(talkers.seed if isinstance(talkers.seed, int) else 0) as relay:
            async with NodesOverRelay(talkers, names, relay, limits) as stage:
                await stage.play(draw_scenario(rng, names, 300 if faults else 150, faults))
                await stage.settle()
                if not faults:
                    await until(lambda: nothing_was_lost(talkers.lives), "closing lost something")

    play(loop, scenario)
    assert wrong == []


@pytest.mark.slow
@on_loops
@pytest.mark.parametrize("seed", range(4))
def test_sockets_keep_the_contract(loop: str, seed: int, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL)
    rng = Random(f"contract {seed}")
    talkers = Talkers(seed)
    names = [f"n{i}" for i in range(rng.randint(3, 5))]
    limits = RuntimeLimits(
        connect_timeout_ns=100 * MS, handshake_timeout_ns=150 * MS, session_timeout_ns=150 * MS,
        reconnect_ns=5 * MS, high_water_bytes=200_000, queue_bytes_max=4 << 20,
    )  # fmt: skip
    play_over_relay(loop, rng, talkers, names, limits, faults=True)
    assert judge(talkers.lives) > 200


@pytest.mark.slow
@on_loops
@pytest.mark.parametrize("seed", range(3))
def test_over_sockets_closing_loses_no_message(loop: str, seed: int) -> None:
    rng = Random(f"closing {seed}")
    talkers = Talkers(seed)
    names = [f"n{i}" for i in range(3)]
    limits = RuntimeLimits(
        connect_timeout_ns=60 * SECOND, handshake_timeout_ns=60 * SECOND,
        session_timeout_ns=60 * SECOND, reconnect_ns=5 * MS, high_water_bytes=200_000,
    )  # fmt: skip
    play_over_relay(loop, rng, talkers, names, limits, faults=False)
    judge(talkers.lives)


# ---------------------------------------------------------------- processes


class Processes:
    """Talkers in separate processes, which can be killed and stopped."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        self.names = names
        self.lives: list[tuple[str, int]] = []
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, tuple[str, int]] = {}

    def __enter__(self) -> "Processes":
        for name in self.names:
            self.start(name)
        for name in self.names:
            self.say(name, "book", self.addresses)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()

    def start(self, name: str) -> None:
        life = 1 + sum(started == name for started, _ in self.lives)
        self.lives.append((name, life))
        port = self.addresses.get(name, ("", 0))[1]
        command = [sys.executable, "-m", "tests.runtime.talker_process", name, str(life), str(port)]
        process = self.running[name] = subprocess.Popen(
            [*command, str(self.path(name, life))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        self.addresses[name] = ("127.0.0.1", int(process.stdout.readline()))
        self.say(name, "book", self.addresses)

    def path(self, name: str, life: int) -> Path:
        return self.folder / f"{name}.{life}"

    def say(self, name: str, *command: Any) -> None:
        stdin = self.running[name].stdin
        assert stdin is not None
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()

    def kill(self, name: str) -> None:
        process = self.running[name]
        process.kill()
        process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.running[name].send_signal(number)

    def read(self) -> Talkers:
        talkers = Talkers(0)
        for name, number in self.lives:
            if talkers.now.get(name) is not None:
                talkers.now[name].over = True
            life = talkers.now[name] = Life(name, number)
            life.notes = read_notes(self.path(name, number))
            talkers.lives.append(life)
        return talkers


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_processes_keep_the_contract_through_kills_and_stops(seed: int, tmp_path: Path) -> None:
    rng = Random(f"processes {seed}")
    names = ["n0", "n1", "n2"]
    with Processes(tmp_path, names) as stage:
        for turn in range(60):
            for _ in range(10):
                a, b = rng.sample(names, 2)
                count, nbytes = rng.choice(((1, 20), (50, 100), (5, 20_000), (2, 300_000)))
                stage.say(a, "tell", b, count, nbytes, rng.random() < 0.05)
            time.sleep(rng.choice((0, 0.002, 0.01)))
            name = rng.choice(names)
            if turn % 20 == 10:  # may be long enough for the others to end the session
                stage.signal(name, signal.SIGSTOP)
                time.sleep(rng.choice((0.05, 0.8)))
                stage.signal(name, signal.SIGCONT)
            elif turn % 12 == 5:
                stage.kill(name)
                stage.start(name)
        talkers = stage.read()
        marks = talkers.marks()
        limit = time.monotonic() + 30
        while not (talkers.all_received_from_all(marks) and talkers.all_answered()):
            assert time.monotonic() < limit, (
                f"seed {seed}: not all received from all, or unanswered"
            )
            for a in names if not talkers.all_received_from_all(marks) else ():
                for b in names:
                    if a != b:
                        stage.say(a, "tell", b, 1, 20)
            time.sleep(0.1)
            talkers = stage.read()
    assert judge(talkers.lives) > 200
