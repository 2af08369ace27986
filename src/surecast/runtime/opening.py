"""Establishes sessions: connection attempts, and the choice of one if both nodes connect at once.

**Both nodes connect at once.** Each node then accepts a connection while its own attempt is under
way. The connection opened by the node with the smaller name takes precedence. That node *parks* the
other connection: it uses it only if its own attempt fails. The other node gives up its own attempt.

**A Hello arrives late**, on a connection that the peer has given up. If a session with this peer is
established, the attempt number in the Hello is too low, so the Hello does not end the session. If
there is no session, the Hello begins one that fails, because the peer sends nothing more on that
connection. After that, this node connects itself if messages for the peer are waiting.

**A peer opens a new session while the old one is still up here.** The new session ends the old one,
because a peer opens a session only when it has none. If this node is closing the old session, it
parks the new connection until the old session has ended, because frames that the peer sent in the
old session may still be in flight.

**After a failed attempt** the next attempt waits for a pause. Messages that are sent meanwhile are
queued.
"""

import logging
import secrets
import time
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

from surecast.core.sessions import ACCEPTED, ATTEMPT, CONNECTED
from surecast.core.types import SECOND, Peer
from surecast.runtime.hello import Hello, encode
from surecast.runtime.session import BREAKING, OPENING, REPLACED, UP, Session
from surecast.runtime.tcp import ANSWERED, ENDED, PARKED, Connection, describe

if TYPE_CHECKING:
    from surecast.runtime.sessions import Sessions

__all__ = ["Opening"]

log = logging.getLogger("surecast.runtime")

# How many connections above `connections_max` get an answer with the reason before they are closed.
# Further ones are closed at once.
_REFUSALS_MAX: Final = 64
_QUIET_MAX: Final = 1000  # with more entries in `_quiet_until`, those of ended pauses are removed


class Opening:
    """The part of `Sessions` for sessions that are not up yet."""

    def __init__(self, sessions: "Sessions", rng: Random) -> None:
        self.sessions = sessions
        self.node = sessions.node
        self.loop = sessions.loop
        self.limits = sessions.limits
        self.counters: Counter[str] = sessions.counters
        self._rng = rng
        self._life = secrets.token_bytes(8)  # see `Hello.life`
        self._attempts = 0  # connections that this node has tried to open
        # For peers whose last attempt failed: the end of the pause (monotonic nanoseconds).
        self._quiet_until: dict[Peer, int] = {}

    def open(self, peer: Peer) -> Session:
        """A new session with `peer`, to which the node's state machine sends a message. Messages
        wait until the session is up."""
        session = self.sessions.by_peer[peer] = Session(peer)
        session.used = True
        wait_ns = self._quiet_until.get(peer, 0) - time.monotonic_ns()
        if wait_ns > 0:
            session.timer = self.loop.call_later(wait_ns / SECOND, self._begin, session)
        else:
            self._begin(session)
        return session

    def _begin(self, session: Session) -> None:
        """Begin an attempt to connect, unless the peer has connected meanwhile."""
        if session.state is not OPENING or session.connection is not None:
            return
        if session.timer is not None:
            session.timer.cancel()
        address = self.node.find(session.peer)
        if address is None:
            # End the session in a later turn of the event loop, so that further messages to this
            # peer in the same step are lost with it, and open no session of their own.
            session.timer = self.loop.call_later(0, self._unknown, session)
            return
        self._attempts += 1
        session.attempt = self._attempts
        timeout = self.limits.connect_timeout_ns / SECOND
        session.timer = self.loop.call_later(timeout, self._give_up, session)
        session.dial = self.loop.create_task(self._dial(session, *address))
        self.sessions.moved(session, ATTEMPT)

    def _unknown(self, session: Session) -> None:
        if session.state is OPENING and session.connection is None:
            self.counters["no_address"] += 1
            self.failed(session, "its address is unknown")
            self.sessions.settle()

    async def _dial(self, session: Session, host: str, port: int) -> None:
        """Open a TCP connection; `connected` is called if that succeeds."""
        try:
            await self.loop.create_connection(
                lambda: Connection(self.sessions, session), host, port
            )
        except (OSError, ValueError) as problem:  # ValueError: an impossible host name
            session.dial = None
            if session.state is OPENING:
                self.counters["connects_failed"] += 1
                self.failed(session, describe(problem))
                self.sessions.settle()

    def connected(self, connection: Connection) -> None:
        """A TCP connection was established, by us or by the peer."""
        self.sessions.connections[connection] = None
        session = connection.session
        if session is None:
            if self.sessions.stopping:
                connection.abort()
            elif len(self.sessions.connections) > self.limits.connections_max + _REFUSALS_MAX:
                self.counters["refused"] += 1
                connection.abort()
            elif len(self.sessions.connections) > self.limits.connections_max:
                connection.refuse("too many connections")
            return
        session.dial = None
        if session.state is not OPENING or session.connection is not None:
            connection.session = None
            connection.abort()  # we gave the attempt up, or the peer's connection was faster
            return
        session.connection = connection
        self.sessions.moved(session, CONNECTED)
        connection.say(encode(self._hello(session.peer, session.attempt)))

    def _hello(self, to: Peer, attempt: int) -> Hello:
        """This node's Hello."""
        return self.node.hello(to, self._life, attempt)

    def greeted(self, connection: Connection, hello: Hello) -> None:
        """Called when the peer's Hello has arrived."""
        to = connection.session.peer if connection.session is not None else ""
        problem = hello.problem(self._hello(to, 0))
        if problem is None and self.sessions.stopping:
            problem = "stopping"
        if problem is not None:
            connection.refuse(problem)
        elif connection.dialled:
            self.sessions.up(connection)
        else:
            self._welcome(connection, hello)

    def _welcome(self, connection: Connection, hello: Hello) -> None:
        """Handle the Hello on a connection that the peer has opened: use, park or abort the
        connection."""
        peer = hello.name
        session = self.sessions.by_peer.get(peer)
        if session is not None:
            current = session.connection
            known = current.hello if current is not None else None  # the peer's earlier Hello
            # An older attempt of the same run of the peer: its Hello arrives late.
            if known is not None and known.life == hello.life and hello.attempt <= known.attempt:
                self.counters["stale_hellos"] += 1
                connection.abort()
                return
            if session.state is UP and session.closing and known and known.life == hello.life:
                self._park(session, connection)  # frames of the old session may be in flight
                return
            if session.state is UP or session.state is BREAKING:
                self.counters["sessions_replaced"] += 1
                self.sessions.down(session, REPLACED)
                # `down` has opened a new session if messages wait for it.
                session = self.sessions.by_peer.get(peer)
            elif current is not None and current.dialled and self.node.name < peer:
                self._park(session, connection)  # our own attempt takes precedence
                return
        self.adopt(session or Session(peer), connection)

    def _park(self, session: Session, connection: Connection) -> None:
        """Keep a connection of the peer for later. It replaces an earlier one."""
        if session.parked is not None:
            session.parked.abort()
        session.parked = connection
        connection.session = session
        connection.state = PARKED

    def adopt(self, session: Session, connection: Connection) -> None:
        """Use a connection that the peer has opened as the connection of `session`."""
        self.call_off(session)
        self.sessions.by_peer[session.peer] = session
        session.connection = connection
        connection.session = session
        connection.state = ANSWERED
        self.sessions.moved(session, ACCEPTED)
        connection.expect(self.limits.handshake_timeout_ns)
        connection.say(encode(self._hello(session.peer, self._attempts)))

    def call_off(self, session: Session) -> None:
        """End this node's attempt to connect, and abort the connections of the session."""
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        if session.dial is not None:
            session.dial.cancel()
            session.dial = None
        for connection in (session.connection, session.parked):
            if connection is not None and connection.state is not ENDED:
                connection.abort()
        session.connection = session.parked = None

    def _give_up(self, session: Session) -> None:
        """Called `connect_timeout_ns` after the beginning of an attempt."""
        if session.state is OPENING:
            self.counters["connect_timeouts"] += 1
            self.failed(session, "no answer")
            self.sessions.settle()

    def failed(self, session: Session, why: str) -> None:
        """Our attempt failed: use the parked connection if there is one, or end the session."""
        parked, session.parked = session.parked, None
        if parked is not None and parked.state is PARKED:
            self.adopt(session, parked)
            return
        log.info("%s: cannot reach %s: %s", self.node.name, session.peer, why)
        self.sessions.down(session, quiet=True)

    def peer_attempt_failed(self, session: Session) -> None:
        """Called when a connection that the peer had opened has ended before the session was up.
        That may have been a late Hello (see the module). The peer may be reachable nevertheless, so
        connect to it if messages wait."""
        if session.used or session.dirty:
            self._begin(session)
        else:
            self.sessions.down(session)

    def pause(self, peer: Peer) -> None:
        """Make no attempt to reach this peer for `reconnect_ns`."""
        now_ns = time.monotonic_ns()
        if len(self._quiet_until) > _QUIET_MAX:
            self._quiet_until = {p: at for p, at in self._quiet_until.items() if at > now_ns}
        pause_ns = int(self.limits.reconnect_ns * (1 + self._rng.random() / 2))
        self._quiet_until[peer] = now_ns + pause_ns

    def end_pause(self, peer: Peer) -> None:
        """Called when the peer is reachable: the next attempt need not wait."""
        self._quiet_until.pop(peer, None)
