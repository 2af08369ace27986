"""The configuration of the stream service, and of clients that use it."""

from dataclasses import dataclass, field

from surecast.core.types import MS, SECOND, Peer
from surecast.errors import ConfigError

__all__ = ["InquirerConfig", "PublisherConfig", "StreamsConfig", "SubscriberConfig"]


_ABOVE_ZERO = (
    "settle_ns",
    "serve_bytes_max",
    "cold_reads_max",
    "cold_bytes_max",
    "serves_per_step",
    "coalesce_rows_max",
    "compact_ns",
    "piece_rows_max",
    "piece_bytes_max",
    "feed_rows",
    "feed_bytes",
    "expire_ns",
    "streams_max",
    "deleted_max",
    "subscriptions_max",
    "tell_ns",
    "filter_cost_max",
    "filter_chars_max",
    "cursors_max",
    "cursors_deleted_max",
    "cursors_dead_max",
    "cursors_reset_max",
    "cursors_shown_max",
)
_PAGE_MAX = 1_500  # rows of about 600 bytes: the largest answer has to fit into a message


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """Streams, and clients that use them."""

    region: str
    name: Peer
    replicas: tuple[Peer, ...]  # of the region
    chain: str = ""  # the chain below; "" means the chain that has the name of the region
    addresses: dict[Peer, str] = field(default_factory=dict)  # of the replicas, sent to clients
    http: dict[Peer, str] = field(default_factory=dict)  # HTTP addresses, also sent to clients
    # Events newer than this are sent to readers as they were published. Older events are sent
    # without those that have become void (obsolete).
    settle_ns: int = 100 * MS
    serve_bytes_max: int = 256 << 10  # bytes of one message to a reader
    # What is no longer in memory is read from the disk beside other work.
    cold_reads_max: int = 16  # such reads under way at a time
    cold_bytes_max: int = 16 << 20  # bytes of what they have read or will read, until it is sent
    serves_per_step: int = 8  # messages per step to one reader, so that it does not delay others
    # Most events of a batch that is made by joining the remaining events of several batches.
    coalesce_rows_max: int = 4096
    compact_ns: int = 2 * SECOND  # how often logs are checked for parts to compact
    compact_share: float = 0.75  # a part is rewritten if this share of its events is void
    piece_rows_max: int = 1 << 18  # events of one part of a log for compaction
    piece_bytes_max: int = 16 << 20  # bytes of one part of a log for compaction
    feed_rows: int = 1 << 14  # committed positions that retention indexes together
    feed_bytes: int = 16 << 20  # bytes that retention indexes in one step
    expire_ns: int = 1 * SECOND  # how often keep_for streams are checked for old events
    streams_max: int = 10_000  # streams that are not deleted; no more are created
    deleted_max: int = 50_000  # deleted streams, which stay in the directory; no more are deleted
    # Readers of all streams, at one replica; a reader of two streams counts twice.
    subscriptions_max: int = 100_000
    # A reader with a filter that no event passes gets its position at this interval.
    tell_ns: int = 500 * MS
    # The work for filters in one step: the bytes of batches, times the tests of the filter. A batch
    # for which a filter costs more is sent to readers with all of its events; they filter it.
    filter_cost_max: int = 16 << 20
    # Characters of all filters of readers at one replica. Readers with further filters get all
    # events, and filter them.
    filter_chars_max: int = 4 << 20
    cursors_max: int = 10_000  # named subscriptions
    cursors_deleted_max: int = 1_000  # deleted names that are kept, to recognise retries
    # The log of named subscriptions is rewritten if at least this many entries only record that
    # something was deleted, and these are not few compared to the others.
    cursors_dead_max: int = 10_000
    cursors_reset_max: int = 10_000  # streams in one reset of a named subscription
    cursors_page_max: int = 1_000  # subscriptions and positions in one answer to a client
    cursors_shown_max: int = 1_000  # positions of named subscriptions in status and /metrics

    def __post_init__(self) -> None:
        object.__setattr__(self, "chain", self.chain or self.region)
        if self.name not in self.replicas:
            raise ConfigError(f"streams.replicas does not list this replica, {self.name!r}")
        for key in _ABOVE_ZERO:
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is {getattr(self, key)}; the least is 1")
        if not 2 <= self.cursors_page_max <= _PAGE_MAX:
            raise ConfigError(
                f"cursors_page_max is {self.cursors_page_max}; from 2 to {_PAGE_MAX} are allowed"
            )
        if not 0 < self.compact_share <= 1:
            raise ConfigError(f"compact_share is {self.compact_share}; above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    """A publishing client."""

    replicas: tuple[Peer, ...]  # of its own region
    inflight_max: int = 16  # batches sent and not acknowledged; at most the chain's inflight_max
    retry_ns: int = 500 * MS  # without progress for this long, try the next replica
    backoff_ns: int = 50 * MS  # after a temporary refusal
    # If a head asks for batches that were already acknowledged, for this long, it has lost them.
    lost_ns: int = 10 * SECOND
    queue_max: int = 100_000  # batches offered and not acknowledged
    owner_ns: int = 10 * SECOND  # if the owner is unreachable this long, publishes to it fail


@dataclass(frozen=True, slots=True)
class InquirerConfig:
    """A client that sends questions to its region."""

    replicas: tuple[Peer, ...]  # of its own region
    retry_ns: int = 500 * MS  # without an answer for this long, ask the next replica
    backoff_ns: int = 50 * MS  # after a temporary refusal
    questions_max: int = 10_000  # questions that are open at the same time


@dataclass(frozen=True, slots=True)
class SubscriberConfig:
    """A client that reads from the servers of its region (subscriber or fetcher)."""

    replicas: tuple[Peer, ...]  # of its own region
    idle_ns: int = 1 * SECOND  # if nothing is received for this long, use the next replica
