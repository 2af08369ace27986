"""The interface between a driver and its store, and a store that is only in memory.

A *state machine* is the logic of a node, without input and output. Its *driver* (the simulator or
the asyncio runtime) performs what it requests. A request is called an *effect*; the effects for the
store are Append, Truncate, Repair, Compact, Read and SaveState (core/types.py).

The driver passes each storage effect to `Store.perform`, which returns at once. When effects are
complete, the store calls `wake` (from any thread), and the driver fetches their answers with
`collect`. Answers have the order of the effects, except those of compactions and reads, which run
in the background. `collect` also returns `ColdBelow` when batches have left the memory. State
machines read the stored data through `disk`.

A compaction changes the log at a defined moment: when the driver calls `show` with the answer
`Compacted`, just before it passes this answer to the state machine.
"""

from collections.abc import Callable
from typing import Any, Protocol

from surecast.core.types import (
    Append,
    Compact,
    Compacted,
    Loaded,
    Read,
    Repair,
    SaveState,
    Stored,
    StoreFailed,
    Truncate,
)
from surecast.errors import StorageError
from surecast.storage.memory import DiskFull, MemoryDisk

__all__ = ["MemoryStore", "Store", "apply", "failed", "load", "timely"]


class Store(Protocol):
    """What a driver needs of a store; see the module's docstring."""

    incarnation: int  # the number of the node's current run

    @property
    def disk(self) -> MemoryDisk: ...

    def attach(self, wake: Callable[[], None]) -> None: ...

    def perform(self, effect: Any) -> None: ...

    def collect(self) -> list[Any]: ...

    def show(self, given: Compacted) -> None: ...  # before the driver passes `given` on

    def close(self) -> None: ...


def apply(disk: MemoryDisk, effect: Any) -> Any:
    """Perform a storage effect on `disk`.

    Returns the answer to give once the change is durable (None for a Truncate, which has no
    answer). A compaction is only registered here, and `MemoryDisk.show` performs it later. A
    truncate may drop it before that; therefore its answer must go through `timely`.
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


def load(disk: MemoryDisk, effect: Read) -> Loaded:
    """The answer to a Read, made at once."""
    try:
        batches = disk.read(effect.log, effect.lo, effect.hi, effect.nbytes_max)
    except StorageError as problem:
        return Loaded(effect.token, (), str(problem))
    return Loaded(effect.token, tuple(batches))


def failed(effect: Any, reason: str) -> StoreFailed | None:
    """The answer to an effect that failed; None for a Truncate, which has no answer."""
    return StoreFailed(effect.token, reason) if type(effect) is not Truncate else None


def timely(disk: MemoryDisk, answer: Any) -> Any:
    """Return `answer`; or StoreFailed if its compaction was dropped because of a truncate."""
    if type(answer) is Compacted and disk.wants(answer.token) is None:
        return StoreFailed(answer.token, "truncated")
    return answer


class MemoryStore:
    """A store in memory, for tests and for nodes without a data folder."""

    def __init__(self, disk: MemoryDisk | None = None, incarnation: int = 1) -> None:
        self.disk = disk if disk is not None else MemoryDisk()
        self.incarnation = incarnation
        self._answers: list[Any] = []
        self._wake: Callable[[], None] = lambda: None

    def attach(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def perform(self, effect: Any) -> None:
        answer = load(self.disk, effect) if type(effect) is Read else apply(self.disk, effect)
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
