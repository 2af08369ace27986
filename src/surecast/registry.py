"""The protocols by name: where each one's configuration, machines and messages are.

The table holds import strings and nothing is loaded before it is asked for, so naming a protocol
costs nothing. A new protocol is a folder, a row here, a page in docs/protocols and its tests.
"""

from dataclasses import dataclass, field
from importlib import import_module
from inspect import isclass
from pkgutil import iter_modules
from re import fullmatch
from typing import Any

import msgspec

from surecast.core.canon import name_of
from surecast.core.types import TAG_PATTERN, Message, tag_of
from surecast.errors import ConfigError

__all__ = ["PROTOCOLS", "Protocol", "config", "message_types", "recorded_types", "role"]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A row: each value is "module:name", or "module" for `messages`."""

    messages: str
    configs: dict[str, str] = field(default_factory=dict)  # role → its configuration
    roles: dict[str, str] = field(default_factory=dict)  # role → its machine


_COLUMN_TYPES = ("surecast.columns.rules",)  # the modules of `columns` that define structs
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

    A class that others of its module derive from is a base and is not sent. Tags are
    "protocol/Name" with the name of the row, so that protocols cannot clash.
    """
    found: dict[str, type[Message]] = {}
    for protocol, row in PROTOCOLS.items():
        kinds = [one for one in _defined_in(row.messages) if issubclass(one, Message)]
        bases = {base for kind in kinds for base in kind.__bases__}
        for kind in kinds:
            if kind in bases:
                continue
            tag = tag_of(kind)
            assert tag.startswith(f"{protocol}/"), f"{kind}: its tag {tag!r} is not {protocol}'s"
            assert fullmatch(TAG_PATTERN, tag), f"{kind}: its tag {tag!r} is not well formed"
            assert tag not in found, f"{kind} and {found[tag]} have the tag {tag!r}"
            found[tag] = kind
    return tuple(found.values())


def recorded_types() -> dict[str, type[msgspec.Struct]]:
    """Every type that a recording may name (`core.canon.name_of`), for `sim.playback`.

    Loads the modules of `core` and of all protocols. A type is found wherever in its protocol's
    folder it is defined, so two in one folder must not share a name.
    """
    packages = ["surecast.core", *(f"surecast.protocols.{name}" for name in PROTOCOLS)]
    modules = [f"{package}.{name}" for package in packages for name in _modules_in(package)]
    found: dict[str, type[msgspec.Struct]] = {}
    for module in [*modules, *_COLUMN_TYPES]:
        for kind in _defined_in(module):
            if issubclass(kind, msgspec.Struct):
                name = name_of(kind)
                assert name not in found, f"{kind} and {found[name]} are both called {name!r}"
                found[name] = kind
    return found


def _modules_in(package: str) -> list[str]:
    path = import_module(package).__path__
    return sorted(module.name for module in iter_modules(path))


def _defined_in(name: str) -> list[type[Any]]:
    """The classes that a module defines itself, by name."""
    module = import_module(name)
    classes = [value for _, value in sorted(vars(module).items()) if isclass(value)]
    return [one for one in classes if one.__module__ == module.__name__]


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
