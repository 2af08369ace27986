"""Sprinkler E1: throughput of one, two and three connected proxies as drivers are added.

It uses real processes on one machine. A proxy is a region server. A driver is a closed-loop
publisher: it publishes a batch when the previous one is acknowledged. docs/lab/sprinkler.md
discusses the result.
"""

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from surecast.columns.rules import KeepLast
from surecast.errors import SurecastError
from surecast_lab.bench.broadcast import Load, Run, broadcast
from surecast_lab.bench.deployment import REGIONS
from surecast_lab.bench.machine import machine
from surecast_lab.lab import figures
from surecast_lab.lab.summary import Summary
from surecast_lab.lab.verdict import Experiment, Point, Row, Verdict, spread

__all__ = ["EXPERIMENTS", "claims", "draw", "points", "run_point", "verdict_of"]

PROXIES = (1, 2, 3)
DRIVERS = (1, 2, 4, 8)  # for each proxy
DRIVERS_QUICK = (1, 4, 8)
RETAINED = 100_000_000  # only this number of the newest events is kept
BATCH = 500  # events in a batch
SECONDS, SECONDS_QUICK = 3.0, 1.0
WARM_S, WARM_QUICK_S = 1.0, 0.3
PAPER_LOW, PAPER_HIGH = 2.6e6, 2.7e6  # events a second, three proxies
FLAT = 1.25  # saturated: doubling the drivers increases the throughput by less than this factor
RISE = 1.05  # with more proxies the peak must not rise by this factor or more


def points(quick: bool, seeds: Sequence[int]) -> list[Point]:
    """All points. A seed is only the number of a repetition; `quick` has one."""
    seconds, warm_s = (SECONDS_QUICK, WARM_QUICK_S) if quick else (SECONDS, WARM_S)
    return [
        {"proxies": proxies, "drivers": drivers, "seconds": seconds, "warm_s": warm_s, "seed": run}
        for run in (list(seeds)[:1] if quick else seeds)
        for proxies in PROXIES
        for drivers in (DRIVERS_QUICK if quick else DRIVERS)
    ]


def run_point(point: Point) -> list[Row]:
    proxies, drivers = point["proxies"], point["drivers"]
    load = Load(
        REGIONS[:proxies], KeepLast(RETAINED), BATCH, drivers=drivers, window=1,
        pool_events=20 * BATCH, keys=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="surecast-e1-") as folder:
        measured = broadcast(Path(folder), load, point["warm_s"], point["seconds"], audit=False)
    if measured.problems:
        raise SurecastError(
            f"E1 with {proxies} proxies and {drivers} drivers lost or doubled events, so it has no "
            f"result: {'; '.join(measured.problems)}"
        )
    return [_row(point["seed"], proxies, drivers, measured)]


def _row(run: int, proxies: int, drivers: int, measured: Run) -> Row:
    servers = [f"{region}-1" for region in REGIONS[:proxies]]
    return {
        "seed": run,
        "proxies": proxies,
        "drivers": drivers,
        "total": measured.rate,
        "per_driver": measured.rate / (proxies * drivers),
        "events": measured.events,
        "proxy_cores": sum(measured.cores[name] for name in servers) / proxies,
        "other_cores": measured.cores["others"],
    }


# ---------------------------------------------------------------- the verdict


def _totals(rows: Sequence[Row], proxies: int, drivers: int) -> list[float]:
    return [r["total"] for r in rows if r["proxies"] == proxies and r["drivers"] == drivers]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _curve(rows: Sequence[Row], proxies: int) -> dict[int, float]:
    """Drivers per proxy → throughput of all proxies, the mean over the runs."""
    counts = sorted({row["drivers"] for row in rows if row["proxies"] == proxies})
    return {count: _mean(_totals(rows, proxies, count)) for count in counts}


def claims(rows: Sequence[Row]) -> dict[str, bool]:
    """The claims about the shape of the paper's figure, checked on the means over the runs."""
    curves = [list(_curve(rows, proxies).values()) for proxies in PROXIES]
    peaks = [max(curve) for curve in curves]
    return {
        "more drivers carry more": all(max(c) > c[0] for c in curves),
        "then it saturates": all(c[-1] < FLAT * max(c[:-1]) for c in curves),
        "the peak does not rise with more proxies": all(b < RISE * a for a, b in pairwise(peaks)),
    }


def verdict_of(rows: Sequence[Row]) -> Verdict:
    held = claims(rows)
    three = _curve(rows, 3)
    best = max(three, key=lambda count: three[count])
    peak = _totals(rows, 3, best)
    runs = list(dict.fromkeys(row["seed"] for row in rows))
    here = machine()
    return Verdict(
        id="sprinkler-e1",
        headline=f"{spread([total / 1e6 for total in peak], 2)} M events/s with three proxies and "
        f"{best} drivers each",
        paper={
            "three_proxies_events_per_s": [PAPER_LOW, PAPER_HIGH],
            "shape": "rises with drivers, saturates; the peak falls slightly with more proxies",
        },
        ours={
            "three_proxies_events_per_s": spread(peak, 0),
            "shape": held,
            "at_drivers_a_proxy": best,
            "totals": {
                f"{proxies} proxies": {
                    f"{count} drivers": spread(_totals(rows, proxies, count), 0)
                    for count in _curve(rows, proxies)
                }
                for proxies in PROXIES
            },
            "other_programs_cores": spread([row["other_cores"] for row in rows], 2),
        },
        reproduced=all(held.values()),
        beaten=_mean(peak) > PAPER_HIGH,
        scale=f"real processes, all on one machine ({here['cpu']}, {here['cores']} cores); "
        f"{len(rows)} points",
        seeds=runs,
        notes=[
            "A seed is the number of a repetition. Here all proxies and drivers share the cores of "
            "one machine; the paper had a machine for each. Every proxy handles every event. So "
            "with more proxies each one gets a smaller share of the machine, and the peak falls by "
            "more than slightly.",
            f"An event has 10 bytes. A driver sends {BATCH} events in one batch, waits until they "
            "are committed in its region, and then sends the next batch. The streams have the "
            "retention keep_last(100,000,000), which corresponds to the paper's rule that each "
            "event makes the event that much older garbage. A proxy is one replica, in memory.",
            "Counted are the events that all proxies have committed. Afterwards every proxy must "
            "hold exactly the acknowledged events. Beaten means a mean peak above 2.7 M/s with "
            "three proxies.",
            "Saturated means: the largest number of drivers has a throughput less than "
            f"{FLAT - 1:.0%} above the best of the smaller numbers. More drivers carry more means: "
            "the peak is above the throughput with one driver per proxy. With two or three proxies "
            "one driver each already nearly fills the two cores. So there the rise is small, and a "
            "single step may bring none.",
        ],
    )


def draw(summary: Summary, path: Path) -> None:
    """Figures 4a and 4b: total and per driver."""
    figure, panels = figures.axes(1, 2, 10, 4.4)
    names = {"total": "in all", "per_driver": "per driver"}
    for ax, (column, name) in zip(panels, names.items(), strict=True):
        for colour, proxies in zip(figures.COLOURS, PROXIES, strict=False):
            line = summary.line("drivers", column, proxies=proxies).scaled(1e-6)
            label = f"{proxies} {'proxy' if proxies == 1 else 'proxies'}"
            figures.error_bars(ax, line, label, colour)
        ax.set_title(f"E1 (Fig. 4): throughput {name}; {summary.caption}", fontsize=10)
        ax.set_xlabel("drivers per proxy", fontsize=9)
        ax.set_ylabel("M events/s in all proxies", fontsize=9)
        ax.set_ylim(bottom=0)
        ax.tick_params(labelsize=8)
        ax.grid(True, color="#dddddd", linewidth=0.6)
    drivers = summary.each("drivers")
    ends = (drivers[0], drivers[-1])
    low, high = (PAPER_LOW / 1e6,) * 2, (PAPER_HIGH / 1e6,) * 2
    figures.paper_line(panels[0], ends, low, "paper: 2.6–2.7 with 3 proxies")
    figures.paper_line(panels[0], ends, high, "_nolegend_")
    for ax in panels:
        ax.legend(fontsize=8)
    figures.save(figure, path)


EXPERIMENTS = (
    Experiment(
        id="sprinkler-e1",
        title="Throughput of 1, 2 and 3 proxies as drivers are added (Fig. 4)",
        question="How many events per second do fully connected proxies carry?",
        paper="The throughput rises, then saturates; the peak falls slightly with more proxies; "
        "three proxies carry 2.6–2.7 M events/s, each process on a machine of its own.",
        setup="Real processes. Each proxy is a region server of one replica, in memory; each "
        "driver sends 500 events of 10 bytes in one batch, waits until they are committed, and "
        "sends the next. Counted are positions that all proxies have committed, for 3 s, after 1 s "
        "of warm-up. All processes share one machine; the paper had one for each.",
        by={"proxies": int, "drivers": int},
        values={
            "total": float,
            "per_driver": float,
            "events": int,
            "proxy_cores": float,
            "other_cores": float,
        },
        points=points,
        run_point=run_point,
        verdict_of=verdict_of,
        draw=draw,
        alone=True,
    ),
)
