"""A client's neighbours in the mesh of a stream, and the notifications it sends to them.

The mesh of a stream is the set of clients of a region that forward its events to each other. Each
client knows a random set of others, its *view*, and exchanges views with them (gossip). It *draws*
a few peers from its view (chooses them at random), and draws others from time to time. It notifies
these peers of all new events, and requests notifications in return (`MeshLean`). So a client that
no other client has drawn still gets notifications from the peers that it has drawn itself.

G12 the graph of views is random, of small diameter, and heals: clients that have lost contact find
    the others again through the region's server.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from surecast.core.machine import HandlerMachine
from surecast.core.types import Close, Congested, LogId, Peer, PeerUp, SetTimer, Writable
from surecast.parts.peer_sampling import View
from surecast.parts.receive_window import ReceiveWindow
from surecast.protocols.sprinkler.config import ClientConfig
from surecast.protocols.sprinkler.messages import MeshLean, MeshLeave, MeshNotify, MeshView

__all__ = ["Feed", "MeshMembership"]


@dataclass(slots=True)
class Feed(ReceiveWindow):
    """One stream at a client: its window, the peers that the client knows and those it notifies."""

    view: View = field(kw_only=True)
    # The stream is known to have all positions below `position`. (A client may begin at a position
    # that the stream has not reached yet.)
    sure: bool = False
    joined: bool = False  # a server has answered a request for this stream
    active: list[Peer] = field(default_factory=list)  # drawn by this client; both notify each other
    leaning: dict[Peer, bool] = field(default_factory=dict)  # peers that have drawn this client
    known: dict[Peer, int] = field(default_factory=dict)  # peer → the end it has or was notified of
    progress_ns: int = 0  # when something was delivered, or a server answered that nothing is new
    patience_ns: int = 0  # how long after `progress_ns` a server is asked
    told_ns: int = 0  # when peers were last notified
    untold_bytes: int = 0  # delivered since `told_ns`
    telling: bool = False  # the timer "tell" is set: peers will be notified when it fires
    news: bool = False  # something was delivered since peers were last drawn
    # (peer, its end): positions to be requested from this peer when there is room for them.
    heard: tuple[Peer, int] | None = None

    @property
    def end(self) -> int:
        """The end of the stream here, as sent to others; 0 while it is not known."""
        return self.position if self.sure else 0


class MeshMembership(HandlerMachine):
    """The base class of `MeshPeer`: neighbours and notifications, without requests and delivery."""

    view_type: ClassVar[type[View]] = View

    def __init__(
        self,
        config: ClientConfig,
        starts: dict[LogId, int],
        rng: Random,
        counters: Counter[str] | None = None,
    ) -> None:
        super().__init__(counters)
        self.config = config
        self.starts = starts  # streams to follow when the machine starts → their first positions
        self.rng = rng
        self.replicas = frozenset(config.replicas)
        self.home = 0  # the replica that this client uses, as an index of `config.replicas`
        self.polled = 0  # the replica that was last asked because nothing new came, as an index
        self.feeds: dict[LogId, Feed] = {}
        # Both are used as ordered sets:
        self.up: dict[Peer, bool] = {}  # peers with which there is a session
        self.congested: dict[Peer, bool] = {}  # peers whose session takes no more for now
        self.rtt_ns = 0  # round-trip time to peers, smoothed; 0 until measured
        self.late: dict[Peer, int] = {}  # peers that did not answer in time → when asked
        self.alarm_ns = 1 << 62  # when the timer "deadline" fires

    @property
    def server(self) -> Peer:
        return self.config.replicas[self.home]

    # ------------------------------------------------------------ gossip

    def _gossip(self) -> None:
        """Send each view to a neighbour, and from time to time to the server instead."""
        mesh, rng = self.config.mesh, self.rng
        # This is decided at random. With a counter, clients that started together would always send
        # together and in the same order, and the server's view would contain only the last of them.
        to_server = rng.randrange(mesh.server_every) == 0
        for feed in self.feeds.values():
            peers = feed.view.peers
            # If the view is not full, the server is chosen like one more peer of it, so that small
            # groups of clients without contact to the others find them.
            chosen = rng.randrange(len(peers) + (len(peers) < mesh.view_max))
            peer = self.server if to_server or chosen == len(peers) else peers[chosen]
            self._send_view(feed, peer)
            self._forget_strangers(feed)
        if len(self.up) > self.config.sessions_max:
            self._close_idle()

    def _send_view(self, feed: Feed, peer: Peer) -> None:
        peers = feed.view.peers
        want = len(peers) < self.config.mesh.fanout
        self._send(peer, MeshView(feed.stream, tuple(peers), feed.end, want))

    def _introduce(self) -> None:
        """Send views to the server. A server notifies only clients that it knows, and one that is
        new or was restarted does not know this client."""
        for feed in self.feeds.values():
            if feed.joined:
                self._send_view(feed, self.server)

    def _on_view(self, peer: Peer, message: MeshView) -> None:
        feed = self.feeds.get(message.stream)
        if feed is None:
            self._send(peer, MeshLeave(message.stream))
            return
        mesh = self.config.mesh
        feed.view.merge(peer, message.peers[: mesh.view_max], self.rng)
        feed.known[peer] = max(feed.known.get(peer, 0), message.end)
        if message.want:
            self._send(peer, MeshView(feed.stream, tuple(feed.view.peers), feed.end, False))
        if len(feed.active) < min(mesh.fanout, len(feed.view.peers)):
            self._shuffle(feed, at_once=True)
        # A MeshView contains its sender's end. So in an idle stream, the one of the two that has
        # missed the last events learns of them.
        if message.end < feed.position and peer not in self.replicas:
            self._tell_one(feed, peer)
        else:
            self._heard(feed, peer, message.end)

    # ------------------------------------------------------------ notifying peers

    def _shuffle(self, feed: Feed, at_once: bool = False) -> None:
        """Draw other peers from the view, and notify them of our end if they do not have it.
        `at_once`: even if the stream is idle."""
        mesh = self.config.mesh
        if mesh.mutual and not feed.news and not at_once:
            return  # the stream is idle: no peer would learn anything new
        feed.news = False
        before, feed.active = feed.active, feed.view.pick(mesh.fanout, self.rng)
        if mesh.mutual:
            for peer in before:
                if peer not in feed.active:
                    self._send(peer, MeshLean(feed.stream, False))
            for peer in feed.active:
                if peer not in before:
                    self._send(peer, MeshLean(feed.stream, True))
        self._announce(feed)

    def _announce(self, feed: Feed) -> None:
        """Notify the peers drawn by a shuffle. Otherwise some peers might never be notified of the
        last events before a pause."""
        if feed.end:
            self._tell(feed)

    def _on_lean(self, peer: Peer, message: MeshLean) -> None:
        feed = self.feeds.get(message.stream)
        if feed is None:
            self._send(peer, MeshLeave(message.stream))
        elif not message.on:
            feed.leaning.pop(peer, None)
        elif len(feed.leaning) < 2 * self.config.mesh.view_max:
            feed.leaning[peer] = True
            self._tell_one(feed, peer)

    def _tell_soon(self, feed: Feed) -> None:
        """Notify peers of what was delivered: immediately or, if they were just notified, together
        with later deliveries."""
        mesh = self.config.mesh
        due_ns = feed.told_ns + mesh.notify_gap_ns
        if self.now_ns >= due_ns or feed.untold_bytes >= mesh.notify_bytes:
            self._tell(feed)
        elif not feed.telling:
            feed.telling = True
            self.out.append(SetTimer(("tell", feed.stream), due_ns))

    def _tell(self, feed: Feed) -> None:
        feed.told_ns, feed.untold_bytes = self.now_ns, 0
        end, known, congested = feed.end, feed.known, self.congested
        notify = MeshNotify(feed.stream, end)
        if not self.config.mesh.mutual:
            for peer in feed.active:
                if peer not in congested:
                    self._send(peer, notify)
            return
        for peers in (feed.active, feed.leaning):
            for peer in peers:
                if known.get(peer, 0) < end and peer not in congested:
                    known[peer] = end
                    self._send(peer, notify)

    def _tell_one(self, feed: Feed, peer: Peer) -> None:
        if feed.known.get(peer, 0) < feed.end and peer not in self.congested:
            feed.known[peer] = feed.end
            self._send(peer, MeshNotify(feed.stream, feed.end))

    # ------------------------------------------------------------ sessions

    def _on_peer_up(self, inp: PeerUp) -> None:
        self.up[inp.peer] = True
        if inp.peer == self.server:
            self._introduce()

    def forget(self, peer: Peer) -> bool:
        """Handle the end of a session. Returns whether it was up. If it never was, the peer cannot
        be reached and is removed from views."""
        was_up = self.up.pop(peer, False)
        self.congested.pop(peer, None)
        self.late.pop(peer, None)
        for feed in self.feeds.values():
            self.forget_in(feed, peer)
            if not was_up:
                feed.view.drop(peer)
        return was_up

    def forget_in(self, feed: Feed, peer: Peer) -> None:
        feed.known.pop(peer, None)
        feed.leaning.pop(peer, None)
        if peer in feed.active:
            feed.active.remove(peer)

    def _forget_strangers(self, feed: Feed) -> None:
        """If `known` has become large, keep only peers of the view, and peers that notify us or
        that we notify."""
        if len(feed.known) > 4 * self.config.mesh.view_max:
            near = {*feed.view.peers, *feed.active, *feed.leaning}
            feed.known = {peer: end for peer, end in feed.known.items() if peer in near}

    def _close_idle(self) -> None:
        """Close sessions with peers that this client does not need any more."""
        near = {*self.replicas}
        for feed in self.feeds.values():
            near.update(feed.view.peers, feed.active, feed.leaning, (a.peer for a in feed.asks))
        for peer in self.up:
            if peer not in near:
                self.out.append(Close(peer))

    def _on_congested(self, inp: Congested) -> None:
        self.congested[inp.peer] = True

    def _on_writable(self, inp: Writable) -> None:
        self.congested.pop(inp.peer, None)
        for feed in self.feeds.values():
            if inp.peer in feed.active or inp.peer in feed.leaning:
                self._tell_one(feed, inp.peer)

    # ------------------------------------------------------------ implemented by MeshPeer

    def _heard(self, feed: Feed, peer: Peer, end: int) -> None:
        raise NotImplementedError
