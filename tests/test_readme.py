"""The code of README.md runs as printed. (docs/quickstart.md is tested in tests/cli.)"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(code: str, folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_the_ten_lines_print_what_the_readme_says(tmp_path: Path) -> None:
    (code,) = blocks("README.md")
    said = re.search(r"^prints (.*?)\. ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert said is not None
    assert run(code, tmp_path).splitlines() == re.findall(r"`([^`]*)`", said.group(1))


def test_the_readme_begins_with_pip_and_code_and_says_when_to_use_something_else() -> None:
    text = (ROOT / "README.md").read_text()
    install, code = text.index("pip install surecast"), text.index("```python")
    assert install < code < text.index("make demo")
    when = text[text.index("## When to use it, and when NATS or Kafka") :].partition("\n## ")[0]
    assert when.count("\n* ") == 6
