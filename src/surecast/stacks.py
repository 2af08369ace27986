"""What rides on what, and what stands side by side: the machines that make up a node."""

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any, Final

from surecast.core.compose import Composition, compose
from surecast.core.scopes import Scope
from surecast.core.types import Disk
from surecast.protocols.chain.config import ChainConfig
from surecast.protocols.chain.replica import Replica
from surecast.protocols.sprinkler.config import SprinklerConfig
from surecast.protocols.sprinkler.mesh_server import MeshServer
from surecast.protocols.sprinkler.region_sync import RegionSync
from surecast.protocols.streams.config import StreamsConfig
from surecast.protocols.streams.cursors import Cursors
from surecast.protocols.streams.queries import Queries
from surecast.protocols.streams.service import StreamService

__all__ = ["DELIVERIES", "REPLICA_LAYERS", "layer_of", "region_replica"]

# The layers of a region's replica, lowest first.
REPLICA_LAYERS: Final[dict[str, type[Any]]] = {
    "chain": Replica,
    "streams": StreamService,
    "cursors": Cursors,
    "queries": Queries,
    "sprinkler": RegionSync,
    "sprinkler.mesh": MeshServer,
}

# The layer that is the server side of a delivery, by the name that users give the delivery.
DELIVERIES: Final = {"broadcast": "sprinkler"}


def region_replica(
    chain: ChainConfig,
    streams: StreamsConfig,
    sprinkler: SprinklerConfig,
    disk: Disk,
    rng: Random,
    counters: Counter[str] | None = None,
    *,
    types: Iterable[type[Any]] = (),
) -> Composition:
    """One replica of a region: its chain, the streams in it, and what is delivered.

    `types` take the place of the layers' classes that they derive from, so that tests can take a
    rule out and see that it is missed.
    """
    kinds = dict(REPLICA_LAYERS)
    for kind in types:
        kinds[layer_of(kind)] = kind

    def scope(layer: str) -> Scope:
        return Scope(disk, layer, [] if layer == "chain" else ["chain"])

    service: StreamService = kinds["streams"](
        streams, scope("streams"), rng, counters, deliveries=DELIVERIES
    )
    return compose(
        {
            "chain": kinds["chain"](chain, scope("chain"), rng, counters),
            "streams": service,
            "cursors": kinds["cursors"](streams, service, scope("cursors"), counters),
            "queries": kinds["queries"](streams, service, counters),
            "sprinkler": kinds["sprinkler"](sprinkler, service, scope("sprinkler"), rng, counters),
            "sprinkler.mesh": kinds["sprinkler.mesh"](sprinkler, service, rng, counters),
        }
    )


def layer_of(kind: type[Any]) -> str:
    """The name of the layer whose class `kind` is or derives from."""
    return next(name for name, known in REPLICA_LAYERS.items() if issubclass(kind, known))
