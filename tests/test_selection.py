"""`make test P=chain` runs only the tests of that part."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.selection import TESTS, is_of_part


@pytest.mark.parametrize(
    ("part", "files"),
    [
        ("chain", {"protocols/chain/test_dedup.py": True, "protocols/test_damage.py": False}),
        ("sprinkler", {"surecast_lab/lab/sprinkler/test_link.py": True, "sim/test_disk.py": False}),
        ("demo", {"cli/test_demo.py": True, "cli/test_up.py": False}),
        ("spark", {"pipeline/test_spark_rounds.py": True, "cli/test_publish.py": False}),
        ("up", {"cli/test_up.py": True, "surecast_lab/swarm/test_upgrade_rounds.py": False}),
        ("runtime", {"runtime/test_tcp.py": True, "client/test_connect.py": False}),
    ],
)
def test_a_part_is_a_folder_or_a_word_of_a_file(part: str, files: dict[str, bool]) -> None:
    for name, wanted in files.items():
        assert (TESTS / name).exists(), name
        assert is_of_part(TESTS / name, part) == wanted, name


def collected(part: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", "--part", part, str(folder)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=TESTS.parent, capture_output=True, text=True
    )


@pytest.mark.slow
def test_only_files_of_the_part_are_collected() -> None:
    done = collected("chain", TESTS / "protocols")
    lines = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(lines) > 50, done.stderr
    assert all(line.startswith("tests/protocols/chain/") for line in lines)


@pytest.mark.slow
def test_a_part_without_files_is_an_error() -> None:
    done = collected("chainn", TESTS / "protocols")
    assert done.returncode == 4
    assert "no file of tests has 'chainn' in its path" in done.stderr
