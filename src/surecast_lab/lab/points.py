"""A point's rows as a file: who wrote it, whether it still counts, and how it comes to be whole.

    out/lab/<experiment>/points/point=<its parameters>/seed-<n>.parquet

One file a point and seed, written beside its place and then moved there: a file that can be seen is
whole, whenever a run is killed. A file carries the parameters and the source code
it was made with: it is used again only where both are the same.
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

META = b"surecast"  # the key of our note in a file's metadata
ARROW = {str: "string", int: "int64", float: "float64", bool: "bool_"}
# The packages a simulated point runs in, and which modules of the lab only show what came of it.
SIMULATED = {
    "surecast": (
        "columns", "core", "parts", "protocols", "registry.py", "stacks.py", "storage", "sim",
    ),
    "surecast_lab": ("swarm", "lab"),
}  # fmt: skip
SHOWN = re.compile(r"^(report|html|figures|.*_figure|torture)\.py$")
NAME_MAX = 80  # letters of a point's name, before the digest that makes it the only one


@dataclass(frozen=True, slots=True)
class Task:
    """A point as it is handed to whoever runs it, in this process or far away."""

    run_point: Callable[[Point], list[Row]]
    point: Point
    columns: Mapping[str, type]
    path: Path
    stamp: Mapping[str, str]  # experiment, source and commit
    any_source: bool = False  # a file made by other source will do

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
    """Its parameters without the seed, fit for a file and a shell: reading-ours,fanout-2,1f3a9c02.

    The digest tells apart what differs only in letters that no file name should have.
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
    """Of what a simulated point can depend on: finer than a commit, there without a repository, and
    the same after a change to a server, a command or a figure."""
    digest = hashlib.sha256()
    for package, simulated in SIMULATED.items():
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            if path.suffix in (".py", ".json") and name.parts[0] in simulated and path.is_file():
                if not SHOWN.search(path.name):
                    digest.update(str(name).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# ---------------------------------------------------------------- one file


def perform(task: Task) -> float:
    """Run a point unless its file is there, leave the file, and say how many seconds it took."""
    if is_done(task):
        return 0.0
    started = time.perf_counter()
    rows = task.run_point(task.point)
    seconds = time.perf_counter() - started
    note = {**task.stamp, "point": task.point, "seconds": round(seconds, 3)}
    write(rows, task.columns, task.path, note)
    return seconds


def is_done(task: Task) -> bool:
    """Whether its file is there, of the same parameters and made by the same source."""
    note = _note(task.path)
    if note is None or note.get("experiment") != task.stamp["experiment"]:
        return False
    same = task.any_source or note.get("source") == task.stamp["source"]
    return same and _canonical(note.get("point")) == _canonical(task.point)


def _note(path: Path) -> dict[str, Any] | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
        note: dict[str, Any] = json.loads(metadata[META])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None  # not there, or not ours
    return note


def write(
    rows: Iterable[Row], columns: Mapping[str, type], path: Path, note: Mapping[str, Any]
) -> None:
    """Rows as Parquet with exactly these columns; seen whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(rows)
    unknown = sorted({name for row in rows for name in row} - columns.keys())
    if unknown:
        raise SurecastError(f"rows for {path.name} have columns nobody declared: {unknown}")
    arrays = [
        pa.array([row.get(name) for row in rows], getattr(pa, ARROW[kind])())
        for name, kind in columns.items()
    ]
    table = pa.table(arrays, names=list(columns))
    table = table.replace_schema_metadata({META: json.dumps(dict(note))})
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two attempts of one task may be at work at once: each has a file of its own until it is whole.
    beside = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        pq.write_table(table, beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@dataclass(slots=True)
class Kept:
    """What the files of all points hold."""

    rows: list[Row]  # in the order of the points
    seconds: float  # they took, together
    commits: list[str]  # they were made with


def read(tasks: Sequence[Task]) -> Kept:
    import pyarrow.parquet as pq

    found = Kept([], 0.0, [])
    commits: dict[str, None] = {}
    for task in tasks:
        note = _note(task.path)
        assert note is not None, f"{task.path} is not there"
        found.seconds += note["seconds"]
        commits[note["commit"]] = None
        # ParquetFile and not read_table: that would make a column of the folder's name.
        found.rows += pq.ParquetFile(task.path).read().to_pylist()
    found.commits = list(commits)
    return found
