"""How much load a mesh of clients takes from the servers (experiment `sprinkler-economy`).

In a mesh, a server should send an event only to a few clients, whatever the number n of clients;
these pass it on to the others. So the share of its events that a client gets from a server should
fall as 1/n. The paper has no such experiment, but this is the purpose of its mesh. Points measured
with real processes are read from `mesh_measured.json` beside this file: a list of {"clients",
"from_server", "what"}.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from surecast.core.types import SECOND
from surecast_lab.lab import figures
from surecast_lab.lab.sprinkler.mesh_points import NAMES, VALUES, run_point
from surecast_lab.lab.sprinkler.mesh_run import REPLICAS
from surecast_lab.lab.summary import Summary
from surecast_lab.lab.verdict import Experiment, Point, Row, Verdict, spread

__all__ = ["EXPERIMENTS", "claims", "measured", "points", "verdict_of"]

LOAD = 1 / 8  # share of the paper's load: about 100,000 events a second, one stream
SIZES = (10, 30, 100, 300, 1000)
# Name of a variant, in the column "reading" → the number of clients that each replica notifies of
# (tells) an event.
READINGS = {"each replica tells 1": 1, "each replica tells 4": 4}
REAL = "real processes"  # the name of the results in mesh_measured.json
# Servers may send this number of copies of an event (a mean) in addition to those that they send to
# the clients they notify.
EXCESS_MAX = 0.5


def points(quick: bool, seeds: Sequence[int]) -> list[Point]:
    found: list[Point] = [
        {"reading": reading, "clients": size, "seconds": 1 if quick else 2}
        for reading in READINGS
        for size in ((10, 100) if quick else SIZES)
    ]
    simulated = [{**point, "seed": seed} for seed in seeds for point in found]
    return [*simulated, {"reading": REAL, "clients": 0, "seed": seeds[0]}]


def run_one(point: Point) -> list[Row]:
    if point["reading"] == REAL:
        return [{**row, "seed": point["seed"]} for row in measured()]
    fanout = READINGS[point["reading"]]
    setting = {"way": "ours", "fanout": 4, "shuffle_ms": 1000, "load": LOAD}
    setting |= {"server_fanout": fanout}
    place = {"regions": ["r0"], "meshed": ["r0"], "measure_ns": point["seconds"] * SECOND}
    named = {name: point[name] for name in ("reading", "clients", "seed")}
    # `told`: the number of clients that all servers together notify.
    return run_point({**named, **setting, **place}, told=fanout * REPLICAS)


def heaviest(point: Point) -> float:
    return float(point["clients"])


def measured() -> list[Row]:
    """The points measured with real processes."""
    text = files("surecast_lab.lab.sprinkler").joinpath("mesh_measured.json").read_text()
    return [{"measure": "real", "reading": REAL, **point} for point in json.loads(text)]


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
            < 2 * max(fanout * REPLICAS for fanout in READINGS.values()) / row["clients"]
            for row in real
        ),
    }


def verdict_of(rows: Sequence[Row]) -> Verdict:
    simulated = [row for row in rows if row["measure"] == "point"]
    held = claims(rows)
    least = min(row["told"] for row in simulated)

    def shares(reading: str) -> dict[str, Any]:
        found: dict[int, list[float]] = {}
        for row in simulated:
            if row["reading"] == reading:
                found.setdefault(row["clients"], []).append(row["from_server"])
        return {f"{size} clients": spread(values, 5) for size, values in found.items()}

    most = max(row["clients"] for row in simulated)
    copies = [row["copies"] for row in simulated if row["clients"] == most and row["told"] == least]
    return Verdict(
        id="sprinkler-economy",
        headline=f"servers send {spread(copies, 2)} copies of an event to {most} clients, when "
        f"they tell {least}",
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
        beaten=None,
        scale=f"one region of {REPLICAS} replicas, one stream of about 100,000 events/s in batches "
        f"of 10 ms; {len(simulated)} runs",
        seeds=list(dict.fromkeys(row["seed"] for row in simulated)),
        notes=[
            "Our mesh with fanout 4 and shuffle time 1 s. The clients know random peers from the "
            "start, and are distributed over the three replicas. The paper has no figure to beat.",
        ],
    )


def draw(summary: Summary, path: Path) -> None:
    figure, (ax,) = figures.axes(1, 1, 7, 4.8)
    for n, (reading, fanout) in enumerate(READINGS.items()):
        line = summary.line("clients", "from_server", reading=reading)
        figures.error_bars(ax, line, reading, figures.COLOURS[n], "o")
        notified = fanout * REPLICAS
        ideal = [min(1.0, notified / size) for size in line.x]
        ax.plot(line.x, ideal, "--", lw=1, color=figures.COLOURS[n], label=f"{notified}/n")
    real = summary.line("clients", "from_server", reading=REAL)
    if real.x:
        ax.plot(real.x, real.mean, "k*", ms=10, label=REAL)
    figures.log_log(
        ax,
        f"Share of a client's events that servers send; {summary.caption}",
        "clients in the region",
        "share",
    )
    ax.legend(fontsize=8)
    figures.save(figure, path)


EXPERIMENTS = (
    Experiment(
        id="sprinkler-economy",
        title="What a server sends as the mesh grows",
        question="Does a server's work for each client fall as 1/n?",
        paper="Not measured in the paper; a proxy notifies F clients, whatever their number.",
        setup="Simulated: one region of three replicas, a stream of about 100,000 events/s, 10 to "
        "1000 mesh clients with a fanout of 4. The result is the share of their events that came "
        "from a server. A few points were measured with real processes, for comparison.",
        by={**NAMES, "told": int, "clients": int, "what": str},
        values={name: kind for name, kind in VALUES.items() if name != "clients"},
        points=points,
        run_point=run_one,
        verdict_of=verdict_of,
        draw=draw,
        weight=heaviest,
    ),
)
