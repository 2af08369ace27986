"""Reading pieces of a log in bounded steps: each step begins where the last one ended.

A compaction that read more than one step's bytes began again at the first piece, and failed for
ever (found by the demo, on a replica that had been killed).
"""

from surecast.columns.batch import Batch
from surecast.storage.segment_disk import batches_of

LOG = b"l" * 16


def test_a_bounded_read_goes_on_behind_the_pieces_it_has_read() -> None:
    pieces = [Batch.of(LOG, [b"v" * 50] * 10).sequenced(1 + 10 * n, 5, 1) for n in range(5)]
    lo, found = 1, []
    while lo < 51:
        some = batches_of(pieces, lo, 51, nbytes_max=1)
        assert some[0].lo == lo
        found += some
        lo = some[-1].hi
    assert found == pieces
