"""Messages between regions, and between members of a region's mesh."""

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
    """The ends of `region`'s copies: of all streams on a new session, then only changes (R12)."""

    region: str
    epoch: int
    ends: dict[bytes, int]
    infos: tuple[StreamInfo, ...]
    full: bool
    head: str = ""  # the replica that accepts publishes to streams of the region
    owners: bytes = b""  # a digest of its ownership table
    more: bool = False  # this is a part; the next message continues it
    # The serial number of the sender's disk (`core.replicated.Counted`). A receiver that has seen a
    # higher one answers RegionBehind.
    disk: bytes = b""
    life: bytes = b""
    start: int = 0
    serial: int = 0


class RegionSubscribe(SprinklerMessage):
    """Send `region` the stream from position `start` on.

    `last` are marks of earlier events of its copy: the receiver's copy must have the same events.
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
    """Request the publishers' state of `stream`: compacted batches do not name their publishers
    (R4, R8)."""

    stream: LogId
    end: int  # of the sender's copy
    asker: str = ""  # the sender, when a tail forwards the request to its head


class PublishersKnown(SprinklerMessage):
    """The publishers' state of `stream` at position `end`, as far as the sender knows it.

    `data` is a part, from offset `at` on, of `total` bytes; parts come in order.
    """

    stream: LogId
    end: int
    data: bytes
    complete: bool  # the sender knows all publishers
    region: str
    appended: int  # the end of the head's own copy, committed or not
    at: int = 0
    total: int = 0


class RegionStale(SprinklerMessage):
    """The sender knows a later epoch of the receiver's region (R7)."""

    region: str
    epoch: int


class RegionBehind(SprinklerMessage):
    """The receiver's disk once had the serial number `serial`, so it is an older copy now."""

    disk: bytes
    serial: int


class Mark(msgspec.Struct, gc=False, array_like=True, frozen=True, order=True):
    """Identifies the event at a position."""

    seq: int
    time_ns: int
    digest: bytes


class Compare(SprinklerMessage):
    """Request the marks of the receiver's events at these positions of these streams."""

    token: int
    seqs: dict[bytes, tuple[int, ...]]


class Compared(SprinklerMessage):
    """The marks of the sender's events; for a void position, of an event not far below, or none."""

    token: int
    marks: dict[bytes, tuple[Mark, ...]]


class Doubt(SprinklerMessage):
    """The receiver should compare these streams with all regions again: there are, or were, two
    histories of them."""

    streams: tuple[bytes, ...]


class Hide(SprinklerMessage):
    """To replicas of the sender's own region: show nothing of `stream` from `seq` on for now."""

    stream: LogId
    seq: int


# ------------------------------------------------------------ in a region's mesh


class MeshNotify(SprinklerMessage):
    """The sender has `stream` up to `end`."""

    stream: LogId
    end: int


class MeshLean(SprinklerMessage):
    """Start notifying the sender of new events, because it notifies the receiver (`on` false:
    stop)."""

    stream: LogId
    on: bool


class MeshRequest(SprinklerMessage):
    """Send [lo, hi), as far as the receiver has it. To a server, `hi` 0 means everything from `lo`
    on, and `lo` 0 only requests the end of the stream."""

    stream: LogId
    lo: int
    hi: int


class MeshEvents(SprinklerMessage):
    """What the sender has of [lo, hi), a part of the requested range; the last part if `last`.

    Missing positions below `end` are not kept by the sender; it does not have those from `end` on
    yet. Batches are sent whole, so they may reach beyond [lo, hi).
    """

    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    batches: tuple[Batch, ...]


class MeshView(SprinklerMessage):
    """The peers that the sender knows in the mesh of `stream`, and its end; `want`: answer with the
    receiver's view."""

    stream: LogId
    peers: tuple[str, ...]
    end: int
    want: bool


class MeshLeave(SprinklerMessage):
    """The sender is not, or no longer, in the mesh of `stream`."""

    stream: LogId
