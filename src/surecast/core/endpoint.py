"""The interface of the client side of a delivery: the commands it takes and the events it emits.

A *delivery* is a protocol that brings the events of a stream to its readers. Its client side are
machines in a client's nodes. Machines of `protocols.streams` (publisher, subscriber, fetcher,
inquirer) and of the deliveries implement this interface; the package `surecast.endpoint`, which
runs these nodes, uses it and knows no protocol.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from surecast.columns.batch import Batch
from surecast.core.compose import Layer
from surecast.core.machine import NodeContext
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.core.types import SECOND, Input, LogId, Peer

__all__ = [
    "NEEDS",
    "VERBS",
    "Acked",
    "Answered",
    "DeleteCursor",
    "Delivery",
    "Drain",
    "Drop",
    "Ended",
    "Failed",
    "Follow",
    "Following",
    "Go",
    "Hold",
    "Inquire",
    "Lost",
    "MoveCursor",
    "Offer",
    "OfferBatch",
    "Open",
    "Opened",
    "Place",
    "ReadRange",
    "ResetCursor",
    "Short",
    "TakeCursor",
    "Unfollow",
    "WhereIs",
    "WhichCursors",
    "WhichStreams",
    "filter_number",
]

# ------------------------------------------------------------ commands


class Open(Input):
    """Open the stream of this name, or create it if it does not exist."""

    name: str
    spec: StreamSpec = StreamSpec()


class Offer(Input):
    """Publish these values as one event each, in this order, after all earlier offers."""

    stream: LogId
    values: list[bytes]
    keys: list[bytes | None] | None = None
    tags: list[bytes | None] | None = None
    kind: int = 1  # as in `columns.batch`: 1 is DATA; COLLECT and CONFIG take one encoded value


class OfferBatch(Input):
    """Publish a batch that has no position yet; Acked and Failed repeat `token`.

    A batch that has a publisher and a number belongs to a *named* publisher. A named publisher
    numbers its batches itself, continues after a restart, and offers them in the order of numbers.
    """

    stream: LogId
    batch: Batch
    token: int


class Follow(Input):
    """Deliver `stream` from position `start` on. 1 is the earliest; 0 is the latest (only for mesh
    clients and deliveries without order).

    `where` is a filter (docs/filters.md); "" means that there is none. Events that do not pass it
    may be left out: their positions are delivered as void ones, with the reason `FILTERED`. The
    application applies the filter again, because a machine may ignore it. A Follow of a stream
    that is followed already replaces the filter, too. From then on, only the new filter decides
    what is left out. A machine that leaves events out emits Following with the `token`, if that is
    not 0, before it delivers anything for this Follow.
    """

    stream: LogId
    start: int
    where: str = ""
    token: int = 0


class Unfollow(Input):
    """Stop delivering `stream`."""

    stream: LogId


class ReadRange(Input):
    """Deliver [lo, hi) of `stream`. This replaces an earlier ReadRange. `where`: as in Follow."""

    stream: LogId
    lo: int
    hi: int
    where: str = ""


class Hold(Input):
    """Pause a ReadRange: request no more of it. What was already requested is still delivered."""


class Go(Input):
    """Resume requesting after Hold."""


class Inquire(Input):
    """Send a question to servers of the region until one answers (Answered repeats `token`)."""

    question: Any  # one of the questions below
    token: int


class Drop(Input):
    """End the question that has this token: emit no further answers to it."""

    token: int


class Drain(Input):
    """This replica is about to stop: accept no more publishes; accepted ones are still answered."""


def filter_number(where: str) -> int:
    """A number that identifies a filter in messages; 0 (for "") means that there is none."""
    return int.from_bytes(blake2b(where.encode(), digest_size=7).digest()) or 1 if where else 0


# ------------------------------------------------------------ questions


class WhichStreams(msgspec.Struct, gc=False, frozen=True):
    """Which streams match `pattern`? After the first answer, further answers report new streams,
    until Drop.

    An answer has `infos` (StreamInfo), `ends` (of these streams), `complete` (false: another answer
    with more streams follows) and `why`.
    """

    pattern: str


class WhereIs(msgspec.Struct, gc=False, frozen=True):
    """What is the first position (`seq` of the answer) of an event at or after `time_ns`? A
    `time_ns` of -1 asks for the end of the stream."""

    stream: LogId
    time_ns: int


class TakeCursor(msgspec.Struct, gc=False, frozen=True):
    """Become the holder of a named subscription: the only client that may save its positions.

    The first answer has the saved `positions`. A later answer with `why` means that this client is
    no longer the holder."""

    name: str
    holder: bytes  # 16 random bytes


class MoveCursor(msgspec.Struct, gc=False, frozen=True):
    """Save these positions: all events below them are processed. Answered when they are stored."""

    name: str
    holder: bytes  # as in TakeCursor
    positions: dict[bytes, int]  # stream id → position


class WhichCursors(msgspec.Struct, gc=False, frozen=True):
    """Which named subscriptions exist? An answer is a page: `cursors` (CursorState), `after` (with
    which to request the next page), `complete` (this is the last page) and `why`."""

    name: str = ""  # not empty: only the subscription of this name
    # The name and stream id of the last entry of the previous page; empty: the first page.
    after: tuple[str, bytes] = ("", b"")


class ResetCursor(msgspec.Struct, gc=False, frozen=True):
    """Set the positions of a named subscription, and fence its holder: it can save no more
    positions. Without `force` this is refused while a client reads under this name. Answered when
    the change is stored."""

    name: str
    change: bytes  # 16 random bytes that identify this request, also if it is repeated
    positions: dict[bytes, int]  # stream id → position
    force: bool


class DeleteCursor(msgspec.Struct, gc=False, frozen=True):
    """Delete a named subscription, and fence its holder. `change` and `force`: as in
    ResetCursor."""

    name: str
    change: bytes
    force: bool


# ------------------------------------------------------------ events


class Opened(msgspec.Struct, gc=False):
    """The answer to Open; `info` is None if the stream was not opened."""

    name: str
    info: StreamInfo | None
    why: str = ""  # why not: config-mismatch, no-delivery, other-region, bad-name, ...


class Following(msgspec.Struct, gc=False):
    """A mesh client will deliver `stream` from `start` on. With a `token`: what is delivered from
    now on belongs to the Follow with this token, or to a later one."""

    stream: LogId
    start: int
    token: int = 0


class Answered(msgspec.Struct, gc=False):
    """An answer to the question of an `Inquire`.

    `answer` is a message with the fields that the question documents. Its `why` is empty, or says
    why the question cannot be answered: then this answer is the last one.
    """

    token: int
    answer: Any


class Acked(msgspec.Struct, gc=False):
    """The region has acknowledged a publish: its events are committed. The first one is at position
    `seq`.

    If `seq` is 0, the publish was a retry by a named publisher, and the batch was accepted so long
    ago that its position is no longer known.
    """

    stream: LogId
    pub_no: int  # the publisher's number of the first event
    count: int  # number of events
    seq: int
    token: int = 0  # of the OfferBatch; 0 for an Offer


class Failed(msgspec.Struct, gc=False):
    """A publish failed, and a retry of the same batch cannot succeed.

    `why` is one of these:
    mismatch: another batch has the same publisher and number.
    expired: the region no longer knows which batches it has accepted from this publisher.
    bad-event: the stream cannot apply the event.
    quarantined: the stream's log cannot be indexed.
    deleted: the stream was deleted.
    too-many-deleted: the stream cannot be deleted, because the limit of deleted streams is reached.
    unknown-columns: the batch has more columns than the stream's schema.
    unchanged, schema-differs, bad-spec, no-schemas: a change of the schema is not made, because
    the stream has this schema already, or has another one that it does not extend, or the schema is
    too long, or a server cannot read typed bodies.
    owner-unreachable: the stream's owner could not be reached; it is not known whether it had
    accepted the batch before.
    history-lost: the region has lost events that it had acknowledged, by an operator's decision.
    """

    stream: LogId
    pub_no: int
    why: str
    token: int = 0  # of the OfferBatch; 0 for an Offer


class Short(msgspec.Struct, gc=False):
    """A ReadRange goes beyond the `end` of `stream` at a server (0: the server does not know the
    stream). The rest is requested again, from all servers in turn, until the application stops."""

    stream: LogId
    end: int


class Lost(msgspec.Struct, gc=False):
    """Positions [lo, hi) of `stream` are lost: no node that can be asked has them any more.

    This event takes the place of their events in the order of delivery: a reader that emits it has
    delivered everything below `lo` and continues at `hi`. Lost positions differ from void ones: the
    event at a void position is known to be obsolete, the event at a lost one may be valid.
    """

    stream: LogId
    lo: int
    hi: int
    why: str  # for people


class Ended(msgspec.Struct, gc=False):
    """`stream` was deleted, and the next position to deliver is at or after its end, `end`.

    A reader that begins before `end` is delivered the End event (the last event of a deleted
    stream) instead. May be emitted more than once.
    """

    stream: LogId
    end: int


# ------------------------------------------------------------ deliveries


# What a reader's node may need. region: the addresses of servers of a region. listen: a port at
# which datagrams and other peers reach the node.
NEEDS = frozenset({"region", "listen"})
# What clients may do with streams of a delivery. pattern, name, time: subscribe by pattern, as a
# named subscription, from a time on. where: subscribe with a filter. retain: set the retention
# policy. collect: declare events obsolete. publisher: use named publishers. delete: delete the
# stream.
VERBS = frozenset({"pattern", "name", "time", "where", "retain", "collect", "publisher", "delete"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client is: the servers it uses, and its limits."""

    region: str
    servers: tuple[Peer, ...]  # of the region
    mesh: bool = False  # the client has a port, and may exchange events with other clients
    streams_max: int = 1_000  # most streams that one reader follows
    owner_timeout_ns: int = 10 * SECOND  # publishing fails if the owner is unreachable this long


class Delivery(Protocol):
    """The client side of a delivery: what clients may do with its streams, and its machines."""

    @property
    def name(self) -> str:
        """The name in `StreamInfo.delivery` and in the user's API."""

    @property
    def ordered(self) -> bool:
        """Whether events are delivered at dense, rising positions. If not, an event is identified
        by publisher and number, and events come in any order."""

    @property
    def needs(self) -> frozenset[str]:
        """What a reader's node must have (a subset of NEEDS)."""

    @property
    def verbs(self) -> frozenset[str]:
        """What can be done with its streams (a subset of VERBS); the rest raises NotSupported."""

    @property
    def keeps_copies(self) -> bool:
        """Whether regions that do not own a stream have its events, too."""

    @property
    def acks(self) -> tuple[str, ...]:
        """The levels of acknowledgement that publishers may request, weakest first."""

    def check(self, spec: StreamSpec) -> None:
        """Raise UsageError if no stream can be opened with `spec`."""

    def publisher(self, ctx: NodeContext, place: Place) -> Layer | None:
        """A layer that takes Open, Offer, OfferBatch and emits Opened, Acked, Failed. None: events
        are published to the stream service, by the control node that every client has."""

    def reader(self, ctx: NodeContext, place: Place) -> Layer | None:
        """A layer that takes Follow and Unfollow, delivers, and emits Lost and Ended. None: the
        subscriber of the stream service is used."""
