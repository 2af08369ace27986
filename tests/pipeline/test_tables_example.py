"""examples/spark_tables: a stream is turned into tables, and voids into deletes."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

import surecast
from surecast import sync
from surecast.pipeline.session import find_java
from surecast.server.cluster import Cluster
from surecast_lab.testing.deployment import free_layout
from tests.pipeline.regions import Served, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_tables"
RUN_S = 400


def test_the_tables_of_the_example_follow_the_stream(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the example's definitions in this session; nightly, Spark's own program runs them."""
    for name in ("table", "materialized_view"):
        monkeypatch.setattr(f"pyspark.pipelines.{name}", lambda define: define)
    with Served(tmp_path / "data") as region, region.client() as client:
        for name, value in (("url", region.url), ("stream", "cache.invalidate")):
            spark.conf.set(f"surecast.{name}", value)
        stream = client.stream("cache.invalidate", retain=surecast.latest_per_key())
        try:
            stream.publish_many([b"1", b"2", b"3"], keys=[b"a", b"b", b"c"])
            tables = _define(spark, tmp_path)
            assert tables["live"] == [(1, b"a", b"1"), (2, b"b", b"2"), (3, b"c", b"3")]
            stream.publish(b"4", key=b"a")
            stream.collect(surecast.key_is(b"b"))
            last = stream.publish(b"6", key=b"d")
            wait_for(lambda: region.seen_by_retention("cache.invalidate") > last, "retention")
            tables = _define(spark, tmp_path)
        finally:
            for name in ("events", "voids", "live"):
                spark.catalog.dropTempView(name)
    assert [row[:2] for row in tables["events"]] == [
        (1, b"a"), (2, b"b"), (3, b"c"), (4, b"a"), (6, b"d")
    ]  # fmt: skip
    kept = [(3, b"c", b"3"), (4, b"a", b"4"), (6, b"d", b"6")]
    assert tables["live"] == tables["latest"] == kept


def _define(spark: "SparkSession", folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Run the tables of the example in the order of their dependencies; returns their rows."""
    (source,) = (EXAMPLE / "transformations").glob("*.py")
    made = runpy.run_path(str(source))
    writer = made["events"]().writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    assert writer.start(str(folder / "events")).awaitTermination(RUN_S)
    frames = {"events": spark.read.parquet(str(folder / "events"))}
    frames["events"].createOrReplaceTempView("events")
    for name in ("voids", "live"):
        frames[name] = made[name]()
        frames[name].createOrReplaceTempView(name)
    query = (EXAMPLE / "transformations" / "latest.sql").read_text()
    frames["latest"] = spark.sql(query[query.index("SELECT") :])
    del frames["voids"]
    return {
        name: [(row.seq, bytes(row.key), bytes(row.value)) for row in frame.sort("seq").collect()]
        for name, frame in frames.items()
    }


@pytest.mark.nightly
@pytest.mark.slow
def test_voids_are_deletes_in_the_tables(tmp_path: Path) -> None:
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
    """Run the pipeline of the example, with its files in other folders."""
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
