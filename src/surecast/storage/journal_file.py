"""One file of the journal, and the mark: how many bytes of the journal must not get lost.

The journal is a sequence of files; `JournalFile` writes the current one for journal_writer.py. It
never ends in a torn record, and `JournalFile` tracks how much of it is on disk. After each group of
records it also raises the *mark*, which is stored outside the journal.

The journal alone does not show whether its last records were lost or never written. So the mark
(the file `ends`) records which journal file is written to, and how many of its bytes are
*acknowledged*: the store has reported their records as stored. A journal that is shorter is
damaged. (A record of the kind MARK is something else, see `JournalFile.mark`.)

The mark is written in place after every group of records, without a sync of its own:

- After the process was killed, the mark is exact.
- After a crash of the system, the file may contain an older mark, which states fewer bytes. With
  `sync = "data"` the mark never states too many bytes, because the journal is synced before the
  mark is written.
- With `sync = "none"`, a crash of the system may leave a mark that states more bytes than the
  journal has. The mark then shows that acknowledged records were lost.

The mark is synced when a store is opened or closed and when the journal continues in a new file.

The file has two slots, at 0 and at 4096. They are written alternately, so that a torn write leaves
the older slot intact:

    slot        magic, format, number of writes, journal, size, incarnation, CRC-32, 4 zeros

`format` is the version of everything in the folder that has no version of its own, such as records
and states. If a later version of Surecast writes data that this version would misread, it first
writes a higher `format` into the mark. This version then refuses the folder and changes nothing.
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
FORMAT: Final = 0  # the version of the whole folder's format


class JournalFile:
    """The current file of the journal; `rotate` replaces it by the next one."""

    def __init__(self, folder: Folder, number: int, durable: bool, marks: "MarkFile") -> None:
        self.folder = folder
        self.number = number
        self.size = 0  # if the file is not new, `cut` sets it
        self.has_effects = True  # False: it has no records other than MARK
        self._synced = 0  # bytes known to be on disk
        self._durable = durable  # `sync = "data"`
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
        """Remove torn records, which begin at `size`. Called before the first
        `append`."""
        os.ftruncate(self._file, size)
        self.size = size
        self._synced = min(self._synced, size)

    def append(self, records: list[Record]) -> tuple[int, OSError | None]:
        """Write records. Returns how many were written completely, and the error if any. An
        incomplete record is cut off."""
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
        """Append a record of kind MARK, whose head states the synced size.

        Called when nothing else is waiting to be written. With this record, the next opening knows
        that all records before it were on disk.
        """
        if not self._marked and self._durable:
            before = self.has_effects  # `append` sets it
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


# ---------------------------------------------------------------- the mark


class EndsMark(NamedTuple):
    writes: int  # marks written so far; the slot with the higher number is the newer
    journal: int  # the number of the journal being written
    size: int  # its acknowledged bytes
    incarnation: int  # the number of the node's current run


NEW: Final = EndsMark(2, 1, 0, 0)  # the mark of a store without any record; in both slots


def read_mark(path: Path) -> EndsMark | None:
    """The mark, or None if there is no such file.

    Raises Damaged if neither slot is valid, StorageError if the folder was written by a later
    version or the file cannot be read at all.
    """
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
        return max(marks)  # the newest: `writes` is compared first
    if is_later(data[:4], _MAGIC) and is_later(data[_STRIDE : _STRIDE + 4], _MAGIC):
        raise StorageError(
            f"{path} was written by a later version of Surecast: it starts with {data[:4]!r}"
        )
    raise Damaged(f"{path}: damaged: no checksum in it matches")


def _decode(slot: bytes) -> tuple[int, EndsMark] | None:
    """The format and the mark in a slot; None if the slot is not valid."""
    if len(slot) < _SLOT_SIZE or slot[:4] != _MAGIC:
        return None
    if _CRC.pack(crc32(slot[: _FIELDS.size])) != slot[_FIELDS.size :]:
        return None
    _, form, *fields = _FIELDS.unpack_from(slot)
    return form, EndsMark(*fields)


class MarkFile:
    """The file `ends`, open for writing. Every mark contains `incarnation`, the node's run."""

    def __init__(self, folder: Folder, last: EndsMark | None) -> None:
        """Open the file. If it is missing (`last` is None), create and sync it before any journal
        exists."""
        self.incarnation = last.incarnation if last is not None else 0
        self._path = folder.ends
        self._writes = last.writes if last is not None else 0
        self._failed = False  # whether a failure was logged
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
        """Record that `size` bytes of `journal` are acknowledged.

        A failure is only logged, because an older mark is harmless: it states fewer bytes.
        """
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
        """Close the file without another write or sync."""
        os.close(self._file)

    def _put(self, journal: int, size: int) -> None:
        self._writes += 1
        fields = _FIELDS.pack(_MAGIC, FORMAT, self._writes, journal, size, self.incarnation)
        os.pwrite(self._file, fields + _CRC.pack(crc32(fields)), (self._writes & 1) * _STRIDE)

    def _warn(self, problem: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.warning("cannot write %s: %s", self._path, problem)
