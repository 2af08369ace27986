"""The recorder: what it writes and when; runs over real sockets are replayed in the simulator."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
from tests.sim.recorded import BUILD as BUILD_HERE
from tests.sim.recorded import replay
from typer.testing import CliRunner

from surecast.cli.main import app
from surecast.columns.batch import COLLECTED
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import LatestPerKey
from surecast.core.endpoint import Acked, Follow, Offer, Open, Opened
from surecast.core.machine import NodeContext
from surecast.core.record import Ends, Kept, Saved, Step
from surecast.core.recording import Recording
from surecast.core.replicated import Refound
from surecast.core.streams import StreamSpec
from surecast.core.types import (
    MS,
    SECOND,
    Append,
    Batch,
    Compact,
    Compacted,
    Emit,
    Received,
    SaveState,
    Start,
    Stored,
    StoreFailed,
    TimerFired,
    Truncate,
)
from surecast.core.wire import Codec
from surecast.errors import UsageError
from surecast.protocols.chain.messages import Beat
from surecast.registry import message_types, recorded_types
from surecast.runtime import AddressBook, Node
from surecast.runtime.recorder import Recorder, recording_path
from surecast.sim import playback
from surecast.sim.playback import Played
from surecast.storage.config import StorageConfig
from surecast.storage.memory import MemoryDisk
from surecast.storage.segments import SegmentStore
from surecast.storage.store import MemoryStore
from surecast_lab.swarm.process import BUILD, BUILDS, build

LOG = bytes(range(16))


def recorder(path: Path, disk: MemoryDisk | None = None, **options: Any) -> Recorder:
    made: dict[str, Any] = {"build": BUILD, "args": {}, "seed": 1, "incarnation": 1, **options}
    return Recorder(path, node="a", codec=Codec([Beat]), disk=disk or MemoryDisk(), **made)


def batch(lo: int, value: bytes = b"v") -> Batch:
    return Batch.of(LOG, [value, b"w"]).sequenced(lo, 5, 1)


def items(path: Path) -> list[Any]:
    return list(Recording(path.read_bytes(), recorded_types()).items())


def play(paths: list[Path]) -> Played:
    return playback.play(paths, recorded_types(), BUILDS)


# ---------------------------------------------------------------- what is written, and when


@pytest.mark.slow
def test_steps_are_written_after_a_second_or_a_full_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    made = recorder(path)
    assert items(path) == []  # the header is written at once
    made.step(0, Start(0, 1), [])
    made.step(SECOND - 1, TimerFired("x"), [])
    assert items(path) == []
    made.step(SECOND, TimerFired("y"), [])
    made.flush()
    assert len(items(path)) == 3
    for n in range(20_000):
        made.step(SECOND + n, Received("b", Beat(n)), [])
    made._pieces[0].result()
    assert 3 < len(items(path)) < 20_003
    made.close()
    made.close()
    assert len(items(path)) == 20_004


def test_each_run_of_a_node_has_its_own_file(tmp_path: Path) -> None:
    path = recording_path(tmp_path, "east/0", 2)
    assert path == tmp_path / "east.0.2.rec"
    recorder(path).close()
    with pytest.raises(UsageError, match="exists"):
        recorder(path)


def test_the_initial_contents_of_the_disk_are_recorded(tmp_path: Path) -> None:
    disk = MemoryDisk()
    disk.append(LOG, [batch(1), batch(3)])
    disk.save("s", b"data")
    recorder(tmp_path / "a.rec", disk).close()
    found = items(tmp_path / "a.rec")
    assert found[:2] == [Saved("s", b"data"), Ends(LOG, 1, 0)]
    kept = [item for item in found if isinstance(item, Kept)]
    assert [(item.log, item.batch.lo) for item in kept] == [(LOG, 1), (LOG, 3)]


def test_rolled_back_writes_are_recorded_before_the_step_that_sees_it(tmp_path: Path) -> None:
    """As with a journal: visible at first, undone when the file cannot be written."""
    path, disk = tmp_path / "a.rec", MemoryDisk()
    disk.append(LOG, [batch(1)])
    disk.save("s", b"old")
    made = recorder(path, disk)
    effects = [
        Append(LOG, (batch(3),), "t1"),
        SaveState("s", b"new", "t2"),
    ]
    made.step(0, Start(0, 1), effects)
    mark = disk.written
    disk.append(LOG, effects[0].batches)
    disk.save("s", b"new")
    made.step(1, TimerFired("everything is visible"), [])
    disk.rollback(mark)
    for now_ns, token in enumerate(("t1", "t2"), 2):
        made.step(now_ns, StoreFailed(token, "io"), [])
    made.close()
    found = items(path)[3:-1]
    kinds = [type(item).__name__ for item in found]
    assert kinds == ["Step", "Step", "Saved", "Ends", "Step", "Step"]
    assert found[2:4] == [Saved("s", b"old"), Ends(LOG, 3, 0)]


def test_successful_writes_need_no_extra_record(tmp_path: Path) -> None:
    path, disk = tmp_path / "a.rec", MemoryDisk()
    made = recorder(path, disk)
    first, second = Append(LOG, (batch(1),), "t1"), Append(LOG, (batch(3),), "t2")
    made.step(0, Start(0, 1), [first, SaveState("s", b"1", "s")])
    disk.append(LOG, first.batches)
    disk.save("s", b"1")
    made.step(1, TimerFired("x"), [second])
    disk.append(LOG, second.batches)
    for now_ns, token in enumerate(("t1", "s", "t2"), 2):
        made.step(now_ns, Stored(token), [])
    made.step(9, TimerFired("x"), [])
    assert not disk.odd
    made.close()
    assert {type(item) for item in items(path)[:-1]} == {Step}


class FullDisk:
    closed = False

    def write(self, data: Any) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.closed = True


def test_a_recording_that_cannot_be_written_ends_and_the_node_continues(tmp_path: Path) -> None:
    made = recorder(tmp_path / "a.rec")
    made._file.close()
    made._file = FullDisk()  # type: ignore[assignment]
    made.step(0, Start(0, 1), [])
    made.flush()
    assert "No space left" in made.problem
    made.step(2 * SECOND, TimerFired("x"), [])
    made.close()


def test_an_input_that_cannot_be_recorded_ends_the_recording_only(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    made = recorder(path)
    made.step(0, Start(0, 1), [])
    made.step(1, TimerFired(object()), [])
    made.step(2, TimerFired("x"), [])
    assert "cannot be recorded" in made.problem
    made.close()
    assert [type(item) for item in items(path)] == [Step]


def test_a_recording_ends_at_its_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    made = recorder(path, bytes_max=2_000)
    for n in range(1000):
        made.step(n * SECOND, TimerFired(n), [])
    made.close()
    assert "limit of 2,000 bytes" in made.problem
    assert 2_000 < path.stat().st_size < 2_500
    assert len(items(path)) > 10


PROGRAM = """
import os, signal, sys
from pathlib import Path
from surecast.core.types import Start, TimerFired
from surecast.core.wire import Codec
from surecast.protocols.chain.messages import Beat
from surecast.runtime.recorder import Recorder
from surecast.storage.memory import MemoryDisk
from surecast_lab.swarm.process import BUILD, build
made = Recorder(Path(sys.argv[1]), node="a", build=BUILD,
    args={"role": "publisher", "replicas": ["b"]}, seed=1, incarnation=1, codec=Codec([Beat]),
    disk=MemoryDisk())
from random import Random
from surecast.core.machine import NodeContext
machine = build(NodeContext("a", Random("1/a/1"), MemoryDisk(), 1),
                {"role": "publisher", "replicas": ["b"]})
for n in range(30_000):
    inp = TimerFired("retry") if n else Start(0, 1)
    made.step(n * 1000, inp, machine.step(n * 1000, inp))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_the_recording_of_a_killed_process_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    os.truncate(path, path.stat().st_size - 5)  # ends inside a record in any case
    played = play([path])
    assert played.difference is None, played.difference
    assert 1000 < played.steps < 30_000
    assert played.unclosed == [str(path)]


# ---------------------------------------------------------------- on a journal


class RandomWriter:
    """Appends, truncates, compacts and saves at random; emits all visible contents at each step."""

    def __init__(self, ctx: NodeContext) -> None:
        self.disk, self.rng, self.effects = ctx.disk, ctx.rng, 0

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        seen = [
            (log, [(b.lo, b.hi, b.body_crc) for b in self.disk.read(log, 1, 1 << 40, 1 << 40)])
            for log in self.disk.logs()
        ]
        effects = [self._effect() for _ in range(self.rng.randrange(3))]
        states = [self.disk.state(name) for name in "ab"]
        return [*effects, Emit((seen, states, getattr(inp, "token", None)))]

    def _effect(self) -> Any:
        rng, log = self.rng, bytes([self.rng.randrange(3)]) * 16
        self.effects += 1
        token, end = (self.effects, Refound()), self.disk.end(log)
        match rng.randrange(8):
            case 0:
                return SaveState(rng.choice("ab"), b"%d" % self.effects, token)
            case 1:
                return Truncate(log, rng.randrange(max(1, end - 3), end + 1))
            case 2 if end > 1:
                lo = rng.randrange(1, end)
                voids = IntervalSet([(lo, rng.randrange(lo + 1, end + 1))])
                return Compact(log, lo, end, encode_voids({COLLECTED: voids}), 50, token)
        values = [b"%d" % self.effects] * rng.randint(1, 3)
        return Append(log, (Batch.of(log, values).sequenced(end, 5, 1),), token)


class FailingStoreRun:
    """Runs a RandomWriter on a store whose files sometimes cannot be written."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.rng = Random(f"faults of {seed}")
        config = StorageConfig(
            sync="none", journal_bytes_max=4096, inline_bytes_max=300, run_bytes_min=0
        )
        self.store = SegmentStore(directory / "disk", config)
        self.woken = Event()
        self.store.attach(self.woken.set)
        life = self.store.incarnation
        made = {"args": {}, "seed": seed, "incarnation": life, "build": BUILD_HERE}
        self.recorder = recorder(directory / f"a.{life}.rec", self.store.disk, **made)
        rng = Random(f"{seed}/a/{life}")
        self.machine = RandomWriter(NodeContext("a", rng, self.store.disk, life))
        self.failed = self.steps = 0
        self.full = False
        writev = os.writev

        def write(file: int, buffers: Any) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return writev(file, buffers)

        monkeypatch.setattr(os, "writev", write)

    def step(self, inp: Any) -> int:
        """Perform one step; returns how many answers of the store it causes."""
        self.steps += 1
        if isinstance(inp, Compacted):
            self.store.show(inp)
        effects = self.machine.step(self.steps, inp)
        self.recorder.step(self.steps, inp, effects)
        for effect in effects:
            if not isinstance(effect, Emit):
                self.store.perform(effect)
        return sum(isinstance(effect, Append | Compact | SaveState) for effect in effects)

    def run(self) -> None:
        owed = self.step(Start(0, self.store.incarnation))
        for n in range(60):
            self.full = self.rng.random() < 0.3
            owed += self.step(TimerFired(n))
            while owed and (n == 59 or self.rng.random() < 0.5):
                self.woken.wait(0.02)
                self.woken.clear()
                for answer in self.store.collect():
                    self.failed += isinstance(answer, StoreFailed)
                    owed += self.step(answer) - 1
                self.full = self.full and n < 59
                if self.steps > 400:
                    break
        self.full = False
        self.recorder.close()
        self.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_run_with_a_failing_store_is_replayed_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    failed = 0
    for _ in range(2):  # the second run begins with the files of the first
        with monkeypatch.context() as patch:
            run = FailingStoreRun(tmp_path, patch, seed)
            run.run()
            failed += run.failed
    assert failed > 5
    played = replay(sorted(tmp_path.glob("*.rec")), lambda ctx, _args: RandomWriter(ctx))
    assert played.difference is None, played.difference
    assert played.lives == {"a": 2}


class Faulty:
    def step(self, now_ns: int, inp: Any) -> list[Any]:
        assert inp != TimerFired("fault"), "a bug of ours"
        return []


def test_the_recording_of_a_failed_machine_ends_with_the_failing_input(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1)
    path = tmp_path / "a.rec"

    async def scenario() -> None:
        made = recorder(path, build=BUILD_HERE)
        codec = Codec([Beat])
        node = Node("a", lambda _: Faulty(), book=AddressBook(), codec=codec, recorder=made)
        await node.start()
        node.give(TimerFired("fine"))
        node.give(TimerFired("fault"))
        with pytest.raises(AssertionError, match="a bug of ours"):
            await node.failed
        assert len(items(path)) == 3  # written at once, because nothing may stop the node later
        await node.stop()

    asyncio.run(scenario())
    difference = replay([path], lambda _ctx, _args: Faulty()).difference
    assert difference is not None
    assert difference.step == 3
    assert "the machine fails" in difference.why
    assert "a bug of ours" in difference.why


# ---------------------------------------------------------------- over sockets


class Region:
    """A chain of two, its witness, a publisher and a subscriber, each a node with its own port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.book = AddressBook({})
        self.nodes: dict[str, Node] = {}
        self.stores: dict[str, MemoryStore] = {}
        self.end = 1  # of what the subscriber received
        self.opened: list[Opened] = []
        self.acked: list[Acked] = []
        self.replicas = ["east/0", "east/1"]

    async def start(self) -> None:
        region = {"region": "east", "replicas": self.replicas}
        await self.add("east/config", {"role": "service", **region})
        for name in self.replicas:
            await self.add_replica(name)
        await self.add("east/pub0", {"role": "publisher", "replicas": self.replicas})
        reading = {"role": "subscriber", "replicas": self.replicas, "starts": {}}
        await self.add("east/sub0", reading)

    async def add_replica(self, name: str) -> None:
        regions = {"east": self.replicas}
        await self.add(name, {"role": "replica", "region": "east", "regions": regions})

    async def add(self, name: str, args: dict[str, Any]) -> None:
        """Start a node. If it existed before, it keeps its disk."""
        before = self.stores.get(name)
        store = MemoryStore(before.disk, before.incarnation + 1) if before else MemoryStore()
        codec = Codec(message_types())
        made = Recorder(
            recording_path(self.directory, name, store.incarnation),
            node=name,
            build=BUILD,
            args=args,
            seed=5,
            incarnation=store.incarnation,
            codec=codec,
            disk=store.disk,
        )
        node = Node(
            name,
            lambda ctx: build(ctx, args),
            book=self.book,
            codec=codec,
            disk=store,
            seed=5,
            recorder=made,
            on_deliver=self._on_deliver,
            on_emit=self._on_emit,
        )
        await node.start()
        assert node.address is not None
        self.book.set(name, node.address)
        self.nodes[name], self.stores[name] = node, store

    def _on_deliver(self, stream: bytes, batches: tuple[Batch, ...]) -> None:
        self.end = batches[-1].hi

    def _on_emit(self, event: Any) -> None:
        if isinstance(event, Opened):
            self.opened.append(event)
        elif isinstance(event, Acked):
            self.acked.append(event)

    async def publish(self, stream: bytes, batches: int) -> None:
        """Offer that many batches of ten events, and wait until they are read."""
        goal = self.end + 10 * batches
        for n in range(batches):
            values = [b"%d.%d" % (goal, 10 * n + i) for i in range(10)]
            keys: list[bytes | None] = [b"k%d" % i for i in range(10)]
            self.nodes["east/pub0"].give(Offer(stream, values, keys))
            await asyncio.sleep(0)
        await until(lambda: self.end >= goal)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(5 * MS / SECOND)


async def run_region(directory: Path) -> None:
    region = Region(directory)
    await region.start()
    region.nodes["east/pub0"].give(Open("s", StreamSpec(LatestPerKey())))
    await until(lambda: bool(region.opened))
    info = region.opened[0].info
    assert info is not None
    region.nodes["east/sub0"].give(Follow(info.stream_id, 1))
    await region.publish(info.stream_id, 100)
    region.nodes["east/1"].kill()
    await region.add_replica("east/1")
    await region.publish(info.stream_id, 100)
    await until(lambda: sum(ack.count for ack in region.acked) == 2000)
    for node in region.nodes.values():
        assert not node.failed.done()
        await node.stop()


def test_a_run_over_sockets_is_reproduced_in_the_simulator(tmp_path: Path) -> None:
    asyncio.run(run_region(tmp_path))
    paths = sorted(tmp_path.glob("*.rec"))
    assert len(paths) == 6
    played = play(paths)
    assert played.difference is None, played.difference
    assert played.lives["east/1"] == 2
    assert played.steps > 1000
    assert played.unclosed == [str(tmp_path / "east.1.1.rec")]
    done = CliRunner().invoke(app, ["replay", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == played.steps


def test_replaying_with_another_seed_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(run_region(tmp_path))
    monkeypatch.setattr(playback, "Random", lambda seed: Random(f"{seed}!"))
    assert play(sorted(tmp_path.glob("*.rec"))).difference is not None
