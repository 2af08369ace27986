"""What streams keep, and what a publisher declares obsolete, as users say it."""

from __future__ import annotations

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
from surecast.errors import UsageError

__all__ = [
    "before_seq",
    "before_time",
    "keep_all",
    "keep_for",
    "keep_last",
    "key_is",
    "key_prefix",
    "latest_per_key",
    "ns_of",
    "tag_is",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = (1 << 62) - 1


# ------------------------------------------------------------ retain=


def keep_all() -> Policy:
    """Keep every event until a `collect` says otherwise. The rule of streams that name none."""
    return KeepAll()


def keep_last(n: int) -> Policy:
    """Keep the newest `n` positions."""
    if type(n) is not int or not 1 <= n <= _MOST:
        raise UsageError(f"keep_last takes a number of events from 1 on, not {n!r}")
    return KeepLast(n)


def keep_for(age: timedelta) -> Policy:
    """Keep events for at least `age`: `keep_for(timedelta(hours=1))`."""
    if not isinstance(age, timedelta) or age <= timedelta(0):
        raise UsageError(f"keep_for takes a positive timedelta, not {age!r}")
    return KeepFor(age // timedelta(microseconds=1) * 1000)


def latest_per_key() -> Policy:
    """Keep the newest event of each key, and all events without a key."""
    return LatestPerKey()


# ------------------------------------------------------------ collect()


def before_seq(seq: int) -> Predicate:
    """Everything at positions below `seq`."""
    if type(seq) is not int or not 0 <= seq <= _MOST:
        raise UsageError(f"before_seq takes a position, not {seq!r}")
    return BeforeSeq(seq)


def before_time(time: datetime) -> Predicate:
    """Everything older than `time`."""
    return BeforeTime(ns_of(time))


def key_is(key: bytes) -> Predicate:
    """Everything with this key."""
    return KeyIs(_bytes("key_is", key))


def key_prefix(prefix: bytes) -> Predicate:
    """Everything with a key that begins so."""
    return KeyPrefix(_bytes("key_prefix", prefix))


def tag_is(tag: bytes) -> Predicate:
    """Everything published with this tag. Only streams that `keep_all()` can do that."""
    return TagIs(_bytes("tag_is", tag))


def ns_of(time: datetime) -> int:
    """Nanoseconds since 1970. A time without a zone means something else on every machine."""
    if not isinstance(time, datetime):
        raise UsageError(f"a time is a datetime, not {time!r}")
    if time.tzinfo is None:
        raise UsageError(
            f"{time!r} has no time zone: use datetime.now(UTC), or time.astimezone() for local time"
        )
    return max(0, (time - _EPOCH) // timedelta(microseconds=1) * 1000)


def _bytes(what: str, data: bytes) -> bytes:
    if not isinstance(data, bytes):
        raise UsageError(f"{what} takes bytes, not {data!r}")
    return data
