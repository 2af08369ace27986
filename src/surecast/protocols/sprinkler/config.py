"""What can be set of a region's proxy and its clients."""

from dataclasses import dataclass, field

from surecast.core.types import MS, SECOND, Peer
from surecast.errors import ConfigError

__all__ = ["ProxyConfig", "PublisherConfig", "SubscriberConfig", "paper"]


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """One replica of one region."""

    region: str
    name: Peer
    regions: dict[str, tuple[Peer, ...]] = field(default_factory=dict)  # every region's replicas
    chain: str = ""  # the chain below; "" means the region's only one, named like it
    advertise_ns: int = 100 * MS  # A
    dead_after: int = 5  # A_dead in advertisement periods: a source silent or stuck this long
    switching: str = "production"  # or "literal": the paper's rule, which can stall
    literal_damping: float = 1.0  # C of the literal rule, in event seconds
    serve_bytes_max: int = 256 << 10  # one message to a peer or subscriber
    serves_per_step: int = 8  # messages a step, so that one reader far behind holds nobody up
    coalesce_rows_max: int = 4096  # rows of a batch made of survivors
    compact_ns: int = 1 * SECOND  # how often logs are looked at
    compact_share: float = 0.5  # ... and rewritten when this share of what they hold is void
    expire_ns: int = 1 * SECOND  # how often keep_for streams are looked at
    streams_max: int = 10_000
    subscriptions_max: int = 100_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "chain", self.chain or self.region)
        if self.region not in self.regions:
            raise ConfigError(f"sprinkler.regions has no entry for this region, {self.region!r}")
        if self.name not in self.regions[self.region]:
            raise ConfigError(
                f"sprinkler.regions[{self.region!r}] does not list this replica, {self.name!r}"
            )
        if self.switching not in ("production", "literal"):
            raise ConfigError(
                f"sprinkler.switching is {self.switching!r}; use 'production' or 'literal'"
            )
        if self.dead_after < 2:
            raise ConfigError(
                f"sprinkler.dead_after is {self.dead_after}; below 2 a source that misses one "
                "advertisement is given up"
            )

    @property
    def dead_ns(self) -> int:
        return self.dead_after * self.advertise_ns


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    replicas: tuple[Peer, ...]  # of the region that owns what is published
    inflight_max: int = 16  # batches under way; at most the chain's own inflight_max
    retry_ns: int = 500 * MS  # without progress for this long, try the next replica
    backoff_ns: int = 50 * MS  # after a refusal that will pass
    lost_ns: int = 10 * SECOND  # a head that expects what it acknowledged, for so long, lost it
    queue_max: int = 100_000  # batches offered and not acknowledged


@dataclass(frozen=True, slots=True)
class SubscriberConfig:
    replicas: tuple[Peer, ...]  # of its own region
    idle_ns: int = 1 * SECOND  # nothing heard for this long: ask the next replica


def paper(region: str, name: Peer, regions: dict[str, tuple[Peer, ...]]) -> ProxyConfig:
    """The switching rule as printed."""
    return ProxyConfig(region, name, regions, switching="literal")
