"""Computes the 16-byte id of a named publisher from its name, for `Stream.named`.

The servers recognise a batch that was published before by the id of its publisher and the numbers
of its events (protocols/chain/dedup.py). In the id of a named publisher the first eight bytes are
zero. The other eight are a 64-bit hash of the name.

64 bits are enough. Ids are compared only within one stream. If a stream has n named publishers, the
probability that any two of them have the same id is about n²/2^65: 3 in 10^8 for a million
publishers, 3 in 10^4 for a hundred million. In practice a stream has far fewer, because the
replicas keep the state of every named publisher in memory for ever. A deliberate collision gains
nothing, because a client that may publish may use any id.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from uuid import UUID

from surecast.columns.batch import NO_PUBLISHER
from surecast.errors import UsageError

__all__ = ["publisher_id"]

_NAMED: Final = bytes(8)  # the first half of the id of a named publisher


def publisher_id(name: str | bytes | UUID) -> bytes:
    """The id of the publisher with this name, which is any string, any 16 bytes, or a UUID.

    The same name gives the same id in every process and version. A UUID and its 16 bytes are the
    same name; the text of the UUID is another name. 16 bytes that begin with eight zeros are an id
    already and are returned unchanged, except for 16 zeros, which mean "no publisher" in a batch.
    """
    if isinstance(name, UUID):
        name = name.bytes
    if isinstance(name, str):
        # The prefixes s and b distinguish a string from the same 16 bytes.
        data = b"s" + name.encode("utf-8", "surrogatepass")
    elif isinstance(name, bytes) and len(name) == 16:
        if name.startswith(_NAMED) and name != NO_PUBLISHER:
            return name
        data = b"b" + name
    else:
        what = f"{len(name)} bytes" if isinstance(name, bytes) else repr(name)
        raise UsageError(
            f"the name of a publisher is a string, a UUID or exactly 16 bytes, not {what:.60}"
        )
    return _NAMED + blake2b(data, digest_size=8, person=b"surecast named").digest()
