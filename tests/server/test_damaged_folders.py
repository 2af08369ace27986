"""Real servers on data folders that were damaged or restored; checked through clients and HTTP."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surecast import sync
from surecast.errors import StorageError
from surecast.server.cluster import Cluster
from surecast_lab.testing.deployment import free_layout
from tests.server.processes import get, wait_for

NAME = "east.orders"  # owned by the first region


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers write segments after a few hundred events, and a single replica accepts publishes."""
    monkeypatch.setenv("SURECAST_STORAGE__JOURNAL_BYTES_MAX", "16KiB")
    monkeypatch.setenv("SURECAST_STORAGE__BACKLOG_BYTES_MAX", "64KiB")
    monkeypatch.setenv("SURECAST_STORAGE__INLINE_BYTES_MAX", "4KiB")
    monkeypatch.setenv("SURECAST_CHAIN__MIN_REPLICAS", "1")


class Deployment:
    def __init__(self, folder: Path, regions: int, replicas: int) -> None:
        self.cluster = Cluster(free_layout(folder, regions, replicas))
        self.nodes = self.cluster.nodes
        self.folder = folder

    def data(self, name: str) -> Path:
        return next(self.folder.rglob(f"{name}/log"))

    def end(self, *names: str) -> None:
        """Stop servers one after the other with SIGTERM."""
        for name in names:
            process = self.cluster.running.pop(name)
            process.send_signal(signal.SIGTERM)
            process.wait()

    def start(self, *names: str) -> None:
        for name in names:
            self.cluster.start(name)
            wait_for(lambda: self.status(name), f"{name} listens")  # noqa: B023

    def status(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = get(f"http://{self.nodes[name].http}/v1/status")[1]
        except OSError:
            return {}
        return found

    def is_ready(self, name: str) -> bool:
        return bool(self.status(name).get("ready"))

    def alarms(self, name: str) -> dict[str, str]:
        return {alarm["code"]: alarm["what"] for alarm in self.status(name).get("alarms", [])}

    def members(self, name: str) -> list[str]:
        return (self.status(name).get("chain") or {}).get("members", [])

    def publish(self, name: str, values: list[bytes]) -> list[int]:
        with sync.connect(self.nodes[name].url) as client:
            return list(client.stream(NAME).publish_many(values))

    def read(self, name: str, count: int, stream: str = NAME) -> dict[int, bytes]:
        """The first `count` events, read from this server."""
        found: dict[int, bytes] = {}
        with sync.connect(self.nodes[name].url) as client:
            for event in client.stream(stream).subscribe(start="earliest"):
                found[event.seq] = event.value
                if len(found) == count:
                    return found
        raise AssertionError(f"{len(found)} events")


@pytest.fixture
def deploy(tmp_path: Path, small: None) -> Iterator[Any]:
    running: list[Deployment] = []

    def make(regions: int, replicas: int) -> Deployment:
        made = Deployment(tmp_path / "up", regions, replicas)
        made.cluster.__enter__()
        running.append(made)
        made.cluster.wait_ready(60)
        return made

    yield make
    for deployment in running:
        deployment.cluster.stop()


def values(first: int, count: int) -> list[bytes]:
    return [b"event %05d " % i + b"." * 100 for i in range(first, first + count)]


def flip_a_bit(folder: Path) -> None:
    """Flip a bit in the middle of the first segment, which is sealed."""
    path = min(folder.glob("segment-*"))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


@pytest.mark.slow
def test_a_replica_with_a_damaged_record_is_repaired_before_it_serves(deploy: Any) -> None:
    up: Deployment = deploy(2, 2)
    up.publish("east-1", values(0, 1_000))
    for name in ("east-1", "east-2"):  # so that the chain has changed
        up.end(name)
        other = "east-2" if name == "east-1" else "east-1"
        wait_for(lambda: up.members(other) == [other], "it is alone")  # noqa: B023
        up.start(name)
        wait_for(lambda: len(up.members(other)) == 2 and up.is_ready(name), "it is back")  # noqa: B023
    head, tail = up.members("east-1")
    wait_for(lambda: list(up.data(tail).glob("segment-*")), "a segment")
    up.end(tail)
    flip_a_bit(up.data(tail))
    up.publish(head, values(1_000, 200))
    up.start(tail)
    wait_for(lambda: up.is_ready(tail) and len(up.members(tail)) == 2, "it is whole again")
    up.publish(head, values(1_200, 10))
    assert list(up.read("west-1", 1_210).values()) == values(0, 1_210)
    up.end(head)  # now the repaired replica is the head
    wait_for(lambda: up.members(tail) == [tail], "it is alone")
    assert up.publish(tail, values(1_210, 10)) == list(range(1_211, 1_221))
    assert list(up.read(tail, 1_220).values()) == values(0, 1_220)
    assert not {"stream-damaged", "stream-quarantined", "disk-distrusted"} & up.alarms(tail).keys()


@pytest.mark.slow
def test_a_restored_owner_is_noticed_and_its_new_events_are_kept_in_another_stream(
    deploy: Any,
) -> None:
    up: Deployment = deploy(2, 1)
    up.publish("east-1", values(0, 100))
    folder = up.data("east-1").parent
    up.end("east-1")
    shutil.copytree(folder, folder.with_name("copy"))
    up.start("east-1")
    wait_for(lambda: up.is_ready("east-1"), "it is back")
    up.publish("east-1", values(100, 100))
    assert len(up.read("west-1", 200)) == 200
    up.end("west-1", "east-1")
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("copy"), folder)
    up.start("east-1")
    new = [b"again %d" % i for i in range(50)]
    assert up.publish("east-1", new) == list(range(101, 151))  # no region could report the rollback
    up.start("west-1")
    wait_for(lambda: "_quarantine" in up.alarms("east-1").get("stream-forked", ""), "an alarm")
    alarm = up.alarms("east-1")["stream-forked"]
    assert alarm.startswith(f"{NAME}: positions 101 to 150 are now in _quarantine.{NAME}.101")
    assert up.read("east-1", 200) == up.read("west-1", 200)
    kept = up.read("west-1", 50, f"_quarantine.{NAME}.101")
    assert kept == dict(zip(range(101, 151), new, strict=True))
    healing = {"stream-recovering", "disk-distrusted", "disks-lost"}
    wait_for(lambda: not healing & up.alarms("east-1").keys(), "all is well")
    assert up.publish("east-1", [b"on"]) == [201]


@pytest.mark.slow
def test_a_restored_owner_compares_with_other_regions_first(deploy: Any) -> None:
    up: Deployment = deploy(2, 1)
    up.publish("east-1", values(0, 100))
    folder = up.data("east-1").parent
    shutil.copytree(folder, folder.with_name("copy"))  # while it runs
    up.publish("east-1", values(100, 100))
    assert len(up.read("west-1", 200)) == 200
    up.cluster.kill("east-1")
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("copy"), folder)
    up.start("east-1")
    assert up.publish("east-1", [b"new"]) == [201]
    assert up.read("east-1", 201) == up.read("west-1", 201)


@pytest.mark.parametrize("size", [0, 500, -1], ids=["emptied", "cut", "one-byte"])
def test_a_journal_that_was_cut_short_is_not_trusted(tmp_path: Path, size: int) -> None:
    with sync.local(tmp_path) as client:
        client.stream(NAME).publish_many(values(0, 300))
    journal = max((tmp_path / "log").glob("journal-*"))
    os.truncate(journal, size if size >= 0 else journal.stat().st_size - 1)
    for _ in range(2):  # also at the next start
        with (
            pytest.raises(StorageError, match="cut short") as caught,
            sync.local(tmp_path) as client,
        ):
            client.stream(NAME)
        assert 'start="trust"' in str(caught.value)
    with sync.local(tmp_path, start="trust") as client:
        stream = client.stream(NAME)
        seq = stream.publish(b"on")
        assert seq <= 301
        assert next(iter(stream.subscribe(start=seq))).value == b"on"
    with sync.local(tmp_path) as client:  # the operator's "trust" was saved
        client.stream(NAME).publish(b"and on")


@pytest.mark.slow
def test_a_server_whose_journal_was_cut_short_raises_an_alarm_and_waits(deploy: Any) -> None:
    up: Deployment = deploy(1, 1)
    up.publish("east-1", values(0, 300))
    up.end("east-1")
    journal = max(up.data("east-1").glob("journal-*"))
    os.truncate(journal, journal.stat().st_size // 2)
    up.start("east-1")
    wait_for(lambda: "cut short" in up.alarms("east-1").get("disk-distrusted", ""), "an alarm")
    url = f"http://{up.nodes['east-1'].http}/v1/streams/{NAME}"
    wait_for(lambda: get(url)[1].get("recovering"), "the stream is recovering")
    recovering = get(url)[1]
    assert recovering["recovering"] is True, json.dumps(recovering)
