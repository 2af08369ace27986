"""The repository as a whole: its pages are complete, its lock is exact, its files are portable."""

import os
import re
import subprocess
import tomllib
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

# Written in pieces, so that this file does not match itself.
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
    """Tracked files, and those that would be if they were added now."""
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


def test_each_protocol_has_a_page_and_a_registry_row() -> None:
    from surecast import registry

    assert protocols(), "no protocols found: this test looks in the wrong place"
    for name in protocols():
        assert (DOCS / "protocols" / f"{name}.md").exists(), f"docs/protocols/{name}.md is missing"
        assert name in registry.PROTOCOLS, f"{name} has no row in registry.PROTOCOLS"


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


def test_lock_covers_what_pyproject_asks_for() -> None:
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
