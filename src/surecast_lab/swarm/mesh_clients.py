"""A crowd of mesh clients: who comes when, follows what from where, changes its mind, and goes.

A plan says it all beforehand. While it runs, clients and servers are looked into now and then: an
extra to the judgement from outside. A view or a buffer beyond its bound hurts nobody at first.

G2  what is early is in order, without overlaps, and ahead of what was delivered
G11 nothing is both delivered and still to be asked for; buffers are within their caps
G12 a view has at most V members, among them neither oneself nor a server
R12 when nothing is published, hardly anything is asked for
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

# How much of a stream is skipped; between the two, from a seq on; beyond, from one yet to come.
EARLIEST, LATEST = 0.0, 1.0
LOOK_NS = 250 * MS
REQUESTS_MAX = 2  # by a client for a stream, a second, when there is no news
PACK_NS = 50 * MS  # between a polite goodbye and being gone


class Visit(msgspec.Struct):
    """One client, from its coming to its going."""

    name: str
    comes_ns: int
    leaves_ns: int  # 0: it stays
    polite: bool  # it says goodbye to its peers
    follows: dict[str, float]  # stream → how much of it is skipped


class Change(msgspec.Struct):
    """A client begins to follow a stream, or, with `skips` None, no longer does."""

    at_ns: int
    name: str
    stream: str
    skips: float | None = None


class MeshPlan(msgspec.Struct):
    config: MeshConfig
    client: dict[str, Any]  # further settings of every client
    high_water_bytes: int  # of sessions, beyond which they are congested
    visits: list[Visit]
    changes: list[Change]


class MeshClients:
    """The clients of a plan in a cluster."""

    def __init__(self, cluster: Cluster, plan: MeshPlan) -> None:
        self.cluster = cluster
        self.counts = Counter(dict.fromkeys(("came", "left", "crashed", "stalled", "changed"), 0))
        self.violations: dict[tuple[str, str], str] = {}  # the first of each sort and client
        # The bounds as planned, not as a client believes them to be.
        self.bounds = ClientConfig("client", ("server",), plan.config, **plan.client)
        self.names = {visit.name: True for visit in plan.visits}
        self.to_come = len(plan.visits)
        world = cluster.world
        world.network.high_water_bytes = plan.high_water_bytes
        for visit in plan.visits:
            self._expect(visit)
        for change in plan.changes:
            world.call(change.at_ns, partial(self._change, change))
        world.call(LOOK_NS, self._look)

    def is_there(self, name: str) -> bool:
        return name in self.cluster.subscribers

    def is_away(self, name: str) -> bool:
        """One of ours that has not come yet, or has left."""
        return name in self.names and not self.is_there(name)

    # ------------------------------------------------------------ coming and going

    def _expect(self, visit: Visit) -> None:
        cluster = self.cluster

        def come(world: World) -> None:
            if any(stream not in cluster.streams for stream in visit.follows):
                world.call(world.now_ns + 50 * MS, come)
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
                world.call(world.now_ns + PACK_NS, go)
            else:
                go(world)

        def go(_world: World) -> None:
            cluster.remove_client(visit.name)
            self.counts["left"] += 1

        cluster.world.call(visit.comes_ns, come)

    def _start(self, stream: str, skips: float) -> int:
        """Where a client begins: 0 is the latest."""
        end = max(self.cluster.records[stream].acked.values(), default=0) + 1
        return 0 if skips == LATEST else max(1, int(skips * end))

    def _change(self, change: Change, _world: World) -> None:
        cluster, name, stream = self.cluster, change.name, change.stream
        # A stalled one would go on delivering for a while to a record that is closed.
        if not self.is_there(name) or cluster.world.nodes[name].paused:
            return
        follows = stream in cluster.clients[name]
        if change.skips is None and follows:
            cluster.unfollow(name, stream)
        elif change.skips is not None and not follows and stream in cluster.streams:
            cluster.follow(name, stream, self._start(stream, change.skips))
        else:
            return
        self.counts["changed"] += 1

    # ------------------------------------------------------------ quiet

    def requests(self) -> int:
        """How many requests peers and servers have been sent so far."""
        counters, servers = self.cluster.counters, self.cluster.regions.values()
        tag = tag_of(MeshRequest)
        asked = sum(counters[name][tag] for name in self.cluster.clients)
        return asked + sum(counters[n][tag] for nodes in servers for n in nodes)

    def mind_quiet(self, requests: int, for_ns: int) -> None:
        """R12: all have everything and nobody publishes; since then there were so many requests.

        Each feed asks a server now and then, and for what expiry adds to a stream.
        """
        feeds = sum(len(self.cluster.clients[n]) for n in self.names if self.is_there(n))
        allowed = max(1, feeds) * REQUESTS_MAX * for_ns // SECOND
        if requests > allowed:
            what = f"R12 {requests} requests in {for_ns / SECOND:.0f} s without news"
            self.violations["all", "R12"] = f"{what}, at most {allowed} expected"

    # ------------------------------------------------------------ looking inside

    def _look(self, world: World) -> None:
        for name in self.cluster.clients:
            client = world.machine(name)
            for feed in client.feeds.values() if client else ():
                self._note(name, _wrong_view(feed.view, self.bounds.mesh.view_max))
                self._note(name, _wrong(feed, self.bounds))
        for name in (node for nodes in self.cluster.regions.values() for node in nodes):
            server = world.machine(name)
            for mesh in server.layers["sprinkler.mesh"].meshes.values() if server else ():
                self._note(name, _wrong_view(mesh.view, self.bounds.mesh.view_max))
        world.call(world.now_ns + LOOK_NS, self._look)

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
        found.append("G12 a view has its owner, or somebody twice, in it")
    if any(peer in view.servers for peer in peers):
        found.append("G12 a view has a server in it")
    return found


def _wrong(feed: Feed, bounds: ClientConfig) -> list[str]:
    """What of the bounds of a client's feed is broken."""
    found = []
    kept_bytes = sum(batch.nbytes for batch in feed.kept[feed.kept_from :])
    if not kept_bytes == feed.kept_bytes <= bounds.keep_bytes_max:
        found.append(f"G11 {kept_bytes} bytes kept, {feed.kept_bytes} counted")
    early_bytes = sum(batch.nbytes for batch in feed.early)
    if not early_bytes == feed.early_bytes <= bounds.early_bytes_max:
        found.append(f"G11 {early_bytes} bytes early, {feed.early_bytes} counted")
    if len(feed.asks) > bounds.asks_max + 2:  # a split one, and the rest of the stream
        found.append(f"G11 {len(feed.asks)} requests under way, at most {bounds.asks_max} allowed")
    if feed.next < feed.position:
        found.append(f"G11 asks next for {feed.next}, though {feed.position} is next to deliver")
    if feed.early and feed.early[0].lo <= feed.position:
        found.append(f"G2 holds back {feed.early[0].lo} at {feed.position}")
    if any(a.hi > b.lo for a, b in pairwise(feed.early)):
        found.append("G2 what is early overlaps")
    return found
