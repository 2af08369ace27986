"""Bounds of a store on memory, maps, writes and reports: at each limit and one step beyond."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.storage.stores import LOG, Driver, batch, small

from surecast.core.types import DAMAGE, Append
from surecast.errors import ConfigError
from surecast.server import nodes
from surecast.server.config import build
from surecast.storage import check, folder, inspect, recovery
from surecast.storage.config import StorageConfig
from surecast.storage.extents import Shelf
from surecast.storage.folder import _WRITE_BUFFERS_MAX, Paths
from surecast.storage.memory import DiskFull, MemoryDisk
from surecast.storage.recovery import _LINES_MAX, _REASONS_MAX, Replay


@contextmanager
def folder_of_segments() -> Iterator[Path]:
    """The folder of a closed store with one log in several segments."""
    with TemporaryDirectory() as name:
        path = Path(name) / "disk"
        driver = Driver(path, small(run_bytes_min=0))
        for number in range(40):
            driver.do(Append(LOG, (batch(driver.disk.end(LOG), 5, 100),), number))
            driver.wait(1)
            driver.settle()
        driver.close()
        assert len(Paths(path).numbers("segment")) > 4
        yield path


# ---------------------------------------------------------------- memory


def memory_of_a_node() -> None:
    """A node without a data folder stores `memory_bytes_max` bytes; then its disk is full."""
    node = {"name": "e-1", "region": "e", "data_dir": "", "listen": "127.0.0.1:7400", "http": ""}
    regions = {"e": {"replicas": {"e-1": "127.0.0.1:7400"}}}
    most = 1 << 20
    settings = {"node": node, "regions": regions, "storage": {"memory_bytes_max": most}}
    disk: Any = nodes.open_store(build(settings), "replica").disk
    assert isinstance(disk, MemoryDisk)
    first = batch(1, 1, 500_000)
    rest = batch(2, 1, most - 2 * first.nbytes + 500_000)
    disk.append(LOG, (first,))
    assert first.nbytes + rest.nbytes == most
    with pytest.raises(DiskFull):
        disk.append(LOG, (batch(2, 1, most - 2 * first.nbytes + 500_008),))
    disk.append(LOG, (rest,))
    assert disk.nbytes == most


def test_memory_bytes_max_below_1_mib_is_refused() -> None:
    StorageConfig(memory_bytes_max=1 << 20)
    with pytest.raises(ConfigError, match="memory_bytes_max = 1048575: 1MiB or more"):
        StorageConfig(memory_bytes_max=(1 << 20) - 1)


# ---------------------------------------------------------------- reading all segments


def number_of_checking_threads() -> None:
    """The number of threads that read segments: one for little data, at most _THREADS_MAX."""
    pools_made: list[int] = []
    seen: set[str] = set()

    def noted(_done: int, _total: int) -> None:
        seen.add(threading.current_thread().name)

    class Pool(check.ThreadPoolExecutor):
        def __init__(self, count: int, name: str) -> None:
            pools_made.append(count)
            super().__init__(count, name)

    with folder_of_segments() as path, pytest.MonkeyPatch.context() as patch:
        paths = Paths(path)
        numbers = paths.numbers("segment")
        total = sum(paths.segment(number).stat().st_size for number in numbers)
        patch.setattr(check, "ThreadPoolExecutor", Pool)
        patch.setattr(os, "cpu_count", lambda: 64)
        patch.setattr(check, "_THREADS_MAX", 3)
        for alone, pools in ((total + 1, []), (total, [3])):
            pools_made.clear()
            patch.setattr(check, "_ALONE_BYTES_MAX", alone)
            seen.clear()
            found = check.check_segments(paths, numbers, noted)
            assert pools_made == pools
            assert all(name.startswith("check") for name in seen) is bool(pools)
            assert list(found) == list(numbers)
            assert not any(s.missing or s.problem or s.runs for s in found.values())


def number_of_mapped_segments() -> None:
    """`surecast log` maps at most _MAPS_MAX segments at a time."""
    most = 0

    class Watched(Shelf):
        def mapped(self, number: int) -> Any:
            nonlocal most
            found = super().mapped(number)
            most = max(most, len(self._maps))
            return found

    with folder_of_segments() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "Shelf", Watched)
        patch.setattr(inspect, "_MAPS_MAX", 2)
        (stream,) = [stream for stream in inspect.info(path).streams if stream.log == LOG]
        assert stream.live == 200
        assert len(inspect.batches(path, LOG)) == 40
    assert most == 2


# ---------------------------------------------------------------- writing


def buffers_in_one_write() -> None:
    """More buffers than one system call accepts are written with several calls."""
    buffers: list[Any] = [b"%d," % number for number in range(3 * _WRITE_BUFFERS_MAX + 1)]
    sizes = []
    writev = os.writev

    def counted(file: int, some: list[Any]) -> int:
        sizes.append(len(some))
        return writev(file, some)

    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "writev", counted)
        for count, calls in ((1, [_WRITE_BUFFERS_MAX]), (3, [*[_WRITE_BUFFERS_MAX] * 3, 1])):
            some = buffers if count > 1 else buffers[:_WRITE_BUFFERS_MAX]
            sizes.clear()
            path = Path(name) / str(count)
            file = os.open(path, os.O_WRONLY | os.O_CREAT)
            assert folder.write_all(file, some) == (len(b"".join(some)), None)
            os.close(file)
            assert path.read_bytes() == b"".join(some)
            assert sizes == calls


# ---------------------------------------------------------------- reports of damage


def reasons_of_damage() -> None:
    """Earlier reasons come first; at most _REASONS_MAX are kept."""
    with TemporaryDirectory() as name:
        paths = Paths(name)
        replay = Replay(paths, Shelf(paths, 1))
        known = [f"known {number}" for number in range(_REASONS_MAX - 1)]
        replay.disk.save(DAMAGE, "\n".join(known).encode())
        replay.lost["found 1"] = None
        assert replay.reasons() == [*known, "found 1"]
        replay.lost["found 2"] = None
        assert replay.reasons() == [*known, "found 1"]


def lines_about_damage() -> None:
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("surecast.storage")
    logger.addHandler(handler)
    try:
        with TemporaryDirectory() as name:
            for count in (_LINES_MAX, _LINES_MAX + 1):
                logged.clear()
                paths: Any = Paths(name)
                recovery._log_damage(paths, [f"line {number}" for number in range(count)])
                lines = [f"{name}: line {number}" for number in range(_LINES_MAX)]
                more = [f"{name}: 1 more lines like these"] if count > _LINES_MAX else []
                assert logged == lines + more
    finally:
        logger.removeHandler(handler)


STORAGE = "surecast.storage."
CHECKS: list[Row] = [
    (
        memory_of_a_node,
        Edit("surecast.server.nodes:open_store", "config.storage.memory_bytes_max", "None"),
    ),
    (
        number_of_checking_threads,
        Edit(STORAGE + "check:check_segments", "min(_THREADS_MAX,", "min(64,"),
    ),
    (number_of_mapped_segments, Edit(STORAGE + "inspect:_played", "_MAPS_MAX", "256")),
    (
        buffers_in_one_write,
        Edit(STORAGE + "folder:write_all", "at + _WRITE_BUFFERS_MAX]", "at + (1 << 20)]"),
    ),
    (reasons_of_damage, Edit(STORAGE + "recovery:Replay.reasons", "[:_REASONS_MAX]", "")),
    (lines_about_damage, Edit(STORAGE + "recovery:_log_damage", "damage[:_LINES_MAX]", "damage")),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)
