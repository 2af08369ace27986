"""A file of the journal: it never ends in a torn record, and it tracks how much is on disk.

The journal is a sequence of such files; `JournalFile` writes the current one for
journal_writer.py. After each group of records it also raises the *mark*, the file that records how
much of the journal is acknowledged (ends.py).
"""

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
    """The current file of the journal; `rotate` replaces it by the next one."""

    def __init__(self, folder: Folder, number: int, durable: bool, marks: MarkFile) -> None:
        self.folder = folder
        self.number = number
        self.size = 0
        self.has_effects = True  # False: it has no records other than MARK
        self._synced = 0
        self._durable = durable
        self._marks = marks
        self._claimed = 0  # acknowledged bytes of this file, as the mark records them
        self._marked = False  # whether the last record is a MARK
        self._broken: OSError | None = None  # set: every further write fails with this error
        try:
            self._file = _open(folder, number)
            folder.sync()
        except OSError as problem:
            raise StorageError(f"cannot open {folder.journal(number)}: {problem}") from problem

    def close(self) -> None:
        """Sync and close the file and the mark. The mark then records the whole file, unless
        writing failed."""
        if self._broken is None:
            with suppress(OSError):
                self._sync()
                self._claim()
        for _ in range(2):  # both slots, so that damage to one of them does not lower the mark
            self._marks.write(self.number, self._claimed)
        self._marks.sync()
        self.abandon()

    def cut(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self.size = size
        self._synced = min(self._synced, size)

    def append(self, records: list[Record]) -> tuple[int, OSError | None]:
        """Write records. Returns how many were written completely, and the error if not all."""
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
            except OSError as worse:  # the torn record stays: nothing may be written after it
                self._broken = worse
        return whole, problem

    def give_up(self, problem: OSError) -> None:
        """Refuse all further writes with `problem`; unsynced records may or may not be on disk."""
        self._broken = problem

    def sync(self) -> None:
        """Sync the file (if `sync = "data"`) and raise the mark. After that, the caller may
        acknowledge the written records."""
        if self._durable:
            self._sync()
        if self._broken is None:
            self._claim()

    def sync_all(self) -> None:
        """Sync the file and the mark, also with `sync = "none"`."""
        self._sync()
        self._claim()
        self._marks.sync()

    def abandon(self) -> None:
        """Close the files without a sync."""
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
            self._broken = problem  # it is not known any more what is on disk
            if self._durable:  # with `sync = "none"`, unsynced records were acknowledged: keep them
                with suppress(OSError):
                    os.ftruncate(self._file, self._synced)
            raise
        self._synced = self.size

    def mark(self) -> None:
        """Append a MARK record, which states the synced size.

        Called when nothing else is waiting to be written. With this record, the next opening knows
        that all records before it were on disk.
        """
        if not self._marked and self._durable:
            before = self.has_effects
            self.append([number_record(MARK, 0)])
            self.has_effects = before
            self._marked = True

    def rotate(self) -> int:
        """Continue the journal in a new file; or raise OSError and keep the current one. Returns
        the size of the old file.

        The old file gets a last record, the seal, which proves later that the file was not cut
        short. The old file is synced even with `sync = "none"`. So a crash cannot have torn a file
        that has a successor, and an invalid record in such a file is damage.
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
    """Create an empty file and sync its directory entry."""
    os.close(_open(folder, number))
    folder.sync()


def _open(folder: Folder, number: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return open_file(folder.journal(number), flags, folder.file_mode)
