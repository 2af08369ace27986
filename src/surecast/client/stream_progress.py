"""The progress of a subscription in one stream: which positions it has received and read.

A subscription *follows* a stream: it asks the reader's node to deliver the stream from a position
on. When its buffer is full, it stops following the stream, and follows it again when there is room.
Events of the earlier delivery may still arrive after that. So the part of a delivered batch that
was received before, or lies outside the start and stop of the subscription, is dropped. The rest is
*admitted*: it goes into the buffer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from surecast.columns.batch import Batch
from surecast.columns.column import TYPED
from surecast.columns.rules import is_end, schema_after
from surecast.columns.schema import extends, read_schema
from surecast.core.endpoint import Ended, Lost
from surecast.core.streams import StreamInfo
from surecast.endpoint.readers import Reader

if TYPE_CHECKING:
    from surecast.where.batches import BatchFilter

__all__ = ["NEVER", "StreamProgress", "UnorderedProgress"]

log = logging.getLogger("surecast.client")

NEVER: Final = 1 << 63  # the stop of a stream that is read until the subscription is closed


class StreamProgress:
    """The progress in a stream whose events have consecutive positions (`Delivery.ordered`). Each
    position is admitted once."""

    __slots__ = (
        "acked",
        "awaited",
        "before_ns",
        "event_end",
        "filter",
        "finished",
        "info",
        "name",
        "next",
        "not_before_ns",
        "paused",
        "read",
        "reader",
        "schema",
        "start_ns",
        "stop",
        "stream",
        "unnamed",
    )

    def __init__(
        self,
        info: StreamInfo,
        reader: Reader,
        start: int,
        not_before_ns: int = 0,
        stop: int = NEVER,
        before_ns: int = 0,
        chosen: BatchFilter | None = None,
    ) -> None:
        self.info = info
        self.stream = info.stream_id
        # A new string object. All events of this stream have this object as `stream`, which
        # distinguishes them from events of a deleted stream of the same name (by identity).
        self.name = f"{info.name}."[:-1]
        # The schema after the last event that was taken out of the buffer, or a later one.
        self.schema = read_schema(info.schema) if info.schema else None
        self.unnamed = False  # columns that `schema` lacks are left out: no server knows them
        self.reader = reader
        self.next = start  # the first position that was not received
        # The first position that is not processed. The user has got everything below it, and has
        # asked for the next item since.
        self.read = start
        self.acked = start  # the first position that the user has not acknowledged with `ack`
        self.event_end = start  # the position after the last event that the user has got
        self.filter = chosen  # None: the subscription has no filter
        # The token of a Follow that the reader's node has not confirmed. Until then, filtered
        # batches may have been filtered by another filter. 0: there is none.
        self.awaited = 0
        self.paused = False  # whether it is not followed because the buffer is full
        # Older events are left out; 0: no limit, or `not_before_ns`: no older ones will come.
        self.not_before_ns = self.start_ns = not_before_ns
        self.stop = stop  # the first position that is not read, or NEVER
        self.before_ns = before_ns  # events from this time on are left out; 0: no limit
        self.finished = False  # all positions below `stop` were received; the reader is released

    def admit(self, batch: Batch) -> Batch | None:
        """The part of `batch` that is new and within the limits, or None."""
        if batch.hi <= self.next:
            return None  # all of it was received before
        if batch.lo > self.next:
            self._log_gap(batch)
            return None
        if self.awaited and batch.is_filtered:
            self._log_gap(batch)
            return None
        if self.before_ns:
            self._look_for_stop(batch)
        end = min(batch.hi, self.stop)
        if end <= self.next:
            return None
        if batch.lo < self.next or end < batch.hi:
            batch = batch.slice(self.next, end)
        self.next = end
        return self.wanted(batch) if self.not_before_ns else batch

    def apply(self, config: Batch) -> None:
        """Apply a CONFIG event, which may change the schema."""
        if self.schema is not None:
            self.take_schema(schema_after(self.schema.text, config))

    def take_schema(self, schema: str) -> None:
        """Use this schema from now on, if it extends the one before."""
        if self.schema is not None and schema != self.schema.text:
            if extends(schema, self.schema.text):
                self.schema = read_schema(schema)

    def lacks(self, batch: Batch) -> bool:
        """Whether a batch has columns that the schema lacks: it was changed before the first event
        that is read. Then the region must be asked."""
        if not batch.schema_id & TYPED or self.schema is None or self.unnamed:
            return False
        return len(batch.columns_id[1]) > len(self.schema.types.code)

    def _look_for_stop(self, batch: Batch) -> None:
        """If the batch has events at or after `before_ns`, set `stop` to the position of the first
        one. (Void positions have no times, so they are not considered.)"""
        if batch.rows and int(batch.times()[-1]) >= self.before_ns:
            first = int(batch.seqs()[np.searchsorted(batch.times(), self.before_ns)])
            self.stop = min(self.stop, max(first, self.next))

    def wanted(self, batch: Batch) -> Batch | None:
        """The part of `batch` from `not_before_ns` on, or None if all of it is older.

        Older events arrive if the region's copy of the stream ended before that time when the
        subscription began: the subscription then starts at the end of this copy.
        """
        if is_end(batch):
            return batch  # the stream is deleted: no newer events will come
        if batch.rows and int(batch.times()[-1]) >= self.not_before_ns:
            first = int(batch.seqs()[np.searchsorted(batch.times(), self.not_before_ns)])
            self.not_before_ns = 0  # times never decrease, so later events need no check
            return batch if first == batch.seqs()[0] else batch.slice(first, batch.hi)
        return None

    def admit_lost(self, lost: Lost) -> Lost | None:
        """The part of a lost range that is new and below the stop, or None.

        The times of lost events are unknown, so `not_before_ns` is not applied to them.
        """
        if lost.hi <= self.next:
            return None
        if lost.lo > self.next:
            self._log_gap(lost)
            return None
        end = min(lost.hi, self.stop)
        if end <= self.next:
            return None
        new = Lost(lost.stream, self.next, end, lost.why)
        self.next = end
        return new

    def is_behind(self, ended: Ended) -> bool:
        """Whether the end of a deleted stream is at or before the next position. If not, the event
        belongs to an earlier delivery, from a later position."""
        return ended.end <= self.next

    def _log_gap(self, item: Batch | Lost) -> None:
        """Log that an item was dropped because positions before it are missing, or because it was
        filtered by another filter. It belongs to an earlier delivery. The current one will deliver
        those positions again."""
        log.debug("%s: %r, but %d is next", self.name, item, self.next)

    def follow(self) -> Lost | None:
        """Follow the stream, for the first time or after a pause. Returns a lost range if events
        were lost during the pause."""
        self.paused = False
        self._follow(self.next)
        return None

    def _follow(self, start: int) -> None:
        where = "" if self.filter is None else self.filter.where
        self.awaited = self.reader.follow(self.stream, start, where)

    def following(self, token: int) -> None:
        """The reader's node has confirmed a Follow."""
        if token == self.awaited:
            self.awaited = 0

    def change(self, chosen: BatchFilter | None, begin: int) -> None:
        """From `begin` on, this filter decides which events pass. Everything that was received and
        not read is received again."""
        self.filter = chosen
        self.next = begin
        self.not_before_ns = self.start_ns


class UnorderedProgress(StreamProgress):
    """The progress in a stream whose events have no positions: every batch is admitted.

    Events published while the stream is not followed are lost. The user gets one event of kind
    "lost" for them.
    """

    __slots__ = ()

    def admit(self, batch: Batch) -> Batch | None:
        return batch

    def is_behind(self, ended: Ended) -> bool:
        return True

    def admit_lost(self, lost: Lost) -> Lost | None:
        return lost

    def follow(self) -> Lost | None:
        # Position 0 means the end of the stream. The start position is used only the first time.
        first, self.next = self.next, 0
        paused, self.paused = self.paused, False
        self._follow(first)
        if not paused or first:
            return None  # no pause, or a pause before the stream was followed the first time
        return Lost(
            self.stream,
            0,
            0,
            "the buffer of this subscription was full (ClientOptions.buffer_bytes_max), and events "
            "published until there was room again were not received",
        )
