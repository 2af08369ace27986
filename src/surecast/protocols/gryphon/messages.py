"""The messages of Gryphon. A range [lo, hi) contains `lo`, but not `hi`.

*Down* is the direction of events, from the region that owns a stream to subscribers; *up* is the
opposite direction. All messages use the session between two nodes (FIFO).
"""

from typing import ClassVar

from surecast.core.streams import StreamInfo
from surecast.core.types import Batch, LogId, Message, Peer, tagged

__all__ = [
    "Ack",
    "AckExpected",
    "Attach",
    "Attached",
    "Detach",
    "Fetch",
    "Fetched",
    "Filters",
    "Find",
    "Found",
    "Join",
    "Knowledge",
    "Leave",
    "Matched",
    "Nack",
    "Reach",
    "Refused",
    "Stamps",
    "StreamsAre",
    "Table",
]

# For brokers with subscribers: (name, incarnation, version) of their filter tables. See stamps.py.
Stamps = tuple[tuple[str, int, int], ...]


class GryphonMessage(Message, tag=tagged("gryphon")):
    """The base of the messages below: each is tagged "gryphon/" and its class name."""


class Table(GryphonMessage):
    """The filters of one stream at a broker with subscribers, or how they have changed. Only inside
    Attach and Filters."""

    broker: str
    incarnation: int  # another one after each start of that broker: its versions begin anew
    base: int  # the version that is changed; 0: `added` are all filters
    version: int  # after the change
    added: tuple[tuple[int, str], ...]  # (id, text of the filter); an empty text passes everything
    removed: tuple[int, ...] = ()  # ids


# ------------------------------------------------------------ between brokers


class Reach(GryphonMessage):
    """The regions whose streams the sender can get. Sent regularly to all neighbours."""

    cell: str  # of the sender
    head: Peer  # of its region, if it is a replica; it takes publishes
    direct: tuple[str, ...]  # through its own links up, or because it is a replica of the region
    sideways: tuple[str, ...]  # only through another broker of its cell


class StreamsAre(GryphonMessage):
    """Streams of this delivery that the sender knows; sent down when a session opens, and later
    when there are new ones. `deleted`: ids of streams that were deleted."""

    infos: tuple[StreamInfo, ...]
    deleted: tuple[LogId, ...] = ()


class Attach(GryphonMessage):
    """Send `stream` from position `at` on (0: from now on), and apply the filters in `tables`.
    Answered by Attached."""

    stream: LogId
    at: int
    tables: tuple[Table, ...]


class Attached(GryphonMessage):
    """The sender knows of the positions of `stream` below `end`, and will send later ones.
    `schema`: of the stream, as far as the sender knows."""

    stream: LogId
    end: int
    schema: str


class Detach(GryphonMessage):
    """End an Attach."""

    stream: LogId


class Filters(GryphonMessage):
    """Changed filters below the sender; goes up the tree."""

    stream: LogId
    tables: tuple[Table, ...]


class Knowledge(GryphonMessage):
    """What the sender knows of [lo, hi): the events in `batches`; all other positions are *final*,
    which means that the receiver needs no event there.

    Why they are final: if `stamps` is None, no filter has dropped an event, the positions are void
    for everybody. Otherwise filters may have dropped events. The filters were those of the named
    versions of the brokers' tables; a broker that is not named may lack any of its events.
    """

    may_be_filtered: ClassVar[bool] = True

    stream: LogId
    first: bool  # sent without a request; False: the answer to a Nack
    final: int  # all brokers have acknowledged the positions below it
    lo: int
    hi: int
    batches: tuple[Batch, ...]
    stamps: Stamps | None


class Nack(GryphonMessage):
    """The sender misses these ranges. Answered by Knowledge, as far as the receiver can."""

    stream: LogId
    ranges: tuple[tuple[int, int], ...]


class Ack(GryphonMessage):
    """The sender, and every broker below it, needs nothing below `end`."""

    stream: LogId
    end: int


class AckExpected(GryphonMessage):
    """The positions below `end` should have been acknowledged by now. A broker with subscribers
    requests those that it misses, or repeats its Ack."""

    stream: LogId
    end: int


class Fetch(GryphonMessage):
    """Read [lo, hi) of `stream` at a replica of its owner, and send the events that pass `where`.
    Brokers pass it up, and the answer down."""

    token: int  # chosen by the sender, which may be a broker that passes it on
    stream: LogId
    lo: int
    hi: int
    where: str


class Fetched(GryphonMessage):
    """The answer to Fetch: the events of [lo, hi) that pass. `hi` may be lower than requested, also
    equal to `lo`, if the replica does not show the rest yet."""

    may_be_filtered: ClassVar[bool] = True

    token: int
    lo: int
    hi: int
    batches: tuple[Batch, ...]
    # If not empty, [lo, hi) is lost: no replica has these positions any more. For people.
    lost: str = ""


class Find(GryphonMessage):
    """Which is the first position of `stream` at or after a time (-1: the end)? Between servers of
    two regions."""

    token: int
    stream: LogId
    time_ns: int


class Found(GryphonMessage):
    """The answer to Find. `why`: why there is no position, as for clients."""

    token: int
    seq: int
    why: str


# ------------------------------------------------------------ between brokers and subscribers


class Join(GryphonMessage):
    """Send the events of `stream` from position `start` on (0: from now on) that pass `where`."""

    stream: LogId
    number: int  # counts the Joins of this subscriber; answers repeat it
    start: int
    where: str


class Leave(GryphonMessage):
    """End a Join."""

    stream: LogId


class Matched(GryphonMessage):
    """The events of [lo, hi) that pass. The messages of a Join are contiguous."""

    may_be_filtered: ClassVar[bool] = True

    stream: LogId
    number: int
    lo: int
    hi: int
    batches: tuple[Batch, ...]
    lost: str = ""  # as in Fetched


class Refused(GryphonMessage):
    """A Join is refused, for example because its filter is not valid for the stream. Joining again
    is of no use."""

    stream: LogId
    number: int
    why: str  # for people
