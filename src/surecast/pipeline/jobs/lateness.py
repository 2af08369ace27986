"""Latencies of many events in little memory, for audits: a histogram with steps of half a percent.

The counts of several readers can be added. So the quantiles of a region cost as little as those of
one reader.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from surecast.pipeline.jobs.audit import Latency

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Lateness", "step_of"]

QUANTILES: Final = (0.5, 0.9, 0.99)
STEPS: Final = 200  # number of steps between a latency and e times this latency


def step_of(late_ns: Column) -> Column:
    """The step that a latency belongs to; null if the latency is unknown."""
    from pyspark.sql import functions as F

    return F.when(late_ns < 1, 0).otherwise(F.round(F.log(late_ns) * STEPS).cast("int"))


class Lateness:
    """Latencies of each reader, counted by step: exp(step / STEPS) nanoseconds."""

    def __init__(self, readers: int) -> None:
        self._counts: list[dict[int, int]] = [{} for _ in range(readers)]  # by step
        self._longest = [0] * readers  # the longest latency, in nanoseconds

    def add(self, rid: int, step: int, count: int, longest: int) -> None:
        """Count latencies of a reader (by its number) that belong to the same step."""
        self._counts[rid][step] = self._counts[rid].get(step, 0) + count
        self._longest[rid] = max(self._longest[rid], longest)

    def of(self, rids: list[int]) -> Latency | None:
        """The latency of these readers together; None if none is known."""
        sums: dict[int, int] = defaultdict(int)
        for rid in rids:
            for step, count in self._counts[rid].items():
                sums[step] += count
        if not sums:
            return None
        steps = np.array(sorted(sums))
        below = np.cumsum([sums[step] for step in steps.tolist()])
        at = np.searchsorted(below, np.array(QUANTILES) * below[-1])  # the step of each quantile
        longest = max(self._longest[rid] for rid in rids)
        quantiles = np.minimum(np.exp(steps[at] / STEPS), longest)
        return Latency(*(round(float(ns) / 1e6, 3) for ns in (*quantiles, longest)))
