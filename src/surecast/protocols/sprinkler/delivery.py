"""The client side of the delivery: publishing and thin reading as of any stream, and the mesh."""

from collections import Counter
from collections.abc import Callable

from surecast.core.compose import Layer
from surecast.core.endpoint import Place
from surecast.core.machine import NodeContext
from surecast.protocols.sprinkler.config import ClientConfig
from surecast.protocols.sprinkler.mesh_peer import MeshPeer

__all__ = ["Broadcast"]

Make = Callable[[NodeContext, Place], Layer]


class Broadcast:
    """Every event, in order, in every region. Given the machines of a client without a mesh."""

    name = "broadcast"

    def __init__(self, publisher: Make, subscriber: Make) -> None:
        self._publisher = publisher
        self._subscriber = subscriber

    def publisher(self, ctx: NodeContext, place: Place) -> Layer:
        return self._publisher(ctx, place)

    def reader(self, ctx: NodeContext, place: Place) -> Layer:
        if not place.mesh:
            return self._subscriber(ctx, place)
        config = ClientConfig(ctx.name, place.servers, streams_max=place.streams_max)
        return MeshPeer(config, {}, ctx.rng, Counter())
