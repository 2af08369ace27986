"""A deployment on one machine, planned: its processes, their ports, and a file for each.

The files are what `surecast serve` reads. To spread the regions over machines, copy them and put
the machines' addresses in place of 127.0.0.1.
"""

from dataclasses import dataclass, field
from pathlib import Path

from surecast.errors import UsageError
from surecast.server.config import witness_name
from surecast.storage.modes import FOLDER, opener, set_mode

__all__ = ["Layout", "Planned", "plan"]

REGION_NAMES = ("east", "west", "north")
HTTP_OFFSET = 80  # between a node's data port and its HTTP port, or more if there are more nodes
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Planned:
    """One process."""

    name: str  # as on the wire
    region: str
    role: str
    listen: str
    http: str
    config: Path

    @property
    def url(self) -> str:
        return f"surecast://{self.listen}"


@dataclass(frozen=True, slots=True)
class Layout:
    folder: Path
    nodes: list[Planned] = field(default_factory=list)
    in_memory: bool = False

    def regions(self) -> list[str]:
        return list(dict.fromkeys(node.region for node in self.nodes))

    def of(self, region: str, role: str = "replica") -> list[Planned]:
        return [node for node in self.nodes if node.region == region and node.role == role]

    def log(self, node: Planned) -> Path:
        return self.folder / "logs" / f"{node.config.stem}.log"

    def data(self, node: Planned) -> Path:
        return self.folder / "data" / node.config.stem

    def write(self) -> None:
        """The configuration files; whatever was there under these names is replaced."""
        for part in ("config", "logs"):
            self._make(part)
        self._check_shape()
        for node in self.nodes:
            with open(node.config, "w", opener=opener) as file:
                file.write(self.text(node))

    def _make(self, part: str) -> None:
        """Only its owner may read it: files may be given a token, and logs name streams."""
        folder = self.folder / part
        folder.mkdir(FOLDER, parents=True, exist_ok=True)
        set_mode(folder, FOLDER)

    def _check_shape(self) -> None:
        """Data of a deployment of another shape would not make sense in this one."""
        if self.in_memory:
            return
        shape = ", ".join(f"{len(self.of(region))} in {region}" for region in self.regions())
        kept = self.folder / "data" / "shape"
        if kept.exists() and (old := kept.read_text().strip()) != shape:
            raise UsageError(
                f"{self.folder} holds the data of other replicas ({old}; wanted now: {shape}). "
                f"Use another --dir, or remove {self.folder} if its data is of no use"
            )
        self._make("data")
        kept.write_text(shape + "\n")

    def text(self, node: Planned) -> str:
        """The file of one node."""
        name = f'name = "{node.name}"\n' if node.role == "replica" else ""
        data = "" if self.in_memory else str(self.data(node).absolute())
        lines = [
            f"# {node.name}: run it with `surecast serve {node.config}`.",
            "# Every key, what it means and its default: docs/configuration.md\n",
            f'[node]\n{name}role = "{node.role}"\nregion = "{node.region}"',
            f'listen = "{node.listen}"\nhttp = "{node.http}"',
            f'data_dir = "{data}"' + ('  # "": nothing is kept on disk' if not data else ""),
            "",
            "# The deployment: the same everywhere, but for addresses, which are as this node",
            "# reaches the others.",
        ]
        for region in self.regions():
            replicas = ", ".join(f'"{one.name}" = "{one.listen}"' for one in self.of(region))
            http = ", ".join(f'"{one.name}" = "{one.http}"' for one in self.of(region))
            lines += [f"[regions.{region}]", f"replicas = {{ {replicas} }}", f"http = {{ {http} }}"]
            lines += [f'witness = "{one.listen}"' for one in self.of(region, "witness")]
            lines.append("")
        lines += [
            "# Which region numbers the events of a stream: the longest prefix decides.",
            "[owners]",
        ]
        first, *rest = self.regions()
        lines += [f'"" = "{first}"', *(f'"{region}" = "{region}"' for region in rest)]
        return "\n".join(lines) + "\n"


def plan(
    folder: Path, regions: int, replicas: int, base_port: int, in_memory: bool = False
) -> Layout:
    """`regions` of `replicas` each, and a witness each where there is more than one replica."""
    names = [REGION_NAMES[i] if i < len(REGION_NAMES) else f"r{i + 1}" for i in range(regions)]
    wanted = [(region, f"{region}-{i + 1}") for region in names for i in range(replicas)]
    if replicas > 1:
        wanted += [(region, witness_name(region)) for region in names]
    http_port = base_port + max(HTTP_OFFSET, len(wanted))
    if http_port + len(wanted) > PORT_MAX:
        raise UsageError(f"ports from {base_port} on do not suffice: choose a lower --base-port")
    nodes = []
    for i, (region, name) in enumerate(wanted):
        witness = name == witness_name(region)
        nodes.append(
            Planned(
                name=name,
                region=region,
                role="witness" if witness else "replica",
                listen=f"127.0.0.1:{base_port + i}",
                http=f"127.0.0.1:{http_port + i}",
                config=folder / "config" / f"{name.replace('/', '-')}.toml",
            )
        )
    return Layout(folder, nodes, in_memory)
