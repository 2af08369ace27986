"""Compaction: rewrites batches of a stream without their void rows, at the same positions.

A position is void if its event is obsolete. Compaction drops the rows of such events, keeps the
positions, and joins small batches. Every store calls the same deterministic function, so a log
compacted on disk and the same log compacted in a simulation have the same batches. The functions
here also remove void rows from what late readers are sent.

The void positions are given as one interval set for each reason; no position is in two of the sets.
In the usual case all positions are void for one reason, and the rows of many batches are processed
at once: one look-up, one copy of the live rows, one body for some thousands of rows. A batch has
one reason for all its void positions, so a batch is split where the reasons differ.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from surecast.columns import forms
from surecast.columns.batch import (
    COLLECT,
    CONFIG,
    DATA,
    NO_PUBLISHER,
    NONE,
    REASONS,
    Batch,
    coalesce,
    joined_columns,
)
from surecast.columns.column import Columns, Int64s
from surecast.columns.intervals import IntervalSet
from surecast.errors import PeerError

__all__ = [
    "Voids",
    "by_position",
    "compacted",
    "decode_voids",
    "encode_voids",
    "strip",
    "survivors",
]

Voids: TypeAlias = Mapping[int, IntervalSet]  # reason → positions; a reason may be missing

_SMALL_ROWS: Final = 16  # dense batches up to this size are joined
_NOTHING: Final = IntervalSet().to_bytes()  # an encoded empty set


def encode_voids(voids: Voids) -> tuple[bytes, ...]:
    """One encoded interval set for each of `REASONS`, in that order."""
    return tuple([voids[why].to_bytes() if why in voids else _NOTHING for why in REASONS])


def decode_voids(data: Sequence[bytes], runs_max: int) -> dict[int, IntervalSet]:
    """The inverse of `encode_voids`; PeerError if a set is not valid or has too many runs."""
    if len(data) != len(REASONS):
        raise PeerError(f"{len(data)} interval sets for {len(REASONS)} reasons")
    sets = (IntervalSet.from_bytes(encoded, runs_max) for encoded in data)
    return dict(zip(REASONS, sets, strict=True))


def compacted(batches: Sequence[Batch], voids: Sequence[bytes], rows_max: int) -> list[Batch]:
    """`survivors` for voids as `encode_voids` returns them."""
    if not batches:
        return []
    # A run has at least one position, so there are at most as many runs as positions.
    return survivors(batches, decode_voids(voids, batches[-1].hi - batches[0].lo), rows_max)


def survivors(batches: Sequence[Batch], voids: Voids, rows_max: int) -> list[Batch]:
    """`batches`, which are contiguous, without void rows and with small batches joined.

    A position that is already void in its batch gets the reason in `voids`, if it is also there.
    """
    lo, hi = batches[0].lo, batches[-1].hi
    clipped = _clip(voids, lo, hi)
    reasons = {batch.reason for batch in batches} - {NONE}
    if len({*clipped, *reasons}) <= 1 and all(batch.body is not None for batch in batches):
        reason = next(iter(clipped or reasons), NONE)
        return _Joiner(batches, clipped.get(reason, IntervalSet()), reason, rows_max).join()
    return coalesce([part for batch in batches for part in strip(batch, clipped)], rows_max)


def _clip(voids: Voids, lo: int, hi: int) -> dict[int, IntervalSet]:
    """The positions within [lo, hi), for the reasons that have any there."""
    return {reason: part for reason, whole in voids.items() if (part := whole.clip(lo, hi))}


_LATER_RUN: Final = (-1, b"")  # the layout of no batch


class _Joiner:
    """Joins batches whose void positions all have the same reason."""

    def __init__(
        self, batches: Sequence[Batch], voids: IntervalSet, reason: int, rows_max: int
    ) -> None:
        # Batches are referred to by their index in `batches`.
        self.batches = batches
        self.reason = reason  # of all void positions, old and new
        self.rows_max = rows_max
        self.made: list[Batch] = []  # the result so far
        self.run: list[int] = []  # the batches to be joined next
        # The layout of the batches in `run` that have rows left. None: the first run has none yet;
        # _LATER_RUN: a later run has none yet. Void batches at the start of a later run are not
        # joined with rows after them.
        self.layout: tuple[int, bytes] | None = None
        ends = np.cumsum([batch.rows for batch in batches])
        # For each row of all batches together: its position, and whether it is not void.
        self.seqs = _positions(batches)
        self.live = ~voids.contains_sorted(self.seqs)
        counts = np.concatenate(([0], np.cumsum(self.live)))
        starts = np.concatenate(([0], ends[:-1]))
        # For each batch: the number of its first row among all rows, and how many rows it keeps.
        self.starts: list[int] = starts.tolist()
        self.kept: list[int] = (counts[ends] - counts[starts]).tolist()

    def join(self) -> list[Batch]:
        """The batches without their void rows, with small ones joined."""
        for number, batch in enumerate(self.batches):
            kept = self.kept[number]
            whole = kept == batch.rows == batch.count
            if batch.kind == CONFIG and not whole:
                raise ValueError("a CONFIG event is never void")
            if whole and (batch.kind in (COLLECT, CONFIG) or batch.rows > _SMALL_ROWS):
                self._finish()
                self.made.append(batch)
                continue
            if kept and self.layout not in (None, batch.columns_id):
                self._finish()
            self.run.append(number)
            if kept:
                self.layout = batch.columns_id
        self._finish()
        return self.made

    def _finish(self) -> None:
        """Make batches of `self.run`, of at most `rows_max` rows each."""
        run, self.run = self.run, []
        self.layout = _LATER_RUN
        if not run:
            return
        first, last = self.batches[run[0]], self.batches[run[-1]]
        holders = [number for number in run if self.kept[number]]  # batches that keep rows
        if len(run) == 1 and self.kept[run[0]] == first.rows:
            self.made.append(first)
        elif not holders:
            time_ns, epoch = self._stamp(run)
            self.made.append(
                Batch.void(
                    first.stream_id, first.lo, last.hi, self.reason, time_ns=time_ns, epoch=epoch
                )
            )
        else:
            self._fill(run, holders, first.lo, last.hi)

    def _stamp(self, run: list[int]) -> tuple[int, int]:
        """The time and the epoch of a batch that joins these."""
        batches = [self.batches[number] for number in run]
        return max(b.time_ns for b in batches), max(b.epoch for b in batches)

    def _fill(self, run: list[int], holders: list[int], lo: int, hi: int) -> None:
        """Make batches of [lo, hi) with the rows that the `holders` keep."""
        time_ns, epoch = self._stamp(run)
        columns, seqs, times = self._gather(holders)
        schema_id = self.batches[holders[0]].schema_id
        for at in range(0, seqs.size, self.rows_max):
            upto = min(at + self.rows_max, seqs.size)
            is_last = upto == seqs.size
            end = hi if is_last else int(seqs[upto - 1]) + 1
            rows, count = upto - at, end - lo
            batch = Batch(
                DATA, self.batches[0].stream_id, schema_id, NO_PUBLISHER, 0, lo, count, rows,
                time_ns if is_last else int(times[upto - 1]), epoch,
                NONE if rows == count else self.reason, b"", 0, 0,
            )  # fmt: skip
            batch._fill(columns.part(at, upto), seqs[at:upto], times[at:upto])
            self.made.append(batch)
            lo = end

    def _gather(self, holders: list[int]) -> tuple[Columns, Int64s, Int64s]:
        """The columns, seqs and times of the live rows of these batches."""
        parts: list[Columns] = []
        for group in self._alike(holders):
            at, to = self.starts[group[0]], self.starts[group[-1]] + self.batches[group[-1]].rows
            rows = np.flatnonzero(self.live[at:to])
            parts.append(self._rows_of(group, rows)._replace(seqs=self.seqs[at:to][rows]))
        return _joined(parts)

    def _alike(self, holders: list[int]) -> list[list[int]]:
        """Group batches that are neighbours and have the same fixed-size layout. Every other batch
        is a group of its own."""
        groups: list[list[int]] = []
        group: list[int] = []
        before: Batch | None = None
        for number in holders:
            batch = self.batches[number]
            if (
                before is not None
                and number == group[-1] + 1
                and batch.form == before.form
                and batch.rows == before.rows
                and batch.schema_id == before.schema_id
            ):
                group.append(number)
                continue
            group = [number]
            groups.append(group)
            before = batch if batch.is_fixed else None
        return groups

    def _rows_of(self, group: list[int], rows: Int64s) -> Columns:
        """The rows with these numbers, counted through all batches of a group, and their times."""
        batches = [self.batches[number] for number in group]
        if len(batches) == 1:
            times = batches[0].times()
            return batches[0]._decoded()._replace(seqs=None, times=times).take(rows)
        first = batches[0]
        for batch in batches:
            batch.check_body()
        bodies = [batch.body for batch in batches]
        columns = forms.take_fixed(bodies, first.schema_id, first.form, first.rows, rows)
        times = np.array([batch.time_ns for batch in batches])
        return columns._replace(times=times[rows // first.rows])


def _joined(parts: list[Columns]) -> tuple[Columns, Int64s, Int64s]:
    """The columns concatenated, their seqs and their times; all parts have seqs and times."""
    seqs = [part.seqs for part in parts if part.seqs is not None]
    times = [part.times for part in parts if part.times is not None]
    return joined_columns(parts), np.concatenate(seqs), np.concatenate(times)


def _positions(batches: Sequence[Batch]) -> Int64s:
    """The positions of all rows; a run of dense batches is one range."""
    found: list[Int64s] = []
    dense = 0  # where the current run of dense batches began; 0: there is none
    for batch in batches:
        if batch.rows == batch.count and batch.form and not batch.explicit:
            dense = dense or batch.lo
            continue
        if dense:
            found.append(np.arange(dense, batch.lo, dtype=np.int64))
            dense = 0
        found.append(batch.seqs())
    if dense:
        found.append(np.arange(dense, batches[-1].hi, dtype=np.int64))
    return np.concatenate(found)


def strip(batch: Batch, voids: Voids) -> list[Batch]:
    """`batch` without its void rows; all its positions stay covered.

    Returns one batch, or several if reasons differ. A position that is already void in the batch
    gets the reason in `voids`, if it is also there.
    """
    clipped = _clip(voids, batch.lo, batch.hi)
    if batch.rows < batch.count and clipped.keys() - {batch.reason}:
        # Positions that are void in the batch, and not in `voids`, keep the reason of the batch.
        old_voids = batch.holes()
        for positions in clipped.values():
            old_voids.difference_update(positions)
        if old_voids:
            clipped[batch.reason] = old_voids.union(clipped.get(batch.reason, IntervalSet()))
    if not clipped:
        return [batch]
    if len(clipped) == 1:
        ((reason, positions),) = clipped.items()
        return [batch.with_reason(reason).without(positions, reason)]
    parts = []
    start = batch.lo
    # One part for all neighbouring runs with the same reason, up to the next run with another one.
    runs = [*by_position(clipped), (batch.hi, 0, NONE)]
    for (_, _, reason), (next_lo, _, next_reason) in pairwise(runs):
        if next_reason != reason:
            part = batch.slice(start, next_lo).with_reason(reason)
            parts.append(part.without(clipped[reason], reason))
            start = next_lo
    return parts


def by_position(voids: Voids) -> list[tuple[int, int, int]]:
    """The runs of all sets as (lo, hi, reason), in order."""
    return sorted((lo, hi, reason) for reason, runs in voids.items() for lo, hi in runs)
