"""What clients here want of streams that another region owns: passed on to its head, and back.

A replica passes a client's publishes on as they are, with the client's identity, so the owner
recognises retries whatever way they come. What is under way when a link breaks is retried by the
client; nothing is kept here but who asked.
"""

from typing import TYPE_CHECKING

from surecast.core.types import LogId, Peer
from surecast.protocols.sprinkler.messages import (
    CreateStream,
    PubAck,
    Publish,
    PubNack,
    StreamOpened,
)

if TYPE_CHECKING:
    from surecast.protocols.sprinkler.exchange import Exchange

__all__ = ["Forwarding"]

PUBLISHERS_MAX = 100_000  # remembered; beyond, the oldest must be heard from again


class Forwarding:
    """`proxy` is the machine that this is a part of."""

    def __init__(self, proxy: "Exchange") -> None:
        self.proxy = proxy
        self.clients: dict[tuple[LogId, bytes], Peer] = {}  # (stream, publisher) → who publishes
        config = proxy.config
        self.region_of = {
            node: region
            for region, nodes in config.regions.items()
            if region != config.region
            for node in nodes
        }

    def _target(self, region: str) -> Peer:
        """The head of a region that is heard from; "" if there is none."""
        peer = self.proxy.peers.get(region)
        return peer.head if peer is not None and self.proxy.is_live(peer) else ""

    # ------------------------------------------------------------ publishes

    def publish(self, client: Peer, owner: str, message: Publish) -> None:
        batch = message.batch
        target = self._target(owner)
        if not target:
            nack = PubNack(message.stream, batch.publisher, batch.pub_no, "owner-unreachable")
            self.proxy.send(client, nack)
            return
        key = (message.stream, batch.publisher)
        if self.clients.get(key) != client:
            self.clients[key] = client
            if len(self.clients) > PUBLISHERS_MAX:
                del self.clients[next(iter(self.clients))]
        self.proxy.send(target, message)

    def _client_of(self, peer: Peer, message: PubAck | PubNack) -> Peer:
        """Whom the owner's answer is for; "" if `peer` does not speak for the owner."""
        stream = self.proxy.streams.get(message.stream)
        if stream is None or self.region_of.get(peer) != stream.info.owner:
            return ""  # a client that makes up acknowledgements would make others lose events
        return self.clients.get((message.stream, message.publisher), "")

    def on_ack(self, peer: Peer, message: PubAck) -> None:
        if client := self._client_of(peer, message):
            self.proxy.send(client, message)

    def on_nack(self, peer: Peer, message: PubNack) -> None:
        client, why = self._client_of(peer, message), message.why
        if not client:
            return
        if why == "not-head":  # of its region, not of ours: the client cannot go there
            self._moved(peer, message.head)
            why = "busy"
        nack = PubNack(message.stream, message.publisher, message.pub_no, why, message.expected)
        self.proxy.send(client, nack)

    def _moved(self, peer: Peer, head: Peer) -> None:
        for region in self.proxy.peers.values():
            if region.head == peer and head in self.proxy.config.regions[region.name]:
                region.head = head

    # ------------------------------------------------------------ new streams

    def create(self, owner: str, message: CreateStream) -> str:
        """Ask the owner for a stream; why that cannot be done, if so."""
        target = self._target(owner)
        if not target:
            return "owner-unreachable"
        self.proxy.send(target, message)
        return ""

    def on_opened(self, peer: Peer, message: StreamOpened) -> bool:
        """Whether the owner's answer is the last word for those who asked."""
        if peer not in self.region_of:
            return False
        if message.why == "not-head":
            self._moved(peer, message.head)
        return message.info is None and message.why not in ("not-head", "recovering")

    def peer_down(self, peer: Peer) -> None:
        gone = [key for key, client in self.clients.items() if client == peer]
        for key in gone:
            del self.clients[key]
