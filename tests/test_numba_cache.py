"""Compiled kernels are read from the package or kept in a folder that only their user can write."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from surecast import numba_cache

SRC = Path(numba_cache.__file__).parent
USER = 54_321  # the service's user if the tests run as root

# Runs as a user that can write neither to the package nor to a home folder. Modules that numba
# imports late are loaded first, because the interpreter itself may be readable by root only.
SERVICE = """
import os, sys
import numba
from surecast.columns import compiled
numba.njit("int64(int64)")(lambda x: x + 1)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({user})
    os.setuid({user})
from surecast.columns import runs
for made in (runs.sort_positions, runs.merge_positions, runs.cover_positions):
    (hits,), folder = made.stats.cache_hits.values() or (0,), made.stats.cache_path
    print(hits, folder)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can enter, with a copy of the package and a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="surecast-test-"))
    folder.chmod(0o755)
    for part in ("errors.py", "version.py", "__init__.py", "numba_cache.py", "columns"):
        if not (SRC / part).exists():
            continue
        copy = shutil.copytree if (SRC / part).is_dir() else shutil.copy
        (folder / "site" / "surecast").mkdir(parents=True, exist_ok=True)
        copy(SRC / part, folder / "site" / "surecast" / part)
    for cached in (folder / "site").rglob("__pycache__"):
        shutil.rmtree(cached)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    yield folder
    set_modes(folder / "site", 0o755)
    shutil.rmtree(folder)


def set_modes(site: Path, mode: int) -> None:
    for path in (site, *site.rglob("*")):
        if path.is_dir():
            path.chmod(mode)


def run(place: Path, script: str) -> list[str]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(place / "site"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/dev/null",
        "TMPDIR": str(place / "tmp"),
    }
    script = script.format(user=USER)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=place, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def serve(place: Path) -> set[str]:
    """Run the service; a line for each distinct pair of cache hits and cache folder."""
    lines = run(place, SERVICE)
    assert len(lines) == 3
    return set(lines)


@pytest.mark.slow
def test_a_user_without_a_home_caches_kernels_in_a_private_folder(place: Path) -> None:
    set_modes(place / "site", 0o555)
    (place / "tmp").chmod(0o1777)
    (first,) = serve(place)
    (folder,) = (place / "tmp").iterdir()
    user = USER if os.geteuid() == 0 else os.geteuid()
    assert folder.name == f"surecast-numba-{user}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == user
    assert first.startswith(f"0 {folder}/")
    assert serve(place) == {first.replace("0", "1", 1)}


@pytest.mark.slow
def test_kernels_that_came_with_the_package_are_read_from_it(place: Path) -> None:
    run(place, "import surecast.columns.runs")  # as root, when it is installed
    (cached,) = (place / "site").rglob("__pycache__")
    set_modes(place / "site", 0o555)
    assert serve(place) == {f"1 {cached}"}
    assert list((place / "tmp").rglob("*.nb?")) == []
    # If the index is of another machine or version, the kernels are compiled again and cached in
    # the private folder.
    for index in cached.glob("*.nbi"):
        index.write_bytes(index.read_bytes().replace(b"0.", b"9.", 1))
    (first,) = serve(place)
    assert first.startswith(f"0 {place / 'tmp'}/surecast-numba-")
    assert serve(place) == {first.replace("0", "1", 1)}


@pytest.mark.slow
def test_kernels_are_compiled_although_no_folder_can_cache_them(place: Path) -> None:
    set_modes(place / "site", 0o555)
    (place / "tmp").chmod(0o777)  # anybody could replace our folder in it
    script = """
import logging
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
from surecast.columns import runs
import numpy as np
print(runs.sort_positions.stats)
"""
    lines = run(place, SERVICE.partition("from surecast.columns import runs")[0] + script)
    assert [line for line in lines if "NUMBA_CACHE_DIR" in line] == [lines[0]]
    assert lines[0].startswith("WARNING kernels are compiled at each start")
    assert "cache_path=None" in lines[1]  # and no line announces a one-time compilation
    assert list((place / "tmp").iterdir()) == []


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder such as /tmp."""
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    numba_cache.private_folder.cache_clear()
    yield tmp_path
    numba_cache.private_folder.cache_clear()


def own(tmp: Path) -> Path:
    return tmp / f"surecast-numba-{os.geteuid()}"


def test_the_private_folder_is_made_and_found_again(tmp: Path) -> None:
    before = os.umask(0)
    try:
        assert numba_cache.private_folder() == own(tmp)
    finally:
        os.umask(before)
    assert stat.S_IMODE(own(tmp).stat().st_mode) == 0o700
    numba_cache.private_folder.cache_clear()
    assert numba_cache.private_folder() == own(tmp)


def test_a_folder_that_others_could_have_written_to_is_not_used(tmp: Path) -> None:
    own(tmp).mkdir()
    own(tmp).chmod(0o770)
    assert numba_cache.private_folder() is None


def test_a_symbolic_link_in_place_of_the_private_folder_is_not_followed(tmp: Path) -> None:
    (tmp / "elsewhere").mkdir(0o700)
    own(tmp).symlink_to(tmp / "elsewhere")
    assert numba_cache.private_folder() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_another_user_has_planted_is_not_used(tmp: Path) -> None:
    own(tmp).mkdir(0o700)
    os.chown(own(tmp), USER, USER)
    assert numba_cache.private_folder() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_temporary_folder_of_another_user_is_not_used(tmp: Path) -> None:
    os.chown(tmp, USER, USER)
    assert numba_cache.private_folder() is None


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_temporary_folder_where_others_can_replace_files_is_not_used(
    tmp: Path, mode: int
) -> None:
    tmp.chmod(mode)
    assert numba_cache.private_folder() is None


def test_without_a_temporary_folder_there_is_no_private_folder(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp / "missing"))
    assert numba_cache.private_folder() is None
