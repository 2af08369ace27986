"""Batches as lists of events."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final

import numpy as np

from surecast.client.events import Event
from surecast.columns.batch import DATA, REASON_NAMES, VOID, Batch
from surecast.columns.column import Column
from surecast.core.endpoint import Lost

__all__ = ["events_of", "lost_event", "void_reason"]

_FEW: Final = 4  # up to so many rows the check for equal lengths costs more than it saves


def events_of(batch: Batch, stream: str, voids: bool) -> list[Event]:
    """The events of a batch; with `voids` also void ranges for all its other positions."""
    if batch.kind != DATA:
        if not voids:
            return []
        return [_void(stream, batch.lo, batch.hi, batch.time_ns, void_reason(batch))]
    row = batch.single_row()
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
    tags = batch.tags()
    if tags is not None:
        columns.append(_strings(tags))
    if batch.explicit:
        columns[1], columns[4] = batch.seqs().tolist(), batch.times().tolist()
    # The struct is called from C, row by row: no Python code runs in between.
    events = list(map(Event, *columns))
    if voids and batch.rows < batch.count:
        return _with_voids(batch, stream, events)
    return events


def void_reason(batch: Batch) -> str:
    """The `reason` for users of the positions of a batch that hold no event."""
    return REASON_NAMES[batch.reason] if batch.kind in (DATA, VOID) else "control"


def lost_event(stream: str, lost: Lost) -> Event:
    """A lost range as an event for users, without a time."""
    return Event(stream, lost.hi - 1, None, b"", 0, None, "lost", lost.hi - lost.lo, lost.why)


def _keys(batch: Batch) -> Iterable[bytes | None]:
    column = batch.keys()
    if column.valid is not None and not column.data.size and not column.valid.any():
        return repeat(None)
    return _strings(column)


def _strings(column: Column) -> list[Any]:
    """The rows of a column. If all have the same length, the usual case, numpy splits them in a
    fifth of the time of Python's slices."""
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
    return Event(stream, hi - 1, None, b"", time_ns, None, "void", hi - lo, reason)


def _with_voids(batch: Batch, stream: str, events: list[Event]) -> list[Event]:
    items: list[Event] = []
    reason, at, time_ns = void_reason(batch), batch.lo, batch.time_ns
    for event in events:
        if at < event.seq:
            items.append(_void(stream, at, event.seq, event.time_ns, reason))
        items.append(event)
        at = event.seq + 1
    if at < batch.hi:
        items.append(_void(stream, at, batch.hi, time_ns, reason))
    return items
