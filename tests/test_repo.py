"""The repository: its pages are complete, its lock file is exact, its files are portable."""

import ast
import os
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "surecast"
DOCS = ROOT / "docs"

SYSTEMS = (
    "Sprinkler",
    "Gryphon GD",
    "Scribe on Pastry",
    "Ricochet",
    "QSM",
    "PLATO",
    "Maelstrom",
    "SMFS",
    "SuperPub",
    "Tempest",
    "Dr. Multicast",
    "Antiquity",
    "Fireflies",
    "SecureStream, Nightwatch",
    "Scopes",
    "Live Objects",
)

# Written in parts, so that this file does not match itself.
NOT_PORTABLE = re.compile(
    "|".join(
        [
            r"(?<![\w.])/(?:" + "work|root|home|Users" + r")/[\w.]",
            "pypi" + r"\.[a-z]",
            "python" + r"hosted\.org",
            "--(?:extra-)?" + r"index-url\b",
            "--find" + r"-links\b",
        ]
    )
)

PIN = re.compile(r"^[a-z0-9][a-z0-9._-]*==[^\s;*]+( ; [^\\]+)? \\$")


def repository_files() -> list[Path]:
    """Tracked files, and untracked ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def protocols() -> list[str]:
    folders = (PACKAGE / "protocols").iterdir()
    return sorted(path.name for path in folders if (path / "__init__.py").exists())


def table_rows(page: Path) -> dict[str, list[str]]:
    """First cell → the other cells, of every table row on a page."""
    rows = {}
    for line in page.read_text().splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            rows[cells[0].strip("*")] = cells[1:]
    return rows


@pytest.mark.parametrize("system", SYSTEMS)
def test_status_has_a_row_for_each_system(system: str) -> None:
    row = table_rows(DOCS / "STATUS.md").get(system)
    assert row is not None, f"docs/STATUS.md has no row for {system}"
    assert len(row) == 3, f"{system}: want the cells done, missing, next"
    assert all(row), f"{system}: an empty cell says nothing"


@pytest.mark.parametrize("name", protocols())
def test_each_protocol_has_a_page_and_a_registry_row(name: str) -> None:
    from surecast import registry

    assert (DOCS / "protocols" / f"{name}.md").exists(), f"docs/protocols/{name}.md is missing"
    assert name in registry.PROTOCOLS, f"{name} has no row in registry.PROTOCOLS"


def test_the_registry_has_no_protocol_without_a_folder() -> None:
    from surecast import registry

    assert set(registry.PROTOCOLS) == set(protocols())


def test_the_package_does_not_change_installed_files() -> None:
    """The code that makes Spark start faster in tests is not part of the product."""
    changes = re.compile(r"SharedArchiveFile|ArchiveClassesAtExit|python/lib|ZipFile\([^)]*\"a\"")
    found = [path for path in (ROOT / "src").rglob("*.py") if changes.search(path.read_text())]
    assert found == []


def guarantees(checks: str) -> list[str]:
    """The guarantee ids, G1, G2 ..., that the docstring of a checks.py promises."""
    docstring = checks.split('"""')[1] if '"""' in checks else ""
    return sorted(set(re.findall(r"\bG\d+\b", docstring)), key=lambda name: int(name[1:]))


def missing_tests(promised: list[str], tests: str) -> list[str]:
    return [g for g in promised if not re.search(rf"^ *def test_{g.lower()}_", tests, re.M)]


@pytest.mark.parametrize(
    "checks", sorted(PACKAGE.glob("protocols/*/checks.py")), ids=lambda p: p.parent.name
)
def test_every_guarantee_has_a_test(checks: Path) -> None:
    protocol = checks.parent.name
    promised = guarantees(checks.read_text())
    assert promised, f"{checks} names no guarantee in its docstring"
    own = [
        path.read_text()
        for path in (ROOT / "tests").rglob("test_*.py")
        if protocol in str(path.relative_to(ROOT))
    ]
    assert missing_tests(promised, "\n".join(own)) == []


def test_the_guarantee_check_can_fail() -> None:
    promised = guarantees(
        '"""Checks.\n\nG1 in order. G2 nothing missing, as G1 says. G10 ends.\n"""'
    )
    assert promised == ["G1", "G2", "G10"]
    tests = "def test_g1_order(): ...\n# def test_g2_gone(): ...\n    def test_g10_x(self): ..."
    assert missing_tests(promised, tests) == ["G2"]


def test_files_name_no_registry_and_no_machine_path() -> None:
    found = []
    for path in repository_files():
        if path.name == "LICENSE" or path.suffix in {".png", ".parquet"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if match := NOT_PORTABLE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "see " + "/wo" + "rk/shared/x.md",
        "PYTHON=" + "/ro" + "ot/bin/python",
        "-" + "-index-url x",
        "https://py" + "pi.org/simple",
    ],
)
def test_the_portability_check_can_fail(line: str) -> None:
    assert NOT_PORTABLE.search(line)


def lock_complaints(text: str) -> list[str]:
    """Lines that are neither a comment, an exact pin nor a hash; and pins without a hash."""
    wrong = []
    lines = text.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if (
            not line.strip()
            or line.startswith("#")
            or re.match(r"    --hash=sha256:[0-9a-f]+", line)
        ):
            continue
        if not PIN.match(line):
            wrong.append(f"not an exact pin: {line}")
        elif not after.startswith("    --hash=sha256:"):
            wrong.append(f"no hash: {line}")
    return wrong


def test_lock_has_only_exact_pins_with_hashes() -> None:
    assert lock_complaints((ROOT / "requirements.lock").read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "numpy>=2.0 \\\n    --hash=sha256:00",
        "numpy==2.* \\\n    --hash=sha256:00",
        "numpy==2.0 \\\n",
        "numpy==2.0",
        "-e .",
        "numpy @ file:///x.whl",
    ],
)
def test_the_lock_check_can_fail(text: str) -> None:
    assert lock_complaints(text)


def test_lock_pins_every_requirement_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["dev"],
    ]
    pinned = re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.M)
    names = {re.split(r"[<>=!~ ;\[]", requirement)[0] for requirement in wanted}
    assert names <= set(pinned)


def test_core_dependencies_are_all_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    for requirement in project["project"]["dependencies"]:
        name = re.split(r"[<>=!~ ;\[]", requirement)[0]
        name = name.replace("-", "_")  # as it is imported
        used = rf"^\s*(import|from) {name}\b|import_module\([\"']{name}\b"
        assert re.search(used, source, re.M), f"{name} is a dependency, but nothing imports it"


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:3]) for path in (DOCS / "decisions").glob("[0-9]*-*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 13


def test_links_between_pages_resolve() -> None:
    broken = []
    for page in [path for path in repository_files() if path.suffix == ".md"]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_ci_runs_make_test() -> None:
    ci = ROOT / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert "make test" in ci.read_text()
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {"setup", "demo", "test", "check", "torture", "bench"} <= set(targets)


# ---------------------------------------------------------------- bounds

# The options of an endpoint are those of a client, and most of them are tested through one.
TESTED_IN = {"endpoint": ("endpoint", "client")}
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*_MAX")


def package_of(path: Path) -> str:
    """The package whose tests cover a module: a protocol, or a folder of surecast."""
    folders = path.relative_to(PACKAGE).parts[:-1]
    return "/".join(folders[: 2 if folders[:1] == ("protocols",) else 1])


def bounds_in(source: str) -> Iterator[str]:
    """Module constants *_MAX, and fields *_max of dataclasses."""
    tree = ast.parse(source)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name for name in names if CONSTANT.fullmatch(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and "dataclass" in map(_decorator, node.decorator_list):
            fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            names = [field.id for field in fields if isinstance(field, ast.Name)]
            yield from (name for name in names if name.endswith("_max"))


def _decorator(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(called).rpartition(".")[2]


def words_in(source: str) -> set[str]:
    """Names, and words of strings, in the code of a test, without comments and docstrings."""
    tree = ast.parse(source)
    found: set[str] = set()
    texts: list[ast.Constant] = []
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name():
                found.add(node.id)
            case ast.Attribute():
                found.add(node.attr)
            case ast.keyword(arg=str()):
                found.add(str(node.arg))
            case ast.Constant(value=str()):
                texts.append(node)
            case ast.Expr():
                docstrings.add(id(node.value))
    for text in texts:
        if id(text) not in docstrings:
            found.update(re.findall(r"\w+", str(text.value)))
    return found


def untested(bounds: dict[str, list[str]], tests: dict[str, set[str]]) -> list[str]:
    """The bounds of each package that no test of it names."""
    return [
        f"{package or 'surecast'}: {name}"
        for package, names in bounds.items()
        for name in names
        if not any(name in tests.get(one, ()) for one in TESTED_IN.get(package, (package,)))
    ]


def test_every_bound_is_named_in_a_test_of_its_package() -> None:
    bounds: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_max" in (source := path.read_text()).lower():
            bounds.setdefault(package_of(path), []).extend(bounds_in(source))
    tests: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        folders = path.relative_to(ROOT / "tests").parts[:-1]
        package = "/".join(folders[: 2 if folders[:1] == ("protocols",) else 1])
        if "_max" in (source := path.read_text()).lower():
            tests.setdefault(package, set()).update(words_in(source))
    assert sum(map(len, bounds.values())) > 100, "hardly any bounds: this looks in the wrong place"
    assert untested(bounds, tests) == []


def test_the_check_of_bounds_can_fail() -> None:
    source = """
        from dataclasses import dataclass
        A_MAX = 1
        _B_MAX: Final = 2
        MAXIMUM = C_max = 3
        def f(): D_MAX = 4
        @dataclass(frozen=True)
        class Config:
            e_max: int = 5
            f_bytes_max: int
            maximal: int
        class Message(Struct):
            g_max: int
    """
    bounds = list(bounds_in(textwrap.dedent(source)))
    assert bounds == ["A_MAX", "_B_MAX", "e_max", "f_bytes_max"]
    tests = """
        '''Says A_MAX.'''
        def test_it():
            '''About f_bytes_max.'''
            limits._B_MAX  # and A_MAX
            Config(e_max=1)
    """
    words = words_in(textwrap.dedent(tests))
    assert untested({"x": bounds}, {"x": words}) == ["x: A_MAX", "x: f_bytes_max"]
    assert untested({"x": bounds}, {"y": words}) == [f"x: {name}" for name in bounds]
    assert untested({"endpoint": ["e_max"]}, {"client": words}) == []
    assert untested({"x": ["A_MAX"]}, {"x": words_in("setattr(limits, 'A_MAX', 3)")}) == []
