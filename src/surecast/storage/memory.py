"""The disk of a simulated node: logs and small states, and what crashes do to them.

A state machine (the logic of a node) reads its disk through `core.types.Disk`, which `MemoryDisk`
implements: it sees everything written so far. A real node uses the subclass `SegmentDisk`. The
driver, which runs the state machine, performs the writes and decides when to sync; nothing here
uses a clock.

**Crashes.** For changes that are not synced yet, the disk keeps a list of undo records, oldest
first: one for each appended batch, truncate, compaction and saved state. `sync` drops these
records. `crash` keeps a random number of the oldest unsynced changes and undoes all others. So a
crash may tear an append of several batches. It never keeps a write without the earlier ones, and
never undoes a synced write.

**Pieces.** A log is a list of *pieces*. In a MemoryDisk a piece is a batch or a hole (positions
that cannot be read). A SegmentDisk also has extents, which stand for many batches in a file.

**Compactions** remove void (obsolete) events from a range of a log. A compaction is registered
first (`ask`) and changes the log later (`show`), when the driver gives the answer to the state
machine. It is dropped if a truncate or an undone write changes its range in between.

**Recordings.** A recording of a node contains what its state machine asked the driver to write. If
a write is refused or undone, the disk differs from that. The recorder fetches such differences with
`take_notes`. It sets `watcher`, which is called before a compaction makes a difference invisible.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from surecast.columns.compaction import compacted
from surecast.core.types import Batch, Compact, LogId, Token
from surecast.errors import StorageError

__all__ = ["DiskFull", "Hole", "MemoryDisk", "Unreadable"]


class DiskFull(StorageError):
    """There is no room for a write."""


class Unreadable(StorageError):
    """Positions in the range of a read are damaged or missing."""


class Hole:
    """A piece that stands for missing batches: [lo, hi) cannot be read."""

    __slots__ = ("hi", "lo", "why")
    nbytes = 0
    time_ns = 0

    def __init__(self, lo: int, hi: int, why: str) -> None:
        self.lo = lo
        self.hi = hi
        self.why = why

    def __repr__(self) -> str:
        return f"Hole([{self.lo}, {self.hi}): {self.why})"

    def slice(self, lo: int, hi: int) -> "Hole":
        return Hole(max(lo, self.lo), min(hi, self.hi), self.why)

    def problem(self) -> Unreadable:
        return Unreadable(f"positions [{self.lo:,}, {self.hi:,}) cannot be read: {self.why}")


class Log:
    """A log: pieces without gaps from position 1; `starts[i]` is `pieces[i].lo`."""

    __slots__ = ("end", "name", "pieces", "scope", "starts")

    def __init__(self, name: LogId) -> None:
        self.name = name
        self.starts: list[int] = []
        self.pieces: list[Any] = []
        self.end = 1  # the position after the last one
        self.scope = 0  # number of the layer that the log belongs to (`core.compose`); 0: not known

    def replace(self, first: int, last: int, pieces: Sequence[Any]) -> list[Any]:
        """Replace the pieces with indices [first, last) by `pieces`; returns the old ones."""
        old = self.pieces[first:last]
        self.pieces[first:last] = pieces
        self.starts[first:last] = [piece.lo for piece in pieces]
        self.end = self.pieces[-1].hi if self.pieces else 1
        return old


# Undo records. The record of a log change is (log, lo, hi, old): undoing it restores the pieces
# `old` at the positions [lo, hi). Indices would not do, because pieces may be joined meanwhile. The
# record of a state change is (name, data): undoing it restores the old data (None: there was no
# state).
_LogUndo = tuple[Log, int, int, Sequence[Any]]
_StateUndo = tuple[str, bytes | None]


class MemoryDisk:
    """Implements `core.types.Disk`, and for the driver append, truncate, compact, save, sync."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes  # None: unlimited
        self.nbytes = 0  # size of all pieces and states
        self.failing = ""  # "full" or "io": writes fail for this reason; "": they succeed
        self._logs: dict[LogId, Log] = {}
        self._states: dict[str, bytes] = {}
        self._unsynced: list[_LogUndo | _StateUndo] = []
        self._forgotten = 0  # number of undo records dropped by `sync` so far
        self._asked: list[Compact] = []  # compactions not shown yet
        self._holed = False  # whether logs may have holes
        # Where the disk differs from what the state machine asked to write, since the last
        # `take_notes`: logs, with the first position that differs, and names of states.
        self._odd_logs: dict[LogId, int] = {}
        self._odd_states: dict[str, None] = {}
        self.watcher: Callable[[], None] | None = None  # called before a compaction is shown

    # ------------------------------------------------------------ what state machines read

    def logs(self) -> list[LogId]:
        return [name for name, log in self._logs.items() if log.pieces]

    def scope_of(self, log: LogId) -> int:
        found = self._logs.get(log)
        return found.scope if found is not None else 0

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
        for index in range(bisect_right(found.starts, lo) - 1, len(found.pieces)):
            batch = found.pieces[index]
            if batch.lo >= hi or nbytes > nbytes_max:
                break
            if type(batch) is Hole:
                if not out:
                    raise batch.problem()
                break
            if batch.lo < lo or batch.hi > hi:
                batch = batch.slice(lo, hi)
            out.append(batch)
            nbytes += batch.nbytes
        return out

    def holes(self, log: LogId) -> list[tuple[int, int]]:
        return [(hole.lo, hole.hi) for hole in self.hole_pieces(log)]

    def hole_pieces(self, log: LogId) -> list[Hole]:
        """The holes of a log with their reasons, in order."""
        if not self._holed:
            return []
        found = self._logs.get(log)
        return [p for p in found.pieces if type(p) is Hole] if found is not None else []

    def first_at(self, log: LogId, time_ns: int, lo: int, hi: int) -> int:
        """The first position of [lo, hi) in a batch whose time is not before `time_ns`, or hi."""
        found = self._logs.get(log)
        if found is None:
            return hi
        lo = max(lo, 1)
        for index in range(max(bisect_right(found.starts, lo) - 1, 0), len(found.pieces)):
            batch = found.pieces[index]
            if batch.lo >= hi:
                break
            if batch.time_ns >= time_ns and batch.hi > lo:
                return max(int(batch.lo), lo)
        return hi

    def state(self, name: str) -> bytes | None:
        return self._states.get(name)

    def states(self) -> list[str]:
        return list(self._states)

    # ------------------------------------------------------------ what the driver writes

    def claim(self, log: LogId, scope: int) -> None:
        """Assign the log to this scope; raise StorageError if it belongs to another one."""
        found = self._log(log)
        if found.scope == scope or not scope:
            return
        if found.scope:
            raise StorageError(f"log {log.hex()} belongs to another layer of this node")
        found.scope = scope

    def append(self, log: LogId, batches: Sequence[Batch], scope: int = 0) -> None:
        """Extend `log`, or raise StorageError and change nothing."""
        found = self._log(log)
        if found.scope != scope:
            self.claim(log, scope)
        end = found.end
        nbytes = 0
        try:
            for batch in batches:
                if batch.lo != end or batch.hi <= end:
                    raise StorageError(
                        f"append at [{batch.lo}, {batch.hi}), but the log ends at {end}"
                    )
                end = batch.hi
                nbytes += batch.nbytes
            self._make_room(nbytes)
        except StorageError:
            self._note(found, found.end)
            raise
        for batch in batches:
            found.starts.append(batch.lo)
            found.pieces.append(batch)
            self._unsynced.append((found, batch.lo, batch.hi, ()))
        found.end = end
        self.nbytes += nbytes

    def skip(self, log: LogId, hi: int, why: str) -> None:
        """Append a hole up to `hi`: the log had these positions, but they cannot be read."""
        found = self._log(log)
        if hi > found.end:
            self._replace(found, len(found.pieces), len(found.pieces), [Hole(found.end, hi, why)])
            self._holed = True

    def damage(self, log: LogId, lo: int, hi: int, why: str) -> None:
        """Replace the positions of [lo, hi) that the log holds by a hole."""
        lo, hi = max(lo, 1), min(hi, self.end(log))
        if lo < hi:
            self.splice(log, lo, hi, [Hole(lo, hi, why)])
            self._holed = True

    def repair(self, log: LogId, batches: Sequence[Batch]) -> None:
        """Replace holes by batches, or raise StorageError and change nothing."""
        holes = self.holes(log)
        for batch in batches:
            if not any(lo <= batch.lo < batch.hi <= hi for lo, hi in holes):
                raise StorageError(f"repair of [{batch.lo}, {batch.hi}), which is not a hole")
        try:
            self._make_room(_nbytes(batches))
        except StorageError:
            self._note(self._log(log), batches[0].lo)
            raise
        for batch in batches:
            self.splice(log, batch.lo, batch.hi, [batch])

    def truncate(self, log: LogId, end: int) -> None:
        """Drop every position at or above `end`. Works on a full or failing disk, too."""
        found = self._log(log)
        end = max(end, 1)
        if end >= found.end:
            return
        first = bisect_left(found.starts, end)
        keep: list[Any] = []
        if first and found.pieces[first - 1].hi > end:
            first -= 1
            keep = self._below(found.pieces[first], end)
        self._replace(found, first, len(found.pieces), keep)
        self._drop_above(found, end)

    def save(self, name: str, data: bytes) -> None:
        """Replace the state under `name`, or raise StorageError and change nothing."""
        old = self._states.get(name)
        growth = len(data) - (len(old) if old is not None else 0)
        try:
            self._make_room(growth)
        except StorageError:
            self._odd_states[name] = None
            raise
        self._unsynced.append((name, old))
        self._states[name] = data
        self.nbytes += growth

    def forget(self, name: str) -> None:
        """Remove the state under `name`, as if it had never been saved."""
        old = self._states.pop(name, None)
        self.nbytes -= len(old) if old is not None else 0

    # ------------------------------------------------------------ compaction

    def ask(self, effect: Compact) -> None:
        """Register a compaction, to be shown later; raise StorageError if it is not possible."""
        end = self.end(effect.log)
        if not 1 <= effect.lo < effect.hi <= end:
            raise StorageError(
                f"compact [{effect.lo}, {effect.hi}), but the log has positions up to {end}"
            )
        if self.failing == "io":
            raise StorageError("io")
        self._asked.append(effect)

    def wants(self, token: Token) -> Compact | None:
        """The compaction under `token`, unless it was dropped or shown."""
        for effect in self._asked:
            if effect.token is token:
                return effect
        return None

    def drop(self, token: Token) -> None:
        self._asked = [effect for effect in self._asked if effect.token is not token]

    def show(self, token: Token) -> bool:
        """Perform the compaction under `token` and return True; or return False if it was
        dropped."""
        effect = self.wants(token)
        if effect is None:
            return False
        self.drop(token)
        log, lo, hi = effect.log, effect.lo, effect.hi
        batches = self.read(log, lo, hi, 1 << 62)
        self.splice(log, lo, hi, compacted(batches, effect.voids, effect.rows_max))
        return True

    def splice(self, log: LogId, lo: int, hi: int, pieces: Sequence[Any]) -> None:
        """Replace [lo, hi) by `pieces`. The parts of old pieces outside this range are kept."""
        if self.odd and self.watcher is not None:
            self.watcher()
        found = self._log(log)
        first = bisect_right(found.starts, lo) - 1
        last = bisect_right(found.starts, hi - 1)
        before, after = found.pieces[first], found.pieces[last - 1]
        left = self._below(before, lo) if before.lo < lo else []
        right = self._above(after, hi) if after.hi > hi else []
        self._replace(found, first, last, [*left, *pieces, *right])

    def _drop_above(self, log: Log, lo: int) -> None:
        """Drop registered compactions that include positions from `lo` on, which have changed."""
        if self._asked:
            self._asked = [e for e in self._asked if e.log != log.name or e.hi <= lo]

    # ------------------------------------------------------------ durability

    @property
    def written(self) -> int:
        """The number of changes so far; used as a mark for `sync` and `rollback`."""
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
        """Undo the changes made since `written` was `mark`; none of them may be synced."""
        assert self._forgotten <= mark <= self.written
        while self.written > mark:
            self._undo(self._unsynced.pop())

    def crash(self, rng: Random, lose_unsynced: bool = True) -> int:
        """Keep a random prefix of the unsynced changes; return how many were lost."""
        lost = rng.randint(0, len(self._unsynced)) if lose_unsynced else 0
        for _ in range(lost):
            self._undo(self._unsynced.pop())
        self.sync()
        self._asked.clear()
        self.take_notes()
        return lost

    def wipe(self) -> None:
        """Remove everything: the disk is replaced by a new one."""
        self._logs.clear()
        self._states.clear()
        self._unsynced.clear()
        self._asked.clear()
        self.nbytes = 0
        self._holed = False

    def copy(self) -> "MemoryDisk":
        """A disk with the same content, all of it synced: a backup of the folder."""
        other = MemoryDisk(self.capacity_bytes)
        other.restore(self)
        return other

    def restore(self, copy: "MemoryDisk") -> None:
        """Replace all content by that of `copy`: the folder is replaced by a backup."""
        self.wipe()
        for name, log in copy._logs.items():
            found = self._log(name)
            found.replace(0, 0, log.pieces)
            found.scope = log.scope
        self._states.update(copy._states)
        self.nbytes = copy.nbytes
        self._holed = copy._holed

    def fail(self, reason: str) -> None:
        """From now on appends and saves fail with `reason`: "full", or "io" (then compactions fail,
        too)."""
        assert reason in ("full", "io"), reason
        self.failing = reason

    def heal(self) -> None:
        self.failing = ""

    @property
    def odd(self) -> bool:
        """Whether `take_notes` would return something."""
        return bool(self._odd_logs or self._odd_states)

    def take_notes(self) -> tuple[dict[LogId, int], list[str]]:
        """Logs (with the first position that differs) and states that are not as the state machine
        asked to write them, because writes were refused or undone since the last call."""
        logs, self._odd_logs = self._odd_logs, {}
        states, self._odd_states = list(self._odd_states), {}
        return logs, states

    # ------------------------------------------------------------ inside

    def _log(self, name: LogId) -> Log:
        found = self._logs.get(name)
        if found is None:
            found = self._logs[name] = Log(name)
        return found

    def _below(self, piece: Any, end: int) -> list[Any]:
        """The part of `piece` below `end` as pieces; `end` lies inside the piece."""
        return [piece.slice(piece.lo, end)]

    def _above(self, piece: Any, lo: int) -> list[Any]:
        """The part of `piece` from `lo` on as pieces; `lo` lies inside the piece."""
        return [piece.slice(lo, piece.hi)]

    def _make_room(self, nbytes: int) -> None:
        if self.failing == "io":
            raise StorageError("io")
        full = self.capacity_bytes is not None and self.nbytes + nbytes > self.capacity_bytes
        if self.failing == "full" or full:
            raise DiskFull("full")

    def _note(self, log: Log, lo: int) -> None:
        self._odd_logs[log.name] = min(lo, self._odd_logs.get(log.name, lo))

    def _replace(self, log: Log, first: int, last: int, pieces: list[Any]) -> None:
        lo = log.starts[first] if first < len(log.starts) else log.end
        old = log.replace(first, last, pieces)
        self._unsynced.append((log, lo, pieces[-1].hi if pieces else lo, old))
        self.nbytes += _nbytes(pieces) - _nbytes(old)

    def _undo(self, record: _LogUndo | _StateUndo) -> None:
        if len(record) == 4:
            log, lo, hi, old = record
            first, last = bisect_left(log.starts, lo), bisect_left(log.starts, hi)
            new = log.replace(first, last, old)
            self.nbytes += _nbytes(old) - _nbytes(new)
            self._note(log, lo)
            self._drop_above(log, lo)
            return
        name, data = record
        self.nbytes += (len(data) if data is not None else 0) - len(self._states[name])
        self._odd_states[name] = None
        if data is None:
            del self._states[name]
        else:
            self._states[name] = data


def _nbytes(pieces: Iterable[Any]) -> int:
    return sum(piece.nbytes for piece in pieces)
