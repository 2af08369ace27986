"""The classes `Experiment` and `Verdict`: an experiment of a paper that the lab repeats, and its
result.

An experiment repeats a figure or table of a paper. It consists of *points*: runs with certain
parameters and a seed, each of which returns rows of a table. Points are independent of each other.
They run in this process, in other processes or as Spark tasks (lab/run.py), with the same results.
The verdict is computed from all rows. The figure is drawn only from their summary over the seeds
(lab/summary.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import msgspec

from surecast_lab.lab.student import t_factor

if TYPE_CHECKING:
    from surecast_lab.lab.summary import Summary

__all__ = [
    "Experiment",
    "Point",
    "Progress",
    "Row",
    "Spread",
    "Verdict",
    "number",
    "short",
    "spread",
    "with_each_seed",
]

Progress = Callable[[int, int, str], None]  # (steps done, steps in all, current step)
Point = dict[str, Any]  # the parameters of one run with its "seed"; values that JSON can hold
Row = dict[str, Any]  # one row of an experiment's table: column → value


class Spread(msgspec.Struct):
    """The mean and the range of a number that was measured once per seed."""

    mean: float
    ci95: float | None  # half the width of the 95 % confidence interval; None for a single seed
    min: float
    max: float
    n: int  # the number of seeds

    def __str__(self) -> str:
        return number(self.mean) + ("" if self.ci95 is None else f" ± {number(self.ci95, 2)}")


def spread(values: Sequence[float], digits: int = 4) -> Spread:
    """The spread of one value per seed."""
    n = len(values)
    ci95 = round(t_factor(n) * stdev(values) / n**0.5, digits) if n > 1 else None
    middle, least, most = (round(float(f(values)), digits) for f in (mean, min, max))
    return Spread(middle, ci95, least, most, n)


def with_each_seed(
    claims: Callable[[Sequence[Row]], Mapping[str, bool]], rows: Sequence[Row]
) -> dict[str, str]:
    """Judge the claims again for each seed alone. Returns for how many seeds each claim holds, such
    as "4 of 5". This is additional information if the verdict judges means over all seeds.

    `claims` judges the rows it is given; `rows` are those of all seeds.
    """
    seeds = {row["seed"] for row in rows}
    found = [claims([row for row in rows if row["seed"] == seed]) for seed in seeds]
    return {claim: f"{sum(one[claim] for one in found)} of {len(found)}" for claim in found[0]}


class Verdict(msgspec.Struct, kw_only=True):
    """The paper's claims beside our measurements. Written as a JSON object with these keys."""

    id: str
    headline: str  # our result, in a line
    paper: dict[str, Any]  # claim -> number or sentence
    ours: dict[str, Any]  # claim -> our measurement; and further measurements
    reproduced: bool  # every claim holds, as `notes` interprets it
    beaten: (
        bool | None
    )  # better than the paper, by the measure named in `notes`; None: not comparable
    scale: str  # how large this run was
    seeds: list[int]
    notes: list[str]  # interpretations of the paper, and all differences from it
    # The following fields are set by `run` in lab/run.py, which runs the whole experiment.
    quick: bool = False  # whether this was the small variant for tests
    points: int = 0
    points_s: float = 0.0  # sum of the durations of all points, including reused ones
    wall_s: float = 0.0  # duration of the call of `run`; short if all points were reused
    ran: str = ""  # where the points ran
    date: str = ""
    commit: str = ""
    machine: dict[str, Any] = {}

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table of a paper.

    `by` (parameters) and `values` (measurements) together are the columns of its rows, except
    "seed", with their types (str, int, float or bool). Rows with the same `by` are the results of
    different seeds, and their `values` are averaged.
    """

    id: str  # "sprinkler-e5"
    title: str
    question: str
    setup: str  # what runs, and what is counted, in a few sentences
    paper: str  # what the paper shows, in one or two sentences
    by: Mapping[str, type]
    values: Mapping[str, type]
    points: Callable[[bool, Sequence[int]], list[Point]]  # (quick, seeds) → every point
    run_point: Callable[[Point], list[Row]]  # a point determines its rows, unless `alone` is true
    verdict_of: Callable[[Sequence[Row]], Verdict]
    draw: Callable[["Summary", Path], None]
    weight: Callable[[Point], float] = lambda _: 0.0  # the heaviest points run first
    alone: bool = False
    """True if its points start real processes and measure their speed. Then nothing else may run on
    this machine: the points run one after the other, never on Spark (`lab run --sweep`), and
    results of earlier runs are not reused."""

    @property
    def columns(self) -> dict[str, type]:
        return {"seed": int, **self.by, **self.values}

    def files(self, out_dir: Path) -> dict[str, Path]:
        """The files of a run's rows, their summary, its figure and its verdict."""
        ends = {
            "table": "parquet",
            "summary": "summary.parquet",
            "figure": "png",
            "verdict": "json",
        }
        return {what: Path(out_dir) / f"{self.id}.{end}" for what, end in ends.items()}


def number(value: float, digits: int = 4) -> str:
    """A number with `digits` significant digits, without exponent if it is large."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def short(value: Any) -> str:
    """A value of a verdict as text: few digits, a spread as mean ± confidence [least, most]."""
    plain = msgspec.to_builtins(value)
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    if isinstance(plain, float):
        return number(plain)
    if plain is None:
        return "–"
    if isinstance(plain, dict) and {"mean", "min", "max"} <= plain.keys():
        about = "" if plain.get("ci95") is None else f" ± {number(plain['ci95'], 2)}"
        return f"{number(plain['mean'])}{about} [{number(plain['min'])}, {number(plain['max'])}]"
    if isinstance(plain, dict):
        return ", ".join(f"{key}: {short(item)}" for key, item in plain.items())
    if isinstance(plain, list):
        return ", ".join(short(item) for item in plain)
    return str(plain)
