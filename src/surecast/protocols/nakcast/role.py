"""Nakcast as a role, the server side: configuration, layer, alarms, status, metrics."""

from collections.abc import Iterator, Mapping
from typing import Any

from surecast.core.compose import Layer
from surecast.core.roles import Code, Deployment, Kit, Layers, Metric
from surecast.core.types import LogId
from surecast.protocols.nakcast.config import NakcastConfig
from surecast.protocols.nakcast.server import DELIVERY, LAYER, NakcastServer

__all__ = ["NakcastRole"]

NAMED_MAX = 5  # streams that alarms list by name; the others are only counted


class NakcastObserver:
    """Reports the state of the server side (`core.roles.Observer`)."""

    codes: Mapping[str, Code] = {
        "readers-losing": Code(
            "A reader of this stream (delivery nakcast) is more than nakcast.repair_max positions "
            "behind, and has lost the older ones. They may still be in the log.",
            "Look for slow readers or a lossy network. Raise nakcast.repair_max if readers may be "
            "that far behind, or use delivery broadcast where nothing may be lost.",
        ),
        "readers-refused": Code(
            "The number of readers of streams with delivery nakcast has reached "
            "nakcast.followers_max; further readers get nothing.",
            "Raise nakcast.followers_max, or look for a program that subscribes again and again.",
        ),
    }

    def alarms(self, layers: Layers) -> Iterator[tuple[str, str]]:
        server = _server(layers)
        losing = list(server.losing.items())
        for stream, lost in losing[:NAMED_MAX]:
            name = server.service.streams[stream].info.name
            yield "readers-losing", f"{name}, {lost} positions"
        if len(losing) > NAMED_MAX:
            yield "readers-losing", f"and {len(losing) - NAMED_MAX} more"
        if server.refused:
            yield "readers-refused", f"nakcast, {server.refused} joins refused"

    def status(self, layers: Layers) -> Mapping[str, Any]:
        server = _server(layers)
        return {
            "streams": len(server.streams),
            "followers": server.followers,
            "sent_again": server.counters["nakcast.sent-again"],
            "positions_lost": server.counters["nakcast.positions-lost"],
        }

    def stream(self, layers: Layers, stream: LogId) -> Mapping[str, Any]:
        group = _server(layers).groups.get(stream)
        return {"subscribers": len(group.followers) if group is not None else 0}

    def metrics(self, layers: Layers) -> Iterator[Metric]:
        server = _server(layers)
        lost = server.counters["nakcast.positions-lost"]
        yield Metric("nakcast_followers", "readers of nakcast streams here", server.followers)
        lost_help = "positions that were reported to readers as lost, since the start"
        yield Metric("nakcast_positions_lost", lost_help, lost)


def _server(layers: Layers) -> NakcastServer:
    server = layers[LAYER]
    assert isinstance(server, NakcastServer)
    return server


class NakcastRole:
    """Implements `core.roles.Role`, which explains the members."""

    name = LAYER
    delivery = DELIVERY
    keeps_copies = True
    config = NakcastConfig
    layer_types: Mapping[str, type[Any]] = {LAYER: NakcastServer}
    observer = NakcastObserver()

    def derived(self, deployment: Deployment) -> dict[str, Any]:
        return {"region": deployment.region, "owners": dict(deployment.owners)}

    def layers(self, config: NakcastConfig, kit: Kit) -> dict[str, Layer]:
        return {LAYER: kit.kinds[LAYER](config, kit.service, kit.counters)}
