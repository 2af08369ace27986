"""Frames: the encoding of batches and messages, on connections and in logs.

A frame is a 128-byte header and a body. A *batch frame* carries one `Batch`; its body is the Arrow
message exactly as the publisher built it, and the same bytes are the log's record. A *control
frame* carries one `Message` as msgpack, followed by the batches that the message refers to, as
whole batch frames. A message may enclose other messages (`Enclosed`), which may not enclose any.
The size of every frame is a multiple of 8. So if a sequence of frames starts at an aligned address,
all bodies in it are aligned, too. docs/wire.md has the layout, byte by byte.

Bodies are never copied: encoding returns a list of buffers to write one after the other; decoding
returns batches whose bodies are views into the decoded buffer. So that buffer must not be reused.

Whatever the bytes are, decoding raises nothing but `PeerError`, and allocates memory in proportion
to the bytes that are present, not to the lengths that a header claims. An intact frame whose
message has a type that is not known here raises `UnknownMessage`: the caller can skip the frame.
Encoding a message or batch that a peer with the same limits would refuse raises `UsageError`.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import or_
from typing import Any, Final, TypeAlias
from zlib import crc32

import msgspec
from msgspec import inspect

from surecast.columns.batch import (
    COLLECT,
    CONFIG,
    CONTROL,
    DATA,
    HEADER_SIZE,
    NONE,
    REASON_NAMES,
    VOID,
    Batch,
    filtered_bytes,
)
from surecast.columns.column import TYPED
from surecast.columns.forms import matches
from surecast.columns.intervals import IntervalSet
from surecast.core.config import check
from surecast.core.fields import parts_of
from surecast.core.types import TAG_PATTERN, Enclosed, Message, tag_of
from surecast.errors import ConfigError, PeerError, UnknownMessage, UsageError

__all__ = [
    "DEFAULT_LIMITS",
    "HEADER_SIZE",
    "MAGIC",
    "SEQ_END_MAX",
    "VERSION",
    "Buffer",
    "Codec",
    "Limits",
    "batch_head",
    "check_batch",
    "decode_batch",
    "encode_batch",
    "frame_size",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = b"SCF\xf1"  # the last byte is not ASCII, so no text protocol begins like this
VERSION: Final = 1
# Flags. SPARSE: 0 < rows < count, and the body has the position of each row. MIXED: the positions
# that a reader's filter has dropped (`Batch.filtered`) are before the body.
SPARSE: Final = 1
MIXED: Final = 2

# magic, version, type, flags, reason, body_len, body_crc, count, control_len, rows, stream_id,
# publisher, pub_no, seq_first, time_ns, epoch, schema_id, form, reserved; the header's CRC follows.
_FIELDS: Final = struct.Struct("<4sBBBBIIQII16s16sQQqQIQ16s")
_CRC: Final = struct.Struct("<I")
_INDEX: Final = struct.Struct("<I")
_ZEROS: Final = bytes(HEADER_SIZE)
_RESERVED: Final = bytes(16)
_CRC_RESIDUE: Final = 0x2144DF1C  # CRC-32 of anything followed by its own CRC-32
# The fields from `rows` to `form` in a control frame, which does not use them.
_UNUSED: Final = (0, bytes(16), bytes(16), 0, 0, 0, 0, 0, 0)
# All positions are below this: the key kernel uses four bits of a word for other purposes.
SEQ_END_MAX: Final = 1 << 59
_REST_BYTES: Final = 4096  # room for the fields of a message besides the one that `check` gets
# msgpack extension codes:
_ATTACHMENT: Final = 1  # a batch, by its index among the batches that follow the message
_ENCLOSED: Final = 2  # an enclosed message as msgpack, its tag first

_KINDS: Final = {
    DATA: "DATA", COLLECT: "COLLECT", CONFIG: "CONFIG", VOID: "VOID", CONTROL: "CONTROL"
}  # fmt: skip
_UNENCODABLE: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_TAG: Final = re.compile(TAG_PATTERN.encode())
# How msgpack begins an array whose first element is a text of less than 256 bytes.
_OPENING: Final = re.compile(
    rb"(?:[\x90-\x9f]|\xdc..|\xdd....)(?:([\xa0-\xbf])|\xd9(.))", re.DOTALL
)
_UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError, MemoryError)
assert _FIELDS.size + _CRC.size == HEADER_SIZE == 128


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node accepts from a peer, and what it may send to one. `[limits]` in TOML."""

    frame_bytes_max: int = 16 << 20  # bounds what a connection buffers before it can decode it
    control_bytes_max: int = 1 << 20  # the msgpack part of a control frame
    batch_rows_max: int = 1_000_000  # events in a batch
    attachments_max: int = 4096  # batches in a message
    versions: tuple[int, ...] = (VERSION,)  # accepted from peers; always VERSION is written
    # One batch and the largest message around it fit into one frame, so every accepted batch can be
    # forwarded.
    batch_bytes_max: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.validate()
        room = self.frame_bytes_max - HEADER_SIZE - _padded(self.control_bytes_max)
        object.__setattr__(self, "batch_bytes_max", room)

    def validate(self) -> None:
        control, frame = self.control_bytes_max, self.frame_bytes_max
        least = 2 * control + 4096  # so that `batch_bytes_max` is not too small
        check(self, "control_bytes_max", 64 <= control <= 1 << 28, "allowed is 64 to 268435456")
        check(
            self,
            "frame_bytes_max",
            least <= frame < 1 << 32,
            f"allowed is {least} (twice control_bytes_max and 4096) to 4294967295",
        )
        check(self, "batch_rows_max", 0 < self.batch_rows_max < 1 << 31, "allowed is 1 to 2^31 - 1")
        check(self, "attachments_max", 0 <= self.attachments_max < 1 << 16, "allowed is 0 to 65535")
        known = bool(self.versions) and all(version == VERSION for version in self.versions)
        check(self, "versions", known, f"a list of versions this program reads: {VERSION}")


def _padded(nbytes: int) -> int:
    return (nbytes + 7) & ~7


DEFAULT_LIMITS: Final = Limits()


# ---------------------------------------------------------------- batch frames


def encode_batch(batch: Batch, limits: Limits = DEFAULT_LIMITS) -> list[Buffer]:
    """The buffers of the batch's frame: its header, and its body if it has one."""
    kind, lo, count, rows, body = batch.kind, batch.lo, batch.count, batch.rows, batch.body
    if body is None:
        raise UsageError("a synthetic batch has no body and cannot leave the simulator")
    size = HEADER_SIZE + len(body)
    runs = b""  # what precedes the body if some void positions are filtered, and others are not
    # The common case is tested first, because it takes less time than `_problem`.
    dense = kind == DATA and 0 < rows == count <= limits.batch_rows_max and not batch.reason
    fits = HEADER_SIZE < size <= limits.batch_bytes_max and not size % 8
    if not dense or not fits or lo + count > SEQ_END_MAX:
        problem = _problem(kind, batch.reason, lo, count, rows, len(body), limits)
        if problem is not None:
            raise UsageError(f"cannot encode {_name(kind, lo, count)}: {problem}")
        if batch.filtered is not None:
            runs = filtered_bytes(batch.filtered)
            size += len(runs)
            if size > limits.batch_bytes_max:
                too_large = _too_large("a frame of", size, kind, limits)
                raise UsageError(f"cannot encode {_name(kind, lo, count)}: {too_large}")
    header = batch._header  # kept, because a batch is encoded for several destinations
    if header is None:
        flags, body_crc = SPARSE if 0 < rows < count else 0, batch.body_crc
        if runs:
            flags, body_crc = flags | MIXED, crc32(body, crc32(runs))
        try:
            fields = _FIELDS.pack(
                MAGIC, VERSION, kind, flags, batch.reason, size - HEADER_SIZE, body_crc, count,
                0, rows, batch.stream_id, batch.publisher, batch.pub_no, lo, batch.time_ns,
                batch.epoch, batch.schema_id, batch.form, b"",
            )  # fmt: skip
        except struct.error as error:
            raise UsageError(
                f"cannot encode {_name(kind, lo, count)}: out of range: {error}"
            ) from None
        header = batch._header = fields + _CRC.pack(crc32(fields))
    if runs:
        return [header, runs, body] if body else [header, runs]
    return [header, body] if body else [header]


def check_batch(batch: Batch, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise UsageError if a batch that has no position in a stream yet cannot be encoded."""
    if batch.body is None:
        raise UsageError("a synthetic batch has no body and cannot leave the simulator")
    kind, lo, count, rows = batch.kind, batch.lo, batch.count, batch.rows
    problem = _problem(kind, batch.reason, lo, count, rows, len(batch.body), limits)
    if problem is not None:
        raise UsageError(f"{_name(kind, lo, count)} cannot be published: {problem}")


def decode_batch(
    buf: Buffer, limits: Limits = DEFAULT_LIMITS, *, validate: bool = True
) -> tuple[Batch, int]:
    """The batch whose frame starts `buf`, and the frame's size.

    CRCs are always checked. `validate=False` defers the check of the Arrow body until the body is
    read: for batches that are only forwarded, or that were validated before. Batches that a filter
    has changed are refused: they are part of a message, and never stored.
    """
    batch, size = _decode_batch(_view(buf), 0, limits, validate)
    if batch.is_filtered:
        raise PeerError(f"{batch!r} was filtered for a reader")
    return batch, size


def _decode_batch(view: memoryview, at: int, limits: Limits, validate: bool) -> tuple[Batch, int]:
    (
        _, _, kind, flags, reason, body_len, body_crc, count, control_len, rows, stream_id,
        publisher, pub_no, lo, time_ns, epoch, schema_id, form, _,
    ) = _read_header(view, at, limits)  # fmt: skip
    if kind == CONTROL:
        raise PeerError("a control frame where a batch frame is expected")
    dense = (
        kind == DATA
        and 0 < rows == count <= limits.batch_rows_max
        and not (reason or flags or control_len)
        and body_len > 0
        and lo + count <= SEQ_END_MAX
    )
    mixed = flags & MIXED
    if not dense and not mixed:  # rare, but it may be valid
        problem = _problem(kind, reason, lo, count, rows, body_len, limits)
        if problem is None:
            problem = _contradiction(flags, count, rows, control_len, body_len, form)
        if problem is not None:
            raise PeerError(f"{_name(kind, lo, count)}: {problem}")
    size = HEADER_SIZE + body_len
    if size > len(view) - at:
        raise PeerError(_truncated(size, len(view) - at))
    body = view[at + HEADER_SIZE : at + size]
    if crc32(body) != body_crc:
        raise PeerError(f"{_name(kind, lo, count)}: {_bad_crc('body', crc32(body), body_crc)}")
    filtered = None
    if mixed:
        filtered, body = _split_mixed(body, count)
        body_len, body_crc = len(body), crc32(body)
        problem = _problem(kind, reason, lo, count, rows, body_len, limits) or _contradiction(
            flags & ~MIXED, count, rows, control_len, body_len, form
        )
        if problem is not None:
            raise PeerError(f"{_name(kind, lo, count)}: {problem}")
    batch = Batch(
        kind, stream_id, schema_id, publisher, pub_no, lo, count, rows, time_ns, epoch, reason,
        body, body_crc, size, form, filtered,
    )  # fmt: skip
    batch._header = bytes(view[at : at + HEADER_SIZE])
    if mixed or (validate and body_len):
        if dense and form and schema_id < TYPED and matches(body, schema_id, form, rows):
            batch._checked = True
            return batch, size
        try:
            batch.validate()
        except PeerError as error:
            raise PeerError(f"{_name(kind, lo, count)}: {error}") from error
    return batch, size


def _split_mixed(body: memoryview, count: int) -> tuple[IntervalSet, memoryview]:
    """The filtered positions at the start of a body (`filtered_bytes`), and the rest of it."""
    if len(body) < _INDEX.size:
        raise PeerError("a body without its filtered positions")
    end = _INDEX.size + _INDEX.unpack_from(body)[0]
    padded = _padded(end)
    if padded > len(body) or any(body[end:padded]):
        raise PeerError("the filtered positions of a body are cut short")
    return IntervalSet.from_bytes(body[_INDEX.size : end], count), body[padded:]


def frame_size(buf: Buffer, limits: Limits = DEFAULT_LIMITS) -> int | None:
    """The size of the frame at the start of `buf`; None as long as its header is not complete.

    Bad frames are refused as early as possible: a wrong magic or version as soon as its byte has
    arrived, an oversized frame before its body is read.
    """
    view = _view(buf)
    if len(view) < HEADER_SIZE:
        _check_opening(view, 0, limits)
        return None
    body_len = _read_header(view, 0, limits)[5]
    return HEADER_SIZE + int(body_len)


def batch_head(buf: Buffer, limits: Limits = DEFAULT_LIMITS) -> tuple[bytes, int, int, int]:
    """Stream, first position, end and frame size of the batch whose header starts `buf`.

    Only the header is checked: this is for frames whose body is damaged or incomplete.
    """
    fields = _read_header(_view(buf), 0, limits)
    kind, _, reason, body_len, _, count, _, rows, stream_id, _, _, lo = fields[2:14]
    problem = _problem(kind, reason, lo, count, rows, body_len, limits)
    if problem is not None:
        raise PeerError(f"{_name(kind, lo, count)}: {problem}")
    return stream_id, lo, lo + count, HEADER_SIZE + body_len


def _read_header(view: memoryview, at: int, limits: Limits) -> tuple[Any, ...]:
    """All fields of the header, in the order of `_FIELDS`, after the checks that do not need the
    body."""
    if len(view) - at < HEADER_SIZE:
        _check_opening(view, at, limits)
        raise PeerError(f"truncated: {len(view) - at} bytes, a header has {HEADER_SIZE}")
    fields = _FIELDS.unpack_from(view, at)
    if fields[0] != MAGIC or fields[1] not in limits.versions:
        _check_opening(view, at, limits)
    if crc32(view[at : at + HEADER_SIZE]) != _CRC_RESIDUE:
        (stated,) = _CRC.unpack_from(view, at + _FIELDS.size)
        actual = crc32(view[at : at + _FIELDS.size])
        raise PeerError(f"frame: {_bad_crc('header', actual, stated)}")
    kind, body_len, reserved = fields[2], fields[5], fields[-1]
    if kind not in _KINDS:
        raise PeerError(f"unknown frame type {kind}")
    if reserved != _RESERVED:
        raise PeerError(f"reserved header bytes are not zero: {reserved.hex()}")
    if body_len % 8:
        raise PeerError(f"a body of {body_len:,} bytes: not a multiple of 8")
    size = HEADER_SIZE + body_len
    if size > limits.batch_bytes_max and (kind != CONTROL or size > limits.frame_bytes_max):
        raise PeerError(_too_large("frame claims", size, kind, limits))
    return fields


def _check_opening(view: memoryview, at: int, limits: Limits) -> None:
    """Raise PeerError if the magic or the version, as far as they are present, is wrong."""
    opening = bytes(view[at : at + len(MAGIC)])
    if opening != MAGIC[: len(opening)]:
        raise PeerError(f"not a frame: starts with {opening!r} instead of {MAGIC!r}")
    if len(view) - at > len(MAGIC) and view[at + len(MAGIC)] not in limits.versions:
        found, known = view[at + len(MAGIC)], ", ".join(map(str, limits.versions))
        raise PeerError(f"frame version {found} is unknown; this node reads {known}")


def _problem(
    kind: int, reason: int, lo: int, count: int, rows: int, body_len: int, limits: Limits
) -> str | None:
    """Why a batch frame cannot have these header fields, or None."""
    if count == 0 or lo + count > SEQ_END_MAX:
        return f"count is {count:,}: allowed is 1 to {SEQ_END_MAX - lo:,}"
    if rows > limits.batch_rows_max:
        return f"{rows:,} rows, the limit is {limits.batch_rows_max:,} (limits.batch_rows_max)"
    if HEADER_SIZE + body_len > limits.batch_bytes_max:
        return _too_large("a frame of", HEADER_SIZE + body_len, kind, limits)
    if body_len % 8:
        return f"a body of {body_len:,} bytes: not a multiple of 8"
    if kind == VOID:
        if rows or body_len:
            return f"{rows:,} rows and {body_len:,} body bytes in a void range"
    elif not 0 < rows <= count:
        return f"{rows:,} rows in {count:,} positions"
    elif body_len == 0:
        return "no body"
    elif kind != DATA and count != 1:
        return f"{count:,} positions, where exactly one is allowed"
    elif kind not in (DATA, COLLECT, CONFIG):
        return f"type {kind} is not a type of batch"
    if reason not in ((NONE,) if rows == count else REASON_NAMES):
        return f"reason {reason} with {rows:,} rows in {count:,} positions"
    if rows < count and lo == 0:
        return "void positions in a batch that has no position in a stream yet"
    return None


def _contradiction(
    flags: int, count: int, rows: int, control_len: int, body_len: int, form: int
) -> str | None:
    """Why header fields that follow from other fields contradict those, or None."""
    if flags != (SPARSE if 0 < rows < count else 0):
        return f"flags are {flags:#04x}, which {rows:,} rows of {count:,} positions contradict"
    if control_len:
        return f"control_len is {control_len:,} in a batch frame"
    if form and not body_len:
        return f"form {form:#x} without a body"
    return None


def _too_large(what: str, size: int, kind: int, limits: Limits) -> str:
    most, name = limits.frame_bytes_max, "limits.frame_bytes_max"
    if kind != CONTROL and size <= most:
        most, name = limits.batch_bytes_max, f"{name} less limits.control_bytes_max and a header"
    return f"{what} {size:,} bytes, the limit is {most:,} ({name})"


def _name(kind: int, lo: int, count: int) -> str:
    return f"{_KINDS.get(kind, kind)} batch [{lo:,}, {lo + count:,})"


def _truncated(claimed: int, present: int) -> str:
    return f"truncated: the frame claims {claimed:,} bytes, {present:,} are there"


def _bad_crc(part: str, actual: int, stated: int) -> str:
    return f"{part} CRC is {actual:#010x}, the header says {stated:#010x}"


def _view(buf: Buffer) -> memoryview:
    view = memoryview(buf).toreadonly()  # batches must not change, even if `buf` is writable
    return view if view.format == "B" else view.cast("B")


# ---------------------------------------------------------------- control frames


class Codec:
    """Encodes and decodes control messages of the given types, and no others.

    Fields of type `Batch`, `tuple[Batch, ...]` or `Batch | None` are sent as attachments, numbered
    in the order in which the message refers to them. Fields of type `Enclosed` hold messages of the
    given types. No field may be of type `Any`: a message in it would arrive as a list. Two threads
    must not use a codec at the same time.
    """

    __slots__ = (
        "_attached",
        "_decoder",
        "_encoder",
        "_inner_decoder",
        "_inner_encoder",
        "_next",
        "_tags",
        "_types",
        "limits",
    )

    def __init__(self, types: Sequence[type[Message]], limits: Limits = DEFAULT_LIMITS) -> None:
        by_tag: dict[str, type[Message]] = {}
        for cls in types:
            if not (isinstance(cls, type) and issubclass(cls, Message)):
                raise ConfigError(f"{cls!r} is not a Message type")
            tag = tag_of(cls)
            if by_tag.setdefault(tag, cls) is not cls:
                both = " and ".join(f"{c.__module__}.{c.__qualname__}" for c in (by_tag[tag], cls))
                raise ConfigError(f"two message types have the tag {tag!r}: {both}")
            _check_fields(cls)
        if not by_tag:
            raise ConfigError("a codec needs at least one message type")
        self.limits = limits
        self._types = frozenset(by_tag.values())
        self._tags = frozenset(by_tag)
        # During a call: the attachments of the message, and the number of the one that the message
        # must refer to next.
        self._attached: list[Batch] = []
        self._next = 0
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._attach)
        self._inner_encoder = msgspec.msgpack.Encoder(enc_hook=self._attach_inside)
        try:
            union: Any = reduce(or_, by_tag.values())
            self._decoder = msgspec.msgpack.Decoder(union, ext_hook=self._extension)
            self._inner_decoder = msgspec.msgpack.Decoder(union, ext_hook=self._extension_inside)
        except TypeError as error:
            raise ConfigError(f"these message types cannot share a connection: {error}") from None

    @property
    def types(self) -> tuple[type[Message], ...]:
        """The message types, sorted by tag."""
        return tuple(sorted(self._types, key=tag_of))

    def encode(self, message: Message) -> list[Buffer]:
        """The buffers of the message's frame. Bodies of attached batches are not copied."""
        if type(message) not in self._types:
            raise UsageError(f"{_type_name(message)} is not a message type of this connection")
        limits = self.limits
        self._attached = []
        try:
            part = self._encoder.encode(message)  # calls `_attach` for each batch
            attached = self._attached
        except _UNENCODABLE as error:
            raise UsageError(f"cannot encode {tag_of(type(message))}: {error}") from None
        finally:
            self._attached = []
        if len(part) > limits.control_bytes_max:
            raise _too_much(message, _control_excess(len(part), limits))
        if len(attached) > limits.attachments_max:
            raise _too_much(message, _attachment_excess(len(attached), limits))
        buffers: list[Buffer] = [b""]  # the header's place
        for batch in attached:
            buffers += encode_batch(batch, limits)
        body_len = _padded(len(part)) + sum(map(len, buffers))
        if HEADER_SIZE + body_len > limits.frame_bytes_max:
            raise _too_much(
                message,
                f"a frame of {HEADER_SIZE + body_len:,} bytes, the limit is "
                f"{limits.frame_bytes_max:,} (limits.frame_bytes_max); send fewer batches at once",
            )
        fields = _FIELDS.pack(
            *(MAGIC, VERSION, CONTROL, 0, 0, body_len, crc32(part), len(attached), len(part)),
            *(0, b"", b"", 0, 0, 0, 0, 0, 0, b""),
        )
        padding = _ZEROS[: _padded(len(part)) - len(part)]
        buffers[0] = b"".join((fields, _CRC.pack(crc32(fields)), part, padding))
        return buffers

    def check(self, part: msgspec.Struct) -> None:
        """Raise UsageError if no message can carry `part`, which contains no batches.

        A number may be too large to be encoded, a value may have another type than declared, or
        `part` may be too long. Called before `part` is passed to a machine, which cannot refuse it.
        """
        try:
            data = self._encoder.encode(part)
            msgspec.msgpack.decode(data, type=type(part))
        except _UNENCODABLE as error:
            raise UsageError(f"{type(part).__name__} cannot be sent: {error}") from None
        most = self.limits.control_bytes_max - _REST_BYTES
        if len(data) > most:
            raise UsageError(
                f"{type(part).__name__} cannot be sent: it has {len(data):,} bytes, the limit is "
                f"{most:,}"
            )

    def decode(self, buf: Buffer, *, validate: bool = True) -> tuple[Any, int]:
        """The message whose frame starts `buf`, and the frame's size.

        `validate` is as in `decode_batch`. `UnknownMessage` is raised if header and message are
        intact, and only the type of the message, or of a message enclosed in it, is not known.
        Attachments of an unknown message may have an unknown form, too.
        """
        view, limits = _view(buf), self.limits
        header = _read_header(view, 0, limits)
        # In a control frame, `count` is the number of attachments, and control_len the size of the
        # message in msgpack (`part`).
        kind, flags, reason, body_len, crc, count, part_len = header[2:9]
        if kind != CONTROL:
            raise PeerError(f"a {_KINDS[kind]} frame where a control frame is expected")
        if flags or reason or header[9:18] != _UNUSED:
            raise PeerError("control frame: a header field that only batches use is not zero")
        if part_len > limits.control_bytes_max:
            raise PeerError(f"control frame: {_control_excess(part_len, limits)}")
        if count > limits.attachments_max:
            raise PeerError(f"control frame: {_attachment_excess(count, limits)}")
        size = HEADER_SIZE + body_len
        if size > len(view):
            raise PeerError(_truncated(size, len(view)))
        part_end = HEADER_SIZE + part_len
        at = HEADER_SIZE + _padded(part_len)
        if at > size:
            raise PeerError(f"control frame: a message of {part_len:,} bytes in {body_len:,}")
        part = view[HEADER_SIZE:part_end]
        if crc32(part) != crc:
            raise PeerError(f"control frame: {_bad_crc('message', crc32(part), crc)}")
        if view[part_end:at] != _ZEROS[: at - part_end]:
            raise PeerError("control frame: the padding behind the message is not zero")
        try:
            attached = self._read_attachments(view[:size], at, count, validate)
            return self._read_message(part, attached), size
        except _UnknownType as unknown:
            raise UnknownMessage(str(unknown), size) from None
        except PeerError:
            tag = _tag_at(part)
            if tag is None or tag in self._tags:
                raise  # a message of a known type that is not valid
            raise UnknownMessage(tag, size) from None

    def _read_attachments(
        self, view: memoryview, at: int, count: int, validate: bool
    ) -> list[Batch]:
        """`count` batches, back to back from `at` to exactly the end of `view`."""
        attached: list[Batch] = []
        while len(attached) < count:
            try:
                batch, size = _decode_batch(view, at, self.limits, validate)
            except PeerError as error:
                raise PeerError(f"attachment {len(attached)} of {count}: {error}") from None
            attached.append(batch)
            at += size
        if at != len(view):
            extra = len(view) - at
            raise PeerError(f"control frame: {extra:,} bytes behind its {count} attachments")
        return attached

    def _read_message(self, part: memoryview, attached: list[Batch]) -> Any:
        self._attached, self._next = attached, 0
        try:
            message = self._decoder.decode(part)
            mentioned = self._next
        except _UNDECODABLE as error:
            raise PeerError(f"control message: {type(error).__name__}: {error}") from None
        finally:
            self._attached, self._next = [], 0
        if mentioned != len(attached):
            count = len(attached)
            raise PeerError(f"control message mentions {mentioned} of its {count} attachments")
        for batch in attached:
            if batch.reason and batch.is_filtered and not message.may_be_filtered:
                raise PeerError(
                    f"{_type_name(message)} with a batch that was filtered for a reader"
                )
        return message

    def _attach(self, value: Any) -> msgspec.msgpack.Ext:
        """The encoder's hook: collect a batch as an attachment, and encode only its number."""
        if not isinstance(value, Batch):
            return self._enclose(value)
        number = len(self._attached)
        self._attached.append(value)
        return _NUMBERS[number] if number < len(_NUMBERS) else _number(number)

    def _enclose(self, value: Any) -> msgspec.msgpack.Ext:
        if not isinstance(value, Enclosed):
            raise TypeError(f"{type(value).__name__} cannot be sent in a message")
        message = value.message
        if type(message) not in self._types:
            raise TypeError(f"{_type_name(message)} is not a message type of this connection")
        return msgspec.msgpack.Ext(_ENCLOSED, self._inner_encoder.encode(message))

    def _attach_inside(self, value: Any) -> msgspec.msgpack.Ext:
        """The same hook inside an enclosed message."""
        if isinstance(value, Enclosed):
            raise TypeError("an enclosed message encloses another one")
        return self._attach(value)

    def _extension(self, code: int, data: memoryview) -> Batch | Enclosed:
        """The decoder's hook: a batch, by its number, or an enclosed message.

        A message must refer to each attachment once and in order: a small message that refers to
        one large batch a thousand times would multiply the work of its receiver."""
        if code != _ATTACHMENT or len(data) != _INDEX.size:
            if code == _ENCLOSED:
                return Enclosed(self._read_enclosed(data))
            raise PeerError(f"control message: unknown extension {code} of {len(data)} bytes")
        index: int = _INDEX.unpack(data)[0]
        if index >= len(self._attached) or index != self._next:
            raise PeerError(
                f"control message mentions attachment {index:,} of {len(self._attached):,} "
                f"where {self._next:,} is next"
            )
        self._next += 1
        return self._attached[index]

    def _extension_inside(self, code: int, data: memoryview) -> Batch | Enclosed:
        """The same hook inside an enclosed message."""
        if code == _ENCLOSED:
            raise PeerError("control message: an enclosed message encloses another one")
        return self._extension(code, data)

    def _read_enclosed(self, part: memoryview) -> Any:
        try:
            return self._inner_decoder.decode(part)
        except _UNDECODABLE as error:
            tag = _tag_at(part)
            if tag is not None and tag not in self._tags:
                raise _UnknownType(tag) from None
            raise PeerError(f"enclosed message: {type(error).__name__}: {error}") from None


class _UnknownType(PeerError):
    """An enclosed message has this tag, which the codec does not know."""


def _tag_at(part: memoryview) -> str | None:
    """The tag with which a message in msgpack begins, if the tag is well-formed, else None."""
    opening = _OPENING.match(part)
    if opening is None:
        return None
    length = opening[1][0] & 0x1F if opening[1] else opening[2][0]
    text = bytes(part[opening.end() : opening.end() + length])
    return text.decode() if len(text) == length and _TAG.fullmatch(text) else None


def _check_fields(cls: type[Message]) -> None:
    """Raise ConfigError if the declared type of a field does not determine the type of its
    value."""
    try:
        for field in msgspec.structs.fields(cls):
            if not _determines_types(field.type):
                raise ConfigError(
                    f"{tag_of(cls)}.{field.name} may hold anything, and a message in it would "
                    "arrive as a list: declare its type, Enclosed if it holds a message"
                )
    except (TypeError, NameError) as error:
        raise ConfigError(f"{tag_of(cls)}: {error}") from None


@cache
def _determines_types(declared: Any) -> bool:
    """Whether a declared type determines the types of all values in the field."""
    for part in parts_of(declared):
        kind = getattr(part, "cls", None)
        if isinstance(part, inspect.AnyType | inspect.RawType) or kind is Message:
            return False
        if isinstance(part, inspect.CustomType) and kind not in (Batch, Enclosed):
            return False
    return True


def _number(index: int) -> msgspec.msgpack.Ext:
    """The number of an attachment, as it is encoded in a message."""
    return msgspec.msgpack.Ext(_ATTACHMENT, _INDEX.pack(index))


_NUMBERS: Final = [_number(index) for index in range(64)]  # made once, because they occur often


def _type_name(message: Any) -> str:
    """The tag of a message, or the class of another object, for error texts."""
    kind = type(message)
    return tag_of(kind) if issubclass(kind, Message) else kind.__name__


def _too_much(message: Message, why: str) -> UsageError:
    return UsageError(f"cannot encode {tag_of(type(message))}: {why}")


def _control_excess(nbytes: int, limits: Limits) -> str:
    most = limits.control_bytes_max
    return f"a message of {nbytes:,} bytes, the limit is {most:,} (limits.control_bytes_max)"


def _attachment_excess(count: int, limits: Limits) -> str:
    most = limits.attachments_max
    return f"{count:,} attachments, the limit is {most:,} (limits.attachments_max)"
