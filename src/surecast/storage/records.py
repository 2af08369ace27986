"""The records of a journal, bytes to effects and back.

A record is a 56-byte head and a payload, padded to a multiple of 8. Batches are stored as their
wire frames, which carry checksums of their own; so the head's checksum covers the head, and its
`payload_crc` only what is not a frame. docs/storage.md has the layout.

`synced` is what tells damage from a crash. It says up to where the file was known to be on disk
when the record was written. A record that does not read, below what any later one calls synced, is
damage: an error. Above that it is what a crash leaves of the last, unsynced writes: cut off.

No crash leaves a file that opens with anything but a record's magic (or zeros), or a whole head of
no known kind: that is another program's file, or a later version's, and not to be cut.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from surecast.core.types import Append, Batch, LogId, Repair, SaveState, Truncate
from surecast.core.wire import Buffer, Limits, decode_batch, encode_batch
from surecast.errors import PeerError, StorageError
from surecast.storage.config import LOG_LIMITS
from surecast.storage.manifest import Extents

__all__ = [
    "LIFE",
    "MARK",
    "Moved",
    "Record",
    "Rewritten",
    "moved_record",
    "number_record",
    "read_records",
    "record_of",
    "rewritten_record",
]

# magic, kind, zeros, count, payload_crc, payload_len, synced, log, head CRC, zeros
_HEAD: Final = struct.Struct("<4sB3xIIQQ16s")
_CRC: Final = struct.Struct("<I4x")
_NUMBER: Final = struct.Struct("<Q")
_MAGIC: Final = b"SCJ\xf1"
HEAD_SIZE: Final = _HEAD.size + _CRC.size

APPEND: Final = 1
TRUNCATE: Final = 2
REWRITTEN: Final = 3
SAVE: Final = 4
LIFE: Final = 5  # a life of the node begins; its number
MARK: Final = 6  # nothing but its head's `synced`; the number is zero
MOVED: Final = 7

_KINDS: Final = (APPEND, TRUNCATE, REWRITTEN, SAVE, LIFE, MARK, MOVED)
_NO_LOG: Final = bytes(16)
_EXTENTS: Final = msgspec.msgpack.Decoder(Extents)


class Rewritten(NamedTuple):
    """A compaction was shown: these batches stand in the place of what covered their positions."""

    log: LogId
    batches: tuple[Batch, ...]


class Moved(NamedTuple):
    """As `Rewritten`; the batches are in segments."""

    log: LogId
    extents: Extents


class Record:
    """What is written for one effect. The head waits for the writer, who knows what is synced."""

    __slots__ = ("buffers", "count", "crc", "kind", "log", "nbytes")

    def __init__(self, kind: int, log: LogId, buffers: list[Buffer], count: int, crc: int) -> None:
        self.kind = kind
        self.log = log
        self.buffers = buffers
        self.nbytes = sum(map(len, buffers))
        self.count = count
        self.crc = crc

    @property
    def size(self) -> int:
        return HEAD_SIZE + self.nbytes + -self.nbytes % 8

    def encode(self, synced: int) -> list[Buffer]:
        fields = _HEAD.pack(_MAGIC, self.kind, self.count, self.crc, self.nbytes, synced, self.log)
        head = fields + _CRC.pack(crc32(fields))
        padding = -self.nbytes % 8
        return [head, *self.buffers, bytes(padding)] if padding else [head, *self.buffers]


def record_of(effect: Any, limits: Limits) -> Record:
    if type(effect) is Append:
        return _frames(APPEND, effect.log, effect.batches, limits)
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


def _frames(kind: int, log: LogId, batches: Sequence[Batch], limits: Limits) -> Record:
    frames: list[Buffer] = []
    for batch in batches:
        frames += encode_batch(batch, limits)
    return Record(kind, log, frames, len(batches), 0)


def number_record(kind: int, number: int) -> Record:
    return _plain(kind, _NUMBER.pack(number))


def _plain(kind: int, payload: bytes, log: LogId = _NO_LOG) -> Record:
    return Record(kind, log, [payload], 0, crc32(payload))


def read_records(data: memoryview) -> Iterator[tuple[int, Any]]:
    """The end of each whole record from the start of `data`, and the record: an effect, Rewritten,
    Moved, or (kind, number).

    Ends at the first one that does not read, if a crash explains that; raises StorageError with
    its offset if none does. Batches are views into `data`.
    """
    at = 0
    opening = bytes(data[: len(_MAGIC)])
    if opening.strip(b"\0") and opening != _MAGIC[: len(opening)]:
        raise StorageError(f"not a journal, or one of a later version: it starts with {opening!r}")
    while at < len(data):
        try:
            end, record = _read(data, at)
        except PeerError as problem:
            if (claim := _synced_above(data, at)) is not None:
                raise StorageError(
                    f"the record at offset {at:,} is damaged: {problem}. The record at offset "
                    f"{claim:,} was written when it was safely on disk"
                ) from problem
            return
        yield end, record
        at = end


def _read(data: memoryview, at: int) -> tuple[int, Any]:
    kind, count, crc, nbytes, _, log = _read_head(data, at)
    if kind not in _KINDS:
        raise StorageError(f"the record at offset {at:,} is of kind {kind}: of a later version?")
    start = at + HEAD_SIZE
    end = start + nbytes + -nbytes % 8
    if end > len(data):
        raise PeerError(f"{nbytes:,} bytes of payload are claimed, {len(data) - start:,} are there")
    payload = data[start : start + nbytes]
    if any(data[start + nbytes : end]):
        raise PeerError("the padding behind the payload is not zero")
    if kind in (APPEND, REWRITTEN):
        batches = _read_batches(payload, count)
        return end, Append(log, batches, None) if kind == APPEND else Rewritten(log, batches)
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


def _read_batches(payload: memoryview, count: int) -> tuple[Batch, ...]:
    batches: list[Batch] = []
    at = 0
    while at < len(payload):
        batch, size = decode_batch(payload[at:], LOG_LIMITS, validate=False)
        batches.append(batch)
        at += size
    if len(batches) != count:
        raise PeerError(f"{len(batches)} batches where {count} are claimed")
    return tuple(batches)


def _read_head(data: memoryview, at: int) -> tuple[Any, ...]:
    if len(data) - at < HEAD_SIZE:
        raise PeerError(f"{len(data) - at} bytes where a record's head has {HEAD_SIZE}")
    magic, *fields = _HEAD.unpack_from(data, at)
    crc, zeros = struct.unpack_from("<II", data, at + _HEAD.size)
    if magic != _MAGIC or zeros or crc != crc32(data[at : at + _HEAD.size]):
        raise PeerError("the head's checksum does not match")
    return tuple(fields)


def _synced_above(data: memoryview, at: int) -> int | None:
    """Where a record stands that calls the bytes at `at` synced, if there is one."""
    everything = bytes(data[at:])
    found = everything.find(_MAGIC)
    while found >= 0:
        if found % 8 == 0 and len(everything) - found >= HEAD_SIZE:
            try:
                if _read_head(data, at + found)[4] > at:
                    return at + found
            except PeerError:
                pass
        found = everything.find(_MAGIC, found + 1)
    return None
