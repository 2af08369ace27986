"""docs/failures.md has a row for each fault, with tests and alarms that exist."""

import ast
import re
from pathlib import Path

from surecast.server.alarms import codes
from surecast.sim import faults
from surecast_lab.swarm import file_damage, process_faults

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "failures.md"
HEADING = "## Damaged and restored data folders"
# Kinds of damage to a data folder, as named by simulated and real faults → a word of the page.
WORDS = {
    "record": "flipped bit",
    "segment": "segment",
    "journal": "journal",
    "manifest": "manifest",
    "flip": "flipped bit",
    "truncate": "truncated",
    "delete": "deleted",
    "ends": "mark",
    "damage-replica": "one of several replicas",
    "damage-lone": "lone",
    "roll-back-replica": "rolled back",
    "roll-back-lone": "lone",
}


def rows() -> list[list[str]]:
    text = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def functions(wanted: set[str]) -> set[str]:
    """The functions of all files of tests that contain a wanted name."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if wanted.isdisjoint(re.findall(r"def (\w+)", text)):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
    return found


def test_every_row_is_complete_and_names_tests_that_exist() -> None:
    known = functions(set(re.findall(r"`(test_\w+)`", PAGE.read_text())))
    assert len(rows()) > 10
    for row in rows():
        assert len(row) == 5, row[0]
        assert all(row), f"a cell of this row is empty: {row[0]}"
        named = re.findall(r"`(test_\w+)`", row[4])
        assert named, f"no test for: {row[0]}"
        assert set(named) <= known, f"{set(named) - known} do not exist: {row[0]}"


def test_alarms_named_on_the_page_exist() -> None:
    shape = re.compile(r"`([a-z]+(?:-[a-z]+)+)`")
    named = {code for row in rows() for code in shape.findall(row[2])}
    others = {"force-new-stream"}  # a command
    assert named - others <= codes().keys()
    assert {"disk-distrusted", "stream-damaged", "stream-forked", "entries-lost"} <= named


def test_every_kind_of_damage_has_a_row() -> None:
    kinds = [*faults.DAMAGES, *file_damage.KINDS, "ends"]
    kinds += [kind for kind in process_faults.KINDS if kind.startswith(("damage", "roll-back"))]
    assert set(kinds) == set(WORDS)
    first = " ".join(row[0] for row in rows()).replace("*", "")
    for kind in kinds:
        assert WORDS[kind] in first, kind
