"""`--check-config` creates and writes the folders like a start, and removes them again."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surecast.server.check import problems
from surecast.server.config import ServerConfig, build


def config(data_dir: Path | str, **node: Any) -> ServerConfig:
    mine = {
        "name": "e-1", "region": "e", "data_dir": str(data_dir),
        "listen": "127.0.0.1:0", "http": "", **node,
    }  # fmt: skip
    return build({"node": mine, "regions": {"e": {"replicas": {"e-1": "127.0.0.1:0"}}}})


def test_a_folder_that_can_be_created_is_accepted_and_removed_again(tmp_path: Path) -> None:
    assert problems(config(tmp_path / "a" / "b" / "data")) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "journal-1").write_bytes(b"x")
    assert problems(config(tmp_path)) == []
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["journal-1", "log"]


@pytest.mark.parametrize("key", ["data_dir", "record"])
def test_a_folder_that_cannot_be_created_is_a_problem(key: str) -> None:
    """No user can create a folder in /proc, not even root."""
    folder = "/proc/surecast/data"
    checked = (
        config(folder) if key == "data_dir" else config("", record=folder, listen="127.0.0.1:9")
    )
    found = [problem for problem in problems(checked) if "/proc" in problem]
    assert found == [
        f"node.{key}: cannot make /proc/surecast: No such file or directory; fix that, or change "
        f"node.{key}"
    ]


def test_a_file_in_place_of_the_data_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    (found,) = problems(config(tmp_path / "data" / "more"))
    assert found == f"node.data_dir: {tmp_path / 'data'} is not a folder"


SCRIPT = """
import sys
from tests.server.test_check import config, problems
print("\\n".join(problems(config(sys.argv[1]))))
"""


def checked(folder: Path, **more: Any) -> str:
    """The problems that a process with other permissions finds."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_data_folder_on_a_disk_without_space_is_a_problem(tmp_path: Path) -> None:
    def no_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    found = checked(tmp_path / "data", preexec_fn=no_bytes)
    assert found.startswith(f"node.data_dir: cannot write to {tmp_path / 'data'}: File too large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a folder of another user")
@pytest.mark.parametrize("part", ["", "log", "witness"])
def test_a_folder_of_another_user_is_a_problem(tmp_path: Path, part: str) -> None:
    """Root without CAP_DAC_OVERRIDE has the permissions of a normal user."""
    data = tmp_path / "data"
    (data / part).mkdir(parents=True)
    (data / part).chmod(0o500)
    found = checked(data, preexec_fn=drop_override)
    assert found.startswith(f"node.data_dir: cannot write to {data / part}: Permission denied")


def drop_override() -> None:
    """Drop CAP_DAC_OVERRIDE from the bounding set, so that the next program lacks it."""
    import ctypes

    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
