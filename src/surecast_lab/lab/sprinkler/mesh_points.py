"""The ways a mesh is run in Sprinkler E2 and E3, and a run as a row of their tables.

A point names its way, and whatever of `Setting` differs from what that way has by itself:

    {"reading": "short Recv", "way": "printed", "fanout": 4, "shuffle_ms": 300, "clients": 1000,
     "keep_ns": 100_000_000, "seed": 1}

`reading` is what the table calls it.
"""

from typing import Any

import numpy as np

from surecast.core.types import MS, SECOND
from surecast.protocols.sprinkler.config import MeshConfig, bulk_mesh, paper_mesh
from surecast_lab.lab.sprinkler.driver import PAPER_BYTES
from surecast_lab.lab.sprinkler.mesh_run import REPLICAS, Outcome, Setting, simulate
from surecast_lab.lab.verdict import Point, Row

__all__ = ["NAMES", "VALUES", "ours", "printed", "row_of", "run_point", "setting_of", "steady"]

# What the rows of these experiments have in common.
NAMES = {"measure": str, "reading": str, "fanout": int, "shuffle_ms": float}
VALUES = {
    "clients": int,
    "load": float,
    "offered": float,
    "throughput": float,
    "least": float,
    "most": float,
    "from_server": float,
    "copies": float,
    "fallbacks": float,
    "late": float,
    "full_uplinks": float,
    "server_backlog_ms": float,
    "misplaced": int,
    "inputs": int,
    "unfinished": float,
    **{f"latency{which}_r{n}": float for n in range(3) for which in ("", "_max")},
}


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


WAYS = {"printed": printed, "steady": steady, "ours": ours, "untuned": untuned}
NAMED = ("reading", "way", "fanout", "shuffle_ms", "clients", "seed")  # the rest are options


def setting_of(point: Point) -> Setting:
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in point.items()
        if name not in NAMED
    }
    make = WAYS[point["way"]]
    return make(point["fanout"], point["shuffle_ms"], point["clients"], **options)


def weight(point: Point) -> float:
    """More clients who pass on to more others take longer."""
    return float(point["clients"] * len(point.get("meshed", "r")) * point["fanout"])


def run_point(point: Point, **names: Any) -> list[Row]:
    """One run is one row; `names` are further columns of it."""
    setting = setting_of(point)
    names = {"reading": point["reading"], **names}
    return [row_of(point["seed"], setting, names, simulate(point["seed"], setting))]


def row_of(seed: int, setting: Setting, names: dict[str, Any], outcome: Outcome) -> Row:
    """Throughput is events delivered a client and second, in millions; latency is until all the
    clients had an event, of those published in the measured time."""
    counts = outcome.counts
    seconds = setting.measure_ns / SECOND
    rates = np.array(list(outcome.delivered.values())) / seconds / 1e6
    from_server = counts["mesh.positions-from-server"]
    positions = from_server + counts["mesh.positions-from-peers"]
    share = from_server / max(1, positions)
    servers = [f"{region}/{n}" for region in setting.meshed for n in range(REPLICAS)]
    return {
        "measure": "point",
        "seed": seed,
        **names,
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
