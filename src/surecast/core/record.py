"""Encodes recordings: all inputs of a node from a start to its end, and digests of its effects.

The asyncio driver makes recordings, the simulator replays them. A recording contains how the
machine is built, what was on its disk, and then, for each step, the time, the whole input and a
digest of the effects (`core.canon`). docs/recordings.md has the layout.

    8 bytes          magic, version, zeros
    records          head (24 bytes: kind, lengths, number, two CRCs), meta (MessagePack), *tail*
                     (frames)

The token of a storage effect (Append, Compact, Read, Repair, SaveState) may be any object, so it
cannot be recorded. Storage effects are counted from 1 after each start, and a completion (Stored,
Compacted, Loaded, StoreFailed) is recorded with the number of its storage effect in place of the
token. A Loaded is recorded without its batches: a replay reads them from its own disk, when the
machine returns the Read.

Batches and messages follow the meta as frames of `core.wire`, which have their own CRCs.

The name of an input's type, and the label of an effect (the names of its type and of what it
carries, for example "Send.chain/Forward"), are each written once, in a record of their own, before
the first step that refers to them. Steps refer to them by number: types are counted from 0, and so
are labels.

A process that is killed leaves an unfinished record at the end. All records before it are whole,
because the file is only appended to. `core.recording` reads recordings.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from surecast.core.canon import FORMS, digest, labels, name_of, plain
from surecast.core.types import (
    Append,
    Batch,
    Compact,
    Compacted,
    Enclosed,
    Loaded,
    LogId,
    Read,
    Received,
    Repair,
    SaveState,
    Stored,
    StoreFailed,
    Token,
)
from surecast.core.wire import Buffer, Codec, encode_batch
from surecast.errors import UsageError

__all__ = [
    "MAGIC",
    "VERSION",
    "Closed",
    "Ends",
    "Header",
    "Holed",
    "Item",
    "Kept",
    "Saved",
    "Step",
    "Writer",
]

MAGIC: Final = b"SCR\xf1"
VERSION: Final = 2
RECORD_BYTES_MAX: Final = 1 << 28  # a writer refuses larger records, and so does a reader

PREAMBLE: Final = struct.Struct("<4sB3x")
HEAD: Final = struct.Struct("<B3xIIII")  # kind, meta_len, tail_len, number, meta_crc
CRC: Final = struct.Struct("<I")  # of the head
HEAD_SIZE: Final = HEAD.size + CRC.size
_ZEROS: Final = bytes(8)
# MessagePack extensions:
ATTACHMENT: Final = 1  # a batch, by its number among the frames that follow
ENCLOSED: Final = 2  # an enclosed message, as MessagePack of `core.canon.plain`
INDEX: Final = struct.Struct("<I")

# The kinds of records, and what the meta of each contains:
HEADER = 1  # a Header
TYPE = 2  # a type of input: (name, names of its fields)
LABEL = 3  # a label of an effect (`core.canon.labels`)
KEPT = 4  # the id of a log; the tail is the next batch of this log
SAVED = 5  # (name, data) of a state
ENDS = 6  # (log, end, scope)
STEP = 7  # (now_ns, number of the input's type, its fields, digest, numbers of the labels)
CLOSED = 8  # the number of steps
HOLE = 9  # (log, hi)
_KINDS: Final = {
    HEADER: "header", TYPE: "type", LABEL: "label", KEPT: "batch of a log", SAVED: "state",
    ENDS: "log's end", STEP: "step", CLOSED: "close", HOLE: "hole of a log",
}  # fmt: skip


# Storage effects that have a token, and the inputs that report their completion.
ASKING: Final = frozenset((Append, Compact, Read, Repair, SaveState))
ANSWERS: Final = frozenset((Stored, Compacted, Loaded, StoreFailed))


class Header(msgspec.Struct, frozen=True):
    """How to build the machine for a replay: `build` names a function of (ctx, args) that the
    reader has.

    Types are recorded by the names that `core.canon.name_of` returns.
    """

    node: str  # the node's name
    build: str
    args: dict[str, Any]
    seed: str  # of the random generator; with `node` and `incarnation` it determines all draws
    incarnation: int  # as in `NodeContext`
    messages: list[str]  # the tags of the connection's codec
    limits: tuple[int, int, int, int]  # frame bytes, control bytes, rows, attachments


class Kept(NamedTuple):
    """The next batch of a log on the disk. Recorded when the node starts, and after an `Ends`."""

    log: LogId
    batch: Batch


class Ends(NamedTuple):
    """A log is cut off at `end`; what is on the disk from there on follows (`Kept`, `Holed`).

    When the node starts, `end` is 1. Later it is where the disk differs from the recorded effects,
    because a write failed.
    """

    log: LogId
    end: int
    scope: int  # the layer that it belongs to (`core.compose`)


class Holed(NamedTuple):
    """A log has a hole, from the end of its batches so far to `hi`: positions that cannot be
    read."""

    log: LogId
    hi: int


class Saved(NamedTuple):
    """A state on the disk, when the node starts or after a save of it failed. None: it does not
    exist, because no save of it has succeeded."""

    name: str
    data: bytes | None


class Step(NamedTuple):
    """One step. In a completion, the token is the number of the storage effect it completes."""

    number: int  # from 1
    now_ns: int
    inp: Any
    digest: bytes  # of the effects; empty if there were none
    labels: list[str]  # their types


class Closed(NamedTuple):
    """The node was stopped in an orderly way, after this number of steps."""

    steps: int


Item = Kept | Ends | Holed | Saved | Step | Closed


class Writer:
    """Encodes records into buffers, which are kept until `take` is called. Does no IO."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.waiting: list[Buffer] = []
        self.waiting_bytes = 0
        self.steps = 0
        self.asked = 0  # storage effects so far
        # Storage effects without a completion, (number, token), by the identity of the token.
        self.owed: dict[int, list[tuple[int, Token]]] = {}
        self._records = 0  # records so far
        self._types: dict[type, int] = {}  # type → its number
        self._labels: dict[str, int] = {}  # label → its number
        self._attached: list[Batch] = []  # the batches that the current record refers to
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._attach).encode

    def take(self) -> bytes:
        """Return and remove all encoded records."""
        taken, self.waiting, self.waiting_bytes = self.waiting, [], 0
        return b"".join(taken)

    def opening(
        self, node: str, build: str, args: dict[str, Any], seed: object, incarnation: int
    ) -> None:
        limits = self.codec.limits
        header = Header(
            node, build, args, str(seed), incarnation, [name_of(t) for t in self.codec.types],
            (limits.frame_bytes_max, limits.control_bytes_max, limits.batch_rows_max,
             limits.attachments_max),
        )  # fmt: skip
        self.waiting.append(PREAMBLE.pack(MAGIC, VERSION))
        self.waiting_bytes += PREAMBLE.size
        self._put(HEADER, self._encode(header))

    def kept(self, log: LogId, batch: Batch) -> None:
        self._put(KEPT, self._encode(log), encode_batch(batch, self.codec.limits))

    def ends(self, log: LogId, end: int, scope: int) -> None:
        self._put(ENDS, self._encode((log, end, scope)))

    def holed(self, log: LogId, hi: int) -> None:
        self._put(HOLE, self._encode((log, hi)))

    def saved(self, name: str, data: bytes | None) -> None:
        self._put(SAVED, self._encode((name, data)))

    def closed(self) -> None:
        self._put(CLOSED, self._encode(self.steps))

    def step(self, now_ns: int, inp: Any, effects: Sequence[Any]) -> None:
        kind = type(inp)
        number = self._types.get(kind)
        if number is None:
            number = self._introduce(kind)
        label_numbers: list[int] = []
        effects_digest = b""
        if effects:
            effects_digest = digest(effects)
            for label in labels(effects):
                known = self._labels.get(label)
                if known is None:
                    known = self._labels[label] = len(self._labels)
                    self._put(LABEL, self._encode(label))
                label_numbers.append(known)
        tail: list[Buffer] = []
        if kind is Received:
            meta = self._encode((now_ns, number, (inp.peer,), effects_digest, label_numbers))
            tail = self.codec.encode(inp.message)
        else:
            meta = self._encode_step(now_ns, number, inp, effects_digest, label_numbers)
            if self._attached:
                for batch in self._attached:
                    tail += encode_batch(batch, self.codec.limits)
                self._attached = []
        self._put(STEP, meta, tail)
        self.steps += 1
        for effect in effects:
            if type(effect) in ASKING:
                self.asked += 1
                self.owed.setdefault(id(effect.token), []).append((self.asked, effect.token))

    def _encode_step(
        self, now_ns: int, number: int, inp: Any, effects_digest: bytes, label_numbers: list[int]
    ) -> bytes:
        """The meta of a step with an input that is not a received message."""
        form = FORMS[type(inp)]
        if type(inp) is Loaded:
            inp = Loaded(inp.token, (), inp.problem)
        values = [getattr(inp, name) for name, _ in form.fields]
        if type(inp) in ANSWERS:
            values[0] = self._answer(inp.token)
        # Open fields may hold values of any type (`core.canon`); `plain` encodes the type, too.
        fields = [
            plain(value) if is_open else value
            for value, (_, is_open) in zip(values, form.fields, strict=True)
        ]
        try:
            return self._encode((now_ns, number, fields, effects_digest, label_numbers))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"cannot record {type(inp).__name__}: {error}") from None

    def _answer(self, token: Token) -> int:
        """The number of the storage effect that had this token (compared by identity: a driver
        returns the same object)."""
        owed = self.owed.get(id(token))
        if owed is None:
            raise UsageError(f"the disk completed {token!r}, which no effect has requested"[:500])
        number, _ = owed.pop(0)
        if not owed:
            del self.owed[id(token)]
        return number

    def _introduce(self, kind: type) -> int:
        """Record a type that occurs for the first time. Returns its number."""
        if not issubclass(kind, msgspec.Struct):
            raise UsageError(f"cannot record an input of type {kind.__name__}")
        number = self._types[kind] = len(self._types)
        self._put(TYPE, self._encode((name_of(kind), kind.__struct_fields__)))
        return number

    def _put(self, kind: int, meta: bytes, tail: Sequence[Buffer] = ()) -> None:
        """Append a record."""
        tail_len = sum(map(len, tail))
        if len(meta) + tail_len > RECORD_BYTES_MAX:
            raise UsageError(
                f"cannot record a {_KINDS[kind]} of {len(meta) + tail_len:,} bytes; "
                f"the limit is {RECORD_BYTES_MAX:,}"
            )
        head = HEAD.pack(kind, len(meta), tail_len, self._records, crc32(meta))
        whole = b"".join((head, CRC.pack(crc32(head)), meta, _ZEROS[: -len(meta) % 8]))
        self._records += 1
        self.waiting.append(whole)
        self.waiting += tail
        self.waiting_bytes += len(whole) + tail_len

    def _attach(self, value: Any) -> msgspec.msgpack.Ext:
        """The encoder's hook: put a batch into the tail, and encode only its number."""
        if isinstance(value, Enclosed):
            return msgspec.msgpack.Ext(ENCLOSED, self._encode(plain(value.message)))
        if not isinstance(value, Batch):
            raise TypeError(f"{type(value).__name__} cannot be recorded")
        self._attached.append(value)
        return msgspec.msgpack.Ext(ATTACHMENT, INDEX.pack(len(self._attached) - 1))
