"""A real Spark cluster with a master and two workers, to which our package is shipped."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from surecast.server.cluster import Cluster
from surecast_lab.testing.deployment import free_layout
from tests.pipeline.standalone import Standalone

ROOT = Path(__file__).parents[2]
EVENTS = 5_000


@pytest.mark.slow
def test_jobs_run_on_a_standalone_cluster_with_the_shipped_package(tmp_path: Path) -> None:
    from surecast import sync

    values = [b"value %d" % i for i in range(EVENTS)]
    with Cluster(free_layout(tmp_path / "region", 1, 1)) as region:
        region.wait_ready(60)
        (replica,) = (node for node in region.layout.nodes if node.role == "replica")
        url = f"surecast://{replica.listen}"
        with sync.connect(url) as client:
            stream = client.stream("from")
            stream.publish_many(values, keys=[b"%06d" % i for i in range(EVENTS)])
        pack_environment(tmp_path)
        with Standalone(tmp_path) as cluster:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "tests.pipeline.standalone_jobs",
                    cluster.url,
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
    assert published == values[:1000], "not in sorted order"
    assert (found["archived"], found["in the archive"]) == (EVENTS, EVENTS)
    assert found["failed"] == []
    assert [task["n"] for task in found["swept"]] == [n * n for n in range(6)]
    assert all("surecast.zip" in task["from"] for task in found["swept"]), "not the shipped package"
    assert all(task["in"] == "archive" for task in found["swept"]), "not the shipped Python"


def pack_environment(folder: Path) -> None:
    """Create a minimal `env.tar.gz` like venv-pack, and the folder it contains."""
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nIN=archive exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    shutil.make_archive(str(folder / "env"), "gztar", folder / "env")
