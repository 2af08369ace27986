"""The mesh economy: what share of its events a client gets from a server as the mesh grows.

A server should send an event to a few clients, whatever their number; the rest is passed on. So the
share of a client's events that comes from a server should fall as 1/n. Not an experiment of the
paper, but what its mesh is for. Points measured with real processes are read from
`mesh_measured.json` beside this file: a list of {"clients", "from_server", "what"}.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from surecast.core.types import SECOND
from surecast.lab import figures
from surecast.lab.sprinkler_mesh_points import Point, ours, row_of
from surecast.lab.sprinkler_mesh_run import REPLICAS, simulate
from surecast.lab.verdict import Experiment, Progress, Row, Verdict, spread

__all__ = ["EXPERIMENTS", "claims", "measured", "points", "verdict_of"]

LOAD = 1 / 8  # of the paper's: about 100,000 events a second, one stream
SIZES = (10, 30, 100, 300, 1000)
READINGS = {"each replica tells 1": 1, "each replica tells 4": 4}
EXCESS_MAX = 0.5  # copies beyond those to clients a server tells of everything


def points(quick: bool, seed: int) -> list[Point]:
    found = []
    for reading, fanout in READINGS.items():
        for size in (10, 100) if quick else SIZES:
            setting = ours(
                4,
                1000,
                size,
                server_fanout=fanout,
                load=LOAD,
                regions=("r0",),
                meshed=("r0",),
                measure_ns=(1 if quick else 2) * SECOND,
            )
            found.append(Point(seed, setting, {"reading": reading, "told": fanout * REPLICAS}))
    return found


def measured() -> list[Row]:
    """Points of real processes, if there are any."""
    text = files("surecast.lab").joinpath("mesh_measured.json").read_text()
    return [{"measure": "real", **point} for point in json.loads(text)]


def measure(progress: Progress, quick: bool, seeds: Sequence[int]) -> tuple[list[Row], Verdict]:
    todo = [point for seed in seeds for point in points(quick, seed)]
    rows = []
    for done, point in enumerate(todo):
        progress(done, len(todo), f"{point.setting.clients} clients")
        rows.append(row_of(point, simulate(point.seed, point.setting)))
    progress(len(todo), len(todo), "done")
    return rows + measured(), verdict_of(rows + measured())


def claims(rows: Sequence[Row]) -> dict[str, bool]:
    simulated = [row for row in rows if row["measure"] == "point"]
    real = [row for row in rows if row["measure"] == "real"]
    return {
        "servers send an event to those they tell and to hardly anybody else": all(
            row["copies"] < min(row["told"], row["clients"]) + EXCESS_MAX for row in simulated
        ),
        "so a client's share from servers falls as 1/n": all(
            row["from_server"] < (row["told"] + EXCESS_MAX) / row["clients"] for row in simulated
        ),
        "everything published is delivered": all(
            row["throughput"] > 0.98 * row["offered"] for row in simulated
        ),
        "real processes do the same, within a factor of two": all(
            row["from_server"]
            < 2 * max(told * REPLICAS for told in READINGS.values()) / row["clients"]
            for row in real
        ),
    }


def verdict_of(rows: Sequence[Row]) -> Verdict:
    simulated = [row for row in rows if row["measure"] == "point"]
    held = claims(rows)

    def shares(reading: str) -> dict[str, Any]:
        found: dict[int, list[float]] = {}
        for row in simulated:
            if row["reading"] == reading:
                found.setdefault(row["clients"], []).append(row["from_server"])
        return {f"{size} clients": spread(values, 5) for size, values in found.items()}

    return Verdict(
        id="sprinkler-economy",
        paper={"share_from_servers": "none given; F copies of each event leave the proxy: F/n"},
        ours={
            "share_from_servers": {reading: shares(reading) for reading in READINGS},
            "real_processes": {
                f"{row['clients']} clients": row["from_server"]
                for row in rows
                if row["measure"] == "real"
            },
            "claims": held,
        },
        reproduced=all(held.values()),
        beaten=False,
        scale=f"one region of {REPLICAS} replicas, one stream of about 100,000 events/s in batches "
        f"of 10 ms; {len(simulated)} runs",
        seeds=list(dict.fromkeys(row["seed"] for row in simulated)),
        notes=[
            "Our mesh, fanout 4, shuffle time 1 s, settled views, clients spread over the three "
            "replicas. There is nothing to beat.",
        ],
    )


def draw(rows: Sequence[Row], path: Path) -> None:
    figure, (ax,) = figures.axes(1, 1, 7, 4.8)
    for n, (reading, fanout) in enumerate(READINGS.items()):
        mine = [row for row in rows if row.get("reading") == reading]
        sizes = sorted({row["clients"] for row in mine})
        shares = [[row["from_server"] for row in mine if row["clients"] == s] for s in sizes]
        colour = figures.COLOURS[n]
        ax.plot(sizes, [sum(v) / len(v) for v in shares], "o", color=colour, label=reading)
        told = fanout * REPLICAS
        ideal = [min(1.0, told / size) for size in sizes]
        ax.plot(sizes, ideal, "--", lw=1, color=colour, label=f"{told}/n")
    real = [row for row in rows if row["measure"] == "real"]
    if real:
        xs, ys = [row["clients"] for row in real], [row["from_server"] for row in real]
        ax.plot(xs, ys, "k*", ms=10, label="real processes")
    figures.log_log(
        ax, "Share of a client's events that servers send", "clients in the region", "share"
    )
    ax.legend(fontsize=8)
    figures.save(figure, path)


EXPERIMENTS = (
    Experiment(
        id="sprinkler-economy",
        title="What a server sends as the mesh grows",
        question="Does a server's work for each client fall as 1/n?",
        paper="Not measured there; a proxy notifies F clients, whatever their number.",
        measure=measure,
        draw=draw,
    ),
)
