"""What clients and servers of a region send each other about streams."""

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
    """Who are you, and who else serves this region?"""


class Introduced(StreamsMessage):
    region: str
    name: Peer  # who answers
    replicas: dict[str, str]  # of its region: name → host:port
    http: dict[str, str]  # the same, where they show their state


class CreateStream(StreamsMessage):
    """Open the stream, or create it."""

    name: str
    spec: StreamSpec


class StreamOpened(StreamsMessage):
    """The stream exists and every replica knows it. `why` says why not, if it does not.

    why: not-head (ask `head`), recovering and owner-unreachable (later), config-mismatch (it is
    not what was asked for), too-many-streams, bad-name, bad-spec (too large), no-delivery (a server
    has not got it), other-region (its delivery stays within a region, and another one owns the
    name), owners-differ (regions disagree on who owns it).
    """

    name: str
    info: StreamInfo | None
    why: str = ""
    head: str = ""


class Publish(StreamsMessage):
    stream: LogId
    batch: Batch


class PubAck(StreamsMessage):
    """The batch that began at `pub_no` stands at `seq`, on disk at every replica. `more`: as
    many of the same publisher's, later ones."""

    stream: LogId
    publisher: bytes
    pub_no: int
    seq: int
    more: tuple[tuple[int, int], ...] = ()


class PubNack(StreamsMessage):
    """Not taken. why: not-head (ask `head`), out-of-order (send from `expected`), busy,
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
    """Send me `stream` from position `start` on, and what comes."""

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
    """Send me [lo, hi) of `stream`, or a large part of it from `lo` on."""

    stream: LogId
    lo: int
    hi: int


class RangeEvents(StreamsMessage):
    """A part of what was asked for, [lo, hi); no more comes if `last`.

    `end` is where the sender's copy ends: positions from there on have not come yet.
    """

    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    batches: tuple[Batch, ...]


class RangeLost(StreamsMessage):
    """A part of what was asked for, [lo, hi), of which no position can be read here or elsewhere.

    It stands among the RangeEvents of an answer where its positions do; `end` and `last` are as
    there.
    """

    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    why: str  # for people


# ------------------------------------------------------------ questions
# Each has a token, which its answers repeat.


class WatchStreams(StreamsMessage):
    """Which streams match `pattern`, now and from now on? Any replica knows."""

    token: int
    pattern: str


class StreamsAre(StreamsMessage):
    """Streams that match and where each ends here; `complete`: that was all there is, for now."""

    token: int
    infos: tuple[StreamInfo, ...]
    ends: tuple[int, ...]
    complete: bool
    why: str = ""  # too-many


class UnwatchStreams(StreamsMessage):
    token: int


class Locate(StreamsMessage):
    """From where on are the events of `stream` not older than `time_ns`? -1: where does it end?"""

    token: int
    stream: LogId
    time_ns: int


class Located(StreamsMessage):
    token: int
    seq: int
    why: str = ""  # unknown-stream


class Attach(StreamsMessage):
    """Let `holder` read as the subscription `name`. `take`: whoever holds it now loses it."""

    token: int
    name: str
    holder: bytes  # 16 random bytes
    take: bool


class Attached(StreamsMessage):
    """It reads from `positions` on (a stream that is missing: from 1).

    Sent again with why fenced when somebody else takes the name, and with reset or deleted when an
    operator changes it. why: not-head (ask `head`), fenced, reset, deleted, recovering and busy
    (later), too-many, bad-name.
    """

    token: int
    positions: dict[bytes, int]
    why: str = ""
    head: str = ""


class Advance(StreamsMessage):
    """The holder has dealt with everything below these positions."""

    token: int
    name: str
    holder: bytes
    positions: dict[bytes, int]


class Advanced(StreamsMessage):
    """That is on disk at every replica, or (`why` as in Attached) it is not."""

    token: int
    why: str = ""
    head: str = ""


class Detach(StreamsMessage):
    """The client of that Attach reads no more under `name`. Its positions stay. No answer."""

    token: int  # of the Attach
    name: str


class ListCursors(StreamsMessage):
    """Which named subscriptions are there (or: where is this one)? For the head."""

    token: int
    name: str  # only this one; empty: all
    after: tuple[str, bytes]  # the last name and stream of the page before; ("", b""): the first


class CursorsAre(StreamsMessage):
    """A page of them, by name and stream. The next one begins behind `after`; if `complete`, there
    is none. why: not-head (ask `head`), recovering (later)."""

    token: int
    cursors: tuple[CursorState, ...]
    after: tuple[str, bytes]
    complete: bool
    why: str = ""
    head: str = ""


class CursorReset(StreamsMessage):
    """Take the subscription `name` from its holder and put it at these positions; those in other
    streams stay. `force`: also if a client is attached to it."""

    token: int
    name: str
    change: bytes  # 16 random bytes: a request that is sent again is carried out once
    positions: dict[bytes, int]
    force: bool


class CursorDelete(StreamsMessage):
    """Forget the subscription `name`. The rest as in CursorReset."""

    token: int
    name: str
    change: bytes
    force: bool


class CursorChanged(StreamsMessage):
    """That is on disk at every replica, or it is not done.

    why: not-head (ask `head`), recovering and busy (later), unknown-subscription, in-use (a client
    is attached), unknown-stream, too-many-positions, bad-position, bad-name.
    """

    token: int
    why: str = ""
    head: str = ""
