"""The mesh's rules: each one's story, told with the rule and without it (`tests/mutations.py`).

To show one rule at work the others that would make up for it in time are switched off: timers an
hour long, servers that tell nobody or are cut off.
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
from tests.helpers import publish, run, settle, tell_each
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

Story = Callable[[type | None], list[str]]

PATIENT = {"silence_ns": HOUR, "silence_ns_max": HOUR}  # a client that never polls


def told(
    count: int, mutant: type | None, mesh: MeshConfig | None = None, **options: Any
) -> Cluster:
    kind = mutant if mutant is not None and issubclass(mutant, MeshPeer) else MeshPeer
    options.setdefault("server", {"mesh": SILENT_HUB})
    return mesh_of(count, mesh=mesh or MeshConfig(), client_type=kind, **options)


def behind(cluster: Cluster, *clients: str) -> list[str]:
    """Who has not got all that was acknowledged; else what the judge says."""
    end = len(cluster.records["s"].acked) + 1
    late = {c: p for c, p in positions(cluster).items() if p != end and c in (clients or (c,))}
    return [f"{c} stands at {p}, not {end}" for c, p in late.items()]


def full_views(cluster: Cluster) -> None:
    names = list(cluster.clients)
    introduce(cluster, {name: [n for n in names if n != name] for name in names})


def last_before_a_pause(mutant: type | None) -> list[str]:
    """A few events, then nothing: the last ones still reach those that are picked later."""
    mesh = MeshConfig(fanout=1, server_fanout=1, shuffle_ns=100 * MS, gossip_ns=HOUR, mutual=False)
    cluster = told(10, mutant, mesh, client=PATIENT)
    run(cluster, SECOND)
    full_views(cluster)
    run(cluster, 500 * MS)
    publish(cluster, 20)
    run(cluster, 20 * SECOND)
    return behind(cluster)


def peer_that_has_less(mutant: type | None) -> list[str]:
    """c1 said more than it has; c2, which has it, speaks up later; servers cannot be reached."""
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
    """Let all clients get so far, whatever is switched off."""
    for name in cluster.clients:
        ask(cluster, name)
    run(cluster, SECOND)
    assert set(positions(cluster).values()) == {position}


def ask(cluster: Cluster, name: str) -> None:
    """As if the server had told `name` of all it has."""
    stream, end = cluster.streams["s"], len(cluster.records["s"].offered) + 1
    notify = Received("east/0", MeshNotify(stream, end))
    cluster.world.at(cluster.world.now_ns, name, notify)


def tell_only(cluster: Cluster, name: str) -> None:
    """Let the server know one client."""
    mesh = cluster.world.machine("east/0").layers["sprinkler.mesh"].meshes[cluster.streams["s"]]
    mesh.view.peers, mesh.active = [name], [name]


def names_that_die_out(mutant: type | None) -> list[str]:
    """Small views mix for long without a server: how many, at a time, are known to nobody?

    Chance alone strikes off five times as many as when a sender is sure to be known by one.
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
    return [f"{share:.1%} of all clients are known to nobody"] if share > 0.04 else []


def names_of_the_dead(mutant: type | None) -> list[str]:
    """Two of fourteen leave for good: in time nobody speaks of them."""
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
        feed.joined = True  # as if it had met a server long ago
        feed.asks.clear()
    stream = cluster.streams["s"]
    notify = Received("east/c1", MeshNotify(stream, 51))
    cluster.world.at(cluster.world.now_ns, "east/c0", notify)
    run(cluster, 5 * SECOND)
    return behind(cluster, "east/c0")


def asked_a_sleeper(mutant: type | None) -> list[str]:
    """c1 said that it has news and fell asleep before it was asked."""
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
    """The same, but it died, and there are no deadlines."""
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
    """The server tells one client, clients do not know each other."""
    cluster = told(4, mutant, MeshConfig(gossip_ns=HOUR, shuffle_ns=HOUR))
    run(cluster, SECOND)
    introduce(cluster, {name: [] for name in cluster.clients})
    publish(cluster, 5)
    run(cluster, 20 * SECOND)
    return behind(cluster)


def picked_by_nobody(mutant: type | None) -> list[str]:
    """c0 knows the others, none of them knows c0; the server tells another."""
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
    """c0 is a slow link away from its server and gets the new from peers, the old not at all."""
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
    """c1 sends more than c0 has room for, since what comes before it is still under way."""
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
    """Round trips between clients exceed the shortest deadline: peers serve all the same."""
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
    """All turn to the other replica, whom none has talked to: do they hear of news soon?"""
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
    return [f"{name} heard nothing for {ns // MS} ms" for name, ns in late.items()]


def start_far_ahead(mutant: type | None) -> list[str]:
    """A client waits for a position to come: it does not send others after what does not exist."""
    cluster = told(6, mutant, server={})
    publish(cluster, 20)
    run(cluster, 3 * SECOND)
    cluster.add_client("east/f", {"s": 5000})
    run(cluster, 20 * SECOND)
    asked = cluster.counters["east/f"]["sprinkler/MeshRequest"]
    return [f"it was asked {asked} times for what nobody has"] if asked else []


def two_meshes(mutant: type | None) -> list[str]:
    """Half of the clients knew one server, half the other; then everybody can reach everybody."""
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


STORIES: list[tuple[str, Story, type]] = [
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
@tell_each(STORIES)
def test_rule_holds(story: Story, mutant: type) -> None:
    assert story(None) == []


@pytest.mark.slow
@tell_each(STORIES)
def test_story_fails_without_the_rule(story: Story, mutant: type) -> None:
    assert story(mutant) != []
