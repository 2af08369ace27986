"""What clients here want of streams that another region owns: passed on to its head, and back.

A replica passes a client's publishes on as they are, with the client's identity, so the owner
recognises retries whatever way they come. What is under way when a link breaks is retried by the
client; nothing is kept here but who asked. The messages are those of the stream service, which
hands them over (`core.streams.Handed`).
"""

from typing import Any

import msgspec

from surecast.core.streams import Refuse
from surecast.core.types import LogId, Peer
from surecast.protocols.sprinkler.sources import Regions

__all__ = ["Forwarding"]

PUBLISHERS_MAX = 100_000  # remembered; beyond, the oldest must be heard from again


class Forwarding:
    """`regions` is the machine that this is a part of."""

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self.clients: dict[tuple[LogId, bytes], Peer] = {}  # (stream, publisher) → who publishes

    def _target(self, region: str) -> Peer:
        """The head of a region that is heard from; "" if there is none."""
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
        """Whom the owner's answer is for; "" if `peer` does not speak for the owner."""
        copy = self.regions.streams.get(message.stream)
        if copy is None or self.regions.region_of.get(peer) != copy.info.owner:
            return ""  # a client that makes up acknowledgements would make others lose events
        return self.clients.get((message.stream, message.publisher), "")

    def on_ack(self, peer: Peer, message: Any) -> None:
        if client := self._client_of(peer, message):
            self.regions.send(client, message)

    def on_nack(self, peer: Peer, message: Any) -> None:
        client, why = self._client_of(peer, message), message.why
        if not client:
            return
        if why == "not-head":  # of its region, not of ours: the client cannot go there
            self._moved(peer, message.head)
            why = "busy"
        self.regions.send(client, msgspec.structs.replace(message, why=why, head=""))

    def _moved(self, peer: Peer, head: Peer) -> None:
        for region in self.regions.peers.values():
            if region.head == peer and head in self.regions.config.regions[region.name]:
                region.head = head

    # ------------------------------------------------------------ new streams

    def create(self, owner: str, message: Any) -> str:
        """Ask the owner for a stream; why that cannot be done, if so."""
        target = self._target(owner)
        if not target:
            return "owner-unreachable"
        self.regions.send(target, message)
        return ""

    def is_final(self, peer: Peer, message: Any) -> bool:
        """Whether the owner's answer is the last word for those who asked."""
        if peer not in self.regions.region_of:
            return False
        if message.why == "not-head":
            self._moved(peer, message.head)
        return message.info is None and message.why not in ("not-head", "recovering")

    def peer_down(self, peer: Peer) -> None:
        gone = [key for key, client in self.clients.items() if client == peer]
        for key in gone:
            del self.clients[key]
