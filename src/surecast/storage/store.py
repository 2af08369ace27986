"""Storage effects, performed: what a driver needs of a disk, and the disk that is only memory.

A `Store` shows machines its contents through `disk`. `perform` takes one storage effect and returns
at once; its answer comes out of `collect` some time after the store has called `wake` (from any
thread). Answers come in the order of the effects, but for those to compactions, which are done in
the background. The driver calls `show` with each `Compacted` just before it steps the machine with
it: that is when the log changes.
"""

from collections.abc import Callable
from typing import Any, Protocol

from surecast.core.types import (
    Append,
    Compact,
    Compacted,
    Repair,
    SaveState,
    Stored,
    StoreFailed,
    Truncate,
)
from surecast.errors import StorageError
from surecast.storage.memory import DiskFull, MemoryDisk

__all__ = ["MemoryStore", "Store", "apply", "failed", "timely"]


class Store(Protocol):
    incarnation: int  # of the node's present life

    @property
    def disk(self) -> MemoryDisk: ...

    def attach(self, wake: Callable[[], None]) -> None: ...

    def perform(self, effect: Any) -> None: ...

    def collect(self) -> list[Any]: ...

    def show(self, given: Compacted) -> None: ...

    def close(self) -> None: ...


def apply(disk: MemoryDisk, effect: Any) -> Any:
    """Make the change; the answer to give when it is durable, if one is owed.

    A compaction is only asked for: its answer, if `timely` lets it stand, is to be shown.
    """
    try:
        if type(effect) is Append:
            disk.append(effect.log, effect.batches, effect.scope)
            return Stored(effect.token)
        if type(effect) is SaveState:
            disk.save(effect.name, effect.data)
            return Stored(effect.token)
        if type(effect) is Repair:
            disk.claim(effect.log, effect.scope)
            disk.repair(effect.log, effect.batches)
            return Stored(effect.token)
        if type(effect) is Compact:
            disk.claim(effect.log, effect.scope)
            disk.ask(effect)
            return Compacted(effect.token)
    except StorageError as problem:
        return failed(effect, "full" if isinstance(problem, DiskFull) else "io")
    assert type(effect) is Truncate, effect
    disk.claim(effect.log, effect.scope)
    disk.truncate(effect.log, effect.end)
    return None


def failed(effect: Any, reason: str) -> StoreFailed | None:
    return StoreFailed(effect.token, reason) if type(effect) is not Truncate else None


def timely(disk: MemoryDisk, answer: Any) -> Any:
    """The answer as of now: a compaction that a truncate has cut into meanwhile failed."""
    if type(answer) is Compacted and disk.wants(answer.token) is None:
        return StoreFailed(answer.token, "truncated")
    return answer


class MemoryStore:
    """A disk that is as lasting as the object: for tests, and for nodes that keep nothing."""

    def __init__(self, disk: MemoryDisk | None = None, incarnation: int = 1) -> None:
        self.disk = disk if disk is not None else MemoryDisk()
        self.incarnation = incarnation
        self._answers: list[Any] = []
        self._wake: Callable[[], None] = lambda: None

    def attach(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def perform(self, effect: Any) -> None:
        answer = apply(self.disk, effect)
        self.disk.sync()
        if answer is not None:
            if not self._answers:
                self._wake()
            self._answers.append(answer)

    def collect(self) -> list[Any]:
        answers, self._answers = self._answers, []
        return [timely(self.disk, answer) for answer in answers]

    def show(self, given: Compacted) -> None:
        self.disk.show(given.token)
        self.disk.sync()

    def close(self) -> None:
        pass
