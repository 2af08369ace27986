"""docs/configuration.md equals the page generated from the configuration classes."""

import re
import tomllib
from pathlib import Path

from surecast.server.config import build
from surecast.server.reference import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    again = "run: .venv/bin/python -m surecast.server.reference > docs/configuration.md"
    assert PAGE.read_text() == page(), again


def test_every_key_has_a_description() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (.*?) \| (.*) \|$", page(), re.M)
    assert len(rows) > 60
    assert [key for key, _, words in rows if len(words.split()) < 2] == []


def test_the_example_is_a_configuration() -> None:
    example = re.search(r"```toml\n(.*?)```", page(), re.S)
    assert example is not None
    config = build(tomllib.loads(example[1]))
    assert config.name == "east-1"
    assert config.owners["orders.eu"] == "west"
