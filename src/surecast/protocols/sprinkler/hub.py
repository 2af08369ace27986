"""A server's place in the meshes of its streams: the one member that has everything.

It tells a few clients of what is new, as clients tell each other, answers what they ask for, and
mixes their views: whoever lost touch with the others meets them again here. Any replica does this
for the clients that turn to it; all of them show only what is committed.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from surecast.core.types import LogId, Message, Peer, Send, SetTimer
from surecast.protocols.sprinkler.config import MeshConfig
from surecast.protocols.sprinkler.messages import MeshEvents, MeshNotify, MeshRequest, MeshView
from surecast.protocols.sprinkler.view import View

if TYPE_CHECKING:
    from surecast.protocols.sprinkler.exchange import Exchange

__all__ = ["TIMERS", "Hub"]

GOSSIP, SHUFFLE, TELL = TIMERS = ("mesh-gossip", "mesh-shuffle", "mesh-tell")


@dataclass(slots=True)
class Mesh:
    """The mesh of one stream as a server knows it."""

    view: View
    active: list[Peer] = field(default_factory=list)
    known: dict[Peer, int] = field(default_factory=dict)  # what they have, or were told of
    told_ns: int = 0
    news: bool = False
    settled: int = 0  # where the stream ended a gossip ago: who lacks some of this missed something


class Hub:
    """The meshes of all streams at one replica; `proxy` is the machine that this is a part of."""

    def __init__(self, proxy: "Exchange") -> None:
        self.proxy = proxy
        self.config: MeshConfig = proxy.config.mesh
        self.servers = proxy.config.regions[proxy.config.region]
        self.meshes: dict[LogId, Mesh] = {}
        self.up: dict[Peer, bool] = {}  # sessions
        self.running = False  # timers are set
        self.untold: dict[LogId, bool] = {}  # streams whose news a timer will tell

    def _end(self, stream: LogId) -> int:
        """How far a stream is committed here; 0 if it is not known."""
        found = self.proxy.streams.get(stream)
        return found.committed if found is not None else 0

    def _send(self, peer: Peer, message: Message) -> None:
        self.proxy.out.append(Send(peer, message))

    def _set_timer(self, key: str, after_ns: int) -> None:
        self.proxy.out.append(SetTimer(key, self.proxy.now_ns + after_ns))

    # ------------------------------------------------------------ from clients

    def on_view(self, peer: Peer, message: MeshView) -> None:
        mesh = self.meshes.get(message.stream)
        if peer in self.servers:
            if mesh is not None and mesh.view.peers:  # who these are, one of ours should know
                met = MeshView(message.stream, message.peers, self._end(message.stream), False)
                self._send(self.proxy.rng.choice(mesh.view.peers), met)
            return
        if mesh is None:
            if len(self.meshes) >= self.proxy.config.streams_max:
                return
            view = View(self.proxy.config.name, self.config.view_max, self.servers)
            mesh = self.meshes[message.stream] = Mesh(view)
        end = self._end(message.stream)
        if message.want:  # before it is mixed in: the asker has no use for its own name
            self._send(peer, MeshView(message.stream, tuple(mesh.view.peers), end, False))
        mesh.view.merge(peer, message.peers[: self.config.view_max], self.proxy.rng)
        mesh.known[peer] = max(mesh.known.get(peer, 0), message.end)
        if len(mesh.active) < min(self.config.server_fanout, len(mesh.view.peers)):
            self._shuffle(message.stream, mesh)
        # Everybody is a little behind under load, and will hear from others.
        if 0 < message.end < mesh.settled:
            self._tell(message.stream, end, mesh, [peer])
        if not self.running:
            self.running = True
            rng, config = self.proxy.rng, self.config
            self._set_timer(GOSSIP, rng.randrange(1, config.gossip_ns + 1))
            self._set_timer(SHUFFLE, rng.randrange(1, config.shuffle_ns + 1))

    def on_leave(self, peer: Peer, stream: LogId) -> None:
        if mesh := self.meshes.get(stream):
            _forget(mesh, peer, gone=True)

    def on_request(self, peer: Peer, message: MeshRequest) -> None:
        """What a client could not get from others: a large part at once, then it asks again.

        The first message is sent whatever its queue is like: it asks only when it has the last.
        """
        proxy, lo = self.proxy, message.lo
        stream, end = proxy.streams.get(message.stream), self._end(message.stream)
        if stream is None or lo <= 0:
            self._send(peer, MeshEvents(message.stream, lo, lo, end, True, ()))
            return
        upto, budget = min(message.hi or end, end), proxy.config.serves_per_step
        self.requested(peer, message.stream, upto)
        while lo < upto:
            budget -= 1
            batches = tuple(proxy.readable(stream, lo, upto))
            if not batches:
                break  # it could not be indexed, and is shown only up to there
            at, lo = lo, batches[-1].hi
            last = lo >= upto or not budget or peer in proxy.congested
            hi = max(lo, message.hi) if lo >= upto else lo
            self._send(peer, MeshEvents(message.stream, at, hi, end, last, batches))
            if last:
                return
        end = self._end(message.stream)
        self._send(peer, MeshEvents(message.stream, lo, max(lo, message.hi), end, True, ()))

    def requested(self, peer: Peer, stream: LogId, hi: int) -> None:
        """What a client asks for it will have: no need to tell it."""
        mesh = self.meshes.get(stream)
        if mesh is not None and peer in mesh.known:
            mesh.known[peer] = max(mesh.known[peer], hi)

    # ------------------------------------------------------------ news

    def advanced(self, stream: LogId, end: int) -> None:
        """More of a stream is committed here: told at once, or with what comes a moment later."""
        mesh = self.meshes.get(stream)
        if mesh is None:
            return
        mesh.news = True
        wait_ns = mesh.told_ns + self.config.notify_gap_ns - self.proxy.now_ns
        if wait_ns <= 0:
            mesh.told_ns = self.proxy.now_ns
            self._tell(stream, end, mesh, mesh.active)
        else:
            if not self.untold:
                self._set_timer(TELL, wait_ns)
            self.untold[stream] = True

    def _tell(self, stream: LogId, end: int, mesh: Mesh, peers: list[Peer]) -> None:
        notify = MeshNotify(stream, end)
        for peer in peers:
            told = self.config.mutual and mesh.known.get(peer, 0) >= end
            if not told and peer not in self.proxy.congested:
                mesh.known[peer] = end
                self._send(peer, notify)

    # ------------------------------------------------------------ time

    def on_timer(self, key: str) -> None:
        if key == TELL:
            untold, self.untold = self.untold, {}
            for stream in untold:
                if mesh := self.meshes.get(stream):
                    mesh.told_ns = self.proxy.now_ns
                    self._tell(stream, self._end(stream), mesh, mesh.active)
        elif key == GOSSIP:
            for stream, mesh in list(self.meshes.items()):
                self._gossip(stream, mesh)
            if self.proxy.rng.randrange(self.config.server_every) == 0:
                self._introduce()
            self.running = bool(self.meshes)
            if self.running:
                self._set_timer(GOSSIP, self.config.gossip_ns)
        elif self.running:
            self._set_timer(SHUFFLE, self.config.shuffle_ns)
            for stream, mesh in self.meshes.items():
                if mesh.news or not self.config.mutual:
                    self._shuffle(stream, mesh)

    def _gossip(self, stream: LogId, mesh: Mesh) -> None:
        if not mesh.view.peers:
            del self.meshes[stream]
            return
        end, mesh.settled = mesh.settled, self._end(stream)
        peer = self.proxy.rng.choice(mesh.view.peers)
        self._send(peer, MeshView(stream, tuple(mesh.view.peers), end, False))
        if len(mesh.known) > 4 * self.config.view_max:
            near = {*mesh.view.peers, *mesh.active}
            mesh.known = {p: end for p, end in mesh.known.items() if p in near}

    def _introduce(self) -> None:
        """Clients that turn to another replica would otherwise never meet ours."""
        others = [m for m in self.proxy.members if m != self.proxy.config.name]
        if others:
            other = self.proxy.rng.choice(others)
            for stream, mesh in self.meshes.items():
                self._send(other, MeshView(stream, tuple(mesh.view.peers), 0, False))

    def _shuffle(self, stream: LogId, mesh: Mesh) -> None:
        mesh.active = mesh.view.pick(self.config.server_fanout, self.proxy.rng)
        mesh.news = False
        if end := self._end(stream):
            self._tell(stream, end, mesh, mesh.active)

    # ------------------------------------------------------------ sessions

    def peer_up(self, peer: Peer) -> None:
        self.up[peer] = True

    def peer_down(self, peer: Peer) -> None:
        gone = not self.up.pop(peer, False)  # it could not even be reached
        for mesh in self.meshes.values():
            _forget(mesh, peer, gone)


def _forget(mesh: Mesh, peer: Peer, gone: bool) -> None:
    mesh.known.pop(peer, None)
    if peer in mesh.active:
        mesh.active.remove(peer)
    if gone:
        mesh.view.drop(peer)
