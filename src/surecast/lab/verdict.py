"""What an experiment is, and the verdict it ends with.

An experiment has two halves. `measure` runs it and returns plain rows and a verdict; `draw` makes
the figure from the rows alone, so whatever the figure shows is in the table.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from surecast.errors import UsageError

__all__ = ["SEEDS", "Experiment", "Progress", "Row", "Spread", "Verdict", "spread"]

Progress = Callable[[int, int, str], None]  # (steps done, steps in all, what is going on)
Row = dict[str, Any]
SEEDS = (1, 2, 3)


class Spread(msgspec.Struct):
    """A number measured once a seed."""

    mean: float
    min: float
    max: float


def spread(values: Sequence[float], digits: int = 4) -> Spread:
    """Mean, least and greatest of one value a seed."""
    return Spread(
        round(sum(values) / len(values), digits),
        round(min(values), digits),
        round(max(values), digits),
    )


class Verdict(msgspec.Struct, kw_only=True):
    """The paper's claim beside what we measured. One JSON object with these keys."""

    id: str
    paper: dict[str, Any]  # claim -> number or sentence
    ours: dict[str, Any]  # the same claims as measured, and whatever belongs to them
    reproduced: bool  # every claim holds, in the reading that `notes` names
    beaten: bool  # we are better than the paper, by the measure that `notes` names
    scale: str  # how large this run was
    seeds: list[int]
    notes: list[str]  # readings, and everything that differs from the paper
    wall_s: float = 0.0

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table of a paper."""

    id: str  # "sprinkler-e5"
    title: str
    question: str
    paper: str  # what the paper shows, in one or two sentences
    measure: Callable[[Progress, bool, Sequence[int]], tuple[list[Row], Verdict]]
    draw: Callable[[Sequence[Row], Path], None]

    def files(self, out_dir: Path) -> dict[str, Path]:
        """Where a run leaves its table, figure and verdict."""
        ends = {"table": "parquet", "figure": "png", "verdict": "json"}
        return {what: Path(out_dir) / f"{self.id}.{end}" for what, end in ends.items()}

    def run(
        self,
        progress: Progress,
        out_dir: Path,
        quick: bool = False,
        seeds: Sequence[int] = SEEDS,
    ) -> Verdict:
        """Measure, write the three files and return the verdict.

        `quick` keeps the shape at a size fit for a test. A number without a spread is no result,
        so several seeds are wanted; a single one is allowed for a first look.
        """
        if not seeds:
            raise UsageError(f"{self.id} needs at least one seed")
        started = time.perf_counter()
        rows, verdict = self.measure(progress, quick, list(seeds))
        verdict.wall_s = round(time.perf_counter() - started, 2)
        files = self.files(out_dir)
        files["table"].parent.mkdir(parents=True, exist_ok=True)
        _write_table(rows, files["table"])
        self.draw(rows, files["figure"])
        files["verdict"].write_bytes(verdict.to_json())
        return verdict


def _write_table(rows: list[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Rows may differ in what they measure. `Table.from_pylist` would take the first row's columns
    # for all and drop the rest in silence.
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    pq.write_table(pa.table(columns), path)
