"""Jobs on a real Spark cluster, a master and two workers, to which our package is shipped."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from surecast.server.cluster import Cluster as SurecastCluster
from surecast_lab.testing.deployment import free_layout
from tests.pipeline.standalone import SparkCluster

ROOT = Path(__file__).parents[2]
EVENTS = 5_000


@pytest.mark.slow
def test_jobs_run_on_a_standalone_cluster_with_the_shipped_package(tmp_path: Path) -> None:
    from surecast import sync

    values = [b"value %d" % i for i in range(EVENTS)]
    with SurecastCluster(free_layout(tmp_path / "region", 1, 1)) as region:
        region.wait_ready(60)
        (replica,) = (node for node in region.layout.nodes if node.role == "replica")
        url = f"surecast://{replica.listen}"
        with sync.connect(url) as client:
            stream = client.stream("from")
            stream.publish_many(values, keys=[b"%06d" % i for i in range(EVENTS)])
        pack_environment(tmp_path)
        with SparkCluster(tmp_path) as spark_cluster:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "tests.pipeline.standalone_jobs",
                    spark_cluster.url,
                    url,
                    tmp_path,
                ],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
                capture_output=True,
                text=True,
                timeout=400,
            )
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads(done.stdout.splitlines()[-1])
        with sync.connect(url) as client:
            stream = client.stream("to")
            last = stream.publish(b"end")
            published: list[bytes] = []
            for event in stream.subscribe(start="earliest"):
                if event.seq == last:
                    break
                published.append(event.value)
    assert found["executors"] == 2
    assert found["read"] == [EVENTS, sum(map(zlib.crc32, values))]
    assert found["written"] == 1000
    assert published == values[:1000], "the events were not published in sorted order"
    assert (found["archived"], found["in the archive"]) == (EVENTS, EVENTS)
    assert found["failed"] == []
    assert [task["n"] for task in found["tasks"]] == [n * n for n in range(6)]
    assert all("surecast.zip" in task["package"] for task in found["tasks"]), (
        "an executor imported another surecast"
    )
    assert all(task["python"] == "archive" for task in found["tasks"]), (
        "an executor ran another Python"
    )


def pack_environment(folder: Path) -> None:
    """Create a folder `env` with a `bin/python`, and pack it as `env.tar.gz`, like venv-pack.

    This Python sets PYTHON_OF, by which a task can show that it runs in it.
    """
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHON_OF=archive exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    shutil.make_archive(str(folder / "env"), "gztar", folder / "env")
