"""The accepted batches of each publisher of one log, to recognise retries (R2-R4).

A publisher numbers its events from 1 in each log. It retries identical batches in their original
order. Only the batch that begins at the publisher's next number is new. For each publisher, the
numbers and positions of its last few batches are kept: enough to answer every retry that can still
arrive.

A publisher's id is 16 bytes. The first eight are the wall-clock time of its creation in
nanoseconds, or zero for a *named* publisher: an application has chosen its name, and its state is
never forgotten. The state of other publishers is forgotten when they were idle for long. The
`horizon` is the latest creation time of all publishers forgotten so far. An unknown publisher that
was created at or before the horizon is refused as expired, because it may be a forgotten one. A
publisher whose creation time is further in the future than the time-to-live is refused, too:
forgetting it would move the horizon into the future, and new publishers would be refused.
"""

from collections import deque
from dataclasses import dataclass, field

import msgspec

from surecast.core.types import Batch
from surecast.errors import PeerError

__all__ = ["NEW", "Dedup", "PublisherState", "Verdict", "publisher_born_ns"]

# The kinds of a `Verdict` about a batch.
NEW = 0  # the batch with the publisher's next number: append it
DUPLICATE = 1  # a retry of a batch that is in the log: answer with its position
OUT_OF_ORDER = 2  # an earlier batch is missing, or a retry is so old that its position is not kept
MISMATCH = 3  # a batch with the same number but another number of events was accepted before
EXPIRED = 4  # the publisher's state may have been forgotten: a retry cannot be recognised


class Verdict(msgspec.Struct, gc=False):
    """The result of `Dedup.check`: whether a batch is new."""

    kind: int  # one of the constants above
    number: int = 0  # DUPLICATE: position of the first event; OUT_OF_ORDER: expected pub_no


def publisher_born_ns(publisher: bytes) -> int:
    """The time at which a publisher was created; 0 for a named publisher."""
    return int.from_bytes(publisher[:8], "big")


@dataclass(slots=True)
class PublisherState:
    """What was accepted from one publisher in one log."""

    next_no: int = 1
    # The last batches, oldest first: (pub_no, number of events, first position).
    recent: deque[tuple[int, int, int]] = field(default_factory=deque)
    time_ns: int = 0  # the time of the last batch, by the clock of the head that appended it


@dataclass(slots=True)
class Dedup:
    """The state of all publishers of one log."""

    inflight_max: int  # this and the next two: see `ChainConfig`
    ttl_ns: int  # `publisher_ttl_ns`
    publishers_max: int = 100_000
    publishers: dict[bytes, PublisherState] = field(default_factory=dict)
    horizon_ns: int = 0  # an unknown publisher created up to this time may have been forgotten
    named: int = 0  # publishers that cannot be forgotten, as last counted by `forget`

    def check(self, batch: Batch, time_ns: int) -> Verdict:
        """What to do with a publisher's batch that arrives at head time `time_ns`."""
        state = self.publishers.get(batch.publisher)
        born_ns = publisher_born_ns(batch.publisher)
        if state is None:
            if 0 < born_ns <= self.horizon_ns or born_ns > time_ns + self.ttl_ns:
                return Verdict(EXPIRED)
            state = PublisherState()
        elif born_ns and time_ns - state.time_ns > self.ttl_ns:
            return Verdict(EXPIRED)
        if batch.pub_no >= state.next_no:
            return self._ahead(batch.pub_no, state.next_no)
        for pub_no, count, lo in state.recent:
            if pub_no == batch.pub_no:
                return Verdict(DUPLICATE, lo) if count == batch.count else Verdict(MISMATCH)
        return Verdict(OUT_OF_ORDER, state.next_no)

    def _ahead(self, pub_no: int, next_no: int) -> Verdict:
        """R3: only the next number is new. A later number means that an earlier batch is
        missing."""
        return Verdict(NEW) if pub_no == next_no else Verdict(OUT_OF_ORDER, next_no)

    def note(self, batch: Batch) -> None:
        """Note a batch that was appended here, by this head or as a copy."""
        if not batch.pub_no or batch.rows != batch.count:
            # Made by the head itself, or compacted. A snapshot has the state of the publishers of
            # compacted batches (R4).
            return
        state = self.publishers.setdefault(batch.publisher, PublisherState())
        if batch.pub_no < state.next_no:
            return
        state.next_no = batch.pub_no + batch.count
        state.recent.append((batch.pub_no, batch.count, batch.lo))
        state.time_ns = batch.time_ns
        # Twice as many as a publisher may have unacknowledged: if the log is truncated, the newer
        # half is removed, and the publisher may still retry batches of the older half.
        if len(state.recent) > 2 * self.inflight_max:
            state.recent.popleft()

    def truncate(self, end: int) -> None:
        """Remove batches at or above `end`, because the log is truncated there."""
        for publisher in list(self.publishers):
            state = self.publishers[publisher]
            while state.recent and state.recent[-1][2] >= end:
                state.next_no = state.recent.pop()[0]
            if state.next_no == 1 and not state.recent:
                del self.publishers[publisher]

    def is_crowded(self) -> bool:
        """Whether there are more than `publishers_max` publishers that can be forgotten."""
        return len(self.publishers) - self.named > self.publishers_max

    def forget(self) -> None:
        """Remove publishers that were silent for the time-to-live and, if there are too many, also
        those that were silent longest. The horizon rises to the latest of their creation times."""
        newest_ns = max((s.time_ns for s in self.publishers.values()), default=0)
        silent_ns = newest_ns - self.ttl_ns  # publishers without a batch since then are removed
        born = {p: b for p in self.publishers if (b := publisher_born_ns(p))}
        self.named = len(self.publishers) - len(born)
        over = len(born) - self.publishers_max
        if over > 0:  # remove some more, so that this is not repeated for each new publisher
            times = sorted(self.publishers[publisher].time_ns for publisher in born)
            silent_ns = max(silent_ns, times[min(over + self.publishers_max // 10, len(times) - 1)])
        for publisher, born_ns in born.items():
            if self.publishers[publisher].time_ns < silent_ns:
                self.horizon_ns = max(self.horizon_ns, born_ns)
                del self.publishers[publisher]

    def expire(self, horizon_ns: int) -> None:
        """Remove all publishers created up to `horizon_ns`, because more batches may have been
        accepted from them than are known here. Named publishers are not removed."""
        for publisher in list(self.publishers):
            if 0 < publisher_born_ns(publisher) <= horizon_ns:
                del self.publishers[publisher]

    def snapshot(self, end: int) -> bytes:
        """The state as it was when the log ended at `end`, as bytes (see `Snapshot`)."""
        rows = []
        for publisher in sorted(self.publishers):
            state = self.publishers[publisher]
            recent = [r for r in state.recent if r[2] < end]
            next_no = state.next_no
            if len(recent) < len(state.recent):
                next_no = state.recent[len(recent)][0]
            if next_no > 1:
                rows.append((publisher, next_no, state.time_ns, recent))
        return msgspec.msgpack.encode((self.horizon_ns, rows))

    def merge(self, data: bytes) -> None:
        """Add a snapshot of the same log at a committed position: the result knows all batches that
        this state or the snapshot knows."""
        horizon_ns, rows = _decode(data)
        self.horizon_ns = max(self.horizon_ns, horizon_ns)
        for publisher, next_no, time_ns, recent in rows:
            state = self.publishers.setdefault(publisher, PublisherState())
            known = {r[0] for r in state.recent}
            entries = sorted([*state.recent, *(r for r in recent if r[0] not in known)])
            state.recent = deque(entries[-2 * self.inflight_max :])
            state.next_no = max(state.next_no, next_no)
            state.time_ns = max(state.time_ns, time_ns)

    def replace(self, data: bytes, end: int) -> None:
        """Replace the state of positions below `end` by `data`, the predecessor's snapshot at
        `end`. Keep our own state of positions from `end` on.

        This is not a merge, because our own state below `end` may stem from batches that were
        truncated and replaced by others.
        """
        mine, self.publishers = self.publishers, {}
        self.merge(data)
        for publisher, before in mine.items():
            later = [r for r in before.recent if r[2] >= end]
            if later:
                state = self.publishers.setdefault(publisher, PublisherState())
                state.recent.extend(later)
                state.next_no = max(state.next_no, before.next_no)
                state.time_ns = max(state.time_ns, before.time_ns)


# (horizon_ns, rows); a row: (publisher, next_no, time_ns, recent as in `PublisherState`).
Snapshot = tuple[int, list[tuple[bytes, int, int, list[tuple[int, int, int]]]]]


def _decode(data: bytes) -> Snapshot:
    try:
        horizon_ns, rows = msgspec.msgpack.decode(data, type=Snapshot)
    except msgspec.DecodeError as error:
        raise PeerError(f"publishers' state cannot be read: {error}") from None
    return horizon_ns, rows
