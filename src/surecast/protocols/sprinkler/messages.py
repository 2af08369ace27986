"""What regions and clients send each other, and what users of the machines say and hear."""

from typing import Any

import msgspec

from surecast.columns.retention import Policy
from surecast.core.types import Batch, Input, LogId, Message, Peer, tagged

__all__ = [
    "Acked",
    "Advance",
    "Advanced",
    "Advertise",
    "Answered",
    "Attach",
    "Attached",
    "Compare",
    "Compared",
    "CreateStream",
    "Doubt",
    "Drain",
    "Drop",
    "Failed",
    "Follow",
    "Following",
    "ForceNewStream",
    "Hide",
    "Inquire",
    "Introduce",
    "Introduced",
    "Locate",
    "Located",
    "Mark",
    "MeshEvents",
    "MeshLean",
    "MeshLeave",
    "MeshNotify",
    "MeshRequest",
    "MeshView",
    "Offer",
    "OfferBatch",
    "Open",
    "Opened",
    "PeerEvents",
    "PubAck",
    "PubNack",
    "Publish",
    "PublishersKnown",
    "PublishersWanted",
    "RegionBehind",
    "RegionStale",
    "StreamInfo",
    "StreamOpened",
    "StreamsAre",
    "Subscribe",
    "Unfollow",
    "Unsubscribe",
    "UnwatchStreams",
    "WatchStreams",
]


class SprinklerMessage(Message, tag=tagged("sprinkler")):
    """The base of the messages below: each is tagged "sprinkler/" and its class name."""


class StreamInfo(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """An entry of the directory. Fixed when the stream is created."""

    stream_id: bytes
    name: str
    owner: str  # region
    retention: Policy
    replaces: bytes = b""  # the stream_id whose history was given up for this one (R8)


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


class Subscribe(SprinklerMessage):
    """Send me `stream` from position `start` on. `region` is empty for a client.

    `last` are events of a region's copy before that: they must stand in the receiver's, too.
    """

    region: str
    epoch: int
    stream: LogId
    start: int
    last: tuple["Mark", ...] = ()


class Unsubscribe(SprinklerMessage):
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


# ------------------------------------------------------------ with clients


class Introduce(SprinklerMessage):
    """Who are you, and who else serves this region?"""


class Introduced(SprinklerMessage):
    region: str
    name: Peer  # who answers
    replicas: dict[str, str]  # of its region: name → host:port
    http: dict[str, str]  # the same, where they show their state


class CreateStream(SprinklerMessage):
    """Open the stream, or create it. `retention` None: whatever it has, or keep all."""

    name: str
    retention: Policy | None


class StreamOpened(SprinklerMessage):
    """The stream exists and every replica knows it. `why` says why not, if it does not.

    why: not-head (ask `head`), recovering and owner-unreachable (later), config-mismatch (it has
    another retention), too-many-streams, bad-name, owners-differ (regions disagree on who owns it).
    """

    name: str
    info: StreamInfo | None
    why: str = ""
    head: str = ""


class Publish(SprinklerMessage):
    stream: LogId
    batch: Batch


class PubAck(SprinklerMessage):
    """The batch that began at `pub_no` stands at `seq`, on disk at every replica. `more`: as
    many of the same publisher's, later ones."""

    stream: LogId
    publisher: bytes
    pub_no: int
    seq: int
    more: tuple[tuple[int, int], ...] = ()


class PubNack(SprinklerMessage):
    """Not taken. why: not-head (ask `head`), out-of-order (send from `expected`), busy,
    too-few-replicas, recovering, quarantined, unknown-stream, owner-unreachable, mismatch, expired,
    bad-event."""

    stream: LogId
    publisher: bytes
    pub_no: int
    why: str
    expected: int = 0
    head: str = ""


# Questions of a client. Each has a token, which its answers repeat.


class WatchStreams(SprinklerMessage):
    """Which streams match `pattern`, now and from now on? Any replica knows."""

    token: int
    pattern: str


class StreamsAre(SprinklerMessage):
    """Streams that match and where each ends here; `complete`: that was all there is, for now."""

    token: int
    infos: tuple[StreamInfo, ...]
    ends: tuple[int, ...]
    complete: bool
    why: str = ""  # too-many


class UnwatchStreams(SprinklerMessage):
    token: int


class Locate(SprinklerMessage):
    """From where on are the events of `stream` not older than `time_ns`? -1: where does it end?"""

    token: int
    stream: LogId
    time_ns: int


class Located(SprinklerMessage):
    token: int
    seq: int
    why: str = ""  # unknown-stream


class Attach(SprinklerMessage):
    """Let `holder` read as the subscription `name`. `take`: whoever holds it now loses it."""

    token: int
    name: str
    holder: bytes  # 16 random bytes
    take: bool


class Attached(SprinklerMessage):
    """It reads from `positions` on (a stream that is missing: from 1).

    Sent again with why fenced when somebody else takes the name. why: not-head (ask `head`),
    fenced, recovering and busy (later), too-many, bad-name.
    """

    token: int
    positions: dict[bytes, int]
    why: str = ""
    head: str = ""


class Advance(SprinklerMessage):
    """The holder has dealt with everything below these positions."""

    token: int
    name: str
    holder: bytes
    positions: dict[bytes, int]


class Advanced(SprinklerMessage):
    """That is on disk at every replica, or (`why` as in Attached) it is not."""

    token: int
    why: str = ""
    head: str = ""


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


# ------------------------------------------------------------ commands


class Offer(Input):
    """Publish these values, in this order, after everything offered before."""

    stream: LogId
    values: list[bytes]
    keys: list[bytes | None] | None = None
    tags: list[bytes | None] | None = None
    kind: int = 1  # DATA; COLLECT and CONFIG take one encoded value


class OfferBatch(Input):
    """Publish a batch that has no place yet; Acked and Failed repeat `token`.

    With a publisher and number of its own it is a *named* publisher's, who counts by itself and
    goes on counting after a restart; its batches are offered in the order of their numbers.
    """

    stream: LogId
    batch: Batch
    token: int


class Open(Input):
    """Open the stream, or create it if there is none of that name. None: whatever it keeps."""

    name: str
    retention: Policy | None


class Inquire(Input):
    """Send `question` to a replica (`of_head`: the head) until it is answered. `keep`: further
    answers come until `Drop`, and it is asked again wherever the answers come from by then."""

    question: Any  # a message with a token
    of_head: bool = False
    keep: bool = False


class Drop(Input):
    """The answers to `token` are no longer of interest."""

    token: int


class Follow(Input):
    """Deliver `stream` from position `start` on: 1 is the earliest, 0 (mesh clients) the latest."""

    stream: LogId
    start: int


class Unfollow(Input):
    stream: LogId


class Drain(Input):
    """This replica is about to stop: take no more publishes; those taken are still answered."""


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


class Answered(msgspec.Struct, gc=False):
    """An answer to a question that was asked with `Inquire`; its `why` is final."""

    token: int
    answer: Any


class Acked(msgspec.Struct, gc=False):
    """`seq` 0: a named publisher's batch that was taken so long ago that its place is forgotten."""

    stream: LogId
    pub_no: int
    count: int
    seq: int
    token: int = 0  # of OfferBatch


class Failed(msgspec.Struct, gc=False):
    """A publish that can never succeed as it is. why: as in PubNack, or history-lost when the
    region has lost, by an operator's decision, what it had acknowledged. After owner-unreachable
    it is not known whether the owner took the batch before it was cut off."""

    stream: LogId
    pub_no: int
    why: str
    token: int = 0
