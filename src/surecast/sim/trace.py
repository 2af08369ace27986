"""The trace of a simulation: a table with one row for each input, effect and fault.

A step of a machine is one input and its effects. While the simulation runs, a step only adds a
tuple (time, node, input, effects) to a list. From time to time, these tuples are packed into
MessagePack in one call, which takes a few hundred nanoseconds per step. The digest of a trace is a
SHA-256 over the packed steps. It depends only on the run and not on the process, so tests compare
digests.

Rows are decoded from the packed steps when they are requested. The column `stream` contains the
subject of a row: the first bytes of a stream or log in hex, a timer's key, a token, or the name of
a state. `lo` and `hi` are positions; for SetTimer, `lo` is the time.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from surecast.core.canon import label_of, name_of
from surecast.core.types import Batch, Emit, Enclosed
from surecast.sim.sizes import BASE_BYTES, Sizes, enclosed_bytes

__all__ = ["COLUMNS", "KINDS", "Trace"]

COLUMNS = ("at_ns", "node", "kind", "type", "peer", "stream", "lo", "hi", "size")
KINDS = ("input", "effect", "fault")
INPUT, EFFECT, FAULT = KINDS

STEPS_MAX = 100  # steps packed at a time: few enough to be still in the CPU's cache

Row = tuple[int, str, str, str, str, str, int, int, int]  # in the order of COLUMNS
# (at_ns, node, input, effects). A fault is stored in the same form: its text in place of the input,
# and no effects.
Step = tuple[int, str, Any, Any]


class _Codes(dict[type, int]):
    """A number for each type that depends only on its name (`core.canon`)."""

    def __missing__(self, kind: type) -> int:
        self[kind] = number = crc32(name_of(kind).encode())
        return number

    def of(self, things: Iterable[Any]) -> bytes:
        """The numbers of the types of `things`, 4 bytes each."""
        return array("I", map(self.__getitem__, map(type, things))).tobytes()


class Trace:
    """The trace of a run. `keep=False` keeps only the digest, to compare long runs."""

    def __init__(self, keep: bool = True) -> None:
        self.keep = keep
        self.sizes = Sizes()  # replaced by the world's, which knows all types of messages
        self._steps: list[Step] = []
        # A pack has four parts: the encoded steps, and the types (`_Codes.of`) of their inputs, of
        # their effects, and of the events of Emit effects.
        self._packs: list[tuple[bytes, ...]] = []
        self._hashes = [hashlib.sha256() for _ in range(4)]  # of each part, over all packs
        self._codes = _Codes()
        self._count = 0  # rows packed so far
        self.record = self._steps.append  # called by the world's loop, once per step

    # ------------------------------------------------------------ writing

    def fault(self, at_ns: int, node: str, what: str) -> None:
        self.record((at_ns, node, what, ()))

    def pack_if_long(self) -> None:
        if len(self._steps) >= STEPS_MAX:
            self.pack()

    def pack(self) -> None:
        """Pack the recorded steps; called by the world from time to time."""
        steps = self._steps
        if not steps:
            return
        effects = list(chain.from_iterable([step[3] for step in steps]))
        codes = self._codes
        # The encoded steps do not contain the types of inputs and effects.
        inputs = codes.of([step[2] for step in steps])
        others = codes.of(effects)
        emitted = b""
        if Emit in codes:
            emitted = codes.of([effect.event for effect in effects if type(effect) is Emit])
        packed = (_encode(steps), inputs, others, emitted)
        for hashed, part in zip(self._hashes, packed, strict=True):
            hashed.update(part)
        self._count += len(steps) + len(effects)
        if self.keep:
            self._packs.append(packed)
        steps.clear()

    # ------------------------------------------------------------ reading

    def __len__(self) -> int:
        """The number of rows, kept or not."""
        self.pack()
        return self._count

    def digest(self) -> str:
        """SHA-256, hex, of everything so far."""
        self.pack()
        return hashlib.sha256(b"".join(part.digest() for part in self._hashes)).hexdigest()

    def rows(self) -> Iterator[Row]:
        """All rows, in order."""
        self.pack()
        kinds = {code: kind for kind, code in self._codes.items()}
        messages = {name_of(kind): kind for kind in self.sizes.sizers}
        for steps, *codes in self._packs:
            inputs, effects, emitted = (
                iter([kinds[c] for c in array("I", part)]) for part in codes
            )
            # Each step has one input, whose type takes 4 bytes.
            for at_ns, node, inp, out in _decode(steps, len(codes[0]) // 4):
                kind = next(inputs)
                if kind is str:  # the text of a fault
                    yield (at_ns, node, FAULT, inp, "", "", 0, 0, 0)
                    continue
                yield (at_ns, node, INPUT, *_describe(kind, inp, messages))
                for effect in out:
                    kind = next(effects)
                    if kind is Emit:  # `_describe` looks the type of the event up under "event"
                        messages["event"] = next(emitted)
                    yield (at_ns, node, EFFECT, *_describe(kind, effect, messages))

    def to_table(self) -> Any:
        """The rows as a `pyarrow.Table`; names are dictionary-encoded."""
        import pyarrow as pa

        columns = list(zip(*self.rows(), strict=True)) or [()] * len(COLUMNS)
        arrays = []
        for name, values in zip(COLUMNS, columns, strict=True):
            if name in ("at_ns", "lo", "hi", "size"):
                arrays.append(pa.array(values, pa.int64()))
            else:
                arrays.append(pa.array(values, pa.string()).dictionary_encode())
        return pa.table(arrays, names=list(COLUMNS))

    def write_parquet(self, path: str | Path) -> None:
        import pyarrow.parquet as pq

        pq.write_table(self.to_table(), path)


# ---------------------------------------------------------------- packing

# In packed values, lists stand for batches and enclosed messages (`_pack_other`). They begin with:
_BATCH = "batch"  # [_BATCH, lo, hi, nbytes, kind, rows, body_crc]
_ENCLOSED = "enclosed"  # [_ENCLOSED, nbytes, message]


def _pack_other(value: Any) -> Any:
    """Replace a value that MessagePack cannot represent, the same way in every process."""
    if isinstance(value, Batch):
        return (_BATCH, value.lo, value.hi, value.nbytes, value.kind, value.rows, value.body_crc)
    if isinstance(value, Enclosed):
        return (_ENCLOSED, enclosed_bytes(value), value.message)
    return name_of(type(value))


# "deterministic" sorts sets, whose order differs between processes.
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_pack_other, order="deterministic")
_UNSORTED = msgspec.msgpack.Encoder()
_UNPACKABLE = (OverflowError, TypeError, ValueError, RecursionError)


def _encode(steps: list[Step]) -> bytes:
    """The encoded steps without an array header, so that packs can be concatenated."""
    try:
        packed = _ENCODER.encode(steps)
    except _UNPACKABLE:
        return b"".join(map(_encode_one, steps))
    # The header of a MessagePack array has 1, 3 or 5 bytes, depending on the number of items.
    return packed[1 if len(steps) < 16 else 3 if len(steps) < 1 << 16 else 5 :]


def _encode_one(step: Step) -> bytes:
    try:
        return _ENCODER.encode(step)
    except _UNPACKABLE:  # for example, a dict has keys that cannot be sorted (not text)
        try:
            return _UNSORTED.encode(_unfolded(step))
        except _UNPACKABLE:  # for example numbers that are too large
            # Keep no content, only the types, which `pack` stores: a repr might differ between
            # processes.
            at_ns, node, _, effects = step
            return _ENCODER.encode((at_ns, node, {}, [{} for _ in effects]))


def _unfolded(value: Any) -> Any:
    """The value as the encoder would represent it, except that dicts keep their order."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        fields = {name: _unfolded(getattr(value, name)) for name in value.__struct_fields__}
        if config.array_like:
            return [*([] if config.tag is None else [config.tag]), *fields.values()]
        return fields if config.tag is None else {config.tag_field: config.tag, **fields}
    if isinstance(value, dict):
        return {key: _unfolded(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_unfolded(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(_unfolded, value), key=_UNSORTED.encode)
    if value is None or isinstance(
        value, bool | int | float | str | bytes | bytearray | memoryview
    ):
        return value
    return _unfolded(_pack_other(value))


def _decode(steps: bytes, count: int) -> Any:
    """Decode `count` steps, after adding the header of an array with this number of items."""
    return msgspec.msgpack.decode(b"\xdd" + count.to_bytes(4, "big") + steps)


# ---------------------------------------------------------------- unfolding


def _describe(kind: type, value: Any, types: dict[str, type]) -> tuple[Any, ...]:
    """(type, peer, stream, lo, hi, size) of a packed input or effect. `types`: the types of
    messages by name, and under "event" the type of an Emit's event."""
    fields = _fields(kind, value)
    label, size = label_of(kind), 0
    about = fields  # the fields that `stream`, `lo` and `hi` are taken from
    if "message" in fields:
        packed = fields["message"]
        name = _tag(packed)
        label = f"{label}.{name}"
        about = _fields(types.get(name, kind), packed)
        size = about.get("nbytes", BASE_BYTES + sum(map(_payload, about.values())))
    elif kind is Emit:
        label = f"{label}.{label_of(types['event'])}"
        about = _fields(types["event"], fields.get("event"))
    return (label, fields.get("peer", ""), *_span(about), size)


def _fields(kind: type, value: Any) -> dict[str, Any]:
    """The fields of a packed struct by name; it is a dict, or a list that may begin with a tag."""
    if isinstance(value, dict):
        return value
    names = getattr(kind, "__struct_fields__", ())
    if not isinstance(value, list) or len(value) < len(names):
        return {}
    return dict(zip(names, value[len(value) - len(names) :], strict=True))


def _tag(packed: Any) -> str:
    """The tag of a packed message, which names its type."""
    if isinstance(packed, dict):
        return str(packed.get("type", ""))
    return str(packed[0]) if isinstance(packed, list) and packed else ""


def _payload(value: Any) -> int:
    """The size that `Sizes` computes, but from a packed value."""
    if _is_batch(value):
        return int(value[3])
    if isinstance(value, list) and len(value) == 3 and value[0] == _ENCLOSED:
        return int(value[1])
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return sum(8 if isinstance(item, int | float | str) else _payload(item) for item in value)
    return 0


def _is_batch(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 7 and value[0] == _BATCH


def _span(fields: dict[str, Any]) -> tuple[str, int, int]:
    """(stream, lo, hi) of a row. In place of a stream it may be a log, timer, token or state."""
    about = next((fields[n] for n in ("log", "stream", "key", "name", "token") if n in fields), "")
    if isinstance(about, bytes):
        about = about[:4].hex()
    batches = fields.get("batches") or [fields.get("batch")]
    if _is_batch(batches[0]):
        return str(about), batches[0][1], batches[-1][2]
    lo = next((fields[n] for n in ("lo", "at_ns") if n in fields), 0)
    hi = next((fields[n] for n in ("hi", "end") if n in fields), 0)
    return str(about), lo if isinstance(lo, int) else 0, hi if isinstance(hi, int) else 0
