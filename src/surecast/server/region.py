"""The nodes of one server process: a replica, a witness, or both in a region of one replica.

`process.py` (`surecast serve`) and `local.py` (`surecast.local()`) start and stop them through
`RegionServer`. The HTTP port reads their state through it.
"""

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

DRAIN_LOOK_S = 0.01  # how often a drain checks whether all publishes are answered


class RegionServer:
    """The nodes of one process, from start to stop. Must be used in the event loop's thread."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        # The roles of the replica (`core.roles`); their observers read the state of its layers.
        self.roles: list[Role] = list(roles().values())
        self.replica: Node | None = None  # None: this process has none, or it has not started
        self.witness: Node | None = None
        self.draining = False
        self.started_ns = time.time_ns()  # of this process, by the wall clock

    async def start(self) -> None:
        if not self.config.is_witness:
            from surecast.columns import kernels

            kernels.warm()  # a kernel that is compiled later would block the event loop for seconds
        try:
            if self.config.is_witness or self.config.has_witness_inside:
                self.witness = await started(witness_node(self.config))
            if not self.config.is_witness:
                self.replica = await started(replica_node(self.config, self.witness))
        except BaseException:
            await self.stop()
            raise

    async def drain(self) -> None:
        """Refuse new publishes, wait until accepted ones are answered, then stop.

        The wait has a limit. Clients that got no answer retry at the next replica. It recognises
        events that are already in the log, so none is published twice.
        """
        self.draining = True
        if self.replica is not None and self.replica.running:
            self.give(Drain())
        deadline_ns = time.monotonic_ns() + self.config.runtime.drain_timeout_ns
        while self.unanswered() and time.monotonic_ns() < deadline_ns:
            await asyncio.sleep(DRAIN_LOOK_S)
        await self.stop()

    async def stop(self) -> None:
        """Write queued messages and data, then close the nodes."""
        self.draining = True
        for node in (self.replica, self.witness):
            if node is not None:
                await node.stop()

    def unanswered(self) -> int:
        """The number of publishes accepted and not acknowledged yet."""
        if self.replica is None or not self.replica.running:
            return 0
        return self.chain().unanswered

    @property
    def nodes(self) -> list[Node]:
        return [node for node in (self.replica, self.witness) if node is not None]

    # ------------------------------------------------------------ the replica

    @property
    def layers(self) -> Layers:
        """The replica's layers by name. Callers may only read them."""
        assert self.replica is not None
        machine: Any = self.replica.machine
        layers: Layers = machine.layers
        return layers

    @property
    def streams(self) -> Streams:
        """The replica's stream service."""
        layers = self.layers.values()
        service: Streams = next(layer for layer in layers if "streams" in layer.provides)
        return service

    def chain(self) -> ChainStatus:
        """The status of the chain as this replica knows it."""
        statuses = (role.observer.status(self.layers) for role in self.roles)
        chain: ChainStatus = next(status["chain"] for status in statuses if "chain" in status)
        return chain

    def give(self, command: Input) -> None:
        """Give a command to the replica's layer that handles it."""
        assert self.replica is not None
        name = next(n for n, layer in self.layers.items() if type(command) in layer.inputs)
        self.replica.give(Command(name, command))
