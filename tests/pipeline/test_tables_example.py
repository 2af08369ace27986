"""examples/spark_tables, as a user runs it: a stream becomes tables, and voids become deletes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import surecast
from surecast import sync
from surecast.pipeline.session import find_java
from surecast.server.cluster import Cluster
from surecast.swarm.demo_cluster import free_layout

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_tables"
RUN_S = 400


@pytest.mark.slow
def test_voids_become_deletes(tmp_path: Path) -> None:
    project, warehouse = tmp_path / "project", tmp_path / "warehouse"
    with Cluster(free_layout(tmp_path / "cluster", 1, 1)) as cluster:
        cluster.wait_ready(60)
        (replica,) = (node for node in cluster.layout.nodes if node.role == "replica")
        url = f"surecast://{replica.listen}"
        _copy(project, url, tmp_path / "checkpoints")
        with sync.connect(url) as client:
            stream = client.stream("cache.invalidate", retain=surecast.latest_per_key())
            stream.publish_many([b"1", b"2", b"3"], keys=[b"a", b"b", b"c"])
            _run(project, warehouse, tmp_path)
            assert _table(warehouse, "live") == [(1, b"a", b"1"), (2, b"b", b"2"), (3, b"c", b"3")]
            stream.publish(b"4", key=b"a")
            stream.collect(surecast.key_is(b"b"))
            stream.publish(b"6", key=b"d")
            _run(project, warehouse, tmp_path)
        events = [(seq, key) for seq, key, _ in _table(warehouse, "events")]
        assert events == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"a"), (6, b"d")], "each once"
        kept = [(3, b"c", b"3"), (4, b"a", b"4"), (6, b"d", b"6")]
        assert _table(warehouse, "live") == kept
        assert _table(warehouse, "latest") == kept


def _copy(project: Path, url: str, checkpoints: Path) -> None:
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text()
    assert "surecast://127.0.0.1:7400" in text
    text = text.replace("surecast://127.0.0.1:7400", url)
    spec.write_text(text.replace("/tmp/surecast-tables/checkpoints", str(checkpoints)))


def _run(project: Path, warehouse: Path, scratch: Path) -> None:
    """As the example's spec says; the files elsewhere."""
    command = [
        Path(sys.executable).parent / "spark-pipelines",
        "--conf", "spark.sql.catalogImplementation=hive",
        "--conf", f"spark.sql.warehouse.dir={warehouse}",
        "--conf", f"spark.driver.extraJavaOptions=-Dderby.system.home={scratch / 'derby'}",
        "run",
    ]  # fmt: skip
    java = find_java()
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java)}
    done = subprocess.run(
        command, cwd=project, env=env, capture_output=True, text=True, timeout=RUN_S
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _table(warehouse: Path, name: str) -> list[tuple[Any, ...]]:
    rows = ds.dataset(warehouse / name, format="parquet").to_table().sort_by("seq").to_pylist()
    return [(row["seq"], row["key"], row["value"]) for row in rows]
