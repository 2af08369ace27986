"""The messages of Sprinkler: between regions, and between members of a region's meshes.

In all messages, `stream` is the id of a stream, [lo, hi) is a range of positions without `hi`, and
`end` is the first position that does not exist yet. The *head* of a region is the replica that
accepts publishes, the *tail* the one that exchanges events with other regions.
"""

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
    epoch: int  # of the configuration of the region's chain
    ends: dict[bytes, int]  # stream id → committed end of the copy
    infos: tuple[StreamInfo, ...]  # streams that the receiver may not know
    full: bool
    head: str = ""  # the replica that accepts publishes to streams of the region
    owners: bytes = b""  # a digest of the region's ownership table
    more: bool = False  # the next message continues this one
    # The serial number of the sender's disk; the fields are those of `core.replicated.Counted`. If
    # the receiver has seen a number of an earlier start that is not below `start`, the disk is an
    # older copy of itself, and the receiver answers RegionBehind.
    disk: bytes = b""
    life: bytes = b""
    start: int = 0
    serial: int = 0


class RegionSubscribe(SprinklerMessage):
    """Send the stream to `region` (the sender's region) from position `start` on."""

    region: str
    epoch: int  # of the sender's chain
    stream: LogId
    start: int
    # Marks of the last event before `start`, and of the last event, in the sender's copy. If the
    # receiver's copy has other events there, it answers with Doubt.
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
    """Request the publishers' state of `stream`: which batches of which publishers are in it
    (chain/dedup.py). Compacted batches do not contain the publishers of their events, so without
    this state the retry of such a batch would not be recognised (R4, R8)."""

    stream: LogId
    end: int  # of the sender's copy
    # The server that sent the request, if a tail forwards it to its head; "": it is not forwarded.
    asker: str = ""


class PublishersKnown(SprinklerMessage):
    """The publishers' state of `stream` at position `end`, as far as the sender knows it.

    `data` is the part from offset `at` on, of `total` bytes. Parts are sent in order.
    """

    stream: LogId
    end: int
    data: bytes
    complete: bool  # the sender knows the publishers of all events below `end`
    region: str  # of the sender
    appended: int  # the end of the head's own copy, committed or not
    at: int = 0
    total: int = 0  # 0: `data` is the whole state


class RegionStale(SprinklerMessage):
    """The receiver is no longer the tail of its region: the sender knows a later epoch of that
    region's chain (R7)."""

    region: str  # of the receiver
    epoch: int  # the later epoch


class RegionBehind(SprinklerMessage):
    """The receiver's disk is an older copy of itself: the sender has received a higher serial
    number from it before."""

    disk: bytes  # its identity (`core.replicated.Counted`)
    serial: int  # the number that it had


class Mark(msgspec.Struct, gc=False, array_like=True, frozen=True, order=True):
    """Identifies the event at a position, in the same way in all regions and after compaction."""

    seq: int
    time_ns: int
    digest: bytes  # of the event's key, value and tag


class Compare(SprinklerMessage):
    """Request the marks of the receiver's events at these positions."""

    token: int  # the answer repeats it
    seqs: dict[bytes, tuple[int, ...]]  # stream id → positions


class Compared(SprinklerMessage):
    """The answer to Compare: marks of the sender's events. For a void position (its event is
    obsolete), it is the mark of an event not far below, if there is one."""

    token: int
    marks: dict[bytes, tuple[Mark, ...]]  # by stream id


class Doubt(SprinklerMessage):
    """The receiver should compare these streams with all regions again, because there are, or were,
    two different histories of each."""

    streams: tuple[bytes, ...]  # stream ids


class Hide(SprinklerMessage):
    """Show readers nothing of `stream` from `seq` on, until this message stops coming. Sent
    periodically by a head to the other replicas of its own region."""

    stream: LogId
    seq: int


# ------------------------------------------------------------ in a region's mesh


class MeshNotify(SprinklerMessage):
    """The sender has the positions of `stream` below `end`."""

    stream: LogId
    end: int


class MeshLean(SprinklerMessage):
    """Start (`on`) or stop notifying the sender of new events. It starts this when it has chosen
    the receiver at random, and then notifies the receiver, too."""

    stream: LogId
    on: bool


class MeshRequest(SprinklerMessage):
    """Request [lo, hi), as far as the receiver has it. Two requests are allowed only to a server: a
    `hi` of 0 requests everything from `lo` on; if both are 0, only the end of the stream."""

    stream: LogId
    lo: int
    hi: int


class MeshEvents(SprinklerMessage):
    """The batches that the sender has of [lo, hi), which is a part of the requested range.

    Positions of [lo, hi) may be missing: below `end` the sender no longer has them, from `end` on
    it does not have them yet. Batches are sent whole, so they may extend beyond [lo, hi).
    """

    stream: LogId
    lo: int
    hi: int
    end: int  # of the stream at the sender
    last: bool  # this is the last message of the answer
    batches: tuple[Batch, ...]


class MeshView(SprinklerMessage):
    """The sender's view in the mesh of `stream`, and its end of the stream."""

    stream: LogId
    peers: tuple[str, ...]  # the view: the names of the peers that the sender knows
    end: int  # 0: not known, or not told
    want: bool  # the receiver should answer with its own view


class MeshLeave(SprinklerMessage):
    """The sender is not, or no longer, a member of the mesh of `stream`."""

    stream: LogId
