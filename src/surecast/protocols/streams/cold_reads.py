"""ColdReads: the pieces of streams that are read from the disk beside other work, until served.

Positions that left the memory (`core.types.ColdBelow`) are read with `Read`, piece by piece. The
reads of different streams are requested in turn. A piece is kept until its readers were served, and
a moment longer, because further readers often follow at the same positions. It is the raw content
of the log: which of its events are void is decided when it is served.

A read has the content that the log had when it was requested. If committed positions of a stream
are given up (`core.replicated.Truncated`), everything read before is dropped, also when it arrives
later. Other changes of the log leave it valid: appends are behind it, and a compaction removes only
void positions.
"""

from collections import OrderedDict
from collections.abc import Sequence

from surecast.columns.batch import Batch
from surecast.core.types import Loaded, LogId, Read

__all__ = ["ColdReads"]

PIECES_KEPT_MAX = 256  # most pieces that are kept, however small they are

Piece = tuple[LogId, int]  # a stream, and the position from which on it is read
Token = tuple[LogId, int, int]  # a piece, and the number of the read


class ColdReads:
    """The cold reads of one replica."""

    def __init__(self, reads_max: int, nbytes_max: int, piece_bytes: int) -> None:
        self.reads_max = reads_max  # reads under way at a time
        self.nbytes_max = nbytes_max  # of what is kept and what is being read
        self.piece_bytes = piece_bytes  # of one read
        self.below: dict[LogId, int] = {}  # log → end of its cold positions
        # Stream → lo → hi of what is wanted and not requested yet. The first stream is next.
        self.waiting: OrderedDict[LogId, dict[int, int]] = OrderedDict()
        self.reading: dict[Token, bool] = {}  # reads under way; false: the result will be dropped
        self.requested: dict[Piece, Token] = {}  # the reads whose result is wanted
        self.pieces: OrderedDict[Piece, tuple[Batch, ...]] = OrderedDict()  # least used first
        self.nbytes = 0  # of `pieces`
        self.used: dict[Piece, None] = {}  # the pieces used since the last `drop_unused`
        # The last piece that was loaded. It is kept until the next one, because its readers in
        # other layers have not been served yet when the next reads are requested.
        self.newest: Piece | None = None
        self.count = 0  # reads so far

    def cooled(self, ends: Sequence[tuple[LogId, int]]) -> None:
        for log, end in ends:  # a compaction may report a lower end than the last move
            self.below[log] = max(end, self.below.get(log, 1))

    def is_cold(self, stream: LogId, lo: int) -> bool:
        return lo < self.below.get(stream, 1)

    def want(self, stream: LogId, lo: int, hi: int) -> None:
        """Read [lo, hi), or its first part. Nothing happens if that is wanted already."""
        if (stream, lo) not in self.requested and (stream, lo) not in self.pieces:
            self.waiting.setdefault(stream, {}).setdefault(lo, hi)

    def begin(self) -> list[Read]:
        """The reads that can be requested now. One read is always allowed, whatever the limit."""
        begun = []
        while self.waiting and len(self.reading) < self.reads_max:
            coming = (len(self.reading) + 1) * self.piece_bytes
            self._make_room(coming)
            if self.reading and self.nbytes + coming > self.nbytes_max:
                break
            stream, wanted = self.waiting.popitem(last=False)
            lo = next(iter(wanted))
            hi = wanted.pop(lo)
            if wanted:
                self.waiting[stream] = wanted
            self.count += 1
            token = (stream, lo, self.count)
            self.reading[token] = True
            self.requested[stream, lo] = token
            begun.append(Read(stream, lo, hi, self.piece_bytes, token))
        return begun

    def loaded(self, inp: Loaded) -> Piece | None:
        """Keep the result of a read; None if it is no longer wanted."""
        stream, lo, _ = inp.token
        if not self.reading.pop(inp.token):
            return None
        piece = (stream, lo)
        del self.requested[piece]
        if inp.batches:
            self.pieces[piece] = inp.batches
            self.used[piece] = None
            self.nbytes += sum(batch.nbytes for batch in inp.batches)
            self.newest = piece
            self._make_room(0)
        return piece

    def find(self, stream: LogId, lo: int, hi: int) -> list[Batch] | None:
        """A first part of [lo, hi), if it is kept."""
        piece = (stream, lo)
        if piece not in self.pieces:
            for other, batches in self.pieces.items():
                if other[0] == stream and other[1] < lo < batches[-1].hi:
                    piece = other
                    break
            else:
                return None
        self.pieces.move_to_end(piece)
        self.used[piece] = None
        return [
            batch.slice(lo, hi) if batch.lo < lo or batch.hi > hi else batch
            for batch in self.pieces[piece]
            if batch.hi > lo and batch.lo < hi
        ]

    def drop_unused(self) -> None:
        """Drop the pieces that were not used since the last call."""
        for piece in [piece for piece in self.pieces if piece not in self.used]:
            self._drop(piece)
        self.used.clear()

    def truncated(self, stream: LogId, end: int) -> None:
        """Positions from `end` on were given up: forget what was read or is being read."""
        if self.is_cold(stream, end):
            self.below[stream] = end
        self.waiting.pop(stream, None)
        for token in self.reading:
            if token[0] == stream:
                self.reading[token] = False
                self.requested.pop(token[:2], None)
        for piece in [piece for piece in self.pieces if piece[0] == stream]:
            self._drop(piece)

    def _make_room(self, nbytes: int) -> None:
        """Drop the least recently used pieces until `nbytes` more are within the limits."""
        for piece in list(self.pieces):
            fits = self.nbytes + nbytes <= self.nbytes_max and len(self.pieces) <= PIECES_KEPT_MAX
            if fits:
                break
            if piece != self.newest:
                self._drop(piece)

    def _drop(self, piece: Piece) -> None:
        self.nbytes -= sum(batch.nbytes for batch in self.pieces.pop(piece))
        self.used.pop(piece, None)
