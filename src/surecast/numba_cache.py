"""Where compiled kernels are kept if numba finds no folder to keep them in.

numba keeps what it has compiled in NUMBA_CACHE_DIR, beside the source, or below the user's home,
and raises if it can write to none of them. A service user often has no home, and an installed
package is read-only to it. Then kernels are

1. read from the package, if they were compiled when it was installed (columns/warm.py);
2. kept in a folder of this user alone in the temporary folder;
3. compiled at each start, if that cannot be had either.

What numba keeps are pickles, and reading a pickle can run any code. So a folder is used only if
nobody else can have written to it.

Compiling all kernels takes some seconds, once after an installation or an upgrade. The logger
"surecast.kernels" tells: a warning when it begins to take time, then how far it is.
"""

# mypy: allow-untyped-calls

import errno
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import caching, config

__all__ = ["compiled", "expect"]

log = logging.getLogger("surecast")
progress = logging.getLogger("surecast.kernels")

PROGRESS_S = 1.0  # between two lines about how far it is

_njit: Any = numba.njit  # numba's own types leave out some of its options
_config: Any = config


def compiled(function: Callable[..., Any], signature: Any, **options: Any) -> Any:
    """`function` compiled for `signature`; if possible, read from a cache on disk or put there."""
    began_s = time.monotonic()
    for locator, folder in _places():
        with _looking_at(locator, folder):
            try:
                made = _njit(signature, cache=True, **options)(function)
                if made.stats.cache_misses:
                    _progress.compiled(began_s)
                return made
            except OSError:  # it cannot be written, or is full
                continue
            except RuntimeError as problem:
                if "no locator available" not in str(problem):
                    raise
    _warn()
    made = _njit(signature, **options)(function)
    _progress.compiled(began_s, kept=False)
    return made


def expect(count: int) -> None:
    """Say that `count` kernels are loaded next, for the lines about progress."""
    _progress.expected += count


class _Progress:
    """How many kernels this process had to compile, and what was said about it."""

    def __init__(self) -> None:
        self.expected = 0
        self.done = 0
        self.began_s = 0.0
        self.said_s = 0.0

    def compiled(self, began_s: float, kept: bool = True) -> None:
        """One more, since `began_s`. `kept`: later starts find it; else `_warn` has said more."""
        now_s = time.monotonic()
        self.done += 1
        of = f" of {self.expected}" if self.expected >= self.done else ""
        if self.done == 1:
            self.began_s, self.said_s = began_s, now_s
            if kept:
                progress.warning(
                    "compiling kernels for this machine; that takes some seconds, once after an "
                    "installation or upgrade"
                )
        elif self.done == self.expected:
            progress.info("compiled %d kernels in %.1f s", self.done, now_s - self.began_s)
        elif now_s - self.said_s >= PROGRESS_S:
            self.said_s = now_s
            progress.info("compiling kernels: %d%s are done", self.done, of)


_progress = _Progress()


def _has_index(locator: Any) -> bool:
    """Whether the function of a locator has been compiled in its folder, for whatever machine."""
    name = f"{Path(locator._py_file).stem}.*-{locator.get_disambiguator()}.py*.nbi"
    return any(Path(locator.get_cache_path()).glob(name))


class PackageCacheLocator(caching.InTreeCacheLocator):
    """The cache beside the source, as it was installed: it is read, and never written."""

    _found = False

    def ensure_cache_path(self) -> None:
        """Called to find a cache, and once more before something is saved in it."""
        if self._found or not _has_index(self):
            raise OSError(errno.EROFS, "the package's cache is not written to")
        self._found = True


class PrivateCacheLocator(caching.UserProvidedCacheLocator):
    """The private folder."""


class KnownCacheLocator(PrivateCacheLocator):
    """The private folder, for functions it has: the package's cache did not fit this machine."""

    def ensure_cache_path(self) -> None:
        if not _has_index(self):
            raise FileNotFoundError(errno.ENOENT, "not compiled before", self.get_cache_path())
        super().ensure_cache_path()


def _places() -> Iterator[tuple[str, str]]:
    """numba's settings for each place, in the order in which they are tried."""
    yield getattr(config, "CACHE_LOCATOR_CLASSES", ""), _config.CACHE_DIR  # numba's own choice
    folder = private_folder()
    if folder is not None:
        yield f"{__name__}.{KnownCacheLocator.__name__}", str(folder)
    yield f"{__name__}.{PackageCacheLocator.__name__}", ""
    if folder is not None:
        yield f"{__name__}.{PrivateCacheLocator.__name__}", str(folder)


@contextmanager
def _looking_at(locator: str, folder: str) -> Iterator[None]:
    """For this long only: the program around us may use numba, too.

    Versions of numba that do not know the first setting look into the folder, too.
    """
    before = getattr(config, "CACHE_LOCATOR_CLASSES", ""), _config.CACHE_DIR
    _config.CACHE_LOCATOR_CLASSES, _config.CACHE_DIR = locator, folder
    try:
        yield
    finally:
        _config.CACHE_LOCATOR_CLASSES, _config.CACHE_DIR = before


@cache
def private_folder() -> Path | None:
    """A folder in the temporary folder that only this user can ever have written to, if any."""
    try:
        parent = Path(tempfile.gettempdir()).resolve()
        folder = parent / f"surecast-numba-{os.geteuid()}"
        _check_parent(parent)
        with suppress(FileExistsError):  # ours from an earlier start; or somebody else's
            os.mkdir(folder, 0o700)
        _check_own(folder)
    except OSError as problem:
        log.info("kernels are not cached in a temporary folder: %s", problem)
        return None
    return folder


def _check_parent(path: Path) -> None:
    """Nobody else may replace our folder in it: it is sticky, or only ours to write."""
    found = os.stat(path)
    others_write = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    if others_write or found.st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, "others could replace what is in it", str(path))


def _check_own(path: Path) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "not a folder of this user alone", str(path))


@cache
def _warn() -> None:
    log.warning(
        "kernels are compiled at each start, which takes some seconds: there is no folder to keep "
        "them in. Set NUMBA_CACHE_DIR to one that only this user can write to"
    )
