"""Permissions of files that hold events or secrets: readable by their owner, or also by a group.

The functions here set the mode explicitly, because the umask can only remove permissions, and
because a file may exist with another mode. Errors are ignored: some file systems have no modes, and
files of another user cannot be changed.
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
    """Like `os.open`, but also sets the permissions of a file that already exists to `mode`."""
    file = os.open(path, flags, mode)
    with suppress(OSError):
        current = stat.S_IMODE(os.fstat(file).st_mode)
        if current != mode:
            os.fchmod(file, mode)
    return file


def opener(path: str, flags: int) -> int:
    """For the parameter `opener` of `open`: the file gets the mode 0600."""
    return open_file(path, flags)


def make_folder(path: Path, mode: int = FOLDER) -> None:
    """Create a folder and its missing parents, all with `mode`. Existing ones keep theirs."""
    if not path.is_dir():
        make_folder(path.parent, mode)
        path.mkdir(mode, exist_ok=True)
        set_mode(path, mode)


def set_mode(path: Path, mode: int) -> None:
    """Give a file or folder of this user these permissions; a setgid bit is kept."""
    with suppress(OSError):
        current = os.stat(path)
        if current.st_uid == os.geteuid() and current.st_mode & 0o777 != mode:
            os.chmod(path, stat.S_IMODE(current.st_mode) & ~0o777 | mode)
