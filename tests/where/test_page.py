"""docs/filters.md: its limits and examples are those of the code."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from surecast.cli.main import app
from surecast.columns.schema import parse_schema
from surecast.where.binding import bind
from surecast.where.columns import columns_of
from surecast.where.text import DEPTH_MAX, DIGITS_MAX, TESTS_MAX, TEXT_MAX, VALUES_MAX, parse

PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()


def test_the_limits_on_the_page() -> None:
    text = " ".join(PAGE.split())
    assert (
        f"at most {TEXT_MAX:,} characters (also in its canonical form), {TESTS_MAX} tests, "
        f"{VALUES_MAX:,} literals, numbers of {DIGITS_MAX} digits before and after the point, and "
        f"{DEPTH_MAX} levels of"
    ) in text


def test_the_filters_and_the_schema_on_the_page() -> None:
    blocks = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    columns = columns_of(parse_schema("region string, deleted bool, " + blocks[1].strip()))
    lines = blocks[0].splitlines()
    assert len(lines) == 3
    for line in lines:
        bind(parse(line), columns)


def test_the_commands_on_the_page_print_what_it_shows() -> None:
    shown = re.findall(r"^\$ surecast (.*)\n((?:[^$`].*\n)+)", PAGE, re.MULTILINE)
    assert len(shown) == 2
    for command, output in shown:
        assert CliRunner().invoke(app, shlex.split(command)).stdout == output
