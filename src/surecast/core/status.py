"""What observers of roles (`core.roles`) tell in one form, whatever the protocol."""

import msgspec

__all__ = ["ChainStatus", "RegionStatus"]


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
