"""Which files of tests can notice what was changed: `make check` runs the quick tests of these.

    python -m tests.changes            # since the branch left origin/main, or the last commit
    python -m tests.changes v0.1.0     # since another commit

prints the files for pytest, and on standard error what was changed and which tests run for it.

A test can notice a change to a file if it depends on it: by an import, wherever that stands in the
source, of itself or of anything it depends on. Names of modules in strings count like imports
(`-m surecast.cli`, code for another interpreter, tables of modules that are loaded late). So do the
conftest.py of a test's folders, all modules of a package that somebody lists or imports from by a
computed name, and, for whatever starts processes, the whole command line.

Tests in `tests/` itself look at the repository as a whole and always run. What this module cannot
judge (settings, data files, deleted modules) concerns all tests.

The other files that run may take LIMIT_S of processor time together, by tests/quick.toml, so that
`make check` ends within a minute. The files nearest to the change are taken first: changed tests,
tests named like a changed file, then by the number of imports between test and change, and at equal
distance those of the same folder and the short ones. A file that does not fit any more is left out
and named on standard error. `make check ALL=1` and `make test` have no such limit.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tests.budget import Quick

__all__ = ["Graph", "Selection", "changed_files", "limited", "select"]

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("src", "tests", "bench", "scripts")  # of Python files that import each other
KNOWN = ROOT / "out" / "imports.json"  # what the last run found
UPSTREAM = "origin/main"
LIMIT_S = 50.0  # of processor time for tests outside `tests/` itself

FAR = 3  # assumed for tests that do not import the change, such as those that read the source

DYNAMIC = {"__import__", "import_module", "iter_modules", "walk_packages", "run_module", "run_path"}
PROCESSES = {
    "subprocess",
    "multiprocessing",
    "create_subprocess_exec",
    "fork",
    "ProcessPoolExecutor",
}
COMMAND = "surecast.cli"  # what a process may run whose program is called `surecast`
PAGES = re.compile(r"\.md\b|\bdocs\b")  # in the text of tests that read pages
SOURCE = re.compile(r"""["']src["']|glob\(["']\*\.py["']\)""")  # ... that read the source

_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+)?import\s+([\w., ]+)", re.MULTILINE)
_DOTTED = re.compile(r"\b[a-z_]\w*(?:\.\w+)+")


class Graph:
    """Which Python file depends on which. All paths are relative to `root`, with slashes.

    What an earlier run has `save`d in the file `known` is used for files that have not changed.
    """

    def __init__(self, root: Path, known: Path | None = None) -> None:
        self.root = root
        self.modules: dict[str, str] = {}  # dotted name → path
        for place in PLACES:
            for path in sorted((root / place).rglob("*.py")):
                relative = path.relative_to(root).as_posix()
                self.modules[_name_of(relative)] = relative
        self.files = set(self.modules.values())
        self._tops = {name.partition(".")[0] for name in self.modules}
        self.texts: dict[str, str] = {path: (root / path).read_text() for path in self.files}
        self._uses: dict[str, frozenset[str]] = {}
        with suppress(OSError, ValueError):
            if known is not None:
                self._reuse(json.loads(known.read_text()))

    def save(self, known: Path) -> None:
        """Write what each file depends on directly, for a later run."""
        found = sorted(self.files & self._uses.keys())
        uses = {path: [_digest(self.texts[path]), *self._uses[path]] for path in found}
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(json.dumps({"all": self._judged_by(), "uses": uses}))

    def _reuse(self, known: Mapping[str, Any]) -> None:
        if known["all"] == self._judged_by():
            for path, (digest, *uses) in known["uses"].items():
                if digest == _digest(self.texts.get(path, "")):
                    self._uses[path] = frozenset(uses)

    def _judged_by(self) -> str:
        """A digest of all that decides what a file uses, besides its own text."""
        late = [path for path in self.modules.values() if self._is_late(path)]
        return _digest(Path(__file__).read_text() + "\n".join([*self.modules, "", *late]))

    @cached_property
    def tests(self) -> list[str]:
        return sorted(path for path in self.files if is_test(path))

    def uses(self, path: str) -> frozenset[str]:
        """What a file depends on directly. "surecast.*" stands for what a package loads late."""
        found = self._uses.get(path)
        if found is None:
            found = self._uses[path] = frozenset(self._found_in(path))
        return found

    def needs(self, path: str) -> set[str]:
        """All that a file depends on, itself included."""
        found, unseen = {path}, [path]
        while unseen:
            new = self.uses(unseen.pop()) - found
            found |= new
            unseen += new
        return found

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """How many imports away from the nearest changed file each file is that depends on one."""
        users: dict[str, set[str]] = {}
        unseen = list(self.files)
        for path in unseen:
            for used in self.uses(path):
                if used not in users and used not in self.files:
                    unseen.append(used)  # what a package loads late
                users.setdefault(used, set()).add(path)
        found: dict[str, int] = {}
        now, distance = set(changed), 0
        while now:
            found.update(dict.fromkeys(now, distance))
            now = {user for path in now for user in users.get(path, ())} - found.keys()
            distance += 1
        return found

    # ------------------------------------------------------------ one file

    def _found_in(self, path: str) -> Iterator[str]:
        if path.endswith(".*"):
            yield from self._loaded_late(path.removesuffix(".*"))
            return
        words: set[str] = set()
        packages: set[str] = set()
        for node in _executed(ast.parse(self.texts[path])):
            names: Iterable[str] = ()
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
                yield from self._attributes(name.partition(".")[0] for name in names)
                words.update(names)
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(node, path)
                names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
                yield from self._attributes([base])
                words.update(alias.name for alias in node.names)
                words.add(base)
            elif isinstance(node, ast.Name):
                words.add(node.id)
            elif isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.Constant) and type(node.value) is str:
                names = self._named_in(node.value)
                yield from self._attributes(names)
                yield from self._beside(path, node.value)
                if node.value == "surecast" or node.value.endswith("/surecast"):
                    words.add(COMMAND)
            for name in names:
                yield from self._module(name, path)
                packages.add(name)
        if words & DYNAMIC and not self._is_late(path):
            yield from self._below(packages)
        if words & PROCESSES and COMMAND in words:
            yield from self._below({COMMAND})
        if "pyspark" in self.texts[path]:  # Spark finds the data source by the package's name
            yield from self._module("pyspark_surecast", path)
        if path.startswith("tests/"):
            for folder in PurePosixPath(path).parents:
                # What pytest itself loads before a file of tests.
                above = (f"{folder}/conftest.py", f"{folder}/__init__.py")
                yield from (one for one in above if one in self.files)

    def _module(self, name: str, path: str) -> Iterator[str]:
        """The file of a module and those of its packages; nothing if it is not one of ours."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            if found := self.modules.get(".".join(parts[:count])):
                yield found
        yield from self._beside(path, f"{parts[0]}.py")

    def _beside(self, path: str, name: str) -> Iterator[str]:
        """A file of this name in the folder of `path`: some tests import or run these."""
        if name.endswith(".py") and "/" not in name:
            beside = str(PurePosixPath(path).parent / name)
            if path.startswith("tests/") and beside in self.files:
                yield beside

    def _attributes(self, names: Iterable[str]) -> Iterator[str]:
        """A file that has a package as an object may have it load what it loads late."""
        for name in names:
            if self._is_late(self.modules.get(name, "")):
                yield f"{name}.*"

    def _is_late(self, path: str) -> bool:
        return path.endswith("/__init__.py") and "def __getattr__" in self.texts[path]

    def _loaded_late(self, package: str) -> Iterator[str]:
        path = self.modules[package]
        for node in ast.walk(ast.parse(self.texts[path])):
            if isinstance(node, ast.Constant) and type(node.value) is str:
                if f"{package}.{node.value}" in self.modules:
                    yield from self._module(f"{package}.{node.value}", path)

    def _named_in(self, text: str) -> list[str]:
        """Modules that a string names, alone or in code."""
        names = _DOTTED.findall(text)
        if "import" in text:
            for base, imported in _IMPORT.findall(text):
                each = [name.split()[0] for name in imported.split(",") if name.strip()]
                names += [base, *(f"{base}.{name}" for name in each)] if base else each
        return [name for name in names if name.partition(".")[0] in self._tops]

    def _below(self, packages: set[str]) -> Iterator[str]:
        """All modules of these packages, but for packages that have nothing above them."""
        for name, path in self.modules.items():
            if any("." in package and name.startswith(f"{package}.") for package in packages):
                yield path


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but docstrings and what only type checkers see."""
    unseen: list[ast.AST] = [tree]
    while unseen:
        node = unseen.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name | ast.Attribute):
            if ast.unparse(node.test).endswith("TYPE_CHECKING"):
                unseen += node.orelse
                continue
        unseen += ast.iter_child_nodes(node)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _name_of(path: str) -> str:
    parts = list(PurePosixPath(path.removeprefix("src/")).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def _absolute(node: ast.ImportFrom, path: str) -> str:
    if not node.level:
        return node.module or ""
    above = path.removeprefix("src/").split("/")[: -node.level]
    return ".".join([*above, node.module] if node.module else above)


def is_test(path: str) -> bool:
    return path.startswith("tests/") and PurePosixPath(path).name.startswith("test_")


# ---------------------------------------------------------------- the choice


class Selection(NamedTuple):
    """Files of tests, each with the reason why it runs."""

    reasons: dict[str, str]
    everything: str  # why all of them run; "": not all
    left_out: tuple[str, ...] = ()  # files that would exceed the time limit

    def told(self, count: int) -> list[str]:
        """What runs and why, folder by folder; there are `count` files of tests."""
        if self.everything and not self.left_out:
            return [f"all {count} files of tests: {self.everything}"]
        lines = [f"{len(self.reasons)} of {count} files of tests (ALL=1 runs all):"]
        folders: dict[tuple[str, str], int] = {}
        for path, why in self.reasons.items():
            where = (str(PurePosixPath(path).parent), why)
            folders[where] = folders.get(where, 0) + 1
        lines += [f"  {folder}: {n}, {why}" for (folder, why), n in sorted(folders.items())]
        if self.left_out:
            names: dict[str, list[str]] = {}
            for file in map(PurePosixPath, sorted(self.left_out)):
                names.setdefault(str(file.parent), []).append(file.stem)
            lines.append(
                f"LEFT OUT for the time limit: {len(self.left_out)} files of tests that can notice "
                "the change, too (`make check ALL=1` and `make test` run them):"
            )
            lines += [f"  {folder}: {', '.join(some)}" for folder, some in names.items()]
        return lines


def select(graph: Graph, changed: Iterable[str]) -> Selection:
    """The files of tests that can notice a change to any of these files."""
    changed = sorted(changed)
    tests = graph.tests
    pages = [path for path in changed if is_page(path)]
    code = [path for path in changed if path in graph.files]
    rest = set(changed) - set(pages) - set(code)
    # A file of tests that is gone changes nothing for the others, which cannot import it.
    if rest := {path for path in rest if not is_test(path)}:
        why = f"{min(rest)} is not a page and not a Python file whose users are known"
        return Selection(dict.fromkeys(tests, why), why)
    reasons: dict[str, str] = {}
    for path in tests:
        needs = graph.needs(path)
        if always_runs(path):
            reasons[path] = "always"
        elif found := sorted(needs.intersection(code)):
            reasons[path] = "changed" if path in found else f"depends on {found[0]}"
        elif code and SOURCE.search(graph.texts[path]):
            reasons[path] = "reads the source"
        elif pages and any(
            PAGES.search(graph.texts[one]) for one in needs if one.startswith("tests/")
        ):
            reasons[path] = f"reads pages, such as {pages[0]}"
    if len(reasons) == len(tests):
        return Selection(reasons, f"all depend on {', '.join(code[:3])}")
    return Selection(reasons, "")


def limited(
    graph: Graph, chosen: Selection, changed: Iterable[str], quick: Quick, limit_s: float
) -> Selection:
    """The selection without the files that do not fit into `limit_s`; see the top of this file."""
    changed = set(changed)
    distances = graph.distances(changed)
    folders = {_tests_of(path)[0] for path in changed}

    def order(path: str) -> tuple[int, int, bool, float, str]:
        if path in changed:
            rank = 0
        elif is_mirror(path, changed):
            rank = 1
        else:
            rank = 2
        far = distances.get(path, FAR) if rank == 2 else 0
        elsewhere = str(PurePosixPath(path).parent) not in folders
        return rank, far, elsewhere, quick.of(path), path

    left_s = limit_s
    out: list[str] = []
    for path in sorted(chosen.reasons, key=order):
        if always_runs(path):
            continue
        if quick.of(path) <= left_s:
            left_s -= quick.of(path)
        else:
            out.append(path)
    kept = {path: why for path, why in chosen.reasons.items() if path not in out}
    return Selection(kept, chosen.everything, tuple(out))


def always_runs(test: str) -> bool:
    return test.count("/") == 1


def is_mirror(test: str, changed: Iterable[str]) -> bool:
    """Whether a file of tests has the folder and the name of a changed file.

    The tests of `src/surecast/core/wire.py` are `tests/core/test_wire.py` and `test_wire_*.py`.
    """
    path = PurePosixPath(test)
    return any(
        (str(path.parent) == folder and f"{path.stem}_".startswith(f"test_{name}_"))
        for folder, name in map(_tests_of, changed)
    )


def _tests_of(path: str) -> tuple[str, str]:
    """The folder of a source file's tests, and the file's name without a leading underscore."""
    inner = PurePosixPath(path.removeprefix("src/surecast/").removeprefix("src/"))
    folder = inner.parent if path.startswith("tests/") else "tests" / inner.parent
    return str(folder), inner.stem.strip("_")


def is_page(path: str) -> bool:
    return path.endswith((".md", ".svg", "LICENSE")) and not path.startswith("tests/")


def changed_files(root: Path, since: str = "") -> tuple[list[str], str]:
    """Files that differ from a commit, new ones included, and what that commit is.

    By default that is where the branch left `origin/main`; without such a branch, or on it, the
    last commit; and if nothing has changed since, the commit before it.
    """
    for base in [since] if since else _bases(root):
        listed = _git(root, "diff", "--name-only", "--no-renames", "-z", base, "--")
        added = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
        found = sorted({path for path in (listed + added).split("\0") if path})
        if found:
            return found, _git(root, "log", "-1", "--format=%h (%s)", base).strip()
    return [], since or "the last commit"


def _bases(root: Path) -> list[str]:
    bases = ["HEAD", "HEAD~1"]
    with suppress(subprocess.CalledProcessError):  # there is no such branch
        bases.insert(0, _git(root, "merge-base", "HEAD", UPSTREAM).strip())
    return bases


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> None:
    graph = Graph(ROOT, KNOWN)
    try:
        changed, base = changed_files(ROOT, *sys.argv[1:2])
    except (OSError, subprocess.CalledProcessError) as problem:
        print(f"all files of tests: git does not say what has changed ({problem})", file=sys.stderr)
        return  # pytest without names runs all
    chosen = limited(graph, select(graph, changed), changed, Quick.load(), LIMIT_S)
    graph.save(KNOWN)
    shown = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
    print(f"changed since {base}: {shown or 'nothing'}", file=sys.stderr)
    print("\n".join(chosen.told(len(graph.tests))), file=sys.stderr)
    print("\n".join(chosen.reasons))


if __name__ == "__main__":
    main()
