"""`--check-config` does what a start would do to the folders, and removes what it made."""

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


def test_a_folder_that_can_be_made_is_fine_and_is_not_left_behind(tmp_path: Path) -> None:
    assert problems(config(tmp_path / "a" / "b" / "data")) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "journal-1").write_bytes(b"x")
    assert problems(config(tmp_path)) == []
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["journal-1", "log"]


@pytest.mark.parametrize("key", ["data_dir", "record"])
def test_a_folder_that_cannot_be_made(key: str) -> None:
    """Nobody can make one in /proc, not even root, who has every permission there."""
    folder = "/proc/surecast/data"
    given = config(folder) if key == "data_dir" else config("", record=folder, listen="127.0.0.1:9")
    found = [problem for problem in problems(given) if "/proc" in problem]
    assert found == [
        f"node.{key}: cannot make /proc/surecast: No such file or directory; fix that, or change "
        f"node.{key}"
    ]


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    (found,) = problems(config(tmp_path / "data" / "more"))
    assert found == f"node.data_dir: {tmp_path / 'data'} is not a folder"


SCRIPT = """
import sys
from tests.server.test_check import config, problems
print("\\n".join(problems(config(sys.argv[1]))))
"""


def checked(folder: Path, **more: Any) -> str:
    """What a process with other rights finds."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_disk_that_takes_no_bytes(tmp_path: Path) -> None:
    def no_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    found = checked(tmp_path / "data", preexec_fn=no_bytes)
    assert found.startswith(f"node.data_dir: cannot write to {tmp_path / 'data'}: File too large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a folder of another user")
@pytest.mark.parametrize("part", ["", "log", "witness"])
def test_a_folder_of_another_user(tmp_path: Path, part: str) -> None:
    """Without its override of permissions, root stands for any user here."""
    data = tmp_path / "data"
    (data / part).mkdir(parents=True)
    (data / part).chmod(0o500)
    found = checked(data, preexec_fn=drop_override)
    assert found.startswith(f"node.data_dir: cannot write to {data / part}: Permission denied")


def drop_override() -> None:
    """Give up CAP_DAC_OVERRIDE: from the bounding set, so that the next program lacks it."""
    import ctypes

    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
