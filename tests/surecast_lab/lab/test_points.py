"""A point's file is complete or absent, and used only for the point and source that it is of."""

import json
import subprocess
import sys
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from tests.surecast_lab.lab.toys import TOY, toy

from surecast.errors import SurecastError
from surecast_lab.lab import experiments, points


def one_task(tmp_path, experiment=TOY, **changes):
    (point, *_) = experiment.points(False, [1])
    (task,) = points.tasks_of(experiment, tmp_path, [point | changes], "c0ffee")
    return task


def test_a_point_leaves_one_file_with_its_parameters_and_source(tmp_path):
    task = one_task(tmp_path)
    assert not points.is_done(task)
    points.perform(task)
    assert points.is_done(task)
    assert [path.name for path in task.path.parent.iterdir()] == ["seed-1.parquet"]
    assert task.path.parent.parent == tmp_path / "toy" / "points"
    kept = points.read([task])
    assert len(kept.rows) == 5
    assert list(kept.rows[0]) == ["seed", "measure", "scale", "x", "y", "count", "late", "good"]
    assert (kept.rows[0]["count"], kept.rows[4]["count"], kept.rows[4]["good"]) == (None, 4, True)
    assert kept.commits == ["c0ffee"]
    note = json.loads(pq.read_schema(task.path).metadata[points.META])
    assert note["point"] == {"scale": 1, "seed": 1}
    assert note["source"] == points.source_digest()


def test_a_point_that_is_done_is_not_run_again(tmp_path):
    task = one_task(tmp_path)
    points.perform(task)
    written = task.path.stat().st_mtime_ns, task.path.stat().st_ino
    assert points.perform(replace(task, run_point=None)) == 0
    assert (task.path.stat().st_mtime_ns, task.path.stat().st_ino) == written


@pytest.mark.parametrize("what", ["source", "point", "experiment", "torn", "foreign"])
def test_a_file_of_something_else_does_not_count(tmp_path, what):
    task = one_task(tmp_path)
    points.perform(task)
    if what == "torn":
        task.path.write_bytes(task.path.read_bytes()[:-40])
    elif what == "foreign":
        pq.write_table(pq.read_table(task.path).replace_schema_metadata({}), task.path)
    elif what == "point":
        task = replace(task, point={**task.point, "scale": 2})
    else:
        task = replace(task, stamp={**task.stamp, what: "other"})
    assert not points.is_done(task)
    points.perform(task)
    assert points.is_done(task)


def test_a_point_of_other_source_counts_if_that_is_allowed(tmp_path):
    task = one_task(tmp_path)
    points.perform(task)
    changed = replace(task, stamp={**task.stamp, "source": "other"})
    assert not points.is_done(changed)
    assert points.is_done(replace(changed, any_source=True))


def test_a_failed_point_leaves_nothing(tmp_path):
    task = one_task(tmp_path, toy({(1, 1): "raise"}))
    with pytest.raises(ValueError, match="too much"):
        points.perform(task)
    assert not task.path.exists()
    undeclared = replace(task, run_point=lambda _: [{"seed": 1, "new": 2}])
    with pytest.raises(SurecastError, match="new"):
        points.perform(undeclared)
    assert list(task.path.parent.glob("*")) == []


def test_a_writer_killed_in_the_middle_leaves_nothing_that_looks_done(tmp_path, monkeypatch):
    task = one_task(tmp_path)

    def torn(table, path):
        path.write_bytes(b"PAR1 half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", torn)
    with pytest.raises(KeyboardInterrupt):
        points.perform(task)
    assert not points.is_done(task)
    assert list(task.path.parent.iterdir()) == []


def test_names_are_fit_for_files_and_tell_points_apart():
    names = [
        points.name_of(point)
        for point in (
            {"reading": "1:10 new keys, rank by Zeta", "skew": 1.1, "seed": 1},
            {"reading": "1/10 new keys, rank by Zeta", "skew": 1.1, "seed": 1},
            {"reading": "λ", "seed": 1},
            {"reading": "x" * 300, "seed": 1},
            {"seed": 1},
        )
    ]
    assert len(set(names)) == len(names)
    for name in names:
        assert name.replace(",", "").replace("-", "").replace(".", "").replace("_", "").isalnum()
        assert name.isascii()
        assert len(name) < 120
    assert points.name_of({"a": 1, "seed": 1}) == points.name_of({"a": 1, "seed": 2})


def test_the_digest_covers_every_package_that_a_simulated_point_loads():
    """A point must not be reused after a change of code that it runs."""
    modules = {
        experiment.run_point.__module__
        for experiment in experiments().values()
        if not experiment.alone
    }
    code = (
        f"import importlib, sys\nfor name in {sorted(modules)}: importlib.import_module(name)\n"
        "names = (name.split('.') for name in sys.modules)\n"
        "ours = (name for name in names if name[0] in ('surecast', 'surecast_lab') and name[1:])\n"
        "print(*{'.'.join(name[:2]) for name in ours})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"surecast_lab.lab", "surecast.sim"} <= loaded
    covered = {
        f"{package}.{name.removesuffix('.py')}"
        for package, names in points.SIMULATED.items()
        for name in names
    }
    assert loaded <= covered | {"surecast.errors", "surecast.version"}
