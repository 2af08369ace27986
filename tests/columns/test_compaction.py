"""Compaction against stripping batch by batch: the same positions and live events, in order."""

from random import Random

import pytest

from surecast.columns import compaction
from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    EXPIRED,
    NONE,
    REASONS,
    SUPERSEDED,
    VOID,
    Batch,
    coalesce,
)
from surecast.columns.compaction import compacted, decode_voids, encode_voids, strip, survivors
from surecast.columns.intervals import IntervalSet
from surecast.errors import PeerError

STREAM = b"s" * 16


def history(rng: Random, batches: int, reason: int = COLLECTED) -> list[Batch]:
    """Consecutive batches of all shapes; their void positions have the reason `reason`."""
    made: list[Batch] = []
    lo = rng.randrange(1, 50)
    for number in range(batches):
        time_ns = 1000 + 2 * number
        if rng.random() < 0.1:
            hi = lo + rng.randrange(1, 20)
            made.append(Batch.void(STREAM, lo, hi, reason, time_ns=time_ns, epoch=number))
        elif made and rng.random() < 0.3:  # several of one layout, as from a busy publisher
            rows, width = rng.choice((2, 20)), rng.choice((3, 8))
            for i in range(rng.randrange(1, 6)):
                keys = [rng.randbytes(width) for _ in range(rows)]
                values = [rng.randbytes(10) for _ in range(rows)]
                batch = Batch.of(STREAM, values, keys, publisher=b"p" * 16, pub_no=1)
                made.append(batch.sequenced(made[-1].hi, time_ns + i // 3, number))
        else:
            rows = rng.choice((1, 2, 16, 17, 60))
            kind = COLLECT if rng.random() < 0.1 else 1
            rows = 1 if kind == COLLECT else rows
            values = [b"%d.%d" % (number, i) for i in range(rows)]
            keys = (
                None
                if kind == COLLECT
                else [rng.choice((None, b"", b"k%d" % i)) for i in range(rows)]
            )
            tags = [b"t"] * rows if kind == 1 and rng.random() < 0.2 else None
            batch = Batch.of(STREAM, values, keys, tags, publisher=b"p" * 16, pub_no=1, kind=kind)
            batch = batch.sequenced(lo, time_ns, number)
            if rows > 1 and rng.random() < 0.3:
                batch = batch.without(_some(rng, lo, lo + rows, 0.4), reason)
            made.append(batch)
        lo = made[-1].hi
    return made


def _some(rng: Random, lo: int, hi: int, share: float) -> IntervalSet:
    return IntervalSet([(seq, seq + 1) for seq in range(lo, hi) if rng.random() < share])


def events(batches: list[Batch]) -> list[object]:
    return [row for batch in batches for row in batch.to_rows()]


@pytest.mark.parametrize("seed", range(60))
def test_survivors_equal_stripping_batch_by_batch(seed: int) -> None:
    rng = Random(seed)
    reason = REASONS[seed % len(REASONS)]
    batches = history(rng, rng.randrange(1, 40), reason)
    lo, hi = batches[0].lo, batches[-1].hi
    share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    voids = {reason: _some(rng, lo, hi, share)}
    rows_max = rng.choice((1, 7, 64, 4096))
    made = survivors(batches, voids, rows_max)
    expected = coalesce([p for b in batches for p in strip(b, voids)], rows_max)
    assert events(made) == events(expected)
    assert [b.lo for b in made] == [lo, *(b.hi for b in made[:-1])]
    assert made[-1].hi == hi
    for batch in made:
        batch.validate()
        assert batch.rows <= max(rows_max, 60)
        assert batch.reason == (reason if batch.rows < batch.count else NONE)
        assert not batch.rows or batch.time_ns >= int(batch.times()[-1])
    again = compacted(batches, encode_voids(voids), rows_max)
    assert [(b.lo, b.hi, b.body) for b in again] == [(b.lo, b.hi, b.body) for b in made]


@pytest.mark.parametrize("seed", range(20))
def test_positions_keep_their_reasons_when_a_batch_has_several(seed: int) -> None:
    """Positions void before and during compaction each keep their own reason."""
    rng = Random(seed)
    before = rng.choice(REASONS)
    batches = history(rng, rng.randrange(1, 30), before)
    lo, hi = batches[0].lo, batches[-1].hi
    reasons = {s: before for b in batches for s in _void_in(b)}
    voids = {reason: IntervalSet() for reason in REASONS}
    for seq in range(lo, hi):
        if seq in reasons:
            voids[before].add(seq, seq + 1)
        elif rng.random() < 0.5:
            reasons[seq] = rng.choice(REASONS)
            voids[reasons[seq]].add(seq, seq + 1)
    kept = [row for batch in batches for row in batch.to_rows() if row.seq not in reasons]
    for rows_max in (1, 16, 4096):
        made = survivors(batches, voids, rows_max)
        for batch in made:
            batch.validate()
        assert events(made) == kept
        assert {s: b.reason for b in made for s in _void_in(b)} == reasons
        assert [b.lo for b in made] == [lo, *(b.hi for b in made[:-1])]


def _void_in(batch: Batch) -> list[int]:
    live = set(batch.seqs().tolist())
    return [seq for seq in range(batch.lo, batch.hi) if seq not in live]


def test_voids_round_trip_with_one_set_for_each_reason() -> None:
    voids = {COLLECTED: IntervalSet([(1, 3)]), SUPERSEDED: IntervalSet([(5, 6)])}
    data = encode_voids(voids)
    assert decode_voids(data, 9) == {**voids, EXPIRED: IntervalSet()}
    with pytest.raises(PeerError, match="2 interval sets for 3 reasons"):
        decode_voids(data[:2], 9)
    with pytest.raises(PeerError):
        decode_voids((data[0], data[1], b"\xff"), 9)


def test_a_large_batch_without_voids_is_returned_unchanged() -> None:
    batch = Batch.of(STREAM, [b"v"] * 100, publisher=b"p" * 16, pub_no=1).sequenced(1, 5, 1)
    assert survivors([batch], {}, 10) == [batch]


def test_void_positions_with_two_reasons_are_not_joined() -> None:
    batch = Batch.of(STREAM, [b"%d" % i for i in range(6)]).sequenced(1, 5, 1)
    voids = {COLLECTED: IntervalSet([(1, 3)]), EXPIRED: IntervalSet([(4, 6)])}
    made = survivors([batch], voids, 100)
    assert [row.seq for b in made for row in b.to_rows()] == [3, 6]
    assert {b.reason for b in made if b.rows < b.count} == {COLLECTED, EXPIRED}


def test_completely_void_batches_become_one_range() -> None:
    batches = history(Random(3), 20)
    lo, hi = batches[0].lo, batches[-1].hi
    (made,) = survivors(batches, {COLLECTED: IntervalSet([(lo, hi)])}, 100)
    assert (made.kind, made.lo, made.hi) == (VOID, lo, hi)
    assert made.time_ns == max(b.time_ns for b in batches)


def refusal(batches: list[Batch], collected: IntervalSet) -> str:
    """Why compaction refuses to leave out these positions; empty if it does not."""
    try:
        survivors(batches, {COLLECTED: collected}, 100)
    except ValueError as problem:
        return str(problem)
    return ""


def config_event_declared_void(rows_after: int) -> None:
    """Compaction must refuse to leave out a CONFIG event, alone or between other batches."""
    before = Batch.of(STREAM, [b"a"]).sequenced(1, 5, 1)
    config = Batch.of(STREAM, [b"rule"], kind=CONFIG).sequenced(2, 5, 1)
    after = Batch.of(STREAM, [b"b"] * rows_after).sequenced(3, 5, 1)
    for batches in ([config], [before, config, after]):
        for voids in (IntervalSet([(2, 3)]), IntervalSet([(1, 3)])):
            assert refusal(batches, voids) == "a CONFIG event is never void"
        assert config in survivors(batches, {COLLECTED: IntervalSet([(1, 2)])}, 100)


@pytest.mark.parametrize("rows_after", [1, 100])
def test_a_config_event_is_never_compacted_away(rows_after: int) -> None:
    config_event_declared_void(rows_after)


def test_the_check_fails_if_a_config_event_is_compacted_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "CONFIG", -1)  # no batch is of this kind: the check is gone
    with pytest.raises(AssertionError, match="is never void"):
        config_event_declared_void(1)
