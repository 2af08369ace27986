"""Builds a region's replica: the layers of all roles, composed into one machine."""

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
    """The layers of a region's replica and their classes, lowest first."""
    return {name: kind for role in roles().values() for name, kind in role.layer_types.items()}


def region_replica(
    configs: Mapping[str, Any],
    disk: Disk,
    rng: Random,
    counters: Counter[str] | None = None,
    *,
    types: Iterable[type[Any]] = (),
) -> Composition:
    """One replica of a region: the layers of all roles that `configs` (`registry.configs`) names.

    `types` replace the layer classes that they derive from: tests pass subclasses that break one
    rule.
    """
    known = roles()
    if unknown := [name for name in configs if name not in known]:
        raise ConfigError(
            f"no role {', '.join(unknown)}; this version of Surecast has: {', '.join(known)}"
        )
    used = [role for role in known.values() if role.name in configs]
    made: dict[str, Layer] = {}

    def scope(layer: str) -> Scope:
        return Scope(disk, layer, [n for n, one in made.items() if "replicated" in one.provides])

    kit = Kit(
        disk=scope,
        rng=rng,
        counters=counters,
        kinds={**replica_layers(), **{layer_of(kind): kind for kind in types}},
        deliveries={role.delivery: role.name for role in used if role.delivery},
        made=made,
    )
    for role in used:
        made.update(role.layers(configs[role.name], kit))
    return compose(made)


def layer_of(kind: type[Any]) -> str:
    """The name of the layer whose class `kind` is or derives from."""
    return next(name for name, known in replica_layers().items() if issubclass(kind, known))
