"""The ways a mesh is run in Sprinkler E2 and E3, and a run as a row of their tables."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from surecast.core.types import MS, SECOND
from surecast.lab.sprinkler_driver import PAPER_BYTES
from surecast.lab.sprinkler_mesh_run import REPLICAS, Outcome, Setting, simulate
from surecast.lab.verdict import Progress, Row
from surecast.protocols.sprinkler.config import MeshConfig, bulk_mesh, paper_mesh

__all__ = ["Point", "ours", "printed", "row_of", "run_all", "steady", "untuned"]

WORKERS = 2


@dataclass(frozen=True, slots=True)
class Point:
    """A run, and what names it in the table."""

    seed: int
    setting: Setting
    names: dict[str, Any]


def printed(fanout: int, shuffle_ms: int, clients: int, **options: Any) -> Setting:
    """The paper's protocol, event size and servers: the tail tells `fanout` clients and shuffles
    like any of them, all turn to it, and an event takes ten bytes."""
    mesh = paper_mesh(fanout=fanout, shuffle_ns=shuffle_ms * MS)
    given = {
        "event_bytes": PAPER_BYTES,
        "spread": False,
        "server_shuffle_ns": mesh.shuffle_ns,
        **options,
    }
    return Setting(mesh, clients, **given)


def steady(fanout: int, shuffle_ms: int, clients: int, **options: Any) -> Setting:
    """As `printed`, but the tail keeps those it tells for a second."""
    return printed(fanout, shuffle_ms, clients, server_shuffle_ns=1 * SECOND, **options)


def ours(
    fanout: int, shuffle_ms: int, clients: int, server_fanout: int = 1, **options: Any
) -> Setting:
    """Our protocol and frames: who is picked tells back, clients turn to all replicas, and each
    replica tells one client itself."""
    mesh = bulk_mesh(fanout=fanout, server_fanout=server_fanout, shuffle_ns=shuffle_ms * MS)
    return Setting(mesh, clients, **options)


def untuned(fanout: int, shuffle_ms: int, clients: int, **options: Any) -> Setting:
    """As `ours`, with the defaults, which are for small events and many stalls: a replica tells as
    many as a client does, and peers get 20 ms to answer."""
    mesh = MeshConfig(fanout=fanout, shuffle_ns=shuffle_ms * MS)
    return Setting(mesh, clients, **{"deadline_ns": 20 * MS, **options})


def run_all(points: Sequence[Point], progress: Progress) -> list[Row]:
    """Simulate all points, two at a time, the largest first; rows in the order of the points."""
    rows: dict[int, Row] = {}
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        order = sorted(range(len(points)), key=lambda n: -points[n].setting.mesh.fanout)
        under_way = {pool.submit(_run, points[n]): n for n in order}
        for done in as_completed(under_way):
            number = under_way[done]
            rows[number] = done.result()
            named = ", ".join(f"{k} {v}" for k, v in points[number].names.items())
            progress(len(rows), len(points), named)
    return [rows[n] for n in range(len(points))]


def _run(point: Point) -> Row:
    return row_of(point, simulate(point.seed, point.setting))


def row_of(point: Point, outcome: Outcome) -> Row:
    """Throughput is events delivered a client and second, in millions; latency is until all the
    clients had an event, of those published in the measured time."""
    setting, counts = point.setting, outcome.counts
    seconds = setting.measure_ns / SECOND
    rates = np.array(list(outcome.delivered.values())) / seconds / 1e6
    from_server = counts["mesh.positions-from-server"]
    positions = from_server + counts["mesh.positions-from-peers"]
    share = from_server / max(1, positions)
    servers = [f"{region}/{n}" for region in setting.meshed for n in range(REPLICAS)]
    return {
        "measure": "point",
        "seed": point.seed,
        **point.names,
        "fanout": setting.mesh.fanout,
        "shuffle_ms": setting.mesh.shuffle_ns / MS,
        "clients": setting.clients,
        "load": setting.load,
        "offered": setting.rate * len(setting.regions) / 1e6,
        "throughput": float(rates.mean()),
        "least": float(rates.min()),
        "most": float(rates.max()),
        "from_server": share,
        "copies": share * setting.clients,  # that servers send of each event, if all arrive
        "fallbacks": counts["mesh.fallback"] / seconds / len(rates),  # a client and second
        "late": counts["mesh.late"] / seconds / len(rates),
        "full_uplinks": outcome.full_share,
        "server_backlog_ms": max(outcome.backlog_ns[name] for name in servers) / MS,
        "misplaced": outcome.misplaced,
        "inputs": outcome.inputs,
        "wall_s": round(outcome.wall_s, 1),
        **_latency(setting, outcome),
    }


def _latency(setting: Setting, outcome: Outcome) -> Row:
    """Mean and greatest of each origin. What some client had not got when the run ended counts as
    it stood then, so these are lower bounds where `unfinished` is not 0."""
    end_ns = setting.until_ns + setting.drain_ns
    found: Row = {}
    unfinished = total = 0
    for origin, pairs in outcome.latencies.items():
        late_ms = [(late if late >= 0 else end_ns - sent) / MS for sent, late in pairs]
        unfinished += sum(late < 0 for _, late in pairs)
        total += len(pairs)
        found[f"latency_{origin}"] = float(np.mean(late_ms)) if late_ms else None
        found[f"latency_max_{origin}"] = max(late_ms, default=None)
    expected = len(setting.regions) * setting.measure_ns // (10 * MS)
    missing = max(0, expected - total)  # no client at all had them
    return found | {"unfinished": (unfinished + missing) / max(1, expected)}
