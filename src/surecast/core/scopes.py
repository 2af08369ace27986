"""Scopes: which part of its node's disk a layer can read and write.

A layer can read its own states and logs, and the logs of the layers below, through a `Scope`. For
writing, `core.compose` prefixes the names of a layer's states with the layer's name, and adds the
layer's tag to the effects that write to logs. A log belongs to the layer that appended to it first;
an append by another layer fails. If only the batches of a log could be salvaged from a damaged
folder, it is not known which layer owned it. All layers can read such a log, and it belongs to the
next layer that appends to it. The state `DAMAGE` concerns the whole disk and is the same for every
layer.
"""

from collections.abc import Sequence
from functools import cache
from zlib import crc32

from surecast.core.types import DAMAGE, Batch, Disk, LogId

__all__ = ["NO_SCOPE", "Scope", "scope_tag", "state_name"]

NO_SCOPE = 0  # for a machine without layers, and for logs whose owner is not known


@cache
def scope_tag(layer: str) -> int:
    """The number that stands for a layer in files: 24 bits, never 0."""
    return crc32(layer.encode()) % 0xFFFFFF + 1


def state_name(layer: str, name: str) -> str:
    """The name of a layer's state on disk."""
    return name if name == DAMAGE else f"{layer}/{name}"


class Scope:
    """A `core.types.Disk` for one layer; `below` are the other layers whose logs it can read."""

    def __init__(self, disk: Disk, layer: str, below: Sequence[str] = ()) -> None:
        self._disk = disk
        self._layer = layer
        self._seen = frozenset((NO_SCOPE, scope_tag(layer), *map(scope_tag, below)))

    def scope_of(self, log: LogId) -> int:
        return self._disk.scope_of(log)

    def logs(self) -> list[LogId]:
        return [log for log in self._disk.logs() if self._disk.scope_of(log) in self._seen]

    def end(self, log: LogId) -> int:
        return self._disk.end(log) if self._disk.scope_of(log) in self._seen else 1

    def read(self, log: LogId, lo: int, hi: int, nbytes_max: int) -> list[Batch]:
        if self._disk.scope_of(log) not in self._seen:
            return []
        return self._disk.read(log, lo, hi, nbytes_max)

    def holes(self, log: LogId) -> list[tuple[int, int]]:
        return self._disk.holes(log) if self._disk.scope_of(log) in self._seen else []

    def first_at(self, log: LogId, time_ns: int, lo: int, hi: int) -> int:
        if self._disk.scope_of(log) not in self._seen:
            return hi
        return self._disk.first_at(log, time_ns, lo, hi)

    def state(self, name: str) -> bytes | None:
        return self._disk.state(state_name(self._layer, name))
