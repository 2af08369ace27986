"""The records of a journal: converts storage effects (`store.py`) to bytes, and back.

A record consists of a 64-byte head and a payload, padded to a multiple of 8. The head's own
checksum covers the head. A payload of batches consists of their frames, as on the wire, which have
their own checksums. For any other payload, the head has the checksum `payload_crc`. docs/storage.md
has the layout.

A head identifies its place: the field `at` is the record's own offset, and the checksum of the head
is seeded with the number of the journal. So bytes inside a payload, or of another file, are not
mistaken for a record.

The field `synced` helps to distinguish damage from what a crash leaves. It states how many bytes
of the file were known to be on disk when the record was written. The mark (`journal_file.py`)
states the same outside the file. If an invalid record begins below such a number, it was once on
disk, so it is damaged: reading continues after it (`DamagedRecord`). Otherwise it is a torn write
that was not synced before a crash: the journal is cut off there.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from surecast.core.types import Append, Batch, LogId, Repair, SaveState, Truncate
from surecast.core.wire import Buffer, Limits, encode_batch
from surecast.errors import PeerError, StorageError
from surecast.storage.config import LOG_LIMITS
from surecast.storage.folder import is_later
from surecast.storage.frames import Lost, find, read_frame, walk
from surecast.storage.manifest import Extents

__all__ = [
    "LIFE",
    "MARK",
    "SEAL",
    "DamagedRecord",
    "Moved",
    "Record",
    "Rewritten",
    "moved_record",
    "number_record",
    "read_records",
    "record_of",
    "rewritten_record",
]

# magic, kind, scope (the layer that writes), count (of batches), payload_crc, payload_len, synced,
# at, log. Then follow the head's CRC and 4 zeros (`_CRC`).
_HEAD: Final = struct.Struct("<4sB3sIIQQQ16s")
_CRC: Final = struct.Struct("<I4x")
_NUMBER: Final = struct.Struct("<Q")
_MAGIC: Final = b"SCJ\xf1"
HEAD_SIZE: Final = _HEAD.size + _CRC.size

APPEND: Final = 1
TRUNCATE: Final = 2
REWRITTEN: Final = 3
SAVE: Final = 4
LIFE: Final = 5  # a run of the node begins; the payload is its number, the incarnation
# Written only for the field `synced` of its head; the payload is the number 0. It is not the mark
# of `journal_file.py`, which is outside the journal.
MARK: Final = 6
MOVED: Final = 7
SEAL: Final = 8  # the last record of a journal that has a successor; the payload is the number 0

_KINDS: Final = (APPEND, TRUNCATE, REWRITTEN, SAVE, LIFE, MARK, MOVED, SEAL)
_NO_LOG: Final = bytes(16)
_UINT32: Final = 0xFFFFFFFF  # mask for 32 bits
_EXTENTS: Final = msgspec.msgpack.Decoder(Extents)


class Rewritten(NamedTuple):
    """These batches replace those that covered their positions: the result of a compaction, or
    the batches of a `Repair`."""

    log: LogId
    batches: tuple[Batch, ...]


class Moved(NamedTuple):
    """Like `Rewritten`, but the batches are in segments."""

    log: LogId
    extents: Extents


class DamagedRecord(NamedTuple):
    """A record of a journal that cannot be read as written."""

    at: int  # its offset
    why: str
    kind: int  # 0: unknown, because the head is damaged
    log: LogId  # valid if the kind is known
    frames: list[Batch | Lost]  # the readable and lost frames of its payload, in order


class Record:
    """A record to be written. Its head is encoded at the time of writing, because only then it is
    known how much of the journal is synced."""

    __slots__ = ("buffers", "count", "crc", "kind", "log", "nbytes", "scope")

    def __init__(
        self,
        kind: int,
        log: LogId,
        buffers: list[Buffer],
        count: int,
        crc: int,
        scope: int = 0,
    ) -> None:
        self.kind = kind
        self.scope = scope
        self.log = log
        self.buffers = buffers  # the payload
        self.nbytes = sum(map(len, buffers))
        self.count = count  # number of batches; 0 for other payloads
        self.crc = crc  # of the payload; 0 for batches, whose frames have checksums

    @property
    def size(self) -> int:
        return HEAD_SIZE + self.nbytes + -self.nbytes % 8

    def encode(self, journal: int, at: int, synced: int) -> list[Buffer]:
        """Head, payload and padding at offset `at` of a journal that is on disk up to `synced`."""
        scope = self.scope.to_bytes(3, "little")
        fields = _HEAD.pack(
            _MAGIC, self.kind, scope, self.count, self.crc, self.nbytes, synced, at, self.log
        )
        head = fields + _CRC.pack(crc32(fields, journal & _UINT32))
        padding = -self.nbytes % 8
        return [head, *self.buffers, bytes(padding)] if padding else [head, *self.buffers]


def record_of(effect: Any, limits: Limits) -> Record:
    if type(effect) is Append:
        return _frames(APPEND, effect.log, effect.batches, limits, effect.scope)
    if type(effect) is Repair:
        return rewritten_record(effect.log, effect.batches)
    if type(effect) is Truncate:
        return _plain(TRUNCATE, _NUMBER.pack(effect.end), effect.log)
    assert type(effect) is SaveState, effect
    return _plain(SAVE, msgspec.msgpack.encode((effect.name, effect.data)))


def rewritten_record(log: LogId, batches: Sequence[Batch]) -> Record:
    return _frames(REWRITTEN, log, batches, LOG_LIMITS)


def moved_record(log: LogId, extents: Extents) -> Record:
    return _plain(MOVED, msgspec.msgpack.encode(extents), log)


def _frames(
    kind: int, log: LogId, batches: Sequence[Batch], limits: Limits, scope: int = 0
) -> Record:
    frames: list[Buffer] = []
    for batch in batches:
        frames += encode_batch(batch, limits)
    return Record(kind, log, frames, len(batches), 0, scope)


def number_record(kind: int, number: int) -> Record:
    return _plain(kind, _NUMBER.pack(number))


def _plain(kind: int, payload: bytes, log: LogId = _NO_LOG) -> Record:
    return Record(kind, log, [payload], 0, crc32(payload))


def read_records(data: memoryview, journal: int, sure: int) -> Iterator[tuple[int, Any]]:
    """Yield the end offset and the content of each record of a journal's file.

    The content is an effect, Rewritten, Moved, DamagedRecord, or (kind, number) for the kinds LIFE,
    MARK and SEAL. Batches are views into `data`. `journal` is the number of the journal.

    `sure` bytes of the file are known to have been on disk. After these bytes, the first invalid
    record ends the iteration, unless a later record shows that it was on disk, too.
    Raises StorageError if the file is not a journal or was written by a later version.
    """
    _check_opening(data, journal, sure)
    at = 0
    while at < len(data):
        try:
            end, record = _read(data, at, journal)
        except PeerError as problem:
            if at >= sure:
                sure = max(sure, _synced_above(data, at, journal))
            if at >= sure:
                return
            end, record = _damaged(data, at, journal, str(problem))
        yield end, record
        at = end


def _check_opening(data: memoryview, journal: int, sure: int) -> None:
    """Raise StorageError if the file is not a journal, or was written by a later version.

    A file whose first bytes are wrong is accepted as a damaged journal if they are zeros, if the
    rest of its first head is valid, if it has other valid records, or if some of its bytes are
    known to have been on disk (`sure`) and they are not those of a later version.
    """
    opening = bytes(data[: len(_MAGIC)])
    if opening == _MAGIC[: len(opening)] or not opening.strip(b"\0"):
        return
    if len(data) >= HEAD_SIZE:
        with suppress(PeerError):
            _read_head(_MAGIC + bytes(data[len(_MAGIC) : HEAD_SIZE]), 0, journal)
            return
        if _next_head(data, 8, journal) < len(data):
            return
    if sure and not is_later(opening, _MAGIC):
        return
    raise StorageError(
        f"not a journal, or written by a later version of Surecast: it starts with {opening!r}"
    )


def _read(data: memoryview, at: int, journal: int) -> tuple[int, Any]:
    kind, scope, count, crc, nbytes, _, _, log = _read_head(data, at, journal)
    if kind not in _KINDS:
        raise StorageError(
            f"the record at offset {at:,} has the unknown kind {kind}: was it written by a later "
            "version of Surecast?"
        )
    start = at + HEAD_SIZE
    end = start + nbytes + -nbytes % 8
    if end > len(data):
        raise PeerError(f"{nbytes:,} bytes of payload are claimed, {len(data) - start:,} are there")
    payload = data[start : start + nbytes]
    if any(data[start + nbytes : end]):
        raise PeerError("the padding behind the payload is not zero")
    if kind in (APPEND, REWRITTEN):
        batches = _read_batches(data, start, start + nbytes, count)
        if kind == REWRITTEN:
            return end, Rewritten(log, batches)
        return end, Append(log, batches, None, int.from_bytes(scope, "little"))
    if crc32(payload) != crc:
        raise PeerError("the payload's checksum does not match")
    if kind == MOVED:
        try:
            return end, Moved(log, _EXTENTS.decode(payload))
        except msgspec.MsgspecError as problem:
            raise PeerError(f"extents that do not decode: {problem}") from None
    if kind == SAVE:
        try:
            name, state = msgspec.msgpack.decode(payload, type=tuple[str, bytes])
        except msgspec.MsgspecError as problem:
            raise PeerError(f"a saved state that does not decode: {problem}") from None
        return end, SaveState(name, state, None)
    if nbytes != _NUMBER.size:
        raise PeerError(f"a record of kind {kind} of {nbytes:,} bytes")
    (number,) = _NUMBER.unpack(payload)
    return end, Truncate(log, number) if kind == TRUNCATE else (kind, number)


def _read_batches(data: memoryview, at: int, end: int, count: int) -> tuple[Batch, ...]:
    batches: list[Batch] = []
    while at < end:
        batch, at = read_frame(data, at, end)
        batches.append(batch)
    if len(batches) != count:
        raise PeerError(f"{len(batches)} batches where {count} are claimed")
    return tuple(batches)


def _read_head(data: Buffer, at: int, journal: int) -> tuple[Any, ...]:
    """Kind, scope, count, payload_crc, payload_len, synced, at and log of the record at `at`."""
    if len(data) - at < HEAD_SIZE:
        raise PeerError(f"{len(data) - at} bytes where a record's head has {HEAD_SIZE}")
    magic, *fields = _HEAD.unpack_from(data, at)
    crc, zeros = struct.unpack_from("<II", data, at + _HEAD.size)
    seed = journal & _UINT32
    if magic != _MAGIC or zeros or crc != crc32(data[at : at + _HEAD.size], seed):
        raise PeerError("the head's checksum does not match")
    if fields[6] != at:
        raise PeerError(f"the head is that of the record at offset {fields[6]:,}")
    return tuple(fields)


# ---------------------------------------------------------------- damage


def _damaged(data: memoryview, at: int, journal: int, why: str) -> tuple[int, DamagedRecord]:
    """Returns where reading continues after a damaged record, and its readable content."""
    start = at + HEAD_SIZE
    try:
        kind, _, _, _, nbytes, _, _, log = _read_head(data, at, journal)
    except PeerError:
        # The kind of the record is unknown. If its payload was frames, they begin after the head
        # and end at the next record.
        kind, log, end = 0, _NO_LOG, _next_head(data, at + 8, journal)
        stop = end
    else:
        end = min(start + nbytes + -nbytes % 8, len(data))
        stop = min(start + nbytes, end)
    frames: list[Batch | Lost] = []
    if kind in (0, APPEND, REWRITTEN):
        frames = [frame for _, frame in walk(data, start, stop, closed=True)]
    return end, DamagedRecord(at, why, kind, log, frames)


def _next_head(data: memoryview, at: int, journal: int) -> int:
    """The offset of the next valid head from `at` on; the end of `data` if there is none."""
    for place in find(data, _MAGIC, at, len(data)):
        with suppress(PeerError):
            _read_head(data, place, journal)
            return place
    return len(data)


def _synced_above(data: memoryview, at: int, journal: int) -> int:
    """The first field `synced` that is greater than `at`, in the records after `at`; 0 if none."""
    place = _next_head(data, at + 8, journal)
    while place < len(data):
        synced: int = _read_head(data, place, journal)[5]
        if synced > at:
            return synced
        place = _next_head(data, place + 8, journal)
    return 0
