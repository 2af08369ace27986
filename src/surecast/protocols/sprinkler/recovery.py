"""Recovers the streams of an owner that has lost part of them, from other regions (R8).

The owner of a stream is the region that assigns its positions. The owner's chain may have lost its
disks, or a disk may be an older copy of itself, or have a hole (unreadable positions) that no
replica can fill. Then the streams that the region owns are *pulled* (fetched) from other regions,
and no position is assigned until that is done. After each start, positions are assigned only after
the other regions were asked, because they may know that the disk is an older copy.
"""

from surecast.core.replicated import Recovered, RoleChanged
from surecast.protocols.sprinkler.forks import Forks
from surecast.protocols.sprinkler.sources import Copy, PeerRegion, Regions

__all__ = ["Recovery"]

# A region that can be reached is waited for up to this many times `ask_ns`, because comparing many
# streams takes time.
ASK_AT_MOST = 10


class Recovery:
    """The part of `RegionSync` (`regions`) that decides when an owner may assign positions."""

    def __init__(self, regions: Regions, forks: Forks) -> None:
        self.regions = regions
        self.forks = forks
        self.started_ns = 0
        # A position was assigned since the start, so other regions are no longer waited for.
        self.has_asked = False
        self.unclean_since_ns: int | None = None  # since when the chain is not clean (RoleChanged)
        self.lost_epoch = 0  # this and `distrusted` as in RoleChanged
        self.distrusted = False

    def role_changed(self, event: RoleChanged) -> None:
        self.lost_epoch, self.distrusted = event.lost_epoch, event.distrusted
        if event.clean:
            self.unclean_since_ns = None
        elif self.unclean_since_ns is None:
            self.unclean_since_ns = self.regions.now_ns

    # ------------------------------------------------------------ after a start

    def must_wait(self, copy: Copy) -> bool:
        """Whether no positions of the stream may be assigned now: another region may have another
        history of it, or part of it is missing here."""
        if copy.recovering_since_ns is not None or self.forks.is_settling(copy.stream_id):
            return True
        return not copy.made_now and self.is_asking()  # nobody else has a stream made just now

    def is_asking(self) -> bool:
        """Whether this region waits for other regions after a start."""
        return not self.has_asked and self.is_anybody_silent()

    def is_anybody_silent(self) -> bool:
        """Whether this region still waits for another one, which has not advertised yet, or whose
        streams have not been compared with ours yet."""
        regions = self.regions
        config, waited_ns = regions.config, regions.now_ns - self.started_ns
        if config.start == "trust" or waited_ns >= ASK_AT_MOST * config.ask_ns:
            return False
        silent = waited_ns < config.ask_ns  # until then, wait also for regions that are silent
        return any(
            not (peer.heard_ns >= 0 and self.forks.has_met(peer))
            for peer in regions.peers.values()
            if silent or regions.is_live(peer)
        )

    # ------------------------------------------------------------ an owner behind its peers

    def may_pull_own(self, copy: Copy, end: int) -> bool:
        """Whether to pull a stream that this region owns from another region, whose copy ends at
        `end`. If our copy ends before, we have lost a part of the stream: begin to recover it."""
        if end > copy.end and copy.recovering_since_ns is None:
            self.regions.counters["sprinkler.owner-behind"] += 1
            self.begin(copy, self.regions.now_ns, outdated=True)
        return copy.recovering_since_ns is not None

    def look_for_loss(self, copy: Copy) -> None:
        """Begin to recover a stream if our chain lost its disks, or has a hole in it."""
        made_since = copy.made_epoch >= max(self.lost_epoch, 1)  # created here after the loss
        if not self.regions.owns(copy):
            return
        if self.unclean_since_ns is not None and not made_since:
            self.begin(copy, self.unclean_since_ns, outdated=True)
        elif copy.hole and self.regions.is_head and copy.recovering_since_ns is None:
            self.begin(copy, self.regions.now_ns, outdated=False)

    def begin(self, copy: Copy, since_ns: int, outdated: bool) -> None:
        """Begin to recover a stream: no positions are assigned until `check` ends the recovery.
        `since_ns` and `outdated` are explained at `Copy`."""
        copy.recovering_since_ns, copy.outdated = since_ns, outdated
        copy.confirmed.clear()
        copy.unsure.clear()
        copy.unnamed = max(copy.unnamed, 1)  # the publishers' state must be requested, too
        self.regions.limited(copy.stream_id)

    def all_heard_since(self, since_ns: int) -> bool:
        """Whether every other region has advertised since then."""
        return all(peer.heard_ns > since_ns for peer in self.regions.peers.values())

    def is_nobody_sure(self, copy: Copy) -> bool:
        """Whether a stream is being recovered, and no other region knows all of its publishers."""
        since_ns = copy.recovering_since_ns
        return (
            since_ns is not None
            and self.all_heard_since(since_ns)
            and all(peer.name in copy.unsure for peer in self._holders(copy))
        )

    def _holders(self, copy: Copy) -> list[PeerRegion]:
        return [p for p in self.regions.peers.values() if copy.stream_id in p.ends]

    def _needs_operator(self) -> bool:
        """Whether part of the history is missing, and there is no other region to ask."""
        regions = self.regions
        return self.distrusted and not regions.peers and regions.config.start == "ask"

    def check(self, copy: Copy) -> None:
        """End the recovery of a stream if every region has answered, all positions that they have
        are here, and the publishers' state is known, so that retries are recognised."""
        since_ns = copy.recovering_since_ns
        if since_ns is None or not self.all_heard_since(since_ns) or copy.unnamed:
            return
        if copy.hole or not all(self.forks.has_met(p) for p in self.regions.peers.values()):
            return
        if self._needs_operator():
            return
        # Our copy must also have the positions that other regions have appended and not committed,
        # because they may commit them later. A region that has not told this yet fails the test.
        if all(
            p.ends[copy.stream_id] <= copy.end
            and copy.confirmed.get(p.name, copy.end + 1) <= copy.end
            for p in self._holders(copy)
        ):
            copy.recovering_since_ns = copy.source = None
            self.regions.limited(copy.stream_id)

    def check_all(self) -> None:
        """If the chain has lost its disks: send Recovered once all streams that other regions have
        are here and recovered."""
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
        """Whether the name belongs to another stream here, so that this one will not be adopted."""
        info = peer.infos.get(stream_id)
        return info is not None and self.regions.service.named(info.name) is not None
