"""The file of a segment, which holds batches of several logs, followed by indices.

`SegmentWriter` writes such a file and is used by mover.py; `Mapped` reads it through a memory map.
A *frame* is an encoded batch, with the same bytes as on the wire. A *run* is a sequence of batches
of one log; its frames are adjacent in the file.

    header      32 bytes: magic, number of the segment, CRC
    frames      the frames of all runs, one run after the other
    indices     for each run four columns: first position, offset, time, number of rows of a batch
    directory   72 bytes for each run: log, positions, where its frames and index are, CRCs, scope
    footer      32 bytes: where the directory is, CRCs, magic

A segment is written once, synced, and never changed. Batches that are read are views into the
memory map. Every byte is covered by a checksum. The checksum of a frame is verified each time the
frame is read, the checksum of an index when its run is first used, and all others when the file is
mapped. Each run also has one checksum over all its frames, so that `check.py` can verify a whole
file in few calls. docs/storage.md has the layout byte by byte.
"""

import mmap
import os
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from surecast.core.types import Batch, LogId
from surecast.core.wire import Buffer, decode_batch, encode_batch
from surecast.errors import PeerError, StorageError
from surecast.storage.config import LOG_LIMITS
from surecast.storage.folder import Damaged, is_later, write_all
from surecast.storage.modes import FILE, open_file

__all__ = [
    "FRAMES_AT",
    "INDEX_ENTRY",
    "Mapped",
    "Misplaced",
    "Run",
    "SegmentWriter",
    "open_map",
    "touch",
]

_MAGIC: Final = b"SCS\xf1"
_HEADER: Final = struct.Struct("<4s4xQ12xI")  # magic, number of the segment, CRC of the header
_RUN: Final = struct.Struct("<16sQQQQQIIII")  # the fields of Run
# Offset of the directory, number of runs, CRC of the directory, size of the file, magic, CRC of the
# footer.
_FOOTER: Final = struct.Struct("<QIIQ4sI")
_COLUMNS: Final = 4  # columns of an index
_SLICE_BYTES: Final = 256 << 10  # a slice is written after this many bytes
_SLICE_BATCHES: Final = 64  # or after this many batches

FRAMES_AT: Final = _HEADER.size  # offset of the first frame
INDEX_ENTRY: Final = 8 * _COLUMNS  # bytes of an index for each batch

Numbers = npt.NDArray[np.int64]


class Misplaced(Damaged):
    """The header of the file has the number of another segment."""


class Run(NamedTuple):
    """Batches of one log whose frames are adjacent in the file; also an entry of the directory."""

    log: LogId
    lo: int  # its positions are [lo, hi)
    hi: int
    at: int  # offset of its first frame
    nbytes: int  # size of its frames
    index_at: int  # offset of its index
    batches: int  # number of its batches
    index_crc: int  # checksum of its index
    crc: int  # checksum of its frames
    scope: int  # the layer that the log belongs to (`core.compose`); 0: not known


class SegmentWriter:
    """Writes one segment: `begin` and `add` for each run and its batches, at the end `finish`."""

    def __init__(
        self, path: Path, number: int, between_slices: Callable[[], None], mode: int = FILE
    ) -> None:
        self.path = path
        self.size = 0  # of the file so far, including what is in `_buffers`
        self.runs: list[Run] = []  # complete runs; the fields of their indices are set by `finish`
        self._between_slices = between_slices  # called after each slice; may raise to stop the work
        self._buffers: list[Buffer] = []  # not written yet
        self._waiting = self._batches = 0  # bytes and batches in `_buffers`
        self._indices: list[tuple[array[int], ...]] = []  # the columns of each run's index
        self._current: tuple[LogId, int, int] | None = None  # the open run: log, scope, offset
        self._crc = 0  # checksum of the frames of the current run so far
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = open_file(path, flags, mode)
        head = _HEADER.pack(_MAGIC, number, 0)[:-4]  # without the CRC
        self._put(head + struct.pack("<I", crc32(head)))

    def begin(self, log: LogId, scope: int = 0) -> int:
        """Begin a run for the batches added from now on; returns its index in `runs`."""
        self.end()
        self._current = (log, scope, self.size)
        self._crc = 0
        self._indices.append(tuple(array("q") for _ in range(_COLUMNS)))
        return len(self.runs)

    def add(self, batch: Batch) -> None:
        los, offsets, times, rows = self._indices[-1]
        los.append(batch.lo)
        offsets.append(self.size)
        times.append(batch.time_ns)
        rows.append(batch.rows)
        self._hi = batch.hi
        for buffer in encode_batch(batch, LOG_LIMITS):
            self._crc = crc32(buffer, self._crc)
            self._put(buffer)
        self._batches += 1
        if self._waiting >= _SLICE_BYTES or self._batches >= _SLICE_BATCHES:
            self._flush()

    def end(self) -> tuple[int, int]:
        """Complete the run. Returns its size in bytes and the latest time of its batches."""
        if self._current is None:
            return 0, 0
        log, scope, at = self._current
        los, _, times, _ = self._indices[-1]
        nbytes = self.size - at
        run = Run(log, los[0], self._hi, at, nbytes, 0, len(los), 0, self._crc, scope)
        self.runs.append(run)
        self._current = None
        return nbytes, max(times)

    def finish(self) -> None:
        """Write indices, directory and footer, and sync the file (but not its directory entry)."""
        self.end()
        runs = []
        for run, columns in zip(self.runs, self._indices, strict=True):
            index = b"".join(column.tobytes() for column in columns)
            runs.append(run._replace(index_at=self.size, index_crc=crc32(index)))
            self._put(index)
            if self._waiting >= _SLICE_BYTES:
                self._flush()
        self.runs = runs
        directory, at = b"".join(_RUN.pack(*run) for run in runs), self.size
        self._put(directory)
        fields = (at, len(runs), crc32(directory), at + len(directory) + _FOOTER.size, _MAGIC, 0)
        footer = _FOOTER.pack(*fields)[:-4]  # without the CRC
        self._put(footer + struct.pack("<I", crc32(footer)))
        self._flush()
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def _put(self, buffer: Buffer) -> None:
        self._buffers.append(buffer)
        self._waiting += len(buffer)
        self.size += len(buffer)

    def _flush(self) -> None:
        buffers, self._buffers = self._buffers, []
        self._waiting = self._batches = 0
        _, problem = write_all(self._file, buffers)
        if problem is not None:
            raise problem
        self._between_slices()


class Mapped:
    """The memory map of a segment's file. The constructor verifies header, directory and footer;
    other parts are verified when they are used."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < _HEADER.size + _FOOTER.size:
                    raise self._damage(0, "the file is too short")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as problem:
            raise StorageError(f"cannot read {path}: {problem}") from problem
        self.view = memoryview(self._map)
        self.size = len(self.view)
        self._check_header(number)
        self._directory_at, self.runs = self._read_footer()  # `runs`: the number of runs
        self._checked = bytearray(self.runs)  # by run: 1 if the run's index was verified

    def run(self, number: int) -> Run:
        if not 0 <= number < self.runs:
            raise self._damage(self._directory_at, f"the directory has no run {number}")
        return Run(*_RUN.unpack_from(self.view, self._directory_at + number * _RUN.size))

    def index(self, run: Run, number: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """First position, offset, time and number of rows of each batch of a run; `number` is the
        run's index in the segment."""
        nbytes = INDEX_ENTRY * run.batches
        if not self._checked[number]:
            index = self.view[run.index_at : run.index_at + nbytes]
            if len(index) != nbytes or crc32(index) != run.index_crc:
                raise self._damage(run.index_at, "the checksum of its index does not match")
            self._checked[number] = 1
        columns = np.frombuffer(self.view, "<i8", _COLUMNS * run.batches, run.index_at)
        los, offsets, times, rows = columns.reshape(_COLUMNS, run.batches)
        return los, offsets, times, rows

    def batch(self, at: int, lo: int) -> tuple[Batch, int]:
        """Returns the batch at offset `at`, and the size of its frame in bytes.

        Raises Damaged if the frame is not valid or its first position is not `lo`.
        """
        return self.decode(self.view[at : self._directory_at], at, lo)

    def decode(self, frame: Buffer, at: int, lo: int) -> tuple[Batch, int]:
        """As `batch`, for a frame that was read from offset `at` in another way."""
        try:
            batch, size = decode_batch(frame, LOG_LIMITS, validate=False)
            if batch.lo != lo:
                raise PeerError(f"its first position is {batch.lo}, expected {lo}")
        except PeerError as problem:
            raise self._damage(at, str(problem)) from problem
        return batch, size

    def problem(self, at: int, end: int, lo: int, hi: int) -> str | None:
        """What is wrong with the batch at offsets [at, end), which should have the positions
        [lo, hi); None if it is valid."""
        try:
            batch, size = self.batch(at, lo)
            if batch.hi != hi or at + size != end:
                raise self._damage(
                    at,
                    f"it ends at position {batch.hi} and offset {at + size:,}; expected position "
                    f"{hi} and offset {end:,}",
                )
        except Damaged as problem:
            return str(problem)
        return None

    def _check_header(self, number: int) -> None:
        magic, written, crc = _HEADER.unpack_from(self.view)
        if crc != crc32(self.view[: _HEADER.size - 4]):
            raise self._damage(0, "the checksum of the file's header does not match")
        if is_later(magic, _MAGIC):
            raise StorageError(
                f"{self.path} was written by a later version of Surecast: it starts with {magic!r}"
            )
        if written != number:
            raise Misplaced(f"{self.path}: damaged: its header is that of segment {written}")

    def _read_footer(self) -> tuple[int, int]:
        at = self.size - _FOOTER.size
        start, runs, directory_crc, size, magic, crc = _FOOTER.unpack_from(self.view, at)
        if magic != _MAGIC or crc != crc32(self.view[at : self.size - 4]) or size != self.size:
            raise self._damage(at, "the footer of the file is not valid: is the file complete?")
        directory = self.view[start:at]
        if len(directory) != runs * _RUN.size or crc32(directory) != directory_crc:
            raise self._damage(start, "the checksum of the file's directory does not match")
        return start, runs

    def _damage(self, at: int, why: str) -> Damaged:
        return Damaged(f"{self.path}: the record at offset {at:,} is damaged: {why}")


def touch(file: int) -> None:
    """Read what finding a frame needs (header, indices, directory, footer) into the system's cache.

    A `Mapped` reads it through the memory map, with the interpreter's lock. What is damaged is
    reported by `Mapped`, not here.
    """
    size = os.fstat(file).st_size
    os.pread(file, _HEADER.size, 0)
    footer = os.pread(file, _FOOTER.size, max(0, size - _FOOTER.size))
    if len(footer) < _FOOTER.size:
        return
    at, runs, *_ = _FOOTER.unpack(footer)
    directory = os.pread(file, _RUN.size, at) if runs and at < size else b""
    if len(directory) == _RUN.size:
        at = min(at, Run(*_RUN.unpack(directory)).index_at)  # indices are in the order of runs
    while at < size:
        at += len(os.pread(file, _SLICE_BYTES, at)) or size


def open_map(path: Path) -> memoryview:
    """The memory map of a file. The whole file is read first, so that an unreadable sector raises
    an error; through the map it would end the process with a signal."""
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(_SLICE_BYTES)
        if not file.readinto(buffer):
            return memoryview(b"")
        while file.readinto(buffer):
            pass
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
