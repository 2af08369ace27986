"""Client processes of a run: heard, told, missed when they end, and gone with the run."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from surecast.swarm.children import ChildEnded, Children

ECHO = """
import sys
print('{"ready": true}', flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
"""
CRASH = "import sys; sys.exit('no such stream')"
STUBBORN = ECHO + "import time; time.sleep(600)"


def command(program: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program]


def listen_until(children: Children, condition: Callable[[], object]) -> None:
    while not condition():
        children.listen(0.05)


def test_what_it_says_is_its_state_and_what_it_is_told_it_hears(tmp_path: Path) -> None:
    with Children() as children:
        child = children.start("echo", command(ECHO), tmp_path / "echo.log")
        listen_until(children, lambda: children.every("ready"))
        child.tell(position=42)
        listen_until(children, lambda: child.state.get("position"))
        assert child.state == {"ready": True, "position": 42}
    assert child.process.returncode == 0


def test_one_that_ends_by_itself_is_reported_with_its_log(tmp_path: Path) -> None:
    with Children() as children:
        children.start("reader", command(CRASH), tmp_path / "reader.log")
        with pytest.raises(ChildEnded, match=r"(?s)reader ended.*exit code 1.*no such stream"):
            listen_until(children, lambda: False)


def test_one_that_is_done_may_end(tmp_path: Path) -> None:
    with Children() as children:
        said = "print('{\"saved\": true}')"
        child = children.start("done", command(said), tmp_path / "done.log")
        listen_until(children, lambda: children.every("saved"))
        child.process.wait()
        children.listen(0.05)


def test_one_that_does_not_end_with_a_failed_run_is_killed(tmp_path: Path) -> None:
    children = Children()
    child = children.start("stubborn", command(STUBBORN), tmp_path / "stubborn.log")
    listen_until(children, lambda: children.every("ready"))
    children.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(ProcessLookupError):
        os.kill(child.process.pid, 0)
