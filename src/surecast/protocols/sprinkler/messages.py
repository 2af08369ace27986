"""What regions and clients send each other, and what users of the machines say and hear."""

import msgspec

from surecast.columns.retention import Policy
from surecast.core.types import Batch, Input, LogId, Message

__all__ = [
    "Acked",
    "Advertise",
    "CreateStream",
    "Failed",
    "Follow",
    "Following",
    "ForceNewStream",
    "MeshEvents",
    "MeshLean",
    "MeshLeave",
    "MeshNotify",
    "MeshRequest",
    "MeshView",
    "Offer",
    "Open",
    "Opened",
    "PeerEvents",
    "PubAck",
    "PubNack",
    "Publish",
    "PublishersKnown",
    "PublishersWanted",
    "RegionStale",
    "StreamInfo",
    "StreamOpened",
    "Subscribe",
    "Unfollow",
    "Unsubscribe",
]


class StreamInfo(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """An entry of the directory. Fixed when the stream is created."""

    stream_id: bytes
    name: str
    owner: str  # region
    retention: Policy
    replaces: bytes = b""  # the stream_id whose history was given up for this one (R8)


# ------------------------------------------------------------ between regions


class Advertise(Message):
    """How far `region` has come: all streams on a new session, then only what changed (R12)."""

    region: str
    epoch: int
    ends: dict[bytes, int]
    infos: tuple[StreamInfo, ...]
    full: bool


class Subscribe(Message):
    """Send me `stream` from position `start` on. `region` is empty for a client."""

    region: str
    epoch: int
    stream: LogId
    start: int


class Unsubscribe(Message):
    stream: LogId


class PeerEvents(Message):
    """Committed positions of `stream`, contiguous; `end` is where the sender's copy ends."""

    stream: LogId
    batches: tuple[Batch, ...]
    end: int


class PublishersWanted(Message):
    """Compacted batches do not say who published them; a copy made of them asks (R4, R8)."""

    stream: LogId
    end: int  # of the asker's copy
    asker: str = ""  # when a tail passes the question on to its head


class PublishersKnown(Message):
    """What publishers had accepted in `stream` below `end`, as far as the sender knows."""

    stream: LogId
    end: int
    data: bytes
    complete: bool
    region: str
    appended: int  # where the head's own copy ends, committed or not


class RegionStale(Message):
    """I know a later epoch of your region (R7)."""

    region: str
    epoch: int


# ------------------------------------------------------------ with clients


class CreateStream(Message):
    name: str
    retention: Policy


class StreamOpened(Message):
    """The stream exists and every replica knows it. `why` says why not, if it does not."""

    name: str
    info: StreamInfo | None
    why: str = ""
    head: str = ""


class Publish(Message):
    stream: LogId
    batch: Batch


class PubAck(Message):
    """The batch that began at `pub_no` stands at `seq`, on disk at every replica."""

    stream: LogId
    publisher: bytes
    pub_no: int
    seq: int


class PubNack(Message):
    """Not taken. why: not-head (ask `head`), out-of-order (send from `expected`), busy,
    too-few-replicas, recovering, quarantined, unknown-stream, not-owner, mismatch, expired,
    bad-event."""

    stream: LogId
    publisher: bytes
    pub_no: int
    why: str
    expected: int = 0
    head: str = ""


# ------------------------------------------------------------ in a region's mesh


class MeshNotify(Message):
    """I have `stream` up to `end`."""

    stream: LogId
    end: int


class MeshLean(Message):
    """I have picked you: tell me, too, when you get something new (or do not, any longer)."""

    stream: LogId
    on: bool


class MeshRequest(Message):
    """Send me what you have of [lo, hi). To a server, `hi` 0 means all there is from `lo` on,
    and `lo` 0 only asks where the stream ends."""

    stream: LogId
    lo: int
    hi: int


class MeshEvents(Message):
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


class MeshView(Message):
    """Whom I know in the mesh of `stream`, and how far I am; `want`: send me yours."""

    stream: LogId
    peers: tuple[str, ...]
    end: int
    want: bool


class MeshLeave(Message):
    """I am not, or no longer, in the mesh of `stream`."""

    stream: LogId


# ------------------------------------------------------------ commands


class Offer(Input):
    """Publish these values, in this order, after everything offered before."""

    stream: LogId
    values: list[bytes]
    keys: list[bytes | None] | None = None
    tags: list[bytes | None] | None = None
    kind: int = 1  # DATA; COLLECT and CONFIG take one encoded value


class Open(Input):
    """Open the stream, or create it if there is none of that name."""

    name: str
    retention: Policy


class Follow(Input):
    """Deliver `stream` from position `start` on: 1 is the earliest, 0 (mesh clients) the latest."""

    stream: LogId
    start: int


class Unfollow(Input):
    stream: LogId


class ForceNewStream(Input):
    """The operator gives up a history that cannot be recovered (R8)."""

    name: str


# ------------------------------------------------------------ events


class Opened(msgspec.Struct, gc=False):
    name: str
    info: StreamInfo | None
    why: str = ""  # config-mismatch: it exists with another retention


class Following(msgspec.Struct, gc=False):
    """A mesh client delivers `stream` from `start` on."""

    stream: LogId
    start: int


class Acked(msgspec.Struct, gc=False):
    stream: LogId
    pub_no: int
    count: int
    seq: int


class Failed(msgspec.Struct, gc=False):
    """A publish that can never succeed as it is. why: as in PubNack, or history-lost when the
    region has lost, by an operator's decision, what it had acknowledged."""

    stream: LogId
    pub_no: int
    why: str
