"""An experiment swept over a standalone Spark cluster, by an installed wheel and nothing else.

The driver's environment has the wheel and its extra `spark`. That of the executors has only what
the wheel depends on: they run the code that the driver sends them.
"""

import json
from pathlib import Path

import pytest

from surecast.pipeline.session import find_java
from surecast_lab.lab import experiments
from surecast_lab.lab.points import source_digest
from tests.pipeline.standalone import SparkCluster
from tests.release.bare import BareEnvironment
from tests.release.test_dist import dist

EXPERIMENT = "sprinkler-e6"


@pytest.mark.nightly
@pytest.mark.slow
def test_a_sweep_runs_on_a_standalone_cluster_from_the_wheel(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    done = dist(tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    driver = BareEnvironment(tmp_path / "driver", wheel, ["spark"])
    workers = BareEnvironment(tmp_path / "workers", wheel, ["spark"], installed=False)
    assert "No module named 'surecast'" in workers.program("import surecast").stderr
    out = tmp_path / "out"
    (tmp_path / "cluster").mkdir()
    with SparkCluster(tmp_path / "cluster", workers=1, python=workers.python) as cluster:
        done = driver.run(
            "lab", "run", EXPERIMENT, "--quick", "--sweep", "--seeds", "1", "--json",
            "--master", cluster.url, "--out", str(out),
            "--conf", f"spark.pyspark.python={workers.python}",
            "--conf", "spark.executor.memory=512m",
            env={"JAVA_HOME": str(find_java())}, timeout_s=400,
        )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr[-4000:]  # 1: a claim does not hold at this size
    assert done.stdout != "[]\n", done.stderr[-6000:]
    (verdict,) = json.loads(done.stdout)
    experiment = experiments()[EXPERIMENT]
    assert verdict["ran"] == f"Spark, {cluster.url}"
    assert verdict["points"] == len(experiment.points(True, [1]))
    files = sorted((out / EXPERIMENT / "points").rglob("seed-*.parquet"))
    assert len(files) == verdict["points"]
    notes = [json.loads(pq.read_schema(path).metadata[b"surecast"]) for path in files]
    assert {note["source"] for note in notes} == {source_digest()}, "the wheel has this source"
    assert {note["commit"] for note in notes} == {""}, "and no repository around it"
    for path in experiment.files(out).values():
        assert path.stat().st_size > 0
