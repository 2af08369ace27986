"""Proves that nothing was lost, from what publishers and readers recorded (trace.py).

    report = audit(load(spark, "/traces/run-7"), latest_per_key())
    assert report.sound, report.violations

It judges from outside: it uses none of the code that it judges, no batch, no index, no kernel. The
guarantees are those of `protocols/sprinkler/checks.py`:

    G1   only published events, unchanged; no position that nobody published
    G2   positions rise; a reader that requests voids gets a row for every position
    G3   each publisher's events are in the order in which it offered them
    G4   a position that a reader did not receive is void by the stream's rule, because of an event
         that it did receive; a position reported to it as lost counts as lost, whatever the rule
    G9   all readers reach the same end
    G10  no acknowledged event is lost, none has two positions, all readers see the same
    R10  time does not run backwards

Streams that keep all, the latest of each key, or the last n can be judged. Streams that expire by
age cannot: only the head's clock decides what has expired.

Cost: every delivered row is sorted once, by reader, and joined once, by position, with the event
acknowledged there. In a sound run everything else is small. Rows that do not fit are examined by
further queries, so an unsound run takes longer.
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
    """From the publisher's call to delivery, in milliseconds, within half a percent."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


class Counts(msgspec.Struct):
    """How many positions were delivered, and how many of them are wrong, by kind of fault."""

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
    """One stream: its readers' counts, and faults that concern no particular reader."""

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

    `chunk_rows`: how many rows one task sorts.
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
