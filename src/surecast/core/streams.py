"""The interface of the stream service: what layers above it hear, may ask for, and may read.

`protocols.streams` provides it. A *delivery* (how events reach those who read them: Sprinkler
between regions) has its server side above it, and so have named subscriptions and queries. They
speak this vocabulary and never import each other.

The service keeps the directory of streams, takes publishes of streams that its region owns, and
shows what is committed. Publishes to streams of other regions, and requests to create a stream, it
*hands* to the server side of the delivery.

Besides the commands here it takes, and passes on, these of `core.replicated`: AppendAt, AppendOwn,
AskPublishers, TakePublishers, Abandon, Recovered, RolledBack, Overtaken. It passes on the events
RoleChanged, Counted and PublishersAre.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

from surecast.columns.batch import Batch
from surecast.columns.retention import Policy, RetentionIndex
from surecast.core.types import Input, LogId, Peer

__all__ = [
    "CURSORS",
    "DEFAULT_DELIVERY",
    "DIRECTORY",
    "Adopt",
    "Attend",
    "Await",
    "Create",
    "CursorPosition",
    "CursorState",
    "ForceNewStream",
    "Forfeit",
    "Handed",
    "Limit",
    "LogMoved",
    "Refuse",
    "Resume",
    "Settle",
    "StreamAdded",
    "StreamDeleted",
    "StreamInfo",
    "StreamSpec",
    "StreamState",
    "Streams",
    "StreamsMoved",
    "Suspend",
    "TakenBack",
]

# Logs that the service keeps for itself and for layers above: 16 bytes no random id will ever be.
DIRECTORY: Final[LogId] = b"surecast.streams"
CURSORS: Final[LogId] = b"surecast.cursors"

DEFAULT_DELIVERY: Final = "broadcast"


class StreamSpec(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """What a stream is opened with. What is left out is as the stream has it, or the default."""

    retention: Policy | None = None
    delivery: str = ""
    schema: str = ""
    options: tuple[tuple[str, str], ...] = ()  # of the delivery, sorted


class StreamInfo(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """An entry of the directory. Fixed when the stream is created."""

    stream_id: bytes
    name: str
    owner: str  # region
    retention: Policy
    # The stream of the same name before this one: deleted, or its history was given up.
    replaces: bytes = b""
    delivery: str = DEFAULT_DELIVERY
    schema: str = ""
    options: tuple[tuple[str, str], ...] = ()  # of the delivery, sorted


class CursorPosition(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """Where a named subscription is in one stream."""

    stream: str
    stream_id: bytes
    seq: int  # all below is dealt with
    end: int  # of the stream, as committed where this was asked
    moved_ns: int  # when `seq` was saved; 0: not known


class CursorState(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """A named subscription, or a part of its positions."""

    name: str
    attached: bool | None  # a client reads under this name; None: only the head knows
    pattern: bool  # it was used with a pattern of stream names
    positions: tuple[CursorPosition, ...]


# ------------------------------------------------------------ events for the layers above


class StreamAdded(msgspec.Struct, gc=False):
    """A stream came into the directory. All layers above are told, whatever its delivery.

    `made_epoch` is the epoch of this region's chain in which it was created here, 0 if another
    region has told us of it; `made_now`: by this head, in this life.
    """

    info: StreamInfo
    made_epoch: int
    made_now: bool


class StreamDeleted(msgspec.Struct, gc=False):
    """The End event of a stream is committed, and seen by retention. All layers above are told.

    The stream stays known: its End event is served to readers and regions that have not read it.
    """

    info: StreamInfo


class StreamsMoved(msgspec.Struct, gc=False):
    """At the end of a pass: more (or less) of these streams is shown. To layers that `Attend`."""

    streams: tuple[LogId, ...]


class LogMoved(msgspec.Struct, gc=False):
    """More of a log that the service keeps for a layer is committed. To that layer."""

    log: LogId
    end: int


class TakenBack(msgspec.Struct, gc=False):
    """Positions from `end` on, committed before, are given up. Of DIRECTORY: all streams are."""

    log: LogId
    end: int


class Handed(msgspec.Struct, gc=False):
    """`peer` sent `message`, which the service leaves to the stream's delivery.

    publish: of a stream that another region owns. It has `stream` and `batch`.
    create: where is the stream made? It has `name`. Answer Create, Await or Refuse.
    ack, nack: what an owner answers a publish. They have `stream`, `publisher`, `pub_no` and `why`.
    opened: what an owner answers a create. It has `name`, `info`, `why` and `head`.
    """

    what: Literal["publish", "create", "ack", "nack", "opened"]
    peer: Peer
    message: Any


# ------------------------------------------------------------ commands from the layers above


class Adopt(Input):
    """Put a stream into the directory: another region's, or (`made`) one that is made here now."""

    info: StreamInfo
    made: bool = False


class Attend(Input):
    """Tell the layer called `layer` of StreamsMoved of its delivery's streams from now on, or
    (`on` false) no longer: each event costs a step, so layers without readers switch it off."""

    layer: str
    on: bool


class Create(Input):
    """Make the stream that `peer` asked for (Handed), in this region."""

    peer: Peer
    message: Any


class Await(Input):
    """The stream that `peer` asked for is made elsewhere: answer when it is in the directory."""

    peer: Peer
    message: Any


class Refuse(Input):
    """Tell `peer` that its message (Handed, publish or create) cannot be done, and why."""

    peer: Peer
    message: Any
    why: str


class Settle(Input):
    """The stream will not be made: tell all who wait for it why."""

    name: str
    why: str


class Suspend(Input):
    """Give no positions of the stream for now: publishes are told `why`."""

    stream: LogId
    why: str


class Resume(Input):
    stream: LogId


class Limit(Input):
    """Show nothing of the stream from `end` on, until told otherwise; None: no limit any more."""

    stream: LogId
    end: int | None


class Forfeit(Input):
    """Positions [lo, hi) of the stream cannot be read here, and nobody else has them any more.

    Range reads then say that they are lost, and go on behind them. It counts for those of the
    positions that are in a hole, as long as they are: what can be read is never lost. The service
    does not keep it on disk: a layer that knows of a loss gives the command at each start, when it
    hears of the stream. Giving it again changes nothing but `why`.
    """

    stream: LogId
    lo: int
    hi: int
    why: str  # for people


class ForceNewStream(Input):
    """The operator gives up a history that cannot be recovered: the name gets a new stream."""

    name: str


# ------------------------------------------------------------ calls


class StreamState(Protocol):
    """One stream at this replica, to be read and never changed."""

    @property
    def info(self) -> StreamInfo: ...

    @property
    def end(self) -> int:
        """The first position that is not appended here yet."""

    @property
    def hole(self) -> int:
        """The first position that cannot be read here; 0: there is none."""

    @property
    def whole(self) -> int:
        """The first position that is missing here."""

    @property
    def committed(self) -> int:
        """The first position that is not committed, or not shown to readers yet."""

    @property
    def index(self) -> RetentionIndex:
        """What of it is void; `committed` may be ahead of it."""

    @property
    def quarantined(self) -> str:
        """Why its log cannot be indexed beyond `index.end`; empty: it can."""


class Streams(Protocol):
    """What a layer above the service may ask it at any time, as it asks a disk."""

    @property
    def streams(self) -> Mapping[LogId, StreamState]: ...

    def named(self, name: str) -> StreamInfo | None:
        """The stream of that name in the directory, if it is not deleted."""

    def is_listed(self, stream: LogId) -> bool:
        """Whether a stream is in the directory."""

    def is_deleted(self, stream: LogId) -> bool:
        """Whether a stream is in the directory and was deleted."""

    def committed_end(self, log: LogId) -> int:
        """How far the chain has committed a log, whether or not that can be shown."""

    def end_of(self, log: LogId) -> int:
        """How far a log is appended to here."""

    def shown_end(self, stream: LogId) -> int:
        """Up to where readers are shown a stream; 0 if it is not known."""

    def readable_end(self, stream: LogId) -> int:
        """Up to where a range can be answered: `shown_end`, or further, where a hole was forfeited.

        Behind such a hole retention has not looked: events there are read as they were published.
        """

    def lost_at(self, stream: LogId, seq: int) -> tuple[int, str] | None:
        """If `seq` is lost (Forfeit): the end of the range that is, and why. Else None."""

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]:
        """The next piece of a known stream from `lo` on (up to `hi`), as a reader should see it.

        Nothing, if retention must see it first and finds that it cannot be indexed.
        """

    def voids(self, stream: LogId, lo: int, hi: int, count_max: int) -> tuple[list[Batch], int]:
        """The void ranges of a known stream in [lo, hi), told without reading the log.

        Returns the first so many, as batches, and up to where they are all of them: between two of
        them, and up to there, positions hold events.
        """
