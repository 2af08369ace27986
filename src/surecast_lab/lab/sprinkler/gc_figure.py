"""The figure of Sprinkler E6, drawn from the table of gc.py."""

from pathlib import Path
from typing import Any

from surecast_lab.lab import figures
from surecast_lab.lab.sprinkler.keys import (
    BOUNDED_SKEWS,
    FIXED,
    GROWING,
    PAPER_SAVED_BOUNDED,
    PAPER_SAVED_UNBOUNDED,
    RANKED_20,
    RANKED_200,
    ZETA,
)
from surecast_lab.lab.summary import Summary

__all__ = ["draw"]


def draw(summary: Summary, path: Path) -> None:
    """Draw three rows: events stored (the paper's Figure 10), the share of events saved, and
    bytes."""
    figure, (stored_a, stored_b, share_a, share_b, wan, share_bytes) = figures.axes(3, 2, 11.5, 13)
    generated = "events generated"
    for part, stored, share, curves, saves in (
        ("a", stored_a, share_a, _CURVES_A, PAPER_SAVED_UNBOUNDED),
        ("b", stored_b, share_b, _CURVES_B, PAPER_SAVED_BOUNDED),
    ):
        xs = summary.each("events", part=part)
        figures.paper_line(stored, xs, xs, "without collection", dotted=True)
        figures.paper_line(stored, xs, [(1 - saves) * x for x in xs], f"paper: {saves:.0%} saved")
        for reading, skew, colour, style in curves:
            which = {"measure": "stored", "reading": reading, "skew": skew}
            shade = figures.COLOURS[colour]
            counts = summary.line("events", "stored", **which)
            figures.band(stored, counts, f"{reading}, skew {skew}", shade, style)
            shares = summary.line("events", "saved", **which).scaled(100)
            figures.band(share, shares, None, shade, style)
        name = {"a": "unbounded keys", "b": "100,000 keys"}[part]
        title = f"E6{part} (Fig. 10{part}): {name}"
        figures.log_log(stored, title, generated, "events stored at a proxy")
        stored.legend(fontsize=8, loc="upper left")
        figures.paper_line(share, [xs[0], xs[-1]], [100 * saves] * 2, f"paper: {saves:.0%}")
        title = f"E6{part} as a share, colours as above; {summary.caption}"
        figures.percent_axis(share, title, generated, "events saved [%]", 30, 100)
        share.legend(fontsize=8, loc="lower right")
    _draw_bytes(wan, summary)
    _draw_byte_share(share_bytes, summary)
    figures.save(figure, path)


Curve = tuple[str, float, int, str]  # reading, skew, number of the colour, line style

_CURVES_A: tuple[Curve, ...] = (
    (ZETA, 1.1, 0, "-"),
    (ZETA, 1.2, 1, "-"),
    (ZETA, 1.5, 2, "-"),
    (RANKED_20, 1.1, 3, ":"),
    (RANKED_200, 1.1, 4, ":"),
)
_CURVES_B: tuple[Curve, ...] = (
    (FIXED, 1.1, 0, "-"),
    (FIXED, 1.3, 1, "-"),
    (FIXED, 1.5, 2, "-"),
    (GROWING, 1.1, 0, ":"),
    (GROWING, 1.5, 2, ":"),
)


def _draw_bytes(ax: Any, summary: Summary) -> None:
    for colour, skew in zip(figures.COLOURS, BOUNDED_SKEWS, strict=False):
        if skew == BOUNDED_SKEWS[0]:  # this curve is the same for every skew: draw it once
            everything = summary.line("events", "bytes_all", measure="wan", skew=skew).scaled(1e-6)
            figures.band(ax, everything, "without voids", figures.PAPER, ":")
        kept = summary.line("events", "bytes_kept", measure="wan", skew=skew).scaled(1e-6)
        figures.band(ax, kept, f"with voids, skew {skew}", colour)
    figures.log_log(
        ax,
        "A region comes back: frames sent to it (100,000 keys, fixed set)",
        "events it missed",
        "megabytes over the WAN",
    )
    ax.legend(fontsize=8, loc="upper left")


def _draw_byte_share(ax: Any, summary: Summary) -> None:
    for colour, skew in zip(figures.COLOURS, BOUNDED_SKEWS, strict=False):
        for value, what, style in (("bytes_saved", "bytes", "-"), ("saved", "events", "--")):
            line = summary.line("events", value, measure="wan", skew=skew).scaled(100)
            figures.band(ax, line, f"{what}, skew {skew}", colour, style)
    figures.percent_axis(
        ax, "The same as a share: bytes against events", "events it missed", "saved [%]", 0, 100
    )
    ax.legend(fontsize=8, loc="lower right", ncols=3)
