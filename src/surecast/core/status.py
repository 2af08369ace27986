"""What observers of roles (`core.roles`) tell in one form, whatever the protocol."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from surecast.core.streams import CursorPosition, CursorState

__all__ = [
    "ChainStatus",
    "RegionStatus",
    "SubscriptionInfo",
    "SubscriptionPosition",
    "subscription_infos",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ChainStatus(msgspec.Struct):
    """The region's replicas, as this one knows them. Epoch 0: not founded yet."""

    epoch: int
    members: list[str]
    configured: list[str]
    place: str  # of this replica: head, middle, tail, alone, learner, outside
    writable: bool  # enough members to take publishes
    writable_min: int
    pending_bytes: int  # appended and not on disk yet
    unanswered: int  # publishes taken in and not acknowledged yet
    clean: bool  # the chain has all that it acknowledged
    damage: str  # what this replica's disk has lost; "": nothing

    @property
    def is_member(self) -> bool:
        return self.place not in ("learner", "outside")

    @property
    def is_head(self) -> bool:
        return self.place in ("head", "alone")


class RegionStatus(msgspec.Struct):
    """Another region, as this one hears of it."""

    name: str
    up: bool  # heard from within the last few advertisements
    heard_s: float | None  # how long ago; null: never
    epoch: int
    head: str
    tail: str
    same_owners: bool
    replicas: dict[str, str] = {}  # these two as the configuration has them
    http: dict[str, str] = {}


class SubscriptionPosition(msgspec.Struct, frozen=True):
    """Where a named subscription is in one stream."""

    stream: str
    seq: int  # the first position that is not acknowledged
    end: int  # of the stream: the position of the next event to be published
    lag: int  # positions from `seq` to `end`
    moved: datetime | None  # when `seq` was saved


class SubscriptionInfo(msgspec.Struct, frozen=True):
    """A named subscription of a region, as returned by `Client.subscriptions`."""

    name: str
    connected: bool | None  # a client reads under this name; None: not known (only the head knows)
    pattern: (
        bool  # it has read by a pattern: new streams that match are read from their first event
    )
    lag: int  # of all streams
    moved: datetime | None  # when one of its positions was last saved
    positions: tuple[SubscriptionPosition, ...]  # by stream; streams that are gone are left out


def subscription_infos(states: Iterable[CursorState]) -> list[SubscriptionInfo]:
    """Named subscriptions by name, of pages that may have them in parts."""
    parts: dict[str, list[CursorState]] = {}
    for state in states:
        parts.setdefault(state.name, []).append(state)
    return [_info(some) for _, some in sorted(parts.items())]


def _info(parts: list[CursorState]) -> SubscriptionInfo:
    positions = [_position(one) for part in parts for one in part.positions]
    positions.sort(key=lambda one: one.stream)
    moved = [one.moved for one in positions if one.moved is not None]
    return SubscriptionInfo(
        name=parts[0].name,
        connected=parts[-1].attached,
        pattern=parts[0].pattern,
        lag=sum(one.lag for one in positions),
        moved=max(moved, default=None),
        positions=tuple(positions),
    )


def _position(one: CursorPosition) -> SubscriptionPosition:
    moved = _EPOCH + timedelta(microseconds=one.moved_ns // 1000) if one.moved_ns else None
    return SubscriptionPosition(one.stream, one.seq, one.end, max(0, one.end - one.seq), moved)
