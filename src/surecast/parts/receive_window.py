"""What a reader that asks several peers has of a stream: delivered, early, asked of whom.

position   the next to deliver; 0 until a client that wants the latest knows where that is
next       the first position not asked for yet; all in [position, next) is early or asked for
asked      peers were asked for all below; what is missed there only a server is asked for
kept       what was delivered last, whole batches, for peers that ask
early      what came before its turn, in order, without overlaps
asks       requests under way
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.types import LogId, Peer

__all__ = ["Ask", "ReceiveWindow"]


_NOTHING = Batch.void(bytes(16), 1, 2, COLLECTED)  # where a batch was


def _lo(batch: Batch) -> int:
    return batch.lo


def _hi(batch: Batch) -> int:
    return batch.hi


@dataclass(slots=True)
class Ask:
    """A request under way: what of [lo, hi) is still to come; `hi` 0 is a server's whole rest."""

    peer: Peer
    lo: int
    hi: int
    sent_ns: int
    deadline_ns: int


@dataclass(slots=True)
class ReceiveWindow:
    stream: LogId
    position: int = 0
    next: int = 0
    asked: int = 0
    kept: list[Batch] = field(default_factory=list)
    kept_from: int = 0  # index of the first of `kept` that counts
    kept_bytes: int = 0
    early: list[Batch] = field(default_factory=list)
    early_bytes: int = 0
    asks: list[Ask] = field(default_factory=list)

    # ------------------------------------------------------------ what peers may ask for

    def keep(self, batch: Batch, nbytes_max: int) -> None:
        """Keep a delivered batch; the oldest go when there are too many bytes."""
        self.kept.append(batch)
        self.kept_bytes += batch.nbytes
        while self.kept_bytes > nbytes_max:
            self.kept_bytes -= self.kept[self.kept_from].nbytes
            self.kept[self.kept_from] = _NOTHING  # it may be large, and the list is tidied late
            self.kept_from += 1
        if self.kept_from > 64 and self.kept_from * 2 > len(self.kept):
            del self.kept[: self.kept_from]
            self.kept_from = 0

    def held(self, lo: int, hi: int) -> list[Batch]:
        """Kept batches that cover some of [lo, hi), whole."""
        first = bisect_right(self.kept, lo, self.kept_from, key=_hi)
        return self.kept[first : bisect_left(self.kept, hi, first, key=_lo)]

    # ------------------------------------------------------------ what arrives

    def take(self, batches: tuple[Batch, ...], early_bytes_max: int) -> list[Batch]:
        """Sort in what arrived; what can be delivered now, in order, each position once."""
        ready: list[Batch] = []
        for batch in batches:
            if batch.lo <= self.position < batch.hi:
                ready.append(self._due(batch))
            elif batch.lo > self.position:
                self._hold(batch)
        early, done = self.early, 0
        while done < len(early) and early[done].lo <= self.position:
            batch = early[done]
            done += 1
            self.early_bytes -= batch.nbytes
            if batch.hi > self.position:
                ready.append(self._due(batch))
        del early[:done]
        while self.early_bytes > early_bytes_max:  # the newest will be asked for again
            batch = early.pop()
            self.early_bytes -= batch.nbytes
            self.next = min(self.next, batch.lo)
        self.next = max(self.next, self.position)
        return ready

    def _due(self, batch: Batch) -> Batch:
        due = batch if batch.lo == self.position else batch.slice(self.position, batch.hi)
        self.position = batch.hi
        return due

    def _hold(self, batch: Batch) -> None:
        """Keep a batch for its turn; only the part that no other early batch covers."""
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
        """Parts of [lo, hi) that are neither here nor asked for."""
        if not self.early and not self.asks:
            return [(lo, hi)] if lo < hi else []
        covered = [(b.lo, b.hi) for b in self.early]
        covered += [(a.lo, a.hi) for a in self.asks if a.hi]
        covered.sort()
        found = []
        for start, end in covered:
            if start >= hi:
                break
            if start > lo:
                found.append((lo, start))
            lo = max(lo, end)
        if lo < hi:
            found.append((lo, hi))
        return found

    def answered(self, peer: Peer, lo: int, hi: int, last: bool) -> Ask | None:
        """The request that [lo, hi) of `peer` answers; done with if that was the last part."""
        for ask in self.asks:
            if ask.peer == peer and ask.lo == lo:
                if last:
                    self.asks.remove(ask)
                else:
                    ask.lo = hi
                return ask
        return None
