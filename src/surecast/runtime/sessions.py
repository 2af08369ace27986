"""Sessions over TCP: what `core.types` promises, made of connections.

A node has at most one `Session` a peer. It is OPENING while a connection is being made for it, by
us or by the peer, and UP from the moment both have said Hello (the side that accepted: from the
other's next word, so that a peer which cannot hear us never seems to be there).

**Both open at once.** Each accepts a connection while its own attempt is under way. The one opened
by the node whose name is smaller goes first: its opener *parks* the other (should its own fail, it
takes that one), and whoever accepted it gives up its own. A Hello that was under way in a
connection given up is recognised by its number, so it does not end the session that won.

**A new session from a peer we still believe in** ends the old one: the peer opens one only when it
has none.

**Silence.** Each end sends a Beat when it has nothing else to say; an end that hears nothing for
`session_timeout_ns` gives up. Time in which this process itself did not run does not count.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from surecast.core.types import SECOND, Congested, Peer, PeerDown, PeerUp, Writable
from surecast.core.wire import Codec
from surecast.runtime.hello import BEAT, BYE, Hello, encode
from surecast.runtime.session import DOWN, OPENING, UP, Session
from surecast.runtime.tcp import ANSWERED, ENDED, PARKED, Connection, describe

if TYPE_CHECKING:
    from surecast.runtime.node import Node

__all__ = ["Sessions"]

log = logging.getLogger("surecast.runtime")

_REFUSALS_MAX: Final = 64  # connections kept a while only to tell their peers why not
_TICKS: Final = 5  # looks at the silence of peers, per session time-out


class Sessions:
    """All sessions of a node, and the connections they are made of."""

    def __init__(self, node: "Node", rng: Random) -> None:
        self.node = node
        self.loop = node.loop
        self.limits = node.limits
        self.codec: Codec = node.codec
        self.counters: Counter[str] = node.counters
        self.pending = node.pending
        # What a connection's receive calls, without a detour.
        self.step: Callable[[Any], None] = node.step
        self.run_pending: Callable[[], None] = node.run_pending
        self.settle: Callable[[], None] = node.settle
        self.fail: Callable[[Exception], None] = node.fail
        self.by_peer: dict[Peer, Session] = {}
        self.dirty: list[Session] = []
        self.connections: dict[Connection, None] = {}
        self.stopping = False
        self._rng = rng
        self._life = secrets.token_bytes(8)
        self._attempts = 0
        self._quiet_until: dict[Peer, int] = {}
        self._tick_ns = self.limits.session_timeout_ns // _TICKS
        self._ticked_ns = time.monotonic_ns()
        self._ticker = self.loop.call_later(self._tick_ns / SECOND, self._tick)

    # ------------------------------------------------------------ sending

    def open(self, peer: Peer) -> Session:
        """A session for the first send to `peer`; what is put into it waits until it is up."""
        session = self.by_peer[peer] = Session(peer)
        session.used = True
        wait_ns = self._quiet_until.get(peer, 0) - time.monotonic_ns()
        if wait_ns > 0:
            session.timer = self.loop.call_later(wait_ns / SECOND, self._begin, session)
        else:
            self._begin(session)
        return session

    def flush(self) -> None:
        """Write what the sessions have gathered: once for each."""
        dirty, self.dirty = self.dirty, []
        for session in dirty:
            session.dirty = False
            session.used = True
            if session.state is UP:
                self._write(session)
            if session.state is OPENING or (session.after and session.state is UP):
                self._check_waiting(session)

    def _write(self, session: Session) -> None:
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
        backlog = self._backlog(session)
        if backlog > self.limits.queue_bytes_max:
            self._overflow(session)
        elif backlog > self.limits.high_water_bytes and not session.congested:
            session.congested = True
            self.node.post(Congested(session.peer))

    def _backlog(self, session: Session) -> int:
        connection = session.connection if session.state is UP else None
        written = connection.transport.get_write_buffer_size() if connection is not None else 0
        return session.queued + session.after_bytes + written

    def _overflow(self, session: Session) -> None:
        self.counters["queue_overflows"] += 1
        log.warning("%s: %s does not read what is sent to it", self.node.name, session.peer)
        session.after, session.after_bytes = [], 0
        self._down(session, quiet=True)

    def close(self, peer: Peer) -> None:
        session = self.by_peer.get(peer)
        if session is None or session.closing:
            return
        session.closing = True
        session.out.append(BYE)
        session.queued += len(BYE)
        if not session.dirty:
            session.dirty = True
            self.dirty.append(session)

    def congested(self, connection: Connection) -> None:
        session = connection.session
        if session is not None and session.state is UP and not session.congested:
            session.congested = True
            self.node.post(Congested(session.peer))

    def drained(self, connection: Connection) -> None:
        session = connection.session
        if session is not None and session.state is UP and session.congested:
            session.congested = False
            self.node.post(Writable(session.peer))

    # ------------------------------------------------------------ opening

    def _begin(self, session: Session) -> None:
        if session.state is not OPENING or session.connection is not None:
            return
        if session.timer is not None:
            session.timer.cancel()
        address = self.node.book.find(session.peer)
        if address is None:
            self.counters["no_address"] += 1
            self._attempt_failed(session, "nobody knows its address")
            return
        self._attempts += 1
        session.attempt = self._attempts
        timeout = self.limits.connect_timeout_ns / SECOND
        session.timer = self.loop.call_later(timeout, self._give_up, session)
        session.dial = self.loop.create_task(self._dial(session, *address))

    async def _dial(self, session: Session, host: str, port: int) -> None:
        try:
            await self.loop.create_connection(lambda: Connection(self, session), host, port)
        except (OSError, ValueError) as problem:  # ValueError: a host name that cannot be one
            session.dial = None
            if session.state is OPENING:
                self.counters["connects_failed"] += 1
                self._attempt_failed(session, describe(problem))
                self.settle()

    def connected(self, connection: Connection) -> None:
        """TCP has made a connection, either way."""
        self.connections[connection] = None
        session = connection.session
        if session is None:
            if self.stopping:
                connection.abort()
            elif len(self.connections) > self.limits.connections_max + _REFUSALS_MAX:
                self.counters["refused"] += 1
                connection.abort()
            elif len(self.connections) > self.limits.connections_max:
                connection.refuse("too many connections")
            return
        session.dial = None
        if session.state is not OPENING or session.connection is not None:
            connection.session = None
            connection.abort()  # given up, or the peer's own connection was faster
            return
        session.connection = connection
        connection.say(encode(self._hello(session.peer, session.attempt)))

    def _hello(self, to: Peer, attempt: int) -> Hello:
        return self.node.hello(to, self._life, attempt)

    def greeted(self, connection: Connection, hello: Hello) -> None:
        """The peer has said Hello."""
        to = connection.session.peer if connection.session is not None else ""
        problem = hello.problem(self._hello(to, 0))
        if problem is None and self.stopping:
            problem = "stopping"
        if problem is not None:
            connection.refuse(problem)
        elif connection.dialled:
            self.up(connection)
        else:
            self._welcome(connection, hello)

    def _welcome(self, connection: Connection, hello: Hello) -> None:
        peer = hello.name
        session = self.by_peer.get(peer)
        if session is not None:
            current = session.connection
            known = current.hello if current is not None else None
            if known is not None and known.life == hello.life and hello.attempt <= known.attempt:
                self.counters["stale_hellos"] += 1
                connection.abort()
                return
            if session.state is UP:
                self.counters["sessions_replaced"] += 1
                self._down(session)
                session = self.by_peer.get(peer)  # it may have had something for the next one
            elif current is not None and current.dialled and self.node.name < peer:
                if session.parked is not None:
                    session.parked.abort()
                session.parked = connection
                connection.session = session
                connection.state = PARKED
                return
        self._adopt(session or Session(peer), connection)

    def _adopt(self, session: Session, connection: Connection) -> None:
        """Let the session be made of a connection that the peer has opened."""
        self._call_off(session)
        self.by_peer[session.peer] = session
        session.connection = connection
        connection.session = session
        connection.state = ANSWERED
        connection.expect(self.limits.handshake_timeout_ns)
        connection.say(encode(self._hello(session.peer, self._attempts)))

    def _call_off(self, session: Session) -> None:
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

    def up(self, connection: Connection) -> None:
        session = connection.session
        assert session is not None
        assert session.state is OPENING
        session.connection = None
        self._call_off(session)
        session.connection = connection
        session.state = UP
        session.used = True
        self._quiet_until.pop(session.peer, None)
        connection.ready()
        connection.heard_ns = time.monotonic_ns()
        self.counters["sessions_up"] += 1
        self.node.post(PeerUp(session.peer))
        if connection.dialled:
            connection.say(BEAT)
        self._write(session)
        if session.congested and not connection.paused and session.state is UP:
            session.congested = False
            self.node.post(Writable(session.peer))

    # ------------------------------------------------------------ ending

    def _give_up(self, session: Session) -> None:
        if session.state is OPENING:
            self.counters["connect_timeouts"] += 1
            self._attempt_failed(session, "no answer")
            self.settle()

    def _attempt_failed(self, session: Session, why: str) -> None:
        parked, session.parked = session.parked, None
        if parked is not None and parked.state is PARKED:
            self._adopt(session, parked)
            return
        log.info("%s: cannot reach %s: %s", self.node.name, session.peer, why)
        self._down(session, quiet=True)

    def lost(self, connection: Connection, problem: Exception | None) -> None:
        """A connection is no more."""
        self.connections.pop(connection, None)
        session, connection.session = connection.session, None
        if session is None:
            return
        if session.parked is connection:
            session.parked = None
        elif session.connection is connection:
            session.connection = None
            if session.state is UP:
                self.counters["sessions_lost"] += 1
                self._down(session)
            elif session.state is OPENING:
                self._attempt_failed(session, describe(problem))
        self.settle()

    def refused(self, connection: Connection, why: str) -> None:
        """The peer has told us why it will not speak with us."""
        self.counters["refused_by_peer"] += 1
        peer = connection.session.peer if connection.session is not None else "somebody"
        log.warning("%s: refused by %s: %r", self.node.name, peer, why[:1000])
        self._disown(connection)
        connection.close()

    def refusing(self, connection: Connection, why: str) -> None:
        """We are about to tell the peer why."""
        self.counters["refused"] += 1
        log.warning("%s: refusing %r: %r", self.node.name, self._who(connection), why)
        self._disown(connection)

    def _disown(self, connection: Connection) -> None:
        session, connection.session = connection.session, None
        if session is None:
            return
        if session.parked is connection:
            session.parked = None
        elif session.connection is connection:
            session.connection = None
            if session.state is UP:
                self._down(session, quiet=True)
            else:
                self._attempt_failed(session, "refused")

    def _who(self, connection: Connection) -> str:
        if connection.session is not None:
            return connection.session.peer
        if connection.hello is not None:
            return connection.hello.name[:255]
        return str(connection.transport.get_extra_info("peername"))

    def bye(self, connection: Connection) -> None:
        """The peer sends nothing more. If we have not said Bye ourselves: what we have, then it."""
        session = connection.session
        assert session is not None
        if not session.closing:
            session.closing = True
            session.out.append(BYE)
            session.queued += len(BYE)
        self._write(session)
        if session.state is UP:  # what was written may have been too much
            session.connection = connection.session = None
            connection.close()
            self._down(session)

    def _down(self, session: Session, quiet: bool = False) -> None:
        """The session is no more: tell the machine, and open the next one if it is wanted."""
        if session.state is DOWN:
            return
        session.state = DOWN
        self._call_off(session)
        peer = session.peer
        if self.by_peer.get(peer) is session:
            del self.by_peer[peer]
        if quiet:
            self._be_quiet(peer)
        if session.after and not self.stopping:
            after = self.open(peer)
            after.out, after.queued = session.after, session.after_bytes
            after.dirty = True
            self.dirty.append(after)
        session.out, session.after = [], []
        if session.used or session.dirty:  # dirty: sent into, but not flushed yet
            self.node.post(PeerDown(peer))

    def _be_quiet(self, peer: Peer) -> None:
        now_ns = time.monotonic_ns()
        if len(self._quiet_until) > 1000:
            self._quiet_until = {p: at for p, at in self._quiet_until.items() if at > now_ns}
        pause_ns = int(self.limits.reconnect_ns * (1 + self._rng.random() / 2))
        self._quiet_until[peer] = now_ns + pause_ns

    def _tick(self) -> None:
        """Break the sessions that are silent; break our own silence."""
        now_ns = time.monotonic_ns()
        self._ticker = self.loop.call_later(self._tick_ns / SECOND, self._tick)
        away_ns = now_ns - self._ticked_ns - 2 * self._tick_ns  # we were stopped, or very busy
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
                self._down(session)
                continue
            if not connection.wrote and not session.closing:
                connection.say(BEAT)
            connection.wrote = False
        self.settle()

    # ------------------------------------------------------------ the end of the node

    async def drain(self) -> None:
        """Close every session when its queue is out, for as long as the time-out allows."""
        self.stopping = True
        for session in list(self.by_peer.values()):
            if session.state is UP:
                self.close(session.peer)
            else:
                self._call_off(session)
                session.state = DOWN
        self.flush()
        for connection in list(self.connections):
            if connection.session is None:
                connection.abort()
        deadline_ns = time.monotonic_ns() + self.limits.drain_timeout_ns
        while self.connections and time.monotonic_ns() < deadline_ns:
            await asyncio.sleep(0.002)

    def abort(self) -> None:
        self.stopping = True
        self._ticker.cancel()
        for session in list(self.by_peer.values()):
            self._call_off(session)
            session.state = DOWN
        self.by_peer.clear()
        for connection in list(self.connections):
            connection.abort()
