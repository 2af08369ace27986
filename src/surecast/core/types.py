"""The interface between a machine and its driver: the inputs and effects, and their guarantees.

A machine (a protocol state machine) never does IO, never reads a clock and never draws its own
randomness. A driver (the simulator or the asyncio runtime) calls `machine.step(now_ns, input)` and
performs the effects it returns, in order. All inputs and effects are `msgspec.Struct(gc=False)`,
which are made at little cost. They are never changed once made.

Channels. `Send(..., reliable=True)` uses the *session* between two nodes, a FIFO channel. The
driver opens a session when one of the nodes first sends to the other, and both ends get `PeerUp`.
While the session is up, messages arrive once and in order. When it breaks, both ends get
`PeerDown`; a message that was on its way may or may not have arrived. A later send opens a new
session, with a new `PeerUp`. A send to a peer that cannot be reached yields `PeerDown`. With
`reliable=False` the message is a datagram: it may be lost, duplicated or reordered.

Back-pressure. When a session's queue exceeds its high-water mark, the machine gets
`Congested(peer)`; when the queue has drained, `Writable(peer)`. Between the two, machines should
stop sending streams of events; messages that they send nevertheless are still queued.

Storage. `Append` extends a log; `Stored(token)` is delivered when the batches are on disk, in the
order of the appends. Reads are calls on the injected `Disk`, which shows everything appended so
far, whether or not it is on disk yet. If a message must not be sent before data is on disk, the
machine sends it when it gets `Stored`.

Cold reads. A call on the disk may have to wait for a device, and meanwhile the node does nothing
else. `ColdBelow` tells a machine which positions are no longer in memory. A machine that wants many
of them returns `Read`, and the driver reads them beside its other work, several at a time. The
answers, `Loaded`, come in the order in which the reads are completed. A Loaded has the batches that
the log had when the Read was returned. So if the log was truncated since, the machine must drop it;
after a compaction the batches are still right, but may have void positions that the log no longer
has.

Passes. A driver processes all inputs that are waiting, then sends all messages with one write per
peer. This is a *pass*. `AtEndOfPass` lets a machine do work once for all inputs of a pass.

Damage. A driver that opens a disk checks all of it. Positions that cannot be read become *holes* of
their log. If the newest changes may be missing (a truncated journal, a lost manifest), the driver
adds a state named `DAMAGE` whose data is the reason, as text. A machine that has handled the damage
saves that state as empty.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, ClassVar, Final, Protocol

import msgspec

from surecast.columns.batch import Batch

Peer = str  # a node's name; the driver knows its address
LogId = bytes  # 16 bytes; a stream's id is the id of its log
Token = Any  # hashable; a storage effect has one, and its completion (Stored, ...) repeats it
TimerKey = Any  # hashable; identifies a timer of one machine

DAMAGE = "damage"  # the name of the state that exists if this disk may lack its newest changes

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

# The program that runs a node: it gets the events of the highest layers. No layer has this name.
OWNER = "owner"


class Message(msgspec.Struct, gc=False, array_like=True, tag=True):
    """The base of all messages between peers; `core.wire` encodes them.

    On the wire a message is identified by its tag. Each protocol has its own base class for its
    messages, `class ChainMessage(Message, tag=tagged("chain"))`, so that two protocols may have
    classes of the same name.
    """

    # Whether its batches may be filtered for a reader (`Batch.is_filtered`). No other message may
    # contain such batches, so that they are never stored or passed on to other readers.
    may_be_filtered: ClassVar[bool] = False


# protocol/Message: the name of the protocol's package and of the message's class.
TAG_PATTERN = "[a-z][a-z0-9_]{0,31}/[A-Z][A-Za-z0-9_]{0,63}"


def tagged(protocol: str) -> Callable[[str], str]:
    """The `tag` argument of a protocol's base class: its class Forward gets "chain/Forward"."""
    return lambda name: f"{protocol}/{name.rpartition('.')[2]}"


def tag_of(kind: type[Message]) -> str:
    """The tag of this type of messages on the wire."""
    return str(kind.__struct_config__.tag)


def protocol_of(kind: type[Message]) -> str:
    """The protocol that a type of messages belongs to; empty if it belongs to none."""
    protocol, slash, _ = tag_of(kind).partition("/")
    return protocol if slash else ""


def protocols_of(kinds: Iterable[type[Message]]) -> tuple[str, ...]:
    """The protocols of these types of messages, sorted."""
    return tuple(sorted({protocol_of(kind) for kind in kinds} - {""}))


# Listed in HELLO by nodes that read typed bodies, and changes of a schema. Nodes of earlier
# versions refuse such frames and close the connection, so they are never sent any.
TYPED_BODIES: Final = "typed"


def listed(kinds: Iterable[type[Message]]) -> tuple[str, ...]:
    """What a node of this version lists in HELLO (`PeerUp.speaks`) if its machine receives messages
    of these types: their protocols, and what it supports in addition. A node without protocols
    lists nothing, which means that it may be sent any message."""
    protocols = protocols_of(kinds)
    return (*protocols, TYPED_BODIES) if protocols else ()


class Enclosed:
    """A message inside a message: a field of type `Enclosed` may hold any message of the codec.

    A field may also be of type `tuple[Enclosed, ...]` or `Enclosed | None`. An enclosed message
    must not enclose another one. Like messages, these objects are never changed once made.
    """

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message: Any = message

    def __eq__(self, other: object) -> bool:
        return self.message == other.message if isinstance(other, Enclosed) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # messages are not hashable either

    def __repr__(self) -> str:
        return f"Enclosed({self.message!r})"


class Input(msgspec.Struct, gc=False):
    """The base of what a driver, or the layer above, passes to a machine's `step`."""


class Effect(msgspec.Struct, gc=False):
    """The base of what `step` returns for the driver, or for the layer below, to perform."""


# ---------------------------------------------------------------- inputs


class Start(Input):
    """The first input after every start. `incarnation` rises with each restart of the node."""

    wall_ns: int  # the wall clock: nanoseconds since 1970, UTC
    incarnation: int


class ClockSet(Input):
    """The wall clock was stepped: it now reads `wall_ns`. (`now_ns` never jumps.)"""

    wall_ns: int


class Received(Input):
    """`peer` has sent `message` to this node, over the session or as a datagram."""

    peer: Peer
    message: Any


class TimerFired(Input):
    """The time of a `SetTimer` has come."""

    key: TimerKey


class EndOfPass(Input):
    """Answers `AtEndOfPass`: all inputs of this pass have been processed."""

    key: TimerKey


class PeerUp(Input):
    """A session with `peer` is established.

    `speaks` are the protocols that the peer supports, and what `listed` adds to them; messages of
    other protocols to it are dropped. If it is empty, the peer has sent no list, and nothing is
    dropped.
    """

    peer: Peer
    speaks: tuple[str, ...] = ()


class PeerDown(Input):
    """The session with `peer` has ended, or could not be opened."""

    peer: Peer


class Congested(Input):
    """The queue of the session with `peer` is above its high-water mark."""

    peer: Peer


class Writable(Input):
    """The queue of the session with `peer` has drained, after Congested."""

    peer: Peer


class Stored(Input):
    """The storage effect with this token is on disk, and so are all earlier ones."""

    token: Token


class StoreFailed(Input):
    """The storage effect with this token was not written. Neither was any later effect for the same
    log that was returned before this input."""

    token: Token
    # "full" or "io". For a compaction also "truncated": its positions were truncated meanwhile.
    reason: str


class Compacted(Input):
    """The compaction with this token is done: the log shows its result from now on."""

    token: Token


class ColdBelow(Input):
    """The positions of these logs below these ends are no longer in memory: use `Read` for them.

    Calls on the disk work nevertheless; they may wait for a device. A log that was never named has
    all its batches in memory. The driver does not say so when a position that was cold is appended
    again, after a truncate.
    """

    ends: tuple[tuple[LogId, int], ...]


class Loaded(Input):
    """The answer to the Read with this token: what `Disk.read` would have returned at the time of
    the Read. `problem`: why `lo` cannot be read; "": it was read."""

    token: Token
    batches: tuple[Batch, ...]
    problem: str = ""


class FromBelow(Input):
    """The event of an `Emit` of a layer below, or a `Deliver` of a layer below (as the event)."""

    event: Any


class Command(Input):
    """An input from the owner, for the layer named `to` of a composed machine (`core.compose`)."""

    to: str
    input: Any


# ---------------------------------------------------------------- effects


class Send(Effect):
    """Send `message` to `peer`: over the session, or, if not `reliable`, as a datagram."""

    peer: Peer
    message: Any
    reliable: bool = True


class Close(Effect):
    """End the session with `peer` when its queue has drained; both ends get `PeerDown`."""

    peer: Peer


class SetTimer(Effect):
    """Request one `TimerFired(key)` at `at_ns`. Setting a timer again replaces its time."""

    key: TimerKey
    at_ns: int


class CancelTimer(Effect):
    key: TimerKey


class AtEndOfPass(Effect):
    """Request one `EndOfPass(key)` after all inputs of the current pass.

    For work that several inputs share, such as one message about all of them.
    """

    key: TimerKey


class Append(Effect):
    """Append `batches`, which start at the end of `log`. Answered by Stored or StoreFailed."""

    log: LogId
    batches: tuple[Batch, ...]
    token: Token
    scope: int = 0  # the tag of the layer that writes (`core.compose`); 0: no layers. As below


class Truncate(Effect):
    """Remove every position of `log` at or above `end`. Truncates and appends take effect in the
    order in which they were returned."""

    log: LogId
    end: int
    scope: int = 0


class Compact(Effect):
    """Rewrite [lo, hi) of `log` without void positions, joining small batches
    (`columns.compaction`).

    Answered by Compacted or StoreFailed. Reads show the result from Compacted on, not before.
    `voids` are interval sets of [lo, hi) as bytes (`columns.compaction.encode_voids`).
    """

    log: LogId
    lo: int
    hi: int
    voids: tuple[bytes, ...]
    rows_max: int  # of a batch that joins several
    token: Token
    scope: int = 0


class Repair(Effect):
    """Fill holes of `log` with `batches`. Answered by Stored or StoreFailed.

    Every position of `batches` lies in a hole (`Disk.holes`). As with an append, reads show the
    result immediately.
    """

    log: LogId
    batches: tuple[Batch, ...]
    token: Token
    scope: int = 0


class Read(Effect):
    """Read [lo, hi) of `log` as `Disk.read` does, without delaying the node. Answered by Loaded.

    Reads are not ordered, neither among each other nor with writes. A layer reads only logs that it
    can also read by calls.
    """

    log: LogId
    lo: int
    hi: int
    nbytes_max: int
    token: Token


class SaveState(Effect):
    """Replace the state stored under `name`, atomically. States are small. Answered by Stored or
    StoreFailed."""

    name: str
    data: bytes
    token: Token


class Deliver(Effect):
    """Batches of a stream for the application, in order."""

    stream: LogId
    batches: tuple[Batch, ...]


class Emit(Effect):
    """An event for the layers above, or, if there is none, for the node's owner.

    `to` names one of the layers above, or `OWNER`. If it is empty, all layers above that take such
    events get it.
    """

    event: Any
    to: str = ""


class PassDown(Effect):
    """A command for the nearest layer below that takes it."""

    command: Any


# ---------------------------------------------------------------- what a driver passes in


class Disk(Protocol):
    """Reads of the node's disk, which a machine makes by direct calls, not by effects."""

    def logs(self) -> list[LogId]: ...

    def scope_of(self, log: LogId) -> int:
        """The tag of the layer that a log belongs to (`core.compose`); 0: none, or not known."""
        ...

    def end(self, log: LogId) -> int:
        """The position after the last one of `log`; 1 for an empty or unknown log."""
        ...

    def read(self, log: LogId, lo: int, hi: int, nbytes_max: int) -> list[Batch]:
        """The batches of [lo, hi), cut at lo and hi, in order from lo on.

        The result ends when it exceeds `nbytes_max`, or before a hole. Raises StorageError if `lo`
        itself cannot be read.
        """
        ...

    def holes(self, log: LogId) -> list[tuple[int, int]]:
        """The parts of `log` that are known to be damaged or missing, in order."""
        ...

    def first_at(self, log: LogId, time_ns: int, lo: int, hi: int) -> int:
        """The first position of [lo, hi) in a batch whose time is not before `time_ns`, else hi.

        A batch that joins several has the time of its last position. So all events below the result
        are earlier than `time_ns`, but events above it may be earlier, too.
        """
        ...

    def state(self, name: str) -> bytes | None: ...


class Machine(Protocol):
    """A protocol state machine. `step` is its only mutator."""

    def step(self, now_ns: int, inp: Any) -> list[Any]: ...


__all__ = [
    "DAMAGE",
    "MS",
    "OWNER",
    "SECOND",
    "TAG_PATTERN",
    "US",
    "Append",
    "AtEndOfPass",
    "Batch",
    "CancelTimer",
    "ClockSet",
    "Close",
    "ColdBelow",
    "Command",
    "Compact",
    "Compacted",
    "Congested",
    "Deliver",
    "Disk",
    "Effect",
    "Emit",
    "Enclosed",
    "EndOfPass",
    "FromBelow",
    "Input",
    "Loaded",
    "LogId",
    "Machine",
    "Message",
    "PassDown",
    "Peer",
    "PeerDown",
    "PeerUp",
    "Random",
    "Read",
    "Received",
    "Repair",
    "SaveState",
    "Send",
    "SetTimer",
    "Start",
    "StoreFailed",
    "Stored",
    "TimerFired",
    "TimerKey",
    "Token",
    "Truncate",
    "Writable",
    "listed",
    "protocol_of",
    "protocols_of",
    "tag_of",
    "tagged",
]
