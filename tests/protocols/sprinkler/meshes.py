"""Clusters with a mesh, clients that check their own invariants, and graphs of views."""

from collections import deque
from typing import Any

from surecast.columns.retention import Policy
from surecast.core.types import SECOND, Peer, Received, Send
from surecast.protocols.sprinkler.config import MeshConfig, paper_mesh
from surecast.protocols.sprinkler.mesh_membership import Feed
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.sprinkler.messages import MeshEvents, MeshRequest, MeshView
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import cluster_of

HOUR = 3600 * SECOND
PRESETS = {"default": MeshConfig(), "paper": paper_mesh()}
SILENT_HUB = MeshConfig(gossip_ns=HOUR, shuffle_ns=HOUR, fanout=1, server_fanout=1)


class Watched(MeshPeer):
    """A client that checks G11 and G12 after each of its steps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: dict[bytes, tuple[Feed, set[int]]] = {}  # positions requested from peers

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        effects = super().step(now_ns, inp)
        message = inp.message if isinstance(inp, Received) else None
        if isinstance(message, MeshEvents) and message.end < message.hi:
            if known := self.asked.get(message.stream):  # R12: the peer does not have them yet
                known[1].difference_update([s for s in known[1] if s >= message.end])
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, MeshRequest):
                self._requests(effect.peer, effect.message)
        for feed in self.feeds.values():
            self._look_at(feed)
        if isinstance(message, MeshView) and inp.peer not in self.replicas:
            if feed := self.feeds.get(message.stream):
                assert inp.peer in feed.view.peers, "G12 the sender was left out"
        return effects

    def _requests(self, peer: Peer, request: MeshRequest) -> None:
        feed = self.feeds[request.stream]
        if peer in self.replicas or request.hi - request.lo > 1_000_000:  # a liar's end
            return
        known = self.asked.get(request.stream)
        if known is None or known[0] is not feed:
            known = self.asked[request.stream] = (feed, set())
        wanted = set(range(request.lo, request.hi))
        twice = sorted(wanted & known[1])
        assert not twice, f"G11 {self.config.name} asks peers again for {twice[:5]}"
        known[1].update(wanted)

    def _look_at(self, feed: Feed) -> None:
        config, name = self.config, self.config.name
        kept = sum(b.nbytes for b in feed.kept[feed.kept_from :])
        assert kept == feed.kept_bytes <= config.keep_bytes_max, f"G11 {name} keeps {kept}"
        early = sum(b.nbytes for b in feed.early)
        assert early == feed.early_bytes <= config.early_bytes_max, f"G11 {name} holds {early}"
        assert feed.next >= feed.position, f"G11 {name}: next {feed.next} < {feed.position}"
        # Plus a poll, and a second poll if the first server is behind.
        assert len(feed.asks) <= config.asks_max + 2, f"{name}: {len(feed.asks)} requests"
        peers = feed.view.peers
        assert len(peers) <= config.mesh.view_max, f"G12 {name} knows {len(peers)}"
        assert name not in peers, f"G12 {name} knows itself"


def mesh_of(
    count: int,
    regions: dict[str, int] | None = None,
    streams: dict[str, tuple[str, Policy]] | None = None,
    seed: object = 1,
    **options: Any,
) -> Cluster:
    """A cluster with `count` mesh clients in each region, all streams followed from the start."""
    options = {"subscribers": 0, "client_type": Watched, **options}
    cluster = cluster_of(regions or {"east": 1}, streams, seed, **options)
    for region in cluster.regions:
        for n in range(count):
            cluster.add_client(f"{region}/c{n}")
    return cluster


def feed_of(cluster: Cluster, client: str, stream: str = "s") -> Feed:
    return cluster.world.machine(client).feeds[cluster.streams[stream]]


def introduce(cluster: Cluster, views: dict[str, list[str]], stream: str = "s") -> None:
    """Replace the views of clients."""
    for name, peers in views.items():
        feed = feed_of(cluster, name, stream)
        feed.view.peers = list(peers)
        feed.active.clear()
        feed.leaning.clear()


def graph(cluster: Cluster, stream: str = "s") -> dict[str, list[str]]:
    """Each live client → the live clients in its view."""
    live = [c for c in cluster.clients if c in cluster.subscribers and cluster.world.machine(c)]
    views = {name: feed_of(cluster, name, stream).view.peers for name in live}
    return {name: [p for p in peers if p in views] for name, peers in views.items()}


def farthest(edges: dict[str, list[str]], start: str) -> int:
    """The largest number of steps from `start` to any client; -1 if one cannot be reached."""
    far, todo = {start: 0}, deque([start])
    while todo:
        at = todo.popleft()
        for peer in edges[at]:
            if peer not in far:
                far[peer] = far[at] + 1
                todo.append(peer)
    return max(far.values()) if len(far) == len(edges) else -1


def diameter(edges: dict[str, list[str]]) -> int:
    """The diameter of the directed graph; -1 if it is not strongly connected."""
    steps = [farthest(edges, name) for name in edges]
    return -1 if -1 in steps else max(steps)


def positions(cluster: Cluster, stream: str = "s") -> dict[str, int]:
    return {c: cluster.position(c, stream) for c in cluster.clients if c in cluster.subscribers}
