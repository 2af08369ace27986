"""Names, patterns and the table of owners."""

import re
from random import Random

import pytest

from surecast.core.names import (
    NAME_LEN_MAX,
    is_internal,
    is_name,
    is_pattern,
    matches,
    owner_of,
    owners_digest,
)

TOKENS = ("a", "b", "orders", "eu", "A-1", "x_y", "k=v", "u@h", "p+q", "t:1", "~")


@pytest.mark.parametrize("name", ["a", "orders.eu", "A-1.x_y.k=v", "x" * NAME_LEN_MAX])
def test_a_name_is_tokens_with_dots_between(name: str) -> None:
    assert is_name(name)
    assert is_pattern(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "a.", ".a", "a..b", "a b", "a/b", "a\n", "ä", "*", "a.*", ">", "x" * 256],
)
def test_invalid_names_are_recognised(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize("pattern", [">", "*", "a.>", "*.b", "a.*.c", "*.>"])
def test_valid_patterns_are_recognised(pattern: str) -> None:
    assert is_pattern(pattern)


@pytest.mark.parametrize("pattern", ["", "a.>.b", ">.a", "a*", "a.b*", "a..>", ">>", "x" * 256])
def test_invalid_patterns_are_recognised(pattern: str) -> None:
    assert not is_pattern(pattern)


def twin(pattern: str, name: str) -> bool:
    """A reference implementation of `matches` with regular expressions."""
    parts = [re.escape(t) if t not in "*>" else t for t in pattern.split(".")]
    spelled = r"\.".join(p.replace("*", "[^.]+").replace(">", ".+") for p in parts)
    return re.fullmatch(spelled, name) is not None


def test_matching_equals_a_regular_expression() -> None:
    rng, both = Random(1), [0, 0]
    for _ in range(5000):
        name = ".".join(rng.choices(TOKENS[:3], k=rng.randint(1, 4)))
        tokens = rng.choices((*TOKENS[:3], "*"), k=rng.randint(0, 4))
        pattern = ".".join([*tokens, ">"] if not tokens or rng.random() < 0.3 else tokens)
        assert matches(pattern, name) == twin(pattern, name), (pattern, name)
        both[matches(pattern, name)] += 1
    assert min(both) > 300  # both outcomes occurred often


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (">", False),
        ("*", False),
        ("*.>", False),
        ("*.orders", False),
        ("_spark.>", True),
        ("_spark.*", True),
        ("_spark.orders", True),
    ],
)
def test_wildcards_do_not_match_an_internal_first_token(pattern: str, found: bool) -> None:
    assert matches(pattern, "_spark.orders") is found
    assert is_internal("_spark.orders")


def test_only_the_first_token_makes_a_name_internal() -> None:
    assert not is_internal("orders._x")
    assert all(matches(pattern, "orders._x") for pattern in (">", "*.*", "*._x", "orders.>"))
    assert not matches(">", "_one")
    assert matches("_one", "_one")


OWNERS = {"": "rest", "orders": "east", "orders.eu": "west", "orders.eu.paris": "north"}


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("orders", "east"),
        ("orders.us", "east"),
        ("orders.eu", "west"),
        ("orders.eu.rome", "west"),
        ("orders.eu.paris", "north"),
        ("orders.eu.paris.left", "north"),
        ("orders.europe", "east"),  # whole tokens: not a prefix of characters
        ("ordersx", "rest"),
        ("x.orders.eu", "rest"),
    ],
)
def test_the_longest_prefix_of_tokens_decides_the_owner(name: str, owner: str) -> None:
    assert owner_of(OWNERS, name, "here") == owner


def test_an_internal_stream_has_the_owner_of_the_stream_it_serves() -> None:
    assert owner_of(OWNERS, "_spark.orders.eu.paris", "here") == "north"
    assert owner_of(OWNERS, "_spark.other", "here") == "rest"
    assert owner_of(OWNERS, "_spark", "here") == "rest"
    assert owner_of({"orders": "east"}, "_spark.orders", "here") == "east"
    assert owner_of({"orders": "east"}, "_spark", "here") == "here"
    explicit = {**OWNERS, "_spark": "south"}
    assert owner_of(explicit, "_spark.orders.eu.paris", "here") == "south"


def test_without_an_entry_the_creating_region_is_the_owner() -> None:
    assert owner_of({}, "a.b", "here") == "here"
    assert owner_of({"a": "east"}, "b", "here") == "here"


def test_owner_tables_are_compared_by_content_not_by_order() -> None:
    assert owners_digest(OWNERS) == owners_digest(dict(reversed(OWNERS.items())))
    assert owners_digest({}) == b""
    tables = [OWNERS, {**OWNERS, "orders": "west"}, {**OWNERS, "o": "west"}, {"": "rest"}, {}]
    assert len({owners_digest(table) for table in tables}) == len(tables)
