"""The directory of a store: its lock, the names of its files, and durable changes to it.

    lock                 held by the process that uses the directory
    journal-0000000001   the newest writes (appends, truncates, saved states), in order
    segment-0000000001   batches that were moved from a journal
    manifest             which segments make up each log, and which journal follows
    ends                 how many bytes of the newest journal are acknowledged; a journal with fewer
                         bytes is damaged

Every change of the directory is a single call of a function of `os`, so that tests can let any of
these calls fail, or simulate a crash right after it.
"""

import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from surecast.core.wire import Buffer
from surecast.errors import StorageError
from surecast.storage import modes
from surecast.storage.config import StorageConfig

__all__ = ["FULL", "Damaged", "Folder", "Paths", "is_later", "write_all"]

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room; a later write may succeed
_WRITE_BUFFERS_MAX: Final = 512  # in one writev; the system's limit is 1024
# Kind and number of a journal or segment.
_NAME: Final = re.compile(r"(journal|segment)-(\d{10,19})")


class Damaged(StorageError):
    """A file, or a part of one, does not hold what was written to it."""


def is_later(opening: bytes, magic: bytes) -> bool:
    """Whether a file that begins with `opening` seems to be of a later version of the format.

    The last byte of a magic number is the version of the format. There are no earlier versions, so
    any other value is taken for a later one. A flipped bit could also be the cause of a difference;
    callers rule that out with a checksum or a second copy.
    """
    return opening[:3] == magic[:3] and len(opening) >= 4 and opening[:4] != magic


class Paths:
    """The paths of the files in a store's directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def journal(self, number: int) -> Path:
        return self.path / f"journal-{number:010}"

    def segment(self, number: int) -> Path:
        return self.path / f"segment-{number:010}"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest"

    @property
    def ends(self) -> Path:
        return self.path / "ends"

    def numbers(self, kind: str) -> list[int]:
        """The numbers of the existing journals or segments, in order."""
        matches = (_NAME.fullmatch(name) for name in os.listdir(self.path))
        return sorted(int(match[2]) for match in matches if match is not None and match[1] == kind)


class Folder(Paths):
    """An open directory: the constructor creates it if necessary and locks it against other
    processes."""

    def __init__(self, path: str | os.PathLike[str], config: StorageConfig | None = None) -> None:
        super().__init__(path)
        config = config or StorageConfig()
        self.file_mode = config.file_mode  # permissions of all files that are created
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            _make(self.path, config.folder_mode)
            self._lock = modes.open_file(self.path / "lock", flags, self.file_mode)
        except OSError as problem:
            raise StorageError(f"cannot open {self.path}: {problem}") from problem
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise StorageError(
                f"cannot open {self.path}: it is in use by process {holder or 'unknown'}; "
                "stop that one first, or give this one a directory of its own"
            ) from problem
        with suppress(OSError):  # only for error messages: must not fail on a full disk
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)
        # Existing files may have other modes: an earlier version created them, or `group_read` of
        # the configuration was different.
        modes.set_mode(self.path, config.folder_mode)
        for old in (self.manifest, *self._files("journal"), *self._files("segment")):
            modes.set_mode(old, self.file_mode)

    def _files(self, kind: str) -> list[Path]:
        return [self.path / f"{kind}-{number:010}" for number in self.numbers(kind)]

    def close(self) -> None:
        os.close(self._lock)

    def sync(self) -> None:
        """Make creations, renames and removals of files durable."""
        sync_directory(self.path)


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable: which files it contains, and their names."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _make(path: Path, mode: int) -> None:
    """Create a folder and its missing parents, each synced in its own parent."""
    if not path.is_dir():
        _make(path.parent, mode)
        path.mkdir(mode, exist_ok=True)
        modes.set_mode(path, mode)
        sync_directory(path.parent)


def write_all(file: int, buffers: list[Buffer]) -> tuple[int, OSError | None]:
    """Write all buffers. Returns how many bytes were written, and the error if any."""
    written = 0
    try:
        for at in range(0, len(buffers), _WRITE_BUFFERS_MAX):
            group = buffers[at : at + _WRITE_BUFFERS_MAX]
            count = os.writev(file, group)
            written += count
            rest = memoryview(b"".join(group))[count:] if count < sum(map(len, group)) else b""
            while rest:
                count = os.write(file, rest)
                if not count:  # unexpected; avoids an endless loop
                    raise OSError(errno.ENOSPC, "nothing could be written")
                written += count
                rest = rest[count:]
    except OSError as problem:
        return written, problem
    return written, None
