"""Processes that fail, are stopped or killed: the fleet says so, and leaves none of them behind."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.retention import KeepAll
from surecast.core.types import MS
from surecast.errors import SurecastError, UsageError
from surecast.protocols.sprinkler.messages import Offer
from surecast.swarm.fleet import HOST, Fleet, Worker, end
from surecast.swarm.process import Notebook, ProcessSpec, log_path


def spec(folder: Path, name: str = "r/config", role: str = "service", port: int = 0) -> ProcessSpec:
    args = {"region": "r", "replicas": ["r/0"]}
    return ProcessSpec(name, role, args, (HOST, port), {}, str(folder), 1)


def gone(worker: Worker) -> bool:
    assert worker.process.pid is not None
    try:
        os.kill(worker.process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").touch()
    with pytest.raises(UsageError, match="not empty"):
        Fleet(tmp_path, 1, {"r": 1}, clients=0)


def test_a_process_that_cannot_start_gives_its_log(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        worker = Worker(spec(tmp_path, port=taken.getsockname()[1]))
        with pytest.raises(SurecastError, match=r"(?s)r/config has ended, exit code 1.*in use"):
            worker.ready()
    assert worker.crashed
    end([worker])
    assert gone(worker)


def test_a_command_that_fails_ends_the_process_with_its_traceback(tmp_path: Path) -> None:
    worker = Worker(spec(tmp_path))
    worker.ready()
    with pytest.raises(SurecastError, match=r"(?s)exit code 1.*TypeError"):
        worker.ask("publish", "too few")
    with pytest.raises(SurecastError, match="has ended"):
        worker.ask("status")
    end([worker])


def test_a_machine_that_fails_ends_its_process(tmp_path: Path) -> None:
    """Else everybody would wait in vain for a node that is there and does nothing."""
    worker = Worker(spec(tmp_path, "r/pub", "publisher"))
    worker.ready()
    no_batch: Any = 7
    worker.ask("give", Offer(bytes(16), no_batch))
    worker.process.join(10)
    assert worker.crashed
    assert "r/pub stops: TypeError" in log_path(worker.spec).read_text()
    end([worker])


def test_stopped_and_killed_processes_end_with_the_others(tmp_path: Path) -> None:
    workers = [Worker(spec(tmp_path, f"r/{n}")) for n in range(4)]
    for worker in workers:
        worker.ready()
    _, stopped, killed, both = workers
    stopped.stop()
    killed.kill()
    both.stop()
    both.kill()
    with pytest.raises(UsageError, match="stopped"):
        stopped.ask("status")
    assert not any(worker.crashed for worker in workers)
    end(workers)
    assert all(gone(worker) for worker in workers)
    assert [w.process.exitcode for w in workers] == [0, 0, -9, -9]
    end(workers)  # once more does no harm


def test_a_killed_process_can_be_started_again_a_running_one_cannot(tmp_path: Path) -> None:
    worker = Worker(spec(tmp_path))
    worker.ready()
    with pytest.raises(UsageError, match="running"):
        worker.restart()
    worker.stop()
    worker.kill()
    worker.restart()
    assert worker.spec.life == 2
    assert worker.ask("status")["opened"] == {}  # neither stopped nor dead any more
    end([worker])
    assert gone(worker)


def test_what_was_torn_by_a_kill_is_not_in_the_notebook(tmp_path: Path) -> None:
    path = tmp_path / "x.delivered"
    book = Notebook(path)
    stream = bytes(16)
    book.take(stream, (Batch.void(stream, 1, 5, COLLECTED), Batch.void(stream, 5, 9, COLLECTED)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert Notebook(path).positions == {stream: 5}
    assert path.read_bytes() == whole[: len(whole) // 2]


@pytest.mark.slow
def test_a_fleet_notices_what_ends_unbidden(tmp_path: Path) -> None:
    with Fleet(tmp_path, 1, {"r": 1}, clients=1) as fleet:
        for stream in ("a", "b"):  # two loads of one publisher, both ended by `quiet`
            fleet.open(stream, "r", KeepAll())
            fleet.publish(stream, rows=5, every_ns=5 * MS)
        fleet.wait(lambda: fleet.least("a") > 20 and fleet.least("b") > 20)
        fleet.quiet()
        fleet.wait(fleet.settled)
        fleet.audit()
        assert fleet.judge().violations == fleet.judge().violations == []
        with pytest.raises(UsageError, match="r/pub"):
            fleet.kill("r/pub")

        fleet.workers["r/config"].process.kill()  # not by `Fleet.kill`
        fleet.workers["r/config"].process.join()
        with pytest.raises(SurecastError, match="r/config has ended, exit code -9"):
            fleet.wait(lambda: True)
        assert any("r/config" in violation for violation in fleet.judge().violations)
        fleet.kill("r/config")  # now it is known

        fleet.relay._process.kill()
        fleet.relay._process.wait()
        with pytest.raises(SurecastError, match="relay has ended"):
            fleet.wait(lambda: True)
    assert all(gone(worker) for worker in fleet.workers.values())
