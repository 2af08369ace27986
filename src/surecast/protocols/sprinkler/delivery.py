"""The client side of the delivery `broadcast`: which machines a client uses for its streams.

Publishers, and readers that are fed only by a server, are those of the stream service. A reader in
the mesh is a `MeshPeer`.
"""

from collections import Counter

from surecast.core.compose import Layer
from surecast.core.endpoint import VERBS, Place
from surecast.core.machine import NodeContext
from surecast.core.streams import StreamSpec
from surecast.errors import UsageError
from surecast.protocols.sprinkler.config import ClientConfig
from surecast.protocols.sprinkler.mesh_peer import MeshPeer

__all__ = ["Broadcast"]


class Broadcast:
    """Every event, in order, in every region. (`core.endpoint.Delivery` explains the members.)"""

    name = "broadcast"
    ordered = True
    needs = frozenset({"region"})
    verbs = VERBS
    keeps_copies = True
    acks = ("local",)

    def check(self, spec: StreamSpec) -> None:
        if spec.options:
            raise UsageError(f"delivery={self.name!r} takes no options, not {dict(spec.options)}")

    def publisher(self, _ctx: NodeContext, _place: Place) -> Layer | None:
        return None

    def reader(self, ctx: NodeContext, place: Place) -> Layer | None:
        if not place.mesh:
            return None
        config = ClientConfig(ctx.name, place.servers, streams_max=place.streams_max)
        return MeshPeer(config, {}, ctx.rng, Counter())
