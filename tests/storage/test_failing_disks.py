"""Full and failing disks: answers report it, memory agrees, and writing resumes with free space."""

import errno
import os
import resource
import shutil
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.storage.stores import (
    LOG,
    OTHER,
    Driver,
    Room,
    batch,
    compact,
    content,
    names,
    random_compaction,
    small,
)

from surecast.core.types import Append, Compacted, SaveState, Stored, StoreFailed, Truncate
from surecast.errors import StorageError
from surecast.storage import segments
from surecast.storage.config import StorageConfig
from surecast.storage.records import Record
from surecast.storage.segments import SegmentStore

Opened = Callable[..., Driver]


def test_a_store_that_cannot_record_its_opening_does_not_open(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().close()
    room = Room(monkeypatch)
    room.left = 20
    with pytest.raises(StorageError, match="cannot write"):
        opened()
    room.left = 1 << 60
    assert opened().store.incarnation == 2


def test_nothing_is_written_after_a_torn_record_that_cannot_be_removed(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records after it would be lost when the journal is opened again."""
    driver = opened()
    driver.do(SaveState("s", b"kept", 0))
    assert driver.wait(1) == [Stored(0)]
    with monkeypatch.context() as patch:
        room = Room(patch)
        room.left = 20
        patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        driver.do(SaveState("s", b"lost", 1))
        assert driver.wait(1) == [StoreFailed(1, "full")]
        room.left = 1 << 60
        for number in (2, 3):
            driver.do(SaveState("s", b"lost", number))
            assert driver.wait(1) == [StoreFailed(number, "io")]
    driver.close()
    assert opened().disk.state("s") == b"kept"


def test_a_bug_in_the_writer_fails_effects_instead_of_blocking_them(
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = opened()
    with monkeypatch.context() as patch:
        patch.setattr(Record, "encode", lambda *_: 1 / 0)
        driver.do(SaveState("s", b"x", 1))
        assert driver.wait(1) == [StoreFailed(1, "io")]
    assert "ZeroDivisionError" in caplog.text
    driver.do(SaveState("s", b"x", 2))
    assert driver.wait(1) == [StoreFailed(2, "io")]
    driver.close()
    assert opened().disk.state("s") is None


@pytest.mark.parametrize("nbytes", [0, 1, 55, 56, 57, 100, 150, 250, 260, 300])
def test_on_a_full_disk_only_effects_that_do_not_fit_fail(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    room = Room(monkeypatch)
    driver = opened()
    driver.do(Append(LOG, (batch(1),), "before"))
    driver.wait(1)
    driver.do(SaveState("mark", b"", "marked"))
    driver.wait(1)
    before = content(driver.disk)
    room.left = nbytes
    effects = [Append(LOG, (batch(2 + n),), n) for n in range(3)]
    driver.do(*effects, SaveState("s", b"x", "state"))
    answers = driver.wait(4)
    kinds = [type(answer) for answer in answers]
    assert [answer.token for answer in answers] == [0, 1, 2, "state"]
    good = kinds.count(Stored)
    assert kinds == [Stored] * good + [StoreFailed] * (4 - good)
    assert {answer.reason for answer in answers[good:]} == {"full"}
    assert driver.disk.end(LOG) == 2 + good
    # With free space, writing continues after the failure.
    room.left = 1 << 60
    driver.do(Append(LOG, (batch(2 + good, nbytes=9),), "after"))
    assert driver.wait(1) == [Stored("after")]
    after = content(driver.disk)
    driver.close()
    again = opened()
    assert content(again.disk) == after
    assert after[LOG.hex()][0] == before[LOG.hex()][0]


def test_a_truncate_is_kept_when_the_disk_is_full(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(monkeypatch)
    driver = opened()
    driver.do(*(Append(LOG, (batch(n),), n) for n in range(1, 6)))
    driver.wait(5)
    driver.store._journal._file._marked = True  # so that no mark uses the free space
    room.left = 0
    driver.do(Append(LOG, (batch(6),), "a"), Truncate(LOG, 4), Append(LOG, (batch(4),), "b"))
    assert driver.wait(2) == [StoreFailed("a", "full"), StoreFailed("b", "full")]
    assert driver.disk.end(LOG) == 4
    driver.do(SaveState("s", b"", "c"))
    assert driver.wait(1) == [StoreFailed("c", "full")]
    assert driver.disk.end(LOG) == 4
    room.left = 1 << 60
    driver.do(Append(LOG, (batch(4, 7),), "d"))
    assert driver.wait(1) == [Stored("d")]
    driver.close()
    again = opened()
    assert again.disk.end(LOG) == 11
    assert content(again.disk) == content(driver.disk)


def test_a_truncate_beyond_the_written_end_is_not_damage(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It followed appends that failed, and is written nevertheless."""
    room = Room(monkeypatch)
    driver = opened()
    driver.do(Append(LOG, (batch(1, 5),), 0))
    driver.wait(1)
    driver.store._journal._file._marked = True  # so that no mark uses the free space
    room.left = 0
    driver.do(Append(LOG, (batch(6, 5),), "a"), Truncate(LOG, 8))
    assert driver.wait(1) == [StoreFailed("a", "full")]
    room.left = 1 << 60
    driver.do(SaveState("s", b"", "b"))
    assert driver.wait(1) == [Stored("b")]
    driver.close()
    again = opened()
    assert (again.store.damage, again.disk.end(LOG)) == ([], 6)


def test_the_file_size_limit_of_the_system_is_a_full_disk(opened: Opened) -> None:
    driver = opened()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (driver.store._journal._file.size + 3000, hard))
    try:
        driver.do(*(Append(LOG, (batch(n, nbytes=800),), n) for n in range(1, 8)))
        answers = driver.wait(7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    good = sum(type(answer) is Stored for answer in answers)
    assert 1 <= good < 7
    assert answers[good:] == [StoreFailed(n, "full") for n in range(good + 1, 8)]
    driver.close()
    assert opened().disk.end(LOG) == 1 + good


def test_a_failed_sync_is_final(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = opened()
    driver.do(Append(LOG, (batch(1),), "good"))
    driver.wait(1)

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        driver.do(Append(LOG, (batch(2),), "a"), SaveState("s", b"", "b"))
        assert driver.wait(2) == [StoreFailed("a", "io"), StoreFailed("b", "io")]
    driver.do(Append(LOG, (batch(2),), "c"))
    assert driver.wait(1) == [StoreFailed("c", "io")]
    assert driver.disk.end(LOG) == 2
    driver.close()
    again = opened()
    assert content(again.disk) == {LOG.hex(): content(driver.disk)[LOG.hex()]}


@pytest.mark.parametrize("seed", range(8))
def test_memory_and_files_agree_whatever_writes_fail(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Free space comes and goes, for the journal, for moves and for compactions."""
    rng = Random(seed)
    room = Room(monkeypatch)
    driver = opened(small())
    failed = 0
    for number in range(80):
        room.left = rng.choice((1 << 60, rng.randint(0, 2000)))
        owed = 0
        for _ in range(rng.randint(1, 4)):
            log = rng.choice((LOG, OTHER))
            end = driver.disk.end(log)
            choice = rng.randrange(6)
            owed += choice != 0
            if choice == 0:
                driver.do(Truncate(log, max(1, end - rng.randrange(9))))
            elif choice == 1 and end > 2:
                driver.do(random_compaction(rng, log, end, number))
            elif choice == 2:
                driver.do(SaveState(rng.choice("xy"), rng.randbytes(20), number))
            else:
                driver.do(Append(log, (batch(end, 2, rng.choice((20, 300)), log),), number))
        answers = driver.wait(owed)
        failed += sum(type(answer) is StoreFailed for answer in answers)
    room.left = 1 << 60
    driver.do(SaveState("fence", b"", "fence"))  # may fail because of earlier writes
    driver.wait(1)
    driver.settle()
    driver.do(SaveState("last", b"", "last"))
    assert driver.wait(1) == [Stored("last")]
    driver.settle()
    seen = content(driver.disk)
    driver.close()
    assert failed > 5
    assert content(opened(small()).disk) == seen


# ---------------------------------------------------------------- moves and compactions


def fill(driver: Driver, count: int = 12) -> None:
    for n in range(count):
        driver.do(Append(LOG, (batch(driver.disk.end(LOG), 3, 200),), n))
        driver.wait(1)


@pytest.mark.parametrize("kind", ["segment", "manifest"])
def test_a_move_that_does_not_fit_changes_nothing_and_is_retried(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    writev = os.writev

    def full(file: int, buffers: Any) -> int:
        if kind in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.ENOSPC, "injected")
        return writev(file, buffers)

    driver = opened(small())
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        driver.do(Append(OTHER, (batch(1, log=OTHER),), "once"))  # this log is not written again
        driver.wait(1)
        fill(driver)
        driver.settle()
        assert driver.store.moves == 0
        kinds = {name.split("-")[0] for name in names(driver.folder)}
        assert kinds == {"ends", "journal", "lock"}
        assert driver.store.disk.held_bytes > 4096
        seen = content(driver.disk)
        copy = shutil.copytree(driver.folder, driver.folder.parent / "copy")
        store = SegmentStore(copy)
        assert content(store.disk) == seen
        store.close()
    fill(driver)
    driver.settle()
    assert driver.store.moves > 0
    assert driver.store.disk.held_bytes < 8192
    seen = content(driver.disk)
    driver.close()
    assert content(opened(small()).disk) == seen


def test_a_compaction_that_does_not_fit_fails_and_changes_nothing(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(small(journal_bytes_max=1 << 20))
    fill(driver)
    before = content(driver.disk)
    with monkeypatch.context() as patch:
        Failing(patch, "segment", errno.ENOSPC)
        driver.do(compact(LOG, 1, 30, "c", [(2, 3)]))
        assert driver.wait(1) == [StoreFailed("c", "full")]
    assert content(driver.disk) == before
    assert names(driver.folder) == ["ends", "journal-0000000001", "lock"]
    driver.do(compact(LOG, 1, 30, "again", [(2, 3)]))
    assert driver.wait(1) == [Compacted("again")]
    assert content(driver.disk) != before


class Failing:
    """Makes writes to files of one kind fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, number: int) -> None:
        writev = os.writev

        def fail(file: int, buffers: Any) -> int:
            if kind in os.readlink(f"/proc/self/fd/{file}"):
                raise OSError(number, "injected")
            return writev(file, buffers)

        monkeypatch.setattr(os, "writev", fail)


def test_no_file_is_removed_while_the_manifest_is_not_synced(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new manifest has replaced the old one, but after a crash the old one might be back."""
    driver = opened(small())
    fill(driver)
    driver.settle()
    old = (driver.folder / "manifest").read_bytes()
    files = {p.name: p.read_bytes() for p in driver.folder.glob("segment-*")}
    renamed = threading.Event()
    rename, fsync = os.rename, os.fsync

    def rename_then_fail(a: Any, b: Any) -> None:
        rename(a, b)
        renamed.set()

    def fail(file: int) -> None:
        if renamed.is_set():
            raise OSError(errno.EIO, "injected")
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename_then_fail)
        patch.setattr(os, "fsync", fail)
        fill(driver, 30)
        driver.settle()
        assert renamed.is_set()
        driver.store._mover.tidy()
    assert (driver.folder / "manifest").read_bytes() != old
    seen = content(driver.disk)
    for manifest in (old, (driver.folder / "manifest").read_bytes()):
        copy = driver.folder.parent / f"copy{len(manifest)}"
        shutil.copytree(driver.folder, copy)
        (copy / "manifest").write_bytes(manifest)
        assert files.keys() <= set(names(copy))
        store = SegmentStore(copy, small())
        assert content(store.disk) == seen
        store.close()
    fill(driver, 30)
    driver.settle()
    seen = content(driver.disk)
    driver.close()
    assert content(opened(small()).disk) == seen


def test_the_queue_of_unwritten_effects_is_bounded(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(StorageConfig(queue_bytes_max=5000))
    go, began = threading.Event(), threading.Event()

    def hold(file: int) -> None:
        began.set()
        assert go.wait(20)

    monkeypatch.setattr(os, "fdatasync", hold)
    driver.do(SaveState("s", b"0", 0))
    assert began.wait(20)
    for n in range(1, 21):
        driver.do(Append(LOG, (batch(driver.disk.end(LOG), 1, 500),), n))
        assert driver.store.pending_bytes <= 5000
    go.set()
    answers = driver.wait(21)
    good = sum(type(answer) is Stored for answer in answers)
    assert 3 < good < 12
    assert answers[good:] == [StoreFailed(n, "full") for n in range(good, 21)]
    assert driver.disk.end(LOG) == good
    driver.do(Append(LOG, (batch(good),), "later"))
    assert driver.wait(1) == [Stored("later")]


def test_a_store_that_cannot_move_becomes_full(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data held in memory is bounded; writing resumes with free space here, too."""
    driver = opened(small(backlog_bytes_max=10_000))
    monkeypatch.setattr(segments, "_RETRY_S", 0.0)
    with monkeypatch.context() as patch:
        Failing(patch, "segment", errno.EIO)
        answers: list[Any] = []
        while not answers or type(answers[-1]) is Stored:
            driver.do(Append(LOG, (batch(driver.disk.end(LOG), 3, 200),), "a"))
            answers = driver.wait(1)
            driver.settle()
        assert answers == [StoreFailed("a", "full")]
        assert 8_000 < driver.store.disk.held_bytes < 21_000
        journals = len(list(driver.folder.glob("journal-*")))
        for _ in range(10):  # each retries the move, none creates a file
            driver.do(Append(LOG, (batch(driver.disk.end(LOG), 3, 200),), "b"))
            assert driver.wait(1) == [StoreFailed("b", "full")]
            driver.settle()
        assert len(list(driver.folder.glob("journal-*"))) <= journals + 1
    driver.do(Truncate(LOG, driver.disk.end(LOG) - 1))  # can always be written
    driver.settle()
    fill(driver)
    driver.settle()
    assert driver.store.moves
