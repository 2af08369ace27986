"""The mesh clients of a simulated swarm: adds and removes them by a plan, and checks their state.

Mesh clients of a region exchange events with each other. The plan says when each client joins and
leaves, and which streams it follows from which position. In addition to the final judgement, the
internal state of clients and servers is checked at intervals, because a buffer that exceeds its
bound may have no visible effect at first. The checks have the numbers of the guarantees (G) in
protocols/sprinkler/mesh_peer.py and parts/peer_sampling.py, and of the rules (R) in
docs/protocols/sprinkler.md:

G2  batches that arrived early are in order, do not overlap, and are after the delivered positions
G11 no position is both delivered and still to be requested; buffers are within their bounds
G12 a view (the peers that a client knows) has at most `view_max` members, none twice, and contains
    neither the client itself nor a server
R12 while nothing is published, there are only few requests
"""

from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec

from surecast.core.types import MS, SECOND, tag_of
from surecast.parts.peer_sampling import View
from surecast.protocols.sprinkler.config import ClientConfig, MeshConfig
from surecast.protocols.sprinkler.mesh_membership import Feed
from surecast.protocols.sprinkler.messages import MeshRequest
from surecast.sim.world import World
from surecast_lab.swarm.cluster import Cluster

__all__ = ["LATEST", "Change", "MeshClients", "MeshPlan", "Visit"]

# Where a client starts, as a share of the stream's current length. Values in between select a
# position; values above 1 select a position in the future.
EARLIEST, LATEST = 0.0, 1.0
LOOK_NS = 250 * MS
REQUESTS_MAX = 2  # of a client for a stream, per second, while nothing is published
UNFOLLOW_NS = 50 * MS  # from a polite client's unfollowing of its streams until it stops


class Visit(msgspec.Struct):
    """When one client joins and leaves, and what it reads."""

    name: str
    comes_ns: int
    leaves_ns: int  # 0: it stays
    polite: bool  # it unfollows its streams before it stops
    follows: dict[str, float]  # stream → where the client starts (see EARLIEST)


class Change(msgspec.Struct):
    """A client begins to follow a stream, or unfollows it."""

    at_ns: int
    name: str
    stream: str
    start: float | None = None  # where the client starts (see EARLIEST); None: it unfollows


class MeshPlan(msgspec.Struct):
    config: MeshConfig
    client: dict[str, Any]  # further settings of every client
    high_water_bytes: int  # a session with more unsent bytes is congested
    visits: list[Visit]
    changes: list[Change]


class MeshClients:
    """The clients of a plan in a cluster."""

    def __init__(self, cluster: Cluster, plan: MeshPlan) -> None:
        self.cluster = cluster
        self.counts = Counter(dict.fromkeys(("came", "left", "crashed", "stalled", "changed"), 0))
        self.violations: dict[tuple[str, str], str] = {}  # (client, kind) → the first violation
        # The bounds of the plan, independent of the client's own configuration.
        self.bounds = ClientConfig("client", ("server",), plan.config, **plan.client)
        self.names = {visit.name: True for visit in plan.visits}
        self.to_come = len(plan.visits)
        world = cluster.world
        world.network.high_water_bytes = plan.high_water_bytes
        for visit in plan.visits:
            self._schedule_visit(visit)
        for change in plan.changes:
            world.call(change.at_ns, partial(self._change, change))
        world.call(LOOK_NS, self._check_all)

    def is_there(self, name: str) -> bool:
        return name in self.cluster.subscribers

    def is_away(self, name: str) -> bool:
        """Whether `name` is a client of the plan that has not joined yet, or has left."""
        return name in self.names and not self.is_there(name)

    # ------------------------------------------------------------ joining and leaving

    def _schedule_visit(self, visit: Visit) -> None:
        cluster = self.cluster

        def join(world: World) -> None:
            if any(stream not in cluster.streams for stream in visit.follows):
                world.call(world.now_ns + 50 * MS, join)
                return
            starts = {stream: self._start(stream, s) for stream, s in visit.follows.items()}
            cluster.add_client(visit.name, starts)
            self.counts["came"] += 1
            self.to_come -= 1
            if visit.leaves_ns:
                world.call(visit.leaves_ns, leave)

        def leave(world: World) -> None:
            if visit.polite and not world.nodes[visit.name].paused:
                for stream in list(cluster.clients[visit.name]):
                    cluster.unfollow(visit.name, stream)
                world.call(world.now_ns + UNFOLLOW_NS, stop)
            else:
                stop(world)

        def stop(_world: World) -> None:
            cluster.remove_client(visit.name)
            self.counts["left"] += 1

        cluster.world.call(visit.comes_ns, join)

    def _start(self, stream: str, share: float) -> int:
        """The position where a client starts; 0 is the latest."""
        end = max(self.cluster.records[stream].acked.values(), default=0) + 1
        return 0 if share == LATEST else max(1, int(share * end))

    def _change(self, change: Change, _world: World) -> None:
        cluster, name, stream = self.cluster, change.name, change.stream
        # A paused client is skipped: its `Reading` would be marked as ended now, but the client
        # would still deliver events until it handles the Unfollow.
        if not self.is_there(name) or cluster.world.nodes[name].paused:
            return
        follows = stream in cluster.clients[name]
        if change.start is None and follows:
            cluster.unfollow(name, stream)
        elif change.start is not None and not follows and stream in cluster.streams:
            cluster.follow(name, stream, self._start(stream, change.start))
        else:
            return
        self.counts["changed"] += 1

    # ------------------------------------------------------------ requests without publishes

    def requests(self) -> int:
        """The number of requests handled by peers and servers so far."""
        counters, servers = self.cluster.counters, self.cluster.regions.values()
        tag = tag_of(MeshRequest)
        by_peers = sum(counters[name][tag] for name in self.cluster.clients)
        return by_peers + sum(counters[n][tag] for nodes in servers for n in nodes)

    def check_quiet(self, requests: int, for_ns: int) -> None:
        """R12: note a violation if there were too many requests in `for_ns` without publishes.

        Some requests are expected: for each stream a client asks a server at intervals, and it
        requests the entries that expiry adds to a stream.
        """
        feeds = sum(len(self.cluster.clients[n]) for n in self.names if self.is_there(n))
        allowed = max(1, feeds) * REQUESTS_MAX * for_ns // SECOND
        if requests > allowed:
            what = f"R12 {requests} requests in {for_ns / SECOND:.0f} s without publishes"
            self.violations["all", "R12"] = f"{what}, at most {allowed} expected"

    # ------------------------------------------------------------ internal state

    def _check_all(self, world: World) -> None:
        for name in self.cluster.clients:
            client = world.machine(name)
            for feed in client.feeds.values() if client else ():
                self._note(name, _wrong_view(feed.view, self.bounds.mesh.view_max))
                self._note(name, _wrong(feed, self.bounds))
        for name in (node for nodes in self.cluster.regions.values() for node in nodes):
            server = world.machine(name)
            for mesh in server.layers["sprinkler.mesh"].meshes.values() if server else ():
                self._note(name, _wrong_view(mesh.view, self.bounds.mesh.view_max))
        world.call(world.now_ns + LOOK_NS, self._check_all)

    def _note(self, name: str, findings: list[str]) -> None:
        for finding in findings:
            at_s = self.cluster.world.now_ns / SECOND
            self.violations.setdefault(
                (name, finding.split()[0]), f"{finding}: {name} at {at_s:.3f} s"
            )


def _wrong_view(view: View, size_max: int) -> list[str]:
    peers, found = view.peers, []
    if len(peers) > size_max:
        found.append(f"G12 a view of {len(peers)}, at most {size_max} allowed")
    if len(set(peers)) < len(peers) or view.me in peers:
        found.append("G12 a view contains its owner, or a peer twice")
    if any(peer in view.servers for peer in peers):
        found.append("G12 a view contains a server")
    return found


def _wrong(feed: Feed, bounds: ClientConfig) -> list[str]:
    """Violations of the bounds in a client's feed."""
    found = []
    kept_bytes = sum(batch.nbytes for batch in feed.kept[feed.kept_from :])
    if not kept_bytes == feed.kept_bytes <= bounds.keep_bytes_max:
        found.append(
            f"G11 {kept_bytes} bytes kept, {feed.kept_bytes} counted, "
            f"at most {bounds.keep_bytes_max} allowed"
        )
    early_bytes = sum(batch.nbytes for batch in feed.early)
    if not early_bytes == feed.early_bytes <= bounds.early_bytes_max:
        found.append(
            f"G11 {early_bytes} bytes early, {feed.early_bytes} counted, "
            f"at most {bounds.early_bytes_max} allowed"
        )
    # A client may exceed its limit by two: it can split a range into two requests, and the request
    # for the rest of the stream does not count.
    if len(feed.asks) > bounds.asks_max + 2:
        allowed = bounds.asks_max + 2
        found.append(f"G11 {len(feed.asks)} requests under way, at most {allowed} allowed")
    if feed.next < feed.position:
        found.append(
            f"G11 requests {feed.next} next, though all before {feed.position} is delivered"
        )
    if feed.early and feed.early[0].lo <= feed.position:
        found.append(
            f"G2 keeps {feed.early[0].lo} as early, though {feed.position} is next to deliver"
        )
    if any(a.hi > b.lo for a, b in pairwise(feed.early)):
        found.append("G2 batches that arrived early overlap")
    return found
