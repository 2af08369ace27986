"""G2, G4, G11, G12 and R12 of the mesh under faults, checked by the judge; G13 by delivery times.

A few fault runs (a seed and a preset: two regions, three streams, clients that join, leave, stall
and crash, links and servers that fail) are made once and examined by several tests. In them every
client checks its own invariants after every step (`meshes.Watched`).
"""

import itertools
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from surecast.columns.retention import KeepAll, LatestPerKey, Policy
from surecast.core.types import MS, SECOND
from surecast.sim.links import Link
from surecast.sim.world import World
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import publish, run, settle
from tests.protocols.sprinkler.meshes import PRESETS, graph, mesh_of

pytestmark = pytest.mark.slow

SEEDS = (1, 2, 3)
STREAMS: dict[str, tuple[str, Policy]] = {
    "plain": ("east", KeepAll()),
    "keyed": ("east", LatestPerKey()),
    "far": ("west", KeepAll()),
}
FAULTS = (
    *("crash", "crash", "pause", "leave", "join", "join", "slow", "cut", "one-way cut"),
    *("off server", "reset", "replica", "all replicas", "region", "lossy"),
)
fault_runs = pytest.mark.parametrize(
    ("seed", "preset"), [*((seed, "default") for seed in SEEDS), (1, "paper"), (2, "paper")]
)


class FaultRun:
    """A mesh with small buffers that overflow, under all `FAULTS`; then all faults are healed."""

    def __init__(self, seed: int, preset: str) -> None:
        self.rng = Random(f"mesh ordeal {seed}")
        self.cluster = mesh_of(
            0,
            {"east": 2, "west": 1},
            STREAMS,
            seed,
            # With a larger fanout servers would notify all of these few clients.
            mesh=replace(PRESETS[preset], fanout=2, server_fanout=2),
            publishers=1,
            client={"keep_bytes_max": 20_000, "early_bytes_max": 10_000, "asks_max": 8},
            server={"compact_ns": 300 * MS, "compact_share": 0.2},
        )
        self.joined = 0
        self.faults: list[str] = []
        for _ in range(8):
            self._join("east")
        for _ in range(3):
            self._join("west")
        self.start_ns = self.cluster.world.now_ns
        self._load()
        kinds = [*FAULTS, *self.rng.choices(FAULTS, k=10)]
        self.rng.shuffle(kinds)
        for i, kind in enumerate(kinds):
            at_ns = self.start_ns + (i + 1) * 6 * SECOND // len(kinds)
            self.cluster.world.call(at_ns, lambda world, kind=kind: self._strike(world, kind))
        run(self.cluster, 7 * SECOND)
        self.cluster.world.heal_all()
        limit_ns = self.cluster.world.now_ns + 60 * SECOND
        self.settled = self.cluster.world.run(limit_ns, until=lambda _: self.cluster.settled())
        self.healed_ns = self.cluster.world.now_ns

    def _join(self, region: str) -> None:
        rng = self.rng
        starts = {name: rng.choice((1, 1, 0, 20, 200)) for name in STREAMS if rng.random() < 0.8}
        self.cluster.add_client(f"{region}/c{self.joined}", starts or {"plain": 1})
        self.joined += 1

    def _load(self) -> None:
        for name, (owner, _) in STREAMS.items():
            at_ns, n = self.start_ns, 0
            while at_ns < self.start_ns + 6 * SECOND:
                at_ns += int(self.rng.expovariate(1 / (20 * MS)))
                count = self.rng.choice((1, 1, 3, 10))
                values = [f"{name}.{n + i}".encode() for i in range(count)]
                keys: list[bytes | None] = [b"k%d" % self.rng.randrange(30) for _ in values]
                n += count
                self.cluster.offer(at_ns, f"{owner}/pub0", name, values, keys)

    def _strike(self, world: World, kind: str) -> None:
        cluster, rng = self.cluster, self.rng
        for_ns = rng.randint(30, 1500) * MS
        alive = [c for c in cluster.clients if c in cluster.subscribers]
        east = [c for c in alive if c.startswith("east")]
        one, (a, b) = rng.choice(alive), rng.sample(east, 2)
        heal: Any = lambda: world.mend(a, b)  # noqa: E731
        if kind == "crash":
            world.crash(one)
            heal = lambda: world.restart(one) if one in cluster.subscribers else None  # noqa: E731
        elif kind == "pause":
            world.pause(one)
            heal = lambda: world.resume(one)  # noqa: E731
        elif kind == "leave":
            cluster.remove_client(one)
            heal = lambda: None  # noqa: E731
        elif kind == "join":
            self._join(rng.choice(("east", "west")))
            heal = lambda: None  # noqa: E731
        elif kind == "slow":
            world.degrade(a, b, Link(rng.randint(10, 200) * MS, jitter_ns=20 * MS))
        elif kind == "lossy":
            world.degrade(a, b, Link(MS, loss=0.3))
        elif kind == "cut":
            world.cut(a, b)
        elif kind == "one-way cut":
            world.cut(a, b, two_way=False)
        elif kind == "off server":
            b = rng.choice(cluster.regions["east"])
            world.cut(a, b)
        elif kind == "reset":
            world.reset_sessions(one)
        elif kind == "replica":
            node = rng.choice(cluster.regions["east"])
            world.crash(node)
            heal = lambda: world.restart(node)  # noqa: E731
        elif kind == "all replicas":
            for node in cluster.regions["east"]:
                world.crash(node)
                world.call(world.now_ns + for_ns, lambda w, node=node: w.restart(node))
            heal = lambda: None  # noqa: E731
        else:
            world.cut("east", "west")
            heal = lambda: world.mend("east", "west")  # noqa: E731
        self.faults.append(kind)
        world.call(world.now_ns + for_ns, lambda _: heal())


@cache
def fault_run(seed: int, preset: str) -> FaultRun:
    return FaultRun(seed, preset)


@pytest.mark.slow
@fault_runs
def test_g2_positions_rise_without_gaps_from_the_requested_start(seed: int, preset: str) -> None:
    """(G11 and G12 too: `Watched` checks them after each step of each client.)"""
    cluster = fault_run(seed, preset).cluster
    readings = [r for record in cluster.records.values() for r in record.readings]
    assert len(readings) > 20, (seed, preset)
    for name, record in cluster.records.items():
        for reading in record.readings:
            start = cluster.clients[reading.reader][name]
            assert reading.faults == [], (seed, preset)
            spans = [(e.seq, e.seq + 1) for e in reading.events] + [v[:2] for v in reading.voids]
            spans.sort()
            assert not spans or start in (0, spans[0][0]), (seed, preset)
            for (_, hi), (lo, _) in itertools.pairwise(spans):
                assert lo == hi, (seed, preset)


@pytest.mark.slow
@fault_runs
def test_g4_every_client_gets_every_event_or_its_void(seed: int, preset: str) -> None:
    one = fault_run(seed, preset)
    assert set(one.faults) == set(FAULTS), (seed, preset)
    assert one.settled, (seed, preset, one.cluster.names)
    tally = one.cluster.judge()
    assert tally.violations == [], (seed, preset)
    assert tally.lost == tally.duplicated == tally.misordered == 0, (seed, preset)
    assert tally.acked == tally.published > 1500, (seed, preset)
    assert tally.void > 0, (seed, preset)  # voids pass through the mesh like events


@fault_runs
def test_g4_peers_deliver_a_substantial_share(seed: int, preset: str) -> None:
    """If servers had sent everything, the fault run would prove nothing about the mesh."""
    cluster = fault_run(seed, preset).cluster
    of_peers, of_server, fallback = (
        sum(cluster.counters[c][f"mesh.{what}"] for c in cluster.clients)
        for what in ("positions-from-peers", "positions-from-server", "fallback")
    )
    assert of_peers > 0.2 * of_server, (seed, preset)
    assert fallback > 0, (seed, preset)


@fault_runs
def test_g11_g12_state_about_peers_stays_bounded(seed: int, preset: str) -> None:
    cluster = fault_run(seed, preset).cluster
    view_max = PRESETS[preset].view_max
    for name in cluster.clients:
        client = cluster.world.machine(name)
        for feed in client.feeds.values():
            assert len(feed.known) <= 4 * view_max + len(cluster.clients), (seed, name)
            assert len(feed.leaning) <= 2 * view_max, (seed, name)
            assert set(feed.active) <= set(cluster.clients), (seed, name)
            assert feed.early == [], (seed, name)
            assert feed.asks == [] or not fault_run(seed, preset).settled, (seed, name)
        assert len(client.late) <= len(client.up), (seed, name)


@fault_runs
def test_r12_silent_clients_poll_the_servers(seed: int, preset: str) -> None:
    """Every client is cut off from all others and from one server, so that none notifies it."""
    cluster = mesh_of(5, {"east": 2}, seed=seed, mesh=PRESETS[preset])
    publish(cluster, 20)
    settle(cluster)
    world = cluster.world
    clients = list(cluster.clients)
    for a in clients:
        world.cut(a, "east/1")
        for b in clients:
            if a < b:
                world.cut(a, b)
    publish(cluster, 20)
    began_ns = world.now_ns
    settle(cluster)
    assert world.now_ns - began_ns < 10 * SECOND, seed
    assert cluster.judge().violations == [], seed


# ---------------------------------------------------------------- G13


def delivery_times(cluster: Cluster, count: int, gap_ns: int) -> dict[tuple[str, int], int]:
    """Publish with pauses; returns (client, position) → the time until delivery."""
    world, took = cluster.world, {}
    first = len(cluster.records["s"].offered) + 1
    sent_ns = {first + i: world.now_ns + i * gap_ns for i in range(count)}

    def note(now_ns: int, name: str, _stream: bytes, batches: tuple[Any, ...]) -> None:
        for batch in batches:
            for seq in range(batch.lo, batch.hi):
                if seq in sent_ns:
                    took[name, seq] = now_ns - sent_ns[seq]

    world.on_deliver("*", note)
    for i in range(count):
        cluster.offer(world.now_ns + i * gap_ns, "east/pub0", "s", [b"timed %d" % (first + i)])
    run(cluster, count * gap_ns + SECOND)
    return took


@cache
def worst(seed: int, preset: str, kind: str) -> int:
    """The longest delivery time to a client that had no fault, while others have this fault."""
    cluster = mesh_of(10, {"east": 1}, seed=seed, mesh=PRESETS[preset])
    publish(cluster, 50)
    run(cluster, 2 * SECOND)
    world, start_ns = cluster.world, cluster.world.now_ns
    for i, name in enumerate(("east/c3", "east/c4", "east/c5")):
        at_ns = start_ns + (i * 400 + 105) * MS
        world.call(at_ns, lambda w, name=name: strike(w, name, kind))
    took = delivery_times(cluster, 70, 20 * MS)
    others = [f"east/c{n}" for n in (0, 1, 2, 6, 7, 8, 9)]
    got = [ns for (name, _), ns in took.items() if name in others]
    assert len(got) == 7 * 70, (seed, kind)
    return max(got)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", ["pause", "crash", "cut", "reset"])
def test_g13_a_client_that_stalls_or_crashes_delays_no_other(kind: str, preset: str) -> None:
    """Others are delayed by at most a deadline and a server's round trip."""
    slack_ns = 20 * MS + 5 * MS
    for seed in SEEDS[:2]:
        found, usual = worst(seed, preset, kind), worst(seed, preset, "nothing")
        assert found <= usual + slack_ns, (seed, kind, preset, found, usual)


def strike(world: World, name: str, kind: str) -> None:
    if kind == "pause":
        world.pause(name)
    elif kind == "crash":
        world.crash(name)
    elif kind == "cut":
        world.cut(name, "*")
    elif kind == "reset":
        world.reset_sessions(name)


@pytest.mark.parametrize("seed", SEEDS)
def test_g13_a_slow_client_does_not_delay_the_others(seed: int) -> None:
    """One client's links are slow both ways: its deliveries are late, those of others are not."""
    cluster = mesh_of(10, {"east": 1}, seed=seed)
    publish(cluster, 50)
    run(cluster, 3 * SECOND)
    cluster.world.degrade("east/c3", "*", Link(100 * MS))
    cluster.world.degrade("*", "east/c3", Link(100 * MS))
    took = delivery_times(cluster, 50, 20 * MS)
    assert max(ns for (name, _), ns in took.items() if name != "east/c3") < 60 * MS, seed
    assert len(took) == 500, seed
    assert set(graph(cluster)) == set(cluster.clients)
