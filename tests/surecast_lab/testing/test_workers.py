"""Worker processes: called, stopped, killed, started again; an unexpected end is reported."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from surecast.errors import SurecastError, UsageError
from surecast_lab.testing.workers import Worker, Workers, end


class Echo:
    """Answers with its pid and word; can be made to fail, or to take long to end."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.stop_s = 0.0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        if not self.word:
            raise ValueError("no word was given")

    async def stop(self) -> None:
        await asyncio.sleep(self.stop_s)

    def failures(self) -> list[asyncio.Future[None]]:
        return [self.failed]

    def say(self) -> tuple[int, str]:
        return os.getpid(), self.word

    def fail(self) -> None:
        self.failed.set_exception(RuntimeError("it cannot go on"))

    def be_slow(self) -> None:
        self.stop_s = 600.0


def gone(worker: Worker) -> bool:
    assert worker.process.pid is not None
    try:
        os.kill(worker.process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_each_worker_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        for name in ("a", "r/b"):
            workers.start(name, Echo, name.upper())
        workers.ready()
        answers = workers.ask_all(workers, "say")
        assert {name: word for name, (_, word) in answers.items()} == {"a": "A", "r/b": "R/B"}
        assert {name: pid for name, (pid, _) in answers.items()} == workers.pids()
        assert os.getpid() not in workers.pids().values()
        with pytest.raises(SurecastError, match=r"'a' exists already"):
            workers.start("a", Echo, "x")
        (one, other) = workers.values()
        workers.end(["a"])
        assert gone(one)
        assert list(workers) == ["r/b"]
        assert workers.ask("r/b", "say")[1] == "R/B"
    assert gone(other)
    assert [one.process.exitcode, other.process.exitcode] == [0, 0]


def test_a_worker_that_cannot_start_gives_its_log(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        workers.start("odd", Echo, "")
        with pytest.raises(SurecastError, match=r"(?s)odd has ended, exit code 1.*no word was"):
            workers.ready()
        assert workers["odd"].crashed


def test_a_call_that_fails_ends_the_worker_with_its_traceback(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        workers.start("a", Echo, "x")
        workers.ready()
        with pytest.raises(SurecastError, match=r"(?s)exit code 1.*TypeError"):
            workers.ask("a", "say", "too many")
        with pytest.raises(SurecastError, match="has ended"):
            workers.ask("a", "say")


def test_waiting_raises_when_a_worker_ends_unexpectedly_or_after_the_time_limit(
    tmp_path: Path,
) -> None:
    with Workers(tmp_path) as workers:
        workers.start("a", Echo, "x")
        workers.ready()
        with pytest.raises(SurecastError, match="the moon: not done after 0 s"):
            workers.wait(lambda: False, 0, "the moon")
        workers.ask("a", "fail")
        with pytest.raises(SurecastError, match=r"(?s)a has ended, exit code 1.*cannot go on"):
            workers.wait(lambda: False, 60, "the moon")


def test_stopped_and_killed_workers_can_be_ended(tmp_path: Path) -> None:
    workers = [Worker(tmp_path, f"r/{n}", Echo, "x") for n in range(4)]
    for worker in workers:
        worker.ready()
    _, stopped, killed, both = workers
    stopped.stop()
    killed.kill()
    both.stop()
    both.kill()
    with pytest.raises(UsageError, match="stopped"):
        stopped.ask("say")
    assert not any(worker.crashed for worker in workers)
    end(workers)
    assert all(gone(worker) for worker in workers)
    assert [w.process.exitcode for w in workers] == [0, 0, -9, -9]
    end(workers)  # no effect on ended workers


def test_a_killed_worker_can_be_started_again_a_running_one_cannot(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        workers.start("a", Echo, "first")
        workers.ready()
        worker = workers["a"]
        with pytest.raises(UsageError, match="running"):
            worker.begin()
        worker.stop()
        worker.kill()
        worker.begin()
        worker.ready()
        assert worker.ask("say")[1] == "first"
        worker.kill()
        worker.begin("second")
        worker.ready()
        assert worker.ask("say")[1] == "second"


def test_only_a_running_worker_ends_in_order(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers:
        workers.start("a", Echo, "x")
        workers.ready()
        worker = workers["a"]
        worker.finish()
        assert worker.process.exitcode == 0
        assert not worker.crashed
        with pytest.raises(UsageError, match="is not running"):
            worker.finish()


def test_workers_of_a_failed_run_are_killed_soon(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    workers.start("a", Echo, "x")
    workers.ready()
    workers.ask("a", "be_slow")
    began = time.monotonic()  # the start may take long on a busy machine
    with pytest.raises(KeyboardInterrupt), workers:
        raise KeyboardInterrupt
    assert gone(workers["a"])
    assert workers["a"].process.exitcode == -9
    assert time.monotonic() - began < 25, "it did not wait as long as for an orderly end"


PARENT = """
import sys, time
from pathlib import Path
from surecast_lab.testing.workers import Workers
from tests.surecast_lab.testing.test_workers import Echo

if __name__ == "__main__":
    workers = Workers(Path(sys.argv[1]))
    workers.start("a", Echo, "x")
    workers.ready()
    print(workers.pids()["a"], flush=True)
    time.sleep(600)
"""


def test_a_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, str(program), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
