"""One process of a region: a replica, a witness, or both where the region has one replica only."""

import asyncio
import logging
import time
from typing import TypeVar

from surecast.core.endpoint import Drain
from surecast.core.types import Command
from surecast.protocols.chain.replica import Replica
from surecast.protocols.sprinkler.region_sync import RegionSync
from surecast.protocols.streams.service import StreamService
from surecast.runtime.node import Node
from surecast.server.config import ServerConfig
from surecast.server.nodes import replica_node, started, witness_node

__all__ = ["RegionServer"]

log = logging.getLogger("surecast.server")

L = TypeVar("L")

DRAIN_LOOK_S = 0.01  # how often a drain looks whether all has been answered


class RegionServer:
    """The nodes of one process, from start to stop. For the thread of the event loop."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.replica: Node | None = None
        self.witness: Node | None = None
        self.draining = False
        self.started_ns = time.time_ns()

    async def start(self) -> None:
        if not self.config.is_witness:
            from surecast.columns import kernels

            kernels.warm()  # a kernel that is compiled in the loop would stall everybody
        try:
            if self.config.is_witness or self.config.has_witness_inside:
                self.witness = await started(witness_node(self.config))
            if not self.config.is_witness:
                self.replica = await started(replica_node(self.config, self.witness))
        except BaseException:
            await self.stop()
            raise

    async def drain(self) -> None:
        """Take no more publishes, let those that were taken be answered, then stop.

        Whoever is not answered by then asks the next replica, which knows a retry when it sees one.
        """
        self.draining = True
        if self.replica is not None and self.replica.running:
            self.replica.give(Command("streams", Drain()))
        deadline_ns = time.monotonic_ns() + self.config.runtime.drain_timeout_ns
        while self.unanswered() and time.monotonic_ns() < deadline_ns:
            await asyncio.sleep(DRAIN_LOOK_S)
        await self.stop()

    async def stop(self) -> None:
        """Let what was sent go out, write what is queued, close."""
        self.draining = True
        for node in (self.replica, self.witness):
            if node is not None:
                await node.stop()

    def unanswered(self) -> int:
        """Publishes taken in and not acknowledged yet."""
        if self.replica is None or not self.replica.running:
            return 0
        return sum(len(state.waiting) for state in self.chain.logs.values())

    @property
    def nodes(self) -> list[Node]:
        return [node for node in (self.replica, self.witness) if node is not None]

    @property
    def chain(self) -> Replica:
        """Layers of the replica: to be looked at, never changed."""
        return self._layer("chain", Replica)

    @property
    def streams(self) -> StreamService:
        return self._layer("streams", StreamService)

    @property
    def regions(self) -> RegionSync:
        return self._layer("sprinkler", RegionSync)

    def _layer(self, name: str, kind: type[L]) -> L:
        assert self.replica is not None
        layer = self.replica.machine.layers[name]  # type: ignore[attr-defined]
        assert isinstance(layer, kind)
        return layer
