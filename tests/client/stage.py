"""Regions of real server nodes on loopback that client tests can kill and restart."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from surecast.client.connection import Client
from surecast.core.roles import Deployment
from surecast.core.types import MS
from surecast.core.wire import Codec
from surecast.endpoint.options import ClientOptions
from surecast.registry import configs, message_types, witness
from surecast.runtime import AddressBook, Node, RuntimeLimits
from surecast.runtime.hello import Hello
from surecast.stacks import region_replica
from surecast.storage.memory import MemoryDisk
from surecast.storage.store import MemoryStore
from tests.ports import free_ports

__all__ = ["Regions", "play", "until"]

HOST = "127.0.0.1"
# Failures are detected quickly to keep the tests short.
LIMITS = RuntimeLimits(
    connect_timeout_ns=300 * MS, session_timeout_ns=1_000 * MS, reconnect_ns=10 * MS
)


def play(scenario: Callable[[], Awaitable[None]], seconds: float = 60) -> None:
    """Run a scenario; fail if it does not end within `seconds`."""

    async def main() -> None:
        async with asyncio.timeout(seconds):
            await scenario()

    asyncio.run(main())


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait until `condition` is true; fail with the message `what` after 30 seconds."""
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit, what or "waited in vain"
        await asyncio.sleep(0.005)


class _Node(Node):
    lacks: frozenset[str] = frozenset()

    def hello(self, to: str, life: bytes, attempt: int) -> Hello:
        made = super().hello(to, life, attempt)
        return msgspec.structs.replace(
            made, speaks=tuple(name for name in made.speaks if name not in self.lacks)
        )


class Regions:
    """`Regions(east=2, west=1)`: replicas and a witness for each, in this event loop.

    A node that is killed and started again has its former disk.
    """

    def __init__(self, owners: dict[str, str] | None = None, token: str = "", **sizes: int) -> None:
        self.owners = owners or {}
        self.token = token
        self.names = {
            region: tuple(f"{region}-{n + 1}" for n in range(size))
            for region, size in sizes.items()
        }
        nodes = [name for names in self.names.values() for name in names]
        nodes += [f"{region}/witness" for region in sizes]
        self.ports = dict(zip(nodes, free_ports(len(nodes)), strict=True))
        self.disks = {name: MemoryDisk() for name in nodes}
        self.lives: Counter[str] = Counter()
        self.nodes: dict[str, Node] = {}
        self.links = AddressBook({name: (HOST, port) for name, port in self.ports.items()})

    async def __aenter__(self) -> "Regions":
        for name in self.ports:
            await self.start(name)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for name in list(self.nodes):
            await self.kill(name)

    # ------------------------------------------------------------ nodes

    async def start(self, name: str, lacks: Collection[str] = ()) -> None:
        """Start a node. `lacks`: what it does not list in HELLO, like one of an earlier version."""
        assert name not in self.nodes
        self.lives[name] += 1
        node = _Node(
            name,
            lambda ctx: self._machine(ctx, name),
            book=self.links,
            codec=Codec(message_types()),
            listen=(HOST, self.ports[name]),
            disk=MemoryStore(self.disks[name], incarnation=self.lives[name]),
            seed=f"{name}/{self.lives[name]}/{self.ports[name]}",
            limits=LIMITS,
            credential=self.token,
        )
        node.lacks = frozenset(lacks)
        await node.start()
        self.nodes[name] = node

    def _machine(self, ctx: Any, name: str) -> Any:
        region, _, _ = name.replace("/", "-").rpartition("-")
        if name.endswith("/witness"):
            return witness({region: self.names[region]}, ctx.disk, Counter())
        addresses = {peer: f"{HOST}:{self.ports[peer]}" for peer in self.names[region]}
        deployment = Deployment(
            region, name, self.names, f"{region}/witness", self.owners, addresses
        )
        made = configs(deployment, {"sprinkler": {"advertise_ns": 20 * MS}})
        return region_replica(made, ctx.disk, ctx.rng, Counter())

    async def kill(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.kill()
        await node.stop()

    async def restart(self, name: str) -> None:
        if name in self.nodes:
            await self.kill(name)
        await self.start(name)

    async def move(self, name: str) -> None:
        """Restart a node at another port."""
        if name in self.nodes:
            await self.kill(name)
        self.ports[name] = free_ports(1)[0]
        self.links.set(name, (HOST, self.ports[name]))
        await self.start(name)

    def layer(self, name: str, layer: str = "streams") -> Any:
        """A layer of a replica, for inspection."""
        machine: Any = self.nodes[name].machine
        return machine.layers[layer]

    def head(self, region: str) -> str | None:
        """The running replica that is head, or None."""
        for name in self.names[region]:
            if name in self.nodes and self.layer(name).is_head:
                return name
        return None

    # ------------------------------------------------------------ clients

    def url(self, region: str) -> str:
        addresses = ",".join(f"{HOST}:{self.ports[name]}" for name in self.names[region])
        return f"surecast://{addresses}"

    def client(self, region: str, mesh: bool = False, **options: Any) -> Client:
        return Client(
            self.url(region), token=self.token, mesh=mesh, options=ClientOptions(**options)
        )
