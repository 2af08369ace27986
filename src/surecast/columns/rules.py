"""What a stream keeps, and what a GC event collects, as values: retention policies and predicates.

They travel as the values of CONFIG and COLLECT events; what they mean is in retention.py.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from surecast.columns.batch import COLLECT, COLLECTED, CONFIG, EXPIRED, Batch
from surecast.errors import PeerError, UsageError

__all__ = [
    "BeforeSeq",
    "BeforeTime",
    "Collect",
    "KeepAll",
    "KeepFor",
    "KeepLast",
    "KeyIs",
    "KeyPrefix",
    "LatestPerKey",
    "Policy",
    "Predicate",
    "TagIs",
    "check_event",
    "decode_collect",
    "decode_policy",
    "encode_collect",
    "encode_policy",
]

_NUMBER_MAX: Final = (1 << 62) - 1


class _Policy(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


class KeepAll(_Policy, frozen=True, tag="all"):
    """Keep everything that no GC event collects."""


class KeepLast(_Policy, frozen=True, tag="last"):
    """Keep exactly the `n` newest positions."""

    n: int


class KeepFor(_Policy, frozen=True, tag="for"):
    """Keep events for `ns`; the stream's head appends the GC events that say so."""

    ns: int


class LatestPerKey(_Policy, frozen=True, tag="key"):
    """Keep the newest event of every key, and all events without one."""


class _Predicate(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


class BeforeSeq(_Predicate, frozen=True, tag="seq"):
    """Positions below `seq`."""

    seq: int


class BeforeTime(_Predicate, frozen=True, tag="time"):
    """Events whose time is before `time_ns`."""

    time_ns: int


class KeyIs(_Predicate, frozen=True, tag="key"):
    key: bytes


class KeyPrefix(_Predicate, frozen=True, tag="prefix"):
    prefix: bytes


class TagIs(_Predicate, frozen=True, tag="tag"):
    """Only on KeepAll streams, where no other rule can have voided the event that carried it."""

    tag: bytes


Policy = KeepAll | KeepLast | KeepFor | LatestPerKey
Predicate = BeforeSeq | BeforeTime | KeyIs | KeyPrefix | TagIs


class Collect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a COLLECT event: what becomes void, and the reason readers are given."""

    predicate: Predicate
    reason: int = COLLECTED


_encoder = msgspec.msgpack.Encoder()
_policy_decoder = msgspec.msgpack.Decoder(Policy)
_collect_decoder = msgspec.msgpack.Decoder(Collect)


def encode_policy(policy: Policy) -> bytes:
    return _encoder.encode(policy)


def encode_collect(collect: Collect) -> bytes:
    return _encoder.encode(collect)


def decode_policy(data: bytes | memoryview) -> Policy:
    """The policy in a CONFIG event's value; PeerError if there is none."""
    policy: Policy = _decode(_policy_decoder, data)
    number = policy.n if isinstance(policy, KeepLast) else 1
    number = policy.ns if isinstance(policy, KeepFor) else number
    if not 1 <= number <= _NUMBER_MAX:
        raise PeerError(f"retention out of range: {policy}")
    return policy


def decode_collect(data: bytes | memoryview) -> Collect:
    """The predicate and reason in a COLLECT event's value; PeerError if there are none."""
    collect: Collect = _decode(_collect_decoder, data)
    predicate = collect.predicate
    number = predicate.seq if isinstance(predicate, BeforeSeq) else 0
    number = predicate.time_ns if isinstance(predicate, BeforeTime) else number
    if not 0 <= number <= _NUMBER_MAX or collect.reason not in (COLLECTED, EXPIRED):
        raise PeerError(f"collect out of range: {collect}")
    return collect


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise PeerError(f"no retention rule: {problem}") from problem


def check_event(batch: Batch, policy: Policy) -> None:
    """Refuse, before it is sequenced, a COLLECT or CONFIG event that a replica could not apply."""
    if batch.kind == CONFIG:
        decode_policy(batch.values().data.tobytes())
    elif batch.kind == COLLECT:
        collect = decode_collect(batch.values().data.tobytes())
        if isinstance(collect.predicate, TagIs) and not isinstance(policy, KeepAll):
            raise UsageError("a tag predicate needs a stream that keeps all events")
