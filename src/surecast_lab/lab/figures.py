"""Helpers for drawing with matplotlib, so that all figures of the lab look alike.

matplotlib is imported when it is first used. Only its Agg canvas is used, which needs no display
and has no global state.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surecast_lab.lab.summary import Series

__all__ = ["axes", "band", "error_bars", "log_log", "paper_line", "percent_axis", "save"]

# Colour-blind safe (Okabe and Ito), in order of use.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
PAPER = "#777777"  # grey: the colour of the paper's values in all figures


def axes(rows: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure of `width` × `height` inches and its axes, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.flat)


def log_log(ax: Any, title: str, x: str, y: str) -> None:
    """Logarithmic axes with a title and named units."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    _label(ax, title, x, y)


def percent_axis(ax: Any, title: str, x: str, y: str, low: float, high: float) -> None:
    """A logarithmic x axis, and a y axis in per cent between `low` and `high`."""
    ax.set_xscale("log")
    ax.set_ylim(low, high)
    _label(ax, title, x, y)


def _label(ax: Any, title: str, x: str, y: str) -> None:
    ax.set_title(title, fontsize=10)
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)
    ax.tick_params(labelsize=8)
    ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)


def error_bars(
    ax: Any, line: "Series", label: str | None, colour: str, style: str = "o-", **more: Any
) -> None:
    """A few points, each with an error bar for its confidence interval. `style` is matplotlib's
    format of markers and lines, `more` are further arguments of `Axes.errorbar`."""
    errors = [
        [mean - low for mean, low in zip(line.mean, line.low, strict=True)],
        [high - mean for mean, high in zip(line.mean, line.high, strict=True)],
    ]
    options = {"lw": 1.4, "ms": 4, "capsize": 3, "elinewidth": 1, **more}
    ax.errorbar(line.x, line.mean, yerr=errors, fmt=style, color=colour, label=label, **options)


def band(ax: Any, line: "Series", label: str | None, colour: str, style: str = "-") -> None:
    """Many points: the mean as a line, its confidence interval as a band around it."""
    ax.plot(line.x, line.mean, style, color=colour, linewidth=1.3, label=label)
    ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.25, lw=0)


def paper_line(
    ax: Any, xs: Sequence[float], ys: Sequence[float], label: str, dotted: bool = False
) -> None:
    """Draw a curve that the paper reports, or a value for comparison: grey, and dashed or
    dotted."""
    style = ":" if dotted else "--"
    ax.plot(xs, ys, color=PAPER, linestyle=style, linewidth=1.2, label=label, zorder=1)


def save(figure: Any, path: Path) -> None:
    """Write a PNG without a date or version, so that equal figures are equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=95, metadata={"Software": None}, pil_kwargs={"optimize": True})
