"""The peers that a member of a mesh knows: a bounded random set (*view*), mixed by gossip.

A mesh is a set of clients that forward the events of a stream to each other. Members send their
views to each other, and the receiver merges the view with its own.

G12 a view has at most V members (`size_max`) and never contains its owner; after a merge it
contains the sender of the other view.
"""

from collections.abc import Iterable
from random import Random

from surecast.core.types import Peer

__all__ = ["View"]


class View:
    """The clients that are known for one stream. Servers are not in it: every client knows them.

    A peer that was found to be gone is not added again for a while if another peer lists it.
    Otherwise, in views large enough for all members, the name of a stopped client would spread
    faster than each member finds out that it is gone, and would never disappear. A list from a
    server is trusted, because the server has received messages from these clients itself.
    """

    __slots__ = ("gone", "me", "merges", "peers", "servers", "size_max")

    def __init__(self, me: Peer, size_max: int, servers: Iterable[Peer]) -> None:
        self.me = me  # the owner of the view
        self.size_max = size_max
        self.servers = frozenset(servers)
        self.peers: list[Peer] = []
        self.merges = 0  # number of merges so far
        # Peers that were found to be gone → the value of `merges` up to which they are not added.
        self.gone: dict[Peer, int] = {}

    def merge(self, sender: Peer, theirs: Iterable[Peer], rng: Random) -> None:
        """Merge another member's view: keep the sender, and a random choice of all others."""
        self.merges += 1
        if self.gone and sender not in self.servers:
            self.gone.pop(sender, None)
            theirs = [peer for peer in theirs if self.gone.get(peer, 0) < self.merges]
        union = dict.fromkeys((sender, *self.peers, *theirs))
        union.pop(self.me, None)
        known = [peer for peer in union if peer not in self.servers]
        if len(known) > self.size_max:
            kept = self._reinforced(sender)
            others = [peer for peer in known if peer not in kept]
            known = kept + rng.sample(others, self.size_max - len(kept))
        self.peers = known

    def _reinforced(self, sender: Peer) -> list[Peer]:
        """The peers that a merge always keeps: the sender. Otherwise the graph of views would tend
        to a star around the peers that are in most views."""
        return [] if sender in self.servers or sender == self.me else [sender]

    def drop(self, peer: Peer) -> None:
        """Remove a peer that is gone, or has left this mesh."""
        if peer in self.peers:
            self.peers.remove(peer)
            self.gone.pop(peer, None)  # so that the new entry is the last one
            # After so many merges no other view should contain the peer.
            self.gone[peer] = self.merges + 6 * self.size_max
            if len(self.gone) > 4 * self.size_max:
                del self.gone[next(iter(self.gone))]

    def pick(self, count: int, rng: Random) -> list[Peer]:
        """`count` peers drawn at random, or all if there are not more."""
        return list(self.peers) if len(self.peers) <= count else rng.sample(self.peers, count)
