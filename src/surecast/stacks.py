"""Builds the state machine of a region's replica from the layers of all its roles.

A *role* is what one protocol adds to a replica (`core.roles`). The layers of all roles are composed
into one state machine (`core.compose`). The server, the simulator and tests use this module.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from surecast.core.compose import Composition, Layer, Scope, compose
from surecast.core.roles import Kit
from surecast.core.types import Disk
from surecast.errors import ConfigError
from surecast.registry import roles

__all__ = ["layer_of", "region_replica", "replica_layers"]


def replica_layers() -> dict[str, type[Any]]:
    """The names of the layers of a region's replica and their classes, the lowest layer first."""
    return {name: kind for role in roles().values() for name, kind in role.layer_types.items()}


def region_replica(
    configs: Mapping[str, Any],
    disk: Disk,
    rng: Random,
    counters: Counter[str] | None = None,
    *,
    types: Iterable[type[Any]] = (),
) -> Composition:
    """One replica of a region, with the layers of the roles that are the keys of `configs` (see
    `registry.configs`).

    Each class in `types` replaces the layer class that it derives from. Tests pass subclasses that
    break a rule of the protocol on purpose.
    """
    known = roles()
    if unknown := [name for name in configs if name not in known]:
        raise ConfigError(
            f"no role {', '.join(unknown)}; this version of Surecast has: {', '.join(known)}"
        )
    used = [role for role in known.values() if role.name in configs]
    made: dict[str, Layer] = {}

    def scope(layer: str) -> Scope:
        # A layer may also read the logs of the replication layers below it.
        return Scope(disk, layer, [n for n, one in made.items() if "replicated" in one.provides])

    kit = Kit(
        disk=scope,
        rng=rng,
        counters=counters,
        kinds={**replica_layers(), **{layer_of(kind): kind for kind in types}},
        deliveries={role.delivery: role.name for role in used if role.delivery},
        remote=frozenset(role.delivery for role in used if not role.keeps_copies),
        made=made,
    )
    for role in used:
        made.update(role.layers(configs[role.name], kit))
    return compose(made)


def layer_of(kind: type[Any]) -> str:
    """The name of the layer whose class `kind` is or derives from."""
    return next(name for name, known in replica_layers().items() if issubclass(kind, known))
