"""The figure of Sprinkler E2: throughput of three variants of the mesh, and how many copies of an
event the servers send.
"""

from pathlib import Path
from typing import Any

from surecast_lab.lab import figures
from surecast_lab.lab.sprinkler.driver import PAPER_BYTES, RATE
from surecast_lab.lab.summary import Summary

__all__ = ["draw"]

OFFERED = 3 * RATE / 1e6  # the load: millions of events per second
# The number of copies of the load that an uplink of 1 Gb/s carries.
FITS = 1e9 / (8 * PAPER_BYTES * OFFERED * 1e6)


def draw(summary: Summary, path: Path) -> None:
    figure, (printed, steady, own, copies) = figures.axes(2, 2, 12, 8.4)
    colours = dict(zip(summary.each("fanout"), figures.COLOURS, strict=False))
    # In each panel: a variant of the mesh, and another one for comparison ("": none).
    for ax, reading, compared in (
        (printed, "printed", "short Recv"),
        (steady, "steady tail", ""),
        (own, "ours", "untuned"),
    ):
        _lines(ax, summary, reading, "throughput", colours, "o-")
        _lines(ax, summary, compared, "throughput", colours, "x", named=False)
        figures.paper_line(ax, (10, 1000), (OFFERED, OFFERED), "published: 2.592 M/s")
    _lines(copies, summary, "printed", "copies", colours, "o-")
    _lines(copies, summary, "steady tail", "copies", colours, "o:", named=False)
    figures.paper_line(copies, (10, 1000), (FITS, FITS), "what 1 Gb/s carries")
    x, y = "shuffle time S [ms]", "M events/s and client"
    high = 3.7  # room for the legend
    figures.percent_axis(printed, "as printed, 10 B an event (×: Recv of 100 ms)", x, y, 0, high)
    figures.percent_axis(steady, "as printed, but the tail keeps those it tells", x, y, 0, high)
    figures.percent_axis(own, "our mesh, 18.2 B an event (×: untuned)", x, y, 0, high)
    most = 1.25 * copies.get_ylim()[1]
    title = "copies of an event the tail sends, as printed (dotted: steady)"
    figures.percent_axis(copies, title, x, "copies", 0, most)
    for ax in (printed, steady, own, copies):
        ax.set_xlim(8, 1250)
        ax.legend(fontsize=8, ncols=3, loc="upper center")
    figure.suptitle(f"Sprinkler E2 (Fig. 5b): {summary.caption}", fontsize=10)
    figures.save(figure, path)


def _lines(
    ax: Any,
    summary: Summary,
    reading: str,
    what: str,
    colours: dict[int, str],
    style: str,
    named: bool = True,
) -> None:
    """Draw the column `what` of a variant, a line for each fanout; with names in the legend if
    `named`."""
    for fanout, colour in colours.items():
        line = summary.line("shuffle_ms", what, reading=reading, fanout=fanout)
        if line.x:
            figures.error_bars(ax, line, f"F = {fanout}" if named else None, colour, style)
