"""`surecast streams`: the table of streams."""

import pytest

from surecast.cli.options import console
from surecast.cli.streams import table_of
from surecast.columns.retention import KeepAll
from surecast.core.streams import StreamInfo


def cells(found: list[StreamInfo], capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    console().print(table_of(found))
    lines = capsys.readouterr().out.splitlines()
    rows = [line.replace("┃", "│").strip("│").split("│") for line in lines if "east" in line]
    return [[cell.strip() for cell in row] for row in rows]


def test_deliveries_are_shown_if_one_is_not_the_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = StreamInfo(bytes(16), "a", "east", KeepAll())
    other = StreamInfo(bytes(16), "b", "east", KeepAll(), delivery="local-only")
    assert cells([plain], capsys) == [["a", "east", "keep-all"]]
    assert cells([plain, other], capsys) == [
        ["a", "east", "keep-all", "broadcast"],
        ["b", "east", "keep-all", "local-only"],
    ]
