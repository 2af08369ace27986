"""How far a subscription has come in one stream.

What a reader delivers is admitted or not: a stream is followed anew after a pause, and until then
events of the earlier follow still arrive.
"""

from __future__ import annotations

import logging

import numpy as np

from surecast.columns.batch import Batch
from surecast.core.endpoint import Lost
from surecast.core.streams import StreamInfo
from surecast.endpoint.readers import Reader

__all__ = ["StreamProgress", "UnorderedProgress"]

log = logging.getLogger("surecast.client")


class StreamProgress:
    """Of a stream whose events have dense rising positions: each position is admitted once."""

    __slots__ = ("acked", "name", "next", "not_before_ns", "paused", "read", "reader", "stream")

    def __init__(
        self, info: StreamInfo, reader: Reader, start: int, not_before_ns: int = 0
    ) -> None:
        self.stream = info.stream_id
        self.name = info.name
        self.reader = reader
        self.next = start  # the first position that is not here
        self.read = start  # everything below was handed out, and the user has asked for more
        self.acked = start  # the first position that the user has not acknowledged by hand
        self.paused = False
        self.not_before_ns = not_before_ns  # older events are not wanted; 0: none are too old

    def admit(self, batch: Batch) -> Batch | None:
        """The part of `batch` that was not here and is wanted."""
        if batch.hi <= self.next:
            return None  # sent again after a pause
        if batch.lo > self.next:
            self._log_gap(batch)
            return None
        if batch.lo < self.next:
            batch = batch.slice(self.next, batch.hi)
        self.next = batch.hi
        return self.wanted(batch) if self.not_before_ns else batch

    def wanted(self, batch: Batch) -> Batch | None:
        """The part of `batch` that is not too old. A region that is behind what the time asked for
        begins at its own end, and older events may come first."""
        if batch.rows and int(batch.times()[-1]) >= self.not_before_ns:
            first = int(batch.seqs()[np.searchsorted(batch.times(), self.not_before_ns)])
            self.not_before_ns = 0  # time never runs backwards
            return batch if first == batch.seqs()[0] else batch.slice(first, batch.hi)
        return None

    def admit_lost(self, lost: Lost) -> Lost | None:
        """The part of a lost range that is not here.

        Nobody knows the times of lost events, so none of them counts as too old.
        """
        if lost.hi <= self.next:
            return None
        if lost.lo > self.next:
            self._log_gap(lost)
            return None
        found = Lost(lost.stream, self.next, lost.hi, lost.why)
        self.next = lost.hi
        return found

    def _log_gap(self, what: Batch | Lost) -> None:
        """It belongs to a follow that was replaced; the present one brings what is missing."""
        log.debug("%s: %r, but %d is next", self.name, what, self.next)

    def follow(self) -> Lost | None:
        """Follow the stream, at first or after a pause. Returns what the pause lost, if any."""
        self.paused = False
        self.reader.follow(self.stream, self.next)
        return None


class UnorderedProgress(StreamProgress):
    """Of a stream whose events have no order: everything is admitted as it comes.

    What is published while the stream is not followed is missed, and the user is told.
    """

    __slots__ = ()

    def admit(self, batch: Batch) -> Batch | None:
        return batch

    def admit_lost(self, lost: Lost) -> Lost | None:
        return lost

    def follow(self) -> Lost | None:
        first, self.next = self.next, 0  # 0: after a pause it is followed from the latest on
        paused, self.paused = self.paused, False
        self.reader.follow(self.stream, first)
        if not paused or first:
            return None
        return Lost(
            self.stream,
            0,
            0,
            "the buffer of this subscription was full (ClientOptions.buffer_bytes_max), and what "
            "was published until there was room again was not received",
        )
