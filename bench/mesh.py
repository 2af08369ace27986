"""Measures the share of events that servers send when the readers of a region form a mesh.

In a mesh, clients get most events from each other. There is one region with a chain of two replicas
and n mesh clients, all real processes. The result is the share of positions that clients got from a
server. It should be F/n, where F is the number of clients that the servers notify, plus the
requests that clients send to a server because another client did not answer.

    python bench/mesh.py
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surecast.columns.retention import KeepAll
from surecast.core.types import MS
from surecast.protocols.sprinkler.config import MeshConfig
from surecast_lab.swarm.process_cluster import ProcessCluster

Row = dict[str, Any]

SIZES = (8, 50)
EVENTS = 10_000
ROWS, EVERY_NS = 50, 25 * MS


def share(clients: int) -> Row:
    with (
        tempfile.TemporaryDirectory(prefix="surecast-mesh-") as folder,
        ProcessCluster(Path(folder), 1, {"east": 2}, clients) as cluster,
    ):
        cluster.open("s", "east", KeepAll())
        cluster.publish("s", ROWS, EVERY_NS)
        cluster.wait(lambda: cluster.least("s") > EVENTS)
        cluster.quiet()
        cluster.wait(cluster.settled)
        got = [cluster.workers[name].ask("results")["counters"] for name in cluster.clients]
    server = sum(c.get("mesh.positions-from-server", 0) for c in got)
    peers = sum(c.get("mesh.positions-from-peers", 0) for c in got)
    fanout = MeshConfig().fanout
    params = {
        "clients": clients,
        "from_peers": round(peers / (peers + server), 4),
        "copies_per_event": round(clients * server / (peers + server), 2),
        "fanout_over_n": round(min(1.0, fanout / clients), 4),
        "late": sum(c.get("mesh.late", 0) for c in got),
        "fallbacks": sum(c.get("mesh.fallback", 0) for c in got),
    }
    value = round(server / (peers + server), 4)
    return {"name": "mesh_share_of_server", "value": value, "unit": "", "params": params}


def bench_share_of_server() -> Iterator[Row]:
    for clients in SIZES:
        yield share(clients)


if __name__ == "__main__":
    for row in bench_share_of_server():
        print(row)
