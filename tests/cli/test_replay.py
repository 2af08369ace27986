"""`surecast replay`, with a swarm of our own that runs a real, small world."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from surecast.cli import sim
from surecast.cli.main import app
from surecast.core.types import MS, Emit, Received, Send, SetTimer, Start
from surecast.sim import Link, Trace, World


class Ticker:
    """Sends a number to its peer at a pace drawn from its own randomness."""

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
    monkeypatch.setitem(sys.modules, "ticker_swarm", module)
    monkeypatch.setitem(sim.SWARMS, "ticker", "ticker_swarm:run_seed")
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


def test_a_recorded_trace_is_met_again_or_the_first_difference_named(
    swarm: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "deep" / "trace.parquet"
    assert replay(7, "--protocol", "ticker", "--out", path).exit_code == 0
    again = replay(path)
    assert again.exit_code == 0
    assert "met again, row for row" in again.stdout
    swarm.delay_ns = 6 * MS  # type: ignore[attr-defined]
    changed = replay(path)
    assert changed.exit_code == 1
    assert "NOT met again:\nrow " in changed.stdout


def test_failing_seeds_of_a_summary_are_replayed(swarm: ModuleType, tmp_path: Path) -> None:
    swarm.violations = ["G1: broken"]  # type: ignore[attr-defined]
    words = ["sim", "ticker", "--seeds", "3", "--jobs", "1", "--json"]
    summary = tmp_path / "run.json"
    summary.write_text(CliRunner().invoke(app, words).stdout)
    done = replay(summary, "--json")
    assert done.exit_code == 1
    assert [json.loads(line)["seed"] for line in done.stdout.splitlines()] == [0, 1, 2]
    swarm.violations = []  # type: ignore[attr-defined]
    assert replay(summary).exit_code == 0


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"protocol": "x", "failing_seeds": []}', "PAR1"]
)
def test_a_file_that_is_no_recording_is_wrong_usage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert replay(path).exit_code == 2


def test_neither_seed_nor_file_is_wrong_usage() -> None:
    assert replay("nothing-here").exit_code == 2
    assert replay(3, "--protocol", "nobody").exit_code == 2
