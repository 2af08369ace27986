"""The points of Sprinkler E2, E3 and the mesh economy: variants of the mesh, and their result rows.

A point is a dict with the parameters of one run. It names a variant ("way", a function of this
module) and the fields of `Setting` that differ from it:

    {"reading": "short Recv", "way": "printed", "fanout": 4, "shuffle_ms": 300, "clients": 1000,
     "keep_ns": 100_000_000, "seed": 1}

`reading` is the name under which the results table lists the run.
"""

from typing import Any

import numpy as np

from surecast.core.types import MS, SECOND
from surecast.protocols.sprinkler.config import MeshConfig, bulk_mesh, paper_mesh
from surecast_lab.lab.sprinkler.driver import PAPER_BYTES
from surecast_lab.lab.sprinkler.mesh_run import REPLICAS, Outcome, Setting, simulate
from surecast_lab.lab.verdict import Point, Row

__all__ = ["NAMES", "VALUES", "ours", "printed", "row_of", "run_point", "setting_of", "steady"]

# The common columns of these experiments.
NAMES = {"measure": str, "reading": str, "fanout": int, "shuffle_ms": float}
VALUES = {
    "clients": int,  # in each region that has any
    "load": float,  # as a share of the paper's
    "offered": float,  # the load in millions of events per second, all regions together
    "throughput": float,  # millions of events per second that a client gets: mean, ...
    "least": float,  # ... the slowest client, ...
    "most": float,  # ... the fastest client
    "from_server": float,  # share of a client's events that come from a server
    "copies": float,  # of each event that servers send, if all events arrive
    "fallbacks": float,  # per client and second: requests to a server for events that peers lack
    "late": float,  # per client and second: requests that a peer did not answer in time
    "full_uplinks": float,  # share of samples in which a client's uplink was full
    "server_backlog_ms": float,  # the largest backlog of a server's uplink
    "misplaced": int,  # deliveries that did not continue the previous one
    "inputs": int,  # inputs of all state machines
    "unfinished": float,  # share of the batches that some client lacked at the end
    # Mean and greatest latency of the events from each region.
    **{f"latency{which}_r{n}": float for n in range(3) for which in ("", "_max")},
}


def printed(fanout: int, shuffle_ms: int, clients: int, **options: Any) -> Setting:
    """The paper's protocol, event size and servers: the tail notifies `fanout` clients and shuffles
    like a client, all clients use the tail as their server, and an event takes ten bytes."""
    mesh = paper_mesh(fanout=fanout, shuffle_ns=shuffle_ms * MS)
    given = {
        "event_bytes": PAPER_BYTES,
        "spread": False,
        "server_shuffle_ns": mesh.shuffle_ns,
        **options,
    }
    return Setting(mesh, clients, **given)


def steady(fanout: int, shuffle_ms: int, clients: int, **options: Any) -> Setting:
    """As `printed`, but the tail keeps the clients that it notifies for a second."""
    return printed(fanout, shuffle_ms, clients, server_shuffle_ns=1 * SECOND, **options)


def ours(
    fanout: int, shuffle_ms: int, clients: int, server_fanout: int = 1, **options: Any
) -> Setting:
    """Our protocol and frames: notifications are mutual, clients are spread over all replicas, and
    each replica notifies one client."""
    mesh = bulk_mesh(fanout=fanout, server_fanout=server_fanout, shuffle_ns=shuffle_ms * MS)
    return Setting(mesh, clients, **options)


def untuned(fanout: int, shuffle_ms: int, clients: int, **options: Any) -> Setting:
    """As `ours`, with the default settings, which suit small events and many stalls: a replica
    notifies as many clients as a client does, and peers have 20 ms to answer."""
    mesh = MeshConfig(fanout=fanout, shuffle_ns=shuffle_ms * MS)
    return Setting(mesh, clients, **{"deadline_ns": 20 * MS, **options})


WAYS = {"printed": printed, "steady": steady, "ours": ours, "untuned": untuned}
# Keys of a point that are not options (fields of `Setting`).
NAMED = ("reading", "way", "fanout", "shuffle_ms", "clients", "seed")


def setting_of(point: Point) -> Setting:
    """The parameters of a point's run."""
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in point.items()
        if name not in NAMED
    }
    make = WAYS[point["way"]]
    return make(point["fanout"], point["shuffle_ms"], point["clients"], **options)


def weight(point: Point) -> float:
    """An estimate of a point's run time: it grows with clients, regions and fanout."""
    regions = len(point.get("meshed", ["r2"]))
    return float(point["clients"] * regions * point["fanout"])


def run_point(point: Point, **names: Any) -> list[Row]:
    """Run a point; the result is one row, with `names` as further columns."""
    setting = setting_of(point)
    names = {"reading": point["reading"], **names}
    return [row_of(point["seed"], setting, names, simulate(point["seed"], setting))]


def row_of(seed: int, setting: Setting, names: dict[str, Any], outcome: Outcome) -> Row:
    """The row of a run. Throughput is events per client and second, in millions; latency is the
    time until all clients had an event, for events published in the measured time."""
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
        "copies": share * setting.clients,
        "fallbacks": counts["mesh.fallback"] / seconds / len(rates),
        "late": counts["mesh.late"] / seconds / len(rates),
        "full_uplinks": outcome.full_share,
        "server_backlog_ms": max(outcome.backlog_ns[name] for name in servers) / MS,
        "misplaced": outcome.misplaced,
        "inputs": outcome.inputs,
        **_latency(setting, outcome),
    }


def _latency(setting: Setting, outcome: Outcome) -> Row:
    """Mean and greatest latency for each origin.

    An event that some client lacked at the end of the run counts with its age at that time, so the
    results are lower bounds if `unfinished` is not 0.
    """
    end_ns = setting.until_ns + setting.drain_ns
    found: Row = {}
    unfinished = total = 0
    for origin, pairs in outcome.latencies.items():
        # A negative latency means that some client lacked the batch at the end.
        late_ms = [(late if late >= 0 else end_ns - sent) / MS for sent, late in pairs]
        unfinished += sum(late < 0 for _, late in pairs)
        total += len(pairs)
        found[f"latency_{origin}"] = float(np.mean(late_ms)) if late_ms else None
        found[f"latency_max_{origin}"] = max(late_ms, default=None)
    expected = len(setting.regions) * setting.measure_ns // (10 * MS)
    missing = max(0, expected - total)  # events that no client had
    return found | {"unfinished": (unfinished + missing) / max(1, expected)}
