"""The store of a real node: a journal for new batches, segments for older ones.

**Writing.** State machines see the result of a storage operation (called an *effect*, `store.py`)
at once. The operation becomes a record of the journal. One thread writes all queued records in
order, syncs once, and only then are the operations answered (`journal_writer.py`).

**Moving.** When the journal has grown to `journal_bytes_max`, it continues in a new file. A second
thread then moves the batches of the old file to a segment (`mover.py`). From then on these batches
are read through a memory map. So memory holds only the batches of the journal, the small states,
and the locations of all other batches.

**Crashes and damage.** Opening a store verifies all files, reads the manifest and replays the
journals (`recovery.py`). The last unsynced writes may be torn; the journal is cut after its last
whole record. Positions that cannot be read become a hole of their log. If the newest changes may be
missing, the state `DAMAGE` says why.

**Failures.** If a record cannot be written, it fails together with all records after it: the
changes in memory are undone, and the answers are failures. Once the disk has room again, writes
succeed again. A truncate has no answer, so its failure cannot be reported: the truncate stays in
effect in memory and is written before the next record. A failed move or compaction leaves
everything as it was; a move is tried again later.

**Cold reads.** After a move, and after the opening, the store says with `ColdBelow` which positions
are only in segments. Further threads perform the effect `Read` (`reads.py`).
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from surecast.core.types import ColdBelow, Compact, Compacted, LogId, Read, StoreFailed, Truncate
from surecast.core.wire import DEFAULT_LIMITS, Limits
from surecast.errors import StorageError
from surecast.storage.config import StorageConfig
from surecast.storage.extents import Extent
from surecast.storage.folder import FULL, Folder
from surecast.storage.journal_writer import Done, Entry, JournalWriter
from surecast.storage.mover import Job, Snapshot
from surecast.storage.plan import Group
from surecast.storage.reads import Reads
from surecast.storage.records import Record, moved_record, record_of, rewritten_record
from surecast.storage.recovery import recover
from surecast.storage.store import apply, failed

__all__ = ["SegmentStore"]

log = logging.getLogger("surecast.storage")

_TIDY: Final = "tidy"  # the name of the job that removes unused files
_PIECES_AT_ONCE: Final = 2000  # released from memory per turn of the loop: about a millisecond
_PIECES_A_GROUP: Final = 4  # releasing a group costs as much as this many pieces, and its own
_RETRY_S: Final = 1.0  # after a failed move, time until full memory may start another one
# Pause between slices of work. Releasing the interpreter's lock alone is not enough: this thread
# would take it again before the waiting thread is awake. Sleeping gives the other thread time.
_PAUSE_S: Final = 0.0001

Work = Callable[[Callable[[], None]], Any]  # a job; it calls its argument between slices of work


class SegmentStore:
    """Implements `storage.store.Store` in a directory of its own; the constructor opens it.

    All methods must be called in one thread, the event loop's.
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
            recovered = recover(self._folder, self.config)
        except BaseException:
            self._folder.close()
            raise
        self.disk = recovered.disk
        self.incarnation = recovered.incarnation
        self.cut_bytes = recovered.cut_bytes  # size of the torn records cut off by the opening
        self.damage = recovered.damage  # what the opening found; lines for the operator
        self._shelf = recovered.shelf
        self._mover = recovered.mover
        # Extents that records of the journals refer to. They are kept here so that their segments
        # are not removed while these journals may still be replayed.
        self._held = recovered.held
        self._wake: Callable[[], None] = lambda: None
        self._owed: list[Truncate] = []  # could not be written; written before the next record
        self._moving = False  # from the start of a move until its batches are released from memory
        self._retry_at = 0.0  # full memory starts no move before this time (time.monotonic)
        self._moved: deque[tuple[LogId, Group]] = deque()  # already in segments, still in memory
        self._released = 0  # pieces of the first group of `_moved` that left memory
        self._dead_bytes = 0  # unused bytes of segments, from compactions since the last move
        self._waiting: deque[Compact] = deque()  # compactions; only one runs at a time
        self._job: Job | None = None  # the compaction that the background thread has
        self._ready: tuple[Any, list[Any]] | None = None  # token, result of a finished compaction
        self._answers: list[Any] = []  # answers to compactions, for the next `collect`
        self._cold = self.disk.cold_ends()  # log → end, for the next ColdBelow
        self._closed = False
        self._background = _Background(self._on_results)
        self._reads: Reads | None = None  # made for the first Read
        self._journal = JournalWriter(
            recovered.file,
            self._on_results,
            self._on_rotated,
            recovered.sealed_bytes,
            self.config.backlog_bytes_max,
        )

    @property
    def path(self) -> str:
        return str(self._folder.path)

    @property
    def pending_bytes(self) -> int:
        """Bytes queued for the journal and not written yet, bounded by `queue_bytes_max`."""
        return self._journal.pending_bytes

    @property
    def moves(self) -> int:
        """The number of moves of a journal's batches to segments."""
        return self._mover.moves

    def attach(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        if self._cold:
            wake()

    def _on_results(self) -> None:
        self._wake()

    def close(self) -> None:
        """Write what is queued, abandon background work, close the files."""
        if self._closed:
            return
        self._closed = True
        self._journal.close()
        if self._reads is not None:
            self._reads.close()
        self._background.close()
        self._folder.close()

    # ------------------------------------------------------------ effects and answers

    def perform(self, effect: Any) -> None:
        if type(effect) is Compact:
            self._compact(effect)
            return
        disk = self.disk
        if type(effect) is Read:
            log, lo, hi, nbytes_max, _ = msgspec.structs.astuple(effect)
            if self._reads is None:
                config = self.config
                self._reads = Reads(self._on_results, config.read_threads, config.read_bytes_max)
            self._reads.put(effect, disk.pieces_from(log, lo, hi, nbytes_max))
            return
        record = record_of(effect, self._limits)
        over = self._is_over(record.size)
        if over and not self._moving and time.monotonic() >= self._retry_at:
            self._move()  # the last move failed, and `_put` starts none while writes are refused
        before = disk.written
        disk.failing = "full" if over else ""
        answer = apply(disk, effect)
        after = disk.written
        self._put(Entry(effect, record if after > before else None, answer, before, after))

    def _is_over(self, nbytes: int) -> bool:
        """Whether `nbytes` more would exceed the bounds of the queue or of memory."""
        if self.pending_bytes + nbytes > self.config.queue_bytes_max:
            return True
        # While a move is under way, the writer waits for it from `backlog_bytes_max` on. Twice
        # this size is reached if moves fail: then no batches leave memory.
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
        """The answers for the driver. After a failed write, the failed changes are undone in memory
        first."""
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
            self._release()
        for what, result in self._background.take():
            self._finish(what, result)
        compactions, self._answers = self._answers, []
        answers += compactions
        if self._cold and not self._moved:
            answers.append(ColdBelow(tuple(self._cold.items())))
            self._cold = {}
        return answers if self._reads is None else answers + self._reads.take()

    def _set_back(self, entries: list[Entry]) -> None:
        """Undo the changes of failed entries in memory, except truncates: these stay in effect."""
        self.disk.rollback(entries[0].before)
        for entry in entries:
            if type(entry.effect) is Truncate:
                self.disk.truncate(entry.effect.log, entry.effect.end)
                self._owed.append(entry.effect)

    def _finish(self, what: Any, result: Any) -> None:
        """Handle a result of the background thread; `what` is a Snapshot, a Job or _TIDY."""
        if type(what) is Snapshot:
            self._finish_move(what, result)
        elif type(what) is Job:
            self._finish_compaction(what, result)
        self._tidy_if_due(what)

    def _tidy_if_due(self, after: Any) -> None:
        """Let the background thread remove unused segment files, if there are any."""
        if self._shelf.gone and after is not _TIDY:
            self._background.put(_TIDY, lambda _: self._mover.tidy())

    # ------------------------------------------------------------ moves

    def _move(self) -> None:
        """Continue the journal in a new file, and move the content of the old ones to segments."""
        self._moving = True
        disk = self.disk
        states = [(name, disk.state(name) or b"") for name in disk.states()]
        dirty = disk.take_dirty()
        scopes = disk.scopes(dirty)
        self._journal.put(Snapshot(dirty, states, self.incarnation, self._held, scopes))
        self._held = []
        self._dead_bytes = 0

    def _on_rotated(self, snapshot: Snapshot, journal: int | OSError) -> None:
        """Called in the journal's thread: start the move, or report why there is no new journal.
        `journal` is the number of the new one."""
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
        self._release()

    def _release(self) -> None:
        """Replace moved batches in memory by extents. One call handles a limited number of pieces,
        so that it does not block the event loop; `_wake` leads to the next call."""
        budget = _PIECES_AT_ONCE
        while self._moved and budget > 0:
            name, group = self._moved[0]
            pieces = group.pieces[self._released : self._released + budget]
            self.disk.moved(name, pieces, group.extent)
            budget -= len(pieces) + _PIECES_A_GROUP
            self._released += len(pieces)
            self._cool(name, group.extent)
            if self._released == len(group.pieces):
                self._moved.popleft()
                self._released = 0
        if self._moved:
            self._wake()
            return
        self._moving = False
        self._journal.relieve(moved=True)
        self._tidy_if_due(None)
        if self._journal.size > self.config.journal_bytes_max:
            self._move()

    def _cool(self, name: LogId, extent: Extent) -> None:
        """Note that positions of a log are no longer in memory, for the next `collect`."""
        self._cold[name] = max(extent.hi, self._cold.get(name, 1))

    def _not_moved(self, snapshot: Snapshot) -> None:
        """Handle a failed move: the next move includes its logs and its extents in `held`."""
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
                self._answer(StoreFailed(effect.token, "truncated"))
                continue
            pieces = self.disk.pieces(effect.log, effect.lo, effect.hi)
            self._job = job = Job(effect, pieces)
            self._background.put(job, partial(self._mover.compact, job))

    def _answer(self, answer: Any) -> None:
        self._answers.append(answer)
        self._wake()

    def _finish_compaction(self, job: Job, result: Any) -> None:
        self._job = None
        token = job.effect.token
        if self.disk.wants(token) is None:
            self._answers.append(StoreFailed(token, "truncated"))
        elif isinstance(result, Exception):
            self.disk.drop(token)
            log.warning("%s: a compaction has failed: %s", self.path, result)
            full = isinstance(result, OSError) and result.errno in FULL
            self._answers.append(StoreFailed(token, "full" if full else "io"))
        else:
            self._ready = (token, result)
            self._answers.append(Compacted(token))
        self._compact_next()

    def show(self, given: Compacted) -> None:
        """Replace the range in the log by the result of the compaction."""
        assert self._ready is not None, given
        token, pieces = self._ready
        assert token is given.token, given
        self._ready = None
        effect = self.disk.wants(token)
        if effect is not None:  # None: a truncate has dropped the compaction meanwhile
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
            self._cool(name, extents[-1])
            record = moved_record(name, [extent.row() for extent in extents])
        else:
            record = rewritten_record(name, pieces)
        self._put(Entry(None, record, None, before, disk.written))
        if not self._moving and self._dead_bytes > self.config.journal_bytes_max:
            self._move()  # a move also rewrites mostly unused segments: their files are removed


def _answers(done: Done) -> list[Any]:
    """The answers to written or failed entries. An entry without a record was refused before, and
    has its StoreFailed already."""
    answers = []
    for entry, why in done:
        answer = entry.answer
        if why and entry.record is not None and answer is not None:
            answer = failed(entry.effect, why)
        if answer is not None:
            answers.append(answer)
    return answers


class _Closing(Exception):
    """Raised in a job when the store is closed, to end it."""


class _Background:
    """The background thread of a store, which runs moves and compactions (mover.py) one at a time.

    A job pauses after each slice of its work, so that the event loop's thread is not delayed.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._work = threading.Condition()  # guards `_jobs`, `_results` and `_closing`
        self._jobs: deque[tuple[Any, Work]] = deque()
        self._results: list[tuple[Any, Any]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._thread.start()

    def put(self, what: Any, work: Work) -> None:
        """Run `work` in the thread; then `take` returns `what` with its result or exception."""
        with self._work:
            self._jobs.append((what, work))
            self._work.notify()

    def tell(self, what: Any, result: Any) -> None:
        """Add a result for `what` without running any work."""
        with self._work:
            self._results.append((what, result))
        self._wake()

    def take(self) -> list[tuple[Any, Any]]:
        """The results since the last call: each `what`, with what its work returned or raised."""
        with self._work:
            results, self._results = self._results, []
            return results

    def close(self) -> None:
        with self._work:
            self._closing = True
            self._work.notify()
        self._thread.join()

    def _between_slices(self) -> None:
        if self._closing:
            raise _Closing
        time.sleep(_PAUSE_S)

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._closing and not self._jobs:
                    self._work.wait()
                if self._closing:
                    return
                what, work = self._jobs.popleft()
            try:
                result = work(self._between_slices)
            except _Closing:
                return
            except Exception as problem:
                # The traceback and the causes would keep references to pieces, and so keep
                # segments in use.
                problem.__cause__ = problem.__context__ = None
                result = problem.with_traceback(None)
            del work  # it refers to pieces, too
            self.tell(what, result)
            del what, result
