"""The directory of a store: its lock, its files' names, and what it takes to keep a change in it.

    lock                 held by the process that uses the directory
    journal-0000000001   effects, in the order they were asked for
    segment-0000000001   batches that have left the journal
    manifest             which segments make up each log, and which journal goes on from there
    ends                 how far the journal went

Everything that changes the directory goes through the functions of `os`, one by one: tests let each
of them fail, or be the last before a crash.
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

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # there is no room, and may be later
_WRITE_BUFFERS_MAX: Final = 512  # in one writev; the system's limit is 1024
_NAME: Final = re.compile(r"(journal|segment)-(\d{10,19})")


class Damaged(StorageError):
    """A file, or a part of one, does not hold what was written to it."""


def is_later(found: bytes, magic: bytes) -> bool:
    """Whether a file that opens with `found` seems to be of a later version of the format.

    All magics end in a byte for the version. Callers ask this after they have made sure that a few
    flipped bits are not the explanation.
    """
    return found[:3] == magic[:3] and len(found) >= 4 and found[:4] != magic


class Paths:
    """Where in a directory things are."""

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
        """Of the journals, or segments, that are there, in order."""
        found = (_NAME.fullmatch(name) for name in os.listdir(self.path))
        return sorted(int(match[2]) for match in found if match is not None and match[1] == kind)


class Folder(Paths):
    """Opened by the constructor: made if need be, and locked against other processes."""

    def __init__(self, path: str | os.PathLike[str], config: StorageConfig | None = None) -> None:
        super().__init__(path)
        config = config or StorageConfig()
        self.file_mode = config.file_mode
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
        with suppress(OSError):  # only to be told: a full disk is no reason not to open
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)
        # An earlier version, or another setting, may have made them.
        modes.set_mode(self.path, config.folder_mode)
        for old in (self.manifest, *self._files("journal"), *self._files("segment")):
            modes.set_mode(old, self.file_mode)

    def _files(self, kind: str) -> list[Path]:
        return [self.path / f"{kind}-{number:010}" for number in self.numbers(kind)]

    def close(self) -> None:
        os.close(self._lock)

    def sync(self) -> None:
        """What was created, renamed and removed stays so."""
        sync_directory(self.path)


def sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _make(path: Path, mode: int) -> None:
    """With those above it, each entered in its own for good."""
    if not path.is_dir():
        _make(path.parent, mode)
        path.mkdir(mode, exist_ok=True)
        modes.set_mode(path, mode)
        sync_directory(path.parent)


def write_all(file: int, buffers: list[Buffer]) -> tuple[int, OSError | None]:
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
