"""RegionLink: the addresses of a region's servers, and the nodes through which a client uses them.

A node runs one state machine over sockets. A client has one for control, and one for each reader.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable
from typing import Any

from surecast.columns.batch import Batch
from surecast.core.machine import Factory
from surecast.core.types import LogId
from surecast.core.wire import Codec
from surecast.endpoint.discovery import Region, discover
from surecast.endpoint.options import ClientOptions
from surecast.registry import message_types
from surecast.runtime.addresses import Address, AddressBook
from surecast.runtime.node import Node
from surecast.runtime.session import UP

__all__ = ["RegionLink"]


class RegionLink:
    """Creates the nodes of one client, which share its addresses, token and options. `broken` is
    called with the exception when the state machine of a node has raised one."""

    region: Region

    def __init__(
        self,
        addresses: list[Address],
        token: str,
        options: ClientOptions,
        broken: Callable[[BaseException], None],
    ) -> None:
        self.addresses = addresses  # the addresses in the url
        self._token = token
        self._options = options
        self._broken = broken
        self._codec = Codec(message_types())
        self._book = AddressBook()  # the servers' addresses, for all nodes
        self.nodes: weakref.WeakSet[Node] = weakref.WeakSet()  # the nodes that are still in use

    async def discover(self) -> Region:
        """Request the names and addresses of the region's servers; all nodes of this link use the
        result."""
        self.region = await discover(
            self.addresses,
            self._codec,
            token=self._token,
            timeout_ns=self._options.connect_timeout_ns,
        )
        for name, address in self.region.replicas.items():
            self._book.set(name, address)
        return self.region

    def node(
        self,
        name: str,
        role: str,
        factory: Factory,
        *,
        listen: Address | None = None,
        on_deliver: Callable[[LogId, tuple[Batch, ...]], None] | None = None,
        on_emit: Callable[[Any], None] | None = None,
    ) -> Node:
        """A new node that connects to the region's servers. The caller has to start it.

        `role` describes the node to people, in its Hello (the first message of a connection);
        `factory` creates its state machine; `listen` is the address at which it accepts connections
        (None: it does not). For `on_deliver` and `on_emit` see Node.
        """
        node = _Watched(
            self._broken,
            name,
            factory,
            book=self._book,
            codec=self._codec,
            listen=listen,
            seed=secrets.token_hex(16),
            region=self.region.name,
            role=role,
            credential=self._token,
            insecure=self._options.insecure,
            on_deliver=on_deliver,
            on_emit=on_emit,
        )
        self.nodes.add(node)
        return node

    def is_connected(self) -> bool:
        """Whether any node has a session with a server. Sessions with other clients of a mesh are
        not counted."""
        running = [node for node in self.nodes if node.running]
        return any(
            session.state == UP and peer in self.region.replicas
            for node in running
            for peer, session in node.sessions.by_peer.items()
        )


class _Watched(Node):
    """A node that calls `broken` when its state machine has raised an exception."""

    def __init__(
        self, broken: Callable[[BaseException], None], name: str, factory: Factory, **rest: Any
    ) -> None:
        super().__init__(name, factory, **rest)
        self._broken = broken

    def fail(self, problem: Exception) -> None:
        super().fail(problem)
        self._broken(problem)
