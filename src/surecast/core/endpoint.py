"""The interface of the client side of a delivery: what an application says to it, and hears.

Machines of `protocols.streams` (publisher, subscriber, fetcher, inquirer) and of deliveries take
these commands and emit these events; the endpoint's nodes give and take them, and know no protocol.
"""

from dataclasses import dataclass
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
]

# ------------------------------------------------------------ commands


class Open(Input):
    """Open the stream, or create it if there is none of that name."""

    name: str
    spec: StreamSpec = StreamSpec()


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


class Follow(Input):
    """Deliver `stream` from position `start` on: 1 is the earliest; 0 is the latest, for mesh
    clients and deliveries without order only."""

    stream: LogId
    start: int


class Unfollow(Input):
    stream: LogId


class ReadRange(Input):
    """Deliver [lo, hi) of `stream`; whatever was read before is of no interest any more."""

    stream: LogId
    lo: int
    hi: int


class Hold(Input):
    """Ask for no more of a range: what was asked for still comes."""


class Go(Input):
    """Go on with it."""


class Inquire(Input):
    """Ask a server of the region until it answers (Answered repeats `token`)."""

    question: Any  # one of those below
    token: int


class Drop(Input):
    """The answers to `token` are no longer of interest."""

    token: int


class Drain(Input):
    """This replica is about to stop: take no more publishes; those taken are still answered."""


# ------------------------------------------------------------ questions


class WhichStreams(msgspec.Struct, gc=False, frozen=True):
    """Which streams match, and from now on? An answer has `infos`, `ends`, `complete` and `why`;
    answers come until Drop."""

    pattern: str


class WhereIs(msgspec.Struct, gc=False, frozen=True):
    """From which position on (`seq`) are events not older than that? -1: where is the end?"""

    stream: LogId
    time_ns: int


class TakeCursor(msgspec.Struct, gc=False, frozen=True):
    """Become the holder of a named subscription. The first answer has its `positions`; a later
    one with `why` says that somebody else has taken it."""

    name: str
    holder: bytes  # 16 random bytes


class MoveCursor(msgspec.Struct, gc=False, frozen=True):
    """All below these positions has been dealt with. Answered when that is stored."""

    name: str
    holder: bytes
    positions: dict[bytes, int]


class WhichCursors(msgspec.Struct, gc=False, frozen=True):
    """Which named subscriptions are there? An answer is a page: `cursors`, `after` (where the next
    page begins), `complete` and `why`."""

    name: str = ""  # only this one
    after: tuple[str, bytes] = ("", b"")


class ResetCursor(msgspec.Struct, gc=False, frozen=True):
    """Put a named subscription at these positions. Its holder is fenced; without `force` it is not
    done while a client is attached. Answered when that is stored."""

    name: str
    change: bytes  # 16 random bytes, of this request
    positions: dict[bytes, int]
    force: bool


class DeleteCursor(msgspec.Struct, gc=False, frozen=True):
    """Forget a named subscription; the rest as in ResetCursor."""

    name: str
    change: bytes
    force: bool


# ------------------------------------------------------------ events


class Opened(msgspec.Struct, gc=False):
    name: str
    info: StreamInfo | None
    why: str = ""  # why not: config-mismatch, no-delivery, other-region, bad-name, ...


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
    """A publish that can never succeed as it is.

    why: mismatch, expired, bad-event, quarantined, or history-lost when the region has lost, by an
    operator's decision, what it had acknowledged. After owner-unreachable it is not known whether
    the owner took the batch before it was cut off.
    """

    stream: LogId
    pub_no: int
    why: str
    token: int = 0


class Short(msgspec.Struct, gc=False):
    """A server shows `stream` only up to `end` (0: does not know it). The range is
    asked for again, from all servers in turn, until the application stops it."""

    stream: LogId
    end: int


class Lost(msgspec.Struct, gc=False):
    """Positions [lo, hi) of `stream` will not come: nobody who could be asked has them any more.

    It stands in the place of their events among what is delivered: a reader that emits it has
    delivered everything below `lo` and goes on at `hi`. A void is proven not to be needed; this is
    not.
    """

    stream: LogId
    lo: int
    hi: int
    why: str  # for people


# ------------------------------------------------------------ deliveries


NEEDS = frozenset({"region", "listen"})  # servers of a region; datagrams and peers reach it
# pattern, name, time: subscribe by pattern, as a named subscription, from a time on.
# retain, collect: set what is kept, declare events obsolete. publisher: named publishers.
VERBS = frozenset({"pattern", "name", "time", "retain", "collect", "publisher", "delete"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client is: whom it may turn to, and within which bounds."""

    region: str
    servers: tuple[Peer, ...]  # of its region
    mesh: bool = False  # it listens, and may take events from other clients
    streams_max: int = 1_000  # that one reader follows
    owner_timeout_ns: int = 10 * SECOND  # an owner out of reach for so long: publishing fails


class Delivery(Protocol):
    """How the events of a stream reach those who read them: the client side."""

    @property
    def name(self) -> str:
        """What `StreamInfo.delivery` and the users call it."""

    @property
    def ordered(self) -> bool:
        """Events come at dense rising positions. Else each is known by publisher and number, and
        comes when it comes."""

    @property
    def needs(self) -> frozenset[str]:
        """What a reader's node must have, of NEEDS."""

    @property
    def verbs(self) -> frozenset[str]:
        """What can be done with its streams, of VERBS; the rest raises NotSupported."""

    @property
    def acks(self) -> tuple[str, ...]:
        """What an acknowledgement may promise, weakest first."""

    def check(self, spec: StreamSpec) -> None:
        """Raise UsageError if no stream can be opened with this."""

    def publisher(self, ctx: NodeContext, place: Place) -> Layer | None:
        """Takes Open, Offer, OfferBatch; emits Opened, Acked, Failed. None: its events are
        published to the stream service, as by the control node of every client."""

    def reader(self, ctx: NodeContext, place: Place) -> Layer | None:
        """Takes Follow and Unfollow; delivers, and emits Lost. None: the stream service's own
        subscriber reads its streams."""
