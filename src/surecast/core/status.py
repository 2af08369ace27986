"""The structs in which observers of roles (`core.roles`) report status, for any protocol."""

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
    """The chain of replicas of this region, as this replica knows it.

    `epoch` is the number of the configuration. In epoch 0 the chain does not exist yet."""

    epoch: int
    members: list[str]
    configured: list[str]  # all replicas of the region, whether or not they are members
    place: str  # of this replica: head, middle, tail, alone, learner, outside
    writable: bool  # the chain has at least `writable_min` members, and accepts publishes
    writable_min: int
    pending_bytes: int  # appended here, but not on this replica's disk yet
    unanswered: int  # at the head: publishes accepted, but not committed yet
    clean: bool  # false: the chain has lost events that it had acknowledged, and recovers them
    damage: str  # what this replica's disk has lost; "": nothing

    @property
    def is_member(self) -> bool:
        return self.place not in ("learner", "outside")

    @property
    def is_head(self) -> bool:
        return self.place in ("head", "alone")


class RegionStatus(msgspec.Struct):
    """Another region, as this one knows it."""

    name: str
    up: bool  # one of its last few advertisements was received
    heard_s: float | None  # seconds since the last advertisement; null: none was received
    epoch: int
    head: str
    tail: str
    same_owners: bool  # its table of stream owners equals that of this region
    replicas: dict[str, str] = {}  # name → address, as configured here
    http: dict[str, str] = {}  # name → HTTP address, as configured here


class SubscriptionPosition(msgspec.Struct, frozen=True):
    """Where a named subscription is in one stream."""

    stream: str
    seq: int  # the first position that the subscriber has not acknowledged
    end: int  # of the stream: the position of the next event to be published
    lag: int  # positions from `seq` to `end`
    moved: datetime | None  # when `seq` was saved


class SubscriptionInfo(msgspec.Struct, frozen=True):
    """A named subscription of a region, as returned by `Client.subscriptions`."""

    name: str
    connected: bool | None  # a client reads under this name; None: not known (only the head knows)
    # It was used with a pattern of stream names: new streams that match are read from their first
    # event.
    pattern: bool
    lag: int  # the sum of all streams
    moved: datetime | None  # when one of its positions was last saved
    positions: tuple[SubscriptionPosition, ...]  # by stream; without streams that no longer exist


def subscription_infos(states: Iterable[CursorState]) -> list[SubscriptionInfo]:
    """Named subscriptions, sorted by name. `states` may contain a subscription in several parts."""
    parts: dict[str, list[CursorState]] = {}
    for state in states:
        parts.setdefault(state.name, []).append(state)
    return [_info(states_of_name) for _, states_of_name in sorted(parts.items())]


def _info(parts: list[CursorState]) -> SubscriptionInfo:
    positions = [_position(position) for part in parts for position in part.positions]
    positions.sort(key=lambda position: position.stream)
    moved = [position.moved for position in positions if position.moved is not None]
    return SubscriptionInfo(
        name=parts[0].name,
        connected=parts[-1].attached,
        pattern=parts[0].pattern,
        lag=sum(position.lag for position in positions),
        moved=max(moved, default=None),
        positions=tuple(positions),
    )


def _position(state: CursorPosition) -> SubscriptionPosition:
    moved = _EPOCH + timedelta(microseconds=state.moved_ns // 1000) if state.moved_ns else None
    lag = max(0, state.end - state.seq)
    return SubscriptionPosition(state.stream, state.seq, state.end, lag, moved)
