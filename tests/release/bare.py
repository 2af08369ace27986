"""A Python environment with the built wheel and its core dependencies, and nothing else.

The dependencies are those of this environment, linked one by one: no network and no time is needed.
A dependency that is used but not declared is missing there. `test_dist.py` has a nightly test that
lets pip fetch them instead.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from email.parser import BytesParser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["ROOT", "BareEnvironment", "requirements"]

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0


def requirements(wheel: Path, extras: Sequence[str] = ()) -> list[str]:
    """What pip would install with the wheel and these extras."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [one for one in opened.namelist() if one.endswith(".dist-info/METADATA")]
        metadata = BytesParser().parsebytes(opened.read(name))
    found = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    return [
        str(one).partition(";")[0]
        for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))
    ]


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """These and all that they require, as installed here."""
    found: dict[str, Distribution] = {}
    todo = [(Requirement(line), "") for line in requirements]
    while todo:
        wanted, extra = todo.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name not in found:
            found[name] = distribution(name)
            needs = [Requirement(line) for line in found[name].requires or ()]
            todo += [(one, extra) for one in needs for extra in ("", *wanted.extras)]
    return found


class BareEnvironment:
    """Made by the constructor in `folder`. `installed=False`: only what the wheel depends on."""

    def __init__(
        self, folder: Path, wheel: Path, extras: Sequence[str] = (), installed: bool = True
    ) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.surecast = folder / "venv" / "bin" / "surecast"
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        words = [sys.executable, "-m", "venv", "--without-pip", folder / "venv"]
        subprocess.run(words, check=True, timeout=WAIT_S)
        scheme = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
        self.packages = Path(sysconfig.get_path("purelib", vars=scheme))
        for found in closure(requirements(wheel, extras)).values():
            self._link(found)
        if installed:
            self.pip("install", "--no-index", "--no-deps", "--no-compile", str(wheel))
            self._take_kernels()

    def _link(self, found: Distribution) -> None:
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in tops:
            target = self.packages / top
            if not target.exists():
                target.symlink_to(Path(str(found.locate_file(top))).resolve())

    def _take_kernels(self) -> None:
        """Kernels that were compiled here fit there, too: numba goes by a file's time and size.

        As if they had been compiled right after the installation; else each test waits for it.
        """
        for made in (ROOT / "src").rglob("*.nb[ic]"):
            package = made.parent.parent.relative_to(ROOT / "src")
            source = ROOT / "src" / package / f"{made.name.partition('.')[0]}.py"
            place = self.packages / package
            (place / "__pycache__").mkdir(exist_ok=True)
            shutil.copy2(made, place / "__pycache__")
            stat = source.stat()
            os.utime(place / source.name, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def pip(self, *words: str) -> None:
        """This environment's pip, working on that one."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python]
        done = subprocess.run([*pip, *words], capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def env(self) -> dict[str, str]:
        """Nothing of ours: no PYTHONPATH, no settings, another home."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return {**kept, "HOME": str(self.home), "COLUMNS": "200"}

    def run(
        self,
        *words: str,
        command: Sequence[str | Path] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = WAIT_S,
    ) -> "Done":
        """`surecast` with these words there, outside the repository."""
        return subprocess.run(
            [*(command or [self.surecast]), *words],
            cwd=self.home,
            env={**self.env(), **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def program(self, text: str) -> "Done":
        return self.run("-c", text, command=[self.python])


Done = subprocess.CompletedProcess[str]
