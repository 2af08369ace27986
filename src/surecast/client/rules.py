"""Functions for users: retention rules for new streams, and predicates for `Stream.collect`.

A retention rule says which events a stream keeps. A predicate says which events a publisher
declares obsolete.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

from surecast.columns.rules import (
    BeforeSeq,
    BeforeTime,
    KeepAll,
    KeepFor,
    KeepLast,
    KeyIs,
    KeyPrefix,
    LatestPerKey,
    Policy,
    Predicate,
    TagIs,
)
from surecast.core.wire import SEQ_END_MAX
from surecast.errors import FilterError, UsageError

__all__ = [
    "Policy",
    "Predicate",
    "before_seq",
    "before_time",
    "check_position",
    "keep_all",
    "keep_for",
    "keep_last",
    "key_is",
    "key_prefix",
    "latest_per_key",
    "ns_of",
    "shown",
    "tag_is",
    "where_text",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MOST: Final = (1 << 62) - 1  # the largest number in a rule (events, or nanoseconds)
_LATEST: Final = _EPOCH + timedelta(microseconds=_MOST // 1000)  # in the year 2116


# ------------------------------------------------------------ retain=


def keep_all() -> Policy:
    """Keep every event until a `collect` declares it obsolete. This is the default."""
    return KeepAll()


def keep_last(n: int) -> Policy:
    """Keep the events at the newest `n` positions; void positions count, too."""
    if type(n) is not int or not 1 <= n <= _MOST:
        raise UsageError(f"keep_last takes a number of events from 1 to {_MOST:,}, not {shown(n)}")
    return KeepLast(n)


def keep_for(age: timedelta | float) -> Policy:
    """Keep events for at least `age`, a timedelta or seconds: `keep_for(timedelta(hours=1))`."""
    given = age
    most = _LATEST - _EPOCH
    if isinstance(age, int | float) and not isinstance(age, bool) and math.isfinite(age):
        # A timedelta cannot hold every number. Too large a number becomes a timedelta above `most`,
        # which is refused below.
        age = timedelta(seconds=age) if abs(age) < most.total_seconds() else most + _MICROSECOND
    if not isinstance(age, timedelta) or age <= timedelta(0):
        raise UsageError(f"keep_for takes a positive timedelta or seconds, not {shown(given)}")
    if age > most:
        raise UsageError(f"keep_for takes at most {most.days:,} days, not {shown(given)}")
    return KeepFor(age // _MICROSECOND * 1000)


def latest_per_key() -> Policy:
    """Keep the newest event of each key, and all events without a key."""
    return LatestPerKey()


# ------------------------------------------------------------ collect()


def before_seq(seq: int) -> Predicate:
    """All events at positions below `seq`."""
    # `check_position` refuses 0, which is not a position. Here it is allowed: no events. (`type`:
    # False is equal to 0, and is refused.)
    if seq != 0 or type(seq) is not int:
        check_position("before_seq", seq)
    return BeforeSeq(seq)


def before_time(time: datetime) -> Predicate:
    """All events older than `time`."""
    return BeforeTime(ns_of(time))


def key_is(key: bytes) -> Predicate:
    """All events with this key."""
    return KeyIs(_bytes("key_is", key))


def key_prefix(prefix: bytes) -> Predicate:
    """All events whose key begins with `prefix`."""
    return KeyPrefix(_bytes("key_prefix", prefix))


def tag_is(tag: bytes) -> Predicate:
    """All events that were published with this tag. Only for streams with `keep_all()`."""
    return TagIs(_bytes("tag_is", tag))


def check_position(what: str, seq: int) -> None:
    """Raise UsageError unless `seq` is a position that a stream can have. `what` is the name of the
    argument or function in the message."""
    if type(seq) is not int:
        raise UsageError(f"{what} takes a position, not {seq!r}")
    if not 1 <= seq < SEQ_END_MAX:
        raise UsageError(f"{what} takes a position from 1 to {SEQ_END_MAX - 1:,}, not {shown(seq)}")


def ns_of(time: datetime) -> int:
    """Nanoseconds since 1970. A time without a time zone is refused, because its meaning would
    depend on the computer."""
    if not isinstance(time, datetime):
        raise UsageError(f"a time is a datetime, not {time!r}")
    if time.tzinfo is None:
        raise UsageError(
            f"{time!r} has no time zone: use datetime.now(UTC), or time.astimezone() for local time"
        )
    if not _EPOCH <= time <= _LATEST:
        raise UsageError(f"a time is from 1970 to {_LATEST.year}, not {time!r}")
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


def where_text(where: str | None) -> str:
    """The text of a filter, which can be parsed; "" for None. Raises FilterError, or UsageError if
    it is not text."""
    if where is None:
        return ""
    if not isinstance(where, str):
        raise UsageError(f"where= is text, such as \"sym == 'IBM'\", not {shown(where)}")
    from surecast.where import parse  # loads pyarrow

    parse(where)
    try:
        where.encode()
    except UnicodeEncodeError as problem:
        raise FilterError("a character that is not valid Unicode", problem.start) from None
    return where


def shown(value: object) -> str:
    """A value as text for an error message; `repr` fails for an int of thousands of digits."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"a number of {value.bit_length():,} bits"
    return f"{value!r:.80}"


def _bytes(what: str, data: bytes) -> bytes:
    """`data`, checked. `what` is the name of the function that the user has called."""
    if not isinstance(data, bytes):
        raise UsageError(f"{what} takes bytes, not {data!r}")
    return data
