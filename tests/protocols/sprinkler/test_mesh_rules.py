"""The mesh's rules: a scenario for each, run with the rule and without it (`tests/mutations.py`).

Mechanisms that would compensate for the missing rule are switched off: timers are an hour long,
servers do not notify or are cut off.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from surecast.core.types import MS, SECOND, Received, tag_of
from surecast.protocols.sprinkler.config import MeshConfig
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.sprinkler.messages import MeshNotify, MeshRequest
from surecast.sim.links import Link
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import each_scenario, publish, run, settle
from tests.protocols.sprinkler.meshes import (
    HOUR,
    SILENT_HUB,
    diameter,
    feed_of,
    graph,
    introduce,
    mesh_of,
    positions,
)

Scenario = Callable[[type | None], list[str]]

PATIENT = {"silence_ns": HOUR, "silence_ns_max": HOUR}  # a client that never polls


def told(
    count: int, mutant: type | None, mesh: MeshConfig | None = None, **options: Any
) -> Cluster:
    kind = mutant if mutant is not None and issubclass(mutant, MeshPeer) else MeshPeer
    options.setdefault("server", {"mesh": SILENT_HUB})
    return mesh_of(count, mesh=mesh or MeshConfig(), client_type=kind, **options)


def behind(cluster: Cluster, *clients: str) -> list[str]:
    """A line for each of the clients (default: all) that lacks acknowledged events."""
    end = len(cluster.records["s"].acked) + 1
    late = {c: p for c, p in positions(cluster).items() if p != end and c in (clients or (c,))}
    return [f"{c} is at {p}, not {end}" for c, p in late.items()]


def full_views(cluster: Cluster) -> None:
    names = list(cluster.clients)
    introduce(cluster, {name: [n for n in names if n != name] for name in names})


def last_before_a_pause(mutant: type | None) -> list[str]:
    """A few events, then none: the last ones still reach peers that are picked later."""
    mesh = MeshConfig(fanout=1, server_fanout=1, shuffle_ns=100 * MS, gossip_ns=HOUR, mutual=False)
    cluster = told(10, mutant, mesh, client=PATIENT)
    run(cluster, SECOND)
    full_views(cluster)
    run(cluster, 500 * MS)
    publish(cluster, 20)
    run(cluster, 20 * SECOND)
    return behind(cluster)


def peer_that_has_less(mutant: type | None) -> list[str]:
    """c1 notifies of more than it has; later c2, which has it, does. Servers are unreachable."""
    cluster = told(3, mutant, MeshConfig(gossip_ns=HOUR, shuffle_ns=HOUR), client=PATIENT)
    run(cluster, SECOND)
    publish(cluster, 5)
    world, stream = cluster.world, cluster.streams["s"]
    wait_for(cluster, 6)
    for name in ("east/c0", "east/c1"):
        world.cut(name, "east/0")
        world.cut(name, "east/c2")
    publish(cluster, 10)
    ask(cluster, "east/c2")
    run(cluster, 5 * SECOND)
    world.at(world.now_ns, "east/c0", Received("east/c1", MeshNotify(stream, 16)))
    run(cluster, SECOND)
    world.mend("east/c0", "east/c2")
    run(cluster, 3 * SECOND)
    world.at(world.now_ns, "east/c0", Received("east/c2", MeshNotify(stream, 16)))
    run(cluster, 3 * SECOND)
    return behind(cluster, "east/c0")


def wait_for(cluster: Cluster, position: int) -> None:
    """Bring all clients to this position, also if notifications are switched off."""
    for name in cluster.clients:
        ask(cluster, name)
    run(cluster, SECOND)
    assert set(positions(cluster).values()) == {position}


def ask(cluster: Cluster, name: str) -> None:
    """Deliver a notification of all events to the client `name`, as if from the server."""
    stream, end = cluster.streams["s"], len(cluster.records["s"].offered) + 1
    notify = Received("east/0", MeshNotify(stream, end))
    cluster.world.at(cluster.world.now_ns, name, notify)


def tell_only(cluster: Cluster, name: str) -> None:
    """Make the server know and notify this client only."""
    mesh = cluster.world.machine("east/0").layers["sprinkler.mesh"].meshes[cluster.streams["s"]]
    mesh.view.peers, mesh.active = [name], [name]


def names_that_die_out(mutant: type | None) -> list[str]:
    """Small views mix for long without a server. Measures the share of clients in no view.

    Random removal alone loses five times as many clients as when a sender is always kept.
    """
    mesh = MeshConfig(view_max=4, fanout=2, server_fanout=2, gossip_ns=200 * MS, server_every=10**9)
    cluster = told(40, mutant, mesh)
    run(cluster, 30 * SECOND)
    unknown = 0
    for _ in range(30):
        run(cluster, SECOND)
        edges = graph(cluster)
        unknown += len(set(edges) - {peer for peers in edges.values() for peer in peers})
    share = unknown / 30 / 40
    return [f"{share:.1%} of all clients are in no view"] if share > 0.04 else []


def names_of_the_dead(mutant: type | None) -> list[str]:
    """Two of fourteen clients leave for good: in time they are in no view."""
    cluster = told(14, mutant, server={})
    run(cluster, 3 * SECOND)
    for name in ("east/c0", "east/c1"):
        cluster.remove_client(name)
    run(cluster, 200 * SECOND)
    views = {c: feed_of(cluster, c).view.peers for c in positions(cluster)}
    return [c for c, peers in views.items() if {"east/c0", "east/c1"} & {*peers}]


def hole_in_the_middle(mutant: type | None) -> list[str]:
    """c1 keeps only the last few events; c0 needs more of them."""
    cluster = told(2, mutant, client={**PATIENT, "keep_bytes_max": 2000})
    run(cluster, SECOND)
    cluster.world.crash("east/c0")
    publish(cluster, 50)
    ask(cluster, "east/c1")
    run(cluster, SECOND)
    cluster.world.cut("east/c0", "east/0")
    cluster.world.restart("east/c0")
    run(cluster, 4 * SECOND)
    cluster.world.mend("east/c0", "east/0")
    machine = cluster.world.machine("east/c0")
    for feed in machine.feeds.values():
        feed.joined = True  # as if a server had answered it before
        feed.asks.clear()
    stream = cluster.streams["s"]
    notify = Received("east/c1", MeshNotify(stream, 51))
    cluster.world.at(cluster.world.now_ns, "east/c0", notify)
    run(cluster, 5 * SECOND)
    return behind(cluster, "east/c0")


def asked_a_sleeper(mutant: type | None) -> list[str]:
    """c1 notifies of new events and is paused before it gets the request."""
    mesh = MeshConfig(gossip_ns=HOUR, shuffle_ns=HOUR)
    cluster = told(2, mutant, mesh, client=PATIENT)
    run(cluster, SECOND)
    publish(cluster, 5)
    wait_for(cluster, 6)
    publish(cluster, 5)
    world, stream = cluster.world, cluster.streams["s"]
    world.pause("east/c1")
    world.at(world.now_ns, "east/c0", Received("east/c1", MeshNotify(stream, 11)))
    run(cluster, 100 * MS)
    return behind(cluster, "east/c0")


def asked_the_dead(mutant: type | None) -> list[str]:
    """c1 notifies of new events and crashes before it gets the request; no deadlines."""
    mesh = MeshConfig(gossip_ns=HOUR, shuffle_ns=HOUR)
    forever = {"deadline_ns_min": HOUR, "server_retry_ns": HOUR}
    cluster = told(2, mutant, mesh, client={**PATIENT, **forever})
    run(cluster, SECOND)
    publish(cluster, 5)
    wait_for(cluster, 6)
    publish(cluster, 5)
    world, stream = cluster.world, cluster.streams["s"]
    world.crash("east/c1")
    world.at(world.now_ns, "east/c0", Received("east/c1", MeshNotify(stream, 11)))
    run(cluster, 5 * SECOND)
    return behind(cluster, "east/c0")


def nobody_says_anything(mutant: type | None) -> list[str]:
    """The server notifies one client, and clients do not know each other."""
    cluster = told(4, mutant, MeshConfig(gossip_ns=HOUR, shuffle_ns=HOUR))
    run(cluster, SECOND)
    introduce(cluster, {name: [] for name in cluster.clients})
    publish(cluster, 5)
    run(cluster, 20 * SECOND)
    return behind(cluster)


def picked_by_nobody(mutant: type | None) -> list[str]:
    """c0 knows the others, none of them knows c0; the server notifies another client."""
    mesh = MeshConfig(gossip_ns=HOUR, shuffle_ns=500 * MS)
    cluster = told(5, mutant, mesh, client=PATIENT)
    run(cluster, SECOND)
    publish(cluster, 5)
    wait_for(cluster, 6)
    others = [f"east/c{n}" for n in range(1, 5)]
    introduce(cluster, {"east/c0": others, **{a: [b for b in others if b != a] for a in others}})
    tell_only(cluster, "east/c1")
    feed_of(cluster, "east/c0").news = True
    run(cluster, SECOND)
    publish(cluster, 10)
    for name in others:
        ask(cluster, name)
    run(cluster, 3 * SECOND)
    return behind(cluster, "east/c0")


def much_comes_early(mutant: type | None) -> list[str]:
    """c0 has a slow link to its server: it gets new events from peers, and no old ones."""
    options = {"early_bytes_max": 5000, "keep_bytes_max": 5000}
    cluster = told(6, mutant, client=options, server={})
    run(cluster, 3 * SECOND)
    publish(cluster, 100)
    cluster.world.crash("east/c0")
    publish(cluster, 100)
    cluster.world.degrade("east/0", "east/c0", Link(400 * MS))
    cluster.world.restart("east/c0")
    found = []
    for _ in range(40):
        publish(cluster, 10)
        for name in cluster.clients:
            feed = feed_of(cluster, name)
            early, kept = (sum(b.nbytes for b in bs) for bs in (feed.early, feed.kept))
            if early > 5000 or kept - 128 * feed.kept_from > 5000:
                found.append(f"G11 {name} holds {early} and {kept} bytes")
    settle(cluster)
    return found[:3] + behind(cluster)


def no_room_for_what_was_asked(mutant: type | None) -> list[str]:
    """c2's early events exceed c0's buffer because the events before them arrive later from c1."""
    mesh = MeshConfig(gossip_ns=HOUR, shuffle_ns=HOUR)
    cluster = told(3, mutant, mesh, client={**PATIENT, "early_bytes_max": 4000})
    run(cluster, SECOND)
    publish(cluster, 10)
    wait_for(cluster, 11)
    world, stream, requests = cluster.world, cluster.streams["s"], []
    introduce(cluster, {name: [] for name in cluster.clients})
    tell_only(cluster, "east/c1")
    publish(cluster, 50)
    ask(cluster, "east/c1")
    ask(cluster, "east/c2")
    run(cluster, 500 * MS)
    for name in ("east/c1", "east/c2"):
        machine = world.machine(name)
        answer = machine._on_request

        def note(peer: str, message: Any, answer: Any = answer) -> None:
            requests.append((message.lo, message.hi))
            answer(peer, message)

        machine._received[MeshRequest] = (tag_of(MeshRequest), note)
    world.degrade("east/c1", "east/c0", Link(15 * MS))  # in time, but later than c2
    world.at(world.now_ns, "east/c0", Received("east/c1", MeshNotify(stream, 15)))
    world.at(world.now_ns, "east/c0", Received("east/c2", MeshNotify(stream, 61)))
    run(cluster, 3 * SECOND)
    asked = sorted(seq for lo, hi in requests for seq in range(lo, hi))
    twice = sorted({a for a, b in itertools.pairwise(asked) if a == b})
    return [f"G11 peers were asked again for {twice[:5]}"] * bool(twice) + behind(
        cluster, "east/c0"
    )


def peers_far_from_each_other(mutant: type | None) -> list[str]:
    """Round trips between clients exceed the shortest deadline; peers must still serve."""
    cluster = told(10, mutant, server={})
    for a in cluster.clients:
        for b in cluster.clients:
            if a != b:
                cluster.world.set_link(a, b, Link(15 * MS), two_way=False)
    run(cluster, 3 * SECOND)
    publish(cluster, 400)
    settle(cluster)
    late = sum(cluster.counters[c]["mesh.late"] for c in cluster.clients)
    asked = sum(cluster.counters[c]["sprinkler/MeshRequest"] for c in cluster.clients)
    return [f"{late} of {asked} requests timed out"] if late > asked // 4 else []


def server_that_dies(mutant: type | None) -> list[str]:
    """All clients move to the other replica, which must notify them soon without knowing them."""
    options = {"regions": {"east": 2}, "chain": {"min_replicas": 1}, "server": {}}
    cluster = told(10, mutant, MeshConfig(gossip_ns=HOUR), **options)
    publish(cluster, 20)
    run(cluster, 3 * SECOND)
    world, last_ns, longest = cluster.world, {}, {}

    def note(now_ns: int, name: str, *_: Any) -> None:
        longest[name] = max(longest.get(name, 0), now_ns - last_ns.get(name, now_ns))
        last_ns[name] = now_ns

    world.on_deliver("*", note)
    publish(cluster, 20)
    world.crash("east/1")
    publish(cluster, 1300)
    settle(cluster)
    late = {name: ns for name, ns in longest.items() if ns > 700 * MS}
    return [f"{name} received nothing for {ns // MS} ms" for name, ns in late.items()]


def start_far_ahead(mutant: type | None) -> list[str]:
    """A client starts at a future position: it must not make others request what does not exist."""
    cluster = told(6, mutant, server={})
    publish(cluster, 20)
    run(cluster, 3 * SECOND)
    cluster.add_client("east/f", {"s": 5000})
    run(cluster, 20 * SECOND)
    asked = cluster.counters["east/f"]["sprinkler/MeshRequest"]
    return [f"it received {asked} requests for positions that do not exist"] if asked else []


def two_meshes(mutant: type | None) -> list[str]:
    """Half of the clients know one server, half the other; the two meshes must join."""
    cluster = mesh_of(0, {"east": 2}, client_type=MeshPeer, mutant=mutant)
    world, servers = cluster.world, cluster.regions["east"]
    for n in range(12):
        home = servers[n % 2 :] + servers[: n % 2]
        cluster.add_client(f"east/c{n}", replicas=home)
    halves = [[f"east/c{n}" for n in range(k, 12, 2)] for k in (0, 1)]
    run(cluster, 3 * SECOND)
    for half in halves:
        introduce(cluster, {a: [b for b in half if b != a] for a in half})
    for server, half in zip(servers, halves, strict=True):
        mesh = world.machine(server).layers["sprinkler.mesh"].meshes[cluster.streams["s"]]
        mesh.view.peers = list(half)
    run(cluster, 60 * SECOND)
    return ["two meshes"] if diameter(graph(cluster)) < 0 else []


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("announce", last_before_a_pause, mutations.NeverAnnounces),
    ("r12-lower-next", peer_that_has_less, mutations.NeverLowersNext),
    ("g12-reinforcement", names_that_die_out, mutations.ForgetsSenders),
    ("g12-the-dead-fade", names_of_the_dead, mutations.TakesBackTheDead),
    ("g12-servers-meet", two_meshes, mutations.LonelyServers),
    ("g4-holes", hole_in_the_middle, mutations.LeavesHoles),
    ("g13-deadline", asked_a_sleeper, mutations.WaitsForever),
    ("g13-peer-down", asked_the_dead, mutations.WaitsForTheDead),
    ("r12-silence", nobody_says_anything, mutations.NeverPolls),
    ("g4-leaning", picked_by_nobody, mutations.IgnoresLeaners),
    ("g11-bounds", much_comes_early, mutations.HoldsWithoutLimit),
    ("g11-once", no_room_for_what_was_asked, mutations.AsksPeersAgain),
    ("g13-late-answers", peers_far_from_each_other, mutations.LearnsOnlyInTime),
    ("g4-new-server", server_that_dies, mutations.StaysUnknown),
    ("g4-future", start_far_ahead, mutations.ClaimsTheFuture),
]


@pytest.mark.slow
@each_scenario(SCENARIOS)
def test_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@pytest.mark.slow
@each_scenario(SCENARIOS)
def test_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []
