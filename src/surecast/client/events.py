"""Event and Seqs: the results of reading and of publishing. Also converts batches to events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, Final, Literal, overload

import msgspec
import numpy as np

from surecast.columns.batch import DATA, REASON_NAMES, VOID, Batch
from surecast.columns.column import Column
from surecast.columns.schema import Schema
from surecast.core.endpoint import Lost
from surecast.endpoint.attributes import fields_of
from surecast.endpoint.prepared import joined

__all__ = ["Event", "Kind", "Seqs", "events_of", "lost_event", "void_reason"]

Kind = Literal["event", "void", "lost"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FEW: Final = 4  # with so few rows, `_strings` is faster without the check for equal lengths


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event of a stream, or a range of positions without events (kind "void" or "lost").

    All positions of a *void* range are obsolete. Its `reason` is "superseded" (latest_per_key, when
    later events have the same keys), "expired" (keep_last, keep_for), "collected" (a publisher
    declared the events obsolete), "control" (the position of an instruction in the stream, such as
    a `collect`) or "filtered" (the events do not pass the filter of the subscription).

    Events in a *lost* range were published and cannot be delivered, because no reachable server has
    them any more. Its `reason` is a text that says why. If the stream's delivery has no positions,
    `count` of a lost range is 0.

    `seq` of a range is its last position, so `event.seq + 1` is always the next position to read. A
    range has no key and no tag (None), and its value is b"".
    """

    stream: str  # the name of the stream
    seq: int  # the position
    key: bytes | None
    value: bytes
    # When the stream's owner accepted the event, in nanoseconds since 1970. Times never decrease
    # with rising `seq`. A lost range has 0.
    time_ns: int
    tag: bytes | None = None
    kind: Kind = "event"
    count: int = 1  # the number of positions in the range; 1 for an event
    reason: str = ""  # of a range, see above; "" for an event
    schema: Schema | None = None  # of the stream, if it has one: names and types ...
    fields: tuple[Any, ...] = ()  # ... of these values, which `attributes` has by name

    def __hash__(self) -> int:
        return hash((self.stream, self.seq, self.key, self.value, self.kind, self.count))

    @property
    def time(self) -> datetime:
        """When the stream's owner accepted the event, to the microsecond; `time_ns` is exact."""
        return _EPOCH + timedelta(microseconds=self.time_ns // 1000)

    @property
    def range(self) -> range:
        """The positions of the range, or of the event: from `range.start` to `range.stop` - 1."""
        return range(self.seq + 1 - self.count, self.seq + 1)

    @property
    def attributes(self) -> dict[str, Any]:
        """The event's attributes by name, in the order of the stream's schema, and its tag, if it
        has one. Timestamps are datetimes in UTC. Timestamps in nanoseconds, and times that a
        datetime cannot have, are the number since 1970, in the unit of the column."""
        found: dict[str, Any] = {}
        if self.schema is not None:
            found = dict(zip(self.schema.names, self.fields, strict=False))
        if self.tag is not None:
            found["tag"] = self.tag
        return found


class Seqs:
    """The positions of the events of one `publish_many`, in the order of the values.

        seqs = await stream.publish_many([b"a", b"b", b"c"])
        seqs.first, seqs.last, len(seqs), list(seqs), seqs.runs  # 1, 3, 3, [1, 2, 3], ((1, 4),)

    A run is a half-open range of consecutive positions. There is usually one. There are several if
    other publishers' events got positions in between.
    """

    __slots__ = ("_length", "runs")

    runs: tuple[tuple[int, int], ...]  # half-open

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        self.runs = tuple(joined(runs))
        self._length = sum(hi - lo for lo, hi in self.runs)

    @property
    def first(self) -> int:
        return self.runs[0][0]

    @property
    def last(self) -> int:
        return self.runs[-1][1] - 1

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        for lo, hi in self.runs:
            yield from range(lo, hi)

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and any(lo <= seq < hi for lo, hi in self.runs)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        offset = index + self._length if index < 0 else index
        for lo, hi in self.runs:
            if 0 <= offset < hi - lo:
                return lo + offset
            offset -= hi - lo
        raise IndexError(f"index {index} is out of range: there are {self._length} positions")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seqs) and other.runs == self.runs

    def __hash__(self) -> int:
        return hash(self.runs)

    def __repr__(self) -> str:
        return f"Seqs({', '.join(f'[{lo}, {hi})' for lo, hi in self.runs)})"


# ---------------------------------------------------------------- batches as events


def events_of(batch: Batch, stream: str, voids: bool, schema: Schema | None = None) -> list[Event]:
    """The events of a batch; with `voids` also void ranges for all its other positions. `schema` is
    the stream's."""
    if batch.kind != DATA:
        if not voids:
            return []
        return _with_voids(batch, stream, [])
    row = batch.single_row()  # a fast path for a batch of one event: its key and value, or None
    if row is not None:
        return [Event(stream, batch.lo, *row, batch.time_ns)]
    values = _strings(batch.values())
    columns: list[Iterable[Any]] = [
        repeat(stream),
        range(batch.lo, batch.hi),
        _keys(batch),
        values,
        repeat(batch.time_ns),
    ]
    tags, attributes = batch.tags(), batch.attributes()
    if tags is not None:
        columns.append(_strings(tags))
    if attributes is not None and schema is not None:
        if tags is None:
            columns.append(repeat(None))
        fields = fields_of(attributes)
        added = len(schema.names) - len(attributes.types)
        if added > 0:  # published with an earlier version of the schema
            fields = [row + (None,) * added for row in fields]
        elif added:  # with a later one, which no server knows any more
            fields = [row[:added] for row in fields]
        columns += [repeat("event"), repeat(1), repeat(""), repeat(schema), fields]
    if batch.explicit:  # the batch has a position and a time for each event
        columns[1], columns[4] = batch.seqs().tolist(), batch.times().tolist()
    # The columns are in the order of Event's fields. `map` runs no Python code for each row.
    events = list(map(Event, *columns))
    if voids and batch.rows < batch.count:
        return _with_voids(batch, stream, events)
    return events


def void_reason(batch: Batch) -> str:
    """The `reason` that users get for positions of this batch that hold no event."""
    return REASON_NAMES[batch.reason] if batch.kind in (DATA, VOID) else "control"


def lost_event(stream: str, lost: Lost) -> Event:
    """A lost range as the Event that users get. It has no time."""
    return Event(stream, lost.hi - 1, None, b"", 0, None, "lost", lost.hi - lost.lo, lost.why)


def _keys(batch: Batch) -> Iterable[bytes | None]:
    column = batch.keys()
    # A batch in which no event has a key is common, and can be recognised quickly.
    if column.valid is not None and not column.data.size and not column.valid.any():
        return repeat(None)
    return _strings(column)


def _strings(column: Column) -> list[Any]:
    """The rows of a column as a list. Usually all rows have the same length. Then numpy splits them
    in a fifth of the time that slicing takes in Python."""
    offsets = column.offsets
    first, last = int(offsets[0]), int(offsets[-1])
    rows = offsets.size - 1
    width = (last - first) // rows
    if column.valid is None and width and rows > _FEW:
        if column.width == width or (np.diff(offsets) == width).all():
            strings: list[Any] = column.data[first:last].view(f"V{width}").tolist()
            return strings
    return column.to_list()


def _void(stream: str, lo: int, hi: int, time_ns: int, reason: str) -> Event:
    """A range of void positions, as the Event that users get."""
    return Event(stream, hi - 1, None, b"", time_ns, None, "void", hi - lo, reason)


def _with_voids(batch: Batch, stream: str, events: list[Event]) -> list[Event]:
    """The events of a batch, and a void range for each run of positions without events and with the
    same reason. The range has the time of the next event, or of the batch if no event follows."""
    items: list[Event] = []
    if batch.filtered is not None:
        waiting = deque(events)
        los, his, reasons = (column.tolist() for column in batch.void_runs())
        for lo, hi, why in zip(los, his, reasons, strict=True):
            while waiting and waiting[0].seq < lo:
                items.append(waiting.popleft())
            time_ns = waiting[0].time_ns if waiting else batch.time_ns
            items.append(_void(stream, lo, hi, time_ns, REASON_NAMES[why]))
        return [*items, *waiting]
    reason, at, time_ns = void_reason(batch), batch.lo, batch.time_ns
    for event in events:
        if at < event.seq:
            items.append(_void(stream, at, event.seq, event.time_ns, reason))
        items.append(event)
        at = event.seq + 1
    if at < batch.hi:
        items.append(_void(stream, at, batch.hi, time_ns, reason))
    return items
