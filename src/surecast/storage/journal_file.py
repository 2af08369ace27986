"""A file of the journal: whole records at its end, or none; and how much of it is on disk."""

import os
from bisect import bisect_right
from contextlib import suppress

from surecast.core.wire import Buffer
from surecast.errors import StorageError
from surecast.storage.ends import MarkFile
from surecast.storage.folder import Folder, write_all
from surecast.storage.modes import open_file
from surecast.storage.records import MARK, SEAL, Record, number_record

__all__ = ["JournalFile", "create_journal"]


class JournalFile:
    """The file that is written to now; `rotate` goes on in the next one."""

    def __init__(self, folder: Folder, number: int, durable: bool, marks: MarkFile) -> None:
        self.folder = folder
        self.number = number
        self.size = 0
        self.has_effects = True  # it may have records that say more than `synced`
        self._synced = 0
        self._durable = durable
        self._marks = marks
        self._claimed = 0  # what the mark says of this file
        self._marked = False
        self._broken: OSError | None = None
        try:
            self._file = _open(folder, number)
            folder.sync()
        except OSError as problem:
            raise StorageError(f"cannot open {folder.journal(number)}: {problem}") from problem

    def close(self) -> None:
        """All of it is on disk, and the mark says so, unless writing has failed."""
        if self._broken is None:
            with suppress(OSError):
                self._sync()
                self._claim()
        for _ in range(2):  # both slots, so that damage of one of them takes nothing back
            self._marks.write(self.number, self._claimed)
        self._marks.sync()
        self.abandon()

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
            buffers += record.encode(self.number, end, self._synced)
            end += record.size
            ends.append(end)
        self._marked = False
        self.has_effects = self.has_effects or bool(records)
        written, problem = write_all(self._file, buffers)
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
        """What was written may be acknowledged."""
        if self._durable:
            self._sync()
        if self._broken is None:
            self._claim()

    def sync_all(self) -> None:
        """The file and the mark are on disk, even if nothing else is synced."""
        self._sync()
        self._claim()
        self._marks.sync()

    def abandon(self) -> None:
        """Close the files as they are."""
        self._marks.abandon()
        os.close(self._file)

    def _claim(self) -> None:
        if self._claimed != self.size:
            self._claimed = self.size
            self._marks.write(self.number, self.size)

    def _sync(self) -> None:
        if self._synced == self.size:
            return
        try:
            os.fdatasync(self._file)
        except OSError as problem:
            self._broken = problem  # nobody knows what is on disk now
            if self._durable:  # else the rest was acknowledged, too
                with suppress(OSError):
                    os.ftruncate(self._file, self._synced)
            raise
        self._synced = self.size

    def mark(self) -> None:
        """Write down how much is synced, while there is nothing else to write."""
        if not self._marked and self._durable:
            before = self.has_effects
            self.append([number_record(MARK, 0)])
            self.has_effects = before
            self._marked = True

    def rotate(self) -> int:
        """Go on in a new file, when this one is wholly on disk; or raise and stay. Returns the
        size of the old one.

        That holds even if nothing else is synced: what stands in a file that has a successor was
        not torn by a crash, and what does not read there is damage. Its last record is a seal: so
        a file that was cut short is known for one.
        """
        if self._broken is not None:
            raise self._broken
        _, problem = self.append([number_record(SEAL, 0)])
        if problem is not None:
            raise problem
        self._sync()
        file = _open(self.folder, self.number + 1)
        try:
            self.folder.sync()
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        sealed = self.size
        self._file = file
        self.number += 1
        self.size = self._synced = self._claimed = 0
        self._marked = self.has_effects = False
        self._marks.write(self.number, 0)
        self._marks.sync()
        return sealed


def create_journal(folder: Folder, number: int) -> None:
    """An empty file, on disk with its name."""
    os.close(_open(folder, number))
    folder.sync()


def _open(folder: Folder, number: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return open_file(folder.journal(number), flags, folder.file_mode)
