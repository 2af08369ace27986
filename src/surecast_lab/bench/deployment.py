"""The deployment of a benchmark: regions of real servers, with a relay if bytes are counted.

Every region owns the streams whose names begin with its name: `east.orders` belongs to east. The
witness of a region with several replicas is a separate process.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from surecast.runtime.addresses import Address
from surecast_lab.bench.roles import Server
from surecast_lab.testing.deployment import (
    addresses,
    bytes_into,
    free_layout,
    lead_through,
    url,
    wire,
)
from surecast_lab.testing.relay import RelayProcess, RelaySpec, Shape
from surecast_lab.testing.workers import Workers

__all__ = ["REGIONS", "Deployment"]

REGIONS = ("east", "north", "west")


class Deployment:
    """Servers, each a worker. `relayed`: a region whose links to others pass through a relay."""

    def __init__(
        self,
        workers: Workers,
        regions: Sequence[str] = REGIONS,
        replicas: int = 1,
        data: Path | None = None,
        relayed: str = "",
    ) -> None:
        self.workers = workers
        self.relayed = relayed
        self.others = [region for region in regions if region != relayed]
        self._closing = ExitStack()
        layout = free_layout(
            data or workers.folder,
            dict.fromkeys(regions, replicas),
            http=False,
            in_memory=data is None,
        )
        if relayed:
            self.relay = self._closing.enter_context(RelayProcess(RelaySpec(seed=1)))
            layout = lead_through(self.relay, layout, lambda *_: Shape(), relayed)
        self.layout = layout
        self.replicas: dict[str, dict[str, Address]] = {
            region: addresses(layout, region) for region in regions
        }
        for node in layout.nodes:
            workers.start(node.config.stem, Server, layout.document(node))
        workers.ready()

    def close(self) -> None:
        """End the relay; the servers are among the workers."""
        self._closing.close()

    @property
    def servers(self) -> list[str]:
        """Every replica of every region."""
        return [name for replicas in self.replicas.values() for name in replicas]

    def url(self, region: str) -> str:
        return url(self.layout, region)

    # ------------------------------------------------------------ observing

    def ends(self) -> dict[str, int]:
        """The end of each stream that is committed in all replicas of all regions."""
        return self._least(self.servers)

    def region_ends(self, region: str) -> dict[str, int]:
        return self._least(self.replicas[region])

    def _least(self, servers: Iterable[str]) -> dict[str, int]:
        looks = [look["ends"] for look in self.workers.ask_all(servers, "look").values()]
        names = dict.fromkeys(name for ends in looks for name in ends)
        return {name: min(ends.get(name, 1) for ends in looks) for name in names}

    # ------------------------------------------------------------ the links of the relayed region

    def cut(self) -> None:
        """Cut the relayed region off in both directions, and reset its connections."""
        for other in self.others:
            self.relay.cut(wire(self.relayed, other))
            self.relay.reset(wire(self.relayed, other))

    def mend(self) -> None:
        for other in self.others:
            self.relay.mend(wire(self.relayed, other))

    def bytes_to_relayed(self) -> int:
        """Bytes that the other regions have sent to the relayed region so far."""
        return bytes_into(self.relay, self.relayed, self.others)
