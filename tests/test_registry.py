"""Every row of the registry loads, and what it loads is what it says."""

from dataclasses import is_dataclass
from pathlib import Path

import pytest

from surecast import registry
from surecast.core.types import Message, tag_of
from surecast.errors import ConfigError
from tests.made_protocols import made_protocols

ROLES = [(name, role) for name, row in registry.PROTOCOLS.items() for role in row.roles]
CONFIGS = [(name, role) for name, row in registry.PROTOCOLS.items() for role in row.configs]


@pytest.mark.parametrize(("protocol", "name"), ROLES)
def test_roles_are_machines(protocol: str, name: str) -> None:
    assert callable(registry.role(protocol, name).step)


@pytest.mark.parametrize(("protocol", "name"), CONFIGS)
def test_configs_are_frozen_dataclasses(protocol: str, name: str) -> None:
    loaded = registry.config(protocol, name)
    assert is_dataclass(loaded)
    assert loaded.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert name in registry.PROTOCOLS[protocol].roles


def test_message_types_are_all_messages_under_one_tag_each() -> None:
    types = registry.message_types()
    assert all(issubclass(one, Message) for one in types)
    assert len({tag_of(one) for one in types}) == len(types)
    modules = {one.__module__ for one in types}
    assert modules == {row.messages for row in registry.PROTOCOLS.values()}
    assert types == registry.message_types()


def test_a_tag_is_the_protocol_and_the_class_name() -> None:
    for one in registry.message_types():
        protocol = one.__module__.split(".")[2]
        assert tag_of(one) == f"{protocol}/{one.__name__}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("class Ack(Message): pass", "its tag 'Ack' is not left's"),
        ("class Ack(Message, tag=tagged('right')): pass", "its tag 'right/Ack' is not left's"),
        (
            "class Base(Message, tag='left/Same'): pass\n"
            "class One(Base, tag='left/Same'): pass\nclass Two(Base, tag='left/Same'): pass",
            "have the tag 'left/Same'",
        ),
    ],
)
def test_tags_of_a_protocol_begin_with_its_name_and_are_unique(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, problem: str
) -> None:
    with made_protocols(monkeypatch, tmp_path) as made:
        made.write("left", messages=f"from surecast.core.types import Message, tagged\n{text}\n")
        with pytest.raises(AssertionError, match=problem):
            registry.message_types()


def test_all_messages_fit_one_codec() -> None:
    from surecast.core.wire import Codec

    Codec(registry.message_types())


def test_unknown_names_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="there are: nakcast"):
        registry.role("kafka", "broker")
    with pytest.raises(ConfigError, match="it has: replica"):
        registry.role("chain", "king")
