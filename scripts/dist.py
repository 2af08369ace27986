"""Build the source distribution and the wheel: `make dist`.

    python scripts/dist.py [--out dist] [--from-tree]

Both are built from a copy of the files that git tracks. Build isolation is off, so that the version
of setuptools is the one in requirements.lock. The wheel is built from the unpacked source
distribution, so it is the same wheel that users build from it. `--from-tree` builds only the wheel,
directly from the copy. Afterwards the content of both is checked: no file may be missing, and no
other file may be in them.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from email.parser import BytesParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"surecast", "surecast_lab", "pyspark_surecast"}
BESIDE = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")
NOT_SHIPPED = (".pyc", ".nbi", ".nbc", ".so")  # compiled for one machine


def sources() -> list[str]:
    """The files of a distribution, relative to the repository."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        found = [name for name in listed.stdout.split("\0") if name]
    else:  # not a git checkout
        found = [str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*")]
    kept = [name for name in found if (ROOT / name).is_file() and not _is_generated(name)]
    return sorted({*kept, *BESIDE})


def _is_generated(name: str) -> bool:
    parts = Path(name).parts
    made = any(part == "__pycache__" or part.endswith(".egg-info") for part in parts)
    return made or name.endswith(NOT_SHIPPED)


def export(folder: Path) -> Path:
    """Copy the sources, so that the build contains no old build folders or caches."""
    for name in sources():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


def build(what: str, tree: Path, out: Path) -> Path:
    """Build an "sdist" or a "wheel" of `tree`; returns the new file in `out`."""
    program = (
        "import sys; from setuptools import build_meta; "
        f"print(build_meta.build_{what}(sys.argv[1]))"
    )
    words = [sys.executable, "-c", program, str(out)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": _committed_s()}
    done = subprocess.run(words, cwd=tree, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f"dist: building the {what} failed:\n{done.stderr}")
    return out / done.stdout.split()[-1]


def _committed_s() -> str:
    """The time of the last commit, in seconds: files in the wheel get this time."""
    words = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "1700000000"


# ---------------------------------------------------------------- what is in them


def wheel_complaints(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as opened:
        names = [name for name in opened.namelist() if not name.endswith("/")]
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = BytesParser().parsebytes(opened.read(f"{info}/METADATA"))
    wanted = {name.removeprefix("src/") for name in sources() if name.startswith("src/")}
    have = {name for name in names if not name.startswith(f"{info}/")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {line.split(";")[0].strip() for line in metadata.get_all("Requires-Dist", [])}
    found = [f"{name} is missing" for name in sorted(wanted - have)]
    found += [f"{name} must not be in it" for name in sorted(have - wanted)]
    found += _unwanted_files(have)
    if f"{info}/licenses/LICENSE" not in names:
        found.append("the licence file is missing")
    if f"{info}/entry_points.txt" not in names:
        found.append("the console script is missing")
    if info != f"surecast-{metadata['Version']}.dist-info":
        found.append(f"{info} has version {metadata['Version']}")
    found += [f"does not require {one}" for one in project["dependencies"] if one not in declared]
    return found


def sdist_complaints(sdist: Path) -> list[str]:
    with tarfile.open(sdist) as opened:
        names = {one.name.partition("/")[2] for one in opened.getmembers() if one.isfile()}
    wanted = set(sources())
    made = {"PKG-INFO", "setup.cfg"}
    have = {name for name in names if name not in made and ".egg-info/" not in name}
    found = [f"{name} is missing" for name in sorted(wanted - have)]
    found += [f"{name} must not be in it" for name in sorted(have - wanted)]
    return found


def _unwanted_files(names: Iterable[str]) -> list[str]:
    """The files that must not be in a wheel, even if git tracks them."""
    found = []
    for name in sorted(names):
        parts = name.split("/")
        if parts[0] not in PACKAGES:
            found.append(f"{name} is not in one of our packages")
        elif "tests" in parts or _is_generated(name):
            found.append(f"{name} must not be shipped")
    return found


# ---------------------------------------------------------------- from the shell


def make(out: Path, from_tree: bool = False) -> list[Path]:
    """Build into `out`, after removing earlier builds there; SystemExit if a check fails."""
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("surecast-*.whl"), *out.glob("surecast-*.tar.gz")):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="surecast-dist-") as scratch:
        tree = export(Path(scratch) / "tree")
        made = []
        if not from_tree:
            sdist = build("sdist", tree, out.resolve())
            made.append(sdist)
            with tarfile.open(sdist) as opened:
                opened.extractall(Path(scratch) / "sdist", filter="data")
            (tree,) = (Path(scratch) / "sdist").iterdir()
        made.append(build("wheel", tree, out.resolve()))
    wrong = [f"{made[-1].name}: {one}" for one in wheel_complaints(made[-1])]
    if not from_tree:
        wrong += [f"{made[0].name}: {one}" for one in sdist_complaints(made[0])]
    if wrong:
        sys.exit("dist: " + "\ndist: ".join(wrong))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheel and the source distribution.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--from-tree", action="store_true", help="build only the wheel, without an sdist"
    )
    options = parser.parse_args()
    for path in make(options.out, options.from_tree):
        print(path)


if __name__ == "__main__":
    main()
