"""`surecast sim` with a fake swarm: sums over seeds, exit codes, and the output for failures."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.fake_swarms import fake_swarm
from typer.testing import CliRunner

from surecast.cli.main import app
from surecast.cli.sim import peer_share, render
from surecast.errors import UsageError
from surecast_lab.lab import torture
from surecast_lab.swarm import sprinkler
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import SeedResult


class FakeResult(msgspec.Struct):
    seed: int
    ok: bool = True
    violations: list[str] = []
    simulated_ns: int = torture.HOUR_NS // 2
    faults: dict[str, int] = msgspec.field(default_factory=lambda: {"crash": 2, "cut": 1})
    faults_in_flight: int = 1
    published: int = 10
    acked: int = 9
    delivered: int = 30
    void: int = 4
    lost: int = 0
    duplicated: int = 0
    misordered: int = 0
    coverage: dict[str, int] = msgspec.field(default_factory=lambda: {"RegionSync.Advertise": 3})
    trace_digest: str = "d1"


@pytest.fixture
def swarm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with a `run_seed`, registered as the swarm "fake"."""
    module = ModuleType("fake_swarm")
    module.run_seed = lambda seed: FakeResult(seed)  # type: ignore[attr-defined]
    fake_swarm(monkeypatch, "fake", module)
    return module


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["sim", "fake", "--jobs", "1", *words])


def test_many_seeds_must_meet_every_expected_transition() -> None:
    def results(count: int, met: int) -> list[dict[str, Any]]:
        rows = [{"a → b": 1, "b → a": 0}] * (count - 1) + [{"a → b": 0, "b → a": met}]
        covered = {"coverage": {"Machine.Message": 1}, "violations": []}
        return [{"seed": n, "transitions": row, **covered} for n, row in enumerate(rows)]

    many = torture.SEEDS_FOR_TRANSITIONS
    unmet = torture.merge("fake", results(many, 0))
    assert unmet["transitions"] == {"a → b": many - 1, "b → a": 0}
    assert unmet["unmet"] == ["b → a"]
    assert not torture.passed(unmet)
    assert "  b → a" in render("fake", unmet, [])
    assert torture.passed(torture.merge("fake", results(many, 1)))
    assert torture.passed(torture.merge("fake", results(many - 1, 0)))  # too few seeds to tell


def test_the_summary_adds_up_the_results_of_all_seeds(swarm: ModuleType) -> None:
    done = run("--seeds", "4", "--first-seed", "7", "--json")
    assert done.exit_code == 0
    summary = json.loads(done.stdout)
    assert summary["seeds"] == 4
    assert summary["violations"] == 0
    assert summary["simulated_hours"] == 2.0
    assert summary["faults"] == {"crash": 8, "cut": 4}
    assert summary["coverage"] == {"RegionSync.Advertise": 12}
    assert {key: summary[key] for key in torture.SUMMED} == {
        "faults_in_flight": 4,
        "published": 40,
        "acked": 36,
        "delivered": 120,
        "void": 16,
        "lost": 0,
        "duplicated": 0,
        "misordered": 0,
    }
    assert summary["failing_seeds"] == []


def test_a_failing_seed_is_printed_with_the_command_that_repeats_it(swarm: ModuleType) -> None:
    def run_seed(seed: int) -> FakeResult:
        bad = seed == 42
        return FakeResult(seed, ok=not bad, violations=["G3: order"] * bad)

    swarm.run_seed = run_seed  # type: ignore[attr-defined]
    done = run("--seeds", "3", "--first-seed", "41")
    assert done.exit_code == 1
    assert "surecast sim fake --seed 42" in done.stdout
    assert "G3: order" in done.stderr
    failing = json.loads(run("--seeds", "3", "--first-seed", "41", "--json").stdout)
    assert failing["violations"] == 1
    assert failing["failing_seeds"] == [
        {"seed": 42, "violations": ["G3: order"], "replay": "surecast sim fake --seed 42"}
    ]
    assert run("--seed", "42").exit_code == 1
    assert run("--seed", "41").exit_code == 0


def test_a_run_that_raises_or_fails_without_a_message_is_a_violation(swarm: ModuleType) -> None:
    def crash(seed: int) -> FakeResult:
        raise AssertionError("seq reused")

    swarm.run_seed = crash  # type: ignore[attr-defined]
    done = run("--seed", "5", "--json")
    assert done.exit_code == 1
    assert "seq reused" in json.loads(done.stdout)["failing_seeds"][0]["violations"][0]
    swarm.run_seed = lambda seed: FakeResult(seed, ok=False)  # type: ignore[attr-defined]
    assert run("--seed", "5").exit_code == 1


def test_a_handler_that_is_never_reached_fails_large_runs_only(swarm: ModuleType) -> None:
    def run_seed(seed: int) -> FakeResult:
        return FakeResult(seed, coverage={"RegionSync.Advertise": 1, "RegionSync.Stale": 0})

    swarm.run_seed = run_seed  # type: ignore[attr-defined]
    assert run("--seeds", "49").exit_code == 0
    done = run("--seeds", "50")
    assert done.exit_code == 1
    assert "never reached in any seed: RegionSync.Stale" in done.stdout
    swarm.run_seed = lambda seed: FakeResult(seed, coverage={})  # type: ignore[attr-defined]
    assert run("--seeds", "50").exit_code == 1


def test_the_summary_adds_up_mesh_clients_and_has_the_longest_settling_time() -> None:
    one = {"seed": 1, "violations": [], "clients": {"came": 5, "left": 1}, "settled_ns": 2 * 10**9}
    got = {"came": 7, "got from peers": 1, "got from servers": 3}
    two = {"seed": 2, "violations": [], "clients": got, "settled_ns": 10**9}
    summary = torture.merge("fake", [one, two])
    assert summary["clients"]["came"] == 12
    assert summary["clients"]["left"] == 1
    assert peer_share(summary) == 0.25
    assert summary["settled_s_max"] == 2.0
    shown = render("fake", summary, [one, two])
    assert "clients came" in shown
    assert "25%" in shown
    assert "2.0 s after the repair" in shown


@pytest.mark.slow
def test_draw_writes_a_picture_of_one_seed(swarm: ModuleType, tmp_path: Path) -> None:
    def run_seed(seed: int, timeline: Timeline) -> SeedResult:
        return sprinkler.run_seed(8, timeline=timeline)

    swarm.run_seed = run_seed  # type: ignore[attr-defined]
    assert run("--seed", "8", "--draw", str(tmp_path / "new" / "seed.svg")).exit_code == 0
    picture = (tmp_path / "new" / "seed.svg").read_text()
    assert "surecast sim fake" in picture
    assert run("--seed", "8", "--draw", str(tmp_path / "seed.txt")).exit_code == 2
    assert run("--seeds", "8", "--draw", str(tmp_path / "seed.png")).exit_code == 2


def test_merge_does_not_depend_on_order() -> None:
    results = [
        msgspec.to_builtins(FakeResult(seed, violations=["x"] * (seed % 2), faults={f"f{seed}": 1}))
        for seed in range(6)
    ]
    assert torture.merge("fake", results) == torture.merge("fake", reversed(results))
    assert list(torture.merge("fake", reversed(results))["faults"]) == [f"f{n}" for n in range(6)]


def test_worker_processes_give_the_same_results() -> None:
    """The pool runs real processes, in which the swarm "none" is unknown: each seed reports so."""
    results = list(torture.run_seeds("none", range(5), jobs=2))
    assert sorted(result["seed"] for result in results) == list(range(5))
    assert all("no swarm 'none'; there are: " in result["violations"][0] for result in results)


def test_each_run_is_appended_to_the_ledger_file(swarm: ModuleType, tmp_path: Path) -> None:
    ledger = tmp_path / "new" / "torture.jsonl"

    def run_seed(seed: int) -> FakeResult:
        return FakeResult(seed, ok=seed != 8, violations=["G3: order"] * (seed == 8))

    swarm.run_seed = run_seed  # type: ignore[attr-defined]
    assert run("--seeds", "4", "--ledger", str(ledger)).exit_code == 0
    assert run("--seeds", "3", "--first-seed", "7", "--ledger", str(ledger)).exit_code == 1
    first, second = (json.loads(line) for line in ledger.read_text().splitlines())
    assert (first["protocol"], first["first_seed"], first["seeds"]) == ("fake", 0, 4)
    assert (first["faults"], first["faults_in_flight"]) == (12, 4)
    assert (first["passed"], first["violations"], first["failing_seeds"]) == (True, 0, [])
    assert {key: first[key] for key in torture.SUMMED} == {
        "faults_in_flight": 4,
        "published": 40,
        "acked": 36,
        "delivered": 120,
        "void": 16,
        "lost": 0,
        "duplicated": 0,
        "misordered": 0,
    }
    assert {"commit", "date", "machine", "seconds", "simulated_hours", "ran"} <= first.keys()
    assert (second["first_seed"], second["passed"], second["failing_seeds"]) == (7, False, [8])


def test_an_unwritable_ledger_is_refused_before_any_seed_runs(
    swarm: ModuleType, tmp_path: Path
) -> None:
    begun = []

    def run_seed(seed: int) -> FakeResult:
        begun.append(seed)
        return FakeResult(seed)

    swarm.run_seed = run_seed  # type: ignore[attr-defined]
    done = run("--seeds", "4", "--ledger", str(tmp_path))
    assert isinstance(done.exception, UsageError)
    assert "--ledger" in str(done.exception)
    assert begun == []


def test_on_spark_refuses_jobs_and_draw(swarm: ModuleType, tmp_path: Path) -> None:
    assert run("--seeds", "4", "--on-spark").exit_code == 2
    words = ["sim", "fake", "--seed", "1", "--on-spark", "--draw", str(tmp_path / "x.png")]
    assert CliRunner().invoke(app, words).exit_code == 2


@pytest.mark.parametrize(
    "words", [["sim", "nothing"], ["sim", "sprinkler", "--seeds", "0"], ["sim"], ["nonsense"]]
)
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2
