"""Our end of the session with one peer: its queues and its connection. A node's limits."""

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

OPENING: Final = "opening"
UP: Final = "up"
BREAKING: Final = "breaking"  # its queue is too long; it ends in a later pass
DOWN: Final = "down"


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """Time-outs and sizes after which a node treats a peer as lost, or refuses it.

    `[runtime]` in TOML. The limits of a frame are in `core.wire.Limits`, with the codec.
    """

    connect_timeout_ns: int = 1 * SECOND  # from the first SYN to the peer's HELLO
    handshake_timeout_ns: int = 2 * SECOND  # from an incoming connection to the peer's HELLO
    session_timeout_ns: int = 2 * SECOND  # silence after which a session is broken
    reconnect_ns: int = 50 * MS  # pause after a failed attempt, plus a random 0 to 50 %
    drain_timeout_ns: int = 5 * SECOND  # how long a graceful stop waits for queues to empty
    high_water_bytes: int = 4 << 20  # queued for one peer: Congested; below half: Writable
    queue_bytes_max: int = 64 << 20  # queued for one peer: the session is broken
    queues_bytes_max: int = 1 << 30  # for all peers; sessions with the longest queues break
    connections_max: int = 4096  # further connections are refused
    datagram_bytes_max: int = 65_000  # preamble and frame; above what UDP carries is refused
    clock_jump_ns: int = 100 * MS  # change of wall clock minus monotonic clock: ClockSet

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
        self.parked: Connection | None = None  # opened by the peer; used if our own attempt fails
        self.dial: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # begins the attempt, then ends it
        self.attempt = 0
        self.out: list[Buffer] = []  # to be written at the next flush, or when up
        self.queued = 0  # bytes in `out`
        self.after: list[Buffer] = []  # sent after Close: for the next session
        self.after_bytes = 0
        self.speaks: Container[str] | None = None  # the peer's protocols; None: not known yet
        self.early: list[tuple[str, int, int]] = []  # until known: protocol, buffers, bytes
        self.dirty = False  # listed for the next flush
        self.used = False  # the machine has sent something into it, or knows that it is up
        self.closing = False
        self.congested = False
        self.seen = SessionState.PAUSED  # when it was last checked against the state table

    @property
    def phase(self) -> SessionState:
        """The state as `core.sessions` names it, derived here and nowhere else."""
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
        """Assert what must hold after every transition; called by tests only."""
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
        """Called when the peer has listed its protocols: drop queued messages of other protocols.
        Returns how many were dropped."""
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
    """The protocols of a peer whose Hello lists none: all of them."""

    def __contains__(self, protocol: object) -> bool:
        return True


EVERYTHING: Final = _Everything()
