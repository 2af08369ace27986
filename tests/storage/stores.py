"""Helpers for the tests of stores: batches, a driver, random histories, and failing disks."""

import errno
import os
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, REASONS, Batch
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.core.types import Append, ColdBelow, Compact, Compacted, SaveState, Truncate
from surecast.storage.config import StorageConfig
from surecast.storage.memory import MemoryDisk
from surecast.storage.segments import SegmentStore
from surecast.storage.store import apply

LOG = bytes(range(16))
OTHER = bytes(16)


def batch(lo: int, count: int = 1, nbytes: int = 20, log: bytes = LOG, time_ns: int = 5) -> Batch:
    values = [f"{lo + i}".encode().ljust(nbytes, b".") for i in range(count)]
    return Batch.of(log, values).sequenced(lo, time_ns, 1)


def compact(
    log: bytes, lo: int, hi: int, token: Any, gone: list[tuple[int, int]] | None = None
) -> Compact:
    """A Compact of [lo, hi) that makes the ranges `gone` (default: all) void."""
    voids = IntervalSet([(lo, hi)] if gone is None else gone)
    return Compact(log, lo, hi, encode_voids({COLLECTED: voids}), 1000, token)


def content(disk: MemoryDisk) -> dict[str, Any]:
    """The contents of a disk, batch by batch."""
    logs: dict[str, Any] = {}
    for log in disk.logs():
        batches = disk.read(log, 1, disk.end(log), 1 << 60)
        logs[log.hex()] = [
            (b.lo, b.hi, b.kind, b.reason, b.time_ns, b.epoch, b.pub_no, bytes(b.body or b""))
            for b in batches
        ]
    return {**logs, **{name: disk.state(name) for name in disk.states()}}


def small(**options: Any) -> StorageConfig:
    """A configuration in which a few batches fill a journal."""
    made = {
        "journal_bytes_max": 4096,
        "segment_bytes_max": 8192,
        "inline_bytes_max": 600,
        "run_bytes_min": 4096,
        "maps_max": 3,
        **options,
    }
    return StorageConfig(**made)


class Driver:
    """Drives a store like a node: collects answers when it is woken, and shows compactions."""

    def __init__(self, directory: Path, config: StorageConfig | None = None) -> None:
        self.store = SegmentStore(directory, config)
        self.woken = threading.Event()
        self.store.attach(self.woken.set)
        self.answers: list[Any] = []
        self.cold: dict[bytes, int] = {}  # log → end of its cold positions

    def do(self, *effects: Any) -> None:
        for effect in effects:
            self.store.perform(effect)

    def wait(self, count: int) -> list[Any]:
        """Wait for `count` answers, return them and forget them."""
        while len(self.answers) < count:
            assert self.woken.wait(20), f"{len(self.answers)} answers of {count}"
            self.woken.clear()
            self.collect()
        answers, self.answers = self.answers, []
        return answers

    def collect(self) -> None:
        for answer in self.store.collect():
            if type(answer) is ColdBelow:
                self.cold.update(answer.ends)
                continue
            if type(answer) is Compacted:
                self.store.show(answer)
            self.answers.append(answer)

    def settle(self) -> None:
        """Wait until all background work is finished."""
        while self.store._moving or self.store._job is not None or self.store._background._jobs:
            assert self.woken.wait(20), "the background is stuck"
            self.woken.clear()
            self.collect()

    @property
    def disk(self) -> MemoryDisk:
        return self.store.disk

    @property
    def folder(self) -> Path:
        return Path(self.store.path)

    @property
    def journal(self) -> Path:
        """The current journal file."""
        return sorted(self.folder.glob("journal-*"))[-1]

    def close(self) -> None:
        self.store.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def history(rng: Random, count: int, nbytes_max: int = 50) -> list[Any]:
    """Random effects as of a machine, each valid after the ones before it."""
    disk = MemoryDisk()
    effects: list[Any] = []
    time_ns = 0
    for number in range(count):
        log = rng.choice((LOG, OTHER))
        end = disk.end(log)
        time_ns += rng.randrange(3)
        match rng.randrange(9):
            case 0:
                data = rng.randbytes(rng.randint(0, 50))
                effect: Any = SaveState(rng.choice("xyz"), data, number)
            case 1:
                effect = Truncate(log, max(1, end - rng.randrange(rng.choice((3, 60)))))
            case 2 if end > 3:
                effect = random_compaction(rng, log, end, number)
            case _:
                nbytes = rng.randint(10, nbytes_max)
                first = batch(end, rng.randint(1, 5), nbytes, log, time_ns)
                effect = Append(log, (first, batch(first.hi, 2, nbytes, log, time_ns)), number)
        play_one(disk, effect)
        effects.append(effect)
    return effects


def random_compaction(rng: Random, log: bytes, end: int, token: Any) -> Compact:
    """A random compaction. Void positions and reasons do not depend on the order of compactions."""
    lo = rng.randint(1, end - 1)
    hi = rng.randint(lo + 1, end)
    voids = {reason: IntervalSet() for reason in REASONS}
    for p in range(lo, hi):
        if p % 8 < 5:
            voids[REASONS[p % 3]].add(p, p + 1)
    return Compact(log, lo, hi, encode_voids(voids), rng.choice((3, 50)), token)


def play_one(disk: MemoryDisk, effect: Any) -> None:
    answer = apply(disk, effect)
    if type(answer) is Compacted:
        disk.show(answer.token)
    disk.sync()


def play_memory(effects: list[Any]) -> list[dict[str, Any]]:
    """The contents of a memory disk before the first effect and after each effect."""
    disk = MemoryDisk()
    contents = [content(disk)]
    for effect in effects:
        play_one(disk, effect)
        contents.append(content(disk))
    return contents


class Room:
    """Replaces `os.writev` and `os.write`; only `left` more bytes can be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left = 1 << 60
        self._lock = threading.Lock()
        self._write = os.write
        monkeypatch.setattr(os, "writev", self.writev)
        monkeypatch.setattr(os, "write", self.write)

    def writev(self, file: int, buffers: Any) -> int:
        return self.write(file, b"".join(buffers))

    @property
    def left(self) -> int:
        return self._left

    @left.setter
    def left(self, nbytes: int) -> None:
        with self._lock:
            self._left = nbytes

    def write(self, file: int, data: Any) -> int:
        with self._lock:
            if not self._left:
                raise OSError(errno.ENOSPC, "injected")
            count = self._write(file, data[: self._left])
            self._left -= count
            return count
