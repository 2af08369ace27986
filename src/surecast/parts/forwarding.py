"""Forwards clients' publishes to streams of another region, and requests to create such streams, to
that region, and the answers back.

A client connects only to its own region. If it publishes to a stream that another region owns, its
server forwards the batch unchanged, with the client's publisher id, to the head of the owner. So
the owner recognises retries, whichever way they come. After a broken link the client retries; the
server keeps no requests, only which client sent the batches of each publisher. The messages are
those of the stream service, which passes them to this layer (`core.streams.Handed`). The *head* is
the replica of a region that accepts publishes.
"""

from typing import Any, Protocol

import msgspec

from surecast.core.streams import Refuse
from surecast.core.types import LogId, Peer

__all__ = ["Forwarding", "Regions"]

# Above this number the oldest entry of `clients` is dropped, until that client publishes again.
PUBLISHERS_MAX = 100_000


class Regions(Protocol):
    """What a layer must know of the regions, to forward requests."""

    def owner_of(self, stream: LogId) -> str:
        """The region that owns a stream; "" if the stream is not known."""

    def head_of(self, region: str) -> Peer:
        """The head of another region; "" if the region cannot be reached."""

    def region_of_server(self, peer: Peer) -> str:
        """The region of a server of another region; "" if it is none."""

    def moved(self, server: Peer, head: Peer) -> None:
        """A server that was taken for the head of another region says that `head` is the head."""

    def send(self, peer: Peer, message: Any) -> None: ...

    def command(self, command: Any) -> None:
        """Pass a command down to the stream service."""


class Forwarding:
    """The part of a layer (`regions`) that forwards requests and answers."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        # (stream, publisher) → the client to which answers are sent
        self.clients: dict[tuple[LogId, bytes], Peer] = {}

    # ------------------------------------------------------------ publishes

    def on_publish(self, client: Peer, message: Any) -> None:
        owner = self.regions.owner_of(message.stream)
        target = self.regions.head_of(owner) if owner else ""
        if not target:
            self.regions.command(Refuse(client, message, "owner-unreachable"))
            return
        key = (message.stream, message.batch.publisher)
        if self.clients.get(key) != client:
            self.clients[key] = client
            if len(self.clients) > PUBLISHERS_MAX:
                del self.clients[next(iter(self.clients))]
        self.regions.send(target, message)

    def _client_of(self, peer: Peer, message: Any) -> Peer:
        """The client that an owner's answer is for; "" if `peer` is not a server of the owner."""
        region = self.regions.region_of_server(peer)
        if not region or region != self.regions.owner_of(message.stream):
            return ""  # perhaps forged: a client would believe that its events are stored
        return self.clients.get((message.stream, message.publisher), "")

    def on_ack(self, peer: Peer, message: Any) -> None:
        if client := self._client_of(peer, message):
            self.regions.send(client, message)

    def on_nack(self, peer: Peer, message: Any) -> None:
        client, why = self._client_of(peer, message), message.why
        if not client:
            return
        if why == "not-head":  # the client cannot use the head of another region: it must retry
            self.regions.moved(peer, message.head)
            why = "busy"
        self.regions.send(client, msgspec.structs.replace(message, why=why, head=""))

    # ------------------------------------------------------------ new streams

    def create(self, owner: str, message: Any) -> str:
        """Forward a request to create a stream to its owner. Returns why that is not possible, or
        ""."""
        target = self.regions.head_of(owner)
        if not target:
            return "owner-unreachable"
        self.regions.send(target, message)
        return ""

    def take_refusal(self, peer: Peer, message: Any) -> bool:
        """Take the answer to a forwarded create request. Returns whether it is a final refusal, of
        which the peers that wait for the stream must be told. If the answer says that `peer` is no
        longer the head of its region, the new head is used from now on."""
        if not self.regions.region_of_server(peer):
            return False
        if message.why == "not-head":
            self.regions.moved(peer, message.head)
        return message.info is None and message.why not in ("not-head", "recovering")

    def peer_down(self, peer: Peer) -> None:
        gone = [key for key, client in self.clients.items() if client == peer]
        for key in gone:
            del self.clients[key]
