"""Creates deployments of real servers on this machine, for tests, the demo and benchmarks.

A deployment is described by a `Layout` of `surecast.server`, as in `surecast up`: its regions,
replicas and addresses. `free_layout` creates a layout on free ports. `lead_through` routes the
connections between regions through a relay (`relay.py`), which adds delay and can cut links.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from surecast.core.types import MS
from surecast.endpoint.http_get import http_get
from surecast.runtime.addresses import Address, show_address
from surecast.server.cluster import Cluster
from surecast.server.config import parse_address
from surecast.server.layout import Layout, lay_out, node_count, region_names
from surecast_lab.testing.ports import free_ports
from surecast_lab.testing.relay import LinkSpec, RelayProcess, Shape

__all__ = [
    "addresses",
    "bytes_into",
    "free_layout",
    "lead_through",
    "look",
    "url",
    "wan",
    "wire",
]

DELAYS_MS = {("east", "north"): 15, ("east", "west"): 35, ("north", "west"): 40}  # one way
ANSWER_S = 5.0


def free_layout(
    folder: Path,
    regions: int | Mapping[str, int],
    replicas: int = 1,
    *,
    http: bool = True,
    in_memory: bool = False,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Layout:
    """A layout with `regions` regions of `replicas` replicas each. `regions` may also be a table:
    region → number of replicas."""
    if isinstance(regions, int):
        regions = dict.fromkeys(region_names(regions), replicas)
    count = node_count(regions)
    ports = free_ports(2 * count if http else count)
    return lay_out(
        folder, regions, ports[:count], ports[count:] if http else None, in_memory, settings
    )


def addresses(layout: Layout, region: str) -> dict[str, Address]:
    """The addresses of a region's replicas."""
    return {node.name: parse_address(node.listen) for node in layout.of(region)}


def url(layout: Layout, region: str) -> str:
    """The url for clients of a region."""
    return "surecast://" + ",".join(node.listen for node in layout.of(region))


# ---------------------------------------------------------------- a network between the regions


def wire(one: str, other: str) -> str:
    """The name of the wire (the link in the relay) between two regions. Its `forward` direction
    leads to the region that is later in the alphabet."""
    return "-".join(sorted((one, other)))


def wan(one: str, other: str) -> Shape:
    """The delay between two of the regions that `surecast up` creates."""
    first, second = sorted((one, other))
    return Shape(delay_ns=DELAYS_MS[first, second] * MS)


def lead_through(
    relay: RelayProcess, layout: Layout, shape: Callable[[str, str], Shape] = wan, region: str = ""
) -> Layout:
    """Add a relay link from every region to every replica of the others; if `region` is given, only
    links that begin or end there. Returns the layout with the links' addresses."""
    through: dict[tuple[str, str], str] = {}
    for here in layout.regions():
        for node in layout.nodes:
            there = node.region
            if here == there or node.role != "replica" or region not in ("", here, there):
                continue
            line = shape(here, there)
            link = LinkSpec(
                f"{here}>{node.name}", parse_address(node.listen),
                wire=wire(here, there), forward=line, back=line, against=here > there,
            )  # fmt: skip
            through[here, node.name] = show_address(relay.add(link))
    return replace(layout, through=through)


def bytes_into(relay: RelayProcess, region: str, others: list[str]) -> int:
    """The bytes sent so far on the wires that lead to a region."""
    stats = relay.stats()
    lanes = [(stats[wire(region, other)], region > other) for other in others]
    return sum(line.forward.bytes if forward else line.back.bytes for line, forward in lanes)


def look(cluster: Cluster, name: str) -> dict[str, Any]:
    """A node's status (`/v1/status`); empty while it does not answer."""
    try:
        status_url = f"http://{cluster.nodes[name].http}/v1/status"
        status: dict[str, Any] = json.loads(http_get(status_url, patience_s=ANSWER_S))
        return status
    except OSError:
        return {}
