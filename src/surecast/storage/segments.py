"""The store of a real node: a journal for what is new, segments for what is not.

Every storage effect becomes a record of the journal, in order; one thread writes all that is
queued and syncs once (`journal_writer.py`). What machines read changes at once. When the journal
has grown to `journal_bytes_max` it goes on in a new file, and a second thread moves the batches of
the old one to a segment (`mover.py`); from then on they are read through a memory map. In memory
are the batches of the journal, the small states, and where in which segment the rest is.

**Crashes and damage.** Opening a store checks all of it, reads the manifest and plays the journals
on top (`recovery.py`). The last unsynced writes may be torn; the journal is cut at its last whole
record. What is damaged becomes a hole of its log, or the state `DAMAGE` says what may be missing.

**Failures.** A record that cannot be written fails, with everything behind it: memory goes back to
where it was before, and the answers say so. Room found later is used again. A truncate has no
answer and so cannot fail: it is kept, and written before anything else is. A move or a compaction
that fails leaves everything as it was, and is tried again with the next occasion.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from surecast.core.types import Compact, Compacted, LogId, StoreFailed, Truncate
from surecast.core.wire import DEFAULT_LIMITS, Limits
from surecast.errors import StorageError
from surecast.storage.background import Background
from surecast.storage.config import StorageConfig
from surecast.storage.extents import Extent
from surecast.storage.folder import FULL, Folder
from surecast.storage.journal_writer import Done, Entry, JournalWriter
from surecast.storage.mover import Job, Snapshot
from surecast.storage.plan import Group
from surecast.storage.records import Record, moved_record, record_of, rewritten_record
from surecast.storage.recovery import recover
from surecast.storage.store import apply, failed

__all__ = ["SegmentStore"]

log = logging.getLogger("surecast.storage")

_TIDY: Final = "tidy"
_PIECES_AT_ONCE: Final = 2000  # let go from memory in one turn of the loop: about a millisecond
_PIECES_A_GROUP: Final = 4  # what a group costs by itself
_RETRY_S: Final = 1.0  # between moves that are tried because memory is full


class SegmentStore:
    """Implements `storage.store.Store` in a directory of its own. Opened by the constructor.

    All methods are for one thread, the loop's.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: StorageConfig | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.config = config or StorageConfig()
        self._limits = limits
        self._folder = Folder(directory, self.config)
        try:
            found = recover(self._folder, self.config)
        except BaseException:
            self._folder.close()
            raise
        self.disk = found.disk
        self.incarnation = found.incarnation
        self.cut_bytes = found.cut_bytes  # of a torn tail, when opened
        self.damage = found.damage  # what was damaged when it was opened, for people
        self._shelf = found.shelf
        self._mover = found.mover
        self._held = found.held  # extents that records of the journals refer to
        self._wake: Callable[[], None] = lambda: None
        self._owed: list[Truncate] = []  # of failed writes: to be written with the next one
        self._moving = False
        self._retry_at = 0.0  # when a move may be tried again only because memory is full
        self._moved: deque[tuple[LogId, Group]] = deque()  # not let go from memory yet
        self._let_gone = 0  # pieces of the first of them that are
        self._dead_bytes = 0  # that compactions have left in segments since the last move
        self._waiting: deque[Compact] = deque()  # one compaction at a time
        self._job: Job | None = None
        self._ready: tuple[Any, list[Any]] | None = None  # its token and result, not shown yet
        self._told: list[Any] = []  # answers to give with the next ones
        self._closed = False
        self._background = Background(self._on_news)
        self._journal = JournalWriter(
            found.file,
            self._on_news,
            self._on_rotated,
            found.sealed_bytes,
            self.config.backlog_bytes_max,
        )

    @property
    def path(self) -> str:
        return str(self._folder.path)

    @property
    def pending_bytes(self) -> int:
        """What is queued for the journal and not written yet; `queue_bytes_max` bounds it."""
        return self._journal.pending_bytes

    @property
    def moves(self) -> int:
        """How often a journal's batches have gone to segments."""
        return self._mover.moves

    def attach(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def _on_news(self) -> None:
        self._wake()

    def close(self) -> None:
        """Write what is queued, give up what is done in the background, let go of the files."""
        if self._closed:
            return
        self._closed = True
        self._journal.close()
        self._background.close()
        self._folder.close()

    # ------------------------------------------------------------ effects and answers

    def perform(self, effect: Any) -> None:
        if type(effect) is Compact:
            self._compact(effect)
            return
        disk = self.disk
        record = record_of(effect, self._limits)
        over = self._is_over(record.size)
        if over and not self._moving and time.monotonic() >= self._retry_at:
            self._move()  # the last one has failed, and nothing that is written asks for another
        before = disk.written
        disk.failing = "full" if over else ""
        answer = apply(disk, effect)
        after = disk.written
        self._put(Entry(effect, record if after > before else None, answer, before, after))

    def _is_over(self, nbytes: int) -> bool:
        """Whether so much more would be more than may wait, or be kept in memory."""
        if self.pending_bytes + nbytes > self.config.queue_bytes_max:
            return True
        # While moves fail nothing leaves memory; while one is under way the writer waits for it.
        return self._journal.backlog_bytes + nbytes > 2 * self.config.backlog_bytes_max

    def _put(self, entry: Entry) -> None:
        if self._owed:
            for truncate in self._owed:
                record = record_of(truncate, self._limits)
                self._journal.put(Entry(truncate, record, None, entry.before, entry.before))
            self._owed.clear()
        self._journal.put(entry)
        if not self._moving and self._journal.size > self.config.journal_bytes_max:
            self._move()

    def collect(self) -> list[Any]:
        """The answers to give; where something failed, memory is set back first."""
        done, dropped, stopped = self._journal.take()
        if stopped:
            self._set_back([entry for entry, why in done if why])
            for snapshot in dropped:
                self._not_moved(snapshot)
            self._journal.resume()
        synced = [entry.after for entry, why in done if not why]
        if synced:
            self.disk.sync(synced[-1])
        answers = _answers(done)
        if self._moved:
            self._let_go()
        for what, result in self._background.take():
            self._finish(what, result)
        told, self._told = self._told, []
        return answers + told

    def _set_back(self, entries: list[Entry]) -> None:
        self.disk.rollback(entries[0].before)
        for entry in entries:
            if type(entry.effect) is Truncate:
                self.disk.truncate(entry.effect.log, entry.effect.end)
                self._owed.append(entry.effect)

    def _finish(self, what: Any, result: Any) -> None:
        """Something was done in the background."""
        if type(what) is Snapshot:
            self._finish_move(what, result)
        elif type(what) is Job:
            self._finish_compaction(what, result)
        self._tidy_if_due(what)

    def _tidy_if_due(self, after: Any) -> None:
        """Files that nobody refers to any more can go."""
        if self._shelf.gone and after is not _TIDY:
            self._background.put(_TIDY, lambda _: self._mover.tidy())

    # ------------------------------------------------------------ moves

    def _move(self) -> None:
        """Let the journal go on in a new file, and move what is in the old ones."""
        self._moving = True
        disk = self.disk
        states = [(name, disk.state(name) or b"") for name in disk.states()]
        dirty = disk.take_dirty()
        scopes = disk.scopes(dirty)
        self._journal.put(Snapshot(dirty, states, self.incarnation, self._held, scopes))
        self._held = []
        self._dead_bytes = 0

    def _on_rotated(self, snapshot: Snapshot, journal: int | OSError) -> None:
        """In the journal's thread."""
        if isinstance(journal, OSError):
            self._background.tell(snapshot, journal)
        else:
            self._background.put(snapshot, partial(self._mover.move, snapshot, journal))

    def _finish_move(self, snapshot: Snapshot, result: Any) -> None:
        if isinstance(result, Exception):
            log.warning("%s: nothing was moved to segments: %s", self.path, result)
            self._not_moved(snapshot)
            return
        for name, groups in result:
            self._moved += [(name, group) for group in groups]
        self._let_go()

    def _let_go(self) -> None:
        """Let extents stand for what has moved, some pieces at a time: there may be many."""
        budget = _PIECES_AT_ONCE
        while self._moved and budget > 0:
            name, group = self._moved[0]
            some = group.pieces[self._let_gone : self._let_gone + budget]
            self.disk.moved(name, some, group.extent)
            budget -= len(some) + _PIECES_A_GROUP
            self._let_gone += len(some)
            if self._let_gone == len(group.pieces):
                self._moved.popleft()
                self._let_gone = 0
        if self._moved:
            self._wake()
            return
        self._moving = False
        self._journal.relieve(moved=True)
        self._tidy_if_due(None)
        if self._journal.size > self.config.journal_bytes_max:
            self._move()

    def _not_moved(self, snapshot: Snapshot) -> None:
        self._moving = False
        self._retry_at = time.monotonic() + _RETRY_S
        self._journal.relieve(moved=False)
        self.disk.dirty_again(list(snapshot.logs))
        self._held = snapshot.held + self._held

    # ------------------------------------------------------------ compactions

    def _compact(self, effect: Compact) -> None:
        try:
            self.disk.ask(effect)
        except StorageError:
            mark = self.disk.written
            self._put(Entry(effect, None, failed(effect, "io"), mark, mark))
            return
        self._waiting.append(effect)
        self._compact_next()

    def _compact_next(self) -> None:
        while self._waiting and self._job is None and self._ready is None:
            effect = self._waiting.popleft()
            if self.disk.wants(effect.token) is None:
                self._tell(StoreFailed(effect.token, "truncated"))
                continue
            pieces = self.disk.pieces(effect.log, effect.lo, effect.hi)
            self._job = job = Job(effect, pieces)
            self._background.put(job, partial(self._mover.compact, job))

    def _tell(self, answer: Any) -> None:
        self._told.append(answer)
        self._wake()

    def _finish_compaction(self, job: Job, result: Any) -> None:
        self._job = None
        token = job.effect.token
        if self.disk.wants(token) is None:
            self._told.append(StoreFailed(token, "truncated"))
        elif isinstance(result, Exception):
            self.disk.drop(token)
            log.warning("%s: a compaction has failed: %s", self.path, result)
            full = isinstance(result, OSError) and result.errno in FULL
            self._told.append(StoreFailed(token, "full" if full else "io"))
        else:
            self._ready = (token, result)
            self._told.append(Compacted(token))
        self._compact_next()

    def show(self, given: Compacted) -> None:
        """Let the log be what the compaction has made of it."""
        assert self._ready is not None, given
        token, pieces = self._ready
        assert token is given.token, given
        self._ready = None
        effect = self.disk.wants(token)
        if effect is not None:  # else a truncate came between
            self.disk.drop(token)
            self._splice(effect, pieces)
        self._compact_next()

    def _splice(self, effect: Compact, pieces: list[Any]) -> None:
        disk, name = self.disk, effect.log
        for piece in disk.pieces(name, effect.lo, effect.hi):
            self._dead_bytes += piece.nbytes if type(piece) is Extent else 0
        before = disk.written
        disk.splice(name, effect.lo, effect.hi, pieces)
        extents = [piece for piece in pieces if type(piece) is Extent]
        self._held += extents
        record: Record
        if extents:
            record = moved_record(name, [extent.row() for extent in extents])
        else:
            record = rewritten_record(name, pieces)
        self._put(Entry(None, record, None, before, disk.written))
        if not self._moving and self._dead_bytes > self.config.journal_bytes_max:
            self._move()  # so that the files of what is void can go


def _answers(done: Done) -> list[Any]:
    answers = []
    for entry, why in done:
        answer = entry.answer
        if why and entry.record is not None and answer is not None:
            answer = failed(entry.effect, why)
        if answer is not None:
            answers.append(answer)
    return answers
