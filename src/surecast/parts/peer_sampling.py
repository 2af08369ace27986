"""The peers that a member of a mesh knows: a bounded random set, mixed by gossip.

G12 a view has at most V members and never contains its owner; after a merge it contains the sender
of the other view.
"""

from collections.abc import Iterable
from random import Random

from surecast.core.types import Peer

__all__ = ["View"]


class View:
    """The clients known for one stream. It contains no servers: every client has its own.

    A peer that was found to be gone is not added again for a while because another peer lists it.
    Otherwise, in views large enough for all members, the name of a stopped client would spread
    faster than each member finds out that it is gone, and would never disappear. A server's list is
    trusted: the server has received messages from these clients itself.
    """

    __slots__ = ("gone", "me", "merges", "peers", "servers", "size_max")

    def __init__(self, me: Peer, size_max: int, servers: Iterable[Peer]) -> None:
        self.me = me
        self.size_max = size_max
        self.servers = frozenset(servers)
        self.peers: list[Peer] = []
        self.merges = 0
        self.gone: dict[Peer, int] = {}  # not added again before this number of merges

    def merge(self, sender: Peer, theirs: Iterable[Peer], rng: Random) -> None:
        """Merge another member's view: keep the sender, and a random choice of the others."""
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
        """The peers that a merge always keeps: without the sender, the graph of views would tend to
        a star around the best-known peers."""
        return [] if sender in self.servers or sender == self.me else [sender]

    def drop(self, peer: Peer) -> None:
        """Remove a peer that is gone, or has left this mesh."""
        if peer in self.peers:
            self.peers.remove(peer)
            self.gone.pop(peer, None)  # so that the newest entry is the last
            self.gone[peer] = self.merges + 6 * self.size_max
            if len(self.gone) > 4 * self.size_max:
                del self.gone[next(iter(self.gone))]

    def pick(self, count: int, rng: Random) -> list[Peer]:
        """`count` peers drawn at random, or all if there are not more."""
        return list(self.peers) if len(self.peers) <= count else rng.sample(self.peers, count)
