"""The configuration of Gryphon at a server or broker (`GryphonConfig`) and at a subscriber
(`ReaderConfig`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from surecast.core.config import check
from surecast.core.types import MS, SECOND, Peer

__all__ = ["GryphonConfig", "ReaderConfig", "paper"]

SUBSCRIPTIONS_MAX = 1_000_000
TABLE_BYTES_MAX = 960 << 10  # of filter tables in one message, which has at most 1 MiB
LINKS_MAX = 1024  # brokers below, as many as the index of filters tells apart (where/index.py)


@dataclass(frozen=True, slots=True)
class GryphonConfig:
    """The delivery `filtered`, at one server or broker."""

    name: Peer
    region: str = ""  # of this replica; empty: a broker that is not a replica of a region
    regions: Mapping[str, tuple[Peer, ...]] = field(default_factory=dict)  # their replicas
    owners: Mapping[str, str] = field(default_factory=dict)  # prefix of stream names → region
    # Brokers that are not replicas: the brokers of each cell, and the cell above each cell. Without
    # an entry in `above`, the replicas of the stream's owner are above a broker. The replicas of a
    # region can have a cell above, too; the region's name stands for them.
    cells: Mapping[str, tuple[Peer, ...]] = field(default_factory=dict)
    above: Mapping[str, str] = field(default_factory=dict)
    gap_ns: int = 10 * MS  # how long a range may be missing before it is requested (GCT)
    # The shortest time until a request is repeated (NRT). It is doubled for each repetition.
    repeat_ns: int = 30 * MS
    repeat_ns_max: int = 60 * SECOND  # the longest time until a request is repeated
    # Forwarded requests of brokers below are remembered for this share of `repeat_ns`, so that
    # equal requests are forwarded once, but a repeated one is forwarded again.
    forget_share: float = 0.8
    # Positions that are not acknowledged after this time are sent again (AET). Checked twice in it.
    expected_ns: int = 10 * SECOND
    expected_ns_max: int = 48 * SECOND  # the longest time between two such checks
    ack_ns: int = 50 * MS  # acknowledgements are collected for this long
    silence_ns: int = 500 * MS  # progress without events is told after this time
    link_ns: int = 250 * MS  # how often brokers tell their neighbours what they can reach
    # A neighbour that has told nothing for this long is not chosen for streams.
    link_lost_ns: int = 2 * SECOND
    # After a change of the broker above, streams continue where they were, if that broker has the
    # events. If False, they continue with new events, and what is missing is requested.
    resume: bool = True
    nack_positions_max: int = 10_000  # most positions that are requested at once
    again_max: int = 100_000  # positions below the end that an owner sends again on request
    cache_bytes_max: int = 16 << 20  # of recent events of one stream, at a broker
    queue_bytes_max: int = 1 << 20  # of events that wait until a subscription has caught up
    # Work for filters when positions are read at an owner, in one pass: bytes of batches, times the
    # tests of the filter. The rest is done in later passes.
    filter_cost_max: int = 16 << 20
    # Bytes of the different filters of a stream that are sent up; more pass everything.
    filters_bytes_max: int = 256 << 10
    filters_max: int = 10_000  # different ones of a stream that are sent up; more pass everything
    subscriptions_max: int = 100_000  # at this server or broker
    brokers_max: int = 1_000  # attached below this server or broker, for one stream
    fetches_max: int = 10_000  # reads at owners that are under way
    fetch_ns: int = 2 * SECOND  # a read without an answer is repeated after this time
    batches_max: int = 16  # messages that one stream sends to one broker in one pass

    def validate(self) -> None:
        for key in (
            "gap_ns", "repeat_ns", "expected_ns", "ack_ns", "silence_ns", "link_ns",
            "nack_positions_max", "again_max", "cache_bytes_max", "queue_bytes_max", "filters_max",
            "filter_cost_max", "filters_bytes_max", "subscriptions_max", "brokers_max",
            "fetches_max", "fetch_ns", "batches_max",
        ):  # fmt: skip
            check(self, key, getattr(self, key) > 0, "above 0")
        check(self, "forget_share", 0 < self.forget_share <= 1, "above 0, at most 1")
        check(
            self, "repeat_ns_max", self.repeat_ns_max >= self.repeat_ns,
            f"at least repeat_ns ({self.repeat_ns})",
        )  # fmt: skip
        check(
            self, "expected_ns_max", self.expected_ns_max >= self.expected_ns,
            f"at least expected_ns ({self.expected_ns})",
        )  # fmt: skip
        check(
            self, "link_lost_ns", self.link_lost_ns >= 2 * self.link_ns,
            f"at least twice link_ns ({self.link_ns})",
        )  # fmt: skip
        check(
            self, "subscriptions_max", self.subscriptions_max <= SUBSCRIPTIONS_MAX,
            f"at most {SUBSCRIPTIONS_MAX:,}",
        )  # fmt: skip
        most = TABLE_BYTES_MAX // 2
        fits = self.filters_bytes_max <= most and 40 * self.filters_max <= most
        check(self, "filters_max", fits, "a table of filters that fits into a message")
        check(self, "brokers_max", self.brokers_max <= LINKS_MAX, f"at most {LINKS_MAX:,}")
        for cell in self.above:
            seen = [cell]
            while (cell := self.above.get(seen[-1], "")) and cell not in seen:
                seen.append(cell)
            check(self, "above", not cell, f"no circle; this is one: {', '.join(seen)}")
        known = {*self.cells, *self.regions}
        strange = sorted({*self.above, *self.above.values()} - known)
        check(self, "above", not strange, f"cells and regions; not {', '.join(strange)}")

    @property
    def cell(self) -> str:
        """The cell of this broker, or the region of this replica."""
        if self.region:
            return self.region
        return next((cell for cell, brokers in self.cells.items() if self.name in brokers), "")

    def members(self, cell: str) -> tuple[Peer, ...]:
        """The brokers of a cell, or the replicas of a region."""
        return self.cells.get(cell) or self.regions.get(cell, ())


def paper(config: GryphonConfig) -> GryphonConfig:
    """The settings of the paper's experiments."""
    return replace(
        config,
        gap_ns=200 * MS,
        repeat_ns=600 * MS,
        forget_share=1.0,
        expected_ns=10 * SECOND,
        resume=False,
    )


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """The configuration of a subscriber."""

    servers: tuple[Peer, ...]  # of the region, or brokers; each of them can serve the subscriber
    idle_ns: int = 3 * SECOND  # if a server is silent for this long, use the next one

    def validate(self) -> None:
        check(self, "servers", bool(self.servers), "one or more servers")
        check(self, "idle_ns", self.idle_ns > 0, "above 0")
