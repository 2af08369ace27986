"""The configuration of a chain.

R4 and R6 are rules in docs/protocols/chain.md.
"""

from dataclasses import dataclass

from surecast.core.types import MS, SECOND, Peer
from surecast.errors import ConfigError

__all__ = ["ChainConfig"]


@dataclass(frozen=True, slots=True)
class ChainConfig:
    """Replication inside a region."""

    chain: str  # the chain's name, unique in the deployment
    name: Peer  # this replica
    service: Peer  # the configuration service: the region's witness
    replicas: int = 3  # how many replicas the chain should have: f + 1, to survive f crashes
    # With fewer members in the chain than this, publishes wait. 0 means 2, or 1 in a single-replica
    # region (R6).
    min_replicas: int = 0
    heartbeat_ns: int = 50 * MS  # how often neighbours send each other a heartbeat
    suspect_ns: int = 500 * MS  # a neighbour that is silent for this time is proposed for removal
    watch_ns: int = 1 * SECOND  # how often the configuration service is queried
    # How often the service is queried while logs grow. Each query reports a counter that is saved
    # on our disk and rises with every start and every save (`save_ns`): with it the service detects
    # that the disk was replaced by an older copy.
    count_ns: int = 200 * MS
    # How often a replica repeats an unanswered Sync, the request for what its logs lack.
    sync_ns: int = 200 * MS
    save_ns: int = 100 * MS  # how often the committed ends of logs are saved
    # How many batches of one publisher may be unacknowledged. Clients keep to this limit; replicas
    # do not check it, but remember twice as many batches, to recognise retries.
    inflight_max: int = 64
    # A publisher that was idle for this time is forgotten: its retries are refused (R4).
    publisher_ttl_ns: int = 7 * 24 * 3600 * SECOND
    # With more publishers than this in a log, those that were idle longest are forgotten.
    publishers_max: int = 100_000
    # Least time between two writes of the publishers' state, for each of its bytes: 1 s per MB.
    snapshot_ns_per_byte: int = 1_000
    forward_bytes_max: int = 1 << 20  # bytes of one message to a replica that catches up
    pending_bytes_max: int = 64 << 20  # bytes that wait for the disk; above, publishes are refused
    join_lag_max: int = 10_000  # positions a learner may lack when commits start to wait for it
    store_retry_ns: int = 100 * MS  # time until a failed write is repeated
    # After this many failed writes in a row, a replica proposes to remove itself from the chain.
    store_retries_max: int = 30
    configured: tuple[Peer, ...] = ()  # all replicas of the region, as shown in status

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"chain.replicas is {self.replicas}; it must be at least 1")
        if not 0 <= self.min_replicas <= self.replicas:
            raise ConfigError(
                f"chain.min_replicas is {self.min_replicas}; it must lie between 0 (automatic) "
                f"and chain.replicas ({self.replicas})"
            )
        if self.suspect_ns < 3 * self.heartbeat_ns:
            raise ConfigError(
                f"chain.suspect_ns ({self.suspect_ns}) must be at least three heartbeats "
                f"({self.heartbeat_ns}), or healthy neighbours are removed"
            )

    @property
    def writable_min(self) -> int:
        """How many members a chain needs before it accepts publishes."""
        return self.min_replicas or min(2, self.replicas)

    def summary(self) -> list[tuple[str, str]]:
        """For `surecast serve --check-config`."""
        promise = f"on disk at {self.writable_min} or more of {self.replicas} replicas"
        return [("an ack means", promise)]
