"""A server in the mesh, step by step: the clients that it notifies, and its answers."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.core.replicated import RoleChanged
from surecast.core.streams import Attend, StreamsMoved
from surecast.core.types import (
    MS,
    SECOND,
    Congested,
    FromBelow,
    LogId,
    PassDown,
    PeerDown,
    PeerUp,
    Received,
    Send,
    SetTimer,
    TimerFired,
    Writable,
)
from surecast.protocols.sprinkler.config import MeshConfig, SprinklerConfig
from surecast.protocols.sprinkler.mesh_server import MeshServer
from surecast.protocols.sprinkler.messages import (
    MeshEvents,
    MeshLeave,
    MeshNotify,
    MeshRequest,
    MeshView,
)
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import cluster_of, publish, settle

S, T = bytes(range(16)), bytes(16)
SERVERS = {"east": ("s0", "s1")}


class Service:
    """The part of a stream service that a mesh server uses."""

    def __init__(self) -> None:
        self.ends = {S: 5}
        self.cold: set[int] = set()  # positions from which on nothing is at hand

    def end_event(self, stream: LogId) -> list[Batch]:
        return []

    def may_read(self, _peer: str, _stream: LogId) -> bool:
        return True

    def shown_end(self, stream: LogId) -> int:
        return self.ends.get(stream, 0)

    def at_hand(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch] | None:
        if lo in self.cold:
            return None
        hi = hi or self.ends[stream]
        return [Batch.synthetic(stream, hi - lo, hi - lo).sequenced(lo, 5, 1)]


class Bench:
    """A mesh server over such a service; collects its effects."""

    def __init__(self, **mesh: Any) -> None:
        config = SprinklerConfig("east", "s0", SERVERS, mesh=MeshConfig(**mesh))
        self.service = Service()
        self.server = MeshServer(config, self.service, Random(1))  # type: ignore[arg-type]
        self.now_ns = SECOND
        self.out: list[Any] = []
        self.role("s0", "s1")

    def give(self, inp: Any) -> None:
        self.out += self.server.step(self.now_ns, inp)

    def role(self, *members: str) -> None:
        self.give(FromBelow(RoleChanged(1, members, True, False, True)))

    def receive(self, peer: str, message: Any) -> None:
        self.give(Received(peer, message))

    def timer(self, key: str) -> None:
        self.give(TimerFired(key))

    def join(self, *peers: str, end: int = 5, want: bool = False) -> None:
        for peer in peers:
            self.receive(peer, MeshView(S, (), end, want))

    def commit(self, end: int, stream: LogId = S) -> None:
        self.service.ends[stream] = end
        self.give(FromBelow(StreamsMoved((stream,))))

    def take_effects(self) -> list[Any]:
        out, self.out = self.out, []
        return out

    def take_sent(self) -> list[tuple[str, Any]]:
        return [(e.peer, e.message) for e in self.take_effects() if isinstance(e, Send)]

    @property
    def mesh(self) -> Any:
        return self.server.meshes[S]


def test_a_client_that_joins_gets_a_view_and_is_notified() -> None:
    bench = Bench()
    bench.join("a", end=1, want=True)
    attend, *out = bench.take_effects()
    assert attend == PassDown(Attend("sprinkler.mesh", True))
    assert out[:2] == [Send("a", MeshView(S, (), 5, False)), Send("a", MeshNotify(S, 5))]
    assert [type(e) for e in out[2:]] == [SetTimer, SetTimer]
    assert {e.key for e in out[2:]} == {"gossip", "shuffle"}
    bench.join("b", end=5, want=True)
    assert bench.take_effects() == [Send("b", MeshView(S, ("a",), 5, False))]
    bench.join("c", end=0)  # it does not know the end yet and will request it
    assert bench.take_sent() == [("c", MeshNotify(S, 5))]  # because c is one of the active peers


def test_a_client_that_shows_its_view_is_notified_only_of_events_older_than_a_gossip() -> None:
    """Under load all clients are a little behind; notifying each one overloaded servers (E2)."""
    bench = Bench(server_fanout=1)
    bench.join("a")  # the active peer, which is always notified
    bench.timer("gossip")
    bench.commit(9)
    bench.take_effects()
    bench.join("b", end=5)  # lacks new events, of which peers will notify it
    assert bench.take_sent() == []
    bench.timer("gossip")
    bench.take_effects()
    bench.join("b", end=5)  # still lacks them
    assert bench.take_sent() == [("b", MeshNotify(S, 9))]
    bench.join("b", end=9)
    assert bench.take_sent() == []


def test_a_few_clients_that_lack_new_events_are_notified() -> None:
    bench = Bench(server_fanout=2)
    bench.join("a", "b", "c")
    bench.take_effects()
    bench.commit(9)
    told = bench.take_sent()
    assert [message for _, message in told] == [MeshNotify(S, 9)] * 2
    assert [peer for peer, _ in told] == bench.mesh.active
    one, other = bench.mesh.active
    bench.now_ns += SECOND
    bench.service.ends[S] = 12
    bench.receive(one, MeshRequest(S, 9, 12))  # it requests before it is notified
    bench.take_effects()
    bench.commit(12)
    assert bench.take_sent() == [(other, MeshNotify(S, 12))]


def test_notifications_of_several_commits_are_combined_under_load() -> None:
    bench = Bench()
    bench.join("a")
    bench.take_effects()
    bench.commit(6)
    assert bench.take_sent() == [("a", MeshNotify(S, 6))]
    bench.now_ns += MS
    bench.commit(7)
    bench.commit(8)
    assert bench.take_effects() == [SetTimer("tell", bench.now_ns + 4 * MS)]
    bench.now_ns += 4 * MS
    bench.timer("tell")
    assert bench.take_sent() == [("a", MeshNotify(S, 8))]
    assert bench.server.untold == {}


def test_a_congested_client_is_not_notified() -> None:
    bench = Bench()
    bench.join("a")
    bench.take_effects()
    bench.give(Congested("a"))
    bench.commit(6)
    assert bench.take_sent() == []
    bench.give(Writable("a"))
    bench.now_ns += SECOND
    bench.commit(7)
    assert bench.take_sent() == [("a", MeshNotify(S, 7))]


def test_without_new_events_the_active_peers_are_not_changed() -> None:
    bench = Bench(server_fanout=1)
    bench.join("a", "b")
    bench.take_effects()
    bench.timer("shuffle")
    assert bench.take_sent() == []
    bench.commit(6)
    bench.take_effects()
    for _ in range(10):
        bench.mesh.news = True
        bench.timer("shuffle")
    assert {peer for peer, _ in bench.take_sent()} >= {"a", "b"} - {*bench.mesh.active}


def test_with_the_paper_preset_every_shuffle_notifies() -> None:
    bench = Bench(server_fanout=1, mutual=False)
    bench.join("a", "b")
    bench.take_effects()
    bench.timer("shuffle")
    assert [message for _, message in bench.take_sent()] == [MeshNotify(S, 5)]


def test_a_mesh_without_clients_is_removed_and_its_timers_stop() -> None:
    bench = Bench()
    bench.join("a", "b")
    bench.receive("a", MeshLeave(S))
    bench.give(PeerDown("b"))  # it was never up: it could not be reached
    assert (bench.mesh.view.peers, bench.mesh.active, bench.mesh.known) == ([], [], {})
    bench.take_effects()
    bench.timer("gossip")
    assert bench.take_effects() == [PassDown(Attend("sprinkler.mesh", False))]
    assert (bench.server.meshes, bench.server.running) == ({}, False)
    bench.timer("shuffle")
    assert bench.take_effects() == []
    bench.join("c")
    assert {e.key for e in bench.take_effects() if isinstance(e, SetTimer)} == {"gossip", "shuffle"}


def test_a_client_stays_in_the_view_when_its_session_ends_once() -> None:
    bench = Bench()
    bench.give(PeerUp("a"))
    bench.join("a")
    bench.give(PeerDown("a"))
    assert (bench.mesh.view.peers, bench.mesh.active) == (["a"], [])
    bench.give(PeerDown("a"))
    assert bench.mesh.view.peers == []
    assert bench.server.up == {}


def test_a_servers_state_about_clients_is_bounded() -> None:
    bench = Bench(view_max=4, meshes_max=3)
    for n in range(500):
        bench.join(f"c{n}")
        bench.receive("x", MeshView(n.to_bytes(16, "big"), (), 1, False))
    assert len(bench.server.meshes) == 3
    assert len(bench.mesh.view.peers) == 4
    bench.timer("gossip")
    assert len(bench.mesh.known) <= 4 * 4
    bench.receive("stranger", MeshRequest(S, 1, 9))
    assert "stranger" not in bench.mesh.known


def test_a_client_of_an_unknown_stream_is_notified_when_it_appears() -> None:
    bench = Bench()
    bench.receive("a", MeshView(T, (), 1, True))
    assert Send("a", MeshView(T, (), 0, False)) in bench.take_effects()
    bench.commit(3, T)
    assert bench.take_sent() == [("a", MeshNotify(T, 3))]


def test_g12_servers_introduce_their_clients_to_each_other() -> None:
    bench = Bench(server_every=1, server_fanout=1)
    bench.join("a", "b")
    bench.take_effects()
    bench.timer("gossip")
    assert bench.take_sent()[-1] == ("s1", MeshView(S, ("b", "a"), 0, False))
    bench.receive("s1", MeshView(S, ("x", "y"), 0, False))
    ((peer, message),) = bench.take_sent()
    assert peer in ("a", "b")
    assert message == MeshView(S, ("x", "y"), 5, False)
    assert set(bench.mesh.view.peers) == {"a", "b"}  # s1 notifies x and y itself
    bench.receive("s1", MeshView(T, ("x", "y"), 0, False))
    assert T not in bench.server.meshes
    bench.role("s0")  # s1 was dropped from the chain
    bench.timer("gossip")
    assert "s1" not in [peer for peer, _ in bench.take_sent()]


# ---------------------------------------------------------------- answering requests


@pytest.fixture(scope="module")
def served() -> Iterator[Cluster]:
    cluster = cluster_of({"east": 1}, server={"serve_bytes_max": 600, "serves_per_step": 3})
    publish(cluster, 20)
    settle(cluster)
    return cluster


def ask(cluster: Cluster, lo: int, hi: int, stream: bytes = b"") -> list[MeshEvents]:
    server = cluster.world.machine("east/0").layers["sprinkler.mesh"]
    request = MeshRequest(stream or cluster.streams["s"], lo, hi)
    effects = server.step(cluster.world.now_ns, Received("c", request))
    assert all(isinstance(e, Send) and e.peer == "c" for e in effects)
    return [e.message for e in effects]


def covered(parts: list[MeshEvents]) -> list[int]:
    return [seq for m in parts for b in m.batches for seq in range(b.lo, b.hi)]


def test_a_request_is_answered_in_parts_the_last_marked(served: Cluster) -> None:
    parts = ask(served, 4, 8)
    assert covered(parts) == [4, 5, 6, 7]
    assert [m.last for m in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[0].lo == 4
    assert [m.lo for m in parts[1:]] == [m.hi for m in parts[:-1]]
    assert parts[-1].hi == 8
    assert {m.end for m in parts} == {21}


def test_a_long_range_needs_several_requests(served: Cluster) -> None:
    at, asked = 1, 0
    while at < 21:
        parts = ask(served, at, 0)
        assert len(parts) <= 3
        assert covered(parts) == list(range(at, parts[-1].hi))
        assert parts[-1].last
        at, asked = parts[-1].hi, asked + 1
    assert asked > 1
    assert [(m.lo, m.hi, m.end, m.last, m.batches) for m in ask(served, 21, 0)] == [
        (21, 21, 21, True, ())
    ]


def test_a_request_beyond_the_end_is_answered_with_the_end(served: Cluster) -> None:
    parts = ask(served, 20, 30)
    assert covered(parts) == [20]
    assert (parts[-1].hi, parts[-1].end, parts[-1].last) == (30, 21, True)
    for lo, hi, answer in ((40, 50, (40, 50, 21)), (40, 0, (40, 40, 21)), (0, 0, (0, 0, 21))):
        (only,) = ask(served, lo, hi)
        assert (only.lo, only.hi, only.end, only.last, only.batches) == (*answer, True, ())
    (only,) = ask(served, 7, 9, stream=T)
    assert (only.lo, only.hi, only.end, only.last) == (7, 7, 0, True)


@pytest.mark.parametrize(("lo", "hi"), [(-5, 9), (9, 3), (5, -2), (1 << 60, 1 << 61), (5, 5)])
def test_malformed_ranges_get_one_empty_answer(served: Cluster, lo: int, hi: int) -> None:
    (only,) = ask(served, lo, hi)
    assert (only.lo, only.end, only.last, only.batches) == (lo, 21, True, ())


def test_a_congested_client_gets_one_part_of_an_answer(served: Cluster) -> None:
    server = served.world.machine("east/0").layers["sprinkler.mesh"]
    server.step(served.world.now_ns, Congested("c"))
    (only,) = ask(served, 1, 0)
    assert only.last
    assert covered([only])
    server.step(served.world.now_ns, Writable("c"))
