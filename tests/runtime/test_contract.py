"""The session contract of `core.types` under stories drawn from a seed, on both drivers.

The same stories (who speaks, who closes, who dies, which link is cut) are played by the simulator
and by nodes that reach each other through the relay; `talkers.judge` reads the notes. The seed is
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
from tests.runtime.talkers import Hang, Life, Say, Talker, Tell, judge, nothing_was_lost

from surecast.core.types import MS, SECOND
from surecast.core.wire import Codec
from surecast.runtime import AddressBook, Node, RuntimeLimits
from surecast.sim import Link, World
from surecast_lab.testing.relay import Relay, Shape

Action = tuple[Any, ...]
FAULTS = ("cut", "cut", "reset", "reset", "reset", "delay", "slow", "slow", "kill", "kill")


def draw_story(rng: Random, names: list[str], steps: int, faults: bool) -> list[tuple[int, Action]]:
    """What happens at which millisecond."""
    story: list[tuple[int, Action]] = []
    at_ms = 0
    for _ in range(steps):
        at_ms += rng.choice((0, 0, 0, 1, 2, 5, 10))
        a, b = rng.sample(names, 2)
        lot = rng.random()
        if lot < 0.10:
            story += [(at_ms, ("hang", a, b)), (at_ms, ("tell", a, b, 1, 20, False))]
        elif lot < 0.20:  # both open at once, or both close
            close = rng.random() < 0.5
            story += [(at_ms, ("tell", x, y, 1, 20, close)) for x, y in ((a, b), (b, a))]
        elif lot < 0.28 and faults:
            for_ms = rng.choice((1, 10, 50, 300))
            fault = rng.choice(FAULTS)
            if fault == "cut":
                story.append((at_ms, ("cut", a, b, rng.random() < 0.5)))
            elif fault == "delay":
                story.append((at_ms, ("delay", a, b, rng.choice((1, 5, 30)))))
            else:
                story.append((at_ms, (fault, a, b)))
            undo = {"cut": "mend", "delay": "mend", "slow": "fast", "kill": "start"}.get(fault)
            if undo is not None:
                story.append((at_ms + for_ms, (undo, a, b)))
        else:
            count, nbytes = rng.choice(((1, 20), (20, 20), (300, 100), (5, 20_000), (2, 300_000)))
            story.append((at_ms, ("tell", a, b, count, nbytes, rng.random() < 0.05)))
    return sorted(story, key=lambda item: item[0])


class Cast:
    """The lives of a story's talkers, whoever runs them."""

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

    def all_heard_all(self, marks: dict[str, int]) -> bool:
        """Whether everybody got something from everybody since."""
        return all(
            {note[1] for note in life.notes[marks[name] :] if note[0] == "got"}
            == self.now.keys() - {name}
            for name, life in self.now.items()
        )


# ---------------------------------------------------------------- the simulator


class Simulated:
    def __init__(self, cast: Cast, names: list[str]) -> None:
        self.cast = cast
        self.names = names
        self.world = World(cast.seed, Link(delay_ns=1 * MS, jitter_ns=2 * MS))
        network = self.world.network
        network.high_water_bytes = 200_000
        network.connect_timeout_ns, network.session_timeout_ns = 100 * MS, 150 * MS
        network.reconnect_ns = 5 * MS
        for name in names:
            self.world.add(name, cast.make)

    def do(self, action: Action) -> None:
        world = self.world
        match action:
            case ("tell", a, b, count, nbytes, close):
                world.at(world.now_ns, a, Tell(b, count, nbytes, close))
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
                self.cast.now[a].over = True
                world.crash(a)
            case ("start", a, _):
                world.restart(a)

    def play(self, story: list[tuple[int, Action]]) -> None:
        for at_ms, action in story:
            self.world.run(at_ms * MS)
            self.do(action)
        self.world.heal_all()

    def settle(self) -> None:
        world, cast = self.world, self.cast
        world.run(world.now_ns + 5 * SECOND)
        marks = cast.marks()
        for a in self.names:
            for b in self.names:
                if a != b:
                    self.do(("tell", a, b, 1, 20, False))
        limit_ns = world.now_ns + 60 * SECOND
        assert world.run(limit_ns, until=lambda _: cast.all_heard_all(marks))
        world.run(world.now_ns + 5 * SECOND)


@pytest.mark.parametrize("seed", range(40))
def test_the_simulator_keeps_the_contract(seed: int) -> None:
    rng = Random(f"contract {seed}")
    cast = Cast(seed)
    names = [f"n{i}" for i in range(rng.randint(3, 5))]
    stage = Simulated(cast, names)
    stage.play(draw_story(rng, names, 300, faults=True))
    stage.settle()
    assert judge(cast.lives) > 200


@pytest.mark.parametrize("seed", range(20))
def test_the_simulator_loses_nothing_by_closing(seed: int) -> None:
    rng = Random(f"closing {seed}")
    cast = Cast(seed)
    names = [f"n{i}" for i in range(3)]
    stage = Simulated(cast, names)
    stage.world.network.connect_timeout_ns = 60 * SECOND
    stage.world.network.session_timeout_ns = 60 * SECOND
    stage.play(draw_story(rng, names, 200, faults=False))
    stage.settle()
    judge(cast.lives)
    assert nothing_was_lost(cast.lives)


# ---------------------------------------------------------------- sockets


class Wired:
    """Nodes on loopback; each reaches each other one through the relay."""

    def __init__(self, cast: Cast, names: list[str], relay: Relay, limits: RuntimeLimits) -> None:
        self.cast = cast
        self.names = names
        self.relay = relay
        self.limits = limits
        self.nodes: dict[str, Node] = {}
        self.books = {name: AddressBook() for name in names}

    async def __aenter__(self) -> "Wired":
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
        for life in self.cast.lives:
            life.over = True
        for node in self.nodes.values():
            node.kill()
            await node.stop()

    async def start(self, name: str, listen: tuple[str, int]) -> None:
        node = Node(
            name, self.cast.make, book=self.books[name], codec=Codec([Say]), listen=listen,
            limits=self.limits, validate=True,
        )  # fmt: skip
        before = self.nodes.get(name)
        if before is not None and before.failed.done():
            before.failed.result()  # not killed by the story
        self.nodes[name] = node
        await node.start()

    async def do(self, action: Action) -> None:
        node = self.nodes[action[1]]
        match action:
            case ("tell", _, b, count, nbytes, close):
                node.give(Tell(b, count, nbytes, close))
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
                self.cast.now[a].over = True
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

    async def play(self, story: list[tuple[int, Action]]) -> None:
        began = asyncio.get_running_loop().time()
        for at_ms, action in story:
            await asyncio.sleep(max(0, began + at_ms / 1000 - asyncio.get_running_loop().time()))
            await self.do(action)
        for a in self.names:
            await self.do(("start", a, a))
            await self.do(("fast", a, a))
            for b in self.names:
                if a < b:
                    await self.do(("mend", a, b))

    async def settle(self) -> None:
        cast = self.cast
        marks = cast.marks()
        async with asyncio.timeout(30):
            while not cast.all_heard_all(marks):
                for a in self.names:
                    for b in self.names:
                        if a != b:
                            self.nodes[a].give(Tell(b, 1, 20))
                await asyncio.sleep(0.05)
        await until(cast.all_answered, "something sent was never answered")
        for node in self.nodes.values():
            if node.failed.done():
                node.failed.result()


def wire(a: str, b: str) -> str:
    return f"{min(a, b)}-{max(a, b)}"


def play_wired(
    loop: str, rng: Random, cast: Cast, names: list[str], limits: RuntimeLimits, faults: bool
) -> None:
    wrong: list[dict[str, Any]] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        with Relay(cast.seed if isinstance(cast.seed, int) else 0) as relay:
            async with Wired(cast, names, relay, limits) as stage:
                await stage.play(draw_story(rng, names, 300 if faults else 150, faults))
                await stage.settle()
                if not faults:
                    await until(lambda: nothing_was_lost(cast.lives), "closing lost something")

    play(loop, story)
    assert wrong == []


@pytest.mark.slow
@on_loops
@pytest.mark.parametrize("seed", range(4))
def test_sockets_keep_the_contract(loop: str, seed: int, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL)
    rng = Random(f"contract {seed}")
    cast = Cast(seed)
    names = [f"n{i}" for i in range(rng.randint(3, 5))]
    limits = RuntimeLimits(
        connect_timeout_ns=100 * MS, handshake_timeout_ns=150 * MS, session_timeout_ns=150 * MS,
        reconnect_ns=5 * MS, high_water_bytes=200_000, queue_bytes_max=4 << 20,
    )  # fmt: skip
    play_wired(loop, rng, cast, names, limits, faults=True)
    assert judge(cast.lives) > 200


@pytest.mark.slow
@on_loops
@pytest.mark.parametrize("seed", range(3))
def test_sockets_lose_nothing_by_closing(loop: str, seed: int) -> None:
    rng = Random(f"closing {seed}")
    cast = Cast(seed)
    names = [f"n{i}" for i in range(3)]
    limits = RuntimeLimits(
        connect_timeout_ns=60 * SECOND, handshake_timeout_ns=60 * SECOND,
        session_timeout_ns=60 * SECOND, reconnect_ns=5 * MS, high_water_bytes=200_000,
    )  # fmt: skip
    play_wired(loop, rng, cast, names, limits, faults=False)
    judge(cast.lives)


# ---------------------------------------------------------------- processes


class Processes:
    """Talkers in processes of their own, which may be killed and stopped as real ones are."""

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
        life = 1 + sum(one == name for one, _ in self.lives)
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

    def read(self) -> Cast:
        cast = Cast(0)
        for name, number in self.lives:
            if cast.now.get(name) is not None:
                cast.now[name].over = True
            life = cast.now[name] = Life(name, number)
            life.notes = read_notes(self.path(name, number))
            cast.lives.append(life)
        return cast


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
            if turn % 20 == 10:  # long enough for the others to give it up, or not
                stage.signal(name, signal.SIGSTOP)
                time.sleep(rng.choice((0.05, 0.8)))
                stage.signal(name, signal.SIGCONT)
            elif turn % 12 == 5:
                stage.kill(name)
                stage.start(name)
        cast = stage.read()
        marks = cast.marks()
        limit = time.monotonic() + 30
        while not (cast.all_heard_all(marks) and cast.all_answered()):
            assert time.monotonic() < limit, f"seed {seed}: not all heard all, or unanswered"
            for a in names if not cast.all_heard_all(marks) else ():
                for b in names:
                    if a != b:
                        stage.say(a, "tell", b, 1, 20)
            time.sleep(0.1)
            cast = stage.read()
    assert judge(cast.lives) > 200
