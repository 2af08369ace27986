"""The protocols by name: where each one's configuration, machines and messages are.

The table holds import strings and nothing is loaded before it is asked for, so naming a protocol
costs nothing. A new protocol is a folder, a row here, a page in docs/protocols and its tests.
"""

from dataclasses import dataclass, field
from importlib import import_module
from inspect import isclass
from typing import Any

from surecast.core.types import Message
from surecast.errors import ConfigError

__all__ = ["PROTOCOLS", "Protocol", "config", "message_types", "role"]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A row: each value is "module:name", or "module" for `messages`."""

    messages: str
    configs: dict[str, str] = field(default_factory=dict)  # role → its configuration
    roles: dict[str, str] = field(default_factory=dict)  # role → its machine


_NAKCAST = "surecast.protocols.nakcast"
_CHAIN = "surecast.protocols.chain"
_SPRINKLER = "surecast.protocols.sprinkler"

PROTOCOLS: dict[str, Protocol] = {
    "nakcast": Protocol(
        messages=f"{_NAKCAST}.messages",
        configs={
            "publisher": f"{_NAKCAST}.config:NakcastConfig",
            "reader": f"{_NAKCAST}.config:NakcastConfig",
        },
        roles={
            "publisher": f"{_NAKCAST}.publisher:Publisher",
            "reader": f"{_NAKCAST}.reader:Reader",
        },
    ),
    "chain": Protocol(
        messages=f"{_CHAIN}.messages",
        configs={"replica": f"{_CHAIN}.config:ChainConfig"},
        roles={
            "replica": f"{_CHAIN}.replica:Replica",
            "service": f"{_CHAIN}.service:ConfigService",
        },
    ),
    "sprinkler": Protocol(
        messages=f"{_SPRINKLER}.messages",
        configs={
            "client": f"{_SPRINKLER}.config:ClientConfig",
            "inquirer": f"{_SPRINKLER}.config:InquirerConfig",
            "proxy": f"{_SPRINKLER}.config:ProxyConfig",
            "publisher": f"{_SPRINKLER}.config:PublisherConfig",
            "subscriber": f"{_SPRINKLER}.config:SubscriberConfig",
        },
        roles={
            "client": f"{_SPRINKLER}.client:Client",
            "inquirer": f"{_SPRINKLER}.inquirer:Inquirer",
            "proxy": f"{_SPRINKLER}.proxy:Proxy",
            "publisher": f"{_SPRINKLER}.publisher:Publisher",
            "subscriber": f"{_SPRINKLER}.subscriber:Subscriber",
        },
    ),
}


def role(protocol: str, name: str) -> type[Any]:
    """The machine class that plays `name` in `protocol`."""
    return _load(_row(protocol).roles, protocol, name, "role")


def config(protocol: str, name: str) -> type[Any]:
    """The configuration class of the role `name` in `protocol`."""
    return _load(_row(protocol).configs, protocol, name, "configuration")


def message_types() -> tuple[type[Message], ...]:
    """Every message of every protocol, for `core.wire.Codec`; loads their messages modules.

    A message goes over the wire under its class name, so two protocols must not share one.
    """
    found: dict[str, type[Message]] = {}
    for protocol in PROTOCOLS.values():
        module = import_module(protocol.messages)
        for name, value in sorted(vars(module).items()):
            if (
                isclass(value)
                and issubclass(value, Message)
                and value.__module__ == module.__name__
            ):
                assert name not in found, f"{value} and {found[name]} have the same name"
                found[name] = value
    return tuple(found.values())


def _row(protocol: str) -> Protocol:
    if protocol not in PROTOCOLS:
        raise ConfigError(f"no protocol {protocol!r}; there are: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol]


def _load(table: dict[str, str], protocol: str, name: str, what: str) -> type[Any]:
    if name not in table:
        raise ConfigError(f"{protocol} has no {what} {name!r}; it has: {', '.join(table)}")
    module, _, attribute = table[name].partition(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found
