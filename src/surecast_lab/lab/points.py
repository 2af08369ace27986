"""Runs one point of an experiment and stores its rows in a file, which later runs can reuse.

A point is one run with certain parameters and a seed. The path of its file:

    out/lab/<experiment>/points/point=<its parameters>/seed-<n>.parquet

A file is written under a temporary name and then renamed, so a file under this name is complete
even if a run was killed. It also records the parameters and a digest of the source code. It is
reused only if both are unchanged.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from surecast.errors import SurecastError
from surecast_lab.lab.verdict import Experiment, Point, Row

__all__ = [
    "Kept",
    "Task",
    "is_done",
    "name_of",
    "perform",
    "read",
    "source_digest",
    "tasks_of",
    "write",
]

META = b"surecast"  # the key in the file's metadata under which its note is (see `perform`)
# The name of the Arrow type of each Python type.
ARROW = {str: "string", int: "int64", float: "float64", bool: "bool_"}
# The parts of our packages on which the result of a simulated point can depend.
SIMULATED = {
    "surecast": (
        "columns", "core", "parts", "protocols", "registry.py", "stacks.py", "storage", "sim",
    ),
    "surecast_lab": ("swarm", "lab"),
}  # fmt: skip
# Files in these parts that the result does not depend on: they only show or add up results.
ONLY_SHOW = re.compile(r"^(report|html|figures|.*_figure|torture)\.py$")
NAME_MAX = 80  # letters of a point's name, before the digest that makes it unique


@dataclass(frozen=True, slots=True)
class Task:
    """A point to run, in this process or in another one; it can be sent to a worker."""

    run_point: Callable[[Point], list[Row]]
    point: Point
    columns: Mapping[str, type]  # of the rows that `run_point` returns
    path: Path  # the file for the rows
    # "experiment": its id; "source": the digest of the source code; "commit"
    stamp: Mapping[str, str]
    any_source: bool = False  # also reuse a file that was made with other source code

    @property
    def name(self) -> str:
        return name_of(self.point)


def tasks_of(
    experiment: Experiment,
    out_dir: Path,
    points: Sequence[Point],
    commit: str,
    any_source: bool = False,
) -> list[Task]:
    """A task for each point. `commit` is the commit that the repository is at."""
    stamp = {"experiment": experiment.id, "source": source_digest(), "commit": commit}
    folder = Path(out_dir).resolve() / experiment.id / "points"
    tasks = [
        Task(
            experiment.run_point,
            point,
            experiment.columns,
            folder / f"point={name_of(point)}" / f"seed-{point['seed']}.parquet",
            stamp,
            any_source,
        )
        for point in points
    ]
    assert len({task.path for task in tasks}) == len(tasks), f"{experiment.id} has a point twice"
    return tasks


def name_of(point: Point) -> str:
    """The point's parameters without the seed, as a file name: reading-ours,fanout-2,1f3a9c02.

    Characters that do not suit a file name are replaced. The digest at the end keeps names unique
    that would be the same after that.
    """
    named = {key: value for key, value in point.items() if key != "seed"}
    text = ",".join(f"{key}-{value}" for key, value in named.items())
    plain = re.sub(r"[^A-Za-z0-9.,_-]+", "-", text)[:NAME_MAX].strip("-,")
    digest = hashlib.sha256(_canonical(named).encode()).hexdigest()[:8]
    return f"{plain},{digest}" if plain else digest


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@cache
def source_digest() -> str:
    """A digest of the source files on which the result of a simulated point can depend.

    Unlike the commit, it needs no repository, and it does not change if only the server, the
    command line or figures change.
    """
    digest = hashlib.sha256()
    for package, simulated in SIMULATED.items():
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            if path.suffix in (".py", ".json") and name.parts[0] in simulated and path.is_file():
                if not ONLY_SHOW.search(path.name):
                    digest.update(str(name).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# ---------------------------------------------------------------- one file


def perform(task: Task) -> float:
    """Run a point unless its file can be reused, and write the file; returns the seconds it took.

    The file's metadata has a note (JSON): the task's stamp, the "point" and the "seconds".
    """
    if is_done(task):
        return 0.0
    started = time.perf_counter()
    rows = task.run_point(task.point)
    seconds = time.perf_counter() - started
    note = {**task.stamp, "point": task.point, "seconds": round(seconds, 3)}
    write(rows, task.columns, task.path, note)
    return seconds


def is_done(task: Task) -> bool:
    """Whether the task's file exists, with the same parameters and made with the same source."""
    note = _note(task.path)
    if note is None or note.get("experiment") != task.stamp["experiment"]:
        return False
    same = task.any_source or note.get("source") == task.stamp["source"]
    return same and _canonical(note.get("point")) == _canonical(task.point)


def _note(path: Path) -> dict[str, Any] | None:
    """The note in a file's metadata (see `perform`)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
        note: dict[str, Any] = json.loads(metadata[META])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None  # the file is missing, or was not written by the lab
    return note


def write(
    rows: Iterable[Row], columns: Mapping[str, type], path: Path, note: Mapping[str, Any]
) -> None:
    """Write rows as Parquet with exactly these columns. The file appears complete or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    unknown = sorted({name for row in rows for name in row} - columns.keys())
    if unknown:
        raise SurecastError(f"rows for {path.name} have undeclared columns: {unknown}")
    arrays = [
        pa.array([row.get(name) for row in rows], getattr(pa, ARROW[kind])())
        for name, kind in columns.items()
    ]
    table = pa.table(arrays, names=list(columns))
    table = table.replace_schema_metadata({META: json.dumps(dict(note))})
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two attempts of a task may run at the same time, so each writes its own temporary file.
    beside = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        pq.write_table(table, beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@dataclass(slots=True)
class Kept:
    """What is stored in the files of all points of an experiment."""

    rows: list[Row]  # in the order of the points
    seconds: float  # of all points together
    commits: list[str]  # the commits at which the points were run, without duplicates


def read(tasks: Sequence[Task]) -> Kept:
    import pyarrow.parquet as pq

    found = Kept([], 0.0, [])
    commits: dict[str, None] = {}
    for task in tasks:
        note = _note(task.path)
        assert note is not None, f"{task.path} is missing, or the lab did not write it"
        found.seconds += note["seconds"]
        commits[note["commit"]] = None
        # Not read_table: it would add a column "point", from the folder's name.
        found.rows += pq.ParquetFile(task.path).read().to_pylist()
    found.commits = list(commits)
    return found
