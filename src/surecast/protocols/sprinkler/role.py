"""Sprinkler as a role: its two layers in a region's replica, `sprinkler` and `sprinkler.mesh`.

The first exchanges streams with other regions, the second serves the meshes of clients.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from surecast.core.compose import Layer
from surecast.core.roles import Deployment, Kit, Observer
from surecast.protocols.sprinkler.config import SprinklerConfig
from surecast.protocols.sprinkler.delivery import Broadcast
from surecast.protocols.sprinkler.mesh_server import MeshServer
from surecast.protocols.sprinkler.observe import SprinklerObserver
from surecast.protocols.sprinkler.region_sync import RegionSync

__all__ = ["SprinklerRole"]


class SprinklerRole:
    """Implements `core.roles.Role`, which explains the members."""

    name = "sprinkler"
    delivery = Broadcast.name
    keeps_copies = True
    config: type[Any] = SprinklerConfig
    layer_types: ClassVar[Mapping[str, type[Any]]] = {
        "sprinkler": RegionSync,
        "sprinkler.mesh": MeshServer,
    }
    observer: Observer = SprinklerObserver()

    def derived(self, deployment: Deployment) -> dict[str, Any]:
        return {
            "region": deployment.region,
            "name": deployment.name,
            "regions": dict(deployment.regions),
            "owners": dict(deployment.owners),
        }

    def layers(self, config: SprinklerConfig, kit: Kit) -> dict[str, Layer]:
        kinds, service, counters = kit.kinds, kit.service, kit.counters
        disk = kit.disk("sprinkler")
        return {
            "sprinkler": kinds["sprinkler"](config, service, disk, kit.rng, counters),
            "sprinkler.mesh": kinds["sprinkler.mesh"](config, service, kit.rng, counters),
        }
