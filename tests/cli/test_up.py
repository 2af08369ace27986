"""`surecast up` as a real process: a deployment tried as a new user would, and its end."""

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.server.processes import Process, free_base, is_ready, surecast, surecast_here, wait_for

pytestmark = pytest.mark.slow

PORTS = 100  # more than any deployment here uses


class Up(Process):
    """`surecast up`, ready."""

    def __init__(self, folder: Path, *words: str, base: int | None = None) -> None:
        self.base = base or free_base(PORTS)
        where = ("--dir", str(folder / "up"), "--base-port", str(self.base))
        super().__init__(folder, ["up", "--json", *where, *words])
        wait_for(lambda: self.out.read_text() or self.popen.poll() is not None, "up")
        assert self.popen.poll() is None, self.said()
        self.nodes: dict[str, dict[str, Any]] = {
            node["name"]: node for node in json.loads(self.out.read_text())["nodes"]
        }

    def pid(self, name: str) -> int:
        """Of the process that serves `name`: ours, by the file it was given."""
        config = self.nodes[name]["config"]
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"serve" in words and os.fsencode(config) in words:
                    return int(folder.name)
        return 0

    def all_gone(self) -> bool:
        return not any(self.pid(name) for name in self.nodes)


def test_three_regions_as_a_new_user_would(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        regions = [node["region"] for node in up.nodes.values() if node["role"] == "replica"]
        assert regions == ["east", "east", "west", "west", "north", "north"]
        assert up.nodes["east-1"]["url"] == f"surecast://127.0.0.1:{up.base}"
        east, west = up.nodes["east-1"]["url"], up.nodes["west-1"]["url"]
        words = ["subscribe", "demo.>", "--from", "earliest", "--count", "3", "--url", west]
        with Process(tmp_path / "reader", words) as reading:
            done = surecast_here("publish", "demo.hello", "a", "b", "--url", east)
            assert done.stdout == "demo.hello: 1-2 (2 events)\n", done.stderr
            # Through another region than the owner, with the same positions.
            done = surecast_here("publish", "demo.hello", "c", "--url", west)
            assert done.stdout == "demo.hello: 3 (1 event)\n", done.stderr
            assert reading.popen.wait(60) == 0
            assert [line.split("\t")[3] for line in reading.out.read_text().splitlines()] == [
                "a",
                "b",
                "c",
            ]
        done = surecast_here(
            "publish", "west.orders", "x", "--url", east
        )  # west owns what begins so
        assert done.returncode == 0, done.stderr
        owners = json.loads(surecast_here("streams", "--json", "--url", east).stdout)
        assert {s["name"]: s["owner"] for s in owners} == {
            "demo.hello": "east",
            "west.orders": "west",
        }
        look_at_status(east)
        lose_a_replica(up, tmp_path)
        assert up.end(signal.SIGINT) == 1  # one of them stopped unexpectedly
        assert up.all_gone()
        assert "stopping" in up.said()


def look_at_status(url: str) -> None:
    def settled() -> Any:
        found = surecast_here("status", "--json", "--url", url)
        status = json.loads(found.stdout)
        ends = [s["regions"] for n in status["nodes"].values() for s in n["streams"]]
        same = all(len(set(end.values())) == 1 and len(end) == 3 for end in ends)
        return (found, status) if same and len(ends) == 12 else None

    found, status = wait_for(settled, "every region has every stream")
    assert found.returncode == 0, status
    assert status["ok"] is True
    assert sorted(status["nodes"]) == ["east-1", "east-2", "north-1", "north-2", "west-1", "west-2"]
    places = {name: node["chain"]["place"] for name, node in status["nodes"].items()}
    assert places["east-1"] == "head"
    assert places["east-2"] == "tail"
    text = surecast_here("status", "--url", url).stdout
    assert "demo.hello" in text
    assert "all is well" in text


def lose_a_replica(up: Up, folder: Path) -> None:
    """SIGKILL: it is reported with what to do, status says what it means, and doing it helps."""
    os.kill(up.pid("east-1"), signal.SIGKILL)
    wait_for(lambda: "east-1 stopped unexpectedly (exit code -9)" in up.said(), "reported")
    again = f"serve {up.nodes['east-1']['config']}"
    assert again in up.said()
    url = up.nodes["east-2"]["url"]

    def missed() -> Any:
        found = surecast_here("status", "--url", url)
        return found if "too-few-replicas" in found.stdout else None

    found = wait_for(missed, "status shows that a replica is missing")
    assert found.returncode == 1
    assert "To do: Start the missing replicas" in found.stdout
    assert "no answer" in found.stdout
    with Process(folder / "again", again.split()) as process:
        wait_for(lambda: is_ready(up.nodes["east-1"]["http"][7:]), "it joins again")
        done = surecast_here("publish", "demo.hello", "d", "--url", url)
        assert done.stdout == "demo.hello: 4 (1 event)\n", done.stderr
        assert process.end() == 0


def test_everything_is_still_there_the_next_time(tmp_path: Path) -> None:
    base = free_base(PORTS)
    data = str(tmp_path / "data")
    for life in (1, 2):
        words = ("--regions", "1", "--replicas", "1", "--dir", data)
        with Up(tmp_path / f"{life}", *words, base=base) as up:
            assert up.nodes.keys() == {"east-1"}  # its witness is inside
            done = surecast_here("publish", "s", "x", "--url", up.nodes["east-1"]["url"])
            assert done.stdout == f"s: {life} (1 event)\n", done.stderr
            assert up.end(signal.SIGTERM) == 0, up.said()
            assert up.all_gone()
    with Process(
        tmp_path / "3", ["up", "--regions", "2", "--dir", data, "--base-port", str(base)]
    ) as other:
        assert other.popen.wait(60) == 2
        assert "holds the data of other replicas" in other.said()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    base = free_base(PORTS)
    with socket.create_server(("127.0.0.1", base + 1)):
        done = surecast("up", "--dir", str(tmp_path), "--base-port", str(base))
    assert done.returncode == 2
    assert f"port {base + 1}, wanted for east-2, is in use" in done.stderr
    assert "--base-port" in done.stderr


def test_a_process_that_cannot_start_ends_all(tmp_path: Path) -> None:
    words = ["up", "--regions", "1", "--in-memory", "--dir", str(tmp_path / "up")]
    words += ["--base-port", str(free_base(PORTS))]
    with Process(tmp_path, words, {"SURECAST_LOG__LEVEL": "loud"}) as up:
        assert up.popen.wait(60) == 1
        assert "ended with exit code 2" in up.said()
        assert "[log] level = 'loud'" in up.said()


def test_its_processes_do_not_outlive_it(tmp_path: Path) -> None:
    with Up(tmp_path, "--regions", "1", "--replicas", "1", "--in-memory") as up:
        up.popen.kill()
        up.popen.wait()
        wait_for(up.all_gone, "they end when their parent is gone")
