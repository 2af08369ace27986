"""A server as a member of the meshes of its streams: the member that has all events.

The mesh of a stream is the set of clients of a region that forward its events to each other. The
server notifies a few of them (drawn at random) of new events, as clients notify each other, and
answers requests. It also merges their views (the sets of peers that each knows), so that clients
that have lost contact with the others find them again. Every replica does this for the clients that
use it. All replicas show only committed events.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from surecast.core.machine import HandlerMachine
from surecast.core.replicated import RoleChanged
from surecast.core.streams import DIRECTORY, Attend, PieceLoaded, Streams, StreamsMoved, TakenBack
from surecast.core.types import (
    Congested,
    LogId,
    PassDown,
    Peer,
    PeerDown,
    PeerUp,
    SetTimer,
    TimerFired,
    Writable,
)
from surecast.parts.peer_sampling import View
from surecast.parts.serving import Ranges
from surecast.protocols.sprinkler.config import SprinklerConfig
from surecast.protocols.sprinkler.messages import (
    MeshEvents,
    MeshLeave,
    MeshNotify,
    MeshRequest,
    MeshView,
)

__all__ = ["MeshServer"]


@dataclass(slots=True)
class Mesh:
    """The mesh of one stream as a server knows it."""

    view: View
    active: list[Peer] = field(default_factory=list)  # the peers that are notified of new events
    known: dict[Peer, int] = field(default_factory=dict)  # peer → the end it has or was notified of
    shown: int = 0  # the end that readers saw when `_moved` last looked; 0: none
    told_ns: int = 0  # when `active` were last notified of a new end
    news: bool = False  # the stream has got new events since peers were last drawn
    # The end of the stream at the last gossip. A peer whose end is lower has missed notifications.
    settled: int = 0


class MeshServer(HandlerMachine):
    """The meshes of all streams at one replica: a layer over the stream service."""

    uses = ("streams",)
    handlers: ClassVar[dict[type, str]] = {
        MeshView: "_on_view",
        MeshRequest: "_on_request",
        MeshLeave: "_on_leave",
    }
    inputs: ClassVar[dict[type, str]] = {
        TimerFired: "_on_timer",
        PeerUp: "_on_peer_up",
        PeerDown: "_on_peer_down",
        Congested: "_on_congested",
        Writable: "_on_writable",
    }
    from_below: ClassVar[dict[type, str]] = {
        StreamsMoved: "_on_moved",
        PieceLoaded: "_on_piece_loaded",
        TakenBack: "_on_taken_back",
        RoleChanged: "_on_role_changed",
    }

    def __init__(
        self,
        config: SprinklerConfig,
        service: Streams,
        rng: Random,
        counters: Counter[str] | None = None,
    ) -> None:
        super().__init__(counters)
        self.name, self.config = config.name, config.mesh
        self.service = service
        self.rng = rng
        self.servers = config.regions[config.region]  # the configured replicas of this region
        self.members: tuple[Peer, ...] = ()  # the replicas that are in the chain now
        self.meshes: dict[LogId, Mesh] = {}
        # These three are used as ordered sets:
        self.up: dict[Peer, bool] = {}  # peers with which there is a session
        self.congested: dict[Peer, bool] = {}  # peers whose session takes no more for now
        self.untold: dict[LogId, bool] = {}  # streams to notify peers of when timer "tell" fires
        self.ranges = Ranges(
            service,
            MeshEvents,
            config.serves_per_step,
            lambda peer: peer in self.congested,
            end_event=service.end_event,
        )
        self.running = False  # the timers "gossip" and "shuffle" are set

    def _end(self, stream: LogId) -> int:
        """The end of a stream as it is shown here; 0 if it is not known."""
        return self.service.shown_end(stream)

    def _set_timer(self, key: str, after_ns: int) -> None:
        self.out.append(SetTimer(key, self.now_ns + after_ns))

    def _on_role_changed(self, event: RoleChanged) -> None:
        self.members = event.members

    # ------------------------------------------------------------ from clients

    def _on_view(self, peer: Peer, message: MeshView) -> None:
        if not self.service.may_read(peer, message.stream):
            self.counters["sprinkler.reader-too-old"] += 1
            return
        mesh = self.meshes.get(message.stream)
        if peer in self.servers:
            # Another replica sends its clients: pass them to one of ours, so that both sets mix.
            if mesh is not None and mesh.view.peers:
                met = MeshView(message.stream, message.peers, self._end(message.stream), False)
                self._send(self.rng.choice(mesh.view.peers), met)
            return
        if mesh is None:
            if len(self.meshes) >= self.config.meshes_max:
                return
            view = View(self.name, self.config.view_max, self.servers)
            if not self.meshes:
                self.out.append(PassDown(Attend("sprinkler.mesh", True)))
            mesh = self.meshes[message.stream] = Mesh(view)
        end = self._end(message.stream)
        if message.want:  # before the merge: the client does not need its own name
            self._send(peer, MeshView(message.stream, tuple(mesh.view.peers), end, False))
        mesh.view.merge(peer, message.peers[: self.config.view_max], self.rng)
        mesh.known[peer] = max(mesh.known.get(peer, 0), message.end)
        if len(mesh.active) < min(self.config.server_fanout, len(mesh.view.peers)):
            self._shuffle(message.stream, mesh)
        # Notify the client only if it is behind `settled`. Under load all clients are a little
        # behind, and get notifications from others.
        if 0 < message.end < mesh.settled:
            self._tell(message.stream, end, mesh, [peer])
        if not self.running:
            self.running = True
            rng, config = self.rng, self.config
            self._set_timer("gossip", rng.randrange(1, config.gossip_ns + 1))
            self._set_timer("shuffle", rng.randrange(1, config.shuffle_ns + 1))

    def _on_leave(self, peer: Peer, message: MeshLeave) -> None:
        if mesh := self.meshes.get(message.stream):
            _forget(mesh, peer, gone=True)

    def _on_request(self, peer: Peer, message: MeshRequest) -> None:
        """Answer a client: one that this server has notified, that begins or polls, or that did not
        get the events from other clients. If the range is too long for one answer, the answer has
        its first part, and the client requests the rest."""
        stream, end = message.stream, self._end(message.stream)
        if not self.service.may_read(peer, stream):
            self.counters["sprinkler.reader-too-old"] += 1
            return
        if end and message.lo > 0:
            self._requested(peer, stream, min(message.hi or end, end))
        self.ranges.answer(peer, stream, message.lo, message.hi, self.out)

    def _on_piece_loaded(self, event: PieceLoaded) -> None:
        self.ranges.loaded(event.stream, event.lo, self.out)

    def _requested(self, peer: Peer, stream: LogId, hi: int) -> None:
        """Note that a client has requested positions below `hi`: do not notify it of them."""
        mesh = self.meshes.get(stream)
        if mesh is not None and peer in mesh.known:
            mesh.known[peer] = max(mesh.known[peer], hi)

    # ------------------------------------------------------------ news

    def _on_moved(self, event: StreamsMoved) -> None:
        for stream in event.streams:
            if mesh := self.meshes.get(stream):
                self._moved(stream, mesh)

    def _moved(self, stream: LogId, mesh: Mesh) -> None:
        """Notify peers of new committed events, immediately or, if they were just notified, a
        moment later."""
        end = self._end(stream)
        if mesh.shown == end:
            return
        mesh.shown, mesh.news = end, True
        wait_ns = mesh.told_ns + self.config.notify_gap_ns - self.now_ns
        if wait_ns <= 0:
            mesh.told_ns = self.now_ns
            self._tell(stream, end, mesh, mesh.active)
        else:
            if not self.untold:
                self._set_timer("tell", wait_ns)
            self.untold[stream] = True

    def _on_taken_back(self, event: TakenBack) -> None:
        if mesh := self.meshes.get(event.log):
            mesh.shown = 0
        for stream in list(self.ranges.waiting) if event.log == DIRECTORY else [event.log]:
            self.ranges.taken_back(stream, self.out)

    def _tell(self, stream: LogId, end: int, mesh: Mesh, peers: list[Peer]) -> None:
        notify = MeshNotify(stream, end)
        for peer in peers:
            has_it = self.config.mutual and mesh.known.get(peer, 0) >= end
            if not has_it and peer not in self.congested:
                mesh.known[peer] = end
                self._send(peer, notify)

    # ------------------------------------------------------------ time

    def _on_timer(self, inp: TimerFired) -> None:
        key = inp.key
        if key == "tell":
            untold, self.untold = self.untold, {}
            for stream in untold:
                if mesh := self.meshes.get(stream):
                    mesh.told_ns = self.now_ns
                    self._tell(stream, self._end(stream), mesh, mesh.active)
        elif key == "gossip":
            for stream, mesh in list(self.meshes.items()):
                self._gossip(stream, mesh)
            if self.rng.randrange(self.config.server_every) == 0:
                self._introduce()
            self.running = bool(self.meshes)
            if self.running:
                self._set_timer("gossip", self.config.gossip_ns)
        elif self.running:  # the timer "shuffle"; it is set again only while there are meshes
            self._set_timer("shuffle", self.config.shuffle_ns)
            for stream, mesh in self.meshes.items():
                if mesh.news or not self.config.mutual:
                    self._shuffle(stream, mesh)

    def _gossip(self, stream: LogId, mesh: Mesh) -> None:
        """Send the view to one of its peers, with the end of the stream one period ago: a peer that
        is behind this end has missed notifications. Drop the mesh if no peer is left."""
        if not mesh.view.peers:
            del self.meshes[stream]
            if not self.meshes:
                self.out.append(PassDown(Attend("sprinkler.mesh", False)))
            return
        end, mesh.settled = mesh.settled, self._end(stream)
        peer = self.rng.choice(mesh.view.peers)
        self._send(peer, MeshView(stream, tuple(mesh.view.peers), end, False))
        if len(mesh.known) > 4 * self.config.view_max:
            near = {*mesh.view.peers, *mesh.active}
            mesh.known = {p: end for p, end in mesh.known.items() if p in near}

    def _introduce(self) -> None:
        """Send views to another replica, because its clients would not learn of ours otherwise."""
        others = [m for m in self.members if m != self.name]
        if others:
            other = self.rng.choice(others)
            for stream, mesh in self.meshes.items():
                self._send(other, MeshView(stream, tuple(mesh.view.peers), 0, False))

    def _shuffle(self, stream: LogId, mesh: Mesh) -> None:
        mesh.active = mesh.view.pick(self.config.server_fanout, self.rng)
        mesh.news = False
        if end := self._end(stream):
            self._tell(stream, end, mesh, mesh.active)

    # ------------------------------------------------------------ sessions

    def _on_peer_up(self, inp: PeerUp) -> None:
        self.up[inp.peer] = True
        self.congested.pop(inp.peer, None)

    def _on_congested(self, inp: Congested) -> None:
        self.congested[inp.peer] = True

    def _on_writable(self, inp: Writable) -> None:
        self.congested.pop(inp.peer, None)

    def _on_peer_down(self, inp: PeerDown) -> None:
        peer = inp.peer
        self.congested.pop(peer, None)
        self.ranges.remove_peer(peer)
        # If the session was never up, the peer cannot be reached. After the end of a session a peer
        # stays in the views.
        gone = not self.up.pop(peer, False)
        for mesh in self.meshes.values():
            _forget(mesh, peer, gone)


def _forget(mesh: Mesh, peer: Peer, gone: bool) -> None:
    """Forget what a peer has. `gone`: remove it from the view, too, because it has left the mesh or
    cannot be reached."""
    mesh.known.pop(peer, None)
    if peer in mesh.active:
        mesh.active.remove(peer)
    if gone:
        mesh.view.drop(peer)
