"""One stream at one replica."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from surecast.columns.batch import COLLECT, CONFIG, Batch
from surecast.columns.compaction import survivors
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import RetentionIndex
from surecast.core.disk import read_through
from surecast.core.streams import StreamInfo
from surecast.core.types import Disk, LogId
from surecast.protocols.streams.compaction_plan import Pieces

__all__ = ["Stream"]


_SEARCH_BYTES = 64 << 10  # read at a time to find a position


@dataclass(slots=True)
class Stream:
    info: StreamInfo
    index: RetentionIndex  # of what is committed, fed in runs: `committed` may be ahead of it
    pieces: Pieces = field(default_factory=Pieces)
    end: int = 1  # appended here
    hole: int = 0  # the first position that cannot be read here; 0: there is none
    committed: int = 1  # by the chain; the only part anybody is shown (R5)
    recent: int = 1  # where that was a moment ago: from here on, batches are passed on as they came
    quarantined: str = ""  # why its log cannot be indexed beyond `index.end`
    reconfigured: bool = False  # its retention was changed at least once
    rules: IntervalSet = field(default_factory=IntervalSet)  # positions of the stream's own entries
    suspended: str = ""  # why its delivery wants no positions given
    expiring: int = 0  # the last rule that expires events is not committed below this
    rewriting_rows: int = 0  # what the rewrite under way will leave
    ending: bool = False  # the last position appended here is the End event
    looked_epoch: int = -1  # the epoch in which `ending` was looked up; -1: it must be again

    @property
    def stream_id(self) -> LogId:
        return self.info.stream_id

    @property
    def whole(self) -> int:
        """The first position that is missing here: what is pulled begins with it."""
        return self.hole or self.end

    def feed(self, disk: Disk, nbytes_max: int, budget_bytes: int = 1 << 62) -> None:
        """Let retention see what has been committed, once, in order (R5), about `budget_bytes`."""
        index = self.index

        def lend(lo: int, hi: int) -> Iterator[Batch]:
            return read_through(disk, self.stream_id, lo, hi, nbytes_max)

        while index.end < self.committed and budget_bytes > 0:
            batches = disk.read(self.stream_id, index.end, self.committed, nbytes_max)
            assert batches, f"{self.info.name} does not hold position {index.end}"
            index.feed_many(batches, lend)
            for batch in batches:
                self.pieces.note(batch)
                self.reconfigured = self.reconfigured or batch.kind == CONFIG
                if batch.kind in (COLLECT, CONFIG):
                    self.rules.add(batch.lo, batch.hi)
                budget_bytes -= batch.nbytes

    def first_at(self, time_ns: int, disk: Disk) -> int:
        """The first live position whose time is not before `time_ns`; if there is none, the end.

        Live, because a copy that was compacted knows no times of what is void: so it is the same in
        every region.
        """

        def lend(lo: int, hi: int) -> Iterator[Batch]:
            return read_through(disk, self.stream_id, lo, hi, _SEARCH_BYTES)

        seq, before = self.index.first_at(time_ns, lend), 0
        while before < seq:
            before = seq
            for voids in self.index.voids.values():
                seq = voids.lowest_missing(seq)
        return min(seq, self.index.end)

    def serve(self, disk: Disk, lo: int, hi: int, nbytes_max: int, rows_max: int) -> list[Batch]:
        """[lo, hi) as readers should see it: live events, and voids as ranges (R9).

        What has just come is passed on whole, bytes as they were published: taking out what the
        next events made obsolete would cost more than it saves.
        """
        raw = disk.read(self.stream_id, lo, hi, nbytes_max)
        if lo >= self.recent or not any(self.index.voids.values()):
            return raw
        assert not raw or raw[-1].hi <= self.index.end, "retention sees it before late readers do"
        return survivors(raw, self.index.voids, rows_max) if raw else raw
