"""The vocabulary between a machine and its driver: inputs in, effects out.

A machine never does IO, never reads a clock and never draws its own randomness. A driver (the
simulator or the asyncio runtime) calls `machine.step(now_ns, input)` and performs the effects it
returns, in order. Everything here is an `msgspec.Struct(gc=False)`: cheap to make, and never
changed once made.

Channels. `Send(..., reliable=True)` uses the FIFO session between two nodes. The driver opens it
on the first send (or on a peer's first send) and tells both ends with `PeerUp`. While it is up,
messages arrive once and in order. When it breaks, both ends get `PeerDown`, and whatever was under
way may or may not have arrived; a later send opens a new session, with a new `PeerUp`. A send to a
peer that cannot be reached yields `PeerDown`. `reliable=False` is a datagram: it may be lost,
doubled or overtaken.

Back-pressure. When a session's queue passes its high-water mark the driver says `Congested(peer)`;
when it has drained, `Writable(peer)`. Machines stop streaming in between; what they send all the
same is still queued.

Storage. `Append` extends a log; `Stored(token)` comes when it is on disk, in the order of the
appends. Reads are calls on the injected `Disk`, which shows everything appended so far, synced or
not. What must wait for the disk is sent on `Stored`.

Damage. A driver that opens a disk checks all of it. Positions that cannot be read become *holes* of
their log. If the newest changes may be missing (a journal that was cut short, a lost manifest) the
disk has a state named `DAMAGE` whose data says why, as text; the machine that has dealt with it
saves that state as empty.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Protocol

import msgspec

from surecast.columns.batch import Batch

Peer = str  # a node's name; the driver knows its address
LogId = bytes  # 16 bytes; a stream's id is the id of its log
Token = Any  # hashable; names what a completion completes
TimerKey = Any  # hashable

DAMAGE = "damage"  # the state that says that this disk has lost its newest changes, and why

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

OWNER = "owner"  # of a node: where events go that no layer takes; no layer is called so


class Message(msgspec.Struct, gc=False, array_like=True, tag=True):
    """The base of everything peers send each other; `core.wire` encodes it.

    A message goes over the wire under its tag. Each protocol has a base class of its own for its
    messages, `class ChainMessage(Message, tag=tagged("chain"))`, so that two protocols may have
    classes of the same name.
    """


# A protocol's name is that of its package, a message's that of its class.
TAG_PATTERN = "[a-z][a-z0-9_]{0,31}/[A-Z][A-Za-z0-9_]{0,63}"


def tagged(protocol: str) -> Callable[[str], str]:
    """The `tag` argument of a protocol's base class: its class Forward gets "chain/Forward"."""
    return lambda name: f"{protocol}/{name.rpartition('.')[2]}"


def tag_of(kind: type[Message]) -> str:
    """What messages of this type are called on the wire."""
    return str(kind.__struct_config__.tag)


def protocol_of(kind: type[Message]) -> str:
    """The protocol that a type of messages belongs to; empty if it belongs to none."""
    protocol, slash, _ = tag_of(kind).partition("/")
    return protocol if slash else ""


def protocols_of(kinds: Iterable[type[Message]]) -> tuple[str, ...]:
    """The protocols of these types of messages, sorted."""
    return tuple(sorted({protocol_of(kind) for kind in kinds} - {""}))


class Enclosed:
    """A message inside a message: a field of type `Enclosed` may hold any message of the codec.

    (`tuple[Enclosed, ...]` and `Enclosed | None` may be declared, too.) One level deep: what is
    enclosed encloses nothing. Like messages these are never changed once made.
    """

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message: Any = message

    def __eq__(self, other: object) -> bool:
        return self.message == other.message if isinstance(other, Enclosed) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # messages have none either

    def __repr__(self) -> str:
        return f"Enclosed({self.message!r})"


class Input(msgspec.Struct, gc=False):
    """The base of what a driver, or the layer above, tells a machine."""


class Effect(msgspec.Struct, gc=False):
    """The base of what a machine asks of its driver, or of the layer below."""


# ---------------------------------------------------------------- inputs


class Start(Input):
    """The first input of every life. `incarnation` rises with each restart of the node."""

    wall_ns: int
    incarnation: int


class ClockSet(Input):
    """The wall clock was stepped: it now reads `wall_ns`. (`now_ns` never jumps.)"""

    wall_ns: int


class Received(Input):
    peer: Peer
    message: Any


class TimerFired(Input):
    key: TimerKey


class EndOfPass(Input):
    """What `AtEndOfPass` asked for: the inputs that were there have been given."""

    key: TimerKey


class PeerUp(Input):
    """`speaks` are the protocols that the peer lists; what is sent to it of another is dropped.

    Empty: it has said nothing of the sort, and nothing is dropped.
    """

    peer: Peer
    speaks: tuple[str, ...] = ()


class PeerDown(Input):
    peer: Peer


class Congested(Input):
    peer: Peer


class Writable(Input):
    peer: Peer


class Stored(Input):
    """What `token` named is on disk, and so is all that was asked for before it."""

    token: Token


class StoreFailed(Input):
    """What `token` named was not written, and nothing after it in the same log was."""

    token: Token
    reason: str  # "full" | "io", or of a compaction "truncated": a truncate has cut into it


class Compacted(Input):
    """The compaction that `token` named is done: the log shows its result from now on."""

    token: Token


class FromBelow(Input):
    """A `Deliver` or `Emit` of a layer below, on its way up."""

    event: Any


class Command(Input):
    """An input of the owner for the layer called `to` of a composed machine (`core.compose`)."""

    to: str
    input: Any


# ---------------------------------------------------------------- effects


class Send(Effect):
    peer: Peer
    message: Any
    reliable: bool = True


class Close(Effect):
    """End the session with `peer` after what was sent has drained; both ends get `PeerDown`."""

    peer: Peer


class SetTimer(Effect):
    """Fire once at `at_ns`; setting a key again replaces it."""

    key: TimerKey
    at_ns: int


class CancelTimer(Effect):
    key: TimerKey


class AtEndOfPass(Effect):
    """Give `EndOfPass(key)` once, when the inputs that are there now have been given.

    For work that several inputs share, such as one message about all of them.
    """

    key: TimerKey


class Append(Effect):
    """Add `batches`, contiguous from the log's end, to `log`; answered by Stored or StoreFailed."""

    log: LogId
    batches: tuple[Batch, ...]
    token: Token
    scope: int = 0  # here and below: the layer that writes (`core.scopes`)


class Truncate(Effect):
    """Drop every position of `log` at or above `end`; ordered with the appends around it."""

    log: LogId
    end: int
    scope: int = 0


class Compact(Effect):
    """Leave what is void out of [lo, hi) of `log`, and join what is small (`columns.compaction`).

    Answered by Compacted or StoreFailed. What the log shows changes when Compacted is given, and
    not before. `voids` are interval sets of [lo, hi) as bytes (`columns.compaction.encode_voids`).
    """

    log: LogId
    lo: int
    hi: int
    voids: tuple[bytes, ...]
    rows_max: int  # of a batch made of several
    token: Token
    scope: int = 0


class Repair(Effect):
    """Put `batches` where positions of `log` cannot be read; answered by Stored or StoreFailed.

    Every position of `batches` lies in a hole (`Disk.holes`). Like an append it shows at once.
    """

    log: LogId
    batches: tuple[Batch, ...]
    token: Token
    scope: int = 0


class SaveState(Effect):
    """Atomically replace the small state kept under `name`; answered by Stored or StoreFailed."""

    name: str
    data: bytes
    token: Token


class Deliver(Effect):
    """Batches of a stream for the application, in order."""

    stream: LogId
    batches: tuple[Batch, ...]


class Emit(Effect):
    """Something that the layers above (or, from the top, the node's owner) should know.

    `to` names one of the layers above, or `OWNER`; empty: all that take such events.
    """

    event: Any
    to: str = ""


class PassDown(Effect):
    """A command for the nearest layer below that takes it."""

    command: Any


# ---------------------------------------------------------------- what is injected


class Disk(Protocol):
    """What a machine may read of its node's disk: by call, no effects."""

    def logs(self) -> list[LogId]: ...

    def scope_of(self, log: LogId) -> int:
        """The layer that a log belongs to (`core.scopes`); 0: none, or not known."""
        ...

    def end(self, log: LogId) -> int:
        """The first position `log` does not hold; 1 for an empty or unknown log."""
        ...

    def read(self, log: LogId, lo: int, hi: int, nbytes_max: int) -> list[Batch]:
        """Batches covering [lo, hi) from lo on, cut at its ends; stops past `nbytes_max`.

        Stops before a hole; raises StorageError if `lo` itself cannot be read.
        """
        ...

    def holes(self, log: LogId) -> list[tuple[int, int]]:
        """The parts of `log` that are known to be damaged or missing, in order."""
        ...

    def first_at(self, log: LogId, time_ns: int, lo: int, hi: int) -> int:
        """The first position of [lo, hi) in a batch whose time is not before `time_ns`, else hi.

        A batch that was joined of several has the time of its last position: so no event at or
        after `time_ns` is below, but some that are earlier may follow.
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
    "LogId",
    "Machine",
    "Message",
    "PassDown",
    "Peer",
    "PeerDown",
    "PeerUp",
    "Random",
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
    "protocol_of",
    "protocols_of",
    "tag_of",
    "tagged",
]
