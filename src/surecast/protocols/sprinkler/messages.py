"""The messages of Sprinkler: between regions, and between members of a region's meshes."""

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
    """The ends of `region`'s copies of streams: all of them (`full`) on a new session, then only
    changes (R12). Sent by the tail of the region's chain."""

    region: str
    epoch: int
    ends: dict[bytes, int]
    infos: tuple[StreamInfo, ...]  # streams that the receiver may not know
    full: bool
    head: str = ""  # the replica that accepts publishes to streams of the region
    owners: bytes = b""  # a digest of the region's ownership table
    more: bool = False  # the next message continues this one
    # The serial number of the sender's disk (`core.replicated.Counted`). A receiver that has seen a
    # higher one answers RegionBehind.
    disk: bytes = b""
    life: bytes = b""
    start: int = 0
    serial: int = 0


class RegionSubscribe(SprinklerMessage):
    """Send the stream to `region` from position `start` on.

    `last` are marks of the last events of the sender's copy before `start`. If the receiver's copy
    has other events there, it answers with Doubt.
    """

    region: str
    epoch: int
    stream: LogId
    start: int
    last: tuple["Mark", ...] = ()


class RegionUnsubscribe(SprinklerMessage):
    """End a RegionSubscribe."""

    stream: LogId


class PeerEvents(SprinklerMessage):
    """Committed batches of `stream`, contiguous. `end` is the end of the sender's copy."""

    stream: LogId
    batches: tuple[Batch, ...]
    end: int


class PublishersWanted(SprinklerMessage):
    """Request the publishers' state of `stream` (chain/dedup.py). Compacted batches do not contain
    the publishers of their events, so retries could not be recognised without it (R4, R8)."""

    stream: LogId
    end: int  # of the sender's copy
    asker: str = ""  # the original sender, if a tail forwards the request to its head


class PublishersKnown(SprinklerMessage):
    """The publishers' state of `stream` at position `end`, as far as the sender knows it.

    `data` is the part from offset `at` on, of `total` bytes. Parts are sent in order.
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
    """The receiver is not the tail of its region any more: the sender knows a later epoch of that
    region's chain (R7)."""

    region: str
    epoch: int


class RegionBehind(SprinklerMessage):
    """The receiver's disk is an older copy of itself: before, it had the serial number `serial`."""

    disk: bytes
    serial: int


class Mark(msgspec.Struct, gc=False, array_like=True, frozen=True, order=True):
    """Identifies the event at a position, in the same way in all regions and after compaction."""

    seq: int
    time_ns: int
    digest: bytes


class Compare(SprinklerMessage):
    """Request the marks of the receiver's events at these positions (stream → positions)."""

    token: int
    seqs: dict[bytes, tuple[int, ...]]


class Compared(SprinklerMessage):
    """The marks of the sender's events, by stream. For a void position it is the mark of an event
    not far below, if there is one."""

    token: int
    marks: dict[bytes, tuple[Mark, ...]]


class Doubt(SprinklerMessage):
    """The receiver should compare these streams with all regions again, because there are, or were,
    two different histories of each."""

    streams: tuple[bytes, ...]


class Hide(SprinklerMessage):
    """Show nothing of `stream` from `seq` on for now. Sent by a head to the other replicas of its
    own region."""

    stream: LogId
    seq: int


# ------------------------------------------------------------ in a region's mesh


class MeshNotify(SprinklerMessage):
    """The sender has `stream` up to `end`."""

    stream: LogId
    end: int


class MeshLean(SprinklerMessage):
    """Start (`on`) or stop notifying the sender of new events. The sender has drawn the receiver
    from its view and notifies it."""

    stream: LogId
    on: bool


class MeshRequest(SprinklerMessage):
    """Request [lo, hi), as far as the receiver has it. If the receiver is a server, a `hi` of 0
    means everything from `lo` on, and with a `lo` of 0 only the end of the stream is requested."""

    stream: LogId
    lo: int
    hi: int


class MeshEvents(SprinklerMessage):
    """The batches that the sender has of [lo, hi), which is a part of the requested range. `last`:
    this is the last part.

    Positions of [lo, hi) may be missing: below `end` the sender no longer has them, from `end` on
    it does not have them yet. Batches are sent whole, so they may extend beyond [lo, hi).
    """

    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    batches: tuple[Batch, ...]


class MeshView(SprinklerMessage):
    """The sender's view in the mesh of `stream` (the peers it knows), and its end of the stream.
    `want`: the receiver should answer with its own view."""

    stream: LogId
    peers: tuple[str, ...]
    end: int
    want: bool


class MeshLeave(SprinklerMessage):
    """The sender is not, or no longer, a member of the mesh of `stream`."""

    stream: LogId
