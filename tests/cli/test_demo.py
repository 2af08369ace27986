"""`surecast demo` with real processes: nothing is lost, exit codes, and no process is left over."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from surecast.cli.main import app
from surecast.errors import UsageError
from surecast.pipeline.jobs.audit import Audit
from surecast.protocols.sprinkler.checks import Tally
from surecast_lab.demo import run as demo
from surecast_lab.demo.audit import Latency, agreed
from surecast_lab.swarm.audit import judge
from surecast_lab.swarm.audit_log import ReadEvents, load_offered, load_read

GROUP = "demo"  # one worker: the run that most of these look at is made once

EVENTS = 20_000
READERS = [
    *(f"{region}-mesh-{i}" for region in ("east", "west", "north") for i in (1, 2)),
    "west-thin",
]
GONE_S_MAX = 60.0


def start(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    """Start the demo as a process that keeps its files in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "surecast.cli", "demo", "--events", str(EVENTS), *flags],
        env={**os.environ, "TMPDIR": str(folder)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes whose environment or arguments name `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes()
            text = line + (path / "environ").read_bytes()
        except OSError:
            continue  # it has just ended, or belongs to another user
        if str(folder).encode() in text:
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + GONE_S_MAX
    while left := processes_of(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


class Ran:
    """A complete run and its output."""

    def __init__(self, folder: Path) -> None:
        process = start(folder, "--json", "--keep", "--out", str(folder / "out"))
        self.stdout, self.stderr = process.communicate()
        self.code = process.returncode
        self.folder = folder

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.stdout)
        return report

    def readers(self) -> Iterator[ReadEvents]:
        return (load_read(Path(self.report["folder"]) / f"{name}.npz") for name in READERS)

    def judged(self, readers: Iterator[ReadEvents]) -> Tally:
        offered = load_offered(Path(self.report["folder"]) / "publisher.npz")
        return judge(offered, readers, EVENTS + 1)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("demo"))


@pytest.mark.slow
def test_through_a_cut_and_a_kill_nothing_is_lost(ran: Ran) -> None:
    assert ran.code == 0, ran.stderr
    report = ran.report
    assert report["published"] == report["acked"] == EVENTS
    assert report["delivered"] + report["void"] == EVENTS * len(READERS)
    assert (report["lost"], report["duplicated"], report["misordered"]) == (0, 0, 0)
    assert report["violations"] == []
    assert [name for name, _, _ in report["faults"]] == [
        "link east – west cut",
        "east-1 killed",
        "west isolated",
    ]
    assert report["missed_events"] == EVENTS * 0.65
    assert 0 < report["shipped_bytes"] < report["missed_bytes"]
    assert len(set(report["kept"].values())) == 1, "every region keeps the same"
    assert report["judge"] == "spark"
    assert set(report["latency_ms"]) == {"east", "west", "north"}
    for latency in report["latency_ms"].values():
        assert 0 < latency["p50_ms"] <= latency["p90_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    assert Path(report["figure"]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_each_step_of_the_demo_is_announced(ran: Ran) -> None:
    acts = [line[9:] for line in ran.stderr.splitlines() if line[:6].strip()[:1].isdigit()]
    assert acts[0].startswith("starting 3 regions × 2 replicas")
    assert "link east – west cut: west gets the events through north" in acts
    assert "links restored: west catches up" in acts
    assert acts[-1] == "audit, by Spark and by numpy"


@pytest.mark.slow
def test_no_process_of_the_demo_is_left_running(ran: Ran) -> None:
    wait_until_gone(ran.folder)


@pytest.mark.slow
def test_the_recorded_logs_give_the_same_verdict_and_an_altered_log_another(ran: Ran) -> None:
    tally = ran.judged(ran.readers())
    assert tally.violations == []
    assert tally.delivered == ran.report["delivered"]

    def altered() -> Iterator[ReadEvents]:
        for reader in ran.readers():
            if reader.reader == "north-mesh-2":  # the newest event but one is removed
                for name in ("seq", "time_us", "key", "value"):
                    setattr(reader, name, np.delete(getattr(reader, name), -2))
            yield reader

    # How many events are missing depends on how many older ones of that key were reported void.
    tally = ran.judged(altered())
    assert tally.lost >= 1
    assert all(words.startswith("G4 north-mesh-2: neither delivered") for words in tally.violations)


def fake(tally: Tally, judge: str = "spark") -> demo.Demo:
    line = demo.ClientTrack([0.0, 1.0], [1, 3])
    tracks = {"acknowledged": line, "east-mesh-1": line}
    return demo.Demo(
        events=2, seed=7, tally=tally, judge=judge, seconds=1.0, audit_s=0.5,
        latency={"east": Latency(1.0, 2.0, 3.0, 4.0)} if judge == "spark" else {},
        faults=[demo.Fault("cut", 0.2, 0.4)],
        tracks=tracks, burst_events=1, burst_s=0.1, longest_pause_s=0.5, down_s=0.1,
        switched_to="north",
        missed_events=1, missed_bytes=100, shipped_bytes=10, catch_up_s=0.1, kept={"east": 2},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_violation_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: list[str]
) -> None:
    tally = Tally(published=2, acked=2, lost=1, violations=["G10 acknowledged and lost 2"])
    monkeypatch.setattr(demo, "run_demo", lambda *_: fake(tally))
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), *flags])
    assert result.exit_code == 1
    assert "G10 acknowledged and lost 2" in result.output


def test_no_violation_is_exit_code_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "run_demo", lambda *_: fake(Tally(published=2, acked=2)))
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "90% saved" in result.output
    assert "Judged by Spark" in result.output
    assert "numpy's judge agrees" in result.output
    assert "east 1 / 3 / 4" in result.output
    assert (tmp_path / "demo.png").exists()


def test_without_spark_the_output_names_the_judge(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used = []

    def run(*args: object) -> demo.Demo:
        used.append(args[-1])
        return fake(Tally(published=2, acked=2), "numpy")

    monkeypatch.setattr(demo, "run_demo", run)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--no-spark"])
    assert (result.exit_code, used) == (0, [False]), result.output
    assert "Judged by numpy alone" in result.output
    assert "--no-spark" in result.output


def test_missing_java_is_reported_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none() -> None:
        raise UsageError("Spark needs Java 17 or later")

    monkeypatch.setattr("surecast.pipeline.session.find_java", none)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "needs Java 17" in result.output
    assert "--no-spark" in result.output


def test_a_disagreement_of_the_judges_is_a_violation() -> None:
    found = Audit(published=9, acked=9, delivered=9)
    assert agreed(found, Tally(published=9, acked=9, delivered=9)).violations == []
    (words,) = agreed(found, Tally(published=9, acked=9, delivered=8)).violations
    assert "disagree" in words
    assert "delivered 9 and 8" in words
    blind = agreed(found, Tally(published=9, acked=9, delivered=9, lost=1, violations=["G4 x"]))
    assert "G4 x" in blind.violations[0]
    both = agreed(
        Audit(published=9, acked=9, delivered=9, lost=2, violations=["G4 y"]),
        Tally(published=9, acked=9, delivered=9, lost=1, violations=["G4 x"]),
    )
    assert (both.lost, both.violations) == (2, ["G4 y"]), (
        "both found violations: the first one counts"
    )


def test_a_run_that_does_not_settle_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stuck(*_: object) -> None:
        raise demo.DemoFailed("nothing came of it")

    monkeypatch.setattr(demo, "run_demo", stuck)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "--keep" in result.output


def test_an_unwritable_output_folder_is_reported_before_the_run(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    result = CliRunner().invoke(app, ["demo", "--out", str(blocked / "deeper")])
    assert "choose another --out" in str(result.exception)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_its_processes_end_when_it_is_interrupted_or_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = start(tmp_path, "--out", str(tmp_path / "out"))
    assert process.stderr is not None
    for line in process.stderr:
        if "events flow" in line:  # in the middle of the run
            break
    assert len(processes_of(tmp_path)) > 17  # itself, 9 servers, 8 clients
    process.send_signal(number)
    process.stderr.read()
    code = process.wait()
    wait_until_gone(tmp_path)
    if number != signal.SIGKILL:
        assert code == 130
        assert list(tmp_path.glob("surecast-demo-*")) == []
