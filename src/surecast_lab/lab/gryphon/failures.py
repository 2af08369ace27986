"""Gryphon E3, E4, E5: a link, an intermediate broker, a publishing broker fails.

Of E3 the paper has Figures 3 and 6; of E4 and E5 the copy that we have shows no results. The
paper's network of ten brokers is simulated, with the paper's settings and with ours. What counts
are the streams that went through b1 before the failure, as in the paper's plots. No numbers can be
read from the figures; the text says that the latency at s1 rises and recovers, and that s2 stays
about stable. Claims that follow from the settings are in the verdict. docs/lab/gryphon.md discusses
the results.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from surecast.core.types import MS, SECOND
from surecast_lab.lab.gryphon.failures_figure import draw
from surecast_lab.lab.gryphon.failures_plan import DOWN_S, EVENT_NS, FAIL_S
from surecast_lab.lab.verdict import Experiment, Point, Row, Verdict, spread

if TYPE_CHECKING:
    from surecast_lab.lab.gryphon.failures_run import Run

__all__ = ["EXPERIMENTS"]

PRESETS = ("paper", "ours")
SITES = ("s1", "s2")
BIN_NS = 200 * MS
STALL_MS = 2_500  # the longest time until a cut link is noticed in the simulator
GAP_MS = {"paper": 200, "ours": 10}  # the time until a gap is requested
NOISE_MS = 50


def points(what: str, _quick: bool, seeds: Sequence[int]) -> list[Point]:
    return [{"what": what, "preset": preset, "seed": seed} for preset in PRESETS for seed in seeds]


def run_point(point: Point) -> list[Row]:
    """Latencies by the time of publishing, and one row with the run's totals."""
    from surecast_lab.lab.gryphon.failures_run import simulate

    preset, seed = point["preset"], point["seed"]
    return rows_of(simulate(seed, point["what"], preset), preset, seed)


def rows_of(run: "Run", preset: str, seed: int) -> list[Row]:
    through = [stream for stream, path in run.paths.items() if path == "b1"]
    rows: list[Row] = []
    peaks: dict[str, float] = {}
    lost = doubled = misplaced = 0
    for (_, stream), got in run.got.items():
        lost += run.published[stream] - len(set(got.seqs))
        doubled += len(got.seqs) - len(set(got.seqs))
        misplaced += sum(a >= b for a, b in zip(got.seqs, got.seqs[1:], strict=False))
    for site in SITES:
        chosen = [run.got[site, stream] for stream in through]
        sent = np.concatenate([np.array(got.sent_ns) for got in chosen])
        late_ms = (np.concatenate([np.array(got.at_ns) for got in chosen]) - sent) / MS
        around = sent >= (FAIL_S - 3) * SECOND
        peaks[site] = float(late_ms[around].max())
        for number in np.unique(sent // BIN_NS).tolist():
            here = sent // BIN_NS == number
            case = {"measure": "latency", "preset": preset, "site": site, "seed": seed}
            rows.append(case | {"t": number * BIN_NS / SECOND, "ms": float(late_ms[here].max())})
    each = max(len(through), 1)
    rows.append(
        {
            "measure": "run", "preset": preset, "site": "", "seed": seed, "t": 0.0, "ms": 0.0,
            "streams": len(through), "s1_peak_ms": peaks["s1"], "s2_peak_ms": peaks["s2"],
            "lost": lost, "doubled": doubled, "misplaced": misplaced,
            **{
                f"{broker}_requests": run.requests[broker][0] / each
                for broker in ("s1", "s2", "b2")
            },
            **{
                f"{broker}_requested_ms": run.requests[broker][1] * EVENT_NS / MS / each
                for broker in ("s1", "s2", "b2")
            },
        }
    )  # fmt: skip
    return rows


CLAIMS = {
    "link": (
        "peak at s1 about the stall + GCT + a round trip (at most stall + 50 ms with our settings)",
        "s2 is not affected (peak below GCT)",
    ),
    "b1": (
        "what b2 requests for s1 and s2 is about what one of them requests",
        "both recover (peak at most the time to notice + GCT + 50 ms)",
    ),
    "p1": ("everything arrives after p1 is back",),
}


def verdict_of(what: str, rows: Sequence[Row]) -> Verdict:
    runs = {
        preset: [row for row in rows if row["measure"] == "run" and row["preset"] == preset]
        for preset in PRESETS
    }
    ours = {
        preset: {
            name: spread([row[name] for row in of], 1)
            for name in (
                "s1_peak_ms", "s2_peak_ms", "s1_requests", "s1_requested_ms", "s2_requested_ms",
                "b2_requested_ms", "lost", "doubled", "misplaced",
            )
        }
        for preset, of in runs.items()
    }  # fmt: skip
    exact = all(row[name] == 0 for row in rows if row["measure"] == "run"
                for name in ("lost", "doubled", "misplaced"))  # fmt: skip
    shapes = exact and all(_has_shape(what, row) for row in runs["paper"])
    better = exact and all(_is_better(what, row) for row in runs["ours"])
    seeds = sorted({row["seed"] for row in rows})
    peak = ours["ours"]["s1_peak_ms"]
    notes = [
        "Simulated. A link that is cut passes nothing, and both ends notice after 2 to 2.5 s: the "
        "paper's stall. What was sent meanwhile is lost.",
        "Only streams that went through b1 before the failure count, as in the paper's plots.",
        "The broker below chooses its path, not the one above, and our settings continue where the "
        "path failed, without a request.",
    ]
    return Verdict(
        id=f"gryphon-{_NAMES[what]}",
        headline=f"peak at s1 {peak} ms with our settings, "
        f"{ours['paper']['s1_peak_ms']} ms with the paper's; nothing lost: {exact}",
        paper=dict.fromkeys((*CLAIMS[what], "nothing is lost"), True),
        ours={**ours, "exact": exact},
        reproduced=shapes,
        beaten=better,
        scale=f"10 brokers, 4 streams of 25 events/s, {DOWN_S} s of failure",
        seeds=seeds,
        notes=notes,
    )


def _has_shape(what: str, row: Row) -> bool:
    if what == "link":
        rises = 1_900 <= row["s1_peak_ms"] <= STALL_MS + 2 * GAP_MS["paper"] + NOISE_MS
        return bool(rises and row["s2_peak_ms"] < GAP_MS["paper"] and row["s1_requested_ms"] > 0)
    if what == "b1":
        one = max(row["s1_requested_ms"], row["s2_requested_ms"])
        return bool(row["b2_requested_ms"] <= 1.2 * one + EVENT_NS / MS)
    return True


def _is_better(what: str, row: Row) -> bool:
    if what == "link":
        return bool(row["s1_peak_ms"] <= STALL_MS + NOISE_MS and row["s1_requests"] <= 1)
    if what == "b1":
        return bool(row["s1_peak_ms"] <= STALL_MS + NOISE_MS and row["s1_requests"] <= 1)
    return bool(row["s1_peak_ms"] <= DOWN_S * 1_000 + 2_000)


_NAMES = {"link": "e3", "b1": "e4", "p1": "e5"}
_TITLES = {
    "link": "the link b1-s1 fails for 12 s",
    "b1": "the intermediate broker b1 stalls and crashes, for 12 s",
    "p1": "the publishing broker p1 stalls and crashes, for 12 s",
}

EXPERIMENTS = tuple(
    Experiment(
        id=f"gryphon-{_NAMES[what]}",
        title=f"Gryphon {_NAMES[what].upper()}: {_TITLES[what]}",
        question="Do subscribers get everything, and how late?",
        setup="Ten brokers in eight cells, four streams of 25 events a second, a subscriber for "
        "all events at each of five brokers; one failure at 5 s. The paper's settings and ours.",
        paper="Figure 6: the latency at s1 rises and recovers, s2 stays about stable.",
        by={"measure": str, "preset": str, "site": str, "t": float},
        values={
            "ms": float, "streams": int, "s1_peak_ms": float, "s2_peak_ms": float, "lost": int,
            "doubled": int, "misplaced": int,
            **{f"{b}_requests": float for b in ("s1", "s2", "b2")},
            **{f"{b}_requested_ms": float for b in ("s1", "s2", "b2")},
        },
        points=partial(points, what),
        run_point=run_point,
        verdict_of=partial(verdict_of, what),
        draw=partial(draw, _TITLES[what]),
    )
    for what in ("link", "b1", "p1")
)  # fmt: skip
