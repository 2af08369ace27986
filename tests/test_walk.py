"""ARCHITECTURE.md shows the walk of one batch as it is recorded here. After a change, rewrite it:

SURECAST_REWRITE=1 python -m pytest tests/test_walk.py

Which thread runs first differs from run to run, and with it what is done for two messages at once.
So a function is on the page if it ran in USUAL of the rounds when the page was written; a later run
must find all that ran in each of its rounds on the page, and must have seen half of the rounds run
all that is on the page. A file may stand some places from where it stands in the new recording.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from tests.walk import LEGS, ROUNDS, SRC, Function, Leg, passed_back, walk

PAGE = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"
BEGIN, END = "<!-- walk: made by tests/test_walk.py -->\n", "<!-- walk: end -->\n"
USUAL = 0.8
MOVED_MAX = 4  # places; up to 2 were seen in 20 recordings
# Issue 16 asks for no more than the 65 files that the recording has at 3af7439, the commit before
# "The seam". Lower the bound when files are joined.
FILES_MAX = 67  # 65 before filters: the layer of their delivery, and values as Arrow columns
GROUP = "walk"  # one recording for all tests here

Key = tuple[str, str]
Shown = dict[Key, dict[str, list[str]]]  # of each leg: file → its functions, in order


# ---------------------------------------------------------------- the page


def usual(legs: dict[Key, Leg]) -> Shown:
    """What the page is to show of this recording."""
    shown: Shown = {}
    for key in LEGS:
        files = shown.setdefault(key, {})
        for function in usual_of(legs[key]):
            files.setdefault(function.file, []).append(function.name)
    return shown


def usual_of(leg: Leg) -> list[Function]:
    return leg.ran(USUAL * ROUNDS)


def written(shown: Shown) -> str:
    """The text between the two marks."""
    count = len(files_of(shown))
    lines = [BEGIN, f"{count} files of `src/surecast` run for a batch.\n"]
    described: set[str] = set()
    for number, (key, title) in enumerate(LEGS.items(), 1):
        files = shown[key]
        lines.append(f"\n**{number}. {title}** ({len(files)} files)\n\n")
        lines.append("| file | what it has | functions |\n|---|---|---|\n")
        for file, functions in files.items():
            what = "as above" if file in described else first_sentence(file)
            described.add(file)
            names = ", ".join(f"`{name}`" for name in functions)
            lines.append(f"| `{file}` | {what} | {names} |\n")
    return "".join([*lines, END])


def first_sentence(file: str) -> str:
    docstring = ast.get_docstring(ast.parse(Path(SRC, file).read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".").replace("|", "\\|")


def parsed(page: str) -> Shown:
    """What a page shows: the reverse of `written`."""
    _, _, section = page.partition(BEGIN)
    section, mark, _ = section.partition(END)
    assert mark, f"{PAGE.name} has no section {BEGIN!r}"
    shown: Shown = {}
    _, *parts = re.split(r"^\*\*\d+\. (.*)\*\* \(\d+ files\)$", section, flags=re.MULTILINE)
    keys = {title: key for key, title in LEGS.items()}
    for title, rows in zip(parts[::2], parts[1::2], strict=True):
        files = shown.setdefault(keys[title], {})
        for file, functions in re.findall(r"^\| `(.*?)` \| .* \| (.*) \|$", rows, re.MULTILINE):
            files[file] = re.findall(r"`(.*?)`", functions)
    return shown


def files_of(shown: Shown) -> set[str]:
    return {file for files in shown.values() for file in files}


def differences(shown: Shown, legs: dict[Key, Leg]) -> list[str]:
    """What the page shows and no longer runs for a batch, and what runs and the page lacks."""
    found = []
    for key, title in LEGS.items():
        leg, files = legs[key], shown[key]
        there = {Function(file, name) for file, names in files.items() for name in names}
        found += [f"{title}: the page lacks {one}" for one in set(leg.ran(ROUNDS)) - there]
        found += [f"{title}: no longer runs {one}" for one in there - set(leg.ran(ROUNDS / 2))]
        order = [file for file in dict.fromkeys(one.file for one in usual_of(leg)) if file in files]
        for place, file in enumerate(one for one in files if one in order):
            if abs(order.index(file) - place) > MOVED_MAX:
                found.append(f"{title}: {file} has another place in the order")
    return sorted(found)


# ---------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def legs(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, Leg]:
    return walk(tmp_path_factory.mktemp("walk"))


@pytest.mark.slow
def test_the_page_shows_the_files_and_functions_that_a_batch_passes(legs: dict[Key, Leg]) -> None:
    page = PAGE.read_text()
    if os.environ.get("SURECAST_REWRITE"):
        before, _, rest = page.partition(BEGIN)
        page = before + written(usual(legs)) + rest.partition(END)[2]
        PAGE.write_text(page)
    assert differences(parsed(page), legs) == []
    assert written(parsed(page)) in page, "a description on the page is not that of its file"


@pytest.mark.slow
def test_no_function_on_the_walk_only_passes_a_call_back(legs: dict[Key, Leg]) -> None:
    calls = {
        edge for key in LEGS for edge, count in legs[key].edges.items() if count >= USUAL * ROUNDS
    }
    assert len(calls) > 500, "hardly any calls: this looks in the wrong place"
    assert passed_back(calls) == []


def test_the_walk_has_no_more_files_than_it_had() -> None:
    assert len(files_of(parsed(PAGE.read_text()))) <= FILES_MAX


# ---------------------------------------------------------------- they can fail


def test_a_function_that_passes_a_call_back_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def begin(): ...\ndef end(): ...\n")
    (tmp_path / "b.py").write_text(
        "class B:\n"
        "    def back(self):\n        '''Says so.'''\n        return self.a.end()\n"
        "    async def later(self):\n        await self.a.end()\n"
        "    def counts(self):\n        self.n += 1\n        self.a.end()\n"
        "    def makes(self):\n        self.a.end(B())\n"
    )
    begin, end = Function("a.py", "begin"), Function("a.py", "end")
    for name, wrong in (("back", 1), ("later", 1), ("counts", 0), ("makes", 0)):
        middle = Function("b.py", f"B.{name}")
        assert len(passed_back([(begin, middle), (middle, end)], tmp_path)) == wrong, name
        elsewhere = Function("c.py", "f")
        assert passed_back([(elsewhere, middle), (middle, end)], tmp_path) == []


def recorded(*orders: list[Function]) -> dict[Key, Leg]:
    """A recording of ROUNDS rounds, which begins with these; the others are like the last."""
    leg = Leg()
    for number in range(ROUNDS):
        leg.add(dict.fromkeys((None, one) for one in orders[min(number, len(orders) - 1)]))
    return dict.fromkeys(LEGS, leg)


FILES = ("node", "tcp", "udp", "sessions", "session", "chunks", "timers")
RUNTIME = [Function(f"runtime/{name}.py", "f") for name in FILES]


def test_a_page_that_differs_from_the_recording_is_found() -> None:
    first, *rest = RUNTIME
    all_of_it = recorded(RUNTIME)
    page = written(usual(all_of_it))
    assert "| `runtime/node.py` | A node" in page
    assert differences(parsed(page), all_of_it) == []
    assert len(differences(parsed(page), recorded(rest))) == len(LEGS)
    assert len(differences(parsed(written(usual(recorded(rest)))), all_of_it)) == len(LEGS)
    # The first file comes last; and then only some places later.
    assert len(differences(parsed(page), recorded([*rest, first]))) == len(LEGS)
    assert differences(parsed(page), recorded([*rest[:4], first, *rest[4:]])) == []
    # What only some rounds have may stand on the page or not.
    assert differences(parsed(page), recorded(rest, RUNTIME)) == []
    assert "node.py" not in written(usual(recorded(RUNTIME, rest)))


def test_a_page_without_the_section_is_found() -> None:
    with pytest.raises(AssertionError, match="no section"):
        parsed("# Architecture\n")
