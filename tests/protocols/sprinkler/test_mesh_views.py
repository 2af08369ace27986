"""G12: the graph of views is random, has a small diameter, and heals from any partition."""

from math import log

import pytest

from surecast.core.types import MS, SECOND, Peer
from surecast.protocols.sprinkler.config import MeshConfig
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import publish, run, settle
from tests.protocols.sprinkler.meshes import (
    PRESETS,
    diameter,
    farthest,
    feed_of,
    graph,
    introduce,
    mesh_of,
)

VIEWS_ONLY = MeshConfig(shuffle_ns=3600 * SECOND)  # gossip as by default, nothing else


def crossing(cluster: Cluster, groups: list[list[Peer]]) -> list[int]:
    """The number of edges that leave each group."""
    edges = graph(cluster)
    return [sum(p not in group for name in group for p in edges[name]) for group in groups]


@pytest.mark.slow
@pytest.mark.parametrize("count", [50, 100, 400])
def test_g12_the_graph_is_random_and_of_small_diameter(count: int) -> None:
    cluster = mesh_of(count, mesh=VIEWS_ONLY, seed=2)
    run(cluster, (30 if count < 400 else 15) * SECOND)
    edges = graph(cluster)
    assert all(len(peers) == 20 for peers in edges.values())
    sample = list(edges)[:: max(1, count // 40)]
    backwards: dict[str, list[str]] = {name: [] for name in edges}
    for name, peers in edges.items():
        for peer in peers:
            backwards[peer].append(name)
    bound = 2 + log(count, 20)  # of a random graph with 20 edges a node: log N / log 20, and a bit
    for name in sample:
        assert 0 < farthest(edges, name) <= bound
    known = sorted(len(names) for names in backwards.values())
    # No star: no client is in nearly all views, and few clients are in nearly none.
    assert known[-1] <= 4 * 20
    assert known[len(known) // 20] >= 3
    assert sum(known) == 20 * count


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "preset"), [(1, "default"), (2, "default"), (3, "paper")])
def test_g12_heals_from_a_partition_of_clients(seed: int, preset: str) -> None:
    """For a while the groups share only the server; in the small ones all know each other."""
    cluster = mesh_of(15, {"east": 2}, seed=seed, mesh=PRESETS[preset])
    world, clients = cluster.world, list(cluster.clients)
    groups = [clients[:2], clients[2:7], clients[7:]]
    run(cluster, 2 * SECOND)
    for i, group in enumerate(groups):
        for other in groups[:i]:
            for a in group:
                for b in other:
                    world.cut(a, b)
    run(cluster, 10 * SECOND)
    publish(cluster, 20)
    settle(cluster)  # through the server, which all groups can reach
    world.heal_all()
    run(cluster, 20 * SECOND)
    edges = graph(cluster)
    assert 0 < diameter(edges) <= 3, seed
    assert min(crossing(cluster, groups)) > 0, seed


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_g12_heals_from_cliques_that_know_only_each_other(seed: int) -> None:
    """Views are full, so that no server fits in; clients must still contact the server."""
    mesh = MeshConfig(view_max=5, fanout=3)
    cluster = mesh_of(18, mesh=mesh, seed=seed)
    clients = list(cluster.clients)
    groups = [clients[n : n + 6] for n in range(0, 18, 6)]
    run(cluster, 2 * SECOND)
    for group in groups:
        introduce(cluster, {a: [b for b in group if b != a] for a in group})
    server = cluster.world.machine("east/0").layers["sprinkler.mesh"]
    server.meshes.clear()  # the server has forgotten all clients, too
    assert crossing(cluster, groups) == [0, 0, 0]
    whole = 0
    for _ in range(60):  # with views of five a client may be in no view for a moment
        run(cluster, SECOND)
        whole += diameter(graph(cluster)) > 0 and min(crossing(cluster, groups)) > 0
    assert whole > 20, seed


def test_g12_a_client_that_was_cut_off_for_long_is_in_views_again() -> None:
    cluster = mesh_of(12)
    run(cluster, 2 * SECOND)
    cluster.world.cut("east/c3", "*")
    cluster.world.cut("*", "east/c3")
    run(cluster, 30 * SECOND)
    assert feed_of(cluster, "east/c3").view.peers == []
    publish(cluster, 10)
    cluster.world.heal_all()
    run(cluster, 10 * SECOND)
    edges = graph(cluster)
    assert sum("east/c3" in peers for peers in edges.values()) >= 3
    assert len(edges["east/c3"]) >= 3
    settle(cluster)


def test_g12_departed_clients_disappear_from_views_while_the_mesh_is_replaced() -> None:
    """Each second a client leaves and another joins: departed clients do not stay in views."""
    cluster = mesh_of(10)
    run(cluster, 2 * SECOND)
    for n in range(40):
        cluster.remove_client(f"east/c{n}")
        cluster.add_client(f"east/c{n + 10}")
        publish(cluster, 2)
        run(cluster, 998 * MS)
    run(cluster, 60 * SECOND)
    settle(cluster)
    live = {name for name in cluster.clients if name in cluster.subscribers}
    names = [p for c in live for p in feed_of(cluster, c).view.peers]
    assert sum(p not in live for p in names) < 0.25 * len(names)
    assert 0 < diameter(graph(cluster)) <= 2
