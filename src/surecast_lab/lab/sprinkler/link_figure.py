"""The figure of Sprinkler E4: throughput above, latency below, in three columns.

The columns show the whole run, the time around the cut, and the time around the repair.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from surecast_lab.lab import figures
from surecast_lab.lab.sprinkler.link_run import FAILED, REGIONS
from surecast_lab.lab.summary import Series, Summary

__all__ = ["ALL", "draw"]

ALL = "all"  # all origins, or all regions, together

# What the paper says, as text in the figure.
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


def draw(summary: Summary, path: Path) -> None:
    at = {what: summary.mean("at", what=what) for what in ("cut", "mend", "end")}
    rate, clients = (summary.mean(name, measure="set-up") for name in ("rate", "clients"))
    figure, panels = figures.axes(2, 3, 14, 7.6)
    above, below = panels[:3], panels[3:]
    for where, colour, origin, region in (
        (above, 0, ALL, ALL),
        (above[1:], 2, *FAILED),
        (above[1:], 3, *FAILED[::-1]),
    ):
        pairs = len(REGIONS) ** 2 if origin == ALL else 1
        # Events in 100 ms, as per cent of the events published for these (origin, region) pairs.
        line = summary.line("t", "events", origin=origin, region=region).scaled(
            1000 / (pairs * rate)
        )
        name = "all events at all regions" if origin == ALL else f"events from {origin} at {region}"
        _line(where, line, colour, name)
    for colour, origin in ((0, "r0"), (1, "r2")):
        line = summary.line("t", "mean_ms", measure="latency", origin=origin)
        _line(below, line, colour, f"events from {origin}")
    figure.suptitle(f"Sprinkler E4 (Figs. 7, 8): {summary.caption}, by 100 ms", fontsize=10)
    _label(above, "throughput", "share of the rate published [%]", "time [s]")
    title = "latency to all clients" if clients else "latency to all regions"
    _label(below, title, "ms", "time the event was published [s]")
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


def _line(panels: Sequence[Any], line: Series, colour: int, label: str) -> None:
    # A value of 100 ms is drawn at the middle of this time, not at its begin.
    middle = replace(line, x=[t + 0.05 for t in line.x])
    for ax in panels:
        figures.band(ax, middle, label, figures.COLOURS[colour])


def _label(panels: Sequence[Any], title: str, y: str, x: str) -> None:
    for ax, part in zip(panels, ("", ", around the cut", ", around the mending"), strict=True):
        ax.set_title(f"{title}{part}", fontsize=10)
        ax.set_xlabel(x, fontsize=9)
        ax.set_ylabel(y, fontsize=9)
        ax.tick_params(labelsize=8)
        ax.grid(True, color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)


def _say(ax: Any, text: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
    place = {"transform": ax.transAxes, "va": "top", "bbox": box}
    ax.text(0.03, 0.97, text, fontsize=8, color="#555555", **place)
