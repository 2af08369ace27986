"""The cost of a mesh that has nothing to do, also in unusual states: no loop at network speed.

Rates are inputs (messages and timers) per client and simulated second.
"""

from collections.abc import Callable

import pytest

from surecast.columns.retention import KeepAll
from surecast.core.endpoint import Follow, Unfollow
from surecast.core.types import MS, SECOND, Received, tag_of
from surecast.protocols.sprinkler.checks import Reading
from surecast.protocols.sprinkler.config import MeshConfig, paper_mesh
from surecast.protocols.sprinkler.messages import (
    MeshEvents,
    MeshLean,
    MeshLeave,
    MeshNotify,
    MeshRequest,
    MeshView,
)
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import publish, run, settle
from tests.protocols.sprinkler.meshes import Watched, feed_of, mesh_of


class Counted(Watched):
    """A client whose steps are counted."""

    steps: int = 0

    def step(self, now_ns: int, inp: object) -> list[object]:
        self.steps += 1
        return super().step(now_ns, inp)


def counted(count: int, regions: dict[str, int] | None = None, **options: object) -> Cluster:
    return mesh_of(count, regions, client_type=Counted, **options)


def rate(cluster: Cluster, seconds: int, names: list[str] | None = None) -> float:
    """Steps per client and second, over the next `seconds`."""
    machines = [cluster.world.machine(c) for c in names or cluster.clients]
    before = sum(m.steps for m in machines)
    run(cluster, seconds * SECOND)
    return (sum(m.steps for m in machines) - before) / seconds / len(machines)


def received(cluster: Cluster) -> int:
    """Messages that clients have received so far."""
    tags = [tag_of(kind) for kind in Counted.handlers]
    return sum(cluster.counters[c][tag] for c in cluster.clients for tag in tags)


@pytest.mark.slow
def test_a_hundred_clients_at_rest_are_quiet() -> None:
    cluster = counted(100)
    publish(cluster, 50)
    settle(cluster)
    run(cluster, 20 * SECOND)
    before = received(cluster)
    steps = rate(cluster, 20)
    assert (received(cluster) - before) / 100 / 20 < 1.5  # a view a second, now and then a poll
    assert steps < 8  # including timers, and sessions that open and close


def test_r12_with_the_paper_preset_every_shuffle_notifies() -> None:
    """F notifications every S: each client receives 4 / 30 ms = 133 a second, even at rest."""
    cluster = counted(30, mesh=paper_mesh())
    publish(cluster, 20)
    settle(cluster)
    run(cluster, SECOND)
    before = received(cluster)
    run(cluster, 3 * SECOND)
    messages = (received(cluster) - before) / 30 / 3
    assert 130 < messages < 145


def settled_mesh(count: int = 8, regions: dict[str, int] | None = None) -> Cluster:
    cluster = counted(count, regions or {"east": 2})
    publish(cluster, 20)
    settle(cluster)
    run(cluster, 3 * SECOND)
    return cluster


def inject(cluster: Cluster, to: str, by: str, message: object, every_ns: int = 0) -> None:
    """Deliver a message to `to` as if from `by`, once or every `every_ns`."""

    def do(world: object) -> None:
        cluster.world.at(cluster.world.now_ns, to, Received(by, message))
        if every_ns:
            cluster.world.call(cluster.world.now_ns + every_ns, do)

    do(cluster.world)


@pytest.mark.parametrize("wanting", [False, True])
@pytest.mark.parametrize("how", ["crash", "pause", "cut"])
def test_clients_stay_quiet_while_all_servers_are_down(how: str, wanting: bool) -> None:
    cluster = settled_mesh()
    world, stream = cluster.world, cluster.streams["s"]
    for server in cluster.regions["east"]:
        if how == "crash":
            world.crash(server)
        elif how == "pause":
            world.pause(server)
        else:
            for client in cluster.clients:
                world.cut(client, server)
    if wanting:  # they were notified of positions that no node can send
        for n in range(8):
            inject(cluster, f"east/c{n}", f"east/c{(n + 1) % 8}", MeshNotify(stream, 500))
    assert rate(cluster, 30) < 30
    world.heal_all()
    publish(cluster, 20)
    settle(cluster)
    run(cluster, 5 * SECOND)
    assert rate(cluster, 10) < 8


def test_clients_of_a_stream_that_no_server_knows_stay_quiet() -> None:
    cluster = settled_mesh()
    for client in cluster.clients:
        for start in (0, 1, 77):
            nobody = b"nobody knows %3d" % start
            cluster.readings[client, nobody] = Reading(client)
            cluster.world.at(cluster.world.now_ns, client, Follow(nobody, start))
    assert rate(cluster, 20) < 20
    publish(cluster, 20)
    settle(cluster)


def test_a_server_that_stays_behind_causes_no_loop_of_requests() -> None:
    """One of two replicas is cut off from the chain, but not from clients, which know more."""
    cluster = settled_mesh(8, {"east": 2})
    world = cluster.world
    for other in ("east/1", "east/config", "east/pub0"):
        world.cut("east/0", other)
    run(cluster, 5 * SECOND)
    publish(cluster, 100)
    assert rate(cluster, 20) < 20
    world.heal_all()
    publish(cluster, 20)
    settle(cluster)
    assert cluster.judge().violations == []


LIES: dict[str, Callable[[bytes], object]] = {
    "far ahead": lambda s: MeshNotify(s, 1 << 60),
    "behind": lambda s: MeshNotify(s, -5),
    "view far ahead": lambda s: MeshView(s, (), 1 << 60, True),
    "view of nobody": lambda s: MeshView(s, ("east/c0", "east/c1") * 50, 0, True),
    "asks for all": lambda s: MeshRequest(s, -(1 << 60), 1 << 60),
    "asks for nothing": lambda s: MeshRequest(s, 1 << 60, 1),
    "answers unasked": lambda s: MeshEvents(s, 1, 1 << 60, 0, True, ()),
    "answers for ever": lambda s: MeshEvents(s, 21, 21, 1 << 60, False, ()),
    "leaves": MeshLeave,
    "leans": lambda s: MeshLean(s, True),
}


@pytest.mark.parametrize("lie", LIES)
def test_false_messages_of_a_peer_cost_at_most_their_own_rate(lie: str) -> None:
    """A peer sends a false message 20 times a second: few extra steps, no delay, bounded state."""
    cluster = settled_mesh(6, {"east": 2})
    stream = cluster.streams["s"]
    quiet = rate(cluster, 5)
    inject(cluster, "east/c0", "east/c1", LIES[lie](stream), every_ns=50 * MS)
    assert rate(cluster, 5) < quiet + 40
    began_ns = cluster.world.now_ns
    publish(cluster, 50)
    settle(cluster)
    assert cluster.world.now_ns - began_ns < 3 * SECOND
    feed = feed_of(cluster, "east/c0")
    assert len(feed.known) < 20
    assert len(feed.asks) <= 64
    assert feed.view.peers.count("east/c1") <= 1
    assert cluster.judge().violations == []


@pytest.mark.slow
def test_clients_that_leave_and_join_repeatedly_do_not_overload_the_others() -> None:
    """Some clients unfollow and follow again all the time; the others are served."""
    cluster = settled_mesh(10, {"east": 1})
    world, stream = cluster.world, cluster.streams["s"]
    fickle = [f"east/c{n}" for n in range(5)]
    for name in fickle:
        # Its deliveries are not judged, because each Follow starts again at position 1.
        cluster.subscribers.remove(name)
        del cluster.world._on_deliver[name]
        for i in range(25):
            at_ns = world.now_ns + i * 40 * MS
            world.at(at_ns, name, Unfollow(stream))
            world.at(at_ns + 20 * MS, name, Follow(stream, 1))
    before = sum(world.machine(c).steps for c in cluster.clients)
    publish(cluster, 1000)
    steps = sum(world.machine(c).steps for c in cluster.clients) - before
    assert steps / 10 < 3000
    settle(cluster)
    for name in fickle:
        world.at(world.now_ns, name, Unfollow(stream))
    run(cluster, 10 * SECOND)
    assert rate(cluster, 10) < 8
    publish(cluster, 20)
    settle(cluster)
    # No client keeps those that left among its leaning or active peers.
    for n in range(5, 10):
        feed = feed_of(cluster, f"east/c{n}")
        assert not {*feed.leaning, *feed.active} & set(fickle)


def test_a_client_that_does_not_follow_a_stream_is_removed_from_its_views() -> None:
    cluster = mesh_of(
        0, streams={"s": ("east", KeepAll()), "t": ("east", KeepAll())}, client_type=Counted
    )
    for n in range(6):
        cluster.add_client(f"east/c{n}", {"s": 1} if n else {"t": 1})
    run(cluster, 3 * SECOND)
    for n in range(1, 6):  # as if another client had introduced c0
        feed_of(cluster, f"east/c{n}").view.peers.append("east/c0")
    publish(cluster, 500)
    settle(cluster)
    run(cluster, 100 * SECOND)
    assert all("east/c0" not in feed_of(cluster, f"east/c{n}").view.peers for n in range(1, 6))
    before = cluster.world.machine("east/c0").steps
    publish(cluster, 500)
    assert cluster.world.machine("east/c0").steps - before < 20


def test_a_server_that_resumes_gets_a_bounded_number_of_requests() -> None:
    """The only server is paused for 20 s while all clients request events from it."""
    cluster = settled_mesh(8, {"east": 1})
    world, stream = cluster.world, cluster.streams["s"]
    world.pause("east/0")
    for n in range(8):
        inject(cluster, f"east/c{n}", f"east/c{(n + 1) % 8}", MeshNotify(stream, 500))
    run(cluster, 20 * SECOND)
    asked = cluster.counters["east/0"]["sprinkler/MeshRequest"]
    world.resume("east/0")
    run(cluster, 5 * SECOND)
    assert (cluster.counters["east/0"]["sprinkler/MeshRequest"] - asked) / 8 < 2 * 20 + 20
    publish(cluster, 20)
    settle(cluster)


def test_small_meshes_work_down_to_one() -> None:
    for count in (1, 2):
        for mesh in (MeshConfig(), paper_mesh(), MeshConfig(view_max=1, fanout=1)):
            cluster = counted(count, mesh=mesh)
            publish(cluster, 30)
            settle(cluster)
            if mesh.mutual:
                run(cluster, 10 * SECOND)
                assert rate(cluster, 10) < 8
