"""A torn journal with an empty one after it: the torn record is removed before more is written.

A store continues in a new journal when the old one is completely on disk. If the directory cannot
be synced at that moment, the new file exists but is empty, and the store continues with the old
journal. A crash may tear records written there from then on. The next opening continues in the old
journal after its last complete record, and removes the empty one.
"""

import os
import stat
from pathlib import Path

import pytest
from tests.storage.power import Power, put
from tests.storage.stores import LOG, Driver, batch, small

from surecast.columns.batch import Batch
from surecast.core.types import Append, Stored
from surecast.errors import StorageError
from surecast.storage.journal_file import JournalFile

FIRST, SECOND = "journal-0000000001", "journal-0000000002"


def torn_before_an_empty_one(folder: Path) -> int:
    """Create such a directory; returns the end of its log."""
    fsync = os.fsync

    def fails_for_directories(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(5, "injected")
        fsync(file)

    driver = Driver(folder.parent / "before", small())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fails_for_directories)
        while not (driver.folder / SECOND).exists():
            store(driver)
            driver.settle()
        whole = driver.disk.end(LOG)
        mark = (driver.folder / "ends").read_bytes()
        store(driver, b"the last append")
        image = {path.name: path.read_bytes() for path in driver.folder.iterdir()}
    driver.close()
    assert image[SECOND] == b""
    image[FIRST] = image[FIRST][: image[FIRST].index(b"the last append") + 4]  # incomplete
    image["ends"] = mark
    put(image, folder)
    return whole


def store(driver: Driver, value: bytes = b"") -> None:
    end = driver.disk.end(LOG)
    made = Batch.of(LOG, [value]).sequenced(end, 5, 1) if value else batch(end, 3, 100)
    driver.do(Append(LOG, (made,), end))
    assert driver.wait(1) == [Stored(end)]


def problems_after_two_runs(folder: Path, unplugged: bool) -> list[str]:
    """Open the torn store, store something, crash, and open it again; returns the problems found.

    A killed process leaves all that it wrote; a power failure (`unplugged`) only what was synced.
    The journals are not full, so no move removes them meanwhile.
    """
    with pytest.MonkeyPatch.context() as patch:
        power = Power(patch, folder, lambda: 0, 1)
        driver = Driver(folder)
        store(driver)
        end = driver.disk.end(LOG)
        image = power.synced() if unplugged else power.killed()
        driver.close()
    try:
        again = Driver(put(image, folder.parent / "left"))
    except StorageError as problem:
        return [str(problem)]
    found, damage = again.disk.end(LOG), again.store.damage
    again.close()
    return damage if found == end else [f"the log ends at {found}, it was stored up to {end}"]


def keep_torn_records(file: JournalFile, size: int) -> None:
    """A mutant: a torn record is not removed before more is written."""
    file.size = os.path.getsize(file.folder.journal(file.number))


@pytest.mark.parametrize("unplugged", [False, True])
def test_a_torn_record_is_removed_before_more_is_written(tmp_path: Path, unplugged: bool) -> None:
    torn_before_an_empty_one(tmp_path / "disk")
    assert problems_after_two_runs(tmp_path / "disk", unplugged) == []


def test_the_check_fails_if_the_torn_record_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn_before_an_empty_one(tmp_path / "disk")
    monkeypatch.setattr(JournalFile, "cut", keep_torn_records)
    assert problems_after_two_runs(tmp_path / "disk", False) != []


def test_complete_records_are_kept_and_the_torn_bytes_are_counted(tmp_path: Path) -> None:
    whole = torn_before_an_empty_one(tmp_path / "disk")
    driver = Driver(tmp_path / "disk", small())
    assert driver.disk.end(LOG) == whole
    assert driver.store.cut_bytes > 0
    driver.close()
    again = Driver(tmp_path / "disk", small())
    assert again.disk.end(LOG) == whole
    assert again.store.cut_bytes == 0
    again.close()
