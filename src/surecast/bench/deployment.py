"""Regions of real servers on this machine, with a relay between them where bytes are counted.

Every region owns the streams whose names begin with its own: `east.orders` belongs to east. A
region of several replicas has its witness as a process of its own, as it should.
"""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from surecast.bench.crew import Crew
from surecast.errors import SurecastError
from surecast.runtime.book import Address
from surecast.runtime.relay import LinkSpec, RelayProcess, RelaySpec

__all__ = ["REGIONS", "Deployment", "free_ports"]

REGIONS = ("east", "north", "west")
HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)  # below those the system hands out by itself
START_S = 60.0


class Deployment:
    """Servers, as workers of `crew`. `relayed`: a region reached, and reaching others, by relay."""

    def __init__(
        self,
        crew: Crew,
        regions: Sequence[str] = REGIONS,
        replicas: int = 1,
        data: Path | None = None,
        relayed: str = "",
    ) -> None:
        self.crew = crew
        self.data = data
        self.replicas: dict[str, dict[str, Address]] = {}
        self.witnesses: dict[str, Address] = {}
        ports = iter(free_ports(len(regions) * (replicas + 1)))
        for region in regions:
            names = [f"{region}-{number}" for number in range(1, replicas + 1)]
            self.replicas[region] = {name: (HOST, next(ports)) for name in names}
            if replicas > 1:
                self.witnesses[region] = (HOST, next(ports))
        self._closing = ExitStack()
        self.relayed = relayed
        self.relay = self._start_relay() if relayed else None
        self._start()

    def close(self) -> None:
        """The servers end with their crew."""
        self._closing.close()

    @property
    def servers(self) -> list[str]:
        """Every replica of every region."""
        return [name for replicas in self.replicas.values() for name in replicas]

    def url(self, region: str) -> str:
        return "surecast://" + ",".join(map(_show, self.replicas[region].values()))

    # ------------------------------------------------------------ looking

    def ends(self) -> dict[str, int]:
        """How far each stream is present, committed, in all replicas of all regions."""
        return self._least(self.servers)

    def region_ends(self, region: str) -> dict[str, int]:
        return self._least(self.replicas[region])

    def _least(self, servers: Any) -> dict[str, int]:
        looks = [look["ends"] for look in self.crew.ask_all(servers, "look").values()]
        names = dict.fromkeys(name for ends in looks for name in ends)
        return {name: min(ends.get(name, 1) for ends in looks) for name in names}

    # ------------------------------------------------------------ the link of the relayed region

    def cut(self) -> None:
        """Nothing passes to or from the relayed region, and its connections are gone."""
        assert self.relay is not None
        for link in self.relay.addresses:
            self.relay.cut(link)
            self.relay.reset(link)

    def mend(self) -> None:
        assert self.relay is not None
        for link in self.relay.addresses:
            self.relay.mend(link)

    def bytes_to_relayed(self) -> int:
        """TCP bytes that others have sent it so far, by whomever the connection was opened."""
        assert self.relay is not None
        return sum(
            stats.forward.bytes if link.endswith(f">{self.relayed}") else stats.back.bytes
            for link, stats in self.relay.stats().items()
        )

    # ------------------------------------------------------------ inside

    def _start_relay(self) -> RelayProcess:
        """A link each way with every other region; `a>b` is how a reaches b."""
        relay = self._closing.enter_context(RelayProcess(RelaySpec(seed=1)))
        for other in self.replicas:
            for a, b in ((other, self.relayed), (self.relayed, other)):
                if other != self.relayed:
                    (target,) = self.replicas[b].values()
                    relay.add(LinkSpec(f"{a}>{b}", target))
        return relay

    def _start(self) -> None:
        for region, replicas in self.replicas.items():
            if region in self.witnesses:
                self.crew.start(f"{region}-witness", "server", self._document(region, ""))
            for name in replicas:
                self.crew.start(name, "server", self._document(region, name))
        self.crew.ready()

    def _document(self, region: str, name: str) -> dict[str, Any]:
        """The configuration of a replica, or (no name) of the region's witness."""
        listen = self.replicas[region][name] if name else self.witnesses[region]
        data = "" if self.data is None else str(self.data / (name or f"{region}-witness"))
        regions = {}
        for other, replicas in self.replicas.items():
            places = {
                replica: _show(self._reached(region, other, address))
                for replica, address in replicas.items()
            }
            witness = self.witnesses.get(other)
            regions[other] = {"replicas": places} | (
                {"witness": _show(witness)} if witness is not None else {}
            )
        return {
            "node": {
                "name": name,
                "region": region,
                "role": "replica" if name else "witness",
                "data_dir": data,
                "listen": _show(listen),
                "http": "",
            },
            "regions": regions,
            "owners": {"": next(iter(self.replicas)), **{r: r for r in self.replicas}},
        }

    def _reached(self, here: str, there: str, address: Address) -> Address:
        if self.relay is None or here == there:
            return address
        return self.relay.addresses.get(f"{here}>{there}", address)


def _show(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def free_ports(count: int) -> list[int]:
    """So many ports of this machine that nobody listens on, TCP and UDP."""
    found: list[int] = []
    for port in Random().sample(PORTS, len(PORTS)):
        if len(found) == count:
            return found
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind((HOST, port))
                udp.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
    raise SurecastError(f"there are no {count} free ports between {PORTS.start} and {PORTS.stop}")
