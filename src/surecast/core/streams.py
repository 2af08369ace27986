"""The interface of the stream service: its events, the commands it takes, and direct calls.

`protocols.streams` provides this interface to the layers above it at a region's replica: the server
sides of *deliveries* (protocols that bring events to readers, such as Sprinkler, which works
between regions), named subscriptions (*cursors*) and queries. These layers use these types and
never import each other.

The service keeps the directory of streams, accepts publishes to streams that its region owns, and
*shows* committed events to readers: the end that it shows may be lower than the committed end (see
`Limit`). If a publish is for a stream of another region, or a client requests a new stream, the
service passes the message to the server side of the stream's delivery (`Handed`).

The service also takes these commands of `core.replicated` and passes them down to the chain:
AppendAt, AppendOwn, AskPublishers, TakePublishers, Abandon, Recovered, RolledBack, Overtaken. It
passes up the chain's events RoleChanged, Counted and PublishersAre.
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
    "Answer",
    "Attend",
    "Await",
    "Create",
    "CursorPosition",
    "CursorState",
    "Describe",
    "ForceNewStream",
    "Forfeit",
    "Forget",
    "Handed",
    "Limit",
    "Load",
    "LogMoved",
    "PieceLoaded",
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
    "spec_bytes",
]

# The logs of the directory and of named subscriptions. Their ids have 16 bytes, like a stream's
# random id, and never equal one.
DIRECTORY: Final[LogId] = b"surecast.streams"
CURSORS: Final[LogId] = b"surecast.cursors"

DEFAULT_DELIVERY: Final = "broadcast"


class StreamSpec(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """The properties with which a client opens a stream. A field that is left out has the value of
    the existing stream, or the default for a new one."""

    retention: Policy | None = None
    delivery: str = ""
    schema: str = ""  # of the events' attributes, as canonical text (columns/schema.py); "": none
    options: tuple[tuple[str, str], ...] = ()  # (name, value) for the delivery, sorted


class StreamInfo(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """An entry of the directory of streams. It is fixed when the stream is created, except that
    events in the stream may change the schema (`columns.rules.NewSchema`)."""

    stream_id: bytes
    name: str
    owner: str  # region
    retention: Policy
    # The id of the previous stream of this name, which was deleted or whose history was given up;
    # empty: there was none.
    replaces: bytes = b""
    delivery: str = DEFAULT_DELIVERY
    # This and `options` as in StreamSpec. What clients are sent has the current schema; the
    # directory, and what regions send each other, has the one that the stream was created with.
    schema: str = ""
    options: tuple[tuple[str, str], ...] = ()


def spec_bytes(spec: StreamSpec | StreamInfo) -> int:
    """How many bytes schema and options take in a message."""
    return len(msgspec.msgpack.encode((spec.schema, spec.options)))


class CursorPosition(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """Where a named subscription is in one stream."""

    stream: str
    stream_id: bytes
    seq: int  # the subscriber has processed all events below this position
    end: int  # of the stream, as committed at the replica that answered
    moved_ns: int  # when `seq` was saved; 0: not known


class CursorState(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """A named subscription, or a part of its positions."""

    name: str
    attached: bool | None  # a client reads under this name; None: not known here (not the head)
    pattern: bool  # it was used with a pattern of stream names
    positions: tuple[CursorPosition, ...]


# ------------------------------------------------------------ events for the layers above


class StreamAdded(msgspec.Struct, gc=False):
    """A stream was added to the directory. Goes to all layers above, whatever its delivery.

    `made_epoch` is the epoch of this region's chain in which the stream was created here, or 0 if
    another region created it. `made_now`: this replica, as the head, has created the stream since
    its last start.
    """

    info: StreamInfo
    made_epoch: int
    made_now: bool


class StreamDeleted(msgspec.Struct, gc=False):
    """The End event of a stream is committed, and retention has indexed it. Goes to all layers
    above.

    The stream stays in the directory: readers and regions that have not read its End event are
    still sent it.
    """

    info: StreamInfo


class StreamsMoved(msgspec.Struct, gc=False):
    """The shown ends of these streams have changed. Emitted at the end of a pass, to layers that
    requested it with `Attend`."""

    streams: tuple[LogId, ...]


class LogMoved(msgspec.Struct, gc=False):
    """A log that the service keeps for a layer is committed up to `end`, which is more than before.
    Goes only to that layer."""

    log: LogId
    end: int


class PieceLoaded(msgspec.Struct, gc=False):
    """The read requested with `Load` has ended: `Streams.at_hand` returns the piece, or what there
    is to say about it. Goes to all layers above."""

    stream: LogId
    lo: int


class TakenBack(msgspec.Struct, gc=False):
    """Committed positions of `log`, from `end` on, were given up (`core.replicated.Abandon`). If
    `log` is DIRECTORY, all streams were given up."""

    log: LogId
    end: int


class Handed(msgspec.Struct, gc=False):
    """`peer` sent `message`, which the layer of the stream's delivery must handle.

    `what` is the kind of the message:
    publish: to a stream that another region owns. The message has `stream` and `batch`.
    create: the delivery decides where the stream is created. The message has `name`. The layer
    answers with Create, Await or Refuse.
    ack, nack: the owner's answer to a publish. The message has `stream`, `publisher`, `pub_no` and
    `why`.
    opened: the owner's answer to a create. The message has `name`, `info`, `why` and `head`.
    locate: the position of a time, of a stream of which this region has no copy. The message has
    `stream` and `time_ns`. The layer answers with Answer.
    """

    what: Literal["publish", "create", "ack", "nack", "opened", "locate"]
    peer: Peer
    message: Any


# ------------------------------------------------------------ commands from the layers above


class Adopt(Input):
    """Add a stream to the directory: a stream of another region or, if `made`, a stream that is
    created here now."""

    info: StreamInfo
    made: bool = False


class Attend(Input):
    """Start (`on`) or stop emitting StreamsMoved to the layer named `layer`, for the streams of its
    delivery. A layer without readers switches it off, because each event costs a step."""

    layer: str
    on: bool


class Describe(Input):
    """A stream of another region, of which this region has no copy, has this schema now. Not
    stored: the layer of the delivery learns it again after a start."""

    stream: LogId
    schema: str


class Forget(Input):
    """A stream of another region, of which this region has no copy, was deleted: its name is free.
    Not stored, like Describe."""

    stream: LogId


class Create(Input):
    """Create the stream that `peer` requested (Handed), in this region."""

    peer: Peer
    message: Any


class Await(Input):
    """The stream that `peer` requested is created elsewhere. Answer `peer` when the stream is in
    the directory."""

    peer: Peer
    message: Any


class Refuse(Input):
    """Answer `peer` that its publish or create (Handed) is refused, with the reason `why`."""

    peer: Peer
    message: Any
    why: str


class Answer(Input):
    """The answer to a question of `peer` (Handed): a position, or why there is none. The service
    passes it to the layer that got the question."""

    peer: Peer
    message: Any
    seq: int
    why: str


class Settle(Input):
    """The stream named `name` will not be created: send the reason to all peers that wait for it
    (Create, Await)."""

    name: str
    why: str


class Suspend(Input):
    """Assign no positions in the stream until Resume: publishes are refused with `why`."""

    stream: LogId
    why: str


class Resume(Input):
    """End a Suspend."""

    stream: LogId


class Limit(Input):
    """Show readers nothing of the stream from `end` on, until the next Limit. None removes the
    limit."""

    stream: LogId
    end: int | None


class Load(Input):
    """Read [lo, hi) of a stream, or its first part, from the disk: `Streams.at_hand` has returned
    None for `lo`. Answered by PieceLoaded. Several layers may request the same piece."""

    stream: LogId
    lo: int
    hi: int


class Forfeit(Input):
    """Report positions [lo, hi) of the stream as lost: no node that can be asked has them any more.

    Range reads then report these positions as lost and continue after them. A position counts as
    lost only while it is in a hole of this replica's log: a position that can be read is never
    lost. The service does not store this on disk. So a layer that knows of a loss gives this
    command after each start, when it gets StreamAdded. A repeated command changes only `why`.
    """

    stream: LogId
    lo: int
    hi: int
    why: str  # for people


class ForceNewStream(Input):
    """The operator gives up the history of a stream, which cannot be recovered: create a new stream
    of the same name."""

    name: str


# ------------------------------------------------------------ calls


class StreamState(Protocol):
    """One stream at this replica. Layers above read it and never change it."""

    @property
    def info(self) -> StreamInfo:
        """The entry of the directory, with the schema after all events that are indexed here."""

    @property
    def end(self) -> int:
        """The first position that is not appended here yet."""

    @property
    def hole(self) -> int:
        """The first position that cannot be read here; 0: there is none."""

    @property
    def whole(self) -> int:
        """The end of what this replica has without a gap: `hole` if there is one, else `end`."""

    @property
    def committed(self) -> int:
        """The first position that is not committed, or is not shown to readers yet."""

    @property
    def index(self) -> RetentionIndex:
        """The void positions of the stream. Not all committed positions may be indexed yet."""

    @property
    def quarantined(self) -> str:
        """Why the log cannot be indexed beyond `index.end`; empty if it can."""


class Streams(Protocol):
    """Calls that a layer above the service may make at any time, like those of a disk."""

    @property
    def streams(self) -> Mapping[LogId, StreamState]: ...

    @property
    def has_read_directory(self) -> bool:
        """Whether this replica has read the directory that was on its disk at its start. Until then
        it may not know all streams."""

    def named(self, name: str) -> StreamInfo | None:
        """The stream of that name in the directory, if it is not deleted."""

    def may_read(self, peer: Peer, stream: LogId) -> bool:
        """Whether a connected peer can read the frames of a stream. A node of an earlier version
        cannot read those of a stream with a schema: such events must not be sent to it."""

    def is_listed(self, stream: LogId) -> bool:
        """Whether a stream is in the directory."""

    def is_deleted(self, stream: LogId) -> bool:
        """Whether a stream is in the directory and marked as deleted."""

    def end_event(self, stream: LogId) -> list[Batch]:
        """The End event of a deleted stream, if it is shown to readers; else empty. It is sent to
        readers that begin after it."""

    def committed_end(self, log: LogId) -> int:
        """The committed end of a log, whether or not all of it can be shown."""

    def end_of(self, log: LogId) -> int:
        """The end of a log here, committed or not."""

    def shown_end(self, stream: LogId) -> int:
        """The end of a stream as readers see it; 0 if the stream is not known."""

    def readable_end(self, stream: LogId) -> int:
        """The end for range reads: `shown_end`, or a higher end if a hole was declared lost
        (Forfeit).

        Retention has not indexed events after such a hole: they are read as they were published.
        """

    def lost_at(self, stream: LogId, seq: int) -> tuple[int, str] | None:
        """If position `seq` is lost (Forfeit): the end of the lost range, and why. Else None."""

    def locate(self, stream: LogId, time_ns: int) -> tuple[int, str]:
        """The first position of a known stream with an event at or after a time, or why it cannot
        be told; with a negative time, the end of the stream."""

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]:
        """The next batches of a known stream from `lo` on, up to `hi` (0: up to the end that is
        shown), in a limited number of bytes. Recent batches are returned whole, older ones without
        their void rows.

        Empty if these positions must be indexed by retention first, and cannot be.

        The call may wait for a device. It is for recent or few positions; for others use `at_hand`.
        """

    def at_hand(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch] | None:
        """As `readable`, without waiting for a device: None if the piece must be loaded first
        (Load)."""

    def voids(self, stream: LogId, lo: int, hi: int, count_max: int) -> tuple[list[Batch], int]:
        """The void ranges of a known stream in [lo, hi), found without reading the log.

        Returns the first `count_max` of them, as batches, and the position up to which the list is
        complete: below it, all positions outside these ranges hold events.
        """
