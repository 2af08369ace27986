"""Reads of segments beside the event loop: a few threads, which serve the logs of a node in turn.

The event loop's thread must not wait for a device. A thread that reads through a memory map keeps
the interpreter's lock while it waits, so all other threads would wait, too. Therefore the threads
of `Reads` read the frames with `pread`, which releases the lock; then they verify and decode them.

A read returns the batches that the log had when it was requested: the caller passes the log's
pieces, which never change. They also keep the segments' files in use.

**Limits.** At most `threads_max` reads are performed at a time; the others wait. The logs are
served in turn, so a log with many reads does not hold up the others. While more than `bytes_max`
bytes are read and not fetched with `take`, the threads wait. Threads are started when they are
first needed.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from surecast.core.types import Batch, Loaded, LogId, Read
from surecast.errors import StorageError
from surecast.storage.memory import Hole

__all__ = ["Reads", "read_pieces"]

# Pause between slices of decoding, as in segments.py: it lets the event loop's thread take the
# interpreter's lock.
_PAUSE_S: Final = 0.00005


class Reads:
    """The reads of one store. `wake` is called in a thread when `take` has something to return."""

    def __init__(self, wake: Callable[[], None], threads_max: int, bytes_max: int) -> None:
        self._wake = wake
        self._threads_max = threads_max
        self._bytes_max = bytes_max
        self._work = threading.Condition()  # guards everything below
        # Log → its reads that have not begun, each with the log's pieces. The first log is next.
        self._waiting: OrderedDict[LogId, deque[tuple[Read, Sequence[Any]]]] = OrderedDict()
        self._done: list[Loaded] = []
        self._done_bytes = 0
        self._idle = 0  # threads that wait for a read
        self._threads: list[threading.Thread] = []
        self._closing = False

    def put(self, effect: Read, pieces: Sequence[Any]) -> None:
        """Perform a read. `pieces` are those of the log that the read may need."""
        with self._work:
            self._waiting.setdefault(effect.log, deque()).append((effect, pieces))
            if self._idle:
                self._work.notify()
            elif len(self._threads) < self._threads_max:
                name = f"reader-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def take(self) -> list[Loaded]:
        """The answers that were completed since the last call, in the order of completion."""
        if not self._done:  # without the lock: what is added now leads to another `wake`
            return []
        with self._work:
            done, self._done, self._done_bytes = self._done, [], 0
            self._work.notify_all()
        return done

    def close(self) -> None:
        """Drop what waits, and end the threads."""
        with self._work:
            self._closing = True
            self._waiting.clear()
            self._work.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._work:
                self._idle += 1
                while not self._closing and (
                    not self._waiting or self._done_bytes >= self._bytes_max
                ):
                    self._work.wait()
                self._idle -= 1
                if self._closing:
                    return
                effect, pieces = self._next()
            try:
                loaded = self._read(effect, pieces)
            except _Closing:
                return
            # The references keep segments in use.
            del effect, pieces
            with self._work:
                self._done.append(loaded)
                self._done_bytes += sum(batch.nbytes for batch in loaded.batches)
                first = len(self._done) == 1
            del loaded
            if first:
                self._wake()

    def _next(self) -> tuple[Read, Sequence[Any]]:
        """Take the next read of the log whose turn it is; this log is then the last one."""
        log, reads = self._waiting.popitem(last=False)
        found = reads.popleft()
        if reads:
            self._waiting[log] = reads
        return found

    def _read(self, effect: Read, pieces: Sequence[Any]) -> Loaded:
        try:
            batches = read_pieces(
                pieces, effect.lo, effect.hi, effect.nbytes_max, self._between_slices
            )
        except StorageError as problem:
            return Loaded(effect.token, (), str(problem))
        return Loaded(effect.token, tuple(batches))

    def _between_slices(self) -> None:
        if self._closing:
            raise _Closing
        time.sleep(_PAUSE_S)


class _Closing(Exception):
    """Raised in a read when the store is closed, to end it."""


def read_pieces(
    pieces: Sequence[Any], lo: int, hi: int, nbytes_max: int, between_slices: Callable[[], None]
) -> list[Batch]:
    """The batches of [lo, hi) from a log's pieces, with the result of `Disk.read`. Extents are read
    without their memory map."""
    out: list[Batch] = []
    nbytes = 0
    for piece in pieces:
        if piece.lo >= hi or nbytes > nbytes_max:
            break
        if piece.hi <= lo:
            continue
        if type(piece) is Hole:
            if not out:
                raise piece.problem()
            break
        if type(piece) is Batch:
            found = [piece.slice(lo, hi) if piece.lo < lo or piece.hi > hi else piece]
        else:
            found = piece.load(lo, hi, nbytes_max - nbytes, between_slices)
        out += found
        nbytes += sum(batch.nbytes for batch in found)
    return out
