"""Sprinkler E6 in its quick size; its counts compared with plain Python and exact expectations."""

import json
import math

import numpy as np
import pytest

from surecast.parts.workload import Zipf, zeta
from surecast_lab.lab import experiments
from surecast_lab.lab.run import run
from surecast_lab.lab.sprinkler.gc import (
    batches_of,
    byte_rows,
    checkpoints_upto,
    distinct_counts,
    keep_latest,
    verdict_of,
)
from surecast_lab.lab.sprinkler.keys import workloads


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One quick run, shared by all tests that only read it."""
    out = tmp_path_factory.mktemp("e6")
    experiment = experiments()["sprinkler-e6"]
    verdict = run(experiment, lambda *_: None, out, quick=True, seeds=(1, 2))
    return verdict, experiment.files(out)


def small_keys(seed=0, events=3_500):
    return np.random.default_rng(seed).integers(0, 300, events)


def newest_positions(keys):
    """Plain Python: the position (from 1) of each key's last event."""
    newest = {}
    for position, key in enumerate(keys.tolist(), start=1):
        newest[key] = position
    return sorted(newest.values())


def test_the_index_keeps_the_newest_event_of_each_key():
    keys = small_keys()
    index, stored = keep_latest(batches_of(keys), (1_000, 3_500))
    live = [p for lo, hi in index.live(1, keys.size + 1) for p in range(lo, hi)]
    assert live == newest_positions(keys)
    assert stored == [len(newest_positions(keys[:n])) for n in (1_000, 3_500)]
    assert stored == distinct_counts(keys, (1_000, 3_500))


def test_compacted_frames_hold_exactly_the_live_events():
    from surecast.columns.batch import coalesce

    keys = small_keys(1)
    batches = list(batches_of(keys))
    index, _ = keep_latest(batches)
    kept = coalesce([part for batch in batches for part in index.apply(batch)], 4_096)
    rows = [row for batch in kept for row in batch.to_rows()]
    assert [row.seq for row in rows] == newest_positions(keys)
    assert [int.from_bytes(row.key, "big") for row in rows] == [keys[r.seq - 1] for r in rows]
    (measured,) = byte_rows(keys, [3_500])
    assert measured["stored"] == len(rows)
    assert measured["bytes_kept"] == sum(batch.nbytes for batch in kept)
    assert measured["bytes_all"] == sum(batch.nbytes for batch in batches)


def test_checkpoints_are_ends_of_batches():
    for events in (1_000, 200_000, 10_000_000):
        points = checkpoints_upto(events)
        assert points == sorted(set(points))
        assert points[-1] == events
        assert all(point % 1_000 == 0 for point in points)
    assert 150_000 in checkpoints_upto(200_000)


@pytest.mark.parametrize("workload", workloads(), ids=lambda workload: workload.name)
def test_every_workload_gives_the_requested_number_of_events_and_is_reproducible(workload):
    keys = workload.draw(np.random.default_rng(5), 2_000)
    assert keys.size == 2_000
    assert keys.min() >= 0
    assert (keys == workload.draw(np.random.default_rng(5), 2_000)).all()


@pytest.mark.slow
def test_bounded_keys_save_the_exact_expectation(quick):
    by_workload = quick[0].ours["by_workload"]
    for skew in (1.1, 1.3, 1.5):
        shares = Zipf(100_000, skew).probabilities()
        for events in (100_000, 150_000):
            stored = -np.expm1(events * np.log1p(-shares)).sum()
            ours = by_workload[f"(b) fixed set, skew {skew}"][f"{events:,}"]
            assert ours.mean == pytest.approx(1 - stored / events, abs=0.003)


@pytest.mark.slow
def test_unbounded_keys_save_the_asymptotic_expectation(quick):
    by_workload = quick[0].ours["by_workload"]
    for skew in (1.2, 1.5):  # at 1.1 the ranks that do not fit 63 bits would show
        grows = 1 / skew
        stored = math.gamma(1 - grows) * (100_000 / zeta(skew)) ** grows
        ours = by_workload[f"(a) Zeta draws, skew {skew}"]["100,000"]
        assert ours.mean == pytest.approx(1 - stored / 100_000, abs=0.01)


@pytest.mark.slow
def test_quick_run_meets_the_papers_share_on_bounded_keys(quick):
    verdict, files = quick
    assert verdict.reproduced
    assert verdict.ours["saved_bounded"].mean == pytest.approx(0.85, abs=0.05)
    assert verdict.ours["by_workload"]["(a) Zeta draws, skew 1.1"]["100,000"].mean == pytest.approx(
        0.57, abs=0.01
    )
    assert verdict.ours["claims"]["a: about three quarters are saved"] is None, (
        "too few events to judge"
    )
    assert verdict.ours["points_where_retention_and_distinct_keys_differ"] == 0
    assert verdict.ours["points_compared"] > 400
    written = json.loads(files["verdict"].read_bytes())
    assert {"paper", "ours", "reproduced", "beaten", "scale", "seeds"} <= written.keys()
    assert files["figure"].read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_voids_save_bytes_but_fewer_than_events(quick):
    """A row whose neighbours are void needs its own position and time."""
    ours = quick[0].ours
    assert 0.7 < ours["bytes_saved_log"].mean < ours["saved_bounded"].mean
    assert ours["bytes_saved_rejoin"].mean == pytest.approx(ours["bytes_saved_log"].mean, abs=0.01)


@pytest.mark.slow
def test_the_verdict_says_which_readings_contradict_the_paper(quick):
    assert quick[0].ours["in_other_readings"] == {
        "a: more skew saves more, with rank insertion": False,
        "b: new keys change little, their rank by Zeta": False,
    }


@pytest.mark.slow
def test_the_verdict_can_fail(quick):
    import pyarrow.parquet as pq

    rows = pq.read_table(quick[1]["table"]).to_pylist()
    assert verdict_of(rows).reproduced
    one_off = [dict(row) for row in rows]
    next(row for row in one_off if row["measure"] == "stored")["stored"] += 1
    assert not verdict_of(one_off).reproduced
    for reading, factor in (("fixed set", 2), ("1:10 new keys, least popular", 3)):
        worse = [
            row | {"stored": factor * row["stored"], "distinct": factor * (row["distinct"] or 0)}
            if row["reading"] == reading and row["skew"] == 1.1
            else row
            for row in rows
        ]
        assert not verdict_of(worse).reproduced
