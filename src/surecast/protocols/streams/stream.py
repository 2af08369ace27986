"""The state of one stream at one replica, for the stream service (service.py).

R5 and R9 are rules in docs/protocols/streams.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from surecast.columns.batch import COLLECT, CONFIG, Batch
from surecast.columns.compaction import survivors
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import RetentionIndex
from surecast.columns.rules import schema_after, schema_in
from surecast.columns.schema import read_schema
from surecast.core.disk import read_through
from surecast.core.streams import StreamInfo
from surecast.core.types import Disk, LogId
from surecast.errors import UsageError
from surecast.protocols.streams.compaction_plan import Pieces

__all__ = ["Stream"]


_SEARCH_BYTES = 64 << 10  # read at a time to find a position
_UNKNOWN = (b"\xff", b"\xff")  # codes that no batch has


@dataclass(slots=True)
class Stream:
    """One stream: its ends, its retention and the state of its compaction. The end of something is
    the first position that it does not include."""

    # The entry of the directory, with the schema after all events that are indexed here.
    info: StreamInfo
    # Which positions are void. Committed events are fed to it from time to time, so it may end
    # before `committed`.
    index: RetentionIndex
    pieces: Pieces = field(default_factory=Pieces)
    end: int = 1  # of what is appended here
    hole: int = 0  # the first position that cannot be read here; 0: there is none
    committed: int = 1  # the end of what is committed and shown to readers (R5)
    # `committed` a moment ago (`settle_ns`). Batches from here on are sent as they were published.
    recent: int = 1
    quarantined: str = ""  # why its log cannot be read or indexed beyond `committed`; "": it can
    reconfigured: bool = False  # its retention was changed at least once
    rules: IntervalSet = field(default_factory=IntervalSet)  # positions of COLLECT, CONFIG events
    suspended: str = ""  # why its delivery allows no new positions (Suspend); "": it allows them
    # Until positions below this are committed, no further COLLECT event for keep_for is appended.
    expiring: int = 0
    rewriting_rows: int = 0  # rows that the current rewrite will leave
    ending: bool = False  # the last position appended here is the End event
    feed_soon: bool = False  # an End event was appended: index it as soon as it is committed
    looked_epoch: int = -1  # the chain's epoch in which `ending` was determined; -1: not known
    # At the head: the schema after all events that are appended here, committed or not, and the
    # epoch in which it was determined (-1: not known).
    schema: str = ""
    schema_epoch: int = -1
    created: StreamInfo = field(init=False)  # the entry of the directory
    # The codes (columns/typed.py) of the schema with which it was created, and of `schema`.
    _codes: tuple[bytes, bytes] = (b"", b"")

    def __post_init__(self) -> None:
        self.created = self.info

    @property
    def stream_id(self) -> LogId:
        return self.info.stream_id

    @property
    def whole(self) -> int:
        """The first position that is missing here. From there on, the stream is pulled from other
        regions."""
        return self.hole or self.end

    def feed(self, disk: Disk, nbytes_max: int, budget_bytes: int = 1 << 62) -> None:
        """Feed the next committed batches to the index, each once and in order (R5). Stops after
        about `budget_bytes`; reads `nbytes_max` at a time."""
        index = self.index

        def lend(lo: int, hi: int) -> Iterator[Batch]:  # earlier batches, if the index needs them
            return read_through(disk, self.stream_id, lo, hi, nbytes_max)

        while index.end < self.committed and budget_bytes > 0:
            batches = disk.read(self.stream_id, index.end, self.committed, nbytes_max)
            assert batches, f"{self.info.name} does not hold position {index.end}"
            index.feed_many(batches, lend)
            for batch in batches:
                self.pieces.note(batch)
                if batch.kind in (COLLECT, CONFIG):
                    self.rules.add(batch.lo, batch.hi)
                if batch.kind == CONFIG:
                    self._configure(batch)
                budget_bytes -= batch.nbytes

    def _configure(self, batch: Batch) -> None:
        """Apply a CONFIG event that was indexed."""
        if not schema_in(batch):
            self.reconfigured = True
            return
        schema = schema_after(self.info.schema, batch)
        if schema != self.info.schema:
            self.info = msgspec.structs.replace(self.info, schema=schema)

    def take_schema(self, schema: str, epoch: int) -> None:
        """Note the schema after all events that are appended in this epoch."""
        self.schema, self.schema_epoch = schema, epoch
        try:
            first, last = read_schema(self.created.schema), read_schema(schema)
            self._codes = first.types.code, last.types.code
        except UsageError:  # a schema of a later version
            self._codes = _UNKNOWN

    def refusal_of_columns(self, batch: Batch) -> str:
        """Why the columns of a batch do not fit; "" if they fit. They may be those of any version
        of the schema, up to `schema`."""
        code = batch.columns_id[1]
        first, last = self._codes
        if code == last or (len(code) >= len(first) and last.startswith(code)):
            return ""
        return "unknown-columns" if code.startswith(last) else "bad-event"

    def first_at(self, time_ns: int, disk: Disk) -> int:
        """The first live (not void) position whose time is not before `time_ns`; if there is none,
        the end.

        A compacted copy does not know the times of void positions. Since only live positions count,
        the result is the same in every region.
        """

        def lend(lo: int, hi: int) -> Iterator[Batch]:
            return read_through(disk, self.stream_id, lo, hi, _SEARCH_BYTES)

        seq, before = self.index.first_at(time_ns, lend), 0
        # There is a set of void positions for each reason. Skip the void positions of each set,
        # until `seq` is in none of them.
        while before < seq:
            before = seq
            for voids in self.index.voids.values():
                seq = voids.lowest_missing(seq)
        return min(seq, self.index.end)

    def serve(self, disk: Disk, lo: int, hi: int, nbytes_max: int, rows_max: int) -> list[Batch]:
        """[lo, hi) as it is sent to readers (`shown`). May return only a first part of it
        (`nbytes_max`)."""
        return self.shown(disk.read(self.stream_id, lo, hi, nbytes_max), lo, rows_max)

    def shown(self, raw: list[Batch], lo: int, rows_max: int) -> list[Batch]:
        """Batches of the log from `lo` on as they are sent to readers: live events, and ranges of
        void positions (R9).

        Recent batches are sent unchanged, with the bytes that were published: removing the few
        events that are already void would cost more than it saves.
        """
        if lo >= self.recent or not any(self.index.voids.values()):
            return raw
        assert not raw or raw[-1].hi <= self.index.end, "served to a late reader before indexed"
        return survivors(raw, self.index.voids, rows_max) if raw else raw
