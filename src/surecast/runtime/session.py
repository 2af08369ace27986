"""Session: this node's end of the session with one peer. Also the limits of a node's sessions.

A session is a FIFO channel between two nodes (`core.types`). A Session has the queue of messages to
the peer, and a TCP connection while it is up.
"""

import asyncio
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from surecast.core.config import check
from surecast.core.sessions import (
    CLOSED,
    FULL,
    LOST,
    REFUSED,
    REPLACED,
    SILENT,
    SessionState,
)
from surecast.core.types import MS, SECOND, Peer
from surecast.core.wire import Buffer

if TYPE_CHECKING:
    from surecast.runtime.tcp import Connection

__all__ = [
    "BREAKING",
    "CLOSED",
    "DOWN",
    "FULL",
    "LOST",
    "OPENING",
    "REFUSED",
    "REPLACED",
    "SILENT",
    "UP",
    "RuntimeLimits",
    "Session",
]

# The values of `Session.state`. `Session.phase` distinguishes more states.
OPENING: Final = "opening"  # one of the two nodes connects, or will connect after a pause
UP: Final = "up"
BREAKING: Final = "breaking"  # its queue is too long; the session ends in a later pass
DOWN: Final = "down"  # it has ended


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """Time-outs and sizes after which a node treats a peer as lost, or refuses it.

    It is the section `[runtime]` of the configuration. The limits of a frame are in
    `core.wire.Limits`.
    """

    # Time to connect to a peer, from the first SYN until the peer's HELLO.
    connect_timeout_ns: int = 1 * SECOND
    # Time from an incoming connection until the peer's HELLO.
    handshake_timeout_ns: int = 2 * SECOND
    session_timeout_ns: int = 2 * SECOND  # a peer that is silent for this time is treated as lost
    # Pause after a failed attempt to connect, extended by a random 0 to 50 %.
    reconnect_ns: int = 50 * MS
    drain_timeout_ns: int = 5 * SECOND  # how long a graceful stop waits for queues to empty
    # Above this number of bytes queued for one peer, streams to it pause until half is left.
    high_water_bytes: int = 4 << 20
    queue_bytes_max: int = 64 << 20  # with more bytes queued for one peer, its session is ended
    # With more bytes queued for all peers, the sessions with the longest queues are ended.
    queues_bytes_max: int = 1 << 30
    connections_max: int = 4096  # further connections are refused
    datagram_bytes_max: int = 65_000  # the size of a datagram, with its preamble
    # If the wall clock changes by this much against the monotonic clock, it counts as set.
    clock_jump_ns: int = 100 * MS

    def validate(self) -> None:
        for name in ("connect", "handshake", "session", "drain"):
            key = f"{name}_timeout_ns"
            check(self, key, getattr(self, key) >= MS, "at least 1ms")
        check(self, "reconnect_ns", self.reconnect_ns > 0, "above 0")
        check(self, "high_water_bytes", self.high_water_bytes > 0, "above 0")
        most = self.queue_bytes_max
        check(self, "queue_bytes_max", most >= self.high_water_bytes, "high_water_bytes or more")
        least = self.queues_bytes_max
        check(self, "queues_bytes_max", least >= most, "queue_bytes_max or more")
        check(self, "connections_max", self.connections_max > 0, "above 0")
        check(self, "datagram_bytes_max", 256 <= self.datagram_bytes_max <= 65_507, "256 to 65507")
        check(self, "clock_jump_ns", self.clock_jump_ns > 0, "above 0")

    def __post_init__(self) -> None:
        self.validate()


class Session:
    """The session with one peer, from the first attempt to connect until it has ended."""

    __slots__ = (
        "after",
        "after_bytes",
        "attempt",
        "closing",
        "congested",
        "connection",
        "dial",
        "dirty",
        "early",
        "out",
        "parked",
        "peer",
        "queued",
        "seen",
        "speaks",
        "state",
        "timer",
        "used",
    )

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.state = OPENING
        self.connection: Connection | None = None
        # A connection opened by the peer that is used if our own attempt fails (opening.py).
        self.parked: Connection | None = None
        self.dial: asyncio.Task[None] | None = None  # our attempt to connect
        self.timer: asyncio.TimerHandle | None = None  # the start of our attempt, then its time-out
        self.attempt = 0  # the number of our attempt (`Hello.attempt`)
        # The queued messages, encoded. They are written at the next flush, or once the session is
        # up.
        self.out: list[Buffer] = []
        self.queued = 0  # bytes in `out`
        self.after: list[Buffer] = []  # messages sent after Close, which the next session sends
        self.after_bytes = 0  # bytes in `after`
        self.speaks: Container[str] | None = None  # the peer's protocols; None: not known yet
        # The messages that were queued in `out` while `speaks` was not known, in order: protocol,
        # number of buffers, bytes.
        self.early: list[tuple[str, int, int]] = []
        self.dirty = False  # whether it is in `Sessions.dirty`, for the next flush
        # Whether the node's state machine has sent a message, or got PeerUp. If so, it gets
        # PeerDown when the session ends.
        self.used = False
        self.closing = False  # whether Bye was written or queued
        self.congested = False  # whether the machine has got Congested, and no Writable since
        self.seen = SessionState.PAUSED  # in tests: the `phase` at the last check

    @property
    def phase(self) -> SessionState:
        """The state in terms of `core.sessions`, derived from the fields above."""
        if self.state is UP:
            return SessionState.CLOSING if self.closing else SessionState.UP
        if self.state is BREAKING:
            return SessionState.BREAKING
        if self.state is DOWN:
            return SessionState.ENDED
        if self.connection is None:
            return SessionState.PAUSED if self.dial is None else SessionState.DIALLING
        return SessionState.GREETING if self.connection.dialled else SessionState.ANSWERING

    def validate(self) -> None:
        """Assert the invariants that hold after every transition; called in tests only."""
        connection, phase = self.connection, self.phase
        if self.state is UP:
            assert connection is not None, "up without a connection"
            assert connection.session is self, "up with the connection of another session"
            assert self.dial is None, "up, and an attempt is still under way"
            assert self.timer is None, "up, and the attempt's time-out is still running"
            assert self.speaks is not None, "up before the peer has said which protocols it speaks"
        elif self.state is OPENING:
            assert connection is None or connection.session is self
            assert self.speaks is None
            assert sum(count for _, count, _ in self.early) <= len(self.out)
        else:
            assert connection is None, f"{self.state}, and there is a connection"
            assert self.dial is None, f"{self.state}, and an attempt is under way"
        if self.parked is not None:
            assert phase in (SessionState.PAUSED, SessionState.GREETING, SessionState.CLOSING), (
                f"a connection of the peer is parked, and the session is {phase.name}"
            )
            assert self.parked.session is self
        if self.state is UP or self.state is OPENING:
            assert self.queued == sum(map(len, self.out)), "queued bytes are miscounted"
            assert self.after_bytes == sum(map(len, self.after))
            assert not self.after or self.closing, "sent after Close, but there was no Close"

    def drop_unspoken(self, speaks: tuple[str, ...]) -> int:
        """Called with the protocols in the peer's Hello. Drops queued messages of other protocols,
        and returns how many were dropped."""
        # "" is the protocol of messages that belong to none, or whose protocol was not noted.
        allowed: Container[str] = frozenset((*speaks, "")) if speaks else EVERYTHING
        self.speaks = allowed
        early, self.early = self.early, []
        dropped = [queued for queued in early if queued[0] not in allowed]
        if not dropped:
            return 0
        kept: list[Buffer] = []
        at = 0
        for protocol, buffers, _ in early:
            if protocol in allowed:
                kept += self.out[at : at + buffers]
            at += buffers
        self.out = kept + self.out[at:]
        self.queued -= sum(nbytes for _, _, nbytes in dropped)
        return len(dropped)


class _Everything:
    """The set of all protocols, for a peer whose Hello lists none."""

    def __contains__(self, protocol: object) -> bool:
        return True


EVERYTHING: Final = _Everything()
