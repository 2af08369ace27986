"""The registry of protocols, through which clients, servers and the command line access them.

`PROTOCOLS` has a row for each protocol, with up to three entries:

* its *delivery*, the client side of a way in which events reach readers (`core.endpoint`);
* its *role*, the server side that it adds to a region's replica (`core.roles`);
* its *witness*, the service that keeps the configuration of chains: which replicas belong to each
  chain, and in which order.

The entries are functions that import the protocol when they are called, so a protocol is imported
only when it is used; mypy checks their return types. The functions below create the machines of
clients and servers from these entries. To add a protocol, write its folder, a row here, a page in
docs/protocols and its tests.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import isclass
from pkgutil import iter_modules
from re import fullmatch
from typing import Any

import msgspec

from surecast.columns.batch import Batch
from surecast.core.canon import name_of
from surecast.core.compose import Layer, compose
from surecast.core.endpoint import Delivery, Place
from surecast.core.machine import NodeContext
from surecast.core.roles import Deployment, Role
from surecast.core.streams import StreamInfo
from surecast.core.types import TAG_PATTERN, Disk, LogId, Machine, Message, Peer, tag_of
from surecast.errors import ConfigError

__all__ = [
    "PROTOCOLS",
    "Protocol",
    "configs",
    "control",
    "deliveries",
    "delivery",
    "directory",
    "message_type",
    "message_types",
    "range_reader",
    "reader",
    "recorded_types",
    "roles",
    "witness",
]


# Creates the witness of some chains, from the replicas of each chain, a disk and counters.
Witness = Callable[[Mapping[str, tuple[Peer, ...]], Disk, Counter[str] | None], Machine]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A row of the registry. The messages of the protocol are in the module `messages` of its
    folder."""

    delivery: Callable[[], Delivery] | None = None
    role: Callable[[], Role] | None = None  # the role's name must be the key of the row
    witness: Callable[[], Witness] | None = None


def _broadcast() -> Delivery:
    from surecast.protocols.sprinkler.delivery import Broadcast

    return Broadcast()


def _chain() -> Role:
    from surecast.protocols.chain.role import ChainRole

    return ChainRole()


def _chain_witness() -> Witness:
    from surecast.protocols.chain.role import witness

    return witness


def _streams() -> Role:
    from surecast.protocols.streams.role import StreamsRole

    return StreamsRole()


def _sprinkler() -> Role:
    from surecast.protocols.sprinkler.role import SprinklerRole

    return SprinklerRole()


def _nakcast_delivery() -> Delivery:
    from surecast.protocols.nakcast.delivery import Nakcast

    return Nakcast()


def _nakcast() -> Role:
    from surecast.protocols.nakcast.role import NakcastRole

    return NakcastRole()


def _filtered() -> Delivery:
    from surecast.protocols.gryphon.delivery import Filtered

    return Filtered()


def _gryphon() -> Role:
    from surecast.protocols.gryphon.role import GryphonRole

    return GryphonRole()


_COLUMN_TYPES = ("surecast.columns.rules",)  # the modules of `columns` that define structs

# In the order of their layers in a replica, the lowest first (see `roles`).
PROTOCOLS: dict[str, Protocol] = {
    "chain": Protocol(role=_chain, witness=_chain_witness),
    "streams": Protocol(role=_streams),
    "sprinkler": Protocol(delivery=_broadcast, role=_sprinkler),
    "nakcast": Protocol(delivery=_nakcast_delivery, role=_nakcast),
    "gryphon": Protocol(delivery=_filtered, role=_gryphon),
}


# ------------------------------------------------------------ for endpoints


def deliveries() -> dict[str, Delivery]:
    """All deliveries by the names that users pass as `delivery=`."""
    made = [row.delivery() for row in PROTOCOLS.values() if row.delivery is not None]
    return {entry.name: entry for entry in made}


def delivery(name: str) -> Delivery:
    known = deliveries()
    if name not in known:
        raise ConfigError(f"no delivery {name!r}; there are: {', '.join(known)}")
    return known[name]


def reader(name: str, ctx: NodeContext, place: Place) -> Machine:
    """The machine of a client's reading node, for streams of this delivery."""
    from surecast.protocols.streams.config import SubscriberConfig
    from surecast.protocols.streams.subscriber import Subscriber

    made = delivery(name).reader(ctx, place)
    return made or Subscriber(SubscriberConfig(place.servers), {}, Counter())


def control(ctx: NodeContext, place: Place) -> Machine:
    """The machine of a client's control node: it publishes, and sends queries to the region.

    Each delivery with its own publisher adds a layer, named like the delivery.
    """
    from surecast.protocols.streams.config import InquirerConfig, PublisherConfig
    from surecast.protocols.streams.inquirer import Inquirer
    from surecast.protocols.streams.publisher import Publisher

    config = PublisherConfig(place.servers, owner_ns=place.owner_timeout_ns)
    layers: dict[str, Layer] = {
        "publisher": Publisher(config, ctx.rng, Counter()),
        "inquirer": Inquirer(InquirerConfig(place.servers), Counter()),
    }
    own = {one.name: one.publisher(ctx, place) for one in deliveries().values()}
    assert not own.keys() & layers.keys(), f"no delivery can be named one of {list(layers)}"
    return compose(layers | {name: layer for name, layer in own.items() if layer is not None})


def range_reader(_ctx: NodeContext, place: Place) -> Machine:
    """The machine of a node that reads ranges of positions (`endpoint.ranges`)."""
    from surecast.protocols.streams.config import SubscriberConfig
    from surecast.protocols.streams.fetcher import Fetcher

    return Fetcher(SubscriberConfig(place.servers), Counter())


# ------------------------------------------------------------ for servers


def roles() -> dict[str, Role]:
    """The roles of a region's replica, by name. Roles that have a delivery come last, because their
    layers stand above those of the other roles."""
    made = {name: row.role() for name, row in PROTOCOLS.items() if row.role is not None}
    for name, role in made.items():
        assert role.name == name, (
            f"the role of {name} is called {role.name!r}; name it like its row"
        )
    return dict(sorted(made.items(), key=lambda item: bool(item[1].delivery)))


def configs(
    deployment: Deployment, given: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The configuration of each role at one replica. `given` has values for some fields (role →
    field → value); the other fields follow from the deployment or have defaults."""
    known, options = roles(), given or {}
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(f"no role {', '.join(unknown)}; there are: {', '.join(known)}")
    return {
        name: role.config(**{**role.derived(deployment), **options.get(name, {})})
        for name, role in known.items()
    }


def witness(
    chains: Mapping[str, tuple[Peer, ...]], disk: Disk, counters: Counter[str] | None = None
) -> Machine:
    """The machine of the witness of these chains. `chains`: name of a chain → its replicas."""
    make = next(row.witness for row in PROTOCOLS.values() if row.witness is not None)
    return make()(chains, disk, counters)


def directory(batches: Iterable[Batch]) -> dict[LogId, StreamInfo]:
    """The streams that a region's directory lists; `batches` is its log
    (`core.streams.DIRECTORY`)."""
    from surecast.protocols.streams.directory import Directory

    found = Directory()
    for batch in batches:
        found.apply(batch)
    return found.by_id


# ------------------------------------------------------------ types


def message_types() -> tuple[type[Message], ...]:
    """All message types of all protocols, for `core.wire.Codec`. Imports the modules with messages.

    A class from which others in its module derive is a base class and is left out, because it is
    never sent. Tags have the form "protocol/Name", where "protocol" is the key of the row, so two
    protocols cannot have the same tag.
    """
    found: dict[str, type[Message]] = {}
    for protocol in PROTOCOLS:
        module = f"surecast.protocols.{protocol}.messages"
        kinds = [one for one in _defined_in(module) if issubclass(one, Message)]
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


def message_type(tag: str) -> type[Message]:
    """The message type with this tag."""
    found = next((kind for kind in message_types() if tag_of(kind) == tag), None)
    if found is None:
        raise ConfigError(f"no message {tag!r}")
    return found


def recorded_types() -> dict[str, type[msgspec.Struct]]:
    """All types that a recording may name (`core.canon.name_of`), for `sim.playback`.

    Imports all modules of `core` and of the protocols. A type may be in any module of its
    protocol's folder, so two types in one folder must not have the same name.
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
