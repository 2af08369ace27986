"""Hypothesis strategies for streams: the batches of a stream, and helpers to read them as rows."""

from __future__ import annotations

import zlib

from hypothesis import settings
from hypothesis import strategies as st

from surecast.columns import codec
from surecast.columns.batch import HEADER_SIZE, Batch, Row
from surecast.columns.column import Columns

# Number of examples for properties with many cases: half more than for others, at most 50 more.
THOROUGH = settings().max_examples + min(50, settings().max_examples // 2)

STREAM = bytes(range(16))
PUBLISHER = b"publisher number"

items = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.sampled_from([b"", b"k", b"key", b"a key over eight bytes", b"\0", b"\0\0"]),
)
values = st.binary(max_size=20)


@st.composite
def dense(
    draw: st.DrawFn, lo: int, time_ns: int, rows_max: int = 30, tagged: bool = False
) -> Batch:
    """A sequenced dense batch."""
    rows = draw(st.integers(1, rows_max))
    column = st.lists(items, min_size=rows, max_size=rows)
    batch = Batch.of(
        STREAM,
        draw(st.lists(values, min_size=rows, max_size=rows)),
        draw(st.none() | column),
        draw(column) if tagged else None,
        publisher=PUBLISHER,
        pub_no=lo + 100,
    )
    return batch.sequenced(lo, time_ns, epoch=3)


@st.composite
def contiguous(draw: st.DrawFn, batches_max: int = 8, rows_max: int = 30) -> list[Batch]:
    """Dense batches of one stream, from position 1 or later, times rising."""
    lo = draw(st.sampled_from([1, 2, 1000]))
    time_ns = draw(st.integers(0, 10))
    tagged = draw(st.booleans())
    made = []
    for _ in range(draw(st.integers(1, batches_max))):
        made.append(draw(dense(lo, time_ns, rows_max, tagged)))
        lo = made[-1].hi
        time_ns += draw(st.integers(0, 3))
    return made


def rows_of(batches: list[Batch]) -> list[Row]:
    return [row for batch in batches for row in batch.to_rows()]


def voids_of(batches: list[Batch]) -> dict[int, int]:
    """The reason of each void position."""
    found = {}
    for batch in batches:
        live = {row.seq for row in batch.to_rows()}
        found |= {seq: batch.reason for seq in range(batch.lo, batch.hi) if seq not in live}
    return found


def plain(batch: Batch) -> Batch:
    """The same batch with the body of codec.py, as earlier builds wrote it: form 0."""
    seqs, times = (batch.seqs(), batch.times()) if batch.explicit else (None, None)
    columns = Columns(batch.keys(), batch.values(), batch.tags(), seqs, times)
    return like(batch, body=codec.encode(columns), form=0)


def like(batch: Batch, **changes: object) -> Batch:
    """A batch with changed header fields, consistent or not; CRC and size match its body."""
    fields = {name: getattr(batch, name) for name in Batch.__slots__ if not name.startswith("_")}
    fields |= changes
    fields["body_crc"] = zlib.crc32(fields["body"])
    fields["nbytes"] = HEADER_SIZE + len(fields["body"])
    return Batch(**(fields | changes))
