"""Permissions of files that hold events or secrets: readable by their owner, or also by a group.

The umask can only take permissions away, so it is not relied upon: each function here sets the mode
itself. A file system without modes, and a file that belongs to another user, stay as they are.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = [
    "FILE",
    "FOLDER",
    "GROUP_FILE",
    "GROUP_FOLDER",
    "make_folder",
    "open_file",
    "opener",
    "set_mode",
]

FILE: Final = 0o600
FOLDER: Final = 0o700
GROUP_FILE: Final = 0o640  # `StorageConfig.group_read`
GROUP_FOLDER: Final = 0o750


def open_file(path: str | os.PathLike[str], flags: int, mode: int = FILE) -> int:
    """`os.open`; the file has `mode` then, also if it existed with another one."""
    file = os.open(path, flags, mode)
    with suppress(OSError):
        found = stat.S_IMODE(os.fstat(file).st_mode)
        if found != mode:
            os.fchmod(file, mode)
    return file


def opener(path: str, flags: int) -> int:
    """For `open(path, "wb", opener=opener)`."""
    return open_file(path, flags)


def make_folder(path: Path, mode: int = FOLDER) -> None:
    """Make a folder and those above it that are missing, all with `mode`."""
    if not path.is_dir():
        make_folder(path.parent, mode)
        path.mkdir(mode, exist_ok=True)
        set_mode(path, mode)


def set_mode(path: Path, mode: int) -> None:
    """Give a file or folder of ours these permissions; a setgid bit stays."""
    with suppress(OSError):
        found = os.stat(path)
        if found.st_uid == os.geteuid() and found.st_mode & 0o777 != mode:
            os.chmod(path, stat.S_IMODE(found.st_mode) & ~0o777 | mode)
