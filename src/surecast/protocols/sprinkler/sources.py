"""Decides from which other region a stream is pulled (its *source*), and when to switch.

Regions *advertise*, periodically, the ends of their copies of streams. A region is *ahead* of
another one if its end of the stream is higher.

There are two rules. The *literal* rule is the paper's: switch to a region if it advertises an end
that is higher than the source's last advertised end by more than C / (time since the source's
advertisement). This rule stalls if a source fails after it has advertised n, and no other region
ever advertises more than n. It is kept as an option and as a regression test. The *production* rule
differs in these points:

* Without a source, any region that is ahead of this one is chosen.
* A source that is silent, or is ahead but sends nothing, is given up.
* A region that is not ahead of this one is never chosen.
* If a region is ahead of the source for some time, even by little, this is enough to switch.
* C is proportional to the stream's rate. This prevents repeated switching between regions whose
  ends are about equal.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from surecast.core.streams import StreamInfo, Streams, StreamState
from surecast.core.types import MS, SECOND, Disk, LogId, Message, Peer
from surecast.protocols.sprinkler.config import SprinklerConfig

__all__ = [
    "Copy",
    "Lead",
    "PeerRegion",
    "Regions",
    "Source",
    "has_led",
    "is_given_up",
    "leads_enough",
    "leads_literally",
    "measure_rate",
]

# A lead is ignored as noise if it is less than the events that are published in this time.
MARGIN_NS = 10 * MS


@dataclass(slots=True)
class Source:
    """The region and server from which a stream is pulled (`expects` in the paper)."""

    region: str
    node: Peer  # the server: the region's tail
    end: int  # the highest end that this region has advertised or sent
    advertised_ns: int  # when the region last advertised
    progress_ns: int  # when events last arrived, or when this region subscribed
    subscribed_ns: int = 0  # when this region subscribed


@dataclass(slots=True)
class Lead:
    """How long another region has been ahead of the source without a break."""

    since_ns: int
    seen_ns: int  # when it was last seen to be ahead


@dataclass(slots=True)
class Copy:
    """This region's copy of a stream. It is *pulled* (fetched) from another region, the source; if
    this region owns the stream, only after a loss."""

    info: StreamInfo
    state: StreamState  # at the stream service
    made_epoch: int = 0  # if it was created here: the epoch of our chain at that time; else 0
    made_now: bool = False  # created by this replica, as the head, since its start
    begun: int = 1  # its end when this replica became the head
    newest_ns: int = 0  # time of the newest event pulled from another region
    source: Source | None = None
    leads: dict[str, Lead] = field(default_factory=dict)  # regions ahead of the source
    rate: float = 0.0  # events a second, smoothed
    rate_end: int = 1  # its end when the rate was last measured
    asked_ns: int = -1 << 62  # when the publishers' state was last requested
    # Answers of other regions to a recovering owner: region → the end of what it has appended, and
    # the regions that do not know all publishers.
    confirmed: dict[str, int] = field(default_factory=dict)
    unsure: dict[str, None] = field(default_factory=dict)
    # If not 0: the publishers of some events below this end may not be known here, for example
    # because compacted batches were pulled. The publishers' state must be requested (R4).
    unnamed: int = 0
    # Not None: this region owns the stream, has lost part of it, and recovers it since then (R8).
    recovering_since_ns: int | None = None
    # While it recovers: the lost part may have been at the end, so other regions may have later
    # events than our disk. False: only positions in a hole are missing.
    outdated: bool = False
    suspended: bool = False  # Suspend is in force: the stream service assigns no positions

    @property
    def stream_id(self) -> LogId:
        return self.info.stream_id

    @property
    def end(self) -> int:
        return self.state.end

    @property
    def hole(self) -> int:
        return self.state.hole

    @property
    def whole(self) -> int:
        """The first position that is missing here. The stream is pulled from there on."""
        return self.state.whole

    @property
    def committed(self) -> int:
        return self.state.committed


@dataclass(slots=True)
class PeerRegion:
    """Another region, as its tail described it in the last advertisement."""

    name: str
    epoch: int = 0
    tail: Peer = ""  # the replica that advertises; "" when unreachable
    head: Peer = ""  # the replica that accepts publishes
    owners: bytes = b""  # its table of owners, as a digest
    ends: dict[LogId, int] = field(default_factory=dict)  # of its copies of streams
    infos: dict[LogId, StreamInfo] = field(default_factory=dict)
    heard_ns: int = -1  # when its last advertisement came; -1: none so far
    life: bytes = b""  # random, drawn at each start of its tail


class Regions(Protocol):
    """The members of `RegionSync` that its parts (forks, forwarding, recovery) use. They are
    explained there."""

    config: SprinklerConfig
    service: Streams
    disk: Disk
    rng: Random
    counters: Counter[str]
    now_ns: int
    streams: dict[LogId, Copy]
    peers: dict[str, PeerRegion]
    members: tuple[Peer, ...]  # of the chain, the head first
    is_head: bool
    doubles: dict[tuple[str, str], bool]
    region_of: dict[Peer, str]  # servers of other regions

    @property
    def head(self) -> Peer: ...

    def is_live(self, peer: PeerRegion) -> bool: ...

    def owns(self, copy: Copy) -> bool: ...

    def send(self, peer: Peer, message: Message) -> None: ...

    def command(self, command: Any) -> None:
        """Pass a command down to the stream service."""

    def compared(self, region: str) -> None:
        """A region has answered a Compare. Streams may be pulled from it now."""

    def limited(self, stream: LogId) -> None:
        """How much of a stream may be shown, or whether it may get new positions, has changed."""


def leads_literally(source: Source | None, end: int, now_ns: int, config: SprinklerConfig) -> bool:
    """The literal rule: whether a region that advertises `end` becomes the source."""
    expected, since_ns = (source.end, source.advertised_ns) if source else (1, 0)
    elapsed_s = (now_ns - since_ns) / SECOND
    return elapsed_s > 0 and end > expected + config.literal_damping / elapsed_s


def leads_enough(stream: Copy, region: str, end: int, now_ns: int, config: SprinklerConfig) -> bool:
    """The production rule: whether a region that has just advertised `end` is far enough ahead of
    the source to switch to it."""
    source = stream.source
    assert source is not None
    lead = end - source.end
    # Even if two regions get events equally fast, now one and now the other is ahead, by the events
    # of a few milliseconds.
    if end <= stream.whole or lead <= stream.rate * MARGIN_NS / SECOND:
        stream.leads.pop(region, None)
        return False
    period_s, elapsed_s = config.advertise_ns / SECOND, (now_ns - source.advertised_ns) / SECOND
    damping = max(stream.rate, 1 / period_s) * period_s * (period_s + MARGIN_NS / SECOND)
    return lead * elapsed_s > damping or has_led(stream, region, end, now_ns, config)


def has_led(stream: Copy, region: str, end: int, now_ns: int, config: SprinklerConfig) -> bool:
    """Note whether a region is ahead of the source. Returns whether it was ahead for all of the
    last `dead_ns`.

    While a stream gets new events, this is called for each advertisement. An idle stream is not
    advertised, so this must also be called periodically.
    """
    source = stream.source
    assert source is not None
    if end <= max(stream.whole, source.end):
        return False
    lead = stream.leads.get(region)
    if lead is None or now_ns - lead.seen_ns > 2 * config.advertise_ns:
        lead = stream.leads[region] = Lead(now_ns, now_ns)
    lead.seen_ns = now_ns
    return now_ns - lead.since_ns > config.dead_ns


def is_given_up(stream: Copy, now_ns: int, config: SprinklerConfig) -> bool:
    """Whether the source is silent, or is ahead but has not sent anything for `dead_ns`."""
    source = stream.source
    assert source is not None
    silent = now_ns - source.advertised_ns > config.dead_ns
    stuck = source.end > stream.whole and now_ns - source.progress_ns > config.dead_ns
    return silent or stuck


def measure_rate(stream: Copy, period_ns: int) -> None:
    """Update the smoothed rate, on which the damping depends. Called once per period."""
    rate = (stream.end - stream.rate_end) * SECOND / period_ns
    stream.rate_end = stream.end
    stream.rate += 0.3 * (rate - stream.rate)
