"""The figure of Gryphon E3 to E5: latency at s1 and s2, by the time of publishing."""

from pathlib import Path

from surecast_lab.lab import figures
from surecast_lab.lab.gryphon.failures_plan import DOWN_S, FAIL_S
from surecast_lab.lab.summary import Summary

__all__ = ["draw"]

PANELS = {"paper": "the paper's settings", "ours": "our settings"}


def draw(title: str, summary: Summary, path: Path) -> None:
    figure, axes = figures.axes(1, 2, 12, 4)
    for ax, (preset, name) in zip(axes, PANELS.items(), strict=True):
        for colour, site in zip(figures.COLOURS, ("s1", "s2"), strict=False):
            line = summary.line("t", "ms", measure="latency", preset=preset, site=site)
            figures.band(ax, line, f"subscriber at {site}", colour)
        for at, what in ((FAIL_S, "failure"), (FAIL_S + DOWN_S, "repaired")):
            ax.axvline(at, color=figures.PAPER, linestyle="--", linewidth=1, zorder=1)
            ax.annotate(what, (at, 1), xycoords=("data", "axes fraction"), fontsize=8, va="top")
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("time the event was published [s]", fontsize=9)
        ax.set_ylabel("longest latency in 200 ms [ms]", fontsize=9)
        ax.tick_params(labelsize=8)
        ax.grid(True, color="#dddddd", linewidth=0.6)
        ax.legend(fontsize=8)
    figure.suptitle(f"Gryphon: {title} ({summary.caption})", fontsize=10)
    figures.save(figure, path)
