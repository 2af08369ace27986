"""The chain as a role: its layer in a region's replica, and its service, the region's witness."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from surecast.core.compose import Layer
from surecast.core.roles import Deployment, Kit, Observer
from surecast.core.types import Disk, Machine, Peer
from surecast.protocols.chain.config import ChainConfig
from surecast.protocols.chain.observe import ChainObserver
from surecast.protocols.chain.replica import Replica
from surecast.protocols.chain.service import ConfigService

__all__ = ["ChainRole", "witness"]


class ChainRole:
    """The chain as a `core.roles.Role`."""

    name = "chain"
    delivery = ""
    keeps_copies = True
    config: type[Any] = ChainConfig
    layer_types: ClassVar[Mapping[str, type[Any]]] = {"chain": Replica}
    observer: Observer = ChainObserver()

    def derived(self, deployment: Deployment) -> dict[str, Any]:
        replicas = deployment.regions[deployment.region]
        return {
            "chain": deployment.region,
            "name": deployment.name,
            "service": deployment.witness,
            "replicas": len(replicas),
            "configured": replicas,
        }

    def layers(self, config: ChainConfig, kit: Kit) -> dict[str, Layer]:
        made = kit.kinds["chain"](config, kit.disk("chain"), kit.rng, kit.counters)
        return {"chain": made}


def witness(
    chains: Mapping[str, tuple[Peer, ...]], disk: Disk, counters: Counter[str] | None
) -> Machine:
    """The configuration service of these chains (name → replicas)."""
    return ConfigService(dict(chains), disk, counters)
