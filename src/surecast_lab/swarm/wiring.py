"""The addresses of a process cluster, and the links through the relay.

The relay (`testing/relay.py`) has *wires*: named channels that can be delayed or cut. Each pair of
regions has one wire (`east-west`), which the links in both directions use. A mesh client is reached
over a wire with its name. A publisher or a *thin* reader (one that gets all events from a server)
reaches its servers over a wire with its own name, so its connections can be cut separately.
"""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from surecast.runtime.addresses import Address
from surecast_lab.testing.deployment import addresses, free_layout, lead_through, wire
from surecast_lab.testing.ports import HOST, free_ports
from surecast_lab.testing.relay import LinkSpec, RelayProcess, Shape

__all__ = ["Wiring"]


class Wiring:
    """Addresses of a deployment; `sizes` has the number of replicas of each region."""

    def __init__(
        self,
        folder: Path,
        sizes: Mapping[str, int],
        relay: RelayProcess,
        wan: Shape,
        lan: Shape,
        settings: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self.relay, self.lan = relay, lan
        layout = free_layout(folder, sizes, http=False, settings=settings)
        self.layout = lead_through(relay, layout, lambda *_: wan)
        self.own_addresses = {
            name: address for region in sizes for name, address in addresses(layout, region).items()
        }
        self._region_of = {node.name: node.region for node in layout.nodes}

    def region_of(self, name: str) -> str:
        """The region of a replica, or of a node whose name begins with a region or replica and a
        slash."""
        first = name.partition("/")[0]
        return self._region_of.get(first, first)

    def has_separate_witness(self, region: str) -> bool:
        """Whether the region's witness is a separate process. In a region of one replica it is in
        the replica's process."""
        return bool(self.layout.of(region, "witness"))

    def wires(self) -> list[str]:
        """The wires between regions."""
        return [wire(*pair) for pair in combinations(sorted(self.layout.regions()), 2)]

    def free_address(self) -> Address:
        return HOST, free_ports(1)[0]

    def client_link(self, name: str, own: Address) -> Address:
        """Add a link to the mesh client `name`, which listens at `own`. Returns the address at
        which others reach it."""
        return self._link(name, name, own)

    def book_through(self, name: str, servers: tuple[str, ...]) -> dict[str, Address]:
        """The addresses at which `name` reaches these servers over its own wire."""
        return {
            server: self._link(f"{name}>{server}", name, self.own_addresses[server])
            for server in servers
        }

    def book(self, servers: tuple[str, ...]) -> dict[str, Address]:
        """The direct addresses of these servers."""
        return {server: self.own_addresses[server] for server in servers}

    def _link(self, name: str, wire: str, target: Address) -> Address:
        return self.relay.add(LinkSpec(name, target, wire=wire, forward=self.lan, back=self.lan))
