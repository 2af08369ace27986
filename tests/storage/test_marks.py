"""The mark (`ends`): a journal that is shorter than it states has lost acknowledged records."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.storage.stores import LOG, Driver, batch, content, small

from surecast.core.types import DAMAGE, Append, SaveState, Stored
from surecast.storage.folder import Damaged, Folder
from surecast.storage.inspect import info, verify
from surecast.storage.journal_file import EndsMark, JournalFile, MarkFile, read_mark
from surecast.storage.records import LIFE, read_records
from surecast.storage.segments import SegmentStore

Opened = Callable[..., Driver]


def fill(driver: Driver, count: int = 10) -> None:
    for _ in range(count):
        driver.do(Append(LOG, (batch(driver.disk.end(LOG), 5),), "a"))
        assert driver.wait(1) == [Stored("a")]


def lost(store: SegmentStore) -> str:
    return (store.disk.state(DAMAGE) or b"").decode()


WRITER = """
import sys, threading
from tests.storage.stores import LOG, Driver, batch
from surecast.core.types import Append
driver = Driver(sys.argv[1])
for _ in range(10):
    driver.do(Append(LOG, (batch(driver.disk.end(LOG), 5),), "a"))
    driver.wait(1)
print("written", flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closed") / "disk"
    driver = Driver(folder)
    fill(driver)
    driver.close()
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "disk"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return folder


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_store_that_was_closed_or_killed_has_no_damage(
    how: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = shutil.copytree(request.getfixturevalue(how), tmp_path / "disk")
    store = SegmentStore(folder)
    assert (store.damage, store.disk.end(LOG), store.disk.state(DAMAGE)) == ([], 51, None)
    store.close()


@pytest.mark.parametrize("how", ["closed", "killed"])
@pytest.mark.parametrize("cut", ["emptied", "a record", "half a record", "one byte", "deleted"])
def test_a_truncated_last_journal_is_damage(
    how: str, cut: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = shutil.copytree(request.getfixturevalue(how), tmp_path / "disk")
    (path,) = folder.glob("journal-*")
    data = path.read_bytes()
    ends = [end for end, record in read_records(memoryview(data), 1, 0) if type(record) is Append]
    if cut == "deleted":
        path.unlink()
    else:
        mark = read_mark(folder / "ends")
        assert mark is not None
        sizes = {"emptied": 0, "a record": ends[-2], "half a record": ends[-1] - 100}
        os.truncate(path, sizes.get(cut, mark.size - 1))
    problems = verify(folder).problems
    assert any(str(path) in problem for problem in problems)
    assert info(folder).problems == problems
    store = SegmentStore(folder)
    assert str(path) in lost(store)
    kept = {"emptied": 1, "deleted": 1, "a record": 46, "half a record": 46}
    # A truncated batch is known to have existed if its header is still there.
    assert store.disk.end(LOG) == kept.get(cut, 51) or store.disk.holes(LOG) == [(46, 51)]
    assert store.incarnation == 2, "the mark contains the incarnation, too"
    store.close()
    for _ in range(2):  # the damage is reported until it has been handled
        store = SegmentStore(folder)
        assert str(path) in lost(store)
        store.close()
    driver = Driver(folder)
    driver.do(SaveState(DAMAGE, b"", "dealt with"))
    driver.wait(1)
    driver.close()
    store = SegmentStore(folder)
    assert lost(store) == ""
    store.close()


def test_a_torn_mark_leaves_the_older_one(closed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    driver = Driver(folder)
    fill(driver, 3)
    ends = folder / "ends"
    newest = read_mark(ends)
    assert newest is not None
    data = bytearray(ends.read_bytes())
    at = 4096 * (newest.writes & 1)
    data[at + 20 : at + 48] = bytes(28)
    copy = shutil.copytree(folder, tmp_path / "copy")
    driver.close()
    (copy / "ends").write_bytes(data)
    older = read_mark(copy / "ends")
    assert older is not None
    assert older.writes == newest.writes - 1
    assert older.size < newest.size
    store = SegmentStore(copy)
    assert (store.damage, store.disk.end(LOG)) == ([], 16)
    store.close()


def test_a_closed_store_has_two_equal_marks(closed: Path, tmp_path: Path) -> None:
    """So damage of one of them does not hide damage of the journal."""
    for slot in range(2):
        folder = shutil.copytree(closed, tmp_path / str(slot))
        data = bytearray((folder / "ends").read_bytes())
        data[4096 * slot + 9] ^= 1
        (folder / "ends").write_bytes(data)
        (path,) = folder.glob("journal-*")
        os.truncate(path, path.stat().st_size - 8)
        store = SegmentStore(folder)
        assert "was cut short" in lost(store)
        store.close()


@pytest.mark.parametrize("data", [None, b"", b"SCE", bytes(5000), b"?" * 5000])
def test_a_lost_mark_is_damage(closed: Path, tmp_path: Path, data: bytes | None) -> None:
    folder = shutil.copytree(closed, tmp_path / "disk")
    if data is None:
        (folder / "ends").unlink()
    else:
        (folder / "ends").write_bytes(data)
    assert any("ends" in problem for problem in verify(folder).problems)
    store = SegmentStore(folder)
    assert "ends" in lost(store)
    assert store.disk.end(LOG) == 51
    store.close()
    driver = Driver(folder)
    driver.do(SaveState(DAMAGE, b"", "dealt with"))
    driver.wait(1)
    driver.close()
    assert verify(folder).problems == []


def test_an_older_mark_is_not_damage(closed: Path, tmp_path: Path) -> None:
    """A system crash may leave one; records of the journal beyond it still count."""
    driver = Driver(tmp_path / "disk")
    fill(driver, 2)
    ends = (driver.folder / "ends").read_bytes()
    fill(driver, 3)
    driver.close()
    (driver.folder / "ends").write_bytes(ends)
    store = SegmentStore(driver.folder)
    assert (store.damage, store.disk.end(LOG)) == ([], 26)
    store.close()


def test_the_mark_is_synced_only_when_a_new_journal_begins(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = MarkFile.sync
    monkeypatch.setattr(MarkFile, "sync", lambda self: (synced.append(1), sync(self))[1])
    driver = opened(small())
    syncs = len(synced)
    moves = 0
    while moves < 3:
        fill(driver, 1)
        driver.settle()
        moves = driver.store.moves
        mark = read_mark(driver.folder / "ends")
        assert mark is not None
        file = driver.store._journal._file
        assert mark[1:3] == (file.number, file._synced)
    assert len(synced) == syncs + moves, "a group of records costs no sync of the mark"


def test_a_mark_claims_only_synced_records(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = opened()
    fill(driver, 1)
    claimed: list[tuple[int, int]] = []
    sync, write = os.fdatasync, MarkFile.write
    synced = 0

    def fdatasync(file: int) -> None:
        nonlocal synced
        size = os.fstat(file).st_size
        sync(file)
        synced = size

    def claim(self: MarkFile, journal: int, size: int) -> None:
        claimed.append((size, synced))
        write(self, journal, size)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(MarkFile, "write", claim)
    fill(driver, 5)
    assert len(claimed) == 5
    assert all(size <= on_disk for size, on_disk in claimed)


def test_without_syncs_a_mark_claims_acknowledged_records(opened: Opened) -> None:
    driver = opened(small(sync="none", journal_bytes_max=1 << 20))
    fill(driver, 4)
    mark = read_mark(driver.folder / "ends")
    assert mark is not None
    assert mark.size == driver.store._journal._file._claimed > 4 * 200
    copy = shutil.copytree(driver.folder, driver.folder.parent / "copy")
    (path,) = copy.glob("journal-*")
    os.truncate(path, mark.size - 72 * 8)
    store = SegmentStore(copy, small(sync="none"))
    assert "was cut short" in lost(store)
    store.close()


def test_a_mark_that_cannot_be_written_does_not_stop_the_store(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = opened()

    def fail(*_: Any) -> int:
        raise OSError(5, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        fill(driver, 3)
        driver.close()
    assert caplog.text.count("ends: ") == 1
    again = opened()
    assert (again.store.damage, again.disk.end(LOG)) == ([], 16)


def test_the_two_slots_of_a_mark_are_written_alternately(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "disk")
    marks = MarkFile(folder, None)
    marks.incarnation = 7
    before = folder.ends.read_bytes()
    for number in range(1, 6):
        marks.write(3, number)
        data = folder.ends.read_bytes()
        changed = [at for at in (0, 4096) if data[at : at + 48] != before[at : at + 48]]
        assert changed == [4096 * (number & 1)]
        assert read_mark(folder.ends) == EndsMark(2 + number, 3, number, 7)
        before = data
    marks.abandon()
    folder.ends.write_bytes(bytes(100))
    with pytest.raises(Damaged):
        read_mark(folder.ends)
    folder.close()


def test_incarnations_still_increase_when_their_records_are_lost(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    for incarnation in range(1, 4):
        driver = opened()
        assert driver.store.incarnation == incarnation
        fill(driver, 1)
        driver.close()
    data = memoryview(driver.journal.read_bytes())
    starts, at = [], 0
    for end, record in read_records(data, 1, 0):
        starts += [at] if type(record) is tuple and record[0] == LIFE else []
        at = end
    broken = bytearray(data)
    broken[starts[-1] + 64] ^= 1  # the incarnation
    driver.journal.write_bytes(broken)
    again = opened()
    assert again.store.incarnation == 4
    assert "is damaged" in again.store.damage[0]
    assert again.disk.state(DAMAGE) is None
    assert content(again.disk) == content(driver.disk)


def test_an_empty_next_journal_is_not_damage(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory could not be synced: the old journal continues, with a seal in the middle."""
    monkeypatch.setattr(
        JournalFile, "mark", lambda _: None
    )  # so that its thread writes nothing meanwhile
    driver = opened()
    fill(driver, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "sync", _fail)
        file = driver.store._journal._file
        with pytest.raises(OSError, match="injected"):
            file.rotate()
    fill(driver, 2)
    assert len(list(driver.folder.glob("journal-*"))) == 2
    driver.close()
    with driver.journal.parent.joinpath("journal-0000000001").open("ab") as torn:
        torn.write(b"torn")
    for end in (21, 26):
        again = opened()
        assert (again.store.damage, again.disk.end(LOG)) == ([], end)
        fill(again, 1)
        again.close()


def _fail(*_: Any) -> None:
    raise OSError(5, "injected")
