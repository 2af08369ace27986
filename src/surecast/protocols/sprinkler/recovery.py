"""An owner that has lost part of what it owned, or may have: it waits, asks and pulls (R8).

A chain that lost its disks, an older copy of a disk, a hole that no replica can fill: what the
region owned before has to be fetched from the others, and no position is given until it is. After
a start the other regions are asked first: they may know that our disk is an older copy of itself.
"""

from surecast.core.replicated import Recovered, RoleChanged
from surecast.protocols.sprinkler.forks import Forks
from surecast.protocols.sprinkler.sources import Copy, PeerRegion, Regions

__all__ = ["Recovery"]

ASK_AT_MOST = 10  # times `ask_ns` that a region which answers is waited for: it has many streams


class Recovery:
    """`regions` is the machine that this is a part of."""

    def __init__(self, regions: Regions, forks: Forks) -> None:
        self.regions = regions
        self.forks = forks
        self.started_ns = 0
        self.has_asked = False  # and positions were given since
        self.unclean_since_ns: int | None = None
        self.lost_epoch = 0
        self.distrusted = False

    def role_changed(self, event: RoleChanged) -> None:
        self.lost_epoch, self.distrusted = event.lost_epoch, event.distrusted
        if event.clean:
            self.unclean_since_ns = None
        elif self.unclean_since_ns is None:
            self.unclean_since_ns = self.regions.now_ns

    # ------------------------------------------------------------ after a start

    def must_wait(self, copy: Copy) -> bool:
        """Whether the stream may have another history elsewhere, or we lack part of it."""
        if copy.recovering_since_ns is not None or self.forks.is_settling(copy.stream_id):
            return True
        return not copy.made_now and self.is_asking()

    def is_asking(self) -> bool:
        """Just started: the other regions may know that our disk is an older copy of itself."""
        return not self.has_asked and self.is_anybody_silent()

    def is_anybody_silent(self) -> bool:
        """Whether a region is still to be heard from, or compared with."""
        regions = self.regions
        config, waited_ns = regions.config, regions.now_ns - self.started_ns
        if config.start == "trust" or waited_ns >= ASK_AT_MOST * config.ask_ns:
            return False
        silent = waited_ns < config.ask_ns  # wait for them, too
        return any(
            not (peer.heard_ns >= 0 and self.forks.has_met(peer))
            for peer in regions.peers.values()
            if silent or regions.is_live(peer)
        )

    # ------------------------------------------------------------ an owner behind its peers

    def may_pull_own(self, copy: Copy, end: int) -> bool:
        """May we pull our own stream? Only when a peer proves that we have lost part of it."""
        if end > copy.end and copy.recovering_since_ns is None:
            self.regions.counters["sprinkler.owner-behind"] += 1
            self.begin(copy, self.regions.now_ns, outdated=True)
        return copy.recovering_since_ns is not None

    def look_for_loss(self, copy: Copy) -> None:
        """Our chain lost its disks: what it owned before has to be fetched from its peers."""
        made_since = copy.made_epoch >= max(self.lost_epoch, 1)
        if not self.regions.owns(copy):
            return
        if self.unclean_since_ns is not None and not made_since:
            self.begin(copy, self.unclean_since_ns, outdated=True)
        elif copy.hole and self.regions.is_head and copy.recovering_since_ns is None:
            self.begin(copy, self.regions.now_ns, outdated=False)

    def begin(self, copy: Copy, since_ns: int, outdated: bool) -> None:
        copy.recovering_since_ns, copy.outdated = since_ns, outdated
        copy.confirmed.clear()
        copy.unsure.clear()
        copy.unnamed = max(copy.unnamed, 1)  # the publishers' state is part of what was lost
        self.regions.limited(copy.stream_id)

    def all_heard_since(self, since_ns: int) -> bool:
        return all(peer.heard_ns > since_ns for peer in self.regions.peers.values())

    def is_nobody_sure(self, copy: Copy) -> bool:
        """Whether we recover our own stream, and no other region knows all of its publishers."""
        since_ns = copy.recovering_since_ns
        return (
            since_ns is not None
            and self.all_heard_since(since_ns)
            and all(peer.name in copy.unsure for peer in self._holders(copy))
        )

    def _holders(self, copy: Copy) -> list[PeerRegion]:
        return [p for p in self.regions.peers.values() if copy.stream_id in p.ends]

    def _needs_operator(self) -> bool:
        """Part of the history is missing, and there is no other region that could have it."""
        regions = self.regions
        return self.distrusted and not regions.peers and regions.config.start == "ask"

    def check(self, copy: Copy) -> None:
        """Resume above the maximum, once every peer has been heard and retries can be told."""
        since_ns = copy.recovering_since_ns
        if since_ns is None or not self.all_heard_since(since_ns) or copy.unnamed:
            return
        if copy.hole or not all(self.forks.has_met(p) for p in self.regions.peers.values()):
            return
        if self._needs_operator():
            return
        # Not only what they have committed: what a peer has appended it will commit some day.
        if all(
            p.ends[copy.stream_id] <= copy.end
            and copy.confirmed.get(p.name, copy.end + 1) <= copy.end
            for p in self._holders(copy)
        ):
            copy.recovering_since_ns = copy.source = None
            self.regions.limited(copy.stream_id)

    def check_all(self) -> None:
        """A chain that lost its disk is whole again when every peer's word has been followed."""
        regions = self.regions
        if self.unclean_since_ns is None or not self.all_heard_since(self.unclean_since_ns):
            return
        if self._needs_operator():
            return
        missing = any(
            stream_id not in regions.streams and not self._is_taken(peer, stream_id)
            for peer in regions.peers.values()
            for stream_id in peer.ends
        )
        recovering = [c for c in regions.streams.values() if c.recovering_since_ns is not None]
        if not missing and not recovering:
            regions.command(Recovered())

    def _is_taken(self, peer: PeerRegion, stream_id: bytes) -> bool:
        """Whether its name belongs to another stream here: it will not come."""
        info = peer.infos.get(stream_id)
        return info is not None and self.regions.service.named(info.name) is not None
