"""Forwards clients' publishes to streams of another region, and requests to create such streams, to
that region, and the answers back.

A client connects only to its own region. If it publishes to a stream that another region owns, its
server forwards the batch unchanged, with the client's publisher id, to the head of the owner. So
the owner recognises retries, whichever way they come. After a broken link the client retries; the
server keeps no requests, only which client sent the batches of each publisher. The messages are
those of the stream service, which passes them to this layer (`core.streams.Handed`). The *head* is
the replica of a region that accepts publishes.
"""

from typing import Any

import msgspec

from surecast.core.streams import Refuse
from surecast.core.types import LogId, Peer
from surecast.protocols.sprinkler.sources import Regions

__all__ = ["Forwarding"]

# Above this number the oldest entry of `clients` is dropped, until that client publishes again.
PUBLISHERS_MAX = 100_000


class Forwarding:
    """The part of `RegionSync` (`regions`) that forwards requests and answers."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        # (stream, publisher) → the client to which answers are sent
        self.clients: dict[tuple[LogId, bytes], Peer] = {}

    def _target(self, region: str) -> Peer:
        """The head of a region, or "" if the region cannot be reached."""
        peer = self.regions.peers.get(region)
        return peer.head if peer is not None and self.regions.is_live(peer) else ""

    # ------------------------------------------------------------ publishes

    def on_publish(self, client: Peer, message: Any) -> None:
        copy = self.regions.streams.get(message.stream)
        target = self._target(copy.info.owner) if copy is not None else ""
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
        copy = self.regions.streams.get(message.stream)
        if copy is None or self.regions.region_of.get(peer) != copy.info.owner:
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
            self._moved(peer, message.head)
            why = "busy"
        self.regions.send(client, msgspec.structs.replace(message, why=why, head=""))

    def _moved(self, peer: Peer, head: Peer) -> None:
        """From now on use `head` as the head of the region, instead of `peer`."""
        for region in self.regions.peers.values():
            if region.head == peer and head in self.regions.config.regions[region.name]:
                region.head = head

    # ------------------------------------------------------------ new streams

    def create(self, owner: str, message: Any) -> str:
        """Forward a request to create a stream to its owner. Returns why that is not possible, or
        ""."""
        target = self._target(owner)
        if not target:
            return "owner-unreachable"
        self.regions.send(target, message)
        return ""

    def take_refusal(self, peer: Peer, message: Any) -> bool:
        """Take the answer to a forwarded create request. Returns whether it is a final refusal, of
        which the peers that wait for the stream must be told. If the answer says that `peer` is no
        longer the head of its region, the new head is used from now on."""
        if peer not in self.regions.region_of:
            return False
        if message.why == "not-head":
            self._moved(peer, message.head)
        return message.info is None and message.why not in ("not-head", "recovering")

    def peer_down(self, peer: Peer) -> None:
        gone = [key for key, client in self.clients.items() if client == peer]
        for key in gone:
            del self.clients[key]
