"""Time-outs and sizes after which a node treats a peer as lost, or refuses it."""

from dataclasses import dataclass

from surecast.core.config import check
from surecast.core.types import MS, SECOND

__all__ = ["RuntimeLimits"]


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """`[runtime]` in TOML. The limits of a frame are in `core.wire.Limits`, with the codec."""

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
