"""A server in the mesh, step by step: whom it tells, what it answers."""

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
    """As much of a stream service as a mesh server looks at."""

    def __init__(self) -> None:
        self.ends = {S: 5}

    def shown_end(self, stream: LogId) -> int:
        return self.ends.get(stream, 0)

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]:
        hi = hi or self.ends[stream]
        return [Batch.synthetic(stream, hi - lo, hi - lo).sequenced(lo, 5, 1)]


class Bench:
    """A mesh server over such a service, and what it did since that was last looked at."""

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

    def says(self, peer: str, message: Any) -> None:
        self.give(Received(peer, message))

    def timer(self, key: str) -> None:
        self.give(TimerFired(key))

    def joins(self, *peers: str, end: int = 5, want: bool = False) -> None:
        for peer in peers:
            self.says(peer, MeshView(S, (), end, want))

    def commits(self, end: int, stream: LogId = S) -> None:
        self.service.ends[stream] = end
        self.give(FromBelow(StreamsMoved((stream,))))

    def did(self) -> list[Any]:
        out, self.out = self.out, []
        return out

    def told(self) -> list[tuple[str, Any]]:
        return [(e.peer, e.message) for e in self.did() if isinstance(e, Send)]

    @property
    def mesh(self) -> Any:
        return self.server.meshes[S]


def test_who_joins_gets_names_and_is_told_of_what_it_lacks() -> None:
    bench = Bench()
    bench.joins("a", end=1, want=True)
    attend, *out = bench.did()
    assert attend == PassDown(Attend("sprinkler.mesh", True))
    assert out[:2] == [Send("a", MeshView(S, (), 5, False)), Send("a", MeshNotify(S, 5))]
    assert [type(e) for e in out[2:]] == [SetTimer, SetTimer]
    assert {e.key for e in out[2:]} == {"gossip", "shuffle"}
    bench.joins("b", end=5, want=True)
    assert bench.did() == [Send("b", MeshView(S, ("a",), 5, False))]
    bench.joins("c", end=0)  # it does not know where to begin: it will ask
    assert bench.told() == [("c", MeshNotify(S, 5))]  # as one of those who are told


def test_who_shows_a_view_is_told_of_what_is_a_gossip_old_and_of_nothing_newer() -> None:
    """Under load everybody is a little behind; telling each of it made servers collapse (E2)."""
    bench = Bench(server_fanout=1)
    bench.joins("a")  # the one that is told of everything
    bench.timer("gossip")
    bench.commits(9)
    bench.did()
    bench.joins("b", end=5)  # lacks what has just come: others will tell it
    assert bench.told() == []
    bench.timer("gossip")
    bench.did()
    bench.joins("b", end=5)  # lacks it still
    assert bench.told() == [("b", MeshNotify(S, 9))]
    bench.joins("b", end=9)
    assert bench.told() == []


def test_what_is_new_is_told_to_a_few_that_do_not_have_it() -> None:
    bench = Bench(server_fanout=2)
    bench.joins("a", "b", "c")
    bench.did()
    bench.commits(9)
    told = bench.told()
    assert [message for _, message in told] == [MeshNotify(S, 9)] * 2
    assert [peer for peer, _ in told] == bench.mesh.active
    one, other = bench.mesh.active
    bench.now_ns += SECOND
    bench.service.ends[S] = 12
    bench.says(one, MeshRequest(S, 9, 12))  # it asks before it is told
    bench.did()
    bench.commits(12)
    assert bench.told() == [(other, MeshNotify(S, 12))]


def test_under_load_it_tells_of_several_commits_at_once() -> None:
    bench = Bench()
    bench.joins("a")
    bench.did()
    bench.commits(6)
    assert bench.told() == [("a", MeshNotify(S, 6))]
    bench.now_ns += MS
    bench.commits(7)
    bench.commits(8)
    assert bench.did() == [SetTimer("tell", bench.now_ns + 4 * MS)]
    bench.now_ns += 4 * MS
    bench.timer("tell")
    assert bench.told() == [("a", MeshNotify(S, 8))]
    assert bench.server.untold == {}


def test_a_congested_client_is_not_told() -> None:
    bench = Bench()
    bench.joins("a")
    bench.did()
    bench.give(Congested("a"))
    bench.commits(6)
    assert bench.told() == []
    bench.give(Writable("a"))
    bench.now_ns += SECOND
    bench.commits(7)
    assert bench.told() == [("a", MeshNotify(S, 7))]


def test_without_news_nothing_is_drawn_anew() -> None:
    bench = Bench(server_fanout=1)
    bench.joins("a", "b")
    bench.did()
    bench.timer("shuffle")
    assert bench.told() == []
    bench.commits(6)
    bench.did()
    for _ in range(10):
        bench.mesh.news = True
        bench.timer("shuffle")
    assert {peer for peer, _ in bench.told()} >= {"a", "b"} - {*bench.mesh.active}


def test_as_printed_every_shuffle_is_told() -> None:
    bench = Bench(server_fanout=1, mutual=False)
    bench.joins("a", "b")
    bench.did()
    bench.timer("shuffle")
    assert [message for _, message in bench.told()] == [MeshNotify(S, 5)]


def test_a_mesh_that_everybody_left_is_forgotten_and_its_timers_rest() -> None:
    bench = Bench()
    bench.joins("a", "b")
    bench.says("a", MeshLeave(S))
    bench.give(PeerDown("b"))  # it was never up: it could not be reached
    assert (bench.mesh.view.peers, bench.mesh.active, bench.mesh.known) == ([], [], {})
    bench.did()
    bench.timer("gossip")
    assert bench.did() == [PassDown(Attend("sprinkler.mesh", False))]
    assert (bench.server.meshes, bench.server.running) == ({}, False)
    bench.timer("shuffle")
    assert bench.did() == []
    bench.joins("c")
    assert {e.key for e in bench.did() if isinstance(e, SetTimer)} == {"gossip", "shuffle"}


def test_a_session_that_ends_does_not_make_a_client_a_stranger() -> None:
    bench = Bench()
    bench.give(PeerUp("a"))
    bench.joins("a")
    bench.give(PeerDown("a"))
    assert (bench.mesh.view.peers, bench.mesh.active) == (["a"], [])
    bench.give(PeerDown("a"))
    assert bench.mesh.view.peers == []
    assert bench.server.up == {}


def test_what_it_remembers_is_bounded() -> None:
    bench = Bench(view_max=4, meshes_max=3)
    for n in range(500):
        bench.joins(f"c{n}")
        bench.says("x", MeshView(n.to_bytes(16, "big"), (), 1, False))
    assert len(bench.server.meshes) == 3
    assert len(bench.mesh.view.peers) == 4
    bench.timer("gossip")
    assert len(bench.mesh.known) <= 4 * 4
    bench.says("stranger", MeshRequest(S, 1, 9))
    assert "stranger" not in bench.mesh.known


def test_a_stream_it_does_not_know_is_told_of_when_it_appears() -> None:
    bench = Bench()
    bench.says("a", MeshView(T, (), 1, True))
    assert Send("a", MeshView(T, (), 0, False)) in bench.did()
    bench.commits(3, T)
    assert bench.told() == [("a", MeshNotify(T, 3))]


def test_g12_servers_introduce_their_clients_to_each_other() -> None:
    bench = Bench(server_every=1, server_fanout=1)
    bench.joins("a", "b")
    bench.did()
    bench.timer("gossip")
    assert bench.told()[-1] == ("s1", MeshView(S, ("b", "a"), 0, False))
    bench.says("s1", MeshView(S, ("x", "y"), 0, False))
    ((peer, message),) = bench.told()
    assert peer in ("a", "b")
    assert message == MeshView(S, ("x", "y"), 5, False)
    assert set(bench.mesh.view.peers) == {"a", "b"}  # they are told of news over there
    bench.says("s1", MeshView(T, ("x", "y"), 0, False))
    assert T not in bench.server.meshes
    bench.role("s0")  # the other was dropped from the chain
    bench.timer("gossip")
    assert "s1" not in [peer for peer, _ in bench.told()]


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


def test_so_much_at_a_time_then_it_is_asked_again(served: Cluster) -> None:
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


def test_what_is_not_there_is_answered_with_the_end(served: Cluster) -> None:
    parts = ask(served, 20, 30)
    assert covered(parts) == [20]
    assert (parts[-1].hi, parts[-1].end, parts[-1].last) == (30, 21, True)
    for lo, hi, answer in ((40, 50, (40, 50, 21)), (40, 0, (40, 40, 21)), (0, 0, (0, 0, 21))):
        (only,) = ask(served, lo, hi)
        assert (only.lo, only.hi, only.end, only.last, only.batches) == (*answer, True, ())
    (only,) = ask(served, 7, 9, stream=T)
    assert (only.lo, only.hi, only.end, only.last) == (7, 7, 0, True)


@pytest.mark.parametrize(("lo", "hi"), [(-5, 9), (9, 3), (5, -2), (1 << 60, 1 << 61), (5, 5)])
def test_odd_requests_get_one_empty_answer(served: Cluster, lo: int, hi: int) -> None:
    (only,) = ask(served, lo, hi)
    assert (only.lo, only.end, only.last, only.batches) == (lo, 21, True, ())


def test_a_congested_client_gets_one_part_and_asks_again(served: Cluster) -> None:
    server = served.world.machine("east/0").layers["sprinkler.mesh"]
    server.step(served.world.now_ns, Congested("c"))
    (only,) = ask(served, 1, 0)
    assert only.last
    assert covered([only])
    server.step(served.world.now_ns, Writable("c"))
