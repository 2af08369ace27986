"""`surecast up` as a real process: first use of a deployment, a lost replica, and its end."""

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
    """A running `surecast up`, started and ready."""

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
        """The id of the process that serves `name`, found by its configuration file; 0 if none."""
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


def test_three_regions_publish_subscribe_and_lose_a_replica(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        regions = [node["region"] for node in up.nodes.values() if node["role"] == "replica"]
        assert regions == ["east", "east", "west", "west", "north", "north"]
        assert up.nodes["east-1"]["url"] == f"surecast://127.0.0.1:{up.base}"
        east, west = up.nodes["east-1"]["url"], up.nodes["west-1"]["url"]
        words = ["subscribe", "demo.>", "--from", "earliest", "--count", "3", "--url", west]
        with Process(tmp_path / "reader", words) as reading:
            done = surecast_here("publish", "demo.hello", "a", "b", "--url", east)
            assert done.stdout == "demo.hello: 1-2 (2 events)\n", done.stderr
            # Published through a region that does not own the stream; the positions are the same.
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
        )  # west owns streams named west.*
        assert done.returncode == 0, done.stderr
        owners = json.loads(surecast_here("streams", "--json", "--url", east).stdout)
        assert {s["name"]: s["owner"] for s in owners} == {
            "demo.hello": "east",
            "west.orders": "west",
        }
        check_status(east)
        kill_a_replica(up, tmp_path)
        assert up.end(signal.SIGINT) == 1  # because a server stopped unexpectedly
        assert up.all_gone()
        assert "stopping" in up.said()


def check_status(url: str) -> None:
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


def kill_a_replica(up: Up, folder: Path) -> None:
    """Kill a replica: `up` reports it with a remedy, status explains it, and the remedy works."""
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
        over = "east-2: this alarm is over: too-few-replicas"
        wait_for(lambda: over in up.said(), "`up` reports that the alarm is over")
        assert process.end() == 0


def test_events_survive_a_restart_of_all_servers(tmp_path: Path) -> None:
    base = free_base(PORTS)
    data = str(tmp_path / "data")
    for start in (1, 2):
        words = ("--regions", "1", "--replicas", "1", "--dir", data)
        with Up(tmp_path / f"{start}", *words, base=base) as up:
            assert up.nodes.keys() == {"east-1"}  # the witness runs inside it
            done = surecast_here("publish", "s", "x", "--url", up.nodes["east-1"]["url"])
            assert done.stdout == f"s: {start} (1 event)\n", done.stderr
            assert up.end(signal.SIGTERM) == 0, up.said()
            assert up.all_gone()
    with Process(
        tmp_path / "3", ["up", "--regions", "2", "--dir", data, "--base-port", str(base)]
    ) as other:
        assert other.popen.wait(60) == 2
        assert "holds the data of other replicas" in other.said()


def test_up_names_a_port_that_is_in_use(tmp_path: Path) -> None:
    base = free_base(PORTS)
    with socket.create_server(("127.0.0.1", base + 1)):
        done = surecast("up", "--dir", str(tmp_path), "--base-port", str(base))
    assert done.returncode == 2
    assert f"port {base + 1}, wanted for east-2, is in use" in done.stderr
    assert "--base-port" in done.stderr


def test_up_stops_all_servers_if_one_cannot_start(tmp_path: Path) -> None:
    words = ["up", "--regions", "1", "--in-memory", "--dir", str(tmp_path / "up")]
    words += ["--base-port", str(free_base(PORTS))]
    with Process(tmp_path, words, {"SURECAST_LOG__LEVEL": "loud"}) as up:
        assert up.popen.wait(60) == 1
        assert "ended with exit code 2" in up.said()
        assert "[log] level = 'loud'" in up.said()


def test_servers_end_when_up_is_killed(tmp_path: Path) -> None:
    with Up(tmp_path, "--regions", "1", "--replicas", "1", "--in-memory") as up:
        up.popen.kill()
        up.popen.wait()
        wait_for(up.all_gone, "the servers end after their parent")
