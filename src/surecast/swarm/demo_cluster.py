"""The demo's servers: what `surecast up` starts, with a wide-area network between the regions.

Every link from one region to another leads through a relay, which delays what passes and can be
told to cut a line. The files differ from those of `surecast up` in the addresses alone.
"""

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from surecast.core.types import MS
from surecast.endpoint.http_get import http_get
from surecast.errors import SurecastError, UsageError
from surecast.runtime.book import show_address
from surecast.runtime.relay import LinkSpec, RelayProcess, Shape
from surecast.server.cluster import Cluster, check_ports
from surecast.server.config import parse_address
from surecast.server.layout import Layout, Planned, plan

__all__ = [
    "DELAYS_MS",
    "RelayedLayout",
    "bytes_into",
    "free_layout",
    "lead_through",
    "look",
    "wire",
]

DELAYS_MS = {("east", "north"): 15, ("east", "west"): 35, ("north", "west"): 40}  # one way
PORTS = range(20_000, 32_000)  # below those the system hands out by itself
TRIES_MAX = 100
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class RelayedLayout(Layout):
    """A layout whose regions reach each other by the relay's addresses."""

    through: dict[tuple[str, str], str] = field(default_factory=dict)  # (from region, to node)

    def text(self, node: Planned) -> str:
        seen = [
            replace(other, listen=self.through.get((node.region, other.name), other.listen))
            if other.name != node.name
            else other
            for other in self.nodes
        ]
        return Layout(self.folder, seen, self.in_memory).text(node)


def free_layout(folder: Path, regions: int, replicas: int) -> Layout:
    """A plan on ports that nobody uses right now."""
    for port in random.sample(PORTS, TRIES_MAX):
        layout = plan(folder, regions, replicas, port)
        try:
            check_ports(layout)
        except UsageError:
            continue
        return layout
    raise SurecastError(f"found no {len(layout.nodes)} free ports in a row in {PORTS}")


def wire(one: str, other: str) -> str:
    """The line between two regions; `forward` is the way to the second in the alphabet."""
    return "-".join(sorted((one, other)))


def lead_through(relay: RelayProcess, layout: Layout) -> RelayedLayout:
    """Add a link for every region to every replica of the others."""
    through: dict[tuple[str, str], str] = {}
    for region in layout.regions():
        for node in layout.nodes:
            if node.region == region or node.role != "replica":
                continue
            first, second = sorted((region, node.region))
            shape = Shape(delay_ns=DELAYS_MS[first, second] * MS)
            address = relay.add(
                LinkSpec(
                    f"{region}>{node.name}",
                    parse_address(node.listen),
                    wire=wire(region, node.region),
                    forward=shape,
                    back=shape,
                    against=region == second,
                )
            )
            through[region, node.name] = show_address(address)
    return RelayedLayout(layout.folder, layout.nodes, layout.in_memory, through)


def bytes_into(relay: RelayProcess, region: str, others: list[str]) -> int:
    """How many bytes the lines into a region have been given so far."""
    stats = relay.stats()
    lanes = [(stats[wire(region, other)], region > other) for other in others]
    return sum(line.forward.bytes if forward else line.back.bytes for line, forward in lanes)


def look(cluster: Cluster, name: str) -> dict[str, Any]:
    """What a node knows (`/v1/status`); empty while it does not answer."""
    try:
        url = f"http://{cluster.nodes[name].http}/v1/status"
        status: dict[str, Any] = json.loads(http_get(url, patience_s=ANSWER_S))
        return status
    except OSError:
        return {}
