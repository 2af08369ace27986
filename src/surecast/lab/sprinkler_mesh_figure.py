"""Sprinkler E2's figure: throughput as printed, with a steady tail and as ours, and its cause."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surecast.lab import figures
from surecast.lab.sprinkler_driver import PAPER_BYTES, RATE
from surecast.lab.verdict import Row

__all__ = ["draw"]

OFFERED = 3 * RATE / 1e6
FITS = 1e9 / (8 * PAPER_BYTES * OFFERED * 1e6)  # copies an uplink carries


def draw(rows: Sequence[Row], path: Path) -> None:
    figure, (printed, steady, own, copies) = figures.axes(2, 2, 12, 8.4)
    colours = dict(zip(sorted({row["fanout"] for row in rows}), figures.COLOURS, strict=False))
    for ax, reading, odd in (
        (printed, "printed", "short Recv"),
        (steady, "steady tail", ""),
        (own, "ours", "untuned"),
    ):
        _lines(ax, rows, reading, "throughput", colours, "o-")
        for row in rows:
            if row["reading"] == odd:
                ax.plot(row["shuffle_ms"], row["throughput"], "x", color=colours[row["fanout"]])
        figures.paper_line(ax, (10, 1000), (OFFERED, OFFERED), "published: 2.592 M/s")
    _lines(copies, rows, "printed", "copies", colours, "o-")
    _lines(copies, rows, "steady tail", "copies", colours, "o:", named=False)
    figures.paper_line(copies, (10, 1000), (FITS, FITS), "what 1 Gb/s carries")
    x, y = "shuffle time S [ms]", "M events/s and client"
    high = 3.7  # room for the legend
    figures.percent_axis(printed, "E2 as printed, 10 B an event (×: Recv of 100 ms)", x, y, 0, high)
    figures.percent_axis(steady, "as printed, but the tail keeps those it tells", x, y, 0, high)
    figures.percent_axis(own, "our mesh, 18.2 B an event (×: untuned)", x, y, 0, high)
    most = 1.25 * copies.get_ylim()[1]
    title = "copies of an event the tail sends, as printed (dotted: steady)"
    figures.percent_axis(copies, title, x, "copies", 0, most)
    for ax in (printed, steady, own, copies):
        ax.set_xlim(8, 1250)
        ax.legend(fontsize=8, ncols=3, loc="upper center")
    figures.save(figure, path)


def _lines(
    ax: Any,
    rows: Sequence[Row],
    reading: str,
    what: str,
    colours: dict[int, str],
    style: str,
    named: bool = True,
) -> None:
    for fanout, colour in colours.items():
        mine = [r for r in rows if r["reading"] == reading and r["fanout"] == fanout]
        shuffles = sorted({row["shuffle_ms"] for row in mine})
        if not shuffles:
            continue
        values = [[r[what] for r in mine if r["shuffle_ms"] == s] for s in shuffles]
        means, low, high = ([f(v) for v in values] for f in (_mean, min, max))
        label = f"F = {fanout}" if named else None
        ax.plot(shuffles, means, style, color=colour, lw=1.4, ms=4, label=label)
        ax.fill_between(shuffles, low, high, color=colour, alpha=0.2, lw=0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
