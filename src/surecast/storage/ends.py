"""The mark: how much of the journal is acknowledged, stored outside the journal.

The journal alone does not show whether its last records were lost or never written. So the file
`ends` records which journal file is written to, and how many of its bytes have been acknowledged. A
journal that is shorter is damaged.

The mark is written in place after every group of records, without a sync of its own:

- After the process was killed, the mark is exact.
- After a crash of the system, the file may contain an older mark, which states fewer bytes. With
  `sync = "data"` the mark never states too many bytes, because the journal is synced before the
  mark is written.
- With `sync = "none"`, a crash of the system may leave a mark that states more bytes than the
  journal has. The mark then shows that acknowledged records were lost.

The mark is synced when a store is opened or closed and when the journal continues in a new file.

    slot        at 0 and at 4096, written alternately, so that a torn write leaves the older one:
                magic, format, number of writes, journal, size, incarnation, CRC-32, 4 zeros

`format` is the version of everything in the folder that has no version of its own, such as records
and states. If a later version of Surecast writes data that this version would misread, it first
writes a higher `format` into the mark. This version then refuses the folder and changes nothing.
"""

import logging
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from surecast.errors import StorageError
from surecast.storage.folder import Damaged, Folder, is_later
from surecast.storage.modes import open_file

__all__ = ["FORMAT", "NEW", "EndsMark", "MarkFile", "read_mark"]

log = logging.getLogger("surecast.storage")

_MAGIC: Final = b"SCE\xf1"
_FIELDS: Final = struct.Struct("<4sIQQQQ")
_CRC: Final = struct.Struct("<I4x")
_SLOT_SIZE: Final = _FIELDS.size + _CRC.size
_STRIDE: Final = 4096  # no sector holds both slots
FORMAT: Final = 0


class EndsMark(NamedTuple):
    writes: int  # marks written so far; the slot with the higher number is the newer
    journal: int  # the number of the journal being written
    size: int  # its acknowledged bytes
    incarnation: int  # the number of the node's current run


NEW: Final = EndsMark(2, 1, 0, 0)  # the mark of a store without any record


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
    """The file `ends`, open for writing. Every mark contains `incarnation`, the node's run."""

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
