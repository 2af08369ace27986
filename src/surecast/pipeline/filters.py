"""Turns a query's filters on stream, position and time into narrower ranges of positions.

Spark passes its filters to `Narrow.take`, which returns those that Spark must apply itself. A
filter that this file applies exactly is not returned.

Filters on time and position are exact only if all rows are events. A void or lost range is one row
at its last position, and a filter could be true for some of its positions and false for others.
Therefore Spark must apply these filters itself if the reader may return such rows.

An upper bound on time is never exact. It makes the range end at the first *live* event after that
time. Events just before that position may also be too late: they became void a moment ago, and may
still be read as events. So the filter narrows the range, and Spark must apply it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

__all__ = ["Narrow"]

_MOST: Final = 1 << 62  # stands for "no upper bound"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = ("stream", "seq", "kind", "range")  # columns


@dataclass(slots=True)
class Narrow:
    """The streams, positions and times that satisfy all filters taken so far."""

    ranges: bool  # whether there may be rows for void or lost ranges
    names: set[str] | None = None  # of streams; None: all
    prefixes: list[str] = field(default_factory=list)  # a stream's name must begin with all of them
    lo: int = 1  # positions are in [lo, hi)
    hi: int = _MOST
    time_lo_us: int = 0  # times are in [time_lo_us, time_hi_us), microseconds since 1970
    time_hi_us: int = _MOST

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply the filters; return those that Spark must still apply."""
        return [one for one in filters if not self._take(one)]

    def wants(self, stream: str) -> bool:
        named = self.names is None or stream in self.names
        return named and all(stream.startswith(prefix) for prefix in self.prefixes)

    def _take(self, one: Filter) -> bool:
        """Apply a filter, as far as possible; return whether it is applied exactly."""
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:  # not a filter on one column
            return False
        name = attribute[0]
        if isinstance(one, IsNotNull):
            # Every event has a timestamp, but not every void or lost range.
            return name in _NEVER_NULL or (name == "timestamp" and not self.ranges)
        value: Any = getattr(one, "value", None)
        if name == "stream":
            return self._stream(one, value)
        if self.ranges:  # Spark must apply filters on position and time (see the module docstring)
            return False
        if name == "seq" and _is_int(value):
            return self._seq(one, value)
        if name == "timestamp" and isinstance(value, datetime):
            return self._time(one, value)
        return False

    def _stream(self, one: Filter, value: Any) -> bool:
        if isinstance(one, StringStartsWith):
            self.prefixes.append(value)
            return True
        if isinstance(one, EqualTo | EqualNullSafe):
            wanted = {value}
        elif isinstance(one, In):
            wanted = set(value)
        else:
            return False
        self.names = wanted if self.names is None else self.names & wanted
        return True

    def _seq(self, one: Filter, value: int) -> bool:
        lo, hi = _between(one, value)
        if lo is None:
            return False
        self.lo, self.hi = max(self.lo, lo), min(self.hi, hi)
        return True

    def _time(self, one: Filter, value: datetime) -> bool:
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        lo, hi = _between(one, (aware - _EPOCH) // timedelta(microseconds=1))  # to microseconds
        if lo is None:
            return False
        self.time_lo_us, self.time_hi_us = max(self.time_lo_us, lo), min(self.time_hi_us, hi)
        return hi == _MOST  # exact only without an upper bound (see the module docstring)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _between(one: Filter, value: int) -> tuple[int | None, int]:
    """The range [lo, hi) of numbers that pass a filter with this value; lo is None if the filter
    is not a comparison."""
    match one:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, _MOST
        case GreaterThanOrEqual():
            return value, _MOST
        case LessThan():
            return -_MOST, value
        case LessThanOrEqual():
            return -_MOST, value + 1
    return None, 0
