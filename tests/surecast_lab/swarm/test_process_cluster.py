"""Processes that fail, are stopped or killed: the cluster reports it, and ends all processes."""

import os
from pathlib import Path
from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.retention import KeepAll, LatestPerKey
from surecast.core.endpoint import Offer
from surecast.core.types import MS
from surecast.core.wire import encode_batch
from surecast.errors import SurecastError, UsageError
from surecast_lab.swarm.delivery_log import DeliveryLog, delivered_path, read_delivered
from surecast_lab.swarm.process import ProcessSpec, make
from surecast_lab.swarm.process_cluster import ProcessCluster
from surecast_lab.testing.ports import HOST
from surecast_lab.testing.workers import Worker, Workers


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
        ProcessCluster(tmp_path, 1, {"r": 1}, clients=0)


def test_a_machine_that_fails_ends_its_process(tmp_path: Path) -> None:
    """Otherwise other nodes would wait for a node that is connected but does nothing."""
    spec = ProcessSpec("r/pub", "publisher", {"replicas": ["r/0"]}, (HOST, 0), {}, str(tmp_path), 1)
    with Workers(tmp_path) as workers:
        workers.start(spec.name, make, spec)
        workers.ready()
        no_batch: Any = 7
        workers.ask(spec.name, "give", Offer(bytes(16), no_batch))
        worker = workers[spec.name]
        worker.process.join(60)
        assert worker.crashed
        assert "r/pub stops: TypeError" in worker.log.read_text()


def test_a_restarted_process_knows_how_often_it_was_started(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 1, {"r": 1}, clients=0, thin=1) as cluster:
        (thin,) = cluster.thin
        cluster.kill(thin)
        cluster.crash_again(thin, 0.0)
        cluster.restart(thin)
        assert cluster.specs[thin].life == 3
        assert cluster.answers(thin)


def test_a_torn_batch_is_not_in_the_delivery_log(tmp_path: Path) -> None:
    path = tmp_path / "x.delivered"
    book = DeliveryLog(path)
    stream = bytes(16)
    book.take(stream, (Batch.void(stream, 1, 5, COLLECTED), Batch.void(stream, 5, 9, COLLECTED)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert DeliveryLog(path).positions == {stream: 5}
    assert path.read_bytes() == whole[: len(whole) // 2]


@pytest.mark.slow
def test_a_cluster_reports_processes_that_end_unexpectedly(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 1, {"r": 2}, clients=1) as cluster:
        for stream in ("a", "b"):  # two loads of one publisher, both ended by `quiet`
            cluster.open(stream, "r", KeepAll())
            cluster.publish(stream, rows=5, every_ns=5 * MS)
        cluster.wait(lambda: cluster.least("a") > 20 and cluster.least("b") > 20)
        cluster.quiet()
        cluster.rest()
        cluster.audit()
        assert cluster.judge().violations == cluster.judge().violations == []
        with pytest.raises(UsageError, match="r/pub"):
            cluster.kill("r/pub")

        cluster.workers["r/witness"].process.kill()  # without `ProcessCluster.kill`
        cluster.workers["r/witness"].process.join()
        with pytest.raises(SurecastError, match="r/witness has ended, exit code -9"):
            cluster.wait(lambda: True)
        assert any("r/witness" in violation for violation in cluster.judge().violations)
        cluster.kill("r/witness")  # now it is an expected end
        assert cluster.members("r") == []

        cluster.relay._process.kill()
        cluster.relay._process.wait()
        with pytest.raises(SurecastError, match="relay process has ended"):
            cluster.wait(lambda: True)
    assert all(gone(worker) for worker in cluster.workers.values())


@pytest.mark.slow
def test_restarted_clients_continue_at_their_positions_after_servers_were_killed(
    tmp_path: Path,
) -> None:
    """The stream is created and published through a region that does not own it."""
    with ProcessCluster(tmp_path, 1, {"east": 2, "west": 1}, clients=1, thin=1) as cluster:
        cluster.open("east.s", "west", LatestPerKey())
        assert cluster.owner("east.s") == "east"
        assert cluster.members("east") == ["east-1", "east-2"]
        for region in cluster.regions:
            cluster.publish("east.s", 5, 5 * MS, keys=10, region=region)
        thin = cluster.thin[1]
        cluster.wait(lambda: cluster.least("east.s") > 50)
        for name in ("east-1", "west-1", thin):
            cluster.kill(name)
        at = cluster.least("east.s")
        for name in ("east-1", "west-1", thin):
            cluster.restart(name)
        cluster.wait(lambda: cluster.least("east.s") > at + 200)
        cluster.quiet()
        cluster.rest()
        cluster.audit()
        tally = cluster.judge()
        assert tally.violations == []
        assert tally.acked == tally.published > 250
        assert {p for p, _ in published(cluster)} == {"east/pub", "west/pub"}

        # The verdict is based on the delivery logs: without one of the batches it changes.
        path = delivered_path(str(tmp_path), thin)
        torn = read_delivered(path)
        del torn[len(torn) // 2]
        path.write_bytes(b"".join(bytes(part) for batch in torn for part in encode_batch(batch)))
        assert any("G2" in violation for violation in cluster.judge().violations)


def published(cluster: ProcessCluster) -> list[tuple[str, bytes]]:
    offers = {name: cluster.workers[name].ask("results")["offered"] for name in cluster.publishers}
    return [(name, value) for name, made in offers.items() for o in made for value in o[2]]
