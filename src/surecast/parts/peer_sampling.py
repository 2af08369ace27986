"""Whom a member of a mesh knows: a bounded random set that gossip keeps mixing.

G12 a view has at most V members, never oneself, and after a merge the one who sent the other view.
"""

from collections.abc import Iterable
from random import Random

from surecast.core.types import Peer

__all__ = ["View"]


class View:
    """The clients known for one stream. Servers are never among them: everybody has their own.

    Who was found to be gone is not taken back on a peer's word for a while. Otherwise, where views
    have room for everybody, a name would be handed round faster than each of those who know it
    finds out, and the dead would never fade. A server's word counts: it heard from them itself.
    """

    __slots__ = ("gone", "me", "merges", "peers", "servers", "size_max")

    def __init__(self, me: Peer, size_max: int, servers: Iterable[Peer]) -> None:
        self.me = me
        self.size_max = size_max
        self.servers = frozenset(servers)
        self.peers: list[Peer] = []
        self.merges = 0
        self.gone: dict[Peer, int] = {}  # → until which merge

    def merge(self, sender: Peer, theirs: Iterable[Peer], rng: Random) -> None:
        """Take in another's view; chance decides who stays, but for the sender."""
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
        """Without this the graph of views tends to a star around whoever is known already."""
        return [] if sender in self.servers or sender == self.me else [sender]

    def drop(self, peer: Peer) -> None:
        """It is gone, or not in this mesh any more."""
        if peer in self.peers:
            self.peers.remove(peer)
            self.gone.pop(peer, None)  # the latest last
            self.gone[peer] = self.merges + 6 * self.size_max
            if len(self.gone) > 4 * self.size_max:
                del self.gone[next(iter(self.gone))]

    def pick(self, count: int, rng: Random) -> list[Peer]:
        """`count` of them by chance, or all there are."""
        return list(self.peers) if len(self.peers) <= count else rng.sample(self.peers, count)
