"""Cuts ranges of positions into Spark tasks; used by source.py to plan a read.

Starting a task costs time, so a task should read a hundred thousand events or more. Many small
streams share a task. A large stream is cut into several tasks with equal numbers of events. With
equal numbers of positions, some tasks could have hardly any events, because positions may be void
(without an event).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from surecast.columns.intervals import IntervalSet

__all__ = ["EVENTS_MIN", "Range", "after", "cut"]

# A task gets at most 1/TASKS of all events. This limit is at least EVENTS_MIN (unless the user
# requests more tasks) and at most EVENTS_MAX.
EVENTS_MIN: Final = 100_000
EVENTS_MAX: Final = 1_000_000
TASKS: Final = 16


class Range(NamedTuple):
    """Positions [lo, hi) of one stream, to be read by one task."""

    stream: str
    stream_id: bytes
    lo: int
    hi: int


def cut(
    ranges: Sequence[tuple[Range, IntervalSet | None]], tasks_min: int = 1
) -> list[tuple[Range, ...]]:
    """The ranges that each task reads. The input has each range's void positions, if known.
    The user has requested at least `tasks_min` tasks."""
    sizes = [_events(one, voids) for one, voids in ranges]
    total = sum(sizes)
    most = min(EVENTS_MAX, max(EVENTS_MIN, -(-total // TASKS)))  # events per task
    if tasks_min > 1:
        most = min(most, max(1, total // tasks_min))
    tasks: list[list[Range]] = []
    room = 0  # how many more events the last task can get
    for (one, voids), size in zip(ranges, sizes, strict=True):
        pieces = max(1, -(-size // most))
        counts = [size * n // pieces for n in range(pieces + 1)]  # events before each cut
        ends = [after(one.lo, one.hi, count, voids) for count in counts[1:-1]]
        for n, (lo, hi) in enumerate(zip([one.lo, *ends], [*ends, one.hi], strict=True)):
            each = counts[n + 1] - counts[n]
            if not tasks or each > room:
                tasks.append([])
                room = most
            room -= max(each, 1)  # a range without events costs a request, too
            tasks[-1].append(one._replace(lo=lo, hi=hi))
    return [tuple(task) for task in tasks]


def after(lo: int, hi: int, events: int, voids: IntervalSet | None) -> int:
    """The position after the first `events` events of [lo, hi), or hi if there are fewer."""
    if not voids:
        return min(hi, lo + events)
    starts, ends = voids.clip(lo, hi).to_arrays()
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths  # void positions before each void run
    # The void runs that come before the event wanted: their positions are skipped.
    runs = int(np.searchsorted(starts - lo - before, events))
    return min(hi, lo + events + int(lengths[:runs].sum()))


def _events(one: Range, voids: IntervalSet | None) -> int:
    gone = voids.clip(one.lo, one.hi).total() if voids else 0
    return one.hi - one.lo - gone
