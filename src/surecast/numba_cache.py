"""Compiles *kernels* (functions over columns of events) with numba, and caches them on disk.

numba stores compiled functions in NUMBA_CACHE_DIR, next to the source, or below the user's home
folder, and raises an exception if it can write to none of these. This happens if the program runs
as a service user, who often has no home folder and may not write to an installed package. In this
case kernels are

1. read from the package, if they were compiled when it was installed (columns/warm.py);
2. otherwise stored in a private folder of this user in the temporary folder;
3. otherwise, if that is not possible, compiled at each start.

numba's cache files are pickles, and reading a pickle can run any code. So a folder is used only if
no other user can have written to it.

Compiling all kernels takes some seconds, once after an installation or an upgrade. The logger
"surecast.kernels" logs a warning when compiling begins, then the progress.
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
progress = logging.getLogger("surecast.kernels")  # only for the log lines of `_Progress`

PROGRESS_S = 1.0  # time between two log lines about the progress

_njit: Any = numba.njit  # numba's own types leave out some of its options
_config: Any = config


def compiled(function: Callable[..., Any], signature: Any, **options: Any) -> Any:
    """`function`, compiled for `signature` (types of arguments and result, in numba's form). It is
    read from a cache on disk if one has it, otherwise compiled and stored in a cache if possible.
    `options` are further arguments of `numba.njit`."""
    began_s = time.monotonic()
    for locator, folder in _caches():
        with _numba_settings(locator, folder):
            try:
                made = _njit(signature, cache=True, **options)(function)
                if made.stats.cache_misses:
                    _progress.compiled(began_s)
                return made
            except OSError:  # this cache cannot be written, or the disk is full: try the next one
                continue
            except RuntimeError as problem:
                if "no locator available" not in str(problem):
                    raise
    _warn()
    made = _njit(signature, **options)(function)
    _progress.compiled(began_s, kept=False)
    return made


def expect(count: int) -> None:
    """Announce that `count` kernels will be loaded, for the log lines about the progress."""
    _progress.expected += count


class _Progress:
    """The number of kernels that this process compiled, and its log lines."""

    def __init__(self) -> None:
        self.expected = 0  # kernels that this process will load
        self.done = 0  # kernels that were compiled so far
        self.began_s = 0.0  # when the compilation of the first one began
        self.logged_s = 0.0  # when the progress was last logged

    def compiled(self, began_s: float, kept: bool = True) -> None:
        """Count one compiled kernel, whose compilation began at `began_s`. `kept` is False if no
        cache could store it; then `_warn` has logged a line."""
        now_s = time.monotonic()
        self.done += 1
        # If more kernels are compiled than were announced, the total is not known.
        of = f" of {self.expected}" if self.expected >= self.done else ""
        if self.done == 1:
            self.began_s, self.logged_s = began_s, now_s
            if kept:
                progress.warning(
                    "compiling kernels for this machine; that takes some seconds, once after an "
                    "installation or upgrade"
                )
        elif self.done == self.expected:
            progress.info("compiled %d kernels in %.1f s", self.done, now_s - self.began_s)
        elif now_s - self.logged_s >= PROGRESS_S:
            self.logged_s = now_s
            progress.info("compiling kernels: %d%s are done", self.done, of)


_progress = _Progress()


def _has_index(locator: Any) -> bool:
    """Whether the cache folder of a locator has the locator's function, compiled for any kind of
    processor. A locator is numba's object for one function and one cache folder."""
    name = f"{Path(locator._py_file).stem}.*-{locator.get_disambiguator()}.py*.nbi"
    return any(Path(locator.get_cache_path()).glob(name))


class PackageCacheLocator(caching.InTreeCacheLocator):
    """The cache next to the installed source. It is only read, never written."""

    _was_called = False  # whether numba has called `ensure_cache_path` for this function before

    def ensure_cache_path(self) -> None:
        """numba calls this to find a cache, and again before it saves a function in it. The second
        call raises, so nothing is saved."""
        if self._was_called or not _has_index(self):
            raise OSError(errno.EROFS, "the package's cache is not written to")
        self._was_called = True


class PrivateCacheLocator(caching.UserProvidedCacheLocator):
    """The private folder (`private_folder`)."""


class KnownCacheLocator(PrivateCacheLocator):
    """The private folder, but only for functions that are already in it. Such a function was not in
    the package's cache for this kind of processor. So this cache is tried before the package's."""

    def ensure_cache_path(self) -> None:
        if not _has_index(self):
            raise FileNotFoundError(errno.ENOENT, "not compiled before", self.get_cache_path())
        super().ensure_cache_path()


def _caches() -> Iterator[tuple[str, str]]:
    """Yield numba's settings (locator class and folder) for each cache, in the order in which the
    caches are tried."""
    yield getattr(config, "CACHE_LOCATOR_CLASSES", ""), _config.CACHE_DIR  # numba's own choice
    folder = private_folder()
    if folder is not None:
        yield f"{__name__}.{KnownCacheLocator.__name__}", str(folder)
    yield f"{__name__}.{PackageCacheLocator.__name__}", ""
    if folder is not None:
        yield f"{__name__}.{PrivateCacheLocator.__name__}", str(folder)


@contextmanager
def _numba_settings(locator: str, folder: str) -> Iterator[None]:
    """Change numba's settings inside the block only, because the application may also use numba.

    Versions of numba that do not know the setting for locators still use the folder.
    """
    before = getattr(config, "CACHE_LOCATOR_CLASSES", ""), _config.CACHE_DIR
    _config.CACHE_LOCATOR_CLASSES, _config.CACHE_DIR = locator, folder
    try:
        yield
    finally:
        _config.CACHE_LOCATOR_CLASSES, _config.CACHE_DIR = before


@cache
def private_folder() -> Path | None:
    """A subfolder of the temporary folder that only this user can have written to. None if that is
    not certain."""
    try:
        parent = Path(tempfile.gettempdir()).resolve()
        folder = parent / f"surecast-numba-{os.geteuid()}"
        _check_parent(parent)
        # An existing folder may be from an earlier start, or of another user: `_check_own` decides.
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        _check_own(folder)
    except OSError as problem:
        log.info("kernels are not cached in a temporary folder: %s", problem)
        return None
    return folder


def _check_parent(path: Path) -> None:
    """Raise PermissionError if another user could replace our folder in `path`."""
    status = os.stat(path)
    # In a folder with the sticky bit, such as /tmp, others may write but not replace our files.
    others_write = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    if others_write or status.st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, "other users could replace its files", str(path))


def _check_own(path: Path) -> None:
    """Raise PermissionError unless `path` is a folder that only this user can access."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "not a private folder of this user", str(path))


@cache  # so that the warning is logged only once
def _warn() -> None:
    log.warning(
        "kernels are compiled at each start, which takes some seconds: there is no folder to keep "
        "them in. Set NUMBA_CACHE_DIR to one that only this user can write to"
    )
