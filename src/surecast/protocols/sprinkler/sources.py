"""Where to pull a stream from: what other regions advertise, and when to switch.

Two rules decide. The *literal* one is the paper's: switch to a region whose advertisement leads the
source's last one by more than C / (time since that one). It stalls when a source dies after
advertising n and no other region ever says more than n: kept as an option and as a regression
test. The *production* rule adds what keeps streams moving: any region that is ahead of us will do
when there is no source; a source that is silent, or ahead of us without sending, is given up; a
region that is not ahead of us is never chosen; a small lead that lasts is enough; and C follows
the stream's own rate, so that equals do not make us flap.
"""

from dataclasses import dataclass, field

from surecast.core.types import MS, SECOND, LogId, Peer
from surecast.protocols.sprinkler.config import ProxyConfig
from surecast.protocols.sprinkler.messages import StreamInfo
from surecast.protocols.sprinkler.streams import Lead, Source, Stream

__all__ = [
    "PeerRegion",
    "has_led",
    "is_given_up",
    "leads_enough",
    "leads_literally",
    "measure_rate",
]

MARGIN_NS = 10 * MS  # of traffic: a smaller lead is noise between equals


@dataclass(slots=True)
class PeerRegion:
    """Another region as its tail last described it."""

    name: str
    epoch: int = 0
    tail: Peer = ""  # who advertises; "" when unreachable
    head: Peer = ""  # who takes publishes of what it owns
    owners: bytes = b""  # its table of owners, as a digest
    ends: dict[LogId, int] = field(default_factory=dict)
    infos: dict[LogId, StreamInfo] = field(default_factory=dict)
    heard_ns: int = -1  # last advertisement
    life: bytes = b""  # of its tail, at this start of it


def leads_literally(source: Source | None, end: int, now_ns: int, config: ProxyConfig) -> bool:
    """The rule as printed; `end - 1` is the count that was advertised."""
    expected, since_ns = (source.end, source.advertised_ns) if source else (1, 0)
    elapsed_s = (now_ns - since_ns) / SECOND
    return elapsed_s > 0 and end > expected + config.literal_damping / elapsed_s


def leads_enough(stream: Stream, region: str, end: int, now_ns: int, config: ProxyConfig) -> bool:
    """Is another region, which has just advertised `end`, enough ahead of our source?"""
    source = stream.source
    assert source is not None
    lead = end - source.end
    # Between equals a lead of a few milliseconds' traffic comes and goes.
    if end <= stream.whole or lead <= stream.rate * MARGIN_NS / SECOND:
        stream.leads.pop(region, None)
        return False
    period_s, elapsed_s = config.advertise_ns / SECOND, (now_ns - source.advertised_ns) / SECOND
    damping = max(stream.rate, 1 / period_s) * period_s * (period_s + MARGIN_NS / SECOND)
    return lead * elapsed_s > damping or has_led(stream, region, end, now_ns, config)


def has_led(stream: Stream, region: str, end: int, now_ns: int, config: ProxyConfig) -> bool:
    """Note whether a region is ahead of the source; has it been so for long enough?

    Advertisements say it afresh while a stream moves. When it rests nobody says anything more,
    so this must also be asked from time to time.
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


def is_given_up(stream: Stream, now_ns: int, config: ProxyConfig) -> bool:
    """Has the source gone silent, or is it ahead without sending us anything?"""
    source = stream.source
    assert source is not None
    silent = now_ns - source.advertised_ns > config.dead_ns
    stuck = source.end > stream.whole and now_ns - source.progress_ns > config.dead_ns
    return silent or stuck


def measure_rate(stream: Stream, period_ns: int) -> None:
    """Called once a period: a smoothed rate, which sizes the damping."""
    rate = (stream.end - stream.rate_end) * SECOND / period_ns
    stream.rate_end = stream.end
    stream.rate += 0.3 * (rate - stream.rate)
