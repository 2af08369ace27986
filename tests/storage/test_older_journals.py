"""A journal that is torn though another follows it: that one must be empty, and the tear is cut.

A store continues in a new journal when the old one is wholly on disk. If the directory cannot be
synced at that moment, the new file exists, empty, and the store stays with the old one. A crash may
tear what is written to the old one from then on. The next opening goes on in the old one, behind
its last whole record, and removes the empty one.
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
    """Make such a directory; how many positions its log has."""
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
    image[FIRST] = image[FIRST][: image[FIRST].index(b"the last append") + 4]  # it was under way
    image["ends"] = mark
    put(image, folder)
    return whole


def store(driver: Driver, value: bytes = b"") -> None:
    end = driver.disk.end(LOG)
    made = Batch.of(LOG, [value]).sequenced(end, 5, 1) if value else batch(end, 3, 100)
    driver.do(Append(LOG, (made,), end))
    assert driver.wait(1) == [Stored(end)]


def lives(folder: Path, unplugged: bool) -> list[str]:
    """Open the torn store, store something, crash and open it again; what is wrong then.

    A process that ends leaves what it wrote. If the power fails (`unplugged`), only what was synced
    is left. The journals are not full, so no move removes them meanwhile.
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


def not_at_all(file: JournalFile, size: int) -> None:
    """Mutant: what is torn is not cut off before more is written."""
    file.size = os.path.getsize(file.folder.journal(file.number))


@pytest.mark.parametrize("unplugged", [False, True])
def test_rule_holds(tmp_path: Path, unplugged: bool) -> None:
    torn_before_an_empty_one(tmp_path / "disk")
    assert lives(tmp_path / "disk", unplugged) == []


def test_story_fails_without_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torn_before_an_empty_one(tmp_path / "disk")
    monkeypatch.setattr(JournalFile, "cut", not_at_all)
    assert lives(tmp_path / "disk", False) != []


def test_what_was_whole_is_kept_and_the_tear_is_counted(tmp_path: Path) -> None:
    whole = torn_before_an_empty_one(tmp_path / "disk")
    driver = Driver(tmp_path / "disk", small())
    assert driver.disk.end(LOG) == whole
    assert driver.store.cut_bytes > 0
    driver.close()
    again = Driver(tmp_path / "disk", small())
    assert again.disk.end(LOG) == whole
    assert again.store.cut_bytes == 0
    again.close()
