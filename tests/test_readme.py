"""The README's code runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
IMPORTS = BLOCKS[0].partition("cluster =")[0]  # the second block goes on from the first


def run(code: str, folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_simulated_regions_print_what_the_readme_says(tmp_path: Path) -> None:
    expected = re.search(r"^prints `([^`]*)`", README.read_text(), re.MULTILINE)
    assert expected is not None
    assert run(BLOCKS[0], tmp_path) == expected.group(1)


@pytest.mark.slow
def test_the_real_processes_violate_nothing(tmp_path: Path) -> None:
    assert run(IMPORTS + BLOCKS[1], tmp_path) == "[]"
