"""Sprinkler E4's figure: throughput above, latency below; the whole run, the cut, the mending."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surecast.lab import figures
from surecast.lab.sprinkler_link_run import FAILED, REGIONS
from surecast.lab.verdict import Row

__all__ = ["draw"]

Floats = NDArray[np.float64]

SAID_OF_THROUGHPUT = (
    "paper, cut: drops, recovers after about 1 s,\n"
    "then above normal for about 5 s\n"
    "paper, mending: a slight glitch"
)
SAID_OF_LATENCY = (
    "paper, before: both about 200 ms (with clients)\n"
    "paper, cut: r2 spikes, then slightly higher\n"
    "paper, mending: back at the first level"
)


def draw(rows: Sequence[Row], path: Path) -> None:
    at = {row["what"]: row["t"] for row in rows if row["measure"] == "plan"}
    setup = next(row for row in rows if row["measure"] == "set-up")
    rate = setup["rate"]
    figure, panels = figures.axes(2, 3, 14, 7.6)
    above, below = panels[:3], panels[3:]
    t, events = _over_seeds(rows, "throughput", "events")
    _line(above, t, _share(events, len(REGIONS) ** 2, rate), 0, "all events at all regions")
    for colour, (origin, region) in zip((2, 3), (FAILED, FAILED[::-1]), strict=True):
        t, events = _over_seeds(rows, "throughput", "events", origin=origin, region=region)
        _line(above[1:], t, _share(events, 1, rate), colour, f"events from {origin} at {region}")
    for colour, origin in ((0, "r0"), (1, "r2")):
        t, late_ms = _over_seeds(rows, "latency", "mean_ms", origin=origin)
        _line(below, t, late_ms, colour, f"events from {origin}")
    seeds = len({row["seed"] for row in rows})
    of = f"mean and range of {seeds} seeds, by 100 ms"
    _label(above, "E4a throughput", of, "share of the rate published [%]", "time [s]")
    _label(
        below,
        "E4b latency to all clients" if setup["clients"] else "E4b latency to all regions",
        of,
        "ms",
        "time the event was published [s]",
    )
    for whole, cut, mend in (above, below):
        whole.set_xlim(0, at["end"])
        cut.set_xlim(at["cut"] - 0.5, at["cut"] + 1.5)
        mend.set_xlim(at["mend"] - 0.5, at["mend"] + 1.5)
        for ax in (whole, cut, mend):
            for what in ("cut", "mend"):
                ax.axvline(at[what], color=figures.PAPER, linestyle="--", linewidth=1, zorder=1)
    above[0].set_ylim(70, 130)
    _say(above[0], SAID_OF_THROUGHPUT)
    for ax in above[1:]:
        ax.set_ylim(0, 260)
    for ax in below:
        ax.set_ylim(0, 260)
    _say(below[0], SAID_OF_LATENCY)
    above[1].legend(fontsize=8, loc="upper right")
    below[1].legend(fontsize=8, loc="upper right")
    figures.save(figure, path)


def _share(events: Floats, pairs: int, rate: int) -> Floats:
    """Events of 100 ms as per cent of what is published for so many (origin, region) pairs."""
    return 1000 * events / (pairs * rate)


def _over_seeds(
    rows: Sequence[Row], measure: str, value: str, **which: str
) -> tuple[Floats, Floats]:
    """Times, and the values there, summed over what `which` leaves open, with a row a seed."""
    sums: dict[int, dict[float, float]] = {}
    for row in rows:
        if row["measure"] == measure and all(row[name] == is_ for name, is_ in which.items()):
            of_seed = sums.setdefault(row["seed"], {})
            of_seed[row["t"]] = of_seed.get(row["t"], 0) + row[value]
    times = [t for t in next(iter(sums.values())) if all(t in of_seed for of_seed in sums.values())]
    return np.array(times), np.array([[of_seed[t] for t in times] for of_seed in sums.values()])


def _line(panels: Sequence[Any], t: Floats, values: Floats, colour: int, label: str) -> None:
    shade, middle = figures.COLOURS[colour], t + 0.05
    for ax in panels:
        ax.plot(middle, values.mean(0), color=shade, linewidth=1.3, label=label)
        ax.fill_between(middle, values.min(0), values.max(0), color=shade, alpha=0.2, lw=0)


def _label(panels: Sequence[Any], title: str, of: str, y: str, x: str) -> None:
    for ax, part in zip(panels, (of, "around the cut", "around the mending"), strict=True):
        ax.set_title(f"{title}: {part}", fontsize=10)
        ax.set_xlabel(x, fontsize=9)
        ax.set_ylabel(y, fontsize=9)
        ax.tick_params(labelsize=8)
        ax.grid(True, color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)


def _say(ax: Any, text: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
    place = {"transform": ax.transAxes, "va": "top", "bbox": box}
    ax.text(0.03, 0.97, text, fontsize=8, color="#555555", **place)
