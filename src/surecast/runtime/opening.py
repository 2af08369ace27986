"""How a session comes about: who calls whom, and which call counts.

**Both open at once.** Each accepts a connection while its own attempt is under way. The one opened
by the node whose name is smaller goes first: its opener *parks* the other (should its own fail, it
takes that one), and whoever accepted it gives up its own. A Hello that was under way in a
connection given up is recognised by its number, so it does not end the session that won. If it
comes when there is none, the call it begins comes to nothing, and we make our own if we need one.

**A new session from a peer we still believe in** ends the old one: the peer opens one only when it
has none. If we are closing the old one the new one is parked until then, for what the peer had to
say before it closed, too, may still be under way.

**After an attempt that failed** nothing new is tried for a while; what is sent meanwhile waits.
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

_REFUSALS_MAX: Final = 64  # connections kept a while only to tell their peers why not
_QUIET_MAX: Final = 1000  # peers remembered not to be called; more are looked through for old ones


class Opening:
    """The part of `Sessions` that sees to those which are not up yet."""

    def __init__(self, sessions: "Sessions", rng: Random) -> None:
        self.sessions = sessions
        self.node = sessions.node
        self.loop = sessions.loop
        self.limits = sessions.limits
        self.counters: Counter[str] = sessions.counters
        self._rng = rng
        self._life = secrets.token_bytes(8)
        self._attempts = 0
        self._quiet_until: dict[Peer, int] = {}

    def open(self, peer: Peer) -> Session:
        """A session for the first send to `peer`; what is put into it waits until it is up."""
        session = self.sessions.by_peer[peer] = Session(peer)
        session.used = True
        wait_ns = self._quiet_until.get(peer, 0) - time.monotonic_ns()
        if wait_ns > 0:
            session.timer = self.loop.call_later(wait_ns / SECOND, self._begin, session)
        else:
            self._begin(session)
        return session

    def _begin(self, session: Session) -> None:
        if session.state is not OPENING or session.connection is not None:
            return
        if session.timer is not None:
            session.timer.cancel()
        address = self.node.find(session.peer)
        if address is None:
            # Not now: what else this step sends belongs to the same attempt.
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
            self.failed(session, "nobody knows its address")
            self.sessions.settle()

    async def _dial(self, session: Session, host: str, port: int) -> None:
        try:
            await self.loop.create_connection(
                lambda: Connection(self.sessions, session), host, port
            )
        except (OSError, ValueError) as problem:  # ValueError: a host name that cannot be one
            session.dial = None
            if session.state is OPENING:
                self.counters["connects_failed"] += 1
                self.failed(session, describe(problem))
                self.sessions.settle()

    def connected(self, connection: Connection) -> None:
        """TCP has made a connection, either way."""
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
            connection.abort()  # given up, or the peer's own connection was faster
            return
        session.connection = connection
        self.sessions.moved(session, CONNECTED)
        connection.say(encode(self._hello(session.peer, session.attempt)))

    def _hello(self, to: Peer, attempt: int) -> Hello:
        return self.node.hello(to, self._life, attempt)

    def greeted(self, connection: Connection, hello: Hello) -> None:
        """The peer has said Hello."""
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
        peer = hello.name
        session = self.sessions.by_peer.get(peer)
        if session is not None:
            current = session.connection
            known = current.hello if current is not None else None
            if known is not None and known.life == hello.life and hello.attempt <= known.attempt:
                self.counters["stale_hellos"] += 1
                connection.abort()
                return
            if session.state is UP and session.closing and known and known.life == hello.life:
                self._park(session, connection)  # its last words in the old one are under way
                return
            if session.state is UP or session.state is BREAKING:
                self.counters["sessions_replaced"] += 1
                self.sessions.down(session, REPLACED)
                session = self.sessions.by_peer.get(
                    peer
                )  # it may have had something for the next one
            elif current is not None and current.dialled and self.node.name < peer:
                self._park(session, connection)
                return
        self.adopt(session or Session(peer), connection)

    def _park(self, session: Session, connection: Connection) -> None:
        if session.parked is not None:
            session.parked.abort()
        session.parked = connection
        connection.session = session
        connection.state = PARKED

    def adopt(self, session: Session, connection: Connection) -> None:
        """Let the session be made of a connection that the peer has opened."""
        self.call_off(session)
        self.sessions.by_peer[session.peer] = session
        session.connection = connection
        connection.session = session
        connection.state = ANSWERED
        self.sessions.moved(session, ACCEPTED)
        connection.expect(self.limits.handshake_timeout_ns)
        connection.say(encode(self._hello(session.peer, self._attempts)))

    def call_off(self, session: Session) -> None:
        """End whatever is under way for a session that is not up."""
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
        if session.state is OPENING:
            self.counters["connect_timeouts"] += 1
            self.failed(session, "no answer")
            self.sessions.settle()

    def failed(self, session: Session, why: str) -> None:
        parked, session.parked = session.parked, None
        if parked is not None and parked.state is PARKED:
            self.adopt(session, parked)
            return
        log.info("%s: cannot reach %s: %s", self.node.name, session.peer, why)
        self.sessions.down(session, quiet=True)

    def jilted(self, session: Session) -> None:
        """The peer's own call has come to nothing; perhaps it gave it up long ago, and only its
        Hello was late. That says nothing about whether we can reach it."""
        if session.used or session.dirty:
            self._begin(session)
        else:
            self.sessions.down(session)

    def be_quiet(self, peer: Peer) -> None:
        """Call this peer not before a while."""
        now_ns = time.monotonic_ns()
        if len(self._quiet_until) > _QUIET_MAX:
            self._quiet_until = {p: at for p, at in self._quiet_until.items() if at > now_ns}
        pause_ns = int(self.limits.reconnect_ns * (1 + self._rng.random() / 2))
        self._quiet_until[peer] = now_ns + pause_ns

    def may_call(self, peer: Peer) -> None:
        """It is there: the next attempt need not wait."""
        self._quiet_until.pop(peer, None)
