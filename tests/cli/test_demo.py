"""`surecast demo`: it runs, its figure is there, and its exit code means something."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surecast.cli.main import app
from surecast.swarm import demo


@pytest.mark.slow
def test_the_demo_loses_nothing_and_draws_a_figure(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--json", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["published"] == told["acked"] == 25_000
    assert (told["lost"], told["duplicated"], told["misordered"]) == (0, 0, 0)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_violation_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tally = demo.Tally(published=2, acked=2, lost=1, violations=["s: G10 lost"])
    fake = demo.Demo(tally, True, ["east"], 1, 1, {"east": (2, 1)}, 0, [0.0], {"east": [1]}, 0.0)
    monkeypatch.setattr(demo, "run_demo", lambda seed, progress: fake)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "G10 lost" in result.output


def test_nowhere_to_write_is_said_before_the_work(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    result = CliRunner().invoke(app, ["demo", "--out", str(blocked / "deeper")])
    assert "choose another --out" in str(result.exception)
