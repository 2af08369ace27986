"""A client in the meshes of its streams: it gets most events from other clients of its region.

Clients notify each other of the ends of their copies. A client that is behind requests the missing
positions once from a client that is ahead. If this client does not send them in time, it requests
them from a server of the region. Which clients know each other is random and changes by gossip
(`mesh_membership.py`), separately for each stream (R12).

G2 a stream is delivered in rising positions, without gaps, from the requested start.
G4 every event is delivered, or its position is delivered as void (obsolete), whichever peers fail.
G11 a position is requested from peers (other clients) at most once, unless the peer answered that
    it does not have it yet (R12); everything else is requested from the server. Buffers are
    bounded.
G13 a client that stalls or fails delays only those peers that had just sent it a request, and these
    no longer than a deadline.
"""

from typing import ClassVar

from surecast.columns.rules import is_end
from surecast.core.endpoint import Ended, Follow, Following, Unfollow
from surecast.core.types import (
    Congested,
    Deliver,
    Emit,
    LogId,
    Peer,
    PeerDown,
    PeerUp,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.parts.receive_window import Ask
from surecast.protocols.sprinkler.mesh_membership import Feed, MeshMembership
from surecast.protocols.sprinkler.messages import (
    MeshEvents,
    MeshLean,
    MeshLeave,
    MeshNotify,
    MeshRequest,
    MeshView,
)

__all__ = ["MeshPeer"]


class MeshPeer(MeshMembership):
    """Requests, answers and delivery; `MeshMembership` handles neighbours and notifications."""

    handlers: ClassVar[dict[type, str]] = {
        MeshNotify: "_on_notify",
        MeshRequest: "_on_request",
        MeshEvents: "_on_events",
        MeshView: "_on_view",
        MeshLean: "_on_lean",
        MeshLeave: "_on_leave",
    }
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        Follow: "_on_follow",
        Unfollow: "_on_unfollow",
        TimerFired: "_on_timer",
        PeerUp: "_on_peer_up",
        PeerDown: "_on_peer_down",
        Congested: "_on_congested",
        Writable: "_on_writable",
    }

    # ------------------------------------------------------------ commands and timers

    def _on_start(self, _inp: Start) -> None:
        mesh = self.config.mesh
        for key, period_ns in (("gossip", mesh.gossip_ns), ("shuffle", mesh.shuffle_ns)):
            # At a random time of the period, so that clients that start together do not all send
            # at the same time.
            self.out.append(SetTimer(key, self.now_ns + self.rng.randrange(1, period_ns + 1)))
        self.out.append(SetTimer("silence", self.now_ns + self.config.silence_ns))
        for stream, start in self.starts.items():
            self._follow(stream, start)

    def _on_follow(self, inp: Follow) -> None:
        if inp.stream not in self.feeds and len(self.feeds) < self.config.streams_max:
            self._follow(inp.stream, inp.start)

    def _follow(self, stream: LogId, start: int) -> None:
        config = self.config
        view = self.view_type(config.name, config.mesh.view_max, config.replicas)
        feed = self.feeds[stream] = Feed(stream, start, start, view=view, sure=start == 1)
        feed.progress_ns, feed.patience_ns = self.now_ns, config.silence_ns
        if start:
            self.out.append(Emit(Following(stream, start)))
        self._send(self.server, MeshView(stream, (), feed.end, True))
        self._ask_rest(feed, self.server)

    def _on_unfollow(self, inp: Unfollow) -> None:
        feed = self.feeds.pop(inp.stream, None)
        if feed is not None:
            for peer in dict.fromkeys((self.server, *feed.view.peers, *feed.leaning)):
                self._send(peer, MeshLeave(inp.stream))

    def _on_timer(self, inp: TimerFired) -> None:
        key, mesh = inp.key, self.config.mesh
        if key == "deadline":
            self._look_at_deadlines()
        elif key == "shuffle":
            self.out.append(SetTimer("shuffle", self.now_ns + mesh.shuffle_ns))
            for feed in self.feeds.values():
                self._shuffle(feed)
        elif key == "gossip":
            self.out.append(SetTimer("gossip", self.now_ns + mesh.gossip_ns))
            self._gossip()
        elif key == "silence":
            self.out.append(SetTimer("silence", self.now_ns + self.config.silence_ns // 2))
            for feed in self.feeds.values():
                self._mind_silence(feed)
        elif due := self.feeds.get(key[1]):  # ("tell", stream)
            due.telling = False
            self._tell(due)

    # ------------------------------------------------------------ notifications

    def _on_notify(self, peer: Peer, message: MeshNotify) -> None:
        feed = self.feeds.get(message.stream)
        if feed is None:
            self._send(peer, MeshLeave(message.stream))
            return
        self._heard(feed, peer, message.end)

    def _heard(self, feed: Feed, peer: Peer, end: int) -> None:
        """`peer` has the stream up to `end`: request the positions that were not requested yet."""
        if end > feed.known.get(peer, 0):
            feed.known[peer] = end
        feed.sure = feed.sure or 0 < feed.position <= end
        if feed.next >= end or not feed.position:
            return
        config = self.config
        # A buffer that is half full counts as full. Otherwise answers might have to be dropped, and
        # would be requested repeatedly.
        if 2 * feed.early_bytes >= config.early_bytes_max or len(feed.asks) >= config.asks_max:
            self._remember(feed, peer, end)
            return
        missing = feed.missing(feed.next, end)
        feed.next = end
        for lo, hi in missing:
            if len(feed.asks) >= config.asks_max:
                break  # after an answer, `_fill` requests the rest
            if peer in self.replicas:  # servers are members of the mesh, too
                self._ask_server(feed, peer, lo, hi)
                continue
            if lo < feed.asked:  # requested before, and dropped because there was no room
                self._ask_server(feed, self.server, lo, min(hi, feed.asked))
                lo = feed.asked
            if lo < hi:
                deadline_ns = self.now_ns + self._patience_ns()
                self._ask(feed, Ask(peer, lo, hi, self.now_ns, deadline_ns))
        if peer not in self.replicas:
            feed.asked = max(feed.asked, end)

    def _remember(self, feed: Feed, peer: Peer, end: int) -> None:
        """There is no room for the positions that `peer` has: remember to request them later."""
        if feed.heard is None or end > feed.heard[1]:
            feed.heard = (peer, end)

    def _patience_ns(self) -> int:
        """How long to wait for a peer's answer: some round trips, but not longer than for the
        answer of a server."""
        config = self.config
        patience_ns = max(config.deadline_ns_min, config.deadline_rtts * self.rtt_ns)
        return min(patience_ns, config.server_retry_ns)

    def _ask(self, feed: Feed, ask: Ask) -> None:
        feed.asks.append(ask)
        self._send(ask.peer, MeshRequest(feed.stream, ask.lo, ask.hi))
        if ask.deadline_ns < self.alarm_ns:
            self.alarm_ns = ask.deadline_ns
            self.out.append(SetTimer("deadline", ask.deadline_ns))

    # ------------------------------------------------------------ answering peers

    def _on_request(self, peer: Peer, message: MeshRequest) -> None:
        stream, lo, hi = message.stream, message.lo, message.hi
        feed = self.feeds.get(stream)
        if feed is None:
            self._send(peer, MeshLeave(stream))
            return
        end = feed.end
        if hi > feed.known.get(peer, 0):
            feed.known[peer] = min(hi, end)  # the peer will get these from us or from a server
        # A congested peer gets an answer without events, and requests the range from a server.
        held = [] if peer in self.congested or lo >= hi else feed.held(lo, hi)
        nbytes_max = self.config.reply_bytes_max
        first, nbytes = 0, 0
        for number, batch in enumerate(held):
            if nbytes and nbytes + batch.nbytes > nbytes_max:
                part = tuple(held[first:number])
                self._send(peer, MeshEvents(stream, lo, part[-1].hi, end, False, part))
                lo, first, nbytes = part[-1].hi, number, 0
            nbytes += batch.nbytes
        self._send(peer, MeshEvents(stream, lo, hi, end, True, tuple(held[first:])))

    # ------------------------------------------------------------ getting events

    def _on_events(self, peer: Peer, message: MeshEvents) -> None:
        feed = self.feeds.get(message.stream)
        if feed is None:
            return
        ask = feed.answered(peer, message.lo, message.hi, message.last)
        of_server = peer in self.replicas
        if not of_server:
            self._measure(peer, ask)
        if ask is not None and not message.last:  # further messages of the answer will follow
            ask.deadline_ns = self.now_ns + (
                self.config.server_retry_ns if of_server else self._patience_ns()
            )
        if not feed.position:
            self._begin_at(feed, peer, message)
            return
        if message.end > feed.known.get(peer, 0):
            feed.known[peer] = message.end
        before = feed.position
        if any(batch.stream_id != feed.stream or batch.lo < 1 for batch in message.batches):
            self.counters["mesh.bad-events"] += 1
        elif message.batches:
            last = message.batches[-1]
            if of_server and last.hi <= before and is_end(last):
                self.out.append(Emit(Ended(feed.stream, last.hi)))
            self._take(feed, peer, message)
        if of_server:
            self._answered_by_server(feed, peer, message, before, ask)
        elif message.end < message.hi:
            self._lower_next(feed, message.end)
        if feed.position < feed.next:
            self._fill(feed)
        elif feed.heard is not None:
            heard, feed.heard = feed.heard, None
            self._heard(feed, *heard)

    def _measure(self, peer: Peer, ask: Ask | None) -> None:
        """Update the round-trip time to peers, also with answers that came after their deadline,
        whose request is dropped (`ask` is None)."""
        late_ns = self.late.pop(peer, 0)
        if sent_ns := late_ns if ask is None else ask.sent_ns:
            rtt_ns = min(self.now_ns - sent_ns, self.config.server_retry_ns)
            self.rtt_ns += (rtt_ns - self.rtt_ns) >> 3 if self.rtt_ns else rtt_ns

    def _take(self, feed: Feed, peer: Peer, message: MeshEvents) -> None:
        before, next_before = feed.position, feed.next
        ready = feed.take(message.batches, self.config.early_bytes_max)
        if feed.next < next_before:  # some batches were dropped
            self._remember(feed, peer, next_before)
        if not ready:
            return
        of_server = peer in self.replicas
        name = "mesh.positions-from-server" if of_server else "mesh.positions-from-peers"
        self.counters[name] += feed.position - before
        feed.sure = True
        self.out.append(Deliver(feed.stream, tuple(ready)))
        nbytes_max = self.config.keep_bytes_max
        for batch in ready:
            feed.keep(batch, nbytes_max)
            feed.untold_bytes += batch.nbytes
        feed.progress_ns, feed.patience_ns = self.now_ns, self.config.silence_ns
        feed.news = True
        self._tell_soon(feed)

    def _lower_next(self, feed: Feed, end: int) -> None:
        """R12: the peer has the stream only up to `end`. So positions from there on count as not
        requested, and may be requested from another peer."""
        feed.next = min(feed.next, max(feed.position, end))
        feed.asked = min(feed.asked, feed.next)

    def _begin_at(self, feed: Feed, peer: Peer, message: MeshEvents) -> None:
        """For a client that starts at the latest position: begin at the end that a server sent."""
        if peer in self.replicas and message.end:
            feed.position = feed.next = message.end
            feed.progress_ns, feed.joined, feed.sure = self.now_ns, True, True
            self.out.append(Emit(Following(feed.stream, message.end)))

    # ------------------------------------------------------------ falling back on a server

    def _fill(self, feed: Feed) -> None:
        """Request missing positions below `next` from a server, unless an open request covers
        them."""
        for lo, hi in feed.missing(feed.position, feed.next):
            if len(feed.asks) >= self.config.asks_max:
                return  # this is called again after an answer
            self.counters["mesh.fallback"] += 1
            self._ask_server(feed, self.server, lo, hi)

    def _ask_rest(self, feed: Feed, server: Peer) -> None:
        """Request all that a server has from our position on."""
        self._ask_server(feed, server, feed.position, 0)

    def _ask_server(self, feed: Feed, server: Peer, lo: int, hi: int) -> None:
        deadline_ns = self.now_ns + self.config.server_retry_ns
        self._ask(feed, Ask(server, lo, hi, self.now_ns, deadline_ns))

    def _answered_by_server(
        self, feed: Feed, server: Peer, message: MeshEvents, before: int, ask: Ask | None
    ) -> None:
        """Continue after an answer of a server, which may have more, or may itself be behind."""
        feed.joined = True
        feed.sure = feed.sure or message.end >= feed.position
        if feed.position == before and message.end <= before:
            feed.progress_ns = self.now_ns  # nothing new: ask again after a longer wait
            feed.patience_ns = min(2 * feed.patience_ns, self.config.silence_ns_max)
        if ask is None:
            return
        if not ask.hi:
            feed.next = max(feed.next, message.end)  # this request was for all positions up to end
            if not message.last:
                ask.hi = message.end  # if this server fails, another one can continue
            if server != self.server and feed.position > before:
                # The server in use did not notify this client of these events. Change to the server
                # that sent them.
                self.home = self.config.replicas.index(server)
                self._introduce()
        elif message.end < ask.hi:
            # The server has less than the peers. Another replica may have more.
            self._lower_next(feed, message.end)
            self._leave_server(server)
            # An open request whose `hi` is 0 would already be for the rest.
            if self.server != server and all(a.hi for a in feed.asks):
                self._ask_rest(feed, self.server)

    def _mind_silence(self, feed: Feed) -> None:
        """R12: after some time without new events, ask a server, each time another replica."""
        if self.now_ns - feed.progress_ns < feed.patience_ns or any(
            ask.peer in self.replicas for ask in feed.asks
        ):
            return
        self.polled = (self.polled + 1) % len(self.config.replicas)
        self._ask_rest(feed, self.config.replicas[self.polled])

    def _look_at_deadlines(self) -> None:
        """Drop requests whose deadline has passed, and request the positions from a server."""
        now_ns = self.now_ns
        slow: dict[Peer, int] = {}  # peer → when its request was sent
        self.alarm_ns = 1 << 62
        for feed in self.feeds.values():
            late = [ask for ask in feed.asks if ask.deadline_ns <= now_ns]
            if late:
                feed.asks = [ask for ask in feed.asks if ask.deadline_ns > now_ns]
                self.counters["mesh.late"] += len(late)
                slow.update((ask.peer, ask.sent_ns) for ask in late)
        for peer, sent_ns in slow.items():
            if peer in self.replicas:
                self._leave_server(peer)
            else:
                self.late[peer] = sent_ns
        self._fill_all()
        nearest = min((a.deadline_ns for f in self.feeds.values() for a in f.asks), default=0)
        if nearest and nearest <= self.alarm_ns:
            self.alarm_ns = nearest
            self.out.append(SetTimer("deadline", nearest))

    def _fill_all(self) -> None:
        """Request from a server what no open request covers, in all streams."""
        for feed in self.feeds.values():
            if feed.position < feed.next:
                self._fill(feed)
            elif not feed.joined and not feed.asks:
                self._ask_rest(feed, self.server)

    def _leave_server(self, server: Peer, introduce: bool = True) -> None:
        """Change to the next replica, if `server` is the one in use. `introduce`: send it views."""
        if server == self.server:
            self.home = (self.home + 1) % len(self.config.replicas)
            if introduce:
                self._introduce()

    # ------------------------------------------------------------ sessions

    def _on_peer_down(self, inp: PeerDown) -> None:
        peer = inp.peer
        was_up = self.forget(peer)
        # If there was no session, send no views: if this is the only replica, they would be sent to
        # it again, although it cannot be reached.
        self._leave_server(peer, was_up)
        for feed in self.feeds.values():
            if any(ask.peer == peer for ask in feed.asks):
                feed.asks = [ask for ask in feed.asks if ask.peer != peer]
        self._fill_all()

    def _on_leave(self, peer: Peer, message: MeshLeave) -> None:
        if feed := self.feeds.get(message.stream):
            self.forget_in(feed, peer)
            feed.view.drop(peer)
            feed.asks = [ask for ask in feed.asks if ask.peer != peer]
            if feed.position < feed.next:
                self._fill(feed)
