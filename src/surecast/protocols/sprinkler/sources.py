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
from surecast.protocols.sprinkler.streams import Source, Stream

__all__ = ["PeerRegion", "is_given_up", "leads_enough", "leads_literally", "measure_rate"]


@dataclass(slots=True)
class PeerRegion:
    """Another region as its tail last described it."""

    name: str
    epoch: int = 0
    tail: Peer = ""  # who advertises; "" when unreachable
    ends: dict[LogId, int] = field(default_factory=dict)
    heard_ns: int = -1  # last advertisement
    full_ns: int = -1  # last full one of the session


def leads_literally(source: Source | None, end: int, now_ns: int, config: ProxyConfig) -> bool:
    """The rule as printed; `end - 1` is the count that was advertised."""
    expected, since_ns = (source.end, source.advertised_ns) if source else (1, 0)
    elapsed_s = (now_ns - since_ns) / SECOND
    return elapsed_s > 0 and end > expected + config.literal_damping / elapsed_s


def leads_enough(stream: Stream, end: int, now_ns: int, config: ProxyConfig) -> bool:
    """Is another region, at `end`, enough ahead of our source to move there?"""
    source = stream.source
    assert source is not None
    if end <= stream.end or end <= source.end:
        return False
    period_s = config.advertise_ns / SECOND
    damping = max(stream.rate, 1 / period_s) * period_s * (period_s + 10 * MS / SECOND)
    lead, elapsed_s = end - source.end, (now_ns - source.advertised_ns) / SECOND
    if lead * elapsed_s > damping:
        return True
    if stream.led_since_ns is None:
        stream.led_since_ns = now_ns
    return now_ns - stream.led_since_ns > config.dead_ns


def is_given_up(stream: Stream, now_ns: int, config: ProxyConfig) -> bool:
    """Has the source gone silent, or is it ahead without sending us anything?"""
    source = stream.source
    assert source is not None
    silent = now_ns - source.advertised_ns > config.dead_ns
    stuck = source.end > stream.end and now_ns - source.progress_ns > config.dead_ns
    return silent or stuck


def measure_rate(stream: Stream, period_ns: int) -> None:
    """Called once a period: a smoothed rate, which sizes the damping."""
    rate = (stream.end - stream.rate_end) * SECOND / period_ns
    stream.rate_end = stream.end
    stream.rate += 0.3 * (rate - stream.rate)
