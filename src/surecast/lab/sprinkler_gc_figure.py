"""The figure of Sprinkler E6, drawn from the table that sprinkler_gc.py measures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from surecast.lab import figures
from surecast.lab.sprinkler_keys import (
    BOUNDED_SKEWS,
    FIXED,
    GROWING,
    PAPER_SAVED_BOUNDED,
    PAPER_SAVED_UNBOUNDED,
    RANKED_20,
    RANKED_200,
    ZETA,
)
from surecast.lab.verdict import Row

__all__ = ["draw"]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Figure 10 in the first row, the same as shares in the second, bytes in the third."""
    figure, (stored_a, stored_b, share_a, share_b, wan, share_bytes) = figures.axes(3, 2, 11.5, 13)
    generated = "events generated"
    for part, stored, share, curves, saves in (
        ("a", stored_a, share_a, _CURVES_A, PAPER_SAVED_UNBOUNDED),
        ("b", stored_b, share_b, _CURVES_B, PAPER_SAVED_BOUNDED),
    ):
        xs = sorted({row["events"] for row in rows if row["part"] == part})
        figures.paper_line(stored, xs, xs, "without collection", dotted=True)
        figures.paper_line(stored, xs, [(1 - saves) * x for x in xs], f"paper: {saves:.0%} saved")
        _draw_stored(stored, rows, curves)
        name = {"a": "unbounded keys", "b": "100,000 keys"}[part]
        title = f"E6{part} (Fig. 10{part}): {name}"
        figures.log_log(stored, title, generated, "events stored at a proxy")
        stored.legend(fontsize=8, loc="upper left")
        _draw_share(share, rows, curves)
        figures.paper_line(share, [xs[0], xs[-1]], [100 * saves] * 2, f"paper: {saves:.0%}")
        title = f"E6{part} as a share; bands span the seeds, colours as above"
        figures.percent_axis(share, title, generated, "events saved [%]", 30, 100)
        share.legend(fontsize=8, loc="lower right")
    _draw_bytes(wan, rows)
    _draw_byte_share(share_bytes, rows)
    figures.save(figure, path)


Curve = tuple[str, float, int, str]  # reading, skew, which colour, line style

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


def _curve(rows: Sequence[Row], reading: str, skew: float) -> tuple[list[int], Any]:
    """Events, and the stored counts as an array with a row a seed."""
    by_events: dict[int, list[int]] = {}
    for row in rows:
        if (row["measure"], row["reading"], row["skew"]) == ("stored", reading, skew):
            by_events.setdefault(row["events"], []).append(row["stored"])
    return list(by_events), np.array(list(by_events.values())).T


def _draw_stored(ax: Any, rows: Sequence[Row], curves: Sequence[Curve]) -> None:
    for reading, skew, colour, style in curves:
        events, stored = _curve(rows, reading, skew)
        shade = figures.COLOURS[colour]
        ax.plot(events, stored.mean(0), style, color=shade, label=f"{reading}, skew {skew}")


def _draw_share(ax: Any, rows: Sequence[Row], curves: Sequence[Curve]) -> None:
    for reading, skew, colour, style in curves:
        events, stored = _curve(rows, reading, skew)
        shares = 100 * (1 - stored / np.array(events))
        shade = figures.COLOURS[colour]
        ax.plot(events, shares.mean(0), style, color=shade)
        ax.fill_between(events, shares.min(0), shares.max(0), color=shade, alpha=0.2, lw=0)


def _byte_means(rows: Sequence[Row], skew: float) -> tuple[list[int], Any]:
    """Events missed, and the means of stored events, all bytes and kept bytes at each."""
    by_events: dict[int, list[tuple[float, ...]]] = {}
    for row in rows:
        if row["measure"] == "wan" and row["skew"] == skew:
            numbers = (row["stored"], row["bytes_all"], row["bytes_kept"])
            by_events.setdefault(row["events"], []).append(numbers)
    return list(by_events), np.array([np.mean(of, axis=0) for of in by_events.values()])


def _draw_bytes(ax: Any, rows: Sequence[Row]) -> None:
    for colour, skew in zip(figures.COLOURS, BOUNDED_SKEWS, strict=False):
        events, means = _byte_means(rows, skew)
        if skew == BOUNDED_SKEWS[0]:  # the same for every skew
            ax.plot(events, means[:, 1] / 1e6, ":", color=figures.PAPER, label="without voids")
        ax.plot(events, means[:, 2] / 1e6, color=colour, label=f"with voids, skew {skew}")
    figures.log_log(
        ax,
        "A region comes back: frames sent to it (100,000 keys, fixed set)",
        "events it missed",
        "megabytes over the WAN",
    )
    ax.legend(fontsize=8, loc="upper left")


def _draw_byte_share(ax: Any, rows: Sequence[Row]) -> None:
    for colour, skew in zip(figures.COLOURS, BOUNDED_SKEWS, strict=False):
        events, means = _byte_means(rows, skew)
        saved_bytes = 100 * (1 - means[:, 2] / means[:, 1])
        saved_events = 100 * (1 - means[:, 0] / np.array(events))
        ax.plot(events, saved_bytes, color=colour, label=f"bytes, skew {skew}")
        ax.plot(events, saved_events, "--", color=colour, linewidth=1, label=f"events, skew {skew}")
    figures.percent_axis(
        ax, "The same as a share: bytes against events", "events it missed", "saved [%]", 0, 100
    )
    ax.legend(fontsize=8, loc="lower right", ncols=3)
