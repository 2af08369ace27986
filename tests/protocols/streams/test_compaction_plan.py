"""Pieces: the parts of a log that are rewritten, compared with a simple model of each row.

The model (`Twin`) holds the log as plain dicts. After each rewrite it must hold every live row; the
work and the number of pieces must stay within bounds that do not depend on the log's length.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from surecast.columns.batch import COLLECTED, DATA, EXPIRED, REASONS, Batch
from surecast.columns.intervals import IntervalSet
from surecast.protocols.streams.compaction_plan import AT_ONCE, BATCHES_MIN, SMALL_ROWS, Pieces

LOG = bytes(range(16))
ROWS_MAX = 64


def dense(lo: int, rows: int) -> Batch:
    values = [b"v%d" % i for i in range(lo, lo + rows)]
    return Batch.of(LOG, values).sequenced(lo, lo, 1)


@dataclass
class Twin:
    """A log, row by row, that is compacted as `pieces` says."""

    pieces: Pieces
    share: float = 0.5
    end: int = 1
    rows: dict[int, int] = field(default_factory=dict)  # position of a held row → its batch
    live: dict[int, bool] = field(default_factory=dict)
    voids: tuple[IntervalSet, ...] = field(
        default_factory=lambda: tuple([IntervalSet() for _ in REASONS])
    )
    published: int = 0
    rewritten: int = 0  # rows read by all rewrites so far
    most: int = 0  # ... by the largest rewrite

    def publish(self, rows: int) -> range:
        lo, self.end = self.end, self.end + rows
        for seq in range(lo, self.end):
            self.rows[seq] = lo
            self.live[seq] = True
        self.published += rows
        self.pieces.note(dense(lo, rows))
        return range(lo, self.end)

    def collect(self, seq: int, reason: int = COLLECTED) -> None:
        if self.live.pop(seq, None):
            self.voids[REASONS.index(reason)].add(seq, seq + 1)

    def tick(self) -> int:
        """Rewrite as a server does each period, until no piece is worth it; returns how often."""
        count, self.pieces.tidy = 0, True
        while (found := self.pieces.begin(list(self.voids), self.share)) is not None:
            count += 1
            assert count < 10_000, "it never ends"
            self._rewrite(*found)
        return count

    def _rewrite(self, lo: int, hi: int) -> None:
        held = [seq for seq in self.rows if lo <= seq < hi]
        kept = [seq for seq in held if seq in self.live]
        self.rewritten += len(held)
        self.most = max(self.most, len(held))
        for seq in held:
            del self.rows[seq]
        self.rows |= dict.fromkeys(kept, lo)
        self.pieces.done(lo, hi, len(kept))
        self.check()

    def check(self) -> None:
        """Check that no live row is lost, and that pieces are adjacent and count their rows."""
        assert self.live.keys() <= self.rows.keys()
        at = 1
        for piece in (*self.pieces.closed, self.pieces.open):
            assert piece.lo == at <= piece.hi
            at = piece.hi
        assert at == self.end
        for piece in self.pieces.closed:
            assert piece.rows == sum(piece.lo <= seq < piece.hi for seq in self.rows)


def test_pieces_nothing_is_rewritten_while_all_is_live() -> None:
    twin = Twin(Pieces(ROWS_MAX))
    for _ in range(40):
        twin.publish(20)
        assert twin.tick() == 0
    assert len(twin.pieces.closed) == 10


def test_pieces_are_rewritten_from_a_share_of_voids_on() -> None:
    twin = Twin(Pieces(ROWS_MAX), share=0.5)
    twin.publish(ROWS_MAX)
    twin.publish(ROWS_MAX)
    for seq in range(1, 32):
        twin.collect(seq)
    assert twin.pieces.begin(list(twin.voids), 0.5) is None
    twin.collect(32, EXPIRED)  # all reasons count
    assert twin.pieces.begin(list(twin.voids), 0.5) == (1, 65)
    assert twin.pieces.begin(list(twin.voids), 0.5) is None  # one at a time
    twin.pieces.failed()
    assert twin.pieces.begin(list(twin.voids), 0.5) == (1, 65)


def test_pieces_that_arrived_compacted_are_not_rewritten() -> None:
    """A copy of compacted batches needs no rewrite."""
    pieces = Pieces(ROWS_MAX)
    voids = IntervalSet([(1, 1000)])
    for lo in range(1, 1000, 111):
        pieces.note(Batch.void(LOG, lo, lo + 111, COLLECTED))
    for lo in range(1000, 1000 + ROWS_MAX, 16):
        pieces.note(dense(lo, 16))
    assert pieces.begin([voids, IntervalSet()], 0.5) is None


def test_pieces_the_open_piece_is_closed_early_once_a_period() -> None:
    """A busy stream always has a little to rewrite, which must not become a loop."""
    twin = Twin(Pieces(1 << 16))
    for seq in twin.publish(100):
        twin.collect(seq)
    twin.publish(1)
    assert twin.tick() == 1
    for seq in twin.publish(100):
        twin.collect(seq)
    assert twin.pieces.begin(list(twin.voids), 0.5) is None  # as after a rewrite
    assert twin.tick() == 1  # the next period
    assert len(twin.rows) == 1
    twin.publish(1)
    assert twin.tick() == 0


def test_pieces_tiny_batches_are_joined() -> None:
    twin = Twin(Pieces(rows_max=4 * BATCHES_MIN))
    for _ in range(4 * BATCHES_MIN):
        twin.publish(1)
    assert twin.tick() == 1  # though nothing of it is void
    assert len(set(twin.rows.values())) == 1
    assert twin.tick() == 0  # and not again
    for _ in range(4):
        twin.publish(SMALL_ROWS * 4)
    assert twin.tick() == 0  # these are large enough


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("keys", [1, 10, 300])
def test_pieces_agree_with_a_simple_model(seed: int, keys: int) -> None:
    """Latest per key with skewed keys: live rows stay, work and number of pieces are bounded."""
    rng = Random(f"{seed}/{keys}")
    print(f"seed {seed}, keys {keys}")
    twin = Twin(Pieces(ROWS_MAX, 1 << 20), share=rng.choice((0.1, 0.5, 0.9)))
    newest: dict[int, int] = {}
    for _ in range(rng.randint(50, 150)):
        for _ in range(rng.randint(0, 12)):
            for seq in twin.publish(rng.choice((1, 1, 3, 20))):
                key = int(keys ** rng.random()) if rng.random() < 0.9 else -seq
                if key > 0 and key in newest:
                    twin.collect(newest[key], rng.choice(REASONS))
                newest[key] = seq
        if rng.random() < 0.05:
            for seq in [s for s in twin.live if rng.random() < 0.8]:
                twin.collect(seq)
        twin.tick()
        twin.check()
        # Each rewrite joins small neighbours, so the number of pieces is proportional to the
        # number of live rows.
        closed = twin.pieces.closed
        assert len(closed) <= 8 + 8 * len(twin.live) // ROWS_MAX, [p.rows for p in closed]
    assert twin.most <= (AT_ONCE + 1) * ROWS_MAX * 2
    assert twin.rewritten <= 6 * twin.published


def test_pieces_of_cold_keys_are_not_rewritten_because_of_a_hot_key() -> None:
    """Rows that hardly change are not rewritten repeatedly because of a key that changes often."""
    twin = Twin(Pieces(rows_max=4096))
    twin.publish(1000)  # keys that stay
    hot = twin.publish(1)[0]
    before = twin.rewritten
    for _ in range(2000):
        twin.collect(hot)
        hot = twin.publish(1)[0]
        twin.tick()
    assert twin.rewritten - before < 4 * 2000
    assert len(twin.rows) < 1000 + 200
    assert len(twin.pieces.closed) < 10


def test_pieces_stay_as_they_are_if_a_rewrite_fails() -> None:
    twin = Twin(Pieces(ROWS_MAX))
    for seq in twin.publish(ROWS_MAX):
        twin.collect(seq)
    found = twin.pieces.begin(list(twin.voids), 0.5)
    twin.publish(1)
    twin.pieces.failed()
    twin.check()
    assert twin.pieces.begin(list(twin.voids), 0.5) == found
    assert twin.pieces.closed[0].rows == ROWS_MAX


def test_pieces_count_synthetic_kinds_alike() -> None:
    """Collect rules count as rows; void ranges do not."""
    pieces = Pieces(rows_max=3)
    pieces.note(Batch.of(LOG, [b"x"], kind=DATA).sequenced(1, 1, 1))
    pieces.note(Batch.void(LOG, 2, 100, COLLECTED))
    pieces.note(Batch.of(LOG, [b"y"]).sequenced(100, 1, 1))
    assert (pieces.open.lo, pieces.open.hi, pieces.open.rows) == (1, 101, 2)
    pieces.note(Batch.of(LOG, [b"z"]).sequenced(101, 1, 1))
    assert [(p.lo, p.hi, p.rows) for p in pieces.closed] == [(1, 102, 3)]
