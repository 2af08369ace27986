"""Turns filters on the stream, the position and the time into narrower ranges.

Spark need not apply filters again that are exact here; it applies all others. Filters on time and
position are exact only for rows that are events: times never fall along the stream, but a void or
lost range has one row, at its last position. So a reader that may return ranges leaves these
filters to Spark. An upper bound on time is never exact: the range ends at the first *live* event
after that time, and events that have just become void may still precede this event. It narrows the
range, and Spark applies the filter again.
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

_MOST: Final = 1 << 62
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = ("stream", "seq", "kind", "range")


@dataclass(slots=True)
class Narrow:
    """What is left of all streams, positions and times after the filters taken so far."""

    ranges: bool  # there may be rows that stand for ranges
    names: set[str] | None = None  # None: all
    prefixes: list[str] = field(default_factory=list)
    lo: int = 1
    hi: int = _MOST
    time_lo_us: int = 0
    time_hi_us: int = _MOST

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Narrow by the filters that allow it; return those that Spark must still apply."""
        return [one for one in filters if not self._take(one)]

    def wants(self, stream: str) -> bool:
        named = self.names is None or stream in self.names
        return named and all(stream.startswith(prefix) for prefix in self.prefixes)

    def _take(self, one: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:
            return False
        name = attribute[0]
        if isinstance(one, IsNotNull):
            return name in _NEVER_NULL or (name == "timestamp" and not self.ranges)
        value: Any = getattr(one, "value", None)
        if name == "stream":
            return self._stream(one, value)
        if self.ranges:
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
        lo, hi = _between(one, (aware - _EPOCH) // timedelta(microseconds=1))
        if lo is None:
            return False
        self.time_lo_us, self.time_hi_us = max(self.time_lo_us, lo), min(self.time_hi_us, hi)
        return hi == _MOST


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _between(one: Filter, value: int) -> tuple[int | None, int]:
    """The numbers [lo, hi) that pass the filter; lo is None for a filter of another kind."""
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
