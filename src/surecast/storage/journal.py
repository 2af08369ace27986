"""A disk that survives: everything in memory, and every change in one append-only file.

Machines read the memory (`disk`). Each storage effect changes it at once and is queued as a record
for the file; one thread writes all that is queued, syncs once and hands back the answers, while the
next records gather (group commit). Opening a journal plays its records again.

**Crashes.** The last unsynced writes may be torn; the file is cut at its last whole record. Damage
below what was synced is an error that names the place (records.py tells the two apart).

**Failures.** A record that cannot be written fails, with everything behind it: memory goes back to
where it was before, and the answers say so. Room found later is used again. A sync that fails is
final, for nobody knows what is on disk after it. A truncate has no answer and so cannot fail: it is
kept, and written before anything else is.

**Growth.** When the file is a multiple of what it holds, it is written anew beside itself and
renamed into place.

Enough for real crashes; segments, and reads that do not live in memory, come with the server's log.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from surecast.core.types import Append, Batch, LogId, SaveState, Truncate
from surecast.core.wire import DEFAULT_LIMITS, Limits
from surecast.errors import StorageError
from surecast.storage.journal_file import JournalFile
from surecast.storage.memory import MemoryDisk
from surecast.storage.records import (
    LIFE,
    Record,
    number_record,
    read_records,
    record_of,
)
from surecast.storage.store import apply, failed

__all__ = ["Journal"]

log = logging.getLogger("surecast.storage")

_REWRITE_BYTES_MIN: Final = 16 << 20  # below this a journal may be all garbage
_REWRITE_RATIO: Final = 3  # file bytes per live byte
_SNAPSHOT_BATCHES: Final = 256  # in one record of a file written anew
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Entry:
    """An effect on its way to the file."""

    __slots__ = ("after", "answer", "before", "effect", "record")

    def __init__(
        self, effect: Any, record: Record | None, answer: Any, before: int, after: int
    ) -> None:
        self.effect = effect
        self.record = record  # None: nothing to write, only an answer to give in its turn
        self.answer = answer
        self.before = before  # the disk's mark before and after the change
        self.after = after


class _Snapshot:
    """All that a journal holds, at one place in the order of effects."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.logs: list[tuple[LogId, list[Batch]]] = [
            (log, disk.read(log, 1, disk.end(log), 1 << 62)) for log in disk.logs()
        ]
        self.states = [(name, disk.state(name)) for name in disk.states()]

    def records(self, incarnation: int, limits: Limits) -> Iterator[Record]:
        yield number_record(LIFE, incarnation)
        for log, batches in self.logs:
            for at in range(0, len(batches), _SNAPSHOT_BATCHES):
                some = tuple(batches[at : at + _SNAPSHOT_BATCHES])
                yield record_of(Append(log, some, None), limits)
        for name, data in self.states:
            assert data is not None
            yield record_of(SaveState(name, data, None), limits)


class Journal:
    """Implements `storage.store.Store` in a directory of its own. Opened by the constructor."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        sync: Literal["data", "none"] = "data",
        limits: Limits = DEFAULT_LIMITS,
        rewrite_bytes_min: int = _REWRITE_BYTES_MIN,
    ) -> None:
        self.path = Path(directory) / "journal"
        self.disk = MemoryDisk()
        self.incarnation = 0
        self.cut_bytes = 0  # of a torn tail, when opened
        self.rewrites = 0
        self._limits = limits
        self._rewrite_bytes_min = self._rewrite_at = rewrite_bytes_min
        self._wake: Callable[[], None] = lambda: None
        self._work = threading.Condition()  # guards what follows
        self._queue: list[_Entry | _Snapshot] = []
        self._done: list[tuple[_Entry, str]] = []  # with "" or why it failed
        self._failed = False  # the writer waits until the loop has set memory back
        self._closing = False
        self._rewriting = False
        self._owed: list[Truncate] = []  # of failed writes: to be written with the next one
        self._file = JournalFile(self.path, sync == "data")
        try:
            self._replay()
        except BaseException:
            self._file.close()
            raise
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def _replay(self) -> None:
        """Bring memory to where the file is, and begin a new life."""
        end = 0
        try:
            data = memoryview(self.path.read_bytes())
            for end, record in read_records(data, self._limits):  # noqa: B007
                self._redo(record)
        except OSError as problem:
            raise StorageError(f"cannot read {self.path}: {problem}") from problem
        except StorageError as problem:
            raise StorageError(f"{self.path}: {problem}") from problem
        self.disk.sync()
        self.cut_bytes = len(data) - end
        self.incarnation += 1
        try:
            self._file.cut(end)
            _, unwritten = self._file.append([number_record(LIFE, self.incarnation)])
            if unwritten is not None:  # the next life would take itself for this one
                raise unwritten
            self._file.sync()
        except OSError as problem:
            raise StorageError(f"cannot write to {self.path}: {problem}") from problem

    def _redo(self, record: Any) -> None:
        if type(record) is tuple:
            kind, number = record
            if kind == LIFE:
                self.incarnation = number
        elif type(record) is Append:
            self.disk.append(record.log, record.batches)
        elif type(record) is SaveState:
            self.disk.save(record.name, record.data)
        elif type(record) is Truncate:
            self.disk.truncate(record.log, record.end)
        else:
            self.disk.compact(record.log, record.batches)

    # ------------------------------------------------------------ the loop's side

    def attach(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def perform(self, effect: Any) -> None:
        disk = self.disk
        record = record_of(effect, self._limits)
        before = disk.written
        answer = apply(disk, effect)
        after = disk.written
        with self._work:
            for truncate in self._owed:
                owed = record_of(truncate, self._limits)
                self._queue.append(_Entry(truncate, owed, None, before, before))
            self._owed.clear()
            entry = _Entry(effect, record if after > before else None, answer, before, after)
            self._queue.append(entry)
            size = self._file.size
            if not self._rewriting and size > max(self._rewrite_at, _REWRITE_RATIO * disk.nbytes):
                self._rewriting = True
                self._queue.append(_Snapshot(disk))
            self._work.notify()

    def collect(self) -> list[Any]:
        """The answers to give; where something failed, memory is set back first."""
        with self._work:
            done, self._done = self._done, []
            if self._failed:
                rest, self._queue = self._queue, []
                reason = done[-1][1]
                done += [(entry, reason) for entry in rest if type(entry) is _Entry]
                self._rewriting = False
                self._set_back([entry for entry, why in done if why])
                self._failed = False
                self._work.notify()
        synced = [entry.after for entry, why in done if not why]
        if synced:
            self.disk.sync(synced[-1])
        answers = [failed(e.effect, why) if why and e.record else e.answer for e, why in done]
        return [answer for answer in answers if answer is not None]

    def _set_back(self, entries: list[_Entry]) -> None:
        self.disk.rollback(entries[0].before)
        for entry in entries:
            if type(entry.effect) is Truncate:
                self.disk.truncate(entry.effect.log, entry.effect.end)
                self._owed.append(entry.effect)

    def close(self) -> None:
        """Write what is queued and let go of the file."""
        with self._work:
            if self._closing:
                return
            self._closing = True
            self._work.notify()
        self._thread.join()
        self._file.close()

    # ------------------------------------------------------------ the writer's side

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._closing and (self._failed or not self._queue):
                    self._work.wait()
                if self._failed or not self._queue:
                    return  # closing; and what is queued behind a failure has failed, too
                group, self._queue = self._queue, []
            try:
                done = self._commit(group)
            except Exception as bug:  # of ours: a writer that died in silence would answer nobody
                log.exception("%s: nothing more is written", self.path)
                self._file.give_up(OSError(errno.EIO, repr(bug)))
                done = [(entry, "io") for entry in group if type(entry) is _Entry]
            with self._work:
                self._done += done
                self._failed = bool(done) and bool(done[-1][1])
                idle = not self._queue and not self._failed
            if done:
                self._wake()
            if idle:
                self._file.mark()

    def _commit(self, group: list[_Entry | _Snapshot]) -> list[tuple[_Entry, str]]:
        """Write and sync a group; each entry with "" or why it, and all behind it, failed."""
        done: list[tuple[_Entry, str]] = []
        entries: list[_Entry] = []
        for item in group:
            if type(item) is _Entry:
                entries.append(item)
            elif type(item) is _Snapshot:
                done += self._write(entries, done)
                entries = []
                if not (done and done[-1][1]):
                    self._rewrite(item)
        return done + self._write(entries, done)

    def _write(
        self, entries: list[_Entry], before: list[tuple[_Entry, str]]
    ) -> list[tuple[_Entry, str]]:
        if before and before[-1][1]:
            return [(entry, before[-1][1]) for entry in entries]
        records = [entry.record for entry in entries if entry.record is not None]
        whole, reason = len(records), ""
        try:
            whole, problem = self._file.append(records)
            if problem is not None:
                reason = "full" if problem.errno in _FULL else "io"
            self._file.sync()
        except OSError:  # of the sync: nobody knows what is on disk
            whole, reason = 0, "io"
        out: list[tuple[_Entry, str]] = []
        for entry in entries:
            whole -= entry.record is not None
            out.append((entry, reason if whole < 0 else ""))
        return out

    def _rewrite(self, snapshot: _Snapshot) -> None:
        try:
            self._file.replace(snapshot.records(self.incarnation, self._limits))
            self.rewrites += 1
            self._rewrite_at = self._rewrite_bytes_min
        except OSError:  # no room for both: the old file is as good as before
            self._rewrite_at = 2 * self._file.size
        self._rewriting = False
