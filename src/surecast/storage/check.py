"""Reads all segments of a folder once and compares their checksums; used when a store is opened.

The files are read with `pread` and not through memory maps: an unreadable sector then raises an
error, instead of a signal that ends the process. Checksums and reads release the interpreter's
lock, so a few threads share the work, each with one buffer.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final, NamedTuple
from zlib import crc32

from surecast.errors import StorageError
from surecast.storage.folder import Damaged, Paths
from surecast.storage.segment_file import INDEX_ENTRY, Mapped

__all__ = ["Checked", "Progress", "check_segments", "not_checked"]

_BUFFER_BYTES: Final = 1 << 20
_THREADS_MAX: Final = 4
_ALONE_BYTES_MAX: Final = 32 << 20  # below this, starting threads takes longer than it saves

Progress = Callable[[int, int], None]  # bytes read, bytes in all


class Checked(NamedTuple):
    """The result of checking a segment's file. A *run* is a sequence of batches of one log, with
    its frames (encoded batches) and their index (segment_file.py)."""

    missing: bool  # there is no such file
    problem: Damaged | None  # set if header, directory or footer are damaged; `runs` is empty then
    runs: dict[int, str]  # number of each damaged run → its damaged part, "index" or "frames"


class _Counter:
    """Adds up the bytes read by all threads and reports the progress."""

    def __init__(self, total: int, on_progress: Progress) -> None:
        self._total = total
        self._done = 0
        self._on_progress = on_progress
        self._lock = Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            self._on_progress(min(self._done, self._total), self._total)


def check_segments(
    folder: Paths, numbers: Sequence[int], on_progress: Progress
) -> dict[int, Checked]:
    """Read every byte of these segments. Returns the result of each segment by its number.

    Raises StorageError if a file cannot be read or was written by a later version.
    """
    sizes = {number: _size(folder, number) for number in numbers}
    total = sum(sizes.values())
    counter = _Counter(total, on_progress)
    if len(numbers) < 2 or total < _ALONE_BYTES_MAX:
        return {number: _check(folder, number, counter) for number in numbers}
    threads = min(_THREADS_MAX, len(numbers), os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "check") as pool:
        checked = pool.map(lambda number: _check(folder, number, counter), numbers)
        return dict(zip(numbers, checked, strict=True))


def not_checked(folder: Paths, number: int) -> Checked:
    """The result for a file that is not read: it states only whether the file exists."""
    return Checked(not folder.segment(number).exists(), None, {})


def _size(folder: Paths, number: int) -> int:
    try:
        return folder.segment(number).stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as problem:
        raise StorageError(f"cannot read {folder.segment(number)}: {problem}") from problem


def _check(folder: Paths, number: int, counter: _Counter) -> Checked:
    path = folder.segment(number)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Checked(True, None, {})
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem}") from problem
    try:
        _read_ahead(file)
        return _check_file(_Sums(file, counter), Mapped(path, number))
    except Damaged as problem:
        return Checked(False, problem, {})
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem}") from problem
    finally:
        os.close(file)


def _read_ahead(file: int) -> None:
    """Read the parts of the file that `Mapped` reads through a memory map. An unreadable sector
    raises an error here; through the map it would end the process with a signal."""
    # Header and footer have 32 bytes each. The footer begins with the offset of the directory.
    size = os.fstat(file).st_size
    footer = os.pread(file, 32, max(size - 32, 0))
    os.pread(file, 32, 0)
    if len(footer) == 32:
        for at in range(int.from_bytes(footer[:8], "little"), size, _BUFFER_BYTES):
            os.pread(file, _BUFFER_BYTES, at)


def _check_file(sums: "_Sums", mapped: Mapped) -> Checked:
    runs: dict[int, str] = {}
    for number in range(mapped.runs):
        run = mapped.run(number)
        if sums.of(run.at, run.nbytes) != run.crc:
            runs[number] = "frames"
        if sums.of(run.index_at, INDEX_ENTRY * run.batches) != run.index_crc:
            # Replaces "frames": without its index, intact frames cannot be found either.
            runs[number] = "index"
    return Checked(False, None, runs)


class _Sums:
    """Checksums of parts of a file."""

    def __init__(self, file: int, counter: _Counter) -> None:
        self._file = file
        self._counter = counter
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def of(self, at: int, nbytes: int) -> int:
        crc, end = 0, at + nbytes
        while at < end:
            count = os.preadv(self._file, [self._buffer[: min(_BUFFER_BYTES, end - at)]], at)
            if not count:
                break  # the file is shorter
            crc = crc32(self._buffer[:count], crc)
            at += count
            self._counter.add(count)
        return crc
