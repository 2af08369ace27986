"""The sessions of a node over TCP, as `core.types` specifies them: queues, time-outs, closing.

A node has at most one `Session` per peer. A session is OPENING while one of the two nodes connects
to the other, and UP once both have sent Hello. At the node that accepted the connection, it is UP
only after the peer's next frame, because that frame shows that the peer has received the Hello.

opening.py establishes sessions, also when both nodes connect at once.

**Time-out.** Each node sends a Beat when it has nothing else to send. A node that receives nothing
for `session_timeout_ns` ends the session. If this process did not run for a while, for example
because it was stopped, that time is not counted.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from surecast.core.sessions import (
    CLOSE,
    FAILED,
    FIRST_FRAME,
    HELLO,
    OVERFLOW,
    SESSION,
    STOPPED,
)
from surecast.core.states import Moves
from surecast.core.types import SECOND, Congested, Peer, PeerUp, Writable
from surecast.core.wire import Codec
from surecast.runtime.hello import BEAT, BYE
from surecast.runtime.opening import Opening
from surecast.runtime.session import (
    BREAKING,
    CLOSED,
    DOWN,
    FULL,
    LOST,
    OPENING,
    REFUSED,
    SILENT,
    UP,
    Session,
)
from surecast.runtime.tcp import ENDED, PARKED, Connection, describe

if TYPE_CHECKING:
    from surecast.runtime.node import Node

__all__ = ["Sessions"]

log = logging.getLogger("surecast.runtime")

_TICKS: Final = 5  # checks for silent peers during one session time-out
ENDED_KEPT: Final = 1000  # the number of ended sessions that are remembered


class Sessions:
    """All sessions of a node, and the connections they are made of."""

    def __init__(self, node: "Node", rng: Random) -> None:
        self.node = node
        self.loop = node.loop
        self.limits = node.limits
        self.codec: Codec = node.codec
        self.counters: Counter[str] = node.counters
        self.unknown = node.unknown
        self.pending = node.pending
        # A connection calls these when it receives. They are bound here to save attribute lookups.
        self.step: Callable[[Any], None] = node.step
        self.run_pending: Callable[[], None] = node.run_pending
        self.settle: Callable[[], None] = node.settle
        self.fail: Callable[[Exception], None] = node.fail
        self.by_peer: dict[Peer, Session] = {}
        self.dirty: list[Session] = []  # sessions with messages for the next flush
        self.connections: dict[Connection, None] = {}  # all open ones, also without a session
        self.stopping = False  # whether the node is stopping: no session is opened any more
        self.opening = Opening(self, rng)
        self._tick_ns = self.limits.session_timeout_ns // _TICKS
        self._ticked_ns = time.monotonic_ns()
        self._ticker = self.loop.call_later(self._tick_ns / SECOND, self._tick)
        self.queued_bytes = 0  # bytes queued for all peers at the last tick
        # The peer and the reason of sessions that were up and have ended; the newest are last.
        self.ended: deque[tuple[Peer, str]] = deque(maxlen=ENDED_KEPT)
        # In tests: checks every transition between states of a session.
        self.moves = Moves(SESSION, node.met) if node.validate else None

    def moved(self, session: Session, why: str) -> None:
        """Called after a possible change of state. In tests, check it against the state table.
        `why` is an input of that table (`core.sessions`)."""
        if self.moves is not None:
            try:
                session.seen = self.moves.check(session.seen, why, session.phase)
                session.validate()
            except AssertionError as problem:  # asyncio would only log it
                problem.add_note(f"the session of {self.node.name} with {session.peer}: {why}")
                self.fail(problem)

    # ------------------------------------------------------------ sending

    def flush(self) -> None:
        """Write the queued messages, with one write per session."""
        dirty, self.dirty = self.dirty, []
        for session in dirty:
            session.dirty = False
            session.used = True
            if session.state is UP:
                self._write(session)
            elif session.state is BREAKING:
                session.out, session.after = [], []  # these messages are lost with the session
            if session.state is OPENING or (session.after and session.state is UP):
                self._check_waiting(session)

    def relieve(self, session: Session) -> None:
        """Write the queued messages of one session, in the middle of a pass."""
        if session.state is UP:
            self._write(session)
        elif session.state is OPENING:
            self._check_waiting(session)

    def _write(self, session: Session) -> None:
        """Write the queued messages of a session that is UP."""
        connection, nbytes = session.connection, session.queued
        assert connection is not None
        out, session.out, session.queued = session.out, [], 0
        if not out:
            return
        connection.write(out, nbytes)
        self.counters["tcp_bytes_out"] += nbytes
        if connection.paused and self._backlog(session) > self.limits.queue_bytes_max:
            self._overflow(session)

    def _check_waiting(self, session: Session) -> None:
        """Check the queue of a session that cannot write its messages yet."""
        backlog = self._backlog(session)
        if backlog > self.limits.queue_bytes_max:
            self._overflow(session)
        elif backlog > self.limits.high_water_bytes and not session.congested:
            session.congested = True
            self.node.post_congested(Congested(session.peer))

    def _backlog(self, session: Session) -> int:
        """The bytes for a peer that were not passed to the operating system yet."""
        connection = session.connection if session.state is UP else None
        written = connection.transport.get_write_buffer_size() if connection is not None else 0
        return session.queued + session.after_bytes + written

    def _overflow(self, session: Session) -> None:
        """End a session whose queue is too long, in a later pass."""
        self.counters["queue_overflows"] += 1
        log.warning("%s: %s does not read what is sent to it", self.node.name, session.peer)
        session.state = BREAKING
        self.opening.call_off(session)
        self.moved(session, OVERFLOW)
        # The session ends in a later turn of the event loop. Otherwise this pass would never end if
        # the state machine answers PeerDown by sending as much to the peer as before.
        self.loop.call_soon(self._break, session)

    def _break(self, session: Session) -> None:
        session.after = []
        self.down(session, FULL, quiet=True)
        self.settle()

    def close(self, peer: Peer) -> None:
        """Close a session gracefully: send Bye after all queued messages."""
        session = self.by_peer.get(peer)
        if session is None or session.closing:
            return
        session.closing = True
        session.out.append(BYE)
        session.queued += len(BYE)
        self.moved(session, CLOSE)
        if not session.dirty:
            session.dirty = True
            self.dirty.append(session)

    def congested(self, connection: Connection) -> None:
        """Called when the write buffer of a connection is above `high_water_bytes`."""
        session = connection.session
        if session is not None and session.state is UP and not session.congested:
            session.congested = True
            self.node.post_congested(Congested(session.peer))

    def drained(self, connection: Connection) -> None:
        """Called when the write buffer of a connection is half empty again."""
        session = connection.session
        if session is not None and session.state is UP and session.congested:
            session.congested = False
            self.node.post(Writable(session.peer))

    def up(self, connection: Connection) -> None:
        """The session of this connection is established: begin to send."""
        session = connection.session
        assert session is not None
        assert session.state is OPENING
        session.connection = None  # so that `call_off` does not abort it
        self.opening.call_off(session)
        session.connection = connection
        session.state = UP
        session.used = True
        self.opening.end_pause(session.peer)
        connection.ready()
        connection.heard_ns = time.monotonic_ns()
        self.counters["sessions_up"] += 1
        speaks = connection.hello.speaks if connection.hello is not None else ()
        if dropped := session.drop_unspoken(speaks):
            self.counters["not_spoken"] += dropped
        self.moved(session, HELLO if connection.dialled else FIRST_FRAME)
        self.node.post(PeerUp(session.peer, speaks))
        if connection.dialled:
            connection.say(BEAT)
        self._write(session)
        if session.congested and not connection.paused and session.state is UP:
            session.congested = False
            self.node.post(Writable(session.peer))

    # ------------------------------------------------------------ ending

    def lost(self, connection: Connection, problem: Exception | None) -> None:
        """Called when a connection has ended."""
        self.connections.pop(connection, None)
        session = self._part(connection)
        if session is None:
            return
        if session.state is UP:
            self.counters["sessions_lost"] += 1
            self.down(session, LOST)
        elif session.state is OPENING:
            self.moved(session, LOST)
            if connection.dialled:
                self.opening.failed(session, describe(problem))
            else:
                self.opening.peer_attempt_failed(session)
        self.settle()

    def _part(self, connection: Connection) -> Session | None:
        """Detach a connection from its session. Returns the session if this was its current
        connection (and not a parked one), else None."""
        session, connection.session = connection.session, None
        if session is not None and session.parked is connection:
            session.parked = None
        elif session is not None and session.connection is connection:
            session.connection = None
            return session
        return None

    def refused(self, connection: Connection, why: str) -> None:
        """Called when the peer has refused this node, with a reason."""
        self.counters["refused_by_peer"] += 1
        peer = connection.session.peer if connection.session is not None else "an unknown peer"
        log.warning("%s: refused by %s: %r", self.node.name, peer, why[:1000])
        self._disown(connection)
        connection.close()

    def refusing(self, connection: Connection, why: str) -> None:
        """Called before this node refuses a peer: count, log and end its session."""
        self.counters["refused"] += 1
        log.warning(
            "%s: refusing %r at %s: %r",
            self.node.name,
            self._who(connection),
            connection.transport.get_extra_info("peername"),
            why,
        )
        self._disown(connection)

    def _disown(self, connection: Connection) -> None:
        """End the session of a connection on which one of the nodes has refused the other."""
        session = self._part(connection)
        if session is None:
            return
        if session.state is UP:
            self.down(session, REFUSED, quiet=True)
        else:
            self.opening.failed(session, "refused")

    def _who(self, connection: Connection) -> str:
        """The name of the peer, or its address if the name is not known."""
        if connection.session is not None:
            return connection.session.peer
        if connection.hello is not None:
            return connection.hello.name[:255]
        return str(connection.transport.get_extra_info("peername"))

    def bye(self, connection: Connection) -> None:
        """Called when the peer has sent Bye, after which it sends nothing more. Write the queued
        messages, and a Bye unless it was sent before, then close."""
        session = connection.session
        assert session is not None
        if not session.closing:
            session.closing = True
            session.out.append(BYE)
            session.queued += len(BYE)
        self._write(session)
        if session.state is UP:  # otherwise the write has exceeded the queue limit
            session.connection = connection.session = None
            connection.close()
            self.down(session, CLOSED)

    def down(self, session: Session, why: str = "", quiet: bool = False) -> None:
        """End a session and give the machine a PeerDown. If messages were sent after Close, open
        the next session for them. With `quiet`, the next attempt to connect waits for a pause.
        `why` is one of the reasons in `core.sessions`, or "" for an attempt that failed."""
        if session.state is DOWN:
            return
        if session.state is not OPENING:
            self.ended.append((session.peer, why))
        session.state = DOWN
        parked, session.parked = session.parked, None
        self.opening.call_off(session)
        peer = session.peer
        if self.by_peer.get(peer) is session:
            del self.by_peer[peer]
        self.moved(session, why or FAILED)
        if quiet:
            self.opening.pause(peer)
        if session.after and not self.stopping:
            after = self.opening.open(peer)
            after.out, after.queued = session.after, session.after_bytes
            # Not dropped by `drop_unspoken`, because their protocols were not noted.
            after.early = [("", len(session.after), session.after_bytes)]
            after.dirty = True
            self.dirty.append(after)
        session.out, session.after = [], []
        if session.used or session.dirty:  # dirty: the machine has sent messages in this pass
            self.node.post_down(peer)
        if parked is not None and parked.state is PARKED and not self.stopping:
            self.opening.adopt(self.by_peer.get(peer) or Session(peer), parked)

    def _tick(self) -> None:
        """End sessions whose peers are silent; send Beats in sessions that have sent nothing."""
        now_ns = time.monotonic_ns()
        self._ticker = self.loop.call_later(self._tick_ns / SECOND, self._tick)
        # Above 0 if this process did not run for a while: this tick is late by more than one tick.
        away_ns = now_ns - self._ticked_ns - 2 * self._tick_ns
        self._ticked_ns = now_ns
        for session in list(self.by_peer.values()):
            connection = session.connection
            if session.state is not UP or connection is None:
                continue
            if connection.heard or away_ns > 0:
                connection.heard = False
                connection.heard_ns = now_ns
            elif now_ns - connection.heard_ns > self.limits.session_timeout_ns:
                self.counters["session_timeouts"] += 1
                self.down(session, SILENT)
                continue
            if not connection.wrote and not session.closing:
                connection.say(BEAT)
            connection.wrote = False
        self._bound_all()
        self.settle()

    def _bound_all(self) -> None:
        """Bound the memory of all queues together (`queues_bytes_max`): end the sessions with the
        longest queues.

        No event is lost by that: a subscriber reconnects and continues at its position.
        """
        backlogs = {session: self._backlog(session) for session in self.by_peer.values()}
        total = self.queued_bytes = sum(backlogs.values())
        if total <= self.limits.queues_bytes_max:
            return
        for session in sorted(backlogs, key=lambda session: -backlogs[session]):
            if total <= self.limits.queues_bytes_max:
                return
            total -= backlogs[session]
            if session.state is not BREAKING:
                self._overflow(session)

    # ------------------------------------------------------------ the end of the node

    async def drain(self) -> None:
        """Close every session when its queue is written; wait at most `drain_timeout_ns`."""
        self.stopping = True
        for session in list(self.by_peer.values()):
            if session.state is UP:
                self.close(session.peer)
            else:
                self.opening.call_off(session)
                session.state = DOWN
                self.moved(session, STOPPED)
        self.flush()
        # Connections that are sending the reason of a refusal may finish that.
        for connection in list(self.connections):
            refusing = connection.state is ENDED and connection.transport.get_write_buffer_size()
            if connection.session is None and not refusing:
                connection.abort()
        deadline_ns = time.monotonic_ns() + self.limits.drain_timeout_ns
        while self.connections and time.monotonic_ns() < deadline_ns:
            await asyncio.sleep(0.002)

    def abort(self) -> None:
        """End all sessions at once; their queues are lost."""
        self.stopping = True
        self._ticker.cancel()
        for session in list(self.by_peer.values()):
            self.opening.call_off(session)
            session.state = DOWN
            self.moved(session, STOPPED)
        self.by_peer.clear()
        for connection in list(self.connections):
            connection.abort()
