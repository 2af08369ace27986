"""The version is the same everywhere; docs/compatibility.md has the numbers of the formats."""

import re
from datetime import date
from pathlib import Path

import surecast
from surecast.core import record, wire
from surecast.pipeline import staging
from surecast.runtime import hello, udp
from surecast.server.openapi import document
from surecast.storage import journal_file
from tests.golden_files import RELEASES, VERSION
from tests.server.processes import surecast_here

ROOT = Path(__file__).parents[2]
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
RELEASED = re.compile(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d\d-\d\d)\)")


def headings(text: str) -> list[tuple[tuple[int, ...], date]]:
    """Version and day of each release in a change log."""
    found = []
    for heading in HEADING.findall(text):
        parts = RELEASED.fullmatch(heading)
        assert parts is not None, f"{heading!r} is not VERSION (DAY)"
        found.append((tuple(map(int, parts.groups()[:3])), date.fromisoformat(parts[4])))
    return found


def test_the_newest_change_log_entry_is_this_version() -> None:
    found = headings((ROOT / "CHANGELOG.md").read_text())
    assert ".".join(map(str, found[0][0])) == surecast.__version__
    assert found == sorted(found, reverse=True), "the newest comes first"


def test_the_command_and_the_server_say_it() -> None:
    assert surecast_here("--version").stdout == f"surecast {surecast.__version__}\n"
    assert document()["info"]["version"] == surecast.__version__


def test_golden_files_are_those_of_a_release_that_is_listed() -> None:
    listed = [".".join(map(str, one)) for one, _ in headings((ROOT / "CHANGELOG.md").read_text())]
    assert VERSION in listed
    stored = [path.name for path in RELEASES.iterdir() if path.is_dir()]
    assert set(stored) <= set(listed)


def test_the_page_on_compatibility_has_the_versions_of_the_code() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    rows = {
        line.split("|")[1].split("(")[0].strip(): line for line in page.splitlines() if "|" in line
    }
    assert f"byte 4 of each frame: {wire.VERSION} |" in rows["frames"]
    assert f"field `version` of `/hello`: {hello.VERSION};" in rows["greeting of a connection"]
    assert f"byte 4 of the preamble: {udp._VERSION} |" in rows["datagrams"]
    assert f"`format` in the file `ends`: {journal_file.FORMAT} |" in rows["data folder as a whole"]
    assert f"byte 4 of the file: {record.VERSION} |" in rows["recordings"]
    (row,) = [line for name, line in rows.items() if name.startswith("offsets in Spark")]
    assert f"first byte, {staging._VERSION} |" in row
