"""One process of a region: a replica, a witness, or both where the region has one replica only."""

import asyncio
import logging
import time
from typing import Any

from surecast.core.endpoint import Drain
from surecast.core.roles import Layers, Role
from surecast.core.status import ChainStatus
from surecast.core.streams import Streams
from surecast.core.types import Command, Input
from surecast.registry import roles
from surecast.runtime.node import Node
from surecast.server.config import ServerConfig
from surecast.server.nodes import replica_node, started, witness_node

__all__ = ["RegionServer"]

log = logging.getLogger("surecast.server")

DRAIN_LOOK_S = 0.01  # how often a drain looks whether all has been answered


class RegionServer:
    """The nodes of one process, from start to stop. For the thread of the event loop."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.roles: list[Role] = list(roles().values())  # of the replica; they observe its layers
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

        Clients without an answer by then retry at the next replica, which recognises retries.
        """
        self.draining = True
        if self.replica is not None and self.replica.running:
            self.give(Drain())
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
        return self.chain().unanswered

    @property
    def nodes(self) -> list[Node]:
        return [node for node in (self.replica, self.witness) if node is not None]

    # ------------------------------------------------------------ the replica

    @property
    def layers(self) -> Layers:
        """To be looked at, never changed."""
        assert self.replica is not None
        machine: Any = self.replica.machine
        layers: Layers = machine.layers
        return layers

    @property
    def streams(self) -> Streams:
        """The layer that is the stream service."""
        layers = self.layers.values()
        found: Streams = next(layer for layer in layers if "streams" in layer.provides)
        return found

    def chain(self) -> ChainStatus:
        """What the replica knows of its chain."""
        said = (role.observer.status(self.layers) for role in self.roles)
        found: ChainStatus = next(one["chain"] for one in said if "chain" in one)
        return found

    def give(self, command: Input) -> None:
        """Give a command to the layer of the replica that takes it."""
        assert self.replica is not None
        name = next(n for n, layer in self.layers.items() if type(command) in layer.inputs)
        self.replica.give(Command(name, command))
