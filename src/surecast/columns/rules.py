"""Retention policies (what a stream keeps) and predicates (which events a GC event collects).

This module defines and encodes them; retention.py applies them to a stream. A stream gets its first
policy from the request that creates it. The value of a CONFIG event is a new policy (servers accept
it, but no call of the client publishes one), a `NewSchema`, or `End`, which deletes the stream. A
predicate is in the value of a COLLECT event (*GC event*), which makes the matching events before it
void.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from surecast.columns.batch import COLLECT, COLLECTED, CONFIG, EXPIRED, Batch
from surecast.columns.schema import extends
from surecast.errors import PeerError, UsageError

__all__ = [
    "BeforeSeq",
    "BeforeTime",
    "Collect",
    "Config",
    "End",
    "KeepAll",
    "KeepFor",
    "KeepLast",
    "KeyIs",
    "KeyPrefix",
    "LatestPerKey",
    "NewSchema",
    "Policy",
    "Predicate",
    "TagIs",
    "check_event",
    "check_policy",
    "check_predicate",
    "decode_collect",
    "decode_config",
    "encode_collect",
    "encode_policy",
    "is_end",
    "schema_after",
    "schema_in",
]

_NUMBER_MAX: Final = (1 << 62) - 1  # the largest number in a policy or predicate


class _Policy(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


class KeepAll(_Policy, frozen=True, tag="all"):
    """Keep all events, except those that a GC event collects."""


class KeepLast(_Policy, frozen=True, tag="last"):
    """Keep the `n` newest positions; those before them become void, except CONFIG events."""

    n: int


class KeepFor(_Policy, frozen=True, tag="for"):
    """Keep events for `ns` nanoseconds. The head of the stream's owner appends GC events that make
    older events void."""

    ns: int


class LatestPerKey(_Policy, frozen=True, tag="key"):
    """Keep the newest event of every key, and all events without a key."""


class _Predicate(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


class BeforeSeq(_Predicate, frozen=True, tag="seq"):
    """Positions below `seq`."""

    seq: int


class BeforeTime(_Predicate, frozen=True, tag="time"):
    """Events whose time is before `time_ns`."""

    time_ns: int


class KeyIs(_Predicate, frozen=True, tag="key"):
    """Events with this key."""

    key: bytes


class KeyPrefix(_Predicate, frozen=True, tag="prefix"):
    """Events whose key begins with `prefix`."""

    prefix: bytes


class TagIs(_Predicate, frozen=True, tag="tag"):
    """Events with this tag. Allowed only on KeepAll streams. With LatestPerKey, replicas could
    disagree: event B, which has the tag, makes the earlier event A of its key void; then B itself
    is collected by its tag. A replica that receives only a void position in place of B knows
    neither B's key nor B's tag, so it would keep A, which is void at the other replicas.
    """

    tag: bytes


Policy = KeepAll | KeepLast | KeepFor | LatestPerKey


class End(msgspec.Struct, frozen=True, tag="end", forbid_unknown_fields=True):
    """The value of the CONFIG event with which a stream is deleted. This is the last event of the
    stream: it makes every event before it void, and no position after it is assigned."""


class NewSchema(msgspec.Struct, frozen=True, tag="schema", forbid_unknown_fields=True):
    """The value of the CONFIG event that changes the stream's schema: events after it may have the
    columns of this one. It makes no event void."""

    schema: str  # canonical text (schema.py), which extends the schema before


Config = Policy | End | NewSchema
Predicate = BeforeSeq | BeforeTime | KeyIs | KeyPrefix | TagIs


class Collect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a COLLECT event: which events become void, and the reason that readers get."""

    predicate: Predicate
    reason: int = COLLECTED


_encoder = msgspec.msgpack.Encoder()
_config_decoder = msgspec.msgpack.Decoder(Config)
_collect_decoder = msgspec.msgpack.Decoder(Collect)


def encode_policy(policy: Config) -> bytes:
    """The value of a CONFIG event."""
    return _encoder.encode(policy)


def encode_collect(collect: Collect) -> bytes:
    return _encoder.encode(collect)


def decode_config(data: bytes | memoryview) -> Config:
    """What a CONFIG event's value sets; PeerError if it is not valid. A schema is not read here: it
    may be one of a later version."""
    policy: Config = _decode(_config_decoder, data)
    if not _fits(policy, 1):
        raise PeerError(f"retention out of range: {policy}")
    return policy


def decode_collect(data: bytes | memoryview) -> Collect:
    """The predicate and reason in a COLLECT event's value; PeerError if it is not valid."""
    collect: Collect = _decode(_collect_decoder, data)
    if not _fits(collect.predicate, 0) or collect.reason not in (COLLECTED, EXPIRED):
        raise PeerError(f"collect out of range: {collect}")
    return collect


def check_policy(policy: Policy) -> None:
    """Raise UsageError if the number in a policy is out of range."""
    if not _fits(policy, 1):
        raise UsageError(f"{type(policy).__name__} takes a number from 1 to {_NUMBER_MAX:,}")


def check_predicate(predicate: Predicate) -> None:
    """Raise UsageError if the number in a predicate is out of range."""
    if not _fits(predicate, 0):
        raise UsageError(f"{type(predicate).__name__} takes a number from 0 to {_NUMBER_MAX:,}")


def _fits(rule: Config | Predicate, least: int) -> bool:
    """Whether the number in a rule, if it has one, is from `least` to _NUMBER_MAX."""
    match rule:
        case KeepLast(number) | KeepFor(number) | BeforeSeq(number) | BeforeTime(number):
            return type(number) is int and least <= number <= _NUMBER_MAX
    return True


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise PeerError(f"not a valid retention rule: {problem}") from problem


def check_event(batch: Batch, policy: Policy) -> None:
    """Raise PeerError or UsageError for a COLLECT or CONFIG event that a replica cannot apply.

    `policy` is the stream's. Called before an event gets its position.
    """
    if batch.kind == CONFIG:
        decode_config(batch.values().data.tobytes())
    elif batch.kind == COLLECT:
        collect = decode_collect(batch.values().data.tobytes())
        if isinstance(collect.predicate, TagIs) and not isinstance(policy, KeepAll):
            raise UsageError("a tag predicate needs a stream that keeps all events")


def is_end(batch: Batch) -> bool:
    """Whether the batch is the last event of a deleted stream."""
    return batch.kind == CONFIG and batch.values().data.tobytes() == _END


_END = encode_policy(End())


def schema_in(batch: Batch) -> str:
    """The schema that a batch sets; "" if it sets none."""
    if batch.kind != CONFIG:
        return ""
    try:
        config = decode_config(batch.values().data.tobytes())
    except PeerError:
        return ""
    return config.schema if isinstance(config, NewSchema) else ""


def schema_after(schema: str, batch: Batch) -> str:
    """The schema of a stream after a batch, given the schema before it. A change that does not
    extend the schema has no effect, for any reader; the head of the owner accepts none."""
    changed = schema_in(batch)
    return changed if changed and extends(changed, schema) else schema
