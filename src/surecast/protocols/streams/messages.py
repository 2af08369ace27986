"""Messages between clients and servers of a region, and between owners and other regions' heads."""

from surecast.core.streams import CursorState, StreamInfo, StreamSpec
from surecast.core.types import Batch, LogId, Message, Peer, tagged

__all__ = [
    "Advance",
    "Advanced",
    "Attach",
    "Attached",
    "CreateStream",
    "CursorChanged",
    "CursorDelete",
    "CursorReset",
    "CursorsAre",
    "Detach",
    "Events",
    "Introduce",
    "Introduced",
    "ListCursors",
    "Locate",
    "Located",
    "PubAck",
    "PubNack",
    "Publish",
    "RangeEvents",
    "RangeLost",
    "ReadRange",
    "StreamOpened",
    "StreamsAre",
    "Subscribe",
    "Unsubscribe",
    "UnwatchStreams",
    "WatchStreams",
]


class StreamsMessage(Message, tag=tagged("streams")):
    """The base of the messages below: each is tagged "streams/" and its class name."""


class Introduce(StreamsMessage):
    """Request the name of the receiver, of its region and of the region's replicas."""


class Introduced(StreamsMessage):
    region: str
    name: Peer  # of the sender
    replicas: dict[str, str]  # of its region: name → host:port
    http: dict[str, str]  # name → host:port of its HTTP server


class CreateStream(StreamsMessage):
    """Open the stream, or create it."""

    name: str
    spec: StreamSpec


class StreamOpened(StreamsMessage):
    """The stream exists and every replica knows it; if not, `why` is the reason.

    why: not-head (ask `head`), recovering and owner-unreachable (ask later), config-mismatch (its
    configuration differs from the requested one), too-many-streams, bad-name, bad-spec (too large),
    no-delivery (a server does not have it), other-region (its delivery stays within a region, and
    another region owns the name), owners-differ (regions disagree on its owner).
    """

    name: str
    info: StreamInfo | None
    why: str = ""
    head: str = ""


class Publish(StreamsMessage):
    stream: LogId
    batch: Batch


class PubAck(StreamsMessage):
    """The batch that begins at `pub_no` has position `seq` and is on disk at every replica.
    `more`: (pub_no, seq) of later batches of the same publisher."""

    stream: LogId
    publisher: bytes
    pub_no: int
    seq: int
    more: tuple[tuple[int, int], ...] = ()


class PubNack(StreamsMessage):
    """The batch was refused. why: not-head (ask `head`), out-of-order (send from `expected`), busy,
    too-few-replicas, recovering, quarantined, unknown-stream, owner-unreachable, mismatch, expired,
    bad-event."""

    stream: LogId
    publisher: bytes
    pub_no: int
    why: str
    expected: int = 0
    head: str = ""


# ------------------------------------------------------------ reading


class Subscribe(StreamsMessage):
    """Send `stream` from position `start` on, and all later events."""

    stream: LogId
    start: int


class Unsubscribe(StreamsMessage):
    stream: LogId


class Events(StreamsMessage):
    """Committed positions of `stream`, contiguous; `end` is where the sender's copy ends."""

    stream: LogId
    batches: tuple[Batch, ...]
    end: int


class ReadRange(StreamsMessage):
    """Send [lo, hi) of `stream`, or a large part of it from `lo` on."""

    stream: LogId
    lo: int
    hi: int


class RangeEvents(StreamsMessage):
    """A part [lo, hi) of the requested range; `last`: the last message of the answer.

    `end` is where the sender's copy ends: it has no positions from there on yet.
    """

    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    batches: tuple[Batch, ...]


class RangeLost(StreamsMessage):
    """A part [lo, hi) of the requested range that is lost: no node can read a position of it.

    It is sent among the RangeEvents of an answer, in the order of positions; `end` and `last` mean
    the same as there.
    """

    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    why: str  # for people


# ------------------------------------------------------------ questions
# Each question has a token, which its answers repeat.


class WatchStreams(StreamsMessage):
    """Which streams match `pattern`, now and in the future? Any replica can answer."""

    token: int
    pattern: str


class StreamsAre(StreamsMessage):
    """Streams that match, and where each ends here; `complete`: these are the last ones for now."""

    token: int
    infos: tuple[StreamInfo, ...]
    ends: tuple[int, ...]
    complete: bool
    why: str = ""  # too-many


class UnwatchStreams(StreamsMessage):
    token: int


class Locate(StreamsMessage):
    """From which position on are events of `stream` at or after `time_ns`? -1: where is its end?"""

    token: int
    stream: LogId
    time_ns: int


class Located(StreamsMessage):
    token: int
    seq: int
    why: str = ""  # unknown-stream


class Attach(StreamsMessage):
    """Let `holder` read as the subscription `name`. `take`: even if another holder has it."""

    token: int
    name: str
    holder: bytes  # 16 random bytes
    take: bool


class Attached(StreamsMessage):
    """The holder reads from `positions` on (a stream that is missing there: from 1).

    Sent again with why fenced when another client takes the name, and with reset or deleted when an
    operator changes it. why: not-head (ask `head`), fenced, reset, deleted, recovering and busy
    (ask later), too-many, bad-name.
    """

    token: int
    positions: dict[bytes, int]
    why: str = ""
    head: str = ""


class Advance(StreamsMessage):
    """The holder has processed everything below these positions."""

    token: int
    name: str
    holder: bytes
    positions: dict[bytes, int]


class Advanced(StreamsMessage):
    """The positions are on disk at every replica, or (`why` as in Attached) they were not saved."""

    token: int
    why: str = ""
    head: str = ""


class Detach(StreamsMessage):
    """The client stops reading under `name`. The positions stay. There is no answer."""

    token: int  # of the Attach
    name: str


class ListCursors(StreamsMessage):
    """Which named subscriptions exist, and at which positions? For the head."""

    token: int
    name: str  # only this one; empty: all
    after: tuple[str, bytes]  # the last name and stream of the page before; ("", b""): the first


class CursorsAre(StreamsMessage):
    """A page of named subscriptions, by name and stream. The next page begins behind `after`; if
    `complete`, there is none. why: not-head (ask `head`), recovering (ask later)."""

    token: int
    cursors: tuple[CursorState, ...]
    after: tuple[str, bytes]
    complete: bool
    why: str = ""
    head: str = ""


class CursorReset(StreamsMessage):
    """Take the subscription `name` from its holder and set these positions; those in other streams
    stay. `force`: even if a client is attached."""

    token: int
    name: str
    change: bytes  # 16 random bytes: a repeated request is carried out only once
    positions: dict[bytes, int]
    force: bool


class CursorDelete(StreamsMessage):
    """Delete the subscription `name`. The rest as in CursorReset."""

    token: int
    name: str
    change: bytes
    force: bool


class CursorChanged(StreamsMessage):
    """The reset or deletion is on disk at every replica, or (`why`) it was refused.

    why: not-head (ask `head`), recovering and busy (ask later), unknown-subscription, in-use (a
    client is attached), unknown-stream, too-many-positions, bad-position, bad-name.
    """

    token: int
    why: str = ""
    head: str = ""
