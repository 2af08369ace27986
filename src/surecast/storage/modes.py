"""Permissions of files that hold events or secrets: readable by their owner, or also by a group.

The umask can only remove permissions, so the functions here set the mode explicitly. File systems
without modes, and files that belong to another user, are left as they are.
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
    """`os.open`, which also gives `mode` to a file that existed with another one."""
    file = os.open(path, flags, mode)
    with suppress(OSError):
        current = stat.S_IMODE(os.fstat(file).st_mode)
        if current != mode:
            os.fchmod(file, mode)
    return file


def opener(path: str, flags: int) -> int:
    """For `open(path, "wb", opener=opener)`."""
    return open_file(path, flags)


def make_folder(path: Path, mode: int = FOLDER) -> None:
    """Create a folder and its missing parents, all with `mode`."""
    if not path.is_dir():
        make_folder(path.parent, mode)
        path.mkdir(mode, exist_ok=True)
        set_mode(path, mode)


def set_mode(path: Path, mode: int) -> None:
    """Give a file or folder of ours these permissions; a setgid bit is kept."""
    with suppress(OSError):
        current = os.stat(path)
        if current.st_uid == os.geteuid() and current.st_mode & 0o777 != mode:
            os.chmod(path, stat.S_IMODE(current.st_mode) & ~0o777 | mode)
