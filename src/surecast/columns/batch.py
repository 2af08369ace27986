"""Batch: consecutive positions of one stream and their events, handled as one unit everywhere.

A batch covers the half-open range of positions [lo, hi). Each position either has a *row*, which is
its event, or is *void*: its event is obsolete and no longer stored, or it was dropped by the filter
of a reader. All void positions of a stored batch have the same reason. A batch that was filtered
(`passing`) may have two: its `reason`, and FILTERED for the positions in `filtered`. A batch has
one of three shapes:

    dense    every position has a row; the body has no seq or time column (the normal case)
    void     no rows, no body
    sparse   0 < rows < count; the body has explicit seq and time columns

A body may also have explicit columns although every position has a row: after compaction has joined
batches of different times. On the way from publisher to subscriber only the header of a batch
changes (`sequenced`). `slice`, `without` and `coalesce` make a new body if they drop rows.

Batches are never changed once made, and may be shared freely.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from surecast.columns import codec, forms, typed
from surecast.columns.column import (
    TAGGED,
    TYPED,
    Body,
    Bools,
    Column,
    Columns,
    Int64s,
    column_of,
    concat,
    null_column,
)
from surecast.columns.intervals import IntervalSet
from surecast.errors import PeerError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from surecast.columns.typed import Attributes

__all__ = [
    "COLLECT",
    "COLLECTED",
    "CONFIG",
    "CONTROL",
    "DATA",
    "EXPIRED",
    "FILTERED",
    "HEADER_SIZE",
    "NONE",
    "NO_PUBLISHER",
    "REASONS",
    "REASON_NAMES",
    "SUPERSEDED",
    "VOID",
    "Batch",
    "Column",
    "Row",
    "coalesce",
    "filtered_bytes",
    "joined_columns",
]

HEADER_SIZE: Final = 128  # bytes of a frame's header, on the wire and in the log
NO_PUBLISHER: Final = bytes(16)  # for a batch that the region has made, or joined from several

# Kinds, which are also the frame types of the header.
DATA: Final = 1
COLLECT: Final = 2  # a GC event, which makes other events void: one row, an encoded `Collect`
CONFIG: Final = 3  # one row: an encoded retention policy, schema or End (rules.py); never void
VOID: Final = 4  # a range of void positions, without rows
CONTROL: Final = 16  # a control message of the wire, not a batch

# Why positions are void.
NONE: Final = 0  # the batch has no void positions
COLLECTED: Final = 1  # a publisher's `collect`
EXPIRED: Final = 2  # keep_last or keep_for
SUPERSEDED: Final = 3  # latest_per_key: a later event has the same key
FILTERED: Final = 4  # the filter of one reader; such batches are never stored
REASONS: Final = (COLLECTED, EXPIRED, SUPERSEDED)  # of stored batches
REASON_NAMES: Final = {
    COLLECTED: "collected", EXPIRED: "expired", SUPERSEDED: "superseded", FILTERED: "filtered",
}  # fmt: skip

_SMALL_ROWS: Final = 16  # dense batches up to this size are joined with their neighbours
_NO_CRC: Final = 0  # zlib.crc32(b"")


class Row(NamedTuple):
    """One event as Python objects: for tests and slow paths."""

    seq: int
    time_ns: int
    key: bytes | None
    value: bytes
    tag: bytes | None


class Batch:
    """Consecutive positions of one stream. The constructor does not check its arguments; it is for
    decoders and this package. Other code builds batches with the classmethods below."""

    __slots__ = (
        "_checked",
        "_columns",
        "_header",
        "_seqs",
        "_times",
        "body",
        "body_crc",
        "count",
        "epoch",
        "filtered",
        "form",
        "kind",
        "lo",
        "nbytes",
        "pub_no",
        "publisher",
        "reason",
        "rows",
        "schema_id",
        "stream_id",
        "time_ns",
    )

    def __init__(
        self,
        kind: int,
        stream_id: bytes,
        schema_id: int,
        publisher: bytes,
        pub_no: int,
        lo: int,
        count: int,
        rows: int,
        time_ns: int,
        epoch: int,
        reason: int,
        body: Body | None,
        body_crc: int,
        nbytes: int,
        form: int = 0,
        filtered: IntervalSet | None = None,
    ) -> None:
        self.kind = kind  # DATA, COLLECT, CONFIG or VOID
        self.stream_id = stream_id  # 16 bytes
        self.schema_id = schema_id  # TAGGED: the body has a column of tags; TYPED: attributes
        self.publisher = publisher  # 16 bytes
        self.pub_no = pub_no  # of the event at lo; later events have consecutive numbers
        self.lo = lo  # the first position; 0: not sequenced yet (no position was assigned)
        self.count = count  # number of positions
        self.rows = rows  # number of positions that have a row; the others are void
        self.time_ns = time_ns  # the time of the last position
        self.epoch = epoch  # the epoch of the chain in which the batch was sequenced
        self.reason = reason  # why its void positions are void; NONE if it has none
        # The void positions that a filter has dropped, if `reason` is the reason of others. None if
        # all void positions have the same reason.
        self.filtered = filtered
        self.body = body  # b"" for a void range, None for a synthetic batch
        self.body_crc = body_crc  # CRC-32
        self.nbytes = nbytes  # the size of the whole frame
        self.form = form  # the layout of the body, see forms.py
        self._header: bytes | None = None  # the encoded header of its frame, kept by core.wire
        self._checked = False  # the body is known to be valid
        self._columns: Columns | None = None  # the body, decoded and checked
        # The positions and times of the rows of a synthetic batch, if they are explicit.
        self._seqs: Int64s | None = None
        self._times: Int64s | None = None

    @property
    def hi(self) -> int:
        return self.lo + self.count

    @property
    def is_filtered(self) -> bool:
        """Whether a filter has dropped rows of this batch: then it is for one reader only."""
        return self.reason == FILTERED or self.filtered is not None

    @property
    def filtered_count(self) -> int:
        """The number of positions that a filter has dropped."""
        if self.filtered is not None:
            return self.filtered.total()
        return self.count - self.rows if self.reason == FILTERED else 0

    @property
    def is_synthetic(self) -> bool:
        return self.body is None

    def __repr__(self) -> str:
        names = {DATA: "data", COLLECT: "collect", CONFIG: "config", VOID: "void"}
        name = names.get(self.kind, str(self.kind))
        return f"Batch({name} [{self.lo}, {self.hi}) rows={self.rows} reason={self.reason})"

    # ------------------------------------------------------------ builders

    @classmethod
    def of(
        cls,
        stream_id: bytes,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        tags: Sequence[bytes | None] | None = None,
        attributes: Attributes | None = None,
        *,
        publisher: bytes = NO_PUBLISHER,
        pub_no: int = 0,
        kind: int = DATA,
        time_ns: int = 0,
    ) -> Batch:
        """A dense batch, not sequenced yet, from Python byte strings."""
        rows = len(values)
        if not rows:
            raise UsageError("a batch has at least one event")
        if attributes is not None and attributes.rows != rows:
            raise UsageError(f"attributes of {attributes.rows} events for {rows} values")
        for name, column in (("keys", keys), ("tags", tags)):
            if column is not None and len(column) != rows:
                raise UsageError(f"{len(column)} {name} for {rows} values: give one for each value")
        if rows == 1 and tags is None and attributes is None:
            key, value = None if keys is None else keys[0], values[0]
            if type(value) is bytes and (key is None or type(key) is bytes):
                row = forms.encode_row(key, value)
                if row is not None:
                    return cls(
                        kind, stream_id, 0, publisher, pub_no, 0, 1, 1, time_ns, 0, NONE,
                        row[0], zlib.crc32(row[0]), HEADER_SIZE + len(row[0]), row[1],
                    )  # fmt: skip
        value_column = column_of(values)
        if value_column.valid is not None:
            raise UsageError("a value is None; use b'' for an empty one")
        key_column = null_column(rows) if keys is None else column_of(keys)
        tag_column = None if tags is None else column_of(tags)
        columns = Columns(key_column, value_column, tag_column, attributes=attributes)
        return cls._from_columns(stream_id, columns, rows, publisher, pub_no, kind, time_ns)

    @classmethod
    def from_arrow(
        cls,
        stream_id: bytes,
        table: pa.Table | pa.RecordBatch,
        *,
        attributes: Attributes | None = None,
        publisher: bytes = NO_PUBLISHER,
        pub_no: int = 0,
        time_ns: int = 0,
    ) -> Batch:
        """A dense batch from columns `value` and, if present, `key` and `tag`. Without attributes
        there must be values."""
        from surecast.columns.arrow import columns_from_table

        columns = columns_from_table(table, None if attributes is None else attributes.rows)
        columns = columns._replace(attributes=attributes)
        rows = table.num_rows if attributes is None else attributes.rows
        return cls._from_columns(stream_id, columns, rows, publisher, pub_no, DATA, time_ns)

    @classmethod
    def _from_columns(
        cls,
        stream_id: bytes,
        columns: Columns,
        rows: int,
        publisher: bytes,
        pub_no: int,
        kind: int,
        time_ns: int,
    ) -> Batch:
        body, form = _encoded(columns, 0)
        return cls(
            kind, stream_id, columns.schema_id, publisher, pub_no, 0, rows, rows, time_ns, 0, NONE,
            body, zlib.crc32(body), HEADER_SIZE + len(body), form,
        )  # fmt: skip

    @classmethod
    def void(
        cls, stream_id: bytes, lo: int, hi: int, reason: int, *, time_ns: int = 0, epoch: int = 0
    ) -> Batch:
        """The positions [lo, hi), all void."""
        if not 0 < lo < hi or reason not in REASON_NAMES:
            raise ValueError(f"not a valid void range: [{lo}, {hi}) reason {reason}")
        return cls(
            VOID, stream_id, 0, NO_PUBLISHER, 0, lo, hi - lo, 0, time_ns, epoch, reason,
            b"", _NO_CRC, HEADER_SIZE,
        )  # fmt: skip

    @classmethod
    def synthetic(
        cls,
        stream_id: bytes,
        count: int,
        nbytes: int,
        *,
        publisher: bytes = NO_PUBLISHER,
        pub_no: int = 0,
    ) -> Batch:
        """A dense batch without a body; its frame counts as `nbytes` bytes. For simulations."""
        return cls(
            DATA, stream_id, 0, publisher, pub_no, 0, count, count, 0, 0, NONE,
            None, _NO_CRC, nbytes,
        )  # fmt: skip

    # ------------------------------------------------------------ derived batches

    def numbered(self, publisher: bytes, pub_no: int) -> Batch:
        """This batch with this publisher and number; shares the body."""
        made = Batch(
            self.kind, self.stream_id, self.schema_id, publisher, pub_no, self.lo, self.count,
            self.rows, self.time_ns, self.epoch, self.reason, self.body, self.body_crc, self.nbytes,
            self.form,
        )  # fmt: skip
        made._checked, made._columns = self._checked, self._columns
        return made

    def sequenced(self, lo: int, time_ns: int, epoch: int) -> Batch:
        """This batch with its position in the stream; shares the body."""
        if self.rows != self.count:
            raise ValueError("only a dense batch can be sequenced")
        made = Batch(
            self.kind, self.stream_id, self.schema_id, self.publisher, self.pub_no, lo,
            self.count, self.rows, time_ns, epoch, self.reason,
            self.body, self.body_crc, self.nbytes, self.form,
        )  # fmt: skip
        if not self.form & forms.EXPLICIT:  # explicit seqs were decoded for the previous `lo`
            made._checked, made._columns = self._checked, self._columns
        return made

    def relabelled(self, stream_id: bytes, kind: int) -> Batch:
        """This batch with another stream and kind, at the same positions; shares the body."""
        made = Batch(
            kind, stream_id, self.schema_id, self.publisher, self.pub_no, self.lo, self.count,
            self.rows, self.time_ns, self.epoch, self.reason, self.body, self.body_crc,
            self.nbytes, self.form,
        )  # fmt: skip
        made._checked, made._columns = self._checked, self._columns
        made._seqs, made._times = self._seqs, self._times
        return made

    def slice(self, lo: int, hi: int) -> Batch:
        """The part of this batch within [lo, hi), which must overlap it."""
        lo, hi = max(lo, self.lo), min(hi, self.hi)
        if lo >= hi:
            raise ValueError(f"[{lo}, {hi}) does not overlap {self!r}")
        if hi - lo == self.count:
            return self
        part = self._part(lo, hi)
        if self.filtered is not None:
            part._set_filtered(self.filtered.clip(lo, hi))
        return part

    def _part(self, lo: int, hi: int) -> Batch:
        """The positions [lo, hi) of this batch, whose void ones all have its `reason`."""
        first, last = lo - self.lo, hi - self.lo
        if self.rows != self.count:  # sparse: rows are not at the indices of their positions
            first, last = np.searchsorted(self.seqs(), (lo, hi)).tolist()
            if first == last:
                return self._void(lo, hi, self.reason)
        columns = None if self.body is None else self._decoded().part(first, last)
        if not self.explicit:
            return self._derived(lo, hi, last - first, columns, None, None, NONE)
        seqs, times = self.seqs()[first:last], self.times()[first:last]
        return self._derived(lo, hi, last - first, columns, seqs, times, self.reason)

    def without(self, voids: IntervalSet, reason: int) -> Batch:
        """This batch without the rows at the positions in `voids`, which become void for
        `reason`."""
        dropped = voids.clip(self.lo, self.hi) if self.rows else voids
        if not self.rows or not dropped:
            return self
        kept = np.flatnonzero(~dropped.contains_many(self.seqs()))
        if kept.size == self.rows:
            return self
        if self.kind == CONFIG:
            raise ValueError("a CONFIG event is never void")
        if self.rows < self.count and self.reason != reason:
            raise ValueError(f"{self!r} cannot also be void for reason {reason}")
        if not kept.size:
            return self._void(self.lo, self.hi, reason)
        columns = None if self.body is None else self._decoded().take(kept)
        seqs, times = self.seqs()[kept], self.times()[kept]
        return self._derived(self.lo, self.hi, kept.size, columns, seqs, times, reason)

    def passing(self, passes: Bools) -> Batch:
        """This batch for a reader with a filter: only the rows for which `passes` is true. The
        positions of the others become void with the reason FILTERED."""
        return self.passing_each([passes])[0]

    def passing_each(self, several: Sequence[Bools]) -> list[Batch]:
        """As `passing`, for several readers: the rows of all of them are copied at once."""
        if self.kind != DATA:
            return [self] * len(several)
        kept = [np.flatnonzero(passes) for passes in several]
        taken = [rows for rows in kept if 0 < rows.size < self.rows]
        columns = None
        if taken and self.body is not None:
            columns = self._decoded().take(np.concatenate(taken))
        found = []
        at = 0
        for passes, rows in zip(several, kept, strict=True):
            if rows.size == self.rows:
                found.append(self)
                continue
            part = None if columns is None else columns.part(at, at + rows.size)
            found.append(self._with_rows(rows, part, passes))
            at += rows.size
        return found

    def _with_rows(self, kept: Int64s, columns: Columns | None, passes: Bools) -> Batch:
        """This batch with the rows `kept`, for which `passes` is true; `columns` are of them."""
        seqs = self.seqs()
        if kept.size:
            times = self.times()[kept]
            made = self._derived(
                self.lo, self.hi, kept.size, columns, seqs[kept], times, self.reason or FILTERED
            )
        else:
            made = self._void(self.lo, self.hi, self.reason or FILTERED)
        if self.reason not in (NONE, FILTERED):
            dropped = IntervalSet() if self.filtered is None else self.filtered.copy()
            dropped.add_many(seqs[~passes])
            made._set_filtered(dropped)
        return made

    def _set_filtered(self, filtered: IntervalSet) -> None:
        """Finish a batch under construction: these of its void positions were filtered."""
        count = filtered.total()
        if count == self.count - self.rows:
            self.reason = FILTERED if count else NONE
        elif count:
            self.filtered = filtered
            self.nbytes += len(filtered_bytes(filtered))

    def with_reason(self, reason: int) -> Batch:
        """This batch with another reason for all of its void positions; shares the body."""
        if self.rows == self.count or self.reason == reason:
            return self
        made = Batch(
            self.kind, self.stream_id, self.schema_id, self.publisher, self.pub_no, self.lo,
            self.count, self.rows, self.time_ns, self.epoch, reason, self.body, self.body_crc,
            self.nbytes, self.form,
        )  # fmt: skip
        made._checked, made._columns = self._checked, self._columns
        made._seqs, made._times = self._seqs, self._times
        return made

    def _void(self, lo: int, hi: int, reason: int) -> Batch:
        return Batch.void(self.stream_id, lo, hi, reason, time_ns=self.time_ns, epoch=self.epoch)

    def _derived(
        self,
        lo: int,
        hi: int,
        rows: int,
        columns: Columns | None,
        seqs: Int64s | None,
        times: Int64s | None,
        reason: int,
    ) -> Batch:
        """A batch of [lo, hi), whose `rows` rows are taken from this batch. They are passed as
        `columns`, with their positions and times if these are explicit."""
        has_number = self.publisher != NO_PUBLISHER
        made = Batch(
            self.kind, self.stream_id, self.schema_id, self.publisher,
            self.pub_no + lo - self.lo if has_number else 0, lo, hi - lo, rows, self.time_ns,
            self.epoch, reason, self.body, _NO_CRC,
            HEADER_SIZE + max(0, self.nbytes - HEADER_SIZE) * rows // self.rows,
        )  # fmt: skip
        if times is not None and hi < self.hi:
            made.time_ns = int(times[-1])
        made._fill(columns, seqs, times)
        return made

    def _fill(self, columns: Columns | None, seqs: Int64s | None, times: Int64s | None) -> None:
        """Finish a batch under construction: set the body from its rows, and from their positions
        and times if these are explicit."""
        if self.rows == self.count:
            self.reason = NONE
            if times is not None and times[0] == times[-1]:  # the header's time is enough
                self.time_ns = int(times[0])
                seqs = times = None
        if columns is None:
            self.body, self._seqs, self._times = None, seqs, times
            return
        self.body, self.form = _encoded(columns._replace(seqs=seqs, times=times), self.lo)
        self.body_crc = zlib.crc32(self.body)
        self.nbytes = HEADER_SIZE + len(self.body)

    # ------------------------------------------------------------ views

    def validate(self) -> None:
        """Raise PeerError if header fields contradict each other, or if the body is not valid.

        The wire calls this once for every received batch. A body that was not checked by this is
        checked when it is first read.
        """
        if self.kind == VOID:
            if self.rows or self.count < 1 or self.lo < 1 or self.body:
                raise PeerError(f"not a valid void range: {self!r}")
        elif self.kind not in (DATA, COLLECT, CONFIG):
            raise PeerError(f"unknown kind {self.kind}")
        elif not 1 <= self.rows <= self.count or self.lo < 0:
            raise PeerError(f"row count out of bounds: {self!r}")
        elif self.kind != DATA and (self.count != 1 or self.schema_id != 0):
            raise PeerError(
                f"only DATA batches may have several events, tags or attributes: {self!r}"
            )
        if self.reason not in ((NONE,) if self.rows == self.count else REASON_NAMES):
            raise PeerError(f"the reason contradicts the row count: {self!r}")
        if self.rows < self.count and self.lo < 1:
            raise PeerError(f"void positions in a batch without a position: {self!r}")
        if self.rows and self.body is not None:
            self.check_body()
        if self.filtered is not None:
            self._check_filtered(self.filtered)

    def _check_filtered(self, filtered: IntervalSet) -> None:
        """Check the positions that a filter has dropped, of a batch that is valid otherwise."""
        lowest, highest = filtered.lowest(), filtered.highest()
        if lowest is None or highest is None or lowest < self.lo or highest >= self.hi:
            raise PeerError(f"filtered positions outside {self!r}")
        if self.reason == FILTERED or filtered.total() >= self.count - self.rows:
            raise PeerError(f"filtered positions are not all void, or all void ones: {self!r}")
        if self.rows and filtered.contains_many(self.seqs()).any():
            raise PeerError(f"filtered positions have rows: {self!r}")

    def check_body(self) -> None:
        """Check the whole body against a header that is known to be valid."""
        if self._checked:
            return
        # `forms.matches` is a fast check, which is enough for some bodies of these batches.
        is_simple = self.form and self.kind == DATA and self.rows == self.count
        if not is_simple or not self._matches(self.body or b""):
            self._decoded()
        self._checked = True

    def _matches(self, body: Body) -> bool:
        if self.schema_id & TYPED:
            types, body, section = typed.split(body)
            if not forms.matches(body, self.schema_id, self.form, self.rows):
                return False
            types.check(section, self.rows)
            return True
        return forms.matches(body, self.schema_id, self.form, self.rows)

    def _decoded(self) -> Columns:
        """The columns of the body, after checking all of it."""
        columns = self._columns
        if columns is None:
            if self.body is None:
                raise UsageError("a synthetic batch has no body, so its events cannot be read")
            columns = self._read_body(self.body)
            seqs, times = columns.seqs, columns.times
            if seqs is not None and times is not None:
                if seqs[0] < max(1, self.lo) or seqs[-1] >= self.hi or (np.diff(seqs) < 1).any():
                    raise PeerError(f"seqs out of order or outside {self!r}")
                if (np.diff(times) < 0).any():
                    raise PeerError("times decrease")
            if self.kind != DATA and (columns.keys.valid is None or columns.keys.valid.any()):
                raise PeerError("only DATA events have keys")
            self._columns = columns
        return columns

    def _read_body(self, body: Body) -> Columns:
        if not self.schema_id & TYPED:
            return self._read_base(body)
        types, base, section = typed.split(body)
        columns = self._read_base(base)
        if not self._checked:
            types.check(section, self.rows)
        return columns._replace(attributes=typed.Attributes(types, self.rows, section))

    def _read_base(self, body: Body) -> Columns:
        """Keys, values and tags, and explicit seqs and times."""
        sparse = self.rows < self.count
        if not self.form:
            explicit = True if sparse else None
            return codec.decode(body, self.schema_id & ~TYPED, self.rows, explicit=explicit)
        if sparse and not self.form & forms.EXPLICIT:
            raise PeerError(f"a body without seqs: {self!r}")
        return forms.decode(body, self.schema_id, self.form, self.rows, self.lo)

    @property
    def explicit(self) -> bool:
        """Whether the body has a seq and a time for each row."""
        if self.form:
            return bool(self.form & forms.EXPLICIT)
        if self.body is None:
            return self._seqs is not None
        return self.rows > 0 and self._decoded().seqs is not None

    def record_batch(self) -> pa.RecordBatch:
        """The rows as a pyarrow record batch; keys, values and tags are not copied.

        The columns have the same types for every form of a body: `key`, `value` and `tag` are
        binary, and `seq` and `time`, if they are explicit, are int64. So all batches of a stream
        can be put into one table. Attributes are not among them.
        """
        from surecast.columns.arrow import arrow_of, read_arrow

        if not self.body:
            raise UsageError(f"{self!r} has no body")
        if self.form:
            return arrow_of(self._decoded(), self.rows)
        base: Body = self.body
        if self.schema_id & TYPED:
            _, base, _ = typed.split(base)
        return read_arrow(base, self.schema_id & TAGGED, self.rows, self.explicit)

    def attributes(self) -> Attributes | None:
        """The typed columns of the rows; None if the batch has none."""
        return self._decoded().attributes if self.schema_id & TYPED else None

    @property
    def columns_id(self) -> tuple[int, bytes]:
        """Schema id, and the code of the types of the attributes (typed.py; b"" if there are none).
        The rows of batches with equal ids can be stored in one body."""
        return self.schema_id, typed.code_of(self.body or b"", self.schema_id)

    def seqs(self) -> Int64s:
        """The position of each row."""
        if self.form and not self.form & forms.EXPLICIT:
            return np.arange(self.lo, self.lo + self.rows, dtype=np.int64)
        seqs = self._seqs if self.body is None else self._decoded().seqs if self.body else None
        if seqs is not None:
            return seqs
        return np.arange(self.lo, self.lo + self.rows, dtype=np.int64)

    def times(self) -> Int64s:
        """The time of each row."""
        if self.form and not self.form & forms.EXPLICIT:
            return np.full(self.rows, self.time_ns, np.int64)
        times = self._times if self.body is None else self._decoded().times if self.body else None
        return times if times is not None else np.full(self.rows, self.time_ns, np.int64)

    def holes(self) -> IntervalSet:
        """The void positions of this batch."""
        if not self.rows:
            return IntervalSet([(self.lo, self.hi)])
        seqs = self.seqs()
        return IntervalSet.from_arrays(np.append(self.lo, seqs + 1), np.append(seqs, self.hi))

    def void_runs(self) -> tuple[Int64s, Int64s, Int64s]:
        """The void positions as runs [lo, hi) in order: their starts, their ends and the reason of
        each."""
        los, his = self.holes().to_arrays()
        filtered = self.filtered
        if filtered is None:
            return los, his, np.full(los.size, self.reason, np.int64)
        other = self.holes().difference(filtered).to_arrays()
        dropped = filtered.to_arrays()
        los, his = (np.concatenate(pair) for pair in zip(other, dropped, strict=True))
        reasons = np.repeat([self.reason, FILTERED], [other[0].size, dropped[0].size])
        order = np.argsort(los)
        return los[order], his[order], reasons[order]

    def keys(self) -> Column:
        return self._decoded().keys

    def fixed_keys(self, width: int) -> Body | None:
        """The keys, joined without separators, if the body has a fixed-size key column of this
        width; else None."""
        self.check_body()
        body: Body = self.body or b""
        if self.schema_id & TYPED:
            _, body, _ = typed.split(body)
        return forms.fixed_keys(body, self.schema_id, self.form, self.rows, width)

    @property
    def is_fixed(self) -> bool:
        """Whether the batch is dense, and its body has exactly two columns, keys and values, both
        of fixed size."""
        return self.rows == self.count and forms.is_fixed(self.schema_id, self.form)

    def values(self) -> Column:
        return self._decoded().values

    def tags(self) -> Column | None:
        return self._decoded().tags

    def single_row(self) -> tuple[bytes | None, bytes] | None:
        """Key and value, if this is one DATA event in fixed-size columns, else None."""
        if self.count != 1 or self.kind != DATA or self.schema_id or not self.form:
            return None
        self.check_body()
        return forms.read_row(self.body or b"", self.form) if self.body else None

    def to_rows(self) -> list[Row]:
        """Every event as a Python object: for tests and slow paths only."""
        if not self.rows:
            return []
        columns = self._decoded()
        tags: list[bytes | None] = [None] * self.rows
        if columns.tags is not None:
            tags = columns.tags.to_list()
        values: Any = columns.values.to_list()
        return [
            Row(*row)
            for row in zip(
                self.seqs().tolist(),
                self.times().tolist(),
                columns.keys.to_list(),
                values,
                tags,
                strict=True,
            )
        ]


def coalesce(
    batches: Sequence[Batch], rows_max: int, *, small_rows: int = _SMALL_ROWS
) -> list[Batch]:
    """The same positions and rows in fewer batches, for catch-up and compaction.

    The input is contiguous: each batch begins where the one before ends. Neighbouring void ranges,
    sparse batches and small dense batches are joined as long as their void positions have the same
    reason and they have at most `rows_max` rows together. Larger dense batches, COLLECT and CONFIG
    events, and batches with filtered positions beside others, are returned as the same objects.
    """
    joined: list[Batch] = []
    group: list[Batch] = []
    rows = reason = 0
    for batch in batches:
        if group and batch.lo != group[-1].hi:
            raise ValueError(f"{batch!r} does not follow {group[-1]!r}")
        alone = (
            batch.kind in (COLLECT, CONFIG)
            or (batch.rows == batch.count and batch.rows > small_rows)
            or batch.filtered is not None
        )
        if group and (
            alone
            or rows + batch.rows > rows_max
            or (reason and batch.reason and reason != batch.reason)
            or not _can_join(group, batch)
        ):
            joined.append(_join(group, reason))
            group, rows, reason = [], 0, 0
        if alone:
            joined.append(batch)
            continue
        group.append(batch)
        rows += batch.rows
        reason = reason or batch.reason
    if group:
        joined.append(_join(group, reason))
    return joined


def filtered_bytes(filtered: IntervalSet) -> bytes:
    """`Batch.filtered` as it is in a frame, before the body: the size, the runs, zeros to a
    multiple of 8 bytes."""
    runs = filtered.to_bytes()
    return b"".join((len(runs).to_bytes(4, "little"), runs, bytes(-(4 + len(runs)) % 8)))


def joined_columns(parts: Sequence[Columns]) -> Columns:
    """Keys, values, tags and attributes, concatenated. All parts have the same columns."""
    tags = [part.tags for part in parts if part.tags is not None]
    attributes = [part.attributes for part in parts if part.attributes is not None]
    return Columns(
        concat([part.keys for part in parts]),
        concat([part.values for part in parts]),
        concat(tags) if tags else None,
        attributes=typed.join_attributes(attributes) if attributes else None,
    )


def _encoded(columns: Columns, lo: int) -> tuple[bytes, int]:
    """The body for these columns, and its form."""
    base, form = forms.encode(columns, lo)
    if columns.attributes is None:
        return base, form
    return typed.wrap(base, columns.attributes), form


def _can_join(group: list[Batch], batch: Batch) -> bool:
    """Whether the rows of `batch` can be stored in one body with those of `group`."""
    for other in group:
        if other.rows and batch.rows:  # all batches of a group that have rows are alike
            return other.columns_id == batch.columns_id and (other.body is None) == (
                batch.body is None
            )
    return True


def _join(group: list[Batch], reason: int) -> Batch:
    """One batch of all the positions of `group`."""
    if len(group) == 1:
        return group[0]
    first, last = group[0], group[-1]
    live = [batch for batch in group if batch.rows]
    time_ns = max(batch.time_ns for batch in group)
    epoch = max(batch.epoch for batch in group)
    if not live:
        return Batch.void(first.stream_id, first.lo, last.hi, reason, time_ns=time_ns, epoch=epoch)
    made = Batch(
        DATA, first.stream_id, live[0].schema_id, NO_PUBLISHER, 0, first.lo, last.hi - first.lo,
        sum(batch.rows for batch in live), time_ns, epoch, reason, None, _NO_CRC,
        HEADER_SIZE + sum(max(0, batch.nbytes - HEADER_SIZE) for batch in live),
    )  # fmt: skip
    columns = None
    if live[0].body is not None:
        columns = joined_columns([batch._decoded() for batch in live])
    seqs = np.concatenate([batch.seqs() for batch in live])
    times = np.concatenate([batch.times() for batch in live])
    made._fill(columns, seqs, times)
    return made
