"""Sprinkler E5: does the workload model update old keys less, as in the paper's Figure 9?

In this model keys have ranks, and the probability that a key is updated depends on its rank. New
keys enter continuously at some rank and move the others down. The experiment counts how old the key
is at each update. docs/lab/sprinkler.md discusses the result; gc.py (E6) uses the same model.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from surecast.parts.workload import population
from surecast_lab.lab import figures
from surecast_lab.lab.summary import Summary
from surecast_lab.lab.verdict import Experiment, Point, Row, Verdict, spread

__all__ = ["EXPERIMENTS"]

Ints = NDArray[np.int64]

NEW_KEYS_A_TICK = 10  # the paper's λ for insertions
SKEWS = (1.1, 1.3, 1.5)
LAMBDAS = (20, 200)  # mean number of updates per tick
TICKS = 20_000  # the model's unit of time; λ and ages are relative to it
TICKS_QUICK = 2_000
BINS_A_DECADE = 10  # bins of ages, for each power of ten
AGE_FIRST = 10  # younger keys are excluded: they still have the top ranks, where there is no slope
BIN_EVENTS_MIN = 20  # with fewer events the logarithm of a bin is mostly noise
STRAIGHT_R2 = 0.99  # points with at least this R² count as a straight line


def points(quick: bool, seeds: Sequence[int]) -> list[Point]:
    """A point for each skew, λ (rate of updates) and seed."""
    ticks = TICKS_QUICK if quick else TICKS
    return [
        {"skew": skew, "lambda": lam, "ticks": ticks, "seed": seed}
        for skew in SKEWS
        for lam in LAMBDAS
        for seed in seeds
    ]


def run_point(point: Point) -> list[Row]:
    """Invalidations (updates of a key, which make its previous value invalid) by the key's age, and
    a straight line fitted to them."""
    skew, lam, ticks, seed = (point[name] for name in ("skew", "lambda", "ticks", "seed"))
    rng = np.random.default_rng([seed, round(skew * 100), lam])
    binned = bin_by_age(ages_at_invalidation(rng, skew, lam, ticks), ticks)
    fit = fit_line(binned, AGE_FIRST, ticks // 10)
    case = {"skew": skew, "lambda": lam, "seed": seed}
    rows = [
        case | {"measure": "age", **row, "fit": fit["level"] * row["age"] ** fit["slope"]}
        for row in binned
    ]
    return [*rows, case | {"measure": "line", "ticks": ticks, **fit}]


def ages_at_invalidation(rng: Generator, skew: float, lam: float, ticks: int) -> Ints:
    """The age of the key, in whole ticks, for each update in `ticks` ticks that start without
    keys."""
    events = ceil(ticks * (lam + NEW_KEYS_A_TICK) * 1.02) + 1000  # enough for all ticks
    made = population(rng, skew=skew, updates=lam, inserts=NEW_KEYS_A_TICK, events=events)
    tick = made.time.astype(np.int64)
    assert tick[-1] >= ticks
    entered = tick[made.new]  # by key id: the tick at which the key was inserted
    counted = ~made.new & (tick < ticks)
    return tick[counted] - entered[made.key[counted]]


def bin_by_age(ages: Ints, ticks: int) -> list[Row]:
    """Invalidations per tick of age, averaged over bins of equal width on a logarithmic axis."""
    decades = np.log10(ticks)
    edges = np.unique(np.round(np.logspace(0, decades, int(decades * BINS_A_DECADE) + 1)))
    counts = np.bincount(ages, minlength=ticks)
    rows = []
    for lo, hi in zip(edges[:-1].astype(int), edges[1:].astype(int), strict=True):
        total = int(counts[lo:hi].sum())
        rows.append(
            {
                "age": float(np.sqrt(lo * (hi - 1))),  # the middle, on a logarithmic axis
                "age_lo": int(lo),
                "age_hi": int(hi),
                "events": total,
                "invalidations": total / (hi - lo),  # per tick of age
            }
        )
    return rows


def fit_line(binned: Sequence[Row], age_lo: float, age_hi: float) -> Row:
    """Fit a line to log(invalidations) over log(age), in the bins of [age_lo, age_hi]."""
    used = [
        row for row in binned if age_lo <= row["age"] <= age_hi and row["events"] >= BIN_EVENTS_MIN
    ]
    x = np.log10([row["age"] for row in used])
    y = np.log10([row["invalidations"] for row in used])
    slope, level = np.polyfit(x, y, 1)
    off = y - (slope * x + level)
    return {
        "slope": float(slope),
        "level": float(10**level),  # the line's value at age 1
        "r2": float(1 - off @ off / ((y - y.mean()) @ (y - y.mean()))),
        "worst": float(10 ** np.abs(off).max()),  # the largest factor between a bin and the line
        "age_last": float(used[-1]["age"]),
        "at_100": float(10 ** (level + 2 * slope)),  # the line's value at age 100: log10 is 2
    }


def verdict_of(rows: Sequence[Row]) -> Verdict:
    fits: dict[tuple[float, int], list[Row]] = {}
    for row in rows:
        if row["measure"] == "line":
            fits.setdefault((row["skew"], row["lambda"]), []).append(row)
    ticks = next(iter(fits.values()))[0]["ticks"]
    lines = {
        f"skew {skew}, λ {lam}": {
            "slope": spread([fit["slope"] for fit in by_seed]),
            "r2": spread([fit["r2"] for fit in by_seed], 5),
            "worst_bin_factor": spread([fit["worst"] for fit in by_seed], 3),
            "at_age_100": spread([fit["at_100"] for fit in by_seed], 1),
            "fitted_to_age": round(min(fit["age_last"] for fit in by_seed)),
        }
        for (skew, lam), by_seed in fits.items()
    }
    all_fits = [fit for by_seed in fits.values() for fit in by_seed]
    straight = all(fit["r2"] >= STRAIGHT_R2 for fit in all_fits)
    # A claim about order must hold between any two seeds, not only between means.
    steeper = all(
        min(_each(fits[low, lam], "slope")) > max(_each(fits[high, lam], "slope"))
        for lam in LAMBDAS
        for low, high in pairwise(SKEWS)
    )
    higher = all(
        max(_each(fits[skew, less], "at_100")) < min(_each(fits[skew, more], "at_100"))
        for skew in SKEWS
        for less, more in pairwise(LAMBDAS)
    )
    steepest, flattest = (
        str(spread(_each(fits[skew, LAMBDAS[-1]], "slope"))) for skew in (SKEWS[-1], SKEWS[0])
    )
    return Verdict(
        id="sprinkler-e5",
        headline=f"lines with R² of at least {min(_each(all_fits, 'r2')):.4f}; slope {flattest} at "
        f"skew {SKEWS[0]}, {steepest} at skew {SKEWS[-1]}",
        paper={
            "straight": "popularity falls with age roughly as a Zipf-like law",
            "steeper": "the line is steeper with larger skew",
            "higher": "for the same skew the line is higher with larger λ",
        },
        ours={"straight": straight, "steeper": steeper, "higher": higher, "lines": lines},
        reproduced=straight and steeper and higher,
        beaten=None,
        scale=f"{ticks} ticks from an empty set, {NEW_KEYS_A_TICK} new keys and λ updates a tick",
        seeds=list(dict.fromkeys(row["seed"] for row in rows)),
        notes=[
            "Our interpretation: λ is the mean number of updates per tick. The rank of a new key "
            "is drawn from Zeta(skew), and the keys from this rank on move down; if the rank is "
            "beyond the last key, the new key becomes the last. Updates draw a rank from "
            "Zipf(skew) over the existing keys.",
            f"Straight means R² >= {STRAIGHT_R2} for every seed, for ages from {AGE_FIRST} to "
            f"{ticks // 10} ticks, in {BINS_A_DECADE} bins for each power of ten; bins with fewer "
            f"than {BIN_EVENTS_MIN} invalidations are not used. At smaller ages the lines bend, "
            "because these keys have the top ranks. At larger ages they fall, because few keys get "
            "that old before the run ends.",
            "The values on the paper's axes and its other skews and λ are not known, so shapes and "
            "order are compared, and not heights. This experiment checks the model, so no result "
            "can be better than the paper's.",
        ],
    )


def _each(fits: Sequence[Row], name: str) -> list[float]:
    return [fit[name] for fit in fits]


def draw(summary: Summary, path: Path) -> None:
    """Figure 9: colours for skews, markers for λ; means over the seeds, fits as thin lines."""
    figure, (ax,) = figures.axes(1, 1, 7.5, 5.4)
    ticks = max(summary.each("age_hi"))
    for colour, skew in zip(figures.COLOURS, SKEWS, strict=False):
        for marker, lam in zip("sox", LAMBDAS, strict=False):
            which = {"skew": skew, "lambda": lam}
            slope = summary.mean("slope", measure="line", **which)
            mark = " (named in the paper)" if (skew, lam) == (1.1, 200) else ""
            # Ages of bins that have events; an empty bin cannot be drawn on a logarithmic axis.
            hit = {row["age"] for row in summary.pick("events", **which) if row["max"] > 0}
            figures.error_bars(
                ax,
                summary.line("age", "invalidations", **which).only(hit),
                f"skew {skew}, λ {lam}: slope {slope:.2f}{mark}",
                colour,
                marker,
                fillstyle="none" if marker == "s" else "full",
            )
            inside = {age for age in hit if AGE_FIRST <= age <= ticks / 10}
            fit = summary.line("age", "fit", **which).only(inside)
            ax.plot(fit.x, fit.mean, color=colour, linewidth=1)
    figures.log_log(
        ax,
        f"Sprinkler E5 (Fig. 9): invalidations of keys by age; {summary.caption}",
        "age of the key when invalidated [ticks]",
        "invalidations per tick of age, whole run",
    )
    ax.axvspan(
        AGE_FIRST, ticks / 10, color="#f2f2f2", zorder=0, label="ages the lines are fitted to"
    )
    ax.legend(fontsize=8, loc="lower left")
    figures.save(figure, path)


EXPERIMENTS = (
    Experiment(
        id="sprinkler-e5",
        title="Invalidations of keys by age (Fig. 9)",
        question="Are keys updated less as they get older, so that the number of updates over the "
        "age is a straight line on logarithmic axes?",
        paper="Zipf-like decay with age, steeper with more skew, higher with larger λ; "
        "skew 1.1 with λ = 200 resembles a real social site. Axis values unknown.",
        setup="The workload model begins without keys. Each tick has ten new keys and λ updates on "
        "average. For every update, the age of the updated key is counted, in ticks. No protocol "
        "takes part: this checks the generator that E6 uses.",
        by={
            "measure": str,
            "skew": float,
            "lambda": int,
            "age": float,
            "age_lo": int,
            "age_hi": int,
        },
        values={
            "events": int,
            "invalidations": float,
            "fit": float,
            "ticks": int,
            "slope": float,
            "level": float,
            "r2": float,
            "worst": float,
            "age_last": float,
            "at_100": float,
        },
        points=points,
        run_point=run_point,
        verdict_of=verdict_of,
        draw=draw,
    ),
)
