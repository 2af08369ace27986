"""Every row of the registry loads, and what it loads is what it says."""

from dataclasses import is_dataclass

import pytest

from surecast import registry
from surecast.core.types import Message
from surecast.errors import ConfigError

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


def test_message_types_are_all_messages_under_one_name_each() -> None:
    types = registry.message_types()
    assert all(issubclass(one, Message) for one in types)
    assert len({one.__name__ for one in types}) == len(types)
    modules = {one.__module__ for one in types}
    assert modules == {row.messages for row in registry.PROTOCOLS.values()}
    assert types == registry.message_types()


def test_all_messages_fit_one_codec() -> None:
    from surecast.core.wire import Codec

    Codec(registry.message_types())


def test_unknown_names_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="there are: nakcast"):
        registry.role("kafka", "broker")
    with pytest.raises(ConfigError, match="it has: replica"):
        registry.role("chain", "king")
