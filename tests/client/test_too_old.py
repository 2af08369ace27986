"""A start time in a region that has not reached it yet: older events are not handed out."""

from typing import Any

from surecast.client.stream_progress import StreamProgress
from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import KeepAll
from surecast.core.streams import StreamInfo

STREAM = b"s" * 16


READER: Any = None
INFO = StreamInfo(STREAM, "s", "east", KeepAll())


def batch(lo: int, time_ns: int) -> Batch:
    return Batch.of(STREAM, [b"v"] * 4).sequenced(lo, time_ns, 1)


def test_batches_are_skipped_until_the_start_time_is_reached() -> None:
    progress = StreamProgress(INFO, READER, 1, not_before_ns=100)
    assert progress.wanted(batch(1, 98)) is None
    assert progress.wanted(Batch.void(STREAM, 5, 9, COLLECTED, time_ns=99)) is None
    first = batch(9, 100)
    assert progress.wanted(first) is first
    assert progress.not_before_ns == 0  # times never decrease: no further checks


def test_a_batch_with_several_times_is_cut_at_the_start_time() -> None:
    from surecast.columns.compaction import survivors

    joined = survivors([batch(1, 98), batch(5, 102)], {COLLECTED: IntervalSet([(2, 3)])}, 100)
    progress = StreamProgress(INFO, READER, 1, not_before_ns=100)
    found = [progress.wanted(batch) for batch in joined]
    assert [row.seq for part in found if part is not None for row in part.to_rows()] == [5, 6, 7, 8]
