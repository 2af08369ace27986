"""A file of the journal, and the mark: how much of the journal is acknowledged.

A file of the journal never ends in a torn record, and it tracks how much is on disk.

A journal that lost its last records cannot be distinguished from one that never had them. So the
mark, the file `ends`, holds which journal is written to, and how much of it has been acknowledged.
A shorter journal is damaged.

The mark is written in place after every group of records, without a sync of its own. A killed
process leaves the exact mark. A crash of the system may leave an older one, which claims less. It
never leaves one that claims too much, because the journal is synced before the mark is written.
(With `sync = "none"` it can; then the system has lost acknowledged records, and the mark reveals
it.) The mark is synced when a store is opened and closed and when the journal continues in a new
file.

    slot        at 0 and at 4096, written alternately, so that a torn write leaves the older one:
                magic, format, number of writes, journal, size, incarnation, CRC-32, 4 zeros

`format` is the version of everything in the folder that has no version of its own: records, states,
what layers keep in logs. A version of Surecast that writes something that this one would misread
writes a higher number first, and this one then refuses the folder before it changes anything in it.
"""

import logging
import os
import struct
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from surecast.core.wire import Buffer
from surecast.errors import StorageError
from surecast.storage.folder import Damaged, Folder, is_later, write_all
from surecast.storage.modes import open_file
from surecast.storage.records import MARK, SEAL, Record, number_record

__all__ = ["FORMAT", "NEW", "EndsMark", "JournalFile", "MarkFile", "create_journal", "read_mark"]

log = logging.getLogger("surecast.storage")

_MAGIC: Final = b"SCE\xf1"
_FIELDS: Final = struct.Struct("<4sIQQQQ")
_CRC: Final = struct.Struct("<I4x")
_SLOT_SIZE: Final = _FIELDS.size + _CRC.size
_STRIDE: Final = 4096  # no sector holds both slots
FORMAT: Final = 0  # of the whole folder


class JournalFile:
    """The current file of the journal; `rotate` replaces it by the next one."""

    def __init__(self, folder: Folder, number: int, durable: bool, marks: "MarkFile") -> None:
        self.folder = folder
        self.number = number
        self.size = 0
        self.has_effects = True  # False: it has no records other than MARK
        self._synced = 0
        self._durable = durable
        self._marks = marks
        self._claimed = 0  # the size of this file in the mark
        self._marked = False  # whether the last record is a MARK
        self._broken: OSError | None = None
        try:
            self._file = _open(folder, number)
            folder.sync()
        except OSError as problem:
            raise StorageError(f"cannot open {folder.journal(number)}: {problem}") from problem

    def close(self) -> None:
        """Sync and close the file and the mark. Unless writing failed, the mark covers the file."""
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
        """Sync, if configured, and raise the mark; then written records may be acknowledged."""
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
            self._broken = problem  # what is on disk is not known any more
            if self._durable:  # else the unsynced rest was acknowledged, too
                with suppress(OSError):
                    os.ftruncate(self._file, self._synced)
            raise
        self._synced = self.size

    def mark(self) -> None:
        """Append a record with the synced size; called when there is nothing else to write."""
        if not self._marked and self._durable:
            before = self.has_effects
            self.append([number_record(MARK, 0)])
            self.has_effects = before
            self._marked = True

    def rotate(self) -> int:
        """Sync this file and continue in a new one, or raise and keep this one. Returns the size of
        the old one.

        The file is synced also with `sync = "none"`: a file that has a successor was not torn by a
        crash, so an invalid record in it is damage. Its last record is a seal, which shows that it
        was not cut short.
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


# ---------------------------------------------------------------- the mark


class EndsMark(NamedTuple):
    writes: int  # marks written so far; the slot with the higher number is the newer
    journal: int  # the number of the journal being written
    size: int  # its acknowledged bytes
    incarnation: int  # of the node


NEW: Final = EndsMark(2, 1, 0, 0)  # the mark of a store without any record


def read_mark(path: Path) -> EndsMark | None:
    """None if there is no such file. Raises Damaged if neither slot reads, StorageError if the
    folder was written by a later version, or the file cannot be read at all."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem}") from problem
    slots = [slot for at in (0, _STRIDE) if (slot := _decode(data[at : at + _SLOT_SIZE]))]
    later = max((form for form, _ in slots), default=FORMAT)
    if later > FORMAT:
        raise StorageError(
            f"{path.parent} was written by a later version of Surecast: its format is {later}, "
            f"this version reads {FORMAT}. Start that version again; nothing was changed"
        )
    marks = [mark for _, mark in slots]
    if marks:
        return max(marks)
    if is_later(data[:4], _MAGIC) and is_later(data[_STRIDE : _STRIDE + 4], _MAGIC):
        raise StorageError(
            f"{path} was written by a later version of Surecast: it starts with {data[:4]!r}"
        )
    raise Damaged(f"{path}: damaged: no checksum in it matches")


def _decode(slot: bytes) -> tuple[int, EndsMark] | None:
    """The format, and the mark."""
    if len(slot) < _SLOT_SIZE or slot[:4] != _MAGIC:
        return None
    if _CRC.pack(crc32(slot[: _FIELDS.size])) != slot[_FIELDS.size :]:
        return None
    _, form, *fields = _FIELDS.unpack_from(slot)
    return form, EndsMark(*fields)


class MarkFile:
    """The file `ends`, open for writing. `incarnation` goes into every mark from now on."""

    def __init__(self, folder: Folder, last: EndsMark | None) -> None:
        """Open the file. If it is missing (`last` is None), create and sync it before any journal
        exists."""
        self.incarnation = last.incarnation if last is not None else 0
        self._path = folder.ends
        self._writes = last.writes if last is not None else 0
        self._failed = False
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = open_file(self._path, flags, folder.file_mode)
            if last is None:
                try:
                    self._put(NEW.journal, NEW.size)
                    self._put(NEW.journal, NEW.size)
                    os.fsync(self._file)
                    folder.sync()
                except OSError:
                    os.close(self._file)
                    raise
        except OSError as problem:
            raise StorageError(f"cannot write {self._path}: {problem}") from problem

    def write(self, journal: int, size: int) -> None:
        """Claim `size` bytes of `journal`. A failure is only logged: an older mark is harmless."""
        try:
            self._put(journal, size)
        except OSError as problem:
            self._warn(problem)

    def sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as problem:
            self._warn(problem)

    def abandon(self) -> None:
        """Close the file as it is."""
        os.close(self._file)

    def _put(self, journal: int, size: int) -> None:
        self._writes += 1
        fields = _FIELDS.pack(_MAGIC, FORMAT, self._writes, journal, size, self.incarnation)
        os.pwrite(self._file, fields + _CRC.pack(crc32(fields)), (self._writes & 1) * _STRIDE)

    def _warn(self, problem: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.warning("cannot write %s: %s", self._path, problem)
