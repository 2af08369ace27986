"""Reading pieces of a log in bounded steps: each step begins where the last one ended.

A compaction that needed more than one step once restarted at the first piece and always failed
(found by the demo, on a replica that had been killed).
"""

from surecast.columns.batch import Batch
from surecast.storage.segment_disk import batches_of

LOG = b"l" * 16


def test_a_bounded_read_continues_after_the_pieces_already_read() -> None:
    pieces = [Batch.of(LOG, [b"v" * 50] * 10).sequenced(1 + 10 * n, 5, 1) for n in range(5)]
    lo, found = 1, []
    while lo < 51:
        some = batches_of(pieces, lo, 51, nbytes_max=1)
        assert some[0].lo == lo
        found += some
        lo = some[-1].hi
    assert found == pieces
