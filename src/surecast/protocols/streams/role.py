"""The stream service as a role of a replica, with named subscriptions and queries above it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from surecast.core.compose import Layer
from surecast.core.roles import Deployment, Kit, Observer
from surecast.protocols.streams.config import StreamsConfig
from surecast.protocols.streams.cursors import Cursors
from surecast.protocols.streams.observe import StreamsObserver
from surecast.protocols.streams.queries import Queries
from surecast.protocols.streams.service import StreamService

__all__ = ["StreamsRole"]


class StreamsRole:
    """Implements `core.roles.Role`, which explains the members."""

    name = "streams"
    delivery = ""
    keeps_copies = True
    config: type[Any] = StreamsConfig
    layer_types: ClassVar[Mapping[str, type[Any]]] = {
        "streams": StreamService,
        "cursors": Cursors,
        "queries": Queries,
    }
    observer: Observer = StreamsObserver()

    def derived(self, deployment: Deployment) -> dict[str, Any]:
        return {
            "region": deployment.region,
            "name": deployment.name,
            "replicas": deployment.regions[deployment.region],
            "chain": deployment.region,
            "addresses": dict(deployment.addresses),
            "http": dict(deployment.http),
        }

    def layers(self, config: StreamsConfig, kit: Kit) -> dict[str, Layer]:
        kinds, counters = kit.kinds, kit.counters
        service: StreamService = kinds["streams"](
            config,
            kit.disk("streams"),
            kit.rng,
            counters,
            deliveries=kit.deliveries,
            remote=kit.remote,
        )
        return {
            "streams": service,
            "cursors": kinds["cursors"](config, service, kit.disk("cursors"), counters),
            "queries": kinds["queries"](config, service, counters),
        }
