"""Plans a deployment on one machine: its processes, their ports, and a configuration file for each.

`surecast up`, `surecast demo`, benchmarks and tests use such plans. `surecast serve` reads the
files. To distribute the regions over several machines, copy the files and replace 127.0.0.1 by the
machines' addresses.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count, repeat
from pathlib import Path
from typing import Any

from surecast.errors import UsageError
from surecast.server.config import witness_name
from surecast.storage.modes import FOLDER, opener, set_mode

__all__ = ["Layout", "Planned", "lay_out", "node_count", "plan", "region_names"]

REGION_NAMES = ("east", "west", "north")
HTTP_OFFSET = 80  # a node's HTTP port is its data port + 80, or + the number of nodes if larger
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Planned:
    """One process of a plan."""

    name: str  # the node's name in messages
    region: str
    role: str  # "replica" or "witness"
    listen: str
    http: str  # "": it has no HTTP port
    config: Path  # the path of its configuration file

    @property
    def url(self) -> str:
        return f"surecast://{self.listen}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A plan: its processes, and the folder for their configuration, data and logs."""

    folder: Path
    nodes: list[Planned] = field(default_factory=list)
    in_memory: bool = False
    # (region, node of another region) → the address at which the region reaches the node. Pairs
    # are missing if there is no relay or NAT in between: then it is the address at which the node
    # listens.
    through: Mapping[tuple[str, str], str] = field(default_factory=dict)
    # Further sections of every node's configuration; keys of "node" are added to the node's own.
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def regions(self) -> list[str]:
        return list(dict.fromkeys(node.region for node in self.nodes))

    def of(self, region: str, role: str = "replica") -> list[Planned]:
        return [node for node in self.nodes if node.region == region and node.role == role]

    def log(self, node: Planned) -> Path:
        return self.folder / "logs" / f"{node.config.stem}.log"

    def data(self, node: Planned) -> Path:
        return self.folder / "data" / node.config.stem

    def write(self) -> None:
        """Write the configuration files; replaces existing ones."""
        for part in ("config", "logs"):
            self._make(part)
        self._check_shape()
        for node in self.nodes:
            with open(node.config, "w", opener=opener) as file:
                file.write(self.text(node))

    def _make(self, part: str) -> None:
        """Create a subfolder that only its owner may read: configuration files may have tokens,
        and logs have names of streams."""
        folder = self.folder / part
        folder.mkdir(FOLDER, parents=True, exist_ok=True)
        set_mode(folder, FOLDER)

    def _check_shape(self) -> None:
        """Raise UsageError if the folder has data of a deployment with other replicas.

        The file data/shape has the number of replicas of each region: "2 in east, 2 in west".
        """
        if self.in_memory:
            return
        shape = ", ".join(f"{len(self.of(region))} in {region}" for region in self.regions())
        kept = self.folder / "data" / "shape"
        if kept.exists() and (old := kept.read_text().strip()) != shape:
            raise UsageError(
                f"{self.folder} holds the data of other replicas ({old}; wanted now: {shape}). "
                f"Use another --dir, or remove {self.folder} if its data is not needed"
            )
        self._make("data")
        kept.write_text(shape + "\n")

    def owners(self) -> dict[str, str]:
        """The region that owns each prefix of stream names. Each region owns the streams that have
        its own name as prefix; the first region owns all others."""
        first, *rest = self.regions()
        return {"": first, **{region: region for region in rest}}

    def document(self, node: Planned) -> dict[str, Any]:
        """The configuration of one node, as a TOML document."""
        own = {"name": node.name} if node.role == "replica" else {}
        own |= {"role": node.role, "region": node.region, "listen": node.listen, "http": node.http}
        own["data_dir"] = "" if self.in_memory else str(self.data(node).absolute())
        return {
            **self.settings,
            "node": {**own, **self.settings.get("node", {})},
            "regions": {region: self._reached(node.region, region) for region in self.regions()},
            "owners": self.owners(),
        }

    def _reached(self, here: str, region: str) -> dict[str, Any]:
        """The section [regions.NAME] of a region in the configuration files of region `here`."""

        def address(node: Planned) -> str:
            return self.through.get((here, node.name), node.listen)

        replicas = self.of(region)
        section: dict[str, Any] = {"replicas": {node.name: address(node) for node in replicas}}
        if http := {node.name: node.http for node in replicas if node.http}:
            section["http"] = http
        for witness in self.of(region, "witness"):
            section["witness"] = address(witness)
        return section

    def text(self, node: Planned) -> str:
        """The text of one node's configuration file."""
        document = self.document(node)
        own, regions, owners = (document.pop(name) for name in ("node", "regions", "owners"))
        lines = [
            f"# {node.name}: run it with `surecast serve {node.config}`.",
            "# Every key, what it means and its default: docs/configuration.md\n",
            *_section("node", own),
            "# The deployment: the same in all files, except for addresses: they are those at",
            "# which this node reaches the others.",
        ]
        for region, reached in regions.items():
            lines += _section(f"regions.{region}", reached)
        lines.append("# The region that owns a stream: the longest prefix decides.")
        lines.append("[owners]")
        lines += [f"{_toml(prefix)} = {_toml(region)}" for prefix, region in owners.items()]
        for name, section in document.items():
            lines += ["", *_section(name, section)[:-1]]
        return "\n".join(lines) + "\n"


def _section(name: str, values: Mapping[str, Any]) -> list[str]:
    return [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(one)}' for key, one in value.items())} }}"
    # JSON and TOML have the same syntax for numbers, lists, booleans and strings.
    return json.dumps(value, ensure_ascii=False)


def region_names(regions: int) -> list[str]:
    return [REGION_NAMES[i] if i < len(REGION_NAMES) else f"r{i + 1}" for i in range(regions)]


def node_count(sizes: Mapping[str, int]) -> int:
    """The number of processes: replicas, and a witness for each region of several replicas."""
    return sum(size + (size > 1) for size in sizes.values())


def lay_out(
    folder: Path,
    sizes: Mapping[str, int],
    ports: Iterable[int],
    http_ports: Iterable[int] | None = None,
    in_memory: bool = False,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Layout:
    """A plan with these ports; `sizes` has the number of replicas of each region.

    Regions of several replicas have a witness each. Without `http_ports` no node has an HTTP port.
    """
    wanted = [  # (region, name, role) of each node
        (region, f"{region}-{i + 1}", "replica") for region, n in sizes.items() for i in range(n)
    ]
    wanted += [(region, witness_name(region), "witness") for region, n in sizes.items() if n > 1]
    http_addresses: Iterable[str] = (
        repeat("") if http_ports is None else (f"127.0.0.1:{port}" for port in http_ports)
    )
    nodes = [
        Planned(
            name=name,
            region=region,
            role=role,
            listen=f"127.0.0.1:{port}",
            http=http,
            config=folder / "config" / f"{name.replace('/', '-')}.toml",
        )
        # `ports` and `http_ports` may be longer than needed, even endless.
        for (region, name, role), port, http in zip(wanted, ports, http_addresses, strict=False)
    ]
    assert len(nodes) == len(wanted), "every node needs a port"
    return Layout(folder, nodes, in_memory, settings=settings or {})


def plan(
    folder: Path, regions: int, replicas: int, base_port: int, in_memory: bool = False
) -> Layout:
    """A plan of `regions` regions with `replicas` replicas each, on consecutive ports."""
    sizes = dict.fromkeys(region_names(regions), replicas)
    nodes = node_count(sizes)
    http_port = base_port + max(HTTP_OFFSET, nodes)
    if http_port + nodes - 1 > PORT_MAX:
        raise UsageError(f"not enough ports from {base_port} on: choose a lower --base-port")
    return lay_out(folder, sizes, count(base_port), count(http_port), in_memory)
