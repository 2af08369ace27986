"""The proof that nothing was lost, from what publishers and readers wrote down (trace.py).

    report = audit(load(spark, "/traces/run-7"), latest_per_key())
    assert report.sound, report.violations

It judges from outside: nothing of what is judged takes part, no batch, no index, no kernel. The
guarantees are those of `protocols/sprinkler/checks.py`:

    G1   only published events, unchanged; no position that nobody published
    G2   positions rise; whoever asks for voids is told of every position
    G3   one publisher's events stand in the order in which it offered them
    G4   what a reader was not given is void by the stream's rule, by something that it was given;
         what it was told is lost counts as lost, whatever the rule
    G9   all readers come to one end
    G10  nothing acknowledged is lost, nothing stands twice, all readers see the same
    R10  time does not run backwards

Streams that keep all, the latest of each key, or the last n can be judged. Those that expire by age
cannot: what expired is known only to the head's clock.

What it costs: every row delivered is sorted once, by reader, and joined once, by position, with
what was acknowledged there. In a sound run all else is small. What does not fit is followed up by
queries of its own, so an unsound run takes longer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from surecast.columns.rules import KeepAll, KeepLast, LatestPerKey, Policy
from surecast.core.policies import as_policy, show_policy
from surecast.errors import UsageError
from surecast.pipeline.jobs.trace import Trace

__all__ = ["Audit", "Counts", "Latency", "ReaderAudit", "StreamAudit", "audit"]

CHUNK_ROWS: Final = 1 << 18


class Latency(msgspec.Struct, frozen=True):
    """From the publisher's call to the reader's hands, in milliseconds, to half a percent."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


class Counts(msgspec.Struct):
    """What was given, and what is wrong with it."""

    delivered: int = 0
    void: int = 0
    lost: int = 0
    duplicated: int = 0
    misordered: int = 0


class ReaderAudit(Counts):
    """One reader of one stream."""

    stream: str = ""
    region: str = ""
    reader: str = ""
    end: int = 1
    latency: Latency | None = None


class StreamAudit(Counts):
    """One stream: its readers' counts, and what is wrong for nobody in particular."""

    stream: str = ""
    published: int = 0
    acked: int = 0
    violations: list[str] = []


class Audit(Counts):
    """The verdict."""

    published: int = 0
    acked: int = 0
    violations: list[str] = []
    streams: list[StreamAudit] = []
    readers: list[ReaderAudit] = []
    regions: dict[str, Latency] = {}

    @property
    def sound(self) -> bool:
        return not (self.violations or self.lost or self.duplicated or self.misordered)


def audit(trace: Trace, retain: Policy | str, *, chunk_rows: int = CHUNK_ROWS) -> Audit:
    """Judge a trace of streams that keep their events by one rule.

    `chunk_rows`: so many rows one task puts in order.
    """
    policy = as_policy(retain)
    if not isinstance(policy, KeepAll | LatestPerKey | KeepLast):
        raise UsageError(
            f"an audit cannot judge {show_policy(policy)}: only the head's clock knows what has "
            "expired. It judges keep-all, latest-per-key and keep-last streams"
        )
    from surecast.pipeline.jobs.judge import Judge

    judge = Judge(trace, policy, chunk_rows)
    try:
        judge.hear_publishers()
        judge.hear_order()
        judge.hear_positions()
        judge.hear_events()
        judge.follow_up()
        judge.hear_voids()
        judge.hear_publishers_order()
        return judge.close()
    finally:
        judge.forget()
