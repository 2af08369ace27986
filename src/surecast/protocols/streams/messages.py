"""Messages between clients and the servers of their region.

Some are also sent between the heads of two regions: requests for a stream that the other region
owns are forwarded to it.

The *head* of a region is the replica that accepts publishes and other changes. These fields mean
the same in all messages:

stream     the id of a stream
lo, hi     a range [lo, hi) of positions, which contains `lo`, but not `hi`
end        the first position that does not exist yet, at the sender
positions  stream id → position
token      chosen by the client; answers repeat it
why        the reason of a refusal, one of the words listed at the message; "": no refusal
head       used if `why` is not-head: the head of the region, which the client should ask instead
"""

from typing import ClassVar

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
    "FilterRefused",
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
    """Request the names of the receiver, of its region and of the region's replicas."""


class Introduced(StreamsMessage):
    """The answer to Introduce."""

    region: str
    name: Peer  # of the sender
    replicas: dict[str, str]  # of its region: name → host:port
    http: dict[str, str]  # name → host:port of its HTTP server


class CreateStream(StreamsMessage):
    """Open the stream, or create it if it does not exist. Answered by StreamOpened."""

    name: str
    spec: StreamSpec


class StreamOpened(StreamsMessage):
    """If `why` is empty, the stream exists and every replica knows it. Otherwise it was not opened:

    not-head (ask `head`), recovering and owner-unreachable (ask later), config-mismatch (the stream
    exists with another configuration), too-many-streams, bad-name, bad-spec (its schema and options
    are too large, or the schema is not valid), no-delivery (a server does not have the delivery),
    no-schemas (a server has an earlier version, which cannot read typed bodies),
    other-region (the delivery works only within a region, and another region owns the name),
    owners-differ (regions disagree on the owner).
    """

    name: str
    info: StreamInfo | None  # None: see `why`
    why: str = ""
    head: str = ""


class Publish(StreamsMessage):
    """Append `batch` to `stream`. Answered by PubAck or PubNack."""

    stream: LogId
    batch: Batch


class PubAck(StreamsMessage):
    """The batch that begins at `pub_no` has position `seq` and is on disk at every replica."""

    stream: LogId
    publisher: bytes  # its id
    pub_no: int  # the publisher's number of the batch's first event
    seq: int  # the position of this event
    more: tuple[tuple[int, int], ...] = ()  # (pub_no, seq) of later batches of the same publisher


class PubNack(StreamsMessage):
    """The batch was refused.

    why: not-head (ask `head`), out-of-order (send from the number `expected` on), busy (retry),
    too-few-replicas (retry), recovering (retry), unknown-stream (retry), owner-unreachable (the
    region that owns the stream cannot be reached), mismatch (another batch of this publisher has
    this number), expired (it is no longer known what this publisher has sent, so a retry would not
    be recognised), quarantined (the stream's log cannot be read), bad-event (also if the batch
    does not have the columns of the stream's schema), unknown-columns (it has more columns than the
    schema), deleted (the stream was deleted), too-many-deleted (the batch is a deletion, and the
    region can remember no more deleted streams). A change of the schema is also refused for these
    reasons: unchanged (the stream has this schema already), schema-differs (it does not extend the
    current one), bad-spec and no-schemas (as in StreamOpened).
    """

    stream: LogId
    publisher: bytes
    pub_no: int
    why: str
    expected: int = 0
    head: str = ""


# ------------------------------------------------------------ reading


class Subscribe(StreamsMessage):
    """Send `stream` from position `start` on, and all later events: if there is a filter (`where`),
    only those that pass it. Answered by Events, or by FilterRefused."""

    stream: LogId
    start: int
    where: str = ""


class Unsubscribe(StreamsMessage):
    """End a Subscribe."""

    stream: LogId


class Events(StreamsMessage):
    """Committed batches of `stream`, contiguous. `end` is the end of the stream at the sender.

    `filter` is the number of the filter (`core.endpoint.filter_number`) that the sender has
    applied; 0 if it has applied none. A batch may also be sent as it is, with all of its events.
    """

    may_be_filtered: ClassVar[bool] = True

    stream: LogId
    batches: tuple[Batch, ...]
    end: int
    filter: int = 0


class ReadRange(StreamsMessage):
    """Send [lo, hi) of `stream`, or a large part of it from `lo` on: if there is a filter
    (`where`), only the events that pass it."""

    stream: LogId
    lo: int
    hi: int
    where: str = ""


class RangeEvents(StreamsMessage):
    """A part [lo, hi) of the requested range. `last`: this is the last message of the answer.

    `end` is the end of the stream at the sender: it cannot show positions from there on yet.
    `filter`: as in Events.
    """

    may_be_filtered: ClassVar[bool] = True

    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    batches: tuple[Batch, ...]
    filter: int = 0


class RangeLost(StreamsMessage):
    """A part [lo, hi) of the requested range is lost: no node can read these positions any more.

    An answer consists of RangeEvents and RangeLost messages, in the order of positions. `end` and
    `last` have the same meaning as in RangeEvents.
    """

    stream: LogId
    lo: int
    hi: int
    end: int
    last: bool
    why: str  # an explanation for people, not one of the words of other messages


class FilterRefused(StreamsMessage):
    """The server cannot apply the filter of a Subscribe or ReadRange, and ignores the request. The
    client may send it again without a filter, and apply the filter itself.

    `why` is a text for people: the filter is not valid, or has columns that the server's version of
    the stream's schema does not have.
    """

    stream: LogId
    filter: int  # the number of the filter
    why: str


# ------------------------------------------------------------ questions


class WatchStreams(StreamsMessage):
    """Which streams match `pattern`? The answer is one or more StreamsAre. New streams that match
    are reported later, until UnwatchStreams. Any replica can answer."""

    token: int
    pattern: str


class StreamsAre(StreamsMessage):
    """Streams that match."""

    token: int
    infos: tuple[StreamInfo, ...]
    ends: tuple[int, ...]  # of each of them, at the sender
    complete: bool  # no further message about existing streams follows
    why: str = ""  # too-many (the client watches too many patterns), bad-name


class UnwatchStreams(StreamsMessage):
    """End a WatchStreams."""

    token: int


class Locate(StreamsMessage):
    """Which is the first position of `stream` with an event at or after the time `time_ns`? With a
    `time_ns` of -1: where does the stream end? Answered by Located."""

    token: int
    stream: LogId
    time_ns: int


class Located(StreamsMessage):
    """The answer to Locate: a position, or the reason why there is none."""

    token: int
    seq: int
    why: str = ""  # unknown-stream, stream-deleted, recovering, quarantined


class Attach(StreamsMessage):
    """Make `holder` the holder of the named subscription `name`: only the holder may save its
    positions. Answered by Attached."""

    token: int
    name: str
    holder: bytes  # 16 random bytes that the client has chosen
    take: bool  # even if the subscription has another holder


class Attached(StreamsMessage):
    """The client is the holder and should read from `positions` on, unless `why` is set. A stream
    that is not in `positions` is read from position 1 on.

    why: not-head (ask `head`), fenced (another client is the holder), reset and deleted (by an
    operator), recovering and busy (ask later), too-many, bad-name. The message is also sent later,
    without a further request, if the client stops being the holder: with fenced, reset or deleted.
    """

    token: int
    positions: dict[bytes, int]  # stream id → position
    why: str = ""
    head: str = ""


class Advance(StreamsMessage):
    """Save these positions: the holder has processed everything below them."""

    token: int
    name: str
    holder: bytes
    positions: dict[bytes, int]


class Advanced(StreamsMessage):
    """The positions of an Advance are on disk at every replica. If `why` is set (as in Attached),
    they were not saved."""

    token: int
    why: str = ""
    head: str = ""


class Detach(StreamsMessage):
    """The client stops reading under `name`. The positions stay. There is no answer."""

    token: int  # of the Attach
    name: str


class ListCursors(StreamsMessage):
    """Which named subscriptions (*cursors*) exist, and at which positions? The head answers with a
    page of them (CursorsAre); other replicas refuse."""

    token: int
    name: str  # only this one; empty: all
    after: tuple[str, bytes]  # last name and stream of the previous page; ("", b""): first page


class CursorsAre(StreamsMessage):
    """A page of named subscriptions, in order of name and stream. A subscription with positions in
    many streams may be divided: its first streams are on this page, the others on the next.
    `complete`: this is the last page; else the next page begins after `after`. why: not-head (ask
    `head`), recovering (ask later)."""

    token: int
    cursors: tuple[CursorState, ...]
    after: tuple[str, bytes]  # last name and stream of this page
    complete: bool
    why: str = ""
    head: str = ""


class CursorReset(StreamsMessage):
    """Remove the holder of the subscription `name` and set these positions; positions in other
    streams stay. `force`: even if a client is attached. Answered by CursorChanged."""

    token: int
    name: str
    change: bytes  # 16 random bytes: a repeated request is carried out only once
    positions: dict[bytes, int]
    force: bool


class CursorDelete(StreamsMessage):
    """Delete the subscription `name`. `change` and `force` are as in CursorReset."""

    token: int
    name: str
    change: bytes
    force: bool


class CursorChanged(StreamsMessage):
    """The reset or deletion is on disk at every replica. If `why` is set, it was refused.

    why: not-head (ask `head`), recovering and busy (ask later), unknown-subscription, in-use (a
    client is attached), unknown-stream, too-many-positions, bad-position, bad-name.
    """

    token: int
    why: str = ""
    head: str = ""
