"""Files with events are readable only by their owner, whatever the umask, or by a group if set."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.stores import LOG, Driver, batch, small

from surecast.core.types import Append
from surecast.storage import modes


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_in(folder: Path) -> dict[str, int]:
    """The modes of the files of a store, by kind."""
    return {path.name.partition("-")[0]: mode(path) for path in folder.iterdir()}


def fill(folder: Path, **settings: bool) -> None:
    """Open a store and write until there is a file of each kind."""
    driver = Driver(folder, small(**settings))
    for _ in range(20):
        driver.do(Append(LOG, (batch(driver.disk.end(LOG), 5, 200),), 1))
        driver.wait(1)
    driver.settle()
    driver.close()
    assert {"lock", "journal", "segment", "manifest"} <= modes_in(folder).keys()


@pytest.mark.parametrize("group_read", [False, True])
def test_new_files_and_folders_have_restricted_modes(
    tmp_path: Path, umask: int, group_read: bool
) -> None:
    folder = tmp_path / "a" / "b"
    fill(folder, **({"group_read": True} if group_read else {}))
    assert set(modes_in(folder).values()) == {0o640 if group_read else 0o600}
    assert mode(folder) == mode(folder.parent) == (0o750 if group_read else 0o700)


def test_modes_of_files_of_an_earlier_version_are_restricted(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    fill(folder)
    os.chmod(folder, 0o755)
    for path in folder.iterdir():
        os.chmod(path, 0o644)
    Driver(folder, small()).close()
    assert mode(folder) == 0o700
    assert set(modes_in(folder).values()) == {0o600}


def test_group_read_applies_to_old_files_and_the_setgid_bit_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    fill(folder)
    os.chmod(folder, 0o2700)  # new files get the group of the folder
    Driver(folder, small(group_read=True)).close()
    assert mode(folder) == 0o2750
    assert set(modes_in(folder).values()) == {0o640}
    Driver(folder, small()).close()
    assert mode(folder) == 0o2700
    assert set(modes_in(folder).values()) == {0o600}


def test_the_mode_of_an_existing_parent_folder_is_kept(tmp_path: Path) -> None:
    above = tmp_path / "shared"
    above.mkdir()
    os.chmod(above, 0o755)
    fill(above / "log")
    assert mode(above) == 0o755
    assert mode(above / "log") == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_mode_of_a_folder_of_another_user_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chmod(folder, 0o755)
    os.chown(folder, 12_345, 12_345)
    Driver(folder).close()
    assert mode(folder) == 0o755
    assert modes_in(folder) == {"lock": 0o600, "journal": 0o600, "ends": 0o600}


def test_a_file_system_without_modes_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)
    modes.make_folder(tmp_path / "a" / "b", 0o777)
    fill(tmp_path / "a" / "b" / "c", group_read=True)
