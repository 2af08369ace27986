"""Checks, from the records of publishers and readers (trace.py), that no event was lost in a run.

    report = audit(load(spark, "/traces/run-7"), latest_per_key())
    assert report.sound, report.violations

The audit is independent of the code that it checks: it uses none of Surecast's batches, indices or
kernels. It checks these guarantees, which are also those of `protocols/sprinkler/checks.py`:

    G1   readers receive only published events, unchanged, and no position without a published event
    G2   positions rise; a reader that requests voids gets a row for every position
    G3   each publisher's events are in the order in which the publisher offered them
    G4   if a reader did not receive a position, the position is void by the stream's rule, because
         of an event that the reader did receive; a position that was reported to the reader as lost
         counts as lost, whatever the rule
    G9   all readers reach the same end
    G10  no acknowledged event is lost, none has two positions, all readers receive the same event
         at a position
    R10  the times of events do not fall

The audit can check streams with the retention rules keep-all, latest-per-key and keep-last. It
cannot check streams whose events expire by age, because only the head's clock decides which events
have expired.

Cost: every delivered row is sorted once (by reader), and joined once (by position) with the event
that was acknowledged there. In a sound run, all other data is small. Rows that violate a guarantee
are examined by further queries, so an unsound run takes longer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from surecast.columns.rules import KeepAll, KeepLast, LatestPerKey, Policy
from surecast.core.policies import as_policy, show_policy
from surecast.errors import UsageError
from surecast.pipeline.jobs.trace import Trace

__all__ = ["Audit", "Counts", "Latency", "ReaderAudit", "StreamAudit", "audit"]

CHUNK_ROWS: Final = 1 << 18  # rows that one task sorts


class Latency(msgspec.Struct, frozen=True):
    """The time from the publisher's call to delivery, in milliseconds, exact to half a percent."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


class Counts(msgspec.Struct):
    """The number of positions that were delivered or void, and of each kind of fault."""

    delivered: int = 0
    void: int = 0
    lost: int = 0  # events that were neither delivered nor obsolete by the stream's rule
    duplicated: int = 0  # events with several positions, and positions with several events
    misordered: int = 0  # how often positions, or a publisher's numbers, do not rise


class ReaderAudit(Counts):
    """One reader of one stream."""

    stream: str = ""
    region: str = ""
    reader: str = ""
    end: int = 1  # the position after the last one received
    latency: Latency | None = None  # None: not measured


class StreamAudit(Counts):
    """One stream: the sums of its readers' counts, and faults that concern no particular reader."""

    stream: str = ""
    published: int = 0  # events that publishers offered
    acked: int = 0  # those of them that were acknowledged
    violations: list[str] = []  # one text for each kind of fault, with the guarantee's id


class Audit(Counts):
    """The result of an audit: sums over all streams, and the results of each stream and reader."""

    published: int = 0
    acked: int = 0
    violations: list[str] = []
    streams: list[StreamAudit] = []
    readers: list[ReaderAudit] = []
    regions: dict[str, Latency] = {}  # the latency of all readers of a region

    @property
    def sound(self) -> bool:
        return not (self.violations or self.lost or self.duplicated or self.misordered)


def audit(trace: Trace, retain: Policy | str, *, chunk_rows: int = CHUNK_ROWS) -> Audit:
    """Check a trace. All its streams must have the retention rule `retain`.

    `chunk_rows` is the number of rows that one task sorts.
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
        judge.check_publishers()
        judge.check_order()
        judge.check_positions()
        judge.check_events()
        judge.check_mismatches()
        judge.check_voids()
        judge.check_publishers_order()
        return judge.close()
    finally:
        judge.release()
