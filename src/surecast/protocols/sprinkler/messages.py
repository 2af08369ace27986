"""What regions send each other, and members of a region's mesh."""

import msgspec

from surecast.core.streams import StreamInfo
from surecast.core.types import Batch, LogId, Message, tagged

__all__ = [
    "Advertise",
    "Compare",
    "Compared",
    "Doubt",
    "Hide",
    "Mark",
    "MeshEvents",
    "MeshLean",
    "MeshLeave",
    "MeshNotify",
    "MeshRequest",
    "MeshView",
    "PeerEvents",
    "PublishersKnown",
    "PublishersWanted",
    "RegionBehind",
    "RegionStale",
    "RegionSubscribe",
    "RegionUnsubscribe",
]


class SprinklerMessage(Message, tag=tagged("sprinkler")):
    """The base of the messages below: each is tagged "sprinkler/" and its class name."""


# ------------------------------------------------------------ between regions


class Advertise(SprinklerMessage):
    """How far `region` has come: all streams on a new session, then only what changed (R12)."""

    region: str
    epoch: int
    ends: dict[bytes, int]
    infos: tuple[StreamInfo, ...]
    full: bool
    head: str = ""  # who takes publishes for what the region owns
    owners: bytes = b""  # a digest of its ownership table
    more: bool = False  # this is a part: it counts with the next message
    # What the sender's disk has counted up to (`core.replicated.Counted`). A receiver that has seen
    # it count further answers RegionBehind.
    disk: bytes = b""
    life: bytes = b""
    start: int = 0
    serial: int = 0


class RegionSubscribe(SprinklerMessage):
    """Send `region` the stream from position `start` on.

    `last` are events of its copy before that: they must stand in the receiver's, too.
    """

    region: str
    epoch: int
    stream: LogId
    start: int
    last: tuple["Mark", ...] = ()


class RegionUnsubscribe(SprinklerMessage):
    stream: LogId


class PeerEvents(SprinklerMessage):
    """Committed positions of `stream`, contiguous; `end` is where the sender's copy ends."""

    stream: LogId
    batches: tuple[Batch, ...]
    end: int


class PublishersWanted(SprinklerMessage):
    """Compacted batches do not say who published them; a copy made of them asks (R4, R8)."""

    stream: LogId
    end: int  # of the asker's copy
    asker: str = ""  # when a tail passes the question on to its head


class PublishersKnown(SprinklerMessage):
    """What publishers had accepted in `stream` below `end`, as far as the sender knows.

    `data` is a part, from `at` on, of `total` bytes; parts come in order.
    """

    stream: LogId
    end: int
    data: bytes
    complete: bool
    region: str
    appended: int  # where the head's own copy ends, committed or not
    at: int = 0
    total: int = 0


class RegionStale(SprinklerMessage):
    """I know a later epoch of your region (R7)."""

    region: str
    epoch: int


class RegionBehind(SprinklerMessage):
    """Your disk had counted up to `serial` before: what it holds now is an older copy."""

    disk: bytes
    serial: int


class Mark(msgspec.Struct, gc=False, array_like=True, frozen=True, order=True):
    """What stands at a position: enough to tell two events apart."""

    seq: int
    time_ns: int
    digest: bytes


class Compare(SprinklerMessage):
    """Which events do you have at these positions of these streams?"""

    token: int
    seqs: dict[bytes, tuple[int, ...]]


class Compared(SprinklerMessage):
    """What the sender has there; for a void position, an event not far below, or nothing."""

    token: int
    marks: dict[bytes, tuple[Mark, ...]]


class Doubt(SprinklerMessage):
    """Compare these streams with all regions again: there are, or were, two histories of them."""

    streams: tuple[bytes, ...]


class Hide(SprinklerMessage):
    """To replicas of the sender's own region: show nothing of `stream` from `seq` on for now."""

    stream: LogId
    seq: int


# ------------------------------------------------------------ in a region's mesh


class MeshNotify(SprinklerMessage):
    """I have `stream` up to `end`."""

    stream: LogId
    end: int


class MeshLean(SprinklerMessage):
    """I have picked you: tell me, too, when you get something new (or do not, any longer)."""

    stream: LogId
    on: bool


class MeshRequest(SprinklerMessage):
    """Send me what you have of [lo, hi). To a server, `hi` 0 means all there is from `lo` on,
    and `lo` 0 only asks where the stream ends."""

    stream: LogId
    lo: int
    hi: int


class MeshEvents(SprinklerMessage):
    """What the sender has of [lo, hi), a part of what was requested; the last part if `last`.

    Positions below `end` that are missing are not kept here; those from `end` on have not come yet.
    Batches may reach beyond [lo, hi): they are passed on whole.
    """

    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    batches: tuple[Batch, ...]


class MeshView(SprinklerMessage):
    """Whom I know in the mesh of `stream`, and how far I am; `want`: send me yours."""

    stream: LogId
    peers: tuple[str, ...]
    end: int
    want: bool


class MeshLeave(SprinklerMessage):
    """I am not, or no longer, in the mesh of `stream`."""

    stream: LogId
