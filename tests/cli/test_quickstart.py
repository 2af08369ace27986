"""docs/quickstart.md as written: its program, and every command after a `$`, are run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.programs import needs
from tests.server.processes import COMMAND, WAIT_S, Process, clean_env, free_base, wait_for

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "quickstart.md").read_text()


def fenced(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """Each command and the output that the page shows for it, "" if it shows none."""
    found: list[tuple[str, str]] = []
    for block in fenced("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def test_the_page_covers_what_a_newcomer_needs() -> None:
    text = " ".join(command for command, _ in commands())
    for words in ("publish", "subscribe", "--name", "--retain", "curl", "/metrics"):
        assert words in text
    (code,) = fenced("python")
    for call in ("publish_many", "subscribe", "latest_per_key", "collect"):
        assert call in code


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    (code,) = fenced("python")
    wanted = PAGE.partition("It prints\n\n```\n")[2].partition("```")[0]
    (tmp_path / "first.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr


def test_the_commands_do_what_the_page_says(tmp_path: Path) -> None:
    needs("curl")
    base = free_base(90)
    (up,) = re.findall(r"^surecast (up --regions 1 .*)$", PAGE, re.MULTILINE)
    shim = tmp_path / "bin" / "surecast"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    shim.chmod(0o755)
    env = {
        **clean_env(),
        "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}",
        "SURECAST_URL": f"127.0.0.1:{base}",
        "no_proxy": "127.0.0.1",
    }
    words = [*up.split(), "--dir", str(tmp_path / "up"), "--base-port", str(base)]
    with Process(tmp_path / "output", words) as server:
        wait_for(lambda: "Ctrl-C stops all of it" in server.said(), "ready")
        for command, wanted in commands():
            done = subprocess.run(
                ["sh", "-c", command.replace("127.0.0.1:7480", f"127.0.0.1:{base + 80}")],
                cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, env=env,
            )  # fmt: skip
            assert done.returncode == 0, (command, done)
            assert done.stdout.strip(), command
            if wanted:
                assert done.stdout.split() == wanted.split(), command
