"""What a server knows of the delivery: configuration, layer, alarms, status, metrics."""

from collections.abc import Iterator, Mapping
from typing import Any

from surecast.core.compose import Layer
from surecast.core.roles import Code, Deployment, Kit, Layers, Metric
from surecast.core.types import SECOND, LogId
from surecast.protocols.nakcast.config import NakcastConfig
from surecast.protocols.nakcast.server import NAME, NakcastServer

__all__ = ["NakcastRole"]

RECENT_NS = 60 * SECOND  # how long a loss is shown as an alarm


class NakcastObserver:
    codes: Mapping[str, Code] = {
        "readers-losing": Code(
            "A reader of a stream with delivery nakcast fell behind by more than "
            "nakcast.repair_max positions in the last minute, and was told that it lost the older "
            "ones.",
            "Look for slow readers or a lossy network. Raise nakcast.repair_max if readers may be "
            "that far behind, or use delivery broadcast where nothing may be lost.",
        ),
    }

    def alarms(self, layers: Layers) -> Iterator[tuple[str, str]]:
        server = _server(layers)
        if server.now_ns - server.lost_ns < RECENT_NS:
            lost = server.counters["nakcast.positions-lost"]
            yield "readers-losing", f"{lost} positions since the start"

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
        yield Metric("nakcast_followers", "readers of nakcast streams here", server.followers)


def _server(layers: Layers) -> NakcastServer:
    server = layers[NAME]
    assert isinstance(server, NakcastServer)
    return server


class NakcastRole:
    name = "nakcast"
    delivery = NAME
    config = NakcastConfig
    layer_types: Mapping[str, type[Any]] = {"nakcast": NakcastServer}
    observer = NakcastObserver()

    def derived(self, deployment: Deployment) -> dict[str, Any]:
        return {"region": deployment.region, "owners": dict(deployment.owners)}

    def layers(self, config: NakcastConfig, kit: Kit) -> dict[str, Layer]:
        return {"nakcast": kit.kinds["nakcast"](config, kit.service, kit.counters)}
