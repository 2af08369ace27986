"""The file of a journal: whole records at its end, or none; and how much of it is on disk."""

import errno
import fcntl
import os
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from surecast.core.wire import Buffer
from surecast.errors import StorageError
from surecast.storage.records import MARK, Record, number_record

__all__ = ["JournalFile"]

_WRITE_BUFFERS_MAX: Final = 512  # in one writev; the system's limit is 1024


class JournalFile:
    """The journal's file: whole records, and how many of its bytes are on disk."""

    def __init__(self, path: Path, durable: bool) -> None:
        self.path = path
        self.size = 0
        self._synced = 0
        self._durable = durable
        self._marked = False
        self._broken: OSError | None = None
        try:
            self._make_directory(path.parent)
            self._guard = os.open(path.parent / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as problem:
            raise StorageError(f"cannot open {path}: {problem}") from problem
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = self._open(path)
            self._sync_directory(path.parent)
        except OSError as problem:
            os.close(self._guard)
            why = "it is in use" if isinstance(problem, BlockingIOError) else str(problem)
            raise StorageError(f"cannot open {path}: {why}") from problem

    def close(self) -> None:
        os.close(self._file)
        os.close(self._guard)

    def cut(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self.size = size
        self._synced = min(self._synced, size)

    def append(self, records: list[Record]) -> tuple[int, OSError | None]:
        """Write records; how many are there as a whole, and why not all."""
        if self._broken is not None:
            return 0, self._broken
        buffers: list[Buffer] = []
        ends: list[int] = []
        end = self.size
        for record in records:
            some = record.encode(self._synced)
            buffers += some
            end += sum(map(len, some))
            ends.append(end)
        self._marked = False
        written, problem = _write_all(self._file, buffers)
        whole = bisect_right(ends, self.size + written)
        end = ends[whole - 1] if whole else self.size
        self.size = end
        if problem is not None:
            try:
                os.ftruncate(self._file, end)
            except OSError as worse:  # what is torn stays there: nothing may follow it
                self._broken = worse
        return whole, problem

    def give_up(self, problem: OSError) -> None:
        """Write nothing more; what is not synced may or may not be there."""
        self._broken = problem

    def sync(self) -> None:
        if self._durable:
            try:
                os.fdatasync(self._file)
            except OSError as problem:
                self._broken = problem  # nobody knows what is on disk now
                with suppress(OSError):
                    os.ftruncate(self._file, self._synced)
                raise
            self._synced = self.size

    def mark(self) -> None:
        """Write down how much is synced, while there is nothing else to write."""
        if not self._marked and self._durable:
            self.append([number_record(MARK, 0)])
            self._marked = True

    def replace(self, records: Iterable[Record]) -> None:
        """Put a file of these records in the place of this one, or raise and change nothing."""
        beside = self.path.with_suffix(".new")
        beside.unlink(missing_ok=True)
        file = self._open(beside)
        size = 0
        try:
            for record in records:
                written, problem = _write_all(file, record.encode(0))
                size += written
                if problem is not None:
                    raise problem
            if self._durable:
                os.fdatasync(file)
            beside.rename(self.path)
        except OSError:
            os.close(file)
            beside.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file, self.size = file, size
        self._synced = size if self._durable else 0
        try:
            self._sync_directory(self.path.parent)
        except OSError as problem:  # after a crash, which of the two files will be there?
            self._broken = problem
            raise

    def _open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _make_directory(self, path: Path) -> None:
        """With those above it, each entered in its own for good."""
        if not path.is_dir():
            self._make_directory(path.parent)
            path.mkdir(exist_ok=True)
            self._sync_directory(path.parent)

    def _sync_directory(self, path: Path) -> None:
        if self._durable:
            directory = os.open(path, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


def _write_all(file: int, buffers: list[Buffer]) -> tuple[int, OSError | None]:
    """Write all of them; how many bytes that were, and what came in the way."""
    written = 0
    try:
        for at in range(0, len(buffers), _WRITE_BUFFERS_MAX):
            some = buffers[at : at + _WRITE_BUFFERS_MAX]
            count = os.writev(file, some)
            written += count
            rest = memoryview(b"".join(some))[count:] if count < sum(map(len, some)) else b""
            while rest:
                count = os.write(file, rest)
                if not count:  # no system should; a loop without end is worse than an error
                    raise OSError(errno.ENOSPC, "nothing could be written")
                written += count
                rest = rest[count:]
    except OSError as problem:
        return written, problem
    return written, None
