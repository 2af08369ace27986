"""The thread that writes the journal: it writes all queued records, then syncs (group commit).

While the thread writes and syncs, the store (segments.py) queues further records. If a record
cannot be written, it fails together with all records after it. The thread then waits until the
store has undone the changes in memory and calls `resume`. A failed sync is final, because it is not
known what is on disk afterwards.

The content of journals is also in memory until it has moved to segments. If moves fall behind by
`backlog_bytes_max`, the thread waits for the move under way. This delays the answers, so the node
acknowledges events later and clients send less: memory stays bounded.
"""

import errno
import logging
import threading
from collections.abc import Callable
from typing import Any

from surecast.storage.folder import FULL
from surecast.storage.journal_file import JournalFile
from surecast.storage.mover import Snapshot
from surecast.storage.records import Record

__all__ = ["Entry", "JournalWriter"]

log = logging.getLogger("surecast.storage")


class Entry:
    """A storage operation (effect) on its way to the journal."""

    __slots__ = ("after", "answer", "before", "effect", "record")

    def __init__(
        self, effect: Any, record: Record | None, answer: Any, before: int, after: int
    ) -> None:
        self.effect = effect  # None: the store itself writes the record
        self.record = record  # None: nothing to write; the answer still has its place in the order
        self.answer = answer  # if the record is written; None: no answer is expected
        self.before = before  # `disk.written` before and after the change
        self.after = after


Item = Entry | Snapshot  # at a snapshot, the journal continues in a new file
Done = list[tuple[Entry, str]]  # entries with "" (written) or the reason of the failure


class JournalWriter:
    def __init__(
        self,
        file: JournalFile,
        wake: Callable[[], None],
        on_rotated: Callable[[Snapshot, int | OSError], None],
        sealed_bytes: int,
        backlog_bytes_max: int,
    ) -> None:
        self.pending_bytes = 0  # queued, or being written
        self._backlog_bytes_max = backlog_bytes_max
        self._sealed_bytes = sealed_bytes  # size of complete journals that have not moved
        self._leaving: int | None = None  # part of `_sealed_bytes` being moved; None: no move
        self._file = file
        self._wake = wake
        self._on_rotated = on_rotated  # called with the new file's number, or the error
        self._work = threading.Condition()  # guards the fields below and `pending_bytes`
        self._queue: list[Item] = []
        self._done: Done = []
        self._failed = False  # from a failed write until `resume`
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ called by the store

    @property
    def size(self) -> int:
        """The size of the journal's file, including queued records."""
        return self._file.size + self.pending_bytes

    def put(self, *items: Item) -> None:
        nbytes = 0
        for item in items:
            if type(item) is Entry and item.record is not None:
                nbytes += item.record.size
        with self._work:
            self._queue += items
            self.pending_bytes += nbytes
            self._work.notify()

    def take(self) -> tuple[Done, list[Snapshot], bool]:
        """Returns the results of entries in order, the snapshots that were dropped, and whether a
        write has failed.

        After a failed write, all queued entries have failed, too, queued snapshots are dropped, and
        the writer waits for `resume`.
        """
        with self._work:
            done, self._done = self._done, []
            dropped: list[Snapshot] = []
            if self._failed:
                rest, self._queue = self._queue, []
                self.pending_bytes = 0
                reason = done[-1][1]
                done += [(item, reason) for item in rest if type(item) is Entry]
                dropped = [item for item in rest if type(item) is Snapshot]
            return done, dropped, self._failed

    def relieve(self, moved: bool) -> None:
        """To be called when the move of the last snapshot has ended. `moved`: it succeeded."""
        with self._work:
            if moved and self._leaving is not None:
                self._sealed_bytes -= self._leaving
            self._leaving = None
            self._work.notify()

    def resume(self) -> None:
        """Continue to write after a failure, once its changes in memory are undone."""
        with self._work:
            self._failed = False
            self._work.notify()

    def close(self) -> None:
        """Write what is queued and close the file."""
        with self._work:
            if self._closing:
                return
            self._closing = True
            self._work.notify()
        self._thread.join()
        self._file.close()

    # ------------------------------------------------------------ inside the thread

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._closing and (self._failed or not self._queue or self._behind):
                    self._work.wait()
                if self._failed or not self._queue:
                    return  # closing; entries queued after a failed write have failed, too
                group, self._queue = self._queue, []
                nbytes = self.pending_bytes
            try:
                done = self._commit(group)
            except Exception as bug:  # a bug in this code: every entry still needs an answer
                log.exception("%s: nothing more is written", self._file.folder.path)
                self._file.give_up(OSError(errno.EIO, repr(bug)))
                done = [(item, "io") for item in group if type(item) is Entry]
            with self._work:
                self._done += done
                self._failed = bool(done) and bool(done[-1][1])
                self.pending_bytes -= nbytes
                idle = not self._queue and not self._failed
            if done:
                self._wake()
            if idle:
                self._file.mark()

    @property
    def _behind(self) -> bool:
        """Whether writing has to wait for the move under way."""
        return self._leaving is not None and self.backlog_bytes > self._backlog_bytes_max

    @property
    def backlog_bytes(self) -> int:
        """Bytes in journals that have not moved."""
        return self._sealed_bytes + self._file.size

    def _commit(self, group: list[Item]) -> Done:
        """Write and sync a group. Returns each entry with "" or the reason of its failure."""
        done: Done = []
        entries: list[Entry] = []
        for item in group:
            if type(item) is Entry:
                entries.append(item)
            elif type(item) is Snapshot:
                done += self._write(entries, done)
                entries = []
                self._rotate(item, bool(done) and bool(done[-1][1]))
        return done + self._write(entries, done)

    def _write(self, entries: list[Entry], before: Done) -> Done:
        """Write and sync entries; `before` are the results of earlier entries of the group."""
        if before and before[-1][1]:  # these have failed: so do all later entries
            return [(entry, before[-1][1]) for entry in entries]
        records = [entry.record for entry in entries if entry.record is not None]
        whole, reason = len(records), ""
        try:
            whole, problem = self._file.append(records)
            if problem is not None:
                reason = "full" if problem.errno in FULL else "io"
            self._file.sync()
        except OSError:  # the sync failed: it is not known what is on disk
            whole, reason = 0, "io"
        out: Done = []
        for entry in entries:
            whole -= entry.record is not None  # below 0: this record was not written completely
            out.append((entry, reason if whole < 0 else ""))
        return out

    def _rotate(self, snapshot: Snapshot, failed: bool) -> None:
        new: int | OSError = OSError("an earlier write has failed")
        if not failed:
            try:
                size = 0
                if self._file.has_effects:  # otherwise the current file can serve as the new one
                    size = self._file.rotate()
                new = self._file.number
                with self._work:
                    self._sealed_bytes += size
                    self._leaving = self._sealed_bytes
            except OSError as problem:  # no room for another file: continue in this one
                new = problem
        self._on_rotated(snapshot, new)
