"""Sessions and datagrams between simulated nodes.

A *session* is a connection between two nodes, like a TCP connection. Each node has one *end* of the
session (session.py). Messages sent through an end arrive in order and once, or not at all. The
machine of a node gets the input `PeerUp` when its end is up, and `PeerDown` when its end goes down.
The two ends go up and down independently, like the two halves of a TCP connection:

- **Opening.** The first reliable send of either node starts a handshake of one round trip; further
  sends wait. After the handshake, the opener gets PeerUp. The peer gets PeerUp half a round trip
  later, before the opener's first message. If the peer sends during the handshake, it joins this
  attempt. A crashed but reachable peer refuses after one round trip; an unreachable peer is given
  up after `connect_timeout_ns`. In both cases the opener gets one PeerDown, and the waiting
  messages are lost. During the following `reconnect_ns` (plus a random 0 to 50 %) there is no new
  attempt: new messages wait for the end of this time. So each message either arrives or is followed
  by a PeerDown, and a machine that sends again after each PeerDown does not cause endless attempts.
- **Cuts.** A message that should arrive over a cut path is held back until the path is mended. If
  one direction stays cut for `session_timeout_ns` (plus a random 0 to 25 % for each end), the end
  goes down. If the other end is reachable, it gets a reset and goes down at once.
- **Crashes.** If a node crashes, its peers get PeerDown within the delay of the path plus
  `reset_ns`; if a reset cannot reach them, after the timeout for cuts. Messages of the crashed node
  may still arrive before PeerDown, but not after it.
- **A new session** may reach a node whose end of an old session with the same peer is still up.
  Then the old end goes down first: the node gets PeerDown, then PeerUp.
- **Closing** delivers the messages in flight in both directions; the peer's end goes down first.
  Messages that a node sends after its effect `Close` wait until the old session has ended, and then
  open a new one.

Each end counts the bytes that its node has sent and the peer has not processed yet. If they exceed
`high_water_bytes`, the sender's machine gets `Congested`; when they fall below half of that number,
it gets `Writable`.
"""

from random import Random
from typing import TYPE_CHECKING, Any

from surecast.core.sessions import (
    ATTEMPT,
    CLOSE,
    CLOSED,
    FAILED,
    FIRST_FRAME,
    HELLO,
    LOST,
    REPLACED,
    SILENT,
    STOPPED,
)
from surecast.core.states import Moves
from surecast.core.types import (
    MS,
    SECOND,
    US,
    Congested,
    PeerDown,
    PeerUp,
    Received,
    Send,
    Writable,
)
from surecast.errors import UsageError
from surecast.sim.agenda import CALL, DATAGRAM, MESSAGE, Agenda
from surecast.sim.links import Link, Path, Wiring
from surecast.sim.node import Node
from surecast.sim.session import ACCEPT, DOWN, FIN, NOTHING, OPENING, UP, End, add
from surecast.sim.sizes import Sizes

if TYPE_CHECKING:
    from surecast.sim.loop import Loop

__all__ = ["Network"]


class Network:
    """All sessions of a world; `world` runs the agenda and steps the nodes."""

    def __init__(self, world: "Loop", link: Link, rng: Random) -> None:
        self.world = world
        self.agenda: Agenda = world.agenda
        self.wiring = Wiring(link)
        self.sizes = Sizes()
        self.rng = rng
        self.connect_timeout_ns = 1 * SECOND
        self.session_timeout_ns = 2 * SECOND
        self.reconnect_ns = 50 * MS
        self.reset_ns = 200 * US
        self.high_water_bytes = 4 << 20
        self.moves: Moves | None = None  # checks the states of sessions, if set

    def _moved(self, end: End, why: str) -> None:
        """Check a possible change of an end's state against the table of transitions in
        `core.sessions`; `why` is the cause in this table."""
        if self.moves is not None:
            end.seen = self.moves.check(end.seen, why, end.phase)
            end.validate()

    # ------------------------------------------------------------ sending

    def send(self, now_ns: int, node: Node, effect: Send) -> None:
        message = effect.message
        size = self.sizes.of(message)
        if not effect.reliable:
            self._datagram(now_ns, node, effect.peer, message, size)
            return
        end = node.ends.get(effect.peer)
        if end is None:
            end = self._open(now_ns, node, self._find(node, effect.peer))
        end.queued += size
        if end.queued > self.high_water_bytes:
            self.swell(now_ns, end)
        received = Received(node.name, message)
        if end.closing:
            end.after = add(end.after, (received, size))
        elif end.state is UP:
            self._put(now_ns, end, received, size)
        else:
            end.waiting = add(end.waiting, (received, size))

    def close(self, now_ns: int, node: Node, peer: str) -> None:
        end = node.ends.get(peer)
        if end is None or end.closing:
            return
        end.closing = end.held = end.odd = True
        if end.state is UP:
            self._put(now_ns, end, FIN, 0)
        else:
            end.waiting = add(end.waiting, (FIN, 0))
        self._moved(end, CLOSE)

    def path(self, src: Node, dst: Node) -> Path:
        path = src.paths.get(dst.name)
        if path is None:
            path = self.wiring.path(src.name, src.site, dst.name, dst.site)
            src.paths[dst.name] = path
        return path

    def _find(self, node: Node, peer: str) -> Node:
        target = self.world.nodes.get(peer)
        if target is None or target is node:
            raise UsageError(f"{node.name} sends to {peer!r}: not another node of this world")
        return target

    def _put(self, now_ns: int, end: End, what: Any, size: int) -> None:
        """Schedule the arrival of a message (or control message) of `end`, after all earlier
        ones."""
        path = end.path
        at_ns = now_ns + end.delay_ns + int(self.rng.random() * end.jitter_ns)
        if not path.plain:
            at_ns += path.sent_ns(now_ns, size) - now_ns + path.retransmit_ns(self.rng)
        if at_ns < end.last_ns:
            at_ns = end.last_ns
        else:
            end.last_ns = at_ns
        self.agenda.push(at_ns, MESSAGE, end, what, size)

    def _datagram(self, now_ns: int, node: Node, peer: str, message: Any, size: int) -> None:
        target = self._find(node, peer)
        path = self.path(node, target)
        link = path.link
        sent_ns = path.sent_ns(now_ns, size)
        rng = self.rng
        if path.cut or (link.loss and rng.random() < link.loss):
            return
        received = Received(node.name, message)
        copies = 2 if link.duplicate and rng.random() < link.duplicate else 1
        for _ in range(copies):
            at_ns = sent_ns + link.delay_ns
            if link.jitter_ns:
                at_ns += int(rng.random() * link.jitter_ns)
            if link.reorder and rng.random() < link.reorder:
                at_ns += int(rng.random() * link.reorder_ns)
            self.agenda.push(at_ns, DATAGRAM, path, target, received)

    # ------------------------------------------------------------ opening

    def _open(self, now_ns: int, node: Node, peer: Node) -> End:
        theirs = peer.ends.get(node.name)
        if theirs is not None and theirs.other.state is OPENING:
            end = theirs.other  # join the peer's attempt
        else:
            end = End(node, peer, self.path(node, peer), opener=True)
            end.other = End(peer, node, self.path(peer, node), opener=False)
            end.other.other = end
            begin_ns = node.quiet_until.get(peer.name, 0)
            if begin_ns > now_ns:
                self.agenda.push(begin_ns, CALL, self._begin, (end,))
            else:
                self._begin(now_ns, end)
        node.ends[peer.name] = end
        return end

    def _begin(self, now_ns: int, end: End) -> None:
        if end.state is OPENING:
            end.begun = True
            self._moved(end, ATTEMPT)
            self._shake(now_ns, end)
            self.agenda.push(now_ns + self.connect_timeout_ns, CALL, self._give_up, (end,))

    def _shake(self, now_ns: int, end: End) -> None:
        """Begin the handshake. It completes after a round trip, unless a path is cut by then."""
        at_ns = now_ns
        for path in (end.path, end.other.path):
            at_ns += path.delay_ns + path.retransmit_ns(self.rng)
            at_ns += int(self.rng.random() * path.jitter_ns)
        self.agenda.push(at_ns, CALL, self._shaken, (end,))

    def _shaken(self, now_ns: int, end: End) -> None:
        if end.state is not OPENING:
            return
        if end.path.cut or end.other.path.cut:
            end.missed = True  # the handshake is repeated when the path is mended
        elif end.peer.machine is None:
            self._give_up(now_ns, end)  # refused
        else:
            end.state = UP
            end.follow()
            self._put(now_ns, end, ACCEPT, 0)
            self._put_waiting(now_ns, end)
            self._moved(end, HELLO)
            self.world.give(end.node, PeerUp(end.peer.name, end.peer.speaks))

    def _give_up(self, now_ns: int, end: End) -> None:
        if end.state is not OPENING:
            return
        for side in (end, end.other):
            quiet_ns = int(self.reconnect_ns * (1 + self.rng.random() / 2))
            side.node.quiet_until[side.peer.name] = now_ns + quiet_ns
            self._down(now_ns, side, FAILED)

    def _put_waiting(self, now_ns: int, end: End) -> None:
        waiting, end.waiting = end.waiting, NOTHING
        for what, size in waiting:
            self._put(now_ns, end, what, size)

    def _accept(self, now_ns: int, end: End) -> None:
        """Take `end` up; it is the peer's end, which the opener's ACCEPT has reached."""
        node, peer = end.node, end.peer
        old = node.ends.get(peer.name)
        if old is not None and old is not end:  # of an old session, which is down at the peer
            self._down(now_ns, old, REPLACED)
        node.ends[peer.name] = end
        end.state = UP
        end.follow()
        end.odd = end.closing or end.path.cut or end.other.state is DOWN
        self._put_waiting(now_ns, end)
        self._moved(end, FIRST_FRAME)
        self.world.give(node, PeerUp(peer.name, peer.speaks))

    # ------------------------------------------------------------ arriving

    def arrive_oddly(self, now_ns: int, end: End, what: Any, size: int) -> bool:
        """Handle an arrival from `end` if `end.odd`. Returns whether to give it to the peer now."""
        if end.path.cut or end.flowing:
            end.stalled = add(end.stalled, (what, size))
            return False
        passes = self._pass(now_ns, end, what)
        end.odd = end.closing or end.congested or end.other.state is DOWN
        return passes

    def _pass(self, now_ns: int, end: End, what: Any) -> bool:
        """Handle what arrives from `end`. Returns True for a message that is to be given to the
        peer; False for a control message, or if the peer's end is down."""
        there = end.other
        if there.state is DOWN:
            return False
        if what is ACCEPT:
            self._accept(now_ns, there)
            return False
        if what is FIN:
            if not there.closing:
                there.closing = there.held = there.odd = True
                self._put(now_ns, there, FIN, 0)
            self._down(now_ns, there, CLOSED, reset=False)
            return False
        return True

    def swell(self, now_ns: int, end: End) -> None:
        """Called when `queued` of an end is above `high_water_bytes`."""
        if not end.congested:
            end.congested = end.odd = True
            self._notify(now_ns, end, Congested(end.peer.name))

    def taken(self, now_ns: int, end: End, size: int) -> None:
        """Called when a node processes a message from `end`."""
        end.queued -= size
        if end.congested and end.queued * 2 < self.high_water_bytes:
            end.congested = False
            self._notify(now_ns, end, Writable(end.peer.name))

    def _notify(self, now_ns: int, end: End, inp: Any) -> None:
        """Give an end's node an input. This is called while an effect is performed, so the input
        goes through the agenda. It is dropped if the node has another session by then."""
        self.agenda.push(now_ns, CALL, self._notify_now, (end, inp))

    def _notify_now(self, now_ns: int, end: End, inp: Any) -> None:
        if end.node.ends.get(end.peer.name) is end:
            self.world.give(end.node, inp)

    # ------------------------------------------------------------ ending

    def reset_all(self, now_ns: int, node: Node) -> None:
        """Break every session of a node, as when a firewall loses its connection table."""
        for end in list(node.ends.values()):
            self._down(now_ns, end, LOST)

    def _down(self, now_ns: int, end: End, why: str, reset: bool = True) -> None:
        """Take `end` down. Reset the other end, unless the path is cut or `reset` is False."""
        if end.state is DOWN:
            return
        node, peer, other = end.node, end.peer, end.other
        end.state = DOWN
        end.held = True
        self._moved(end, why)
        other.odd = True  # its messages in flight must not arrive any more
        known = node.ends.get(peer.name) is end  # else the node uses another session
        if known:
            del node.ends[peer.name]
        if other.state is OPENING and peer.ends.get(node.name) is not other:
            other.state = DOWN  # its node does not know this session
            self._moved(other, LOST)
        elif other.state is not DOWN and reset and not end.path.cut:
            self._reset(now_ns, end)
        if not known:
            return
        if end.after:  # messages sent after Close belong to a new session
            new = self._open(now_ns, node, peer)
            new.waiting = end.after
            new.queued = sum(size for _, size in end.after)
            if new.queued > self.high_water_bytes:
                self.swell(now_ns, new)
        self.world.give(node, PeerDown(peer.name))

    def _reset(self, now_ns: int, end: End) -> None:
        """Send the other side of `end` a reset."""
        at_ns = now_ns + self.reset_ns + int(self.rng.random() * end.path.delay_ns)
        self.agenda.push(at_ns, CALL, self._down, (end.other, LOST, False))

    def crash(self, now_ns: int, node: Node) -> None:
        """End a crashed node's sessions. Must be called before the node forgets its ends."""
        for end in node.ends.values():
            if end.state is OPENING and not end.opener:
                # The peer opened this session and its attempt continues; only what this node has
                # added is lost.
                end.waiting = end.after = NOTHING
                end.closing = end.congested = False
                end.queued = 0
            else:
                self._vanish(now_ns, end)
        # Sessions that peers have opened, and that this node had not accepted yet:
        for peer in self.world.nodes.values():
            theirs = peer.ends.get(node.name)
            if theirs is not None and theirs.state is UP and theirs.other.state is OPENING:
                self._vanish(now_ns, theirs.other)

    def _vanish(self, now_ns: int, end: End) -> None:
        """Take down the end of a crashed node. The other end goes down by a reset or a timeout."""
        end.state = DOWN
        self._moved(end, STOPPED)
        other = end.other
        other.odd = True
        if other.state is OPENING and other.node.ends.get(end.node.name) is not other:
            other.state = DOWN
            self._moved(other, LOST)
        elif other.state is not DOWN and not end.path.cut:
            self._reset(now_ns, end)
        elif other.state is OPENING:  # it joined the crashed node's attempt; no reset can reach it
            at_ns = now_ns + self.connect_timeout_ns
            self.agenda.push(at_ns, CALL, self._down, (other, LOST, False))

    # ------------------------------------------------------------ cutting and mending

    def rewire(self, now_ns: int) -> None:
        """Called when links or cuts have changed."""
        nodes = self.world.nodes
        for node in nodes.values():
            self.wiring.refresh((p, node.site, nodes[p.dst].site) for p in node.paths.values())
        for node in nodes.values():
            for end in node.ends.values():
                self._recheck(now_ns, end)
                self._recheck(now_ns, end.other)

    def _recheck(self, now_ns: int, end: End) -> None:
        """Bring one end up to date with the state of its paths. Calling this again without a change
        of the paths does nothing."""
        there = end.other
        end.follow()
        if end.path.cut:
            end.odd = True
            end.cut = True
        elif end.cut:
            end.cut = False
            self._release(now_ns, end)
        if end.state is DOWN:
            return
        if end.path.cut or there.path.cut:
            if not end.watched and not (end.state is OPENING and there.state is OPENING):
                end.watched = True
                timeout_ns = int(self.session_timeout_ns * (1 + self.rng.random() / 4))
                self.agenda.push(now_ns + timeout_ns, CALL, self._timeout, (end, end.watch))
            return
        if end.missed:
            end.missed = False
            self._shake(now_ns, end)
        if end.watched:
            end.watched = False
            end.watch += 1
            if there.state is DOWN:  # the other end's reset could not get through before
                self._reset(now_ns, there)

    def _release(self, now_ns: int, end: End) -> None:
        """The path from `end` is mended: let messages that were held back (`stalled`) arrive after
        the delay of the path."""
        flow_ns = now_ns + end.path.delay_ns + end.path.retransmit_ns(self.rng)
        end.flow_ns = max(end.flow_ns, flow_ns)
        end.flowing = True
        self.agenda.push(end.flow_ns, CALL, self._flow, (end,))

    def _flow(self, now_ns: int, end: End) -> None:
        """Let the messages that were held back arrive."""
        if end.path.cut or now_ns < end.flow_ns:
            return  # the path was cut again; the next mend schedules another call
        end.flowing = False
        stalled, end.stalled = end.stalled, NOTHING
        for what, size in stalled:
            if self._pass(now_ns, end, what):
                self.world.arrive(end, what, size)
        end.odd = end.closing or end.congested or end.other.state is not UP

    def _timeout(self, now_ns: int, end: End, watch: int) -> None:
        if end.watch == watch:
            self._down(now_ns, end, SILENT)
