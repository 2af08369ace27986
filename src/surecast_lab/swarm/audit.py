"""Judges a large run of one stream with latest-per-key retention, from its clients' logs alone.

The demo uses it. Small runs are judged by `protocols.sprinkler.checks`, with plain loops over rows
and for any retention rule. These loops are too slow for a million events and seven readers, so this
module makes the same checks on whole columns with numpy. It uses none of the code that it judges
(batches, indexes, kernels). The tests judge small runs, correct and faulty ones, with both.

The guarantees, numbered as in `checks`:

G1  readers get only published events
G2  positions rise, and positions without an event are reported as void (checked only for readers
    that request voids)
G3  events are in their publisher's order
G4  for each position a reader gets either the event, or later a newer event of the same key, which
    made the position void
G9  all readers reach the same end
G10 no acknowledged event is lost or has two positions
R10 times never decrease along a stream

The judge holds only a few columns in memory: those of the publisher's log and of one reader's log.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from surecast.protocols.sprinkler.checks import Tally
from surecast_lab.swarm.audit_log import Int64s, OfferedEvents, ReadEvents, Words

__all__ = ["Judge", "judge"]

SHOWN_MAX = 5  # examples in the text of one violation
NO_EVENT = -1  # in place of the index of an offered event


def judge(
    offered: OfferedEvents,
    readers: Iterable[ReadEvents],
    end: int,
    say: Callable[[str], None] = lambda _: None,
) -> Tally:
    """Judge a run in which every reader should have reached `end`, the last position + 1.

    `readers` may be a generator that loads one log at a time.
    """
    verdict = Judge(offered, end)
    for reader in readers:
        say(f"judging the deliveries of {reader.reader}")
        verdict.check_reader(reader)
    say("judging the acknowledgements")
    return verdict.close()


class Judge:
    """Judges one run: call `check_reader` for every reader, then `close`."""

    def __init__(self, offered: OfferedEvents, end: int) -> None:
        self.offered = offered
        self.end = end
        self.tally = Tally(published=offered.value.size)
        self._by_value = np.argsort(offered.value, kind="stable")
        self._sorted = offered.value[self._by_value]
        _, key_ids = np.unique(offered.key, return_inverse=True)
        self._key_id = key_ids.astype(np.int64)
        # The index of the offered event at each position, learned from acknowledgements and from
        # deliveries.
        self._event_at = np.full(max(end, 1), NO_EVENT, np.int64)
        self._time_at = np.zeros(max(end, 1), np.int64)
        self._take_acknowledgements()

    # ------------------------------------------------------------ the publisher's log

    def _take_acknowledgements(self) -> None:
        tally, seq = self.tally, self.offered.seq
        acked = np.flatnonzero(seq > 0)
        tally.acked = acked.size
        if np.any(self._sorted[1:] == self._sorted[:-1]):
            self._violated("the publisher offered one value twice: these logs cannot be judged")
        beyond = acked[seq[acked] >= self.end]
        tally.lost += beyond.size
        self._examples("G10 acknowledged and lost: beyond every reader's end", seq[beyond])
        acked = acked[seq[acked] < self.end]
        times = np.bincount(seq[acked], minlength=1)
        self._examples("G10 a position was given twice", np.flatnonzero(times > 1))
        tally.duplicated += int((times > 1).sum())
        self._event_at[seq[acked]] = acked

    # ------------------------------------------------------------ a reader's log

    def check_reader(self, reader: ReadEvents) -> None:
        tally, name = self.tally, reader.reader
        tally.delivered += reader.seq.size
        if reader.malformed:
            self._violated(f"G1 {name}: {reader.malformed} events were changed on the way")
        fell = np.flatnonzero(np.diff(reader.seq) < 1)
        tally.misordered += fell.size
        self._examples(f"G2 {name}: positions fall or repeat after", reader.seq[fell])
        if np.any(np.diff(reader.time_us) < 0):
            self._violated(f"R10 {name}: time runs backwards")
        if reader.end != self.end:
            self._violated(f"G9 {name} ended at {reader.end}, not {self.end}")
        inside = (reader.seq >= 1) & (reader.seq < self.end)
        if not inside.all():
            self._examples(f"G1 {name}: no such positions", reader.seq[~inside])
        events = self._match_events(reader)
        known = inside & (events != NO_EVENT)
        self._check_positions(reader, events, known)
        self._check_missing(reader, events, known, inside)

    def _match_events(self, reader: ReadEvents) -> Int64s:
        """G1, G10: find the published event of each row; no event may occur twice."""
        events = self._find(reader.value)
        strange = events == NO_EVENT
        self._examples(f"G1 {reader.reader}: nobody published what it got at", reader.seq[strange])
        real = np.flatnonzero(~strange)
        changed = real[self.offered.key[events[real]] != reader.key[real]]
        self._examples(f"G1 {reader.reader}: another key than published at", reader.seq[changed])
        times = np.bincount(events[real], minlength=1)
        twice = np.flatnonzero(times > 1)
        self.tally.duplicated += int((times[twice] - 1).sum())
        self._examples(f"G10 {reader.reader}: got events twice, with the numbers", twice + 1)
        return events

    def _find(self, values: Words) -> Int64s:
        """The index of the offered event with each value; NO_EVENT if there is none."""
        if not self._sorted.size:
            return np.full(values.size, NO_EVENT, np.int64)
        at = np.searchsorted(self._sorted, values)
        at[at == self._sorted.size] = 0
        found: Int64s = np.where(self._sorted[at] == values, self._by_value[at], NO_EVENT)
        return found

    def _check_positions(
        self, reader: ReadEvents, events: Int64s, known: npt.NDArray[np.bool_]
    ) -> None:
        """G10: each position must have the event that was acknowledged for it, and the same event
        for every reader."""
        seq, got, time_us = reader.seq[known], events[known], reader.time_us[known]
        there = self._event_at[seq]
        others = (there != NO_EVENT) & (there != got)
        self.tally.lost += int(others.sum())
        self._examples(f"G10 {reader.reader}: got another event than stands at", seq[others])
        at = self._time_at[seq]
        if np.any((at != 0) & (at != time_us)):
            self._violated(f"G10 {reader.reader}: an event has another time than elsewhere")
        self._event_at[seq] = np.where(there == NO_EVENT, got, there)
        self._time_at[seq] = np.where(at == 0, time_us, at)

    def _check_missing(
        self,
        reader: ReadEvents,
        events: Int64s,
        known: npt.NDArray[np.bool_],
        inside: npt.NDArray[np.bool_],
    ) -> None:
        """G4: for each position without an event, a later event of its key must have come."""
        given = np.bincount(reader.seq[inside], minlength=self.end) > 0
        given[0] = True  # there is no position 0
        missing = np.flatnonzero(~given)
        self.tally.void += missing.size
        if reader.voids is not None:
            self._check_voids(reader, missing)
        newest = np.zeros(int(self._key_id.max(initial=-1)) + 1, np.int64)
        np.maximum.at(newest, self._key_id[events[known]], reader.seq[known])
        what = self._event_at[missing]
        known_event = what != NO_EVENT  # unknown: neither acknowledged nor delivered so far
        at, its_key = missing[known_event], self._key_id[what[known_event]]
        unexplained = at[newest[its_key] <= at]
        self.tally.lost += unexplained.size
        self._examples(f"G4 {reader.reader}: neither delivered nor outdated", unexplained)

    def _check_voids(self, reader: ReadEvents, missing: Int64s) -> None:
        """G2: the void ranges must contain exactly the positions without an event."""
        assert reader.voids is not None
        lo, hi = reader.voids[:, 0], reader.voids[:, 1]
        sizes = hi - lo
        if np.any(sizes < 1) or np.any(lo[1:] < hi[:-1]):
            self._violated(f"G2 {reader.reader}: void ranges are empty or overlap")
            return
        starts = np.repeat(lo - np.concatenate(([0], np.cumsum(sizes)[:-1])), sizes)
        void = starts + np.arange(int(sizes.sum()))
        silent = np.setdiff1d(missing, void, assume_unique=True)
        self.tally.lost += silent.size
        self._examples(f"G2 {reader.reader}: skipped without a void", silent)
        both = np.setdiff1d(void, missing, assume_unique=True)
        self._examples(f"G2 {reader.reader}: void and an event at", both)

    # ------------------------------------------------------------ checks over all logs

    def close(self) -> Tally:
        tally, at = self.tally, self._event_at
        stands = np.flatnonzero(at != NO_EVENT)
        order = at[stands]
        fell = np.flatnonzero(np.diff(order) < 0)
        tally.misordered += fell.size
        self._examples("G3 not in the publisher's order after", stands[fell])
        times = np.bincount(order, minlength=1)
        twice = np.flatnonzero(times > 1)
        tally.duplicated += int((times[twice] - 1).sum())
        self._examples("G10 events have two positions, those with the numbers", twice + 1)
        unknown = np.flatnonzero(at[1:] == NO_EVENT) + 1
        # If every publish was acknowledged, each position must have an event. One that has none was
        # probably assigned to a retry, so it counts as a duplicate.
        if tally.acked == tally.published and unknown.size:
            tally.duplicated += unknown.size
            self._examples("G1 nobody published what stands at", unknown)
        return tally

    def _violated(self, words: str) -> None:
        self.tally.violations.append(words)

    def _examples(self, words: str, positions: Int64s) -> None:
        if positions.size:
            some = ", ".join(f"{at:,}" for at in positions[:SHOWN_MAX].tolist())
            more = f" and {positions.size - SHOWN_MAX:,} more" if positions.size > SHOWN_MAX else ""
            self._violated(f"{words} {some}{more}")
