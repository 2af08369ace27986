"""The log of named subscriptions: its entries, and the table built from them (for cursors.py).

A named subscription, or *cursor*, has a name, a *holder* (the client that may save positions) and a
position in each stream. Entries have keys. The holder of a name has the key "/<name>"; the position
of a name in a stream has the key "<stream id>/<name>". The latest entry of a key is the whole state
of this key, so compaction may remove the earlier entries of the key at any time, in any
order. Therefore a deletion writes an entry for every key of the name. Without it, the last entry of
a key would stay in the log, and would be valid again after a restart.

Entries that delete a name stay in the log, because they are the latest of their keys. When there
are many of them, the head copies all valid entries to the end of the log and then appends a COLLECT
event, which makes all entries below the first copy void (obsolete). These are no longer valid, even
if compaction has not removed them yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Self

import msgspec

from surecast.columns.batch import COLLECT, Batch
from surecast.columns.rules import BeforeSeq, Collect, decode_collect, encode_collect
from surecast.core.streams import CURSORS
from surecast.core.types import LogId
from surecast.errors import PeerError

__all__ = [
    "DELETED",
    "RESET",
    "Cursor",
    "CursorEntry",
    "CursorTable",
    "collect_batch",
    "collected_below",
    "decode_entry",
    "entries_batch",
]

# Values of `CursorEntry.what`:
RESET: Final = "reset"
DELETED: Final = "deleted"
FORMER_MAX: Final = 8  # former holders that are kept: their requests may still arrive


class CursorEntry(msgspec.Struct, array_like=True, frozen=True):
    """An entry of the log, of one of two kinds.

    If `stream` is set, the entry says that `name` has the position `seq` in this stream; a `seq` of
    0 removes the position. If `stream` is empty, the entry says that `holder` is the holder of
    `name` from here on. The fields from `change` on are written only if one of them is set.
    """

    name: str
    # b"": there is none; of a position: it was not written by a holder, or this is a copy.
    holder: bytes
    stream: bytes = b""
    seq: int = 0
    change: bytes = b""  # identifies the last request that reset or deleted the name
    what: str = ""  # RESET or DELETED: what that request did
    expelled: bytes = b""  # the holder at the time of that request
    # For a copied entry, the time at which the position was saved; 0: the time of this entry.
    moved_ns: int = 0

    @property
    def key(self) -> bytes:
        return self.stream + b"/" + self.name.encode()

    def encode(self) -> bytes:
        fields = msgspec.structs.astuple(self)
        return msgspec.msgpack.encode(fields if any(fields[_PLAIN:]) else fields[:_PLAIN])


_PLAIN: Final = 4  # the number of fields that every entry is written with
_decoder: Final = msgspec.msgpack.Decoder(CursorEntry)


def decode_entry(value: bytes) -> CursorEntry:
    try:
        return _decoder.decode(value)
    except msgspec.DecodeError as error:
        raise PeerError(f"an entry of a cursor cannot be read: {error}") from None


def entries_batch(entries: Iterable[CursorEntry]) -> Batch:
    listed = list(entries)
    values = [entry.encode() for entry in listed]
    keys: list[bytes | None] = [entry.key for entry in listed]
    return Batch.of(CURSORS, values, keys)


def collect_batch(start: int) -> Batch:
    """A COLLECT event, after which entries below `start` are no longer valid."""
    return Batch.of(CURSORS, [encode_collect(Collect(BeforeSeq(start)))], kind=COLLECT)


def collected_below(value: bytes) -> int:
    """The `start` of a `collect_batch`."""
    predicate = decode_collect(value).predicate
    if not isinstance(predicate, BeforeSeq):
        raise PeerError(f"the log of cursors has a rule {predicate}")
    return predicate.seq


@dataclass(slots=True)
class Cursor:
    """One named subscription."""

    holder: bytes = b""  # b"": there is none
    positions: dict[LogId, int] = field(default_factory=dict)
    moved_ns: dict[LogId, int] = field(default_factory=dict)  # when each position was saved
    change: bytes = b""  # this, `what` and `expelled` are as in CursorEntry
    what: str = ""
    expelled: bytes = b""
    former: tuple[bytes, ...] = field(default=(), compare=False)  # the last holders before this one

    @property
    def is_deleted(self) -> bool:
        return self.what == DELETED and not self.holder

    def copy(self) -> Self:
        return replace(self, positions=dict(self.positions), moved_ns=dict(self.moved_ns))

    def refusal(self, holder: bytes) -> str:
        """Why `holder` may not read under this name (as in `Attached.why`); empty if it is the
        holder."""
        if holder == self.holder:
            return ""
        return self.what if holder == self.expelled else "fenced"

    def is_barred(self, holder: bytes) -> bool:
        """Whether `holder` may never take the name again.

        A client makes a new identity (`holder`) for each subscription and takes the name once with
        it. If it sends this request twice, the second one may arrive after the name was reset or
        deleted. It must not make the client the holder again. (`former` is not in the log, because
        no such request can arrive after a restart of this replica.)
        """
        return bool(self.change) and (holder == self.expelled or holder in self.former)

    def take(self, entry: CursorEntry, time_ns: int) -> None:
        """Apply an entry that was appended at `time_ns`."""
        if not entry.stream:
            if self.holder and entry.holder != self.holder:
                self.former = (self.holder, *self.former)[:FORMER_MAX]
            self.holder, self.change = entry.holder, entry.change
            self.what, self.expelled = entry.what, entry.expelled
        elif entry.seq:
            self.positions[entry.stream] = entry.seq
            self.moved_ns[entry.stream] = entry.moved_ns or time_ns
        else:
            self.positions.pop(entry.stream, None)
            self.moved_ns.pop(entry.stream, None)

    # ------------------------------------------------------------ making entries

    def held_by(self, name: str, holder: bytes) -> CursorEntry:
        """The entry with which `holder` takes the name."""
        return CursorEntry(name, holder, b"", 0, self.change, self.what, self.expelled)

    def reset(self, name: str, change: bytes, positions: dict[LogId, int]) -> list[CursorEntry]:
        """The entries that remove the holder of the name and set these positions."""
        expelled = self.holder or self.expelled
        freed = CursorEntry(name, b"", b"", 0, change, RESET, expelled)
        return [freed, *(CursorEntry(name, b"", s, seq) for s, seq in positions.items())]

    def deleted(self, name: str, change: bytes) -> list[CursorEntry]:
        """The entries that delete the name. The entries of positions come first, because applying
        such an entry would create the name again."""
        expelled = self.holder or self.expelled
        gone = CursorEntry(name, b"", b"", 0, change, DELETED, expelled)
        return [*(CursorEntry(name, b"", stream) for stream in self.positions), gone]

    def copies(self, name: str) -> list[CursorEntry]:
        """Entries with the whole state of the cursor."""
        return [
            self.held_by(name, self.holder),
            *(
                CursorEntry(name, b"", stream, seq, moved_ns=self.moved_ns.get(stream, 0))
                for stream, seq in self.positions.items()
            ),
        ]


class CursorTable:
    """The cursors, built from the entries in the order of the log."""

    def __init__(self, deleted_max: int) -> None:
        self.names: dict[str, Cursor] = {}
        # The last deleted cursors, oldest first, to recognise repeated requests.
        self.deleted: dict[str, Cursor] = {}
        # The number of entries in the log that a copy of it leaves out: removals of positions, and
        # deletions of names that are no longer in `deleted`.
        self.dead = 0
        self._deleted_max = deleted_max

    def get(self, name: str) -> Cursor:
        """The cursor of a name, deleted or not; an empty one if there is none."""
        return self.names.get(name) or self.deleted.get(name) or Cursor()

    def take_former(self, other: "CursorTable") -> None:
        """Copy former holders, which are not in the log, from the previous table."""
        for names in (self.names, self.deleted):
            for name, cursor in names.items():
                cursor.former = other.get(name).former

    def live_entries(self) -> int:
        """The number of entries that the log needs for the existing names."""
        return sum(1 + len(cursor.positions) for cursor in self.names.values())

    def take(self, entry: CursorEntry, time_ns: int) -> None:
        """Apply an entry that was appended at `time_ns`."""
        name = entry.name
        if name not in self.names:
            self.names[name] = self.deleted.pop(name, Cursor())
        cursor = self.names[name]
        cursor.take(entry, time_ns)
        if entry.stream:
            self.dead += not entry.seq
        elif cursor.is_deleted:
            self._delete(name)

    def _delete(self, name: str) -> None:
        cursor = self.deleted[name] = self.names.pop(name)
        cursor.positions.clear()
        cursor.moved_ns.clear()
        if len(self.deleted) > self._deleted_max:
            del self.deleted[next(iter(self.deleted))]
            self.dead += 1
