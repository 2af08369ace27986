"""Links: the neighbours of a broker, what they can reach, and which of them sends a stream.

A broker gets the streams of a region from the cell above it. All its links to that cell are one
bundle: of the brokers that can reach the region it chooses one by a hash of the stream, so that the
brokers of a cell choose the same one, and keeps it until it fails. If no broker above can be
reached, it uses a broker of its own cell that has a link up (*sideways*). It never uses one that
itself goes sideways, so there is no circle.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from surecast.core.types import LogId, Peer
from surecast.protocols.gryphon.config import GryphonConfig
from surecast.protocols.gryphon.messages import Reach

__all__ = ["Links"]


_NOTHING: Final = Reach("", "", (), ())


@dataclass(slots=True)
class Neighbour:
    up: bool = False  # there is a session
    heard_ns: int = -1 << 62  # when its last Reach came
    reach: Reach = _NOTHING
    knows: bool = False  # it was told which streams there are, in this session


class Links:
    def __init__(self, config: GryphonConfig) -> None:
        self.config = config
        self.peers: dict[Peer, Neighbour] = {}
        cell, above = config.cell, config.above.get(config.cell, "")
        self.mates = tuple(peer for peer in config.members(cell) if peer != config.name)
        self.parents: dict[str, tuple[Peer, ...]] = {  # region → the brokers above
            region: config.members(above) if above else replicas
            for region, replicas in config.regions.items()
            if region != config.region
        }
        # All brokers and replicas of the deployment: others are subscribers.
        groups = (*config.cells.values(), *config.regions.values())
        self.known = {peer for group in groups for peer in group}
        self.upward = tuple(dict.fromkeys(p for group in self.parents.values() for p in group))

    def heard(self, peer: Peer, reach: Reach, now_ns: int) -> None:
        neighbour = self.peers.setdefault(peer, Neighbour())
        neighbour.up, neighbour.heard_ns, neighbour.reach = True, now_ns, reach

    def went_up(self, peer: Peer) -> None:
        self.peers.setdefault(peer, Neighbour()).up = True

    def went_down(self, peer: Peer) -> None:
        if neighbour := self.peers.get(peer):
            neighbour.up, neighbour.knows, neighbour.heard_ns = False, False, -1 << 62
            if peer not in self.upward and peer not in self.mates:
                del self.peers[peer]

    def _reach(self, peer: Peer, now_ns: int) -> Reach | None:
        neighbour = self.peers.get(peer)
        if neighbour is None or not neighbour.up:
            return None
        if now_ns - neighbour.heard_ns > self.config.link_lost_ns:
            return None
        return neighbour.reach

    def own_reach(self, head: Peer, now_ns: int) -> Reach:
        direct = [self.config.region] if self.config.region else []
        sideways = []
        for region, parents in self.parents.items():
            if any(self._leads(parent, region, now_ns) for parent in parents):
                direct.append(region)
            elif any(self._is_direct(mate, region, now_ns) for mate in self.mates):
                sideways.append(region)
        return Reach(self.config.cell, head, tuple(direct), tuple(sideways))

    def _leads(self, peer: Peer, region: str, now_ns: int) -> bool:
        reach = self._reach(peer, now_ns)
        return reach is not None and (region in reach.direct or region in reach.sideways)

    def _is_direct(self, peer: Peer, region: str, now_ns: int) -> bool:
        reach = self._reach(peer, now_ns)
        return reach is not None and region in reach.direct

    def choose(self, stream: LogId, region: str, current: Peer, now_ns: int) -> Peer:
        """The broker that should send a stream of this region; "" if there is none. `current` is
        kept as long as no better kind of link exists."""
        parents = self.parents.get(region, ())
        for group in (
            [peer for peer in parents if self._is_direct(peer, region, now_ns)],
            [peer for peer in parents if self._leads(peer, region, now_ns)],
            [peer for peer in self.mates if self._is_direct(peer, region, now_ns)],
        ):
            if current in group:
                return current
            if group:
                return max(group, key=lambda peer: blake2b(stream + peer.encode()).digest())
        return ""
