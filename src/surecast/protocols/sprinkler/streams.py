"""One stream at one replica."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from surecast.columns.batch import COLLECTED, CONFIG, EXPIRED, Batch
from surecast.columns.compaction import survivors
from surecast.columns.retention import RetentionIndex
from surecast.core.disk import read_through
from surecast.core.types import Disk, LogId, Peer
from surecast.protocols.sprinkler.messages import StreamInfo
from surecast.protocols.sprinkler.pieces import Pieces

__all__ = ["Lead", "Source", "Stream"]


_SEARCH_BYTES = 64 << 10  # read at a time to find a position


@dataclass(slots=True)
class Source:
    """Where a stream is pulled from (`expects` of the paper)."""

    region: str
    node: Peer
    end: int  # as last advertised by that region
    advertised_ns: int  # when
    progress_ns: int  # when data last arrived, or we subscribed
    subscribed_ns: int = 0


@dataclass(slots=True)
class Lead:
    """How long another region has been ahead of the source without a break."""

    since_ns: int
    seen_ns: int  # last


@dataclass(slots=True)
class Stream:
    info: StreamInfo
    index: RetentionIndex  # of what is committed, fed in runs: `committed` may be ahead of it
    pieces: Pieces = field(default_factory=Pieces)
    end: int = 1  # appended here
    hole: int = 0  # the first position that cannot be read here; 0: there is none
    newest_ns: int = 0  # time of the newest event pulled from another region
    committed: int = 1  # by the chain; the only part anybody is shown (R5)
    recent: int = 1  # where that was a moment ago: from here on, batches are passed on as they came
    quarantined: str = ""  # why its log cannot be indexed beyond `index.end`
    reconfigured: bool = False  # its retention was changed at least once
    source: Source | None = None
    leads: dict[str, Lead] = field(default_factory=dict)  # regions ahead of the source
    rate: float = 0.0  # events a second, smoothed
    rate_end: int = 1
    asked_ns: int = -1 << 62  # when publishers were last asked for
    # What other regions answer an owner that recovers: how far each has appended, and which of
    # them do not know all publishers.
    confirmed: dict[str, int] = field(default_factory=dict)
    unsure: dict[str, None] = field(default_factory=dict)
    unnamed: int = 0  # end of the compacted batches we pulled, which name no publishers (R4)
    recovering_since_ns: int | None = None  # owner behind its peers (R8)
    outdated: bool = False  # ... because its disk had less of the log than others may have
    expiring: int = 0  # the last rule that expires events is not committed below this
    rewriting_rows: int = 0  # what the rewrite under way will leave
    subscribers: dict[Peer, int] = field(default_factory=dict)  # → next position to send

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
        voids = self.index.voids
        return survivors(raw, voids[COLLECTED], voids[EXPIRED], rows_max) if raw else raw
