"""The data of a segment store as state machines read it: batches in memory and in segments.

A log is a list of *pieces*: batches, extents (consecutive batches in a segment, extents.py), and
holes (positions that cannot be read).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final

from surecast.core.types import Batch, LogId
from surecast.storage.extents import Extent
from surecast.storage.memory import Hole, Log, MemoryDisk

__all__ = ["SegmentDisk", "batches_of"]

_PINS_RATIO: Final = 2  # a larger buffer, as a multiple of the body's size, is not kept; see `own`


class SegmentDisk(MemoryDisk):
    """A `MemoryDisk` most of whose batches are in segments, not in memory.

    After the same changes, it returns the same batches as a MemoryDisk. So if a change cuts an
    extent inside a batch, the remaining part of this batch becomes a piece of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dirty: dict[LogId, None] = {}  # logs changed since `take_dirty`

    def read(self, log: LogId, lo: int, hi: int, nbytes_max: int) -> list[Batch]:
        found = self._logs.get(log)
        if found is None:
            return []
        lo, hi = max(lo, 1), min(hi, found.end)
        if lo >= hi:
            return []
        first = bisect_right(found.starts, lo) - 1
        return batches_of(found.pieces, lo, hi, nbytes_max, first)

    def first_at(self, log: LogId, time_ns: int, lo: int, hi: int) -> int:
        found = self._logs.get(log)
        if found is None:
            return hi
        lo = max(lo, 1)
        for index in range(max(bisect_right(found.starts, lo) - 1, 0), len(found.pieces)):
            piece = found.pieces[index]
            if piece.lo >= hi:
                break
            if type(piece) is Extent:
                at = piece.first_at(time_ns, lo, hi)
                if at is not None:
                    return at
            elif piece.time_ns >= time_ns and piece.hi > lo:
                return int(max(piece.lo, lo))
        return hi

    def append(self, log: LogId, batches: Sequence[Batch], scope: int = 0) -> None:
        super().append(log, [own(batch) for batch in batches], scope)
        self._dirty[log] = None

    def repair(self, log: LogId, batches: Sequence[Batch]) -> None:
        super().repair(log, [own(batch) for batch in batches])

    # ------------------------------------------------------------ moves

    def load(self, log: LogId, pieces: list[Any]) -> None:
        """Set a log to the manifest's pieces: extents and holes."""
        found = self._log(log)
        found.replace(0, 0, pieces)
        self.nbytes += sum(piece.nbytes for piece in pieces)
        self._holed = self._holed or any(type(piece) is Hole for piece in pieces)

    def take_dirty(self) -> dict[LogId, list[Any]]:
        """The pieces of all logs that were changed since the last call."""
        dirty, self._dirty = self._dirty, {}
        return {log: list(self._log(log).pieces) for log in dirty}

    def scopes(self, logs: Iterable[LogId]) -> dict[LogId, int]:
        """The scopes of these logs, where they are known."""
        return {log: scope for log in logs if (scope := self.scope_of(log))}

    def dirty_again(self, logs: Sequence[LogId]) -> None:
        """Let the next `take_dirty` return these logs again, because their move has failed."""
        self._dirty.update(dict.fromkeys(logs))

    def pieces_from(self, log: LogId, lo: int, hi: int, nbytes_max: int) -> list[Any]:
        """The pieces that `read` with these arguments would need."""
        found = self._logs.get(log)
        if found is None:
            return []
        lo, hi = max(lo, 1), min(hi, found.end)
        pieces: list[Any] = []
        nbytes = 0  # of all pieces but the first, of which only a part may be needed
        for index in range(max(bisect_right(found.starts, lo) - 1, 0), len(found.pieces)):
            piece = found.pieces[index]
            if piece.lo >= hi or nbytes > nbytes_max:
                break
            nbytes += piece.nbytes if pieces else 0
            pieces.append(piece)
        return pieces

    def cold_ends(self) -> dict[LogId, int]:
        """For each log with extents, the end of the last one."""
        found = {}
        for name, log in self._logs.items():
            for piece in reversed(log.pieces):
                if type(piece) is Extent:
                    found[name] = piece.hi
                    break
        return found

    def pieces(self, log: LogId, lo: int, hi: int) -> list[Any]:
        """The pieces that cover [lo, hi), which the log holds."""
        found = self._log(log)
        first, last = bisect_right(found.starts, lo) - 1, bisect_right(found.starts, hi - 1)
        return found.pieces[first:last]

    def moved(self, log: LogId, old: Sequence[Any], new: Extent) -> None:
        """Replace the consecutive pieces `old` by the extent `new`, which has the same content.

        Pieces of `old` that the log no longer has are skipped: then only parts of `new` are used.
        The caller may split a long list of pieces into several calls.
        """
        found = self._log(log)
        index = max(bisect_right(found.starts, new.lo) - 1, 0)  # of a piece of the log
        at = 0  # index of the piece of `old` that is looked for in the log
        while index < len(found.pieces) and at < len(old):
            piece = found.pieces[index]
            if piece.lo < old[at].lo:
                index += 1
            elif piece is not old[at]:
                at += 1
            else:
                count = 1
                while (
                    at + count < len(old)
                    and index + count < len(found.pieces)
                    and found.pieces[index + count] is old[at + count]
                ):
                    count += 1
                # A part of `new` that an earlier call has put before this piece is joined.
                lo, first = piece.lo, index
                if index and _goes_on(found.pieces[index - 1], new, lo):
                    first = index - 1
                    lo = found.pieces[first].lo
                part = new.clip(lo, old[at + count - 1].hi)
                replaced = found.replace(first, index + count, [part])
                self.nbytes += part.nbytes - sum(piece.nbytes for piece in replaced)
                index = first + 1
                at += count

    @property
    def held_bytes(self) -> int:
        """Bytes of batches in memory. For tests and measurements: it visits every piece."""
        return sum(
            piece.nbytes
            for log in self._logs.values()
            for piece in log.pieces
            if type(piece) is Batch
        )

    # ------------------------------------------------------------ inside

    def _replace(self, log: Log, first: int, last: int, pieces: list[Any]) -> None:
        super()._replace(log, first, last, pieces)
        self._dirty[log.name] = None

    def _below(self, piece: Any, end: int) -> list[Any]:
        if type(piece) is not Extent:
            return super()._below(piece, end)
        cut = piece.batch_at(end - 1)  # the batch that contains the cut
        whole = [piece.clip(piece.lo, cut.lo)] if cut.lo > piece.lo else []
        if cut.hi == end:
            return [piece.clip(piece.lo, end)]
        return [*whole, own(cut.slice(cut.lo, end))]

    def _above(self, piece: Any, lo: int) -> list[Any]:
        if type(piece) is not Extent:
            return super()._above(piece, lo)
        cut = piece.batch_at(lo)  # the batch that contains the cut
        if cut.lo == lo:
            return [piece.clip(lo, piece.hi)]
        whole = [piece.clip(cut.hi, piece.hi)] if cut.hi < piece.hi else []
        return [own(cut.slice(lo, cut.hi)), *whole]


def _goes_on(piece: Any, new: Extent, lo: int) -> bool:
    """Whether `piece` is the part of `new` that ends at `lo`."""
    return (
        type(piece) is Extent
        and piece.segment is new.segment
        and piece.run == new.run
        and piece.hi == lo
    )


def batches_of(
    pieces: Sequence[Any], lo: int, hi: int, nbytes_max: int = 1 << 62, first: int = 0
) -> list[Batch]:
    """The batches of [lo, hi), cut at lo and hi, from pieces that cover this range.

    Stops after the batch that exceeds `nbytes_max` bytes in total, and before a hole. Raises
    `Unreadable` if the range begins with a hole. `first` is the index of the piece to begin with.
    """
    out: list[Batch] = []
    nbytes = 0
    for index in range(first, len(pieces)):
        piece = pieces[index]
        if piece.lo >= hi:
            break
        if piece.hi <= lo:
            continue
        if type(piece) is Hole:
            if not out:
                raise piece.problem()
            break
        for batch in (piece,) if type(piece) is Batch else piece.batches(lo, hi):
            if batch.lo < lo or batch.hi > hi:
                batch = batch.slice(lo, hi)
            out.append(batch)
            nbytes += batch.nbytes
            if nbytes > nbytes_max:
                return out
    return out


def own(batch: Batch) -> Batch:
    """The batch, with a copy of its body if the body is a small part of a large buffer.

    A received body is a view into a receive buffer. Without the copy, a small batch would keep the
    whole buffer in memory.
    """
    body = batch.body
    if type(body) is not memoryview:
        return batch
    whole = body.obj
    if len(whole) <= _PINS_RATIO * len(body):  # type: ignore[arg-type]
        return batch
    return Batch(
        batch.kind, batch.stream_id, batch.schema_id, batch.publisher, batch.pub_no, batch.lo,
        batch.count, batch.rows, batch.time_ns, batch.epoch, batch.reason, bytes(body),
        batch.body_crc, batch.nbytes, batch.form,
    )  # fmt: skip
