"""Start positions of a client: the earliest, the latest, in the past, in the future."""

import pytest

from surecast.columns.retention import KeepAll, LatestPerKey
from surecast.core.types import MS, SECOND
from surecast.sim.links import Link
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import publish, run, settle, wait
from tests.protocols.sprinkler.meshes import PRESETS, feed_of, mesh_of


def seqs(cluster: Cluster, name: str, stream: str = "s") -> list[int]:
    reading = cluster.readings[name, cluster.streams[stream]]
    assert reading.faults == []
    return [event.seq for event in reading.events]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", [1, 2])
def test_late_joiners_begin_at_the_requested_start(seed: int, preset: str) -> None:
    cluster = mesh_of(4, {"east": 2}, seed=seed, mesh=PRESETS[preset])
    publish(cluster, 100)
    settle(cluster)
    for name, start in (("earliest", 1), ("latest", 0), ("past", 60), ("future", 130)):
        cluster.add_client(f"east/{name}", {"s": start})
    run(cluster, SECOND)
    assert [cluster.position(f"east/{n}", "s") for n in ("earliest", "latest", "past")] == [101] * 3
    publish(cluster, 100)
    settle(cluster)
    assert seqs(cluster, "east/earliest") == list(range(1, 201))
    assert seqs(cluster, "east/latest") == list(range(101, 201))
    assert seqs(cluster, "east/past") == list(range(60, 201))
    assert seqs(cluster, "east/future") == list(range(130, 201))
    assert cluster.judge().violations == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clients_that_join_under_load_survive_a_crash_of_their_server(seed: int) -> None:
    """They join while events are published; their server crashes a moment later."""
    cluster = mesh_of(4, {"east": 2}, seed=seed, chain={"min_replicas": 1})
    publish(cluster, 200)
    for n, start in enumerate((1, 0, 50, 1, 0, 180)):
        cluster.add_client(f"east/late{n}", {"s": start})
        publish(cluster, 2)
    cluster.world.crash("east/1")
    publish(cluster, 300)
    cluster.world.restart("east/1")
    publish(cluster, 100)
    settle(cluster)
    assert cluster.judge().violations == [], seed
    assert seqs(cluster, "east/late2") == list(range(50, 613)), seed


def test_latest_of_a_stream_that_the_region_does_not_know_yet_begins_at_its_first_event() -> None:
    """The client's region does not know the stream yet: the client waits and misses nothing."""
    cluster = mesh_of(0, {"west": 1, "east": 1}, {"s": ("east", KeepAll())})
    cluster.world.crash("west/0")
    cluster.world.wipe("west/0")
    cluster.world.cut("east", "west")
    cluster.world.restart("west/0")
    for name, start in (("latest", 0), ("earliest", 1)):
        cluster.add_client(f"west/{name}", {"s": start})
    run(cluster, 5 * SECOND)
    assert [cluster.position(f"west/{n}", "s") for n in ("latest", "earliest")] == [0, 1]
    cluster.world.mend("east", "west")
    wait(cluster, lambda: cluster.position("west/latest", "s") == 1)
    publish(cluster, 20)
    settle(cluster)
    assert seqs(cluster, "west/latest") == seqs(cluster, "west/earliest") == list(range(1, 21))


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_stream_much_larger_than_the_buffers_reaches_all_clients(preset: str) -> None:
    """20,000 events through clients that keep 10 kB: at full speed, and to late joiners."""
    options = {"keep_bytes_max": 10_000, "early_bytes_max": 10_000, "reply_bytes_max": 4000}
    cluster = mesh_of(
        6, {"east": 2}, mesh=PRESETS[preset], client=options, server={"serve_bytes_max": 20_000}
    )
    run(cluster, 2 * SECOND)
    start_ns = cluster.world.now_ns
    for n in range(400):
        values = [b"%d" % (50 * n + i) for i in range(50)]
        cluster.offer(start_ns + n * 2 * MS, "east/pub0", "s", values)
    run(cluster, 400 * MS)
    cluster.add_client("east/late", {"s": 1})
    cluster.world.crash("east/c0")
    run(cluster, 300 * MS)
    cluster.world.restart("east/c0")
    settle(cluster)
    assert cluster.world.now_ns - start_ns < 4 * SECOND
    assert cluster.position("east/late", "s") == 20_001
    assert cluster.judge().violations == []
    assert feed_of(cluster, "east/c1").kept_bytes > 0
    of_peers = sum(cluster.counters[c]["mesh.positions-from-peers"] for c in cluster.clients)
    assert of_peers > 10_000


@pytest.mark.parametrize("seed", [1, 2])
def test_voids_pass_from_client_to_client(seed: int) -> None:
    """Latest per key: clients that were down get voids for collected events, also from peers."""
    cluster = mesh_of(8, {"east": 1}, {"s": ("east", LatestPerKey())}, seed=seed)
    run(cluster, 2 * SECOND)
    start_ns = cluster.world.now_ns

    def offer(n: int, at_ns: int) -> None:
        values = [b"%d" % (10 * n + i) for i in range(10)]
        cluster.offer(at_ns, "east/pub0", "s", values, [b"k%d" % (i % 5) for i in range(10)])

    for name in ("east/c0", "east/c1", "east/c2"):
        cluster.world.crash(name)
    for n in range(100):
        offer(n, start_ns + n * 5 * MS)
        run(cluster, 5 * MS)
    for name in ("east/c0", "east/c1", "east/c2"):
        cluster.world.restart(name)
        run(cluster, 20 * MS)
    for n in range(50):
        offer(100 + n, cluster.world.now_ns)
        run(cluster, 5 * MS)
    settle(cluster)
    assert cluster.judge().violations == [], seed
    voids = cluster.readings["east/c0", cluster.streams["s"]].voids
    assert sum(hi - lo for lo, hi, _ in voids) > 500, seed
    # A client whose server is down gets everything, including voids, from another client.
    cluster.add_client("east/new", {"s": 1})
    run(cluster, 500 * MS)
    assert cluster.position("east/new", "s") == 1501
    held = feed_of(cluster, "east/c0").held(1, 1501)
    assert any(batch.rows < batch.count for batch in held), seed
    cluster.world.crash("east/0")
    cluster.add_client("east/last", {"s": held[0].lo})
    run(cluster, 200 * MS)
    feed_of(cluster, "east/last").view.merge("east/c0", (), cluster.world.machine("east/c0").rng)
    run(cluster, 5 * SECOND)
    assert cluster.position("east/last", "s") == 1501, seed
    assert cluster.judge().violations == [], seed


def test_catching_up_over_a_slow_link_uses_its_full_bandwidth() -> None:
    """A server that is still sending is not treated as silent; no other is asked for the same."""
    cluster = mesh_of(4, {"east": 2})
    run(cluster, 2 * SECOND)
    world = cluster.world
    for n in range(100):
        values = [b"%d-%d-" % (n, i) + bytes(2000) for i in range(20)]
        cluster.offer(world.now_ns + n * 3 * MS, "east/pub0", "s", values)
    run(cluster, SECOND)
    world.degrade("*", "east/new", Link(MS, bandwidth_bps=10_000_000))
    cluster.add_client("east/new", {"s": 1})
    began_ns = world.now_ns
    settle(cluster)
    took_ns, ideal_ns = world.now_ns - began_ns, 100 * 20 * 2000 * 8 * SECOND // 10_000_000
    assert ideal_ns < took_ns < 1.15 * ideal_ns
