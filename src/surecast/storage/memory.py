"""The disk of a simulated node: logs and small states, and what a crash leaves of them.

A `MemoryDisk` shows a machine everything written so far (`core.types.Disk`). Beneath, it keeps what
is not synced yet as a list of undo records, oldest first: one per batch appended, per truncate, per
compact and per saved state. `sync` forgets them, `crash` plays them backwards down to a random
prefix. So a crash may tear an append of several batches, but never brings back a later write
without the earlier ones, and never touches what was synced.

The driver times the syncs; nothing here knows a clock.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from random import Random

from surecast.core.types import Batch, LogId
from surecast.errors import StorageError

__all__ = ["DiskFull", "MemoryDisk"]


class DiskFull(StorageError):
    """There is no room for what was to be written."""


class _Log:
    """Batches without gaps from position 1; `starts[i]` is `batches[i].lo`."""

    __slots__ = ("batches", "end", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.batches: list[Batch] = []
        self.end = 1

    def replace(self, first: int, last: int, batches: Sequence[Batch]) -> list[Batch]:
        """Put `batches` in the place of the batches at [first, last); return those."""
        old = self.batches[first:last]
        self.batches[first:last] = batches
        self.starts[first:last] = [batch.lo for batch in batches]
        self.end = self.batches[-1].hi if self.batches else 1
        return old


# Undo records. A log change puts `old` back in the place of `count` batches at `first`; a state
# change puts `old` back under its name (None: there was none).
_LogUndo = tuple[_Log, int, int, list[Batch]]
_StateUndo = tuple[str, bytes | None]


class MemoryDisk:
    """Implements `core.types.Disk`, and for the driver append, truncate, compact, save, sync."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self.failing = ""  # "" | "full" | "io"
        self._logs: dict[LogId, _Log] = {}
        self._states: dict[str, bytes] = {}
        self._unsynced: list[_LogUndo | _StateUndo] = []
        self._forgotten = 0  # undo records synced away so far

    # ------------------------------------------------------------ what machines read

    def logs(self) -> list[LogId]:
        return [name for name, log in self._logs.items() if log.batches]

    def end(self, log: LogId) -> int:
        found = self._logs.get(log)
        return found.end if found is not None else 1

    def read(self, log: LogId, lo: int, hi: int, nbytes_max: int) -> list[Batch]:
        found = self._logs.get(log)
        if found is None:
            return []
        lo, hi = max(lo, 1), min(hi, found.end)
        if lo >= hi:
            return []
        out: list[Batch] = []
        nbytes = 0
        for index in range(bisect_right(found.starts, lo) - 1, len(found.batches)):
            batch = found.batches[index]
            if batch.lo >= hi or nbytes > nbytes_max:
                break
            if batch.lo < lo or batch.hi > hi:
                batch = batch.slice(lo, hi)
            out.append(batch)
            nbytes += batch.nbytes
        return out

    def state(self, name: str) -> bytes | None:
        return self._states.get(name)

    def states(self) -> list[str]:
        return list(self._states)

    # ------------------------------------------------------------ what the driver writes

    def append(self, log: LogId, batches: Sequence[Batch]) -> None:
        """Extend `log`, or raise StorageError and change nothing."""
        found = self._log(log)
        end = found.end
        nbytes = 0
        for batch in batches:
            if batch.lo != end or batch.hi <= end:
                raise StorageError(f"append at [{batch.lo}, {batch.hi}), but the log ends at {end}")
            end = batch.hi
            nbytes += batch.nbytes
        self._make_room(nbytes)
        for batch in batches:
            self._unsynced.append((found, len(found.batches), 1, []))
            found.starts.append(batch.lo)
            found.batches.append(batch)
        found.end = end
        self.nbytes += nbytes

    def truncate(self, log: LogId, end: int) -> None:
        """Drop every position at or above `end`. Works on a full or failing disk, too."""
        found = self._log(log)
        end = max(end, 1)
        if end >= found.end:
            return
        first = bisect_right(found.starts, end - 1) - 1 if end > 1 else 0
        keep = []
        if end > 1:
            cut = found.batches[first]
            if cut.hi > end:
                keep = [cut.slice(cut.lo, end)]
            else:
                first += 1
        self._replace(found, first, len(found.batches), keep)

    def compact(self, log: LogId, batches: Sequence[Batch]) -> None:
        """Put `batches` in the place of all positions below the last one's end."""
        found = self._log(log)
        if not batches:
            return
        lo = 1
        for batch in batches:
            if batch.lo != lo or batch.hi <= lo:
                raise StorageError(f"compact with [{batch.lo}, {batch.hi}) where {lo} was due")
            lo = batch.hi
        if lo > found.end:
            raise StorageError(f"compact up to {lo}, but the log ends at {found.end}")
        if self.failing == "io":
            raise StorageError("io")
        last = bisect_right(found.starts, lo - 1)
        keep = list(batches)
        if found.batches[last - 1].hi > lo:  # the new prefix ends inside an old batch
            cut = found.batches[last - 1]
            keep.append(cut.slice(lo, cut.hi))
        self._replace(found, 0, last, keep)

    def save(self, name: str, data: bytes) -> None:
        """Replace the state under `name`, or raise StorageError and change nothing."""
        old = self._states.get(name)
        growth = len(data) - (len(old) if old is not None else 0)
        self._make_room(growth)
        self._unsynced.append((name, old))
        self._states[name] = data
        self.nbytes += growth

    def forget(self, name: str) -> None:
        """Have no state under `name`: as if it had never been saved."""
        old = self._states.pop(name, None)
        self.nbytes -= len(old) if old is not None else 0

    # ------------------------------------------------------------ durability

    @property
    def written(self) -> int:
        """How many changes were made so far; a mark for `sync`."""
        return self._forgotten + len(self._unsynced)

    @property
    def unsynced(self) -> int:
        return len(self._unsynced)

    def sync(self, up_to: int | None = None) -> None:
        """Everything up to the mark `up_to` (default: all) now survives a crash."""
        count = len(self._unsynced) if up_to is None else up_to - self._forgotten
        if count > 0:
            del self._unsynced[:count]
            self._forgotten += count

    def rollback(self, mark: int) -> None:
        """Undo what was written since `written` was `mark`; none of it may be synced."""
        assert self._forgotten <= mark <= self.written
        while self.written > mark:
            self._undo(self._unsynced.pop())

    def crash(self, rng: Random, lose_unsynced: bool = True) -> int:
        """Keep a random prefix of the unsynced changes; return how many were lost."""
        lost = rng.randint(0, len(self._unsynced)) if lose_unsynced else 0
        for _ in range(lost):
            self._undo(self._unsynced.pop())
        self.sync()
        return lost

    def wipe(self) -> None:
        """A new, empty disk."""
        self._logs.clear()
        self._states.clear()
        self._unsynced.clear()
        self.nbytes = 0

    def fail(self, reason: str) -> None:
        """From now on appends and saves fail: "full" or "io" (which fails compaction, too)."""
        assert reason in ("full", "io"), reason
        self.failing = reason

    def heal(self) -> None:
        self.failing = ""

    # ------------------------------------------------------------ inside

    def _log(self, name: LogId) -> _Log:
        found = self._logs.get(name)
        if found is None:
            found = self._logs[name] = _Log()
        return found

    def _make_room(self, nbytes: int) -> None:
        if self.failing == "io":
            raise StorageError("io")
        full = self.capacity_bytes is not None and self.nbytes + nbytes > self.capacity_bytes
        if self.failing == "full" or full:
            raise DiskFull("full")

    def _replace(self, log: _Log, first: int, last: int, batches: list[Batch]) -> None:
        old = log.replace(first, last, batches)
        self._unsynced.append((log, first, len(batches), old))
        self.nbytes += _nbytes(batches) - _nbytes(old)

    def _undo(self, record: _LogUndo | _StateUndo) -> None:
        if len(record) == 4:
            log, first, count, old = record
            new = log.replace(first, first + count, old)
            self.nbytes += _nbytes(old) - _nbytes(new)
            return
        name, data = record
        self.nbytes += (len(data) if data is not None else 0) - len(self._states[name])
        if data is None:
            del self._states[name]
        else:
            self._states[name] = data


def _nbytes(batches: Iterable[Batch]) -> int:
    return sum(batch.nbytes for batch in batches)
