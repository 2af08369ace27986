"""ReceiveWindow: the state of a reader that requests one stream from several peers.

The client of a mesh (protocols/sprinkler/mesh_peer.py) has one for each stream. Its fields:

position   the next position to deliver; 0 if the client starts at the latest position and does not
           know it yet
next       positions from here on will be requested when a peer has them; each position in
           [position, next) has arrived (`early`), is requested (`asks`), or is missing and will be
           requested from a server
asked      positions below this one are not requested from other clients any more; those that are
           missing are requested only from a server
kept       the last delivered batches, as `take` returned them, for other clients that request them
early      batches that arrived although lower positions are missing, sorted, without overlaps
asks       open requests
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.types import LogId, Peer

__all__ = ["Ask", "ReceiveWindow"]


_NOTHING = Batch.void(bytes(16), 1, 2, COLLECTED)  # the placeholder of a batch that was dropped


def _lo(batch: Batch) -> int:
    return batch.lo


def _hi(batch: Batch) -> int:
    return batch.hi


@dataclass(slots=True)
class Ask:
    """An open request to `peer`: [lo, hi) is not answered yet. A `hi` of 0 means all that a server
    has."""

    peer: Peer
    lo: int
    hi: int
    sent_ns: int
    deadline_ns: int  # if the peer has not answered by then, the range is requested elsewhere


@dataclass(slots=True)
class ReceiveWindow:
    stream: LogId
    position: int = 0
    next: int = 0
    asked: int = 0
    kept: list[Batch] = field(default_factory=list)
    kept_from: int = 0  # index of the first of `kept` that was not dropped
    kept_bytes: int = 0
    early: list[Batch] = field(default_factory=list)
    early_bytes: int = 0
    asks: list[Ask] = field(default_factory=list)

    # ------------------------------------------------------------ what peers may request

    def keep(self, batch: Batch, nbytes_max: int) -> None:
        """Keep a delivered batch; drop the oldest ones if there are too many bytes."""
        self.kept.append(batch)
        self.kept_bytes += batch.nbytes
        while self.kept_bytes > nbytes_max:
            self.kept_bytes -= self.kept[self.kept_from].nbytes
            self.kept[self.kept_from] = _NOTHING  # frees the batch; the list itself is cut below
            self.kept_from += 1
        if self.kept_from > 64 and self.kept_from * 2 > len(self.kept):
            del self.kept[: self.kept_from]
            self.kept_from = 0

    def held(self, lo: int, hi: int) -> list[Batch]:
        """The kept batches that overlap [lo, hi). They are not cut to this range."""
        first = bisect_right(self.kept, lo, self.kept_from, key=_hi)
        return self.kept[first : bisect_left(self.kept, hi, first, key=_lo)]

    # ------------------------------------------------------------ what arrives

    def take(self, batches: tuple[Batch, ...], early_bytes_max: int) -> list[Batch]:
        """Add received batches. Returns what can be delivered now, in order, each position once."""
        ready: list[Batch] = []
        for batch in batches:
            if batch.lo <= self.position < batch.hi:
                ready.append(self._deliver(batch))
            elif batch.lo > self.position:
                self._hold(batch)
        early, done = self.early, 0
        while done < len(early) and early[done].lo <= self.position:
            batch = early[done]
            done += 1
            self.early_bytes -= batch.nbytes
            if batch.hi > self.position:
                ready.append(self._deliver(batch))
        del early[:done]
        while self.early_bytes > early_bytes_max:  # drop the highest ones and request them again
            batch = early.pop()
            self.early_bytes -= batch.nbytes
            self.next = min(self.next, batch.lo)
        self.next = max(self.next, self.position)
        return ready

    def _deliver(self, batch: Batch) -> Batch:
        """Advance `position` to the batch's end. Returns its part that was not delivered before."""
        part = batch if batch.lo == self.position else batch.slice(self.position, batch.hi)
        self.position = batch.hi
        return part

    def _hold(self, batch: Batch) -> None:
        """Keep an early batch, cut to its part before the next early batch. The rest is dropped,
        and requested again."""
        early, lo, hi = self.early, batch.lo, batch.hi
        index = bisect_left(early, lo, key=_lo)
        if index and early[index - 1].hi > lo:
            lo = early[index - 1].hi
        if index < len(early) and early[index].lo < hi:
            hi = early[index].lo
        if lo < hi:
            part = batch if (lo, hi) == (batch.lo, batch.hi) else batch.slice(lo, hi)
            early.insert(index, part)
            self.early_bytes += part.nbytes

    # ------------------------------------------------------------ what is missing

    def missing(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Parts of [lo, hi) that were neither received nor requested."""
        if not self.early and not self.asks:
            return [(lo, hi)] if lo < hi else []
        covered = [(b.lo, b.hi) for b in self.early]
        covered += [(a.lo, a.hi) for a in self.asks if a.hi]  # not of requests without an end
        covered.sort()
        missing = []
        for start, end in covered:
            if start >= hi:
                break
            if start > lo:
                missing.append((lo, start))
            lo = max(lo, end)
        if lo < hi:
            missing.append((lo, hi))
        return missing

    def answered(self, peer: Peer, lo: int, hi: int, last: bool) -> Ask | None:
        """Note that `peer` answered [lo, hi). Returns the request, or None if there is none.

        `last`: this was the last part of the answer, so the request is removed.
        """
        for ask in self.asks:
            if ask.peer == peer and ask.lo == lo:
                if last:
                    self.asks.remove(ask)
                else:
                    ask.lo = hi
                return ask
        return None
