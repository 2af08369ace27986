"""`surecast replay` of seeds of a small test swarm, and of recordings."""

import json
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.fake_swarms import fake_swarm
from typer.testing import CliRunner

from surecast.cli.main import app
from surecast.core.machine import NodeContext
from surecast.core.types import MS, Emit, Received, Send, SetTimer, Start, TimerFired
from surecast.core.wire import Codec
from surecast.registry import message_types
from surecast.runtime.recorder import Recorder
from surecast.sim import Link, Trace, World
from surecast.storage.memory import MemoryDisk
from surecast_lab.swarm.process import BUILD, build


class Ticker:
    """Sends a number to its peer at random intervals."""

    def __init__(self, ctx: Any, peer: str) -> None:
        self.rng, self.peer = ctx.rng, peer

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        if isinstance(inp, Received):
            return [Emit("heard")]
        beat = SetTimer("tick", now_ns + self.rng.randint(1, 50) * MS)
        return [beat] if isinstance(inp, Start) else [Send(self.peer, now_ns), beat]


class Result(msgspec.Struct):
    seed: int
    ok: bool = True
    violations: list[str] = []
    trace_digest: str = ""


@pytest.fixture
def swarm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("ticker_swarm")
    module.delay_ns = 5 * MS  # type: ignore[attr-defined]
    module.violations = []  # type: ignore[attr-defined]

    def run_seed(seed: int, *, trace: Trace | None = None) -> Result:
        world = World(seed, Link(delay_ns=module.delay_ns), trace=trace)
        world.add("a", lambda ctx: Ticker(ctx, "b"))
        world.add("b", lambda ctx: Ticker(ctx, "a"))
        world.call(200 * MS, lambda w: w.crash("b"))
        world.run(1000 * MS)
        digest = trace.digest() if trace is not None else ""
        return Result(seed, not module.violations, module.violations, digest)

    module.run_seed = run_seed  # type: ignore[attr-defined]
    fake_swarm(monkeypatch, "ticker", module)
    return module


def replay(*words: object) -> Any:
    return CliRunner().invoke(app, ["replay", *map(str, words)])


def test_a_seed_gives_the_same_digest_again(swarm: ModuleType) -> None:
    runs = [json.loads(replay(7, "--protocol", "ticker", "--json").stdout) for _ in range(2)]
    other = json.loads(replay(8, "--protocol", "ticker", "--json").stdout)
    assert runs[0] == runs[1]
    assert len(runs[0]["trace_digest"]) == 64
    assert runs[0]["trace_digest"] != other["trace_digest"]


def test_faults_and_last_rows_are_shown(swarm: ModuleType) -> None:
    done = replay(7, "--protocol", "ticker", "--tail", "3")
    assert done.exit_code == 0, done.output
    assert "0.200000 s b" in done.stdout
    assert "last rows:" in done.stdout


def test_a_recorded_trace_is_reproduced_or_the_first_difference_is_shown(
    swarm: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "deep" / "trace.parquet"
    assert replay(7, "--protocol", "ticker", "--out", path).exit_code == 0
    again = replay(path)
    assert again.exit_code == 0
    assert "equals the recorded trace, row for row" in again.stdout
    swarm.delay_ns = 6 * MS  # type: ignore[attr-defined]
    changed = replay(path)
    assert changed.exit_code == 1
    assert "DIFFERS from the recorded trace:\nrow " in changed.stdout


def test_failing_seeds_of_a_summary_are_replayed(swarm: ModuleType, tmp_path: Path) -> None:
    swarm.violations = ["G1: broken"]  # type: ignore[attr-defined]
    words = ["sim", "ticker", "--seeds", "3", "--jobs", "1", "--json"]
    summary = tmp_path / "run.json"
    summary.write_text(CliRunner().invoke(app, words).stdout)
    done = replay(summary, "--json")
    assert done.exit_code == 1
    assert [json.loads(line)["seed"] for line in done.stdout.splitlines()] == [0, 1, 2]
    refused = replay(summary, "--out", tmp_path / "trace.parquet")  # each would overwrite the last
    assert refused.exit_code == 2
    assert "has 3 failing seeds" in " ".join(refused.output.replace("│", " ").split())
    swarm.violations = []  # type: ignore[attr-defined]
    assert replay(summary).exit_code == 0


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"protocol": "x", "failing_seeds": []}', "PAR1"]
)
def test_a_file_that_is_not_a_recording_is_wrong_usage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert replay(path).exit_code == 2


def test_a_word_that_is_neither_seed_nor_file_is_wrong_usage() -> None:
    assert replay("nothing-here").exit_code == 2
    assert replay(3, "--protocol", "nobody").exit_code == 2


# ---------------------------------------------------------------- recordings


def record(path: Path, node: str, *, wrong_at: int = -1) -> Path:
    """Record 50 steps of a publisher, 10 ms apart; step `wrong_at` with an extra effect."""
    args = {"role": "publisher", "replicas": ["east/0"]}
    disk = MemoryDisk()
    machine = build(NodeContext(node, Random(f"7/{node}/1"), disk, 1), args)
    recorder = Recorder(
        path,
        node=node,
        build=BUILD,
        args=args,
        seed=7,
        incarnation=1,
        codec=Codec(message_types()),
        disk=disk,
    )
    for n in range(50):
        inp = TimerFired("retry") if n else Start(1_000_000, 1)
        effects = machine.step(n * 10 * MS, inp)
        if n == wrong_at:
            effects = [*effects, Emit("unexpected")]
        recorder.step(n * 10 * MS, inp, effects)
    recorder.close()
    return path


def test_recordings_are_replayed(tmp_path: Path) -> None:
    one, two = record(tmp_path / "1.rec", "a"), record(tmp_path / "2.rec", "b")
    for words in ([tmp_path], [one, two]):
        done = replay(*words)
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines() == [
            "2 nodes: a, b",
            "100 steps played, spanning 0.490 s",
            "the replay equals the recorded run: 100 steps, 100 effects",
        ]


def test_a_recording_that_is_not_reproduced_is_explained(tmp_path: Path) -> None:
    path = record(tmp_path / "1.rec", "a", wrong_at=30)
    done = replay(path)
    assert done.exit_code == 1
    assert "DIFFERS from the recorded run:\na, life 1, step 31 at 300000000 ns" in done.stdout
    assert "there were 2 effects" in done.stdout
    assert "TimerFired(key='retry')" in done.stdout
    found = json.loads(replay(path, "--json").stdout)
    assert found["difference"]["step"] == 31
    assert found["difference"]["recorded"][-1] == "Emit.str"
    assert found["steps"] == 31


def test_replaying_a_recording_writes_a_trace(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path, out = record(tmp_path / "1.rec", "a"), tmp_path / "deep" / "trace.parquet"
    done = replay(path, "--out", out, "--tail", "2")
    assert done.exit_code == 0, done.output
    assert "last rows:\n      0.490000 s a              input  TimerFired" in done.stdout
    table = pq.read_table(out)
    assert table.num_rows == 100
    assert set(table.column_names) == {*Trace().to_table().column_names}
    runs = [json.loads(replay(path, "--json").stdout) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0]["difference"] is None
    assert len(runs[0]["trace_digest"]) == 64
    assert replay(out).exit_code == 2  # that trace has no seed to run again


def test_the_recording_of_a_killed_node_is_replayed_to_its_last_complete_step(
    tmp_path: Path,
) -> None:
    path = record(tmp_path / "1.rec", "a")
    path.write_bytes(path.read_bytes()[:-50])
    done = replay(path)
    assert done.exit_code == 0, done.output
    assert "is incomplete" in done.stdout
    assert "equals the recorded run: 49 steps" in done.stdout


def test_a_damaged_recording_cannot_be_replayed(tmp_path: Path) -> None:
    path = record(tmp_path / "1.rec", "a")
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    done = replay(path)
    assert done.exit_code == 1
    assert "CRC" in done.stdout
    assert "CRC" in json.loads(replay(path, "--json").stdout)["error"]
    data[4] = 77
    path.write_bytes(data)
    assert "version 77" in replay(path).stdout


def test_recordings_cannot_be_combined_with_seeds(tmp_path: Path) -> None:
    assert replay(tmp_path).exit_code == 2  # an empty directory
    path = record(tmp_path / "1.rec", "a")
    assert replay(path, 7).exit_code == 2
    assert replay(7, 8).exit_code == 2
