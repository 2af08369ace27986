"""Reads recordings (written by `core.record`): checks every record and rebuilds every input.

A recording may be damaged or come from an untrusted source. Whatever bytes it has, reading raises
nothing but `PeerError`, and creates values only of the types passed in. An unfinished record at the
end is not an error: `torn` is its length. `core.record` has the format.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from zlib import crc32

import msgspec

from surecast.core import record
from surecast.core.canon import FORMS, may_begin, unplain
from surecast.core.record import Closed, Ends, Header, Holed, Item, Kept, Saved, Step
from surecast.core.types import Batch, Enclosed, Message, Received
from surecast.core.wire import Buffer, Codec, Limits, decode_batch
from surecast.errors import ConfigError, PeerError, UsageError

__all__ = ["Recording"]

_INVALID: Final = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
_METAS: Final = {  # kind of record → type of its meta
    record.HEADER: Header,
    record.TYPE: tuple[str, list[str]],
    record.LABEL: str,
    record.KEPT: bytes,
    record.SAVED: tuple[str, bytes | None],
    record.ENDS: tuple[bytes, int, int],
    record.HOLE: tuple[bytes, int],
    record.STEP: tuple[int, int, list[msgspec.Raw], bytes, list[int]],
    record.CLOSED: int,
}
_DECODERS: Final[dict[int, Any]] = {k: msgspec.msgpack.Decoder(t) for k, t in _METAS.items()}


class Recording:
    """One recording, read from its bytes. Yielded items refer to the buffer: do not reuse it.

    `types` are the types that the recording may name, by `core.canon.name_of`.
    """

    def __init__(self, data: Buffer, types: Mapping[str, type[msgspec.Struct]]) -> None:
        self._known_types = types
        self._view = memoryview(data).toreadonly()
        self._at = record.PREAMBLE.size  # where the next record begins
        self._number = 0  # of the next record
        self._place = ""  # which record is being read, for error texts
        self.torn = 0  # bytes of an unfinished record at the end, once all is read
        self._types: list[type[msgspec.Struct]] = []  # by number
        # For each type, a decoder for each field; None: an open field, which may have any value.
        self._decoders: list[list[Any]] = []
        self._labels: list[str] = []  # by number
        self._attached: list[Batch] = []  # the batches of the record being decoded
        self._open_decoder = msgspec.msgpack.Decoder(ext_hook=self._extension)
        self.steps = 0
        _check_preamble(self._view)
        kind, meta, _ = self._next() or (0, memoryview(b""), memoryview(b""))
        if kind != record.HEADER:
            raise PeerError("the recording ends before its header is complete")
        self.header: Header = self._decode(kind, meta)
        self.codec = self._make_codec()

    def _make_codec(self) -> Codec:
        types: list[type[Message]] = []
        for tag in self.header.messages:
            kind = self._struct_type(tag)
            if not issubclass(kind, Message):
                raise PeerError(f"the recording's header: {tag!r} is not a type of message")
            types.append(kind)
        frame, control, rows, attachments = self.header.limits
        try:
            return Codec(types, Limits(frame, control, rows, attachments))
        except ConfigError as error:
            raise PeerError(f"the recording's header: {error}") from None

    def _struct_type(self, name: str) -> type[msgspec.Struct]:
        found = self._known_types.get(name)
        if found is None:
            raise PeerError(f"this program has no type {name!r}")
        return found

    @property
    def position(self) -> int:
        """How many bytes have been read."""
        return self._at

    def items(self) -> Iterator[Item]:
        """Everything recorded, in order. Call it once."""
        while (found := self._next()) is not None:
            kind, meta, tail = found
            value = self._decode(kind, meta)
            if kind == record.STEP:
                yield self._step(value, tail)
            elif kind == record.TYPE:
                self._add_type(*value)
            elif kind == record.LABEL:
                self._labels.append(value)
            elif kind == record.KEPT:
                for batch in self._batches(tail):
                    yield Kept(value, batch)
            elif kind == record.ENDS:
                yield Ends(*value)
            elif kind == record.HOLE:
                yield Holed(*value)
            elif kind == record.SAVED:
                yield Saved(*value)
            elif kind == record.CLOSED:
                yield Closed(value)
            else:
                raise PeerError(f"{self._place}: a second header")

    def _next(self) -> tuple[int, memoryview, memoryview] | None:
        """Kind, meta and frames of the next record; None at the end, or if it is unfinished."""
        view, at = self._view, self._at
        left = len(view) - at
        self._place = f"record {self._number} at byte {at:,}"
        if left < record.HEAD_SIZE:
            self.torn = left
            return None
        kind, meta_len, tail_len, number, meta_crc = record.HEAD.unpack_from(view, at)
        (head_crc,) = record.CRC.unpack_from(view, at + record.HEAD.size)
        if crc32(view[at : at + record.HEAD.size]) != head_crc:
            raise PeerError(f"{self._place}: the CRC of its head is wrong")
        if number != self._number or meta_len + tail_len > record.RECORD_BYTES_MAX:
            raise PeerError(
                f"{self._place}: it is number {number} and claims {meta_len + tail_len:,} bytes"
            )
        start = at + record.HEAD_SIZE
        tail_at = start + meta_len + -meta_len % 8
        if tail_at + tail_len > len(view):
            self.torn = left
            return None
        meta = view[start : start + meta_len]
        if crc32(meta) != meta_crc or any(view[start + meta_len : tail_at]):
            raise PeerError(f"{self._place}: the CRC of its content is wrong")
        self._at = tail_at + tail_len
        self._number += 1
        return kind, meta, view[tail_at : self._at]

    def _decode(self, kind: int, meta: Any) -> Any:
        if kind not in _DECODERS:
            raise PeerError(f"{self._place}: unknown kind {kind}")
        try:
            return _DECODERS[kind].decode(meta)
        except _INVALID as error:
            raise PeerError(f"{self._place}: {error}") from None

    def _add_type(self, name: str, fields: list[str]) -> None:
        """Note the next type, and make decoders for the fields that it was recorded with."""
        kind = self._struct_type(name)
        try:
            form = FORMS[kind]
        except UsageError as error:
            raise PeerError(f"{self._place}: {error}") from None
        same = list(kind.__struct_fields__[: len(fields)]) == fields
        if not (same and may_begin(kind, len(fields))):
            have = ", ".join(kind.__struct_fields__)
            raise PeerError(f"{name} has the fields {have}; it was recorded with {fields}")
        decoders = []
        types = {field.name: field.type for field in msgspec.structs.fields(kind)}
        for field, is_open in form.fields[: len(fields)]:  # the others were added since
            decoders.append(
                None if is_open else msgspec.msgpack.Decoder(types[field], ext_hook=self._extension)
            )
        self._types.append(kind)
        self._decoders.append(decoders)

    def _step(self, value: tuple[Any, ...], tail: memoryview) -> Step:
        now_ns, number, fields, effects_digest, label_numbers = value
        if not 0 <= number < len(self._types) or not self._are_labels(label_numbers):
            raise PeerError(f"{self._place}: it refers to a type or label that is not defined")
        kind = self._types[number]
        if kind is Received:
            inp = self._received(fields, tail)
        else:
            self._attached = self._batches(tail)
            inp = self._input(kind, self._decoders[number], fields)
            self._attached = []
        self.steps += 1
        labels = [self._labels[n] for n in label_numbers]
        return Step(self.steps, now_ns, inp, effects_digest, labels)

    def _are_labels(self, label_numbers: list[int]) -> bool:
        return all(0 <= n < len(self._labels) for n in label_numbers)

    def _received(self, fields: list[Any], tail: memoryview) -> Received:
        try:
            message, size = self.codec.decode(tail)
        except PeerError as error:
            raise PeerError(f"{self._place}: {error}") from None
        if size != len(tail) or len(fields) != 1:
            raise PeerError(f"{self._place}: it is not one message from one peer")
        peer = self._decode(record.LABEL, fields[0])  # a text, like a label
        return Received(peer, message)

    def _input(self, kind: type[msgspec.Struct], decoders: list[Any], fields: list[Any]) -> Any:
        if len(fields) != len(decoders):
            raise PeerError(f"{self._place}: {len(fields)} fields for {kind.__name__}")
        try:
            values = [
                unplain(self._open_decoder.decode(field), self._struct_type)
                if decoder is None
                else decoder.decode(field)
                for decoder, field in zip(decoders, fields, strict=True)
            ]
            return kind(**dict(zip(kind.__struct_fields__, values, strict=False)))
        except _INVALID as error:
            raise PeerError(f"{self._place}: {kind.__name__}: {error}") from None

    def _batches(self, tail: memoryview) -> list[Batch]:
        found = []
        while tail:
            try:
                batch, size = decode_batch(tail, self.codec.limits)
            except PeerError as error:
                raise PeerError(f"{self._place}: {error}") from None
            found.append(batch)
            tail = tail[size:]
        return found

    def _extension(self, code: int, data: memoryview) -> Batch | Enclosed:
        """The decoders' hook: a batch by its number among those of the tail, or a message."""
        if code == record.ENCLOSED:
            message = unplain(self._open_decoder.decode(data), self._struct_type)
            if not isinstance(message, Message):
                raise ValueError("the enclosed value is not a message")
            return Enclosed(message)
        if code != record.ATTACHMENT or len(data) != record.INDEX.size:
            raise ValueError(f"unknown extension {code} of {len(data)} bytes")
        index: int = record.INDEX.unpack(data)[0]
        if index >= len(self._attached):
            raise ValueError(f"batch {index} of {len(self._attached)}")
        return self._attached[index]


def _check_preamble(view: memoryview) -> None:
    opening = bytes(view[: len(record.MAGIC)])
    if opening != record.MAGIC:
        raise PeerError(f"not a recording: it starts with {opening!r} instead of {record.MAGIC!r}")
    if len(view) < record.PREAMBLE.size:
        raise PeerError("the recording ends before its header is complete")
    if view[4] != record.VERSION:
        raise PeerError(
            f"version {view[4]} of recordings is unknown; this program reads {record.VERSION}"
        )
    if any(view[5:8]):
        raise PeerError("the recording's first bytes are damaged")
