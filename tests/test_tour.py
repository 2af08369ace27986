"""The examples run with a local region, and against processes that `surecast up` started."""

import asyncio
import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.ports import free_base

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

PORTS = 100  # consecutive ports that a deployment may use
LAST = "streams of this tour:"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(example: str, *args: str) -> str:
    """Run an example as a user would; returns its output."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *args],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
    return ran.stdout


def test_the_tour_runs_with_a_local_region(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("tour").tour(None))
    said = capsys.readouterr().out
    assert "connected to region 'local'" in said
    assert "continues at position 101" in said
    assert "none is lost" in said
    assert LAST in said


@pytest.mark.slow
def test_every_example_runs() -> None:
    for path in sorted(EXAMPLES.glob("*.py")):
        assert run(path.name), path


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A real deployment: two regions of two replicas, as processes."""
    base = free_base(PORTS)
    command = [sys.executable, "-m", "surecast.cli", "up", "--regions", "2", "--replicas", "2"]
    command += ["--dir", str(tmp_path / "up"), "--base-port", str(base), "--json"]
    with (tmp_path / "up.log").open("w") as log:
        up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert up.stdout is not None
        line = up.stdout.readline()
        assert line, (tmp_path / "up.log").read_text()
        json.loads(line)  # printed when all servers are ready
        yield f"surecast://127.0.0.1:{base}"
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(60)


@pytest.mark.slow
def test_the_tour_runs_against_real_processes(url: str) -> None:
    for _ in range(2):  # it can be repeated
        said = run("tour.py", url)
        assert "connected to region 'east'" in said
        assert "none is lost" in said
        assert LAST in said
    assert run("sync_tour.py", url)
