"""Who listens where, and who reaches whom through what: ports, relayed links, books, documents.

Regions reach each other over one wire a pair (`east-west`); links of the second region run against
it. What reaches a mesh client comes over a wire of its own name. A publisher or thin reader reaches
its servers over a wire of its own name, so that its connections can be cut without anybody else's.
"""

import random
import socket
from pathlib import Path
from typing import Any

from surecast.errors import SurecastError
from surecast.runtime.book import Address, show_address
from surecast.runtime.relay import LinkSpec, RelayProcess, Shape
from surecast.server.config import witness_name

__all__ = ["HOST", "Wiring"]

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)  # below those the system hands out by itself

Document = dict[str, Any]


class Wiring:
    """Addresses of a deployment; `regions` has each region's replicas, head first."""

    def __init__(
        self, regions: dict[str, tuple[str, ...]], relay: RelayProcess, wan: Shape, lan: Shape
    ) -> None:
        self.regions, self.relay = regions, relay
        self.wan, self.lan = wan, lan
        self._region_of = {name: region for region, names in regions.items() for name in names}
        # Not from a seed: fleets side by side must not try the same ports in the same order.
        self._ports = iter(random.sample(PORTS, len(PORTS)))
        self.homes: dict[str, Address] = {}  # where servers listen
        for region, names in regions.items():
            for name in (*names, witness_name(region)):
                self.homes[name] = self.free_address()
        for region in regions:
            self._link_region(region)

    def region_of(self, name: str) -> str:
        """Of a replica, or of whoever is called `region/...` or `replica/...`."""
        first = name.partition("/")[0]
        return self._region_of.get(first, first)

    def has_witness(self, region: str) -> bool:
        """As a process of its own; the only replica of a region has it inside."""
        return len(self.regions[region]) > 1

    def free_address(self) -> Address:
        for port in self._ports:
            with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
                try:
                    tcp.bind((HOST, port))
                    udp.bind((HOST, port))
                except OSError:
                    continue
                return HOST, port
        raise SurecastError(f"no port in {PORTS} is free for both TCP and UDP")

    # ------------------------------------------------------------ links

    def _link_region(self, region: str) -> None:
        for other, names in self.regions.items():
            if other != region:
                wire, against = f"{min(region, other)}-{max(region, other)}", region > other
                for name in names:
                    link = LinkSpec(
                        f"{region}>{name}", self.homes[name],
                        wire=wire, forward=self.wan, back=self.wan, against=against,
                    )  # fmt: skip
                    self.relay.add(link)

    def wires(self) -> list[str]:
        """Between regions."""
        names = sorted(self.regions)
        return [f"{a}-{b}" for i, a in enumerate(names) for b in names[i + 1 :]]

    def client_link(self, name: str, home: Address) -> Address:
        """Where others reach the mesh client `name`."""
        return self.relay.add(LinkSpec(name, home, wire=name, forward=self.lan, back=self.lan))

    def book_through(self, name: str, servers: tuple[str, ...]) -> dict[str, Address]:
        """How `name` reaches these servers: over its own wire."""
        found = {}
        for server in servers:
            link = LinkSpec(
                f"{name}>{server}", self.homes[server],
                wire=name, forward=self.lan, back=self.lan,
            )  # fmt: skip
            found[server] = self.relay.add(link)
        return found

    def book(self, servers: tuple[str, ...]) -> dict[str, Address]:
        """The same without a relay."""
        return {server: self.homes[server] for server in servers}

    # ------------------------------------------------------------ documents

    def document(
        self, name: str, role: str, folder: Path, record: bool, shared: Document
    ) -> Document:
        """The configuration of a server, as in its TOML file; `shared` has the sections that are
        the same everywhere."""
        region = self.region_of(name)
        node = {
            "region": region,
            "role": role,
            "listen": show_address(self.homes[name]),
            "http": "",
            "data_dir": str(folder / name.replace("/", ".")),
            "record": str(folder) if record else "",
        }
        if role == "replica":
            node["name"] = name
        regions = {other: self._reached(region, other) for other in self.regions}
        return {**shared, "node": node, "regions": regions}

    def _reached(self, region: str, other: str) -> Document:
        """A region as another reaches it."""
        there = {
            name: self.homes[name] if other == region else self.relay.addresses[f"{region}>{name}"]
            for name in self.regions[other]
        }
        found: Document = {"replicas": {n: show_address(a) for n, a in there.items()}}
        if self.has_witness(other):
            found["witness"] = show_address(self.homes[witness_name(other)])
        return found
